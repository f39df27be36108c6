"""The compiled loops on an NVIDIA GPU: the rows stay there, states and messages stay here.

:class:`CudaLoops` is to a GPU what :class:`fedmls.local.loops.ProcessorLoops` is to the processor, so that algorithms
know nothing of it. Its kernels, in ``kernels.cu``, are compiled when they are first called, by CuPy. Mini-batches are
the same as on the processor; sums have another order, so that numbers agree to rounding.

``descend`` has three forms: some lanes of a warp for a client with few coordinates, all steps in one launch; a block
for a client of any kind; and, where a step of a client reads very many rows, the whole GPU for one step at a time.
"""

import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedmls.local.client import EMPTY
from fedmls.local.descent import Steps
from fedmls.local.random import Stream, first_counters
from fedmls.local.rows import CSR, Integers, Penalty, Rows
from fedmls.local.side_by_side import wait, who
from fedmls.losses import LossKind
from fedmls.schedules import PowerRows
from fedmls.types import Array

NUMBERS = {"cuda": "double", "cuda-float32": "float"}  # and the number type of the rows there
WIDE = 1024  # coordinates: with more, products are left to cuBLAS
TENSOR, MANY = 128, 8  # coordinates, at most, and points with which tensor cores are used
TO_GPU, FROM_GPU = 1, 2  # the runtime's numbers for the ways that memory is copied
FEW = 32  # coordinates that a lane keeps in registers
TABLE = 14_000  # rows of a client, at most, whose places are kept in shared memory
BATCH = 256  # rows of a mini-batch, at most, that lanes of one warp work on
AHEAD = 16  # steps for which mini-batches are drawn ahead: as in kernels.cu
SHARED = 46_000  # bytes of it that a block may have
LARGE = 2**18  # numbers that a step of a client reads: from here on the whole GPU works on one step
LANES = (4, 8, 16, 32)  # that work on a client with few coordinates, a row of its mini-batch each
THREADS = 256  # in a block, but for ``descend_few``
CLIENTS = 60_000  # that one launch may have
PIECE = 2**18  # rows that are sent at a time


