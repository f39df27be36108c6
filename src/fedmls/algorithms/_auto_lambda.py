"""``lam0="auto"``: a step size without a grid, for FedMLS, FedMLS-E and FedMLS-D.

The bounds of all three are smallest for μ in proportion to D0/S, the distance from the start to the minimiser over the
rms length of the clients' subgradients. Neither is known, but both show in the run.

FedMLS and FedMLS-E set μ = c ‖z - x0‖/S anew after rounds 4, 6, 10, 16, 24, ..., each half as far again as the one
before, so that the last third of any run has one μ. The first step is a guess, f(x0)/‖g(x0)‖² (Polyak's, with f* = 0)
times a constant; they spend an exchange to learn it from all clients. Clients send two numbers beside their vector;
the server needs only their means. The constants were chosen on ten problems that are not in the benchmark suite
(docs/benchmarks.md).

FedMLS-D begins by the same guesses, each client by its own, since its proximal step leads no farther than the client's
own minimum. From then on it tries several μ side by side, and keeps the best after the same rounds.
"""

import math
from typing import Any

import numpy as np

from fedmls.checks import positive
from fedmls.types import Array, Local

FIRST = 4


def check_lam0(lam0: "float | str", lam: object = None) -> None:
    if not isinstance(lam0, str):
        positive("lam0", lam0)
    elif lam0 != "auto":
        raise ValueError(f"lam0 is {lam0!r}; it must be a positive number, or 'auto'")
    elif lam is not None:
        raise ValueError(f"lam0 is 'auto', but lam is {lam!r}; leave one of them out")


def at_start(x0: Array, local: Local) -> Array:
    """What each client sees where it starts: ‖g_i(x0)‖² and f_i(x0)."""
    x = x0 + 0 * local.weight  # one row per client, where there are several
    return np.concatenate([squared(local.subgradient(x)), np.asarray(local.value(x))[..., None]], axis=-1)


def guess(numbers: Array) -> Array:
    """f/‖g‖² from these, of one client, of each or in the mean; 0 where there is nothing to gain."""
    return _ratio(numbers[..., 1:], numbers[..., :1])


def own_guess(x0: Array, local: Local) -> Array:
    """Return the guess of each client."""
    return guess(at_start(x0, local))


def length(subgradient: Array, times: Any = 1.0) -> Array:
    """What each client sends later: the squared length of its subgradient, given ``times`` a number, and 0."""
    square = _ratio(squared(subgradient), np.asarray(times) ** 2)
    return np.concatenate([square, 0 * square], axis=-1)


def no_numbers(like: Array) -> Array:
    """What each client sends when there is nothing to choose: no number at all."""
    return like[..., :0]


def due(k: int) -> bool:
    """Is μ set anew after round k? Only after even rounds, since paired rounds go out together."""
    at = FIRST
    while at < k:
        at = 2 * math.ceil(0.75 * at)
    return at == k


def distance_over(square: float, x: Array, x0: Array) -> float:
    """‖x - x0‖/S with S² = ``square``; 0 where one of them is."""
    return math.sqrt(float(squared(x - x0)[0]) / square) if square > 0 else 0.0


def squared(v: Array) -> Array:
    return np.asarray((v * v).sum(axis=-1, keepdims=True))


def _ratio(a: Array, b: Array) -> Array:
    """a/b, and 0 where b is 0."""
    return np.asarray(np.where(b > 0, a / np.where(b > 0, b, 1.0), 0.0))
