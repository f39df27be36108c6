"""FedAvg: McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep
Networks from Decentralized Data" (AISTATS 2017), with the step rule of the FedMLS paper.

Every client takes T_k steps u <- u - η_k g_i(u) from the server's x; x becomes the weighted mean of the
results. One vector down, one up. On unequal clients with many local steps it stalls away from the optimum.
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
class FedAvg(Algorithm[Server, Client, Down, Up]):
    """η_k = eta0/√k and T_k = ⌈T0 k⌉ (the paper's experiment), or constants ``eta`` and ``T``.

    participants: so many clients, drawn at random, take part in a round; all unless given.
    """

    name: ClassVar[str] = "fedavg"
    references: ClassVar[References] = {"u": "x"}
    traits: ClassVar[Traits] = Traits(stacks=("eta0", "eta"))
    eta0: float = 0.01
    T0: float = 1.0
    eta: float | Power | None = None
    T: float | Power | None = None
    participants: int | None = None

    def __post_init__(self) -> None:
        positive("eta0", self.eta0)
        positive("T0", self.T0)
        check_schedule("eta", self.eta)
        check_schedule("T", self.T)

    @classmethod
    def fair_start(cls, scale: Scale) -> Self:
        return cls(eta0=0.2 * scale.step, T=10)

    def init(self, x0: Array, n: int) -> tuple[Server, Client]:
        return Server(x0), Client()

    def broadcast(self, k: int, server: Server, rng: np.random.Generator) -> tuple[Server, Down]:
        return server, Down(server.x)

    def client_round(self, k: int, client: Client, down: Down, local: Local) -> tuple[Client, Up]:
        eta = schedule(self.eta, self.eta0, -0.5)(k)
        T = steps_in_round(schedule(self.T, self.T0, 1), k)
        u, _ = local.descend(down.x, Power(eta).array(1, T))
        return client, Up(u)

    def server_round(self, k: int, server: Server, up: Up) -> Server:
        return Server(up.u)

    def model(self, server: Server) -> Array:
        return server.x
