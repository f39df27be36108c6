"""DCS, decentralized communication sliding, on a star: Lan, Lee, Zhou, "Communication-efficient algorithms for
decentralized and stochastic optimization" (Math. Prog. 2020), Algorithm 3 with its procedure CS. The multi-step
primal-dual method (MSPD) of Scaman, Bach, Bubeck, Lee, Massoulié (NeurIPS 2018) is of the same kind.

It seeks the saddle point of Σ w_i f_i(x^i) + <y, Px>, where P takes the mean away, (Px)^i = x^i - Σ w_j x^j: a dual
step y <- y + P x̃/τ on the extrapolated point x̃, then T steps towards the minimiser of f_i + <y^i, ·> + η/2 ‖· - x^i‖².
One vector down, one up, and one more up when the model is asked for.

Where we differ from the paper: P, of norm 1, stands for the graph's Laplacian, in the norm Σ w_i ‖x_i‖²; as y stays in
the range of P, a round needs one mean where the Laplacian needs two exchanges. The proof needs η τ >= ‖P‖² = 1 and no
bounded set; we take τ = 1/η (the paper has η τ = 2), and leave η to the user, as it has the units of a subgradient over
a distance. T_k may grow with k. Then, for ‖g_i‖ <= G_i and noise σ_i, with c = (T_1+1)(T_1+2)/(T_1(T_1+3)) <= 3/2:

gap <= (c η D0²/2 + Ḡ²/(2η) + Σ_k 4 (2Ḡ + σ̄)²/(η (T_k + 3)))/K.

With η = Ḡ/D0 and T in proportion to K that is O(1/ε) rounds and O(1/ε²) local steps, as FedMLS has them, and before it.
"""

from typing import ClassVar, NamedTuple, Self

import numpy as np

from fedmls.algorithms.fedmls import OUTPUTS, choose
from fedmls.checks import one_of, positive
from fedmls.hyperparameters import hyperparameters
from fedmls.schedules import Power, check_schedule, prox_average, prox_steps, schedule, steps_in_round
from fedmls.types import Algorithm, Array, Local, References, Scale, Traits


class Server(NamedTuple):
    """When round k begins: the means of x̃^i_k and of the ergodic averages up to round k - 1 (all x0 before round 1)."""

    x_tilde: Array
    average: Array


class Client(NamedTuple):
    """When round k begins: x^i_{k-1}, the extrapolated x̃^i_k, y^i_{k-1}, and the average of x̂^i_1, ..., x̂^i_{k-1}."""

    x: Array
    x_tilde: Array
    y: Array
    average: Array


class Down(NamedTuple):
    x_tilde: Array


class Up(NamedTuple):
    x_tilde: Array
    average: Array  # only when the model is asked for


@hyperparameters
class DCS(Algorithm[Server, Client, Down, Up]):
    """η = eta, τ = 1/η; T_k = ⌈T0 k⌉, which costs the bound a factor log K, or constant ``T``.

    output: "average" is the mean of the ergodic averages, which the bound is about; "last" is the mean of the x̃^i, free
    and better in practice, unproved; "best" is the one of the two with the smaller objective, as in FedMLS.
    """

    name: ClassVar[str] = "dcs"
    references: ClassVar[References] = {"x_tilde": "x_tilde", "average": "x_tilde"}
    traits: ClassVar[Traits] = Traits(on_demand=("average",), stacks=("eta",))
    eta: float = 100.0
    T0: float = 1.0
    T: float | Power | None = None
    output: str = "average"

    def __post_init__(self) -> None:
        positive("eta", self.eta)
        positive("T0", self.T0)
        check_schedule("T", self.T)
        one_of("output", self.output, OUTPUTS)

    @classmethod
    def fair_start(cls, scale: Scale) -> Self:
        return cls(eta=1 / (0.3 * scale.step), output="last")

    def init(self, x0: Array, n: int) -> tuple[Server, Client]:
        return Server(x0, x0), Client(x0, x0, 0 * x0, x0)

    def broadcast(self, k: int, server: Server, rng: np.random.Generator) -> tuple[Server, Down]:
        return server, Down(server.x_tilde)

    def client_round(self, k: int, client: Client, down: Down, local: Local) -> tuple[Client, Up]:
        T = steps_in_round(schedule(self.T, self.T0, 1), k)
        y = client.y + self.eta * (client.x_tilde - down.x_tilde)
        x, x_hat = local.descend(
            client.x,
            prox_steps(T),
            scale=1 / self.eta,
            pull=1.0,
            center=client.x,
            shift=y / self.eta,
            average=prox_average(T),
        )
        x_tilde = x + x_hat - client.x  # x_k + (x̂_k - x_{k-1})
        average = client.average + (x_hat - client.average) / k
        return Client(x, x_tilde, y, average), Up(x_tilde, average)

    def server_round(self, k: int, server: Server, up: Up) -> Server:
        return Server(up.x_tilde, up.average)

    def model(self, server: Server) -> Array | tuple[Array, ...]:
        return choose(self.output, server.average, server.x_tilde)
