"""Secure sums: the same model, nothing else to be read, and what becomes of those who drop out, lie or lose a key."""

import itertools
import json
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import fedmls
from fedmls.federation import InProcess, Job, MessageError, Node, NodeConfig, Stopped, drive
from fedmls.federation import privacy as privacies
from fedmls.federation import secure_sums as secure
from fedmls.federation.codec import unseal
from fedmls.federation.messages import Envelope, pack_envelope, unpack_envelope
from fedmls.federation.privacy import Privacy
from tests.support.agreement import SAME, WEIGHTS, check_same, named
from tests.support.algorithms import SMALL_STEPS
from tests.support.crashes import Crash, Crashing
from tests.support.federations import Recording, federate, kept_state, parts
from tests.support.problems import lad, svm

pytest.importorskip("cryptography")

PROBLEM = svm(n=4, m=45)
JOB = {"rounds": 5, "batch": 0.4, "seed": 2, "secure": True}
SUMMABLE = [name for name in fedmls.ALGORITHMS if name != "bundle"]
FITS = st.floats(-1e15, 1e15)


def simulated(algorithm, problem=PROBLEM, **job):
    settings = {name: value for name, value in (JOB | job).items() if name != "secure"}
    return fedmls.simulate(algorithm, problem, optimum=None, **settings).x


def events(folder):
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def of_nodes(n, folder):
    """Keys of so many nodes, private and public."""
    private = [secure.private_key(folder / f"{i}.key") for i in range(n)]
    return private, [secure.public_key(key) for key in private]


# The numbers


@given(npst.arrays(float, st.tuples(st.integers(1, 12), st.integers(1, 6)), elements=FITS))
def test_sums_are_exact_but_for_steps_of_2_to_the_minus_64(values):
    n = len(values)
    words = secure.fixed(values[0], n)
    for row in values[1:]:
        words = secure.plus(words, secure.fixed(row, n))
    for found, column in zip(secure.real(words), values.T, strict=True):
        exact = sum(map(Fraction, column.tolist()))
        assert abs(Fraction(found) - exact) <= Fraction(n, 2**65) + abs(exact) / 2**51


@given(st.floats(allow_nan=False), st.integers(1, 1000))
def test_what_does_not_fit_is_refused_and_nothing_is_clipped(value, n):
    if abs(value) < 2.0**63 / n:
        assert secure.real(secure.fixed(np.array([value]), n))[0] == pytest.approx(value, rel=2**-52, abs=2**-65)
    else:
        with pytest.raises(ValueError, match="does not fit into a secure sum"):
            secure.fixed(np.array([value]), n)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ValueError, match="does not fit"):
        secure.fixed(np.array([0.0, value]), 3)


@pytest.mark.parametrize("n", [3, 7, 1000])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_largest_numbers_that_fit_do_not_overflow(n, sign):
    largest = sign * np.nextafter(2.0**63 / n, 0)
    words = secure.fixed(np.array([largest]), n)
    for _ in range(n - 1):
        words = secure.plus(words, secure.fixed(np.array([largest]), n))
    assert secure.real(words)[0] == pytest.approx(n * largest, rel=1e-15)


@given(a=npst.arrays(np.uint64, (2, 3)), b=npst.arrays(np.uint64, (2, 3)))
def test_words_are_numbers_modulo_2_to_the_128(a, b):
    def whole(words):
        return [low + 2**64 * high for low, high in words.T.tolist()]

    for x, y, z in zip(whole(a), whole(b), whole(secure.plus(a, b)), strict=True):
        assert z == (x + y) % 2**128
    for x, y in zip(whole(a), whole(secure.negative(a)), strict=True):
        assert y == -x % 2**128


# The masks


def test_masks_cancel_in_the_whole_sum_and_in_no_part_of_it(tmp_path):
    private, public = of_nodes(5, tmp_path)
    among, rng = [0, 2, 3, 4], np.random.default_rng(0)
    values = {i: rng.normal(size=6) for i in among}
    sent = {i: secure.masked(values[i], private[i], public, i, among, b"question") for i in among}
    np.testing.assert_allclose(secure.total(sent.values()), sum(values.values()), rtol=0, atol=1e-15)
    for size in range(1, 4):
        for some in itertools.combinations(among, size):
            with pytest.raises(MessageError, match="the masks do not cancel"):
                secure.total(sent[i] for i in some)


