"""What commands print: lines and tables."""

import codecs
import os
import re
import sys
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
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


def say_entries(entries: Mapping[str, str]) -> None:
    """Say names with what each is, beside them in lines of at most 80 columns."""
    for name, about in entries.items():
        first, *more = textwrap.wrap(about, 52, break_long_words=False, break_on_hyphens=False)
        say(f"  {name:26}{first}", *(f"{'':28}{line}" for line in more))


def counted(count: int, name: str) -> str:
    """So many of something: 1 row, 2 rows."""
    return f"{count} {name}{'' if count == 1 else 's'}"


def runs_told(spec: Any, folder: Path) -> str:
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

    console = Console(highlight=False, markup=False, width=None if _has_width() else WIDTH_OF_FILES)
    encoding = console.encoding
    cells = [[cell.encode(encoding, REPLACED).decode(encoding) for cell in row] for row in cells]
    kept = fitting(cells, names, least_important, console.width)
    shown = Table(title=title, title_justify="left")
    for i, width in kept.items():
        shown.add_column(cells[0][i], justify="right" if i >= names else "left", width=width, overflow="fold")
    for row in cells[1:]:
        shown.add_row(*(row[i] for i in kept))
    console.print(shown)
    gone = [name for i, name in enumerate(cells[0]) if i not in kept]
    if gone:
        say(*textwrap.wrap(f"for want of room without {', '.join(gone)}", console.width))


WIDTH_OF_FILES = 140  # of tables that no terminal shows
LONGEST_NUMBER = 24  # letters; longer ones are sentences, and break into lines like words
NARROWEST_WORDS = 10  # letters of a column of words, at least


def _has_width() -> bool:
    return sys.stdout.isatty() or "COLUMNS" in os.environ


def fitting(cells: list[list[str]], names: int, least_important: Sequence[str], room: int) -> dict[int, int]:
    """Return the columns that fit into so many letters, with their widths: all, or without the least important ones.

    A column has at least the width of its numbers and of the longest word of its title; what room is left goes to
    words, then to titles.
    """
    header, *rows = cells
    longest = [max((len(row[i]) for row in rows), default=0) for i in range(len(header))]
    words = [i < names or longest[i] > LONGEST_NUMBER for i in range(len(header))]
    least = {
        i: max(max(map(len, title.split()), default=0), min(longest[i], NARROWEST_WORDS) if words[i] else longest[i])
        for i, title in enumerate(header)
    }
    going = list(least_important)
    while sum(least.values()) + _around(least) > room and going:
        name = going.pop(0)
        least = {i: width for i, width in least.items() if header[i] != name}
    spare = room - sum(least.values()) - _around(least)
    for i in sorted(least, key=lambda i: not words[i]):
        more = max(0, min(spare, max(longest[i], len(header[i])) - least[i]))
        least[i], spare = least[i] + more, spare - more
    return least


def _around(columns: Mapping[int, int]) -> int:
    """Return the letters of a table beside its columns: two blanks and a line for each, and a line."""
    return 3 * len(columns) + 1


REPLACED = "fedmls.replaced"  # the name of what is done with letters that a terminal or a file cannot take
POWER = re.compile("[⁻⁰¹²³⁴-⁹]+")
ALIKE = {
    **{"–": "-", "−": "-", "⁻": "-", "×": "x", "·": "*", "★": "*", "…": "..."},
    **{"≤": "<=", "≥": ">=", "±": "+-", "√": "sqrt"},
}


def replaced(error: UnicodeError) -> tuple[str, int]:
    """Return what stands for letters that cannot be encoded: their names, if they are Greek, or something alike."""
    assert isinstance(error, UnicodeEncodeError)
    letters = POWER.sub(lambda found: "^" + found[0], error.object[error.start : error.end])
    return "".join(map(_alike, letters)), error.end


def _alike(letter: str) -> str:
    if letter in ALIKE or letter.isascii():
        return ALIKE.get(letter, letter)
    from fedmls.results.latex import greek

    if greek(letter):
        return greek(letter)
    plain = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode()
    return plain or "?"


codecs.register_error(REPLACED, replaced)
