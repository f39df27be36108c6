"""The compiled part of :mod:`fedmls.local.prox`: passes over rows, faces, and the gap that ends them; mini-batches."""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from fedmls.local.random import Stream, draw, first_counter
from fedmls.local.rows import DualRows, Integers, Matrix, Penalty, add_scaled, dot, square
from fedmls.losses import EPSILON_INSENSITIVE, HUBER, LOGISTIC, SQUARED_HINGE, LossKind, conjugate, slope, value
from fedmls.types import Array


class Goal(NamedTuple):
    """When a proximal step ends: at a gap of ``tolerance`` max(1, primal), or after so many passes over the rows."""

    tolerance: float
    passes: int


class Found(NamedTuple):
    """The proximal steps of some clients: the points, one slope per row of the data, and of each client the gap,
    whether it is as small as it was to be, and how many passes over the rows it took.
    """

    x: Array
    slopes: Array
    gap: Array
    proved: np.ndarray[tuple[int], np.dtype[np.bool_]]
    passes: Integers


class Ascent(NamedTuple):
    """The dual ascent of one client under way.

    first, last: the client has the rows from first up to, but not including, last.
    q: the curvature of each of them in the dual, c_j a_j·(scale a_j).  scale: 1/h, one number per coordinate.
    s: one slope per row of the data.  x: the point x(s) that they make.
    """

    first: int
    last: int
    q: Array
    scale: Array
    s: Array
    x: Array


