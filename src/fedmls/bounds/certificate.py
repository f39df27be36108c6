"""Lower bounds on f*: how a run can prove how close it is, without a reference solver and without seeing a row.

Each client keeps one slope per row, averaged with the algorithm's own weights (within a round θ_t, across rounds γ_k).
From them it forms a cut a_i + p_i·x below its loss (:meth:`Problem.cut`), and only a_i and p_i are sent, as
sums over clients. f(x) >= ā + p̄·x + l2/2 ‖x‖² + l1 ‖x‖_1, and the right side is minimised by hand:

- over a ball around x0 that contains x*:  f* >= ā + p̄·x0 - ρ ‖p̄‖;
- with an l2 term, over all x:             f* >= ā - ‖p̄‖²/(2 l2)   (an intercept, which has no l2 term, needs the ball).

Any slopes inside the loss's box give a valid bound, so it holds with mini-batches too. With FedMLS's averages the
certified gap f(x_K) - bound obeys the theorem's bound with ρ in the place of the distance: its proof compares x_K with
the averaged cuts at every x in the ball, not only at x*.
"""

import math
from typing import TYPE_CHECKING, Protocol

import numpy as np

from fedmls.types import Array

if TYPE_CHECKING:
    from fedmls.problem import Problem


def lower_bound(problem: "Problem", slopes: Array, radius: float = math.inf, x0: Array | None = None) -> float:
    """A number that f is nowhere below in the ball ‖x - x0‖ <= radius, from one slope per row, whatever they are."""
    a, p = problem.cut(slopes)
    return least(problem, a, p, radius, x0)


class Penalised(Protocol):
    """What a bound needs of a problem beyond its cuts: the l2 and l1 terms of its first coordinates."""

    @property
    def dimension(self) -> int: ...
    @property
    def penalised(self) -> int: ...
    @property
    def l2(self) -> float: ...
    @property
    def l1(self) -> float: ...


def least(problem: Penalised, a: float, p: Array, radius: float = math.inf, x0: Array | None = None) -> float:
    """At most the minimum of a + p·x + l2/2 ‖x‖² + l1 ‖x‖_1 over the ball; -inf if there is none."""
    x0 = np.zeros(problem.dimension) if x0 is None else x0
    split = problem.penalised
    q = p.copy()  # q·x <= p·x + l1 ‖x‖_1
    q[:split] = np.sign(p[:split]) * np.maximum(np.abs(p[:split]) - problem.l1, 0.0)
    bounds = [float(q @ x0) - _times(radius, q)]
    if problem.l2 > 0:
        inside, free = q[:split], q[split:]
        bounds.append(float(free @ x0[split:]) - float(inside @ inside) / (2 * problem.l2) - _times(radius, free))
    return a + max(bounds)


def _times(radius: float, v: Array) -> float:
    """radius ‖v‖, with infinity times 0 = 0."""
    length = float(np.linalg.norm(v))
    return radius * length if length else 0.0
