"""The compiled loops on an NVIDIA GPU: the rows stay there, states and messages stay here.

:class:`CudaLoops` is to a GPU what :class:`fedmls.local.loops.ProcessorLoops` is to the processor, so that algorithms
know nothing of it. Its kernels, in ``kernels.cu``, are compiled when they are first called, by CuPy. Mini-batches are
the same as on the processor; sums have another order, so that numbers agree to rounding.

``descend`` has three forms: some lanes of a warp for a client with few coordinates, all steps in one launch; a block
for a client of any kind; and, where a step of a client reads very many rows, the whole GPU for one step at a time.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fedmls.local.descent import Steps
from fedmls.local.random import Stream, first_counters
from fedmls.local.rows import CSR, Integers, Penalty, Rows
from fedmls.losses import LossKind
from fedmls.types import Array

NUMBERS = {"cuda": "double", "cuda-float32": "float"}  # and the number type of the rows there
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
READERS = 4096  # at most, groups of lanes that read the rows of a client


@cache
def cupy() -> Any:
    """Return CuPy, if it and a GPU are there; a ValueError says what is missing."""
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
    """Return a compiled kernel, such as "descend_few<8, 10, 16>", for rows of this number type and this loss."""
    source = (Path(__file__).parent / "kernels.cu").read_text(encoding="utf-8")
    options = ("-std=c++17", f"-DREAL={real}", f"-DPAIR={real}2", f"-DLOSS={loss}")
    return cupy().RawModule(code=source, options=options, name_expressions=[name]).get_function(name)


class Turns(threading.local):
    """Whose turn it is among threads that each play simulations on the GPU.

    A thread that takes part runs only in its turn, and gives it to another while it waits for the GPU. Without that,
    threads wait for Python's lock for much longer than they need it: it changes hands every 5 ms.
    """

    lock = threading.Lock()
    taking_part = False

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Let this thread take part."""
        with self.lock:
            self.taking_part = True
            try:
                yield
            finally:
                self.taking_part = False


TURNS = Turns()


def received(array: Any) -> Any:
    """Return an array of the GPU as one of NumPy, when it has been computed."""
    if not TURNS.taking_part:
        return cupy().asnumpy(array)
    TURNS.lock.release()
    try:
        return cupy().asnumpy(array)
    finally:
        TURNS.lock.acquire()


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
            self.stride = d + d % 2 if d <= FEW else d
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