@njit(cache=True, nogil=True)
def prox_rows(
    rows: DualRows, penalty: Penalty, stream: Stream, goal: Goal, v: Array, weight: float, scale: Array
) -> Found:
    """Passes and faces in turn, client by client, from its row of v. ``scale`` is 1/h."""
    X, c, n = rows.X, rows.weights, rows.first.shape[0]
    x, s = np.empty(v.shape), np.zeros(c.shape[0])
    gaps, proved, used = np.empty(n), np.empty(n, np.bool_), np.empty(n, np.int64)
    for i in range(n):
        first, last = rows.first[i], rows.last[i]
        m, origin = last - first, v[i] * scale / weight
        order, q = np.arange(first, last), np.empty(m)
        for j in range(first, last):
            q[j - first] = c[j] * square(X, j, scale)
        x[i] = origin
        ascent = Ascent(first, last, q, scale, s, x[i])
        counter, visits, turns, gap = first_counter(stream, i), m, 0, np.inf
        while True:
            counter = draw(order, m, m, counter)
            coordinate_pass(rows, ascent, order)
            visits += m
            turns += 5  # few at first, when passes find the face faster
            for _ in range(turns):
                blocked, work = _to_face(rows, ascent)
                visits += work
                if not blocked or visits >= goal.passes * m:
                    break
            before = gap
            gap, primal = _certify(rows, penalty, ascent, v[i], origin, weight)
            visits += 2 * m
            rounding = c[first:last].sum() * _noise(rows, ascent)
            allowed = max(goal.tolerance * max(1.0, primal), rounding)
            # Once allowed it goes on as long as that pays: on the right face the answer is exact to rounding.
            if (gap <= allowed and gap >= 0.1 * before) or visits >= goal.passes * m:
                break
        gaps[i], proved[i], used[i] = gap, gap <= allowed, -(-visits // m)
    return Found(x, s, gaps, proved, used)


class Start(NamedTuple):
    """Where mini-batches of dual ascent begin: s has one slope per row of the data, p = Σ c_j s_j a_j per client.

    v, weights: the center and the weight of each client's proximal step.  squares: ‖a_j‖² of each row over the
    penalised coordinates and over the rest.
    """

    v: Array
    weights: Array
    p: Array
    s: Array
    squares: Array


@njit(cache=True, nogil=True)
def ascend_rows(
    rows: DualRows, penalty: Penalty, stream: Stream, start: Start, steps: Integers
) -> tuple[Array, Array, Array]:
    """Take ``steps`` mini-batches of dual ascent of each client; return x, p and s at the end.

    Mini-batches are consecutive parts of the rows in random order, shuffled anew when they run out: so a pass meets
    each row once. With a weight of 0 a client stays at v.
    """
    c, v, squares = rows.weights, start.v, start.squares
    x, p, s, scale = v.copy(), start.p.copy(), start.s.copy(), np.empty(v.shape[1])
    for i in range(rows.first.shape[0]):
        first, last = rows.first[i], rows.last[i]
        m, size, weight = last - first, stream.batch_sizes[i], start.weights[i]
        if weight == 0.0:
            continue
        scale[:] = weight
        scale[: penalty.penalised] = weight / (1.0 + weight * penalty.l2)
        x[i] = (v[i] / weight - p[i]) * scale
        q = c[first:last] * (scale[0] * squares[first:last, 0] + weight * squares[first:last, 1])
        ascent = Ascent(first, last, q, scale, s, x[i])
        order, at, counter = np.arange(first, last), m, first_counter(stream, i)
        for _ in range(steps[i]):
            if at >= m:
                counter, at = draw(order, m, m, counter), 0
            coordinate_pass(rows, ascent, order[at : at + size])
            at += size
        p[i] = v[i] / weight - x[i] / scale
    return x, p, s


@njit(cache=True, nogil=True)
def coordinate_pass(rows: DualRows, ascent: Ascent, order: Integers) -> None:
    """Set the slope of each row of ``order`` in turn to where the dual is largest, all others fixed; keep x = x(s)."""
    X, b, c, low, high, loss = rows.X, rows.labels, rows.weights, rows.low, rows.high, rows.loss
    first, q, scale, s, x = ascent.first, ascent.q, ascent.scale, ascent.s, ascent.x
    for j in order:
        if c[j] > 0.0:
            best = _best_slope(loss, s[j], dot(X, j, x), b[j], low[j], high[j], q[j - first])
            if best != s[j]:
                add_scaled(X, j, -c[j] * (best - s[j]), scale, x)
                s[j] = best


@njit(cache=True, nogil=True)
def _best_slope(loss: LossKind, s: float, p: float, b: float, low: float, high: float, q: float) -> float:
    """argmax over t in the box of (t - s) p - q/2 (t - s)² - ℓ*(t)."""
    if loss.code == LOGISTIC:
        return -b * _best_chance(-b * s, b * p, q)
    bend = _conjugate_curvature(loss, s)
    if q + bend == 0.0:
        return slope(loss, p, b)  # a row of zeros: its prediction never moves
    pull = q * s + p - b
    if loss.code == EPSILON_INSENSITIVE:
        pull = max(pull - loss.parameter, 0.0) + min(pull + loss.parameter, 0.0)
    return min(max(pull / (q + bend), low), high)


@njit(cache=True, nogil=True)
def _best_chance(a: float, margin: float, q: float) -> float:
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
def _conjugate_slope(loss: LossKind, s: float, b: float) -> float:
    """ℓ*'(s) inside the box."""
    if loss.code == LOGISTIC:
        return -b * math.log(abs(s) / (1.0 - abs(s)))
    kink = loss.parameter * np.sign(s) if loss.code == EPSILON_INSENSITIVE else 0.0
    return b + _conjugate_curvature(loss, s) * s + kink


@njit(cache=True, nogil=True)
def _conjugate_curvature(loss: LossKind, s: float) -> float:
    """ℓ*''(s) inside the box: 0 where the loss is made of straight pieces."""
    if loss.code == SQUARED_HINGE:
        return 0.5
    if loss.code == HUBER:
        return 1.0
    if loss.code == LOGISTIC:
        return 1.0 / (abs(s) * (1.0 - abs(s)))
    return 0.0


@njit(cache=True, nogil=True)
def _certify(
    rows: DualRows, penalty: Penalty, ascent: Ascent, v: Array, origin: Array, weight: float
) -> tuple[float, float]:
    """x <- x(s), free of the rounding of many updates; the duality gap and the primal value there."""
    X, b, c, loss = rows.X, rows.labels, rows.weights, rows.loss
    first, last, scale, s, x = ascent.first, ascent.last, ascent.scale, ascent.s, ascent.x
    l2, penalised = penalty.l2, penalty.penalised
    x[:] = origin
    for j in range(first, last):
        add_scaled(X, j, -c[j] * s[j], scale, x)
    gap, primal = 0.0, 0.0
    for k in range(x.shape[0]):
        primal += (x[k] - v[k]) ** 2 / (2.0 * weight) + (0.5 * l2 * x[k] ** 2 if k < penalised else 0.0)
    for j in range(first, last):
        p = dot(X, j, x)
        cost = value(loss, p, b[j])
        primal += c[j] * cost
        gap += c[j] * max(0.0, cost + conjugate(loss, s[j], b[j]) - s[j] * p)
    return gap, primal


class Face(NamedTuple):
    """The free slopes, whose rows are ``free``, and the dual around them.

    weights: c_j of each.  bend: ℓ*'' of each.  diagonal: the curvature of the dual in each alone.
    low, high: the two ends between which each may move.
    """

    free: Integers
    weights: Array
    bend: Array
    diagonal: Array
    low: Array
    high: Array


class Line(NamedTuple):
    """A direction ``ahead`` of the free slopes, with the move dx of x that it makes and the dual's curvature along it.

    room: how far the first slope meets its end.  length: how far the dual is largest, were there no ends.
    """

    ahead: Array
    dx: Array
    curvature: float
    room: float
    length: float


@njit(cache=True, nogil=True)
def _to_face(rows: DualRows, ascent: Ascent) -> tuple[bool, int]:
    """Move the free slopes to the maximum of the dual over them; (whether the box was in the way, rows read)."""
    X, b, loss = rows.X, rows.labels, rows.loss
    first, q, s, x = ascent.first, ascent.q, ascent.s, ascent.x
    free, low, high = _free(rows, ascent)
    size = free.shape[0]
    if size == 0:
        return False, 0
    r, bend, diagonal, c_free = np.empty(size), np.empty(size), np.empty(size), rows.weights[free]
    for f in range(size):
        j = free[f]
        r[f] = dot(X, j, x) - _conjugate_slope(loss, s[j], b[j])
        bend[f] = _conjugate_curvature(loss, s[j])
        diagonal[f] = bend[f] + q[j - first]
    noise = _noise(rows, ascent) ** 2 * (c_free / diagonal).sum()
    face = Face(free, c_free, bend, diagonal, low, high)
    place, dx, blocked, reads = _conjugate_gradients(X, face, ascent.scale, s[free], r, noise)
    if loss.code == LOGISTIC:
        t = _line_search(rows, free, s, place, x, dx)
        place, dx, reads = s[free] + t * (place - s[free]), t * dx, reads + 1
    s[free] = place
    x += dx
    return blocked, size * (1 + 2 * reads)


@njit(cache=True, nogil=True)
def _noise(rows: DualRows, ascent: Ascent) -> float:
    """How large the rounding error of a prediction at x(s) may be, where large parts of x(s) cancel."""
    first, last, q, s = ascent.first, ascent.last, ascent.q, ascent.s
    total = 0.0
    for j in range(first, last):
        total += q[j - first] * abs(s[j])
    return 2.0**-52 * max(total, np.abs(rows.labels[first:last]).max())


@njit(cache=True, nogil=True)
def _free(rows: DualRows, ascent: Ascent) -> tuple[Integers, Array, Array]:
    """The rows whose slopes lie inside the box, and the two ends between which each may move.

    A kink of the conjugate, at s = 0 of the ε-insensitive loss, is an end too. The logistic loss has none here: its
    dual is infinitely steep at the ends, and the line search keeps away from them. Rows of zeros, or of weight zero,
    have nothing to do with the others.
    """
    low, high, loss = rows.low, rows.high, rows.loss
    first, last, q, s = ascent.first, ascent.last, ascent.q, ascent.s
    kinked, ends = loss.code == EPSILON_INSENSITIVE and loss.parameter > 0.0, loss.code != LOGISTIC
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
    X: Matrix, face: Face, scale: Array, place: Array, r: Array, noise: float
) -> tuple[Array, Array, bool, int]:
    """Move ``place`` by the solution of (bend + A A^T) step = r, or until the first of its numbers meets an end.

    A A^T is over the free rows in the metric ``scale``, with row weights c; products of two vectors are weighted by c,
    in which the system is symmetric. Returns the place, the move of x, whether an end was met, and the iterations.
    """
    free, c, bend, diagonal = face.free, face.weights, face.bend, face.diagonal
    size, d = free.shape[0], scale.shape[0]
    total, dx, image = np.zeros(d), np.empty(d), np.empty(size)
    ahead = r / diagonal
    error = (c * r * ahead).sum()
    goal, reads = max(1e-26 * error, noise), 0  # less is rounding
    while error > goal and reads < 2 * min(size, d) + 50:
        dx[:] = 0.0
        for f in range(size):
            add_scaled(X, free[f], -c[f] * ahead[f], scale, dx)
        for f in range(size):
            image[f] = bend[f] * ahead[f] - dot(X, free[f], dx)
        reads += 1
        curvature = (c * ahead * image).sum()
        room, wall = _room(place, ahead, face.low, face.high)
        length = error / curvature if curvature > 0.0 else np.inf
        if min(length, room) == np.inf:
            break
        if room <= length:
            place, dx, tries = _past_walls(X, face, scale, place, r, Line(ahead, dx, curvature, room, length))
            place[wall] = face.low[wall] if ahead[wall] < 0.0 else face.high[wall]  # not a rounding error away from it
            return place, total + dx, True, reads + tries
        place = place + length * ahead
        total += length * dx
        r = r - length * image
        before, error = error, (c * r * r / diagonal).sum()
        ahead = r / diagonal + error / before * ahead
    return place, total, False, reads


