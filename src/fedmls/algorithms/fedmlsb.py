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
its length the new t; otherwise t is halved, or 1 again if no step leads anywhere. A longest lane that wins again and
again gets longer each time, and what takes long gets more lanes. Where the model hardly falls in any lane and more is
left, as along columns that are all but sums of others, one that is long enough goes along. Cuts of several parts
(Birge, Louveaux 1988, have one for each scenario) are a closer model than cuts of their sum, and here they cost no
client its privacy: parts are of rows, not of clients.

The metric H is the curvature of the loss, kinks blurred (:mod:`fedmls.local.curvature`), at a point of an earlier
exchange: a d × d matrix up to ``MANY`` coordinates, otherwise its diagonal. It is asked for anew as long as it is no
more than half as many numbers as all others together. Kinks blurred, f is smooth, and the first steps are Newton's.

The first exchange. Every client goes to about its own minimum and sends a quadratic model of its loss there; the
minimum of their mean is the model after round 1, often within a percent. It is evaluated in round 2.

The model is ahead of the points that were evaluated as long as the best of them is not proved to be within a percent:
it is Newton's step from there, by cuts and curvature together, and what its objective is nobody knows yet. That is
worth one exchange, and hardly ever worse than the best point (in 12 of 448 exchanges on problems outside the suite).
Where no point of the last exchange was better than the best one, Newton's step may be anywhere, and is not taken.
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
alone. After a hundred exchanges without a win they are given up (``_consensus.py``).

Few bits. From round 2 on all numbers are rounded to what the gap that is left asks for, and travel as whole ones
(``_grids.py``); those of round 1 have few significant bits. Where that must not be, they are of eight bytes.

The lower bound is the minimum of the model over all x (:mod:`fedmls.bounds.cut_bound`). It needs no radius, is finite
as soon as the cuts span, and f* is never below it. Steps lead to where f is low, and cuts from there span late; so as
long as less than a tenth is proved, one more point is on the way to the model's minimum, in every round nearer to the
center. Rounded cuts hold only where the minimum may be, and tell themselves
where that is (:mod:`fedmls.bounds.box`).

Proved (docs/theory.md): convergence of the proximal bundle for a fixed range of t, whatever the metric between two
bounds; the lower bound, in every exchange. Measured: all that is said of few exchanges.

