"""FedProx: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks"
(MLSys 2020), Algorithm 2 with every client in every round.

Every client minimises f_i(u) + ‖u - x‖²/(2ρ) by T_k steps u <- u - η_k (g_i(u) + (u - x)/ρ) from the server's x;
x becomes the weighted mean of the results. One vector down, one up. The pull towards x bounds the drift of FedAvg, but
does not remove it: even with exact local minimisers x settles where Σ w_i of the smoothed f_i is least, not f.

The paper's μ is 1/ρ; it leaves the local solver open (γ-inexact), here it is FedAvg's, with FedAvg's schedules.
"""

from typing import ClassVar, NamedTuple, Self

import numpy as np

from fedmls.checks import positive
from fedmls.hyperparameters import hyperparameters
from fedmls.schedules import Power, check_schedule, schedule, steps_in_round
from fedmls.types import Algorithm, Array, Local, References, Scale, Traits


class Server(NamedTuple):
    """When round k begins: x_{k-1}."""

    x: Array


class Client(NamedTuple):
    """A client keeps nothing."""


class Down(NamedTuple):
    x: Array


class Up(NamedTuple):
    u: Array


@hyperparameters
class FedProx(Algorithm[Server, Client, Down, Up]):
    """ρ = rho; η_k = eta0/√k and T_k = ⌈T0 k⌉, or constants ``eta`` and ``T``. Steps with η_k > 2ρ overshoot."""

    name: ClassVar[str] = "fedprox"
    references: ClassVar[References] = {"u": "x"}
    traits: ClassVar[Traits] = Traits(stacks=("eta0", "eta"))
    eta0: float = 0.01
    rho: float = 1.0
    T0: float = 1.0
    eta: float | Power | None = None
    T: float | Power | None = None

    def __post_init__(self) -> None:
        positive("eta0", self.eta0)
        positive("rho", self.rho)
        positive("T0", self.T0)
        check_schedule("eta", self.eta)
        check_schedule("T", self.T)

    @classmethod
    def fair_start(cls, scale: Scale) -> Self:
        return cls(eta0=0.2 * scale.step, rho=10 * scale.step, T=10)

    def init(self, x0: Array, n: int) -> tuple[Server, Client]:
        return Server(x0), Client()

    def broadcast(self, k: int, server: Server, rng: np.random.Generator) -> tuple[Server, Down]:
        return server, Down(server.x)

    def client_round(self, k: int, client: Client, down: Down, local: Local) -> tuple[Client, Up]:
        eta = schedule(self.eta, self.eta0, -0.5)(k)
        T = steps_in_round(schedule(self.T, self.T0, 1), k)
        u, _ = local.descend(down.x, Power(eta).array(1, T), pull=1 / self.rho, center=down.x)
        return client, Up(u)

    def server_round(self, k: int, server: Server, up: Up) -> Server:
        return Server(up.u)

    def model(self, server: Server) -> Array:
        return server.x
