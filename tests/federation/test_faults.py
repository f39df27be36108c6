"""What can go wrong: lost and repeated messages, dead clients and servers, lost states, broken and hostile replies."""

import json
import pickle
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedmls
from fedmls.federation import InProcess, Job, Node, Stopped, drive
from fedmls.federation.codec import unseal
from fedmls.federation.locks import exclusive
from fedmls.federation.messages import Envelope, pack_envelope, unpack_envelope
from fedmls.federation.server.driver import keeps_nothing
from tests.support.crashes import Crash, Crashing
from tests.support.federations import Processes, Recording, federate, kept_state, parts
from tests.support.problems import svm

PROBLEM = svm(n=3, m=45)
JOB = {"rounds": 5, "batch": 0.4, "seed": 2}


def simulated(algorithm, problem=PROBLEM, **job):
    return fedmls.simulate(algorithm, problem, optimum=None, **JOB | job).x


def events(folder):
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


WHEN = st.tuples(st.sampled_from(["site-1", "site-2", "site-3"]), st.integers(1, 9))


@given(
    drop=st.sets(WHEN, max_size=4),
    late=st.sets(WHEN, max_size=4),
    twice=st.sets(WHEN, max_size=4),
    crashes=st.lists(st.tuples(st.integers(1, 8), st.booleans()), max_size=3),
    algorithm=st.sampled_from([fedmls.FedMLS(paired=True), fedmls.Scaffold(), fedmls.GradSkip(q=0.8)]),
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_gets_lost_the_model_is_the_same(tmp_path_factory, drop, late, twice, crashes, algorithm):
    folder = tmp_path_factory.mktemp("faults")
    configs = parts(PROBLEM, folder / "parts")
    Job(algorithm=algorithm, timeout=1.0, **JOB).write(folder)
    for call, delivered in crashes:
        transport = Crashing(
            configs, call=call, delivered=delivered, drop=drop, late=late, twice=twice, fresh=delivered
        )
        try:
            drive(folder, transport)
        except Crash:
            continue
    result = drive(folder, InProcess(configs, drop=drop, late=late, twice=twice))
    assert np.array_equal(result.x, simulated(algorithm))


def test_a_message_delivered_twice_gets_the_same_reply_and_changes_nothing(tmp_path):
    """Of whatever kind it is, the last one of a run that was broken off."""
    for call in (1, 2, 4, 6, 8):  # survey, begin, rounds, close
        configs = parts(PROBLEM, tmp_path / str(call) / "parts")
        Job(algorithm=fedmls.Scaffold(), **JOB).write(tmp_path / str(call))
        transport = Recording(configs)
        transport.exchange = until(transport, call)
        with pytest.raises(Crash):
            drive(tmp_path / str(call), transport)
        name, message, reply = transport.carried[-1]
        config = next(config for config in configs if config.name == name)
        [file] = config.state.glob("*.state")
        before = file.read_bytes()
        for node in (Node(config), Node(config)):
            assert node.answer(message) == reply
        assert file.read_bytes() == before


def until(transport, last):
    """The transport's exchange, with which the server's machine is switched off after that call."""
    exchange = transport.exchange

    def crashing(messages, timeout):
        answer = exchange(messages, timeout)
        if transport.calls == last:
            raise Crash
        return answer

    return crashing


def test_while_it_waits_it_says_for_whom(tmp_path):
    result = federate(
        PROBLEM, tmp_path, faults={"drop": {("site-2", 4), ("site-2", 5)}}, algorithm=fedmls.FedMLS(), **JOB
    )
    assert np.array_equal(result.x, simulated(fedmls.FedMLS()))
    waiting = [event for event in events(tmp_path / "job") if event.get("event") == "waiting"]
    assert [list(event["nodes"]) for event in waiting] == [["site-2"], ["site-2"]]
    assert waiting[0]["nodes"]["site-2"] == "does not answer: nothing within 600 s"


def test_a_node_that_never_answers_stops_the_run_if_so_configured(tmp_path):
    configs = parts(PROBLEM, tmp_path / "parts")
    Job(algorithm=fedmls.FedMLS(), on_missing="stop", timeout=3.0, **JOB).write(tmp_path)
    with pytest.raises(Stopped, match=r"^node site-2 does not answer: nothing within 3 s$"):
        drive(tmp_path, InProcess(configs, drop={("site-2", call) for call in range(5, 99)}))
    assert events(tmp_path)[-1]["event"] == "stopped"
    setup = json.loads((tmp_path / "setup.json").read_text())
    assert setup["status"] == "stopped: node site-2 does not answer: nothing within 3 s"
    result = drive(tmp_path, InProcess(configs))  # it is back
    assert np.array_equal(result.x, simulated(fedmls.FedMLS()))


@pytest.mark.parametrize(
    "algorithm",
    [fedmls.FedMLSP(participants=2), fedmls.Scaffold(participants=2), fedmls.FedAvg(participants=2)],
    ids=lambda algorithm: algorithm.name,
)
def test_without_a_node_that_is_away_another_works_in_its_place(algorithm, tmp_path, monkeypatch):
    """Some replies come too late: the node has worked, nobody knows, and when it is asked again it must forget it."""
    monkeypatch.setattr("fedmls.federation.server.driver.ASIDE", 1)
    problem = svm(n=5, m=80)
    sent = []

    class Transport(InProcess):
        def exchange(self, messages, timeout):
            sent.extend((name, unpack_envelope(message)) for name, message in messages.items())
            return super().exchange(messages, timeout)

    configs = parts(problem, tmp_path / "parts")
    Job(algorithm=algorithm, rounds=30, on_missing="without", batch=0.4).write(tmp_path)
    drop = {("site-4", call) for call in range(5, 99)}
    late = {(name, call) for name in ("site-2", "site-5") for call in range(4, 99, 3)}
    result = drive(tmp_path, Transport(configs, drop=drop, late=late))
    assert len(result.history) == 30
    assert result.history["objective"].isna().any()  # site-4 was not there to tell its own
    failed = {name for event in events(tmp_path) for name in event.get("failed", ())}
    assert failed == {"site-4", "site-2", "site-5"}
    after = [(name, message.body["after"]) for name, message in sent if message.body.get("rounds")]
    assert len({pair for pair in after if pair[0] != "site-4" and after.count(pair) > 1}) > 2  # asked anew from there
    checkpoint = unpack_envelope(unseal((tmp_path / "checkpoint").read_bytes()))
    at = checkpoint.body["at"]
    states = [kept_state(config, checkpoint.run, at["answered"][i])["client"] for i, config in enumerate(configs)]
    for name in {"scaffold": ["c"], "fedmlsp": ["z"], "fedavg": []}[algorithm.name]:
        mean = np.mean([state[name] for state in states], axis=0)
        np.testing.assert_allclose(at["server"][name], mean, atol=1e-10)
    assert np.isfinite(result.x).all()


def test_without_has_an_end_when_too_few_are_left(tmp_path):
    configs = parts(PROBLEM, tmp_path / "parts")
    Job(algorithm=fedmls.FedAvg(participants=2), on_missing="without", **JOB).write(tmp_path)
    drop = {(name, call) for name in ("site-1", "site-3") for call in range(4, 99)}
    with pytest.raises(Stopped, match="a round takes 2 clients, and there are no others to ask: node site-"):
        drive(tmp_path, InProcess(configs, drop=drop))


def test_before_round_1_everybody_is_needed(tmp_path):
    configs = parts(PROBLEM, tmp_path / "parts")
    Job(algorithm=fedmls.FedAvg(participants=2), on_missing="without", **JOB).write(tmp_path)
    with pytest.raises(Stopped, match=r"^node site-3 does not answer"):
        drive(tmp_path, InProcess(configs, drop={("site-3", 2)}))


def test_a_node_that_failed_is_asked_again_later(tmp_path):
    configs = parts(svm(n=4, m=60), tmp_path / "parts")
    Job(algorithm=fedmls.FedAvg(participants=2), rounds=40, on_missing="without").write(tmp_path)
    drive(tmp_path, InProcess(configs, drop={("site-1", call) for call in range(1, 99) if 4 <= call <= 9}))
    objective = [event.get("objective") for event in events(tmp_path) if event.get("kind") == "round"]
    assert None in objective[2:14]
    assert None not in objective[30:]


# Lost and damaged states


def stopped_halfway(tmp_path, algorithm=None):
    """A run that was stopped after some rounds; its configurations, and the state file of site-2."""
    configs = parts(PROBLEM, tmp_path / "parts")
    Job(algorithm=algorithm or fedmls.FedMLS(), **JOB).write(tmp_path)
    with pytest.raises(Crash):
        drive(tmp_path, Crashing(configs, call=6))
    [file] = configs[1].state.glob("*.state")
    return configs, file


def test_a_lost_state_is_refused_and_a_new_run_begins_at_the_model(tmp_path):
    configs, file = stopped_halfway(tmp_path)
    file.unlink()
    with pytest.raises(Stopped, match=f"^node site-2 refuses: it has no state of the run {file.stem}: .* is not there"):
        drive(tmp_path, InProcess(configs))
    x = np.load(tmp_path / "model.npz")["x"]
    np.testing.assert_array_equal(x, simulated(fedmls.FedMLS(), rounds=3))
    result = drive(tmp_path, InProcess(configs), resume=False, start=tmp_path)
    np.testing.assert_array_equal(result.x, simulated(fedmls.FedMLS(), x0=x))


EMPTY = ("bundle", "fedavg", "fedmlsb", "fedprox", "subgradient")  # algorithms whose clients keep nothing


class Forgetful(InProcess):
    """A node's state files are deleted after these calls."""

    def __init__(self, configs, forgets):
        super().__init__(configs)
        self.configs, self.forgets = configs, forgets

    def exchange(self, messages, timeout):
        answer = super().exchange(messages, timeout)
        if self.forgets(self.calls):
            for file in self.configs[1].state.glob("*.state"):
                file.unlink()
        return answer


@pytest.mark.parametrize("name", fedmls.ALGORITHMS)
def test_a_lost_state_in_which_nothing_was_is_no_loss(name, tmp_path):
    """The node is told again how the run began; the model and the counts are those of a run that lost nothing."""
    algorithm = fedmls.FedMLSP(participants=3) if name == "fedmlsp" else fedmls.ALGORITHMS[name]()
    job = JOB | ({"l2": 0.1} if name == "cocoa" else {})
    problem = svm(n=3, m=45, l2=job.get("l2", 0.0))
    configs = parts(problem, tmp_path / "parts")
    Job(algorithm=algorithm, **job).write(tmp_path)
    forgetful = Forgetful(configs, lambda call: call in (3, 6))
    if name not in EMPTY:
        with pytest.raises(Stopped, match=r"^node site-2 refuses: it has no state of the run"):
            drive(tmp_path, forgetful)
        return
    result = drive(tmp_path, forgetful)
    run = fedmls.simulate(algorithm, problem, optimum=None, **JOB)
    np.testing.assert_array_equal(result.x, run.x)
    for column in ("local_steps", "subgradients"):
        np.testing.assert_array_equal(result.history[column], run.history[column])
    told = [event["nodes"] for event in events(tmp_path) if event.get("event") == "began again"]
    assert told == [["site-2"], ["site-2"]]


def test_beyond_200_coordinates_the_clients_of_fedmlsb_keep_something():
    job = Job(algorithm=fedmls.FedMLSB(), **JOB)
    assert keeps_nothing(job, np.zeros(200), 3)
    assert not keeps_nothing(job, np.zeros(201), 3)


def test_a_lost_state_of_a_run_that_was_stopped_is_no_loss_if_nothing_was_in_it(tmp_path):
    configs, file = stopped_halfway(tmp_path, fedmls.FedMLSB())
    file.unlink()
    result = drive(tmp_path, InProcess(configs))
    np.testing.assert_array_equal(result.x, simulated(fedmls.FedMLSB()))


def test_a_node_that_forgets_whatever_it_is_told_ends_the_run(tmp_path):
    configs = parts(PROBLEM, tmp_path / "parts")
    Job(algorithm=fedmls.FedMLSB(), **JOB).write(tmp_path)
    with pytest.raises(Stopped, match=r"^node site-2 refuses: it has no state of the run .* is not there"):
        drive(tmp_path, Forgetful(configs, lambda call: call >= 4))


def test_a_node_that_forgets_and_has_other_data_by_then_ends_the_run(tmp_path):
    configs, file = stopped_halfway(tmp_path, fedmls.FedMLSB())
    file.unlink()
    with np.load(configs[1].data) as arrays:
        X, y = arrays["X"], arrays["y"]
    X[3, 1] += 1e-6
    np.savez(configs[1].data, X=X, y=y)
    with pytest.raises(Stopped, match=r"^node site-2 has lost its state, and its data have changed"):
        drive(tmp_path, InProcess(configs))


def test_with_secure_sums_a_lost_state_is_refused_even_if_nothing_was_in_it(tmp_path):
    """It was what guarded that no mask hides two values."""
    configs = parts(PROBLEM, tmp_path / "parts")
    Job(algorithm=fedmls.FedMLSB(), secure=True, **JOB).write(tmp_path)
    with pytest.raises(Stopped, match=r"^node site-2 refuses: it has no state of the run"):
        drive(tmp_path, Forgetful(configs, lambda call: call == 4))


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data[:60] + b"?" + data[61:], lambda data: b""]
)
def test_a_damaged_state_is_refused(damage, tmp_path):
    configs, file = stopped_halfway(tmp_path)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(Stopped, match=r"^node site-2 refuses: its state of the run .* is damaged .*; a new run"):
        drive(tmp_path, InProcess(configs))