def test_another_question_another_set_and_another_key_have_other_masks(tmp_path):
    private, public = of_nodes(5, tmp_path)
    zeros = np.zeros(50)
    sent = [
        secure.masked(zeros, private[0], public, 0, among, question)
        for among in ([0, 1, 2], [0, 1, 3], [0, 1, 2, 3])
        for question in (b"one", b"two")
    ]
    sent.append(secure.masked(zeros, private[4], public, 4, [4, 1, 2], b"one"))
    for a, b in itertools.combinations(sent, 2):
        assert not (a == b).any()  # of 51 · 2 words of 64 random bits each
    again = secure.masked(zeros, private[0], public, 0, [0, 1, 2], b"one")
    assert np.array_equal(again, sent[0])


def test_a_mask_is_as_even_as_random_bits(tmp_path):
    private, public = of_nodes(3, tmp_path)
    words = secure.masked(np.zeros(50_000), private[0], public, 0, [0, 1, 2], b"question")
    ones = np.unpackbits(words.view(np.uint8)).mean()
    assert abs(ones - 0.5) < 5 / math.sqrt(4 * words.size * 64)


# The model


@pytest.mark.parametrize("name", SUMMABLE)
def test_every_algorithm_gives_the_simulations_model(name, tmp_path):
    algorithm = fedmls.make(name, **SMALL_STEPS.get(name, {}))
    if algorithm.participants:
        algorithm = fedmls.make(name, **SMALL_STEPS.get(name, {}) | {"participants": 3})
    weights = None if algorithm.participants else WEIGHTS
    problem = svm(n=4, m=50, weights=weights, l2=0.1)
    run = {"rounds": 7, "batch": 0.3, "seed": 9}
    weighted = named(weights) if weights else "equal"
    result = federate(problem, tmp_path, algorithm=algorithm, l2=0.1, weights=weighted, secure=True, **run)
    # ADMM's prox goes on until it is exact, and the last bit of a mean may take it some passes more
    columns = ("round", "objective") if name == "admm" else SAME
    check_same(result, fedmls.simulate(algorithm, problem, optimum=None, **run), columns)


@pytest.mark.parametrize(
    ("algorithm", "run"),
    [
        (fedmls.FedMLS(paired=True, output="best", radius=0.5), {"rounds": 7}),
        (fedmls.FedMLS(lam=0.05, T=200, paired=True), {"rounds": 60, "certificate": 2.0, "until": 0.5, "batch": 1.0}),
        (fedmls.FedMLS(paired=True), {"rounds": 9, "certificate": 2.0, "every": 2}),
        (fedmls.FedMLS(lam0="auto", paired=True), {"rounds": 13}),
        (fedmls.FedMLSD(lam0="auto"), {"rounds": 7, "certificate": 2.0}),
        (fedmls.FedMLSE(output="best"), {"rounds": 7, "every": 3}),
        (fedmls.Scaffold(participants=3, option="I"), {"rounds": 9}),
        (fedmls.Compressed(algorithm=fedmls.FedMLS(paired=True), level=0.4), {"rounds": 7}),
    ],
    ids=lambda value: value.name if hasattr(value, "name") else None,
)
def test_with_everything_that_can_be_set(algorithm, run, tmp_path):
    problem, run = svm(n=4, m=80), {"batch": 0.3, "seed": 5} | run
    result = federate(problem, tmp_path, algorithm=algorithm, secure=True, **run)
    check_same(result, fedmls.simulate(algorithm, problem, optimum=None, **run))
    assert result.proved == ("until" in run)


def test_fresh_nodes_and_repeated_messages(tmp_path):
    faults = {"fresh": True, "twice": {("site-1", call) for call in range(1, 20)}}
    result = federate(PROBLEM, tmp_path, faults=faults, algorithm=fedmls.Scaffold(), **JOB)
    np.testing.assert_allclose(result.x, simulated(fedmls.Scaffold()), rtol=0, atol=1e-12)


