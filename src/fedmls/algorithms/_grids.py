"""Whole numbers in place of real ones: what FedMLS-B's messages are rounded to, from round 2 on.

Numbers need only be as exact as the gap that is left asks for. The server says how fine, in powers of 2, and everybody
counts in these units: points, slopes, heights of parts, curvature. Of several points, and of the slopes at them, the
first is sent and the difference from one to the next. Whole numbers take as many bits as they need
(:mod:`fedmls.golomb`).

In coordinate i the unit of slopes has the factor s_i, that of points 1/s_i. s is the *profile*, also in powers of 2: f
rises by about ½ where x is 1/s_i away from the minimum in coordinate i, whatever the others then do.

What is rounded is paid for by :mod:`fedmls.bounds.box`. Nothing is rounded in one coordinate or in more than ``MOST``,
where a column is all but a sum of others, since the last digits of slopes matter then, beside an l1 term, and where the
first curvature says nothing: where x may go so far by it that f would change by very much more than it is.
"""

from typing import Any, NamedTuple

import numpy as np

from fedmls import golomb
from fedmls.algorithms._metric import least_correlations
from fedmls.bounds.cuts import Terms
from fedmls.local.curvature import packed
from fedmls.types import Array

ALONE = 2e-4  # the least eigenvalue of the columns' correlations; a thousandth of it with an l2 term
MOST, WIDE = 200, 32  # coordinates; and those without an l2 term: to find a box in more takes long
FINE, FREE = 0.02, 0.18  # of √gap, over d and, without an l2 term, over d²: a unit of slopes, in their profile
NEAR = 2.0**-5  # of the shortest step: a unit of points
EVEN = 2.0**-10  # of the gap: a unit of heights
BENT = 2.0**-8  # a unit of curvature
CLOSE = 0.1  # of f: once the gap is smaller, units become smaller faster than it
LEAST = 1e-12  # of f: a gap that is taken for no smaller
FAR = 1e4  # √f: more must f not change by, by its slopes, where by its curvature it rises by ½
DOUBLE = 2.0**-50  # relative: no unit is smaller than what numbers of eight bytes are rounded by


class Grids(NamedTuple):
    """Units as exponents of 2: the profile; of slopes, points and heights. Empty where nothing is rounded."""

    profile: Any
    scales: Any

    def __bool__(self) -> bool:
        return len(self.profile) > 0

    @property
    def slopes(self) -> Array:
        return np.asarray(2.0 ** (self.profile + self.scales[0]))

    @property
    def points(self) -> Array:
        return np.asarray(2.0 ** (self.scales[1] - self.profile))

    @property
    def heights(self) -> float:
        return float(2.0 ** self.scales[2])

    @property
    def curvature(self) -> Array:
        size = 2.0**self.profile
        return BENT * packed(np.outer(size, size))

    @property
    def curvature_lost(self) -> Array:
        """As much curvature in all directions as rounding may have taken from one: a matrix of errors has about the
        root of its size times one of them."""
        return packed(np.diag(BENT / 2 * len(self.profile) ** 0.5 * 4.0**self.profile))


NONE = Grids(np.empty(0, np.int64), np.empty(0, np.int64))


def profile(H: Array, terms: Terms, f: float, summed: Array) -> Any:
    """The profile by this curvature; empty if nothing is to be rounded. f: at the start.  summed: absolute values that
    slopes are sums of, there and about everywhere."""
    d, free = len(H), int((terms.ridge == 0).sum())
    if H.ndim == 1 or d > MOST or free > WIDE or terms.l1 > 0 or not np.isfinite([terms.floor, H.sum()]).all():
        return NONE.profile
    full = H + np.diag(terms.ridge)
    if least_correlations(full) < (ALONE if terms.l2 == 0 else 1e-3 * ALONE):
        return NONE.profile
    reach = np.sqrt(np.diag(np.linalg.inv(full)))
    if not np.isfinite(reach).all() or (summed * reach > FAR * np.sqrt(abs(f))).any():
        return NONE.profile
    return np.floor(-np.log2(reach)).astype(np.int64)


def scales(
    profile: Any, terms: Terms, f: float, gap: float, gain: float, moves: Array, summed: Array, x: Array, steep: Array
) -> Any:
    """How large the units of slopes, points and heights are to be, with this gap left: finer the closer it is.

    gain: what the model falls by, at most, at the points x, which are these moves from the center.  summed: absolute
    values that slopes are sums of.  steep: the diagonal of the metric, the l2 term with it.
    """
    d, least, size = len(profile), LEAST * abs(f), 2.0**profile
    bent = max(float(d), float((steep / size**2).sum()))  # what f rises by in a unit of each, twice
    gap = max(min(gap, 4 * gain), least)
    close = min(1.0, float(np.sqrt(gap / (CLOSE * abs(f))))) if f else 1.0
    far = (np.abs(moves) * size).max(axis=1)
    shortest = min(float(far[far > 0].min(initial=np.inf)), float(np.sqrt(max(gain, least) / bent)))
    slopes = (FINE / d if terms.l2 > 0 else FREE / d**2) * np.sqrt(gap)
    highest = abs(f) + (np.abs(moves) @ summed).max()
    finest = DOUBLE * np.array([(summed / size).max(), (np.abs(x) * size).max(), highest])
    wanted = np.maximum(close * np.array([slopes, NEAR * shortest, EVEN * gap]), finest)
    return np.floor(np.log2(np.maximum(wanted, 1e-300))).astype(np.int64)


def points_sent(grids: Grids, x: Array) -> Any:
    """Points that are on the grid, as they are sent."""
    units = np.rint(x / grids.points).astype(np.int64)
    return np.diff(units, axis=0, prepend=0).ravel()


def points_received(grids: Grids, sent: Array, points: int) -> Array:
    """The inverse of that."""
    x = sent.astype(float).reshape(points, -1)
    return np.cumsum(x, axis=0) * grids.points if grids else x


def answers_sent(grids: Grids, f: Array, g: Array, H: Array) -> tuple[Any, Any, Any, Any]:
    """What clients found, as it is sent. f, g: of each part at each point, (..., points, parts) and (..., points,
    parts, d).

    Returns f; how far parts are above their mean, rounded down; slopes; curvature.
    """
    total = f.sum(axis=-1)
    above = np.floor((f - total[..., None] / f.shape[-1]) / grids.heights)
    slopes = np.rint(g / grids.slopes)
    slopes = np.diff(slopes, axis=-3, prepend=0)
    bent = np.rint(H / grids.curvature) if H.shape[-1] else H
    return total, _whole(above, 2), _whole(slopes, 3), _whole(bent, 1)


def answers_received(grids: Grids, f: Array, above: Array, slopes: Array, parts: int) -> tuple[Array, Array]:
    """Of their mean: heights of the parts at each point, no higher than they are, and slopes."""
    heights = f[:, None] / parts + above.reshape(-1, parts) * grids.heights
    return heights, np.cumsum(slopes.reshape(*heights.shape, -1), axis=0) * grids.slopes


def _whole(values: Array, axes: int) -> Any:
    """The numbers of each client, one after the other, as whole ones; as they are if one is too large for that."""
    each = values.reshape(*values.shape[: values.ndim - axes], -1)
    return each.astype(np.int64) if golomb.fits(each) else each