def test_an_old_copy_of_a_state_is_refused(tmp_path):
    configs = parts(PROBLEM, tmp_path / "parts")
    Job(algorithm=fedmls.FedMLS(), **JOB).write(tmp_path)
    with pytest.raises(Crash):
        drive(tmp_path, Crashing(configs, call=4))
    [file] = configs[1].state.glob("*.state")
    old = file.read_bytes()
    with pytest.raises(Crash):
        drive(tmp_path, Crashing(configs, call=3))
    file.write_bytes(old)
    with pytest.raises(Stopped, match=r"^node site-2 refuses: its state .* is that after exchange 3, and the server"):
        drive(tmp_path, InProcess(configs))


def test_changed_data_are_refused(tmp_path):
    configs, _ = stopped_halfway(tmp_path)
    with np.load(configs[1].data) as arrays:
        X, y = arrays["X"], arrays["y"]
    X[3, 1] += 1e-6
    np.savez(configs[1].data, X=X, y=y)
    for fresh in (False, True):
        with pytest.raises(Stopped, match=r"^node site-2 refuses: its data have changed since the run began"):
            drive(tmp_path, InProcess(configs, fresh=fresh))


def test_a_run_begins_once(tmp_path):
    configs = parts(PROBLEM, tmp_path / "parts")
    Job(algorithm=fedmls.FedMLS(), **JOB).write(tmp_path)
    transport = Recording(configs)
    drive(tmp_path, transport)
    told = [message for name, message, _ in transport.carried if name == configs[0].name]
    begin = next(message for message in told if unpack_envelope(message).kind == "begin")
    other = unpack_envelope(begin)
    other = pack_envelope(other._replace(body=other.body | {"weight": 0.5}))
    reply = unpack_envelope(Node(configs[0]).answer(other))
    assert reply.kind == "refused"
    assert "has begun here already" in reply.body["why"]


