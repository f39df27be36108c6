"""What a run has spent: the type in which both engines count."""

from collections.abc import Callable
from typing import NamedTuple

from fedmls.types import Algorithm


class Counters(NamedTuple):
    """What has been spent so far; :class:`fedmls.types.Run` explains the columns."""

    round: int = 0
    exchanges: int = 0
    local_steps: int = 0
    subgradients: int = 0
    vectors_up: int = 0
    vectors_down: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    def plus(self, other: "Counters") -> "Counters":
        """Return the sums, field by field."""
        if not any(other):
            return self
        return Counters(*(a + b for a, b in zip(self, other, strict=True)))


NOTHING = Counters()


Sizes = dict[str, int]  # of the array fields of a message: how many numbers each holds for one client


def cost_of_round(algorithm: Algorithm, clients: int, d: int, down: Sizes, up: Sizes) -> Counters:
    """Return what the messages of one round take, with so many clients and d coordinates: vectors and bytes alone."""
    traits = algorithm.traits
    sent = [size for name, size in up.items() if name not in traits.on_demand + traits.numbers]
    received = [size for name, size in down.items() if name not in traits.numbers]
    senders = algorithm.participants or clients  # the others only hear what came of the last round
    numbers_up = sum(size for name, size in up.items() if name not in traits.on_demand) - sum(sent)
    numbers_down = sum(down.values()) - sum(received)
    return Counters(
        vectors_up=senders * sum(size // d for size in sent),
        vectors_down=clients * sum(size // d for size in received),
        bytes_up=_bytes(sent, senders, traits.packed) + 8 * clients * numbers_up,
        bytes_down=_bytes(received, clients, traits.packed_down) + 8 * clients * numbers_down,
    )


def _bytes(sizes: list[int], clients: int, packed: Callable[[int, int], float] | None) -> int:
    """Return the bytes of so many clients' vectors, each of d numbers taking packed(d, clients), or 8 d."""
    each: float = sum(8 * d if packed is None else packed(d, clients) for d in sizes)
    return round(clients * each)
