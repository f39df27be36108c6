"""The method of multipliers against the linear and conic programs, and what it proves against every other point."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import fedmls
from fedmls.bounds.certificate import lower_bound
from fedmls.local.rows import CSR
from fedmls.losses import LOSSES, epsilon_insensitive, huber, pinball
from fedmls.optima import multipliers, programs, solve
from fedmls.optima.multiplier_rows import Stage, compact, conjugate_gradients, smoothed, step_length

ALL = [*LOSSES.values(), pinball(0.1), epsilon_insensitive(0.0), epsilon_insensitive(1.0), huber(0.01), huber(100.0)]
SHARP = [loss for loss in ALL if loss.is_polyhedral]


def make(loss, *, m=150, columns=12, density=0.5, csr=True, seed=0, noise=1.0, scales=1.0, **options):
    """Rows unequal in weight, among them a weight of zero, a row of zeros and rows that come twice."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(m, columns)) * (rng.random(size=(m, columns)) < density) * scales
    X[1], X[2:8] = 0.0, X[8:14]
    y = X @ (rng.normal(size=columns) / scales) + noise * rng.standard_t(2, size=m) + 3.0
    if loss.is_classification:
        y = np.where(y > 3.0, 1, -1)
        y[:2] = -1, 1
    weights = rng.uniform(0.2, 2.0, size=m)
    weights[0] = 0.0
    rows = sparse.csr_array(X) if csr else X
    return fedmls.Problem(rows, y, clients=np.arange(m) % 3, loss=loss, sample_weight=weights, **options)


def solved(problem, tolerance=1e-6):
    """Its value and lower bound, computed anew; they must lie as close as was asked for."""
    found = multipliers.minimise(problem, tolerance)
    value = problem.value(found.x)
    bound = lower_bound(problem, found.slopes, multipliers.search_radius(found.x))
    assert value - bound <= tolerance * max(1.0, value)
    return value, bound


def referee(problem):
    """The optimum by a program, with its lower bound."""
    found = solve._by_program(problem, 1e-6)
    return found.value, found.lower_bound


def agrees(problem, tolerance=1e-6):
    value, bound = solved(problem, tolerance)
    their_value, their_bound = referee(problem)
    close = tolerance * max(1.0, their_value)
    assert their_value - their_bound <= close  # otherwise the referee has nothing to say
    assert their_bound - 1e-9 <= value <= their_value + close
    assert bound <= their_value + 1e-9 * max(1.0, their_value)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("l2", [0.0, 1e-4, 0.1, 100.0])
@pytest.mark.parametrize("csr", [True, False])
@pytest.mark.parametrize("loss", ALL, ids=repr)
def test_agrees_with_the_programs(loss, csr, l2, intercept):
    agrees(make(loss, csr=csr, l2=l2, intercept=intercept))


@pytest.mark.parametrize("l2", [0.0, 1e-3])
@pytest.mark.parametrize("loss", ALL, ids=repr)
def test_agrees_by_conjugate_gradients_alone(loss, l2, monkeypatch):
    monkeypatch.setattr(multipliers, "FEW", 0)
    agrees(make(loss, l2=l2))


@pytest.mark.parametrize("l2", [0.0, 1e-2])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=repr)
def test_agrees_with_many_columns(loss, l2):
    agrees(make(loss, m=900, columns=400, density=0.05, l2=l2, weights=[0.5, 0.3, 0.2], reduction="mean"))


@pytest.mark.parametrize("loss", LOSSES.values(), ids=repr)
def test_more_columns_than_rows(loss):
    """There f* = 0 without l2: every row can be fitted. A conic program often fails here; the answer is known."""
    X = sparse.random_array((120, 600), density=0.05, rng=np.random.default_rng(1))
    y = np.where(np.arange(120) % 3, 1.0, -1.0)
    value, bound = solved(fedmls.Problem(X, y, loss=loss))
    assert 0.0 <= value <= 1e-6
    assert bound <= 1e-15


@pytest.mark.parametrize("loss", [loss for loss in LOSSES.values() if loss.is_classification], ids=repr)
@pytest.mark.parametrize("l2", [0.0, 1e-3])
def test_separable_data(loss, l2):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(400, 30))
    margin = X @ rng.normal(size=30)
    X, margin = X[abs(margin) > 1], margin[abs(margin) > 1]
    problem = fedmls.Problem(X, np.sign(margin), loss=loss, l2=l2)
    if l2:
        agrees(problem)
    else:
        assert solved(problem)[0] <= 1e-6


