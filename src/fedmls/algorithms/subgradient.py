"""The subgradient method, one subgradient per client and round: Shor, "Minimization Methods for Non-Differentiable
Functions" (1985); Nesterov, "Introductory Lectures on Convex Optimization" (2004), section 3.2.3.

x <- x - η_k Σ w_i g_i(x): what federated learning is without local training. One vector down, one up.
f at the average of the points, weighted by their η_k, is within (D0² + Ḡ² Σ η_k²)/(2 Σ η_k) of f*: O(1/ε²) rounds.
It is FedAvg with T = 1.
"""

from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from fedmls.checks import one_of, positive
from fedmls.hyperparameters import hyperparameters
from fedmls.schedules import Power, check_schedule, schedule
from fedmls.types import Algorithm, Array, Local, References, Scale, Traits


class Server(NamedTuple):
    """When round k begins: x_{k-1}; the average of x_0, ..., x_{k-2} (x_0 before round 1) and η_1 + ... + η_{k-1}."""

    x: Array
    average: Array
    total: float


class Client(NamedTuple):
    """A client keeps nothing."""


class Down(NamedTuple):
    x: Array


class Up(NamedTuple):
    u: Array  # x - η_k g_i(x)


@hyperparameters
class Subgradient(Algorithm[Server, Client, Down, Up]):
    """η_k = eta0/√k, or ``eta`` as given.

    output: "last" is x_k; "average" that of the points x_0, ..., x_{k-1}, which the bound is about.
    """

    name: ClassVar[str] = "subgradient"
    references: ClassVar[References] = {"u": "x"}
    traits: ClassVar[Traits] = Traits(stacks=("eta0", "eta"))
    eta0: float = 0.01
    eta: float | Power | None = None
    output: str = "last"

    def __post_init__(self) -> None:
        positive("eta0", self.eta0)
        check_schedule("eta", self.eta)
        one_of("output", self.output, ("last", "average"))

    @classmethod
    def fair_start(cls, scale: Scale) -> Self:
        return cls(eta0=scale.step)

    def init(self, x0: Array, n: int) -> tuple[Server, Client]:
        return Server(x0, x0, 0.0), Client()

    def broadcast(self, k: int, server: Server, rng: np.random.Generator) -> tuple[Server, Down]:
        return server, Down(server.x)

    def client_round(self, k: int, client: Client, down: Down, local: Local) -> tuple[Client, Up]:
        u, _ = local.descend(down.x, Power(self._eta(k)).array(1, 1))
        return client, Up(u)

    def server_round(self, k: int, server: Server, up: Up) -> Server:
        total = server.total + self._eta(k)
        share = self._eta(k) / total
        return Server(up.u, (1 - share) * server.average + share * server.x, total)

    def model(self, server: Server) -> Array:
        return server.x if self.output == "last" else server.average

    def _eta(self, k: int) -> Any:
        return schedule(self.eta, self.eta0, -0.5)(k)
