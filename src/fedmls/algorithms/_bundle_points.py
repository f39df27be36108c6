"""The points of FedMLS-B's next exchange, and how long its steps are (see ``fedmlsb.py``)."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from fedmls.algorithms import _consensus as consensus
from fedmls.algorithms import _grids
from fedmls.algorithms._bundle_server import MANY, MEAN, OWN, PROBE, Server
from fedmls.bounds.cut_steps import Step, length_for, proximal_point
from fedmls.bounds.rounding import ROUNDING
from fedmls.types import Array

MOST = 300  # cuts, and one more for each coordinate up to MANY
RATIO = 4.0  # between the step lengths of two lanes
LATER = (8, 16, 32)  # rounds, after each of which there are two lanes more; beyond MANY, cuts would go too soon
MUCH_LEFT = 1e-6  # of f: as long as the gap is larger
FAST = 3  # the longest lane is so many times longer still, at most, if it won again and again
FURTHER = 1000.0 ** np.arange(1, 6)  # times the longest lane: steps that are tried in turn where all are too short
RISE, LEAST_RISE = 0.15, 1e-3  # of f, by the curvature: how high a point toward the model's minimum is in round 3; ever
LITTLE_PROVED = 0.1  # of f: such points are sent as long as the gap is larger
NOTHING, FALL = 0.01, 0.1  # of the gap, by which the model falls: steps are too short; one of those is long enough
LEFT = 1e-7  # of f: as long as the gap is larger; then it may be rounding that steps follow
LONGEST = 4.0  # the first t at most, with the whole curvature: f* may be far above 0, and t = 1 is Newton's step
FARTHEST = 1e8  # the same with its diagonal: at a minimum the slope is nothing but rounding, and Polyak's t any number
BENDS = 0.5  # numbers of curvature asked for, at most, next to all other numbers
SAME = 1e-12
PROVED = 1e-10  # of f: a gap for which no probes are sent; rounding leaves some 1e-12
PROBED = 1e-3  # of f: how much higher it is at probes
SHORT = 2.0**-24  # relative: what a number of 24 significant bits is rounded by
LITTLE = 0.01  # of what steps are to gain: points have 24 bits as long as that costs no more


class Lane(NamedTuple):
    """A point, and its step length relative to t, or what stands in place of one."""

    x: Array
    length: float


def with_points(k: int, server: Server, lanes: int) -> Server:
    """The points of round k, and at which of them the curvature is asked for."""
    server, found, gain = _with_steps(k, server, lanes)
    if _needs_probes(server, [lane.x for lane in found], lanes):
        found += [Lane(x, PROBE) for x in _probes(server)]
        server = server._replace(probed=server.f)
    if lanes > 1:
        found += [Lane(x, PROBE) for x in _toward_minimum(k, server)]
    if k == 2 and not np.array_equal(server.own, server.center):
        found = [Lane(server.own, OWN), *found]
    if len(server.z):
        found += [Lane(x, MEAN) for x in consensus.lanes(server.mean)]
    found = found or [Lane(server.center, 1.0)]
    lengths = np.array([lane.length for lane in found])
    server, x = _on_grid(server, np.array([lane.x for lane in found]), gain)
    bent, rest = server.sent[0], server.sent[1] + len(x) * (1 + server.parts)
    asks = bool(bent + len(server.H) <= BENDS * rest)
    at = 0 if lengths[0] == OWN else max(0, (int((lengths > 0).sum()) - 1) // 2)
    sent = np.array([bent + asks * len(server.H), rest])
    return server._replace(x=x, lanes=lengths, asked=at if asks else -1, sent=sent)


def ahead(server: Server) -> Array:
    """Newton's step from the best point, by the cuts and the curvature together, or a shorter one if such did well."""
    for _, step in _steps(server, min(1.0, server.t), [1.0], length_for(server.gap)):
        return step.x
    return server.center


