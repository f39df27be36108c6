"""What FedMLS-B asks of a client's rows, compiled: cuts of parts of the rows, and the client's own minimum."""

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

from fedmls.descent import FASTMATH, dot, draw
from fedmls.losses import slope, value
from fedmls.prox_rows import coordinate_pass, square


def add(X: Any, row: Any, amount: Any, g: Any) -> None:
    """g <- g + amount a_row, in place; dense or CSR as ``dot``."""
    raise TypeError("for compiled code only")


@overload(add, jit_options={"fastmath": FASTMATH})
def _add(X: Any, row: Any, amount: Any, g: Any) -> Any:
    if isinstance(X, types.Array):

        def dense(X: Any, row: Any, amount: Any, g: Any) -> None:
            for j in range(g.shape[0]):
                g[j] += amount * X[row, j]

        return dense

    def csr(X: Any, row: Any, amount: Any, g: Any) -> None:
        data, indices, indptr = X
        for e in range(indptr[row], indptr[row + 1]):
            g[indices[e]] += amount * data[e]

    return csr


def add_squares(X: Any, row: Any, amount: Any, g: Any) -> None:
    """g <- g + amount a_row², coordinate by coordinate, in place; dense or CSR as ``dot``."""
    raise TypeError("for compiled code only")


@overload(add_squares, jit_options={"fastmath": FASTMATH})
def _add_squares(X: Any, row: Any, amount: Any, g: Any) -> Any:
    if isinstance(X, types.Array):

        def dense(X: Any, row: Any, amount: Any, g: Any) -> None:
            for j in range(g.shape[0]):
                g[j] += amount * X[row, j] * X[row, j]

        return dense

    def csr(X: Any, row: Any, amount: Any, g: Any) -> None:
        data, indices, indptr = X
        for e in range(indptr[row], indptr[row + 1]):
            g[indices[e]] += amount * data[e] * data[e]

    return csr


@njit(cache=True, nogil=True, fastmath=FASTMATH)
def part_cuts(rows: Any, offsets: Any, clients: Any, x: Any, parts: int) -> Any:
    """Σ c_j ℓ(a_j·x) and a subgradient, for the rows of each part, at each point, for each client.

    x has shape (points, d), the same for all; the results (clients, points, parts) and (clients, points, parts, d). The
    rows of a client are dealt out to the parts in turn, and read once for all points.
    """
    X, b, c, code, parameter = rows
    points, d = x.shape
    f, g = np.zeros((len(clients), points, parts)), np.zeros((len(clients), points, parts, d))
    for i in range(len(clients)):
        first = offsets[clients[i]]
        for row in range(first, offsets[clients[i] + 1]):
            part = (row - first) % parts
            for r in range(points):
                p = dot(X, row, x[r])
                f[i, r, part] += c[row] * value(code, parameter, p, b[row])
                s = c[row] * slope(code, parameter, p, b[row])
                if s != 0.0:
                    add(X, row, s, g[i, r, part])
    return f, g


@njit(cache=True, nogil=True, fastmath=FASTMATH)
def squares(X: Any, first: int, last: int, weights: Any, d: int) -> Any:
    """Σ_j weights_j a_j², coordinate by coordinate, over the rows first..last."""
    total = np.zeros(d)
    for row in range(first, last):
        if weights[row - first] != 0.0:
            add_squares(X, row, weights[row - first], total)
    return total


@njit(cache=True, nogil=True)
def own_minimum(
    rows: Any, first: int, last: int, s: Any, start: Any, reach: float, l2: Any, passes: int, counter: Any
) -> Any:
    """Towards argmin Σ c_j ℓ(a_j·x) + Σ_k l2_k x_k²/2 + Σ_k D_k (x_k - start_k)²/(2μ), over a client's rows: (x, p).

    D has the mean squares of the columns, and μ = reach f/Σ_k g_k²/D_k with f and g at the start, which is Polyak's
    step for f* = 0 times ``reach``. By passes of dual coordinate ascent from the slopes s = 0 of the rows, which are
    changed in place; p = Σ c_j s_j a_j, a subgradient at x up to what the passes leave.
    """
    X, b, c, _, _, code, parameter = rows
    d, m = start.shape[0], last - first
    D, g, f = np.zeros(d), np.zeros(d), 0.0
    for row in range(first, last):
        p = dot(X, row, start)
        f += c[row] * value(code, parameter, p, b[row])
        add(X, row, c[row] * slope(code, parameter, p, b[row]), g)
        add_squares(X, row, c[row], D)
    D /= max(c[first:last].sum(), 1e-300)
    D[D == 0.0] = 1.0
    steepness = (g * g / D).sum()
    if not (f > 0.0 and steepness > 0.0):
        return start.copy(), np.zeros(d)
    pull = D * (steepness / (reach * f))
    scale = 1.0 / (pull + l2)
    x, q = pull * start * scale, np.empty(m)
    for row in range(first, last):
        q[row - first] = c[row] * square(X, row, scale)
    order = np.arange(first, last)
    for _ in range(passes):
        counter = draw(order, m, m, counter)
        coordinate_pass(rows, order, first, q, s, scale, x)
    return x, pull * start - x / scale
