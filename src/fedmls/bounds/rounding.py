"""How much a lower bound made of cuts may be too high, because slopes are rounded.

Weights α_j of the cuts e_j + g_j·x prove f >= Σ α_j e_j for all x if Σ α_j g_j = 0 (in coordinates without an l2 term).
In floating-point numbers something is left of that sum, about 1e-16 of the slopes, and the slopes themselves, sums over
rows, are wrong by as much. At x this is worth 1e-16 |g| |x|: nothing, unless f is nearly flat in some direction and its
minimum very far away. How far it can be, the cuts tell.

Let f(x) <= f at the center, M_b the height of the highest cut of part b at x, and s_j = M_b - (e_j + g_j·x) >= 0. Then
Σ α_j s_j <= Γ, the gap between f at the center and the bound, with what rounding costs. So x and M solve the equations
α_j (g_j·x - M_b) = -α_j (e_j + s_j) for some s in that set, and so does the center. Hence the two differ by at most
2Γ/σ_i along the i-th right singular vector of these equations' matrix, if σ_i is its singular value. Penalised
coordinates are not unknowns: their l2 or l1 term says how far they can be. Where that takes too much, and they are
few, they are unknowns after all, each with one more equation: 2Γ/far times it, far being how far they can be. The right
sides of all equations together then differ by at most √8 Γ.

Along some directions the cuts of weight say nothing. If others do, they get a little weight. Where even all cuts that
slopes can be cancelled with say nothing, the level set of the cuts has no end: f falls along a column that only rows of
one class have, and is then constant. There the minimum is taken to be within ``AWAY``: it may be any farther only if f
falls all the way, by less than slopes are rounded.

Columns are taken in units of their largest slope. Slopes of rows may cancel in it: what is rounded is the sum of their
absolute values, which clients tell. A direction in which no cut has a slope of more than FLAT is taken for one in which
f is constant: columns are collinear, as those of all levels of a category are with the intercept.
"""

from typing import Any, NamedTuple

import numpy as np

from fedmls.bounds.cuts import ALL, Cuts, Terms, largest
from fedmls.types import Array

ROUNDING = 256 * 2.0**-53  # relative: of sums over rows, block by block, parts and clients
FLAT = 2e-15  # of a cut, or of the largest singular value: what is left of a direction in which all slopes are 0
SEEN = 1e-13  # the same: a singular value that is known to a percent
AWAY = 1e5  # in units of f over slopes: how far the minimum may be where the level set of the cuts has no end


class Columns(NamedTuple):
    """Of a set of cuts: the largest slope in each coordinate, and the errors of slopes; which coordinates have no term
    of their own, and any slope; and orthonormal directions in these, in units of the slopes, in which f is not
    constant."""

    size: Array
    error: Array
    free: Any
    directions: Array


def columns(cuts: Cuts, terms: Terms, summed: Array) -> Columns:
    """summed: the absolute values, in each coordinate, that slopes are sums of."""
    size = largest(cuts.g)
    error = ROUNDING * np.maximum(size, summed)
    free = np.flatnonzero((size > 0) & (np.arange(terms.dimension) >= terms.held))
    if not len(free):
        return Columns(size, error, free, np.empty((0, 0)))
    slopes = cuts.g[:, free] / size[free]
    for b in np.unique(cuts.part):  # rounded by as much as is in a part: one with a huge row hides no other
        slopes[cuts.part == b] /= max(float(np.linalg.norm(slopes[cuts.part == b], axis=1).max()), 1e-300)
    _, _, directions = np.linalg.svd(slopes, full_matrices=False)
    return Columns(size, error, free, directions[np.abs(slopes @ directions.T).max(axis=0) > FLAT])


def doubt(
    cuts: Cuts, about: Columns, terms: Terms, weights: Array, rest: Array, f: float, gap: float, away: float
) -> float:
    """By how much the bound of these weights may be too high, up to rounding at the center itself; infinite if nothing
    can be said.

    rest: what is left of the weighted slopes.  f: at the center.  gap: between that and the bound.  away: how far the
    minimum may be, in units of the slopes, where these cuts say nothing.
    """
    used, held = np.flatnonzero(weights > 0), terms.held
    mean = np.zeros(terms.dimension)  # of absolute slopes; the cuts may be so large that no copy of them is made
    for j in used:
        mean += weights[j] * np.abs(cuts.g[j])
    none = (mean == 0) & (np.arange(terms.dimension) >= held)  # of no row, or of equal ones: nothing is rounded
    error = np.abs(rest) + np.where(none, 0.0, about.error)
    factor, unknown = _factors(cuts, about, used, weights, error)
    open_end = unknown * away if unknown > 0 else 0.0
    for most in max(gap, ROUNDING * abs(f)) * 4.0 ** np.arange(1, 20):
        far = _reach(terms, f - cuts.parts * terms.floor, most)
        lost = far * _dual_norm(terms, error[:held])
        paid = lost + open_end + factor * (2 * most + far * _dual_norm(terms, mean[:held]))
        if gap + paid <= most:
            return float(paid)
    return np.inf


