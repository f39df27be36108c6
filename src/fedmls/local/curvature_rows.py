"""Quadratic models of the losses of many clients, compiled; :mod:`fedmls.local.curvature` says what they are."""

from typing import NamedTuple

import numpy as np
from numba import njit

from fedmls.local.cut_rows import own_minimum, squares
from fedmls.local.random import Stream, first_counter
from fedmls.local.rows import CSR, DualRows, Integers, Matrix, Rows, add, choose_layout, dot
from fedmls.losses import ABSOLUTE, HUBER, LOGISTIC, SQUARED_HINGE, LossKind, kink_distance, second, slope, value
from fedmls.types import Array

OWN_ROWS = 20_000  # of a client, at most, that its own minimum is looked for by
ROWS_AT_ONCE = 1024  # of a product of matrices: no more of them are copied
NONE = 1e-12  # of predictions, and of 1: a width that is none
# Of the mean distance from kinks, and of that at the start, from a client's own minimum: no width is smaller. Rows that
# are fitted exactly, as most are where all of a client are of one class but few, have none of their own.
BLUR, OWN_BLUR = 0.1, 0.3


class Own(NamedTuple):
    """How the clients' own minima are looked for, and what is seen from there.

    reach: how far they may be.  passes: at most.  fitted: of the loss at the start, for a classifier, otherwise 0: who
    fits its rows so well stays there.  steep: the largest slope of the loss.
    wide, near: the share of each client's predictions that count as near a kink, for the curvature and for the slope.
    """

    reach: float
    passes: int
    fitted: float
    steep: float
    wide: Array
    near: Array


@njit(cache=True, nogil=True)
def curvatures(rows: Rows, loss: LossKind, x: Array, shares: Array, full: bool) -> Array:
    """The curvature of each client's loss at x: the upper triangle of a matrix, row by row, or its diagonal."""
    out = np.empty((len(shares), _numbers(len(x), full)))
    for i in range(len(shares)):
        first, last = rows.first[i], rows.last[i]
        p, b = _predictions(rows.X, first, last, x), rows.labels[first:last]
        weights = rows.weights[first:last] * bends(loss, p, b, shares[i])
        if full:
            _pack(gram(rows.X, first, weights, len(x)), out[i])
        else:
            out[i] = squares(rows.X, first, weights, len(x))
    return out


@njit(cache=True, nogil=True)
def own_quadratics(
    rows: DualRows, x0: Array, l2: Array, full: bool, own: Own, stream: Stream, slopes: Array
) -> tuple[Array, Array, Array, Integers]:
    """H, H x - p, what absolute values in a subgradient come to, at most, and the passes it took, of each client
    (:func:`fedmls.local.curvature.own_quadratics`)."""
    X, loss, n, d = rows.X, rows.loss, len(own.wide), len(x0)
    out, q, used = np.empty((n, _numbers(d, full))), np.empty((n, d)), np.empty(n, np.int64)
    sizes = np.empty((n, d))
    for i in range(n):
        first, last = rows.first[i], rows.last[i]
        b, c, start = rows.labels[first:last], rows.weights[first:last], _predictions(X, first, last, x0)
        slopes[first:last] = 0.0
        counter = first_counter(stream, i)
        x, used[i], masses = own_minimum(rows, i, slopes, x0, own.reach, l2, own.passes, OWN_ROWS, counter)
        sizes[i] = _steepest(loss, start, b, own.steep) * np.sqrt(c.sum() * masses)
        at = _predictions(X, first, last, x)
        if _total(loss, c, at, b) < own.fitted * _total(loss, c, start, b):
            x, at = x0, start
        least = OWN_BLUR * distances(loss, start, b).mean()
        weights = c * wide_bends(loss, at, b, own.wide[i], least)
        if full:
            H = gram(X, first, weights, d)
            q[i] = np.dot(H, x)
            _pack(H, out[i])
        else:
            out[i] = squares(X, first, weights, d)
            q[i] = out[i] * x
        _add_slopes(X, first, -c * mean_slopes(loss, at, b, own.near[i], least), q[i])
    return out, q, sizes, used


@njit(cache=True, nogil=True)
def _numbers(d: int, full: bool) -> int:
    return d * (d + 1) // 2 if full else d


@njit(cache=True, nogil=True)
def _pack(H: Array, out: Array) -> None:
    """Write the upper triangle, row by row."""
    at, d = 0, H.shape[0]
    for row in range(d):
        out[at : at + d - row] = H[row, row:]
        at += d - row


@njit(cache=True, nogil=True)
def _predictions(X: Matrix, first: int, last: int, x: Array) -> Array:
    p = np.empty(last - first)
    for row in range(first, last):
        p[row - first] = dot(X, row, x)
    return p


@njit(cache=True, nogil=True)
def _add_slopes(X: Matrix, first: int, weights: Array, x: Array) -> None:
    """x <- x + Σ_j weights_j a_j over so many rows from the first on, in place."""
    for j in range(weights.shape[0]):
        if weights[j] != 0.0:
            add(X, first + j, weights[j], x)


@njit(cache=True, nogil=True)
def _total(loss: LossKind, c: Array, p: Array, b: Array) -> float:
    total = 0.0
    for j in range(p.shape[0]):
        total += c[j] * value(loss, p[j], b[j])
    return total


