"""The server's side of FedMLS-B: proximal points and bounds against cvxpy, any weights, pruning, failing solvers."""

import cvxpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmls.bounds import cut_bound, cut_steps
from fedmls.bounds import cuts as bounds_cuts
from fedmls.bounds.cut_bound import lower_bound
from fedmls.bounds.cut_steps import mixture, normal, proximal_point
from fedmls.bounds.cuts import ALL, Cuts, Terms
from fedmls.bounds.rounding import columns


def random_cuts(rng, J=12, d=4, parts=3, scale=1.0, common=0):
    """Cuts of parts that are each the largest of some planes, so that a model of them has a minimum."""
    g = scale * rng.normal(size=(J, d))
    part = np.concatenate([np.arange(J - common) % parts, np.full(common, ALL)])
    return Cuts.exact(g, rng.normal(size=J) - (part == ALL) * 3, part.astype(np.int64), np.zeros(J, np.int64))


def heights(cuts, x, parts):
    """The model's parts, without cuts of all."""
    at = cuts.at(x)
    return np.array([at[cuts.part == b].max() for b in range(parts)])


def cost_of(cuts, terms, x):
    """The model of three parts, with its terms."""
    p = x[: terms.penalised]
    return heights(cuts, x, 3).sum() + terms.l2 / 2 * p @ p + terms.l1 * np.abs(p).sum()


def reference(cuts, parts, center, ridge, metric, t):
    d = cuts.g.shape[1]
    x, r = cvxpy.Variable(d), cvxpy.Variable(parts)
    rules = [cuts.e[j] + cuts.g[j] @ x <= (cvxpy.sum(r) if b == ALL else r[b]) for j, b in enumerate(cuts.part)]
    M = np.diag(metric) if metric.ndim == 1 else metric
    cost = cvxpy.sum(r) + cvxpy.sum(cvxpy.multiply(ridge, x**2)) / 2 + cvxpy.quad_form(x - center, M) / (2 * t)
    cvxpy.Problem(cvxpy.Minimize(cost), rules).solve(solver="CLARABEL")
    return x.value, float(cost.value)


def cost_at(cuts, parts, center, ridge, metric, t, x):
    at, common = heights(cuts, x, parts).sum(), cuts.at(x)[cuts.part == ALL]
    M = np.diag(metric) if metric.ndim == 1 else metric
    return max([at, *common]) + ridge @ x**2 / 2 + (x - center) @ M @ (x - center) / (2 * t)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(("J", "d"), [(15, 4), (8, 12)])  # more cuts than coordinates, and fewer
@pytest.mark.parametrize("l2", [0.0, 0.5])
@pytest.mark.parametrize("common", [0, 2])
def test_proximal_point_agrees_with_cvxpy(full, J, d, l2, common):
    rng = np.random.default_rng(J + d + full)
    cuts, center, root = random_cuts(rng, J, d, 3, common=common), rng.normal(size=d), rng.normal(size=(d, d))
    metric = root @ root.T + np.eye(d) if full else rng.uniform(0.5, 2, d)
    ridge, at = np.where(np.arange(d) < d - 1, l2, 0.0), heights(cuts, center, 3) + 5  # f is above its cuts
    for t in (0.01, 1.0, 30.0):
        step = proximal_point(cuts, center, at, ridge, metric, t)
        x, cost = reference(cuts, 3, center, ridge, metric, t)
        assert cost_at(cuts, 3, center, ridge, metric, t, step.x) <= cost + 1e-6 * max(1, abs(cost))
        assert np.allclose(step.x, x, atol=1e-4 * max(1, np.abs(x).max()))
        for b in range(3):
            assert step.weights[(cuts.part == b) | (cuts.part == ALL)].sum() == pytest.approx(1)


@pytest.mark.parametrize("unit", [1e-8, 1.0, 1e8])
def test_cuts_of_any_size_and_duplicates_are_no_trouble(unit):
    rng = np.random.default_rng(0)
    cuts = random_cuts(rng, 20, 5)
    twice = Cuts(*(np.concatenate([field, field, field[:7]]) for field in cuts))
    once = proximal_point(cuts, np.zeros(5), heights(cuts, np.zeros(5), 3), np.zeros(5), np.ones(5), 1.0)
    large = twice._replace(g=unit * twice.g, e=unit * twice.e)
    again = proximal_point(large, np.zeros(5), heights(large, np.zeros(5), 3), np.zeros(5), np.ones(5), 1 / unit)
    assert np.allclose(again.x, once.x, rtol=1e-5, atol=1e-7)


