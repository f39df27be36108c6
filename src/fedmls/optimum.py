"""The certified optimum f*: what gaps are measured against.

Two ways lead to it:

- programs, for up to PROGRAM_SIZE stored numbers of X and for every problem with an l1 term: losses made of straight
  pieces, without an l2 term, are a linear program (HiGHS); the rest is a conic program (Clarabel). Exact, but their
  time grows steeply with the rows.
- multipliers, for all larger ones (:mod:`fedmls.multipliers`): only products with the rows.

Neither is believed: the objective is evaluated again at the point returned, and a lower bound from the dual weights. A
value whose two sides disagree is refused.
"""

from typing import TYPE_CHECKING

import numpy as np

from fedmls import multipliers
from fedmls.certificate import lower_bound
from fedmls.progress import waiting
from fedmls.types import Array, Optimum

if TYPE_CHECKING:
    from fedmls.problem import Problem

PROGRAM_SIZE = 50_000


def optimum(problem: "Problem", tolerance: float = 1e-6) -> Optimum:
    """Minimise f: ``.x``, ``.value`` = f(x), and ``.lower_bound``, which no point with ‖x‖ <= radius is below.

    ``tolerance``: how far the two may lie apart, relative to max(1, f*); otherwise a ValueError.

    Small problems (up to 50,000 stored numbers of X) and those with an l1 term are solved as linear or conic programs,
    to about ten digits. Larger ones by the method of multipliers, which ends once ``tolerance`` is proved: then f* is
    known to that and not better (with up to 300 columns mostly to ten digits too). 200,000 rows of 30 numbers in 20,000
    columns take seconds with a smooth loss or a strong l2 term, minutes with the other losses and none. Data that a
    smooth loss can separate have no minimum: then x is as good as any point within the radius, to the tolerance.
    """
    if not hasattr(problem, "loss"):
        raise ValueError(f"{type(problem).__name__} has no rows to solve for; give a fedmls.Problem")
    small = (problem.X if isinstance(problem.X, np.ndarray) else problem.X[0]).size <= PROGRAM_SIZE
    way = _by_program if small or problem.l1 > 0 else _by_multipliers
    x, slopes = waiting("solving for the optimum", lambda: way(problem, tolerance))
    value = problem.value(x)
    radius = multipliers.search_radius(x)
    bound = lower_bound(problem, slopes, radius)
    if not value - bound <= tolerance * max(1.0, abs(value)):
        raise ValueError(
            f"no certified optimum: the best point found has objective {value:.12g}, the best lower bound is "
            f"{bound:.12g}; scale the columns and labels to a few units, add an l2 term if the data can be separated "
            "(a minimum may not exist), or pass optimum=None to run without gaps"
        )
    return Optimum(x, value, bound, radius)


def _by_program(problem: "Problem", tolerance: float) -> tuple[Array, Array]:
    """A minimiser and dual slopes from HiGHS or Clarabel, as exact as they are."""
    from fedmls import programs  # with SciPy's sparse arrays, which take a while to load

    scales = programs.column_scales(problem.matrix())
    program = programs.make_program(problem, scales)
    solution, dual = programs.solve(program)
    x = scales * programs.polished(problem, scales, solution[: problem.dimension])
    return x, programs.dual_slopes(problem, program, x, dual)


def _by_multipliers(problem: "Problem", tolerance: float) -> tuple[Array, Array]:
    found = multipliers.minimise(problem, tolerance)
    return found.x, found.slopes
