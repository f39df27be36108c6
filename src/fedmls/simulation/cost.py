"""What a run has spent: the type in which both engines count."""

from typing import NamedTuple


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
