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
as soon as the cuts span, and f* is never below it, but for what docs/theory.md says of rounding. Steps lead to where f
is low, and cuts from there span late; so as long as less than a tenth is proved, one more point is on the way to the
model's minimum, in every round nearer to the center. Rounded cuts hold only where the minimum may be, and tell
themselves where that is (:mod:`fedmls.bounds.box`).

Proved (docs/theory.md): convergence of the proximal bundle for a fixed range of t, whatever the metric between two
bounds; the lower bound, in every exchange. Measured: all that is said of few exchanges.

Down L vectors, up L B vectors and the curvature; in the first exchange up one cut, of all parts together, and two more
vectors. All rows are read, whatever the batch: L + 1 times in an exchange, up to 100 times more in the first one, and
with consensus lanes 60 times more in each.

Here are the messages, and what becomes of the answers; ``_bundle_server.py`` has what the server keeps, and
``_bundle_points.py`` how it takes the next points.
"""

from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedmls.algorithms import _consensus as consensus
from fedmls.algorithms import _grids
from fedmls.algorithms._bundle_points import ahead, length_after, with_points
from fedmls.algorithms._bundle_server import MANY, MEAN, OWN, Server, grids_of, parts_of
from fedmls.algorithms._metric import TRUE, definite, first_curvature, ratio, shaped, trace, without_rounding
from fedmls.bounds import box
from fedmls.bounds.box import Box
from fedmls.bounds.cut_bound import lower_bound
from fedmls.bounds.cuts import ALL, Cuts, Terms, largest
from fedmls.bounds.rounding import ROUNDING
from fedmls.checks import whole
from fedmls.hyperparameters import hyperparameters
from fedmls.local.curvature import packed, unpacked
from fedmls.threads import one_thread
from fedmls.types import Algorithm, Array, Local, Traits
from fedmls.wire import exactly, rounded

LOST = 6  # exchanges, and one more for every eight coordinates, after which a box must have been found
FIRST = 1e-3  # times the first curvature is in the metric
AHEAD = 0.01  # of f: as long as more is not yet proved, the model is ahead of the points evaluated
NEXT_TO_NONE = 1e-6  # of f at x0: with a smaller gap it never is; where f* = 0 no percent is ever proved
# In round 1: significant bits of slopes, of the clients' own H x - p, and of what slopes are sums of.
STEEP, OWN_BITS, SUMMED = 8, 12, 4


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
        if k > 1 and not server.is_done:
            server = _without_grids(server) if k > LOST + len(server.x0) // 8 and server.is_lost else server
            with one_thread():
                server = with_points(k, server, self.lanes)
        grids, x = server.grids, server.points
        x = _grids.points_sent(grids, x) if grids else exactly(server.x)
        return server, Down(x, len(server.lanes), server.asked, server.profile, server.scales, server.z, server.mu)

    def client_round(self, k: int, client: Client, down: Down, local: Local) -> tuple[Client, Up]:
        grids = grids_of(down)
        x, d = _grids.points_received(grids, down.x, down.points).ravel(), len(down.x) // down.points
        f, g = local.cuts(x, parts_of(d))
        none = f[..., :0]
        H = own = summed = terms = parts = none
        if k == 1:
            f, g = f.sum(axis=-1, keepdims=True), g.reshape(*g.shape[:-1], -1, d).sum(axis=-2)
            H, own, summed = local.own_quadratic(x, d <= MANY)
            terms = local.terms()
            g, H, own = _first_slopes(g, terms), first_curvature(H, d), rounded(own, OWN_BITS)
            summed, terms = rounded(summed, SUMMED, up=True), exactly(terms)
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
        if server.is_done:
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
            return server.own if server.is_first else ahead(server)

    def objective(self, server: Server) -> float:
        """f at the model, where it is known: not where the model is ahead of the points that were evaluated."""
        far = server.gap > max(AHEAD * abs(server.f), NEXT_TO_NONE * abs(server.start))
        unknown = not np.array_equal(server.own, server.center) if server.is_first else far and server.won
        return np.nan if unknown or np.isinf(server.f) else server.f

    def lower_bound(self, server: Server, radius: float, x0: Array) -> float:
        """What f is nowhere below; in the ball ‖x - x0‖ <= radius, where that is finite."""
        if not np.isfinite(radius) or not len(server.e):
            return server.bound
        cuts, terms = server.cuts, server.known
        gap = server.gap
        if server.grids:
            if terms.l2 > 0 and np.linalg.norm(server.center - x0) > radius:
                return server.bound  # what is known of where the minimum is holds for the least in the ball no more
            low, high = (server.low, server.high) if terms.l2 == 0 else (x0 - radius, x0 + radius)
            ball = Box(np.maximum(low, x0 - radius), np.minimum(high, x0 + radius))
            found, _ = box.lower_bound(server.box_model, server.bound, ball)
        else:
            exact = cuts.some(cuts.blur == 0)
            found = lower_bound(exact, server.parts, terms, server.center, server.f, server.summed, gap, radius, x0)
        return max(server.bound, found.value)

    def units(self, down: Down) -> dict[str, Any]:
        grids = grids_of(down)
        if not grids:
            return {}
        slopes = np.tile(grids.slopes, down.points * parts_of(len(down.x) // down.points))
        return {"parts": grids.heights, "g": slopes} | ({"H": grids.curvature} if down.asked >= 0 else {})


def _first_slopes(g: Array, terms: Array) -> Any:
    """Those of round 1, short, unless they are of functions, of which nobody knows what they are sums of."""
    return rounded(g, STEEP) if np.isfinite(terms[..., 3]).all() else g


def _with_metric(server: Server, up: Up) -> Server:
    """The metric: the last curvature, and a little of the first one, for directions in which there is none now."""
    d, grids = len(server.center), server.grids
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
    d, terms, H = len(server.center), server.known, up.H
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
    e = server.lowered.e
    return server._replace(**_grids.NONE._asdict(), e=e, point=np.empty((len(e), 0)))


def _evaluated(k: int, server: Server, up: Up) -> Server:
    """The new cuts; the best point; and the step length, by whether a lane improved on the last one."""
    terms, points = server.known, server.points
    loss, tops, slopes = _answers(k, server, up, points)
    f = loss + [terms.quadratic(x) for x in points]
    summed = np.maximum(server.summed, largest(slopes.reshape(-1, terms.dimension)))
    cuts = _with_cuts(k, server, up, points, tops, slopes, summed)
    best = int(np.argmin(f))
    long = f[best] < server.f and server.lanes[best] == server.lanes.max() > 1
    t, streak = length_after(k, server, f, slopes), server.streak + 1 if long else 0
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
    terms, d, cuts = server.known, points.shape[1], server.cuts
    if k > 1 and not server.grids:
        cuts = cuts.some(cuts.blur == 0)
    parts = server.parts + (terms.l1 > 0)
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
    terms, (L, d) = server.known, points.shape
    grids = server.grids
    if k > 1 and grids:
        return up.f, *_grids.answers_received(grids, up.f, up.parts, up.g, server.parts)
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


def _bounded(k: int, server: Server) -> Server:
    """The best lower bound so far, and its cuts marked as used. When that is all, the center is what is sent."""
    cuts, terms = server.cuts, server.known
    if server.grids:
        bound = max(server.bound, server.parts * terms.floor)
        found, (low, high) = box.lower_bound(server.box_model, bound, Box(server.low, server.high))
        server = server._replace(bound=bound, low=low, high=high)
    else:
        exact, gap, weights = cuts.blur == 0, server.gap, np.zeros(len(cuts.e))
        found = lower_bound(cuts.some(exact), server.parts, terms, server.center, server.f, server.summed, gap)
        weights[exact] = found.weights
        found = found._replace(weights=weights)
    server = server._replace(bound=max(server.bound, found.value), used=cuts.marked(found.weights, k).used)
    if not server.is_done:
        return server
    last: Server = consensus.without(server._replace(x=server.center, lanes=np.array([1.0]), asked=-1))
    return last
