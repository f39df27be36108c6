"""What the clients of several runs ask of their data, all at once: R runs of n clients, with arrays of shape (R, n, d).

What is one vector for all clients of a run has the shape (R, 1, d), and a number of each run (R, 1, 1), so that the
arithmetic of an algorithm does for R runs what it does for one. Every run computes what it would compute by itself, to
the last bit: its clients have the random numbers of its own seed.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from fedmls.local.client import EMPTY
from fedmls.local.descent import Steps
from fedmls.local.random import Stream
from fedmls.local.rows import CSR, Integers, Rows
from fedmls.schedules import PowerRows
from fedmls.types import Array

if TYPE_CHECKING:
    from fedmls.problem import Problem


class StackedLocal:
    """All clients of several runs. The problems, one for each run, differ in nothing but their rows and weights."""

    def __init__(self, problems: "Sequence[Problem]", seeds: Sequence[int], batch: float, threads: int) -> None:
        one, self.runs, self.n = problems[0], len(problems), problems[0].n
        self.problems, self.dimension = problems, one.dimension
        self.shape = (self.runs, self.n, self.dimension)
        self.weights = np.array([problem.weights for problem in problems])
        self.rows_per_client = np.concatenate([problem.rows_per_client for problem in problems])
        self.batch_sizes = np.maximum(1, np.ceil(batch * self.rows_per_client - 1e-9)).astype(np.int64)
        self.seeds = np.repeat(np.array(seeds, dtype=np.uint64), self.n)
        self.ids = np.tile(np.arange(self.n), self.runs)
        self.of_run = np.repeat(np.arange(self.runs), self.n)
        self.loops = one.loops_with(stacked_rows(problems), threads)
        self.zeros, self.alike = np.zeros(self.shape).reshape(-1, self.dimension), np.zeros(len(self.ids), np.int64)
        self.going = np.ones(len(self.ids), dtype=bool)  # clients of a run that has ended take no more steps
        self.steps = np.zeros((self.runs, self.n), dtype=np.int64)
        self.subgradients, self.rows_read = np.zeros(self.runs, np.int64), np.zeros(self.runs, np.int64)
        self.k = self.calls = 0

    def begin(self, k: int) -> None:
        """Begin round k."""
        self.k, self.calls = k, 0

    @property
    def weight(self) -> Array:
        return self.weights[..., None]

    @property
    def ridge(self) -> Array:
        one = self.problems[0]
        return np.where(np.arange(self.dimension) < one.penalised, one.l2, 0.0)

    def own(self, values: Sequence[float]) -> Any:
        return np.asarray(values)[None, :, None]

    def descend(
        self,
        u: Array,
        steps: Array | PowerRows,
        *,
        scale: float | Array = 1.0,
        pull: float = 0.0,
        center: Array | None = None,
        shift: Array | None = None,
        average: Array | None = None,
        radius: float | None = None,
        count: ArrayLike | None = None,
    ) -> tuple[Array, Array]:
        """Take local steps; ``steps`` has one row for all runs, or one for each."""
        constants = Steps(
            steps if isinstance(steps, PowerRows) else np.atleast_2d(steps),
            self.alike if steps.ndim == 1 else self.of_run,
            EMPTY if average is None else average,
            self._counts(count, steps.shape[-1]),
            self._each(scale, float),
            float(pull),
            self.zeros if center is None else self._stack(center),
            self.zeros if shift is None else self._stack(shift),
            np.inf if radius is None else float(radius),
        )
        stream = Stream(self.seeds, self.k, self.calls, self.ids, self.batch_sizes)
        last, averaged = self.loops.descend(stream, constants, self._stack(u), EMPTY)
        self.calls += 1
        return last.reshape(self.shape), averaged.reshape(self.shape)

    def subgradient(self, x: Array, where: ArrayLike = True) -> Array:
        asked = self._each(where, bool) & self.going
        out = self.zeros.copy()
        if asked.any():
            out[asked] = self._subgradients(self._stack(x)[asked], np.flatnonzero(asked))
            self.subgradients += asked.reshape(self.runs, self.n).sum(axis=1)
            self.rows_read += (asked * self.rows_per_client).reshape(self.runs, self.n).sum(axis=1)
        return out.reshape(self.shape)

    def value(self, x: Array) -> Array:
        self.rows_read += (self.going * self.rows_per_client).reshape(self.runs, self.n).sum(axis=1)
        return self.client_values(x)

    def keep_cut(self, share: float) -> None:
        """Do nothing: stacked runs make no certificates."""

    def client_values(self, x: Array) -> Array:
        """f_i of every client at x, (R, n)."""
        one, points = self.problems[0], self._stack(x)
        return (self.loops.values(points) + one.terms_at(points)).reshape(self.runs, self.n)

    def objectives(self, x: Array) -> Array:
        """f of every run at its own x: R numbers."""
        return (self.weights[:, None, :] @ self.client_values(x)[:, :, None])[:, 0, 0]

    def end(self, runs: Any) -> None:
        """Let the clients of these runs take no more steps."""
        self.going &= ~np.isin(self.of_run, np.flatnonzero(runs))

    def _subgradients(self, x: Array, clients: Integers) -> Array:
        one = self.problems[0]
        loops = self.loops if len(clients) == len(self.ids) else self.loops.of(clients)
        return loops.subgradients(x) + one.term_slopes_at(x)

    def _counts(self, count: ArrayLike | None, longest: int) -> Integers:
        """Return how many steps each client takes, and count them as work."""
        counts = np.full(len(self.ids), longest)
        if count is not None:
            counts = np.minimum(counts, self._each(count, np.int64))
        counts = np.where(self.going, counts, 0)
        each = counts.reshape(self.runs, self.n)
        self.steps += each
        self.subgradients += each.sum(axis=1)
        self.rows_read += (counts * self.batch_sizes).reshape(self.runs, self.n).sum(axis=1)
        return counts

    def _each(self, value: ArrayLike, kind: Any) -> Any:
        """Return one number for each client of each run."""
        each = np.empty((self.runs, self.n, 1), dtype=kind)
        each[:] = value
        return each.ravel()

    def _stack(self, x: Array) -> Array:
        """Return x with one row for each client of each run."""
        rows = x if x.shape == self.shape else np.broadcast_to(x, self.shape)
        return np.ascontiguousarray(rows).reshape(-1, self.dimension)


def stacked_rows(problems: "Sequence[Problem]") -> Rows:
    """Return the rows of the clients of all problems, one problem's after the other's; equal problems share theirs."""
    distinct = list({id(problem): problem for problem in problems}.values())
    place = {id(problem): i for i, problem in enumerate(distinct)}
    parts = [problem.rows for problem in distinct]
    before = np.concatenate([[0], np.cumsum([len(part.labels) for part in parts])]).astype(np.int64)
    starts = [before[place[id(problem)]] for problem in problems]
    return Rows(
        _joined([part.X for part in parts]),
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.weights for part in parts]),
        np.concatenate([start + problem.rows.first for start, problem in zip(starts, problems, strict=True)]),
        np.concatenate([start + problem.rows.last for start, problem in zip(starts, problems, strict=True)]),
    )


def _joined(matrices: list[Any]) -> Any:
    """Return the rows of the matrices, one matrix's below the other's."""
    if len(matrices) == 1:
        return matrices[0]
    if isinstance(matrices[0], np.ndarray):
        return np.concatenate(matrices)
    entries = np.concatenate([[0], np.cumsum([len(matrix.data) for matrix in matrices])]).astype(np.int64)
    ends = [start + matrix.indptr[1:] for start, matrix in zip(entries, matrices, strict=False)]
    data, indices = (np.concatenate([matrix[which] for matrix in matrices]) for which in (0, 1))
    return CSR(data, indices, np.concatenate([[0], *ends]).astype(np.int64))
