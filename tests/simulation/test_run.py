"""One run: its history, checkpoints, divergence, Ctrl-C, bad input."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import fedmls
from fedmls.simulation.config import RunConfig
from fedmls.simulation.run import Simulation
from tests.support.algorithms import NEEDS, SMALL_STEPS
from tests.support.problems import lad, svm

COLUMNS = [
    "round",
    "exchanges",
    "local_steps",
    "subgradients",
    "vectors_up",
    "vectors_down",
    "bytes_up",
    "bytes_down",
    "passes",
    "objective",
    "gap",
    "relative_gap",
    "seconds",
]


def test_the_history_counts_what_was_spent():
    problem = svm()  # 5 clients, 5 coordinates
    history = fedmls.simulate(fedmls.FedMLS(), problem, rounds=6).history
    assert list(history) == COLUMNS
    assert history["round"].tolist() == history["exchanges"].tolist() == [1, 2, 3, 4, 5, 6]
    assert history["local_steps"].tolist() == [1, 3, 6, 10, 15, 21]
    assert history["subgradients"].tolist() == [5, 15, 30, 50, 75, 105]
    assert history["vectors_up"].tolist() == history["vectors_down"].tolist() == [5, 10, 15, 20, 25, 30]
    assert history["bytes_up"].iloc[-1] == history["bytes_down"].iloc[-1] == 30 * 5 * 8
    assert history["passes"].tolist() == [1, 3, 6, 10, 15, 21]
    assert history["seconds"].is_monotonic_increasing


def test_passes_count_every_row_that_is_read():
    """Mini-batches by their size; values and guesses as much as subgradients; exact steps by what they took."""
    problem = svm()  # 12 rows in each of 5 clients
    passes = {
        algorithm: fedmls.simulate(algorithm, problem, rounds=3, batch=0.25).history["passes"].tolist()
        for algorithm in (fedmls.FedAvg(T=2), fedmls.Subgradient(), fedmls.Bundle(), fedmls.FedMLSD(), fedmls.FedMLSB())
    }
    assert passes[fedmls.FedAvg(T=2)] == [0.5, 1.0, 1.5]
    assert passes[fedmls.Bundle()] == [2, 4, 6]  # a value and a subgradient
    assert passes[fedmls.FedMLSD()][0] == 5 * 5 + 5 + 2  # five passes in five lanes, five values, and a guess
    first, second, third = passes[fedmls.FedMLSB()]
    assert 1 + 10 < first <= 1 + 2 * 103  # towards the own minimum, once or twice
    assert second - first in (4, 5)  # the own minimum and three lanes, and the curvature
    assert third - second in (3, 4, 5)  # three lanes; a point toward the model's minimum, and the curvature, or not


def test_scaffold_sends_twice_as_much_and_option_one_takes_one_more_subgradient():
    problem = svm()
    two, one = (fedmls.simulate(fedmls.Scaffold(option=o), problem, rounds=4).history.iloc[-1] for o in ("II", "I"))
    assert two["vectors_up"] == two["vectors_down"] == 2 * 4 * 5
    assert one["subgradients"] == two["subgradients"] + 4 * 5


def test_the_objective_and_gap_are_those_of_the_model():
    problem = svm()
    run = fedmls.simulate(fedmls.FedMLS(), problem, rounds=9)
    last = run.history.iloc[-1]
    assert last["objective"] == problem.value(run.x)
    assert last["gap"] == last["objective"] - problem.optimum.value
    assert last["relative_gap"] == last["gap"] / problem.optimum.value


def test_every_and_metrics():
    history = fedmls.simulate(
        fedmls.FedMLS(), svm(), rounds=10, every=4, metrics={"norm": lambda x: float(np.linalg.norm(x))}
    ).history
    assert history["round"].tolist() == [4, 8, 10]
    assert list(history) == [*COLUMNS, "norm"]
    assert history["norm"].iloc[-1] > 0


@pytest.mark.parametrize("paired", [False, True])
def test_a_run_stops_at_its_target(paired, tmp_path):
    """The rows are those of a run without a target, up to the exchange that met it; a checkpoint knows that it did."""
    algorithm, file = fedmls.FedMLS(paired=paired, output="best"), tmp_path / "run.npz"
    whole = fedmls.simulate(algorithm, svm(), rounds=60).history
    target = whole["relative_gap"].iloc[40]
    met = whole.loc[whole["relative_gap"] <= target, "round"].iloc[0]
    run = fedmls.simulate(algorithm, svm(), rounds=60, target=target, checkpoint=file)
    assert len(run.history) == met + (paired and met % 2)
    counted = COLUMNS[: COLUMNS.index("relative_gap") + 1]
    assert run.history[counted].equals(whole[counted].iloc[: len(run.history)])
    again = fedmls.simulate(algorithm, svm(), rounds=60, target=target, checkpoint=file)
    assert again.history.equals(run.history)
    assert np.array_equal(again.x, run.x)
    further = fedmls.simulate(algorithm, svm(), rounds=60, checkpoint=file)
    assert further.history[counted].equals(whole[counted])


@pytest.mark.parametrize("name", fedmls.ALGORITHMS)
def test_a_resumed_run_ends_in_the_same_bits(name, tmp_path):
    algorithm, problem = fedmls.make(name, **SMALL_STEPS[name]), lad(**NEEDS.get(name, {}))
    kwargs = {"batch": 0.3, "seed": 5}
    whole = fedmls.simulate(algorithm, problem, rounds=21, **kwargs)
    file = tmp_path / "run.npz"
    fedmls.simulate(algorithm, problem, rounds=8, checkpoint=file, **kwargs)
    resumed = fedmls.simulate(algorithm, problem, rounds=21, checkpoint=file, **kwargs)
    assert np.array_equal(resumed.x, whole.x)
    same = COLUMNS[:-1]
    assert resumed.history[same].equals(whole.history[same])
    assert resumed.history["seconds"].is_monotonic_increasing
    assert [f.name for f in tmp_path.iterdir()] == ["run.npz"]


def test_paired_runs_resume_in_the_middle_of_a_pair(tmp_path):
    algorithm, problem = fedmls.FedMLS(paired=True), svm()
    fedmls.simulate(algorithm, problem, rounds=5, checkpoint=tmp_path / "c")
    resumed = fedmls.simulate(algorithm, problem, rounds=12, checkpoint=tmp_path / "c")
    assert np.array_equal(resumed.x, fedmls.simulate(fedmls.FedMLS(), problem, rounds=12).x)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    file = tmp_path / "c"
    fedmls.simulate(fedmls.FedMLS(), svm(), rounds=3, checkpoint=file)
    for change in ({"seed": 1}, {"batch": 0.5}, {"x0": np.ones(5)}):
        with pytest.raises(ValueError, match=r"belongs to another run: its .* delete it or name another file"):
            fedmls.simulate(fedmls.FedMLS(), svm(), rounds=3, checkpoint=file, **change)
    with pytest.raises(ValueError, match="belongs to another run: its algorithm"):
        fedmls.simulate(fedmls.FedMLS(lam0=2.0), svm(), rounds=3, checkpoint=file)
    with pytest.raises(ValueError, match="belongs to another run: its metrics"):
        fedmls.simulate(fedmls.FedMLS(), svm(), rounds=3, checkpoint=file, metrics={"norm": np.linalg.norm})
    with pytest.raises(ValueError, match="belongs to another run: its optimum"):
        fedmls.simulate(fedmls.FedMLS(), svm(), rounds=3, checkpoint=file, optimum=None)
    with pytest.raises(ValueError, match="is at round 3 already; ask for at least so many rounds"):
        fedmls.simulate(fedmls.FedMLS(), svm(), rounds=2, checkpoint=file)
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"is not a checkpoint .* delete it to start anew"):
        fedmls.simulate(fedmls.FedMLS(), svm(), rounds=3, checkpoint=file)


def test_a_diverging_run_ends_with_its_history_and_a_flag():
    problem = lad(loss="huber")
    problem.loss = fedmls.huber(1e300)  # a quadratic: too long a step overflows
    run = fedmls.simulate(fedmls.FedAvg(eta=10.0, T=3), problem, rounds=500, optimum=1.0)
    assert run.diverged
    assert 0 < len(run.history) < 500
    assert np.isfinite(run.history.to_numpy()).all()
    assert np.isfinite(run.x).all()
    assert run.history["objective"].iloc[-1] == problem.value(run.x)


def test_a_diverging_run_keeps_its_last_finite_round_whatever_every_is():
    problem = lad(loss="huber")
    problem.loss = fedmls.huber(1e300)
    each, tenth = (
        fedmls.simulate(fedmls.FedAvg(eta=10.0, T=3), problem, rounds=500, optimum=1.0, every=every).history
        for every in (1, 1000)
    )
    assert len(tenth) == 1
    assert tenth["objective"].iloc[0] == each["objective"].iloc[-1]


def test_a_run_that_diverges_at_once_has_an_empty_history():
    problem = lad(loss="huber")
    problem.loss = fedmls.huber(1e300)
    run = fedmls.simulate(fedmls.FedAvg(eta=1e200, T=3), problem, rounds=5, optimum=1.0)
    assert run.diverged
    assert list(run.history) == COLUMNS
    assert len(run.history) == 0
    assert run.x.tolist() == [0.0] * 5


def test_ctrl_c_keeps_the_rounds_so_far(tmp_path, monkeypatch):
    problem, file = svm(), tmp_path / "c"
    exchange = Simulation._exchange

    def interrupted(self):
        if self.at.counters.round == 7:
            raise KeyboardInterrupt
        return exchange(self)

    monkeypatch.setattr(Simulation, "_exchange", interrupted)
    with pytest.raises(fedmls.Interrupted, match="stopped after round 7; run again to go on from") as stop:
        fedmls.simulate(fedmls.FedMLS(), problem, rounds=20, checkpoint=file)
    assert stop.value.runs[0].history["round"].tolist() == list(range(1, 8))
    monkeypatch.undo()
    whole = fedmls.simulate(fedmls.FedMLS(), problem, rounds=20)
    assert np.array_equal(fedmls.simulate(fedmls.FedMLS(), problem, rounds=20, checkpoint=file).x, whole.x)


def test_ctrl_c_inside_the_compiled_loop_ends_with_the_exchange(tmp_path):
    problem = svm()
    timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    fedmls.simulate(fedmls.FedMLS(), problem, rounds=1)  # compiled
    timer.start()
    with pytest.raises(fedmls.Interrupted) as stop:
        fedmls.simulate(fedmls.FedMLS(T=100_000), problem, rounds=10_000, checkpoint=tmp_path / "c")
    done = stop.value.runs[0]
    assert np.array_equal(done.x, fedmls.simulate(fedmls.FedMLS(T=100_000), problem, rounds=len(done.history)).x)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.processes
def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path):
    """SIGKILL in the middle; checkpoints every round."""
    script = textwrap.dedent(f"""
        import fedmls
        from fedmls.simulation import run
        from tests.support.problems import svm
        run.SAVE_EVERY_SECONDS = 0
        fedmls.simulate(fedmls.FedMLS(), svm(), rounds=100_000, batch=0.3, checkpoint={str(tmp_path / "c")!r})
    """)
    process = subprocess.Popen([sys.executable, "-c", script])
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "c").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    with np.load(tmp_path / "c") as saved:
        done = int(saved["counters.round"])
    assert done >= 1
    rounds = done + 50
    resumed = fedmls.simulate(fedmls.FedMLS(), svm(), rounds=rounds, batch=0.3, checkpoint=tmp_path / "c")
    assert np.array_equal(resumed.x, fedmls.simulate(fedmls.FedMLS(), svm(), rounds=rounds, batch=0.3).x)


BAD = {
    "batch 0": ({"batch": 0}, "batch is 0; it is the fraction of rows used in a step"),
    "batch 2": ({"batch": 2}, "batch is 2;"),
    "batch NaN": ({"batch": float("nan")}, "batch is nan;"),
    "rounds": ({"rounds": 0}, "rounds is 0; it must be a whole number of at least 1"),
    "rounds fraction": ({"rounds": 1.5}, "rounds is 1.5;"),
    "seed": ({"seed": -1}, "seed is -1;"),
    "every": ({"every": 0}, "every is 0;"),
    "x0 length": ({"x0": [1.0]}, "x0 has shape (1,); it must be 5 finite numbers"),
    "x0 NaN": ({"x0": [np.nan] * 5}, "x0 has shape (5,); it must be 5 finite numbers"),
    "optimum": ({"optimum": "none"}, "unknown optimum 'none'"),
    "optimum list": ({"optimum": [3]}, "optimum is [3]; give a number"),
    "metrics": ({"metrics": [len]}, "metrics is [<built-in function len>]; give functions by name"),
    "metric name": ({"metrics": {"gap": len}}, "metrics holds 'gap', which is a column already"),
    "x0 text": ({"x0": "abc"}, "x0 is 'abc'; it must be 5 finite numbers"),
    "large seed": ({"seed": 2**64}, "seed is 18446744073709551616;"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case, monkeypatch):
    changes, message = BAD[case]
    monkeypatch.setattr(Simulation, "_exchange", lambda self: pytest.fail("work was done"))
    with pytest.raises(ValueError) as error:
        fedmls.simulate(fedmls.FedMLS(), svm(), **{"rounds": 3, **changes})
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: fedmls.make("fedmsl"), ValueError, "unknown algorithm 'fedmsl': did you mean 'fedmls'?"),
        (lambda: fedmls.FedAvg(lam0=1), TypeError, "unknown parameter of FedAvg 'lam0': "),
        (
            lambda: fedmls.FedMLS(lam=1, raduis=2),
            TypeError,
            "unknown parameter of FedMLS 'raduis': did you mean 'radius'",
        ),
        (lambda: fedmls.FedMLS(1.0), TypeError, "FedMLS takes its parameters by name: lam0, T0"),
        (lambda: fedmls.FedMLS(radius=0), ValueError, "radius is 0.0; it must be a positive number"),
        (lambda: fedmls.FedMLS(lam0=-1), ValueError, "lam0 is -1.0; it must be a positive number"),
        (lambda: fedmls.FedMLS(T=0), ValueError, "T is 0.0; it must be a positive number or a fedmls.Power"),
        (lambda: fedmls.FedMLS(T=[]), ValueError, "T is empty; give one number of steps, or one for each client"),
        (lambda: fedmls.FedMLS(T=[1, 0]), ValueError, "T is 0; it must be a whole number of at least 1"),
        (lambda: fedmls.simulate(fedmls.FedMLS(T=[1]), svm(), rounds=1), ValueError, "T has 1 values for 5 clients"),
        (lambda: fedmls.FedMLS(output="mean"), ValueError, "unknown output 'mean'"),
        (lambda: fedmls.Scaffold(option="III"), ValueError, "unknown option 'III'"),
        (lambda: fedmls.GradSkip(q=1.5), ValueError, "q is 1.5; take probabilities in [0, 1]"),
        (
            lambda: fedmls.simulate(fedmls.GradSkip(q=[0.5]), svm(), rounds=1),
            ValueError,
            "q has 1 values for 5 clients",
        ),
        (lambda: fedmls.simulate("fedmls", svm(), rounds=1), ValueError, "'fedmls' is no algorithm; give an object"),
        (lambda: fedmls.simulate(fedmls.FedMLS(), 3, rounds=1), ValueError, "int is no problem; give a fedmls.Problem"),
        (lambda: fedmls.FedMLS(lam0=10**400), ValueError, "lam0 is 1000"),
        (lambda: fedmls.FedMLS(paired="no"), ValueError, "paired is 'no'; it must be True or False"),
        (lambda: fedmls.GradSkip(q=None), ValueError, "q is None; take probabilities"),
        (lambda: fedmls.make(["x"]), ValueError, "unknown algorithm ['x']"),
        (lambda: fedmls.table([]), ValueError, "runs is empty; give a list"),
        (
            lambda: fedmls.simulate(fedmls.Scaffnew(p=fedmls.Power(1e-9, -2)), svm(), rounds=1),
            ValueError,
            "Power(scale=1e-09, exponent=-2.0) gave no meeting in 100,000,000 steps",
        ),
        (lambda: fedmls.Power(0), ValueError, "Power(scale=0, exponent=0.0) is no schedule"),
    ],
)
def test_bad_algorithms(call, error, message):
    with pytest.raises(error) as found:
        call()
    assert str(found.value).startswith(message)


@pytest.mark.parametrize("algorithm", [fedmls.Scaffold(eta0=0.01, participants=2), fedmls.FedMLSD()])
def test_an_exchange_that_is_given_up_leaves_the_last_one_as_it_was(algorithm):
    """Ctrl-C, twice, in mid-exchange: the checkpoint holds the state before it."""
    simulation = Simulation(algorithm, svm(), RunConfig(9, batch=0.5))
    next(simulation.play())
    before = [field.copy() for field in simulation.at.clients]
    simulation._exchange()
    for kept, field in zip(before, simulation.at.clients, strict=True):
        np.testing.assert_array_equal(kept, field)
