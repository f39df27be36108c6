"""The certified optimum against other packages, and its refusal to certify what is not there."""

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression, QuantileRegressor
from sklearn.svm import LinearSVC

import fedmls
from fedmls.bounds.certificate import lower_bound
from fedmls.losses import LOSSES, Loss, pinball
from fedmls.optima import programs, solve
from fedmls.optima.solve import _by_cuts, _by_program, _method
from tests.support.problems import cvxpy_losses, lad, svm


def test_the_papers_problem():
    X, y = fedmls.datasets.breast_cancer_wisconsin()
    for seed in (0, 1):
        problem = fedmls.Problem(X, y, clients=fedmls.partition.kmeans(X, 10, seed))
        best = fedmls.optimum(problem)
        assert best.value == pytest.approx(4.926310429054, abs=1e-11)
        assert best.value - 1e-9 <= best.lower_bound <= best.value + 1e-12
        assert problem.value(best.x) == best.value
    assert fedmls.optimum(fedmls.Problem(X, y)).value == pytest.approx(49.26310429054, abs=1e-10)


def cvxpy_value(problem):
    """The same by cvxpy, written anew."""
    A, b, w = problem.matrix().toarray(), problem.y, np.repeat(problem.weights, problem.rows_per_client)
    x = cp.Variable(problem.dimension)
    rows = cvxpy_losses(problem.loss, A @ x, b)
    p = x[: problem.penalised]
    cost = cp.sum(cp.multiply(w * problem.row_weights, rows))
    cost += problem.l2 / 2 * cp.sum_squares(p) + problem.l1 * cp.norm1(p)
    cp.Problem(cp.Minimize(cost)).solve(solver="CLARABEL")
    return problem.value(x.value)


@pytest.mark.parametrize(("l2", "l1"), [(0.0, 0.0), (0.5, 0.0), (0.0, 0.5), (0.3, 0.2)])
@pytest.mark.parametrize("loss", [*LOSSES.values(), pinball(0.2)], ids=repr)
def test_agrees_with_cvxpy(loss, l2, l1):
    options = {"l2": l2, "l1": l1, "weights": np.array([0.1, 0.3, 0.15, 0.25, 0.2]), "reduction": "mean"}
    if loss.is_classification:
        problem = svm(m=80, **options)
        problem.loss = loss
    else:
        problem = lad(m=80, loss=loss, **options)
    best = fedmls.optimum(problem)
    assert best.value == pytest.approx(cvxpy_value(problem), rel=1e-6)
    assert best.value - best.lower_bound <= 1e-6 * max(1, best.value)


def test_agrees_with_scikit_learn():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(150, 4))
    y = np.where(X[:, 0] - X[:, 1] + rng.normal(size=150) > 0, 1, -1)
    l2 = 0.8
    ours = fedmls.optimum(fedmls.Problem(X, y, l2=l2, intercept=False)).x
    svc = LinearSVC(loss="hinge", C=1 / l2, fit_intercept=False, tol=1e-10, max_iter=10**6).fit(X, y)
    np.testing.assert_allclose(ours, svc.coef_[0], atol=1e-4)
    ours = fedmls.optimum(fedmls.Problem(X, y, l2=l2, loss="logistic")).x
    logistic = LogisticRegression(C=1 / l2, tol=1e-10, max_iter=10**4).fit(X, y)
    np.testing.assert_allclose(ours, np.append(logistic.coef_, logistic.intercept_), atol=1e-5)
    target = X @ [1.0, 2.0, 0.0, -1.0] + rng.standard_t(3, size=150)
    problem = fedmls.Problem(X, target, loss=pinball(0.3), l1=0.05, reduction="mean")
    quantile = QuantileRegressor(quantile=0.3, alpha=0.05).fit(X, target)
    theirs = problem.value(np.append(quantile.coef_, quantile.intercept_))
    assert fedmls.optimum(problem).value == pytest.approx(theirs, rel=1e-9)


