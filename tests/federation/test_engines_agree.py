"""A federation in one process: the same run as the simulation's, with real nodes and real messages."""

import json

import numpy as np
import pandas as pd
import pytest

import fedmls
from fedmls.federation import InProcess, Job, Node, NodeConfig, Stopped, drive
from fedmls.federation.messages import unpack_envelope
from tests.support.agreement import WEIGHTS, check_same, named
from tests.support.algorithms import SMALL_STEPS
from tests.support.federations import Recording, federate, parts
from tests.support.problems import lad, svm


@pytest.mark.parametrize("fresh", [False, True], ids=["resident", "fresh"])
@pytest.mark.parametrize("name", fedmls.ALGORITHMS)
def test_every_algorithm_gives_the_simulations_model(name, fresh, tmp_path):
    algorithm = fedmls.make(name, **SMALL_STEPS.get(name, {}))
    weights = None if algorithm.participants else WEIGHTS
    problem = svm(n=4, m=50, weights=weights, l2=0.1)
    settings = {"rounds": 7, "batch": 0.3, "seed": 9}
    result = federate(
        problem,
        tmp_path,
        faults={"fresh": fresh},
        algorithm=algorithm,
        l2=0.1,
        weights=named(weights) if weights else "equal",
        **settings,
    )
    check_same(result, fedmls.simulate(algorithm, problem, optimum=None, **settings))


