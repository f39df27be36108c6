"""How lambda, T, eta and p move with the round or the local step: small values, and two fixed sequences."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedmls.types import Array


@dataclass(frozen=True)
class Power:
    """scale * k ** exponent for k = 1, 2, ...; exponent 0 is a constant."""

    scale: float
    exponent: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.scale < math.inf) or not math.isfinite(self.exponent):
            raise ValueError(f"{self!r} is no schedule: scale must be positive, exponent finite")

    def __call__(self, k: float) -> float:
        return float(self.scale * k**self.exponent)

    def array(self, first: int, count: int) -> Array:
        """The values at first, first + 1, ..., first + count - 1."""
        if self.exponent == 0:
            return np.full(count, float(self.scale))
        return np.asarray(self.scale * np.arange(first, first + count, dtype=float) ** self.exponent)


def schedule(value: "float | Power | None", default: Power) -> Power:
    """A number is a constant schedule; None is the default."""
    if value is None:
        return default
    return value if isinstance(value, Power) else Power(float(value))


def check_schedule(name: str, value: "float | Power | None") -> None:
    if value is None or isinstance(value, Power):
        return
    if not isinstance(value, int | float) or not (0 < value < math.inf):
        raise ValueError(f"{name} is {value!r}; it must be a positive number or a fedmls.Power")


def steps_in_round(T: Power, k: int) -> int:
    """T_k as a whole number: rounded up, and at least 1."""
    return max(1, math.ceil(T(k) - 1e-9))


def first_success(p: Power, after: int, rng: np.random.Generator) -> int:
    """Toss coins t = after + 1, after + 2, ... with probability p(t); how many until the first head."""
    tossed, block = 0, 16
    while True:
        heads = np.flatnonzero(rng.random(block) < p.array(after + tossed + 1, block))
        if heads.size:
            return tossed + int(heads[0]) + 1
        tossed, block = tossed + block, 2 * block


def _grown(rule: Callable[[Array], Array]) -> Callable[[int], Array]:
    """Sequences that only get longer are computed once per power of two and sliced."""

    @functools.lru_cache(maxsize=64)
    def computed(size: int) -> Array:
        return rule(np.arange(1, size + 1, dtype=float))

    return lambda T: computed(1 << max(4, (T - 1).bit_length()))[:T]


prox_steps = _grown(lambda t: 1 / (1 + t / 2))
prox_steps.__doc__ = "Step sizes 1/(1 + t/2), t = 1..T, of the approximate prox in FedMLS and MOPES."
prox_average = _grown(lambda t: 2 * (t + 1) / (t * (t + 3)))
prox_average.__doc__ = "Averaging weights theta_t = 2(t + 1)/(t(t + 3)), t = 1..T, of the same."