class CudaLoops:
    """The loops over the rows of some clients, on the GPU."""

    def __init__(self, rows: Rows, penalty: Penalty, device: DeviceRows) -> None:
        cp = cupy()
        self.rows, self.device, self.d, self.n = rows, device, device.d, len(rows.first)
        self.sizes, self.penalty_numbers = rows.last - rows.first, penalty
        self.penalty = struct(
            l2=np.float64(penalty.l2), l1=np.float64(penalty.l1), penalised=np.int32(penalty.penalised)
        )
        self.first, self.count = cp.asarray(rows.first), cp.asarray(self.sizes.astype(np.int32))
        self.stream = cp.cuda.Stream(non_blocking=True)
        self.warps: dict[bytes, Warps] = {}  # by the clients' batch sizes

    def of(self, clients: Integers) -> "CudaLoops":
        return CudaLoops(self.rows.of(clients), self.penalty_numbers, self.device)

    def descend(self, stream: Stream, steps: Steps, u0: Array, slopes: Array) -> tuple[Array, Array]:
        cp = cupy()
        with self.stream:
            kept = cp.asarray(slopes) if len(slopes) else None
            found = self._form(stream, steps, kept)(stream, steps, u0, kept)
            if kept is not None:
                slopes[:] = received(kept)
        return found

    def _form(self, stream: Stream, steps: Steps, slopes: Any) -> Any:
        """Return the form of ``descend`` for these clients."""
        whole = bool((stream.batch_sizes == self.sizes).all())
        numbers = float(self.sizes.mean()) * self.device.numbers_in_a_row
        if whole and slopes is None and np.isinf(steps.radius) and numbers > LARGE:
            return self._descend_large
        if not self.device.sparse and self.d <= FEW and self.sizes.max() <= TABLE:
            return self._descend_few if stream.batch_sizes.max() <= BATCH else self._descend_block
        return self._descend_block

    def _constants(self, steps: Steps) -> tuple[Any, list[Any]]:
        """Return the constants that all clients share, and the arrays that must stay until they were used."""
        cp = cupy()
        constant = steps.sizes.strides[1] == 0  # in each row
        sizes = cp.asarray(np.ascontiguousarray(steps.sizes[:, :1] if constant else steps.sizes))
        average = cp.asarray(steps.average) if len(steps.average) else None
        shared = struct(
            sizes=sizes,
            width=np.int64(sizes.shape[1]),
            longest=np.int64(steps.sizes.shape[1]),
            average=average,
            pull=np.float64(steps.pull),
            radius=np.float64(min(steps.radius, 1e308)),
        )
        return shared, [sizes, average]

    def _descend_few(self, stream: Stream, steps: Steps, u0: Array, slopes: Any) -> tuple[Array, Array]:
        key = stream.batch_sizes.tobytes()
        if key not in self.warps:
            self.warps[key] = Warps(self, stream.batch_sizes)
        return self.warps[key].descend(stream, steps, u0, slopes, self._constants(steps))

    def _descend_block(self, stream: Stream, steps: Steps, u0: Array, slopes: Any) -> tuple[Array, Array]:
        cp, batch = cupy(), stream.batch_sizes
        tables = np.cumsum([0, *np.where(batch < self.sizes, self.sizes, 0)])
        places = np.cumsum([0, *batch])
        last, shared, chains = cp.asarray(u0), self._constants(steps), self._chains(stream, steps)
        averaged = last.copy()
        kept = [cp.asarray(steps.center), cp.asarray(steps.shift), last, averaged, slopes]
        room = [cp.empty(tables[-1] + 1, np.int32), cp.asarray(tables), cp.empty(places[-1]), cp.asarray(places)]
        arguments = (self.device.matrix, np.int32(self.d), self.device.labels, chains[0], self.penalty, shared[0])
        name = f"descend_block<{str(self.device.sparse).lower()}>"
        self.device.kernel(name)((self.n,), (THREADS,), (*arguments, *kept, *room, cp.empty(u0.shape)))
        return received(last), received(averaged)

    def _chains(self, stream: Stream, steps: Steps) -> tuple[Any, list[Any]]:
        """Return the constants of each client, and the arrays that must stay until they were used."""
        cp = cupy()
        whole = [cp.asarray(each.astype(np.int32)) for each in (stream.batch_sizes, steps.counts, steps.own)]
        scale, counter = cp.asarray(steps.scale), cp.asarray(first_counters(stream))
        chains = struct(
            first=self.first,
            rows=self.count,
            batch=whole[0],
            steps=whole[1],
            own=whole[2],
            scale=scale,
            counter=counter,
        )
        return chains, [*whole, scale, counter]

    def _descend_large(self, stream: Stream, steps: Steps, u0: Array, slopes: Any) -> tuple[Array, Array]:
        cp = cupy()
        u, center, shift = cp.asarray(u0), cp.asarray(steps.center), cp.asarray(steps.shift)
        mean, shared, chains = u.copy(), self._constants(steps), self._chains(stream, steps)
        grid, step = (-(-self.d // THREADS), self.n), self.device.kernel("step")
        for t in range(int(steps.counts.max())):
            sums = self._sums(u[:, None], 1)
            arguments = (sums, np.int32(self.d), chains[0], self.penalty, shared[0], np.int32(t), center, shift)
            step(grid, (THREADS,), (*arguments, u, mean))
        return received(u), received(mean)

    def values(self, x: Array) -> Array:
        return np.asarray(self._at(x)[:, 0])

    def subgradients(self, x: Array) -> Array:
        return np.ascontiguousarray(self._at(x)[:, 1:])

    def _at(self, x: Array) -> Array:
        """Return f_i and a subgradient, at row i of x, for each client: (n, 1 + d)."""
        with self.stream:
            points = cupy().asarray(x)[:, None]
            return np.asarray(received(self._sums(points, 1)).reshape(self.n, -1))

    def cuts(self, x: Array, parts: int) -> tuple[Array, Array]:
        with self.stream:
            found = received(self._sums(cupy().asarray(x)[None], parts))
        f, g = found[..., 0], found[..., 1:]
        return np.ascontiguousarray(f), np.ascontiguousarray(g)

    def turn(self) -> AbstractContextManager[None]:
        return TURNS.taken()

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
        if self.d > 1024:
            return cp.stack([self._sums_wide(x[:, r], parts) for r in range(points)], axis=1)
        L = next((L for L in LANES if self.d <= 2 * L), 32)
        C = 1 << max(0, (-(-self.d // L) - 1).bit_length())
        most = max(1, min(8, 16 // C))
        pieces: list[Any] = []
        while sum(piece.shape[1] for piece in pieces) < points:
            at = sum(piece.shape[1] for piece in pieces)
            R = next(R for R in (8, 4, 2, 1) if min(most, points - at) >= R)
            pieces.append(self._sums_few(cp.ascontiguousarray(x[:, at : at + R]), parts, L, C, R))
        return pieces[0] if len(pieces) == 1 else cp.concatenate(pieces, axis=1)

    def _sums_few(self, x: Any, parts: int, L: int, C: int, R: int) -> Any:
        cp, width = cupy(), R * (1 + self.d)
        longest = int(self.sizes.max())
        turns = max(1, min(READERS // parts // self.n, -(-longest // (8 * parts)), 2**26 // (width * parts * self.n)))
        found = cp.empty((self.n, parts, turns, R, 1 + self.d))
        sums = cp.empty((self.n, parts, R, 1 + self.d))
        blocks = -(-parts * turns // (THREADS // L))
        many = np.int64(0 if len(x) == 1 else R * self.d)
        arguments = (self.device.data, np.int64(self.device.stride), np.int32(self.d), self.device.labels)
        each = (self.first, self.count, x, many, np.int32(parts), np.int32(turns), found)
        name = f"cuts_few<{L}, {C}, {R}, {max(1, min(8, 16 // max(C, R)))}>"  # rows at a time, as registers allow
        self.device.kernel(name)((blocks, self.n), (THREADS,), (*arguments, *each), shared_mem=8 * R * C * L)
        add = self.device.kernel("add_up")
        add((-(-width // 32), self.n * parts), (32, 8), (found, np.int32(turns), np.int32(width), sums))
        return sums.transpose(0, 2, 1, 3)

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

    What differs from call to call goes to the GPU in one piece: start, center and shift, s, random counters, numbers of
    steps and rows of step sizes. So comes back where the clients ended.
    """

    def __init__(self, loops: CudaLoops, batch_sizes: Integers) -> None:
        cp = cupy()
        self.loops, self.n, d = loops, loops.n, loops.d
        self.P = max(2, 1 << (d - 1).bit_length())
        lanes = np.array([_lanes(*each) for each in zip(batch_sizes, loops.sizes, strict=True)])
        self.order = np.lexsort((loops.rows.first, -lanes))  # clients with the same rows side by side
        self.parts, self.blocks, self.room = self._parts(lanes[self.order], batch_sizes[self.order])
        self.here = np.zeros(self.n * (3 * self.P + 3))  # of 8 bytes each; numbers of steps and rows share one
        self.there, self.found = cp.empty(self.here.shape), cp.empty((2, self.n, self.P))
        ends = np.cumsum([3 * self.n * self.P, self.n, self.n, self.n])
        vectors, self.scale, counter, whole = np.split(self.here, ends[:-1])
        self.vectors, self.counter = vectors.reshape(3, self.n, self.P)[:, :, :d], counter.view(np.uint64)
        self.steps, self.own = whole.view(np.int32).reshape(2, self.n)
        self.start, ints = (
            tuple(self.there[: ends[0]].reshape(3, self.n, self.P)),
            self.there[ends[2] :].view(np.int32),
        )
        self.kept = [
            cp.asarray(loops.rows.first[self.order]),
            cp.asarray(loops.sizes[self.order].astype(np.int32)),
            cp.asarray(batch_sizes[self.order].astype(np.int32)),
        ]
        self.chains = struct(
            first=self.kept[0],
            rows=self.kept[1],
            batch=self.kept[2],
            steps=ints[: self.n],
            own=ints[self.n :],
            scale=self.there[ends[0] : ends[1]],
            counter=self.there[ends[1] : ends[2]],
        )
        self.kernel = loops.device.kernel(f"descend_few<{d + d % 2}, {self.P}>")

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
            room = max(room, 32 // L * (8 * self.P + 2 * longest[-1] + 4 * AHEAD * slots[-1]) if len(own) else 0)
        return np.array([*block, *chain, *longest, *slots], dtype=np.int32).view("V72"), block[-1], room

    def descend(self, stream: Stream, steps: Steps, u0: Array, slopes: Any, shared: Any) -> tuple[Array, Array]:
        order, device = self.order, self.loops.device
        for place, vectors in enumerate((u0, steps.center, steps.shift)):
            self.vectors[place] = vectors[order]
        self.scale[:], self.counter[:] = steps.scale[order], first_counters(stream)[order]
        self.steps[:], self.own[:] = steps.counts[order], steps.own[order]
        self.there.set(self.here)
        arguments = (device.data, np.int32(device.stride), device.labels, self.chains, self.parts, self.loops.penalty)
        ends = (*self.start, *self.found, slopes)
        self.kernel((self.blocks,), (64,), (*arguments, shared[0], *ends), shared_mem=self.room)
        last, averaged = np.empty(u0.shape), np.empty(u0.shape)
        last[order], averaged[order] = received(self.found)[:, :, : self.loops.d]
        return last, averaged


def _lanes(size: int, m: int) -> int:
    """Return how many lanes work on a client with m rows, so many of them in a mini-batch."""
    return next((L for L in LANES if size <= L and 32 // L * (2 * m + 16 * FEW + 4 * AHEAD * L) <= SHARED), LANES[-1])
