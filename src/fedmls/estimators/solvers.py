"""An algorithm for a name, with step sizes that fit the problem; "auto" is FedMLS-B.

FedMLS-B takes the fewest exchanges of the methods that send only averages (docs/benchmarks.md) and proves how close
it is. FedMLS-D and other methods on slopes get an l1 term as rows (see :func:`works_on_slopes`). The others get their
step from f(x0)/‖g(x0)‖², Polyak's for f* = 0, times the middle of the window in which the benchmark looks for it: a
fair start, not a tuned one (:meth:`fedmls.types.Algorithm.fair_start`).
"""

from typing import Any

import numpy as np

from fedmls.algorithms import FedMLSB, FedMLSD, find, names
from fedmls.checks import unknown
from fedmls.problem import Problem
from fedmls.types import Algorithm, Array, Scale


def check_solver(solver: Any) -> None:
    """Refuse what is neither an algorithm nor the name of one."""
    if isinstance(solver, Algorithm) or solver == "auto":
        return
    try:
        find(solver)
    except ValueError as error:
        if isinstance(solver, str) and (":" in solver or solver in names()):
            raise ValueError(f"solver: {error}") from None
        known = ("auto", *names())
        why = unknown("solver", solver, known) + ", or give an algorithm such as fedmls.FedMLSD(lam0=1.0)"
        raise ValueError(why) from None


def works_on_slopes(solver: Any) -> bool:
    """Whether it moves the slopes of rows, as FedMLS-D, ADMM and CoCoA do, and so can have an l1 term only as rows."""
    if isinstance(solver, str):
        solver = _class_of(solver).fair_start(Scale(n=2, step=1.0, reach=1.0))
    algorithm: Algorithm = solver
    return algorithm.traits.needs_no_l1


def make_solver(solver: Any, problem: Problem, x0: Array, lam0: float | None = None) -> Algorithm:
    """The algorithm for a name; an algorithm is left as it is. lam0: FedMLS-D's λ_0 from an earlier fit, for "auto"."""
    if isinstance(solver, Algorithm):
        return solver
    found = _class_of(solver)
    if found is FedMLSD and lam0 is not None:
        return FedMLSD(lam0=lam0)
    return found.fair_start(scale_at(problem, x0))


def _class_of(solver: str) -> type[Algorithm]:
    return FedMLSB if solver == "auto" else find(solver)


def scale_at(problem: Problem, x0: Array) -> Scale:
    """Guess the problem's scale at x0: Polyak's step, and how far the minimiser would be, were f linear and f* = 0."""
    g = problem.client_subgradients(np.tile(x0, (problem.n, 1)))
    value, square = problem.value(x0), float(problem.weights @ (g * g).sum(axis=1))
    length = float(np.linalg.norm(problem.weights @ g))
    step = value / square if value and square else 1.0
    reach = value / length if value and length else 1.0
    return Scale(problem.n, step, reach, smooth=not problem.loss.is_polyhedral)
