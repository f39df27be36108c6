"""A round of all clients of a problem on one machine: a block of them at a time, where they are many."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np

from fedmls.local.client import BaseLocal
from fedmls.local.rows import Integers
from fedmls.rounds import Sizes, added, array_sizes, blocks, mean_sizes, weighted_mean
from fedmls.threads import one_thread
from fedmls.types import Algorithm, Array


class Clients:
    """All clients of a problem, of rows or of functions; what they keep of their rows; the work counted so far.

    together: never in blocks, for a server that sees every upload. Functions and a GPU take all clients at once too.
    """

    def __init__(self, problem: Any, seed: int = 0, batch: float = 1.0, together: bool = False) -> None:
        self.problem, self.seed, self.batch = problem, seed, batch
        self.together = together or getattr(problem, "device", "") != "cpu"
        self.blocks = self._blocks(problem.n)
        self.locals: list[Any] = (
            [problem.local(seed, batch)]
            if len(self.blocks) == 1
            else [problem.local_of(block, seed, batch) for block in self.blocks]
        )
        self.rows_in_all = sum(local.rows_in_all for local in self.locals)
        self.steps = np.zeros(problem.n, dtype=np.int64)
        self.subgradients = self.rows_read = 0

    def _blocks(self, clients: int) -> list[slice]:
        return [slice(0, clients)] if self.together else blocks(clients, self.problem.dimension)

    def states(self, client: Any) -> Any:
        """The state that every client starts from, for all of them."""
        return type(client)(*(np.tile(field, (self.problem.n, 1)) for field in client))

    def round(
        self, algorithm: Algorithm, k: int, states: Any, down: Any, some: Integers | None
    ) -> tuple[Any, Any, Any]:
        """Do round k of some clients, or of all; return all states, what the server sees, and the uploads' sizes
        (:func:`fedmls.rounds.array_sizes`)."""
        weights = self.problem.weights if some is None else self.problem.weights[some]
        weights = weights if some is None else weights / weights.sum()
        after: dict[int, Any] = {} if some is None else {j: field.copy() for j, field in enumerate(states)}
        seen, sizes = None, list[tuple[int, Sizes]]()
        with one_thread() if len(self.blocks) > 1 else nullcontext():
            for block, who, local in self._working(some):
                local.begin(k)
                own, up = algorithm.client_round(k, type(states)(*(field[who] for field in states)), down, local)
                self._count(who, local)
                for j, field in enumerate(own):
                    self._put(after, j, who, field)
                seen = self._seen(algorithm, seen, weights[block], up)
                sizes.append((block.stop - block.start, array_sizes(up)))
        return type(states)(*(after[j] for j in range(len(states)))), seen, mean_sizes(sizes)

    def _seen(self, algorithm: Algorithm, before: Any, weights: Array, up: Any) -> Any:
        """What the server sees of the uploads of a block, and of those before it."""
        if algorithm.traits.aggregate == "stack":
            return up
        mean = weighted_mean(weights, up, self.problem.dimension)
        return mean if before is None else added(before, mean)

    def _working(self, some: Integers | None) -> Iterator[tuple[slice, Any, BaseLocal]]:
        """Yield the blocks of those that work: their places among these, among all, and what they ask."""
        if some is None:
            yield from zip(self.blocks, self.blocks, self.locals, strict=True)
            return
        for block in self._blocks(len(some)):  # idle clients do no work
            yield block, some[block], self.problem.local(self.seed, self.batch, some[block])

    def _put(self, after: dict[int, Any], j: int, who: Any, new: Array) -> None:
        """Keep the new states of a block, in field j."""
        if len(self.blocks) == 1 and j not in after:
            after[j] = new
            return
        if j not in after:
            after[j] = np.empty((self.problem.n, *new.shape[1:]), new.dtype)
        after[j][who] = new

    def _count(self, who: Any, local: Any) -> None:
        """Add the work of a block to that of all."""
        self.steps[who] += local.steps
        self.subgradients += local.subgradients
        self.rows_read += local.rows_read
        local.steps[:] = 0
        local.subgradients = local.rows_read = 0

    def certify(self) -> None:
        """Let clients keep one averaged slope per row from now on."""
        for local in self.locals:
            local.certify()

    @property
    def slopes(self) -> Array:
        """What clients keep: one slope per row (and lane), or nothing."""
        return self._of_rows([local.slopes for local in self.locals])

    @slopes.setter
    def slopes(self, slopes: Array) -> None:
        first = 0
        for local in self.locals:
            last = first + local.rows_in_all
            local.slopes = slopes if len(self.locals) == 1 else np.ascontiguousarray(slopes[..., first:last])
            first = last

    @property
    def cut_slopes(self) -> Array:
        """One slope per row, that a certificate is made of; none without one."""
        return self._of_rows([local.cut_slopes for local in self.locals])

    def _of_rows(self, each: list[Array]) -> Array:
        return each[0] if len(each) == 1 else np.concatenate(each, axis=-1)
