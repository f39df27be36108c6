"""The one hot loop. Local training of FedMLS, FedAvg, Scaffold, Scaffnew, ... is

    for t = 1..T:   u <- P_R(u - a_t (s g(u) + q (u - v) + h));   ũ <- (1 - θ_t) ũ + θ_t u

with other constants. ``descend`` is that loop in NumPy for any subgradient function; ``descend_rows`` is its
compiled twin for linear models, where g is a mini-batch subgradient of Σ_j c_j ℓ(a_j·u, b_j) + l2/2 ‖u‖² + l1 ‖u‖_1.

A mini-batch is drawn without replacement, by the random numbers of :mod:`fedmls.local.random`. Nothing is allocated
inside a step.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedmls.local.random import Stream, draw, first_counter
from fedmls.local.rows import FASTMATH, Integers, Penalty, Rows, choose_layout, dot
from fedmls.losses import LossKind, slope, value
from fedmls.types import Array

Places = NDArray[np.uint64]  # rows by their numbers


def descend(
    subgradient: Callable[[Array], Array],
    u: Array,
    steps: Array,
    *,
    scale: float = 1.0,
    pull: float = 0.0,
    center: Array | float = 0.0,
    shift: Array | float = 0.0,
    average: Array | None = None,
    project: Callable[[Array], Array] | None = None,
) -> tuple[Array, Array]:
    """The loop above for any subgradient function: (last u, averaged u)."""
    u_tilde = u
    for t, a in enumerate(steps):
        u = u - a * (scale * subgradient(u) + pull * (u - center) + shift)
        if project is not None:
            u = project(u)
        if average is not None:
            u_tilde = (1 - average[t]) * u_tilde + average[t] * u
    return u, (u if average is None else u_tilde)


def ball(radius: float | None) -> Callable[[Array], Array] | None:
    """The projection onto ‖x‖ <= radius, or None without one."""
    if radius is None:
        return None
    return lambda x: np.asarray(x * (radius / max(float(np.linalg.norm(x)), radius)))


class Steps(NamedTuple):
    """The constants of the loop above, for some clients.

    sizes: rows of a_t; each client takes the row that ``own`` names.  average: θ_t; none at all means no averaging.
    counts: how many steps each client takes.
    scale: s of each client.  pull, center: q, and v of each client.  shift: h of each client.
    radius: R; infinite means no projection.
    """

    sizes: Any  # an array; for a GPU also a PowerRows
    own: Integers
    average: Array
    counts: Integers
    scale: Array
    pull: float
    center: Array
    shift: Array
    radius: float

    def of(self, some: slice) -> "Steps":
        """The constants of these of the clients."""
        own = {name: getattr(self, name)[some] for name in ("own", "counts", "scale", "center", "shift")}
        return self._replace(**own)


def add_subgradient(
    rows: Rows, loss: LossKind, batch: Places, size: int, u: Array, g: Array, cut: float, slopes: Array
) -> None:
    """g <- g + Σ over the rows batch[:size] of c_j ℓ'(a_j·u, b_j) a_j, in place.

    With cut != 0 the slopes themselves are kept too: slopes_j <- slopes_j + cut ℓ'(a_j·u, b_j).
    """
    raise TypeError("for compiled code only")


def _add_dense(
    rows: Rows, loss: LossKind, batch: Places, size: int, u: Array, g: Array, cut: float, slopes: Array
) -> None:
    """Four rows at a time, so that u and g are read once for four rows, as a matrix product does."""
    X: Array = rows.X  # type: ignore[assignment]
    b, c = rows.labels, rows.weights
    d, whole = u.shape[0], size // 4 * 4
    for r in range(0, whole, 4):
        i0, i1, i2, i3 = batch[r], batch[r + 1], batch[r + 2], batch[r + 3]
        p0 = p1 = p2 = p3 = 0.0
        for j in range(d):
            p0 += X[i0, j] * u[j]
            p1 += X[i1, j] * u[j]
            p2 += X[i2, j] * u[j]
            p3 += X[i3, j] * u[j]
        s0 = slope(loss, p0, b[i0])
        s1 = slope(loss, p1, b[i1])
        s2 = slope(loss, p2, b[i2])
        s3 = slope(loss, p3, b[i3])
        if cut != 0.0:
            slopes[i0] += cut * s0
            slopes[i1] += cut * s1
            slopes[i2] += cut * s2
            slopes[i3] += cut * s3
        s0, s1, s2, s3 = c[i0] * s0, c[i1] * s1, c[i2] * s2, c[i3] * s3
        if s0 != 0.0 or s1 != 0.0 or s2 != 0.0 or s3 != 0.0:
            for j in range(d):
                g[j] += s0 * X[i0, j] + s1 * X[i1, j] + s2 * X[i2, j] + s3 * X[i3, j]
    for r in range(whole, size):
        i = batch[r]
        s = slope(loss, dot(X, i, u), b[i])
        if cut != 0.0:
            slopes[i] += cut * s
        s *= c[i]
        if s != 0.0:
            for j in range(d):
                g[j] += s * X[i, j]


def _add_csr(
    rows: Rows, loss: LossKind, batch: Places, size: int, u: Array, g: Array, cut: float, slopes: Array
) -> None:
    X, b, c = rows.X, rows.labels, rows.weights
    data, indices, indptr = X
    for r in range(size):
        i = batch[r]
        s = slope(loss, dot(X, i, u), b[i])
        if cut != 0.0:
            slopes[i] += cut * s
        s *= c[i]
        if s != 0.0:
            for e in range(indptr[i], indptr[i + np.uint64(1)]):
                g[indices[e]] += s * data[e]


choose_layout(add_subgradient, _add_dense, _add_csr, jit_options={"fastmath": FASTMATH}, inline="always")


@njit(cache=True, nogil=True, fastmath=FASTMATH)
def descend_rows(
    rows: Rows, loss: LossKind, penalty: Penalty, stream: Stream, steps: Steps, u0: Array, slopes: Array
) -> tuple[Array, Array]:
    """The loop for every client of ``rows``, starting at its row of u0: (last u, averaged u).

    If ``slopes`` is not empty it receives, for each row of the data, the average of its slopes with the weights of
    ``steps.average``: those of a cut below f_i.
    """
    average, radius, pull = steps.average, steps.radius, steps.pull
    l2, l1, penalised = penalty
    d = u0.shape[1]
    out, out_tilde = u0.copy(), u0.copy()
    longest = 0
    for i in range(rows.first.shape[0]):
        longest = max(longest, rows.last[i] - rows.first[i])
    # A number without a sign is an index that cannot count from the end: no time is taken to see whether it does.
    g, batch = np.empty(d), np.empty(longest, np.uint64)
    for i in range(rows.first.shape[0]):
        first, last, size = rows.first[i], rows.last[i], stream.batch_sizes[i]
        m = last - first
        weight, sizes = steps.scale[i] * m / size, steps.sizes[steps.own[i]]
        counter = first_counter(stream, i)
        for r in range(m):
            batch[r] = first + r
        u, u_tilde, v, h = out[i], out_tilde[i], steps.center[i], steps.shift[i]
        cut = total = 0.0
        for t in range(steps.counts[i]):
            theta = average[t] if average.shape[0] > 0 else 0.0
            if slopes.shape[0] > 0:  # weights with cut / total = theta: in the end their average is u_tilde's
                cut = theta / (1.0 - theta) * total if t > 0 else 1.0
                total += cut
            if size < m:
                counter = draw(batch, size, m, counter)
            for j in range(d):
                g[j] = 0.0
            add_subgradient(rows, loss, batch, size, u, g, cut * m / size, slopes)
            a = sizes[t]
            if l2 != 0.0 or l1 != 0.0:
                for j in range(penalised):
                    g[j] += (l2 * u[j] + l1 * np.sign(u[j])) * size / m
            if radius == np.inf:
                for j in range(d):
                    x = u[j] - a * (weight * g[j] + pull * (u[j] - v[j]) + h[j])
                    u[j] = x
                    u_tilde[j] += theta * (x - u_tilde[j])
            else:
                square = 0.0
                for j in range(d):
                    u[j] -= a * (weight * g[j] + pull * (u[j] - v[j]) + h[j])
                    square += u[j] * u[j]
                shrink = min(1.0, radius / np.sqrt(square)) if square > 0.0 else 1.0
                for j in range(d):
                    u[j] *= shrink
                    u_tilde[j] += theta * (u[j] - u_tilde[j])
        if total > 0.0:
            slopes[first:last] /= total
    return out, (out_tilde if average.shape[0] > 0 else out)


@njit(cache=True, nogil=True, fastmath=FASTMATH)
def client_values(rows: Rows, loss: LossKind, x: Array) -> Array:
    """Σ_j c_j ℓ(a_j·x_i, b_j) for each client; x has one row per client, or one for all."""
    X, b, c = rows.X, rows.labels, rows.weights
    out = np.zeros(rows.first.shape[0])
    for i in range(rows.first.shape[0]):
        u = x[min(i, x.shape[0] - 1)]
        for row in range(rows.first[i], rows.last[i]):
            out[i] += c[row] * value(loss, dot(X, row, u), b[row])
    return out


@njit(cache=True, nogil=True, fastmath=FASTMATH)
def client_subgradients(rows: Rows, loss: LossKind, x: Array) -> Array:
    """A subgradient of the same at row i of x, for each client."""
    out = np.zeros(x.shape)
    for i in range(rows.first.shape[0]):
        every = np.arange(rows.first[i], rows.last[i], dtype=np.uint64)
        add_subgradient(rows, loss, every, every.shape[0], x[i], out[i], 0.0, rows.weights)
    return out