@cache
def cupy() -> Any:
    """Return CuPy, if it and a GPU are there; a ValueError says what is missing."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # so many streams do not wait for one another
    try:
        import cupy
    except ImportError:
        raise ValueError("device='cuda' needs CuPy, which is not installed; pip install 'fedmls[gpu]'") from None
    try:
        found = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise ValueError(f"device='cuda' needs an NVIDIA GPU, and none answers ({error}); leave out device=") from None
    if not found:
        raise ValueError("device='cuda' needs an NVIDIA GPU, and there is none here; leave out device=")
    return cupy


@cache
def kernel(name: str, real: str, loss: int) -> Any:
    """Return a compiled kernel, such as "cuts_few<16, 2, 4>", for rows of this number type and this loss."""
    source = (Path(__file__).parent / "kernels.cu").read_text(encoding="utf-8")
    options = ("-std=c++17", f"-DREAL={real}", f"-DPAIR={real}2", f"-DLOSS={loss}")
    return cupy().RawModule(code=source, options=options, name_expressions=[name]).get_function(name)


def arrived() -> None:
    """Wait until arrays that were sent are there: other streams do not."""
    cupy().cuda.get_current_stream().synchronize()


class Parcel:
    """So many numbers here and as many on the GPU, for what goes to and fro in every call."""

    def __init__(self, size: int) -> None:
        import cupyx

        self.here, self.there = cupyx.empty_pinned(size), cupy().empty(size)
        self.event = cupy().cuda.Event(disable_timing=True)
        self.ends = self.here.ctypes.data, self.there.data.ptr

    def send(self, stream: Any, size: int | None = None) -> None:
        """Send the first of the numbers, or all. They may be changed here when the GPU has been waited for."""
        here, there = self.ends
        cupy().cuda.runtime.memcpyAsync(there, here, 8 * (size or len(self.here)), TO_GPU, stream.ptr)

    def fetch(self, stream: Any) -> Any:
        """Have the numbers come from the GPU, when they have been computed; they are here after the event returned."""
        here, there = self.ends
        cupy().cuda.runtime.memcpyAsync(here, there, 8 * len(self.here), FROM_GPU, stream.ptr)
        self.event.record(stream)
        return self.event


def struct(**values: Any) -> Any:
    """Return a struct as kernels take it: arrays of the GPU are pointers, None is the null pointer."""
    plain = [_plain(value) for value in values.values()]
    kind = _layout(tuple(values), tuple(value.dtype.char for value in plain))
    return np.array([tuple(value.item() for value in plain)], dtype=kind).view(f"V{kind.itemsize}")  # a plain type


@cache
def _layout(names: tuple[str, ...], kinds: tuple[str, ...]) -> Any:
    return np.dtype(list(zip(names, kinds, strict=True)), align=True)


def _plain(value: Any) -> Any:
    if value is None or not isinstance(value, np.generic):
        return np.uint64(0 if value is None else value.data.ptr)
    return value


class DeviceRows:
    """The rows on the GPU; all loops over some of the clients share them."""

    def __init__(self, rows: Rows, loss: LossKind, d: int, real: str) -> None:
        cp = cupy()
        self.real, self.d, self.sparse, self.loss = real, d, isinstance(rows.X, CSR), loss
        parts = list(rows.X) if isinstance(rows.X, CSR) else [rows.X]
        try:
            self.stride = d + d % 2 if d <= WIDE else d  # kernels read two numbers at a time
            parts_there: tuple[Any, Any, Any] = self._sparse(rows.X) if self.sparse else self._dense(rows.X)
            self.data, self.indices, self.indptr = parts_there
            self.y, self.c = cp.asarray(rows.labels), cp.asarray(rows.weights)
        except cp.cuda.memory.OutOfMemoryError:
            size, (free, total) = sum(part.nbytes for part in parts), cp.cuda.Device().mem_info
            raise ValueError(
                f"the rows take {size / 2**30:.1f} GiB, and the GPU has {free / 2**30:.1f} of {total / 2**30:.1f} GiB "
                "free; take fewer rows, device='cuda-float32', or leave out device="
            ) from None
        self.labels = struct(y=self.y, c=self.c, parameter=np.float64(loss.parameter))
        self.matrix = struct(data=self.data, stride=np.int64(self.stride), indices=self.indices, indptr=self.indptr)
        self.numbers_in_a_row = self.data.size / len(rows.labels)
        arrived()

    @property
    def kind(self) -> Any:
        return np.float64 if self.real == "double" else np.float32

    def _dense(self, X: Any) -> tuple[Any, None, None]:
        """Send the rows piece by piece, so that there is no second copy of all of them on the way."""
        data = cupy().zeros((len(X), self.stride), dtype=self.kind)
        for at in range(0, len(X), PIECE):
            data[at : at + PIECE, : self.d] = cupy().asarray(X[at : at + PIECE], dtype=self.kind)
        return data, None, None

    def _sparse(self, X: Any) -> tuple[Any, Any, Any]:
        cp = cupy()
        return cp.asarray(X.data, dtype=self.kind), cp.asarray(X.indices, dtype=np.int32), cp.asarray(X.indptr)

    def kernel(self, name: str) -> Any:
        return kernel(name, self.real, self.loss.code)


class CutsKernel(NamedTuple):
    """A kernel that reads rows once: threads in a block, groups of lanes in it, rows that a group has at a time, and
    the bytes of shared memory of a block.
    """

    kernel: Any
    threads: int
    groups: int
    rows: int
    room: int


class CudaLoops:
    """The loops over the rows of some clients, on the GPU."""

    def __init__(self, rows: Rows, penalty: Penalty, device: DeviceRows) -> None:
        cp = cupy()
        self.rows, self.device, self.d, self.n = rows, device, device.d, len(rows.first)
        self.sizes, self.penalty_numbers = rows.last - rows.first, penalty
        self.penalised = bool(penalty.l2 or penalty.l1)
        self.small = not device.sparse and self.d <= FEW and self.sizes.max(initial=0) <= TABLE
        self.penalty = struct(
            l2=np.float64(penalty.l2), l1=np.float64(penalty.l1), penalised=np.int32(penalty.penalised)
        )
        self.first, self.count = cp.asarray(rows.first), cp.asarray(self.sizes.astype(np.int32))
        self.stream = cp.cuda.Stream(non_blocking=True)
        self.warps: dict[tuple[tuple[int, int], bytes], Warps] = {}  # of each thread, by the clients' batch sizes
        self.values_of: dict[tuple[int, int], tuple[Parcel, Parcel]] = {}  # models go there, values come back
        arrived()

    def of(self, clients: Integers) -> "CudaLoops":
        return CudaLoops(self.rows.of(clients), self.penalty_numbers, self.device)

    def descend(self, stream: Stream, steps: Steps, u0: Array, slopes: Array) -> tuple[Array, Array]:
        if self.small and stream.batch_sizes.max() <= BATCH:
            key = who(), stream.batch_sizes.tobytes()
            if key not in self.warps:
                self.warps[key] = Warps(self, stream.batch_sizes)
            return self.warps[key].descend(stream, steps, u0, slopes)
        whole = bool((stream.batch_sizes == self.sizes).all()) and not len(slopes) and np.isinf(steps.radius)
        numbers = float(self.sizes.mean()) * self.device.numbers_in_a_row
        with self.stream:
            if whole and numbers > LARGE:
                return self._descend_large(stream, steps, u0)
            return self._descend_block(stream, steps, u0, slopes)

    def _constants(self, steps: Steps) -> tuple[Any, list[Any]]:
        """Return the constants that all clients share, and the arrays that must stay until they were used."""
        sizes = cupy().asarray(np.ascontiguousarray(steps.sizes))
        average = cupy().asarray(steps.average) if len(steps.average) else None
        shared = struct(
            sizes=sizes,
            width=np.int64(sizes.shape[1]),
            exponent=np.float64(0.0),
            average=average,
            pull=np.float64(steps.pull),
            radius=np.float64(min(steps.radius, 1e308)),
        )
        return shared, [sizes, average]

    def _descend_block(self, stream: Stream, steps: Steps, u0: Array, slopes: Array) -> tuple[Array, Array]:
        cp, batch = cupy(), stream.batch_sizes
        own = cp.asarray(slopes) if len(slopes) else None
        tables = np.cumsum([0, *np.where(batch < self.sizes, self.sizes, 0)])
        places = np.cumsum([0, *batch])
        last, shared, chains = cp.asarray(u0), self._constants(steps), self._chains(stream, steps)
        averaged = last.copy()
        kept = [cp.asarray(steps.center), cp.asarray(steps.shift), last, averaged, own]
        room = [cp.empty(tables[-1] + 1, np.int32), cp.asarray(tables), cp.empty(places[-1]), cp.asarray(places)]
        arguments = (self.device.matrix, np.int32(self.d), self.device.labels, chains[0], self.penalty, shared[0])
        name = f"descend_block<{_word(self.device.sparse)}>"
        self.device.kernel(name)((self.n,), (THREADS,), (*arguments, *kept, *room, cp.empty(u0.shape)))
        if own is not None:
            slopes[:] = cp.asnumpy(own)
        return cp.asnumpy(last), cp.asnumpy(averaged)

    def _chains(self, stream: Stream, steps: Steps) -> tuple[Any, list[Any]]:
        """Return the constants of each client, and the arrays that must stay until they were used."""
        cp = cupy()
        whole = [cp.asarray(each.astype(np.int32)) for each in (stream.batch_sizes, steps.counts, steps.own)]
        scale, counter = cp.asarray(steps.scale), cp.asarray(first_counters(stream))
        chains = struct(
            first=self.first,
            rows=self.count,
            batch=whole[0],
            place=None,
            steps=whole[1],
            own=whole[2],
            factor=None,
            start=None,
            scale=scale,
            counter=counter,
        )
        return chains, [*whole, scale, counter]

    def _descend_large(self, stream: Stream, steps: Steps, u0: Array) -> tuple[Array, Array]:
        cp = cupy()
        u, center, shift = cp.asarray(u0), cp.asarray(steps.center), cp.asarray(steps.shift)
        mean, shared, chains = u.copy(), self._constants(steps), self._chains(stream, steps)
        grid, step = (-(-self.d // THREADS), self.n), self.device.kernel("step")
        for t in range(int(steps.counts.max())):
            sums = self._sums(u[:, None], 1)
            arguments = (sums, np.int32(self.d), chains[0], self.penalty, shared[0], np.int32(t), center, shift)
            step(grid, (THREADS,), (*arguments, u, mean))
        return cp.asnumpy(u), cp.asnumpy(mean)

    def values(self, x: Array) -> Array:
        if not self.small:
            return np.asarray(self._at(x)[:, 0])
        if who() not in self.values_of:
            self.values_of[who()] = Parcel(self.n * self.d), Parcel(self.n)
        points, found = self.values_of[who()]
        points.here.reshape(self.n, self.d)[:] = x
        points.send(self.stream)
        with self.stream:
            rows = (self.device.data, np.int32(self.device.stride), np.int32(self.d), self.device.labels)
            clients = (np.int32(self.n), self.first, self.count, points.there, found.there)
            self.device.kernel("values_few")((-(-self.n * 32 // THREADS),), (THREADS,), (*rows, *clients))
        wait(found.fetch(self.stream))
        return np.array(found.here)

    def subgradients(self, x: Array) -> Array:
        return np.ascontiguousarray(self._at(x)[:, 1:])

    def _at(self, x: Array) -> Array:
        """Return f_i and a subgradient, at row i of x, for each client: (n, 1 + d)."""
        with self.stream:
            points = cupy().asarray(x)[:, None]
            return np.asarray(cupy().asnumpy(self._sums(points, 1)).reshape(self.n, -1))

    def cuts(self, x: Array, parts: int) -> tuple[Array, Array]:
        with self.stream:
            found = cupy().asnumpy(self._sums(cupy().asarray(x)[None], parts))
        f, g = found[..., 0], found[..., 1:]
        return np.ascontiguousarray(f), np.ascontiguousarray(g)

    def _sums(self, x: Any, parts: int) -> Any:
        """Return f and a subgradient, (n, points, parts, 1 + d), of each part of each client's rows.

        x: the points of each client, (n, points, d), or, with one row for all clients, (1, points, d).
        """
        cp, points = cupy(), x.shape[1]
        if self.n * parts > CLIENTS:
            ends = range(0, self.n, CLIENTS // parts)
            some = [np.arange(at, min(at + CLIENTS // parts, self.n)) for at in ends]
            return cp.concatenate([self.of(few)._sums(x if len(x) == 1 else x[few], parts) for few in some])
        if self.device.sparse:
            return cp.stack([self._sums_sparse(x[:, r], parts) for r in range(points)], axis=1)
        if self.d > WIDE:
            return cp.stack([self._sums_wide(x[:, r], parts) for r in range(points)], axis=1)
        tensor = self.d <= TENSOR and int(cp.cuda.Device().compute_capability) >= 80
        at_once = MANY if points > 1 and tensor else 1
        pieces = [self._sums_dense(x[:, at : at + at_once], parts) for at in range(0, points, at_once)]
        return pieces[0] if len(pieces) == 1 else cp.concatenate(pieces, axis=1)

    def _sums_dense(self, x: Any, parts: int) -> Any:
        """At one point, or at up to eight. What a group of lanes finds is added up in a second kernel."""
        cp, R, d = cupy(), x.shape[1], self.d
        cuts = self._cuts_few() if R == 1 else self._cuts_many()
        groups = _resident(cuts.kernel, cuts.threads, cuts.room) * cuts.groups
        turns = max(1, min(-(-groups // (parts * self.n)), -(-int(self.sizes.max()) // (cuts.rows * parts))))
        found, sums = cp.empty((self.n, parts, turns, R, 1 + d)), cp.empty((self.n, parts, R, 1 + d))
        points = cp.zeros((len(x), 1, d) if R == 1 else (len(x), MANY, -(-d // 8) * 8))
        points[:, :R, :d] = x
        rows = (self.device.data, np.int64(self.device.stride), np.int32(d), self.device.labels, self.first, self.count)
        each = (points, np.int64(0 if len(x) == 1 else points[0].size), np.int32(parts), np.int32(turns), found)
        grid = (-(-parts * turns // cuts.groups), self.n)
        cuts.kernel(grid, (cuts.threads,), (*rows, *each, *(() if R == 1 else (np.int32(R),))), shared_mem=cuts.room)
        add, width = self.device.kernel("add_up"), R * (1 + d)
        add((-(-width // 32), self.n * parts), (32, 8), (found, np.int32(turns), np.int32(width), sums))
        return sums.transpose(0, 2, 1, 3)

    def _cuts_few(self) -> "CutsKernel":
        pairs = -(-self.d // 2)
        L = next((L for L in LANES if pairs <= 2 * L), LANES[-1])
        C = -(-pairs // L)
        K = next(K for K in (4, 2, 1) if K == 1 or K * C <= 8)  # as registers allow
        return CutsKernel(self.device.kernel(f"cuts_few<{L}, {C}, {K}>"), THREADS, THREADS // L, K, 16 * C * L)

    def _cuts_many(self) -> "CutsKernel":
        J = -(-self.d // 8)
        U = max(1, 8 // J)
        tile = 8 * U * (16 + (8 * J + 4) * np.dtype(self.device.kind).itemsize)
        most = cupy().cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"] // (4 * tile)
        stages = max(2, min(4 if J <= 8 else 3, most))
        room = 4 * stages * tile
        made = self.device.kernel(f"cuts_many<{J}, {U}, {stages}>")
        made.max_dynamic_shared_size_bytes = room
        return CutsKernel(made, 128, 4, 8 * U, room)

    def _sums_sparse(self, x: Any, parts: int) -> Any:
        cp = cupy()
        sums, points = cp.zeros((self.n, parts, 1 + self.d)), cp.ascontiguousarray(x)
        many = np.int64(0 if len(points) == 1 else self.d)
        blocks = max(1, min(4096 // self.n, -(-int(self.sizes.max()) // (THREADS // 32))))
        arguments = (self.device.matrix, np.int32(self.d), self.device.labels, self.first, self.count)
        each = (points, many, np.int32(parts), sums)
        self.device.kernel("cuts_sparse")((blocks, self.n), (THREADS,), (*arguments, *each))
        return sums

    def _sums_wide(self, x: Any, parts: int) -> Any:
        """Products by cuBLAS, which reads the rows twice."""
        cp, sums = cupy(), cupy().empty((self.n, parts, 1 + self.d))
        for i, (first, m) in enumerate(zip(self.rows.first.tolist(), self.sizes.tolist(), strict=True)):
            rows, point = self.device.data[first : first + m], x[min(i, len(x) - 1)]
            predictions = (rows @ point.astype(rows.dtype)).astype(np.float64)
            values, slopes = cp.empty(m), cp.empty(m)
            arguments = (predictions, np.int64(first), np.int64(m), self.device.labels, values, slopes)
            self.device.kernel("at_predictions")((-(-m // THREADS),), (THREADS,), arguments)
            for part in range(parts):
                own = slopes if parts == 1 else cp.where(cp.arange(m) % parts == part, slopes, 0.0)
                sums[i, part, 0] = values[part::parts].sum()
                sums[i, part, 1:] = own.astype(rows.dtype) @ rows
        return sums


class Warps:
    """The clients of a ``descend_few``, sorted by the lanes that work on each, for mini-batches of certain sizes.

    What differs from call to call goes to the GPU in one piece: start, center and shift, s, what step sizes are made
    of, random counters, numbers of steps and rows of step sizes; in another one averaging weights, and step sizes
    that are not powers. So comes back where the clients ended.
    """

    def __init__(self, loops: CudaLoops, batch_sizes: Integers) -> None:
        cp = cupy()
        self.loops, self.n, self.d = loops, loops.n, loops.d
        self.P = max(2, 1 << (self.d - 1).bit_length())
        lanes = np.array([_lanes(*each) for each in zip(batch_sizes, loops.sizes, strict=True)])
        self.order = np.lexsort((loops.rows.first, -lanes))  # clients with the same rows side by side
        self.parts, self.blocks, self.room = self._parts(lanes[self.order], batch_sizes[self.order])
        n, vectors = self.n, 3 * self.n * self.d
        self.sent, self.found = Parcel(vectors + 5 * n), Parcel(2 * n * self.d)
        self.vectors, (self.scale, self.factor, self.start, counter, whole) = self._named(self.sent.here)
        self.counter, (self.steps, self.own) = counter.view(np.uint64), whole.view(np.int32).reshape(2, n)
        self.tables = Parcel(1024)
        there, (scale, factor, start, counter, whole) = self._named(self.sent.there)
        whole = whole.view(np.int32)
        each: list[Any] = [loops.rows.first, loops.sizes.astype(np.int32), batch_sizes.astype(np.int32)]
        self.kept = [*(cp.asarray(one[self.order]) for one in each), cp.asarray(self.order.astype(np.int32))]
        self.chains = struct(
            first=self.kept[0],
            rows=self.kept[1],
            batch=self.kept[2],
            place=self.kept[3],
            steps=whole[:n],
            own=whole[n:],
            factor=factor,
            start=start,
            scale=scale,
            counter=counter,
        )
        self.ends = (*there, *self.found.there.reshape(2, n, self.d))
        self.name = f"descend_few<{self.d + self.d % 2}, {self.P}, {{}}, {_word(batch_sizes.max() <= LANES[-1])}>"
        self.shared = struct(
            sizes=None,
            width=np.int64(0),
            exponent=np.float64(0.0),
            average=None,
            pull=np.float64(0.0),
            radius=np.float64(0.0),
        )
        arrived()

    def _named(self, numbers: Any) -> tuple[Any, Any]:
        """Return the parts of what is sent: start, center and shift of all clients; five numbers of each."""
        vectors = 3 * self.n * self.d
        return numbers[:vectors].reshape(3, self.n, self.d), numbers[vectors:].reshape(5, self.n)

    def _parts(self, lanes: Integers, batch: Integers) -> tuple[Any, int, int]:
        """Return the parts as the kernel takes them, the blocks of all, and the shared memory of a block."""
        sizes = self.loops.sizes[self.order]
        block, chain, longest, slots, room = [0], [0], [], [], 0
        for L in reversed(LANES):
            own = np.flatnonzero(lanes == L)
            drawn = own[batch[own] < sizes[own]]
            rows = int(sizes[drawn].max()) if len(drawn) else 0
            longest.append(rows + -rows % 8)  # a table begins at a multiple of sixteen bytes
            slots.append(-(-int(batch[own].max()) // L) * L if len(drawn) else 0)
            block.append(block[-1] + -(-len(own) * L // 32))
            chain.append(chain[-1] + len(own))
            each = 8 * self.P + 16 * AHEAD + 2 * longest[-1] + 4 * AHEAD * slots[-1]
            room = max(room, 32 // L * each if len(own) else 0)
        return np.array([*block, *chain, *longest, *slots], dtype=np.int32).view("V72"), block[-1], room

    def descend(self, stream: Stream, steps: Steps, u0: Array, slopes: Array) -> tuple[Array, Array]:
        device, loops = self.loops.device, self.loops
        self.vectors[0], self.vectors[1], self.vectors[2] = u0, steps.center, steps.shift
        self.scale[:], self.counter[:] = steps.scale, first_counters(stream)
        self.steps[:], self.own[:] = steps.counts, steps.own
        plain = not len(slopes) and np.isinf(steps.radius) and not loops.penalised
        kernel = device.kernel(self.name.format(_word(plain)))
        shared = self._shared(steps)
        self.sent.send(loops.stream)
        with loops.stream:
            own = cupy().asarray(slopes) if len(slopes) else None
            rows = (device.data, np.int32(device.stride), np.int32(self.d), device.labels)
            arguments = (*rows, self.chains, self.parts, loops.penalty, shared, *self.ends, own)
            kernel((self.blocks,), (64,), arguments, shared_mem=self.room)
            if own is not None:
                slopes[:] = cupy().asnumpy(own)
        wait(self.found.fetch(loops.stream))
        last, averaged = self.found.here.reshape(2, *u0.shape).copy()
        return last, averaged

    def _shared(self, steps: Steps) -> Any:
        """Return the constants that all clients share, when the step sizes are there or on their way."""
        sizes, shared = steps.sizes, self.shared.base  # which has names for its parts
        powers = isinstance(sizes, PowerRows)
        if isinstance(sizes, PowerRows):
            self.factor[:], self.start[:] = sizes.scale[steps.own], sizes.first[steps.own]
            shared["exponent"] = sizes.exponent
            rows = EMPTY
        else:
            rows = sizes[:, :1] if sizes.strides[1] == 0 else sizes
            shared["width"] = rows.shape[1]
        at = len(steps.average)
        if at + rows.size > len(self.tables.here):
            self.tables = Parcel(2 * (at + rows.size))
        if at + rows.size:
            self.tables.here[:at], self.tables.here[at : at + rows.size] = steps.average, rows.ravel()
            self.tables.send(self.loops.stream, at + rows.size)
        pointer = self.tables.there.data.ptr
        shared["average"], shared["sizes"] = pointer if at else 0, 0 if powers else pointer + 8 * at
        shared["pull"], shared["radius"] = steps.pull, min(steps.radius, 1e308)
        return self.shared


@cache
def _resident(function: Any, threads: int, room: int) -> int:
    """Return how many blocks of a kernel, each with so many bytes of shared memory, the GPU has at a time."""
    driver, device = cupy().cuda.driver, cupy().cuda.Device()
    blocks = driver.occupancyMaxActiveBlocksPerMultiprocessor(function.kernel.ptr, threads, room)
    return int(blocks * device.attributes["MultiProcessorCount"])


def _word(truth: Any) -> str:
    """Return the truth as C++ writes it."""
    return str(bool(truth)).lower()


def _lanes(size: int, m: int) -> int:
    """Return how many lanes work on a client with m rows, so many of them in a mini-batch."""
    return next(
        (L for L in LANES if size <= L and 32 // L * (2 * m + 16 * FEW + 16 * AHEAD + 4 * AHEAD * L) <= SHARED),
        LANES[-1],
    )
