"""The exact proximal step against cvxpy, and its proof against every other point."""

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import fedmls
from fedmls.local.prox import prox
from fedmls.losses import LOSSES, epsilon_insensitive, huber, pinball
from tests.support.problems import cvxpy_losses, lad, svm

ALL = [*LOSSES.values(), pinball(0.1), epsilon_insensitive(0.0), epsilon_insensitive(1.0), huber(0.1)]


def make(loss, *, csr=False, l2=0.0, n=3, m=60, columns=4, seed=0, **options):
    """Clients unlike each other, row weights unequal, among them a weight of zero, a row of zeros and a row twice."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(m, columns)) * (rng.random(size=(m, columns)) < 0.7)
    X[1], X[2] = 0.0, X[2 + n]
    y = X @ rng.normal(size=columns) + rng.standard_t(2, size=m)
    if loss.is_classification:
        y = np.where(y > 0, 1, -1)
        y[:2] = -1, 1
    weights = rng.uniform(0.2, 2.0, size=m)
    weights[0] = 0.0
    rows = sparse.csr_array(X) if csr else X
    return fedmls.Problem(rows, y, clients=np.arange(m) % n, loss=loss, l2=l2, sample_weight=weights, **options)


def primal(problem, i, x, v, weight):
    return problem.client_values(x, [i])[0] + np.sum((x - v) ** 2) / (2 * weight)


def by_cvxpy(problem, i, v, weight):
    """The same by cvxpy, written anew."""
    part = slice(problem.offsets[i], problem.offsets[i + 1])
    A, b = problem.matrix()[part].toarray(), problem.y[part]
    x = cp.Variable(problem.dimension)
    rows = cvxpy_losses(problem.loss, A @ x, b)
    cost = cp.sum(cp.multiply(problem.row_weights[part], rows)) + cp.sum_squares(x - v) / (2 * weight)
    cost += problem.l2 / 2 * cp.sum_squares(x[: problem.penalised])
    cp.Problem(cp.Minimize(cost)).solve(solver="CLARABEL", tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    return x.value


@pytest.mark.parametrize("weight", [1e-3, 0.1, 1.0, 50.0])
@pytest.mark.parametrize(("csr", "l2"), [(False, 0.0), (True, 0.7)])
@pytest.mark.parametrize("loss", ALL, ids=repr)
def test_agrees_with_cvxpy(loss, csr, l2, weight):
    problem = make(loss, csr=csr, l2=l2)
    v = np.random.default_rng(1).normal(size=(problem.n, problem.dimension))
    found = prox(problem, v, weight)
    i = 1
    theirs = by_cvxpy(problem, i, v[i], weight)
    ours, other = (primal(problem, i, x, v[i], weight) for x in (found.x[i], theirs))
    assert ours <= other + 1e-9 * max(1.0, other)
    np.testing.assert_allclose(found.x[i], theirs, atol=2e-5 * max(1.0, weight**0.5))
    assert (found.gap <= 1e-9).all()


@pytest.mark.parametrize("l2", [0.0, 0.7])
@pytest.mark.parametrize("loss", ALL, ids=repr)
def test_sparse_and_dense_rows_give_the_same(loss, l2):
    v = np.random.default_rng(2).normal(size=(3, 5))
    dense, csr = (prox(make(loss, csr=kind, l2=l2), v, 0.3) for kind in (False, True))
    np.testing.assert_allclose(dense.x, csr.x, atol=1e-9)


@given(
    loss=st.sampled_from(ALL),
    seed=st.integers(0, 10**6),
    exponent=st.floats(-4, 2),
    l2=st.sampled_from([0.0, 0.1, 3.0]),
    m=st.integers(4, 40),
    columns=st.integers(1, 12),
    tolerance=st.sampled_from([1e-10, 1e-3, 1.0]),
    intercept=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_no_point_is_better_by_more_than_the_gap(loss, seed, exponent, l2, m, columns, tolerance, intercept):
    problem = make(loss, n=1, m=m, columns=columns, l2=l2, seed=seed, intercept=intercept)
    weight = 10.0**exponent
    rng = np.random.default_rng(seed)
    v = rng.normal(size=problem.dimension)
    found = prox(problem, v[None], weight, tolerance=tolerance)
    least = primal(problem, 0, found.x[0], v, weight)
    low, high = problem.loss.box(problem.y)
    assert ((low <= found.slopes) & (found.slopes <= high)).all()
    assert 0 <= found.gap[0] <= tolerance * max(1.0, least) + 1e-12 * weight * m
    best = prox(problem, v[None], weight).x[0]
    others = [best, *(found.x[0] + 10.0 ** -rng.uniform(0, 9) * rng.normal(size=len(v)) for _ in range(20))]
    for other in others:
        assert least - primal(problem, 0, other, v, weight) <= found.gap[0] + 1e-13 * max(1.0, least)


def test_the_gap_is_primal_less_dual():
    """The dual value from the slopes alone, by the formula of its definition."""
    problem, weight = make(LOSSES["hinge"], l2=0.4), 0.7
    v = np.random.default_rng(3).normal(size=(3, 5))
    found = prox(problem, v, weight, tolerance=10.0, passes=1)
    A, c = problem.matrix().toarray(), problem.row_weights
    h = np.where(np.arange(5) < problem.penalised, 1 / weight + problem.l2, 1 / weight)
    assert found.gap.max() > 1e-6  # one pass is not enough: there is something to compare
    for i in range(3):
        part = slice(problem.offsets[i], problem.offsets[i + 1])
        pull = v[i] / weight - A[part].T @ (c[part] * found.slopes[part])
        dual = -c[part] @ problem.loss.conjugate(found.slopes[part], problem.y[part])
        dual += v[i] @ v[i] / (2 * weight) - np.sum(pull**2 / h) / 2
        assert found.gap[i] == pytest.approx(primal(problem, i, found.x[i], v[i], weight) - dual, rel=1e-9)


def test_least_squares_is_a_linear_system():
    problem, weight = make(huber(1e6), l2=0.3), 2.0
    v = np.random.default_rng(4).normal(size=(3, 5))
    found = prox(problem, v, weight)
    A, c = problem.matrix().toarray(), problem.row_weights
    ridge = np.diag(np.where(np.arange(5) < 4, 0.3, 0.0) + 1 / weight)
    for i in range(3):
        part = slice(problem.offsets[i], problem.offsets[i + 1])
        B = c[part, None] * A[part]
        expected = np.linalg.solve(A[part].T @ B + ridge, B.T @ problem.y[part] + v[i] / weight)
        np.testing.assert_allclose(found.x[i], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("loss", [*LOSSES], ids=str)
@pytest.mark.parametrize("weight", [1e-3, 0.1, 10.0])
def test_the_papers_problem(loss, weight):
    X, y = fedmls.datasets.breast_cancer_wisconsin()
    problem = fedmls.Problem(X, y, clients=fedmls.partition.kmeans(X, 10, 0), loss=loss)
    v = 0.3 * np.random.default_rng(0).normal(size=(10, problem.dimension))
    found = prox(problem, v, weight)
    assert found.gap.max() <= 1e-9
    assert found.passes.max() <= 3000
    i = 3
    least = primal(problem, i, by_cvxpy(problem, i, v[i], weight), v[i], weight)
    assert primal(problem, i, found.x[i], v[i], weight) == pytest.approx(least, rel=1e-7)


def test_the_order_of_the_rows_does_not_matter():
    problem = svm(m=200)
    v = np.random.default_rng(5).normal(size=(5, 5))
    first, again, other = (prox(problem, v, 1.0, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.x, again.x)
    assert not np.array_equal(first.x, other.x)
    np.testing.assert_allclose(first.x, other.x, atol=1e-10)


def test_rows_of_zeros():
    """Their predictions never move; with label 0 every slope is as good as any other."""
    X, y = np.array([[0.0], [0.0], [2.0]]), np.array([0.0, 1.0, 3.0])
    for loss in (LOSSES["absolute"], huber(0.5), epsilon_insensitive(0.0)):
        found = prox(fedmls.Problem(X, y, loss=loss, intercept=False), np.zeros((1, 1)), 10.0)
        assert found.x[0, 0] == pytest.approx(1.5 if loss.name != "huber" else 2 * 3 / (4 + 0.1), rel=1e-12)


def test_many_more_columns_than_rows():
    rng = np.random.default_rng(6)
    X = sparse.random_array((80, 3000), density=0.02, rng=rng, format="csr")
    problem = fedmls.Problem(X, rng.normal(size=80), loss="absolute", intercept=False)
    found = prox(problem, np.zeros((1, 3000)), 5.0)
    assert found.gap[0] <= 1e-9


def test_local_counts_passes_and_knows_both_shapes():
    problem = svm(m=50)
    v = np.random.default_rng(7).normal(size=(5, 5))
    local = problem.local(seed=3, batch=0.2)
    local.begin(4)
    together = local.prox(v, 0.5)
    expected = prox(problem, v, 0.5, seed=3, k=4)
    assert np.array_equal(together, expected.x)
    assert local.subgradients == expected.passes.sum() > 0
    assert np.array_equal(local.steps, expected.passes)
    alone = fedmls.Problem(problem.X[:10, :-1], problem.y[:10], clients=None, loss="hinge").local_as(0, 5, 0.2, seed=3)
    alone.begin(4)
    assert np.array_equal(alone.prox(v[0], 0.5), together[0])
    assert np.array_equal(local.prox(v[0], 0.5).shape, (5, 5))  # one v for all


def test_refuses_what_it_cannot_do():
    v = np.zeros((5, 5))
    with pytest.raises(ValueError, match=r"l1 is 0\.1; the proximal step has no l1 term"):
        prox(svm(l1=0.1), v, 1.0)
    with pytest.raises(ValueError, match=r"weight is 0\.0; it must be a positive number"):
        prox(svm(), v, 0.0)
    with pytest.raises(ValueError, match=r"v has shape \(4, 5\); give 5 numbers for each of 5 clients"):
        prox(svm(), v[:4], 1.0)
    with pytest.raises(ValueError, match="v holds nan; a proximal step starts from finite numbers"):
        prox(svm(), v * np.nan, 1.0)
    with pytest.raises(ValueError, match=r"no exact proximal step for client 0: after .* passes over its rows"):
        prox(lad(m=200), v, 100.0, passes=1)
    functions = fedmls.OracleProblem([(lambda x: float(abs(x).sum()), lambda x, rng: np.sign(x))], dimension=2)
    with pytest.raises(ValueError, match="a problem made of functions has no exact proximal step"):
        functions.local().prox(np.zeros((1, 2)), 1.0)
    with pytest.raises(ValueError, match=r"relaxation is 2\.0; it must be below 2"):
        fedmls.ADMM(relaxation=2.0)
    with pytest.raises(ValueError, match=r"rho is -1\.0; it must be a positive number"):
        fedmls.ADMM(rho=-1.0)
