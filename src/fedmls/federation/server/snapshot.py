"""A run between two exchanges, as the server's checkpoint holds it, and what it gave in the end."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedmls.results.held_out import HeldOutScores
from fedmls.simulation.cost import Counters
from fedmls.types import Algorithm, Array, Run


@dataclass(frozen=True)
class Result:
    """What a federated run gave: the run as a simulation would give it, and where its files are."""

    folder: Path
    run: Run
    nodes: tuple[str, ...]
    lipschitz: Array  # G_i of each node; infinite if they do not tell
    proved: bool  # whether ``until`` was reached
    epsilon: float | None  # with privacy: ε of every client for the job's δ
    held_out: HeldOutScores | None = None  # scores of the model, if the job holds out rows

    @property
    def x(self) -> Array:
        return self.run.x

    @property
    def history(self) -> Any:
        return self.run.history


class Pending(NamedTuple):
    """A recorded round whose objective is not known yet."""

    counters: Counters
    models: list[Array]
    bound: float


@dataclass(frozen=True)
class Snapshot:
    """All of a run between two exchanges: what the checkpoint holds, besides the survey."""

    x0: Array
    x: Array
    server: Any
    lipschitz: Array  # this and the next: of each client
    steps: Any
    subgradients: Any
    answered: Any  # the last exchange in which it worked
    aside: Any  # until which exchange it is left alone
    spent: Counters
    pending: list[Pending] = field(default_factory=list)
    rows: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0
    proved: bool = False
    skipped: int = 0  # numbers of exchanges that are not used again, for nodes may have seen them with other rounds
    released: int = 0  # rounds that a client may have answered
    held_out: HeldOutScores | None = None  # scores of x, once the run has come to its end

    @property
    def number(self) -> int:
        """Return the number of the last exchange, as nodes know it."""
        return self.spent.exchanges + self.skipped

    def plain(self) -> dict[str, Any]:
        """Return the snapshot as a checkpoint holds it."""
        names = list(self.rows[0]) if self.rows else []
        values = {
            **self.__dict__,
            "server": self.server._asdict(),
            "spent": self.spent._asdict(),
            "pending": [{**one._asdict(), "counters": one.counters._asdict()} for one in self.pending],
            "rows": {name: np.array([row[name] for row in self.rows], dtype=float) for name in names},
        }
        scores = values.pop("held_out")  # older checkpoints have none
        return values if scores is None else values | {"held_out": scores.plain()}

    @classmethod
    def from_plain(cls, values: dict[str, Any], algorithm: Algorithm, n: int) -> "Snapshot":
        """Return the snapshot that :meth:`plain` wrote, of a run of the algorithm with n clients."""
        server, _ = algorithm.init(values["x0"], n)
        columns = values["rows"]
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        scores = values.get("held_out")
        return cls(
            **{
                **values,
                "server": server._replace(**values["server"]),
                "spent": Counters(**values["spent"]),
                "pending": [Pending(**{**one, "counters": Counters(**one["counters"])}) for one in values["pending"]],
                "rows": [dict(zip(columns, row, strict=True)) for row in rows],
                "held_out": None if scores is None else HeldOutScores.from_plain(scores),
            }
        )
