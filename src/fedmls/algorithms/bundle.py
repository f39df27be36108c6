"""Bundle: the level method of Lemaréchal, Nemirovskii, Nesterov, "New variants of bundle methods" (Math. Prog. 1995),
with cuts of every client of their own (multi-cut).

The server sends x_k; every client answers with w_i f_i(x_k) and w_i g_i(x_k), which make a cut: w_i f_i(x) is nowhere
below w_i (f_i(x_k) + <g_i(x_k), x - x_k>). The sum over clients of their highest cuts is a model of f from below. Its
minimum over a box around x0 is a lower bound f_low on f there; x_{k+1} is the projection of x_k onto the points of the
box where the model is at most f_low + level (f_best - f_low). One vector down, a vector and a number up.

Few rounds in few dimensions; at worst O((D0 G/ε)²) rounds, and a server's problem that grows with clients and cuts. The
server sees every client's upload, so secure aggregation is out. Values and subgradients are exact: mini-batches are not
used. Where we differ from the paper: several cuts a round, ``max_cuts``, and a box that the user must choose.
"""

from typing import ClassVar, NamedTuple, Self

import numpy as np

from fedmls.checks import positive, whole
from fedmls.hyperparameters import hyperparameters
from fedmls.types import Algorithm, Array, Local, Scale, Traits


class Server(NamedTuple):
    """When round k begins: x_k (x0 in round 1), not yet evaluated; the best of x_1, ..., x_{k-1} and f there (x0 and
    infinity before round 1); the lower bound; x0; the cuts of client i, w_i f_i(x) >= b[i, j] + g[i, j]·x, oldest
    first; and how much the server's last problem used each of them.
    """

    x: Array
    best: Array
    f_best: float
    f_low: float
    x0: Array
    g: Array
    b: Array
    use: Array


class Client(NamedTuple):
    """A client keeps nothing."""


class Down(NamedTuple):
    x: Array


class Up(NamedTuple):
    f: Array  # one number, w_i f_i(x)
    g: Array  # w_i g_i(x)


@hyperparameters
class Bundle(Algorithm[Server, Client, Down, Up]):
    """radius: |x - x0| <= radius holds in every coordinate; a minimiser outside of the box is not found.

    level: between 0 (the model's minimiser: Kelley's method) and 1; the paper's λ, for which it proves 0.29 the best.
    max_cuts: how many cuts are kept per client; then the least used one goes, and the bound stays.
    The model after round k is the best of the points sent in rounds 1, ..., k.
    """

    name: ClassVar[str] = "bundle"
    traits: ClassVar[Traits] = Traits(aggregate="stack", reveals_objective=True)
    radius: float = 10.0
    level: float = 0.3
    max_cuts: int = 100

    def __post_init__(self) -> None:
        positive("radius", self.radius)
        if not positive("level", self.level) < 1:
            raise ValueError(f"level is {self.level!r}; take it between 0 and 1, e.g. 0.3")
        whole("max_cuts", self.max_cuts, least=2)

    @classmethod
    def fair_start(cls, scale: Scale) -> Self:
        return cls(radius=1000 * scale.reach)  # a generous box costs few rounds

    def init(self, x0: Array, n: int) -> tuple[Server, Client]:
        no_cuts = np.empty((n, 0))
        return Server(x0, x0, np.inf, -np.inf, x0, np.empty((n, 0, len(x0))), no_cuts, no_cuts), Client()

    def broadcast(self, k: int, server: Server, rng: np.random.Generator) -> tuple[Server, Down]:
        return server, Down(server.x)

    def client_round(self, k: int, client: Client, down: Down, local: Local) -> tuple[Client, Up]:
        f = local.value(down.x)[..., None]  # one column, as a vector of one number
        return client, Up(local.weight * f, local.weight * local.subgradient(down.x))

    def server_round(self, k: int, server: Server, up: Up) -> Server:
        from fedmls.bounds.bundle_master import (  # with SciPy's sparse arrays, which take a while to load
            BundleModel,
            next_point,
            with_cuts,
        )

        f = float(up.f.sum())
        best, f_best = (server.x, f) if f < server.f_best else (server.best, server.f_best)
        at_zero = up.f[:, 0] - up.g @ server.x
        g, b = with_cuts(server.g, server.b, server.use, up.g, at_zero, self.max_cuts)
        model = BundleModel(g, b, server.x0, self.radius)
        x, f_low, use = next_point(model, server.x, f_best, server.f_low, self.level)
        return Server(x, best, f_best, f_low, server.x0, g, b, use)

    def model(self, server: Server) -> Array:
        return server.best
