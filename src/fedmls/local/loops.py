"""The compiled loops over the rows of some clients, on the processor; :mod:`fedmls.local.cuda` has those of a GPU."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Protocol, Self

import numpy as np

from fedmls.local import descent
from fedmls.local.cut_rows import cuts
from fedmls.local.random import Stream
from fedmls.local.rows import Integers, Penalty, Rows
from fedmls.losses import LossKind
from fedmls.types import Array

LEAST_WORK = 20_000  # rows read: with less, starting a thread takes longer than the work


class Loops(Protocol):
    """What is computed on the rows of some clients, wherever the rows are."""

    def of(self, clients: Integers) -> Self:
        """Return the loops over the rows of these of the clients."""

    def descend(self, stream: Stream, steps: descent.Steps, u0: Array, slopes: Array) -> tuple[Array, Array]:
        """See :func:`fedmls.local.descent.descend_rows`."""

    def values(self, x: Array) -> Array:
        """See :func:`fedmls.local.descent.client_values`."""

    def subgradients(self, x: Array) -> Array:
        """See :func:`fedmls.local.descent.client_subgradients`."""

    def cuts(self, x: Array, parts: int) -> tuple[Array, Array]:
        """See :func:`fedmls.local.cut_rows.part_cuts`."""


class ProcessorLoops:
    """The loops on the processor. ``descend`` deals the clients out to so many threads; the others use one."""

    def __init__(self, rows: Rows, loss: LossKind, penalty: Penalty, threads: int = 1) -> None:
        self.rows, self.loss, self.penalty, self.threads = rows, loss, penalty, threads

    def of(self, clients: Integers) -> "ProcessorLoops":
        return ProcessorLoops(self.rows.of(clients), self.loss, self.penalty, self.threads)

    def descend(self, stream: Stream, steps: descent.Steps, u0: Array, slopes: Array) -> tuple[Array, Array]:
        if not isinstance(steps.sizes, np.ndarray) or not steps.sizes.flags.carray:  # what the loop is compiled for
            steps = steps._replace(sizes=np.array(steps.sizes))
        if self.threads > 1:
            work = np.cumsum(steps.counts * stream.batch_sizes)
            if work[-1] > self.threads * LEAST_WORK:
                return self._descend_by_threads(work, stream, steps, u0, slopes)
        return descent.descend_rows(self.rows, self.loss, self.penalty, stream, steps, u0, slopes)

    def _descend_by_threads(
        self, work: Integers, stream: Stream, steps: descent.Steps, u0: Array, slopes: Array
    ) -> tuple[Array, Array]:
        """Give each thread a share of the clients, with about as much work for each. work: of the clients so far."""
        ends = np.searchsorted(work, work[-1] * np.arange(self.threads + 1) / self.threads)

        def share(start: int, end: int) -> tuple[Array, Array]:
            some = slice(start, end)
            rows = self.rows._replace(first=self.rows.first[some], last=self.rows.last[some])
            own, its_steps = stream.of(some), steps.of(some)
            return descent.descend_rows(rows, self.loss, self.penalty, own, its_steps, u0[some], slopes)

        found = list(_threads(self.threads).map(share, ends[:-1], [*ends[1:-1], len(work)]))
        last, averaged = (np.concatenate([one[which] for one in found]) for which in (0, 1))
        return last, averaged

    def values(self, x: Array) -> Array:
        return descent.client_values(self.rows, self.loss, x)

    def subgradients(self, x: Array) -> Array:
        return descent.client_subgradients(self.rows, self.loss, x)

    def cuts(self, x: Array, parts: int) -> tuple[Array, Array]:
        return cuts(self.rows, self.loss, x, parts)


@cache
def _threads(how_many: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(how_many, thread_name_prefix="fedmls-loop")
