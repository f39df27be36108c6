"""Attacks that a review tried: by a server that lies, by a node that lies, by a message that comes too late."""

import contextlib
import copy
import json
import os
import stat
import subprocess
import sys
import tracemalloc
import warnings
from dataclasses import replace

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedmls
from fedmls.federation import InProcess, Job, Node, NodeConfig, Stopped, drive
from fedmls.federation import secure_sums as secure
from fedmls.federation.codec import MessageError, unseal
from fedmls.federation.messages import Envelope, decode, pack_envelope, unpack_envelope
from fedmls.federation.server import replies
from fedmls.federation.server.replies import NodeRefused
from fedmls.federation.uploads import upload_shapes
from tests.support.crashes import Crash, Crashing
from tests.support.federations import federate, parts
from tests.support.hostile import ANYTHING, ARRAY, nested, packed, places, put
from tests.support.problems import svm

PROBLEM = svm(n=3, m=45)
JOB = {"rounds": 5, "batch": 0.4, "seed": 2}


def events(folder):
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


class Kept(Exception):
    """The transport has the messages that were wanted."""


class Until(InProcess):
    """Carries messages until that call, whose messages it keeps and does not deliver."""

    def __init__(self, configs, call):
        super().__init__(configs)
        self.call, self.kept = call, {}

    def exchange(self, messages, timeout):
        if self.calls + 1 == self.call:
            self.kept = {name: unpack_envelope(message) for name, message in messages.items()}
            raise Kept
        return super().exchange(messages, timeout)


def messages_of(call, configs, folder, **job):
    """The messages of the call of a run, which nodes have not got yet."""
    Job(**JOB | job).write(folder)
    transport = Until(configs, call)
    with pytest.raises(Kept):
        drive(folder, transport)
    return transport.kept


def asked(node, message, **body):
    return unpack_envelope(Node(node).answer(pack_envelope(message._replace(body=message.body | body))))


def same(reply, other):
    return pack_envelope(reply) == pack_envelope(other)


def pinned(configs):
    """The same nodes, each of which knows the keys of all."""
    keys = [secure.as_text(secure.public_key(secure.private_key(config.key_file))) for config in configs]
    return [NodeConfig(name=c.name, data=c.data, state=c.state, peers=keys) for c in configs]


# A server that lies


def test_no_mask_hides_two_values(tmp_path):
    """A question whose answer is nearly nothing but the mask, an earlier exchange with real training, and the first
    question again: the difference would be what the node has learned from its rows."""
    pytest.importorskip("cryptography")
    configs = pinned(parts(PROBLEM, tmp_path / "parts"))
    first = messages_of(3, configs, tmp_path, algorithm=fedmls.FedMLS(), impute=False, secure=True)["site-1"]
    still = [round_of(first, 1e-300)]
    far = first._replace(exchange=9)
    mask = asked(configs[0], far, rounds=still)
    assert mask.kind == "masked"
    trained = asked(configs[0], first._replace(exchange=2))
    again = asked(configs[0], far, rounds=still)
    assert trained.kind == "refused"
    assert "exchange 2 of the run" in trained.body["why"]
    assert np.array_equal(again.body["uploads"], mask.body["uploads"])


def round_of(message, mu1):
    """The message's round with steps of this size."""
    [wanted] = message.body["rounds"]
    return wanted | {"down": wanted["down"] | {"mu1": mu1}}


STEPS = st.sampled_from([1.0, 1e-300])


@given(
    questions=st.lists(st.tuples(st.integers(2, 6), st.integers(2, 6), STEPS), min_size=2, max_size=8),
    fresh=st.booleans(),
)
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_no_question_has_two_answers(questions, fresh, tmp_path_factory):
    """Whatever exchanges a server asks in, whatever it says that it knows, and in whatever order."""
    pytest.importorskip("cryptography")
    folder = tmp_path_factory.mktemp("questions")
    configs = parts(PROBLEM, folder / "parts")
    first = messages_of(3, configs, folder, algorithm=fedmls.FedMLS(), impute=False, secure=True)["site-2"]
    answers, node = {}, Node(configs[1])
    for exchange, after, mu1 in questions:
        among = [[i, after] for i in range(3)]
        body = {"after": after, "among": among, "rounds": [round_of(first, mu1)]}
        question = pack_envelope(first._replace(exchange=exchange, body=first.body | body))
        reply = unpack_envelope((Node(configs[1]) if fresh else node).answer(question))
        if reply.kind == "masked":
            told = answers.setdefault(question, reply.body["uploads"])
            assert np.array_equal(told, reply.body["uploads"])
            assert exchange == max(unpack_envelope(one).exchange for one in answers)