@pytest.mark.parametrize("d", [1500, 9000])
def test_messages_and_files_of_many_coordinates_are_read(d, tmp_path):
    """FedMLS-B's numbers are mostly short ones, and zeros at first: larger in memory than on the way by far."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, d))
    terms = {"loss": "absolute", "l2": 0.1, "intercept": False}
    problem = fedmls.Problem(X, X[:, 0] + rng.normal(size=30), clients=np.arange(30) % 3, **terms)
    result = federate(problem, tmp_path, algorithm=fedmls.FedMLSB(), rounds=3, **terms)
    check_same(result, fedmls.simulate(fedmls.FedMLSB(), problem, rounds=3, optimum=None))


class AskedTwice(InProcess):
    """Asks each node twice, the second time as if it had been started anew."""

    def __init__(self, configs):
        super().__init__(configs)
        self.configs = configs

    def exchange(self, messages, timeout):
        replies, failures = super().exchange(messages, timeout)
        for config in self.configs:
            assert Node(config).answer(messages[config.name]) == replies[config.name]
        return replies, failures


@pytest.mark.parametrize("d", [5, 250])
def test_a_node_that_is_asked_again_sends_the_same_bytes(d, tmp_path):
    problem = lad(n=3, m=60, columns=d)
    configs = parts(problem, tmp_path / "parts")
    Job(algorithm=fedmls.FedMLSB(), rounds=4, loss="absolute").write(tmp_path / "job")
    drive(tmp_path / "job", AskedTwice(configs))


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        (fedmls.FedMLS(paired=True), {"rounds": 7}),
        (fedmls.FedMLS(paired=True, output="best", radius=0.5), {"rounds": 8}),
        (fedmls.FedMLS(T=(3, 9, 5, 20)), {"rounds": 7, "every": 3}),
        (fedmls.FedMLS(lam=fedmls.Power(0.5, -0.5)), {"rounds": 6, "certificate": 2.0}),
        (fedmls.FedMLSB(), {"rounds": 9, "certificate": True}),
        (fedmls.FedMLSB(lanes=2), {"rounds": 5, "certificate": 3.0, "every": 2}),
        (fedmls.FedMLSB(), {"rounds": 60, "certificate": True, "until": 1e-3}),
        (fedmls.FedMLS(paired=True), {"rounds": 9, "certificate": 2.0, "every": 2}),
        (fedmls.FedMLS(lam=0.05, T=200), {"rounds": 60, "certificate": 2.0, "until": 0.5, "batch": 1.0}),
        (fedmls.FedMLS(lam=0.05, T=200, paired=True), {"rounds": 60, "certificate": 2.0, "until": 0.5, "batch": 1.0}),
        (fedmls.FedMLS(lam0="auto", paired=True), {"rounds": 13}),
        (fedmls.FedMLSD(lam0=1.0), {"rounds": 7, "certificate": 2.0}),
        (fedmls.FedMLSE(output="best"), {"rounds": 7, "certificate": 2.0, "every": 4}),
        (fedmls.FedMLSE(), {"rounds": 7, "every": 3}),
        (fedmls.DCS(eta=20.0), {"rounds": 7, "every": 3}),
        (fedmls.FedAvg(participants=2), {"rounds": 9}),
        (fedmls.Scaffold(participants=3, option="I"), {"rounds": 9}),
        (fedmls.FedMLSP(participants=4), {"rounds": 5}),
        (fedmls.FedDyn(participants=2), {"rounds": 9}),
        (fedmls.Tamuna(s=2, participants=2), {"rounds": 12}),
        (fedmls.LoCoDL(level=0.4), {"rounds": 7}),
        (fedmls.FedComLoc(method="quantise", level=8, where="download"), {"rounds": 7}),
        (fedmls.FedComLoc(level=0.4, where="gradient"), {"rounds": 5}),
        (fedmls.FedSplit(exact=True), {"rounds": 5}),
        (fedmls.Compressed(algorithm=fedmls.FedMLS(paired=True), level=0.4), {"rounds": 7}),
        (fedmls.Compressed(algorithm=fedmls.FedMLSE(), method="random_k", level=0.4), {"rounds": 7}),
        (fedmls.Compressed(algorithm=fedmls.Scaffold(), method="quantise", level=4), {"rounds": 7}),
    ],
    ids=lambda value: value.name if hasattr(value, "name") else None,
)
def test_with_everything_that_can_be_set(algorithm, settings, tmp_path):
    problem, settings = svm(n=4, m=80), {"batch": 0.3, "seed": 5} | settings
    result = federate(problem, tmp_path, algorithm=algorithm, **settings)
    run = fedmls.simulate(algorithm, problem, optimum=None, **settings)
    check_same(result, run)
    assert result.proved == ("until" in settings)
    if result.proved:
        assert len(run.history) < settings["rounds"]


@pytest.mark.parametrize(
    ("loss", "settings"),
    [
        ("absolute", {"intercept": False}),
        (fedmls.pinball(0.2), {"loss_parameter": 0.2}),
        (fedmls.huber(0.7), {"loss_parameter": 0.7, "reduction": "mean"}),
        (fedmls.epsilon_insensitive(0.3), {"loss_parameter": 0.3, "l1": 0.2}),
    ],
)
def test_other_losses_and_weights_by_rows(loss, settings, tmp_path):
    shape = {name: value for name, value in settings.items() if name != "loss_parameter"}
    problem = lad(n=3, m=50, loss=loss, weights="rows", **shape)
    algorithm = fedmls.FedMLS()
    result = federate(
        problem,
        tmp_path,
        algorithm=algorithm,
        rounds=6,
        loss=getattr(loss, "name", loss),
        weights="rows",
        **settings,
    )
    check_same(result, fedmls.simulate(algorithm, problem, rounds=6, optimum=None))


def test_a_certificate_without_a_radius(tmp_path):
    problem = svm(n=3, m=50, l2=0.5, intercept=False)
    settings = {"rounds": 6, "certificate": True}
    result = federate(problem, tmp_path, algorithm=fedmls.FedMLS(), l2=0.5, intercept=False, **settings)
    check_same(result, fedmls.simulate(fedmls.FedMLS(), problem, optimum=None, **settings))
    assert np.isfinite(result.history["certified_gap"]).all()
    with pytest.raises(Stopped, match="certificate=True proves nothing here"):
        federate(problem, tmp_path / "again", algorithm=fedmls.FedMLS(), **settings)


@pytest.mark.parametrize("loss", ["squared_hinge", "logistic"])
def test_other_losses_of_classes(loss, tmp_path):
    problem = svm(n=3, m=50)
    problem = fedmls.Problem(problem.X[:, :-1], problem.y, np.repeat(range(3), problem.rows_per_client), loss)
    result = federate(problem, tmp_path, algorithm=fedmls.FedMLS(lam0=0.1), rounds=6, loss=loss)
    check_same(result, fedmls.simulate(fedmls.FedMLS(lam0=0.1), problem, rounds=6, optimum=None))
    assert np.isinf(result.lipschitz).all() == (loss == "squared_hinge")


def test_what_is_counted_is_what_was_sent(tmp_path):
    problem = svm(n=4, m=60)
    configs = parts(problem, tmp_path / "parts")
    Job(algorithm=fedmls.FedMLS(paired=True), rounds=9).write(tmp_path)
    transport = Recording(configs)
    last = drive(tmp_path, transport).history.iloc[-1]
    assert last["bytes_down"] == sum(len(message) for _, message, _ in transport.carried)
    assert last["bytes_up"] == sum(len(reply) for _, _, reply in transport.carried)
    assert last["exchanges"] == transport.calls == 2 + 5 + 1  # survey and begin, 9 rounds in pairs, close
    assert last["vectors_up"] == 4 * 9
    assert last["vectors_down"] == 4 * 9 * 2 + 4  # y_k, the model of every round, and x0


def test_compressed_uploads_are_smaller_on_the_wire(tmp_path):
    problem = svm(n=3, m=60, columns=400)

    def bytes_up(algorithm, name):
        history = federate(problem, tmp_path / name, algorithm=algorithm, rounds=6, report_objective=False).history
        return np.diff(history["bytes_up"]).max() / 3

    plain = bytes_up(fedmls.FedMLS(), "plain")
    assert 401 * 8 < plain < 401 * 8 + 300
    for method, level, most in (("top_k", 0.1, 41 * 12), ("random_k", 0.1, 41 * 12), ("quantise", 4, 401 + 8 * 16)):
        compressed = fedmls.Compressed(algorithm=fedmls.FedMLS(), method=method, level=level)
        assert bytes_up(compressed, method) < most + 300


def test_the_folder_holds_the_results(tmp_path):
    problem = svm(n=3, m=40)
    result = federate(problem, tmp_path, algorithm=fedmls.FedMLS(), rounds=4, name="trial")
    folder = tmp_path / "job"
    assert result.folder == folder
    written = pd.read_parquet(folder / "history.parquet")
    pd.testing.assert_frame_equal(written[list(result.history)], result.history)
    with np.load(folder / "model.npz", allow_pickle=False) as model:
        assert np.array_equal(model["x"], result.x)
        assert model["columns"].tolist() == ["0", "1", "2", "3"]
        assert model["classes"].tolist() == ["-1", "1"]
    setup = json.loads((folder / "setup.json").read_text())
    assert setup["status"] == "finished"
    assert setup["run"].startswith("trial-")
    assert [node["rows"] for node in setup["nodes"]] == problem.rows_per_client.tolist()
    np.testing.assert_allclose([node["lipschitz"] for node in setup["nodes"]], problem.lipschitz())
    assert Job.from_dict(setup["job"]) == Job.read(folder)


def test_events_tell_each_exchange(tmp_path):
    result = federate(svm(n=3, m=40), tmp_path, algorithm=fedmls.FedMLS(), rounds=3, certificate=2.0)
    events = [json.loads(line) for line in (tmp_path / "job" / "events.jsonl").read_text().splitlines()]
    assert [event.get("kind") for event in events] == ["survey", "begin", "round", "round", "round", "close", None]
    assert [event["exchanges"] for event in events] == [1, 2, 3, 4, 5, 6, 6]
    assert events[3]["measured_round"] == 1
    assert events[3]["objective"] == result.history["objective"][0]
    assert events[3]["certified_gap"] == result.history["certified_gap"][0]
    assert events[-1]["event"] == "finished"
    assert all(event["failed"] == {} for event in events[:-1])
    assert (np.diff([event["bytes_up"] for event in events]) >= 0).all()


def test_without_objectives_nobody_is_asked(tmp_path):
    problem = svm(n=3, m=40)
    told = federate(problem, tmp_path / "a", algorithm=fedmls.FedMLS(), rounds=4)
    silent = federate(problem, tmp_path / "b", algorithm=fedmls.FedMLS(), rounds=4, report_objective=False)
    assert np.array_equal(told.x, silent.x)
    assert silent.history["objective"].isna().all()
    assert silent.history["exchanges"].iloc[-1] == 6
    assert silent.history["vectors_down"].iloc[-1] == told.history["vectors_down"].iloc[-1] - 3 * 4


def test_one_silent_node_is_enough(tmp_path):
    problem = svm(n=3, m=40)
    configs = parts(problem, tmp_path)
    first = configs[0]
    configs[0] = NodeConfig(name=first.name, data=first.data, state=first.state, report_objective=False)
    Job(algorithm=fedmls.FedMLS(), rounds=3).write(tmp_path)
    assert drive(tmp_path, InProcess(configs)).history["objective"].isna().all()
    best = fedmls.FedMLS(output="best")
    for algorithm in (best, fedmls.Compressed(algorithm=best, level=0.5)):
        Job(algorithm=algorithm, rounds=3).write(tmp_path)
        with pytest.raises(Stopped, match=r"output = best needs the objective, but node site-1 does not tell it"):
            drive(tmp_path, InProcess(configs), resume=False)


def test_more_rounds_go_on_where_the_run_ended(tmp_path):
    problem = svm(n=3, m=40)
    configs = parts(problem, tmp_path / "parts")
    for rounds in (3, 8):
        Job(algorithm=fedmls.Scaffold(), rounds=rounds, batch=0.3).write(tmp_path)
        result = drive(tmp_path, InProcess(configs))
    run = fedmls.simulate(fedmls.Scaffold(), problem, rounds=8, batch=0.3, optimum=None)
    check_same(result, run)
    again = drive(tmp_path, InProcess([]))  # all is done: nobody is asked
    pd.testing.assert_frame_equal(again.history, result.history)


def test_a_new_run_begins_at_an_earlier_model(tmp_path):
    problem = svm(n=3, m=40)
    configs = parts(problem, tmp_path / "parts")
    Job(algorithm=fedmls.FedMLS(), rounds=5).write(tmp_path)
    first = drive(tmp_path, InProcess(configs))
    second = drive(tmp_path, InProcess(configs), resume=False, start=tmp_path)
    run = fedmls.simulate(fedmls.FedMLS(), problem, rounds=5, x0=first.x, optimum=None)
    check_same(second, run)


def test_a_job_may_say_where_to_begin(tmp_path):
    """The path is relative to the job's file, nodes are not told it, and a run that goes on has no use for it."""
    problem = svm(n=3, m=40)
    configs = parts(problem, tmp_path / "parts")
    Job(algorithm=fedmls.FedMLS(), rounds=5).write(tmp_path / "first")
    first = drive(tmp_path / "first", InProcess(configs))
    run = fedmls.simulate(fedmls.FedMLS(), problem, rounds=5, x0=first.x, optimum=None)
    for name, start in (("folder", "../first"), ("file", str(tmp_path / "first" / "model.npz"))):
        Job(algorithm=fedmls.FedMLS(), rounds=3, start=start).write(tmp_path / name)
        transport = Recording(configs)
        drive(tmp_path / name, transport)
        assert not any("start" in unpack_envelope(message).body.get("job", {}) for _, message, _ in transport.carried)
        Job(algorithm=fedmls.FedMLS(), rounds=5, start="/nowhere").write(tmp_path / name)
        check_same(drive(tmp_path / name, InProcess(configs)), run)
    with pytest.raises(Stopped, match=r"/nowhere is no model of an earlier run"):
        drive(tmp_path / "file", InProcess(configs), resume=False)
    check_same(drive(tmp_path / "file", InProcess(configs), resume=False, start=tmp_path / "first"), run)