def test_another_solver_takes_over_where_daqp_gives_up_or_is_wrong(monkeypatch):
    import daqp

    rng = np.random.default_rng(1)
    cuts = random_cuts(rng, 20, 5)
    asked = (cuts, np.zeros(5), heights(cuts, np.zeros(5), 3), np.zeros(5), np.ones(5), 1.0)
    expected = proximal_point(*asked)
    monkeypatch.setattr(daqp, "solve", lambda *_, **__: (np.zeros(8), 0.0, -4, {"lam": np.zeros(20)}))
    assert np.allclose(proximal_point(*asked).x, expected.x, atol=1e-6)
    monkeypatch.setattr(daqp, "solve", lambda *_, **__: (np.zeros(8), 0.0, 1, {"lam": np.ones(20)}))
    assert np.allclose(proximal_point(*asked).x, expected.x, atol=1e-6)
    monkeypatch.setattr(daqp, "solve", lambda *_, **__: (np.zeros(8), 0.0, -4, {"lam": np.zeros(20)}))
    monkeypatch.setattr(cut_steps, "_by_piqp", lambda *_: None)
    assert proximal_point(*asked) is None


@pytest.mark.parametrize("offset", [1e-3, 1e3, 1e8])
def test_cuts_that_are_all_below_the_heights_by_as_much_change_no_step(offset):
    """So they are where heights are rounded: DAQP then went there in thousands of small steps."""
    rng = np.random.default_rng(4)
    cuts = random_cuts(rng, 30, 5)
    at = heights(cuts, np.zeros(5), 3)
    below = at[cuts.part] - cuts.at(np.zeros(5))
    length = float(np.linalg.norm(mixture(cuts.g, below, cuts.part, 3) @ cuts.g))
    expected = mixture(cuts.g, below, cuts.part, 3, length)
    found = mixture(cuts.g, below + offset, cuts.part, 3, length)
    assert np.allclose(found @ cuts.g, expected @ cuts.g, atol=1e-6 * max(1, 1e-9 * offset))


def test_an_interior_points_weights_are_of_no_more_cuts_than_it_takes(monkeypatch):
    """All cuts go through one point, as near a kink: then weights are many, and an interior point is amid them."""
    rng = np.random.default_rng(6)
    g = rng.choice([-1.0, 1.0], size=(200, 6)) + np.array([2.0, 0, 0, 0, 0, 0])
    cuts = Cuts.exact(g, np.zeros(200), np.zeros(200, np.int64), np.zeros(200, np.int64))
    asked = (cuts, np.zeros(6), np.zeros(1), np.zeros(6), np.ones(6), 1.0)
    monkeypatch.setattr(cut_steps, "_by_daqp", lambda *_: None)
    step = proximal_point(*asked)
    assert (step.weights > 0).sum() <= 7
    assert np.allclose(step.x, reference(cuts, 1, np.zeros(6), np.zeros(6), np.ones(6), 1.0)[0], atol=1e-6)


def test_a_cut_of_all_parts_may_be_far_below_each_and_hold_all_the_same():
    """Eight parts fall by 1 each, up to 8 away; a cut of all together rises, from 50 below, and holds them at 50/9."""
    part = np.array([*range(8), ALL])
    cuts = Cuts.exact(np.array([[-1.0]] * 8 + [[1.0]]), np.array([0.0] * 8 + [-50]), part, np.zeros(9, np.int64))
    step = proximal_point(cuts, np.zeros(1), np.zeros(8), np.zeros(1), np.ones(1), 1.0, length=0.5)
    assert step.x[0] == pytest.approx(50 / 9)


def test_weights_that_are_a_little_wrong_are_not_believed(monkeypatch):
    """Although one idle cut is very steep, so that its numbers are rounded by much."""
    rng = np.random.default_rng(7)
    cuts = random_cuts(rng, 20, 5)
    steep = Cuts.exact(np.array([[1e4, 0, 0, 0, 0]]), np.array([-1e9]), np.array([0]), np.array([0]))
    cuts = Cuts(*(np.concatenate(two) for two in zip(cuts, steep, strict=True)))
    asked = (cuts, np.zeros(5), heights(cuts, np.zeros(5), 3), np.zeros(5), np.ones(5), 1.0)
    expected, exact = proximal_point(*asked), cut_steps._by_daqp

    def wrong(*program):
        weights = exact(*program)
        return np.where(weights > 0, weights + 0.05, 0.0)

    monkeypatch.setattr(cut_steps, "_by_daqp", wrong)
    assert np.allclose(proximal_point(*asked).x, expected.x, atol=1e-6)


def test_numbers_that_are_not_finite_make_no_step():
    cuts = random_cuts(np.random.default_rng(2), 8, 3)
    broken = cuts._replace(g=np.where(np.arange(8)[:, None] == 3, np.inf, cuts.g))
    with np.errstate(invalid="ignore"):
        assert proximal_point(broken, np.zeros(3), np.zeros(3), np.zeros(3), np.ones(3), 1.0) is None