def test_a_message_that_comes_too_late_changes_nothing(tmp_path):
    """Exchange 5 arrives after exchange 16, both after exchange 2; the server goes on from 16."""
    configs = parts(PROBLEM, tmp_path / "parts")
    first = messages_of(3, configs, tmp_path, algorithm=fedmls.FedMLS())["site-1"]
    on_time = first._replace(exchange=16)
    told = asked(configs[0], on_time)
    late = asked(configs[0], first._replace(exchange=5))
    assert late.kind == "refused"
    assert "comes too late" in late.body["why"]
    assert same(asked(configs[0], on_time), told)
    following = first.body["rounds"][0] | {"k": 2}
    assert asked(configs[0], first._replace(exchange=17, round=2), after=16, rounds=[following]).kind == "done"


def test_an_exchange_has_one_set_of_points_and_one_work(tmp_path):
    configs = parts(PROBLEM, tmp_path / "parts")
    message = messages_of(4, configs, tmp_path, algorithm=fedmls.FedMLS())["site-1"]
    told = asked(configs[0], message, rounds=[])  # as one that stands by
    assert told.kind == "done"
    [point] = message.body["points"]
    other = asked(configs[0], message, points=[point | {"x": point["x"] + 1}])
    assert other.kind == "refused"
    assert "asked for other points before" in other.body["why"]
    whole = asked(configs[0], message)  # and then one that stands in
    assert whole.kind == "done"
    assert whole.body["values"] == told.body["values"]
    other = asked(configs[0], message, rounds=[message.body["rounds"][0] | {"k": 7}])
    assert "asked for other work before" in other.body["why"]
    unknown = asked(configs[0], message._replace(exchange=9), after=9)
    assert unknown.kind == "refused"  # nobody knows an exchange before it was


def sums_message(configs, folder, **job):
    return messages_of(2, configs, folder, algorithm=fedmls.FedAvg(), secure=True, **job)


def test_column_sums_are_told_once(tmp_path):
    """Over four nodes and then over three would be the fourth one's part."""
    pytest.importorskip("cryptography")
    configs = parts(svm(n=4, m=60), tmp_path / "parts")
    message = sums_message(configs, tmp_path, standardise=True)["site-1"]
    told = asked(configs[0], message)
    assert told.kind == "masked"
    assert same(asked(configs[0], message), told)
    keys, columns = message.body["keys"], message.body["columns"]
    for change, why in (
        ({"keys": keys[:3]}, "another keys"),
        ({"columns": columns[::-1]}, "another columns"),
        ({"client": 1, "keys": [keys[1], keys[0], *keys[2:]]}, "another keys"),
        ({"job": message.body["job"] | {"seed": 5}}, "another job"),
    ):
        for exchange in (2, 3):
            reply = asked(configs[0], message._replace(exchange=exchange), **change)
            assert reply.kind == "refused"
            assert why in reply.body["why"]
    means = np.zeros(4)
    assert asked(configs[0], message._replace(exchange=3), means=means).kind == "masked"
    reply = asked(configs[0], message._replace(exchange=4), means=means + 1)
    assert "another squares" in reply.body["why"]


@pytest.mark.parametrize("secure_", [False, True])
def test_column_sums_of_one_row_more_are_not_told(secure_, tmp_path):
    if secure_:
        pytest.importorskip("cryptography")
    configs = parts(PROBLEM, tmp_path / "parts")
    call = 2 if secure_ else 1
    message = messages_of(call, configs, tmp_path, algorithm=fedmls.FedAvg(), secure=secure_)["site-1"]
    assert asked(configs[0], message).kind in ("masked", "surveyed")
    with np.load(configs[0].data) as arrays:
        X, y = arrays["X"], arrays["y"]
    np.savez(configs[0].data, X=np.vstack([X, X[:1]]), y=np.append(y, y[0]))
    for again in (message, message._replace(exchange=message.exchange + 1)):
        reply = asked(configs[0], again)
        assert reply.kind == "refused"
        assert "its data have changed since the run began" in reply.body["why"]


