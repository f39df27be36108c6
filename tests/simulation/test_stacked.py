"""Several runs as one simulation: every history equals, to the last bit, that of the run by itself."""

import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

import fedmls
from fedmls.algorithms import ALGORITHMS
from fedmls.local import descent
from fedmls.simulation import stacked
from fedmls.simulation.config import PlannedRun, RunConfig
from fedmls.simulation.stacked import Stack, stacks
from fedmls.simulation.stacked_sweeps import StackedSweep
from tests.support.problems import svm

VARIED = {"fedmls": "lam0", "fedmlse": "lam0", "dcs": "eta", "feddyn": "alpha", "fedsplit": "s"}  # eta0 otherwise
NEEDS = {"fedmlsp": {"participants": 2}}
STACKED = sorted(name for name in ALGORITHMS if fedmls.make(name, **NEEDS.get(name, {})).traits.stacks is not None)


def svm_of(loss, **options):
    like = svm()
    return fedmls.Problem(like.X, like.y, np.repeat(np.arange(like.n), like.rows_per_client), loss, **options)


def problem(loss, sparse, columns, seed, **terms):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(40, columns)) * (rng.random((40, columns)) < 0.7)
    y = np.where(rng.random(40) < 0.5, -1.0, 1.0) + (0 if loss in ("hinge", "logistic") else rng.normal(size=40))
    return fedmls.Problem(csr_array(X) if sparse else X, y, np.arange(40) % 3, loss, **terms)


def plan(algorithms, problems, seeds=None, **settings):
    pairs = [(a, p, s) for a in algorithms for s, p in enumerate(problems)]
    seeds = [s for _, _, s in pairs] if seeds is None else seeds
    config = {"rounds": 12, "batch": 0.4, **settings}
    return [
        PlannedRun(a, p, RunConfig(seed=s, **config).resolved(p)) for (a, p, _), s in zip(pairs, seeds, strict=True)
    ]


def by_itself(run):
    config = run.config
    return fedmls.simulate(
        run.algorithm,
        run.problem,
        rounds=config.rounds,
        batch=config.batch,
        seed=config.seed,
        x0=config.x0,
        every=config.every,
        target=config.target,
        metrics=config.metrics,
        optimum=config.optimum,
        progress=False,
    )


def assert_equal(got, expected):
    assert got.diverged == expected.diverged
    assert got.history.drop(columns="seconds").equals(expected.history.drop(columns="seconds"))
    assert np.array_equal(got.x, expected.x)
    assert (got.history["seconds"].diff().dropna() >= 0).all()


def assert_stack_is_its_runs(runs, threads=1):
    assert list(stacks(dict(enumerate(runs)))) == [list(range(len(runs)))]
    stack = Stack(runs, threads)
    stack.run()
    for got, run in zip(stack.results(), runs, strict=True):
        assert_equal(got, by_itself(run))


@pytest.mark.parametrize("name", STACKED)
def test_seeds_and_numbers_of_every_algorithm_that_stacks(name):
    numbers = [{VARIED.get(name, "eta0"): value} for value in (0.003, 0.02, 3.0)]
    problems = [svm(seed=seed) for seed in range(2)]
    assert_stack_is_its_runs(plan([fedmls.make(name, **one) for one in numbers], problems))


def test_the_paper_s_algorithms_stack():
    assert {"fedmls", "fedavg", "scaffold", "scaffnew"} <= set(STACKED)


@pytest.mark.parametrize(
    "algorithm",
    [
        fedmls.FedMLS(paired=True, output="best"),
        fedmls.FedMLS(T=(3, 1, 2, 5)),
        fedmls.FedMLS(lam=0.5, T=4, output="last"),
        fedmls.Scaffold(option="I", decay="step"),
        fedmls.Scaffold(eta=0.01, eta_g=1.0),
        fedmls.Scaffnew(as_released=True),
        fedmls.Scaffnew(p=0.3, eta=0.01),
    ],
    ids=repr,
)
def test_other_readings_of_the_algorithms(algorithm):
    assert_stack_is_its_runs(plan([algorithm], [svm(n=4), svm(n=4), svm(n=4, seed=2)], every=5))


def test_both_readings_of_scaffnew_are_one_stack():
    readings = [fedmls.Scaffnew(eta0=eta0, as_released=which) for eta0 in (0.003, 0.02) for which in (False, True)]
    assert_stack_is_its_runs(plan(readings, [svm(seed=seed) for seed in range(2)]))


def test_on_a_gpu_runs_with_rounds_of_different_lengths_are_stacked_by_seeds():
    """Those of one seed have rounds of the same lengths."""
    problems = [svm(seed=seed) for seed in range(6)]
    runs = plan([fedmls.FedAvg(), fedmls.Scaffnew(), fedmls.Scaffnew(as_released=True)], problems)
    there = [run._replace(problem=run.problem.on("cuda")) for run in runs]
    here, on_gpu = (StackedSweep(dict(enumerate(some)), [], None, ()).groups for some in (runs, there))
    assert here == [list(range(6)), list(range(6, 18))]
    assert on_gpu == [list(range(6)), [6, 7, 8, 9, 12, 13, 14, 15], [10, 11, 16, 17]]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(["fedmls", "fedavg", "scaffold", "scaffnew"]),
    st.sampled_from(["hinge", "logistic", "absolute", "huber"]),
    st.booleans(),
    st.integers(1, 6),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from(["rows", None]),
    st.integers(1, 3),
    st.integers(1, 4),
)
def test_all_problems(name, loss, sparse, columns, l2, weights, threads, every):
    terms = {"l2": l2, "l1": l2 / 9, "weights": weights}
    made = [problem(loss, sparse, columns, s, **terms) for s in range(2)]
    algorithms = [fedmls.make(name, **{VARIED.get(name, "eta0"): value}) for value in (0.01, 0.1)]
    assert_stack_is_its_runs(plan(algorithms, made, rounds=7, every=every, optimum=None), threads)


