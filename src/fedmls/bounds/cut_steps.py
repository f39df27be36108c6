"""The points that FedMLS-B's server takes next, from a model of f made of cuts.

The loss is a sum of parts h_b, none of which a cut j of part b is above: h_b(x) >= e_j + g_j·x. The model is Σ_b max_j
(e_j + g_j·x) plus the l2 term, which is known exactly; a cut of all parts together bounds their sum. The minimum of the
model plus ‖x - c‖²/(2t), in a metric, is a small quadratic program, whose dual has a weight for each cut, those of a
part summing to 1 (DAQP: Arnström, Bemporad, Axehill 2022; PIQP: Schwan, Jiang, Kuhn, Jones 2023, where that gives up).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedmls.bounds.cuts import ALL, Cuts
from fedmls.bounds.rounding import ROUNDING
from fedmls.types import Array

LEAST = 1e-200  # less in all is none
LONGEST = 30.0  # solution of a scaled program
ACCURATE = 1e-4  # of a program's value: less may be left between it and its dual's
ALIKE = 1e-8  # two mixtures, if they differ by no more

Solver = Callable[[Array, Array, Array], Array | None]


class Step(NamedTuple):
    """A point, the weight of each cut there, and how far it is from the center, in the metric."""

    x: Array
    weights: Array
    length: float


def proximal_point(
    cuts: Cuts, center: Array, heights: Array, ridge: Array, metric: Array, t: float, length: float = 0.0
) -> Step | None:
    """argmin over x of the model plus (x - center)·metric (x - center)/(2t); None if no solver finds it.

    heights: of each part at the center.  metric: a matrix, or the diagonal of one.  length: of the step, about, if it
    is known.
    """
    G = cuts.g
    if ridge.any():  # the slope of the l2 term at the center goes with part 0
        G = G.copy()
        G[(cuts.part == 0) | (cuts.part == ALL)] += ridge * center
    if metric.ndim == 1:
        root = np.sqrt(ridge + metric / t)
        scaled = G / root
    else:
        from scipy.linalg import solve_triangular

        try:
            root = np.linalg.cholesky(np.diag(ridge) + metric / t)
        except np.linalg.LinAlgError:
            return None
        scaled = solve_triangular(root, G.T, lower=True, check_finite=False).T
    at_center = np.where(cuts.part == ALL, heights.sum(), heights[np.maximum(cuts.part, 0)])
    below = np.maximum(at_center - cuts.at(center), 0.0)
    weights = mixture(scaled, below, cuts.part, len(heights), length)
    if weights is None:
        return None
    y = -(scaled.T @ weights)
    move = y / root if metric.ndim == 1 else solve_triangular(root, y, lower=True, trans="T", check_finite=False)
    return Step(center + move, weights, float(np.linalg.norm(y)))


def length_for(gap: float) -> float:
    """How long a step is, about, by which the model falls by the gap; 0 where that says nothing."""
    return float(np.sqrt(2 * gap)) if 0 < gap < np.inf else 0.0


def mixture(G: Array, below: Array, part: Any, parts: int, length: float = 0.0) -> Array | None:
    """Weights of the cuts at the minimum over y of ‖y‖²/2 + Σ_b max_j (G_j·y - below_j); None if no solver finds any.

    No solver is believed: weights that leave too much between the program's value and its dual's are left for another
    solver's, if those are better.
    """
    if not (np.isfinite(G).all() and np.isfinite(below).all()):
        return None
    owner = np.where(part[:, None] == ALL, -1.0, 0.0) - (part[:, None] == np.arange(parts))
    below = below + owner @ _least_of_each(below, part, parts)  # else the rounding of heights may be all there is
    basis = G if len(G) >= G.shape[1] else _root(G)
    steepest = float(np.sqrt(np.einsum("jd,jd->j", G, G).max()))  # without a copy of the slopes
    best, least_left = None, np.inf
    for solver in (_by_daqp, _by_piqp):
        found = _scaled(solver, basis, below, owner, steepest, length)
        weights = None if found is None else normal(found, part, parts)
        if weights is None:
            continue
        left, value, length_found = _left_over(G, below, part, parts, weights)
        if left < least_left:
            best, least_left = weights, left
        if left <= max(ACCURATE * abs(value), ROUNDING * steepest * length_found):
            break
    return best


def _least_of_each(below: Array, part: Any, parts: int) -> Array:
    """The least of each part; 0 where it has no cut."""
    smallest = np.full(parts, np.inf)
    np.minimum.at(smallest, part[part != ALL], below[part != ALL])
    return np.where(np.isfinite(smallest), smallest, 0.0)


def _left_over(G: Array, below: Array, part: Any, parts: int, weights: Array) -> tuple[float, float, float]:
    """How far the dual's value at the weights is below that of their y; the former; and the length of y."""
    y = -(G.T @ weights)
    heights, square = G @ y - below, float(y @ y) / 2
    each = np.full(parts, -np.inf)
    np.maximum.at(each, part[part != ALL], heights[part != ALL])
    highest = max(float(each.sum()), float(heights[part == ALL].max(initial=-np.inf)))
    value = -square - float(weights @ below)
    return square + highest - value, value, float(np.sqrt(2 * square))


