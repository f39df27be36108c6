"""The compiled part of :mod:`fedmls.local.prox`: passes over rows, faces, and the gap that ends them; mini-batches."""

import math
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

from fedmls.local.descent import FASTMATH, dot, draw, stream
from fedmls.losses import EPSILON_INSENSITIVE, HUBER, LOGISTIC, SQUARED_HINGE, conjugate, slope, value


def add_row(X: Any, row: Any, amount: Any, scale: Any, x: Any) -> None:
    """x <- x + amount a_row * scale, in place; dense or CSR as ``dot``."""
    raise TypeError("for compiled code only")


@overload(add_row, jit_options={"fastmath": FASTMATH})
def _add_row(X: Any, row: Any, amount: Any, scale: Any, x: Any) -> Any:
    if isinstance(X, types.Array):

        def dense(X: Any, row: Any, amount: Any, scale: Any, x: Any) -> None:
            for j in range(x.shape[0]):
                x[j] += amount * X[row, j] * scale[j]

        return dense

    def csr(X: Any, row: Any, amount: Any, scale: Any, x: Any) -> None:
        data, indices, indptr = X
        for e in range(indptr[row], indptr[row + 1]):
            x[indices[e]] += amount * data[e] * scale[indices[e]]

    return csr


def square(X: Any, row: Any, scale: Any) -> Any:
    """Σ_k a_k² scale_k of a row; dense or CSR as ``dot``."""
    raise TypeError("for compiled code only")


@overload(square, jit_options={"fastmath": FASTMATH})
def _square(X: Any, row: Any, scale: Any) -> Any:
    if isinstance(X, types.Array):

        def dense(X: Any, row: Any, scale: Any) -> Any:
            total = 0.0
            for j in range(scale.shape[0]):
                total += X[row, j] * X[row, j] * scale[j]
            return total

        return dense

    def csr(X: Any, row: Any, scale: Any) -> Any:
        data, indices, indptr = X
        total = 0.0
        for e in range(indptr[row], indptr[row + 1]):
            total += data[e] * data[e] * scale[indices[e]]
        return total

    return csr


