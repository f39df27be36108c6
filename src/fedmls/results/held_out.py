"""Scores of a federation's model on held-out rows, as setup.json keeps them, and as text."""

import math
from textwrap import wrap
from typing import Any, NamedTuple

WIDTH = 80  # columns of a terminal
TITLES = {"auc": "AUC"}  # of scores that are not called by their names
ERRORS = {"auc": "auc_error"}  # the score that is another one's error


class Scores(NamedTuple):
    """Scores by name, and of how many rows they are; names are missing of what these rows do not tell."""

    rows: int
    values: dict[str, float]


class HeldOutScores(NamedTuple):
    """together: of all rows.  nodes: of each node's own; none if the server saw sums only.

    without: the nodes whose rows are not among them, and why.  notes: what else is to be said, in sentences.
    """

    together: Scores
    nodes: dict[str, Scores]
    without: dict[str, str]
    notes: list[str]

    def plain(self) -> dict[str, Any]:
        """Return the scores as plain values."""
        nodes = {name: scores._asdict() for name, scores in self.nodes.items()}
        return self._asdict() | {"together": self.together._asdict(), "nodes": nodes}

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> "HeldOutScores":
        """Return the scores that :meth:`plain` wrote."""
        nodes = {name: Scores(**scores) for name, scores in values["nodes"].items()}
        return cls(Scores(**values["together"]), nodes, values["without"], values["notes"])

    def cells(self) -> list[list[str]]:
        """Return a table as text, header first: all rows together, then each node's."""
        names = [name for name in self.together.values if name not in ERRORS.values()]
        shown = {"all": self.together, **self.nodes} if len(self.nodes) > 1 else {"all": self.together}
        table = [["node", "held-out rows", *map(_title, names)]]
        for node, scores in shown.items():
            table.append([node, f"{scores.rows:,}", *(_text(scores, name) for name in names)])
        return table

    def remarks(self) -> list[str]:
        """Return what is to be said beside the table, in sentences."""
        return [*self.notes, *(f"without {node}: {why}" for node, why in self.without.items())]

    def lines(self) -> list[str]:
        """Return the scores of all rows together, the first of them of each node, and the remarks, for a terminal."""
        [_, rows, *titles], [_, _, *values] = self.cells()[0], self.cells()[1]
        told = ", ".join(f"{title} {value}" for title, value in zip(titles, values, strict=True))
        first = f"{self.together.rows:,} {rows}: {told}" if told else "held-out rows: no scores are known"
        each = [f"{row[0]} {row[2]}" for row in self.cells()[2:] if titles]
        own = [f"{titles[0]} at each site: {', '.join(each)}"] if each else []
        return [line for text in (first, *own, *self.remarks()) for line in wrap(text, WIDTH, subsequent_indent="  ")]


def _title(name: str) -> str:
    return TITLES.get(name, name.replace("_", " "))


def _text(scores: Scores, name: str) -> str:
    value, error = scores.values.get(name), scores.values.get(ERRORS.get(name, ""))
    if value is None:
        return "–"
    text = f"{value:.5g}" if name.startswith("mean_") else f"{value:.3f}"
    if error is None:
        return text
    return f"{text} ± {math.ceil(1000 * error + 0.5) / 1000:.3f}"  # with the rounding of the score itself