Down L vectors, up L B vectors and the curvature; in the first exchange up one cut, of all parts together, and two more
vectors. All rows are read, whatever the batch: L + 1 times in an exchange, up to 100 times more in the first one, and
with consensus lanes 60 times more in each.
"""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedmls.algorithms import _consensus as consensus
from fedmls.algorithms import _grids
from fedmls.algorithms._grids import Grids
from fedmls.algorithms._metric import TRUE, definite, first_curvature, ratio, shaped, trace, without_rounding
from fedmls.bounds import box
from fedmls.bounds.box import Box
from fedmls.bounds.cut_bound import lower_bound
from fedmls.bounds.cut_steps import Step, length_for, proximal_point
from fedmls.bounds.cuts import ALL, Cuts, Terms, largest
from fedmls.bounds.rounding import ROUNDING
from fedmls.checks import whole
from fedmls.hyperparameters import hyperparameters
from fedmls.local.curvature import packed, unpacked
from fedmls.threads import one_thread
from fedmls.types import Algorithm, Array, Local, Traits
from fedmls.wire import rounded

MANY = 200  # coordinates: up to so many the whole curvature is sent, beyond consensus lanes help
PARTS, MOST_PARTS = 8, 24  # of the rows of a client; up to MANY coordinates, one for each three of them
MOST = 300  # cuts, and one more for each coordinate up to MANY
RATIO = 4.0  # between the step lengths of two lanes
LATER = (8, 16, 32)  # rounds, after each of which there are two lanes more; beyond MANY, cuts would go too soon
FAST = 3  # the longest lane is so many times longer still, at most, if it won again and again
FURTHER = 1000.0 ** np.arange(1, 6)  # times the longest lane: steps that are tried in turn where all are too short
RISE, LEAST_RISE = 0.15, 1e-3  # of f, by the curvature: how high a point toward the model's minimum is in round 3; ever
LITTLE_PROVED = 0.1  # of f: such points are sent as long as the gap is larger
NOTHING, FALL = 0.01, 0.1  # of the gap, by which the model falls: steps are too short; one of those is long enough
LEFT = 1e-7  # of f: as long as the gap is larger; then it may be rounding that steps follow
LONGEST = 4.0  # the first t at most, with the whole curvature: f* may be far above 0, and t = 1 is Newton's step
FARTHEST = 1e8  # the same with its diagonal: at a minimum the slope is nothing but rounding, and Polyak's t any number
# In place of a lane's step length: the clients' own minimum; a consensus lane's mean; neither.
OWN, MEAN, PROBE = 0.0, -1.0, -2.0
LOST = 6  # exchanges, and one more for every eight coordinates, after which a box must have been found
BENDS = 0.5  # numbers of curvature asked for, at most, next to all other numbers
FIRST = 1e-3  # times the first curvature is in the metric
SAME = 1e-12
PROVED = 1e-10  # of f: a gap for which no probes are sent; rounding leaves some 1e-12
DONE = 1e-11  # of f: a gap for which nothing is done any more
AHEAD = 0.01  # of f: as long as more is not yet proved, the model is ahead of the points evaluated
NEXT_TO_NONE = 1e-6  # of f at x0: with a smaller gap it never is; where f* = 0 no percent is ever proved
SHORT = 2.0**-24  # relative: what a number of 24 significant bits is rounded by
LITTLE = 0.01  # of what steps are to gain: points have 24 bits as long as that costs no more
# In round 1: significant bits of slopes, of the clients' own H x - p, and of what slopes are sums of.
STEEP, OWN_BITS, SUMMED = 8, 12, 4


class Server(NamedTuple):
    """When round k begins. Of the points sent last: x, one after the other; the step length of each, relative to t; at
    which of them the curvature was asked for (-1: none). The best point evaluated; f there, and at x0 (infinity before
    round 1). The model after round 1. The cuts (:class:`fedmls.bounds.cuts.Cuts`). The metric; the first curvature, and
    the last one (none yet). t; in how many exchanges in a row the longest lane won; whether any point of the last one
    did. l2, l1, how many coordinates have them, and the floor. The lower bound. The numbers sent so far: of the
    curvature, and all others. f at the center around which probes were sent last. Rounds since a consensus lane won. Of
    these lanes, one after the other: z_{k-1}, x̄ of round k - 1, and μ (0: by the client's own guess). x0. The absolute
    values, in each coordinate, that slopes are sums of.

    Whether numbers may be rounded to grids; the units of these (:mod:`fedmls.algorithms._grids`), none where nothing is
    rounded. Between which points x* is.
    """

    x: Array
    lanes: Array
    asked: int
    center: Array
    f: float
    start: float
    own: Array
    g: Array
    e: Array
    part: Any
    used: Any
    blur: Array
    point: Array
    H: Array
    H0: Array
    bend: Array
    t: float
    streak: int
    won: int
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
    short: int
    profile: Array
    scales: Array
    low: Array
    high: Array


class Client(NamedTuple):
    """Nothing up to ``MANY`` coordinates. Beyond, of the consensus lanes, when round k begins: x̂^i_{k-1}, Y^i_{k-1},
    the μ of round k - 1 (infinite: no multiplier is to be learned from it), and p^i of the rows' slopes."""

    x: Array
    Y: Array
    mu: Array
    p: Array


class Down(NamedTuple):
    x: Array  # the points, or the first and the differences from one to the next in units of a grid
    points: int  # how many they are
    asked: int  # at which of them the curvature is wanted
    profile: Array  # this and the next: of the grids, empty without them
    scales: Array
    z: Array  # this and the next: of the consensus lanes, empty without them
    mu: Array


class Up(NamedTuple):
    f: Array  # of each part at each point; of all parts together where there are grids
    parts: Array  # in units of a grid, if there is one: by how much each part is above the parts' mean
    g: Array  # of each part at each point; at the first and differences, in units of a grid, if there is one
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
        numbers=("f", "parts", "H", "terms", "mu", "squares", "a", "profile", "scales"),
        proves=True,
        reads_all_rows=True,
        varying=True,
        short=True,
        reveals_objective=True,
    )
    lanes: int = 3

    def __post_init__(self) -> None:
        whole("lanes", self.lanes, most=100)

    def init(self, x0: Array, n: int) -> tuple[Server, Client]:
        d, none = len(x0), np.empty(0)
        lanes = consensus.LANES if d > MANY else 0
        z, mu = np.tile(x0, lanes), np.zeros(lanes)
        first = Server(
            x=x0,
            lanes=np.array([OWN]),
            asked=-1,
            center=x0,
            f=np.inf,
            start=np.inf,
            own=x0,
            **Cuts.none(d)._asdict(),
            H=none,
            H0=none,
            bend=none,
            t=1.0,
            streak=0,
            won=1,
            terms=np.zeros(5),
            bound=-np.inf,
            sent=np.zeros(2),
            probed=np.inf,
            idle=0,
            z=z,
            mean=z,
            mu=mu,
            x0=x0,
            summed=0 * x0,
            short=1,
            **_grids.NONE._asdict(),
            low=x0 - np.inf,
            high=x0 + np.inf,
        )
        return first, Client(z, 0 * z, mu + np.inf, 0 * z)

    def broadcast(self, k: int, server: Server, rng: np.random.Generator) -> tuple[Server, Down]:
        if k > 1 and not _is_done(server):
            server = _without_grids(server) if k > LOST + len(server.x0) // 8 and _is_lost(server) else server
            with one_thread():
                server = self._with_points(k, server)
        grids, x = _grids_of(server), server.x.reshape(len(server.lanes), -1)
        x = _grids.points_sent(grids, x) if grids else _sent(server.x)
        return server, Down(x, len(server.lanes), server.asked, server.profile, server.scales, server.z, server.mu)

    def client_round(self, k: int, client: Client, down: Down, local: Local) -> tuple[Client, Up]:
        grids = _grids_of(down)
        x, d = _grids.points_received(grids, down.x, down.points).ravel(), len(down.x) // down.points
        f, g = local.cuts(x, parts_of(d))
        none = f[..., :0]
        H = own = summed = terms = parts = none
        if k == 1:
            f, g = f.sum(axis=-1, keepdims=True), g.reshape(*g.shape[:-1], -1, d).sum(axis=-2)
            H, own, summed = local.own_quadratic(x, d <= MANY)
            terms = local.terms()
            g, H, own = _first_slopes(g, terms), first_curvature(H, d), rounded(own, OWN_BITS)
            summed, terms = rounded(summed, SUMMED, up=True), _exact(terms)
        elif down.asked >= 0:
            H = local.curvature(x[down.asked * d : (down.asked + 1) * d], d <= MANY)
        if grids:
            sizes = *f.shape[:-1], down.points, parts_of(d)
            f, parts, g, H = _grids.answers_sent(grids, f.reshape(sizes), g.reshape(*sizes, d), H)
        if not len(down.z) or not consensus.has_slopes(local):
            return client, Up(f, parts, g, H, own, summed, terms, none, none, none, none)
        client, squares = consensus.proximal(client, down, local)
        return client, Up(f, parts, g, H, own, summed, terms, client.x, squares, *local.cut())

    def server_round(self, k: int, server: Server, up: Up) -> Server:
        if _is_done(server):
            return server
        if k == 1:
            server = server._replace(terms=up.terms, summed=up.summed)
        if len(server.z):
            server = consensus.agreed(k, server, up) if len(up.z) else consensus.without(server)
        with one_thread():
            server = _evaluated(k, _with_first_curvature(server, up) if k == 1 else server, up)
            return _bounded(k, server if k == 1 else _with_metric(server, up))

    def model(self, server: Server) -> Array:
        if not np.isnan(self.objective(server)):
            return server.center
        with one_thread():
            return server.own if _is_first(server) else _ahead(server)

    def objective(self, server: Server) -> float:
        """f at the model, where it is known: not where the model is ahead of the points that were evaluated."""
        far = server.f - server.bound > max(AHEAD * abs(server.f), NEXT_TO_NONE * abs(server.start))
        unknown = not np.array_equal(server.own, server.center) if _is_first(server) else far and server.won
        return np.nan if unknown or np.isinf(server.f) else server.f

    def lower_bound(self, server: Server, radius: float, x0: Array) -> float:
        """What f is nowhere below; in the ball ‖x - x0‖ <= radius, where that is finite."""
        if not np.isfinite(radius) or not len(server.e):
            return server.bound
        cuts, terms = _cuts(server), _terms(server)
        gap = server.f - server.bound
        if _grids_of(server):
            if terms.l2 > 0 and np.linalg.norm(server.center - x0) > radius:
                return server.bound  # what is known of where the minimum is holds for the least in the ball no more
            low, high = (server.low, server.high) if terms.l2 == 0 else (x0 - radius, x0 + radius)
            ball = Box(np.maximum(low, x0 - radius), np.minimum(high, x0 + radius))
            found, _ = box.lower_bound(_model(server), server.bound, ball)
        else:
            exact = cuts.some(cuts.blur == 0)
            found = lower_bound(exact, _parts(server), terms, server.center, server.f, server.summed, gap, radius, x0)
        return max(server.bound, found.value)

    def units(self, down: Down) -> dict[str, Any]:
        grids = _grids_of(down)
        if not grids:
            return {}
        slopes = np.tile(grids.slopes, down.points * parts_of(len(down.x) // down.points))
        return {"parts": grids.heights, "g": slopes} | ({"H": grids.curvature} if down.asked >= 0 else {})

    def _with_points(self, k: int, server: Server) -> Server:
        """The points of round k, and at which of them the curvature is asked for."""
        server, found, gain = self._steps(k, server)
        points, lanes = [x for x, _ in found], [length for _, length in found]
        if self._needs_probes(server, points):
            points += _probes(server)
            lanes += [PROBE] * (len(points) - len(lanes))
            server = server._replace(probed=server.f)
        if self.lanes > 1:
            points += _toward_minimum(k, server)
            lanes += [PROBE] * (len(points) - len(lanes))
        if k == 2 and not np.array_equal(server.own, server.center):
            points, lanes = [server.own, *points], [OWN, *lanes]
        if len(server.z):
            points, lanes = [*points, *consensus.lanes(server.mean)], [*lanes, *[MEAN] * consensus.LANES]
        if not points:
            points, lanes = [server.center], [1.0]
        server, x = _on_grid(server, np.array(points), gain)
        bent, rest = server.sent[0], server.sent[1] + len(x) * (1 + _parts(server))
        asks = bool(bent + len(server.H) <= BENDS * rest)
        at = 0 if lanes[0] == OWN else max(0, (sum(length > 0 for length in lanes) - 1) // 2)
        sent = np.array([bent + asks * len(server.H), rest])
        return server._replace(x=x, lanes=np.array(lanes), asked=at if asks else -1, sent=sent)

    def _steps(self, k: int, server: Server) -> tuple[Server, list[tuple[Array, float]], float]:
        """The proximal step of each lane, with its length relative to t: those that are not the same; and what the
        model falls by in the best of them, at least. Cuts without use are dropped."""
        terms, cuts = _terms(server), _cuts(server)
        H, found = unpacked(server.H, terms.dimension), list[tuple[Array, float]]()
        main, gain, low = np.zeros(len(cuts.e)), 0.0, _lowered(server)
        heights = _heights(server, low)

        def steps(lengths: Iterable[float]) -> Iterator[tuple[float, Step]]:
            about = length_for(server.f - server.bound)
            for length in lengths:
                step = proximal_point(low, server.center, heights, terms.ridge, H, server.t * length, about)
                if step is not None:
                    about = step.length
                    yield float(length), step

        more = sum(k > late for late in LATER) if self.lanes > 1 and terms.dimension <= MANY else 0
        lanes = self.lanes + 2 * more
        lengths = RATIO ** (np.arange(lanes) - (lanes - 1) / 2)
        if lanes > 1:
            lengths[-1] *= RATIO ** min(max(0, server.streak - 1), FAST)
        tried = list(steps(lengths))
        near = [step for _, step in tried]
        if _too_short(server, near) and not self._needs_probes(server, [step.x for step in near]):
            tried += _far_enough(server, steps(lengths[-1] * FURTHER))
        for length, step in tried:
            cuts, gain = cuts.marked(step.weights, k), max(gain, step.length**2 / 2)
            main = step.weights if length <= 1 or not found else main
            if not any(_same(step.x - x, H + shaped(terms.ridge, H), server.f) for x, _ in found):
                found.append((step.x, length))
        most = MOST + (terms.dimension if terms.dimension <= MANY else 0)
        cuts = cuts.pruned(most, main, k, _blur_of_one(server), ROUNDING * server.summed)
        return server._replace(**cuts._asdict()), found, gain

    def _needs_probes(self, server: Server, points: list[Array]) -> bool:
        """Whether steps lead to less than two points, and there is still something to prove."""
        return _stand(server, points, min(2, self.lanes)) and _unproved(server)


def parts_of(d: int) -> int:
    """How many parts there are in so many coordinates: the more cuts an exchange brings, the sooner they span."""
    return PARTS if d > MANY else min(max(PARTS, d // 3), MOST_PARTS)


def _parts(server: Server) -> int:
    return parts_of(len(server.center))


def _grids_of(message: Any) -> Grids:
    """The grids that the server's state or what it sends names."""
    return Grids(message.profile, message.scales)


def _on_grid(server: Server, points: Array, gain: float) -> tuple[Server, Array]:
    """The points, one after the other, rounded as they are to be sent, by new units if there are grids."""
    if not _grids_of(server):
        return server, _rounded(points, server.summed, gain)
    gap, moves = server.f - server.bound, points - server.center
    steep = np.diag(unpacked(server.H, points.shape[1])) + _terms(server).ridge
    scales = _grids.scales(server.profile, _terms(server), server.f, gap, gain, moves, server.summed, points, steep)
    server = server._replace(scales=scales)
    unit = _grids_of(server).points
    return server, (unit * np.rint(points / unit)).ravel()


def _blur_of_one(server: Server) -> Array | None:
    """By how much slopes with a blur of 1 may be off."""
    return 2.0**server.profile if _grids_of(server) else None


def _sent(x: Array) -> Any:
    """The points as whole numbers, or as float32, if that is what they are."""
    if (np.abs(x) < 2**52).all() and (x == np.rint(x)).all():
        return x.astype(np.int64)
    short = x.astype(np.float32)
    return short if (short == x).all() else x


def _rounded(points: Array, summed: Array, gain: float) -> Array:
    """The points, one after the other, with 24 bits if f hardly differs there, next to what is to gain."""
    x = points.ravel()
    costs = SHORT * float((np.abs(points) @ summed).max())
    return x.astype(np.float32).astype(float) if costs <= LITTLE * gain else x


def _exact(values: Array) -> Any:
    """The values in as few bits as take nothing from them."""
    short = (rounded(values, bits) for bits in (8, 16, 24))
    return next((each for each in short if np.array_equal(each, values)), values)


def _first_slopes(g: Array, terms: Array) -> Any:
    """Those of round 1, short, unless they are of functions, of which nobody knows what they are sums of."""
    return rounded(g, STEEP) if np.isfinite(terms[..., 3]).all() else g


def _is_done(server: Server) -> bool:
    """Whether the center is proved to be the minimum, but for rounding; it alone is sent from then on."""
    return bool(server.f < np.inf and server.f - server.bound <= DONE * abs(server.f))


def _is_first(server: Server) -> bool:
    """Whether only x0 has been evaluated."""
    return len(server.lanes) == 1 and bool(server.lanes[0] == OWN)


def _ahead(server: Server) -> Array:
    """Newton's step from the best point, by the cuts and the curvature together, or a shorter one if such did well."""
    terms, about, t = _terms(server), length_for(server.f - server.bound), min(1.0, server.t)
    H, low = unpacked(server.H, terms.dimension), _lowered(server)
    step = proximal_point(low, server.center, _heights(server, low), terms.ridge, H, t, about)
    return server.center if step is None else step.x


def _stand(server: Server, points: Iterable[Array], few: int = 1) -> bool:
    """Whether fewer than so many of the points, all different, are away from the center."""
    H = unpacked(server.H, len(server.center))
    metric = H + shaped(_terms(server).ridge, H)
    return sum(not _same(x - server.center, metric, server.f) for x in points) < few


def _too_short(server: Server, steps: list[Step]) -> bool:
    """Whether the model falls by next to nothing in all of these; if nothing is proved, whether they lead nowhere."""
    gap, floor = server.f - server.bound, _parts(server) * _terms(server).floor
    if not np.isfinite(floor) or gap <= LEFT * abs(server.f):
        return False
    if server.bound <= floor:
        return _stand(server, [step.x for step in steps])
    return all(step.length**2 / 2 < NOTHING * gap for step in steps)


def _far_enough(server: Server, steps: Iterable[tuple[float, Step]]) -> list[tuple[float, Step]]:
    """The first of these, each longer than the last, by which the model falls by much of what is left; where nothing is
    proved, the first that leads somewhere. None if there is none. No farther than where the minimum may be, or where f
    doubles by the curvature: slopes from there would be so large that their rounding spoils all later proofs."""
    terms, gap = _terms(server), server.f - server.bound
    proved, H = server.bound > _parts(server) * terms.floor, unpacked(server.H, terms.dimension)
    for length, step in steps:
        square = _square(step.x - server.center, H + shaped(terms.ridge, H))
        doubles = float(np.sqrt(2 * abs(server.f) / max(square, 1e-300)))
        share = min(_share_inside(server, step.x - server.center), doubles)
        if share * step.length**2 / 2 >= FALL * gap if proved else not _stand(server, [step.x]):
            return [(length, step._replace(x=server.center + share * (step.x - server.center)))]
    return []


def _share_inside(server: Server, move: Array) -> float:
    """How much of a move from the center stays in the box; rounded slopes say nothing of what is outside."""
    room = np.where(move > 0, server.high - server.center, server.center - server.low)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(move != 0, np.maximum(room, 0.0) / np.abs(move), 1.0)
    return float(min(1.0, shares.min()))


def _same(move: Array, H: Array, f: float) -> bool:
    """Whether two points are so close that f hardly differs."""
    return _square(move, H) <= SAME * abs(f)


def _square(move: Array, H: Array) -> float:
    """Of the move's length, by a matrix or by the diagonal of one."""
    return float(move @ (H @ move if H.ndim == 2 else H * move))


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


def _toward_minimum(k: int, server: Server) -> list[Array]:
    """As long as little is proved: a point on the way to the model's minimum, in every round nearer to the center.

    The bound is the model's minimum, and cuts around the best point, where steps lead, do not hold it up elsewhere.
    """
    terms, rise = _terms(server), RISE * 2.0 ** (3 - k)
    proved = server.f - server.bound <= LITTLE_PROVED * abs(server.f)
    if k < 3 or rise < LEAST_RISE or proved or terms.dimension > MANY or not np.isfinite(terms.floor):
        return []
    low, H = _lowered(server), unpacked(server.H, terms.dimension)
    step = proximal_point(low, server.center, _heights(server, low), terms.ridge, H, server.t * FURTHER[1])
    if step is None:
        return []
    move, metric = step.x - server.center, H + shaped(terms.ridge, H)
    share = float(np.sqrt(2 * rise * abs(server.f) / max(_square(move, metric), 1e-300)))
    return [server.center + share * move] if share < 1 else []


def _cuts(server: Server) -> Cuts:
    return Cuts(server.g, server.e, server.part, server.used, server.blur, server.point)


def _lowered(server: Server) -> Cuts:
    """The cuts, none of them above f at the center: rounded slopes may make them so."""
    cuts = _cuts(server)
    if not _grids_of(server):
        return cuts
    return cuts._replace(e=cuts.e - cuts.blur * (np.abs(cuts.point - server.center) @ 2.0**server.profile))


def _heights(server: Server, cuts: Cuts) -> Array:
    """Of the parts at the center, an l1 term being one more, up to what goes from one part to another."""
    terms = _terms(server)
    return cuts.heights(server.center, _parts(server) + (terms.l1 > 0), server.f - terms.quadratic(server.center))


def _model(server: Server) -> box.Model:
    profile, rest = 2.0**server.profile, ROUNDING * np.maximum(server.summed, largest(server.g))
    return box.Model(_cuts(server), _parts(server), _terms(server), profile, rest, server.center, server.f)


def _terms(server: Server) -> Terms:
    l2, l1, penalised, floor, summed = server.terms.tolist()
    return Terms(l2, l1, round(penalised), floor, len(server.center), summed)


def _with_metric(server: Server, up: Up) -> Server:
    """The metric: the last curvature, and a little of the first one, for directions in which there is none now."""
    d, grids = len(server.center), _grids_of(server)
    bend = up.H * grids.curvature + grids.curvature_lost if grids and len(up.H) else up.H
    if len(bend) and trace(bend, d) > 0:
        server = server._replace(bend=bend)
    if not len(server.bend) or (grids and not len(up.H)):
        return server
    share = FIRST * ratio(server.bend, server.H0, d)
    if grids:
        return server._replace(H=definite(server.bend + share * server.H0, d))
    return server._replace(H=definite(server.bend + share * without_rounding(server.H0, server.g), d, d * TRUE))


def _with_first_curvature(server: Server, up: Up) -> Server:
    """The first curvature, the minimum of the clients' quadratic models, and the grids' profile."""
    d, terms, H = len(server.center), _terms(server), up.H
    total = trace(H, d) if len(H) else 0.0
    if not total > 0:
        plain = packed(np.eye(d)) if d <= MANY else np.ones(d)
        return server._replace(H=plain, H0=plain)
    if server.short:
        server = _with_grids(server, _grids.profile(unpacked(H, d), terms, float(up.f.sum()), up.summed))
    H = unpacked(definite(H, d), d)
    if H.ndim == 1:
        H = np.where(H > 0, H, total / d)
    bent = H + shaped(terms.ridge, H)
    own = np.linalg.solve(bent, up.own) if H.ndim == 2 else up.own / bent
    return server._replace(H=packed(H), H0=packed(H), own=np.asarray(own) if np.isfinite(own).all() else server.center)


def _with_grids(server: Server, profile: Any) -> Server:
    """From round 2 on, unless the profile is empty. Cuts then have a point where they are exact all the same."""
    if not len(profile):
        return server
    return server._replace(profile=profile, scales=np.zeros(3, np.int64), point=np.empty((0, len(profile))))


def _without_grids(server: Server) -> Server:
    """The grids given up: nobody knows in which box the minimum is, and if there is none, as of a classifier that sets
    one group apart, slopes must be exact. Cuts so far are kept for one more step."""
    e = _lowered(server).e
    return server._replace(**_grids.NONE._asdict(), e=e, point=np.empty((len(e), 0)))


def _is_lost(server: Server) -> bool:
    free = _terms(server).ridge == 0
    return bool(_grids_of(server)) and not np.isfinite(server.high - server.low)[free].all()


def _evaluated(k: int, server: Server, up: Up) -> Server:
    """The new cuts; the best point; and the step length, by whether a lane improved on the last one."""
    terms, points = _terms(server), server.x.reshape(len(server.lanes), -1)
    loss, tops, slopes = _answers(k, server, up, points)
    f = loss + [terms.quadratic(x) for x in points]
    summed = np.maximum(server.summed, largest(slopes.reshape(-1, terms.dimension)))
    cuts = _with_cuts(k, server, up, points, tops, slopes, summed)
    best = int(np.argmin(f))
    long = f[best] < server.f and server.lanes[best] == server.lanes.max() > 1
    t, streak = _length(k, server, f, slopes), server.streak + 1 if long else 0
    won = int(f[best] < server.f)
    server = server._replace(summed=summed, t=t, streak=streak, won=won, **cuts._asdict())
    if k == 1:
        server = server._replace(start=f[0])
    server = consensus.patient(server, f[best] < server.f and server.lanes[best] == MEAN)
    return server._replace(center=points[best], f=float(f[best])) if f[best] < server.f else server


def _with_cuts(k: int, server: Server, up: Up, points: Array, tops: Array, slopes: Array, summed: Array) -> Cuts:
    """The cuts, and those of round k: of each part at each point; in round 1 of all parts, and that no part is below
    the floor. Where slopes are exact from now on, those that are not are dropped: far from their points they may be
    above f."""
    terms, d, cuts = _terms(server), points.shape[1], _cuts(server)
    if k > 1 and not _grids_of(server):
        cuts = cuts.some(cuts.blur == 0)
    parts = _parts(server) + (terms.l1 > 0)
    if k == 1 and np.isfinite(terms.floor):
        cuts = cuts.and_more(np.zeros((parts, d)), np.full(parts, terms.floor), np.arange(parts), k)
    e = (tops - np.einsum("lbd,ld->lb", slopes, points) - _rounding(terms, points, tops, summed)).ravel()
    part = np.array([ALL]) if k == 1 else np.tile(np.arange(parts), len(points))
    at, some = np.repeat(points, len(part) // len(points), axis=0), np.isfinite(e)
    if not some.all():
        slopes, e, part, at = slopes.reshape(-1, d)[some], e[some], part[some], at[some]
    cuts = cuts.and_more(slopes.reshape(-1, d), e, part, k, _blur(k, server), at)
    if not len(up.p) or terms.l1 > 0:
        return cuts
    return cuts.and_more(up.p[None], up.a - _rounding(terms, server.center[None], up.a, summed)[0], np.array([ALL]), k)


def _answers(k: int, server: Server, up: Up, points: Array) -> tuple[Array, Array, Array]:
    """The loss at each point; and for each part, in round 1 for all together, heights no higher than it, and slopes. An
    l1 term is one more part, which the server knows itself."""
    terms, (L, d) = _terms(server), points.shape
    grids = _grids_of(server)
    if k > 1 and grids:
        return up.f, *_grids.answers_received(grids, up.f, up.parts, up.g, _parts(server))
    heights, slopes = up.f.reshape(L, -1), up.g.reshape(L, -1, d)
    if terms.l1 > 0:
        penalised = points * (np.arange(d) < terms.penalised)
        height, slope = terms.l1 * np.abs(penalised).sum(axis=1)[:, None], terms.l1 * np.sign(penalised)[:, None]
        heights = heights + height if k == 1 else np.hstack([heights, height])
        slopes = slopes + slope if k == 1 else np.hstack([slopes, slope])
    return heights.sum(axis=1), heights, slopes


def _blur(k: int, server: Server) -> float:
    """How far the slopes of round k may be off. Those of the first one are short; without a profile, any number but 0
    says so."""
    if k == 1:
        share = 2.0**-STEEP * server.summed
        return float((share / 2.0**server.profile).max()) if len(server.profile) else float(share.max())
    return 2.0 ** (int(server.scales[0]) - 1) if len(server.profile) else 0.0


def _rounding(terms: Terms, points: Array, heights: Array, summed: Array) -> Array:
    """How much a cut may be too high by rounding alone: much, if its point is far away in a direction in which f is
    nearly flat, where large products nearly cancel.
    """
    return np.asarray(ROUNDING * (np.abs(heights) + (np.abs(points) @ summed)[:, None] + terms.summed))


def _length(k: int, server: Server, f: Array, slopes: Array) -> float:
    """t after the round: Polyak's for f* = 0 in the first one, within limits; that of the best lane if it improved,
    twice that of an only one; else half, or a quarter of what is longer than Newton's step. That of Newton's step again
    if steps have become too short to lead anywhere."""
    terms, H = _terms(server), unpacked(server.H, len(server.center))
    if k == 1:
        g = slopes[0].sum(axis=0) + terms.ridge * server.x
        steep = g @ np.linalg.solve(H + np.diag(terms.ridge), g) if H.ndim == 2 else g @ (g / (H + terms.ridge))
        most = LONGEST if terms.dimension <= MANY else FARTHEST
        most = most if np.isfinite(terms.floor) else np.inf  # functions have no curvature, and t a unit
        return min(float(2 * abs(f[0]) / steep), most) if steep > 0 and f[0] else 1.0
    steps = server.lanes > 0
    best = int(np.argmin(f))
    if not steps.any() or (f[best] < server.f and server.lanes[best] == OWN):
        return 1.0  # with the curvature as metric it is Newton's step
    lane = int(np.argmin(np.where(steps, f, np.inf)))
    if f[lane] < server.f:
        return server.t * float(server.lanes[lane]) * (2.0 if server.lanes[steps].tolist() == [1.0] else 1.0)
    has_curvature = np.isfinite(terms.floor)  # functions in place of rows have neither
    points = server.x.reshape(len(server.lanes), -1)[steps]
    if has_curvature and _stand(server, points):
        return 1.0
    return max(server.t / (4.0 if has_curvature and server.t > 1 else 2.0), 1e-60)


def _bounded(k: int, server: Server) -> Server:
    """The best lower bound so far, and its cuts marked as used. When that is all, the center is what is sent."""
    cuts, terms = _cuts(server), _terms(server)
    if _grids_of(server):
        bound = max(server.bound, _parts(server) * terms.floor)
        found, (low, high) = box.lower_bound(_model(server), bound, Box(server.low, server.high))
        server = server._replace(bound=bound, low=low, high=high)
    else:
        exact, gap, weights = cuts.blur == 0, server.f - server.bound, np.zeros(len(cuts.e))
        found = lower_bound(cuts.some(exact), _parts(server), terms, server.center, server.f, server.summed, gap)
        weights[exact] = found.weights
        found = found._replace(weights=weights)
    server = server._replace(bound=max(server.bound, found.value), used=cuts.marked(found.weights, k).used)
    if not _is_done(server):
        return server
    last: Server = consensus.without(server._replace(x=server.center, lanes=np.array([1.0]), asked=-1))
    return last
