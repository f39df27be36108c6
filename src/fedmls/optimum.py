"""The certified optimum f*: what gaps are measured against.

Small problems are a program: losses made of straight pieces, without an l2 term, a linear one (HiGHS), the rest a conic
one (Clarabel). Many rows in few coordinates are solved by FedMLS-B: a program grows with the rows, cuts do not. No
solver is believed: the objective is evaluated again at the point returned, and a lower bound from the dual weights. A
value whose two sides disagree is refused.
"""

from typing import TYPE_CHECKING

import numpy as np

from fedmls.certificate import lower_bound
from fedmls.engine import weighted_mean
from fedmls.progress import waiting
from fedmls.types import Optimum

if TYPE_CHECKING:
    from fedmls.problem import Problem


SMALL, ROWS = 300_000, 5_000  # numbers and rows: up to so many a program is fastest
EXCHANGES, MORE = 1000, 20  # at most; and after the tolerance is met, in the hope of a closer answer


def optimum(problem: "Problem", tolerance: float = 1e-6) -> Optimum:
    """Minimise f: ``.x``, ``.value`` = f(x), and ``.lower_bound``, which no point with ‖x‖ <= radius is below.

    ``tolerance``: how far the two may lie apart, relative to max(1, f*); otherwise a ValueError.
    """
    if not hasattr(problem, "loss"):
        raise ValueError(f"{type(problem).__name__} has no rows to solve for; give a fedmls.Problem")
    solve = _by_cuts if _many_rows(problem) else _by_program
    found = waiting("solving for the optimum", lambda: solve(problem, tolerance))
    if not found.value - found.lower_bound <= tolerance * max(1.0, abs(found.value)):
        raise ValueError(
            f"no certified optimum: the best point found has objective {found.value:.12g}, the best lower bound is "
            f"{found.lower_bound:.12g}; scale the columns and labels to a few units, add an l2 term if the data can be "
            "separated (a minimum may not exist), or pass optimum=None to run without gaps"
        )
    return found


def _many_rows(problem: "Problem") -> bool:
    from fedmls.algorithms.fedmlsb import MANY

    rows, d = len(problem.y), problem.dimension
    return d <= MANY and (rows * d > SMALL or rows > ROWS)


def _by_program(problem: "Problem", tolerance: float) -> Optimum:
    from fedmls import programs  # with SciPy's sparse arrays, which take a while to load

    scales = programs.column_scales(problem.matrix())
    program = programs.make_program(problem, scales)
    solution, dual = programs.solve(program)
    x = scales * programs.polished(problem, scales, solution[: problem.dimension])
    radius = 10 * float(np.linalg.norm(x)) or 1.0
    bound = lower_bound(problem, programs.dual_slopes(problem, program, x, dual), radius)
    return Optimum(x, problem.value(x), bound, radius)


def _by_cuts(problem: "Problem", tolerance: float) -> Optimum:
    """FedMLS-B until its own bound is close enough, and a little further: a thousand times closer if that comes soon.

    The bound holds everywhere, so the radius is infinite.
    """
    from fedmls.algorithms.fedmlsb import FedMLSB

    algorithm, local, random = FedMLSB(), problem.local(), np.random.default_rng(0)
    met, still, gap = 0, 0, np.inf
    server, client = algorithm.init(np.zeros(problem.dimension), problem.n)
    for k in range(1, EXCHANGES + 1):
        local.begin(k)
        server, down = algorithm.broadcast(k, server, random)
        client, up = algorithm.client_round(k, client, down, local)
        server = algorithm.server_round(k, server, weighted_mean(problem.weights, up))
        gap, before = (server.f - server.bound) / max(1.0, abs(server.f)), gap
        met, still = met + bool(gap <= tolerance), still + 1 if gap > 0.99 * before else 0
        if gap <= 1e-3 * tolerance or met > MORE or (met and still > 3):
            break
    return Optimum(server.center, problem.value(server.center), server.bound, np.inf)