@pytest.mark.parametrize("spread", [1e-4, 1e4, "both"])
@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=repr)
def test_columns_of_any_size(loss, few, spread, monkeypatch):
    if not few:
        monkeypatch.setattr(multipliers, "FEW", 0)
    scales = np.logspace(-3, 3, 12) if spread == "both" else spread
    value, bound = solved(make(loss, scales=scales))
    plain, _ = solved(make(loss))
    assert value == pytest.approx(plain, rel=2e-6)
    assert bound <= plain


@pytest.mark.parametrize("offset", [0.0, 1e5])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e6])
@pytest.mark.parametrize("loss", ["absolute", "pinball"])
def test_labels_of_any_size(loss, scale, offset):
    """f is homogeneous in the labels, and an intercept takes their offset."""
    X = np.random.default_rng(4).normal(size=(300, 8))
    y = X.sum(axis=1) + np.random.default_rng(5).standard_t(2, size=300)
    value, _ = solved(fedmls.Problem(X, scale * (y + offset), loss=loss))
    plain, _ = solved(fedmls.Problem(X, y, loss=loss))
    assert value == pytest.approx(scale * plain, rel=2e-6, abs=1e-6)


@pytest.mark.parametrize("loss", SHARP, ids=repr)
def test_integer_labels_and_columns_that_come_twice(loss):
    """Many rows at their kinks at once, and minimisers that are not unique."""
    rng = np.random.default_rng(6)
    X = rng.poisson(0.4, size=(400, 25)).astype(float)
    X[:, 1], X[200:] = X[:, 0], X[:200]
    y = np.round(X @ rng.integers(-2, 3, size=25) + rng.normal(size=400))
    y = np.where(y > 0, 1, -1) if loss.is_classification else y
    agrees(fedmls.Problem(X, y, loss=loss))


def test_labels_that_are_all_alike():
    X = np.random.default_rng(0).normal(size=(50, 3))
    for loss in ("absolute", "huber"):
        assert solved(fedmls.Problem(X, np.full(50, 7.0), loss=loss))[0] == pytest.approx(0.0, abs=1e-6)


