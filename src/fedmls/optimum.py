"""The certified optimum f*: what gaps are measured against.

Losses made of straight pieces, without an l2 term, are a linear program (HiGHS); the rest is a conic program
(Clarabel). Neither solver is believed: the objective is evaluated again at the point returned, and a lower bound
from the dual weights. A value whose two sides disagree is refused.
"""

from typing import TYPE_CHECKING

import numpy as np

from fedmls.certificate import lower_bound
from fedmls.progress import waiting
from fedmls.types import Optimum

if TYPE_CHECKING:
    from fedmls.problem import Problem


def optimum(problem: "Problem", tolerance: float = 1e-6) -> Optimum:
    """Minimise f: ``.x``, ``.value`` = f(x), and ``.lower_bound``, which no point with ‖x‖ <= radius is below.

    ``tolerance``: how far the two may lie apart, relative to max(1, f*); otherwise a ValueError.
    """
    from fedmls import programs  # with SciPy's sparse arrays, which take a while to load

    if not hasattr(problem, "loss"):
        raise ValueError(f"{type(problem).__name__} has no rows to solve for; give a fedmls.Problem")
    scales = programs.column_scales(problem.matrix())
    program = programs.make_program(problem, scales)
    solution, dual = waiting("solving for the optimum", lambda: programs.solve(program))
    x = scales * programs.polished(problem, scales, solution[: problem.dimension])
    value = problem.value(x)
    radius = 10 * float(np.linalg.norm(x)) or 1.0
    bound = lower_bound(problem, programs.dual_slopes(problem, program, x, dual), radius)
    if not value - bound <= tolerance * max(1.0, abs(value)):
        raise ValueError(
            f"no certified optimum: the best point found has objective {value:.12g}, the best lower bound is "
            f"{bound:.12g}; scale the columns and labels to a few units, add an l2 term if the data can be separated "
            "(a minimum may not exist), or pass optimum=None to run without gaps"
        )
    return Optimum(x, value, bound, radius)