def test_a_job_that_begins_anew_in_its_own_folder(tmp_path):
    problem = svm(n=3, m=40)
    configs = parts(problem, tmp_path / "parts")
    Job(algorithm=fedmls.FedMLS(), rounds=5).write(tmp_path)
    first = drive(tmp_path, InProcess(configs))
    Job(algorithm=fedmls.FedMLS(), rounds=5, start=".").write(tmp_path)
    (tmp_path / "checkpoint").unlink()
    run = fedmls.simulate(fedmls.FedMLS(), problem, rounds=5, x0=first.x, optimum=None)
    check_same(drive(tmp_path, InProcess(configs)), run)


def test_an_earlier_model_in_other_units(tmp_path):
    """A model of raw columns begins a run on standardised ones at the same objective."""
    problem = svm(n=3, m=40)
    configs = parts(problem, tmp_path / "parts")
    Job(algorithm=fedmls.FedMLS(), rounds=5).write(tmp_path / "raw")
    raw = drive(tmp_path / "raw", InProcess(configs))
    Job(algorithm=fedmls.FedAvg(eta=1e-300, T=1), rounds=1, standardise=True).write(tmp_path / "scaled")
    scaled = drive(tmp_path / "scaled", InProcess(configs), start=tmp_path / "raw" / "model.npz")
    assert not np.allclose(scaled.x, raw.x)
    assert scaled.history["objective"].iloc[-1] == pytest.approx(raw.history["objective"].iloc[-1], rel=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "belongs to another job: its seed is 0, not 1"),
        ({"algorithm": fedmls.FedMLS(lam0=2.0)}, "belongs to another job: its algorithm is"),
    ],
)
def test_another_job_does_not_go_on(change, message, tmp_path):
    configs = parts(svm(n=2, m=30), tmp_path)
    job = {"algorithm": fedmls.FedMLS(), "rounds": 2}
    Job(**job).write(tmp_path)
    drive(tmp_path, InProcess(configs))
    Job(**job | change).write(tmp_path)
    with pytest.raises(Stopped, match=message):
        drive(tmp_path, InProcess(configs))


