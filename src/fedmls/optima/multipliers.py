"""The optimum of a large problem by the method of multipliers: no program is built, only products with the rows.

Every loss ℓ is smoothed, with the slope s_j found so far as its row's multiplier: ℓ(p) becomes

    max over t in the box of  t p - ℓ*(t) - (t - s_j)²/(2 sigma),

whose slope is clip(s_j + sigma (p - b_j)) where ℓ is made of straight pieces. A stage minimises the smoothed objective;
its slopes are the next multipliers, and sigma grows (Hestenes 1969; Powell 1969). That is the proximal point method on
the dual (Rockafellar 1976). Within a stage Newton's method, semismooth (Li, Sun, Toh 2018): only the rows between the
ends of their box are curved, in the end hardly more of them than columns, however many rows there are. Conjugate
gradients solve its systems to one digit, with few columns a Cholesky factor does, and the step is the best one along
the line. The logistic loss and the squared hinge are smooth enough as they are: one stage, with an infinite sigma.

The slopes of a stage lie in the box, and the gradient of the smoothed objective is Σ_j ω_j s_j a_j + l2 x: the better a
stage is solved, the better is the bound that :mod:`fedmls.bounds.certificate` makes of its slopes. Nothing is proved
here: :mod:`fedmls.optima.solve` computes both sides anew.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedmls.bounds.certificate import least
from fedmls.local.rows import DualRows, Matrix
from fedmls.losses import LOGISTIC, SQUARED_HINGE
from fedmls.optima import multiplier_rows as kernels
from fedmls.optima.multiplier_rows import Stage
from fedmls.types import Array

if TYPE_CHECKING:
    from fedmls.problem import Problem

STEPS = 5000  # of Newton's method, in all
STAGE = 300  # and in one stage
GROWTH, QUICK_GROWTH, QUICK = 1.6, 4.0, 4  # of sigma after a stage; after one of so few steps
SHRINKAGE = 0.25  # of sigma where rounding ends a stage: the rounding of predictions counts sigma times in the slopes
RESIDUAL, ITERATIONS = 0.1, 500  # when conjugate gradients end
DAMPING = 1e-7  # added to the curvature, relative to what it would be if every row were curved
FEW, FEW_DAMPING, FEW_TOLERANCE = 300, 1e-12, 1e-10  # columns with which systems are solved outright; then these
REFRESH = 20  # steps after which predictions are computed anew, free of the rounding of their updates


class Minimum(NamedTuple):
    """A point, slopes that prove how good it is, and what it took: Newton's steps, conjugate gradients, stages."""

    x: Array
    slopes: Array
    steps: int
    iterations: int
    stages: int


class _Data(NamedTuple):
    """The problem as the compiled code takes it. ``ridge`` is l2, 0 for the intercept; ``mass`` is Σ_j ω_j a_j².

    ``shift`` was taken from the labels, and is added to the intercept in the end: small numbers have small rounding.
    """

    problem: "Problem"
    rows: DualRows
    ridge: Array
    mass: Array
    shift: Array
    tolerance: float


class _Evaluation(NamedTuple):
    """The smoothed objective at x, where the predictions are p; its slopes prove that f(x) is within ``gap`` of f*.

    ``apart`` is what the gap would be if the gradient were 0.
    """

    x: Array
    p: Array
    slopes: Array
    bends: Array
    gradient: Array
    gap: float
    apart: float
    goal: float

    @property
    def is_proved(self) -> bool:
        return self.gap <= self.goal

    @property
    def ends_stage(self) -> bool:
        """Whether the smoothing now stands more in the way than the gradient."""
        return self.gap - self.apart <= max(self.apart, 0.3 * self.goal)


def minimise(problem: "Problem", tolerance: float) -> Minimum:
    """Minimise f until its value and the bound lie ``tolerance`` max(1, value) apart, or as close as they get.

    With few columns more digits are cheap: then it goes on to FEW_TOLERANCE, for at most as many steps again.
    """
    data = _prepare(problem, min(tolerance, FEW_TOLERANCE) if problem.dimension <= FEW else tolerance)
    stage = Stage(_first_sigma(data), np.zeros(len(problem.y)))
    here = best = _evaluate(data, stage, np.zeros(problem.dimension), np.zeros(len(problem.y)))
    steps = iterations = stages = in_stage = 0
    last, curvature = STEPS, here.bends
    while not best.is_proved and steps < last:
        ahead, used = _direction(data, stage, here, curvature)
        moved, x, p = _step(data, stage, here, ahead, steps % REFRESH == REFRESH - 1)
        steps, in_stage, iterations = steps + 1, in_stage + 1, iterations + used
        here = _evaluate(data, stage, x, p)
        best, curvature = min(here, best, key=lambda one: one.gap), here.bends
        stuck = not moved or in_stage >= STAGE
        if here.ends_stage or stuck:
            if stage.sigma == np.inf:
                break
            growth = SHRINKAGE if stuck else QUICK_GROWTH if in_stage <= QUICK else GROWTH
            stage, stages, in_stage = Stage(growth * stage.sigma, here.slopes), stages + 1, 0
            curvature = growth * here.bends  # the rows curved now tell more than those the new multipliers leave so
            here = _evaluate(data, stage, x, p)
            best = min(here, best, key=lambda one: one.gap)
        if last == STEPS and best.gap * data.tolerance <= best.goal * tolerance:
            last = min(STEPS, 2 * steps)
    return Minimum(best.x + data.shift, best.slopes, steps, iterations, stages)