@given(
    loss=st.sampled_from(ALL),
    seed=st.integers(0, 10**6),
    m=st.integers(14, 60),
    columns=st.integers(1, 30),
    l2=st.sampled_from([0.0, 1e-6, 1e-2, 10.0]),
    csr=st.booleans(),
    intercept=st.booleans(),
    few=st.booleans(),
    steps=st.sampled_from([0, 1, 3, 10, 5000]),
)
@settings(max_examples=150, deadline=None)
def test_the_bound_is_never_above_the_optimum(loss, seed, m, columns, l2, csr, intercept, few, steps):
    """However early it is stopped. The referee's point is feasible, so its value is not below f*; it may lie outside
    the ball, where the bound need not hold."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multipliers, "STEPS", steps)
        patch.setattr(multipliers, "FEW", 300 if few else 0)
        problem = make(loss, m=m, columns=columns, l2=l2, csr=csr, seed=seed, intercept=intercept)
        found = multipliers.minimise(problem, 1e-6)
    x = solve._by_program(problem, 1e-6).x
    radius = max(multipliers.search_radius(found.x), float(np.linalg.norm(x)))
    value = problem.value(x)
    assert lower_bound(problem, found.slopes, radius) <= value + 1e-9 * max(1.0, value)
    low, high = problem.loss.box(problem.y)
    assert ((low <= found.slopes) & (found.slopes <= high)).all()
    assert found.steps <= steps


@given(loss=st.sampled_from(ALL), sigma=st.floats(1e-3, 1e3), seed=st.integers(0, 10**6))
def test_smoothed_slopes_are_the_maximisers_they_are_said_to_be(loss, sigma, seed):
    rng = np.random.default_rng(seed)
    b = float(rng.choice([-1.0, 1.0])) if loss.is_classification else float(rng.normal())
    p = float(rng.normal() * 3)
    low, high = (float(end[0]) for end in loss.box(np.array([b])))
    s = float(np.clip(rng.uniform(-1, 1), low, high))
    if loss.name == "logistic":
        sigma = np.inf  # the only one it is used with
    t, bend = smoothed(loss.kind, sigma, s, p, b, low, high)
    assert low <= t <= high

    def dual(slopes):
        return slopes * p - loss.conjugate(slopes, np.full(len(slopes), b)) - (slopes - s) ** 2 / (2 * sigma)

    others = np.linspace(max(low, t - 2.0), min(high, t + 2.0), 401)
    assert dual(np.array([t]))[0] >= dual(others).max() - 1e-9
    ahead, _ = smoothed(loss.kind, sigma, s, p + 1e-7, b, low, high)
    behind, _ = smoothed(loss.kind, sigma, s, p - 1e-7, b, low, high)
    assert behind <= t <= ahead
    assert min(ahead - t, t - behind) - 1e-6 <= 1e-7 * bend <= max(ahead - t, t - behind) + 1e-6


@pytest.mark.parametrize("csr", [True, False])
def test_conjugate_gradients_solve_the_system(csr):
    rng = np.random.default_rng(0)
    A = rng.normal(size=(40, 9)) * (rng.random(size=(40, 9)) < 0.6)
    weights, ridge, gradient = rng.random(40), rng.random(9), rng.normal(size=9)
    S = sparse.csr_array(A)
    X = compact(CSR(S.data, S.indices, S.indptr)) if csr else A
    x, iterations = conjugate_gradients(X, weights, ridge, gradient, 1e-12, 100)
    np.testing.assert_allclose((A.T * weights) @ A @ x + ridge * x, -gradient, atol=1e-9)
    assert iterations <= 15
    assert conjugate_gradients(X, weights, ridge, gradient, 1e-12, 2)[1] == 2


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("loss", ALL, ids=repr)
def test_the_step_is_the_best_one_along_the_line(loss, scale):
    """Where the derivative is a thousandth of what it was, however long the direction."""
    problem = make(loss)
    rows = problem.dual_rows._replace(weights=problem.total_row_weights)
    sigma = np.inf if loss.name in ("logistic", "squared_hinge") else 2.0
    stage, p, omega = Stage(sigma, np.zeros(150)), np.zeros(150), problem.total_row_weights
    ahead = scale * problem.y

    def derivative(t):
        slopes = [smoothed(loss.kind, sigma, 0.0, t * q, *of)[0] for q, of in zip(ahead, own, strict=True)]
        return float((omega * ahead) @ slopes) + 0.01 * t * scale**2

    own = list(zip(problem.y, *loss.box(problem.y), strict=True))
    t = step_length(rows, stage, p, ahead, 0.0, 0.01 * scale**2)
    assert abs(derivative(t)) <= 1.001e-3 * abs(derivative(0.0))
    assert t > 0
    assert step_length(rows, stage, p, -ahead, 0.0, 0.0) == 0.0  # uphill


def large(loss, l2=0.0):
    """20,000 rows of about ten numbers in 1,000 columns, the first ones in most rows."""
    rng = np.random.default_rng(8)
    m, d, filled = 20_000, 1_000, 10
    often = 1.0 / np.arange(1, d + 1)
    columns = rng.choice(d, size=m * filled, p=often / often.sum())
    X = sparse.csr_array((rng.normal(size=m * filled), (np.repeat(np.arange(m), filled), columns)), shape=(m, d))
    y = X @ rng.normal(size=d) / 3 + rng.standard_t(3, size=m)
    if loss.is_classification:
        y = np.sign(y)
    return fedmls.Problem(X, y, clients=np.arange(m) % 10, loss=loss, l2=l2)


@pytest.mark.parametrize("l2", [0.0, 1.0])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=repr)
def test_a_large_problem_is_certified(loss, l2, monkeypatch):
    monkeypatch.setattr(programs, "make_program", None)  # a program is not even built
    problem = large(loss, l2)
    best = fedmls.optimum(problem)
    assert best.value == problem.value(best.x)
    assert 0 <= best.value - best.lower_bound <= 1e-6 * best.value
    assert best.radius == pytest.approx(10 * np.linalg.norm(best.x))
    for scale in (0.0, 0.5, 1.01, 3.0):
        assert problem.value(scale * best.x) >= best.lower_bound


def test_the_same_bits_every_time():
    first, second = (multipliers.minimise(large(LOSSES["hinge"]), 1e-3) for _ in range(2))
    assert first.x.tobytes() == second.x.tobytes()
    assert first.slopes.tobytes() == second.slopes.tobytes()


def test_small_problems_and_l1_go_to_the_programs(monkeypatch):
    monkeypatch.setattr(multipliers, "minimise", None)
    monkeypatch.setattr(solve, "MANY", 0)  # as if there were too many coordinates for cuts
    fedmls.optimum(make(LOSSES["hinge"]))
    monkeypatch.setattr(solve, "PROGRAM_SIZE", 10)
    fedmls.optimum(make(LOSSES["hinge"], l1=0.1))
    with pytest.raises(TypeError):
        fedmls.optimum(make(LOSSES["hinge"]))


def test_what_is_not_proved_is_refused(monkeypatch):
    monkeypatch.setattr(solve, "MANY", 0)
    monkeypatch.setattr(solve, "PROGRAM_SIZE", 10)
    monkeypatch.setattr(multipliers, "STEPS", 3)
    with pytest.raises(ValueError, match="no certified optimum: the best point found has objective"):
        fedmls.optimum(make(LOSSES["hinge"]))
