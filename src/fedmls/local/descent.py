"""The one hot loop. Local training of FedMLS, FedAvg, Scaffold, Scaffnew, ... is

    for t = 1..T:   u <- P_R(u - a_t (s g(u) + q (u - v) + h));   ũ <- (1 - θ_t) ũ + θ_t u

with other constants. ``descend`` is that loop in NumPy for any subgradient function; ``descend_rows`` is its
compiled twin for linear models, where g is a mini-batch subgradient of Σ_j c_j ℓ(a_j·u, b_j) + l2/2 ‖u‖² + l1 ‖u‖_1.

Rows X are a dense (m, d) array or the CSR triple (data, indices, indptr); rows offsets[i]..offsets[i+1] are
client i's. A mini-batch is the first ``sizes[i]`` places of a partial Fisher-Yates shuffle. Its random numbers
are a hash (SplitMix64: Steele, Lea, Flood 2014) of seed, round, client and call, so no generator has a state
that would have to be stored or sent. Nothing is allocated inside a step.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

from fedmls.losses import slope, value
from fedmls.types import Array

# Sums may be reordered (SIMD) and multiply-adds fused; NaN and infinity keep their meaning,
# because that is how a diverging run is noticed.
FASTMATH = {"reassoc", "contract", "nsz"}


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


def dot(X: Any, row: Any, u: Any) -> Any:
    """a_row · u. Compiled code picks the dense or the CSR form by the type of X."""
    raise TypeError("for compiled code only")


@overload(dot, jit_options={"fastmath": FASTMATH})
def _dot(X: Any, row: Any, u: Any) -> Any:
    if isinstance(X, types.Array):

        def dense(X: Any, row: Any, u: Any) -> Any:
            p = 0.0
            for j in range(u.shape[0]):
                p += X[row, j] * u[j]
            return p

        return dense

    def csr(X: Any, row: Any, u: Any) -> Any:
        data, indices, indptr = X
        p = 0.0
        for e in range(indptr[row], indptr[row + 1]):
            p += data[e] * u[indices[e]]
        return p

    return csr


def add_subgradient(
    X: Any, b: Any, c: Any, rows: Any, size: Any, code: Any, parameter: Any, u: Any, g: Any, cut: Any, dual: Any
) -> None:
    """g <- g + Σ over rows[:size] of c_j ℓ'(a_j·u, b_j) a_j, in place; dense or CSR as ``dot``.

    With cut != 0 the slopes themselves are kept too: dual_j <- dual_j + cut ℓ'(a_j·u, b_j).
    """
    raise TypeError("for compiled code only")


@overload(add_subgradient, jit_options={"fastmath": FASTMATH}, inline="always")
def _add_subgradient(
    X: Any, b: Any, c: Any, rows: Any, size: Any, code: Any, parameter: Any, u: Any, g: Any, cut: Any, dual: Any
) -> Any:
    if isinstance(X, types.Array):
        return _add_dense

    return _add_csr


def _add_dense(
    X: Any, b: Any, c: Any, rows: Any, size: Any, code: Any, parameter: Any, u: Any, g: Any, cut: Any, dual: Any
) -> None:
    """Four rows at a time, so that u and g are read once for four rows, as a matrix product does."""
    d, whole = u.shape[0], size // 4 * 4
    for r in range(0, whole, 4):
        i0, i1, i2, i3 = rows[r], rows[r + 1], rows[r + 2], rows[r + 3]
        p0 = p1 = p2 = p3 = 0.0
        for j in range(d):
            p0 += X[i0, j] * u[j]
            p1 += X[i1, j] * u[j]
            p2 += X[i2, j] * u[j]
            p3 += X[i3, j] * u[j]
        s0 = slope(code, parameter, p0, b[i0])
        s1 = slope(code, parameter, p1, b[i1])
        s2 = slope(code, parameter, p2, b[i2])
        s3 = slope(code, parameter, p3, b[i3])
        if cut != 0.0:
            dual[i0] += cut * s0
            dual[i1] += cut * s1
            dual[i2] += cut * s2
            dual[i3] += cut * s3
        s0, s1, s2, s3 = c[i0] * s0, c[i1] * s1, c[i2] * s2, c[i3] * s3
        if s0 != 0.0 or s1 != 0.0 or s2 != 0.0 or s3 != 0.0:
            for j in range(d):
                g[j] += s0 * X[i0, j] + s1 * X[i1, j] + s2 * X[i2, j] + s3 * X[i3, j]
    for r in range(whole, size):
        i = rows[r]
        s = slope(code, parameter, dot(X, i, u), b[i])
        if cut != 0.0:
            dual[i] += cut * s
        s *= c[i]
        if s != 0.0:
            for j in range(d):
                g[j] += s * X[i, j]


def _add_csr(
    X: Any, b: Any, c: Any, rows: Any, size: Any, code: Any, parameter: Any, u: Any, g: Any, cut: Any, dual: Any
) -> None:
    data, indices, indptr = X
    for r in range(size):
        i = rows[r]
        s = slope(code, parameter, dot(X, i, u), b[i])
        if cut != 0.0:
            dual[i] += cut * s
        s *= c[i]
        if s != 0.0:
            for e in range(indptr[i], indptr[i + 1]):
                g[indices[e]] += s * data[e]


@njit(cache=True, nogil=True)
def mix(z: Any) -> Any:
    """SplitMix64's finaliser: a bijection of 64-bit numbers that looks random."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@njit(cache=True, nogil=True)
