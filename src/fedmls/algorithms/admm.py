"""Consensus ADMM: Boyd, Parikh, Chu, Peleato, Eckstein, "Distributed Optimization and Statistical Learning via
the Alternating Direction Method of Multipliers" (2011), section 7.1, over-relaxed as in section 3.4.3 (Eckstein,
Bertsekas 1992).

min Σ w_i f_i(x_i) with x_i = z for all i. Every client takes one exact proximal step, the server the mean:

    x_i = argmin_x f_i(x) + (ρ/2)‖x - z + u_i‖²;   x̂_i = α x_i + (1 - α) z;
    z ← Σ w_i (x̂_i + u_i);   u_i ← u_i + x̂_i - z.

The augmented Lagrangian is taken in the norm Σ w_i ‖·‖², where Boyd et al. have w_i = 1: so no w_i is left in the
client's step, and the server's mean is the weighted one. One vector down, one up. Invariant: Σ w_i u_i = 0.
"""

from typing import ClassVar, NamedTuple, Self

import numpy as np

from fedmls.checks import positive
from fedmls.hyperparameters import hyperparameters
from fedmls.types import Algorithm, Array, Local, Scale, Traits


class Server(NamedTuple):
    """When round k begins: z_{k-1}."""

    z: Array


class Client(NamedTuple):
    """When round k begins: t_i = x̂_i + u_i as sent in round k - 1, of which z makes the new u_i = t_i - z."""

    t: Array


class Down(NamedTuple):
    z: Array


class Up(NamedTuple):
    t: Array


@hyperparameters
class ADMM(Algorithm[Server, Client, Down, Up]):
    """rho: the penalty ρ; a client's proximal step has weight 1/ρ.  relaxation: α in (0, 2), 1 for the plain method.

    It needs problems of rows without an l1 term, and reads all rows whatever the batch. For every ρ it converges; how
    fast depends on it much.
    """

    name: ClassVar[str] = "admm"
    traits: ClassVar[Traits] = Traits(needs_rows=True, needs_no_l1=True)
    rho: float = 10.0
    relaxation: float = 1.6

    def __post_init__(self) -> None:
        positive("rho", self.rho)
        if not positive("relaxation", self.relaxation) < 2:
            raise ValueError(f"relaxation is {self.relaxation!r}; it must be below 2, 1.5 to 1.8 are usual")

    @classmethod
    def fair_start(cls, scale: Scale) -> Self:
        return cls(rho=1 / (2 * scale.step))

    def init(self, x0: Array, n: int) -> tuple[Server, Client]:
        return Server(x0), Client(x0)

    def broadcast(self, k: int, server: Server, rng: np.random.Generator) -> tuple[Server, Down]:
        return server, Down(server.z)

    def client_round(self, k: int, client: Client, down: Down, local: Local) -> tuple[Client, Up]:
        u = client.t - down.z
        x = local.prox(down.z - u, 1 / self.rho)
        t = self.relaxation * x + (1 - self.relaxation) * down.z + u
        return Client(t), Up(t)

    def server_round(self, k: int, server: Server, up: Up) -> Server:
        return Server(up.t)

    def model(self, server: Server) -> Array:
        return server.z
