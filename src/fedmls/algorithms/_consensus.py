"""FedMLS-B's two lanes of consensus ADMM, for more coordinates than cuts can cope with (see ``fedmlsb.py``)."""

from typing import Any

import numpy as np

from fedmls.algorithms._auto_lambda import own_guess, squared
from fedmls.types import Array, Local

LANES, RELAXATION = 2, 1.9  # how many, and α in each
PASSES = 30  # over a client's rows towards its proximal step
FIRST = 10.0  # times a client's own guess: the μ of round 1
PATIENCE = 100  # exchanges without a win, after which they are given up


def has_slopes(local: Local) -> bool:
    """Whether these lanes can run: they need rows, and no l1 term."""
    _, l1, _, floor, _ = np.atleast_2d(local.terms())[0]
    return bool(l1 == 0 and np.isfinite(floor))


def lanes(v: Array) -> list[Array]:
    """Split what holds one vector after the other."""
    return np.split(v, LANES, axis=-1)


def proximal(client: Any, down: Any, local: Local) -> tuple[Any, Array]:
    """A client's proximal step in each lane, and the squared length of the multiplier that it asks for."""
    z, guessing = down.z, not down.mu.any()
    Y = client.Y + (client.x - z) / _each(client.mu, z)
    mu = (FIRST * own_guess(lanes(z)[0], local) if guessing else down.mu) + np.zeros(LANES) * local.weight
    x, p = local.ascend(z - _each(mu, z) * Y, mu, client.p, 1, PASSES)
    wide = _each(np.where(mu > 0, mu, np.inf), z)
    squares = np.concatenate([squared(lane) for lane in lanes(Y + (x - z) / wide)], axis=-1)
    ahead = x if guessing else RELAXATION * x + (1 - RELAXATION) * z
    return type(client)(ahead, Y, mu + np.inf if guessing else mu, p), squares


def agreed(k: int, server: Any, up: Any) -> Any:
    """The clients' mean in each lane, and the μ that goes with it."""
    alpha = RELAXATION if server.mu.any() else 1.0
    mean = (up.z - (1 - alpha) * server.z) / alpha
    far = np.array([np.linalg.norm(x - server.x0) for x in lanes(mean)])
    with np.errstate(divide="ignore", invalid="ignore"):
        mu = np.array([1.0, 1 / k]) * far / np.sqrt(up.squares)
    return server._replace(z=up.z, mean=mean, mu=np.where((mu > 0) & (mu < np.inf), mu, server.mu))


def patient(server: Any, won: bool) -> Any:
    """The lanes go on as long as one wins now and then."""
    idle = 0 if won else server.idle + 1
    if idle <= PATIENCE or not len(server.z):
        return server._replace(idle=idle)
    return without(server._replace(idle=idle))


def without(server: Any) -> Any:
    """The lanes given up."""
    none = np.empty(0)
    return server._replace(z=none, mean=none, mu=none)


def _each(numbers: Array, like: Array) -> Array:
    """One number for each lane, as often as it has coordinates."""
    return np.repeat(numbers, like.shape[-1] // LANES, axis=-1)
