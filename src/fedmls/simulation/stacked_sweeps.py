"""The runs of a sweep that are done together, each group as one simulation (:mod:`fedmls.simulation.stacked`)."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from fedmls.local.side_by_side import side_by_side
from fedmls.progress import Bar, Board, shown_board
from fedmls.simulation.config import PlannedRun
from fedmls.simulation.observers import Observer
from fedmls.simulation.run import ctrl_c
from fedmls.simulation.stacked import Stack, stacks
from fedmls.simulation.store import RunStore
from fedmls.types import Array, Run

Play = Callable[[], tuple[list[int], list[Run]]]  # of a group: returns the places of its runs, and the runs
SHOW_SECONDS, SHOWN_ROWS = 1.0, 20  # how often at most observers see a run, and how many of its rows
FEW_SEEDS = 4
SHOW_SHARE = 0.01  # of the time, at most, that showing may take


class StackedSweep:
    """The runs, by their places in a sweep, that can be done in groups.

    keys: of all runs of the sweep in the store, if there is one.  observers: of all runs, if there are any.
    """

    def __init__(
        self, planned: dict[int, PlannedRun], keys: list[str], store: RunStore | None, observers: Sequence[Observer]
    ) -> None:
        self.planned, self.keys, self.store, self.observers = planned, keys, store, observers
        self.on_gpu = any(getattr(run.problem, "device", "cpu") != "cpu" for run in planned.values())
        self.groups = [part for group in stacks(planned) for part in self._parts(group)]

    def _parts(self, group: list[int]) -> Iterator[list[int]]:
        """Yield the group; on a GPU in parts of a few seeds if its runs are uneven: each round lasts as long as its
        longest run, 3.6 times the mean of 20 seeds, but 2.1 times that of four."""
        seeds = list(dict.fromkeys(self.planned[i].config.seed for i in group))
        size = FEW_SEEDS if self.on_gpu and self.planned[group[0]].algorithm.traits.uneven else len(seeds)
        for at in range(0, len(seeds), size):
            yield [i for i in group if self.planned[i].config.seed in seeds[at : at + size]]

    def runs(self, jobs: int, keep_errors: bool, bar: Bar) -> Iterator[tuple[int, Run]]:
        """Yield the runs, group by group, as these are done, side by side.

        A group that raises an error yields none where errors are kept: its runs are to be done one by one.
        """
        import joblib

        if not self.groups:
            return
        cores = joblib.effective_n_jobs(jobs)
        threads = max(1, cores // len(self.groups))
        with ExitStack() as context:
            stop = context.enter_context(ctrl_c())
            shown = sum(map(len, self.groups))
            before = bar.total - len(self.planned)
            board = context.enter_context(shown_board(bar, before, shown)) if bar.shown else None
            play = self._try if keep_errors else self._play
            plays = [partial(play, group, threads, board, stop) for group in self.groups]
            for group, runs in self._side_by_side(plays, min(cores, len(plays))):
                yield from zip(group, runs, strict=True)

    def _side_by_side(self, plays: Sequence[Play], most: int) -> Iterator[tuple[list[int], list[Run]]]:
        """Do all plays, so many at ``most`` at a time: in threads or, on a GPU, in one, as others wait for it."""
        import joblib

        if self.on_gpu:
            return side_by_side(plays, most)
        parallel = joblib.Parallel(n_jobs=most, backend="threading", return_as="generator_unordered", batch_size=1)
        found: Iterator[tuple[list[int], list[Run]]] = parallel(joblib.delayed(play)() for play in plays)
        return found

    def _play(
        self, group: list[int], threads: int, board: Board | None, stop: threading.Event
    ) -> tuple[list[int], list[Run]]:
        """Do the runs of a group; return their places, and the runs."""
        stack = Stack([self.planned[i] for i in group], threads)
        if self.store is not None:
            stack.resume(self._file(group, self.store))
        stack.run(stop, ShownStack(stack, board, self._first_place(group), [*self._observers(group)]))
        return group, stack.results()

    def _try(
        self, group: list[int], threads: int, board: Board | None, stop: threading.Event
    ) -> tuple[list[int], list[Run]]:
        try:
            return self._play(group, threads, board, stop)
        except Exception:  # whatever it is: which run it is of shows when they are done one by one
            return [], []

    def forget(self) -> None:
        """Remove what is kept of groups whose runs are all in the store."""
        if self.store is not None:
            for group in self.groups:
                if all(self.store.has(self.keys[i]) for i in group):
                    self._file(group, self.store).unlink(missing_ok=True)

    def _first_place(self, group: list[int]) -> int:
        """Return the place on the board of the group's first run; the others follow."""
        return sum(len(other) for other in self.groups[: self.groups.index(group)])

    def _observers(self, group: list[int]) -> Iterator[Observer]:
        return (self.observers[i] for i in group if self.observers)

    def _file(self, group: list[int], store: RunStore) -> Path:
        return store.stack_file([self.keys[i] for i in group])


class ShownStack:
    """Shows how far the runs of a stack are: on the board, and to the observers of each, who see some rows a second."""

    def __init__(self, stack: Stack, board: Board | None, place: int, observers: list[Observer]) -> None:
        self.stack, self.board, self.observers = stack, board, observers
        self.places = list(range(place, place + stack.count))
        self.seen, self.told, self.pause = 0, time.monotonic(), SHOW_SECONDS

    def __call__(self, k: int, gaps: Array) -> None:
        if self.board is not None:
            self.board.report_all(self.places, k / self.stack.config.rounds, gaps)
        if self.observers and (began := time.monotonic()) - self.told > self.pause:
            for observer, view in zip(self.observers, self.stack.views(self.seen, SHOWN_ROWS), strict=True):
                observer.on_rows(view)
            self.seen, self.told = len(self.stack.records), time.monotonic()
            self.pause = max(SHOW_SECONDS, (self.told - began) / SHOW_SHARE)