@njit(cache=True, nogil=True)
def _past_walls(X: Matrix, face: Face, scale: Array, place: Array, r: Array, line: Line) -> tuple[Array, Array, int]:
    """Go on along the line beyond the first wall, each number as far as its own end, where the dual gains by it.

    Otherwise one step would set one slope only, and there may be thousands to set. Returns the place, the move of x,
    and how many lengths were tried.
    """
    free, c, bend, low, high = face.free, face.weights, face.bend, face.low, face.high
    ahead, dx, curvature, room, length = line
    straight = room * (c * r * ahead).sum() - 0.5 * room * room * curvature
    trial, tries = min(length, 1e6 * room), 0
    while trial > 2.0 * room and tries < 20:
        bent = np.minimum(np.maximum(place + trial * ahead, low), high)
        move, moved = bent - place, np.zeros(dx.shape[0])
        for f in range(free.shape[0]):
            add_scaled(X, free[f], -c[f] * move[f], scale, moved)
        gain = 0.0
        for f in range(free.shape[0]):
            gain += c[f] * move[f] * (r[f] - 0.5 * (bend[f] * move[f] - dot(X, free[f], moved)))
        tries += 1
        if gain > straight:
            return bent, moved, tries
        trial *= 0.25
    return np.minimum(np.maximum(place + room * ahead, low), high), room * dx, tries


