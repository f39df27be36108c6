"""What both engines need in a round, the simulation and the federation: the server's random numbers, who takes part,
weighted means, what travels.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import reduce
from typing import Any

import numpy as np

from fedmls.checks import whole
from fedmls.threads import one_thread
from fedmls.types import Algorithm, Array, Counts
from fedmls.wire import bytes_of

Sizes = dict[str, tuple[int, float]]  # of the array fields of a message: the numbers of one client, and their bytes
BLOCK = 2**18  # numbers in the vectors of a block of clients
FEW = 64  # clients that are summed one after the other


def require_algorithm(algorithm: Any) -> None:
    """Refuse what is no algorithm, or is a class of one."""
    if not isinstance(algorithm, Algorithm):
        raise ValueError(
            f"{algorithm!r} is no algorithm; give an object such as fedmls.FedMLS(lam0=1.0), or fedmls.make(name)"
        )


def check_participants(algorithm: Algorithm, problem: Any) -> None:
    """Refuse more participants than clients, and unequal weights where only some clients take part."""
    some = algorithm.participants
    if some is None:
        return
    if whole("participants", some) > problem.n:
        raise ValueError(f"participants is {some}, but there are {problem.n} clients; take at most {problem.n}")
    if np.ptp(problem.weights) > 1e-12:
        raise ValueError(
            "rounds with some of the clients need equal client weights; leave out weights= or participants="
        )


def drawn(algorithm: Algorithm, n: int, random: "ServerRandom", k: int) -> Counts | None:
    """Return the clients that are asked in round k, sorted; None for all."""
    some = algorithm.participants
    if some is None:
        return None
    rounds = [k - 1, k] if algorithm.traits.follow_up and k > 1 else [k]
    return np.unique([draw_participants(n, some, random, j) for j in rounds])


def draw_participants(n: int, some: int, random: "ServerRandom", k: int) -> Counts:
    """Return the clients that take part in round k, in random order."""
    return random.at(k, purpose=1).choice(n, some, replace=False)


def array_sizes(message: Any) -> Sizes:
    """The array fields of a message, which travel: of one client the numbers in each, and the bytes that they take."""
    named = zip(message._fields, message, strict=True)
    return {name: (value.shape[-1], bytes_of(value)) for name, value in named if isinstance(value, np.ndarray)}


def mean_sizes(blocks: list[tuple[int, Sizes]]) -> Sizes:
    """The mean over blocks of so many clients each."""
    if len(blocks) == 1:
        return blocks[0][1]
    clients = sum(count for count, _ in blocks)
    totals = {name: sum(count * sizes[name][1] for count, sizes in blocks) for name in blocks[0][1]}
    return {name: (numbers, totals[name] / clients) for name, (numbers, _) in blocks[0][1].items()}


def blocks(clients: int, d: int) -> list[slice]:
    """Cut so many clients into blocks, by the coordinates d of a vector: what is computed for the clients of a block
    takes little memory, and its vectors stay near the processor.
    """
    size = max(1, BLOCK // d)
    return [slice(first, min(first + size, clients)) for first in range(0, clients, size)]


def weighted_mean(weights: Array, up: Any, d: int) -> Any:
    """Σ w_i up_i, field by field: of each block, and then of the blocks, in their order."""
    parts = blocks(len(weights), d)
    with one_thread() if len(parts) > 1 else nullcontext():
        means = [type(up)(*(_mixed(weights[block], field[block]) for field in up)) for block in parts]
    return reduce(added, means)


def _mixed(weights: Array, field: Array) -> Any:
    """Σ w_i field_i, of few at a time, and then in pairs: one after the other very many would be rounded by much."""
    if len(weights) <= FEW:
        return weights @ field
    half = len(weights) // 2
    return _mixed(weights[:half], field[:half]) + _mixed(weights[half:], field[half:])


def added(mean: Any, other: Any) -> Any:
    """The mean with the other added to it, field by field: in place, as a new one of very many numbers is slow."""
    for total, more in zip(mean, other, strict=True):
        np.add(total, more, out=total)
    return mean


class ServerRandom:
    """The server's coins: they depend on seed and round alone. One generator, set anew for each round."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.bits = np.random.Philox(key=seed)
        self.fresh: Any = self.bits.state
        self.generator = np.random.Generator(self.bits)

    def at(self, k: int, purpose: int = 0) -> np.random.Generator:
        self.fresh["state"]["counter"][:] = (0, 0, purpose, k)
        self.bits.state = self.fresh
        return self.generator


class EachRandom:
    """The coins of the servers of several runs in one round: a generator for each, made when they are tossed."""

    def __init__(self, runs: "list[ServerRandom]", k: int) -> None:
        self.runs, self.k = runs, k

    def __len__(self) -> int:
        return len(self.runs)

    def each(self, toss: Callable[[int, np.random.Generator], float]) -> Any:
        """Return a number of each run: toss(i, generator) of run i. Runs with the same seed share what was tossed."""
        found: dict[int, float] = {}
        for i, run in enumerate(self.runs):
            if run.seed not in found:
                found[run.seed] = toss(i, run.at(self.k))
        return np.array([found[run.seed] for run in self.runs])[:, None, None]


def start_point(problem: Any, x0: Any) -> Array:
    """Return x0 as an array, checked; zeros unless it is given."""
    if x0 is None:
        return np.zeros(problem.dimension)
    try:
        start = np.array(x0, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"x0 is {x0!r}; it must be {problem.dimension} finite numbers") from None
    if start.shape != (problem.dimension,) or not np.isfinite(start).all():
        raise ValueError(f"x0 has shape {start.shape}; it must be {problem.dimension} finite numbers")
    return start
