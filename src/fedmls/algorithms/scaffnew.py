"""Scaffnew (ProxSkip): Mishchenko, Malinovsky, Stich, Richtárik, "ProxSkip: Yes! Local Gradient Steps
Provably Lead to Communication Acceleration! Finally!" (ICML 2022), Algorithm 2.

Local steps x̂_i = x_i - η_t (g_i(x_i) - h_i); after step t a coin with probability p_t, shared by all, says
whether they meet: x_i = x̄ = Σ w_i x̂_i, and h_i <- h_i + (p_t/η_t)(x̄ - x̂_i) with the x̂_i from before the
averaging. One vector down, one up. Invariant: Σ w_i h_i = 0.

Here a round is the time between two meetings: the server tosses the coins and sends T, the number of steps
to the next one. A client learns x̄ when the next round begins and updates its h_i then.

The FedMLS paper takes η_t = η_0/√t, p_t = 1/√t, t counting all local steps. Its released code overwrites x̂_i
by the mean before h_i learns from it, so that h_i stays 0: ``as_released=True`` runs that reading.
"""

from typing import ClassVar, NamedTuple, Self

import numpy as np

from fedmls.checks import positive, truth
from fedmls.hyperparameters import hyperparameters
from fedmls.schedules import Power, check_schedule, first_success, schedule
from fedmls.types import Algorithm, Array, Local, References, Scale, Traits


class Server(NamedTuple):
    """When round k begins: x̄ of the last meeting and the local steps t up to it."""

    x: Array
    t: int


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
class Scaffnew(Algorithm[Server, Client, Down, Up]):
    """η_t = eta0/√t and p_t = 1/√t, or ``eta`` and ``p`` as given (numbers are constants)."""

    name: ClassVar[str] = "scaffnew"
    references: ClassVar[References] = {"x_hat": "x"}
    traits: ClassVar[Traits] = Traits(stacks=("eta0", "eta", "as_released"), uneven=True)
    eta0: float = 0.01
    eta: float | Power | None = None
    p: float | Power | None = None
    as_released: bool = False

    def __post_init__(self) -> None:
        positive("eta0", self.eta0)
        check_schedule("eta", self.eta)
        check_schedule("p", self.p)
        truth("as_released", self.as_released)

    @classmethod
    def fair_start(cls, scale: Scale) -> Self:
        return cls(eta0=0.5 * scale.step)

    def init(self, x0: Array, n: int) -> tuple[Server, Client]:
        return Server(x0, 0), Client(x0, 0 * x0)

    def broadcast(self, k: int, server: Server, rng: np.random.Generator) -> tuple[Server, Down]:
        T = first_success(schedule(self.p, 1.0, -0.5), server.t, rng)
        return Server(server.x, server.t + T), Down(server.x, server.t, T)

    def client_round(self, k: int, client: Client, down: Down, local: Local) -> tuple[Client, Up]:
        eta, p = schedule(self.eta, self.eta0, -0.5), schedule(self.p, 1.0, -0.5)
        x_hat, h = client
        if k > 1:
            learned = h + np.minimum(1.0, p(down.t)) / eta(down.t) * (down.x - x_hat)
            h = np.where(self.as_released, h, learned)
        x_hat, _ = local.descend(down.x, eta.array(down.t + 1, down.T), shift=-h, count=down.T)
        return Client(x_hat, h), Up(x_hat)

    def server_round(self, k: int, server: Server, up: Up) -> Server:
        return server._replace(x=up.x_hat)

    def model(self, server: Server) -> Array:
        return server.x