weights = st.lists(st.floats(-1, 1e6) | st.just(0.0), min_size=12, max_size=12)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10_000), weights, st.sampled_from([0, 2]))
def test_any_weights_are_made_to_sum_to_one_in_every_part(seed, values, common):
    cuts = random_cuts(np.random.default_rng(seed), 12, 3, 3, common=common)
    made = normal(np.array(values), cuts.part, 3)
    if made is None:
        totals = [np.maximum(values, 0)[cuts.part == b].sum() for b in range(3)]
        assert min(totals) <= 1e-200
        return
    assert (made >= 0).all()
    for b in range(3):
        assert made[(cuts.part == b) | (cuts.part == ALL)].sum() == pytest.approx(1)


@settings(max_examples=400, deadline=None)
@given(
    st.integers(0, 10**6), weights, st.sampled_from([0.0, 1e-3, 1.0]), st.sampled_from([0.0, 0.2]), st.integers(2, 4)
)
def test_what_weights_prove_holds_at_every_point(seed, values, l2, l1, penalised):
    """The bound is below the model, with its terms, at points near and far, whatever the weights were."""
    rng = np.random.default_rng(seed)
    cuts, terms = random_cuts(rng, 12, 4, 3), Terms(l2, l1, penalised, -5.0, 4)
    cuts = cuts.and_more(np.zeros((3, 4)), np.full(3, terms.floor), np.arange(3), 0)
    made = normal(np.array([*values, 0.1, 0.0, 1.0]), cuts.part, 3)
    if made is None:
        return
    center, radius, x0 = rng.normal(size=4), 3.0, rng.normal(size=4)
    f, about = cost_of(cuts, terms, center), columns(cuts, terms, np.zeros(4))
    everywhere = cut_bound._proved(cuts, about, terms, made, center, f).value
    in_ball = cut_bound._proved(cuts, about, terms, made, center, f, radius, x0).value
    for size in (0.1, 1.0, 10.0, 1000.0):
        direction = rng.normal(size=4)
        for x, bound in (
            (size * direction, everywhere),
            (x0 + radius * direction / np.linalg.norm(direction), in_ball),
        ):
            assert bound <= cost_of(cuts, terms, x) + 1e-9 * max(1, abs(cost_of(cuts, terms, x)))


@pytest.mark.parametrize(("l2", "l1"), [(0.0, 0.0), (0.3, 0.0), (0.0, 0.3), (1e-3, 0.0)])
def test_the_bound_is_the_minimum_of_the_model(l2, l1):
    rng = np.random.default_rng(3)
    cuts = random_cuts(rng, 60, 4, 3)
    terms = Terms(l2, l1, 3, -5.0, 4)
    x, r = cvxpy.Variable(4), cvxpy.Variable(3)
    rules = [cuts.e[j] + cuts.g[j] @ x <= r[b] for j, b in enumerate(cuts.part)]
    cost = cvxpy.sum(r) + l2 / 2 * cvxpy.sum_squares(x[:3]) + l1 * cvxpy.norm1(x[:3])
    cvxpy.Problem(cvxpy.Minimize(cost), rules).solve(solver="CLARABEL")
    found = lower_bound(cuts, 3, terms, x.value, cost_of(cuts, terms, x.value), np.zeros(4))
    assert found.value == pytest.approx(float(cost.value), rel=1e-6, abs=1e-6)


def test_cuts_that_do_not_span_prove_the_floor_and_a_radius_helps():
    rng = np.random.default_rng(4)
    cuts = random_cuts(rng, 6, 9, 3)
    terms = Terms(0.0, 0.0, 9, -2.0, 9)
    assert lower_bound(cuts, 3, terms, np.zeros(9), 1.0, np.zeros(9)).value == -6.0
    near = lower_bound(cuts, 3, terms, np.zeros(9), 1.0, np.zeros(9), radius=0.01, x0=np.zeros(9)).value
    assert -6.0 < near <= heights(cuts, np.zeros(9), 3).sum()


def test_pruning_keeps_what_was_used_and_a_mixture_of_the_rest(monkeypatch):
    rng = np.random.default_rng(5)
    cuts = random_cuts(rng, 30, 4, 3)
    at = heights(cuts, np.zeros(4), 3)
    step = proximal_point(cuts, np.zeros(4), at, np.zeros(4), np.ones(4), 1.0)
    monkeypatch.setattr(bounds_cuts, "EARLY", 2)
    fewer = cuts.marked(step.weights, 7).pruned(12, step.weights, 7)
    assert len(fewer.e) == 2 + 12 + 3  # one mixture for each part
    assert np.array_equal(fewer.g[:2], cuts.g[:2])
    kept = {tuple(row) for row in fewer.g}
    assert all(tuple(cuts.g[j]) in kept for j in np.flatnonzero(step.weights > 1e-6))
    for x in rng.normal(size=(50, 4)):  # the mixtures are cuts too
        assert (heights(fewer, x, 3) <= heights(cuts, x, 3) + 1e-9).all()
    again = proximal_point(fewer, np.zeros(4), at, np.zeros(4), np.ones(4), 1.0)
    assert np.allclose(again.x, step.x, atol=1e-6)
