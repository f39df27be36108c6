"""What is being done and how far it is, on a terminal; nothing anywhere else."""

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, TypeVar

import numpy as np

T = TypeVar("T")
WAITED_FOR = "fedmls-waited-for"
LINE_SECONDS = 10.0  # between two lines where there is no terminal


class Bar:
    """Rounds or runs done, the current gap, the time left. ``shown`` None: only if stderr is a terminal."""

    current: ClassVar["Bar | None"] = None  # a terminal has room for one

    def __init__(self, name: str, total: int, unit: str, shown: bool | None = None) -> None:
        self.shown = sys.stderr.isatty() if shown is None else shown
        self.name, self.total, self.unit = name, total, unit
        self.bar: Any = None
        self.drawn = 0.0
        self.note = "preparing"

    def __enter__(self) -> "Bar":
        if self.shown:
            self.bar = self._on_a_terminal() if sys.stderr.isatty() else PlainLines()
            self.bar.start()
            self.task = self.bar.add_task(self.name, total=self.total, unit=self.unit, note=self.note, finished=0)
            Bar.current = self
        return self

    def _on_a_terminal(self) -> Any:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[finished]:.0f}/{task.total:.0f} {task.fields[unit]}"),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True, force_terminal=True),
            transient=True,
        )

    @classmethod
    def tell(cls, note: str) -> None:
        """Show on the bar, if there is one, what is being done."""
        if cls.current is not None:
            cls.current.say(note)

    def update(self, done: float, gap: float | None = None, finished: int | None = None) -> None:
        """Show how much is done, and the gap. finished: how many are done whole, if not all that ``done`` counts."""
        if self.bar is not None and (time.monotonic() - self.drawn > 0.1 or done >= self.total):
            self.drawn = time.monotonic()
            note = "" if gap is None or gap != gap else f"gap {gap:.2e}"
            self.bar.update(self.task, completed=done, note=note, finished=done if finished is None else finished)

    def say(self, note: str) -> None:
        self.note = note
        self.bar.update(self.task, note=note)

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()
            Bar.current = None


class PlainLines:
    """What a bar is where there is no terminal, as in a log file: a line every few seconds, without escape codes."""

    def __init__(self) -> None:
        self.name, self.fields, self.written = "", dict[str, Any](), -LINE_SECONDS

    def start(self) -> None:
        """Do nothing: the first line comes with the first news."""

    def add_task(self, name: str, **fields: Any) -> int:
        self.name, self.fields = name, fields
        return 0

    def update(self, _: int, **fields: Any) -> None:
        self.fields |= fields
        if time.monotonic() - self.written >= LINE_SECONDS:
            self.refresh()

    def refresh(self) -> None:
        self.written = time.monotonic()
        line = "{}: {finished:.0f}/{total} {unit} {note}".format(self.name, **self.fields)
        print(line.rstrip(), file=sys.stderr, flush=True)

    def stop(self) -> None:
        self.refresh()


def waiting(what: str, work: Callable[[], T], patience: float = 1.0) -> T:
    """What ``work`` returns. If it takes more than a second, a terminal says ``what`` is being waited for.

    A thread does the work: Ctrl-C is heard only between two steps of Python, and a solver is a single one, of minutes.
    It cannot be stopped: see :func:`abandoned`.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    done: list[T] = []
    failed: list[BaseException] = []

    def task() -> None:
        try:
            done.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=task, name=WAITED_FOR)
    thread.start()
    thread.join(patience)
    with ExitStack() as stack:
        if thread.is_alive():
            _show(what, stack)
        thread.join()
    if failed:
        raise failed[0]
    return done[0]


def abandoned() -> bool:
    """Whether work goes on that nobody waits for, after Ctrl-C. Python waits for it before it ends."""
    return any(thread.name == WAITED_FOR for thread in threading.enumerate())


def _show(what: str, stack: ExitStack) -> None:
    """On the bar, if there is one, else on a line of its own; ``stack`` takes it away."""
    bar = Bar.current
    if bar is not None:
        before = bar.note
        bar.say(what if before == "preparing" else f"{before}: {what}")
        stack.callback(bar.say, before)
    elif sys.stderr.isatty():
        from rich.console import Console

        stack.enter_context(Console(stderr=True).status(what))


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

    def report_all(self, runs: list[int], share: float, gaps: Any) -> None:
        """Report for several runs that go on side by side."""
        if time.monotonic() - self.written > 0.1 or share >= 1:
            self.written = time.monotonic()
            self.numbers[runs, 0] = share
            self.numbers[runs, 1] = gaps

    def show(self, bar: Bar, before: int, done: threading.Event) -> None:
        """Move the bar until all is done; for a thread of its own."""
        while not done.wait(0.2):
            shares, gaps = self.numbers.T
            begun = np.flatnonzero(shares)
            gap = float(gaps[begun[-1]]) if begun.size else None
            bar.update(before + float(shares.sum()), gap, finished=before + int((shares >= 1).sum()))


@contextmanager
def shown_board(bar: Bar, before: int, runs: int) -> Iterator[Board]:
    """Yield a board for the runs to report to, which a thread shows on the bar."""
    board, done = Board(max(1, runs)), threading.Event()
    thread = threading.Thread(target=board.show, args=(bar, before, done), daemon=True)
    thread.start()
    try:
        yield board
    finally:
        done.set()
        thread.join()
