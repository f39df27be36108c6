"""The server's problem in a bundle method: cuts, the lower bound they prove, and the next point to ask about.

The model of f is Σ_i max_j (b_ij + g_ij·x), over the box |x - center| <= radius in every coordinate. Its minimum is a
linear program (HiGHS), the projection onto one of its level sets a quadratic one (Clarabel).
"""

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from fedmls.types import Array

IDLE = 1e-6  # multipliers below it are an interior-point solver's zero


class BundleModel(NamedTuple):
    """f_i(x) >= b[i, j] + g[i, j]·x for every client i and each of its cuts j, oldest first."""

    g: Array
    b: Array
    center: Array
    radius: float

    def bound(self, multipliers: Array) -> float:
        """What no x in the box is below. Valid for any multipliers: the solver that found them is not believed."""
        weights = np.maximum(multipliers, 0.0)
        totals = weights.sum(axis=1, keepdims=True)
        if not (totals > 0).all():
            return -np.inf
        weights = weights / totals
        slope = np.einsum("ij,ijk->k", weights, self.g)
        return float((weights * self.b).sum() + slope @ self.center - self.radius * np.abs(slope).sum())

    def constraints(self) -> tuple[sparse.csr_array, Array]:
        """b + g·x <= t_i as A (x, t) <= -b, with one t per client."""
        n, cuts, d = self.g.shape
        owner = sparse.kron(sparse.eye_array(n), np.ones((cuts, 1)))
        A = sparse.hstack([sparse.csr_array(self.g.reshape(-1, d)), -owner], format="csr")
        return A, -self.b.ravel()


class Solution(NamedTuple):
    """A point of the box and the multipliers of the cuts, shaped like b."""

    x: Array
    multipliers: Array


class Next(NamedTuple):
    """The next point, a lower bound on f in the box, and how much each cut was used: from 0 to 1."""

    x: Array
    bound: float
    use: Array


def with_cuts(g: Array, b: Array, use: Array, new_g: Array, new_b: Array, most: int) -> tuple[Array, Array]:
    """One cut more per client, g (n, cuts, d) and b (n, cuts); of ``most`` cuts the least used goes, the oldest first.

    A dropped cut weakens the model, but no lower bound that was proved with it.
    """
    n, cuts, d = g.shape
    if cuts == most:
        kept = np.ones((n, cuts), dtype=bool)
        kept[np.arange(n), np.where(use < IDLE, 0.0, use).argmin(axis=1)] = False
        g, b = g[kept].reshape(n, cuts - 1, d), b[kept].reshape(n, cuts - 1)
    return np.concatenate([g, new_g[:, None]], axis=1), np.concatenate([b, new_b[:, None]], axis=1)


def next_point(model: BundleModel, x: Array, best: float, bound: float, share: float) -> Next:
    """x projected onto the points where the model is at most bound + share (best - bound).

    best: the smallest value of f seen; bound: the best lower bound so far. A projection that fails, as it may when the
    two nearly meet, gives way to the model's minimiser; if that fails too, x stays where it is.
    """
    low = lowest(model)
    if low is None:
        return Next(x, bound, np.ones_like(model.b))
    bound = max(bound, model.bound(low.multipliers))
    near = project(model, x, bound + share * (best - bound))
    if near is None:
        return Next(low.x, bound, _use(low.multipliers))
    return Next(near.x, bound, np.maximum(_use(low.multipliers), _use(near.multipliers)))


def _use(multipliers: Array) -> Array:
    """Multipliers as shares of their client's total: those of the two programs have different scales."""
    positive = np.maximum(multipliers, 0.0)
    totals = positive.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(positive, totals, out=np.zeros_like(positive), where=totals > 0))


def lowest(model: BundleModel) -> Solution | None:
    """A minimiser of the model over the box; None if the solver gave up."""
    from scipy.optimize import linprog

    n, _, d = model.g.shape
    A, limit = model.constraints()
    box = [(c - model.radius, c + model.radius) for c in model.center]
    cost = np.concatenate([np.zeros(d), np.ones(n)])
    answer = linprog(cost, A_ub=A, b_ub=limit, bounds=box + [(None, None)] * n, method="highs")
    if answer.status != 0:
        return None
    return Solution(answer.x[:d], -answer.ineqlin.marginals.reshape(model.b.shape))


def project(model: BundleModel, point: Array, level: float) -> Solution | None:
    """The point of the box nearest to ``point`` at which the model is at most ``level``; None if none was found."""
    import clarabel

    n, _, d = model.g.shape
    A, limit = model.constraints()
    eye, none = sparse.eye_array(d), sparse.csr_array((d, n))
    total = sparse.csr_array(np.concatenate([np.zeros(d), np.ones(n)])[None])
    rows: Any = sparse.vstack([A, total, sparse.hstack([eye, none]), sparse.hstack([-eye, none])])
    sides = np.concatenate([limit, [level], model.radius + model.center, model.radius - model.center])
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = 1e-11  # of a squared distance: x is good to its square root
    found = clarabel.DefaultSolver(
        sparse.csc_matrix(sparse.diags_array(np.concatenate([np.ones(d), np.zeros(n)]))),
        np.concatenate([-point, np.zeros(n)]),
        sparse.csc_matrix(rows),
        sides,
        [clarabel.NonnegativeConeT(len(sides))],
        settings,
    ).solve()
    if found.status not in (clarabel.SolverStatus.Solved, clarabel.SolverStatus.AlmostSolved):
        return None
    x = np.clip(found.x[:d], model.center - model.radius, model.center + model.radius)
    return Solution(x, np.array(found.z[: model.b.size]).reshape(model.b.shape))
