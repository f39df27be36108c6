"""Many runs: order, equality of backends, a store that is continued, Ctrl-C."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

import fedmls
from fedmls import sweep as sweep_function
from fedmls.optima import programs
from fedmls.simulation import sweeps
from tests.support.problems import svm

GRID = [fedmls.FedMLS(lam0=v) for v in (0.1, 1.0)] + [fedmls.Scaffnew()]
COUNTED = ["round", "local_steps", "bytes_up", "objective", "gap"]


def reference(algorithm, seed):
    return fedmls.simulate(algorithm, svm(), rounds=10, batch=0.4, seed=seed)


@pytest.mark.parametrize("backend", ["threads", "processes"])
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_sweep_is_the_runs_one_by_one(backend, jobs):
    runs = fedmls.sweep(GRID, svm(), rounds=10, batch=0.4, seeds=range(3), jobs=jobs, backend=backend)
    assert [(r.algorithm, r.seed) for r in runs] == [(a, s) for a in GRID for s in range(3)]
    for run in runs:
        expected = reference(run.algorithm, run.seed)
        assert np.array_equal(run.x, expected.x)
        assert run.history[COUNTED].equals(expected.history[COUNTED])


def test_dask_gives_the_same_runs():
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 1, "threads_per_worker": 2, "processes": False, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster):
        runs = fedmls.sweep(GRID, svm(), rounds=10, batch=0.4, seeds=range(2), backend="dask")
    for run in runs:
        assert np.array_equal(run.x, reference(run.algorithm, run.seed).x)


def test_a_problem_for_each_seed():
    runs = fedmls.sweep(
        [fedmls.FedMLS()],
        lambda seed: svm(seed=seed),
        metrics=lambda seed: {"seed_seen": lambda x: seed},
        rounds=5,
        seeds=(3, 4),
        backend="threads",
    )
    assert [run.history["seed_seen"].iloc[-1] for run in runs] == [3, 4]
    assert np.array_equal(runs[1].x, fedmls.simulate(fedmls.FedMLS(), svm(seed=4), rounds=5, seed=4).x)


def test_a_store_is_continued(tmp_path, monkeypatch):
    kwargs = {"rounds": 10, "batch": 0.4, "seeds": range(2), "store": tmp_path, "backend": "threads"}
    fedmls.sweep(GRID[:1], svm(), **kwargs)
    assert len(list(tmp_path.iterdir())) == 2
    ran = []
    save = sweeps.RunStore.save
    monkeypatch.setattr(sweeps.RunStore, "save", lambda self, *run: (ran.append(run), save(self, *run)))
    runs = fedmls.sweep(GRID, svm(), **kwargs)
    assert len(ran) == 4
    for got in runs:
        expected = reference(got.algorithm, got.seed)
        assert got.algorithm == expected.algorithm
        assert np.array_equal(got.x, expected.x)
        assert got.history[COUNTED].equals(expected.history[COUNTED])
        assert got.optimum == expected.optimum
    ran.clear()
    fedmls.sweep(GRID, svm(), **{**kwargs, "rounds": 11})
    assert len(ran) == 6  # other rounds, other runs
    damaged = next(tmp_path.iterdir())
    damaged.write_bytes(b"not parquet")
    ran.clear()
    fedmls.sweep(GRID, svm(), **kwargs)
    fedmls.sweep(GRID, svm(), **{**kwargs, "rounds": 11})
    assert len(ran) == 1  # the damaged one


def test_a_store_tells_starts_and_optima_apart(tmp_path):
    kwargs = {"rounds": 3, "store": tmp_path, "backend": "threads", "seeds": np.arange(1)}
    starts = [np.zeros(5), 1e-12 * np.ones(5)]
    runs = [fedmls.sweep(GRID[:1], svm(), x0=x0, **kwargs)[0] for x0 in starts]
    assert not np.array_equal(runs[0].x, runs[1].x)
    for optimum in (None, 1.0, "auto"):
        (run,) = fedmls.sweep(GRID[:1], svm(), optimum=optimum, **kwargs)
        assert run.optimum == (svm().optimum.value if optimum == "auto" else optimum)
    assert len(list(tmp_path.iterdir())) == 4


def test_a_store_tells_targets_apart(tmp_path):
    for target in (None, 0.3, 0.3, 0.1):
        runs = fedmls.sweep(GRID, svm(), rounds=10, store=tmp_path, backend="threads", target=target)
        for run in runs:
            assert np.array_equal(run.x, fedmls.simulate(run.algorithm, svm(), rounds=10, target=target).x)
    assert len(list(tmp_path.iterdir())) == 3 * len(GRID)


def test_certificates_of_those_that_make_them(tmp_path):
    problem = svm()
    for until in (0.5, 0.25, None):
        for _ in range(2):
            runs = fedmls.sweep(
                GRID, problem, rounds=60, certificate=3.0, until=until, store=tmp_path, backend="threads"
            )
        for run in runs:
            proof = {"certificate": 3.0, "until": until} if run.algorithm.traits.certifies else {}
            expected = fedmls.simulate(run.algorithm, problem, rounds=60, **proof)
            assert np.array_equal(run.x, expected.x)
            assert list(run.history.columns) == list(expected.history.columns)
    assert len(list(tmp_path.iterdir())) == 3 * 2 + 1  # Scaffnew runs without, and once


def test_a_store_tells_a_radius_from_none(tmp_path):
    problem = svm(intercept=False, l2=1.0)
    for certificate in (1.0, True):
        (run,) = fedmls.sweep(GRID[:1], problem, rounds=3, certificate=certificate, store=tmp_path, backend="threads")
        expected = fedmls.simulate(GRID[0], problem, rounds=3, certificate=certificate).history
        assert run.history["lower_bound"].tolist() == expected["lower_bound"].tolist()
    assert len(list(tmp_path.iterdir())) == 2


def test_the_optimum_is_solved_once_for_each_problem(monkeypatch):
    solved = []
    solve = programs.solve
    monkeypatch.setattr(programs, "solve", lambda program: (solved.append(1), solve(program))[1])
    fedmls.sweep(GRID, lambda seed: svm(seed=seed), rounds=2, seeds=range(3), backend="threads")
    assert len(solved) == 3


@pytest.mark.slow
@pytest.mark.processes
def test_runs_report_their_progress(tmp_path):
    """On a terminal the bar moves with the rounds, also of other processes."""
    script = textwrap.dedent("""
        import fedmls
        from tests.support.problems import svm
        fedmls.sweep([fedmls.FedMLS(T=30_000)], svm(), rounds=150, seeds=range(2), jobs=2, progress=True)
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    shown = [float(x) for x in re.findall(r"(\d+)/2 runs", done.stderr)]
    assert shown
    assert "gap" in done.stderr