@pytest.mark.parametrize("standardise", [False, True])
def test_column_sums_are_secure_too(standardise, tmp_path):
    """Missing values, columns in another order, a node without a value in a column: as in a plain run."""
    problem, rng = lad(n=3, m=60), np.random.default_rng(0)
    configs = parts(problem, tmp_path / "parts", min_rows=1)
    for i, config in enumerate(configs):
        with np.load(config.data) as arrays:
            X, y = 1e3 * arrays["X"] + 7, arrays["y"]
        X[rng.random(X.shape) < 0.2] = np.nan
        X[:, 0] = np.nan if i == 1 else X[:, 0]
        names = np.array([f"c{j}" for j in range(X.shape[1])])
        order = rng.permutation(len(names))
        np.savez(config.data, X=X[:, order], y=y, columns=names[order])
    job = {"algorithm": fedmls.FedMLS(lam0=1e-4), "rounds": 4, "loss": "absolute", "standardise": standardise}
    found = {}
    for hidden in (False, True):
        Job(**job, secure=hidden).write(tmp_path / str(hidden))
        transport = Recording(configs)
        found[hidden] = drive(tmp_path / str(hidden), transport)
    np.testing.assert_allclose(found[True].x, found[False].x, rtol=1e-9, atol=1e-12)
    models = [dict(np.load(tmp_path / str(hidden) / "model.npz")) for hidden in (False, True)]
    for name in ("means", "scales"):
        np.testing.assert_allclose(models[1][name], models[0][name], rtol=1e-12)
    more = found[True].history["exchanges"].iloc[-1] - found[False].history["exchanges"].iloc[-1]
    assert more == 1 + standardise
    kinds = [event["kind"] for event in events(tmp_path / "True") if "kind" in event]
    assert kinds[: 2 + more] == ["survey", *["sums"] * more, "begin"]


def test_columns_too_small_for_the_sums_are_refused(tmp_path):
    problem = svm(n=3, m=60)
    configs = parts(problem, tmp_path / "parts")
    for config in configs:
        with np.load(config.data) as arrays:
            X, y = arrays["X"], arrays["y"]
        X[:, 2] *= 1e-9
        X[:, 3] = 0.125  # a column that does not vary is none
        np.savez(config.data, X=X, y=y)
    Job(algorithm=fedmls.FedMLS(), rounds=2, standardise=True, secure=True).write(tmp_path)
    with pytest.raises(Stopped, match=r"the squares in column '2' are too small for secure sums"):
        drive(tmp_path, InProcess(configs))


# Who sees what


def arrays_in(value):
    if isinstance(value, np.ndarray):
        yield value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts:
        yield from arrays_in(part)


@pytest.mark.parametrize("algorithm", [fedmls.FedMLS(lam0="auto"), fedmls.FedMLSE(), fedmls.Scaffold()])
def test_no_reply_holds_a_plain_number_of_the_rows(algorithm, tmp_path):
    """Every message is read: no float in it, and none of the floats that a plain run sends in it, in whatever place."""
    problem = svm(n=4, m=50)
    carried = {}
    for hidden in (False, True):
        Job(algorithm=algorithm, rounds=4, standardise=True, secure=hidden).write(tmp_path / str(hidden))
        transport = Recording(parts(problem, tmp_path / f"parts-{hidden}"))
        drive(tmp_path / str(hidden), transport)
        carried[hidden] = [reply for _, _, reply in transport.carried]
    bodies = [unpack_envelope(reply).body for reply in carried[False]]
    plain = {float(number) for body in bodies for array in arrays_in(body) for number in array.ravel()}
    plain |= {value["value"] for body in bodies for value in body.get("values", ())}
    plain |= {body["lipschitz"] for body in bodies if "lipschitz" in body}
    told = {number for number in plain if number not in (0.0, 1.0) and not number.is_integer()}
    assert len(told) > 80
    for reply in carried[True]:
        message = unpack_envelope(reply)
        assert all(array.dtype == np.int64 for array in arrays_in(message.body))
        for number in told:
            assert np.float64(number).tobytes() not in reply
            assert np.float64(number).tobytes()[::-1] not in reply
        if message.kind == "surveyed":
            assert all(message.body[name] is None for name in ("counts", "sums", "squares"))
        elif message.kind == "begun":
            assert message.body == {"lipschitz": math.inf}
        else:
            assert message.kind == "masked"
            assert all(set(one) == {"k", "steps", "subgradients"} for one in message.body["rounds"])


