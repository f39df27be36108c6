"""FedMLS: Palenzuela, Dadras, Yurtsever, Löfstedt, "Provable Reduction in Communication Rounds for
Non-Smooth Convex Federated Learning" (IEEE MLSP 2025), Algorithm 1.

It is MOPES (:mod:`fedmls.algorithms._mopes`) on the product space, where the costly projection is the averaging of
the clients' models, i.e. communication. An ε-optimal model takes O(1/ε) rounds and O(1/ε²) local steps,
whatever the clients' data look like.

One vector down, one up; the server needs only the mean of the uploads. With the paper's 1/n replaced by
client weights w_i everything is as in the norm Σ w_i ‖x_i‖², and only the mean changes.

y_{k+1} does not depend on the uploads of round k. With ``paired=True`` the server therefore sends y_k and
y_{k+1} together: two rounds in one exchange, the same iterates to the last bit.
"""

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from fedmls.algorithms._auto_lambda import at_start, check_lam0, distance_over, due, guess, length, no_numbers
from fedmls.checks import one_of, positive, truth
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

if TYPE_CHECKING:
    from fedmls.theory import Plan


AUTO = 50.0, 4.0  # see fedmls.algorithms._auto_lambda


class Server(NamedTuple):
    """When round k begins: x_{k-1}, y_k, z_k (all x0 before round 1); x0, μ_1 = λ_0/n, and Ĝ² for "auto"."""

    x: Array
    y: Array
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
    numbers: Array  # with "auto", see fedmls.algorithms._auto_lambda


OUTPUTS = ("average", "last", "best")


def choose(output: str, average: Array, last: Array) -> Array | tuple[Array, ...]:
    if output == "best":
        return average, last
    return average if output == "average" else last


def gamma(k: int) -> float:
    return 2 / (k + 1)


def first_mu(lam0: float | str, n: int) -> float:
    """μ_1 = λ_0/n; 0 while it is to be chosen."""
    return 0.0 if isinstance(lam0, str) else lam0 / n


def stacked_parameters(lam0: float | str, radius: float | None) -> tuple[str, ...] | None:
    """The parameters in which runs of a stack may differ; None where the server looks at the numbers of each run."""
    return None if isinstance(lam0, str) or radius is not None else ("lam0", "lam")


def chosen_mu(
    k: int, mu1: float, square: float, up: Any, z: Array, x0: Array, times: tuple[float, float], asked: int
) -> tuple[float, float]:
    """λ_0 = "auto": μ_1 and Ĝ² after round k. In the first ``asked`` rounds clients stand still and tell what they see.

    times: the constants of the first guess and of ‖z - x0‖/Ĝ.
    """
    if not up.numbers.size:
        return mu1, square
    square = max(square, float(up.numbers[0]))
    if mu1 == 0:
        return times[0] * float(guess(up.numbers)[0]) if k >= asked else mu1, square
    new = times[1] * distance_over(square, z, x0) if due(k) else 0.0
    return new or mu1, square


@hyperparameters
class FedMLS(Algorithm[Server, Client, Down, Up]):
    """λ_k = lam0/k and T_k = ⌈T0 k⌉ (the paper's Remark), or constant ``lam`` and ``T`` (its Corollary).

    lam0="auto" chooses λ_0 as the run goes (:mod:`fedmls.algorithms._auto_lambda`).
    T may have one number for each client: in the norm Σ w_i ‖x_i‖² the theory lets them differ.

    radius: keep clients (every step) and server (every round) in the ball ‖x‖ <= radius around 0; start inside it.
    paired: two rounds per exchange.
    output: "average" is x_k, which the theorem is about; "last" is z, better in practice, unproved; "best" is the one
    of the two with the smaller objective, for which clients report theirs: one more exchange.
    """

    name: ClassVar[str] = "fedmls"
    references: ClassVar[References] = {"y": "y", "numbers": None}
    lam0: float | str = 1.0
    T0: float = 1.0
    lam: float | Power | None = None
    T: Steps = None
    radius: float | None = None
    paired: bool = False
    output: str = "average"

    def __post_init__(self) -> None:
        check_lam0(self.lam0, self.lam)
        positive("T0", self.T0)
        check_schedule("lam", self.lam)
        object.__setattr__(self, "T", check_steps(self.T))
        if self.radius is not None:
            positive("radius", self.radius)
        truth("paired", self.paired)
        one_of("output", self.output, OUTPUTS)

    @classmethod
    def fair_start(cls, scale: Scale) -> Self:
        return cls(lam0="auto", paired=True, output="last")

    @classmethod
    def from_plan(cls, plan: "Plan", **others: Any) -> "FedMLS":
        """FedMLS with the plan's constant λ and T; run it for ``plan.K`` rounds."""
        return cls(lam=plan.lam, T=plan.T, **others)

    @property
    def traits(self) -> Traits:
        return Traits(
            certifies=True,
            numbers=("numbers",),
            reveals_objective=isinstance(self.lam0, str),
            stacks=stacked_parameters(self.lam0, self.radius),
        )

    @property
    def rounds_per_exchange(self) -> int:
        return 2 if self.paired else 1

    def init(self, x0: Array, n: int) -> tuple[Server, Client]:
        return Server(x0, x0, x0, x0, first_mu(self.lam0, n), 0.0), Client(x0, x0)

    def broadcast(self, k: int, server: Server, rng: np.random.Generator) -> tuple[Server, Down]:
        if not self.paired:
            return server, Down(server.y, server.mu1)
        # The y left behind is y_{k+1}, so that the exchange can ask for it at once;
        # server_round computes it again from what it then knows.
        return server._replace(y=self._average(k, server)[1]), Down(server.y, server.mu1)

    def client_round(self, k: int, client: Client, down: Down, local: Local) -> tuple[Client, Up]:
        mu = down.mu1 / k if self.lam is None else schedule(self.lam, 1.0, -1)(k) / local.n
        T, own_T = client_steps(self.T, self.T0, k, local)
        x, z = client
        y = (1 - gamma(k)) * x + gamma(k) * z
        v = z - k / 4 * (y - down.y)
        z, u_tilde = local.descend(
            z,
            prox_steps(T),
            scale=mu * k / 4,
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
            sent = length(v - u_tilde, mu * k / 4) if down.mu1 else at_start(down.y, local)
        return Client(x, z), Up((1 - gamma(k + 1)) * x + gamma(k + 1) * z, sent)

    def server_round(self, k: int, server: Server, up: Up) -> Server:
        x, y = self._average(k, server)
        z = server.z - (k + 1) / 4 * (y - up.y)
        if self.radius is not None:
            z = z * (self.radius / max(float(z @ z) ** 0.5, self.radius))
        mu1, square = chosen_mu(k, server.mu1, server.square, up, z, server.x0, AUTO, asked=2)
        return Server(x, y, z, server.x0, mu1, square)

    def model(self, server: Server) -> Array | tuple[Array, ...]:
        return choose(self.output, server.x, server.z)

    def _average(self, k: int, server: Server) -> tuple[Array, Array]:
        """x_k and y_{k+1}."""
        x = (1 - gamma(k)) * server.x + gamma(k) * server.z
        return x, (1 - gamma(k + 1)) * x + gamma(k + 1) * server.z
