"""What commands print: lines and tables."""

import sys
import textwrap
from pathlib import Path
from typing import Any

import typer


def say(*lines: str) -> None:
    for line in lines:
        typer.echo(line)


def say_wrapped(*sentences: str) -> None:
    """Say sentences in lines of at most 80 columns."""
    for sentence in sentences:
        say(*textwrap.wrap(sentence, 80, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))


def runs_told(spec: Any, folder: Path) -> str:
    def counted(count: int, name: str) -> str:
        return f"{count} {name}{'s' if count > 1 else ''}"

    curves, seeds = len(spec.curves), len(spec.seeds)
    most = "" if spec.config.target is None and spec.config.until is None else "at most "
    what = f"{counted(curves * seeds, 'run')} of {most}{counted(spec.config.rounds, 'round')}"
    return f"{what} ({counted(curves, 'curve')}, {counted(seeds, 'seed')}) into {folder}"


def model_told(folder: Path) -> list[str]:
    """Which run's model is kept in the folder, if there were several, and how to use it."""
    import shlex

    from fedmls.results.layout import MODEL_TEXT
    from fedmls.results.model import read_description

    if not (folder / MODEL_TEXT).exists():
        return ["no model is kept: every run has diverged"]
    trained = read_description(folder).trained
    told = f"To predict: fedmls predict {shlex.quote(str(folder))} NEW.csv --out predictions.csv"
    if "curve" not in trained:
        return [told]
    names = ", ".join(part for part in trained["curve"].values() if part)
    return [told, f"The model is that of the best curve, {names}, with its first seed, {trained['seed']}."]


def typed() -> str:
    """The command as it was given."""
    import shlex

    return shlex.join(["fedmls", *sys.argv[1:]])


def print_table(summary: Any, title: str) -> None:
    from fedmls.results.layout import LABELS
    from fedmls.results.summary import cells

    shown = cells(summary)
    print_cells(shown, title, names=sum(name in LABELS for name in shown[0]))


def print_cells(cells: list[list[str]], title: str, names: int) -> None:
    """Header first; the first ``names`` columns are words, the others numbers."""
    from rich.console import Console
    from rich.table import Table

    header, *rows = cells
    shown = Table(title=title, title_justify="left")
    for i, name in enumerate(header):
        shown.add_column(name, justify="left" if i < names else "right")
    for row in rows:
        shown.add_row(*row)
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    console.print(shown)
