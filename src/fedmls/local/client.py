"""What clients may ask of their own data (:class:`fedmls.types.Local`), for rows and for functions.

``stacked`` serves several clients at once, with arrays of shape (n, d), as in a simulation; otherwise one
client with arrays of shape (d,).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmls.local import curvature, descent
from fedmls.local.compressors import compress
from fedmls.local.cut_rows import weighted_sums
from fedmls.local.prox import no_l1, prox
from fedmls.local.prox_rows import Start, ascend_rows
from fedmls.local.random import Stream, stream
from fedmls.local.rows import DualRows, Integers
from fedmls.rounds import ServerRandom, draw_participants
from fedmls.threads import one_thread
from fedmls.types import Array

if TYPE_CHECKING:
    from fedmls.problem import OracleProblem, Problem

EMPTY = np.empty(0)
FOREVER = 2**62
COINS = 2**32  # coins have random numbers of their own: tossing them leaves the mini-batches alone

Number = TypeVar("Number", bound=np.generic)


class BaseLocal(ABC):
    """Which clients these are, which round it is, and the work counted so far."""

    def __init__(
        self, ids: Sequence[int] | Integers, dimension: int, n: int, weights: Array, seed: int, stacked: bool
    ) -> None:
        self.ids = np.asarray(ids, dtype=np.int64)
        self.n = n
        self.dimension = dimension
        self.stacked = stacked
        self.weight = self._out(weights[:, None])
        self.seed = np.uint64(seed)
        self.steps = np.zeros(len(self.ids), dtype=np.int64)
        self.subgradients = self.rows_read = 0
        self.k = self.calls = self.tosses = 0
        self.slopes = EMPTY
        self.batch_sizes = np.ones(len(self.ids), dtype=np.int64)  # rows in a mini-batch of each client

    def begin(self, k: int) -> None:
        """Begin round k, whose random numbers depend on seed, round, client and call alone."""
        self.k, self.calls, self.tosses = k, 0, 0

    @property
    @abstractmethod
    def rows_in_all(self) -> int:
        """The rows of all clients of the problem; of functions, one for each."""

    @abstractmethod
    def descend(
        self,
        u: Array,
        steps: Array,
        *,
        scale: float | Array = 1.0,
        pull: float = 0.0,
        center: Array | None = None,
        shift: Array | None = None,
        average: Array | None = None,
        radius: float | None = None,
        count: ArrayLike | None = None,
    ) -> tuple[Array, Array]: ...

    @abstractmethod
    def prox(self, v: Array, weight: float) -> Array: ...

    @abstractmethod
    def ascend(
        self, v: Array, weight: Array, p: Array, steps: int, passes: int = 1, start: int = -1, ridge: bool = True
    ) -> tuple[Array, Array]: ...

    @abstractmethod
    def subgradient(self, x: Array, where: ArrayLike = True) -> Array: ...

    @abstractmethod
    def value(self, x: Array) -> Array: ...

    @abstractmethod
    def cuts(self, x: Array, parts: int) -> tuple[Array, Array]: ...

    @abstractmethod
    def curvature(self, x: Array, full: bool) -> Array: ...

    @abstractmethod
    def own_quadratic(self, x0: Array, full: bool) -> tuple[Array, Array, Array]: ...

    @abstractmethod
    def terms(self) -> Array: ...

    @abstractmethod
    def cut(self) -> tuple[Array, Array]: ...

    def compress(self, v: Array, method: str, level: float) -> Array:
        self.tosses += 1
        return np.asarray(
            self._out(compress(self._stack(v), method, level, self.seed, self.k, self.ids, COINS + self.tosses))
        )

    def own(self, values: Sequence[float]) -> Array:
        return self._out(np.asarray(values)[self.ids][:, None])

    def run_length(self, q: float | Sequence[float]) -> Integers:
        each = np.broadcast_to(np.asarray(q, dtype=float), self.n)[self.ids]
        uniform = np.array([self._generator(i, COINS + self.tosses).random() for i in self.ids])
        with np.errstate(divide="ignore", invalid="ignore"):
            lengths = np.floor(np.log1p(-uniform) / np.log(each))
        lengths = np.where(each >= 1, FOREVER, np.where(each <= 0, 0, lengths))
        self.tosses += 1
        return self._out(np.minimum(lengths, FOREVER).astype(np.int64)[:, None])

    def place(self, participants: int | None) -> Array:
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
        key = stream(self.seed, self.k, client, call)
        return np.random.Generator(np.random.Philox(key=int(key)))

    def _counts(self, count: ArrayLike | None, longest: int) -> Integers:
        """Return how many steps each client takes, and count them as work."""
        counts = np.full(len(self.ids), longest)
        if count is None:
            self.steps += longest
            self.subgradients += longest * len(self.ids)
            self.rows_read += longest * self._rows_in_batches
            return counts
        counts = np.minimum(counts, np.ravel(count))
        self.steps += counts
        self.subgradients += int(counts.sum())
        self.rows_read += int(counts @ self.batch_sizes)
        return counts

    @cached_property
    def _rows_in_batches(self) -> int:
        """The rows in one mini-batch of every client."""
        return int(self.batch_sizes.sum())

    def _each(self, value: ArrayLike) -> Array:
        """Return one number for each client."""
        each = np.empty(len(self.ids))
        each[:] = np.ravel(value)
        return each

    def _stack(self, x: Array | None) -> Array:
        """Return x, or zeros, with one row per client, as the one kind of array that the loop is compiled for."""
        shape = (len(self.ids), self.dimension)
        if x is None:
            return np.zeros(shape)
        if x.shape == shape and x.flags.carray and x.dtype == float:
            return x
        rows = np.empty(shape)
        rows[:] = x
        return rows

    def _out(self, x: NDArray[Number]) -> NDArray[Number]:
        """Return x, which has one row per client, in the algorithm's shape: one client alone has no such dimension."""
        return x if self.stacked else x[0]


