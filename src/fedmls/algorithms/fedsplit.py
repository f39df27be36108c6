"""FedSplit: Pathak, Wainwright, "FedSplit: An Algorithmic Framework for Fast Federated Optimization" (NeurIPS 2020),
Algorithm 1: Peaceman-Rachford splitting of the consensus problem.

    u_i ≈ argmin_u f_i(u) + ‖u - (2x - z_i)‖²/(2s);   z_i ← z_i + α (u_i - x);   x ← Σ w_i z_i,   α = 2.

One vector down, one up. Invariant: Σ w_i z_i = x. At the fixed point u_i = x for all i: unlike FedProx it does not
settle elsewhere.

With α in (0, 2) it is Douglas-Rachford splitting, and with the exact argmin just consensus ADMM with ρ = 1/s and
over-relaxation α (:mod:`fedmls.algorithms.admm`; Eckstein, Bertsekas 1992). FedDR (Tran-Dinh, Pham, Phan, Nguyen,
NeurIPS 2021) is that with clients drawn at random; FedADMM (Zhou, Li 2023), FedPD (Zhang et al. 2021) and FedDyn (Acar
et al. 2021, :mod:`fedmls.algorithms.feddyn`) are its close relatives.

Where we differ from the paper: its approximate argmin is some gradient steps; here it is T_k steps of FedMLS's
approximate proximal step from x, whose average converges for non-smooth f_i too. Its linear rate is for smooth,
strongly convex f_i. For others α = 2 need not converge, not even with the exact argmin; α < 2 then does.
"""

from typing import ClassVar, NamedTuple, Self

import numpy as np

from fedmls.checks import positive, truth
from fedmls.hyperparameters import hyperparameters
from fedmls.schedules import Power, check_schedule, prox_average, prox_steps, schedule, steps_in_round
from fedmls.types import Algorithm, Array, Local, References, Scale, Traits


class Server(NamedTuple):
    """When round k begins: x_{k-1}."""

    x: Array


class Client(NamedTuple):
    """When round k begins: z_i after round k - 1."""

    z: Array


class Down(NamedTuple):
    x: Array


class Up(NamedTuple):
    z: Array


@hyperparameters
class FedSplit(Algorithm[Server, Client, Down, Up]):
    """s: the weight of the proximal step.  T_k = ⌈T0 k⌉ local steps towards it, or ``T`` as given.

    relaxation: α in (0, 2]; the paper's is 2.
    exact: the exact proximal step instead, over all rows whatever the batch; for problems of rows without an l1 term.
    """

    name: ClassVar[str] = "fedsplit"
    references: ClassVar[References] = {"z": "x"}
    s: float = 0.1
    T0: float = 1.0
    T: float | Power | None = None
    relaxation: float = 2.0
    exact: bool = False

    def __post_init__(self) -> None:
        positive("s", self.s)
        positive("T0", self.T0)
        check_schedule("T", self.T)
        if not positive("relaxation", self.relaxation) <= 2:
            raise ValueError(f"relaxation is {self.relaxation!r}; it must be at most 2, which is FedSplit's")
        truth("exact", self.exact)

    @classmethod
    def fair_start(cls, scale: Scale) -> Self:
        return cls(s=scale.step)

    @property
    def traits(self) -> Traits:
        stacks = None if self.exact else ("s", "relaxation")
        return Traits(needs_rows=self.exact, needs_no_l1=self.exact, stacks=stacks)

    def init(self, x0: Array, n: int) -> tuple[Server, Client]:
        return Server(x0), Client(x0)

    def broadcast(self, k: int, server: Server, rng: np.random.Generator) -> tuple[Server, Down]:
        return server, Down(server.x)

    def client_round(self, k: int, client: Client, down: Down, local: Local) -> tuple[Client, Up]:
        z = client.z + self.relaxation * (self._prox(k, 2 * down.x - client.z, down.x, local) - down.x)
        return Client(z), Up(z)

    def server_round(self, k: int, server: Server, up: Up) -> Server:
        return Server(up.z)

    def model(self, server: Server) -> Array:
        return server.x

    def _prox(self, k: int, v: Array, x: Array, local: Local) -> Array:
        """Return the proximal step from v, or what the local steps from x make of it."""
        if self.exact:
            return local.prox(v, self.s)
        T = steps_in_round(schedule(self.T, self.T0, 1), k)
        _, u = local.descend(x, prox_steps(T), scale=self.s, pull=1.0, center=v, average=prox_average(T))
        return u