@given(seed=st.integers(0, 10**6), x=st.lists(st.floats(-3, 3), min_size=3, max_size=3), data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_lower_bound_is_below_every_point_for_any_slopes(seed, x, data):
    loss = LOSSES[data.draw(st.sampled_from(sorted(LOSSES)))]
    l2, l1 = data.draw(st.sampled_from([(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0.5, 0.5)]))
    problem = lad(n=2, m=12, columns=2, seed=seed, l2=l2, l1=l1)
    problem.loss = loss
    if loss.is_classification:
        problem.y = np.where(problem.y > 0, 1.0, -1.0)
    slopes = np.random.default_rng(seed).normal(size=12)
    bound = lower_bound(problem, slopes, radius=float(np.linalg.norm(x)) + 1e-9)
    assert bound <= problem.value(np.array(x)) + 1e-9


def test_refuses_a_solver_that_is_wrong(monkeypatch):
    """A point that is not optimal, however sure the solver is of it."""
    right = programs.solve

    def wrong(program):
        x, dual = right(program)
        return x + 0.01, dual

    monkeypatch.setattr(programs, "solve", wrong)
    monkeypatch.setattr(solve, "MANY", 0)  # or cuts would find it
    with pytest.raises(ValueError, match="no certified optimum: the best point found has objective"):
        fedmls.optimum(svm())


def test_refuses_wrong_dual_weights(monkeypatch):
    right = programs.solve
    monkeypatch.setattr(programs, "solve", lambda program: (right(program)[0], 0 * right(program)[1]))
    monkeypatch.setattr(solve, "MANY", 0)
    with pytest.raises(ValueError, match="the best lower bound is"):
        fedmls.optimum(svm())


def test_where_programs_are_not_close_enough_cuts_are():
    """Columns as of a map, in metres: all but a multiple of the intercept, and some sums of money beside them."""
    rng = np.random.default_rng(5)
    place = np.array([6.7e6, 6e5]) + np.array([1e4, 4e4]) * rng.random((300, 2))
    X = np.column_stack([place, rng.lognormal(5, 2, 300), np.eye(4)[rng.integers(4, size=300)][:, 1:]])
    y = rng.normal(size=300) + (X[:, 0] - 6.7e6) / 1e4
    problem = fedmls.Problem(X, y, clients=np.arange(300) % 4, loss="huber")
    program, best = _by_program(problem, 1e-6), fedmls.optimum(problem)
    assert solve._apart(program) > 1e-6
    assert solve._apart(best) <= 1e-8
    assert best.lower_bound <= program.value


def test_an_objective_of_zero_has_a_gap_too():
    X = np.array([[-2.0], [-1.0], [1.0], [2.0]])
    problem = fedmls.Problem(X, [-1, -1, 1, 1], clients=[0, 1, 0, 1])
    assert isinstance(problem.loss, Loss)
    history = fedmls.simulate(fedmls.FedMLS(lam0=1.0), problem, rounds=5).history
    assert history["relative_gap"].equals(history["gap"])


@pytest.mark.parametrize("scale", [1e-4, 1e4])
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "logistic", "huber", "absolute"])
@pytest.mark.parametrize("l2", [0.0, 1e-6])
def test_columns_of_any_size(scale, loss, l2):
    X, y = fedmls.datasets.breast_cancer_wisconsin()
    clients = fedmls.partition.iid(X, 10)
    plain = fedmls.optimum(fedmls.Problem(X, y, clients, loss, l2=l2 / scale**2 if scale < 1 else l2))
    scaled = fedmls.optimum(fedmls.Problem(scale * X, y, clients, loss, l2=l2 if scale < 1 else l2 * scale**2))
    assert scaled.value == pytest.approx(plain.value, rel=1e-6)


def test_functions_are_refused():
    with pytest.raises(ValueError, match="OracleProblem has no rows to solve for"):
        fedmls.optimum(fedmls.OracleProblem([(lambda x: 0.0, lambda x, rng: x)], 1))


@pytest.mark.parametrize("loss", sorted(fedmls.LOSSES))
@pytest.mark.parametrize("l2", [0.0, 0.2])
def test_cuts_and_programs_find_the_same(loss, l2):
    """The way for many rows, on rows few enough for the other one."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(1500, 8)) * [1, 1, 1, 1, 5, 0.2, 1, 1]
    y = X @ rng.normal(size=8) + rng.standard_t(3, size=1500)
    y = y > 0 if fedmls.LOSSES[loss].is_classification else y
    problem = fedmls.Problem(X, y, clients=np.arange(1500) % 3, loss=loss, l2=l2, weights=[0.2, 0.3, 0.5])
    program, cuts = _by_program(problem, 1e-6), _by_cuts(problem, 1e-6)
    assert cuts.value == pytest.approx(program.value, rel=1e-6)
    assert program.lower_bound - 1e-9 * program.value <= cuts.value
    assert cuts.lower_bound <= program.value * (1 + 1e-12)
    assert cuts.value - cuts.lower_bound <= 1e-6 * cuts.value


def test_many_rows_take_seconds():
    """Fifty thousand rows, of which the linear program takes minutes."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(50_000, 50))
    y = X @ rng.normal(size=50) / 7 + 0.5 * rng.normal(size=50_000) > 0
    problem = fedmls.Problem(X, y, loss="hinge")
    assert _method(problem) is _by_cuts
    best = fedmls.optimum(problem)
    assert best.value - best.lower_bound <= 1e-6 * best.value
    assert problem.value(best.x) == best.value
    assert best.radius == np.inf
