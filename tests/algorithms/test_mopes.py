"""MOPES by itself, and FedMLS as MOPES on the product space."""

import cvxpy as cp
import numpy as np
import pytest

import fedmls
from fedmls.local.descent import ball
from tests.support.problems import lad, plain_subgradients, svm


@pytest.mark.parametrize("radius", [None, 0.5])
@pytest.mark.parametrize("problem", [lad(), svm()], ids=["lad", "svm"])
def test_fedmls_is_mopes_on_the_product_space(problem, radius):
    n, d, g = problem.n, problem.dimension, plain_subgradients(problem)
    models, expected = [], []

    def consensus(z):
        mean = z.mean(axis=0)
        return np.tile(mean if radius is None else ball(radius)(mean), (n, 1))

    fedmls.mopes(
        lambda u: np.stack([g[i](u[i]) for i in range(n)]) / n,
        consensus,
        np.zeros((n, d)),
        rounds=150,
        lam0=3.0,
        T0=1.0,
        project_simple=None if radius is None else lambda u: np.stack([ball(radius)(row) for row in u]),
        callback=lambda k, done: expected.append(done.x[0]),
    )
    fedmls.simulate(
        fedmls.FedMLS(lam0=3.0, radius=radius),
        problem,
        rounds=150,
        metrics={"model": lambda x: models.append(x) or 0.0},
    )
    assert np.abs(np.array(models) - expected).max() < 1e-12 * np.abs(expected).max()


def simplex(v):
    """The projection onto {x >= 0, Σ x = 1} (Held, Wolfe, Crowder 1974)."""
    u = np.sort(v)[::-1]
    tau = (np.cumsum(u) - 1) / np.arange(1, len(v) + 1)
    return np.maximum(v - tau[np.flatnonzero(u > tau)[-1]], 0)


def test_least_absolute_deviations_on_the_simplex():
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(40, 6)), rng.normal(size=40)
    x = cp.Variable(6)
    best = cp.Problem(cp.Minimize(cp.sum(cp.abs(A @ x - b)) / 40), [x >= 0, cp.sum(x) == 1]).solve(solver="CLARABEL")
    found = fedmls.mopes(lambda x: A.T @ np.sign(A @ x - b) / 40, simplex, np.ones(6) / 6, rounds=200, lam0=2.0)
    assert found.x.min() >= 0
    assert found.x.sum() == pytest.approx(1)
    value = np.abs(A @ found.x - b).mean()
    assert best - 1e-9 <= value <= best + 1e-3 * best
    assert found.projections == 200
    assert found.subgradients == 200 * 201 // 2


def test_robust_matrix_recovery_in_a_nuclear_norm_ball():
    rng = np.random.default_rng(1)
    truth = rng.normal(size=(8, 2)) @ rng.normal(size=(2, 6))
    radius = np.linalg.norm(truth, "nuc")
    noisy = truth + 5 * (rng.random(truth.shape) < 0.1) * rng.normal(size=truth.shape)

    def project(Z):
        U, s, V = np.linalg.svd(Z, full_matrices=False)
        return (U * (radius * simplex(s / radius) if s.sum() > radius else s)) @ V

    X = cp.Variable(truth.shape)
    best = cp.Problem(cp.Minimize(cp.sum(cp.abs(X - noisy))), [cp.normNuc(X) <= radius]).solve(solver="CLARABEL")
    found = fedmls.mopes(lambda X: np.sign(X - noisy), project, np.zeros(truth.shape), rounds=300, lam0=1.0)
    assert np.linalg.norm(found.x, "nuc") <= radius * (1 + 1e-9)
    assert best * (1 - 1e-6) <= np.abs(found.x - noisy).sum() <= best * 1.01


def test_bad_parameters_are_refused_before_any_work():
    def never(x):
        raise AssertionError("work was done")

    with pytest.raises(ValueError, match="lam0 is 0"):
        fedmls.mopes(never, never, np.zeros(2), rounds=5, lam0=0)
    with pytest.raises(ValueError, match="rounds is 0"):
        fedmls.mopes(never, never, np.zeros(2), rounds=0)
