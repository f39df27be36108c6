"""How close to the optimum a model is proved to be, with no radius to be known: lower bounds from halves of cuts.

A slope s_j in the box of the loss for every row makes a cut (:mod:`fedmls.bounds.certificate`): Σ_j ω_j ℓ(a_j·x, b_j)
is never below a + p·x with a = -Σ_j ω_j ℓ*(s_j) and p = Σ_j ω_j s_j a_j. Where a coordinate of x has no penalty,
a bound on f* needs p = 0 there, which the slopes of a round do not give. So clients send their cut in two halves,
of the rows with positive slopes and of those with negative ones, and the server mixes the halves of several looks k:

    slopes Σ_k u_k s⁺_k + Σ_k v_k s⁻_k   with u, v >= 0, Σ u_k <= 1, Σ v_k <= 1.

They lie in the box, as 0 does. ℓ* is convex with ℓ*(0) = 0 (no loss here is negative, and each can be 0 or nearly), so
ℓ*(Σ u_k s_k) <= Σ u_k ℓ*(s_k), and ℓ*(s + r) <= ℓ*(s) + ℓ*(r) for s >= 0 >= r, since ℓ*(s)/s grows with s. Hence
the mixed a and p are a cut, whatever the mixture, and f* is at least the minimum over x of

    a + p·x + l2/2 ‖w‖² + l1 ‖w‖_1.

The mixture with the largest minimum is a small program: with an l2 term a quadratic one (Clarabel), otherwise a linear
one (HiGHS). Neither solver is believed: the mixture is made exact and evaluated. What rounding leaves of p in
coordinates without a penalty, about 1e-16 of its size, is paid for over a ball of FAR times the length of the model.

Federated, a look takes the model down, and for each cut two vectors and two numbers up, of which the server needs only
the sums; and the objective.
"""

from typing import Any

import numpy as np

from fedmls.problem import Problem
from fedmls.types import Array

FAR = 1e3
CUTS = 20, 200  # so many are mixed, with an l2 term and without; older ones go
NUMBERS = 100_000  # in the linear program: coordinates times cuts at most
FREE = 100  # in more coordinates without a penalty no mixture is looked for: it takes at least half as many cuts


class Proof:
    """The cuts told so far, in halves, and the best bound that they have given.

    penalised: so many first coordinates have the l2 or l1 term; the rest (the intercept) has none.
    """

    def __init__(self, dimension: int, penalised: int, l2: float, l1: float) -> None:
        self.l2, self.l1, self.intercept = l2, l1, penalised < dimension
        self.split = penalised if l2 or l1 else 0
        self.cuts = CUTS[0] if l2 else max(10, min(CUTS[1], NUMBERS // dimension))
        self.a, self.p = np.empty((2, 0)), np.empty((2, 0, dimension))  # positive halves, then negative ones
        self.bound = 0.0  # no loss and no penalty is negative

    def look(self, problem: Problem, slopes: Array, x: Array) -> float:
        """The best lower bound so far, from one or more rows of slopes; x is the model, around which it is computed."""
        parts = np.array([np.maximum(slopes, 0.0), np.minimum(slopes, 0.0)])
        halves = [[problem.cut(slopes) for slopes in part] for part in parts]
        self.a = np.concatenate([self.a, [[a for a, _ in part] for part in halves]], axis=1)[:, -self.cuts :]
        self.p = np.concatenate([self.p, [[p for _, p in part] for part in halves]], axis=1)[:, -self.cuts :]
        p = self.p.reshape(-1, len(x))
        a = self.a.ravel() + p[:, self.split :] @ x[self.split :]
        mixture = _quadratic(a, p, self.split, self.l2) if self.l2 else _linear(a, p, self.split, self.l1)
        if mixture is not None and np.isfinite(mixture).all():
            self.bound = max(self.bound, self._proved(a, p, self._exact(mixture, p), float(np.linalg.norm(x))))
        return self.bound

    def _exact(self, mixture: Array, p: Array) -> Array:
        """The mixture with sums of at most 1, p = 0 for the intercept and |p| <= l1 where that is needed."""
        u, v = (part / max(1.0, part.sum()) for part in np.split(np.maximum(mixture, 0.0), 2))
        if self.intercept:  # whose p is a sum of slopes: positive in one half, negative in the other
            up, down = u @ p[: len(u), -1], -(v @ p[len(u) :, -1])
            u, v = u * min(1.0, down / up if up else 1.0), v * min(1.0, up / down if down else 1.0)
        mixture = np.concatenate([u, v])
        if self.l1:
            mixture *= min(1.0, self.l1 / max(float(np.abs(mixture @ p[:, : self.split]).max()), self.l1))
        return mixture

    def _proved(self, a: Array, p: Array, mixture: Array, length: float) -> float:
        inside, outside = np.split(mixture @ p, [self.split])
        penalty = float(inside @ inside) / (2 * self.l2) if self.l2 else 0.0
        return float(mixture @ a) - penalty - FAR * length * float(np.linalg.norm(outside))


def _sums(count: int) -> Array:
    """The rows that add up each half of a mixture."""
    return np.repeat(np.eye(2), count // 2, axis=1)


def _linear(a: Array, p: Array, split: int, l1: float) -> Array | None:
    """max a·t with t >= 0, halves of at most 1, |p| <= l1 in the first coordinates and p = 0 in the others."""
    from scipy.optimize import linprog

    scaled = p / _largest(p, axis=0)
    inside, outside = scaled[:, :split].T, scaled[:, split:].T
    limit = l1 / _largest(p[:, :split], axis=0)
    answer = linprog(
        -a / _largest(a),
        A_ub=np.vstack([_sums(len(a)), inside, -inside]),
        b_ub=np.concatenate([[1.0, 1.0], limit, limit]),
        A_eq=outside,
        b_eq=np.zeros(len(outside)),
        method="highs-ds",  # the simplex method: p = 0 to rounding, not to a tolerance
    )
    return np.asarray(answer.x) if answer.status == 0 else None


def _quadratic(a: Array, p: Array, split: int, l2: float) -> Array | None:
    """max a·t - ‖p‖²/(2 l2) over the first coordinates, with t >= 0, halves of at most 1 and p = 0 in the others."""
    import clarabel
    from scipy import sparse

    size, count = float(_largest(a)), len(a)
    inside, outside = p[:, :split], (p / _largest(p, axis=0))[:, split:].T
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    cones = [clarabel.ZeroConeT(len(outside)), clarabel.NonnegativeConeT(2 + count)]
    solver = clarabel.DefaultSolver(
        sparse.triu(sparse.csc_matrix(inside @ inside.T / (l2 * size)), format="csc"),
        -a / size,
        sparse.csc_matrix(np.vstack([outside, _sums(count), -np.eye(count)])),
        np.concatenate([np.zeros(len(outside)), [1.0, 1.0], np.zeros(count)]),
        cones,
        settings,
    )
    return np.array(solver.solve().x)


def _largest(values: Array, axis: int | None = None) -> Any:
    """The largest absolute value, or 1 where all are 0."""
    found = np.abs(values).max(axis=axis)
    return np.where(found > 0, found, 1.0)
