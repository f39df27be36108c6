"""How lambda, T, eta and p move with the round or the local step: small values, and two fixed sequences."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedmls.checks import real, whole
from fedmls.types import Array, Local

MOST_TOSSES = 100_000_000


@dataclass(frozen=True)
class Power:
    """scale * k ** exponent for k = 1, 2, ...; exponent 0 is a constant."""

    scale: Any  # a number; of several runs side by side an array, (R, 1, 1)
    exponent: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.scale, np.ndarray):  # of several runs side by side, each checked before
            return
        scale, exponent = real(self.scale), real(self.exponent)
        if scale is None or scale <= 0 or exponent is None:
            raise ValueError(f"{self!r} is no schedule: scale must be positive, exponent finite")
        object.__setattr__(self, "scale", scale)
        object.__setattr__(self, "exponent", exponent)

    def __call__(self, k: Any) -> Any:
        """The value at k; of several runs side by side, (R, 1, 1), where the scale or k is a number of each."""
        if isinstance(k, np.ndarray):
            return self.scale * np.array([one**self.exponent for one in k.ravel().tolist()])[:, None, None]
        return self.scale * float(k) ** self.exponent

    def array(self, first: Any, count: Any) -> Array:
        """The values at first, first + 1, ..., first + count - 1; of several runs side by side, a row for each."""
        if isinstance(count, np.ndarray):
            return self._rows(first, count)
        scale = self.scale[:, 0] if isinstance(self.scale, np.ndarray) else self.scale
        if self.exponent == 0:
            return np.full(count, scale) if scale is self.scale else np.broadcast_to(scale, (len(scale), count))
        return np.asarray(scale * np.arange(first, first + count, dtype=float) ** self.exponent)

    def _rows(self, first: Any, count: Any) -> Array:
        """The values from each run's first on; a row ends with zeros, where its count is less than the largest."""
        ends = list(zip(np.broadcast_to(first, count.shape).ravel().tolist(), count.ravel().tolist(), strict=True))
        plain, rows = Power(1.0, self.exponent), np.zeros((len(ends), int(count.max())))
        found = {end: plain.array(*end) for end in set(ends)}  # runs with the same seed have the same
        for row, end in zip(rows, ends, strict=True):
            row[: end[1]] = found[end]
        return np.asarray((self.scale[:, 0] if isinstance(self.scale, np.ndarray) else self.scale) * rows)


def schedule(value: "float | Power | None", scale: Any, exponent: float) -> Power:
    """The value as a schedule: a number is a constant, None is scale * k ** exponent."""
    if isinstance(value, Power):
        return value
    return _power(scale, exponent) if value is None else _power(value, 0.0)


def _power(scale: Any, exponent: float) -> Power:
    return Power(scale, exponent) if isinstance(scale, np.ndarray) else _kept_power(scale, exponent)


_kept_power = functools.lru_cache(maxsize=256)(Power)


def total(steps: Array) -> Any:
    """The sum of step sizes; of several runs side by side, with a row for each, a number of each run."""
    return float(steps.sum()) if steps.ndim == 1 else steps.sum(axis=1)[:, None, None]


def check_schedule(name: str, value: "float | Power | None") -> None:
    if value is None or isinstance(value, Power):
        return
    number = real(value)
    if number is None or number <= 0:
        raise ValueError(f"{name} is {value!r}; it must be a positive number or a fedmls.Power")


def steps_in_round(T: Power, k: int) -> int:
    """T_k as a whole number: rounded up, and at least 1."""
    return max(1, math.ceil(float(T(k)) - 1e-9))


Steps = float | Power | Sequence[int] | None


def check_steps(T: Steps) -> "float | Power | tuple[int, ...] | None":
    """T as a schedule, or whole numbers of steps, one for each client."""
    if isinstance(T, Sequence):
        if not T:
            raise ValueError("T is empty; give one number of steps, or one for each client")
        return tuple(whole("T", steps) for steps in T)
    check_schedule("T", T)
    return T


def client_steps(T: Steps, T0: float, k: int, local: Local) -> tuple[int, Any]:
    """The longest client's steps in round k, and each client's own where they differ (otherwise None)."""
    if not isinstance(T, Sequence):
        return steps_in_round(schedule(T, T0, 1), k), None
    if len(T) != local.n:
        raise ValueError(f"T has {len(T)} values for {local.n} clients; give one, or one for each client")
    return max(T), local.own(T)


def first_success(p: Power, after: Any, rng: Any) -> Any:
    """Toss coins t = after + 1, after + 2, ... with probability p(t); how many until the first head.

    Of several runs side by side, which have a generator each: how many in each of them.
    """
    if not isinstance(rng, np.random.Generator):
        starts = np.broadcast_to(after, (len(rng), 1, 1)).ravel().tolist()
        return rng.each(lambda i, one: first_success(p, starts[i], one))
    tossed, block = 0, 16
    while tossed < MOST_TOSSES:
        heads = np.flatnonzero(rng.random(block) < p.array(after + tossed + 1, block))
        if heads.size:
            return tossed + int(heads[0]) + 1
        tossed, block = tossed + block, min(2 * block, 1 << 16)
    raise ValueError(f"{p!r} gave no meeting in {MOST_TOSSES:,} steps after step {after}; let p fall more slowly")


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
