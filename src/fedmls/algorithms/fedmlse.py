"""FedMLS-E: FedMLS with the server's variable eliminated. Half the rounds of FedMLS at equal μ and T.

Minimising the server's variable out of FedMLS's penalised problem leaves ½ μ⁻¹ Σ w_i ‖x_i - x̄‖², half as stiff. What
remains is gradient sliding on a penalised consensus problem: Lan, "Gradient sliding for composite optimization" (Math.
Prog. 2016); Gorbunov, Dvinskikh, Gasnikov, "Optimal decentralized distributed algorithms for stochastic convex
optimization" (arXiv 1911.07363).

gap <= 2 D0²/((1 - P_T) μ K(K+1)) + 2 μ (2Ḡ + σ̄)² (2K+1)/(3(T+3)) + Ḡ² μ/2,  μ = λ/n, P_T = 2/((T+1)(T+2)).

One vector down, one up, and one more up when the model is asked for. Rounds cannot be paired: ȳ needs the uploads.
"""

from typing import ClassVar, NamedTuple, Self

import numpy as np

from fedmls.algorithms._auto_lambda import at_start, check_lam0, length, no_numbers
from fedmls.algorithms.fedmls import OUTPUTS, choose, chosen_mu, first_mu, gamma, stacked_parameters
from fedmls.checks import one_of, positive
from fedmls.hyperparameters import hyperparameters
from fedmls.schedules import (
    Power,
    Steps,
    check_schedule,
    check_steps,
    client_steps,
    prox_average,
    prox_steps,
    schedule,
)
from fedmls.types import Algorithm, Array, Local, References, Scale, Traits

AUTO = 20.0, 1.5  # see fedmls.algorithms._auto_lambda


class Server(NamedTuple):
    """When round k begins: ȳ_k, and the means of x^i_{k-1} and z^i_k, if clients sent them; x0, μ_1 = λ_0/n, Ĝ²."""

    y: Array
    x: Array
    z: Array
    x0: Array
    mu1: float
    square: float


class Client(NamedTuple):
    """When round k begins: x^i_{k-1} and z^i_k; y^i_k follows from them."""

    x: Array
    z: Array


class Down(NamedTuple):
    y: Array
    mu1: float  # λ_0/n; 0 while it is to be chosen


class Up(NamedTuple):
    y: Array
    x: Array  # only when the model is asked for
    numbers: Array  # with "auto", see fedmls.algorithms._auto_lambda


@hyperparameters
class FedMLSE(Algorithm[Server, Client, Down, Up]):
    """λ_k = lam0/k and T_k = ⌈T0 k⌉, or constant ``lam`` and ``T``; "auto", ``radius`` and ``output`` as in FedMLS.

    "average" is Σ w_i x^i, which the bound is about; "last" is Σ w_i z^i.
    """

    name: ClassVar[str] = "fedmlse"
    title: ClassVar[str] = "FedMLS-E"
    references: ClassVar[References] = {"y": "y", "x": "y", "numbers": None}
    lam0: float | str = 1.0
    T0: float = 1.0
    lam: float | Power | None = None
    T: Steps = None
    radius: float | None = None
    output: str = "average"

    def __post_init__(self) -> None:
        check_lam0(self.lam0, self.lam)
        positive("T0", self.T0)
        check_schedule("lam", self.lam)
        object.__setattr__(self, "T", check_steps(self.T))
        if self.radius is not None:
            positive("radius", self.radius)
        one_of("output", self.output, OUTPUTS)

    @classmethod
    def fair_start(cls, scale: Scale) -> Self:
        return cls(lam0="auto", output="last")

    @property
    def traits(self) -> Traits:
        return Traits(
            on_demand=("x",),
            certifies=True,
            numbers=("numbers",),
            reveals_objective=isinstance(self.lam0, str),
            stacks=stacked_parameters(self.lam0, self.radius),
        )

    def init(self, x0: Array, n: int) -> tuple[Server, Client]:
        return Server(x0, x0, x0, x0, first_mu(self.lam0, n), 0.0), Client(x0, x0)

    def broadcast(self, k: int, server: Server, rng: np.random.Generator) -> tuple[Server, Down]:
        return server, Down(server.y, server.mu1)

    def client_round(self, k: int, client: Client, down: Down, local: Local) -> tuple[Client, Up]:
        mu = down.mu1 / k if self.lam is None else schedule(self.lam, 1.0, -1)(k) / local.n
        T, own_T = client_steps(self.T, self.T0, k, local)
        x, z = client
        y = (1 - gamma(k)) * x + gamma(k) * z
        v = z - k / 2 * (y - down.y)
        z, u_tilde = local.descend(
            z,
            prox_steps(T),
            scale=mu * k / 2,
            pull=1.0,
            center=v,
            average=prox_average(T),
            radius=self.radius,
            count=own_T,
        )
        local.keep_cut(gamma(k))
        x = (1 - gamma(k)) * x + gamma(k) * u_tilde
        sent = no_numbers(x)
        if isinstance(self.lam0, str):
            sent = length(v - u_tilde, mu * k / 2) if down.mu1 else at_start(down.y, local)
        return Client(x, z), Up((1 - gamma(k + 1)) * x + gamma(k + 1) * z, x, sent)

    def server_round(self, k: int, server: Server, up: Up) -> Server:
        z = (up.y - (1 - gamma(k + 1)) * up.x) / gamma(k + 1)
        mu1, square = chosen_mu(k, server.mu1, server.square, up, z, server.x0, AUTO, asked=1)
        return Server(up.y, up.x, z, server.x0, mu1, square)

    def model(self, server: Server) -> Array | tuple[Array, ...]:
        return choose(self.output, server.x, server.z)