@njit(cache=True, nogil=True)
def _room(place: Array, ahead: Array, low: Array, high: Array) -> tuple[float, int]:
    """How far the place may go along ``ahead``, and which of its numbers then meets its end."""
    room, wall = np.inf, -1
    for f in range(place.shape[0]):
        if ahead[f] != 0.0:
            own = ((low[f] if ahead[f] < 0.0 else high[f]) - place[f]) / ahead[f]
            if own < room:
                room, wall = own, f
    return room, wall


@njit(cache=True, nogil=True)
def _line_search(rows: DualRows, free: Integers, s: Array, place: Array, x: Array, dx: Array) -> float:
    """A share of the Newton step from s to place with which the dual grows, for the logistic loss."""
    X, b, c, loss = rows.X, rows.labels, rows.weights, rows.loss
    step = place - s[free]
    room, _ = _room(s[free], step, rows.low[free], rows.high[free])
    t = min(1.0, 0.9 * room)
    linear = quadratic = 0.0
    for f in range(free.shape[0]):
        linear += c[free[f]] * step[f] * dot(X, free[f], x)
        quadratic += c[free[f]] * step[f] * dot(X, free[f], dx)
    for _ in range(30):
        gain = t * linear + 0.5 * t * t * quadratic
        for f in range(free.shape[0]):
            j = free[f]
            gain -= c[j] * (conjugate(loss, s[j] + t * step[f], b[j]) - conjugate(loss, s[j], b[j]))
        if gain > 0.0:
            break
        t *= 0.5
    return t