def length_after(k: int, server: Server, f: Array, slopes: Array) -> float:
    """t after the round: Polyak's for f* = 0 in the first one, within limits; that of the best lane if it improved,
    twice that of an only one; else half, or a quarter of what is longer than Newton's step. That of Newton's step again
    if steps have become too short to lead anywhere."""
    known, has_curvature = server.known, bool(np.isfinite(server.known.floor))  # functions have none, and t a unit
    if k == 1:
        g, bent = slopes[0].sum(axis=0) + known.ridge * server.x, server.bent
        steep = g @ (np.linalg.solve(bent, g) if bent.ndim == 2 else g / bent)
        most = (LONGEST if known.dimension <= MANY else FARTHEST) if has_curvature else np.inf
        return min(float(2 * abs(f[0]) / steep), most) if steep > 0 and f[0] else 1.0
    steps = server.lanes > 0
    best = int(np.argmin(f))
    if not steps.any() or (f[best] < server.f and server.lanes[best] == OWN):
        return 1.0  # with the curvature as metric it is Newton's step
    lane = int(np.argmin(np.where(steps, f, np.inf)))
    if f[lane] < server.f:
        return server.t * float(server.lanes[lane]) * (2.0 if server.lanes[steps].tolist() == [1.0] else 1.0)
    if has_curvature and _stand(server, server.points[steps]):
        return 1.0
    return max(server.t / (4.0 if has_curvature and server.t > 1 else 2.0), 1e-60)


def _with_steps(k: int, server: Server, lanes: int) -> tuple[Server, list[Lane], float]:
    """The proximal step of each lane: those that are not the same; and what the model falls by in the best of them, at
    least. Cuts without use are dropped."""
    cuts, bent = server.cuts, server.bent
    lengths = _lengths(k, server, lanes)
    about = length_for(server.gap)
    tried = list(_steps(server, server.t, lengths, about))
    near = [step for _, step in tried]
    if _too_short(server, near) and not _needs_probes(server, [step.x for step in near], lanes):
        tried += _far_enough(server, _steps(server, server.t, lengths[-1] * FURTHER, about))
    found, main, gain = list[Lane](), np.zeros(len(cuts.e)), 0.0
    for length, step in tried:
        cuts, gain = cuts.marked(step.weights, k), max(gain, step.length**2 / 2)
        main = step.weights if length <= 1 or not found else main
        if not any(_same(step.x - lane.x, bent, server.f) for lane in found):
            found.append(Lane(step.x, length))
    d = len(server.center)
    blur_of_one = 2.0**server.profile if server.grids else None
    cuts = cuts.pruned(MOST + (d if d <= MANY else 0), main, k, blur_of_one, ROUNDING * server.summed)
    return server._replace(**cuts._asdict()), found, gain


def _lengths(k: int, server: Server, lanes: int) -> Array:
    """The lanes' step lengths relative to t; one alone stays so."""
    if lanes == 1:
        return np.ones(1)
    if len(server.center) <= MANY and server.gap > MUCH_LEFT * abs(server.f):
        lanes += 2 * sum(k > late for late in LATER)
    lengths = RATIO ** (np.arange(lanes) - (lanes - 1) / 2)
    lengths[-1] *= RATIO ** min(max(0, server.streak - 1), FAST)
    return np.asarray(lengths)


def _steps(server: Server, t: float, lengths: Iterable[float], about: float) -> Iterator[tuple[float, Step]]:
    """The proximal step of each length relative to t that a solver finds. about: how long the first is, about."""
    low, ridge, metric = server.lowered, server.known.ridge, server.metric
    heights = server.heights(low)
    for length in lengths:
        step = proximal_point(low, server.center, heights, ridge, metric, t * length, about)
        if step is not None:
            about = step.length
            yield float(length), step


def _too_short(server: Server, steps: list[Step]) -> bool:
    """Whether the model falls by next to nothing in all of these; if nothing is proved, whether they lead nowhere."""
    floor = server.parts * server.known.floor
    if not np.isfinite(floor) or server.gap <= LEFT * abs(server.f):
        return False
    if server.bound <= floor:
        return _stand(server, [step.x for step in steps])
    return all(step.length**2 / 2 < NOTHING * server.gap for step in steps)


def _far_enough(server: Server, steps: Iterable[tuple[float, Step]]) -> list[tuple[float, Step]]:
    """The first of these, each longer than the last, by which the model falls by much of what is left; where nothing is
    proved, the first that leads somewhere. None if there is none. No farther than where the minimum may be, or where f
    doubles by the curvature: slopes from there would be so large that their rounding spoils all later proofs."""
    proved, bent = server.bound > server.parts * server.known.floor, server.bent
    for length, step in steps:
        move = step.x - server.center
        doubles = float(np.sqrt(2 * abs(server.f) / max(_square(move, bent), 1e-300)))
        share = min(_share_inside(server, move), doubles)
        if share * step.length**2 / 2 >= FALL * server.gap if proved else not _stand(server, [step.x]):
            return [(length, step._replace(x=server.center + share * move))]
    return []


