"""FedMLS-D: consensus with multipliers, and local steps in the dual. On most problems it needs the fewest exchanges of
the methods here that send only averages and run on mini-batches (docs/benchmarks.md), and nothing has to be tuned.

It is what FedMLS-E becomes with stages of one round, if each stage starts where the last one ended and takes over the
pull of its penalty as multipliers Y^i: the f_i + <Y^i, ·> with Σ w_i Y^i = 0 have the same sum as the f_i. That is
consensus ADMM (Boyd et al. 2011, section 7.1; Eckstein, Bertsekas 1992), written with μ = 1/ρ:

    x^i ≈ argmin_x f_i(x) + <Y^i, x> + ‖x - z‖²/(2μ);   x̂^i = α x^i + (1 - α) z;
    z ← Σ w_i x̂^i;   Y^i ← Y^i + (x̂^i - z)/μ.

With approximate local steps that is well known in federated learning, and FedMLS-D descends from it: FedSplit (Pathak,
Wainwright, NeurIPS 2020) is α = 2; FedDyn (Acar et al., ICLR 2021) and FedPD (Zhang, Hong, Dhople, Yin, Liu, IEEE
Trans. Signal Process. 2021) take z with the new Y^i; FedDR (Tran-Dinh, Pham, Phan, Nguyen, NeurIPS 2021) is α < 2 with
clients drawn at random; FedADMM (Zhou, Li, arXiv 2022) is α = 1 with gradient steps. What is ours is how the argmin is
approached and how μ is chosen.

The argmin is approached by T_k mini-batches of dual coordinate ascent (Shalev-Shwartz, Zhang 2013) from the slopes that
the rows had at the end of the last round. So the noise of mini-batches dies out by itself, where subgradient steps have
to outnumber it: that, more than the number of rounds, is what keeps FedMLS, Scaffold and the like from 1e-3.

With λ_0 = "auto" five lanes run side by side in the same exchanges, each with a μ of its own; clients report f_i at the
lanes' last models, the model is that of the best lane, and from time to time all lanes go on from the best one, with
its μ times 1/4, 1/2, 1, 2, 4, kept within wide limits around ‖x̄ - x0‖/S, S the rms length of the p^i. This is
population based training (Jaderberg et al. 2017) of one parameter; it costs five times the bytes and the local steps,
and no exchange.

Proved, for α = 1, a constant μ and the exact argmin (He, Yuan, SIAM J. Numer. Anal. 2012, in the norm Σ w_i ‖x_i‖²):
the average of x̄_1, ..., x̄_K has a gap of at most (D0²/μ + μ Ḡ²)/(2K), so that μ = D0/Ḡ takes D0 Ḡ/ε rounds. It
converges for all α in (0, 2) and summable errors (Eckstein, Bertsekas). That T_k mini-batches suffice, and how lanes
choose μ, is measured, not proved; a certificate proves the answer of any run.

One vector down, one up, for each lane. The rows' slopes stay with the client.
"""

import math
from typing import ClassVar, NamedTuple, Self

import numpy as np

from fedmls.algorithms._auto_lambda import check_lam0, distance_over, due, no_numbers, own_guess, squared
from fedmls.algorithms.fedmls import OUTPUTS, choose, first_mu
from fedmls.checks import one_of, positive, whole
from fedmls.hyperparameters import hyperparameters
from fedmls.schedules import Power, check_schedule, schedule, steps_in_round
from fedmls.types import Algorithm, Array, Local, Scale, Traits

PASSES = 5  # at least so many over a client's rows in every round
# λ_0 = "auto". The constants were chosen on twenty problems that are not in the benchmark suite.
LANES = np.array([0, -1, 1, -2, 2])  # the first one makes the certificate
FIRST, AUTO, FAR, NEAR = 10.0, 0.4, 3.0, 2.0
LEAST, MOST = 1 / 300, 10.0  # μ stays within so many times AUTO ‖x̄ - x0‖/S
SAME = 1e-12  # of f: lanes whose values differ by less are as good


class Server(NamedTuple):
    """When round k begins, of all lanes one after the other: z_{k-1}; x̄ = Σ w_i x^i of round k - 1; its average over
    the rounds since μ was last set; their μ (0: by the client's own guess). Then the number of those rounds; x0; the
    best lane by the last values that are known; the lane that all go on from, -1 for each from its own end."""

    z: Array
    x: Array
    average: Array
    mu: Array
    averaged: int
    x0: Array
    best: int
    start: int


class Client(NamedTuple):
    """When round k begins, of all lanes: x̂^i_{k-1}, z_{k-2}, Y^i_{k-1}, the μ of round k - 1, and p^i = Σ_j c_j s_j a_j
    of its slopes. μ is infinite where no multiplier is to be learned from the round."""

    x: Array
    z: Array
    Y: Array
    mu: Array
    p: Array


class Down(NamedTuple):
    z: Array
    mu: Array
    start: int


class Up(NamedTuple):
    x: Array
    numbers: Array  # with "auto": of each lane f_i(x̄) of the round before, and ‖p^i‖²