# Processes that are killed


@pytest.mark.parametrize("where", ["before", "during", "after"])
def test_a_client_killed_in_mid_round_goes_on_where_it_was(where, tmp_path):
    problem = svm(n=2, m=30)
    for config in parts(problem, tmp_path / "parts"):
        text = f'name = "{config.name}"\ndata = "{config.data.name}"\nstate = "state/{config.name}"\n'
        (tmp_path / "parts" / f"{config.name}.toml").write_text(text)
    Job(algorithm=fedmls.Scaffold(), **JOB).write(tmp_path)
    files = sorted((tmp_path / "parts").glob("*.toml"))
    with Processes(files, kill={"site-2": f"5 {where}"}) as transport:
        result = drive(tmp_path, transport)
        assert transport.deaths == 1
    assert np.array_equal(result.x, simulated(fedmls.Scaffold(), problem))


SERVER = """
import os, signal, sys
from fedmls.federation import InProcess, NodeConfig, drive
from fedmls.federation.server import folder as files
where, exchange, job = sys.argv[1], int(sys.argv[2]), sys.argv[3]
save = files.RunFolder.save
def killed(self, run, survey, snapshot):
    number = snapshot.spent.exchanges
    if number == exchange and where == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    save(self, run, survey, snapshot)
    if number == exchange:
        os.kill(os.getpid(), signal.SIGKILL)
files.RunFolder.save = killed
drive(job, InProcess([NodeConfig(name=n, data=d, state=s) for n, d, s in (a.split(",") for a in sys.argv[4:])]))
"""


