"""CoCoA+: Ma, Smith, Jaggi, Jordan, Richtárik, Takáč, "Adding vs. Averaging in Distributed Primal-Dual Optimization"
(ICML 2015), Algorithm 1; Smith, Forte, Ma, Takáč, Jordan, Jaggi, "CoCoA: A General Framework for
Communication-Efficient Distributed Optimization" (JMLR 2018).

The problem has an l2 term, f(x) = Σ_i w_i Σ_j c_j ℓ(a_j·x, b_j) + (λ/2)‖x‖², λ = l2. Its dual has a slope s_j for every
row, and x = -(1/λ) Σ_i w_i p_i with p_i = Σ_j c_j s_j a_j over the rows of client i. In a round every client improves
its own slopes, and pays σ' times for what it changes: with σ' = n all changes can be added up. It takes passes of dual
coordinate ascent, from the slopes of the last round, on the proximal step of its losses alone,

    argmin_u Σ_j c_j ℓ(a_j·u, b_j) + ‖u - v‖²/(2κ),   v = x + κ p_i,   κ = σ' w_i/λ.

Then x ← -(1/λ) Σ w_i p_i. One vector down, one up; the slopes stay with the client, and make a certificate.

The intercept θ is not in the l2 term, and the papers have none. In the dual it is the multiplier of the constraint
S = 0, where S is the intercept's coordinate of Σ w_i p_i, and here it is found by the method of multipliers: clients
work with θ - S/λ, and after the round θ ← θ - S/λ. Where that stands still S = 0, and the solution is exact. With exact
local steps and σ' >= n this is the proximal method of multipliers (Rockafellar, Math. Oper. Res. 1976), whose proximal
term is what σ' pays too much; it converges (with a term that is only semidefinite: Fazel, Pong, Sun, Tseng, SIAM J.
Matrix Anal. Appl. 2013). That passes do as well is measured.

Where we differ from the papers: client weights, the intercept, and that rows come in mini-batches in random order. Runs
start from the slopes 0, that is from x = 0: of a given x0 only the intercept is used. Proved, for σ' = n and an l2 term
on all coordinates: O(1/ε) rounds for Lipschitz losses, O(log 1/ε) for smooth ones, times a factor for local accuracy.
"""

from typing import ClassVar, NamedTuple, Self

import numpy as np

from fedmls.checks import positive, whole
from fedmls.hyperparameters import hyperparameters
from fedmls.types import Algorithm, Array, Local, Scale, Traits


class Server(NamedTuple):
    """When round k begins: x_{k-1}."""

    x: Array


class Client(NamedTuple):
    """When round k begins: p_i after round k - 1, and x_{k-2} (x0 before round 2)."""

    p: Array
    x: Array


class Down(NamedTuple):
    x: Array


class Up(NamedTuple):
    x: Array  # -p_i/λ, for the intercept θ - p_i/λ


@hyperparameters
class CoCoA(Algorithm[Server, Client, Down, Up]):
    """passes: over the client's rows in every round.

    sigma: σ'/n. 1 is safe; smaller values are bolder, faster where the clients' rows have little in common, and may
    diverge.

    It needs problems of rows with an l2 term, and without an l1 term.
    """

    name: ClassVar[str] = "cocoa"
    title: ClassVar[str] = "CoCoA+"
    traits: ClassVar[Traits] = Traits(certifies=True, needs_rows=True, needs_no_l1=True, needs_l2=True)
    passes: int = 1
    sigma: float = 1.0

    def __post_init__(self) -> None:
        whole("passes", self.passes)
        positive("sigma", self.sigma)

    @classmethod
    def fair_start(cls, scale: Scale) -> Self:
        return cls(passes=5)

    def init(self, x0: Array, n: int) -> tuple[Server, Client]:
        return Server(x0), Client(0 * x0, x0)

    def broadcast(self, k: int, server: Server, rng: np.random.Generator) -> tuple[Server, Down]:
        return server, Down(server.x)

    def client_round(self, k: int, client: Client, down: Down, local: Local) -> tuple[Client, Up]:
        lam = float(local.ridge.max())
        if lam == 0:
            raise ValueError(
                "cocoa needs rows and an l2 term, and here l2 is 0; "
                "give a fedmls.Problem with l2 > 0, or take another algorithm, e.g. fedmlsd"
            )
        intercept = 1.0 * (local.ridge == 0)
        kappa = self.sigma * local.n / lam * local.weight
        seen = down.x + intercept * (down.x - client.x) if k > 1 else intercept * down.x
        _, p = local.ascend(seen + kappa * client.p, kappa, client.p, 1, self.passes, ridge=False)
        return Client(p, down.x + 0 * p), Up(intercept * down.x - p / lam)

    def server_round(self, k: int, server: Server, up: Up) -> Server:
        return Server(up.x)

    def model(self, server: Server) -> Array:
        return server.x