@njit(cache=True, nogil=True)
def prox_rows(
    rows: Any,
    offsets: Any,
    clients: Any,
    v: Any,
    weight: Any,
    scale: Any,
    l2: Any,
    penalised: Any,
    tolerance: Any,
    passes: Any,
    ids: Any,
    seed: Any,
    k: Any,
    call: Any,
) -> Any:
    """Passes and faces in turn, client by client. ``scale`` is 1/h."""
    X, c = rows[0], rows[2]
    x, s = np.empty(v.shape), np.zeros(c.shape[0])
    gaps, proved, used = np.empty(len(clients)), np.empty(len(clients), np.bool_), np.empty(len(clients), np.int64)
    for i in range(len(clients)):
        first, last = offsets[clients[i]], offsets[clients[i] + 1]
        m, origin = last - first, v[i] * scale / weight
        order, q = np.arange(first, last), np.empty(m)
        for j in range(first, last):
            q[j - first] = c[j] * square(X, j, scale)  # the row's curvature in the dual
        x[i] = origin
        counter, visits, turns, gap = stream(seed, k, ids[i], call), m, 0, np.inf
        while True:
            counter = draw(order, m, m, counter)
            coordinate_pass(rows, order, first, q, s, scale, x[i])
            visits += m
            turns += 5  # few at first, when passes find the face faster
            for _ in range(turns):
                blocked, work = _face(rows, first, last, q, s, scale, x[i])
                visits += work
                if not blocked or visits >= passes * m:
                    break
            before = gap
            gap, primal = _certify(rows, first, last, s, v[i], origin, weight, scale, l2, penalised, x[i])
            visits += 2 * m
            rounding = c[first:last].sum() * _noise(rows, first, last, q, s)
            allowed = max(tolerance * max(1.0, primal), rounding)
            # Once allowed it goes on as long as that pays: on the right face the answer is exact to rounding.
            if (gap <= allowed and gap >= 0.1 * before) or visits >= passes * m:
                break
        gaps[i], proved[i], used[i] = gap, gap <= allowed, -(-visits // m)
    return x, s, gaps, proved, used


@njit(cache=True, nogil=True)
def ascend_rows(
    rows: Any,
    offsets: Any,
    clients: Any,
    sizes: Any,
    squares: Any,
    v: Any,
    weights: Any,
    l2: Any,
    penalised: Any,
    p: Any,
    s: Any,
    steps: Any,
    ids: Any,
    seed: Any,
    k: Any,
    call: Any,
) -> Any:
    """Mini-batches of dual ascent, ``steps`` of each client, from the slopes s and p = Σ c_j s_j a_j: (x, p, s).

    Mini-batches are consecutive parts of the rows in random order, shuffled anew when they run out: so a pass meets
    each row once. With a weight of 0 a client stays at v.
    """
    c, d = rows[2], v.shape[1]
    x, p, s, scale = v.copy(), p.copy(), s.copy(), np.empty(d)
    for i in range(len(clients)):
        first, last = offsets[clients[i]], offsets[clients[i] + 1]
        m, size, weight = last - first, sizes[clients[i]], weights[i]
        if weight == 0.0:
            continue
        scale[:] = weight
        scale[:penalised] = weight / (1.0 + weight * l2)
        x[i] = (v[i] / weight - p[i]) * scale
        q = c[first:last] * (scale[0] * squares[first:last, 0] + weight * squares[first:last, 1])
        order, at, counter = np.arange(first, last), m, stream(seed, k, ids[i], call)
        for _ in range(steps[i]):
            if at >= m:
                counter, at = draw(order, m, m, counter), 0
            coordinate_pass(rows, order[at : at + size], first, q, s, scale, x[i])
            at += size
        p[i] = v[i] / weight - x[i] / scale
    return x, p, s


@njit(cache=True, nogil=True)
def coordinate_pass(rows: Any, order: Any, first: Any, q: Any, s: Any, scale: Any, x: Any) -> None:
    """Every slope in turn to where the dual is largest, all others fixed; x = x(s) is kept up."""
    X, b, c, low, high, code, parameter = rows
    for j in order:
        if c[j] > 0.0:
            best = _best_slope(code, parameter, s[j], dot(X, j, x), b[j], low[j], high[j], q[j - first])
            if best != s[j]:
                add_row(X, j, -c[j] * (best - s[j]), scale, x)
                s[j] = best


@njit(cache=True, nogil=True)
def _best_slope(code: Any, parameter: Any, s: Any, p: Any, b: Any, low: Any, high: Any, q: Any) -> Any:
    """argmax over t in the box of (t - s) p - q/2 (t - s)² - ℓ*(t)."""
    if code == LOGISTIC:
        return -b * _best_chance(-b * s, b * p, q)
    bend = _conjugate_curvature(code, s)
    if q + bend == 0.0:
        return slope(code, parameter, p, b)  # a row of zeros: its prediction never moves
    pull = q * s + p - b
    if code == EPSILON_INSENSITIVE:
        pull = max(pull - parameter, 0.0) + min(pull + parameter, 0.0)
    return min(max(pull / (q + bend), low), high)


@njit(cache=True, nogil=True)
def _best_chance(a: Any, margin: Any, q: Any) -> Any:
    """The same for the logistic loss, with s = -b a: a root of t + q (σ(t) - a) + margin, where a <- σ(t).

    It grows with slope 1 to 1 + q/4: Newton's steps, halved into the bracket where they leave it.
    """
    least, most = -margin - q * (1.0 - a), -margin + q * a
    t = min(max(math.log(a / (1.0 - a)) if 0.0 < a < 1.0 else 0.0, least), most)
    chance = a
    for _ in range(100):
        chance = 1.0 / (1.0 + math.exp(-t)) if t > -700.0 else 0.0
        error = t + q * (chance - a) + margin
        if error > 0.0:
            most = t
        else:
            least = t
        move = error / (1.0 + q * chance * (1.0 - chance))
        if abs(move) <= 1e-15 * (1.0 + abs(t)):
            break
        t = t - move if least < t - move < most else 0.5 * (least + most)
    return chance


@njit(cache=True, nogil=True)
def _conjugate_slope(code: Any, parameter: Any, s: Any, b: Any) -> Any:
    """ℓ*'(s) inside the box."""
    if code == LOGISTIC:
        return -b * math.log(abs(s) / (1.0 - abs(s)))
    return b + _conjugate_curvature(code, s) * s + (parameter * np.sign(s) if code == EPSILON_INSENSITIVE else 0.0)


@njit(cache=True, nogil=True)
def _conjugate_curvature(code: Any, s: Any) -> Any:
    """ℓ*''(s) inside the box: 0 where the loss is made of straight pieces."""
    if code == SQUARED_HINGE:
        return 0.5
    if code == HUBER:
        return 1.0
    if code == LOGISTIC:
        return 1.0 / (abs(s) * (1.0 - abs(s)))
    return 0.0


@njit(cache=True, nogil=True)
def _certify(
    rows: Any,
    first: Any,
    last: Any,
    s: Any,
    v: Any,
    origin: Any,
    weight: Any,
    scale: Any,
    l2: Any,
    penalised: Any,
    x: Any,
) -> Any:
    """x <- x(s), free of the rounding of many updates; the duality gap and the primal value there."""
    X, b, c, _, _, code, parameter = rows
    x[:] = origin
    for j in range(first, last):
        add_row(X, j, -c[j] * s[j], scale, x)
    gap, primal = 0.0, 0.0
    for k in range(x.shape[0]):
        primal += (x[k] - v[k]) ** 2 / (2.0 * weight) + (0.5 * l2 * x[k] ** 2 if k < penalised else 0.0)
    for j in range(first, last):
        p = dot(X, j, x)
        loss = value(code, parameter, p, b[j])
        primal += c[j] * loss
        gap += c[j] * max(0.0, loss + conjugate(code, parameter, s[j], b[j]) - s[j] * p)
    return gap, primal


@njit(cache=True, nogil=True)
def _face(rows: Any, first: Any, last: Any, q: Any, s: Any, scale: Any, x: Any) -> Any:
    """Move the free slopes to the maximum of the dual over them; (whether the box was in the way, rows read)."""
    X, b, c, _, _, code, parameter = rows
    free, low, high = _free(rows, first, last, q, s)
    size = free.shape[0]
    if size == 0:
        return False, 0
    r, bend, diagonal, c_free = np.empty(size), np.empty(size), np.empty(size), c[free]
    for f in range(size):
        j = free[f]
        r[f] = dot(X, j, x) - _conjugate_slope(code, parameter, s[j], b[j])
        bend[f] = _conjugate_curvature(code, s[j])
        diagonal[f] = bend[f] + q[j - first]
    noise = _noise(rows, first, last, q, s) ** 2 * (c_free / diagonal).sum()
    place, dx, blocked, reads = _conjugate_gradients(
        X, free, c_free, s[free], r, bend, diagonal, low, high, scale, noise
    )
    if code == LOGISTIC:
        t = _line_search(rows, free, s, place, x, dx)
        place, dx, reads = s[free] + t * (place - s[free]), t * dx, reads + 1
    s[free] = place
    x += dx
    return blocked, size * (1 + 2 * reads)


@njit(cache=True, nogil=True)
def _noise(rows: Any, first: Any, last: Any, q: Any, s: Any) -> Any:
    """How large the rounding error of a prediction at x(s) may be, where large parts of x(s) cancel."""
    total = 0.0
    for j in range(first, last):
        total += q[j - first] * abs(s[j])
    return 2.0**-52 * max(total, np.abs(rows[1][first:last]).max())


@njit(cache=True, nogil=True)
def _free(rows: Any, first: Any, last: Any, q: Any, s: Any) -> Any:
    """The rows whose slopes lie inside the box, and the two ends between which each may move.

    A kink of the conjugate, at s = 0 of the ε-insensitive loss, is an end too. The logistic loss has none here: its
    dual is infinitely steep at the ends, and the line search keeps away from them. Rows of zeros, or of weight zero,
    have nothing to do with the others.
    """
    _, _, _, low, high, code, parameter = rows
    kinked, ends = code == EPSILON_INSENSITIVE and parameter > 0.0, code != LOGISTIC
    free, lows, highs = np.empty(last - first, np.int64), np.empty(last - first), np.empty(last - first)
    size = 0
    for j in range(first, last):
        if q[j - first] > 0.0 and low[j] < s[j] < high[j] and not (kinked and s[j] == 0.0):
            free[size] = j
            lows[size] = (0.0 if kinked and s[j] > 0.0 else low[j]) if ends else -np.inf
            highs[size] = (0.0 if kinked and s[j] < 0.0 else high[j]) if ends else np.inf
            size += 1
    return free[:size], lows[:size], highs[:size]


@njit(cache=True, nogil=True)
def _conjugate_gradients(
    X: Any, free: Any, c: Any, place: Any, r: Any, bend: Any, diagonal: Any, low: Any, high: Any, scale: Any, noise: Any
) -> Any:
    """Move ``place`` by the solution of (bend + A A^T) step = r, or until the first of its numbers meets an end.

    A A^T is over the free rows in the metric ``scale``, with row weights c; products of two vectors are weighted by c,
    in which the system is symmetric. Returns the place, the move of x, whether an end was met, and the iterations.
    """
    size, d = free.shape[0], scale.shape[0]
    total, dx, image = np.zeros(d), np.empty(d), np.empty(size)
    ahead = r / diagonal
    error = (c * r * ahead).sum()
    goal, reads = max(1e-26 * error, noise), 0  # less is rounding
    while error > goal and reads < 2 * min(size, d) + 50:
        dx[:] = 0.0
        for f in range(size):
            add_row(X, free[f], -c[f] * ahead[f], scale, dx)
        for f in range(size):
            image[f] = bend[f] * ahead[f] - dot(X, free[f], dx)
        reads += 1
        curvature = (c * ahead * image).sum()
        room, wall = _room(place, ahead, low, high)
        length = error / curvature if curvature > 0.0 else np.inf
        if min(length, room) == np.inf:
            break
        if room <= length:
            place, dx, tries = _past_walls(
                X, free, c, place, r, bend, ahead, dx, room, length, curvature, low, high, scale
            )
            place[wall] = low[wall] if ahead[wall] < 0.0 else high[wall]  # not a rounding error away from it
            return place, total + dx, True, reads + tries
        place = place + length * ahead
        total += length * dx
        r = r - length * image
        before, error = error, (c * r * r / diagonal).sum()
        ahead = r / diagonal + error / before * ahead
    return place, total, False, reads


@njit(cache=True, nogil=True)
def _past_walls(
    X: Any,
    free: Any,
    c: Any,
    place: Any,
    r: Any,
    bend: Any,
    ahead: Any,
    dx: Any,
    room: Any,
    length: Any,
    curvature: Any,
    low: Any,
    high: Any,
    scale: Any,
) -> Any:
    """Go on along ``ahead`` beyond the first wall, each number as far as its own end, where the dual gains by it.

    Otherwise one step would set one slope only, and there may be thousands to set.
    """
    straight = room * (c * r * ahead).sum() - 0.5 * room * room * curvature
    trial, tries = min(length, 1e6 * room), 0
    while trial > 2.0 * room and tries < 20:
        bent = np.minimum(np.maximum(place + trial * ahead, low), high)
        move, moved = bent - place, np.zeros(dx.shape[0])
        for f in range(free.shape[0]):
            add_row(X, free[f], -c[f] * move[f], scale, moved)
        gain = 0.0
        for f in range(free.shape[0]):
            gain += c[f] * move[f] * (r[f] - 0.5 * (bend[f] * move[f] - dot(X, free[f], moved)))
        tries += 1
        if gain > straight:
            return bent, moved, tries
        trial *= 0.25
    return np.minimum(np.maximum(place + room * ahead, low), high), room * dx, tries


@njit(cache=True, nogil=True)
def _room(place: Any, ahead: Any, low: Any, high: Any) -> Any:
    """How far the place may go along ``ahead``, and which of its numbers then meets its end."""
    room, wall = np.inf, -1
    for f in range(place.shape[0]):
        if ahead[f] != 0.0:
            own = ((low[f] if ahead[f] < 0.0 else high[f]) - place[f]) / ahead[f]
            if own < room:
                room, wall = own, f
    return room, wall


@njit(cache=True, nogil=True)
def _line_search(rows: Any, free: Any, s: Any, place: Any, x: Any, dx: Any) -> Any:
    """A share of the Newton step from s to place with which the dual grows, for the logistic loss."""
    X, b, c, low, high, code, parameter = rows
    step = place - s[free]
    room, _ = _room(s[free], step, low[free], high[free])
    t = min(1.0, 0.9 * room)
    linear = quadratic = 0.0
    for f in range(free.shape[0]):
        linear += c[free[f]] * step[f] * dot(X, free[f], x)
        quadratic += c[free[f]] * step[f] * dot(X, free[f], dx)
    for _ in range(30):
        gain = t * linear + 0.5 * t * t * quadratic
        for f in range(free.shape[0]):
            j = free[f]
            gain -= c[j] * (
                conjugate(code, parameter, s[j] + t * step[f], b[j]) - conjugate(code, parameter, s[j], b[j])
            )
        if gain > 0.0:
            break
        t *= 0.5
    return t
