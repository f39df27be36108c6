"""The compiled loop: equal to its NumPy twin, fair batches, nothing allocated in a step."""

import numpy as np
import pytest
from numba.core.runtime import _nrt_python, rtsys

import fedmls
from fedmls.local import descent
from fedmls.local.random import draw, stream
from fedmls.losses import LOSSES
from fedmls.schedules import prox_average, prox_steps
from tests.support.problems import lad, svm

OPTIONS = {
    "plain": {},
    "prox": {"scale": 0.1, "pull": 1.0, "center": np.ones(5), "average": prox_average(40)},
    "shift": {"shift": np.arange(5.0)},
    "ball": {"radius": 0.7, "average": prox_average(40)},
}


def oracle(problem):
    """The same problem as functions, for the generic twin."""

    def client(i):
        def subgradient(x, rng):
            return problem.client_subgradients(x[None, :], [i])[0]

        return (lambda x: problem.client_values(x, [i])[0]), subgradient

    return fedmls.OracleProblem([client(i) for i in range(problem.n)], problem.dimension, problem.weights)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("density", [None, 0.5])
def test_equals_its_twin(loss, options, density):
    problem = lad(loss="absolute", density=density, l2=0.2, l1=0.1)
    problem.loss = LOSSES[loss]
    if problem.loss.is_classification:
        problem.y = np.where(problem.y > 0, 1.0, -1.0)
    u = np.linspace(-1, 1, 25).reshape(5, 5)
    kwargs = dict(OPTIONS[options], count=[40, 0, 7, 39, 1])
    compiled = problem.local().descend(u, 0.02 * prox_steps(40), **kwargs)
    generic = oracle(problem).local().descend(u, 0.02 * prox_steps(40), **kwargs)
    for ours, theirs in zip(compiled, generic, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


def test_whole_runs_on_the_generic_twin():
    problem = svm()
    for algorithm in (fedmls.FedMLS(lam0=0.5), fedmls.Scaffold(option="I"), fedmls.GradSkip(q=0.9)):
        ours = fedmls.simulate(algorithm, problem, rounds=20)
        theirs = fedmls.simulate(algorithm, oracle(problem), rounds=20, optimum=problem.optimum)
        np.testing.assert_allclose(theirs.x, ours.x, rtol=1e-9)
        assert theirs.history["subgradients"].equals(ours.history["subgradients"])


def test_a_users_own_stochastic_function():
    """f(x) = E|x - ξ|, ξ normal around 3: the minimum is the median."""
    client = (lambda x: abs(x[0] - 3), lambda x, rng: np.sign(x - rng.normal(3.0, 1.0)))
    problem = fedmls.OracleProblem([client] * 3, dimension=1)
    one, again = (fedmls.simulate(fedmls.FedMLS(lam0=20), problem, rounds=60, seed=4) for _ in range(2))
    assert np.array_equal(one.x, again.x)
    assert abs(one.x[0] - 3) < 0.3
    assert one.history["gap"].isna().all()
    with pytest.raises(ValueError, match="has no rows: draw the batch in the subgradient function"):
        fedmls.simulate(fedmls.FedMLS(), problem, rounds=1, batch=0.5)


def test_batches_are_drawn_without_replacement_and_fairly():
    m, size, draws = 11, 4, 30_000
    batch, counter = np.arange(m), stream(np.uint64(7), 1, 0, 0)
    counts, pairs = np.zeros(m), np.zeros((m, m))
    for _ in range(draws):
        counter = draw(batch, size, m, np.uint64(counter))
        drawn = batch[:size]
        assert len(set(drawn)) == size
        counts[drawn] += 1
        pairs[np.ix_(drawn, drawn)] += 1
    share = size / m
    assert abs(counts / draws - share).max() < 5 * np.sqrt(share * (1 - share) / draws)
    both = share * (size - 1) / (m - 1)
    off = pairs[~np.eye(m, dtype=bool)]
    assert abs(off / draws - both).max() < 5 * np.sqrt(both * (1 - both) / draws)


def drawn(rows, size, counter):
    """What ``draw`` does, in plain Python: a hash of 64 bits for two places, its upper half for the first of them."""
    rows, word = list(rows), 2**64 - 1
    for r in range(size):
        z = (counter + (r // 2 + 1) * 0x9E3779B97F4A7C15) & word
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & word
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & word
        z ^= z >> 31
        k = r + ((z >> 32 if r % 2 == 0 else z % 2**32) * (len(rows) - r) >> 32)
        rows[r], rows[k] = rows[k], rows[r]
    return rows, (counter + (size + 1) // 2 * 0x9E3779B97F4A7C15) & word


@pytest.mark.parametrize("kind", [np.int64, np.uint64])
@pytest.mark.parametrize(("m", "size"), [(1, 1), (21, 3), (21, 20), (279, 28), (1000, 1000)])
def test_batches_are_those_of_plain_python(m, size, kind):
    batch, counter = np.arange(5, 5 + m).astype(kind), int(stream(np.uint64(3), 2, 1, 0))
    expected = batch.tolist()
    for _ in range(5):
        expected, after = drawn(expected, size, counter)
        counter = int(draw(batch, size, m, np.uint64(counter)))
        assert (batch.tolist(), counter) == (expected, after)


def test_mini_batch_steps_are_those_of_plain_python():
    """Ten steps of the subgradient method, each on the rows that ``drawn`` says."""
    problem, eta = svm(), 0.05
    local = problem.local(seed=3, batch=0.3)
    local.begin(2)
    u, _ = local.descend(np.zeros((problem.n, problem.dimension)), np.full(10, eta))
    for i, size in enumerate(local.batch_sizes.tolist()):
        first, last = problem.offsets[i : i + 2]
        rows, x, counter = range(first, last), np.zeros(problem.dimension), int(stream(np.uint64(3), 2, i, 0))
        assert 1 < size < last - first
        for _ in range(10):
            rows, counter = drawn(rows, size, counter)
            A, b = problem.X[rows[:size]], problem.y[rows[:size]]
            x = x + eta * (last - first) / size * (b * (b * (A @ x) < 1)) @ A
        np.testing.assert_allclose(u[i], x, rtol=1e-12, atol=1e-14)


def test_streams_differ_by_seed_round_client_and_call():
    seen = {
        int(stream(np.uint64(s), k, i, c)) for s in range(6) for k in range(1, 7) for i in range(6) for c in range(3)
    }
    assert len(seen) == 6 * 6 * 6 * 3


@pytest.mark.parametrize(("batch", "sizes"), [(0.1, [2, 3, 7, 1]), (1.0, [20, 21, 70, 3]), (0.0001, [1, 1, 1, 1])])
def test_batch_sizes_round_up_but_not_on_rounding_errors(batch, sizes):
    clients = np.repeat([0, 1, 2, 3], [20, 21, 70, 3])
    problem = fedmls.Problem(np.arange(114.0)[:, None], np.arange(114.0), clients, "absolute")
    assert problem.local(batch=batch).batch_sizes.tolist() == sizes


def test_full_batches_do_not_depend_on_the_seed():
    problem = svm()
    one, two = (fedmls.simulate(fedmls.FedMLS(), problem, rounds=10, seed=seed).x for seed in (0, 1))
    assert np.array_equal(one, two)


def test_nothing_is_allocated_inside_a_step():
    problem = svm(l2=0.1)
    local = problem.local(batch=0.3)

    def allocations(T):
        kwargs = {"center": np.ones((5, 5)), "pull": 1.0, "average": prox_average(T), "radius": 2.0}
        before = rtsys.get_allocation_stats().alloc
        local.descend(np.zeros((5, 5)), prox_steps(T), **kwargs)
        return rtsys.get_allocation_stats().alloc - before

    _nrt_python.memsys_enable_stats()
    allocations(3)
    assert allocations(2000) == allocations(10) > 0


def test_the_loop_is_compiled_once_for_dense_and_once_for_csr():
    for algorithm in (fedmls.FedMLS(radius=1.0), fedmls.FedAvg(), fedmls.Scaffold(), fedmls.GradSkip(q=0.9)):
        for problem in (svm(), svm(l2=1.0), lad(), lad(density=0.5), lad(loss="huber")):
            fedmls.simulate(algorithm, problem, rounds=3, batch=0.5)
    assert len(descent.descend_rows.signatures) == 2
