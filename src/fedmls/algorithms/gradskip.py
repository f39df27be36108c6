"""GradSkip: Maranjyan, Safaryan, Richtárik, "GradSkip: Communication-Accelerated Local Gradient Methods
with Better Computational Complexity" (2022), Algorithm 1.

As Scaffnew, but client i tosses a coin of its own with probability q_i before every local step. At its first
failure it sets ĥ_i = g_i(x_i), over all rows, and rests there until the next meeting: its step would be zero.
The clients' ĥ_i then no longer sum to zero, so what is averaged is x̂_i - (η/p) ĥ_i, and after the meeting
h_i = ĥ_i + (p/η)(x̄ - x̂_i). One vector down, one up. Invariant: Σ w_i h_i = 0. With q = 1 it is Scaffnew.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple, Self

import numpy as np

from fedmls.checks import positive, real
from fedmls.hyperparameters import hyperparameters
from fedmls.schedules import Power, check_schedule, first_success, schedule
from fedmls.types import Algorithm, Array, Local, References, Scale


class Server(NamedTuple):
    """When round k begins: x̄ of the last meeting and the local steps t up to it."""

    x: Array
    t: int


class Client(NamedTuple):
    """When round k begins: x̂_i and ĥ_i just before the last meeting."""

    x_hat: Array
    h_hat: Array


class Down(NamedTuple):
    x: Array
    t: int
    T: int


class Up(NamedTuple):
    shifted: Array  # x̂_i - (η/p) ĥ_i


@hyperparameters
class GradSkip(Algorithm[Server, Client, Down, Up]):
    """η_t = eta0/√t and p_t = 1/√t as in Scaffnew; q: one probability for all clients, or one each.

    In the smooth, strongly convex case the paper has q_i = (1 - 1/κ_i)/(1 - 1/κ_max).
    """

    name: ClassVar[str] = "gradskip"
    references: ClassVar[References] = {"shifted": "x"}
    eta0: float = 0.01
    q: float | Sequence[float] = 1.0
    eta: float | Power | None = None
    p: float | Power | None = None

    def __post_init__(self) -> None:
        positive("eta0", self.eta0)
        check_schedule("eta", self.eta)
        check_schedule("p", self.p)
        each = (self.q,) if isinstance(self.q, int | float) else self.q
        q = [real(value) for value in each] if isinstance(each, Iterable) else []
        if not q or not all(value is not None and 0 <= value <= 1 for value in q):
            raise ValueError(f"q is {self.q!r}; take probabilities in [0, 1], one or one per client")
        if not isinstance(self.q, int | float):
            object.__setattr__(self, "q", tuple(q))

    @classmethod
    def fair_start(cls, scale: Scale) -> Self:
        return cls(eta0=0.3 * scale.step, q=0.9)

    def init(self, x0: Array, n: int) -> tuple[Server, Client]:
        if not isinstance(self.q, int | float) and len(self.q) != n:
            raise ValueError(f"q has {len(self.q)} values for {n} clients; give one, or one per client")
        return Server(x0, 0), Client(x0, 0 * x0)

    def broadcast(self, k: int, server: Server, rng: np.random.Generator) -> tuple[Server, Down]:
        T = first_success(schedule(self.p, 1.0, -0.5), server.t, rng)
        return Server(server.x, server.t + T), Down(server.x, server.t, T)

    def client_round(self, k: int, client: Client, down: Down, local: Local) -> tuple[Client, Up]:
        eta = schedule(self.eta, self.eta0, -0.5)
        x_hat, h = client
        if down.t > 0:
            h = h + (down.x - x_hat) / self._eta_over_p(down.t)
        awake = local.run_length(self.q)
        x_hat, _ = local.descend(down.x, eta.array(down.t + 1, down.T), shift=-h, count=awake)
        rests = awake < down.T
        h_hat = h * (1 - rests) + local.subgradient(x_hat, where=rests)
        return Client(x_hat, h_hat), Up(x_hat - self._eta_over_p(down.t + down.T) * h_hat)

    def server_round(self, k: int, server: Server, up: Up) -> Server:
        return server._replace(x=up.shifted)

    def model(self, server: Server) -> Array:
        return server.x

    def _eta_over_p(self, t: int) -> float:
        eta, p = schedule(self.eta, self.eta0, -0.5), schedule(self.p, 1.0, -0.5)
        return float(eta(t) / min(1.0, p(t)))