def _prepare(problem: "Problem", tolerance: float) -> _Data:
    omega, d, shift = problem.total_row_weights, problem.dimension, np.zeros(problem.dimension)
    if problem.intercept and not problem.loss.is_classification:
        shift[-1] = np.median(problem.y)
    labels = problem.y - shift[-1]
    low, high = problem.loss.box(labels)
    rows = problem.dual_rows._replace(X=kernels.compact(problem.X), labels=labels, weights=omega, low=low, high=high)
    ridge = np.zeros(d)
    ridge[: problem.penalised] = problem.l2
    mass = kernels.column_squares(rows.X, omega, d)
    mass[mass == 0.0] = 1.0
    return _Data(problem, rows, ridge, mass, shift, tolerance)


def _first_sigma(data: _Data) -> float:
    """One with which a typical row is curved at first: a slope's range over a residual's."""
    loss, labels = data.problem.loss, data.rows.labels
    if loss.code in (LOGISTIC, SQUARED_HINGE):
        return np.inf
    return loss.lipschitz() / (float(np.mean(np.abs(labels))) or 1.0)


def _evaluate(data: _Data, stage: Stage, x: Array, p: Array) -> _Evaluation:
    slopes, bends = kernels.respond(data.rows, stage, p)
    pull = kernels.pull(data.rows.X, data.rows.weights * slopes, len(x))
    losses, offset, apart = kernels.account(data.rows, slopes, p)
    value = losses + 0.5 * float(data.ridge @ x**2)
    bound = least(data.problem, offset - float(data.shift @ pull), pull, search_radius(x + data.shift))
    goal = 0.9 * data.tolerance * max(1.0, value)  # a little less than asked for: rounding
    return _Evaluation(x, p, slopes, bends, pull + data.ridge * x, value - bound, apart, goal)


def search_radius(x: Array) -> float:
    """How far around 0 the lower bound is to hold: well beyond x."""
    return 10 * float(np.linalg.norm(x)) or 1.0


def _step(data: _Data, stage: Stage, here: _Evaluation, ahead: Array, refresh: bool) -> tuple[bool, Array, Array]:
    """The best step along a direction: whether it leads anywhere, and x and the predictions there."""
    X, m = data.rows.X, len(here.p)
    predicted = kernels.predictions(X, m, ahead)
    linear, quadratic = float((data.ridge * here.x) @ ahead), float(data.ridge @ ahead**2)
    length = kernels.step_length(data.rows, stage, here.p, predicted, linear, quadratic)
    x = here.x + length * ahead
    return length > 0.0, x, kernels.predictions(X, m, x) if refresh else here.p + length * predicted


def _direction(data: _Data, stage: Stage, here: _Evaluation, curvature: Array) -> tuple[Array, int]:
    """Newton's direction, roughly, and the conjugate gradients it took; without a curved row as if all were."""
    weights = data.rows.weights * curvature
    chosen = np.flatnonzero(weights)
    if len(chosen) == 0:
        return -here.gradient / (data.ridge + data.mass * (stage.sigma if stage.sigma < np.inf else 1.0)), 0
    part, weights = kernels.chosen_rows(data.rows.X, chosen), weights[chosen]
    few = len(here.gradient) <= FEW
    ridge = data.ridge + (FEW_DAMPING if few else DAMPING) * float(curvature.max()) * data.mass
    if few:
        return _solved(part, weights, ridge, here.gradient), 0
    ahead, used = kernels.conjugate_gradients(part, weights, ridge, here.gradient, RESIDUAL, ITERATIONS)
    return ahead, used


def _solved(part: Matrix, weights: Array, ridge: Array, gradient: Array) -> Array:
    """The same system solved outright: a matter of milliseconds for a few hundred columns, however ill-conditioned."""
    from scipy import sparse
    from scipy.linalg import cho_factor, cho_solve

    if isinstance(part, np.ndarray):
        hessian = (part * weights[:, None]).T @ part
    else:
        rows = sparse.csr_array(part, shape=(len(weights), len(ridge)))
        hessian = (rows.T @ (sparse.diags_array(weights) @ rows)).toarray()
    hessian[np.diag_indices_from(hessian)] += ridge
    scale = 1 / np.sqrt(np.diag(hessian))
    return np.asarray(-scale * cho_solve(cho_factor(scale[:, None] * hessian * scale), scale * gradient))