def test_a_run_has_the_keys_that_its_sums_had(tmp_path):
    pytest.importorskip("cryptography")
    configs = parts(svm(n=4, m=60), tmp_path / "parts")
    begin = messages_of(3, configs, tmp_path, algorithm=fedmls.FedAvg(), secure=True)["site-1"]
    reply = asked(configs[0], begin, keys=begin.body["keys"][:3], n=3)
    assert "another keys" in reply.body["why"]
    assert asked(configs[0], begin).kind == "begun"


@pytest.mark.parametrize(
    ("algorithm", "job", "allowed"),
    [
        (fedmls.FedMLSD(), {}, False),
        (fedmls.FedMLSD(lam0=1.0), {}, True),
        (fedmls.FedMLS(lam0="auto"), {}, False),
        (fedmls.FedMLSE(lam0="auto"), {}, False),
        (fedmls.Compressed(algorithm=fedmls.FedMLSE(lam0="auto")), {}, False),
        (fedmls.Bundle(), {}, False),
        (fedmls.FedMLS(), {"certificate": 2.0}, False),
        (fedmls.FedMLS(), {}, True),
        (fedmls.Scaffold(), {}, True),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_who_does_not_tell_its_objective_takes_no_part_where_it_would(algorithm, job, allowed, tmp_path):
    configs = parts(PROBLEM, tmp_path / "parts", report_objective=False)
    Job(algorithm=algorithm, **JOB | job, report_objective=False).write(tmp_path)
    if allowed:
        drive(tmp_path, InProcess(configs))
        return
    with pytest.raises(Stopped, match=r"^node site-1 refuses: it does not tell its objective \(report_objective = fal"):
        drive(tmp_path, InProcess(configs))
    assert [event.get("kind") for event in events(tmp_path)] == [None]  # it is said before anything has begun


@pytest.mark.parametrize("name", fedmls.ALGORITHMS)
def test_what_reveals_the_objective_says_so(name):
    """An upload that holds f_i at the point that was sent down, or that times the client's weight."""
    from tests.support.algorithms import SMALL_STEPS

    made = fedmls.make(name, **SMALL_STEPS.get(name, {}))
    problem = svm(n=1, m=30, l2=0.1)
    auto = [replace(made, lam0="auto")] if name in ("fedmls", "fedmlse", "fedmlsd") else []
    for algorithm in (made, *auto):
        x0 = np.full(problem.dimension, 0.1)
        server, client = algorithm.init(x0, 4)
        told = []
        for k in (1, 2, 3):
            server, down = algorithm.broadcast(k, server, np.random.default_rng(0))
            local = problem.local_as(0, 4, 0.25)
            local.begin(k)
            values = [problem.value(v) for v in down if isinstance(v, np.ndarray) and v.shape == x0.shape]
            client, up = algorithm.client_round(k, client, down, local)
            assert isinstance(up, algorithm.Up)
            # f_i may come in parts, and without the l2 term, which the server knows.
            numbers = np.concatenate([*(np.ravel(field) for field in up), [np.sum(field) for field in up]])
            values += [problem.value(x0), problem.value(x0) - 0.05 * x0[:-1] @ x0[:-1]]
            told += [np.isclose(numbers, w * value, rtol=1e-9).any() for value in values for w in (1, 0.25)]
            server = algorithm.server_round(
                k,
                server,
                up if algorithm.traits.aggregate == "mean" else type(up)(*(np.stack([field] * 4) for field in up)),
            )
        assert any(told) == algorithm.traits.reveals_objective


# A node that lies


CRASHING = {
    "deep": lambda whole: whole["body"].update(rounds=nested(990)),
    "very deep": lambda whole: whole.update(schema=nested(400)),
    "schema": lambda whole: whole.update(schema=ARRAY),
    "kind": lambda whole: whole.update(kind=ARRAY),
    "run": lambda whole: whole.update(run=ARRAY),
    "exchange": lambda whole: whole.update(exchange=ARRAY),
    "k": lambda whole: whole["body"]["rounds"][0].update(k=ARRAY),
    "k of a value": lambda whole: whole["body"]["values"][0].update(k=ARRAY),
    "candidate": lambda whole: whole["body"]["values"][0].update(candidate=ARRAY),
    "steps": lambda whole: whole["body"]["rounds"][0].update(steps=ARRAY),
    "rounds": lambda whole: whole["body"].update(rounds=ARRAY),
    "control characters": lambda whole: whole["body"].update({"\x1b[31m": 1}),
}


def hostile(change):
    def corrupt(reply):
        whole = msgpack.unpackb(reply)
        if not whole["body"]["rounds"]:  # of one that was asked for its objective only
            return reply
        change(whole)
        return packed(whole)

    return corrupt


@pytest.mark.parametrize("kind", CRASHING)
@pytest.mark.parametrize("on_bad", ["stop", "without"])
def test_replies_that_would_break_the_server_are_rejected_by_name(kind, on_bad, tmp_path):
    configs = parts(svm(n=4, m=60), tmp_path / "parts")
    Job(algorithm=fedmls.FedAvg(participants=2), on_bad=on_bad, **JOB | {"rounds": 8}).write(tmp_path)
    corrupt = {(f"site-{i}", 4): hostile(CRASHING[kind]) for i in (1, 2, 3, 4)}
    if on_bad == "stop":
        with pytest.raises(Stopped, match=r"^node site-\d sent what was rejected: ") as stopped:
            drive(tmp_path, InProcess(configs, corrupt=corrupt))
        assert str(stopped.value).isprintable()
        return
    corrupt = {when: change for when, change in corrupt.items() if when[0] in ("site-1", "site-2")}
    drive(tmp_path, InProcess(configs, corrupt=corrupt))
    failed = {name for event in events(tmp_path) for name in event.get("failed", {})}
    assert failed <= {"site-1", "site-2"}


def test_a_check_that_fails_is_a_rejection_too(tmp_path, monkeypatch):
    def fails(data, asked, shapes):
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(replies, "done", fails)
    with pytest.raises(
        Stopped, match=r"^node site-1 sent what was rejected: a check of it failed \(ZeroDivisionError\)"
    ):
        federate(PROBLEM, tmp_path, algorithm=fedmls.FedAvg(), **JOB)


def good_replies(folder, **job):
    """A good reply of every kind, with what was asked and its check."""
    configs, checks = parts(PROBLEM, folder / "parts"), []
    wanted = Job(**JOB | job)
    shapes = upload_shapes(wanted.algorithm, 5, 3, wanted.certificate is not None, wanted.max_norm)
    kinds = {
        "survey": lambda data, asked: replies.surveyed(data, asked, wanted),
        "sums": lambda data, asked: replies.masked_sums(data, asked, 8),
        "begin": replies.begun,
        "round": lambda data, asked: (replies.masked if wanted.secure else replies.done)(data, asked, shapes),
    }
    for call in (1, 2, 3, 4, 5) if wanted.secure else (1, 2, 4):
        found = messages_of(call, configs, folder / str(call), **job)["site-1"]
        question = pack_envelope(found)
        checks.append((Node(configs[0]).answer(question), decode(question), kinds[found.kind]))
    return checks


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    found = good_replies(tmp_path_factory.mktemp("plain"), algorithm=fedmls.FedMLS(), certificate=2.0, standardise=True)
    with contextlib.suppress(ImportError):
        import cryptography  # noqa: F401

        found += good_replies(
            tmp_path_factory.mktemp("masked"), algorithm=fedmls.FedMLS(), standardise=True, secure=True
        )
    for data, asked_, check in found:
        check(data, asked_)
    return found


@given(data=st.data())
@settings(max_examples=600)
def test_no_reply_raises_anything_but_a_rejection(good, data):
    """Good replies of every kind with anything at all in the place of one or two of their parts."""
    reply, question, check = data.draw(st.sampled_from(good))
    whole = msgpack.unpackb(reply)
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(list(places(whole))))
        whole = put(whole, path, copy.deepcopy(data.draw(ANYTHING)))
    with contextlib.suppress(MessageError, NodeRefused):
        check(packed(whole), question)


@given(data=st.data())
@settings(max_examples=300)
def test_no_damage_raises_anything_but_a_rejection(good, data):
    reply, question, check = data.draw(st.sampled_from(good))
    at = data.draw(st.integers(0, len(reply) - 1))
    damaged = reply[:at] + data.draw(st.binary(max_size=6)) + reply[at + data.draw(st.integers(0, 6)) :]
    with contextlib.suppress(MessageError, NodeRefused):
        check(damaged, question)


@given(
    rows=st.integers(1, 2**62 - 1),
    sums=st.lists(st.floats(), min_size=4, max_size=4),
    squares=st.lists(st.floats(0), min_size=4, max_size=4),
    classes=st.lists(st.text(max_size=3), max_size=3),
    columns=st.lists(st.text(max_size=3), min_size=4, max_size=4, unique=True),
)
@settings(max_examples=200)
def test_whatever_passes_the_survey_is_agreed_on_or_named(rows, sums, squares, classes, columns):
    """Checks of one reply, and what is made of all of them: finite means and scales, positive weights that sum to 1."""
    from fedmls.federation.server.survey import agree

    wanted = Job(algorithm=fedmls.FedMLS(), rounds=1, standardise=True, weights="rows")
    question, found = Envelope("survey", "r", 1, 0, {"job": {}}), {}
    bodies = {
        "honest": {"rows": 9, "columns": list("abcd"), "classes": ["x", "y"], "sums": [1.0] * 4, "squares": [1.0] * 4},
        "liar": {"rows": rows, "columns": columns, "classes": classes, "sums": sums, "squares": squares},
        "second": {"rows": rows, "columns": list("abcd"), "classes": ["x", "y"], "sums": sums, "squares": squares},
    }
    for name, body in bodies.items():
        arrays = {key: np.array(body[key]) for key in ("sums", "squares")}
        whole = body | arrays | {"counts": np.full(4, 9), "reports_objective": True, "key": None}
        with contextlib.suppress(MessageError):
            found[name] = replies.surveyed(
                pack_envelope(question._replace(kind="surveyed", body=whole)), question, wanted
            )
    try:
        survey = agree(wanted, found)
    except ValueError as error:
        assert "liar" in str(error)  # noqa: PT017
        return
    assert np.isfinite(survey.means).all()
    assert np.isfinite(survey.scales).all()
    assert (survey.weights > 0).all()
    assert survey.weights.sum() == pytest.approx(1)


def test_a_few_bytes_take_no_more_memory_than_the_job_expects(tmp_path):
    """Twelve arrays, each below the limit of one; lists that say they are long; a million empty maps."""
    wanted = Job(algorithm=fedmls.FedMLS(), rounds=1)
    question = Envelope("survey", "r", 1, 0, {"job": {}})
    whole = {"schema": 1, "run": "r", "exchange": 1, "round": 0, "kind": "surveyed"}
    zeros = {"dtype": "float64", "shape": [8 * 2**20], "places": b"", "raw": b""}
    deep = b"\xdd\x00\x00\xff\xff" * 500
    for body in ([zeros] * 12, [{}] * 1_000_000, {"rows": [[]] * 100_000}):
        data = msgpack.packb(whole | {"body": body})
        check_memory(data, question, wanted)
    check_memory(msgpack.packb(whole)[:-1] + deep + bytes(66_000), question, wanted)


def check_memory(data, question, wanted):
    tracemalloc.start()
    try:
        with pytest.raises(MessageError):
            replies.surveyed(data, question, wanted)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def survey_with(**change):
    def corrupt(data):
        message = unpack_envelope(data)
        return pack_envelope(message._replace(body=message.body | change))

    return corrupt


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 2**62 - 1}, "rows is 4611686018427387903; at most 1000000000 are allowed"),
        ({"sums": np.array([0.0, 1e308, 0.0, 0.0])}, r"sums is 1e\+308 in column '1'; at most 1e\+140"),
        ({"squares": np.array([0.0, 0.0, 1e300, 0.0])}, r"squares is 1e\+300 in column '2'"),
    ],
)
def test_lies_before_round_1_are_found_out_by_name(change, message, tmp_path):
    configs = parts(PROBLEM, tmp_path / "parts")
    Job(algorithm=fedmls.FedMLS(), weights="rows", standardise=True, **JOB).write(tmp_path)
    corrupt = {(name, 1): survey_with(**change) for name in ("site-2", "site-3")}
    with pytest.raises(Stopped, match=f"^node site-2 sent what was rejected: {message}"):
        drive(tmp_path, InProcess(configs, corrupt=corrupt))


