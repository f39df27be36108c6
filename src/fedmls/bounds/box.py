"""What cuts prove whose slopes are rounded: a bound on f* from below, by a box in which the minimum is.

FedMLS-B's clients round slopes to a grid. A cut at x_j with slope g_j is then below its part of f only up to
errors_j·|x - x_j|: of points far away it says nothing. But the minimum x* is not far away. Let c be the center and
F = f(c). The level set f <= F is convex, and both c and x* are in it.

- Let |x - c| <= U, coordinate by coordinate, in some box. There the cuts, each lowered by errors_j·(|c - x_j| + U), are
  below f. A linear program over the box tells how far their level set goes along a coordinate. If that is less than U
  for every coordinate and side, no point with f <= F is on the boundary of the box: x* is inside, and even in the
  smaller box that the programs found. Later programs make it smaller still. What they find stays true, as F only falls.
- With an l2 term, F >= f* + l2/2 ‖c - x*‖² in the penalised coordinates, so ‖c - x*‖ <= √(2 (F - bound)/l2) there.
- In the box, weights α of the cuts, those of a part summing to 1, prove

      f* >= Σ α_j h_j + l2/2 ‖c‖² - Σ min((|p + l2 c| + D)²/(2 l2), (|p + l2 c| + D) U),

  the sum being over coordinates, those without l2 having the second term alone; h_j being the heights of the cuts at c,
  lowered by errors_j·|c - x_j|, p = Σ α_j g_j and D = Σ α_j errors_j.

No solver is believed: all of this is computed from the weights that it found, in forms that hold for any weights.
"""

from typing import Any, NamedTuple

import numpy as np

from fedmls.bounds.cut_bound import Bound, corrected, weights_with_l2
from fedmls.bounds.cut_steps import normal
from fedmls.bounds.cuts import ALL, Cuts, Terms
from fedmls.bounds.rounding import ROUNDING
from fedmls.types import Array

FIRST = (4.0, 16.0, 64.0, 256.0, 1024.0)  # boxes tried first, in units of how far away the minimum is by the curvature
TOO_WIDE, MOST_WIDE = 16.0, 32  # in these units, a box is not known yet; so many coordinates at most
PROGRAMS = 24  # at most, to make the box smaller in one turn
TURNS, HELPS = 4, 0.7  # at most so many times; if the gap falls below this share of the last
ITERATIONS = 1000  # of the simplex method, for one program; hardly any takes a tenth of them
ENOUGH = 1e-3  # of the gap: with an l2 term, if the finest slopes lose less in a coordinate, it needs no smaller box
CORRECTED = 3  # times, at most, that weights are tried
INSIDE = 0.999  # of the box: what goes no farther is inside


class Box(NamedTuple):
    """x* is between these, coordinate by coordinate; infinite where nothing is known."""

    low: Array
    high: Array

    def around(self, c: Array) -> Array:
        """How far x* may be from c."""
        return np.maximum(np.maximum(c - self.low, self.high - c), 0.0)