def stream(seed: Any, k: Any, client: Any, call: Any) -> Any:
    """Where the random numbers of one client in one round begin."""
    z = mix(np.uint64(seed) + GOLDEN)
    z = mix(z + np.uint64(k) * GOLDEN)
    z = mix(z + np.uint64(client + 1) * GOLDEN)
    return mix(z + np.uint64(call + 1) * GOLDEN)


@njit(cache=True, nogil=True)
def draw(batch: Any, size: Any, m: Any, counter: Any) -> Any:
    """Make batch[:size] a uniform sample without replacement of batch[:m]; return the next counter.

    One hash serves two draws, with its upper and its lower half.
    """
    bits = np.uint64(0)
    for r in range(size):
        if r % 2 == 0:
            counter += GOLDEN
            bits = mix(counter)
        k = r + np.int64(((bits >> np.uint64(32)) * np.uint64(m - r)) >> np.uint64(32))
        bits <<= np.uint64(32)
        batch[r], batch[k] = batch[k], batch[r]
    return counter


@njit(cache=True, nogil=True, fastmath=FASTMATH)
def descend_rows(
    X: Any,
    b: Any,
    c: Any,
    offsets: Any,
    clients: Any,
    sizes: Any,
    code: Any,
    parameter: Any,
    l2: Any,
    l1: Any,
    penalised: Any,
    u0: Any,
    steps: Any,
    counts: Any,
    scale: Any,
    pull: Any,
    center: Any,
    shift: Any,
    average: Any,
    radius: Any,
    dual: Any,
    ids: Any,
    seed: Any,
    k: Any,
    call: Any,
) -> Any:
    """The loop for clients[0], clients[1], ... starting at the rows of u0: (last u, averaged u).

    ``clients`` says whose rows, ``ids`` whose random numbers; ``scale`` has one number for each. The first
    ``penalised`` coordinates carry l2 and l1; an empty ``average`` means no averaging, an infinite ``radius`` no
    projection. A ``dual`` that is not empty receives, for each row, the average of its slopes with the weights of
    ``average``: those of a cut below f_i.
    """
    d = u0.shape[1]
    out, out_tilde = u0.copy(), u0.copy()
    g = np.empty(d)
    batch = np.empty((offsets[1:] - offsets[:-1]).max(), np.int64)
    for i in range(clients.shape[0]):
        first = offsets[clients[i]]
        m, size = offsets[clients[i] + 1] - first, sizes[clients[i]]
        weight = scale[i] * m / size
        counter = stream(seed, k, ids[i], call)
        for r in range(m):
            batch[r] = first + r
        u, u_tilde, v, h = out[i], out_tilde[i], center[i], shift[i]
        cut = total = 0.0
        for t in range(counts[i]):
            theta = average[t] if average.shape[0] > 0 else 0.0
            if dual.shape[0] > 0:  # weights with cut / total = theta: in the end their average is u_tilde's
                cut = theta / (1.0 - theta) * total if t > 0 else 1.0
                total += cut
            if size < m:
                counter = draw(batch, size, m, counter)
            for j in range(d):
                g[j] = 0.0
            add_subgradient(X, b, c, batch, size, code, parameter, u, g, cut * m / size, dual)
            a = steps[t]
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
            dual[first : first + m] /= total
    return out, (out_tilde if average.shape[0] > 0 else out)


@njit(cache=True, nogil=True, fastmath=FASTMATH)
def client_values(X: Any, b: Any, c: Any, offsets: Any, clients: Any, code: Any, parameter: Any, x: Any) -> Any:
    """Σ_j c_j ℓ(a_j·x_i, b_j) for each client; x has one row per client, or one for all."""
    out = np.zeros(clients.shape[0])
    for i in range(clients.shape[0]):
        u = x[min(i, x.shape[0] - 1)]
        for row in range(offsets[clients[i]], offsets[clients[i] + 1]):
            out[i] += c[row] * value(code, parameter, dot(X, row, u), b[row])
    return out


@njit(cache=True, nogil=True, fastmath=FASTMATH)
def client_subgradients(X: Any, b: Any, c: Any, offsets: Any, clients: Any, code: Any, parameter: Any, x: Any) -> Any:
    """A subgradient of the same at row i of x, for each client."""
    out = np.zeros(x.shape)
    for i in range(clients.shape[0]):
        rows = np.arange(offsets[clients[i]], offsets[clients[i] + 1])
        add_subgradient(X, b, c, rows, rows.shape[0], code, parameter, x[i], out[i], 0.0, c)
    return out
