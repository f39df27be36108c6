"""The compiled part of :mod:`fedmls.optima.multipliers`: smoothed slopes, products with the rows, conjugate gradients.

Its products are all there is to the time: so the column numbers of :func:`compact` rows have no sign, as an index that
may be negative costs a test, and the sums of :func:`dot_in_four` are written as four.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from fedmls.local.rows import CSR, DualRows, Integers, Matrix, add_csr, add_dense, add_squares, choose_layout, dot
from fedmls.losses import EPSILON_INSENSITIVE, HUBER, LOGISTIC, SQUARED_HINGE, LossKind, conjugate, value
from fedmls.types import Array


class Stage(NamedTuple):
    """One smoothed objective: how sharp it is, and the multiplier of each row."""

    sigma: float
    multipliers: Array


def compact(X: Matrix) -> Matrix:
    """The rows as this module takes them: CSR with column numbers of 32 bits and no sign, dense ones as they are."""
    return X._replace(indices=X.indices.astype(np.uint32)) if isinstance(X, CSR) else X


def dot_in_four(X: Matrix, row: int, u: Array) -> float:
    """a_row · u as :func:`fedmls.local.rows.dot`, but for CSR as four sums."""
    raise TypeError("for compiled code only")


def _in_one(X: Array, row: int, u: Array) -> float:
    return dot(X, row, u)


def _in_four(X: CSR, row: int, u: Array) -> float:
    data, indices, indptr = X
    p0 = p1 = p2 = p3 = 0.0
    e, last = indptr[row], indptr[row + 1]
    while e + 4 <= last:
        p0 += data[e] * u[indices[e]]
        p1 += data[e + 1] * u[indices[e + 1]]
        p2 += data[e + 2] * u[indices[e + 2]]
        p3 += data[e + 3] * u[indices[e + 3]]
        e += 4
    while e < last:
        p0 += data[e] * u[indices[e]]
        e += 1
    return (p0 + p1) + (p2 + p3)


choose_layout(dot_in_four, _in_one, _in_four)


def add_rounded(X: Matrix, row: int, amount: float, x: Array) -> None:
    """x <- x + amount a_row, in place, as :func:`fedmls.local.rows.add`, but every product is rounded."""
    raise TypeError("for compiled code only")


choose_layout(add_rounded, add_dense, add_csr)


def gather(X: Matrix, chosen: Integers) -> Matrix:
    """A copy of the chosen rows, side by side in memory."""
    raise TypeError("for compiled code only")


def _gather_dense(X: Array, chosen: Integers) -> Array:
    out = np.empty((chosen.shape[0], X.shape[1]))
    for f in range(chosen.shape[0]):
        out[f] = X[chosen[f]]
    return out


def _gather_csr(X: CSR, chosen: Integers) -> CSR:
    data, indices, indptr = X
    starts = np.zeros(chosen.shape[0] + 1, np.int64)
    for f in range(chosen.shape[0]):
        starts[f + 1] = starts[f] + indptr[chosen[f] + 1] - indptr[chosen[f]]
    numbers, columns = np.empty(starts[-1]), np.empty(starts[-1], np.uint32)
    for f in range(chosen.shape[0]):
        first = indptr[chosen[f]]
        for e in range(starts[f + 1] - starts[f]):
            numbers[starts[f] + e] = data[first + e]
            columns[starts[f] + e] = indices[first + e]
    return CSR(numbers, columns, starts)


choose_layout(gather, _gather_dense, _gather_csr)


@njit(cache=True, nogil=True)
def predictions(X: Matrix, m: int, x: Array) -> Array:
    """a_j·x of the first m rows."""
    out = np.empty(m)
    for j in range(m):
        out[j] = dot_in_four(X, j, x)
    return out


@njit(cache=True, nogil=True)
def pull(X: Matrix, amounts: Array, d: int) -> Array:
    """Σ_j amounts_j a_j."""
    out = np.zeros(d)
    for j in range(amounts.shape[0]):
        if amounts[j] != 0.0:
            add_rounded(X, j, amounts[j], out)
    return out


@njit(cache=True, nogil=True)
def column_squares(X: Matrix, amounts: Array, d: int) -> Array:
    """Σ_j amounts_j a_j², one number for each column."""
    out = np.zeros(d)
    for j in range(amounts.shape[0]):
        if amounts[j] != 0.0:
            add_squares(X, j, amounts[j], out)
    return out


@njit(cache=True, nogil=True)
def chosen_rows(X: Matrix, chosen: Integers) -> Matrix:
    """A copy of the chosen rows, side by side in memory."""
    return gather(X, chosen)


@njit(cache=True, nogil=True)
def smoothed(
    loss: LossKind, sigma: float, s: float, p: float, b: float, low: float, high: float
) -> tuple[float, float]:
    """argmax over t in the box of t p - ℓ*(t) - (t - s)²/(2 sigma), and its derivative in p.

    That is the slope at p + s/sigma of the loss's Moreau envelope; with an infinite sigma of the loss itself.
    """
    if loss.code == LOGISTIC:
        chance = math.exp(-abs(p))
        rare, bend = chance / (1.0 + chance), chance / ((1.0 + chance) * (1.0 + chance))
        return -b * (rare if b * p > 0.0 else 1.0 - rare), bend
    bend = 0.5 if loss.code == SQUARED_HINGE else (1.0 if loss.code == HUBER else 0.0)  # ℓ*''
    if sigma == np.inf:
        t, steep = (p - b) / bend, 1.0 / bend
    else:
        t, steep = s + sigma * (p - b), sigma / (1.0 + sigma * bend)
        if loss.code == EPSILON_INSENSITIVE:
            kink = sigma * loss.parameter
            if abs(t) <= kink:
                return 0.0, 0.0
            t = t - kink if t > 0.0 else t + kink
        t /= 1.0 + sigma * bend
    return min(max(t, low), high), steep * ((low < t) & (t < high))  # no branches, which rows would mispredict


@njit(cache=True, nogil=True)
def respond(rows: DualRows, stage: Stage, p: Array) -> tuple[Array, Array]:
    """The smoothed slopes and their derivatives at the predictions p."""
    b, low, high, s = rows.labels, rows.low, rows.high, stage.multipliers
    slopes, bends = np.empty(p.shape[0]), np.empty(p.shape[0])
    for j in range(p.shape[0]):
        slopes[j], bends[j] = smoothed(rows.loss, stage.sigma, s[j], p[j], b[j], low[j], high[j])
    return slopes, bends


@njit(cache=True, nogil=True)
def account(rows: DualRows, slopes: Array, p: Array) -> tuple[float, float, float]:
    """Σ_j ω_j times: the loss; minus the conjugate; and loss + conjugate - slope prediction, which is at least 0."""
    b, omega = rows.labels, rows.weights
    losses = offset = apart = 0.0
    for j in range(p.shape[0]):
        primal, dual = value(rows.loss, p[j], b[j]), conjugate(rows.loss, slopes[j], b[j])
        losses += omega[j] * primal
        offset -= omega[j] * dual
        apart += omega[j] * max(0.0, primal + dual - slopes[j] * p[j])
    return losses, offset, apart


@njit(cache=True, nogil=True)
def step_length(rows: DualRows, stage: Stage, p: Array, ahead: Array, linear: float, quadratic: float) -> float:
    """Where the smoothed objective is least along p + t ahead: Newton's steps for its derivative, kept in a bracket.

    ``linear`` + t ``quadratic`` is the derivative of the l2 term.
    """
    b, omega, low, high, s = rows.labels, rows.weights, rows.low, rows.high, stage.multipliers
    least, most, t, first, tried = 0.0, np.inf, 0.0, 0.0, 0
    while tried < 60:
        rise, bend = linear + t * quadratic, quadratic
        for j in range(p.shape[0]):
            at = p[j] + t * ahead[j]
            slope, steep = smoothed(rows.loss, stage.sigma, s[j], at, b[j], low[j], high[j])
            rise += omega[j] * slope * ahead[j]
            bend += omega[j] * steep * ahead[j] * ahead[j]
        if tried == 0:
            first = rise
            if first >= 0.0:
                return 0.0
            t, tried = 1.0, 1
            continue
        if abs(rise) <= 1e-3 * abs(first) or (most < np.inf and most - least <= 1e-12 * most):
            break
        if rise > 0.0:
            most = t
        else:
            least = t
        best = t - rise / bend if bend > 0.0 else np.inf
        if most == np.inf:
            t = min(best, 10.0 * t)
        else:
            t = best if least < best < most else 0.5 * (least + most)
        tried += 1
    return t


@njit(cache=True, nogil=True)
def conjugate_gradients(
    part: Matrix, weights: Array, ridge: Array, gradient: Array, goal: float, limit: int
) -> tuple[Array, int]:
    """Solve (Σ_f weights_f a_f a_fᵀ + diag(ridge)) x = -gradient over the rows of ``part``; the iterations too.

    Until the residual, measured by the inverse diagonal, is ``goal`` times what it was.
    """
    d = gradient.shape[0]
    diagonal = ridge.copy()
    for f in range(weights.shape[0]):
        add_squares(part, f, weights[f], diagonal)
    x, image, residual = np.zeros(d), np.empty(d), -gradient
    ahead = residual / diagonal
    error = (residual * ahead).sum()
    enough, iterations = goal * goal * error, 0
    while error > enough and iterations < limit:
        for k in range(d):
            image[k] = ridge[k] * ahead[k]
        for f in range(weights.shape[0]):
            add_rounded(part, f, weights[f] * dot_in_four(part, f, ahead), image)
        length = error / (ahead * image).sum()
        before, error = error, 0.0
        for k in range(d):
            x[k] += length * ahead[k]
            residual[k] -= length * image[k]
            error += residual[k] * residual[k] / diagonal[k]
        turn = error / before
        for k in range(d):
            ahead[k] = residual[k] / diagonal[k] + turn * ahead[k]
        iterations += 1
    return x, iterations
