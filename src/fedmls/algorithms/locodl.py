"""LoCoDL: Condat, Maranjyan, Richtárik, "LoCoDL: Communication-Efficient Distributed Learning with Local Training and
Compression" (ICLR 2025), Algorithm 1.

The problem is min Σ w_i φ_i(x) + g(x), with g(x) = (c/2)‖x‖² taken out of the f_i: φ_i = f_i - g. Clients step on φ_i,
and all of them, like the server, on g, which they all know:

    x̂_i = x_i - γ_t (g_i(x_i) - c x_i - u_i);   ŷ = y - γ_t (c y - v).

After step t a coin with probability p_t says whether they meet. Then d_i = C_i(x̂_i - ŷ) goes up, d̄ = ½ Σ w_i d_i comes
down, and with ω the variance of C_i (E‖C_i(v) - v‖² <= ω ‖v‖²), ρ = 1/(1 + ω/n), χ = ρ/2 and a = p_t χ/(γ_t (1 + 2ω))

    x_i = (1 - ρ) x̂_i + ρ (ŷ + d̄);   y = ŷ + ρ d̄;   u_i ← u_i + a (d̄ - d_i);   v ← v + a d̄.

Otherwise x_i = x̂_i and y = ŷ. The model is y. What is compressed goes to 0, so compression does no harm in the end. One
vector down, one compressed vector up. Invariant: Σ w_i u_i + v = 0.

Where we differ from the paper: a round is the time between two meetings, as in Scaffnew, and a client learns d̄ when the
next one begins. With unequal client weights ω/n stands for ω Σ w_i². The paper needs smooth φ_i and c > 0 such that
they are convex; c = 0 and Scaffnew's falling rates, for non-smooth problems, are a heuristic.
"""

from functools import partial
from typing import ClassVar, NamedTuple, Self

import numpy as np

from fedmls.checks import at_least, positive
from fedmls.compression import check_compression, kept_entries, packed_bytes, variance
from fedmls.hyperparameters import hyperparameters
from fedmls.schedules import Power, check_schedule, first_success, schedule
from fedmls.types import Algorithm, Array, Local, Scale, Traits


class Server(NamedTuple):
    """When round k begins: y and v after the last meeting, d̄ of it, the local steps t up to it, and the number of
    clients. (Before round 1 there was no meeting: d̄ = 0.)"""

    y: Array
    v: Array
    d: Array
    t: int
    n: int


class Client(NamedTuple):
    """When round k begins: x̂_i, ŷ and d_i just before the last meeting; u_i and v not yet updated for it."""

    x_hat: Array
    y_hat: Array
    d: Array
    u: Array
    v: Array


class Down(NamedTuple):
    d: Array
    t: int
    T: int


class Up(NamedTuple):
    d: Array


@hyperparameters
class LoCoDL(Algorithm[Server, Client, Down, Up]):
    """γ_t = eta0/√t and p_t = 1/√t, or ``eta`` and ``p`` as given (numbers are constants, as in the paper).

    method: "random_k", a share ``level`` of the entries, times d/k; or "quantise", ``level`` bits for each entry.
    c: the strong convexity that is taken out of the f_i, at most what they have.
    """

    name: ClassVar[str] = "locodl"
    eta0: float = 0.01
    method: str = "random_k"
    level: float = 0.5
    c: float = 0.0
    eta: float | Power | None = None
    p: float | Power | None = None

    def __post_init__(self) -> None:
        positive("eta0", self.eta0)
        check_compression(self.method, self.level, ("random_k", "quantise"))
        at_least("c", self.c, 0.0)
        check_schedule("eta", self.eta)
        check_schedule("p", self.p)

    @classmethod
    def fair_start(cls, scale: Scale) -> Self:
        return cls(eta0=0.3 * scale.step)

    @property
    def traits(self) -> Traits:
        return Traits(packed=partial(packed_bytes, self.method, self.level))

    def init(self, x0: Array, n: int) -> tuple[Server, Client]:
        zero = 0 * x0
        return Server(x0, zero, zero, 0, n), Client(x0, x0, zero, zero, zero)

    def broadcast(self, k: int, server: Server, rng: np.random.Generator) -> tuple[Server, Down]:
        T = first_success(schedule(self.p, 1.0, -0.5), server.t, rng)
        y_hat = self._step_on_g(server.y, server.v, self._steps(server.t, T))
        return server._replace(y=y_hat, t=server.t + T), Down(server.d, server.t, T)

    def client_round(self, k: int, client: Client, down: Down, local: Local) -> tuple[Client, Up]:
        x_hat, y_hat, d, u, v = client
        rho, a = self._rates(down.t, x_hat.shape[-1], local.n)
        x, y = (1 - rho) * x_hat + rho * (y_hat + down.d), y_hat + rho * down.d
        u, v = u + a * (down.d - d), v + a * down.d
        steps = self._steps(down.t, down.T)
        x_hat, _ = local.descend(x, steps, pull=-self.c, shift=-u)
        y_hat = self._step_on_g(y, v, steps)
        d = self._unbias(x_hat.shape[-1]) * local.compress(x_hat - y_hat, self.method, self.level)
        return Client(x_hat, y_hat, d, u, v), Up(d)

    def server_round(self, k: int, server: Server, up: Up) -> Server:
        y_hat, v, _, t, n = server  # broadcast has taken the steps on g
        rho, a = self._rates(t, len(y_hat), n)
        d = up.d / 2
        return Server(y_hat + rho * d, v + a * d, d, t, n)

    def model(self, server: Server) -> Array:
        return server.y

    def _steps(self, t: int, T: int) -> Array:
        return np.asarray(schedule(self.eta, self.eta0, -0.5).array(t + 1, T))

    def _step_on_g(self, y: Array, v: Array, steps: Array) -> Array:
        """Return where the steps y ← y - γ_t (c y - v) end."""
        kept = np.cumprod(np.append(1.0, 1 - self.c * steps[::-1]))  # of what a step added, by the steps after it
        return np.asarray(kept[-1] * y + (steps[::-1] @ kept[:-1]) * v)

    def _rates(self, t: int, d: int, n: int) -> tuple[float, float]:
        """Return ρ and a of the meeting after step t; before the first step there was none, and nothing to learn."""
        omega = variance(self.method, self.level, d)
        rho = 1 / (1 + omega / n)
        if t == 0:
            return rho, 0.0
        p = min(1.0, schedule(self.p, 1.0, -0.5)(t))
        return rho, p * rho / 2 / (schedule(self.eta, self.eta0, -0.5)(t) * (1 + 2 * omega))

    def _unbias(self, d: int) -> float:
        """Return the factor that makes the compressed vector right in the mean."""
        return d / kept_entries(self.level, d) if self.method == "random_k" else 1.0
