"""The loops of a GPU against those of the processor: the same mini-batches, the same numbers to rounding."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy.sparse import csr_array

import fedmls
from fedmls.local.descent import Steps
from fedmls.local.random import Stream

pytestmark = pytest.mark.gpu
LOSSES = ["hinge", "squared_hinge", "absolute", "pinball", "epsilon_insensitive", "huber", "logistic"]


def problem(loss="hinge", d=9, sizes=(21, 279, 70, 45), sparse=False, seed=0, **terms):
    rng = np.random.default_rng(seed)
    m = sum(sizes)
    X = rng.normal(size=(m, d)) * (rng.random((m, d)) < (0.3 if sparse else 1.0))
    y = np.where(X[:, 0] + rng.normal(size=m) > 0, 1.0, -1.0)
    if loss not in ("hinge", "squared_hinge", "logistic"):
        y = y + rng.normal(size=m)
    clients = np.repeat(np.arange(len(sizes)), sizes)
    rows = rng.uniform(0.5, 2.0, size=m)
    return fedmls.Problem(csr_array(X) if sparse else X, y, clients, loss, sample_weight=rows, **terms)


def both(made, call):
    """What the call gives on the processor and on the GPU."""
    return call(made), call(made.on("cuda"))


def close(here, there, tolerance=1e-11):
    for one, other in zip(here, there, strict=True):
        assert np.abs(one - other).max() <= tolerance * (1 + np.abs(one).max())


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", [{}, {"sparse": True}, {"d": 40}, {"d": 1}, {"d": 1500}, {"sparse": True, "d": 3000}])
def test_values_subgradients_and_cuts(loss, kind):
    made = problem(loss, l2=0.3, **kind)
    x = np.random.default_rng(1).normal(size=(made.n, made.dimension)) * 0.2
    close(*both(made, lambda p: (p.client_values(x), p.client_subgradients(x), np.array(p.value(x[0])))))
    points = np.ascontiguousarray(np.repeat(x, 3, axis=0)[:11])
    for parts in (1, 3):
        close(*both(made, lambda p, parts=parts: p.loops.cuts(points, parts)))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("batch", [0.1, 0.02, 1.0])
@pytest.mark.parametrize("kind", [{}, {"sparse": True}, {"d": 40}, {"d": 31}, {"sizes": (30_000, 10)}])
def test_local_steps(loss, batch, kind):
    made = problem(loss, l2=0.2, l1=0.05, **kind)
    rng = np.random.default_rng(2)
    u, center, shift = rng.normal(size=(3, made.n, made.dimension)) * 0.3
    t = np.arange(1, 41)
    steps, average = 1e-3 / np.sqrt(t), 2 * (t + 1) / (t * (t + 3))
    count = np.arange(40, 40 - made.n, -1)[:, None]

    def run(p, **more):
        local = p.local(5, batch)
        local.begin(3)
        return local.descend(u, steps, scale=0.5, pull=0.7, center=center, shift=shift, count=count, **more)

    close(*both(made, run))
    close(*both(made, lambda p: run(p, average=average, radius=0.8)))


def test_step_sizes_and_seeds_of_each_client():
    made = problem()
    n, d = made.n, made.dimension
    u = np.random.default_rng(0).normal(size=(n, d))
    own = np.array([1, 0, 1, 0])
    steps = Steps(
        np.array([[0.01, 0.02, 0.03], [0.003, 0.002, 0.001]]),
        own,
        np.empty(0),
        np.array([3, 2, 0, 1]),
        np.ones(n),
        0.0,
        0 * u,
        0 * u,
        np.inf,
    )
    stream = Stream(np.array([1, 2, 3, 4], dtype=np.uint64), 7, 0, np.arange(n), np.array([3, 30, 8, 5]))
    close(*both(made, lambda p: p.loops.descend(stream, steps, u, np.empty(0))))


def test_slopes_for_a_certificate():
    for kind in ({}, {"d": 40}):
        runs = [
            fedmls.simulate(fedmls.FedMLS(), problem(**kind), rounds=30, batch=0.2, certificate=10.0, device=device)
            for device in ("cpu", "cuda")
        ]
        here, there = (run.history[["objective", "lower_bound"]].to_numpy() for run in runs)
        assert np.abs(here - there).max() <= 1e-9 * (1 + np.abs(here).max())


ALGORITHMS = [
    fedmls.FedMLS(lam0=0.05),
    fedmls.FedMLS(paired=True, radius=2.0),
    fedmls.FedMLSE(),
    fedmls.FedAvg(eta0=1e-3),
    fedmls.Scaffold(eta0=1e-3),
    fedmls.Scaffnew(eta0=1e-3),
    fedmls.GradSkip(eta0=1e-3, q=0.9),
    fedmls.FedProx(eta0=1e-3),
    fedmls.FedMLSD(),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: a.name)
@pytest.mark.parametrize(("batch", "rounds"), [(1.0, 200), (0.1, 100)])
def test_trajectories_agree(algorithm, batch, rounds):
    rounds = 30 if algorithm.name == "fedmlsd" else rounds
    made = problem()
    here, there = (
        fedmls.simulate(algorithm, made, rounds=rounds, batch=batch, seed=4, optimum=None, device=device)
        for device in ("cpu", "cuda")
    )
    assert np.abs(here.x - there.x).max() <= 1e-9 * (1 + np.abs(here.x).max())
    counted = ["round", "local_steps", "subgradients", "bytes_up"]
    assert here.history[counted].equals(there.history[counted])
    assert np.allclose(here.history["objective"], there.history["objective"], rtol=1e-9, atol=0)


def test_the_bundle_agrees_while_its_quadratic_programs_do():
    """Their solutions are not unique: a cut that differs in its last bit may lead elsewhere, to the same optimum."""
    made = problem()
    here, there = (
        fedmls.simulate(fedmls.FedMLSB(), made, rounds=40, certificate=True, until=1e-6, device=device)
        for device in ("cpu", "cuda")
    )
    assert np.allclose(here.history["objective"][:5], there.history["objective"][:5], rtol=1e-9, atol=0)
    for run in (here, there):
        assert run.history["certified_gap"].iloc[-1] <= 1e-6
        assert (run.history["lower_bound"] <= made.optimum.value * (1 + 1e-9)).all()


def test_stacked_runs_agree():
    grid = [fedmls.FedAvg(eta0=v) for v in (1e-4, 1e-3)] + [fedmls.Scaffnew(eta0=1e-3), fedmls.FedMLS()]
    here, there = (
        fedmls.sweep(grid, problem(), rounds=40, batch=0.1, seeds=range(3), optimum=None, device=device)
        for device in ("cpu", "cuda")
    )
    for one, other in zip(here, there, strict=True):
        assert np.abs(one.x - other.x).max() <= 1e-9 * (1 + np.abs(one.x).max())


def test_runs_that_cannot_be_stacked_agree():
    grid = [fedmls.FedMLSD(), fedmls.GradSkip(eta0=1e-3)]
    here, there = (
        fedmls.sweep(grid, problem(), rounds=5, batch=0.1, seeds=range(2), jobs=2, optimum=None, device=device)
        for device in ("cpu", "cuda")
    )
    for one, other in zip(here, there, strict=True):
        assert np.abs(one.x - other.x).max() <= 1e-9 * (1 + np.abs(one.x).max())


def test_threads_may_share_a_problem():
    made = problem().on("cuda")
    points = np.random.default_rng(0).normal(size=(40, made.n, made.dimension))
    alone = [made.client_values(x) for x in points]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(made.client_values, points))
    close(together, alone, tolerance=0.0)


def test_float32_rounds_the_rows_alone():
    made = problem("logistic")
    here, there = (
        fedmls.simulate(fedmls.FedAvg(eta0=1e-3), made, rounds=50, batch=0.1, optimum=None, device=device)
        for device in ("cpu", "cuda-float32")
    )
    difference = np.abs(here.x - there.x).max() / np.abs(here.x).max()
    assert 0 < difference < 1e-5


def test_an_estimator_fits_on_the_gpu():
    made = problem(sizes=(200, 200))
    X, y = made.X[:, :-1], made.y
    here, there = (fedmls.FederatedLinearSVC(device=device).fit(X, y) for device in ("cpu", "cuda"))
    assert abs(here.objective_ - there.objective_) <= here.certified_gap_ + there.certified_gap_


def test_too_many_rows_are_refused_with_their_size(monkeypatch):
    import cupy

    def none_left(*_):
        raise cupy.cuda.memory.OutOfMemoryError(8, 0, 0)

    made = problem(sizes=(10, 10))
    monkeypatch.setattr("fedmls.local.cuda.DeviceRows._dense", none_left)
    with pytest.raises(ValueError, match=r"the rows take .* GiB, and the GPU has .* GiB free"):
        made.on("cuda").value(np.zeros(made.dimension))