def _scaled(solver: Solver, G: Array, below: Array, owner: Array, steepest: float, length: float) -> Array | None:
    """The weights that a solver finds for the program scaled by the length of its solution, as given or as found by a
    first try: far from it the heights of most cuts are large numbers, among which an absolute tolerance would lose the
    few that matter."""
    unit = length or steepest or 1.0
    found = None
    for _ in range(3):
        # Other cuts of a part are below one of these wherever ‖y‖ <= LONGEST * unit.
        near = (below <= 2 * LONGEST * unit * steepest) | owner.all(axis=1)
        some = solver(G[near] / unit, below[near] / unit**2, owner[near])
        if some is None or not np.isfinite(some).all():
            break
        found = np.zeros(len(G))
        found[near] = some
        size = float(np.linalg.norm(found @ G)) / unit
        if 0.03 < size < LONGEST or size == 0:
            break
        unit *= size
    return found


def _root(G: Array) -> Array:
    """B with B Bᵀ = G Gᵀ and no more columns than rows."""
    K = G @ G.T
    jitter = 1e-15 * float(np.trace(K)) or 1.0
    for power in range(6):
        try:
            return np.asarray(np.linalg.cholesky(K + jitter * 100.0**power * np.eye(len(K))))
        except np.linalg.LinAlgError:
            continue
    return G


def normal(weights: Array, part: Any, parts: int) -> Array | None:
    """Weights such that those of each part, with those of all parts together, sum to 1; None if there are none."""
    w = np.maximum(weights, 0.0)
    common = float(w[part == ALL].sum())
    w = np.where(part == ALL, w / max(common, 1.0), w)
    left = 1.0 - min(common, 1.0)
    own = np.maximum(part, 0)
    totals = np.bincount(own, np.where(part == ALL, 0.0, w), parts)
    if left > 0 and not (totals > LEAST).all():
        return None
    shares = np.divide(left, totals, out=np.zeros(parts), where=totals > LEAST)
    return np.where(part == ALL, w, w * shares[own])


def _by_daqp(G: Array, below: Array, owner: Array) -> Array | None:
    """Weights of the rows at min ‖y‖²/2 + Σ r with G y + owner r <= below, by an active set."""
    import daqp

    curvature, cost = _objective(G, owner)
    A, none, sense = np.ascontiguousarray(np.hstack([G, owner])), np.full(len(G), -1e30), np.zeros(len(G), np.int32)
    prox = -1e-6  # negative: only where the curvature is zero
    tolerances = {"eps_prox": prox, "eta_prox": 1e-10, "primal_tol": 1e-9, "iter_limit": 500}
    _, _, flag, about = daqp.solve(curvature, cost, A, below, none, sense, **tolerances)
    return np.array(about["lam"]) if flag >= 1 else None


def _by_piqp(G: Array, below: Array, owner: Array) -> Array | None:
    """The same by an interior point, which many cuts through one point do not mislead."""
    import piqp

    curvature, cost = _objective(G, owner)
    solver = piqp.DenseSolver()
    for name in ("eps_abs", "eps_rel", "eps_duality_gap_abs", "eps_duality_gap_rel"):
        setattr(solver.settings, name, 1e-10)
    solver.settings.max_iter = 50
    solver.setup(curvature, cost, None, None, np.hstack([G, owner]), None, np.minimum(below, 1e20), None, None)
    if solver.solve() not in (piqp.PIQP_SOLVED, piqp.PIQP_MAX_ITER_REACHED):
        return None
    weights, room = np.array(solver.result.z_u), np.array(solver.result.s_u)
    touched = weights > room  # inside, all rows have both
    touched[np.argmax(np.where(owner < 0, weights[:, None], -1.0), axis=0)] = True
    return _by_few(np.hstack([G, owner]), np.where(touched, weights, 0.0))


def _by_few(A: Array, weights: Array) -> Array:
    """Weights of no more rows than it takes, with the same mixture: an interior point has weight on every row through
    a kink, and no cut would be idle."""
    from scipy.optimize import nnls

    some = np.flatnonzero(weights)
    if len(some) <= A.shape[1]:
        return weights
    mixed = weights[some] @ A[some]
    try:
        found, left = nnls(A[some].T, mixed)
    except RuntimeError:  # it gave up
        return weights
    few = np.zeros(len(weights))
    few[some] = found
    return few if left <= ALIKE * float(np.linalg.norm(mixed)) else weights


def _objective(G: Array, owner: Array) -> tuple[Array, Array]:
    """The curvature and the slope, at 0, of ‖y‖²/2 + Σ r."""
    in_y = np.arange(G.shape[1] + owner.shape[1]) < G.shape[1]
    return np.diag(np.where(in_y, 1.0, 0.0)), np.where(in_y, 0.0, 1.0)
