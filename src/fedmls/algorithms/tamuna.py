"""TAMUNA: Condat, Agarský, Malinovsky, Richtárik, "TAMUNA: Doubly Accelerated Distributed Optimization with Local
Training, Compression, and Partial Participation" (2023), Algorithm 1.

Scaffnew with two savings. τ of the n clients, drawn at random, take part in a round; and each of them sends only a part
of its vector, so that every coordinate comes from exactly s clients: with its place π_i in the random order in which
the τ were drawn, a client sends the coordinates c with (π_i - c s) mod τ < s. That is a mask q_i with s d/τ ones. Then

    x_i ← x_i - γ_t (g_i(x_i) - h_i)  from x̄, T times;   x̄ ← (1/s) Σ_i q_i ⊙ x_i;
    h_i ← h_i + (η_t/γ_t) q_i ⊙ (x̄ - x_i),   η_t = p_t n(s - 1)/(s(n - 1)), the largest that the paper's proof allows.

T is the number of steps up to the next meeting, by coins with probability p_t, as in Scaffnew. With s = τ = n it is
Scaffnew. One vector down, s d/τ numbers up; which ones follows from the shared seed. Invariant: Σ h_i = 0.

Where we differ from the paper: a client learns x̄ when the next round begins and updates its h_i then; so those of a
round are asked in the next one too, and one that is not drawn again only listens. It sends a number that says so, 8
bytes, because the server sees only the mean over all that were asked. With unequal client weights every f_i is taken
n w_i times, which makes the weights equal. On non-smooth problems Scaffnew's falling rates are a heuristic.
"""

from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from fedmls.algorithms._auto_lambda import no_numbers
from fedmls.checks import positive, whole
from fedmls.hyperparameters import hyperparameters
from fedmls.schedules import Power, check_schedule, first_success, schedule
from fedmls.types import Algorithm, Array, Local, Scale, Traits


class Server(NamedTuple):
    """When round k begins: x̄ of the last meeting, the local steps t up to it, and the number of clients."""

    x: Array
    t: int
    n: int


class Client(NamedTuple):
    """When round k begins: x_i and q_i just before the last meeting, and h_i not yet updated for it. q_i = 0 if the
    client was not drawn for round k - 1."""

    x_hat: Array
    q: Array
    h: Array


class Down(NamedTuple):
    x: Array
    t: int
    T: int


class Up(NamedTuple):
    x: Array  # q_i ⊙ x_i/(n w_i)
    takes_part: Array  # 1, or 0 from one that only listens; with ``participants`` alone


@hyperparameters
class Tamuna(Algorithm[Server, Client, Down, Up]):
    """γ_t = eta0/√t and p_t = 1/√t, or ``eta`` and ``p`` as given (numbers are constants, as in the paper).

    s: how many clients send each coordinate, from 2 to τ.
    participants: τ clients, drawn at random, take part in a round; all unless given.
    """

    name: ClassVar[str] = "tamuna"
    title: ClassVar[str] = "TAMUNA"
    eta0: float = 0.01
    s: int = 2
    eta: float | Power | None = None
    p: float | Power | None = None
    participants: int | None = None

    def __post_init__(self) -> None:
        positive("eta0", self.eta0)
        check_schedule("eta", self.eta)
        check_schedule("p", self.p)
        if self.participants is not None:
            whole("participants", self.participants, least=2)
        whole("s", self.s, least=2, most=self.participants)

    @classmethod
    def fair_start(cls, scale: Scale) -> Self:
        return cls(eta0=0.3 * scale.step, s=max(2, scale.n // 2))

    @property
    def traits(self) -> Traits:
        return Traits(numbers=("takes_part",), packed=self._bytes, follow_up=True)

    def init(self, x0: Array, n: int) -> tuple[Server, Client]:
        if (self.participants or n) < self.s:
            raise ValueError(f"s is {self.s}, but {n} clients take part; take at most {n}, and at least 2 clients")
        return Server(x0, 0, n), Client(x0, 0 * x0, 0 * x0)

    def broadcast(self, k: int, server: Server, rng: np.random.Generator) -> tuple[Server, Down]:
        T = first_success(schedule(self.p, 1.0, -0.5), server.t, rng)
        return server._replace(t=server.t + T), Down(server.x, server.t, T)

    def client_round(self, k: int, client: Client, down: Down, local: Local) -> tuple[Client, Up]:
        gamma, n = schedule(self.eta, self.eta0, -0.5), local.n
        h = client.h
        if down.t > 0:
            h = h + self._eta(down.t, n) / gamma(down.t) * client.q * (down.x - client.x_hat)
        place = local.place(self.participants)
        drawn = 1.0 * (place >= 0)
        x_hat, _ = local.descend(
            down.x, gamma.array(down.t + 1, down.T), scale=n * local.weight, shift=-h, count=down.T * (place >= 0)
        )
        q = drawn * self._mask(place, x_hat, n)
        takes_part = no_numbers(x_hat) if self.participants is None else drawn
        return Client(x_hat, q, h), Up(q * x_hat / (n * local.weight), takes_part)

    def server_round(self, k: int, server: Server, up: Up) -> Server:
        tau = self.participants or server.n
        share = 1.0 if self.participants is None else up.takes_part  # of those that were asked
        return server._replace(x=tau / self.s * up.x / share)

    def model(self, server: Server) -> Array:
        return server.x

    def _eta(self, t: int, n: int) -> float:
        return float(min(1.0, schedule(self.p, 1.0, -0.5)(t))) * n * (self.s - 1) / (self.s * (n - 1))

    def _mask(self, place: Any, like: Array, n: int) -> Array:
        """Return q_i: 1 for the coordinates that the client at this place sends, 0 for the others."""
        c = np.arange(like.shape[-1])
        return np.asarray(1.0 * ((place - c * self.s) % (self.participants or n) < self.s))

    def _bytes(self, d: int, clients: int) -> float:
        return 8 * self.s * d / clients
