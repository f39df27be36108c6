"""FedMLS-B: a bundle of cuts, steps of several lengths in one exchange, and curvature as the metric. It
takes by far the fewest exchanges of the methods here (docs/benchmarks.md), proves how close it is, and has nothing to
tune.

One exchange. The server sends a few points x_1, ..., x_L. For each, and for each of B parts of its rows, a client
answers with the value and a subgradient of its loss; the server sees only the means. Every answer is a cut: no part
of the loss is anywhere below it. The sum over parts of their highest cuts, plus the l2 term as it is, models f from
below.

The next points. Around the best point so far, the center c, lane l minimises the model plus (x - c)·H (x - c)/(2
t_l): proximal bundle steps (Lemaréchal 1975; Kiwiel 1985) with step lengths t_l = t 4^l, side by side as in the
parallel bundle method of Díaz and Grimmer (SIAM J. Optim. 2023). If a lane improves on c, it is the new center and
its length the new t; otherwise t is halved, or 1 again if no step leads anywhere. Cuts of several parts (Birge,
Louveaux 1988, have one for each scenario) are a closer model than cuts of their sum, and here they cost no client its
privacy: parts are of rows, not of clients.

The metric H is the curvature of the loss, kinks blurred (:mod:`fedmls.local.curvature`), at a point of an earlier
exchange: a d × d matrix up to ``MANY`` coordinates, otherwise its diagonal. It is asked for anew as long as it makes up
no more than half of what is sent. Kinks blurred, f is smooth, and the first steps are Newton's.

The first exchange. Every client goes to about its own minimum and sends a quadratic model of its loss there; the
minimum of their mean is the model after round 1, often within a percent. It is evaluated in round 2.

The model is ahead of the points that were evaluated as long as the best of them is not proved to be within a percent:
it is Newton's step from there, by cuts and curvature together, and what its objective is nobody knows yet. That is
worth one exchange, and hardly ever worse than the best point (in 12 of 448 exchanges on problems outside the suite).
Afterwards the model is the best point, whose objective is known without asking again.

Beyond ``MANY`` coordinates few cuts say little, and local work must help. Two lanes of consensus ADMM (Boyd et al.
2011, section 7.1, over-relaxed as by Eckstein, Bertsekas 1992), with proximal steps that are all but exact, go along in
the same exchanges:

    x^i = argmin_x f_i(x) + <Y^i, x> + ‖x - z‖²/(2μ);   x̂^i = α x^i + (1 - α) z;
    z ← Σ w_i x̂^i;   Y^i ← Y^i + (x̂^i - z)/μ.

With α = 1 their gap after K rounds is at most (D²/μ + μ S²)/(2K), D = ‖x* - x0‖ and S the rms length of the Y^i at the
solution (He, Yuan 2012). So one lane has μ = ‖x̄ - x0‖/S, anew in every round, by the clients' mean x̄ and the S of
now; the other a k-th of that in round k, which is better where f has a sharp minimum. A choice by the lower f(x̄) would
make μ ever smaller. Both x̄ are points of the next exchange. The slopes of the rows that the first lane's step ends
with make one more cut, of all parts together. Only for this do clients keep a state; a lost one would cost these lanes
alone. After ``PATIENCE`` exchanges without a win they are given up.

The lower bound is the minimum of the model over all x (:mod:`fedmls.bounds.cut_bound`). It needs no radius, is finite
as soon as the cuts span, and f* is never below it.

Proved (docs/theory.md): convergence of the proximal bundle for a fixed range of t, whatever the metric between two
bounds; the lower bound, in every exchange. Measured: all that is said of few exchanges.

Down L vectors, up L B vectors and the curvature, in the first exchange two vectors more. All rows are read, whatever
the batch: L + 1 times in an exchange, up to 100 times more in the first one, and with consensus lanes 60 times more in
each.
"""

from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedmls.algorithms._auto_lambda import own_guess, squared
from fedmls.bounds.cut_bound import lower_bound
from fedmls.bounds.cut_steps import length_for, proximal_point
from fedmls.bounds.cuts import ALL, Cuts, Terms, largest
from fedmls.bounds.rounding import ROUNDING
from fedmls.checks import whole
from fedmls.hyperparameters import hyperparameters
from fedmls.local.curvature import packed, unpacked
from fedmls.threads import one_thread
from fedmls.types import Algorithm, Array, Local, Traits

