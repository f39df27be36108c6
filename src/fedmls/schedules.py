"""How lambda, T, eta and p move with the round or the local step: small values, and two fixed sequences."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

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

    def array(self, first: Any, count: Any) -> Any:
        """The values at first, first + 1, ..., first + count - 1; of several runs side by side, a row for each."""
        if isinstance(self.scale, np.ndarray) or isinstance(count, np.ndarray):
            scale, first, count = np.broadcast_arrays(*map(_numbers, (self.scale, first, count)))
            return PowerRows(scale, first, count, self.exponent)
        if self.exponent == 0:
            return np.full(count, self.scale)
        return np.asarray(self.scale * np.arange(first, first + count, dtype=float) ** self.exponent)


@dataclass(frozen=True)
class PowerRows:
    """scale * t ** exponent for t = first, ..., first + count - 1, a row for each of several runs side by side.

    It becomes an array when it is asked for one; a row then ends with zeros, where its count is less than the largest.
    """

    scale: Array
    first: Any
    count: Any
    exponent: float
    ndim: ClassVar[int] = 2

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.count), int(self.count.max())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        rows, distinct = np.zeros(self.shape), self._distinct()
        for row, key in zip(rows, self._keys(), strict=True):
            row[: key[2]] = distinct[key]
        return rows

    def sums(self) -> Array:
        """The sum of each row."""
        sums = {key: values.sum() for key, values in self._distinct().items()}
        return np.array([sums[key] for key in self._keys()])

    def _keys(self) -> list[tuple[float, int, int]]:
        return list(zip(self.scale.tolist(), self.first.tolist(), self.count.tolist(), strict=True))

    def _distinct(self) -> dict[tuple[float, int, int], Array]:
        """The rows by what they are made of: runs that differ in something else have equal ones."""
        keys = {*self._keys()}
        powers = {ends: Power(1.0, self.exponent).array(*ends) for ends in {key[1:] for key in keys}}
        return {key: key[0] * powers[key[1:]] for key in keys}


def _numbers(value: Any) -> Any:
    """A number of each run, (R, 1, 1), as R numbers; one number for all as one."""
    return value.ravel() if isinstance(value, np.ndarray) else np.array([value])


def schedule(value: "float | Power | None", scale: Any, exponent: float) -> Power:
    """The value as a schedule: a number is a constant, None is scale * k ** exponent."""
    if isinstance(value, Power):
        return value
    return _power(scale, exponent) if value is None else _power(value, 0.0)


def _power(scale: Any, exponent: float) -> Power:
    return Power(scale, exponent) if isinstance(scale, np.ndarray) else _kept_power(scale, exponent)


_kept_power = functools.lru_cache(maxsize=256)(Power)


def total(steps: Any) -> Any:
    """The sum of step sizes; of several runs side by side, with a row for each, a number of each run."""
    return steps.sums()[:, None, None] if isinstance(steps, PowerRows) else float(steps.sum())


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
    tossed, block = 0, int(min(max(16, 1 / max(p(after + 1), 1e-300)), 1 << 16))
    while tossed < MOST_TOSSES:
        tosses, first = rng.random(block), after + tossed + 1
        most = (1 + 1e-9) * max(p(first), p(first + block - 1))  # p only falls, or only rises
        for toss in np.flatnonzero(tosses < most).tolist():
            if tosses[toss] < p.array(first + toss, 1)[0]:
                return tossed + toss + 1
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
