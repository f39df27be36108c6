"""FedMLS-P: FedMLS-E with τ of n clients in each round, drawn at random.

APPROX (Fercoq, Richtárik, "Accelerated, parallel and proximal coordinate descent", SIAM J. Optim. 2015) with the
clients as coordinates, on FedMLS-E's problem Σ w_i f_i(x_i) + ½ μ⁻¹ Σ w_i ‖x_i - x̄‖². Proved for exact prox steps
and constant μ; with T local steps in their place it is checked, not proved. Equal client weights.

θ_1 = τ/n, θ ← (√(θ⁴ + 4θ²) - θ²)/2; y_i = (1 - θ) x_i + θ z_i. A client that takes part minimises
f_i(u) + ⟨(y_i - ȳ)/μ, u⟩ + nθ/(2τμ) ‖u - z_i‖² by T local steps, z_i becomes the last u, and
x_i = y_i + (n/τ) θ (ũ - z_i). For the others x_i = y_i. They need not be told: since 1 - θ_k = θ_k²/θ_{k-1}², x_i - z_i
shrinks by θ_{k-1}²/θ_j² between two rounds j < k in which a client takes part, which it makes good when it is asked
again. Idle clients cost nothing.

Two vectors up (ũ - z_i and u - z_i), one down; the server keeps the means of x_i and z_i of all clients.
"""

import math
from typing import ClassVar, NamedTuple, Self

import numpy as np

from fedmls.algorithms.fedmls import OUTPUTS, choose
from fedmls.checks import one_of, positive, whole
from fedmls.hyperparameters import hyperparameters
from fedmls.schedules import Power, check_schedule, prox_average, prox_steps, schedule, steps_in_round
from fedmls.types import Algorithm, Array, Local, References, Scale


class Server(NamedTuple):
    """When round k begins: the means over all clients of x_i and z_i, θ_k, θ_{k-1} (1 before round 1), and τ/n."""

    x: Array
    z: Array
    theta: float
    before: float
    share: float


class Client(NamedTuple):
    """After the last round j that the client took part in: x_i, z_i and θ_j (one number)."""

    x: Array
    z: Array
    theta: Array


class Down(NamedTuple):
    y: Array
    theta: float
    before: float
    share: float


class Up(NamedTuple):
    du_tilde: Array
    du: Array


@hyperparameters
class FedMLSP(Algorithm[Server, Client, Down, Up]):
    """μ_k = λ_k/n with λ_k = lam0/k, or constant ``lam``; T_k = ⌈T0 k⌉ or constant ``T``; participants: τ."""

    name: ClassVar[str] = "fedmlsp"
    title: ClassVar[str] = "FedMLS-P"
    references: ClassVar[References] = {"du_tilde": None, "du": None}
    participants: int
    lam0: float = 1.0
    T0: float = 1.0
    lam: float | Power | None = None
    T: float | Power | None = None
    output: str = "average"

    def __post_init__(self) -> None:
        whole("participants", self.participants)
        positive("lam0", self.lam0)
        positive("T0", self.T0)
        check_schedule("lam", self.lam)
        check_schedule("T", self.T)
        one_of("output", self.output, OUTPUTS)

    @classmethod
    def fair_start(cls, scale: Scale) -> Self:
        return cls(lam0=0.5 * scale.n * scale.step, participants=math.ceil(scale.n / 2), output="last")

    def init(self, x0: Array, n: int) -> tuple[Server, Client]:
        return Server(x0, x0, self.participants / n, 1.0, self.participants / n), Client(x0, x0, 0 * x0[:1] + 1)

    def broadcast(self, k: int, server: Server, rng: np.random.Generator) -> tuple[Server, Down]:
        return server, Down(self._y(server), server.theta, server.before, server.share)

    def client_round(self, k: int, client: Client, down: Down, local: Local) -> tuple[Client, Up]:
        mu = schedule(self.lam, self.lam0, -1)(k) / local.n
        T = steps_in_round(schedule(self.T, self.T0, 1), k)
        theta, step = down.theta, down.share / down.theta
        z = client.z
        x = z + (down.before / client.theta) ** 2 * (client.x - z)  # the rounds slept through
        y = (1 - theta) * x + theta * z
        u, u_tilde = local.descend(
            z,
            prox_steps(T),
            scale=step * mu,
            pull=1.0,
            center=z - step * (y - down.y),
            average=prox_average(T),
        )
        x = y + theta / down.share * (u_tilde - z)
        return Client(x, u, 0 * client.theta + theta), Up(u_tilde - z, u - z)

    def server_round(self, k: int, server: Server, up: Up) -> Server:
        theta = server.theta
        after = ((theta**4 + 4 * theta**2) ** 0.5 - theta**2) / 2
        x = self._y(server) + theta * up.du_tilde
        return Server(x, server.z + server.share * up.du, after, theta, server.share)

    def model(self, server: Server) -> Array | tuple[Array, ...]:
        return choose(self.output, server.x, server.z)

    def _y(self, server: Server) -> Array:
        return (1 - server.theta) * server.x + server.theta * server.z