def test_diverged_runs_are_flagged_in_the_table_and_the_store(tmp_path):
    problem = svm()
    problem.loss = fedmls.huber(1e300)
    wild, tame = fedmls.FedAvg(eta=10.0, T=3), fedmls.FedAvg(eta=1e-3, T=3)
    for _ in range(2):
        runs = fedmls.sweep([wild, tame], problem, rounds=200, optimum=1.0, store=tmp_path, backend="threads")
        assert [run.diverged for run in runs] == [True, False]
    table = fedmls.table(runs)
    assert table.groupby("parameters")["diverged"].all().to_dict() == {
        "eta=10, T=3": True,
        "eta=0.001, T=3": False,
    }
    assert np.isfinite(table.select_dtypes("number").to_numpy()).all()


@pytest.mark.processes
@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_ctrl_c_keeps_finished_runs(backend, jobs, tmp_path):
    script = textwrap.dedent(f"""
        import fedmls
        from tests.support.problems import svm
        quick, slow = fedmls.FedMLS(T=1), fedmls.FedMLS(T=100_000)
        try:
            fedmls.sweep([quick, slow], svm(), rounds=300, batch=0.4, seeds=range(2), jobs={jobs},
                         backend={backend!r}, store={str(tmp_path)!r})
        except fedmls.Interrupted as stop:
            print(stop, [run.history["round"].iloc[-1] for run in stop.runs])
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 90
    while len(list(tmp_path.glob("*.parquet"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole process group
    out, err = process.communicate(timeout=60)
    assert "stopped with 2 of 4 runs finished; they are kept in" in out
    assert "[300, 300]" in out.replace("np.int64(", "").replace(")", "")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backend": "gpu"}, "unknown backend 'gpu'"),
        ({"seeds": []}, "seeds is empty; give a list, such as range(20)"),
        ({"algorithms": []}, "algorithms is empty; give a list, such as [fedmls.FedMLS()]"),
        ({"batch": 7}, "batch is 7"),
        ({"rounds": 0}, "rounds is 0"),
        ({"jobs": 0}, "jobs is 0; it must be a whole number, -1 for one per core"),
        ({"seeds": 20}, "seeds is 20; give a list, such as range(20)"),
        ({"seeds": [0, -1]}, "seed is -1"),
        ({"algorithms": GRID[0]}, "algorithms is FedMLS(lam0=0.1"),
        ({"algorithms": [fedmls.FedMLS]}, "<class 'fedmls.algorithms.fedmls.FedMLS'> is no algorithm; give an object"),
        ({"problem": [svm()]}, "list is no problem; give one, or a function of the seed"),
        ({"target": 0.0}, "target is 0.0; it must be a positive number"),
        ({"target": 0.1, "optimum": None}, "target is 0.1, but there is no optimum to measure the gap by"),
        ({"metrics": {"gap": len}}, "metrics holds 'gap', which is a column already"),
        ({"certificate": 1.0, "algorithms": GRID[2:]}, "certificate is 1.0, but none of the algorithms makes one"),
        ({"until": 1.0}, "until is 1.0, but there is no certificate to prove it by"),
    ],
)
def test_bad_input(changes, message, tmp_path):
    kwargs = {"algorithms": GRID, "problem": svm(), "rounds": 2, "store": tmp_path / "none", **changes}
    with pytest.raises(ValueError) as error:
        sweep_function(**kwargs)
    assert str(error.value).startswith(message)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("jobs", [1, 2])
def test_errors_are_kept_if_asked_for(jobs, tmp_path):
    """A run that raises has no history, and is not stored; the others are as ever."""
    broken = fedmls.ADMM(rho=1.0)
    problem = svm(l1=0.1)  # of which ADMM cannot make exact steps
    with pytest.raises(ValueError):
        fedmls.sweep([GRID[0], broken], problem, rounds=10, batch=0.4, jobs=jobs)
    runs = fedmls.sweep([GRID[0], broken], problem, rounds=10, batch=0.4, jobs=jobs, errors="keep", store=tmp_path)
    assert [len(run.history) for run in runs] == [10, 0]
    assert runs[0].error == ""
    assert runs[1].error.startswith("ValueError: ")
    assert len(list(tmp_path.iterdir())) == 1


def test_a_store_that_cannot_be_written_stops_the_sweep(tmp_path, monkeypatch):
    done = []

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sweeps.RunStore, "save", full)
    counted = [fedmls.FedMLSD(T0=float(v)) for v in range(1, 9)]
    with pytest.raises(OSError, match="No space left"):
        fedmls.sweep(
            counted,
            svm(),
            rounds=3,
            store=tmp_path,
            jobs=1,
            backend="threads",
            metrics=lambda seed: {"done": lambda x: done.append(seed) or 0.0},
        )
    assert len(done) < 3 * len(counted)


def test_equal_runs_in_one_store(tmp_path):
    grid = [fedmls.FedAvg(), fedmls.FedAvg()]
    for place in range(5):
        runs = fedmls.sweep(grid, svm(), rounds=2, seeds=[0, 1, 0, 1], store=tmp_path / str(place), backend="threads")
        assert len(runs) == 8
        assert len(list((tmp_path / str(place)).glob("*.parquet"))) == 2
        assert not list((tmp_path / str(place)).glob("*.part"))


def test_nothing_is_left_of_stacks_whose_runs_are_stored(tmp_path, monkeypatch):
    monkeypatch.setattr("fedmls.simulation.stacked.SAVE_EVERY_SECONDS", -1.0)

    def stops(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sweeps, "_parallel", stops)
        with pytest.raises(fedmls.Interrupted, match="stopped with 2 of 4"):
            fedmls.sweep([fedmls.FedAvg(), fedmls.FedMLSD()], svm(), rounds=4, seeds=range(2), store=tmp_path)
    assert not list(tmp_path.glob("*.stack.npz"))