class Model(NamedTuple):
    """Cuts below the parts of a loss, and the center c with f there. Slopes are off by ``blur`` times ``profile``, and
    by ``rest``, at most."""

    cuts: Cuts
    parts: int
    terms: Terms
    profile: Array
    rest: Array
    c: Array
    f: float

    def heights(self) -> Array:
        """Of the cuts at c, as low as the errors may make them."""
        away = np.abs(self.cuts.point - self.c)
        return np.asarray(self.cuts.at(self.c) - self.cuts.blur * (away @ self.profile) - away @ self.rest)

    def lost(self, U: Array) -> Array:
        """What the errors of each cut come to, at most, within U of the center."""
        return np.asarray(self.cuts.blur * (self.profile @ U) + self.rest @ U)

    def costs(self, U: Array) -> Array:
        """What the finest of the slopes that are off lose in each coordinate, at least."""
        blur = self.cuts.blur
        off = np.min(blur, initial=np.inf, where=blur > 0) * self.profile
        off = np.where(np.isfinite(off), off, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            most = np.where(self.terms.ridge > 0, off**2 / (2 * self.terms.ridge), np.inf)
            return np.asarray(np.where(off > 0, np.minimum(off * U, most), 0.0))

    def rounding(self) -> float:
        """What sums of heights are rounded by."""
        sizes = abs(self.f) + self.terms.quadratic(self.c) + self.terms.summed
        return float(ROUNDING * sizes + self.rest @ np.abs(self.c))


def lower_bound(model: Model, bound: float, box: Box) -> tuple[Bound, Box]:
    """The best bound that the cuts give, and a box that is no larger. bound: the last one.

    A better bound makes the box smaller, and a smaller box the bound better; so again, as long as that helps much.
    """
    best = Bound(bound, np.zeros(len(model.cuts.e)), bound)
    for _ in range(TURNS):
        found, box = _one_turn(model, best.value, box)
        before, best = best, max(best, found, key=lambda one: one.value)
        if not model.f - best.value < HELPS * (model.f - before.value):
            break
    return best, box


def _one_turn(model: Model, bound: float, box: Box) -> tuple[Bound, Box]:
    gap, cuts, terms = model.f - bound, model.cuts, model.terms
    nothing = Bound(-np.inf, np.zeros(len(cuts.e)), -np.inf)
    if not gap > 0:
        return nothing, box
    heights = model.heights()
    box = _smaller(model, heights, gap, box)
    U = box.around(model.c)
    if not np.isfinite(U).all():
        return nothing, box
    if terms.l2 > 0:
        low = cuts._replace(e=cuts.e + heights - cuts.at(model.c))
        weights = weights_with_l2(low, model.parts, terms, model.c, gap, U)
    else:
        weights = _Program(model, heights, gap, U).lowest()
    return _best(model, heights, U, weights, nothing), box


def _best(model: Model, heights: Array, U: Array, weights: Array | None, best: Bound) -> Bound:
    """What the weights prove; with an l2 term also changed so that slopes cancel in the coordinates without it, where
    all that is left of them is paid for with the box."""
    for _ in range(CORRECTED if model.terms.l2 > 0 else 1):
        made = None if weights is None else normal(weights, model.cuts.part, model.parts)
        if made is None:
            break
        value = proved(model, heights, U, made)
        best = max(best, Bound(value, made, value), key=lambda one: one.value)
        weights = corrected(model.cuts, model.terms, made)
    return best


def proved(model: Model, heights: Array, U: Array, weights: Array) -> float:
    """What any weights that :func:`normal` made prove, x* being within U of c."""
    cuts, terms, c = model.cuts, model.terms, model.c
    D = (weights @ cuts.blur) * model.profile + weights.sum() * model.rest
    steep = np.abs(weights @ cuts.g + terms.ridge * c) + D
    lost = steep * U
    if terms.l2 > 0:
        lost = np.where(terms.ridge > 0, np.minimum(lost, steep**2 / (2 * terms.l2)), lost)
    return float(weights @ heights) + terms.quadratic(c) - float(lost.sum()) - model.rounding()


def _smaller(model: Model, heights: Array, gap: float, box: Box) -> Box:
    """The box made smaller by the l2 term and by programs: for coordinates in which nothing near is known yet, else for
    those in which it costs most."""
    terms, c = model.terms, model.c
    if terms.l2 > 0:
        most = gap + model.rounding()
        away = np.where(terms.ridge > 0, (1 + 1e-9) * np.sqrt(2 * most / terms.l2), np.inf)
        box = Box(np.maximum(box.low, c - away), np.minimum(box.high, c + away))
    if terms.l2 == 0 and len(heights) <= terms.dimension + model.parts:
        return box
    U = box.around(c)
    costs = model.costs(U)
    dearest = np.argsort(-costs, kind="stable")
    dearest = dearest[costs[dearest] > (ENOUGH * gap if terms.l2 > 0 else 0.0)]
    found = _first(model, heights, gap, U, dearest)
    if found is None and np.isfinite(U).all() and len(dearest):
        some = dearest[: max(4, min(PROGRAMS // 2, 400 // len(c)))]
        found = _level_set(model, heights, gap, U, some, 1.0)
    return box if found is None else Box(np.maximum(box.low, found.low), np.minimum(box.high, found.high))


def _first(model: Model, heights: Array, gap: float, U: Array, dearest: Any) -> Box | None:
    """The smallest of some boxes out of which the level set does not go, where no box is known or only one far too
    wide; None if there is none, or no need of one."""
    unit = np.sqrt(2 * gap) / model.profile
    wide = dearest[(U[dearest] > TOO_WIDE * unit[dearest]) & np.isfinite(U[dearest])]
    far = [*np.flatnonzero(~np.isfinite(U)), *wide[:MOST_WIDE]]
    for times in FIRST if far else ():
        tried = U.copy()
        tried[far] = np.minimum(U[far], times * unit[far])
        found = _level_set(model, heights, gap, tried, far, INSIDE)
        if found is not None:
            return found
    return None


def _level_set(model: Model, heights: Array, gap: float, U: Array, some: Any, inside: float) -> Box | None:
    """A box around the part of f <= F that is within U of the center, smaller in some coordinates; None if it goes
    farther than this share of U in one of them."""
    program, low, high = _Program(model, heights, gap, U), model.c - U, model.c + U
    for i in some:
        for side, end in ((1.0, high), (-1.0, low)):
            far = program.reach(i, side)
            if far > inside:
                return None
            end[i] = model.c[i] + side * far * U[i]
    return Box(low, high)


class _Program:
    """The lowered model over the box, in units of the box and of the gap, for HiGHS: a variable for each coordinate and
    part, a row for each cut, and one that says f <= F."""

    def __init__(self, model: Model, heights: Array, gap: float, U: Array) -> None:
        cuts, parts, ridge = model.cuts, model.parts, model.terms.ridge
        tops = np.zeros(parts)
        for b in range(parts):
            tops[b] = heights[cuts.part == b].max(initial=-np.inf)
        tops = np.where(np.isfinite(tops), tops, 0.0)
        loss = model.f - model.terms.quadratic(model.c)
        self.part, self.parts = cuts.part, parts
        self.owner = (cuts.part[:, None] == ALL) | (cuts.part[:, None] == np.arange(parts))
        self.slopes, self.tilt = cuts.g * (U / gap), ridge * model.c * U / gap  # l2 is above its tangent at c
        self.tops = (heights - model.lost(U) - self.owner @ tops) / gap
        self.room = (loss - tops.sum() + model.rounding()) / gap
        self.highs = _highs(self.slopes, self.owner, self.tops, self.tilt, self.room)

    def lowest(self) -> Array | None:
        """Weights of the cuts at the model's minimum; None where HiGHS finds none."""
        d = len(self.tilt)
        for part in range(self.parts):
            self.highs.changeColCost(d + part, 1.0)
        return self._weights()

    def reach(self, i: int, side: float) -> float:
        """How far f <= F goes along a coordinate, in units of the box.

        For z in it, (Σ α_j slopes_j + tilt)·z <= room - Σ α_j tops_j, whatever the weights; so times that, and what is
        left of the coordinate's direction, times the box.
        """
        self.highs.changeColCost(int(i), -side)
        found = self._weights()
        self.highs.changeColCost(int(i), 0.0)
        times = 0.0 if found is None else float((found @ self.owner).max())
        weights = normal(found / times, self.part, self.parts) if found is not None and times > 0 else None
        if weights is None:
            return 1.0
        left = -times * (weights @ self.slopes + self.tilt)
        left[i] += side
        sizes = weights @ (np.abs(self.slopes).sum(axis=1) + np.abs(self.tops)) + np.abs(self.tilt).sum()
        far = times * (self.room - float(weights @ self.tops) + ROUNDING * float(sizes)) + float(np.abs(left).sum())
        return float(np.clip(far * (1 + 1e-9), 0.0, 1.0)) if np.isfinite(far) else 1.0

    def _weights(self) -> Array | None:
        import highspy

        self.highs.run()
        if self.highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        return np.asarray(np.maximum(-np.array(self.highs.getSolution().row_dual)[:-1], 0.0))


def _highs(slopes: Array, owner: Any, tops: Array, tilt: Array, room: float) -> Any:
    """HiGHS with the rows slopes_j·z - Σ of the parts that own it <= -tops_j, and tilt·z + Σ of all parts <= room."""
    import highspy

    (J, d), parts, inf = slopes.shape, owner.shape[1], highspy.kHighsInf
    full = np.vstack([np.hstack([slopes, -1.0 * owner]), np.r_[tilt, np.ones(parts)]])
    rows, columns = np.nonzero(full)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_, lp.col_cost_ = d + parts, J + 1, np.zeros(d + parts)
    ends = np.r_[np.ones(d), np.full(parts, inf)]
    lp.col_lower_, lp.col_upper_ = -ends, ends
    lp.row_lower_, lp.row_upper_ = np.full(J + 1, -inf), np.r_[-tops, room]
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.searchsorted(rows, np.arange(J + 2)).astype(np.int32)
    lp.a_matrix_.index_, lp.a_matrix_.value_ = columns.astype(np.int32), full[rows, columns]
    highs = highspy.Highs()
    options = {"output_flag": False, "presolve": "off", "simplex_strategy": 1, "simplex_iteration_limit": ITERATIONS}
    for option, value in (options | {"threads": 1}).items():
        highs.setOptionValue(option, value)
    highs.passModel(lp)
    return highs
