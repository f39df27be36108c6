"""The exact proximal step of a client: argmin_x f_i(x) + ‖x - v‖²/(2 weight).

With f_i(x) = Σ_j c_j ℓ(a_j·x, b_j) + l2/2 ‖x‖² (the intercept left alone) the dual has one number for each row, its
slope s_j in the box of the loss, and x follows from the slopes: x(s) = (v/weight - Σ_j c_j s_j a_j)/h, with
h = 1/weight + l2, for the intercept 1/weight. Two kinds of ascent take turns:

passes   dual coordinate ascent over the rows in random order (Hsieh et al. 2008; Shalev-Shwartz, Zhang 2013). It finds
         out which slopes lie at an end of the box, but is slow among the others when rows are nearly dependent;
faces    conjugate gradients among those others, the free slopes, until the maximum there or an end of the box is met,
         and from there along the box (as in GPCG: Moré, Toraldo 1991). The dual is quadratic on a face, so the right
         face gives the exact answer; for the logistic loss, whose dual is not, this is a Newton step with line search.

The answer carries its proof. With x = x(s) and p_j = a_j·x, primal - dual = Σ_j c_j (ℓ(p_j) + ℓ*(s_j) - s_j p_j), every
term at least 0. No point has a primal value below primal - gap, so ‖x - x*‖² <= 2 weight gap.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedmls.checks import positive
from fedmls.local.prox_rows import Goal, prox_rows
from fedmls.local.random import Stream
from fedmls.local.rows import Integers
from fedmls.types import Array

if TYPE_CHECKING:
    from fedmls.problem import Problem

TOLERANCE = 1e-10  # of the gap, relative to max(1, primal)
PASSES = 10_000


class Prox(NamedTuple):
    """One row or number per client asked for; ``slopes`` has one number per row of the whole problem.

    ``passes``: how often the client's rows were read, rounded up.
    """

    x: Array
    slopes: Array
    gap: Array
    passes: Integers


def prox(
    problem: "Problem",
    v: Array,
    weight: float,
    clients: Sequence[int] | Integers | None = None,
    *,
    tolerance: float = TOLERANCE,
    passes: int = PASSES,
    seed: int | np.uint64 = 0,
    k: int = 0,
    call: int = 0,
    ids: Sequence[int] | Integers | None = None,
) -> Prox:
    """The proximal step of each client from its row of ``v``, with its duality gap.

    A ValueError if, after so many ``passes``, the gap is still above ``tolerance`` max(1, primal) and above what
    rounding can make of it, which is more only for very large weights: there large parts of x(s) cancel.
    ``clients`` says whose rows (all unless given), ``ids`` whose random numbers: seed, round ``k``, id and ``call`` fix
    the order of the rows, which the answer does not depend on but for rounding.
    """
    weight = positive("weight", weight)
    no_l1(problem)
    clients = np.arange(problem.n) if clients is None else np.asarray(clients, dtype=np.int64)
    ids = clients if ids is None else np.asarray(ids, dtype=np.int64)
    v = np.ascontiguousarray(v, dtype=float)
    if v.shape != (len(clients), problem.dimension):
        raise ValueError(f"v has shape {v.shape}; give {problem.dimension} numbers for each of {len(clients)} clients")
    if not np.isfinite(v).all():
        raise ValueError(f"v holds {v[~np.isfinite(v)][0]}; a proximal step starts from finite numbers")
    scale = np.full(problem.dimension, weight)  # 1/h
    scale[: problem.penalised] = 1 / (1 / weight + problem.l2)
    rows = problem.dual_rows.of(clients)
    found = prox_rows(
        rows,
        problem.penalty,
        Stream(np.full(len(ids), seed, np.uint64), k, call, ids, rows.last - rows.first),
        Goal(tolerance, passes),
        v,
        weight,
        scale,
    )
    if not found.proved.all():
        i = int(np.argmin(found.proved))
        raise ValueError(
            f"no exact proximal step for client {clients[i]}: after {found.passes[i]} passes over its rows the duality "
            f"gap is {found.gap[i]:.3g}; scale the columns of X, or take a smaller weight than {weight:g}"
        )
    return Prox(found.x, found.slopes, found.gap, found.passes)


def no_l1(problem: "Problem") -> None:
    """Raise a ValueError if the problem has an l1 term."""
    if problem.l1 > 0:
        raise ValueError(f"l1 is {problem.l1:g}; the proximal step has no l1 term: use l2, or another algorithm")
