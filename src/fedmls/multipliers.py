"""The optimum of a large problem by the method of multipliers: no program is built, only products with the rows.

The losses ℓ are smoothed, each with the slope s_j found so far as its multiplier: ℓ(p) becomes

    max over t in the box of  t p - ℓ*(t) - (t - s_j)²/(2 sigma),

whose slope is clip(s_j + sigma (p - b_j)) for the losses made of straight pieces. A stage minimises the smoothed
objective; its slopes are the next multipliers, and sigma grows (Hestenes 1969; Powell 1969; Rockafellar 1976: it is the
proximal point method on the dual). Where f is made of straight pieces a finite number of stages would be exact. Within a
stage Newton's method, semismooth (Li, Sun, Toh 2018): only rows between the ends of their box are curved, in the end
hardly more of them than columns, however many rows there are. Its systems are solved by conjugate gradients, never
exactly, and the step is the best one along the line. Logistic and squared hinge are smooth enough as they are: one stage.

The answer carries its proof: the slopes of a stage lie in the box, and the gradient of the smoothed objective is what is
left of Σ_j ω_j s_j a_j + l2 x, so the better a stage is solved the better is the bound that :mod:`fedmls.certificate`
makes of its slopes. No proof is taken from here: :mod:`fedmls.optimum` computes both sides anew.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedmls import multiplier_rows as kernels
from fedmls.certificate import least
from fedmls.losses import LOGISTIC, SQUARED_HINGE
from fedmls.types import Array

if TYPE_CHECKING:
    from fedmls.problem import Problem

STEPS = 5000  # of Newton's method, in all
STAGE = 300  # and in one stage
GROWTH, QUICK_GROWTH, QUICK = 1.6, 4.0, 4  # of sigma after a stage; after one of so few steps
RESIDUAL, ITERATIONS = 0.1, 500  # when conjugate gradients end
DAMPING = 1e-7  # added to the curvature, relative to what it would be if every row were curved
REFRESH = 20  # steps after which predictions are computed anew, free of the rounding of their updates


class Minimum(NamedTuple):
    """A point, slopes that prove how good it is, and what it took: Newton's steps, conjugate gradients, stages."""

    x: Array
    slopes: Array
    steps: int
    iterations: int
    stages: int


class _Data(NamedTuple):
    """The problem as the compiled code takes it; ``ridge`` is l2, 0 for the intercept, ``mass`` is Σ_j ω_j a_j²."""

    problem: "Problem"
    rows: Any
    ridge: Array
    mass: Array


class _View(NamedTuple):
    """The smoothed objective at x, and what its slopes prove of x: f(x) - bound = ``gap``.

    ``apart`` is what the gap would be if the gradient were 0.
    """

    slopes: Array
    bends: Array
    gradient: Array
    gap: float
    apart: float
    goal: float


def minimise(problem: "Problem", tolerance: float) -> Minimum:
    """Minimise f until its value and the bound lie ``tolerance`` max(1, value) apart, or as close as they get."""
    data = _prepare(problem)
    x, p = np.zeros(problem.dimension), np.zeros(len(problem.y))
    multipliers, sigma = np.zeros(len(problem.y)), _first_sigma(problem)
    view = _look(data, sigma, multipliers, x, p, tolerance)
    best_gap, best = view.gap, (x, view.slopes)
    iterations = stages = in_stage = steps = 0
    curvature = view.bends
    while view.gap > view.goal and steps < STEPS:
        ahead, used = _direction(data, view, curvature, sigma)
        predicted = kernels.predictions(problem.X, len(p), ahead)
        length = kernels.step_length(
            data.rows, sigma, multipliers, p, predicted, float((data.ridge * x) @ ahead), float(data.ridge @ ahead**2)
        )
        steps, in_stage, iterations = steps + 1, in_stage + 1, iterations + used
        x = x + length * ahead
        p = p + length * predicted if steps % REFRESH else kernels.predictions(problem.X, len(p), x)
        view = _look(data, sigma, multipliers, x, p, tolerance)
        curvature = view.bends
        if view.gap < best_gap:
            best_gap, best = view.gap, (x, view.slopes)
        stuck = length == 0.0 or in_stage >= STAGE
        if view.gap - view.apart <= max(view.apart, 0.3 * view.goal) or stuck:
            if sigma == np.inf or sigma > 1e15:
                break
            growth = QUICK_GROWTH if in_stage <= QUICK else GROWTH
            multipliers, sigma, stages, in_stage = view.slopes, growth * sigma, stages + 1, 0
            curvature = growth * view.bends  # the rows curved now tell more than those that the new multipliers leave
            view = _look(data, sigma, multipliers, x, p, tolerance)
    return Minimum(*best, steps, iterations, stages)


def _prepare(problem: "Problem") -> _Data:
    omega, d = problem.total_row_weights, problem.dimension
    rows = (problem.X, problem.y, omega, *problem.loss.box(problem.y), problem.loss.code, problem.loss.parameter)
    ridge = np.zeros(d)
    ridge[: problem.penalised] = problem.l2
    mass = kernels.column_squares(problem.X, omega, d)
    mass[mass == 0.0] = 1.0
    return _Data(problem, rows, ridge, mass)


def _first_sigma(problem: "Problem") -> float:
    """One with which a typical row is curved at first: a slope's range over a residual's."""
    if problem.loss.code in (LOGISTIC, SQUARED_HINGE):
        return np.inf
    if problem.loss.is_classification:
        return 1.0
    spread = float(np.mean(np.abs(problem.y - np.median(problem.y)))) or float(np.mean(np.abs(problem.y))) or 1.0
    return problem.loss.lipschitz() / spread


def _look(data: _Data, sigma: float, multipliers: Array, x: Array, p: Array, tolerance: float) -> _View:
    problem = data.problem
    slopes, bends = kernels.respond(data.rows, sigma, multipliers, p)
    pull = kernels.pull(problem.X, data.rows[2] * slopes, problem.dimension)
    losses, offset, apart = kernels.account(data.rows, slopes, p)
    value = losses + 0.5 * float(data.ridge @ x**2)
    radius = search_radius(x)
    gap = value - least(problem, offset, pull, radius)
    return _View(slopes, bends, pull + data.ridge * x, gap, apart, 0.9 * tolerance * max(1.0, value))


def search_radius(x: Array) -> float:
    """How far around 0 the lower bound is to hold: well beyond x."""
    return 10 * float(np.linalg.norm(x)) or 1.0


def _direction(data: _Data, view: _View, curvature: Array, sigma: float) -> tuple[Array, int]:
    """Newton's direction, roughly, and the conjugate gradients it took; without a curved row as if all were."""
    X, omega = data.problem.X, data.rows[2]
    weights = omega * curvature
    chosen = np.flatnonzero(weights)
    if len(chosen) == 0:
        return -view.gradient / (data.ridge + data.mass * (sigma if sigma < np.inf else 1.0)), 0
    ridge = data.ridge + DAMPING * float(curvature.max()) * data.mass
    part = kernels.chosen_rows(X, chosen)
    ahead, used = kernels.conjugate_gradients(part, weights[chosen], ridge, view.gradient, RESIDUAL, ITERATIONS)
    return ahead, used
