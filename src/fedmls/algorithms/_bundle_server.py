"""What FedMLS-B's server keeps (see ``fedmlsb.py``), and what is read off it."""

from typing import Any, NamedTuple

import numpy as np

from fedmls.algorithms._grids import Grids
from fedmls.algorithms._metric import shaped
from fedmls.bounds import box
from fedmls.bounds.cuts import Cuts, Terms
from fedmls.bounds.rounding import ROUNDING
from fedmls.local.curvature import unpacked
from fedmls.types import Array

MANY = 200  # coordinates: up to so many the whole curvature is sent, beyond consensus lanes help
PARTS, MOST_PARTS = 8, 24  # of the rows of a client; up to MANY coordinates, one for each three of them
DONE = 1e-11  # of f: a gap for which nothing is done any more
# In place of a lane's step length: the clients' own minimum; a consensus lane's mean; neither.
OWN, MEAN, PROBE = 0.0, -1.0, -2.0


class Server(NamedTuple):
    """When round k begins. Of the points sent last: x, one after the other; the step length of each, relative to t; at
    which of them the curvature was asked for (-1: none). The best point evaluated; f there, and at x0 (infinity before
    round 1). The model after round 1. The cuts (:class:`fedmls.bounds.cuts.Cuts`). The metric; the first curvature, and
    the last one (none yet). t; in how many exchanges in a row the longest lane won; whether any point of the last one
    did. The numbers of :class:`fedmls.bounds.cuts.Terms`, but for the dimension. The lower bound. The numbers sent so
    far: of the curvature, and all others. f at the center around which probes were sent last. Rounds since a consensus
    lane won. Of these lanes, one after the other: z_{k-1}, x̄ of round k - 1, and μ (0: by the client's own guess). x0.
    The absolute values, in each coordinate, that slopes are sums of.

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

    @property
    def points(self) -> Array:
        """Those sent last, one in each row."""
        return self.x.reshape(len(self.lanes), -1)

    @property
    def known(self) -> Terms:
        """What f has besides its loss."""
        l2, l1, penalised, floor, summed = self.terms.tolist()
        return Terms(l2, l1, round(penalised), floor, len(self.center), summed)

    @property
    def parts(self) -> int:
        return parts_of(len(self.center))

    @property
    def grids(self) -> Grids:
        return grids_of(self)

    @property
    def gap(self) -> float:
        """What may be left: f at the best point less the lower bound."""
        return self.f - self.bound

    @property
    def metric(self) -> Array:
        """H as a matrix, or the diagonal of one."""
        return unpacked(self.H, len(self.center))

    @property
    def bent(self) -> Array:
        """The metric and the l2 term's curvature together."""
        metric = self.metric
        return metric + shaped(self.known.ridge, metric)

    @property
    def cuts(self) -> Cuts:
        return Cuts(self.g, self.e, self.part, self.used, self.blur, self.point)

    @property
    def lowered(self) -> Cuts:
        """The cuts, none of them above f at the center: rounded slopes may make them so."""
        cuts = self.cuts
        if not self.grids:
            return cuts
        return cuts._replace(e=cuts.e - cuts.blur * (np.abs(cuts.point - self.center) @ 2.0**self.profile))

    def heights(self, cuts: Cuts) -> Array:
        """Of the parts at the center, an l1 term being one more, up to what goes from one part to another."""
        known = self.known
        return cuts.heights(self.center, self.parts + (known.l1 > 0), self.f - known.quadratic(self.center))

    @property
    def box_model(self) -> box.Model:
        """The cuts with rounded slopes, as :mod:`fedmls.bounds.box` takes them."""
        rest = ROUNDING * self.summed
        return box.Model(self.cuts, self.parts, self.known, 2.0**self.profile, rest, self.center, self.f)

    @property
    def is_first(self) -> bool:
        """Whether only x0 has been evaluated."""
        return len(self.lanes) == 1 and bool(self.lanes[0] == OWN)

    @property
    def is_done(self) -> bool:
        """Whether the center is proved to be the minimum, but for rounding; it alone is sent from then on."""
        return bool(self.f < np.inf and self.gap <= DONE * abs(self.f))

    @property
    def is_lost(self) -> bool:
        """Whether there are grids, and it is not known in which box the minimum is."""
        free = self.known.ridge == 0
        return bool(self.grids) and not np.isfinite(self.high - self.low)[free].all()


def parts_of(d: int) -> int:
    """How many parts there are in so many coordinates: the more cuts an exchange brings, the sooner they span."""
    return PARTS if d > MANY else min(max(PARTS, d // 3), MOST_PARTS)


def grids_of(message: Any) -> Grids:
    """The grids that the server's state or what it sends names."""
    return Grids(message.profile, message.scales)
