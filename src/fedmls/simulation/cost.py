"""What a run has spent: the type in which both engines count."""

from collections.abc import Callable
from typing import NamedTuple

from fedmls.rounds import Sizes
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


def cost_of_round(algorithm: Algorithm, clients: int, d: int, down: Sizes, up: Sizes) -> Counters:
    """Return what the messages of one round take, with so many clients and d coordinates: vectors and bytes alone."""
    traits = algorithm.traits
    senders = algorithm.participants or clients  # the others only hear what came of the last round
    up = {name: size for name, size in up.items() if name not in traits.on_demand}
    sent, numbers = _split(up, traits.numbers)
    received, others = _split(down, traits.numbers)
    return Counters(
        vectors_up=senders * sum(size // d for size, _ in sent),
        vectors_down=clients * sum(size // d for size, _ in received),
        bytes_up=_bytes(sent, senders, traits.packed) + _bytes(numbers, clients),
        bytes_down=_bytes(received, clients, traits.packed_down) + _bytes(others, clients),
    )


def _split(sizes: Sizes, numbers: tuple[str, ...]) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """Return the sizes of vectors, and of fields of a few numbers."""
    vectors = [size for name, size in sizes.items() if name not in numbers]
    return vectors, [size for name, size in sizes.items() if name in numbers]


def _bytes(sizes: list[tuple[int, float]], clients: int, packed: Callable[[int, int], float] | None = None) -> int:
    """Return the bytes of so many clients' arrays, each of d numbers taking packed(d, clients), or what they take."""
    each: float = sum(size if packed is None else packed(d, clients) for d, size in sizes)
    return round(clients * each)
