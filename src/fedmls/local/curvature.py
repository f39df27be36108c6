"""Quadratic models of a client's loss: what the loss looks like from far enough away that its kinks blur.

The curvature of f_i at x is Σ_j c_j ℓ''(a_j·x) a_j a_jᵀ, where a kink of ℓ counts as a change of slope spread over the
width within which a share of the client's predictions lie (``Loss.curvature``). For least absolute
deviations and quantiles that is the sandwich of their asymptotic variance (Koenker, Quantile Regression, 2005, section
3.4), the density of the residuals at zero times the Gram matrix. It is a sum over rows, so a mean over clients makes
that of f.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from fedmls.local.cut_rows import own_minimum, squares
from fedmls.local.random import stream
from fedmls.local.rows import Integers
from fedmls.types import Array

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from fedmls.problem import Problem

SHARE = 0.2  # of the predictions count as near a kink, but at least ROWS rows for each coordinate in all clients
ROWS = 3
OWN_SHARE, SLOPE_SHARE = 0.75, 0.35  # the same around a client's own minimum, for the curvature and for the slope
PASSES = 100  # at most, towards the own minimum
REACH = {True: 100.0, False: 10.0}  # how far it may be from the start, of a loss with kinks and of a smooth one
BLUR = 0.01  # of the distance from kinks at the start: rows that are fitted exactly would have infinite curvature
FITTED = 0.05  # of the loss at the start: a classifier that fits its own rows so well says little, and stays there


@lru_cache(maxsize=4)
def _upper(d: int) -> tuple[Integers, Integers]:
    """Return the places of the upper triangle, which take longer to find than to use."""
    return np.triu_indices(d)


def packed(H: Array) -> Array:
    """The upper triangle of a symmetric matrix, row by row; a diagonal stays as it is."""
    return H if H.ndim == 1 else np.asarray(H[_upper(len(H))])


def unpacked(numbers: Array, d: int) -> Array:
    """The inverse of :func:`packed`."""
    if len(numbers) == d:
        return numbers
    H = np.zeros((d, d))
    H[_upper(d)] = numbers
    return np.asarray(H + np.triu(H, 1).T)


def curvature(problem: "Problem", client: int, x: Array, n: int, full: bool) -> Array:
    """The curvature of a client's loss at x: a matrix, or its diagonal. n: clients in all."""
    first, last = problem.offsets[client], problem.offsets[client + 1]
    part = rows_of(problem, first, last)
    bend = problem.loss.curvature(part @ x, problem.y[first:last], _share(SHARE, problem, last - first, n))
    return _squared(problem, first, part, bend, full)


def own_quadratic(
    problem: "Problem", client: int, x0: Array, n: int, full: bool, key: tuple[np.uint64, int, int], slopes: Array
) -> tuple[Array, Array, int]:
    """H and q = H x - p at about the client's own minimum x from x0, with the slope p and the curvature H there; and
    how many passes over the client's rows that took.

    The f_i are about x·H_i x/2 - q_i·x, so that the minimum of their mean solves H x = q. It is some way from the x of
    most clients: H is that of a parabola above the loss, p the mean slope over a width. key: seed, round and number
    of the client, for the order of its rows.  slopes: room for one number per row of the problem.
    """
    first, last = problem.offsets[client], problem.offsets[client + 1]
    rows, y, loss = rows_of(problem, first, last), problem.y[first:last], problem.loss
    weights, start = problem.row_weights[first:last], rows @ x0
    l2 = np.where(np.arange(problem.dimension) < problem.penalised, problem.l2, 0.0)
    slopes[first:last] = 0.0
    counter, reach = np.uint64(stream(*key, 0)), REACH[loss.is_polyhedral]
    x, passes = own_minimum(problem.dual_rows, client, slopes, x0, reach, l2, PASSES, counter)
    if loss.is_classification and weights @ loss.value(rows @ x, y) < FITTED * (weights @ loss.value(start, y)):
        x = x0
    at, least = rows @ x, BLUR * float(loss.kink_distance(start, y).mean())
    wide, near = (_share(share, problem, last - first, n) for share in (OWN_SHARE, SLOPE_SHARE))
    H = _squared(problem, first, rows, loss.wide_curvature(at, y, wide, least), full)
    p = rows.T @ (weights * loss.mean_slope(at, y, near, least))
    return H, (H @ x if full else H * x) - p, passes + 3  # one for the start, one for how well it fits, one for H and p


def _share(share: float, problem: "Problem", m: int, n: int) -> float:
    """Return the share of a client's m rows: at least this one, and enough rows in all."""
    return min(1.0, max(share, ROWS * problem.dimension / (n * m)))


def _squared(problem: "Problem", first: int, rows: "Array | csr_array", bend: Array, full: bool) -> Array:
    """Σ_j c_j bend_j a_j a_jᵀ over the rows from the first on, or its diagonal."""
    last = first + len(bend)
    weights = problem.row_weights[first:last] * bend
    if not full:
        return np.asarray(squares(problem.X, first, weights, problem.dimension))
    near = np.flatnonzero(weights)
    some = rows[near]
    if isinstance(some, np.ndarray):
        return np.asarray((some * weights[near, None]).T @ some)
    from scipy.sparse import diags_array

    return np.asarray((some.T @ diags_array(weights[near]) @ some).toarray())


def rows_of(problem: "Problem", first: int, last: int) -> "Array | csr_array":
    """Return the rows from first up to, but not including, last: an array or a CSR array."""
    return problem.X[first:last] if isinstance(problem.X, np.ndarray) else problem.matrix()[first:last]
