"""Quadratic models of the clients' losses, beside plain NumPy with a loop over clients and rows."""

import cvxpy
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

import fedmls
from fedmls.local import curvature
from fedmls.local.curvature import unpacked
from fedmls.local.curvature_rows import OWN_BLUR, ROWS_AT_ONCE, bends, distances, mean_slopes, quantile, wide_bends
from fedmls.local.cut_rows import own_minimum
from fedmls.losses import LOSSES

SIZES = [1, 2, 7, 40, ROWS_AT_ONCE + 300]  # rows of the clients: of the last one in two products


def some_problem(loss, d, sparse=False):
    rng, m = np.random.default_rng(d), sum(SIZES)
    X = rng.normal(size=(m, d)) * (rng.random((m, d)) < 0.4)
    y = rng.choice([-1.0, 1.0], m) if LOSSES[loss].is_classification else rng.normal(size=m)
    clients, weights = np.repeat(np.arange(len(SIZES)), SIZES), rng.random(m)
    return fedmls.Problem(csr_array(X) if sparse else X, y, clients, loss, l2=0.01, sample_weight=weights)


def of_client(problem, i):
    """The rows, labels and weights of a client, and what share of its rows counts as near a kink if it is small."""
    rows = slice(problem.offsets[i], problem.offsets[i + 1])
    enough = 3 * problem.dimension / (problem.n * SIZES[i])
    return problem.matrix().toarray()[rows], problem.y[rows], problem.row_weights[rows], enough


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_curvature_is_a_weighted_sum_over_rows(loss, sparse):
    problem = some_problem(loss, 6, sparse)
    x, chosen = np.linspace(-1, 1, problem.dimension), np.array([4, 0, 2])
    local = problem.local(ids=chosen)
    for full in (True, False):
        found = local.curvature(x, full)
        for H, i in zip(found, chosen, strict=True):
            A, b, c, enough = of_client(problem, i)
            bend = bends(problem.loss.kind, A @ x, b, min(1.0, max(curvature.SHARE, enough)))
            wanted = A.T @ np.diag(c * bend) @ A
            np.testing.assert_allclose(unpacked(H, 7), wanted if full else np.diag(wanted), atol=1e-9)
    assert local.rows_read == 2 * (SIZES[4] + SIZES[0] + SIZES[2])


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", ["hinge", "absolute", "logistic"])
def test_own_quadratics_are_the_same_for_one_client_and_for_all(loss, sparse):
    """And their H is the curvature, their q has the mean slope, both at the same point."""
    problem = some_problem(loss, 6, sparse)
    x0 = np.zeros(problem.dimension)
    everyone = problem.local(seed=3)
    everyone.begin(1)
    H, q, sizes = everyone.own_quadratic(x0, True)
    diagonals, _, _ = everyone.own_quadratic(x0, False)
    for i in range(problem.n):
        alone = problem.local(seed=3, ids=[i])
        alone.begin(1)
        assert all(
            np.array_equal(a[i], b[0]) for a, b in zip((H, q, sizes), alone.own_quadratic(x0, True), strict=True)
        )
        np.testing.assert_allclose(np.diag(unpacked(H[i], problem.dimension)), diagonals[i], rtol=1e-9)
        A, _, c, _ = of_client(problem, i)
        assert (c @ np.abs(A) <= sizes[i] * (1 + 1e-12)).all()  # these losses have slopes of up to 1


@pytest.mark.parametrize("loss", ["hinge", "absolute"])
@pytest.mark.parametrize(("most", "stride"), [(10_000, 1), (ROWS_AT_ONCE, 2), (300, 5)])
def test_some_rows_stand_for_many_in_a_clients_own_minimum(loss, most, stride):
    problem, client, reach = some_problem(loss, 3), 4, 100.0
    A, b, c, _ = of_client(problem, client)
    x0, l2 = np.zeros(problem.dimension), np.full(problem.dimension, 0.01)
    slopes = np.zeros(len(problem.y))
    x, passes, masses = own_minimum(problem.dual_rows, client, slopes, x0, reach, l2, 2000, most, np.uint64(5))
    values = np.maximum(0, 1 - b * (A @ x0)) if loss == "hinge" else np.abs(A @ x0 - b)
    g = A.T @ (c * (-b if loss == "hinge" else np.sign(A @ x0 - b)))
    D = c @ A**2 / c.sum()
    pull = D * sum(g**2 / D) / (reach * (c @ values))
    some, z = slice(None, None, stride), cvxpy.Variable(problem.dimension)
    p = A[some] @ z
    losses = cvxpy.pos(1 - cvxpy.multiply(b[some], p)) if loss == "hinge" else cvxpy.abs(p - b[some])
    cost = stride * (c[some] @ losses) + l2 @ z**2 / 2 + pull @ (z - x0) ** 2 / 2
    best = cvxpy.Problem(cvxpy.Minimize(cost)).solve(solver="CLARABEL")
    z.value = x
    assert cost.value == pytest.approx(best, rel=1e-3)
    assert 1 <= passes <= 2000
    np.testing.assert_allclose(masses, c @ A**2)


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_the_quadratic_of_a_client_that_stays_at_the_start(loss, monkeypatch):
    """With no passes its own minimum is at the start, where all can be told."""
    monkeypatch.setattr(curvature, "PASSES", 0)
    monkeypatch.setattr(curvature, "FITTED", 2.0)
    problem = some_problem(loss, 6)
    x0 = np.linspace(0.1, 0.5, problem.dimension) * (problem.loss.is_classification)
    H, q, _ = problem.local().own_quadratic(x0, True)
    for i in range(problem.n):
        A, b, c, enough = of_client(problem, i)
        kind, p = problem.loss.kind, A @ x0
        least = OWN_BLUR * distances(kind, p, b).mean()
        wide, near = (min(1.0, max(share, enough)) for share in (curvature.OWN_SHARE, curvature.SLOPE_SHARE))
        wanted = A.T @ np.diag(c * wide_bends(kind, p, b, wide, least)) @ A
        slope = A.T @ (c * mean_slopes(kind, p, b, near, least))
        np.testing.assert_allclose(unpacked(H[i], 7), wanted, atol=1e-9)
        np.testing.assert_allclose(q[i], wanted @ x0 - slope, atol=1e-9)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30), st.floats(0, 1))
def test_quantiles_are_those_of_numpy(values, share):
    assert quantile(np.array(values), share) == np.quantile(values, share)
