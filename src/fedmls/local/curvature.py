"""Quadratic models of a client's loss: what the loss looks like from far enough away that its kinks blur.

The curvature of f_i at x is Σ_j c_j ℓ''(a_j·x) a_j a_jᵀ, where a kink of ℓ counts as a change of slope spread over the
width within which a share of the client's predictions lie (``Loss.curvature``). For least absolute
deviations and quantiles that is the sandwich of their asymptotic variance (Koenker, Quantile Regression, 2005, section
3.4), the density of the residuals at zero times the Gram matrix. It is a sum over rows, so a mean over clients makes
that of f.
"""

from typing import TYPE_CHECKING

import numpy as np

from fedmls.local.cut_rows import own_minimum, squares
from fedmls.local.random import stream
from fedmls.types import Array

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from fedmls.problem import Problem

SHARE = 0.2  # of the predictions count as near a kink, but at least ROWS rows for each coordinate in all clients
ROWS = 3
OWN_SHARE = 0.8  # around a client's own minimum, which one client's few rows near a kink would make uncertain
PASSES = 100  # at most, towards the own minimum
REACH = {True: 100.0, False: 10.0}  # how far it may be from the start, of a loss with kinks and of a smooth one
BLUR = 0.01  # of the distance from kinks at the start: rows that are fitted exactly would have infinite curvature
NEAR, FITTED = 0.3, 0.05  # a classifier that fits its own rows so well says little; it stays near the start


def packed(H: Array) -> Array:
    """The upper triangle of a symmetric matrix, row by row; a diagonal stays as it is."""
    return H if H.ndim == 1 else np.asarray(H[np.triu_indices(len(H))])


def unpacked(numbers: Array, d: int) -> Array:
    """The inverse of :func:`packed`."""
    if len(numbers) == d:
        return numbers
    H = np.zeros((d, d))
    H[np.triu_indices(d)] = numbers
    return np.asarray(H + np.triu(H, 1).T)


def curvature(
    problem: "Problem", client: int, x: Array, n: int, full: bool, share: float = SHARE, least: float = 0.0
) -> Array:
    """The curvature of a client's loss at x: a matrix, or its diagonal. n: clients in all.  least: width of a kink."""
    first, last = problem.offsets[client], problem.offsets[client + 1]
    d, m = problem.dimension, last - first
    part = _rows(problem, first, last)
    share = min(1.0, max(share, ROWS * d / (n * m)))
    bend = problem.loss.curvature(part @ x, problem.y[first:last], share, least)
    weights = problem.row_weights[first:last] * bend
    if not full:
        return np.asarray(squares(problem.X, first, weights, d))
    near = np.flatnonzero(weights)
    some = part[near]
    if isinstance(some, np.ndarray):
        return np.asarray((some * weights[near, None]).T @ some)
    from scipy.sparse import diags_array

    return np.asarray((some.T @ diags_array(weights[near]) @ some).toarray())


def own_quadratic(
    problem: "Problem", client: int, x0: Array, n: int, full: bool, key: tuple[np.uint64, int, int], slopes: Array
) -> tuple[Array, Array, int]:
    """H and q = H x - p at about the client's own minimum x from x0, with a subgradient p and the curvature H there;
    and how many passes over the client's rows that took.

    The f_i are about x·H_i x/2 - q_i·x, so that the minimum of their mean solves H x = q. key: seed, round and number
    of the client, for the order of its rows.  slopes: room for one number per row of the problem.
    """
    first, last = problem.offsets[client], problem.offsets[client + 1]
    rows = _rows(problem, first, last)
    l2 = np.where(np.arange(problem.dimension) < problem.penalised, problem.l2, 0.0)

    def minimum(reach: float) -> tuple[Array, Array, int]:
        slopes[first:last] = 0.0
        counter = np.uint64(stream(*key, 0))
        x, p, passes = own_minimum(problem.dual_rows, client, slopes, x0, reach, l2, PASSES, counter)
        return x, p, passes + 2  # one for the start, one for how well it fits

    def loss(x: Array) -> float:
        return float(problem.row_weights[first:last] @ problem.loss.value(rows @ x, problem.y[first:last]))

    x, p, passes = minimum(REACH[problem.loss.is_polyhedral])
    if problem.loss.is_classification and loss(x) < FITTED * loss(x0):
        x, p, more = minimum(NEAR)
        passes += more
    least = BLUR * float(problem.loss.kink_distance(rows @ x0, problem.y[first:last]).mean())
    H = curvature(problem, client, x, n, full, OWN_SHARE, least)
    return H, (H @ x if full else H * x) - p, passes + 1


def _rows(problem: "Problem", first: int, last: int) -> "Array | csr_array":
    """The rows from first up to, but not including, last: an array or a CSR array."""
    return problem.X[first:last] if isinstance(problem.X, np.ndarray) else problem.matrix()[first:last]