def _factors(cuts: Cuts, about: Columns, used: Any, weights: Array, error: Array) -> tuple[float, float]:
    """Σ_i error_i/σ_i: how much the errors along each singular vector are worth, for each unit of the right sides; and
    the sum of the errors along those of which the cuts say nothing, with what those change the right sides by."""
    size, free, directions = about.size[about.free], about.free, about.directions
    if not error[free].any():
        return 0.0, 0.0
    slopes = (cuts.g[np.ix_(used, free)] / size) @ directions.T
    equations = np.hstack([slopes, -1.0 * _owner(cuts, used)])
    _, plain, V = np.linalg.svd(equations)
    known = int((plain > FLAT * plain[0]).sum())
    _, sigma, turned = np.linalg.svd((weights[used, None] * equations) @ V[:known].T)
    V = np.vstack([turned @ V[:known], V[known:]])
    along = np.abs(V[:, : len(directions)] @ directions) @ (error[free] / size)
    sigma = np.concatenate([np.abs(sigma), np.zeros(known - len(sigma))])  # LAPACK has zeros with a minus sign
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = float(np.where(along[:known] > 0, along[:known] / sigma, 0.0).sum())
    unknown = float((along[known:] / _usual_slopes(cuts, about, V[known:, : len(directions)] @ directions)).sum())
    return factor, unknown + factor * FLAT * float(plain[0]) if unknown > 0 else 0.0


def _usual_slopes(cuts: Cuts, about: Columns, directions: Array) -> Array:
    """The median of the cuts' slopes along each direction, in units of the largest, of those that have any; 1 if none
    has: one huge row does not say what is far for all others."""
    moves = np.zeros((len(directions), cuts.g.shape[1]))
    moves[:, about.free] = directions / about.size[about.free]
    slopes = np.abs(cuts.g @ moves.T).T
    return np.array([np.median(each[each > FLAT]) if (each > FLAT).any() else 1.0 for each in slopes])


def joint_doubt(cuts: Cuts, about: Columns, terms: Terms, weights: Array, rest: Array, f: float, gap: float) -> float:
    """The same with the penalised coordinates among the unknowns, where they are few enough: how far their term lets
    them be are equations like the others. Of columns that differ much in size this takes far less."""
    used, some = np.flatnonzero(weights > 0), np.flatnonzero(about.error > 0)
    unit = about.error[some] / ROUNDING
    equations = np.hstack([cuts.g[np.ix_(used, some)] / unit, -1.0 * _owner(cuts, used)]) * weights[used, None]
    held = np.eye(len(some), equations.shape[1]) / unit[:, None]
    held, error = held[some < terms.held], (np.abs(rest[some]) + about.error[some]) / unit
    for most in max(gap, ROUNDING * abs(f)) * 4.0 ** np.arange(1, 6):
        far = _reach(terms, f - cuts.parts * terms.floor, most)
        if not far > 0:
            return np.inf
        _, sigma, V = np.linalg.svd(np.vstack([equations, (2 * most / far) * held]), full_matrices=False)
        if len(V) < equations.shape[1] or sigma[-1] <= SEEN * sigma[0]:
            return np.inf
        paid = 8**0.5 * most * ((np.abs(V[:, : len(some)]) @ error) / sigma).sum()
        if gap + paid <= most:
            return float(paid)
    return np.inf


def _owner(cuts: Cuts, used: Any) -> Any:
    return (cuts.part[used, None] == np.arange(cuts.parts)) | (cuts.part[used, None] == ALL)


def _reach(terms: Terms, height: float, most: float) -> float:
    """How far penalised coordinates can be from the center: by l2 in the Euclidean norm, or by l1 in the sum of
    absolute values."""
    if terms.l2 > 0:
        return float(2 * np.sqrt(2 * most / terms.l2))
    return 2 * height / terms.l1 if terms.l1 > 0 else 0.0


def _dual_norm(terms: Terms, v: Array) -> float:
    """Of that norm."""
    return float(np.linalg.norm(v)) if terms.l2 > 0 else float(np.abs(v).max(initial=0.0))
