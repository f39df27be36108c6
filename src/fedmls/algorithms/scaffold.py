"""Scaffold: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging
for Federated Learning" (ICML 2020), Algorithm 1.

Local steps are corrected by control variates: y <- y - η_l (g_i(y) - c_i + c). Two vectors down, two up.
Invariant: c = Σ w_i c_i.

The FedMLS paper takes T_k = k and η_g = √n, and states the local rate η_0/(√n t) with t the local steps so
far (``decay="step"``); its released code has η_0/(√n k) with k the round (``decay="round"``, our default).
"""

from typing import ClassVar, NamedTuple, Self

import numpy as np

from fedmls.checks import one_of, positive
from fedmls.hyperparameters import hyperparameters
from fedmls.schedules import Power, check_schedule, schedule, steps_in_round, total
from fedmls.types import Algorithm, Array, Local, References, Scale, Traits


class Server(NamedTuple):
    """When round k begins: x_{k-1}, c_{k-1}, the number of clients, and the local steps so far."""

    x: Array
    c: Array
    n: int
    t: int


class Client(NamedTuple):
    """When round k begins: the control variate c_i of round k - 1."""

    c: Array


class Down(NamedTuple):
    x: Array
    c: Array
    t: int


class Up(NamedTuple):
    dy: Array
    dc: Array


@hyperparameters
class Scaffold(Algorithm[Server, Client, Down, Up]):
    """Local rate eta0/(√n k) or eta0/(√n t), or ``eta`` as given; T_k = ⌈T0 k⌉ or constant ``T``.

    option: "I" takes c_i⁺ = g_i(x) over all rows (one more subgradient), "II" reuses the local steps.
    decay: "round" or "step", the clock of the local rate.  eta_g: the server's rate, √n unless given.
    participants: so many clients, drawn at random, take part in a round; all unless given.
    """

    name: ClassVar[str] = "scaffold"
    references: ClassVar[References] = {"dy": None, "dc": None}
    traits: ClassVar[Traits] = Traits(stacks=("eta0", "eta", "eta_g"))
    eta0: float = 0.01
    T0: float = 1.0
    option: str = "II"
    decay: str = "round"
    eta: float | Power | None = None
    T: float | Power | None = None
    eta_g: float | None = None
    participants: int | None = None

    def __post_init__(self) -> None:
        positive("eta0", self.eta0)
        positive("T0", self.T0)
        one_of("option", self.option, ("I", "II"))
        one_of("decay", self.decay, ("round", "step"))
        check_schedule("eta", self.eta)
        check_schedule("T", self.T)
        if self.eta_g is not None:
            positive("eta_g", self.eta_g)

    @classmethod
    def fair_start(cls, scale: Scale) -> Self:
        return cls(eta0=0.5 * scale.step)

    def init(self, x0: Array, n: int) -> tuple[Server, Client]:
        return Server(x0, 0 * x0, n, 0), Client(0 * x0)

    def broadcast(self, k: int, server: Server, rng: np.random.Generator) -> tuple[Server, Down]:
        return server._replace(t=server.t + self._T(k)), Down(server.x, server.c, server.t)

    def client_round(self, k: int, client: Client, down: Down, local: Local) -> tuple[Client, Up]:
        eta, T = schedule(self.eta, self.eta0 / local.n**0.5, -1), self._T(k)
        steps = eta.array(down.t + 1, T) if self.decay == "step" else Power(eta(k)).array(1, T)
        y, _ = local.descend(down.x, steps, shift=down.c - client.c)
        if self.option == "I":
            c = local.subgradient(down.x)
        else:
            c = client.c - down.c + (down.x - y) / total(steps)
        return Client(c), Up(y - down.x, c - client.c)

    def server_round(self, k: int, server: Server, up: Up) -> Server:
        eta_g = server.n**0.5 if self.eta_g is None else self.eta_g
        share = 1 if self.participants is None else self.participants / server.n
        return server._replace(x=server.x + eta_g * up.dy, c=server.c + share * up.dc)

    def model(self, server: Server) -> Array:
        return server.x

    def _T(self, k: int) -> int:
        return steps_in_round(schedule(self.T, self.T0, 1), k)