class Among(NamedTuple):
    """Whose rows they are: clients ``ids`` of n, with these weights; ``stacked`` as arrays of all of them."""

    ids: Integers
    n: int
    weights: Array
    stacked: bool


class RowsLocal(BaseLocal):
    """Rows of a linear model, by the compiled loop.

    own: the clients' numbers in the problem.  among: who they are among all clients.
    """

    def __init__(self, problem: "Problem", seed: int, batch: float, own: Integers, among: Among) -> None:
        super().__init__(among.ids, problem.dimension, among.n, among.weights, seed, among.stacked)
        self.problem = problem
        self.blocks = own
        self.batch_sizes = np.maximum(1, np.ceil(batch * self._own_rows - 1e-9)).astype(np.int64)
        self.loops, self.penalty = problem.loops_over(self.blocks), problem.penalty
        self.seeds, self.alike = np.full(len(self.ids), self.seed), np.zeros(len(self.ids), dtype=np.int64)
        self.round_slopes = EMPTY

    @property
    def rows_in_all(self) -> int:
        return len(self.problem.y)

    @cached_property
    def dual_rows(self) -> DualRows:
        """The clients' rows as the dual sees them."""
        return self.problem.dual_rows.of(self.blocks)

    @property
    def ridge(self) -> Array:
        return np.where(np.arange(self.dimension) < self.problem.penalised, self.problem.l2, 0.0)

    def certify(self) -> None:
        """Keep one averaged slope per row from now on."""
        self.slopes, self.round_slopes = np.zeros(len(self.problem.y)), np.zeros(len(self.problem.y))

    @property
    def cut_slopes(self) -> Array:
        """The slopes that a certificate is made of: those of the first lane, where there are several."""
        return self.slopes if self.slopes.ndim == 1 else np.asarray(self.slopes[0])

    def keep_cut(self, share: float) -> None:
        if len(self.slopes):
            self.slopes = (1 - share) * self.slopes + share * self.round_slopes

    def descend(
        self,
        u: Array,
        steps: Array,
        *,
        scale: float | Array = 1.0,
        pull: float = 0.0,
        center: Array | None = None,
        shift: Array | None = None,
        average: Array | None = None,
        radius: float | None = None,
        count: ArrayLike | None = None,
    ) -> tuple[Array, Array]:
        certified = average is not None and len(self.slopes) > 0
        self.round_slopes = np.zeros_like(self.slopes) if certified else EMPTY
        constants = descent.Steps(
            steps[None],
            self.alike,
            EMPTY if average is None else average,
            self._counts(count, len(steps)),
            self._each(scale),
            float(pull),
            self._stack(center),
            self._stack(shift),
            np.inf if radius is None else float(radius),
        )
        last, averaged = self.loops.descend(self._stream(), constants, self._stack(u), self.round_slopes)
        self.calls += 1
        return self._out(last), self._out(averaged)

    def prox(self, v: Array, weight: float) -> Array:
        rows = self._stack(v)
        found = prox(self.problem, rows, weight, self.blocks, ids=self.ids, seed=self.seed, k=self.k, call=self.calls)
        self.calls += 1
        self.steps += found.passes
        self.subgradients += int(found.passes.sum())
        self.rows_read += int(found.passes @ self._own_rows)
        return np.asarray(self._out(found.x))

    def ascend(
        self, v: Array, weight: Array, p: Array, steps: int, passes: int = 1, start: int = -1, ridge: bool = True
    ) -> tuple[Array, Array]:
        no_l1(self.problem)
        lanes = weight.shape[-1]
        if self.slopes.ndim < 2:
            self.slopes = np.zeros((lanes, len(self.problem.y)))
        penalty = self.penalty if ridge else self.penalty._replace(l2=0.0)
        counts = np.maximum(steps, passes * -(-self._own_rows // self.batch_sizes))
        vs, ps = (np.split(vectors, lanes, axis=-1) for vectors in (v, p))
        ends = []
        for j in range(lanes):
            slopes = self.slopes[j if start < 0 else start]
            begin = Start(
                self._stack(vs[j]), self._each(weight[..., j]), self._stack(ps[j]), slopes, self.problem.row_squares
            )
            ends.append(ascend_rows(self.dual_rows, penalty, self._stream(), begin, counts))
        self.slopes = np.array([end[2] for end in ends])
        self.calls += 1
        self.steps += lanes * counts
        self.subgradients += lanes * int(counts.sum())
        self.rows_read += lanes * int((counts * self.batch_sizes).sum())
        x, p = (np.concatenate([end[i] for end in ends], axis=-1) for i in (0, 1))
        return self._out(x), self._out(p)

    def _stream(self) -> Stream:
        """The random numbers of the next call."""
        return Stream(self.seeds, self.k, self.calls, self.ids, self.batch_sizes)

    def subgradient(self, x: Array, where: ArrayLike = True) -> Array:
        asked = np.broadcast_to(np.ravel(where), len(self.ids))
        if asked.all():
            self._full_passes(1)
            return np.asarray(self._out(self.problem.client_subgradients(self._stack(x), self.blocks)))
        out = np.zeros((len(self.ids), self.dimension))
        if asked.any():
            out[asked] = self.problem.client_subgradients(self._stack(x)[asked], self.blocks[asked])
            self.subgradients += int(asked.sum())
            self.rows_read += int(self._own_rows[asked].sum())
        return np.asarray(self._out(out))

    def value(self, x: Array) -> Array:
        self.rows_read += int(self._own_rows.sum())
        return np.asarray(self._out(self.problem.client_values(self._stack(x), self.blocks)))

    def cuts(self, x: Array, parts: int) -> tuple[Array, Array]:
        points = np.ascontiguousarray(x.reshape(-1, self.dimension))
        f, g = self.loops.cuts(points, parts)
        self._full_passes(len(points))
        return self._flat(f), self._flat(g)

    def curvature(self, x: Array, full: bool) -> Array:
        with one_thread():
            found = curvature.curvatures(self.problem, self.blocks, np.array(x), self.n, full)
        self._full_passes(1)
        return self._flat(found)

    def own_quadratic(self, x0: Array, full: bool) -> tuple[Array, Array, Array]:
        with one_thread():
            H, q, sizes, passes = curvature.own_quadratics(self.problem, self.blocks, x0, self.n, full, self._stream())
        self.steps += passes
        self.subgradients += int(passes.sum())
        self.rows_read += int(passes @ self._own_rows)
        return self._flat(H), self._flat(q), self._flat(sizes)

    def terms(self) -> Array:
        p = self.problem
        sums = p.loss.dead_zone * np.add.reduceat(p.row_weights, p.offsets[:-1])[self.blocks]
        sums = np.exp2(np.ceil(np.log2(np.where(sums > 0, sums, 1.0)))) * (sums > 0)  # of one bit, no smaller
        return self._flat(np.column_stack([np.tile([p.l2, p.l1, float(p.penalised), 0.0], (len(sums), 1)), sums]))

    def cut(self) -> tuple[Array, Array]:
        problem, slopes = self.problem, self.cut_slopes
        weights, rows = problem.row_weights, problem.rows.of(self.blocks)
        p = weighted_sums(rows, weights * slopes, self.dimension)
        a = -np.add.reduceat(weights * problem.loss.conjugate(slopes, problem.y), problem.offsets[:-1])
        return self._flat(p), self._flat(a[self.blocks])

    def _full_passes(self, passes: int) -> None:
        """Count so many subgradients of each client over all of its rows."""
        self.subgradients += passes * len(self.ids)
        self.rows_read += passes * int(self._own_rows.sum())

    @cached_property
    def _own_rows(self) -> Integers:
        """How many rows each client has."""
        return self.problem.rows_per_client[self.blocks]

    def _flat(self, x: Array) -> Array:
        """Return x with one row of numbers for each client."""
        return np.asarray(self._out(x.reshape(len(self.ids), -1)))


class OracleLocal(BaseLocal):
    """A user's own functions, by the same loop in NumPy."""

    def __init__(self, problem: "OracleProblem", seed: int, ids: Integers) -> None:
        super().__init__(ids, problem.dimension, problem.n, problem.weights[ids], seed, stacked=True)
        self.problem = problem

    @property
    def rows_in_all(self) -> int:
        return self.n

    def descend(
        self,
        u: Array,
        steps: Array,
        *,
        scale: float | Array = 1.0,
        pull: float = 0.0,
        center: Array | None = None,
        shift: Array | None = None,
        average: Array | None = None,
        radius: float | None = None,
        count: ArrayLike | None = None,
    ) -> tuple[Array, Array]:
        counts = self._counts(count, len(steps))
        starts = self._stack(u)
        centers = self._stack(np.zeros(self.dimension) if center is None else center)
        shifts = self._stack(np.zeros(self.dimension) if shift is None else shift)
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

    def subgradient(self, x: Array, where: ArrayLike = True) -> Array:
        asked = np.broadcast_to(np.ravel(where), len(self.ids))
        points, out = self._stack(x), np.zeros((len(self.ids), self.dimension))
        for i in np.flatnonzero(asked):
            out[i] = self._oracle(self.ids[i])(points[i])
        self.subgradients += int(asked.sum())
        self.rows_read += int(asked.sum())
        self.calls += 1
        return np.asarray(self._out(out))

    def value(self, x: Array) -> Array:
        self.rows_read += len(self.ids)
        values = [self.problem.clients[i][0](row) for i, row in zip(self.ids, self._stack(x), strict=True)]
        return np.asarray(self._out(np.array(values, dtype=float)))

    def cuts(self, x: Array, parts: int) -> tuple[Array, Array]:
        points, rest = x.reshape(-1, self.dimension), parts - 1
        f = [np.pad(np.asarray(self.value(point)).reshape(-1, 1), ((0, 0), (0, rest))) for point in points]
        g = [np.pad(self._stack(self.subgradient(point)), ((0, 0), (0, rest * self.dimension))) for point in points]
        return np.asarray(self._out(np.hstack(f))), np.asarray(self._out(np.hstack(g)))

    def curvature(self, x: Array, full: bool) -> Array:
        d = self.dimension
        return np.asarray(self._out(np.zeros((len(self.ids), d * (d + 1) // 2 if full else d))))

    def own_quadratic(self, x0: Array, full: bool) -> tuple[Array, Array, Array]:
        zeros = np.asarray(self._out(np.zeros((len(self.ids), self.dimension))))
        return self.curvature(x0, full), zeros, zeros

    def terms(self) -> Array:
        return np.asarray(self._out(np.tile([0.0, 0.0, 0.0, -np.inf, 0.0], (len(self.ids), 1))))

    def cut(self) -> tuple[Array, Array]:
        raise ValueError("a problem made of functions has no rows to keep slopes of")

    def _oracle(self, client: int) -> Callable[[Array], Array]:
        """The client's subgradient function with the random numbers of this call, and a check of what it returns."""
        subgradient, rng = self.problem.clients[client][1], self._generator(client, self.calls)

        def checked(u: Array) -> Array:
            g = np.asarray(subgradient(u, rng), dtype=float)
            if g.shape != u.shape:
                raise ValueError(f"the subgradient of client {client} has shape {g.shape}, x has {u.shape}")
            return g

        return checked
