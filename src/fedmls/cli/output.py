"""What commands print: lines and tables."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer


def say(*lines: str) -> None:
    for line in lines:
        typer.echo(line)


def runs_told(spec: Any, folder: Path) -> str:
    def counted(count: int, name: str) -> str:
        return f"{count} {name}{'s' if count > 1 else ''}"

    curves, seeds = len(spec.curves), len(spec.seeds)
    most = "" if spec.config.target is None and spec.config.until is None else "at most "
    what = f"{counted(curves * seeds, 'run')} of {most}{counted(spec.config.rounds, 'round')}"
    return f"{what} ({counted(curves, 'curve')}, {counted(seeds, 'seed')}) into {folder}"


def typed() -> str:
    """The command as it was given."""
    import shlex

    return shlex.join(["fedmls", *sys.argv[1:]])


def report_command(folder: Path) -> str:
    """Return how to see the results as a page, in words."""
    import shlex

    return f"To see them: fedmls report {shlex.quote(str(folder))} --open"


def print_table(summary: Any, title: str) -> None:
    from fedmls.results.layout import LABELS
    from fedmls.results.summary import cells, least_important

    shown = cells(summary)
    print_cells(shown, title, names=sum(name in LABELS for name in shown[0]), least_important=least_important(summary))


def print_cells(cells: list[list[str]], title: str, names: int, least_important: Sequence[str] = ()) -> None:
    """Print a table, header first; the first ``names`` columns are words, the others numbers.

    Numbers are never cut: where there is no room, words are broken into lines, and the least important columns go.
    """
    from rich.console import Console
    from rich.table import Table

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH_OF_FILES
    console = Console(highlight=False, markup=False, width=width)
    header, *rows = without(cells, names, least_important, console.width)
    shown = Table(title=title, title_justify="left")
    for i, name in enumerate(header):
        width = max(len(row[i]) for row in rows) if rows else 0
        numbers = i >= names and width <= LONGEST_NUMBER
        shown.add_column(name, justify="right" if i >= names else "left", min_width=width if numbers else None)
    for row in rows:
        shown.add_row(*row)
    console.print(shown)
    gone = [name for name in cells[0] if name not in header]
    if gone:
        say(f"for want of room without {', '.join(gone)}")


WIDTH_OF_FILES = 140  # of tables that no terminal shows
LONGEST_NUMBER = 24  # letters; longer ones are sentences
NARROWEST_WORDS = 10  # letters of a column of words, at least


def without(cells: list[list[str]], names: int, least_important: Sequence[str], room: int) -> list[list[str]]:
    """Return the cells without so many of the least important columns that the others fit into so many letters."""
    kept = list(range(len(cells[0])))
    for name in least_important:
        if _width(cells, kept, names) <= room:
            break
        kept = [i for i in kept if cells[0][i] != name]
    return [[row[i] for i in kept] for row in cells]


def _width(cells: list[list[str]], kept: list[int], names: int) -> int:
    """Return how many letters the narrowest table of these columns takes: rich puts three around each."""
    header, *rows = cells
    total = 1
    for i in kept:
        word = max(len(word) for word in header[i].split() or [""])
        width = max([len(row[i]) for row in rows], default=0)
        total += 3 + max(word, min(width, NARROWEST_WORDS) if i < names or width > LONGEST_NUMBER else width)
    return total