def test_a_server_that_leaves_one_out_has_nothing(tmp_path):
    """Of four replies the sum is the upload's mean; of three, of one, or of three and another round's it is none."""
    transport = Recording(parts(PROBLEM, tmp_path / "parts"))
    Job(algorithm=fedmls.FedAvg(), **JOB).write(tmp_path)
    drive(tmp_path, transport)
    rounds = {}
    for _, _, reply in transport.carried:
        message = unpack_envelope(reply)
        if message.kind == "masked" and message.body["rounds"]:
            rounds.setdefault(message.round, []).append(message.body["uploads"])
    first, second = rounds[1], rounds[2]
    assert len(secure.total(first)) == PROBLEM.dimension
    for some in (first[:1], first[:3], [*first[:3], second[3]], [first[0]] * 4):
        with pytest.raises(MessageError, match="do not cancel"):
            secure.total(some)


def test_what_is_counted_is_what_was_sent(tmp_path):
    transport = Recording(parts(PROBLEM, tmp_path / "parts"))
    Job(algorithm=fedmls.FedMLS(paired=True), rounds=9, impute=False, secure=True).write(tmp_path)
    last = drive(tmp_path, transport).history.iloc[-1]
    assert last["bytes_down"] == sum(len(message) for _, message, _ in transport.carried)
    assert last["bytes_up"] == sum(len(reply) for _, _, reply in transport.carried)
    assert last["exchanges"] == transport.calls == 2 + 5 + 1
    assert last["vectors_up"] == 4 * 9


class Inconsistent(InProcess):
    """A server that sends one node another broadcast than the others."""

    def exchange(self, messages, timeout):
        asked = unpack_envelope(messages["site-2"])
        if asked.exchange == 4:
            down = asked.body["rounds"][0]["down"]
            down["x"] = down["x"] + 1e-9
            messages = {**messages, "site-2": pack_envelope(asked)}
        return super().exchange(messages, timeout)


def test_answers_to_different_questions_do_not_add_up(tmp_path):
    configs = parts(PROBLEM, tmp_path / "parts")
    Job(algorithm=fedmls.FedAvg(), impute=False, **JOB).write(tmp_path)
    with pytest.raises(
        Stopped, match=r"^the masks do not cancel: a node has answered another question than the others"
    ):
        drive(tmp_path, Inconsistent(configs))


@pytest.mark.parametrize(
    ("call", "place", "message"),
    [
        (2, 1, "the column sums are rejected, and nobody can tell by which node: they are of"),
        (3, 2, "the squares of the columns are rejected, and nobody can tell by which node: some are negative"),
    ],
)
def test_column_sums_that_cannot_be_are_rejected(call, place, message, tmp_path):
    """Otherwise honest nodes would refuse what the server makes of them."""

    def push(body):
        uploads = body["uploads"].copy()
        uploads[1, place] -= 2**40
        body["uploads"] = uploads

    configs = parts(PROBLEM, tmp_path / "parts")
    Job(algorithm=fedmls.FedAvg(), standardise=True, **JOB).write(tmp_path)
    with pytest.raises(Stopped, match=f"^{message}"):
        drive(tmp_path, InProcess(configs, corrupt={("site-2", call): changed(push)}))


# Those who fail


WHEN = st.tuples(st.sampled_from(["site-1", "site-2", "site-3", "site-4"]), st.integers(1, 9))


@given(
    drop=st.sets(WHEN, max_size=4),
    late=st.sets(WHEN, max_size=4),
    twice=st.sets(WHEN, max_size=4),
    crashes=st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=3),
    algorithm=st.sampled_from([fedmls.FedMLS(paired=True), fedmls.Scaffold()]),
)
@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_gets_lost_the_model_is_the_same(tmp_path_factory, drop, late, twice, crashes, algorithm):
    folder = tmp_path_factory.mktemp("faults")
    configs = parts(PROBLEM, folder / "parts")
    Job(algorithm=algorithm, timeout=1.0, **JOB).write(folder)
    faults = {"drop": drop, "late": late, "twice": twice}
    for call, delivered in crashes:
        try:
            drive(folder, Crashing(configs, call=call, delivered=delivered, fresh=delivered, **faults))
        except Crash:
            continue
    result = drive(folder, InProcess(configs, **faults))
    np.testing.assert_allclose(result.x, simulated(algorithm), rtol=0, atol=1e-12)


