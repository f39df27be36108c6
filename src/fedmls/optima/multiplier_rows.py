"""The compiled part of :mod:`fedmls.optima.multipliers`: smoothed slopes, products with the rows, conjugate gradients.

Rows X are a dense array or the CSR triple of :func:`compact`, whose column numbers have no sign: an index that may be
negative costs a test, and these products are all there is to the time. Sums are written as four for the same reason.
"""

import math
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

from fedmls.local import descent
from fedmls.local.descent import FASTMATH
from fedmls.losses import EPSILON_INSENSITIVE, HUBER, LOGISTIC, SQUARED_HINGE, conjugate, value


def compact(X: Any) -> Any:
    """The rows as this module takes them; dense ones as they are."""
    if isinstance(X, np.ndarray):
        return X
    data, indices, indptr = X
    return data, indices.astype(np.uint32), indptr


def dot(X: Any, row: Any, u: Any) -> Any:
    """a_row · u. Compiled code picks the dense or the CSR form by the type of X."""
    raise TypeError("for compiled code only")


@overload(dot)
def _dot(X: Any, row: Any, u: Any) -> Any:
    if isinstance(X, types.Array):

        def dense(X: Any, row: Any, u: Any) -> Any:
            return descent.dot(X, row, u)

        return dense

    def csr(X: Any, row: Any, u: Any) -> Any:
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

    return csr


def add(X: Any, row: Any, amount: Any, x: Any) -> None:
    """x <- x + amount a_row, in place; dense or CSR as ``dot``."""
    raise TypeError("for compiled code only")


@overload(add)
def _add(X: Any, row: Any, amount: Any, x: Any) -> Any:
    if isinstance(X, types.Array):

        def dense(X: Any, row: Any, amount: Any, x: Any) -> None:
            for j in range(x.shape[0]):
                x[j] += amount * X[row, j]

        return dense

    def csr(X: Any, row: Any, amount: Any, x: Any) -> None:
        data, indices, indptr = X
        for e in range(indptr[row], indptr[row + 1]):
            x[indices[e]] += amount * data[e]

    return csr


def add_squares(X: Any, row: Any, amount: Any, x: Any) -> None:
    """x <- x + amount a_row², number by number, in place; dense or CSR as ``dot``."""
    raise TypeError("for compiled code only")


@overload(add_squares, jit_options={"fastmath": FASTMATH})
def _add_squares(X: Any, row: Any, amount: Any, x: Any) -> Any:
    if isinstance(X, types.Array):

        def dense(X: Any, row: Any, amount: Any, x: Any) -> None:
            for j in range(x.shape[0]):
                x[j] += amount * X[row, j] * X[row, j]

        return dense

    def csr(X: Any, row: Any, amount: Any, x: Any) -> None:
        data, indices, indptr = X
        for e in range(indptr[row], indptr[row + 1]):
            x[indices[e]] += amount * data[e] * data[e]

    return csr


def gather(X: Any, chosen: Any) -> Any:
    """A copy of the chosen rows, side by side in memory; dense or CSR as ``dot``."""
    raise TypeError("for compiled code only")


@overload(gather)
def _gather(X: Any, chosen: Any) -> Any:
    if isinstance(X, types.Array):

        def dense(X: Any, chosen: Any) -> Any:
            out = np.empty((chosen.shape[0], X.shape[1]))
            for f in range(chosen.shape[0]):
                out[f] = X[chosen[f]]
            return out

        return dense

    def csr(X: Any, chosen: Any) -> Any:
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
        return numbers, columns, starts

    return csr


@njit(cache=True, nogil=True)
def predictions(X: Any, rows: Any, x: Any) -> Any:
    """a_j·x of so many rows."""
    out = np.empty(rows)
    for j in range(rows):
        out[j] = dot(X, j, x)
    return out


@njit(cache=True, nogil=True)
def pull(X: Any, amounts: Any, d: Any) -> Any:
    """Σ_j amounts_j a_j."""
    out = np.zeros(d)
    for j in range(amounts.shape[0]):
        if amounts[j] != 0.0:
            add(X, j, amounts[j], out)
    return out


