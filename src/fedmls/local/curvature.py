"""Quadratic models of a client's loss: what the loss looks like from far enough away that its kinks blur.

The curvature of f_i at x is Σ_j c_j ℓ''(a_j·x) a_j a_jᵀ, where a kink of ℓ counts as a change of slope spread over the
width within which a share of the client's predictions lie (``fedmls.local.curvature_rows``). For least absolute
deviations and quantiles that is the sandwich of their asymptotic variance (Koenker, Quantile Regression, 2005, section
3.4), the density of the residuals at zero times the Gram matrix. It is a sum over rows, so a mean over clients makes
that of f.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from fedmls.local import curvature_rows
from fedmls.local.curvature_rows import Own
from fedmls.local.random import Stream
from fedmls.local.rows import DualRows, Integers, Rows
from fedmls.types import Array

if TYPE_CHECKING:
    from fedmls.problem import Problem

SHARE = 0.2  # of the predictions count as near a kink, but at least ROWS rows for each coordinate in all clients
ROWS = 3
OWN_SHARE, SLOPE_SHARE = 0.75, 0.35  # the same around a client's own minimum, for the curvature and for the slope
PASSES = 100  # at most, towards the own minimum
REACH = {True: 100.0, False: 10.0}  # how far it may be from the start, of a loss with kinks and of a smooth one
FITTED = 0.05  # of the loss at the start: a classifier that fits its own rows so well says little, and stays there


@lru_cache(maxsize=4)
def _upper(d: int) -> tuple[Integers, Integers]:
    """Return the places of the upper triangle, which take longer to find than to use."""
    return np.triu_indices(d)


def packed(H: Array) -> Array:
    """The upper triangle of a symmetric matrix, row by row; a diagonal stays as it is."""
    return H if H.ndim == 1 else np.asarray(H[_upper(len(H))])


def unpacked(numbers: Array, d: int) -> Array:
    """The inverse of :func:`packed`, of one or of many."""
    if numbers.shape[-1] == d:
        return numbers
    H = np.zeros((*numbers.shape[:-1], d, d))
    rows, columns = _upper(d)
    H[..., rows, columns] = numbers
    H[..., columns, rows] = numbers
    return H


def curvatures(problem: "Problem", clients: Integers, x: Array, n: int, full: bool) -> Array:
    """The curvature of each of these clients' losses at x: packed matrices, or their diagonals. n: clients in all."""
    rows = problem.rows.of(clients)
    return np.asarray(curvature_rows.curvatures(rows, problem.loss.kind, x, _shares(SHARE, problem, rows, n), full))


def own_quadratics(
    problem: "Problem", clients: Integers, x0: Array, n: int, full: bool, stream: Stream
) -> tuple[Array, Array, Array, Integers]:
    """Of each of these clients H and q = H x - p at about its own minimum x from x0, with the slope p and the curvature
    H there; what Σ_j c_j |s_j a_j| is at most, coordinate by coordinate, over all slopes s_j of the loss, or of a
    smooth one up to twice the largest at x0; and how many passes over the client's rows that took. stream: for the
    order of its rows.

    The f_i are about x·H_i x/2 - q_i·x, so that the minimum of their mean solves H x = q. It is some way from the x of
    most clients: H is that of a parabola above the loss, p the mean slope over a width.
    """
    rows, loss = problem.dual_rows.of(clients), problem.loss
    l2 = np.where(np.arange(problem.dimension) < problem.penalised, problem.l2, 0.0)
    wide, near = (_shares(share, problem, rows, n) for share in (OWN_SHARE, SLOPE_SHARE))
    fitted = FITTED if loss.is_classification else 0.0
    own = Own(REACH[loss.is_polyhedral], PASSES, fitted, loss.lipschitz(), wide, near)
    room = np.empty(len(problem.y))
    H, q, sizes, passes = curvature_rows.own_quadratics(rows, x0, l2, full, own, stream, room)
    return H, q, sizes, passes + 3  # one for the start, one for how well it fits, one for H and p


def _shares(share: float, problem: "Problem", rows: Rows | DualRows, n: int) -> Array:
    """Return the share of each client's rows: at least this one, and enough rows in all."""
    enough = ROWS * problem.dimension / (n * (rows.last - rows.first))
    return np.asarray(np.minimum(1.0, np.maximum(share, enough)))
