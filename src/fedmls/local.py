"""What clients may ask of their own data (:class:`fedmls.types.Local`), for rows and for functions.

``stacked`` serves several clients at once, with arrays of shape (n, d), as in a simulation; otherwise one
client with arrays of shape (d,).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmls import descent
from fedmls.engine import ServerRandom, draw_participants
from fedmls.prox import no_l1, prox
from fedmls.prox_rows import ascend_rows
from fedmls.types import Array

if TYPE_CHECKING:
    from fedmls.problem import OracleProblem, Problem

EMPTY = np.empty(0)
FOREVER = 2**62
COINS = 2**32  # coins have random numbers of their own: tossing them leaves the mini-batches alone


class BaseLocal(ABC):
    """Which clients these are, which round it is, and the work counted so far."""

    def __init__(self, ids: Any, dimension: int, n: int, weights: Array, seed: int, stacked: bool) -> None:
        self.ids = np.asarray(ids, dtype=np.int64)
        self.n = n
        self.dimension = dimension
        self.stacked = stacked
        self.weight = self._out(weights[:, None])
        self.seed = np.uint64(seed)
        self.steps = np.zeros(len(self.ids), dtype=np.int64)
        self.subgradients = 0
        self.k = self.calls = self.tosses = 0
        self.slopes = EMPTY

    def begin(self, k: int) -> None:
        """Round k begins: its random numbers depend on seed, round, client and call alone."""
        self.k, self.calls, self.tosses = k, 0, 0

    @abstractmethod
    def descend(
        self,
        u: Array,
        steps: Array,
        *,
        scale: Any = 1.0,
        pull: float = 0.0,
        center: Array | None = None,
        shift: Array | None = None,
        average: Array | None = None,
        radius: float | None = None,
        count: Any = None,
    ) -> tuple[Array, Array]: ...

    @abstractmethod
    def prox(self, v: Array, weight: float) -> Array: ...

    @abstractmethod
    def ascend(
        self, v: Array, weight: Array, p: Array, steps: int, passes: int = 1, start: int = -1, ridge: bool = True
    ) -> tuple[Array, Array]: ...

    @abstractmethod
    def subgradient(self, x: Array, where: Any = True) -> Array: ...

    @abstractmethod
    def value(self, x: Array) -> Array: ...

    def compress(self, v: Array, method: str, level: float) -> Array:
        from fedmls.compression import compress

        self.tosses += 1
        return np.asarray(
            self._out(compress(self._rows(v), method, level, self.seed, self.k, self.ids, COINS + self.tosses))
        )

    def own(self, values: Sequence[float]) -> Any:
        return self._out(np.asarray(values)[self.ids][:, None])

    def run_length(self, q: float | Sequence[float]) -> Any:
        each = np.broadcast_to(np.asarray(q, dtype=float), self.n)[self.ids]
        uniform = np.array([self._generator(i, COINS + self.tosses).random() for i in self.ids])
        with np.errstate(divide="ignore", invalid="ignore"):
            lengths = np.floor(np.log1p(-uniform) / np.log(each))
        lengths = np.where(each >= 1, FOREVER, np.where(each <= 0, 0, lengths))
        self.tosses += 1
        return self._out(np.minimum(lengths, FOREVER).astype(np.int64)[:, None])

    def place(self, participants: int | None) -> Any:
        order = draw_participants(self.n, participants or self.n, ServerRandom(int(self.seed)), self.k)
        places = np.full(self.n, -1)
        places[order] = np.arange(len(order))
        return self.own(places.tolist())

    @property
    def ridge(self) -> Array:
        return np.zeros(self.dimension)

    def certify(self) -> None:
        raise ValueError("only rows can be certified")

    @property
    def cut_slopes(self) -> Array:
        """One slope per row, that a certificate is made of; none without one."""
        return EMPTY

    def keep_cut(self, share: float) -> None:  # noqa: B027 (nothing to keep unless a certificate is asked for)
        pass

    def _generator(self, client: int, call: int) -> np.random.Generator:
        key = descent.stream(self.seed, self.k, client, call)
        return np.random.Generator(np.random.Philox(key=int(key)))

    def _counts(self, count: Any, longest: int) -> Any:
        """Steps per client, and the books kept."""
        counts = np.full(len(self.ids), longest, dtype=np.int64)
        if count is not None:
            counts = np.minimum(counts, np.ravel(count))
        self.steps += counts
        self.subgradients += int(counts.sum())
        return counts

    def _each(self, value: Any) -> Array:
        """One number for each client."""
        each = np.empty(len(self.ids))
        each[:] = np.ravel(value)
        return each

    def _rows(self, x: Array) -> Array:
        """x with one row per client, as the one kind of array that the loop is compiled for."""
        shape = (len(self.ids), self.dimension)
        if x.shape == shape and x.flags.carray and x.dtype == float:
            return x
        rows = np.empty(shape)
        rows[:] = x
        return rows

    def _out(self, x: Any) -> Any:
        return x if self.stacked else x[0]


class RowsLocal(BaseLocal):
    """Rows of a linear model, by the compiled loop.

    Clients ``ids`` of the problem; or, with ``of`` = (i, n, w_i), its only client as client i of n clients
    elsewhere.
    """

    def __init__(
        self,
        problem: "Problem",
        seed: int,
        batch: float,
        ids: Any,
        of: tuple[int, int, float] | None = None,
    ) -> None:
        if of is None:
            super().__init__(ids, problem.dimension, problem.n, problem.weights[ids], seed, stacked=True)
        else:
            i, n, weight = of
            super().__init__([i], problem.dimension, n, np.array([weight]), seed, stacked=False)
        self.problem = problem
        self.blocks = np.asarray(ids, dtype=np.int64)
        self.sizes = np.maximum(1, np.ceil(batch * problem.rows_per_client - 1e-9)).astype(np.int64)
        self.zeros = np.zeros((len(self.ids), self.dimension))
        self.round_slopes = EMPTY

    @property
    def ridge(self) -> Array:
        return np.where(np.arange(self.dimension) < self.problem.penalised, self.problem.l2, 0.0)

    def certify(self) -> None:
        """Keep one averaged slope per row from now on."""
        self.slopes, self.round_slopes = np.zeros(len(self.problem.y)), np.zeros(len(self.problem.y))

    @property
    def cut_slopes(self) -> Array:
        """Those that a certificate is made of."""
        return self.slopes if self.slopes.ndim == 1 else np.asarray(self.slopes[0])

    def keep_cut(self, share: float) -> None:
        if len(self.slopes):
            self.slopes = (1 - share) * self.slopes + share * self.round_slopes

    def descend(
        self,
        u: Array,
        steps: Array,
        *,
        scale: Any = 1.0,
        pull: float = 0.0,
        center: Array | None = None,
        shift: Array | None = None,
        average: Array | None = None,
        radius: float | None = None,
        count: Any = None,
    ) -> tuple[Array, Array]:
        p = self.problem
        self.round_slopes = np.zeros_like(self.slopes) if average is not None else EMPTY
        last, averaged = descent.descend_rows(
            p.X,
            p.y,
            p.row_weights,
            p.offsets,
            self.blocks,
            self.sizes,
            p.loss.code,
            p.loss.parameter,
            p.l2,
            p.l1,
            p.penalised,
            self._rows(u),
            steps,
            self._counts(count, len(steps)),
            self._each(scale),
            float(pull),
            self.zeros if center is None else self._rows(center),
            self.zeros if shift is None else self._rows(shift),
            EMPTY if average is None else average,
            np.inf if radius is None else float(radius),
            self.round_slopes,
            self.ids,
            self.seed,
            self.k,
            self.calls,
        )
        self.calls += 1
        return self._out(last), self._out(averaged)

    def prox(self, v: Array, weight: float) -> Array:
        rows = self._rows(v)
        found = prox(self.problem, rows, weight, self.blocks, ids=self.ids, seed=self.seed, k=self.k, call=self.calls)
        self.calls += 1
        self.steps += found.passes
        self.subgradients += int(found.passes.sum())
        return np.asarray(self._out(found.x))

    def ascend(
        self, v: Array, weight: Array, p: Array, steps: int, passes: int = 1, start: int = -1, ridge: bool = True
    ) -> tuple[Array, Array]:
        no_l1(self.problem)
        lanes = weight.shape[-1]
        if self.slopes.ndim < 2:
            self.slopes = np.zeros((lanes, len(self.problem.y)))
        begin, l2 = range(lanes) if start < 0 else [start] * lanes, self.problem.l2 if ridge else 0.0
        counts = np.maximum(steps, passes * -(-self.problem.rows_per_client // self.sizes)[self.blocks])
        vs, ps = (np.split(vectors, lanes, axis=-1) for vectors in (v, p))
        ends = [self._ascend(vs[j], weight[..., j], ps[j], self.slopes[begin[j]], counts, l2) for j in range(lanes)]
        self.slopes = np.array([end[2] for end in ends])
        self.calls += 1
        self.steps += lanes * counts
        self.subgradients += lanes * int(counts.sum())
        x, p = (np.concatenate([end[i] for end in ends], axis=-1) for i in (0, 1))
        return self._out(x), self._out(p)

    def _ascend(
        self, v: Array, weight: Array, p: Array, slopes: Array, counts: Any, l2: float
    ) -> tuple[Array, Array, Array]:
        """One lane: x, p and the slopes."""
        problem = self.problem
        x, p, slopes = ascend_rows(
            problem.dual_rows,
            problem.offsets,
            self.blocks,
            self.sizes,
            problem.row_squares,
            self._rows(v),
            self._each(weight),
            l2,
            problem.penalised,
            self._rows(p),
            slopes,
            counts,
            self.ids,
            self.seed,
            self.k,
            self.calls,
        )
        return x, p, slopes

    def subgradient(self, x: Array, where: Any = True) -> Array:
        asked = np.broadcast_to(np.ravel(where), len(self.ids))
        out = np.zeros((len(self.ids), self.dimension))
        if asked.any():
            out[asked] = self.problem.client_subgradients(self._rows(x)[asked], self.blocks[asked])
            self.subgradients += int(asked.sum())
        return np.asarray(self._out(out))

    def value(self, x: Array) -> Array:
        return np.asarray(self._out(self.problem.client_values(self._rows(x), self.blocks)))


class OracleLocal(BaseLocal):
    """A user's own functions, by the same loop in NumPy."""

    def __init__(self, problem: "OracleProblem", seed: int, ids: Any) -> None:
        super().__init__(ids, problem.dimension, problem.n, problem.weights[ids], seed, stacked=True)
        self.problem = problem

    def descend(
        self,
        u: Array,
        steps: Array,
        *,
        scale: Any = 1.0,
        pull: float = 0.0,
        center: Array | None = None,
        shift: Array | None = None,
        average: Array | None = None,
        radius: float | None = None,
        count: Any = None,
    ) -> tuple[Array, Array]:
        counts = self._counts(count, len(steps))
        starts = self._rows(u)
        centers = self._rows(np.zeros(self.dimension) if center is None else center)
        shifts = self._rows(np.zeros(self.dimension) if shift is None else shift)
        last, averaged, scales = np.empty_like(starts), np.empty_like(starts), self._each(scale)
        for i, client in enumerate(self.ids):
            last[i], averaged[i] = descent.descend(
                self._oracle(client),
                starts[i],
                steps[: counts[i]],
                scale=scales[i],
                pull=pull,
                center=centers[i],
                shift=shifts[i],
                average=average,
                project=descent.ball(radius),
            )
        self.calls += 1
        return self._out(last), self._out(averaged)

    def prox(self, v: Array, weight: float) -> Array:
        raise ValueError(
            "a problem made of functions has no exact proximal step: "
            "give the rows in a fedmls.Problem, or take an algorithm that only needs subgradients"
        )

    def ascend(
        self, v: Array, weight: Array, p: Array, steps: int, passes: int = 1, start: int = -1, ridge: bool = True
    ) -> tuple[Array, Array]:
        raise ValueError(
            "a problem made of functions has no rows to keep slopes of: "
            "give the rows in a fedmls.Problem, or take an algorithm that only needs subgradients"
        )

    def subgradient(self, x: Array, where: Any = True) -> Array:
        asked = np.broadcast_to(np.ravel(where), len(self.ids))
        points, out = self._rows(x), np.zeros((len(self.ids), self.dimension))
        for i in np.flatnonzero(asked):
            out[i] = self._oracle(self.ids[i])(points[i])
        self.subgradients += int(asked.sum())
        self.calls += 1
        return np.asarray(self._out(out))

    def value(self, x: Array) -> Array:
        values = [self.problem.clients[i][0](row) for i, row in zip(self.ids, self._rows(x), strict=True)]
        return np.asarray(self._out(np.array(values, dtype=float)))

    def _oracle(self, client: int) -> Any:
        subgradient, rng = self.problem.clients[client][1], self._generator(client, self.calls)

        def checked(u: Array) -> Array:
            g = np.asarray(subgradient(u, rng), dtype=float)
            if g.shape != u.shape:
                raise ValueError(f"the subgradient of client {client} has shape {g.shape}, x has {u.shape}")
            return g

        return checked
