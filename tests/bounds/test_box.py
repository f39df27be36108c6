"""Bounds of cuts whose slopes are wrong on purpose, by as much as they are said to be, against linear programs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from fedmls.bounds import box
from fedmls.bounds.box import Box, Model, lower_bound, proved
from fedmls.bounds.cut_steps import normal
from fedmls.bounds.cuts import ALL, EARLY, Cuts, Terms

PARTS, NOWHERE = 3, np.inf


class Truth:
    """A sum over parts of largest planes, all above 0, with an l2 term on all coordinates but the last."""

    def __init__(self, rng, d, l2):
        self.planes = [(rng.normal(size=(4 * d, d)), rng.normal(size=4 * d) - 1) for _ in range(PARTS)]
        self.terms, self.d = Terms(l2, 0.0, d - 1, 0.0, d), d

    def part(self, b, x):
        """Value and slope."""
        G, e = self.planes[b]
        heights = np.append(G @ x + e, 0.0)
        top = int(np.argmax(heights))
        return heights[top], G[top] if top < len(G) else np.zeros(self.d)

    def value(self, x):
        return sum(self.part(b, x)[0] for b in range(PARTS)) + self.terms.quadratic(x)

    def minimum(self):
        """By a linear program, or with l2 by a conic solver."""
        if self.terms.l2 == 0:
            rows = [np.r_[g, -1.0 * (np.arange(PARTS) == b)] for b, (G, _) in enumerate(self.planes) for g in G]
            most = [-h for _, e in self.planes for h in e]
            limits = [(None, None)] * self.d + [(0, None)] * PARTS
            found = linprog(np.r_[np.zeros(self.d), np.ones(PARTS)], rows, most, bounds=limits)
            return found.x[: self.d], found.fun
        import cvxpy

        x = cvxpy.Variable(self.d)
        loss = sum(cvxpy.maximum(0.0, cvxpy.max(G @ x + e)) for G, e in self.planes)
        tight = {"tol_gap_abs": 1e-13, "tol_gap_rel": 1e-13, "tol_feas": 1e-13}
        whole = cvxpy.Problem(cvxpy.Minimize(loss + self.terms.l2 / 2 * cvxpy.sum_squares(x[:-1])))
        whole.solve(solver="CLARABEL", **tight)
        return x.value, self.value(x.value)


def measured(truth, rng, points, blur, profile, rest=0.0, toward=None):
    """Cuts at these points, their slopes wrong by blur * profile + rest in either direction, or in that which makes
    them highest at some point; and the best of the points."""
    cuts = Cuts.exact(np.zeros((PARTS, truth.d)), np.zeros(PARTS), np.arange(PARTS), np.zeros(PARTS, np.int64))
    cuts = cuts._replace(point=np.zeros((PARTS, truth.d)))
    for k, x in enumerate(points, start=1):
        values, slopes = zip(*(truth.part(b, x) for b in range(PARTS)), strict=True)
        signs = rng.choice([-1.0, 1.0, 0.3], size=(PARTS, truth.d)) if toward is None else np.sign(toward - x)
        wrong = np.array(slopes) + (blur * profile + rest) * signs
        e = np.array(values) - wrong @ x - 1e-13
        cuts = cuts.and_more(wrong, e, np.arange(PARTS), k, blur, np.tile(x, (PARTS, 1)))
    c = min(points, key=truth.value)
    return cuts, c


def model_of(seed, d, l2, blur, count, spread=1.0, rest=0.0):
    rng = np.random.default_rng(seed)
    truth, profile = Truth(rng, d, l2), 2.0 ** rng.integers(-3, 4, d)
    best, least = truth.minimum()
    points = best + spread * rng.normal(size=(count, d)) * 10.0 ** rng.uniform(-3, 0, size=(count, 1))
    cuts, c = measured(truth, rng, points, blur, profile, rest)
    return truth, best, least, Model(cuts, PARTS, truth.terms, profile, np.full(d, rest), c, truth.value(c))


models = st.builds(
    model_of,
    st.integers(0, 10**6),
    st.integers(2, 5),
    st.sampled_from([0.0, 0.0, 1e-3, 1.0]),
    st.sampled_from([0.0, 1e-6, 1e-4, 1e-3, 1e-2, 0.1]),
    st.integers(2, 40),
    st.sampled_from([0.01, 1.0, 5.0]),
    st.sampled_from([0.0, 1e-3, 0.05]),
)


@settings(max_examples=200, deadline=None)
@given(models)
def test_no_bound_is_above_the_minimum_and_the_minimum_is_in_the_box(made):
    truth, best, least, model = made
    nowhere = Box(np.full(truth.d, -NOWHERE), np.full(truth.d, NOWHERE))
    bound, (low, high) = lower_bound(model, 0.0, nowhere)
    assert bound.value <= least + 1e-8
    assert (low <= best + 1e-5).all()  # the reference is no more accurate
    assert (best - 1e-5 <= high).all()


@settings(max_examples=100, deadline=None)
@given(models, st.integers(0, 10**6))
def test_any_weights_prove_what_is_true(made, seed):
    truth, best, least, model = made
    rng = np.random.default_rng(seed)
    weights = normal(rng.exponential(size=len(model.cuts.e)) ** 4, model.cuts.part, PARTS)
    U = np.abs(best - model.c) * rng.uniform(1.0, 3.0, truth.d) + 1e-9
    assert proved(model, model.heights(), U, weights) <= least + 1e-8


def test_small_errors_cost_little_and_large_ones_prove_nothing_wrong():
    gaps = []
    for blur in (0.0, 1e-6, 1e-3, 1.0):
        _truth, _, least, model = model_of(5, 3, 0.0, blur, 40)
        bound, (low, high) = lower_bound(model, 0.0, Box(np.full(3, -NOWHERE), np.full(3, NOWHERE)))
        gaps.append(least - bound.value)
        assert blur == 1.0 or np.isfinite(high - low).all()
    assert gaps[0] <= 1e-2 * model.f
    assert gaps == sorted(gaps)
    assert gaps[1] <= gaps[0] + 1e-3
    assert gaps[3] == least  # nothing but that f is not negative


def test_a_level_set_that_is_unbounded_has_no_box():
    """f is constant along the second coordinate."""
    g = np.array([[1.0, 0.0], [-1.0, 0.0]])
    cuts = Cuts.exact(g, np.zeros(2), np.zeros(2, np.int64), np.zeros(2, np.int64))
    cuts = cuts._replace(blur=np.full(2, 1e-3), point=np.zeros((2, 2)))
    model = Model(cuts, 1, Terms(0.0, 0.0, 0, 0.0, 2), np.ones(2), np.zeros(2), np.zeros(2), 1.0)
    bound, (low, high) = lower_bound(model, -1.0, Box(np.full(2, -NOWHERE), np.full(2, NOWHERE)))
    assert bound.value == -1.0
    assert not np.isfinite(high - low).any()


def test_a_solver_that_gives_up_or_lies_does_no_harm(monkeypatch):
    _truth, best, least, model = model_of(1, 3, 0.0, 1e-4, 30)
    nowhere = Box(np.full(3, -NOWHERE), np.full(3, NOWHERE))
    right, _ = lower_bound(model, 0.0, nowhere)
    assert right.value > 0.5 * least
    rng = np.random.default_rng(0)
    for lie in (lambda _: None, lambda program: rng.exponential(size=len(program.tops)) ** 3):
        monkeypatch.setattr(box._Program, "_weights", lie)
        bound, (low, high) = lower_bound(model, 0.0, nowhere)
        assert bound.value <= least
        assert (low <= best).all()
        assert (best <= high).all()


def test_mixtures_of_dropped_cuts_stay_below_by_what_they_say():
    """Also at points for which all errors go the wrong way."""
    rng = np.random.default_rng(3)
    truth, profile = Truth(rng, 3, 0.0), np.array([1.0, 4.0, 0.5])
    for x in 3 * rng.normal(size=(50, 3)):
        near = x + 0.1 * rng.normal(size=(60, 3))  # where cuts are close to the loss
        for toward in (None, x):
            cuts, _ = measured(truth, rng, near, 0.05, profile, toward=toward)
            weights = normal(rng.exponential(size=len(cuts.e)), cuts.part, PARTS)
            few = cuts.pruned(20, weights, 100, profile)
            assert len(few.e) <= EARLY + 20 + PARTS < len(cuts.e)
            assert (few.blur[-PARTS:] > 0).all()
            away = few.blur * (np.abs(few.point - x) @ profile)
            tops = np.array([truth.part(b, x)[0] for b in range(PARTS)])
            assert (few.at(x) - away <= tops[few.part] + 1e-9).all()


def test_the_box_of_the_l2_term_ends_where_the_minimum_may_be():
    """Nothing is lost but the term itself, so that the minimum is as far away as strong convexity lets it be."""
    c, l2 = np.array([3.0, 0.0]), 0.5
    cuts = Cuts.exact(np.zeros((1, 2)), np.zeros(1), np.zeros(1, np.int64), np.zeros(1, np.int64))
    model = Model(cuts._replace(point=np.zeros((1, 2))), 1, Terms(l2, 0.0, 2, 0.0, 2), np.ones(2), np.zeros(2), c, 2.25)
    low, high = box._smaller(model, model.heights(), model.f, Box(np.full(2, -NOWHERE), np.full(2, NOWHERE)))
    assert -1e-6 <= low[0] <= 0.0
    assert high == pytest.approx([6.0, 3.0])


def test_a_box_far_too_wide_in_one_penalised_column_is_made_smaller():
    """The column's slopes are a million times as large as the others', and so is what they are rounded to; where the
    minimum is in it the l2 term alone hardly tells."""
    truth, best, _, model = model_of(2, 3, 1e-3, 1e-6, 40)
    scale = np.array([1e6, 1.0, 1.0])
    cuts = model.cuts._replace(g=model.cuts.g * scale, point=model.cuts.point / scale)

    def value(x):
        return truth.value(x) - truth.terms.quadratic(x) + truth.terms.quadratic(x / scale)

    scaled = model._replace(cuts=cuts, profile=model.profile * scale, c=model.c / scale, f=value(model.c))
    bound, (low, high) = lower_bound(scaled, 0.0, Box(np.full(3, -NOWHERE), np.full(3, NOWHERE)))
    assert bound.value <= value(best) + 1e-8
    assert bound.value > 0.95 * value(best)
    assert high[0] - low[0] < 1e-3


def test_a_cut_of_all_parts_counts_for_all():
    """Nothing is known of the parts but that they are not negative."""
    g, e = np.array([[0.0], [0.0], [1.0], [-1.0]]), np.array([0.0, 0.0, 1.0, 1.0])
    cuts = Cuts.exact(g, e, np.array([0, 1, ALL, ALL]), np.zeros(4, np.int64))._replace(point=np.zeros((4, 1)))
    model = Model(cuts, 2, Terms(0.0, 0.0, 0, 0.0, 1), np.ones(1), np.zeros(1), np.array([0.5]), 1.5)
    bound, (low, high) = lower_bound(model, 0.0, Box(np.array([-NOWHERE]), np.array([NOWHERE])))
    assert bound.value == pytest.approx(1.0, abs=1e-9)
    assert low[0] <= 0.0 <= high[0]
    assert high[0] - low[0] < 1.01