MANY = 200  # coordinates: up to so many the whole curvature is sent, beyond consensus lanes help
PARTS = 8  # of the rows of a client
MOST = 300  # cuts, and one more for each coordinate up to MANY
PATIENCE = 100
CONSENSUS, RELAXATION = 2, 1.9  # lanes, and α in each
PASSES = 30  # over a client's rows towards its proximal step
FIRST = 10.0  # times a client's own guess: the μ of round 1
RATIO = 4.0  # between the step lengths of two lanes
# In place of a lane's step length: the clients' own minimum; a consensus lane's mean; neither.
OWN, MEAN, PROBE = 0.0, -1.0, -2.0
SAME = 1e-12
PROVED = 1e-10  # of f: a gap for which no probes are sent; rounding leaves some 1e-12
DONE = 1e-11  # of f: a gap for which nothing is done any more
AHEAD = 0.01  # of f: as long as more is not yet proved, the model is ahead of the points evaluated


class Server(NamedTuple):
    """When round k begins. Of the points sent last: x, one after the other; the step length of each, relative to t; at
    which of them the curvature was asked for (-1: none). The best point evaluated, the height of each part of f there,
    and f (infinity before round 1). The model after round 1. The cuts (:class:`fedmls.bounds.cuts.Cuts`). The
    curvature, the first one, and t. l2, l1, how many coordinates have them, and the floor. The lower bound. The
    numbers sent so far: for the curvature, and for all else. f at the center around which probes were sent last. Rounds
    since a consensus lane won. Of these lanes, one after the other: z_{k-1}, x̄ of round k - 1, and μ (0: by the
    client's own guess). x0. The absolute values, in each coordinate, that slopes are sums of.
    """

    x: Array
    lanes: Array
    asked: int
    center: Array
    heights: Array
    f: float
    own: Array
    g: Array
    e: Array
    part: Any
    used: Any
    H: Array
    H0: Array
    t: float
    terms: Array
    bound: float
    sent: Array
    probed: float
    idle: int
    z: Array
    mean: Array
    mu: Array
    x0: Array
    summed: Array


class Client(NamedTuple):
    """Nothing up to ``MANY`` coordinates. Beyond, of the consensus lanes, when round k begins: x̂^i_{k-1}, Y^i_{k-1},
    the μ of round k - 1 (infinite: no multiplier is to be learned from it), and p^i of the rows' slopes."""

    x: Array
    Y: Array
    mu: Array
    p: Array


class Down(NamedTuple):
    x: Array  # the points
    points: int  # how many they are
    asked: int  # at which of them the curvature is wanted
    z: Array  # this and the next: of the consensus lanes, empty without them
    mu: Array


class Up(NamedTuple):
    f: Array  # of each part at each point
    g: Array
    H: Array  # the curvature, if it was asked for
    own: Array  # in round 1: H x - p at the client's own minimum
    summed: Array  # this and the next in round 1
    terms: Array
    z: Array  # this and the next three: of the consensus lanes, empty without them
    squares: Array  # ‖Y^i + (x^i - z)/μ‖²
    p: Array  # the cut of the first one's slopes of rows
    a: Array