def test_words_of_a_transport_are_printable(tmp_path):
    class Hostile(InProcess):
        def exchange(self, messages, timeout):
            return {}, dict.fromkeys(messages, "\x1b]0;owned\x07 gone\n" + "x" * 5000)

    configs = parts(PROBLEM, tmp_path / "parts")
    Job(algorithm=fedmls.FedMLS(), on_missing="stop", **JOB).write(tmp_path)
    with pytest.raises(Stopped, match=r"^node site-1 does not answer: .\]0;owned. gone") as stopped:
        drive(tmp_path, Hostile(configs))
    assert str(stopped.value).isprintable()
    assert len(str(stopped.value)) < 3 * 1100


# Disks


def test_a_state_folder_that_cannot_be_written_is_told(tmp_path):
    """And nothing is raised: an engine would carry the traceback to the server."""
    (tmp_path / "file").touch()
    [config, *_] = parts(PROBLEM, tmp_path / "parts")
    config = NodeConfig(name="a", data=config.data, state=tmp_path / "file" / "state")
    survey = Envelope("survey", "r-1", 1, 0, {"job": Job(algorithm=fedmls.FedMLS(), **JOB).to_dict()})
    reply = unpack_envelope(Node(config).answer(pack_envelope(survey)))
    assert reply.kind == "refused"
    assert reply.body["why"] == "it failed (NotADirectoryError), and its state folder cannot be written"