@njit(cache=True, nogil=True)
def _is_smooth(loss: LossKind) -> bool:
    return loss.code == SQUARED_HINGE or loss.code == HUBER or loss.code == LOGISTIC


@njit(cache=True, nogil=True)
def _steepest(loss: LossKind, p: Array, b: Array, limit: float) -> float:
    """How steep the loss is at most: of a smooth one, twice as much as at these predictions."""
    if not _is_smooth(loss):
        return limit
    most = 0.0
    for j in range(p.shape[0]):
        most = max(most, abs(slope(loss, p[j], b[j])))
    return min(limit, 2.0 * most)


@njit(cache=True, nogil=True)
def _jump(loss: LossKind) -> float:
    """How much the slope changes at a kink."""
    return 2.0 if loss.code == ABSOLUTE else 1.0


@njit(cache=True, nogil=True)
def _seconds(loss: LossKind, p: Array, b: Array) -> Array:
    out = np.empty(p.shape[0])
    for j in range(p.shape[0]):
        out[j] = second(loss, p[j], b[j])
    return out


@njit(cache=True, nogil=True)
def distances(loss: LossKind, p: Array, b: Array) -> Array:
    out = np.empty(p.shape[0])
    for j in range(p.shape[0]):
        out[j] = kink_distance(loss, p[j], b[j])
    return out


@njit(cache=True, nogil=True)
def bends(loss: LossKind, p: Array, b: Array, share: float) -> Array:
    """ℓ'' of each prediction. A kink counts as a slope that changes evenly over a width on either side of it: the width
    within which this share of the predictions are, or, if most are right at kinks, a little of their mean distance.
    """
    if _is_smooth(loss):
        return _seconds(loss, p, b)
    distance = distances(loss, p, b)
    width = _width(distance, p, share, BLUR * distance.mean())
    return _jump(loss) / (2.0 * width) * (distance <= width)


@njit(cache=True, nogil=True)
def wide_bends(loss: LossKind, p: Array, b: Array, share: float, least: float) -> Array:
    """The same for a long way: of the parabola that touches the loss at p and is above it everywhere, if a kink is
    rounded off, r -> (r² + width²)^½, over the width of the share or ``least`` (iteratively reweighted least squares
    has these weights). ℓ'' of a smooth loss.
    """
    if _is_smooth(loss):
        return _seconds(loss, p, b)
    distance = distances(loss, p, b)
    return _jump(loss) / (2.0 * np.hypot(distance, _width(distance, p, share, least)))


@njit(cache=True, nogil=True)
def mean_slopes(loss: LossKind, p: Array, b: Array, share: float, least: float) -> Array:
    """The slopes; of a loss with kinks their means over the width of the share, or ``least``, to either side."""
    smooth, width, out = _is_smooth(loss), 0.0, np.empty(p.shape[0])
    if not smooth:
        width = _width(distances(loss, p, b), p, share, least)
    for j in range(p.shape[0]):
        if smooth:
            out[j] = slope(loss, p[j], b[j])
        else:
            out[j] = (value(loss, p[j] + width, b[j]) - value(loss, p[j] - width, b[j])) / (2.0 * width)
    return out


@njit(cache=True, nogil=True)
def _width(distance: Array, p: Array, share: float, least: float) -> float:
    """The distance from a kink within which this share of the predictions are, or ``least``; 1 where all are at one,
    of which nobody knows over what width it matters."""
    width = max(quantile(distance, share), least)
    return width if width > NONE * (1.0 + np.abs(p).max()) else 1.0


@njit(cache=True, nogil=True)
def quantile(values: Array, share: float) -> float:
    """``numpy.quantile(values, share)``."""
    place = (values.shape[0] - 1) * share
    below = int(place)
    ordered, rest = np.partition(values, below), place - below
    a = ordered[below]
    b = ordered[below + 1 :].min() if below + 1 < values.shape[0] else a
    return b - (b - a) * (1.0 - rest) if rest >= 0.5 else a + (b - a) * rest


def gram(X: Matrix, first: int, weights: Array, d: int) -> Array:
    """Σ_j weights_j a_j a_jᵀ over so many rows from the first on."""
    raise TypeError("for compiled code only")


def _gram_dense(X: Array, first: int, weights: Array, d: int) -> Array:
    H, m = np.zeros((d, d)), weights.shape[0]
    size, filled = min(m, ROWS_AT_ONCE), 0
    some, weighted = np.empty((size, d)), np.empty((size, d))
    for j in range(m):
        if weights[j] != 0.0:
            for k in range(d):
                some[filled, k] = X[first + j, k]
                weighted[filled, k] = weights[j] * X[first + j, k]
            filled += 1
        if filled == size or (j == m - 1 and filled > 0):
            H += np.dot(weighted[:filled].T, some[:filled])
            filled = 0
    return H


def _gram_csr(X: CSR, first: int, weights: Array, d: int) -> Array:
    data, indices, indptr = X
    H = np.zeros((d, d))
    for j in range(weights.shape[0]):
        if weights[j] != 0.0:
            for e in range(indptr[first + j], indptr[first + j + 1]):
                for f in range(indptr[first + j], indptr[first + j + 1]):
                    H[indices[e], indices[f]] += weights[j] * data[e] * data[f]
    return H


choose_layout(gram, _gram_dense, _gram_csr)
