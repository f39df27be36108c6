"""The certified optimum f*: what gaps are measured against.

Three methods find it:

- programs, for small problems and for those with an l1 term in many coordinates: losses made of straight pieces,
  without an l2 term, are a linear program (HiGHS), the rest is a conic one (Clarabel). Exact, but their time grows
  steeply with the rows.
- cuts, for many rows in at most 200 coordinates: FedMLS-B, to whose server rows make no difference.
- multipliers, for many rows in more coordinates (:mod:`fedmls.optima.multipliers`): only products with the rows.

None is believed: the objective is evaluated again at the point returned, and a lower bound from the dual weights. A
value whose two sides disagree is refused.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from fedmls.algorithms._bundle_server import MANY
from fedmls.algorithms.fedmlsb import FedMLSB
from fedmls.bounds.certificate import lower_bound
from fedmls.local.clients import Clients
from fedmls.optima import multipliers
from fedmls.progress import waiting
from fedmls.types import Array, Optimum

if TYPE_CHECKING:
    from fedmls.problem import Problem

PROGRAM_SIZE = 50_000  # stored numbers of X in more than 200 coordinates: up to so many a program is fastest
SMALL, ROWS = 300_000, 5_000  # the same in at most 200 coordinates, and rows
EXCHANGES, MORE = 1000, 20  # at most; and after the tolerance is met, in the hope of a closer answer
FEWER = 200  # exchanges at most, where programs have failed


def optimum(problem: "Problem", tolerance: float = 1e-6) -> Optimum:
    """Minimise f: ``.x``, ``.value`` = f(x), and ``.lower_bound``, which no point with ‖x‖ <= radius is below.

    ``tolerance``: how far the two may lie apart, relative to max(1, f*); otherwise a ValueError.

    Small problems are known to about ten digits, many rows in at most 200 coordinates mostly to nine. In more
    coordinates f* is known to the tolerance and not better: 200,000 rows of 30 numbers in 20,000 columns take seconds
    with a smooth loss or a strong l2 term, minutes with the other losses and none. Data that a smooth loss can separate
    have no minimum: then x is as good as any point within the radius, to the tolerance.
    """
    if not hasattr(problem, "loss"):
        raise ValueError(f"{type(problem).__name__} has no rows to solve for; give a fedmls.Problem")
    found = waiting("solving for the optimum", lambda: _found(problem, tolerance))
    if not _apart(found) <= tolerance:
        raise ValueError(
            f"no certified optimum: the best point found has objective {found.value:.12g}, the best lower bound is "
            f"{found.lower_bound:.12g}; scale the columns and labels to a few units, add an l2 term if the data can be "
            "separated (a minimum may not exist), or pass optimum=None to run without gaps"
        )
    return found


def _apart(found: Optimum) -> float:
    """How far the two sides are apart, relative to max(1, f*)."""
    return (found.value - found.lower_bound) / max(1.0, abs(found.value))


def _found(problem: "Problem", tolerance: float) -> Optimum:
    """What the fastest method finds; or cuts, if that is not close enough, as where columns of very unlike sizes are
    all but sums of others."""
    method = _method(problem)
    found = method(problem, tolerance)
    if _apart(found) <= tolerance or method is not _by_program or problem.dimension > MANY:
        return found
    return min(found, _by_cuts(problem, tolerance, FEWER), key=_apart)


def _method(problem: "Problem") -> Callable[["Problem", float], Optimum]:
    """Return the method that is fastest for a problem of this size."""
    rows, d = len(problem.y), problem.dimension
    if d <= MANY:
        return _by_cuts if rows * d > SMALL or rows > ROWS else _by_program
    stored = (problem.X if isinstance(problem.X, np.ndarray) else problem.X[0]).size
    return _by_program if stored <= PROGRAM_SIZE or problem.l1 > 0 else _by_multipliers


def _proved(problem: "Problem", x: Array, slopes: Array) -> Optimum:
    """Return x with the bound that the rows' slopes prove around it."""
    radius = multipliers.search_radius(x)
    return Optimum(x, problem.value(x), lower_bound(problem, slopes, radius), radius)


def _by_program(problem: "Problem", tolerance: float) -> Optimum:
    """Solve the problem by HiGHS or Clarabel, as exactly as they do."""
    from fedmls.optima import programs  # with SciPy's sparse arrays, which take a while to load

    scales = programs.column_scales(problem.matrix())
    program = programs.make_program(problem, scales)
    solution, dual = programs.solve(program)
    x = scales * programs.polished(problem, scales, solution[: problem.dimension])
    return _proved(problem, x, programs.dual_slopes(problem, program, x, dual))


def _by_multipliers(problem: "Problem", tolerance: float) -> Optimum:
    found = multipliers.minimise(problem, tolerance)
    return _proved(problem, found.x, found.slopes)


def _by_cuts(problem: "Problem", tolerance: float, exchanges: int = EXCHANGES) -> Optimum:
    """FedMLS-B until its own bound is close enough, and a little further: a thousand times closer if that comes soon.

    The bound holds everywhere, so the radius is infinite.
    """
    algorithm, clients, random = FedMLSB(), Clients(problem), np.random.default_rng(0)
    met, still, gap = 0, 0, np.inf
    server, client = algorithm.init(np.zeros(problem.dimension), problem.n)
    server = server._replace(short=0)  # nothing is sent anywhere: no grids
    states = clients.states(client)
    for k in range(1, exchanges + 1):
        server, down = algorithm.broadcast(k, server, random)
        states, seen, _ = clients.round(algorithm, k, states, down, None)
        server = algorithm.server_round(k, server, seen)
        gap, before = (server.f - server.bound) / max(1.0, abs(server.f)), gap
        met, still = met + bool(gap <= tolerance), still + 1 if gap > 0.99 * before else 0
        if gap <= 1e-3 * tolerance or met > MORE or (met and still > 3):
            break
    return Optimum(server.center, problem.value(server.center), server.bound, np.inf)