def test_what_a_node_keeps_is_for_its_owner_alone(tmp_path):
    pytest.importorskip("cryptography")
    configs = parts(PROBLEM, tmp_path / "parts")
    configs[1].state.mkdir(parents=True)
    configs[1].state.chmod(0o755)
    before = os.umask(0)
    try:
        Job(algorithm=fedmls.FedAvg(), secure=True, **JOB).write(tmp_path)
        drive(tmp_path, InProcess(configs))
        Node(configs[0]).answer(pack_envelope(Envelope("survey", "r", 1, 0, {"job": 3})))
        Node(configs[0])._failed(RuntimeError("a row"))
    finally:
        os.umask(before)
    for config in configs:
        assert stat.S_IMODE(config.state.stat().st_mode) == 0o700
        files = [file for file in config.state.iterdir() if file.name != "lock"]
        assert len(files) >= 2
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


FULL = """
import resource, sys
from fedmls.federation import InProcess, NodeConfig, drive
from fedmls.federation.server import folder as files
save = files.RunFolder.save
def full(self, run, survey, snapshot):
    if snapshot.spent.exchanges == 4:  # no file may grow beyond this any more, as on a disk that is full
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, resource.RLIM_INFINITY))
    save(self, run, survey, snapshot)
files.RunFolder.save = full
nodes = [NodeConfig(name=n, data=d, state=s) for n, d, s in (a.split(",") for a in sys.argv[2:])]
try:
    drive(sys.argv[1], InProcess(nodes))
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.processes
def test_a_full_disk_is_told(tmp_path):
    configs = parts(PROBLEM, tmp_path / "parts")
    Job(algorithm=fedmls.FedMLS(), **JOB).write(tmp_path)
    nodes = [f"{config.name},{config.data},{config.state}" for config in configs]
    command = [sys.executable, "-c", FULL, str(tmp_path), *nodes]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert "Stopped [Errno 27] File too large" in done.stdout
    assert events(tmp_path)[-1] | {"time": 0} == {"time": 0, "event": "stopped", "why": "[Errno 27] File too large"}
    assert not list(tmp_path.glob("*.part"))
    result = drive(tmp_path, InProcess(configs))  # there is room again
    expected = fedmls.simulate(fedmls.FedMLS(), PROBLEM, optimum=None, **JOB)
    assert np.array_equal(result.x, expected.x)


def test_an_event_after_half_a_line_is_a_line_of_its_own(tmp_path):
    from fedmls.federation.server.folder import RunFolder

    Job(algorithm=fedmls.FedMLS(), **JOB).write(tmp_path)
    (tmp_path / "events.jsonl").write_text('{"event": "waiting"}\n{"event": "sto')
    RunFolder(tmp_path).event(event="stopped", why="full")
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert len(lines) == 3
    assert json.loads(lines[2])["why"] == "full"


# Runs that go on otherwise than they began


RESUMED = st.lists(st.tuples(st.integers(1, 6), st.booleans(), st.integers(1, 7)), max_size=3)


@given(resumed=RESUMED, paired=st.booleans(), secure_=st.booleans())
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_a_server_that_dies_may_go_on_with_other_rounds(resumed, paired, secure_, tmp_path_factory):
    """Nodes may have answered an exchange whose number the server would use again with other rounds in it."""
    if secure_:
        pytest.importorskip("cryptography")
    folder = tmp_path_factory.mktemp("resumed")
    configs, algorithm = parts(PROBLEM, folder / "parts"), fedmls.FedMLS(paired=paired)
    for call, delivered, rounds in resumed:
        Job(algorithm=algorithm, secure=secure_, **JOB | {"rounds": rounds}).write(folder)
        with contextlib.suppress(Crash):
            drive(folder, Crashing(configs, call=call, delivered=delivered))
    Job(algorithm=algorithm, secure=secure_, **JOB | {"rounds": 8}).write(folder)
    result = drive(folder, InProcess(configs))
    expected = fedmls.simulate(algorithm, PROBLEM, optimum=None, **JOB | {"rounds": 8})
    np.testing.assert_allclose(result.x, expected.x, rtol=0, atol=1e-12)


PRIVATE = {"report_objective": False, "impute": False, "rounds": 6}


@given(resumed=RESUMED, last=st.integers(1, 6), paired=st.booleans())
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_epsilon_is_that_of_what_was_released(resumed, last, paired, tmp_path_factory):
    """Of all rounds that any node has answered, whatever the server saw of them and whatever ``rounds`` says now."""
    pytest.importorskip("dp_accounting")
    pytest.importorskip("opendp")
    from fedmls.federation.privacy import Privacy

    folder, noise = tmp_path_factory.mktemp("private"), Privacy(clip=1.0, noise=20.0)
    configs, job = parts(PROBLEM, folder / "parts"), {"algorithm": fedmls.FedMLS(paired=paired), "privacy": noise}
    told = []
    for call, delivered, rounds in [*resumed, (0, False, last)]:
        Job(**JOB | PRIVATE | job | {"rounds": min(rounds, 6) if (folder / "checkpoint").exists() else 6}).write(folder)
        try:
            told.append(drive(folder, Crashing(configs, call=call, delivered=delivered)).epsilon)
        except Crash:
            told.append(None)
        except Stopped as stopped:
            assert "for which its ε was told" in str(stopped)  # noqa: PT017
            told.append(json.loads((folder / "setup.json").read_text())["epsilon"])
        released = [
            unpack_envelope(unseal(file.read_bytes())).body["released"] for file in folder.glob("parts/state/*/*.state")
        ]
        assert told[-1] is None or told[-1] >= noise.epsilon(max(released))
    assert told[-1] is not None


def test_fewer_rounds_do_not_make_epsilon_smaller(tmp_path):
    pytest.importorskip("dp_accounting")
    pytest.importorskip("opendp")
    from fedmls.federation.privacy import Privacy

    noise, configs = Privacy(clip=1.0, noise=20.0), parts(PROBLEM, tmp_path / "parts")
    for rounds in (10, 2):
        job = {"algorithm": fedmls.FedMLS(), "privacy": noise} | PRIVATE
        Job(**JOB | job | {"rounds": rounds}).write(tmp_path)
        result = drive(tmp_path, InProcess(configs))
        assert result.epsilon == noise.epsilon(10)
        assert json.loads((tmp_path / "setup.json").read_text())["epsilon"] == result.epsilon


def test_a_proof_is_of_the_gap_that_is_asked_for(tmp_path):
    """A run that was proved to a gap goes on to a smaller one, and is the run that asked for it from the beginning."""
    algorithm, problem = fedmls.FedMLS(lam=0.05, T=200), svm(n=3, m=60)
    run = {"algorithm": algorithm, "rounds": 60, "certificate": 2.0}
    configs = parts(problem, tmp_path / "parts")
    found = {}
    for until in (8.0, 0.5, 1.0, None):
        Job(**run, until=until).write(tmp_path)
        found[until] = drive(tmp_path, InProcess(configs))
    assert found[8.0].proved
    assert found[0.5].proved
    assert found[0.5].history["certified_gap"].iloc[-1] <= 0.5 < found[8.0].history["certified_gap"].iloc[-1]
    assert len(found[1.0].history) == len(found[0.5].history)  # it is proved, and nobody is asked again
    assert not found[None].proved
    for until in (0.5, None):
        expected = fedmls.simulate(algorithm, problem, rounds=60, certificate=2.0, until=until, optimum=None)
        np.testing.assert_allclose(found[until].x, expected.x, rtol=0, atol=1e-12)
        np.testing.assert_allclose(found[until].history["objective"], expected.history["objective"], rtol=1e-12)


# Commands for those who keep a node


def command(*arguments):
    with warnings.catch_warnings():  # typer takes from click what a newer click warns of
        warnings.simplefilter("ignore", DeprecationWarning)
        from typer.testing import CliRunner

        from fedmls.cli import app
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def written(config, folder, **more):
    """The configuration of a node in a file."""
    lines = {"name": config.name, "data": str(config.data), "state": str(config.state)} | more
    file = folder / f"{config.name}.toml"
    file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items()))
    return file


def test_a_run_that_was_cleared_is_gone_and_nothing_in_it_is_answered_again(tmp_path):
    configs = parts(PROBLEM, tmp_path / "parts")
    kept = messages_of(4, configs, tmp_path, algorithm=fedmls.FedMLS())["site-1"]
    file = written(configs[0], tmp_path)
    assert kept.run in command("runs", file).output
    wrong = command("runs", file, "--clear", "nothing")
    assert wrong.exit_code == 2
    assert f"no run 'nothing' is kept in {configs[0].state}; there are {kept.run}" in wrong.output
    assert command("runs", file, "--clear", kept.run).output == f"{kept.run} is cleared\n"
    assert not (configs[0].state / f"{kept.run}.state").exists()
    assert command("runs", file).output == ""
    survey = Envelope("survey", kept.run, 9, 0, {"job": Job(algorithm=fedmls.FedMLS(), **JOB).to_dict()})
    for message in (kept, survey):
        reply = asked(configs[0], message)
        assert reply.kind == "refused"
        assert f"the run {kept.run} was cleared here" in reply.body["why"]
    drive(tmp_path, InProcess(configs), resume=False)  # another run begins
    assert command("runs", file, "--clear-all").output.count("is cleared") == 1


def test_the_command_shows_and_checks_the_peers(tmp_path):
    pytest.importorskip("cryptography")
    configs = parts(PROBLEM, tmp_path / "parts")
    keys = [secure.as_text(secure.public_key(secure.private_key(config.key_file))) for config in configs]
    alone = command("peers", written(configs[0], tmp_path))
    assert alone.exit_code == 1
    assert "without them secure sums guard it against an honest server only" in alone.output
    for peers in (keys, keys[1:]):
        file = written(configs[0], tmp_path, peers=peers)
        for told in ((), keys, keys[1:]):
            good = command("peers", file, *told)
            assert good.exit_code == 0
            lines = good.output.splitlines()
            assert [line.split()[0] for line in lines] == keys
            assert lines[0].endswith("site-1 itself")
            assert lines[1].endswith(secure.fingerprint(secure.from_text(keys[1])))
    other = secure.as_text(bytes(32))
    for peers, told, why in (
        (keys, [keys[1], other], f"{other} is none of its peers"),
        (keys, [keys[1]], f"its peer {keys[2]} is none of the keys that were given"),
        ([keys[1], keys[1], keys[2]], [], f"{keys[1]} is there twice"),
        (keys[:2], [], "of 3 nodes, which a secure sum takes at least, it knows 2"),
    ):
        bad = command("peers", written(configs[0], tmp_path, peers=peers), *told)
        assert bad.exit_code == 1
        assert why in bad.output
    for peers, told in ((["mlgv"], []), (keys, ["mlgv"])):
        bad = command("peers", written(configs[0], tmp_path, peers=peers), *told)
        assert bad.exit_code == 2
        assert "'mlgv' is no public key of a node; fedmls key prints one" in bad.output