def test_many_threads_give_the_same_bits(monkeypatch):
    monkeypatch.setattr("fedmls.local.loops.LEAST_WORK", 1)
    assert_stack_is_its_runs(plan([fedmls.FedMLS(lam0=v) for v in (0.1, 1.0)], [svm(seed=s) for s in range(3)]), 3)


def test_runs_end_at_their_own_target():
    runs = plan([fedmls.FedMLS(lam0=v) for v in (1e-6, 0.1, 1.0)], [svm(), svm()], rounds=60, target=0.3)
    assert_stack_is_its_runs(runs)
    assert len({len(by_itself(run).history) for run in runs}) > 2


@pytest.mark.parametrize("every", [1, 4])
def test_a_run_that_diverges_leaves_the_others_alone(every):
    problem = svm_of("squared_hinge")
    runs = plan([fedmls.FedAvg(eta0=v) for v in (1e-4, 1e3)], [problem, problem], rounds=40, every=every)
    assert_stack_is_its_runs(runs)
    assert [by_itself(run).diverged for run in runs] == [False, False, True, True]


def test_metrics_of_each_run():
    runs = plan([fedmls.FedAvg()], [svm(), svm(seed=1)], metrics={"norm": lambda x: float(np.abs(x).sum())})
    assert_stack_is_its_runs(runs)


def test_what_cannot_be_stacked_is_not():
    problem = svm()

    def stacked_with(algorithm, **settings):
        runs = plan([algorithm], [problem, problem], **settings)
        return list(stacks(dict(enumerate(runs))))

    assert stacked_with(fedmls.FedAvg()) == [[0, 1]]
    assert stacked_with(fedmls.FedAvg(participants=2)) == []
    assert stacked_with(fedmls.FedMLS(lam0="auto")) == []
    assert stacked_with(fedmls.FedMLS(radius=3.0)) == []
    assert stacked_with(fedmls.FedMLS(), certificate=10.0) == []
    assert stacked_with(fedmls.FedMLSB()) == []
    others = plan([fedmls.FedAvg(T=2), fedmls.FedAvg(T=3)], [problem])  # T is no number that may differ
    assert list(stacks(dict(enumerate(others)))) == []


@pytest.mark.parametrize("name", ["fedmls", "scaffnew"])
def test_a_stack_is_resumed_from_its_file(name, tmp_path):
    runs = plan([fedmls.make(name)], [svm(), svm(seed=1)], every=5)
    first, file = Stack(runs), tmp_path / "kept.stack.npz"
    first.resume(file)
    stop = threading.Event()
    with pytest.raises(KeyboardInterrupt):
        first.run(stop, lambda k, gaps: stop.set() if k == 7 else None)
    second = Stack(runs)
    second.resume(file)
    assert second.round == 7
    second.run()
    assert all(run.history["seconds"].is_monotonic_increasing for run in second.results())
    for got, run in zip(second.results(), runs, strict=True):
        assert got.history.drop(columns="seconds").equals(by_itself(run).history.drop(columns="seconds"))
        assert np.array_equal(got.x, by_itself(run).x)


def test_a_sweep_goes_on_with_the_stack_it_was_stopped_in(tmp_path, monkeypatch):
    sweep = {"rounds": 9, "seeds": range(3), "store": tmp_path, "progress": False}
    true = stacked.Stack._exchange

    def stopped(self):
        if self.round == 4:
            self.save()
            raise KeyboardInterrupt
        true(self)

    monkeypatch.setattr(stacked.Stack, "_exchange", stopped)
    with pytest.raises(fedmls.Interrupted, match=r"0 of 3 runs finished; what has been done is kept in .*run again"):
        fedmls.sweep([fedmls.FedAvg()], svm(), **sweep)
    begun = []
    monkeypatch.setattr(stacked.Stack, "_exchange", lambda self: (begun.append(self.round), true(self))[1])
    runs = fedmls.sweep([fedmls.FedAvg()], svm(), **sweep)
    assert begun == [4, 5, 6, 7, 8]
    assert not list(tmp_path.glob("*.stack.npz"))
    for run in runs:
        assert np.array_equal(run.x, fedmls.simulate(fedmls.FedAvg(), svm(), rounds=9, seed=run.seed).x)


def test_a_stack_compiles_nothing_of_its_own():
    fedmls.simulate(fedmls.FedAvg(), svm(), rounds=2)
    before = len(descent.descend_rows.signatures)
    Stack(plan([fedmls.FedAvg(T=1, eta0=v) for v in (0.1, 0.2)], [svm(), svm(seed=1)])).run()
    Stack(plan([fedmls.FedMLS(lam0=v) for v in (0.1, 0.2)], [svm(n=1)])).run()
    assert len(descent.descend_rows.signatures) == before


def test_a_stack_that_has_not_begun_when_it_is_stopped_writes_nothing(tmp_path):
    stack, stop = Stack(plan([fedmls.FedAvg()], [svm(), svm(seed=1)])), threading.Event()
    stack.resume(tmp_path / "kept.stack.npz")
    stop.set()
    with pytest.raises(KeyboardInterrupt):
        stack.run(stop)
    assert list(tmp_path.iterdir()) == []