def _share_inside(server: Server, move: Array) -> float:
    """How much of a move from the center stays in the box; rounded slopes say nothing of what is outside."""
    room = np.where(move > 0, server.high - server.center, server.center - server.low)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(move != 0, np.maximum(room, 0.0) / np.abs(move), 1.0)
    return float(min(1.0, shares.min()))


def _stand(server: Server, points: Iterable[Array], few: int = 1) -> bool:
    """Whether fewer than so many of the points, all different, are away from the center."""
    bent = server.bent
    return sum(not _same(x - server.center, bent, server.f) for x in points) < few


def _same(move: Array, bent: Array, f: float) -> bool:
    """Whether two points are so close that f hardly differs."""
    return _square(move, bent) <= SAME * abs(f)


def _square(move: Array, bent: Array) -> float:
    """Of the move's length, by a matrix or by the diagonal of one."""
    return float(move @ (bent @ move if bent.ndim == 2 else bent * move))


def _needs_probes(server: Server, points: list[Array], lanes: int) -> bool:
    """Whether steps lead to less than two points, there is still something to prove, and probes have not been tried."""
    least = PROVED * abs(server.f)
    unproved = len(server.center) <= MANY and server.gap > least and server.f < server.probed - least
    return unproved and _stand(server, points, min(2, lanes))


def _probes(server: Server) -> list[Array]:
    """Points on all sides of the center, in coordinates without an l2 term, where f is higher by about a thousandth.

    Where steps of all lengths lead to one point, as those of a smooth loss do near the minimum, their cuts are all the
    same, and prove nothing: a bound takes cuts whose slopes cancel in every such coordinate.
    """
    H, free = server.metric, np.flatnonzero(server.known.ridge == 0)
    if not len(free):
        return []
    H = H[np.ix_(free, free)] if H.ndim == 2 else np.diag(H[free])
    sides = np.vstack([np.eye(len(free)), -np.ones(len(free)) / len(free) ** 0.5])
    moves = np.zeros((len(sides), len(server.center)))
    rise = min(PROBED * abs(server.f), server.gap)
    moves[:, free] = np.linalg.solve(np.linalg.cholesky(H).T, sides.T).T * (2 * rise) ** 0.5
    return list(server.center + moves)


def _toward_minimum(k: int, server: Server) -> list[Array]:
    """As long as little is proved: a point on the way to the model's minimum, in every round nearer to the center.

    The bound is the model's minimum, and cuts around the best point, where steps lead, do not hold it up elsewhere.
    """
    known, rise = server.known, RISE * 2.0 ** (3 - k)
    proved = server.gap <= LITTLE_PROVED * abs(server.f)
    if k < 3 or rise < LEAST_RISE or proved or known.dimension > MANY or not np.isfinite(known.floor):
        return []
    for _, step in _steps(server, server.t, [FURTHER[1]], 0.0):
        move = step.x - server.center
        share = float(np.sqrt(2 * rise * abs(server.f) / max(_square(move, server.bent), 1e-300)))
        return [server.center + share * move] if share < 1 else []
    return []


def _on_grid(server: Server, points: Array, gain: float) -> tuple[Server, Array]:
    """The points, one after the other, rounded as they are to be sent, by new units if there are grids."""
    if not server.grids:
        return server, _rounded(points, server.summed, gain)
    known, moves = server.known, points - server.center
    steep = np.diag(server.metric) + known.ridge
    scales: Any = _grids.scales(server.profile, known, server.f, server.gap, gain, moves, server.summed, points, steep)
    server = server._replace(scales=scales)
    unit = server.grids.points
    return server, (unit * np.rint(points / unit)).ravel()


def _rounded(points: Array, summed: Array, gain: float) -> Array:
    """The points, one after the other, with 24 bits if f hardly differs there, next to what is to gain."""
    x = points.ravel()
    costs = SHORT * float((np.abs(points) @ summed).max())
    return x.astype(np.float32).astype(float) if costs <= LITTLE * gain else x
