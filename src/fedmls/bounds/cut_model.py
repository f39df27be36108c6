"""The server's side of FedMLS-B: a model of f made of cuts, the points it leads to, and the bound it proves.

The loss is a sum of parts h_b, none of which a cut j of part b is above: h_b(x) >= e_j + g_j·x. The model is
Σ_b max_j (e_j + g_j·x) plus the l2 term, which is known exactly; a cut of all parts together bounds their sum. The
minimum of the model plus ‖x - c‖²/(2t), in a metric, is a small quadratic program (DAQP: Arnström, Bemporad, Axehill
2022; PIQP: Schwan, Jiang, Kuhn, Jones 2023, where that gives up).

A bound on f* from below is the minimum of the model over all x. Its dual has a weight for each cut, those of a part
summing to 1; with an l2 term it is a quadratic program, without one a linear one (HiGHS). No solver is believed: the
bound is computed from the weights in a form that holds for all of them (``fedmls.bounds.certificate.least``). In
coordinates without an l2 term it needs Σ_j α_j g_j = 0, which solvers and rounding miss by a little. The weights are
corrected for it, and what is left is paid for (:mod:`fedmls.bounds.rounding`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedmls.bounds.certificate import least
from fedmls.bounds.cuts import ALL, IDLE, Cuts, Terms, largest
from fedmls.bounds.rounding import ROUNDING, Columns, columns, doubt
from fedmls.types import Array

LEAST = 1e-200  # less in all is none
TINY = 1e-12  # of the largest slopes: more must not be left
LONGEST = 30.0  # solution of a scaled program
ACCURATE = 1e-4  # of a program's value: less may be left between it and its dual's
ALIKE = 1e-8  # two mixtures, if they differ by no more
DOUBT = 0.05  # of the gap: if rounding may cost more, other weights are tried


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
    steepest = float(np.sqrt((G * G).sum(axis=1).max()))
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


class Bound(NamedTuple):
    """What f is nowhere below, the weights of the cuts that prove it, and what it would be if nothing were rounded."""

    value: float
    weights: Array
    exact: float


def lower_bound(
    cuts: Cuts,
    parts: int,
    terms: Terms,
    center: Array,
    f: float,
    summed: Array,
    gap: float = np.inf,
    radius: float = np.inf,
    x0: Array | None = None,
) -> Bound:
    """The best bound that the cuts give on f: over all x, or over the ball ‖x - x0‖ <= radius.

    Cuts of the l1 term, which are those of one more part, help to find the weights; the bound takes the term exactly.
    center: about where the minimum is.  f: there.  summed: the absolute values, in each coordinate, that slopes are
    sums of.  gap: how far below f the last bound was.
    """
    mine = cuts.part < parts
    loss = cuts if mine.all() else Cuts(*(field[mine] for field in cuts))
    if terms.l2 > 0:
        found = _weights_with_l2(cuts, parts + (terms.l1 > 0), terms, center, gap)
        weights = None if found is None else found[mine]
    else:
        weights = _highest(loss, _program(loss, parts, terms, radius, x0))
    floor = Bound(parts * terms.floor, np.zeros(len(cuts.e)), -np.inf)
    if weights is None:
        return floor
    about, bounds = columns(loss, terms, summed), [floor._replace(weights=np.zeros(len(loss.e)))]
    for _ in range(4):
        made = normal(weights, loss.part, parts)
        if made is None:
            break
        bounds.append(_proved(loss, about, terms, made, center, f, radius, x0))
        weights = corrected(loss, terms, made)
    best, hoped = max(bounds, key=lambda bound: bound.value), max(bounds, key=lambda bound: bound.exact)
    if hoped.exact - best.value > DOUBT * (f - hoped.exact) and f - hoped.exact < gap:
        mixed = _mixed(loss, parts, terms, hoped.weights)
        bounds = [best, *(_proved(loss, about, terms, made, center, f) for made in mixed)]
        best = max(bounds, key=lambda bound: bound.value)
    everywhere = np.zeros(len(cuts.e))
    everywhere[mine] = best.weights
    return best._replace(weights=everywhere)


def _mixed(cuts: Cuts, parts: int, terms: Terms, weights: Array) -> list[Array]:
    """Nearly the same weights, with a little on all cuts: together they tell where the minimum can be."""
    even = _even(cuts, _program(cuts, parts, terms))
    if even is None:
        return []
    mixed = (corrected(cuts, terms, (1 - share) * weights + share * even) for share in (1e-9, 1e-7, 1e-5, 1e-3))
    return [made for made in (normal(each, cuts.part, parts) for each in mixed) if made is not None]


def _proved(
    cuts: Cuts,
    about: Columns,
    terms: Terms,
    weights: Array,
    center: Array,
    f: float,
    radius: float = np.inf,
    x0: Array | None = None,
) -> Bound:
    """What any weights that :func:`normal` made prove; nothing if too much is left of their slope."""
    p = weights @ cuts.g
    a = float(weights @ cuts.e) - ROUNDING * abs(f) - float(about.error @ np.abs(center))
    value = _in_ball(terms, a, p, about.error, radius, x0) if np.isfinite(radius) else -np.inf
    rest = excess(terms, p)
    if (np.abs(rest) > TINY * about.size).any():
        return Bound(value, weights, -np.inf)
    inside = shrunk(terms, p)[: terms.penalised] if terms.l2 > 0 else np.zeros(1)
    square = float(inside @ inside) / (2 * terms.l2) if terms.l2 > 0 else 0.0
    exact = a + float(rest @ center) - square
    return Bound(max(value, exact - doubt(cuts, about, terms, weights, rest, f, f - exact)), weights, exact)


def _in_ball(terms: Terms, a: float, p: Array, error: Array, radius: float, x0: Array | None) -> float:
    """What a + p·x with its terms is nowhere below in the ball, p being wrong by the error at most."""
    start = 0.0 if x0 is None else float(error @ np.abs(x0))
    return least(terms, a, p, radius, x0) - start - radius * float(np.linalg.norm(error))


def shrunk(terms: Terms, p: Array) -> Array:
    """What is left of a slope p when the l1 term has taken up as much as it can."""
    rest = p.copy()
    split = terms.penalised
    rest[:split] = np.sign(p[:split]) * np.maximum(np.abs(p[:split]) - terms.l1, 0.0)
    return rest


def excess(terms: Terms, p: Array) -> Array:
    """What of a slope p no term of f can take up."""
    rest = shrunk(terms, p)
    rest[: terms.penalised] *= terms.l2 == 0
    return rest


def corrected(cuts: Cuts, terms: Terms, weights: Array) -> Array:
    """The weights changed a little so that the excess of their slope is gone, up to rounding.

    First among the cuts that have weight, by as little as possible; if that does not do, by weight that goes from the
    heaviest cut of a part to any others of it.
    """
    rest = excess(terms, weights @ cuts.g)
    free = np.flatnonzero(rest) if terms.l2 > 0 or terms.l1 > 0 else np.arange(terms.dimension)
    if not rest.any():
        return weights
    scale = np.maximum(np.abs(cuts.g[:, free]).max(axis=0), 1e-300)
    G, wanted = cuts.g[:, free] / scale, -rest[free] / scale
    some = np.flatnonzero(weights > IDLE)
    owned = np.unique(cuts.part[some])
    totals = (cuts.part[some][None, :] == owned[:, None]).astype(float)
    M = np.vstack([G[some].T, totals]) * weights[some]
    change = np.linalg.lstsq(M, np.concatenate([wanted, np.zeros(len(owned))]), rcond=1e-12)[0]
    better = weights.copy()
    better[some] = np.maximum(weights[some] * (1 + change), 0.0)
    left = excess(terms, better @ cuts.g)[free] / scale
    return better if np.abs(left).max() < 1e-3 * np.abs(wanted).max() else _turned(G, cuts.part, weights, wanted)


def _turned(G: Array, part: Any, weights: Array, wanted: Array) -> Array:
    """Weight goes from the heaviest cut of each part to others, such that the slope changes by what is wanted."""
    from scipy.optimize import nnls

    heaviest = {b: int(np.argmax(np.where(part == b, weights, -1.0))) for b in np.unique(part)}
    main = np.array([heaviest[b] for b in part])
    size = float(np.abs(wanted).max())
    try:
        moved = size * nnls((G - G[main]).T, wanted / size)[0]
    except RuntimeError:  # it gave up
        return weights
    better = weights + moved
    np.subtract.at(better, main, moved)
    return np.asarray(np.maximum(better, 0.0))


def _weights_with_l2(cuts: Cuts, parts: int, terms: Terms, center: Array, gap: float) -> Array | None:
    """Weights of the minimum of the model; in coordinates without l2 held, softly, at the center."""
    heights = np.array([cuts.at(center)[cuts.part == b].max(initial=-np.inf) for b in range(parts)])
    if not np.isfinite(heights).all():
        return None
    square = largest(cuts.g) ** 2
    hold = 1e-4 * np.maximum(square, 1e-300) / max(float(np.abs(heights).sum()), 1e-300)
    metric = np.where(terms.ridge > 0, 1e-12 * terms.ridge, hold)
    step = proximal_point(cuts, center, heights, terms.ridge, metric, 1.0, length_for(gap))
    return None if step is None else step.weights


class Program(NamedTuple):
    """Of weights α >= 0, first, and what else takes up slope: A (α, rest) = b, rest <= upper. The cost: -e, and what
    the rest costs. None of it where the cuts are too few to span."""

    A: Any
    b: Array
    upper: Array
    cost: Array


def _program(cuts: Cuts, parts: int, terms: Terms, radius: float = np.inf, x0: Array | None = None) -> Program | None:
    """Slopes are 0 in coordinates without l2, or within ±l1, or paid for by the radius around x0."""
    from scipy import sparse

    J, rows, ball = len(cuts.e), np.flatnonzero(terms.ridge == 0), np.isfinite(radius)
    if not len(rows) or (not ball and terms.l1 == 0 and J - parts < len(rows)):
        return None
    size = largest(cuts.g)
    scale = 1 / np.where(size > 0, size, 1.0)
    unit = sparse.diags_array(scale, format="csr")[rows]
    slopes, upper, cost = [sparse.csr_array(scale[rows, None] * cuts.g[:, rows].T)], [np.full(J, np.inf)], [-cuts.e]
    if terms.l1 > 0 and terms.l2 == 0:
        slopes += [unit[:, : terms.penalised], -unit[:, : terms.penalised]]
        upper += [np.full(2 * terms.penalised, terms.l1)]
        cost += [np.zeros(2 * terms.penalised)]
    if ball:
        around = np.zeros(terms.dimension) if x0 is None else x0
        slopes += [unit, -unit]
        upper += [np.full(2 * terms.dimension, np.inf)]
        cost += [radius + around, radius - around]
    columns = sum(len(each) for each in cost)
    totals = np.zeros((parts, columns))
    totals[:, :J] = (cuts.part == ALL) | (cuts.part[None, :] == np.arange(parts)[:, None])
    A = sparse.vstack([sparse.hstack(slopes), totals], format="csr")
    return Program(A, np.r_[np.zeros(len(rows)), np.ones(parts)], np.concatenate(upper), np.concatenate(cost))


def _highest(cuts: Cuts, program: Program | None) -> Array | None:
    """max Σ α_j e_j, less what the rest costs; None if there are no such weights."""
    found = None if program is None else _minimum(program)
    return None if found is None else np.maximum(found[: len(cuts.e)], 0.0)


def _even(cuts: Cuts, program: Program | None) -> Array | None:
    """The weights whose least is largest: α_j = t + β_j with β >= 0, and t as large as it can be."""
    from scipy import sparse

    if program is None:
        return None
    J, (A, b, upper, cost) = len(cuts.e), program
    A = sparse.hstack([A, A[:, :J].sum(axis=1)[:, None]], format="csr")
    found = _minimum(Program(A, b, np.append(upper, np.inf), np.append(0 * cost, -1.0)))
    return None if found is None else np.maximum(found[:J], 0.0) + found[-1]


def _minimum(program: Program) -> Array | None:
    """Where the cost is least; None where HiGHS finds nothing."""
    from scipy.optimize import linprog

    limits = np.column_stack([np.zeros(len(program.upper)), program.upper])
    cost = program.cost / max(float(np.abs(program.cost).max()), 1e-300)  # tolerances are absolute
    answer = linprog(cost, A_eq=program.A, b_eq=program.b, bounds=limits, method="highs")
    return np.asarray(answer.x) if answer.status == 0 else None
