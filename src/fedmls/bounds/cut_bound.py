"""What the cuts of FedMLS-B prove: a bound on f* from below.

It is the minimum over all x of the model of :mod:`fedmls.bounds.cut_steps`. Its dual has a weight for each cut, those
of a part summing to 1; with an l2 term it is a quadratic program, without one a linear one (HiGHS). No solver is
believed: the bound is computed from the weights in a form that holds for all of them
(``fedmls.bounds.certificate.least``). In coordinates without an l2 term it needs Σ_j α_j g_j = 0, which solvers and
rounding miss by a little. The weights are corrected for it, and what is left is paid for
(:mod:`fedmls.bounds.rounding`).
"""

from typing import Any, NamedTuple

import numpy as np

from fedmls.bounds.certificate import least
from fedmls.bounds.cut_steps import length_for, normal, proximal_point
from fedmls.bounds.cuts import ALL, IDLE, Cuts, Terms, largest
from fedmls.bounds.rounding import AWAY, ROUNDING, Columns, columns, doubt, joint_doubt
from fedmls.types import Array

TINY = 1e-12  # of the largest slopes: more must not be left
# How softly coordinates without l2 are held, in units of their slopes squared over the loss, step by step; what is left
# of it, as a share of the loss, when a step led nowhere; and what may be left, as a share of the gap.
HOLDS, STILL, LEFT = (1e-4, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10), 1e-14, 0.1
NONE, LITTLE = 1e-6, 1e-2  # of a mean weight: less is taken for none; what as many cuts as can get
JOINT = 200  # coordinates
DOUBT = 0.05  # of the gap: if rounding may cost more, other weights are tried


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

    Cuts of the l1 term, which are those of one more part, and of all parts with it, help to find the weights; the bound
    takes the term exactly.
    center: about where the minimum is.  f: there.  summed: the absolute values, in each coordinate, that slopes are
    sums of.  gap: how far below f the last bound was.
    """
    mine = (cuts.part < parts) & ((cuts.part != ALL) | (terms.l1 == 0))
    loss = cuts.some(mine)
    about = columns(loss, terms, summed)
    if terms.l2 > 0:
        found = weights_with_l2(cuts, parts + (terms.l1 > 0), terms, center, gap)
        weights = None if found is None else found[mine]
    else:
        weights = _highest(loss, _program(loss, about, parts, terms, center, radius, x0))
    floor = Bound(parts * terms.floor, np.zeros(len(cuts.e)), -np.inf)
    if weights is None:
        return floor
    bounds = [floor._replace(weights=np.zeros(len(loss.e)))]
    for _ in range(4):
        made = normal(weights, loss.part, parts)
        if made is None:
            break
        bounds.append(_proved(loss, about, terms, made, center, f, radius, x0))
        weights = corrected(loss, terms, made)
    best, hoped = max(bounds, key=lambda bound: bound.value), max(bounds, key=lambda bound: bound.exact)
    if hoped.exact - best.value > DOUBT * (f - hoped.exact) and f - hoped.exact < gap:
        if terms.held and terms.dimension <= JOINT:
            rest, hope = excess(terms, hoped.weights @ loss.g), hoped.exact
            bounds = [
                best,
                hoped._replace(value=hope - joint_doubt(loss, about, terms, hoped.weights, rest, f, f - hope)),
            ]
        else:
            mixed, away = _mixed(loss, about, parts, terms, center, f, hoped.weights)
            bounds = [best, *(_proved(loss, about, terms, made, center, f, away=away) for made in mixed)]
        best = max(bounds, key=lambda bound: bound.value)
    everywhere = np.zeros(len(cuts.e))
    everywhere[mine] = best.weights
    return best._replace(weights=everywhere)


def _mixed(
    cuts: Cuts, about: Columns, parts: int, terms: Terms, center: Array, f: float, weights: Array
) -> tuple[list[Array], float]:
    """Nearly the same weights, with a little on all cuts: together they tell where the minimum can be. If that cannot
    be, since the level set of the cuts has no end, a little on as many as possible. And how far away the minimum may be
    where these say nothing."""
    program, away = _program(cuts, about, parts, terms, center), np.inf
    more, least_of_all = _even(cuts, program)
    if program is not None and more is not None and least_of_all * len(cuts.e) < NONE:
        more, away = _spread(cuts, program), AWAY * abs(f)
    if more is None:
        return [], away
    mixed = (corrected(cuts, terms, (1 - share) * weights + share * more) for share in (1e-9, 1e-7, 1e-5, 1e-3))
    return [made for made in (normal(each, cuts.part, parts) for each in mixed) if made is not None], away


def _proved(
    cuts: Cuts,
    about: Columns,
    terms: Terms,
    weights: Array,
    center: Array,
    f: float,
    radius: float = np.inf,
    x0: Array | None = None,
    away: float = np.inf,
) -> Bound:
    """What any weights that :func:`normal` made prove; nothing if too much is left of their slope."""
    p = weights @ cuts.g
    a = float(weights @ cuts.e) - ROUNDING * (abs(f) + terms.summed) - float(about.error @ np.abs(center))
    value = _in_ball(terms, a, p, about.error, radius, x0) if np.isfinite(radius) else -np.inf
    rest = excess(terms, p)
    if (np.abs(rest) > TINY * about.size).any():
        return Bound(value, weights, -np.inf)
    inside = shrunk(terms, p)[: terms.penalised] if terms.l2 > 0 else np.zeros(1)
    square = float(inside @ inside) / (2 * terms.l2) if terms.l2 > 0 else 0.0
    exact = a + float(rest @ center) - square
    return Bound(max(value, exact - doubt(cuts, about, terms, weights, rest, f, f - exact, away)), weights, exact)


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
    if _largest(excess(terms, better @ cuts.g)[free] / scale) < 1e-3 * _largest(wanted):
        return better
    tried = weights, better, _turned(G, cuts.part, weights, wanted)
    return min(tried, key=lambda made: _largest(excess(terms, made @ cuts.g)[free] / scale))


def _largest(values: Array) -> float:
    return float(np.abs(values).max())


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


def weights_with_l2(
    cuts: Cuts, parts: int, terms: Terms, center: Array, gap: float, U: Array | None = None
) -> Array | None:
    """Weights of the minimum of the model. In coordinates without l2 it is looked for by proximal steps, each longer
    than the last: their slopes cancel but for what holds the last one, which is nothing if it leads nowhere.

    U: how far from the center the minimum may be, where that is known; then little need be left, not nothing.
    """
    free, weights, length = terms.ridge == 0, None, length_for(gap)
    square = np.maximum(largest(cuts.g) ** 2, 1e-300)
    for hold in HOLDS:
        heights = np.array([cuts.at(center)[cuts.part == b].max(initial=-np.inf) for b in range(parts)])
        if not np.isfinite(heights).all():
            return None
        higher = cuts.at(center)[cuts.part == ALL].max(initial=-np.inf) - heights.sum()
        heights[0] += max(float(higher), 0.0)  # where a part is does not matter, but their sum is above no cut of all
        size = max(float(np.abs(heights).sum()), 1e-300)
        metric = np.where(free, hold * square / size, 1e-12 * terms.ridge)
        step = proximal_point(cuts, center, heights, terms.ridge, metric, 1.0, length)
        if step is None:
            break
        move, center, weights, length = step.x - center, step.x, step.weights, step.length
        left = (metric * np.abs(move))[free]
        if left @ np.abs(move)[free] <= STILL * size or (U is not None and left @ U[free] <= LEFT * gap):
            break
    return weights


class Program(NamedTuple):
    """Of weights α >= 0, first, and what else takes up slope: A (α, rest) = b, rest <= upper. The cost: less the cuts'
    heights, and what the rest costs. None of it where the cuts are too few to span."""

    A: Any
    b: Array
    upper: Array
    cost: Array


def _program(
    cuts: Cuts,
    about: Columns,
    parts: int,
    terms: Terms,
    center: Array,
    radius: float = np.inf,
    x0: Array | None = None,
) -> Program | None:
    """Slopes are 0 in coordinates without l2, or within ±l1, or paid for by the radius around x0."""
    from scipy import sparse

    J, rows, ball = len(cuts.e), np.flatnonzero(terms.ridge == 0), np.isfinite(radius)
    has_rest = ball or (terms.l1 > 0 and terms.l2 == 0)
    if not len(rows) or (not has_rest and J - parts < len(about.directions)):
        return None
    size = largest(cuts.g)
    scale = 1 / np.where(size > 0, size, 1.0)
    unit = sparse.diags_array(scale, format="csr")[rows]
    first = scale[rows, None] * cuts.g[:, rows].T if has_rest else _along(cuts, about)
    heights = cuts.e if has_rest else cuts.at(center)
    slopes, upper, cost = [sparse.csr_array(first)], [np.full(J, np.inf)], [-heights]
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
    return Program(A, np.r_[np.zeros(A.shape[0] - parts), np.ones(parts)], np.concatenate(upper), np.concatenate(cost))


def _along(cuts: Cuts, about: Columns) -> Array:
    """Slopes along directions, each in units of the largest there: along some, as where a column is all but a sum of
    others, all are so small that a solver's tolerance would hide them."""
    along = about.directions @ (cuts.g[:, about.free] / about.size[about.free]).T
    return np.asarray(along / np.abs(along).max(axis=1, keepdims=True))


