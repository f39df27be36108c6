"""FedMLS-D: consensus with multipliers, and local steps in the dual. With λ_0 tuned it needs the fewest exchanges, on
most problems, of the methods here that send only averages and run on mini-batches (docs/benchmarks.md).

It is what FedMLS-E becomes with stages of one round, if each stage starts where the last one ended and takes over the
pull of its penalty as multipliers Y^i: the f_i + <Y^i, ·> with Σ w_i Y^i = 0 have the same sum as the f_i. That is
consensus ADMM (Boyd et al. 2011, section 7.1; Eckstein, Bertsekas 1992), written with μ = 1/ρ:

    x^i ≈ argmin_x f_i(x) + <Y^i, x> + ‖x - z‖²/(2μ);   x̂^i = α x^i + (1 - α) z;
    z ← Σ w_i x̂^i;   Y^i ← Y^i + (x̂^i - z)/μ.

The argmin is approached by T_k mini-batches of dual coordinate ascent (Shalev-Shwartz, Zhang 2013) from the slopes that
the rows had at the end of the last round. So the noise of mini-batches dies out by itself, where subgradient steps have
to outnumber it: that, more than the number of rounds, is what keeps FedMLS, Scaffold and the like from 1e-3.

Proved, for α = 1, a constant μ and the exact argmin (He, Yuan, SIAM J. Numer. Anal. 2012, in the norm Σ w_i ‖x_i‖²):
the average of x̄_1, ..., x̄_K has a gap of at most (D0²/μ + μ Ḡ²)/(2K), so that μ = D0/Ḡ takes D0 Ḡ/ε rounds. It
converges for all α in (0, 2) and summable errors (Eckstein, Bertsekas). That T_k mini-batches suffice is measured, not
proved.

One vector down, one up (with "auto" and two numbers). The rows' slopes stay with the client.
"""

import math
from typing import ClassVar, NamedTuple

import numpy as np

from fedmls.algorithms.fedmls import OUTPUTS, choose, first_mu
from fedmls.checks import hyperparameters, one_of, positive
from fedmls.schedules import Power, check_schedule, schedule, steps_in_round
from fedmls.tuning import check_lam0, distance_over, due, length, no_numbers, own_guess
from fedmls.types import Array, Local, Traits

AUTO = 100.0, 0.4  # see fedmls.tuning


class Server(NamedTuple):
    """When round k begins: z_{k-1}; x̄ = Σ w_i x^i of round k - 1, and its average over the rounds since μ was last set,
    with their number; x0; μ."""

    z: Array
    x: Array
    average: Array
    averaged: int
    x0: Array
    mu: float


class Client(NamedTuple):
    """When round k begins: x̂^i_{k-1}, Y^i_{k-1}, the μ of round k - 1, and p^i = Σ_j c_j s_j a_j of its slopes.

    μ is infinite where no multiplier is to be learned from the round.
    """

    x: Array
    Y: Array
    mu: Array
    p: Array


class Down(NamedTuple):
    z: Array
    mu: float  # 0: by the client's own guess


class Up(NamedTuple):
    x: Array
    numbers: Array  # with "auto", see fedmls.tuning


@hyperparameters
class FedMLSD:
    """μ = lam0/n, or chosen by the run ("auto"); T_k = ⌈T0 k⌉ mini-batches in round k, or ``T`` as given, but at
    least as many as make one pass over the client's rows.

    relaxation: α in (0, 2).
    output: "last" is x̄; "average" is its average since μ was last set, which the bound is about; "best" the better of
    the two by objective, for which clients report theirs: one more exchange.

    It needs problems of rows, without an l1 term.
    """

    name: ClassVar[str] = "fedmlsd"
    traits: ClassVar[Traits] = Traits(certifies=True, numbers=("numbers",))
    lam0: float | str = "auto"
    T0: float = 1.0
    T: float | Power | None = None
    relaxation: float = 1.8
    output: str = "last"

    def __post_init__(self) -> None:
        check_lam0(self.lam0)
        positive("T0", self.T0)
        check_schedule("T", self.T)
        if not positive("relaxation", self.relaxation) < 2:
            raise ValueError(f"relaxation is {self.relaxation!r}; it must be below 2, 1.5 to 1.9 are usual")
        one_of("output", self.output, OUTPUTS)

    @property
    def rounds_per_exchange(self) -> int:
        return 1

    def init(self, x0: Array, n: int) -> tuple[Server, Client]:
        return Server(x0, x0, x0, 0, x0, first_mu(self.lam0, n)), Client(x0, 0 * x0, np.array([math.inf]), 0 * x0)

    def broadcast(self, k: int, server: Server, rng: np.random.Generator) -> tuple[Server, Down]:
        return server, Down(server.z, server.mu)

    def client_round(self, k: int, client: Client, down: Down, local: Local) -> tuple[Client, Up]:
        z, guessing = down.z, down.mu == 0  # each client by its own guess, from which no multiplier is learned
        mu = AUTO[0] * own_guess(z, local) if guessing else down.mu + 0 * local.weight
        Y = client.Y + (client.x - z) / client.mu
        x, p = local.ascend(z - mu * Y, mu, client.p, steps_in_round(schedule(self.T, self.T0, 1), k))
        x = x if guessing else self.relaxation * x + (1 - self.relaxation) * z
        sent = length(p) if isinstance(self.lam0, str) else no_numbers(x)
        return Client(x, Y, mu + math.inf if guessing else mu, p), Up(x, sent)

    def server_round(self, k: int, server: Server, up: Up) -> Server:
        z, mu, averaged = up.x, server.mu, server.averaged + 1
        alpha = self.relaxation if mu else 1.0
        x = (z - (1 - alpha) * server.z) / alpha
        average = server.average + (x - server.average) / averaged
        if isinstance(self.lam0, str) and (mu == 0 or due(k)):
            mu, averaged = AUTO[1] * distance_over(float(up.numbers[0]), x, server.x0) or mu, 0
        return Server(z, x, average, averaged, server.x0, mu)

    def model(self, server: Server) -> Array | tuple[Array, ...]:
        return choose(self.output, server.average, server.x)
