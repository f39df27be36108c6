"""Smaller uploads: a wrapper around any algorithm whose server needs only the mean.

A client sends C(v - s) instead of v, with a state s that it and the server keep: s <- s + C(v - s) on both sides
(Richtárik, Sokolov, Fatkhullin, "EF21", NeurIPS 2021; Mishchenko et al., "DIANA", 2019). The server needs only the mean
of the states, which moves by the mean of the messages. What is lost in one round is sent in a later one.

top_k     the largest entries; 12 bytes each (8 for the number, 4 for its place)
random_k  entries drawn from the shared seed, so that their places need not be sent; 8 bytes each
quantise  every entry in so many bits, rounded up or down at random so that the mean is right,
          times the norm (QSGD: Alistarh et al., NeurIPS 2017)

For FedMLS and FedMLS-E this is a heuristic: their guarantees assume exact uploads.
"""

import math
from collections import namedtuple
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar

import numpy as np

from fedmls.checks import one_of
from fedmls.hyperparameters import hyperparameters
from fedmls.types import Algorithm, Array, Local, Traits

METHODS = ("top_k", "random_k", "quantise")


@hyperparameters
class Compressed(Algorithm):
    """``algorithm`` with compressed uploads. level: the share of entries kept, in (0, 1], or for "quantise" the bits of
    each, 2 to 16, sign included.
    """

    name: ClassVar[str] = "compressed"
    algorithm: Algorithm
    method: str = "top_k"
    level: float = 0.1

    def __post_init__(self) -> None:
        check_compression(self.method, self.level, METHODS)
        inner = self.algorithm
        if inner.traits.packed is not None or inner.traits.packed_down is not None:
            raise ValueError(f"{inner.name} compresses what it sends by itself; leave out Compressed")
        if inner.traits.proves:
            raise ValueError(f"{inner.name} needs its cuts as they are; compressed they would prove nothing")
        if inner.traits.aggregate != "mean":
            raise ValueError(f"{inner.name} needs every client's upload as it is; it cannot be compressed here")
        if inner.participants is not None:
            raise ValueError("compressed uploads need all clients in every round; leave out participants=")

    @property
    def Down(self) -> type[Any]:
        return self.algorithm.Down

    @property
    def Up(self) -> type[Any]:
        return self.algorithm.Up

    @property
    def traits(self) -> Traits:
        return self.algorithm.traits._replace(packed=partial(packed_bytes, self.method, self.level))

    @property
    def rounds_per_exchange(self) -> int:
        return self.algorithm.rounds_per_exchange

    def init(self, x0: Array, n: int) -> tuple[Any, Any]:
        server, client = self.algorithm.init(x0, n)
        zeros = [0 * x0] * len(self._compressed())
        return self._join(server, zeros), self._join(client, zeros)

    def broadcast(self, k: int, server: Any, rng: np.random.Generator) -> tuple[Any, Any]:
        inner, kept = self._part(server)
        inner, down = self.algorithm.broadcast(k, inner, rng)
        return self._join(inner, kept), down

    def client_round(self, k: int, client: Any, down: Any, local: Local) -> tuple[Any, Any]:
        inner, kept = self._part(client)
        inner, up = self.algorithm.client_round(k, inner, down, local)
        sent = {
            name: local.compress(getattr(up, name) - s, self.method, self.level)
            for name, s in zip(self._compressed(), kept, strict=True)
        }
        kept = [s + message for s, message in zip(kept, sent.values(), strict=True)]
        return self._join(inner, kept), up._replace(**sent)

    def server_round(self, k: int, server: Any, up: Any) -> Any:
        inner, kept = self._part(server)
        names = self._compressed()
        kept = [s + getattr(up, name) for name, s in zip(names, kept, strict=True)]
        inner = self.algorithm.server_round(k, inner, up._replace(**dict(zip(names, kept, strict=True))))
        return self._join(inner, kept)

    def model(self, server: Any) -> Any:
        return self.algorithm.model(self._part(server)[0])

    def _compressed(self) -> tuple[str, ...]:
        """The fields of Up that are compressed: all but those sent on demand, and numbers."""
        traits = self.algorithm.traits
        return tuple(name for name in self.Up._fields if name not in traits.on_demand + traits.numbers)

    def _join(self, inner: Any, kept: list[Array]) -> Any:
        of: Any = type(inner)
        return _joined(of, self._compressed())(*inner, *kept)

    def _part(self, state: Any) -> tuple[Any, list[Array]]:
        count = len(self._compressed())
        return type(state).inner(*state[:-count]), list(state[-count:])


@lru_cache(maxsize=64)
def _joined(inner: Any, names: tuple[str, ...]) -> Any:
    """The inner state's NamedTuple with one more field for each kept vector: states stay flat."""
    fields = [*inner._fields, *(f"kept_{name}" for name in names)]
    return type(inner.__name__, (namedtuple(inner.__name__, fields),), {"inner": inner})


def address_inside(algorithm: Algorithm) -> str:
    """Return the address of the algorithm, or of the one that is compressed."""
    return algorithm.algorithm.address() if isinstance(algorithm, Compressed) else algorithm.address()


def check_compression(method: str, level: float, methods: Sequence[str]) -> None:
    """Check the method, which must be one of these, and its level."""
    one_of("method", method, methods)
    if method == "quantise":
        if level not in range(2, 17):
            raise ValueError(f"level is {level!r}; quantise takes whole bits from 2 to 16 for each entry")
    elif not isinstance(level, int | float) or not 0 < level <= 1:
        raise ValueError(f"level is {level!r}; {method} takes the share of entries kept, in (0, 1]")


def packed_bytes(method: str, level: float, d: int, clients: int) -> int:
    """Return the bytes of one compressed vector of d numbers, however many clients send one."""
    if method == "quantise":
        return 8 + math.ceil(d * int(level) / 8)
    return kept_entries(level, d) * (12 if method == "top_k" else 8)


def variance(method: str, level: float, d: int) -> float:
    """Return ω with E‖C(v) - v‖² <= ω ‖v‖² for the unbiased C of d numbers: "random_k" times d/k, or "quantise"."""
    if method == "random_k":
        return d / kept_entries(level, d) - 1
    steps = quantisation_steps(level)
    return min(d / steps**2, d**0.5 / steps)


def quantisation_steps(bits: float) -> int:
    """Return how many values "quantise" has above 0, with one of the bits for the sign."""
    return int(2 ** (int(bits) - 1) - 1)


def kept_entries(level: float, d: int) -> int:
    return max(1, math.ceil(level * d - 1e-9))