def test_wrong_calls(tmp_path):
    Job(algorithm=fedmls.FedMLS(), rounds=2).write(tmp_path)
    with pytest.raises(ValueError, match="nothing to go on from"):
        drive(tmp_path, InProcess([]), resume=True)
    with pytest.raises(ValueError, match="no node is connected"):
        drive(tmp_path, InProcess([]))
    configs = parts(svm(n=2, m=30), tmp_path)
    with pytest.raises(ValueError, match="two nodes have one name"):
        InProcess([configs[0], configs[0]])
    drive(tmp_path, InProcess(configs))
    with pytest.raises(ValueError, match="start= is for a new run"):
        drive(tmp_path, InProcess(configs), start=tmp_path)
    with pytest.raises(ValueError, match="is no model of an earlier run"):
        drive(tmp_path, InProcess(configs), resume=False, start=tmp_path / "job.toml")
    (tmp_path / "checkpoint").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"damaged.*delete it to start anew"):
        drive(tmp_path, InProcess(configs))


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"weights": {"site-1": 0.5, "other": 0.5}}, "weights names 'other', 'site-1', but the nodes are"),
        ({"algorithm": fedmls.FedAvg(participants=3)}, "participants is 3, but there are 2 clients"),
        ({"algorithm": fedmls.FedMLS(T=(1, 2, 3))}, "T has 3 values for 2 clients"),
        ({"algorithm": fedmls.FedAvg(), "certificate": 1.0}, "fedavg makes no certificate"),
        ({"nodes": ("site-1", "site-9"), "on_missing": "stop"}, "node site-9 does not answer"),
    ],
)
def test_jobs_that_do_not_fit_the_nodes(job, message, tmp_path):
    with pytest.raises(Stopped, match=message):
        federate(svm(n=2, m=30), tmp_path, **{"algorithm": fedmls.FedMLS(), "rounds": 2} | job)


def test_only_the_named_nodes_take_part(tmp_path):
    problem = svm(n=3, m=40)
    result = federate(problem, tmp_path, algorithm=fedmls.FedMLS(), rounds=2, nodes=("site-3", "site-1"))
    assert result.nodes == ("site-1", "site-3")


def test_nodes_are_numbered_in_the_natural_order_of_their_names(tmp_path):
    problem = svm(n=12, m=120)
    result = federate(problem, tmp_path, algorithm=fedmls.FedMLS(), rounds=4, batch=0.3)
    assert result.nodes == tuple(f"site-{i + 1}" for i in range(12))
    check_same(result, fedmls.simulate(fedmls.FedMLS(), problem, rounds=4, batch=0.3, optimum=None))
