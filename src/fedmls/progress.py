"""A progress bar on a terminal; nothing anywhere else."""

import sys
import time
from typing import Any


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
                console=Console(stderr=True),
                transient=True,
            )
            self.bar.start()
            self.task = self.bar.add_task(self.name, total=self.total, unit=self.unit, note="")
        return self

    def update(self, done: float, gap: float | None = None) -> None:
        if self.bar is not None and (time.monotonic() - self.drawn > 0.1 or done >= self.total):
            self.drawn = time.monotonic()
            note = "" if gap is None or gap != gap else f"gap {gap:.2e}"
            self.bar.update(self.task, completed=done, note=note)

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()
