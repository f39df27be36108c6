"""FedComLoc: Yi, Meinhardt, Condat, Richtárik, "FedComLoc: Communication-Efficient Distributed Training of Sparse and
Quantized Models" (TMLR 2025; arXiv 2024), Algorithm 1.

Scaffnew with a compressor C, which keeps the largest entries or rounds them all to a few bits. Local steps are
x̂_i = x_i - η_t (g_i(x_i) - h_i); when the clients meet, x_i = x̄ and h_i ← h_i + (p_t/η_t)(x̄ - x̂_i). By ``where``

    "upload"    x̄ = Σ w_i C(x̂_i)              the paper's FedComLoc-Com
    "download"  x̄ = C(Σ w_i x̂_i)              FedComLoc-Global
    "gradient"  g_i is taken at C(x_i)         FedComLoc-Local, where nothing that is sent is smaller.

One vector down, one up, one of them compressed. With level = 1 nothing is, and it is Scaffnew. Invariant then, and with
"gradient": Σ w_i h_i = 0. What C leaves out of the model is lost, so that in general it only comes near the minimum.

Where we differ from the paper: a round is the time between two meetings and a client learns x̄ when the next one begins,
as in Scaffnew; all clients take part in every round. On non-smooth problems Scaffnew's falling rates are a heuristic.
"""

from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np

from fedmls.checks import hyperparameters, one_of, positive
from fedmls.compression import check_compression, packed_bytes
from fedmls.local.compressors import compress
from fedmls.schedules import Power, check_schedule, first_success, schedule
from fedmls.types import Array, Local, Traits

WHERE = ("upload", "download", "gradient")


class Server(NamedTuple):
    """When round k begins: x̄ of the last meeting, the local steps t up to it, and the seed of its rounding."""

    x: Array
    t: int
    seed: int


class Client(NamedTuple):
    """When round k begins: x̂_i just before the last meeting, and h_i not yet updated for it."""

    x_hat: Array
    h: Array


class Down(NamedTuple):
    x: Array
    t: int
    T: int


class Up(NamedTuple):
    x_hat: Array


@hyperparameters
class FedComLoc:
    """η_t = eta0/√t and p_t = 1/√t, or ``eta`` and ``p`` as given (numbers are constants, as in the paper).

    method: "top_k", a share ``level`` of the entries, or "quantise", ``level`` bits for each entry.
    where: what is compressed, "upload", "download" or "gradient".
    """

    name: ClassVar[str] = "fedcomloc"
    eta0: float = 0.01
    method: str = "top_k"
    level: float = 0.5
    where: str = "upload"
    eta: float | Power | None = None
    p: float | Power | None = None

    def __post_init__(self) -> None:
        positive("eta0", self.eta0)
        check_compression(self.method, self.level, ("top_k", "quantise"))
        one_of("where", self.where, WHERE)
        check_schedule("eta", self.eta)
        check_schedule("p", self.p)

    @property
    def traits(self) -> Traits:
        packed = partial(packed_bytes, self.method, self.level)
        if self.where == "upload":
            return Traits(packed=packed)
        return Traits(packed_down=packed) if self.where == "download" else Traits()

    @property
    def rounds_per_exchange(self) -> int:
        return 1

    def init(self, x0: Array, n: int) -> tuple[Server, Client]:
        return Server(x0, 0, 0), Client(x0, 0 * x0)

    def broadcast(self, k: int, server: Server, rng: np.random.Generator) -> tuple[Server, Down]:
        T = first_success(schedule(self.p, 1.0, -0.5), server.t, rng)
        return Server(server.x, server.t + T, int(rng.integers(2**32))), Down(server.x, server.t, T)

    def client_round(self, k: int, client: Client, down: Down, local: Local) -> tuple[Client, Up]:
        eta, p = schedule(self.eta, self.eta0, -0.5), schedule(self.p, 1.0, -0.5)
        x_hat, h = client
        if down.t > 0:
            h = h + min(1.0, p(down.t)) / eta(down.t) * (down.x - x_hat)
        steps = eta.array(down.t + 1, down.T)
        if self.where == "gradient":
            x_hat = self._descend(down.x + 0 * x_hat, steps, h, local)
        else:
            x_hat, _ = local.descend(down.x, steps, shift=-h)
        return Client(x_hat, h), Up(local.compress(x_hat, self.method, self.level) if self.where == "upload" else x_hat)

    def server_round(self, k: int, server: Server, up: Up) -> Server:
        x = up.x_hat
        if self.where == "download":
            x = compress(x[None], self.method, self.level, np.uint64(server.seed), k, np.zeros(1, np.int64), 0)[0]
        return server._replace(x=x)

    def model(self, server: Server) -> Array:
        return server.x

    def _descend(self, x: Array, steps: Array, h: Array, local: Local) -> Array:
        """Return the end of the local steps that take each subgradient at the compressed point."""
        for eta in steps:
            point = local.compress(x, self.method, self.level)
            moved, _ = local.descend(point, np.array([eta]), shift=-h)
            x = x + moved - point
        return x