@hyperparameters
class FedMLSB(Algorithm[Server, Client, Down, Up]):
    """lanes: step lengths tried in one exchange. More take fewer exchanges and more bytes."""

    name: ClassVar[str] = "fedmlsb"
    title: ClassVar[str] = "FedMLS-B"
    traits: ClassVar[Traits] = Traits(
        numbers=("f", "H", "terms", "mu", "squares", "a"),
        proves=True,
        reads_all_rows=True,
        varying=True,
        reveals_objective=True,
    )
    lanes: int = 3

    def __post_init__(self) -> None:
        whole("lanes", self.lanes, most=100)

    def init(self, x0: Array, n: int) -> tuple[Server, Client]:
        d, none = len(x0), np.empty(0)
        lanes = CONSENSUS if d > MANY else 0
        z, mu = np.tile(x0, lanes), np.zeros(lanes)
        first = Server(
            x=x0,
            lanes=np.array([OWN]),
            asked=-1,
            center=x0,
            heights=np.zeros(PARTS),
            f=np.inf,
            own=x0,
            **Cuts.none(d)._asdict(),
            H=none,
            H0=none,
            t=1.0,
            terms=np.zeros(4),
            bound=-np.inf,
            sent=np.zeros(2),
            probed=np.inf,
            idle=0,
            z=z,
            mean=z,
            mu=mu,
            x0=x0,
            summed=0 * x0,
        )
        return first, Client(z, 0 * z, mu + np.inf, 0 * z)

    def broadcast(self, k: int, server: Server, rng: np.random.Generator) -> tuple[Server, Down]:
        if k > 1 and not _is_done(server):
            with one_thread():
                server = self._with_points(k, server)
        return server, Down(server.x, len(server.lanes), server.asked, server.z, server.mu)

    def client_round(self, k: int, client: Client, down: Down, local: Local) -> tuple[Client, Up]:
        d = len(down.x) // down.points
        f, g = local.cuts(down.x, PARTS)
        none = f[..., :0]
        H = own = summed = terms = none
        if k == 1:
            H, own, summed = local.own_quadratic(down.x, d <= MANY)
            terms = local.terms()
        elif down.asked >= 0:
            H = local.curvature(down.x[down.asked * d : (down.asked + 1) * d], d <= MANY)
        if not len(down.z) or not _has_slopes(local):
            return client, Up(f, g, H, own, summed, terms, none, none, none, none)
        client, squares = _consensus(client, down, local)
        return client, Up(f, g, H, own, summed, terms, client.x, squares, *local.cut())

    def server_round(self, k: int, server: Server, up: Up) -> Server:
        if _is_done(server):
            return server
        if k == 1:
            server = server._replace(terms=up.terms, summed=up.summed)
        if len(server.z):
            server = _agreed(k, server, up) if len(up.z) else _without_consensus(server)
        with one_thread():
            return _bounded(k, _evaluated(k, _with_curvature(k, server, up), up))

    def model(self, server: Server) -> Array:
        if not np.isnan(self.objective(server)):
            return server.center
        with one_thread():
            return server.own if _is_first(server) else _ahead(server)

    def objective(self, server: Server) -> float:
        """f at the model, where it is known: not where the model is ahead of the points that were evaluated."""
        far = server.f - server.bound > AHEAD * abs(server.f)
        unknown = not np.array_equal(server.own, server.center) if _is_first(server) else far
        return np.nan if unknown or np.isinf(server.f) else server.f

    def lower_bound(self, server: Server, radius: float, x0: Array) -> float:
        """What f is nowhere below; in the ball ‖x - x0‖ <= radius, where that is finite."""
        if not np.isfinite(radius) or not len(server.e):
            return server.bound
        cuts, terms = _cuts(server), _terms(server)
        gap = server.f - server.bound
        found = lower_bound(cuts, PARTS, terms, server.center, server.f, server.summed, gap, radius, x0)
        return max(server.bound, found.value)

    def _with_points(self, k: int, server: Server) -> Server:
        """The points of round k, and at which of them the curvature is asked for."""
        server, found = self._steps(k, server)
        points, lanes = [x for x, _ in found], [length for _, length in found]
        if _stand(server, points, min(2, self.lanes)) and _unproved(server):
            points += _probes(server)
            lanes += [PROBE] * (len(points) - len(lanes))
            server = server._replace(probed=server.f)
        if k == 2 and not np.array_equal(server.own, server.center):
            points, lanes = [server.own, *points], [OWN, *lanes]
        if len(server.z):
            points, lanes = [*points, *_lanes(server.mean)], [*lanes, *[MEAN] * CONSENSUS]
        if not points:
            points, lanes = [server.center], [1.0]
        x = np.concatenate(points)
        bent, rest = server.sent[0], server.sent[1] + len(x) * (1 + PARTS)
        asks = bool(bent + len(server.H) <= rest)
        at = 0 if lanes[0] == OWN else max(0, (sum(length > 0 for length in lanes) - 1) // 2)
        sent = np.array([bent + asks * len(server.H), rest])
        return server._replace(x=x, lanes=np.array(lanes), asked=at if asks else -1, sent=sent)

    def _steps(self, k: int, server: Server) -> tuple[Server, list[tuple[Array, float]]]:
        """The proximal step of each lane, with its length relative to t: those that are not the same. Cuts without use
        are dropped."""
        terms, cuts = _terms(server), _cuts(server)
        H, found = unpacked(server.H, terms.dimension), list[tuple[Array, float]]()
        main, about = np.zeros(len(cuts.e)), length_for(server.f - server.bound)
        for length in RATIO ** (np.arange(self.lanes) - (self.lanes - 1) / 2):
            step = proximal_point(cuts, server.center, server.heights, terms.ridge, H, server.t * length, about)
            if step is None:
                continue
            cuts, about = cuts.marked(step.weights, k), step.length
            main = step.weights if length <= 1 or not found else main
            if not any(_same(step.x - x, H + _shaped(terms.ridge, H), server.f) for x, _ in found):
                found.append((step.x, float(length)))
        cuts = cuts.pruned(MOST + (terms.dimension if terms.dimension <= MANY else 0), main, k)
        return server._replace(**cuts._asdict()), found


def _is_done(server: Server) -> bool:
    """Whether the center is proved to be the minimum, but for rounding; it alone is sent from then on."""
    return bool(server.f < np.inf and server.f - server.bound <= DONE * abs(server.f))


def _is_first(server: Server) -> bool:
    """Whether only x0 has been evaluated."""
    return len(server.lanes) == 1 and bool(server.lanes[0] == OWN)


def _ahead(server: Server) -> Array:
    """Newton's step from the best point, by the cuts and the curvature together, or a shorter one if such did well."""
    terms, about, t = _terms(server), length_for(server.f - server.bound), min(1.0, server.t)
    H = unpacked(server.H, terms.dimension)
    step = proximal_point(_cuts(server), server.center, server.heights, terms.ridge, H, t, about)
    return server.center if step is None else step.x


def _stand(server: Server, points: Iterable[Array], few: int = 1) -> bool:
    """Whether fewer than so many of the points, all different, are away from the center."""
    H = unpacked(server.H, len(server.center))
    metric = H + _shaped(_terms(server).ridge, H)
    return sum(not _same(x - server.center, metric, server.f) for x in points) < few


def _same(move: Array, H: Array, f: float) -> bool:
    """Whether two points are so close that f hardly differs."""
    return bool(move @ (H @ move if H.ndim == 2 else H * move) <= SAME * abs(f))


def _shaped(ridge: Array, H: Array) -> Array:
    return np.diag(ridge) if H.ndim == 2 else ridge


def _unproved(server: Server) -> bool:
    """Whether there is still something to prove, and probes have not been tried for it."""
    gap, least = server.f - server.bound, PROVED * abs(server.f)
    return len(server.center) <= MANY and gap > least and server.f < server.probed - least


def _probes(server: Server) -> list[Array]:
    """Points on all sides of the center, in coordinates without an l2 term, where f is higher by about a thousandth.

    Where steps of all lengths lead to one point, as those of a smooth loss do near the minimum, their cuts are all the
    same, and prove nothing: a bound takes cuts whose slopes cancel in every such coordinate.
    """
    terms = _terms(server)
    H, free = unpacked(server.H, terms.dimension), np.flatnonzero(terms.ridge == 0)
    if not len(free):
        return []
    H = H[np.ix_(free, free)] if H.ndim == 2 else np.diag(H[free])
    sides = np.vstack([np.eye(len(free)), -np.ones(len(free)) / len(free) ** 0.5])
    moves = np.zeros((len(sides), terms.dimension))
    rise = min(1e-3 * abs(server.f), server.f - server.bound)
    moves[:, free] = np.linalg.solve(np.linalg.cholesky(H).T, sides.T).T * (2 * rise) ** 0.5
    return list(server.center + moves)


def _has_slopes(local: Local) -> bool:
    """Whether consensus lanes can run: they need rows, and no l1 term."""
    terms = np.atleast_2d(local.terms())[0]
    return bool(terms[1] == 0 and np.isfinite(terms[3]))


def _lanes(v: Array) -> list[Array]:
    return np.split(v, CONSENSUS, axis=-1)


def _each(numbers: Array, like: Array) -> Array:
    """One number for each consensus lane, as often as it has coordinates."""
    return np.repeat(numbers, like.shape[-1] // CONSENSUS, axis=-1)


def _consensus(client: Client, down: Down, local: Local) -> tuple[Client, Array]:
    """A client's proximal step in each consensus lane, and the squared length of the multiplier that it asks for."""
    z, guessing = down.z, not down.mu.any()
    Y = client.Y + (client.x - z) / _each(client.mu, z)
    mu = (FIRST * own_guess(_lanes(z)[0], local) if guessing else down.mu) + np.zeros(CONSENSUS) * local.weight
    x, p = local.ascend(z - _each(mu, z) * Y, mu, client.p, 1, PASSES)
    wide = _each(np.where(mu > 0, mu, np.inf), z)
    squares = np.concatenate([squared(lane) for lane in _lanes(Y + (x - z) / wide)], axis=-1)
    ahead = x if guessing else RELAXATION * x + (1 - RELAXATION) * z
    return Client(ahead, Y, mu + np.inf if guessing else mu, p), squares


def _agreed(k: int, server: Server, up: Up) -> Server:
    """The clients' mean in each consensus lane, and the μ that goes with it."""
    alpha = RELAXATION if server.mu.any() else 1.0
    mean = (up.z - (1 - alpha) * server.z) / alpha
    far = np.array([np.linalg.norm(x - server.x0) for x in _lanes(mean)])
    with np.errstate(divide="ignore", invalid="ignore"):
        mu = np.array([1.0, 1 / k]) * far / np.sqrt(up.squares)
    return server._replace(z=up.z, mean=mean, mu=np.where((mu > 0) & (mu < np.inf), mu, server.mu))


def _cuts(server: Server) -> Cuts:
    return Cuts(server.g, server.e, server.part, server.used)


def _terms(server: Server) -> Terms:
    l2, l1, penalised, floor = server.terms.tolist()
    return Terms(l2, l1, round(penalised), floor, len(server.center))


def _with_curvature(k: int, server: Server, up: Up) -> Server:
    """The new curvature, and in round 1 the minimum of the clients' quadratic models.

    A little of the first curvature is added, for directions in which there is none now.
    """
    d = len(server.center)
    trace = _trace(up.H, d) if len(up.H) else 0.0
    if k > 1:
        rest = 1e-3 * trace / _trace(server.H0, d) * server.H0
        return server._replace(H=up.H + rest) if trace > 0 else server
    if not trace > 0:
        plain = packed(np.eye(d)) if d <= MANY else np.ones(d)
        return server._replace(H=plain, H0=plain)
    H, ridge = unpacked(up.H, d), _terms(server).ridge
    H = H + 1e-8 * trace / d * (np.eye(d) if H.ndim == 2 else 1.0)
    own = np.linalg.solve(H + np.diag(ridge), up.own) if H.ndim == 2 else up.own / (H + ridge)
    return server._replace(H=packed(H), H0=packed(H), own=np.asarray(own) if np.isfinite(own).all() else server.center)


def _trace(H: Array, d: int) -> float:
    return float(H.sum() if len(H) == d else np.trace(unpacked(H, d)))


def _evaluated(k: int, server: Server, up: Up) -> Server:
    """The new cuts; the best point; and the step length, by whether a lane improved on the last one."""
    terms, points = _terms(server), server.x.reshape(len(server.lanes), -1)
    heights, slopes = _parts_at(points, up, terms)
    parts, d = slopes.shape[1:]
    cuts = _cuts(server)
    if k == 1 and np.isfinite(terms.floor):
        cuts = cuts.and_more(np.zeros((parts, d)), np.full(parts, terms.floor), np.arange(parts), k)
    summed = np.maximum(server.summed, largest(slopes.reshape(-1, d)))
    e = heights - np.einsum("lbd,ld->lb", slopes, points) - _rounding(points, heights, summed)
    cuts = cuts.and_more(slopes.reshape(-1, d), e.ravel(), np.tile(np.arange(parts), len(points)), k)
    if len(up.p) and terms.l1 == 0:
        cuts = cuts.and_more(up.p[None], up.a - _rounding(server.center[None], up.a, summed)[0], np.array([ALL]), k)
    f = heights.sum(axis=1) + [terms.quadratic(x) for x in points]
    best = int(np.argmin(f))
    server = server._replace(summed=summed, t=_length(k, server, f, heights, slopes), **cuts._asdict())
    server = _patient(server, f[best] < server.f and server.lanes[best] == MEAN)
    if f[best] < server.f:
        server = server._replace(center=points[best], heights=heights[best], f=float(f[best]))
    return server


def _rounding(points: Array, heights: Array, summed: Array) -> Array:
    """How much a cut may be too high by rounding alone: much, if its point is far away in a direction in which f is
    nearly flat, where large products nearly cancel.
    """
    return np.asarray(ROUNDING * (np.abs(heights) + (np.abs(points) @ summed)[:, None]))


def _parts_at(points: Array, up: Up, terms: Terms) -> tuple[Array, Array]:
    """The height and slope of each part at each point; an l1 term is one more part, which the server knows itself."""
    heights, slopes = up.f.reshape(-1, PARTS), up.g.reshape(-1, PARTS, terms.dimension)
    if terms.l1 == 0:
        return heights, slopes
    penalised = points * (np.arange(terms.dimension) < terms.penalised)
    height = terms.l1 * np.abs(penalised).sum(axis=1)
    return np.column_stack([heights, height]), np.hstack([slopes, terms.l1 * np.sign(penalised)[:, None]])


def _length(k: int, server: Server, f: Array, heights: Array, slopes: Array) -> float:
    """t after the round: Polyak's for f* = 0 in the first one; that of the best lane if it improved, twice that of an
    only one; else half. That of Newton's step again if steps have become too short to lead anywhere."""
    terms, H = _terms(server), unpacked(server.H, len(server.center))
    if k == 1:
        g = slopes[0].sum(axis=0) + terms.ridge * server.x
        steep = g @ np.linalg.solve(H + np.diag(terms.ridge), g) if H.ndim == 2 else g @ (g / (H + terms.ridge))
        return float(2 * abs(f[0]) / steep) if steep > 0 and f[0] else 1.0
    steps = server.lanes > 0
    best = int(np.argmin(f))
    if not steps.any() or (f[best] < server.f and server.lanes[best] == OWN):
        return 1.0  # with the curvature as metric it is Newton's step
    lane = int(np.argmin(np.where(steps, f, np.inf)))
    if f[lane] < server.f:
        return server.t * float(server.lanes[lane]) * (2.0 if server.lanes[steps].tolist() == [1.0] else 1.0)
    has_curvature = np.isfinite(terms.floor)  # functions in place of rows have neither
    points = server.x.reshape(len(server.lanes), -1)[steps]
    return 1.0 if has_curvature and _stand(server, points) else max(server.t / 2, 1e-60)


def _patient(server: Server, won: bool) -> Server:
    """Consensus lanes go on as long as one wins now and then."""
    idle = 0 if won else server.idle + 1
    if idle <= PATIENCE or not len(server.z):
        return server._replace(idle=idle)
    return _without_consensus(server._replace(idle=idle))


def _without_consensus(server: Server) -> Server:
    none = np.empty(0)
    return server._replace(z=none, mean=none, mu=none)


def _bounded(k: int, server: Server) -> Server:
    """The best lower bound so far, and its cuts marked as used. When that is all, the center is what is sent."""
    cuts, terms = _cuts(server), _terms(server)
    found = lower_bound(cuts, PARTS, terms, server.center, server.f, server.summed, server.f - server.bound)
    server = server._replace(bound=max(server.bound, found.value), used=cuts.marked(found.weights, k).used)
    if not _is_done(server):
        return server
    return _without_consensus(server._replace(x=server.center, lanes=np.array([1.0]), asked=-1))
