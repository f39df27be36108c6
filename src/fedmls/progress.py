"""A progress bar on a terminal; nothing anywhere else."""

import sys
import tempfile
import threading
import time
from typing import Any

import numpy as np


class Bar:
    """Rounds or runs done, the current gap, the time left. ``shown`` None: only if stderr is a terminal."""

    def __init__(self, name: str, total: int, unit: str, shown: bool | None = None) -> None:
        self.shown = sys.stderr.isatty() if shown is None else shown
        self.name, self.total, self.unit = name, total, unit
        self.bar: Any = None
        self.drawn = 0.0

    def __enter__(self) -> "Bar":
        if self.shown:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[unit]}"),
                TextColumn("{task.fields[note]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=Console(stderr=True, force_terminal=True),
                transient=True,
            )
            self.bar.start()
            self.task = self.bar.add_task(self.name, total=self.total, unit=self.unit, note="preparing")
        return self

    def update(self, done: float, gap: float | None = None) -> None:
        if self.bar is not None and (time.monotonic() - self.drawn > 0.1 or done >= self.total):
            self.drawn = time.monotonic()
            note = "" if gap is None or gap != gap else f"gap {gap:.2e}"
            self.bar.update(self.task, completed=done, note=note)

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()


class Board:
    """Where parallel runs write how far they are: two numbers a run, its share done and its gap, in a mapped file.

    Threads share the object; another process that receives it opens the file.
    """

    def __init__(self, runs: int, file: str | None = None) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="fedmls-") if file is None else None
        self.file = file or f"{self.folder.name}/board"  # type: ignore[union-attr]
        self.numbers: Any = np.memmap(self.file, np.float64, "w+" if file is None else "r+", shape=(runs, 2))
        self.written = 0.0

    def __reduce__(self) -> Any:
        return Board, (len(self.numbers), self.file)

    def report(self, run: int, share: float, gap: float | None) -> None:
        if time.monotonic() - self.written > 0.1 or share >= 1:
            self.written = time.monotonic()
            self.numbers[run] = share, np.nan if gap is None else gap

    def show(self, bar: Bar, before: int, done: threading.Event) -> None:
        """Move the bar until all is done; for a thread of its own."""
        while not done.wait(0.2):
            begun = np.flatnonzero(self.numbers[:, 0])
            bar.update(
                before + float(self.numbers[:, 0].sum()), float(self.numbers[begun[-1], 1]) if begun.size else None
            )