def _highest(cuts: Cuts, program: Program | None) -> Array | None:
    """max Σ α_j e_j, less what the rest costs; None if there are no such weights."""
    found = None if program is None else _minimum(program)
    return None if found is None else np.maximum(found[: len(cuts.e)], 0.0)


def _even(cuts: Cuts, program: Program | None) -> tuple[Array | None, float]:
    """The weights whose least is largest, and that: α_j = t + β_j with β >= 0, and t as large as it can be."""
    from scipy import sparse

    if program is None:
        return None, 0.0
    J, (A, b, upper, cost) = len(cuts.e), program
    A = sparse.hstack([A, A[:, :J].sum(axis=1)[:, None]], format="csr")
    found = _minimum(Program(A, b, np.append(upper, np.inf), np.append(0 * cost, -1.0)))
    return (None, 0.0) if found is None else (np.maximum(found[:J], 0.0) + found[-1], float(found[-1]))


def _spread(cuts: Cuts, program: Program) -> Array | None:
    """Weights of as many cuts as can have some: α_j = β_j + γ_j, each β_j up to a little, and the largest Σ β_j."""
    from scipy import sparse

    J, (A, b, upper, cost) = len(cuts.e), program
    A = sparse.hstack([A[:, :J], A], format="csr")
    little, some = np.full(J, LITTLE / J), np.append(np.full(J, -1.0), 0 * cost)
    found = _minimum(Program(A, b, np.append(little, upper), some))
    return None if found is None else np.maximum(found[:J], 0.0) + np.maximum(found[J : 2 * J], 0.0)


def _minimum(program: Program) -> Array | None:
    """Where the cost is least; None where HiGHS finds nothing."""
    from scipy.optimize import linprog

    limits = np.column_stack([np.zeros(len(program.upper)), program.upper])
    cost = program.cost / max(float(np.abs(program.cost).max()), 1e-300)  # tolerances are absolute
    answer = linprog(cost, A_eq=program.A, b_eq=program.b, bounds=limits, method="highs")
    return np.asarray(answer.x) if answer.status == 0 else None