class Watched(InProcess):
    """Keeps, for each exchange, who was asked for what work among whom."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.asked = []

    def exchange(self, messages, timeout):
        self.asked.append({name: unpack_envelope(message) for name, message in messages.items()})
        return super().exchange(messages, timeout)


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize(
    "algorithm",
    [fedmls.FedMLSP(participants=3), fedmls.Scaffold(participants=3), fedmls.FedAvg(participants=3)],
    ids=lambda algorithm: algorithm.name,
)
def test_without_a_node_that_is_away_the_others_are_asked_anew(algorithm, private, tmp_path, monkeypatch):
    """The sum is over those who answered. The work is not done twice, nor is noise drawn twice for it."""
    monkeypatch.setattr("fedmls.federation.server.driver.ASIDE", 1)
    noise = {"privacy": Privacy(clip=1e4, noise=1e-4), "report_objective": False, "impute": False} if private else {}
    problem = svm(n=6, m=90)
    configs = parts(problem, tmp_path / "parts")
    Job(algorithm=algorithm, rounds=18, on_missing="without", batch=0.4, secure=True, **noise).write(tmp_path)
    drop = {("site-4", call) for call in range(5, 120)}
    late = {(name, call) for name in ("site-2", "site-5") for call in range(4, 120, 3)}
    transport = Watched(configs, drop=drop, late=late)
    result = drive(tmp_path, transport)
    assert len(result.history) == 18
    again = 0
    for before, after in itertools.pairwise(transport.asked):
        both = [name for name in before if name in after and before[name].exchange == after[name].exchange]
        for name in both:
            assert before[name].body["among"] != after[name].body["among"]
            again += before[name].body["rounds"] != [] and before[name].body["after"] == after[name].body["after"]
    assert again > 5
    checkpoint = unpack_envelope(unseal((tmp_path / "checkpoint").read_bytes()))
    at = checkpoint.body["at"]
    states = [kept_state(config, checkpoint.run, at["answered"][i])["client"] for i, config in enumerate(configs)]
    for name in {"scaffold": ["c"], "fedmlsp": ["z"], "fedavg": []}[algorithm.name]:
        if not private:  # then the noise is in the sum, and not in the states
            mean = np.mean([state[name] for state in states], axis=0)
            np.testing.assert_allclose(at["server"][name], mean, atol=1e-10)
    for config in configs:
        kept = unpack_envelope(unseal((config.state / f"{checkpoint.run}.state").read_bytes()))
        worked = [i for i, asked in enumerate(transport.asked) if asked.get(config.name, checkpoint).body.get("rounds")]
        exchanges = {transport.asked[i][config.name].exchange for i in worked if (config.name, i + 1) not in drop}
        assert kept.body["released"] == len(exchanges)  # once for each, however often it was asked


def test_objectives_need_everybody(tmp_path):
    configs = parts(svm(n=5, m=80), tmp_path / "parts")
    Job(algorithm=fedmls.FedAvg(participants=3), rounds=8, on_missing="without", secure=True).write(tmp_path)
    history = drive(tmp_path, InProcess(configs, drop={("site-1", 6)})).history
    assert history["objective"].isna().tolist() == [False] + [True] * 7  # site-1 is left alone for ten exchanges
    plain = federate(svm(n=5, m=80), tmp_path / "plain", algorithm=fedmls.FedAvg(participants=3), rounds=8)
    assert not plain.history["objective"].isna().any()


def changed(change):
    """A reply with something else in it."""

    def corrupt(data):
        message = unpack_envelope(data)
        change(message.body)
        return pack_envelope(message)

    return corrupt


def words(shape, dtype=np.int64):
    return changed(lambda body: body.update(uploads=np.zeros(shape, dtype=dtype)))


HOSTILE = {
    "plain": (changed(lambda body: body.update(uploads=np.zeros(6))), "uploads is no array of int64"),
    "too short": (words((2, 5)), r"uploads has shape \(2, 5\), not \(2, 6\)"),
    "too long": (words((2, 7)), r"uploads has shape \(2, 7\)"),
    "nothing": (changed(lambda body: body.update(uploads=None)), "uploads is no array"),
    "values nobody asked for": (
        changed(lambda body: body.update(values=np.zeros((2, 1), int))),
        "values that were not",
    ),
    "another round": (changed(lambda body: body["rounds"][0].update(k=9)), "an upload for round 9, not 1"),
    "negative steps": (changed(lambda body: body["rounds"][0].update(steps=-1)), "steps is -1"),
    "more": (changed(lambda body: body["rounds"][0].update(up={"u": np.zeros(5)})), "a round with the unknown up"),
    "unmasked": (
        lambda data: pack_envelope(unpack_envelope(data)._replace(kind="done", body={"rounds": [], "values": []})),
        "a reply of the kind 'done', not 'masked'",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_replies_are_rejected_by_name(kind, tmp_path):
    corrupt, message = HOSTILE[kind]
    configs = parts(PROBLEM, tmp_path / "parts")
    Job(algorithm=fedmls.FedAvg(), impute=False, **JOB).write(tmp_path)
    with pytest.raises(Stopped, match=rf"^node site-2 sent what was rejected: .*{message}"):
        drive(tmp_path, InProcess(configs, corrupt={("site-2", 3): corrupt}))
    result = drive(tmp_path, InProcess(configs))
    np.testing.assert_allclose(result.x, simulated(fedmls.FedAvg()), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (-1, "the masks do not cancel: a node has answered another question than the others"),
        (0, r"the mean of round 1 is rejected, and nobody can tell by which node: u has norm .* \(max_norm\)"),
    ],
)
def test_hostile_numbers_stop_the_run_and_nobody_can_be_named(column, message, tmp_path):
    def push(body):
        uploads = body["uploads"].copy()
        uploads[1, column] += 2**40
        body["uploads"] = uploads

    configs = parts(PROBLEM, tmp_path / "parts")
    Job(algorithm=fedmls.FedAvg(), impute=False, **JOB).write(tmp_path)
    with pytest.raises(Stopped, match=f"^{message}"):
        drive(tmp_path, InProcess(configs, corrupt={("site-2", 3): changed(push)}))


def test_a_node_that_diverges_says_so_itself_and_tells_no_number(tmp_path):
    why = "refuses: its upload is not finite, or longer than max_norm; take smaller steps"
    with pytest.raises(Stopped, match=f"node site-1 {why}; node site-2"):
        federate(PROBLEM, tmp_path, algorithm=fedmls.FedAvg(eta=1e9, T=20), l2=1.0, rounds=50, secure=True)


def test_means_of_whole_numbers_are_measured_in_their_units(tmp_path):
    """After some rounds a unit is so small that the numbers are far longer than the slopes they stand for."""
    result = federate(PROBLEM, tmp_path, secure=True, algorithm=fedmls.FedMLSB(), rounds=12, max_norm=1e4)
    assert PROBLEM.value(result.x) <= 1.001 * PROBLEM.optimum.value


def test_an_upload_that_would_not_fit_is_refused(tmp_path):
    with pytest.raises(Stopped, match=r"refuses: a number beyond 2\.3e\+18 does not fit into a secure sum of 4"):
        federate(
            PROBLEM, tmp_path, algorithm=fedmls.FedAvg(eta=1e19, T=1), rounds=3, max_norm=1e300, **{"secure": True}
        )


# Keys


def test_a_key_is_made_once_and_for_its_owner_only(tmp_path):
    federate(PROBLEM, tmp_path, algorithm=fedmls.FedAvg(), **JOB)
    file = tmp_path / "parts" / "state" / "site-1" / "secure.key"
    assert file.stat().st_mode & 0o777 == 0o600
    before = file.read_bytes()
    federate(PROBLEM, tmp_path, algorithm=fedmls.FedAvg(), **JOB)
    assert file.read_bytes() == before


def test_a_key_is_on_the_disk_before_it_is_used(tmp_path, monkeypatch):
    import os

    done, sync, link = [], os.fsync, os.link
    monkeypatch.setattr(os, "fsync", lambda handle: (done.append("sync"), sync(handle)))
    monkeypatch.setattr(os, "link", lambda *names: (done.append("name"), link(*names)))
    secure.private_key(tmp_path / "new" / "key")
    assert done[0] == "sync"
    assert done[-2:] == ["name", "sync"]
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["key"]


def test_two_who_make_a_key_at_once_have_the_same(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        for i in range(5):
            keys = list(pool.map(lambda _, file=tmp_path / str(i): secure.private_key(file), range(8)))
            assert len({secure.public_key(key) for key in keys}) == 1


def test_another_key_in_mid_run_is_refused_by_name(tmp_path):
    configs = parts(PROBLEM, tmp_path / "parts")
    Job(algorithm=fedmls.FedAvg(), **JOB).write(tmp_path)
    with pytest.raises(Crash):
        drive(tmp_path, Crashing(configs, call=6))
    configs[2].key_file.unlink()
    with pytest.raises(Stopped, match=r"^node site-3 refuses: it does not take part: its key is not the one that"):
        drive(tmp_path, InProcess(configs))


@pytest.mark.parametrize(
    "content", [b"", b"nonsense", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
)
def test_a_file_that_is_no_key(content, tmp_path):
    configs = parts(PROBLEM, tmp_path / "parts", key=tmp_path / "own.key")
    (tmp_path / "own.key").write_bytes(content)
    Job(algorithm=fedmls.FedAvg(), **JOB).write(tmp_path)
    with pytest.raises(
        Stopped, match=r"node site-1 refuses: it has no key for a secure run: the key file own\.key holds"
    ):
        drive(tmp_path, InProcess(configs))


@pytest.mark.processes
def test_the_command_tells_the_public_key(tmp_path):
    (tmp_path / "a.toml").write_text('name = "a"\ndata = "a.csv"\nstate = "state"\nkey = "keys/own.pem"\n')
    command = [sys.executable, "-m", "fedmls.cli", "key", str(tmp_path / "a.toml")]
    told = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    key = secure.private_key(tmp_path / "keys" / "own.pem")
    assert told == secure.as_text(secure.public_key(key)) + "\n"


def with_peers(configs):
    """The same nodes, each of which knows the keys of all."""
    keys = [secure.as_text(secure.public_key(secure.private_key(config.key_file))) for config in configs]
    return [
        NodeConfig(name=config.name, data=config.data, state=config.state, peers=keys, min_rows=config.min_rows)
        for config in configs
    ]


def test_with_peers_a_node_takes_part_with_them_only(tmp_path):
    configs = with_peers(parts(PROBLEM, tmp_path / "parts"))
    Job(algorithm=fedmls.FedAvg(), **JOB).write(tmp_path / "good")
    drive(tmp_path / "good", InProcess(configs))
    Job(algorithm=fedmls.FedAvg(), **JOB | {"secure": False}).write(tmp_path / "plain")
    with pytest.raises(Stopped, match="node site-1 refuses: it takes part only in secure runs"):
        drive(tmp_path / "plain", InProcess(configs))


@pytest.mark.parametrize("call", [1, 2])
def test_a_server_that_hands_out_keys_of_its_own_is_found_out(call, tmp_path):
    """It pretends to be site-2: every other node would share its masks with the server."""
    configs = with_peers(parts(PROBLEM, tmp_path / "parts"))
    own = secure.public_key(secure.private_key(tmp_path / "server.key"))
    swap = changed(lambda body: body.update(key=own))
    Job(algorithm=fedmls.FedAvg(), impute=call == 1, **JOB).write(tmp_path)
    with pytest.raises(Stopped, match=r"node site-1 refuses: it does not take part: a node has the key .* none of its"):
        drive(tmp_path, InProcess(configs, corrupt={("site-2", 1): swap}))


def test_nodes_refuse_sums_that_would_show_one_of_them(tmp_path):
    """Checked where the data are, whatever the server says: too few, not itself, strangers, the same one twice."""
    configs = parts(PROBLEM, tmp_path / "parts")
    Job(algorithm=fedmls.FedAvg(), report_objective=False, **JOB).write(tmp_path)  # it ends with a round
    transport = Recording(configs)
    drive(tmp_path, transport)
    message = next(
        unpack_envelope(m)
        for name, m, r in reversed(transport.carried)
        if name == "site-1" and unpack_envelope(m).body["rounds"]
    )
    after = message.body["after"]
    node = Node(configs[0])

    def answer(among):
        body = message.body | {"among": among}
        return unpack_envelope(node.answer(pack_envelope(message._replace(body=body))))

    everyone = [[i, after] for i in range(4)]
    assert answer(everyone).kind == "masked"
    for among, why in (
        (everyone[:3], "it is asked for a sum over clients [0, 1, 2], not over 4 of 4"),
        (everyone[:1], "not over 4 of 4"),
        ([*everyone[1:], [0, after + 1]], "it is asked for a sum without itself"),
        ([[0, after - 1], *everyone[1:]], "after another exchange than it is told"),
        ([*everyone[:3], everyone[2]], "not over 4 of 4"),
        ([*everyone[:3], [9, after]], "not over 4 of 4"),
        ([*everyone[:3], [True, after]], "not over 4 of 4"),
    ):
        told = answer(among)
        assert told.kind == "refused"
        assert why in told.body["why"]


def test_column_sums_are_told_only_where_the_job_needs_them(tmp_path):
    config = parts(PROBLEM, tmp_path / "parts")[0]
    _, public = of_nodes(3, tmp_path)
    keys = [secure.public_key(secure.private_key(config.key_file)), *public[1:]]
    body = {"client": 0, "keys": keys, "columns": ["0", "1", "2", "3"], "means": None}
    for secure_, impute, kind in ((True, True, "masked"), (True, False, "refused"), (False, True, "refused")):
        job = Job(algorithm=fedmls.FedAvg(), rounds=1, secure=secure_, impute=impute).to_dict()
        reply = unpack_envelope(Node(config).answer(pack_envelope(Envelope("sums", "r-1", 2, 0, body | {"job": job}))))
        assert reply.kind == kind


# Jobs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"algorithm": fedmls.Bundle()},
            "the server of bundle needs every node's own upload, and secure shows it sums",
        ),
        ({"algorithm": fedmls.FedAvg(participants=2)}, "at least 3 nodes, and here it would be over 2"),
        ({"secure": "yes"}, "secure is 'yes'"),
    ],
)
def test_jobs_that_cannot_be_secure(change, message):
    with pytest.raises(ValueError, match=message):
        Job(**{"algorithm": fedmls.FedMLS(), "rounds": 3, "secure": True} | change)


def test_two_nodes_are_too_few(tmp_path):
    with pytest.raises(Stopped, match="a secure sum takes at least 3 nodes, and here it would be over 2"):
        federate(svm(n=2, m=30), tmp_path, algorithm=fedmls.FedMLS(), rounds=2, secure=True)


def test_a_secure_job_goes_to_a_file_and_back(tmp_path):
    job = Job(algorithm=fedmls.FedMLS(), rounds=3, secure=True)
    job.write(tmp_path)
    assert Job.read(tmp_path) == job


# With noise


@pytest.mark.parametrize("name", ["fedmls", "scaffold", "fedavg"])
def test_with_privacy_it_is_the_noisy_uploads_that_are_summed(name, tmp_path, monkeypatch):
    assert fedmls.ALGORITHMS[name].references
    monkeypatch.setattr(privacies, "_with_noise", lambda whole, privacy: whole)
    algorithm = fedmls.make(name, **SMALL_STEPS[name])
    private = {"privacy": Privacy(clip=1e3, noise=1e-4), "report_objective": False, "impute": False}
    result = federate(PROBLEM, tmp_path, algorithm=algorithm, **JOB, **private)
    assert result.epsilon > 0
    np.testing.assert_allclose(result.x, simulated(algorithm), rtol=1e-9, atol=1e-12)


def test_noise_reaches_the_sum(tmp_path):
    private = {"privacy": Privacy(clip=0.5, noise=10.0), "report_objective": False, "impute": False}
    result = federate(PROBLEM, tmp_path, algorithm=fedmls.FedMLS(), **JOB, **private)
    assert np.linalg.norm(result.x - simulated(fedmls.FedMLS())) > 0.1