@njit(cache=True, nogil=True)
def column_squares(X: Any, amounts: Any, d: Any) -> Any:
    """Σ_j amounts_j a_j², one number for each column."""
    out = np.zeros(d)
    for j in range(amounts.shape[0]):
        if amounts[j] != 0.0:
            add_squares(X, j, amounts[j], out)
    return out


@njit(cache=True, nogil=True)
def chosen_rows(X: Any, chosen: Any) -> Any:
    return gather(X, chosen)


@njit(cache=True, nogil=True)
def smoothed(code: Any, parameter: Any, sigma: Any, s: Any, p: Any, b: Any, low: Any, high: Any) -> Any:
    """argmax over t in the box of t p - ℓ*(t) - (t - s)²/(2 sigma), and its derivative in p.

    That is the slope at p + s/sigma of the loss's Moreau envelope; with an infinite sigma of the loss itself.
    """
    if code == LOGISTIC:
        chance = math.exp(-abs(p))
        rare, bend = chance / (1.0 + chance), chance / ((1.0 + chance) * (1.0 + chance))
        return -b * (rare if b * p > 0.0 else 1.0 - rare), bend
    bend = 0.5 if code == SQUARED_HINGE else (1.0 if code == HUBER else 0.0)  # ℓ*''
    if sigma == np.inf:
        t, steep = (p - b) / bend, 1.0 / bend
    else:
        t, steep = s + sigma * (p - b), sigma / (1.0 + sigma * bend)
        if code == EPSILON_INSENSITIVE:
            kink = sigma * parameter
            if abs(t) <= kink:
                return 0.0, 0.0
            t = t - kink if t > 0.0 else t + kink
        t /= 1.0 + sigma * bend
    return min(max(t, low), high), steep * ((low < t) & (t < high))  # no branches, which rows would mispredict


@njit(cache=True, nogil=True)
def respond(rows: Any, sigma: Any, s: Any, p: Any) -> Any:
    """The smoothed slopes and their derivatives at the predictions p."""
    _, b, _, low, high, code, parameter = rows
    slopes, bends = np.empty(p.shape[0]), np.empty(p.shape[0])
    for j in range(p.shape[0]):
        slopes[j], bends[j] = smoothed(code, parameter, sigma, s[j], p[j], b[j], low[j], high[j])
    return slopes, bends


@njit(cache=True, nogil=True)
def account(rows: Any, slopes: Any, p: Any) -> Any:
    """Σ_j ω_j times: the loss; minus the conjugate; and loss + conjugate - slope prediction, which is at least 0."""
    _, b, omega, _, _, code, parameter = rows
    losses = offset = apart = 0.0
    for j in range(p.shape[0]):
        loss, dual = value(code, parameter, p[j], b[j]), conjugate(code, parameter, slopes[j], b[j])
        losses += omega[j] * loss
        offset -= omega[j] * dual
        apart += omega[j] * max(0.0, loss + dual - slopes[j] * p[j])
    return losses, offset, apart


@njit(cache=True, nogil=True)
def step_length(rows: Any, sigma: Any, s: Any, p: Any, ahead: Any, linear: Any, quadratic: Any) -> Any:
    """Where the smoothed objective is least along p + t ahead: Newton's steps for its derivative, kept in a bracket.

    ``linear`` + t ``quadratic`` is the derivative of the l2 term.
    """
    _, b, omega, low, high, code, parameter = rows
    least, most, t, first, tried = 0.0, np.inf, 0.0, 0.0, 0
    while tried < 60:
        rise, bend = linear + t * quadratic, quadratic
        for j in range(p.shape[0]):
            slope, steep = smoothed(code, parameter, sigma, s[j], p[j] + t * ahead[j], b[j], low[j], high[j])
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
def conjugate_gradients(part: Any, weights: Any, ridge: Any, gradient: Any, goal: Any, limit: Any) -> Any:
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
            add(part, f, weights[f] * dot(part, f, ahead), image)
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