@pytest.mark.processes
@pytest.mark.parametrize(("where", "exchange"), [("before", 5), ("after", 4), ("after", 2)])
def test_a_server_killed_goes_on_to_the_same_model(where, exchange, tmp_path):
    configs = parts(PROBLEM, tmp_path / "parts")
    Job(algorithm=fedmls.FedMLS(), certificate=2.0, **JOB).write(tmp_path)
    nodes = [f"{config.name},{config.data},{config.state}" for config in configs]
    command = [sys.executable, "-c", SERVER, where, str(exchange), str(tmp_path), *nodes]
    assert subprocess.run(command, timeout=300, check=False).returncode == -signal.SIGKILL
    assert not (tmp_path / "model.npz").exists()
    result = drive(tmp_path, InProcess(configs), resume=True)
    run = fedmls.simulate(fedmls.FedMLS(), PROBLEM, optimum=None, certificate=2.0, **JOB)
    assert np.array_equal(result.x, run.x)
    np.testing.assert_allclose(result.history["lower_bound"], run.history["lower_bound"], rtol=1e-12)
    assert result.history["round"].tolist() == [1, 2, 3, 4, 5]


HOLDER = """
import sys, time
from pathlib import Path
from fedmls.federation.locks import exclusive
with exclusive(Path(sys.argv[1]), wait=False):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.processes
def test_two_servers_do_not_share_a_folder(tmp_path):
    """The second is refused and writes nothing; when the first is killed, the kernel gives its lock back."""
    configs = parts(PROBLEM, tmp_path / "parts")
    job = tmp_path / "job"
    Job(algorithm=fedmls.FedMLS(), **JOB).write(job)
    before = sorted(job.iterdir())
    command = [sys.executable, "-c", HOLDER, str(job / "lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        try:
            assert first.stdout.readline() == "held\n"
            for resume in (None, False):
                with pytest.raises(Stopped, match="another server is at work in"):
                    drive(job, InProcess(configs), resume=resume)
            assert sorted(job.iterdir()) == [*before, job / "lock"]
        finally:
            first.kill()
    result = drive(job, InProcess(configs))
    np.testing.assert_array_equal(result.x, simulated(fedmls.FedMLS()))


def test_a_server_within_a_server_is_one_too_many(tmp_path):
    configs = parts(PROBLEM, tmp_path / "parts")
    Job(algorithm=fedmls.FedMLS(), **JOB).write(tmp_path)

    class Nested(InProcess):
        def exchange(self, messages, timeout):
            with pytest.raises(Stopped, match="another server is at work in"):
                drive(tmp_path, InProcess(configs))
            return super().exchange(messages, timeout)

    result = drive(tmp_path, Nested(configs))
    np.testing.assert_array_equal(result.x, simulated(fedmls.FedMLS()))


# Broken and hostile replies


def changed(**new):
    """A reply with another header or body."""
    return lambda data: pack_envelope(unpack_envelope(data)._replace(**new))


def upload(change):
    """A reply whose first upload is changed in place."""

    def corrupt(data):
        message = unpack_envelope(data)
        change(message.body["rounds"][0])
        return pack_envelope(message)

    return corrupt


def put(value):
    return upload(lambda found: found["up"].update(y=value))


def gigabyte(data):
    """A few bytes that say they are a gigabyte."""
    import msgpack

    whole = msgpack.unpackb(data)
    whole["body"]["rounds"][0]["up"]["y"] = {"dtype": "float64", "shape": [2**27], "places": b"", "raw": b""}
    return msgpack.packb(whole)


def with_entry(entry, value):
    def change(found):
        found["up"]["y"] = found["up"]["y"].copy()
        found["up"]["y"][entry] = value

    return upload(change)


HOSTILE = {
    "nan": (with_entry(0, np.nan), "y holds values that are not finite"),
    "infinite": (with_entry(-1, np.inf), "y holds values that are not finite"),
    "too short": (put(np.zeros(4)), r"y has shape \(4,\), not \(5,\)"),
    "two dimensions": (put(np.zeros((1, 5))), r"y has shape \(1, 5\), not \(5,\)"),
    "whole numbers": (put(np.zeros(5, dtype=np.int64)), "y is no array of float64"),
    "a list": (put([0.0] * 5), "y is no array of float64"),
    "a number": (put(1.0), "y is no array of float64"),
    "field missing": (upload(lambda found: found["up"].pop("y")), "an upload without y"),
    "another field": (upload(lambda found: found["up"].update(x=np.zeros(5))), "an upload with the unknown x"),
    "no fields": (upload(lambda found: found.update(up=[1])), "an upload is no map of fields"),
    "more in the round": (upload(lambda found: found.update(rows=np.zeros(5))), "a round with the unknown rows"),
    "another round": (upload(lambda found: found.update(k=1)), "an upload for round 1, not 2"),
    "another round in the header": (
        changed(round=1),
        "a reply for exchange 4 and round 1, not for exchange 4 and round 2",
    ),
    "another exchange": (changed(exchange=3), "a reply for exchange 3 and round 2"),
    "another run": (changed(run="other-1"), "a reply for the run other-1, not run-"),
    "another kind": (changed(kind="begun", body={"lipschitz": 1.0}), "a reply of the kind 'begun', not 'done'"),
    "absurd norm": (put(np.full(5, 1e12)), r"y has norm 2.24e\+12; at most 1e\+09 is allowed"),
    "overflowing norm": (put(np.full(5, 1e200)), "y has norm inf"),
    "a gigabyte": (gigabyte, "an array of 1,073,741,824 bytes; at most"),
    "too long": (lambda data: data + bytes(10**6), r"a message of 1,000,\d+ bytes; at most"),
    "cut off": (lambda data: data[:-1], "no message"),
    "something after it": (lambda data: data + b"\0", "no message"),
    "pickled": (lambda data: pickle.dumps({"y": [0.0]}), "no message"),
    "nothing": (lambda data: b"", "no message"),
    "no uploads": (changed(body={"rounds": [], "values": []}), "rounds has not 1 entries"),
    "a cut nobody asked for": (
        upload(lambda found: found.update(cut={"a": 0.0, "p": np.zeros(5)})),
        "a cut that was not",
    ),
    "negative steps": (upload(lambda found: found.update(steps=-1)), "steps is -1"),
    "steps that are none": (upload(lambda found: found.update(steps="many")), "steps is 'many'"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_uploads_are_rejected_by_name_and_the_model_is_untouched(kind, tmp_path):
    corrupt, message = HOSTILE[kind]
    configs = parts(PROBLEM, tmp_path / "parts")
    Job(algorithm=fedmls.FedMLS(), **JOB).write(tmp_path)
    transport = InProcess(configs, corrupt={("site-2", 4): corrupt})  # round 2
    before = {}
    exchange = transport.exchange

    def watched(messages, timeout):
        before.update(checkpoint=(tmp_path / "checkpoint").read_bytes() if (tmp_path / "checkpoint").exists() else b"")
        return exchange(messages, timeout)

    transport.exchange = watched
    with pytest.raises(Stopped, match=rf"^node site-2 sent what was rejected: .*{message}"):
        drive(tmp_path, transport)
    assert (tmp_path / "checkpoint").read_bytes() == before["checkpoint"]
    np.testing.assert_array_equal(np.load(tmp_path / "model.npz")["x"], simulated(fedmls.FedMLS(), rounds=1))
    result = drive(tmp_path, InProcess(configs))  # the node has mended its ways
    np.testing.assert_array_equal(result.x, simulated(fedmls.FedMLS()))


@pytest.mark.parametrize("kind", ["nan", "too short", "a gigabyte", "another run", "absurd norm"])
def test_a_hostile_node_is_left_out_if_so_configured(kind, tmp_path):
    corrupt, _ = HOSTILE[kind]
    problem, algorithm = svm(n=4, m=60), fedmls.FedMLSP(participants=2)
    configs = parts(problem, tmp_path / "parts")

    def hostile(data):
        if not unpack_envelope(data).body["rounds"]:
            return data
        return corrupt(data) if kind in ("another run", "a gigabyte") else _in_field(corrupt, data)

    Job(algorithm=algorithm, rounds=25, on_bad="without").write(tmp_path)
    faults = {("site-3", call): hostile for call in range(3, 99)}
    result = drive(tmp_path, InProcess(configs, corrupt=faults))
    assert np.isfinite(result.x).all()
    failed = [event["failed"] for event in events(tmp_path) if event.get("failed")]
    assert failed
    assert all(list(one) == ["site-3"] and "rejected" in one["site-3"] for one in failed)
    checkpoint = unpack_envelope(unseal((tmp_path / "checkpoint").read_bytes()))
    assert checkpoint.body["at"]["answered"][2] == 2  # nothing of it was ever used


def _in_field(corrupt, data):
    """The corruption of FedMLS's y, done to FedMLS-P's du."""
    message = unpack_envelope(data)
    for found in message.body["rounds"]:
        found["up"] = {"y": found["up"]["du"], "du_tilde": found["up"]["du_tilde"]}
    message = unpack_envelope(corrupt(pack_envelope(message)))
    for found in message.body["rounds"]:
        found["up"]["du"] = found["up"].pop("y")
    return pack_envelope(message)


def survey_with(**change):
    def corrupt(data):
        message = unpack_envelope(data)
        return pack_envelope(message._replace(body=message.body | change))

    return corrupt


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 0}, "rows is 0"),
        ({"rows": 1.5}, "rows is 1.5"),
        ({"columns": ["a", "a", "b", "c"]}, "its columns are none, or two have one name"),
        ({"columns": []}, "its columns are none"),
        ({"columns": [1, 2, 3, 4]}, "columns is no list of names"),
        ({"classes": ["1", "2", "3"]}, "classes has 3 labels"),
        ({"classes": None}, "classes is no list of names"),
        ({"counts": np.full(4, 99)}, "counts holds numbers outside of 0..15"),
        ({"counts": None}, "counts is no array of int64"),
        ({"sums": np.full(4, np.nan)}, "sums holds values that are not finite"),
        ({"sums": np.zeros(3)}, r"sums has shape \(3,\), not \(4,\)"),
        ({"squares": np.full(4, -1.0)}, "squares holds negative numbers"),
        ({"reports_objective": "yes"}, "reports_objective is no truth value"),
    ],
)
def test_hostile_surveys_are_rejected(change, message, tmp_path):
    configs = parts(PROBLEM, tmp_path / "parts")
    Job(algorithm=fedmls.FedMLS(), standardise=True, **JOB).write(tmp_path)
    with pytest.raises(Stopped, match=f"^node site-1 sent what was rejected: {message}"):
        drive(tmp_path, InProcess(configs, corrupt={("site-1", 1): survey_with(**change)}))


@pytest.mark.parametrize("G", [np.nan, -1.0, "big", None, 3])
def test_hostile_bounds_are_rejected(G, tmp_path):
    configs = parts(PROBLEM, tmp_path / "parts")
    Job(algorithm=fedmls.FedMLS(), **JOB).write(tmp_path)
    corrupt = {("site-1", 2): survey_with(lipschitz=G)}
    with pytest.raises(Stopped, match=r"^node site-1 sent what was rejected: lipschitz is"):
        drive(tmp_path, InProcess(configs, corrupt=corrupt))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.nan, "value is nan"),
        (np.inf, "value is inf"),
        ("small", "value is 'small'"),
        (np.zeros(3), "value is array"),
        (1, "value is 1, which is no finite number"),
    ],
)
def test_hostile_objectives_are_rejected(value, message, tmp_path):
    def corrupt(data):
        reply = unpack_envelope(data)
        reply.body["values"][0]["value"] = value
        return pack_envelope(reply)

    configs = parts(PROBLEM, tmp_path / "parts")
    Job(algorithm=fedmls.FedMLS(), **JOB).write(tmp_path)
    with pytest.raises(Stopped, match=f"^node site-1 sent what was rejected: {message}"):
        drive(tmp_path, InProcess(configs, corrupt={("site-1", 4): corrupt}))


def test_hostile_cuts_are_rejected(tmp_path):
    configs = parts(PROBLEM, tmp_path / "parts")
    Job(algorithm=fedmls.FedMLS(), certificate=2.0, **JOB).write(tmp_path)
    for cut, message in (
        (None, "a cut is no map of fields"),
        ({"a": np.nan, "p": np.zeros(5)}, "a is nan"),
        ({"a": 0.0, "p": np.zeros(6)}, "p has shape"),
        ({"a": 0.0, "p": np.full(5, 1e10)}, "p has norm"),
    ):
        corrupt = {("site-1", 3): upload(lambda found, cut=cut: found.update(cut=cut))}
        with pytest.raises(Stopped, match=f"^node site-1 sent what was rejected: {message}"):
            drive(tmp_path, InProcess(configs, corrupt=corrupt), resume=False)


def test_a_refusal_is_told_in_printable_words(tmp_path):
    configs = parts(PROBLEM, tmp_path / "parts")
    Job(algorithm=fedmls.FedMLS(), **JOB).write(tmp_path)
    for why, told in (("\x1b[31mred", "does not say why"), (["a"], "does not say why"), ("x" * 3000, "x" * 1000)):
        corrupt = {("site-1", 1): changed(kind="refused", body={"why": why})}
        with pytest.raises(Stopped, match=f"^node site-1 refuses: .*{told}$"):
            drive(tmp_path, InProcess(configs, corrupt=corrupt), resume=False)


def test_a_run_that_diverges_says_so(tmp_path):
    with pytest.raises(Stopped, match=r"node site-1 sent what was rejected: u has norm .*; node site-2 .* node site-3"):
        federate(PROBLEM, tmp_path, algorithm=fedmls.FedAvg(eta=1e9, T=20), l2=1.0, rounds=50)


def test_one_message_at_a_time(tmp_path):
    """A slow answer must not overwrite the state of a later one: whoever has a message for the same state waits."""
    config = parts(PROBLEM, tmp_path / "parts")[0]
    config.state.mkdir(parents=True)
    answered = threading.Event()
    survey = pack_envelope(Envelope("survey", "r-1", 1, 0, {"job": Job(algorithm=fedmls.FedMLS(), **JOB).to_dict()}))

    def second():
        Node(config).answer(survey)
        answered.set()

    thread = threading.Thread(target=second)
    with exclusive(config.state / "lock", wait=True):
        thread.start()
        assert not answered.wait(0.2)
    assert answered.wait(60)
    thread.join()


def test_a_message_of_the_wrong_kind_is_refused(tmp_path):
    configs = parts(PROBLEM, tmp_path / "parts")
    reply = unpack_envelope(Node(configs[0]).answer(pack_envelope(Envelope("begun", "r", 1, 0, {"lipschitz": 1.0}))))
    assert reply.kind == "refused"
    assert reply.body["why"] == "a node answers no message of the kind 'begun'"