@hyperparameters
class FedMLSD(Algorithm[Server, Client, Down, Up]):
    """μ = lam0/n, or chosen by the run ("auto"); T_k = ⌈T0 k⌉ mini-batches in round k, or ``T`` as given, but at
    least as many as make five passes over the client's rows.

    relaxation: α in (0, 2).
    settle: with "auto", the round after which μ is chosen no more. There all lanes go on from the best one, with 1/4 to
    4 times a constant times ‖x̄ - x0‖/S, S the rms length of the p^i, and keep that. Values alone can lead μ astray, to
    0 or to infinity, where the run stalls. None: never.
    output: "last" is x̄; "average" is its average since μ was last set, which the bound is about; "best" the better of
    the two by objective, for which clients report theirs: one more exchange.

    It needs problems of rows, without an l1 term.
    """

    name: ClassVar[str] = "fedmlsd"
    title: ClassVar[str] = "FedMLS-D"
    lam0: float | str = "auto"
    T0: float = 1.0
    T: float | Power | None = None
    relaxation: float = 1.8
    output: str = "last"
    settle: int | None = None

    def __post_init__(self) -> None:
        check_lam0(self.lam0)
        positive("T0", self.T0)
        check_schedule("T", self.T)
        if not positive("relaxation", self.relaxation) < 2:
            raise ValueError(f"relaxation is {self.relaxation!r}; it must be below 2, 1.5 to 1.9 are usual")
        one_of("output", self.output, OUTPUTS)
        if self.settle is not None:
            whole("settle", self.settle)

    @classmethod
    def fair_start(cls, scale: Scale) -> Self:
        return cls(settle=16)

    @property
    def traits(self) -> Traits:
        return Traits(
            certifies=True,
            numbers=("numbers", "mu"),
            reveals_objective=isinstance(self.lam0, str),
            needs_rows=True,
            needs_no_l1=True,
        )

    @property
    def _lanes(self) -> int:
        return len(LANES) if isinstance(self.lam0, str) else 1

    def init(self, x0: Array, n: int) -> tuple[Server, Client]:
        lanes = np.ones(self._lanes)
        x, mu = np.tile(x0, self._lanes), first_mu(self.lam0, n) * lanes
        return Server(x, x, x, mu, 0, x0, 0, -1), Client(x, x, 0 * x, math.inf * lanes, 0 * x)

    def broadcast(self, k: int, server: Server, rng: np.random.Generator) -> tuple[Server, Down]:
        return server, Down(server.z, server.mu, server.start)

    def client_round(self, k: int, client: Client, down: Down, local: Local) -> tuple[Client, Up]:
        z, guessing = down.z, not down.mu.any()
        if down.start >= 0:
            client = Client(*(self._from(down.start, field) for field in client))
        mu = FIRST * FAR**LANES * own_guess(self._lane(0, z), local) if guessing else down.mu + 0 * local.weight
        Y = client.Y + (client.x - z) / self._each(client.mu, z)
        T = steps_in_round(schedule(self.T, self.T0, 1), k)
        x, p = local.ascend(z - self._each(mu, z) * Y, mu, client.p, T, PASSES, down.start)
        x = x if guessing else self.relaxation * x + (1 - self.relaxation) * z
        sent = self._seen(client, z, p, local) if isinstance(self.lam0, str) else no_numbers(x)
        return Client(x, z + 0 * x, Y, mu + math.inf if guessing else mu, p), Up(x, sent)

    def server_round(self, k: int, server: Server, up: Up) -> Server:
        z, mu, averaged = up.x, server.mu, server.averaged + 1
        x = unrelaxed(z, server.z, self.relaxation if mu.any() else 1.0)
        average = server.average + (x - server.average) / averaged
        after = Server(z, x, average, mu, averaged, server.x0, 0, -1)
        if not isinstance(self.lam0, str):
            return after
        values, squares = up.numbers[: len(LANES)], up.numbers[len(LANES) :]
        least = values.min()
        best = int(np.argmax(values <= least + SAME * abs(least)))  # the first, where rounding alone would decide
        if not mu.any():
            own = [distance_over(squares[j], self._lane(j, x), server.x0) for j in range(len(LANES))]
            return after._replace(mu=AUTO * FAR**LANES * own * np.all(own), averaged=0)
        settling = k == self.settle
        if not (settling or due(k)) or (self.settle is not None and k > self.settle):
            return after._replace(best=best)
        z, x, average = (self._from(best, field) for field in (z, x, average))
        found = AUTO * distance_over(squares[best], self._lane(0, x), server.x0)
        chosen = found if settling and found else within(mu[best], found)
        return Server(z, x, average, chosen * NEAR**LANES, 0, server.x0, 0, best)

    def model(self, server: Server) -> Array | tuple[Array, ...]:
        return choose(self.output, self._lane(server.best, server.average), self._lane(server.best, server.x))

    def _seen(self, client: Client, z: Array, p: Array, local: Local) -> Array:
        """f_i at the last x̄ of each lane, and ‖p^i‖²."""
        learned = np.isfinite(client.mu)
        x = unrelaxed(z, client.z, self._each(np.where(learned, self.relaxation, 1.0), z))
        lanes = range(len(LANES))
        values = [np.asarray(local.value(self._lane(j, x)))[..., None] for j in lanes]
        return np.concatenate([*values, *(squared(self._lane(j, p)) for j in lanes)], axis=-1)

    def _lane(self, j: int, v: Array) -> Array:
        size = v.shape[-1] // self._lanes
        return v[..., j * size : (j + 1) * size]

    def _from(self, j: int, v: Array) -> Array:
        """Return v with lane j in the place of every lane."""
        return np.concatenate([self._lane(j, v)] * self._lanes, axis=-1)

    def _each(self, numbers: Array, like: Array) -> Array:
        """One number for each lane, as often as it has coordinates."""
        return np.repeat(numbers, like.shape[-1] // self._lanes, axis=-1)


def within(mu: float, found: float) -> float:
    """μ, but not far from where the bound is smallest; 0 says nothing.

    Once μ is too large (or too small), all lanes have nearly the same values, which one is best is chance, and it would
    run away by a factor of 4 at each choice.
    """
    return min(max(mu, LEAST * found), MOST * found) if found else mu


def unrelaxed(z: Array, before: Array, alpha: "float | Array") -> Array:
    """The mean of the x^i, where z is that of the x̂^i."""
    return (z - (1 - alpha) * before) / alpha
