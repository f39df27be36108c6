"""What FedMLS-B asks of a client's rows, compiled: cuts of parts of the rows, and the client's own minimum."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

from fedmls.descent import FASTMATH, dot, draw
from fedmls.losses import slope, value
from fedmls.prox_rows import coordinate_pass, square

PIECE = 2**16  # rows
SETTLED = 1e-6  # of the squared distance from the start: a pass that moves less is the last


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
def part_cuts(rows: Any, first: int, last: int, x: Any, parts: int, f: Any, g: Any) -> None:
    """Add to f and g the value Σ c_j ℓ(a_j·x) and a subgradient of each part of the rows first..last, at each point x.

    The rows are dealt out to the parts in turn, and read once for all points.
    """
    X, b, c, code, parameter = rows
    for row in range(first, last):
        part = (row - first) % parts
        for r in range(len(x)):
            p = dot(X, row, x[r])
            f[r, part] += c[row] * value(code, parameter, p, b[row])
            s = c[row] * slope(code, parameter, p, b[row])
            if s != 0.0:
                add(X, row, s, g[r, part])


@njit(cache=True, nogil=True)
def client_part_cuts(rows: Any, offsets: Any, clients: Any, x: Any, parts: int) -> Any:
    """The same for each client: arrays of shape (clients, points, parts) and (clients, points, parts, d)."""
    f, g = np.zeros((len(clients), len(x), parts)), np.zeros((len(clients), len(x), parts, x.shape[1]))
    for i in range(len(clients)):
        part_cuts(rows, offsets[clients[i]], offsets[clients[i] + 1], x, parts, f[i], g[i])
    return f, g


def cuts(rows: Any, offsets: Any, clients: Any, x: Any, parts: int) -> Any:
    """The same; where a client has very many rows, in threads: pieces of the same size whatever the machine, added in
    their order."""
    if max(offsets[i + 1] - offsets[i] for i in clients) <= PIECE:
        return client_part_cuts(rows, offsets, clients, x, parts)
    ends = [(i, a, min(a + PIECE, offsets[i + 1])) for i in clients for a in range(offsets[i], offsets[i + 1], PIECE)]

    def piece(end: tuple[int, int, int]) -> Any:
        f, g = np.zeros((len(x), parts)), np.zeros((len(x), parts, x.shape[1]))
        part_cuts(rows, end[1], end[2], x, parts, f, g)
        return f, g

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        found = list(threads.map(piece, ends))
    of_client = [[each for each, (i, _, _) in zip(found, ends, strict=True) if i == client] for client in clients]
    return tuple(np.array([sum(each[part] for each in own) for own in of_client]) for part in (0, 1))


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
    """Towards argmin Σ c_j ℓ(a_j·x) + Σ_k l2_k x_k²/2 + Σ_k D_k (x_k - start_k)²/(2μ), over a client's rows; and how
    many passes that took.

    D has the mean squares of the columns, and μ = reach f/Σ_k g_k²/D_k with f and g at the start, which is Polyak's
    step for f* = 0 times ``reach``. By passes of dual coordinate ascent from the slopes s = 0 of the rows, which are
    changed in place, until x no longer moves much.
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
        return start.copy(), 0
    pull = D * (steepness / (reach * f))
    scale = 1.0 / (pull + l2)
    x, q = pull * start * scale, np.empty(m)
    for row in range(first, last):
        q[row - first] = c[row] * square(X, row, scale)
    order, used, moved = np.arange(first, last), 0, np.inf
    while used < passes and moved > SETTLED * (pull * (x - start) ** 2).sum():
        before = x.copy()
        counter = draw(order, m, m, counter)
        coordinate_pass(rows, order, first, q, s, scale, x)
        moved, used = (pull * (x - before) ** 2).sum(), used + 1
    return x, used
