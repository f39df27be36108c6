"""FedDyn: Acar, Zhao, Matas, Mattina, Whatmough, Saligrama, "Federated Learning Based on Dynamic Regularization"
(ICLR 2021), Algorithm 1.

Every client minimises its function with a linear term that makes its minimiser agree with the others', in the end:

    u_i ≈ argmin_u f_i(u) - <g_i, u> + (α/2)‖u - x‖²;   g_i ← g_i - α (u_i - x);
    h ← h - α (τ/n) Σ w_i (u_i - x);   x ← Σ w_i u_i - h/α.

g_i is a subgradient of f_i at u_i where the argmin is exact. τ of n clients take part, all unless told otherwise, and Σ
is their mean. One vector down, one up. Invariant: h = Σ w_i g_i over all clients.

With all clients it is FedPD (Zhang, Hong, Dhople, Yin, Liu, IEEE Trans. Signal Process. 2021) that meets in every round
and, but that x is learned a step earlier, consensus ADMM with ρ = α (:mod:`fedmls.algorithms.admm`), of which FedADMM
(Zhou, Li, "Federated Learning via Inexact ADMM", IEEE Trans. Pattern Anal. Mach. Intell. 2023) is another inexact form.

Where we differ from the paper: its local solver is SGD with a rate to be tuned; here it is T_k steps of FedMLS's
approximate proximal step, whose average converges for non-smooth f_i too. Its linear rate is for smooth, strongly
convex f_i; for non-smooth ones nothing is proved.
"""

from typing import ClassVar, NamedTuple, Self

import numpy as np

from fedmls.checks import positive
from fedmls.hyperparameters import hyperparameters
from fedmls.schedules import Power, check_schedule, prox_average, prox_steps, schedule, steps_in_round
from fedmls.types import Algorithm, Array, Local, References, Scale, Traits


class Server(NamedTuple):
    """When round k begins: x_{k-1}, h_{k-1}, and the number of clients."""

    x: Array
    h: Array
    n: int


class Client(NamedTuple):
    """When round k begins: g_i after the last round that the client took part in."""

    g: Array


class Down(NamedTuple):
    x: Array


class Up(NamedTuple):
    u: Array


@hyperparameters
class FedDyn(Algorithm[Server, Client, Down, Up]):
    """alpha: the pull α towards the server's x.  T_k = ⌈T0 k⌉ local steps, or ``T`` as given.

    participants: so many clients, drawn at random, take part in a round; all unless given.
    """

    name: ClassVar[str] = "feddyn"
    references: ClassVar[References] = {"u": "x"}
    traits: ClassVar[Traits] = Traits(stacks=("alpha",))
    alpha: float = 10.0
    T0: float = 1.0
    T: float | Power | None = None
    participants: int | None = None

    def __post_init__(self) -> None:
        positive("alpha", self.alpha)
        positive("T0", self.T0)
        check_schedule("T", self.T)

    @classmethod
    def fair_start(cls, scale: Scale) -> Self:
        return cls(alpha=1 / scale.step)

    def init(self, x0: Array, n: int) -> tuple[Server, Client]:
        return Server(x0, 0 * x0, n), Client(0 * x0)

    def broadcast(self, k: int, server: Server, rng: np.random.Generator) -> tuple[Server, Down]:
        return server, Down(server.x)

    def client_round(self, k: int, client: Client, down: Down, local: Local) -> tuple[Client, Up]:
        T = steps_in_round(schedule(self.T, self.T0, 1), k)
        _, u = local.descend(
            down.x,
            prox_steps(T),
            scale=1 / self.alpha,
            pull=1.0,
            center=down.x,
            shift=-client.g / self.alpha,
            average=prox_average(T),
        )
        return Client(client.g - self.alpha * (u - down.x)), Up(u)

    def server_round(self, k: int, server: Server, up: Up) -> Server:
        share = (self.participants or server.n) / server.n
        h = server.h - self.alpha * share * (up.u - server.x)
        return Server(up.u - h / self.alpha, h, server.n)

    def model(self, server: Server) -> Array:
        return server.x
