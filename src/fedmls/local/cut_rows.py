"""What FedMLS-B asks of a client's rows, compiled: cuts of parts of the rows, and the client's own minimum."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numba import njit

from fedmls.local.prox_rows import Ascent, coordinate_pass
from fedmls.local.random import draw
from fedmls.local.rows import FASTMATH, DualRows, Matrix, Rows, add, add_squares, dot, pour, square
from fedmls.losses import LossKind, slope, value
from fedmls.types import Array

PIECE = 2**16  # rows
BLOCK = 64  # rows of a part that are summed by themselves
SETTLED = 1e-6  # of the squared distance from the start: a pass that moves less is the last


@njit(cache=True, nogil=True, fastmath=FASTMATH)
def part_cuts(rows: Rows, loss: LossKind, x: Array, parts: int) -> tuple[Array, Array]:
    """The value Σ c_j ℓ(a_j·x) and a subgradient of each part of each client's rows, at each point x.

    Arrays of shape (clients, points, parts) and (clients, points, parts, d). The rows of a client are dealt out to the
    parts in turn, and read once for all points. They are summed block by block: bounds are made of these numbers, and
    in one long sum of equal rows all roundings may go the same way.
    """
    X, b, c, n = rows.X, rows.labels, rows.weights, rows.first.shape[0]
    f, g = np.zeros((n, len(x), parts)), np.zeros((n, len(x), parts, x.shape[1]))
    height, slopes = np.zeros((len(x), parts)), np.zeros((len(x), parts, x.shape[1]))
    for i in range(n):
        for start in range(rows.first[i], rows.last[i], BLOCK * parts):
            end = min(start + BLOCK * parts, rows.last[i])
            height[:] = 0.0
            for row in range(start, end):
                part = (row - start) % parts
                for r in range(len(x)):
                    p = dot(X, row, x[r])
                    height[r, part] += c[row] * value(loss, p, b[row])
                    s = c[row] * slope(loss, p, b[row])
                    if s != 0.0:
                        add(X, row, s, slopes[r, part])
            f[i] += height
            for r in range(len(x)):
                for part in range(parts):
                    pour(X, range(start + part, end, parts), slopes[r, part], g[i, r, part])
    return f, g


def compiled() -> bool:
    """Whether :func:`part_cuts` is in Numba's cache, where that can be seen: else the first round takes a while."""
    folder = getattr(getattr(part_cuts, "stats", None), "cache_path", None)
    return folder is None or any(Path(folder).glob("cut_rows.part_cuts*.nbi"))


def cuts(rows: Rows, loss: LossKind, x: Array, parts: int) -> tuple[Array, Array]:
    """Return the cuts of :func:`part_cuts`, by threads where a client has very many rows.

    Pieces have the same size whatever the machine, and are added in their order: the same bits everywhere.
    """
    if (rows.last - rows.first).max() <= PIECE:
        f, g = part_cuts(rows, loss, x, parts)
        return f, g
    ends = [
        (i, start, min(start + PIECE, rows.last[i]))
        for i in range(len(rows.first))
        for start in range(rows.first[i], rows.last[i], PIECE)
    ]

    def piece(end: tuple[int, int, int]) -> tuple[Array, Array]:
        f, g = part_cuts(rows._replace(first=np.array([end[1]]), last=np.array([end[2]])), loss, x, parts)
        return f[0], g[0]

    shape = (len(rows.first), len(x), parts)
    f, g = np.zeros(shape), np.zeros((*shape, x.shape[1]))
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for (i, _, _), (height, slopes) in zip(ends, threads.map(piece, ends), strict=True):
            f[i] += height
            g[i] += slopes
    return f, g


@njit(cache=True, nogil=True, fastmath=FASTMATH)
def squares(X: Matrix, first: int, weights: Array, d: int) -> Array:
    """Σ_j weights_j a_j², coordinate by coordinate, over so many rows from the first on."""
    total = np.zeros(d)
    for j in range(weights.shape[0]):
        if weights[j] != 0.0:
            add_squares(X, first + j, weights[j], total)
    return total


@njit(cache=True, nogil=True)
def weighted_sums(rows: Rows, weights: Array, d: int) -> Array:
    """Σ_j weights_j a_j over the rows of each client."""
    sums = np.zeros((rows.first.shape[0], d))
    for i in range(rows.first.shape[0]):
        for row in range(rows.first[i], rows.last[i]):
            if weights[row] != 0.0:
                add(rows.X, row, weights[row], sums[i])
    return sums


@njit(cache=True, nogil=True)
def own_minimum(
    rows: DualRows,
    client: int,
    s: Array,
    start: Array,
    reach: float,
    l2: Array,
    passes: int,
    most: int,
    counter: np.uint64,
) -> tuple[Array, int, Array]:
    """Towards argmin Σ c_j ℓ(a_j·x) + Σ_k l2_k x_k²/2 + Σ_k D_k (x_k - start_k)²/(2μ), over a client's rows.

    D has the mean squares of the columns, and μ = reach f/Σ_k g_k²/D_k with f and g at the start, which is Polyak's
    step for f* = 0 times ``reach``. By passes of dual coordinate ascent from the slopes s = 0 of the rows, which are
    changed in place, until x no longer moves much. Of more than ``most`` rows every second, third, ... one stands for
    the others: passes in random order over rows that leave the processor's cache are slow, and so many tell enough.
    Returns x, how many passes over all rows its work is worth, and Σ_j c_j a_j², coordinate by coordinate.
    """
    X, b, c, loss = rows.X, rows.labels, rows.weights, rows.loss
    first, last = rows.first[client], rows.last[client]
    d, m = start.shape[0], last - first
    masses, g, f = np.zeros(d), np.zeros(d), 0.0
    for row in range(first, last):
        p = dot(X, row, start)
        f += c[row] * value(loss, p, b[row])
        add(X, row, c[row] * slope(loss, p, b[row]), g)
        add_squares(X, row, c[row], masses)
    D = masses / max(c[first:last].sum(), 1e-300)
    D[D == 0.0] = 1.0
    steepness = (g * g / D).sum()
    if not (f > 0.0 and steepness > 0.0):
        return start.copy(), 0, masses
    stride = (m - 1) // most + 1
    order = np.arange(first, last, stride)
    pull = D * (steepness / (reach * f)) / stride
    scale = 1.0 / (pull + l2 / stride)
    x, q = pull * start * scale, np.empty(m)
    for row in order:
        q[row - first] = c[row] * square(X, row, scale)
    ascent = Ascent(first, last, q, scale, s, x)
    before, used, moved = np.empty(d), 0, np.inf
    while used < passes and moved > SETTLED * _distance(pull, x, start):
        before[:] = x
        counter = draw(order, len(order), len(order), counter)
        coordinate_pass(rows, ascent, order)
        moved, used = _distance(pull, x, before), used + 1
    return x, -(-used // stride), masses


@njit(cache=True, nogil=True)
def _distance(scale: Array, x: Array, y: Array) -> float:
    """Σ_k scale_k (x_k - y_k)², without an array for it."""
    total = 0.0
    for k in range(x.shape[0]):
        total += scale[k] * (x[k] - y[k]) ** 2
    return total


@njit(cache=True, nogil=True)
def row_squares(X: Matrix, m: int, first: Array, second: Array) -> Array:
    """Σ_k a_k² scale_k of each of the m rows, for two scales."""
    out = np.empty((m, 2))
    for j in range(m):
        out[j, 0], out[j, 1] = square(X, j, first), square(X, j, second)
    return out
