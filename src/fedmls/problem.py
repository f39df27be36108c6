"""The problem: minimise f(x) = Σ_i w_i f_i(x), where f_i is known to client i alone."""

import hashlib
from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property
from mmap import mmap
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from fedmls.checks import at_least, check_batch, check_rows, distinct, no_missing, one_of, parts, truth, whole
from fedmls.local.client import Among, OracleLocal, RowsLocal
from fedmls.local.cut_rows import row_squares
from fedmls.local.loops import Loops, ProcessorLoops
from fedmls.local.rows import CSR, DualRows, Integers, Matrix, Penalty, Rows
from fedmls.losses import Loss, get_loss
from fedmls.types import DEVICES, Array, Optimum


class Problem:
    """A linear model over rows held by clients.

    f_i(x) = Σ_j c_j ℓ(a_j·x, b_j) + l2/2 ‖x‖² + l1 ‖x‖_1 over the rows j of client i. With ``intercept`` the
    last coordinate of x is the intercept, which the l2 and l1 terms leave alone.

    X: (m, p) array, data frame or scipy sparse matrix; an array that is mapped into memory, as by
    ``numpy.load(file, mmap_mode="r")`` or ``fedmls.datasets.read(file, on_disk=True)``, stays on disk.
    y: m labels; two classes for hinge, squared hinge and logistic (the larger one becomes +1).
    clients: for every row the number 0..n-1 of its client (see :mod:`fedmls.partition`), or its name; None puts
    all rows in one client.
    reduction: c_j is 1 ("sum", as in the paper) or 1/m_i ("mean"), times ``sample_weight``.
    weights: w_i; equal (1/n) unless given, "rows" for m_i/m. They must sum to 1.
    classes: the two labels, the one that becomes -1 first, where y need not hold both; those of y unless given.
    """

    def __init__(
        self,
        X: Any,
        y: Any,
        clients: Any = None,
        loss: str | Loss = "hinge",
        *,
        intercept: bool = True,
        l2: float = 0.0,
        l1: float = 0.0,
        reduction: str = "sum",
        weights: Any = None,
        sample_weight: Any = None,
        classes: Any = None,
    ) -> None:
        self.loss, self.device = get_loss(loss), "cpu"
        self._elsewhere: dict[str, Problem] = {"cpu": self}  # the same problem on other devices
        self.intercept = truth("intercept", intercept)
        self.l2, self.l1 = at_least("l2", l2, 0.0), at_least("l1", l1, 0.0)
        one_of("reduction", reduction, ("sum", "mean"))
        self.reduction = reduction
        rows = check_rows(X)
        m = rows.shape[0]
        labels, self.classes = _check_labels(y, m, self.loss, classes)
        of_row, self.client_names = _check_clients(clients, m)
        self.rows_per_client = np.bincount(of_row, minlength=len(self.client_names))
        self.n = len(self.client_names)
        self.weights = check_weights(weights, self.rows_per_client)
        order = np.argsort(of_row, kind="stable")
        each = _check_sample_weight(sample_weight, m)
        if reduction == "mean":
            each = each / self.rows_per_client[of_row]
        self.y, self.row_weights = labels[order], each[order]
        self.offsets = np.concatenate([[0], np.cumsum(self.rows_per_client)]).astype(np.int64)
        self.X = _layout(rows, order, self.intercept, X if isinstance(X, np.memmap) else None)
        self.penalised: int = rows.shape[1]
        self.dimension: int = rows.shape[1] + self.intercept

    def __repr__(self) -> str:
        kind = "dense" if isinstance(self.X, np.ndarray) else "CSR"
        return (
            f"Problem({self.loss.name}, {len(self.y)} {kind} rows, {self.dimension} coordinates, "
            f"{self.n} clients of {self.rows_per_client.min()} to {self.rows_per_client.max()} rows)"
        )

    def value(self, x: Any) -> float:
        """f(x)."""
        return float(self.weights @ self.client_values(self._point(x)))

    def subgradient(self, x: Any) -> Array:
        """A subgradient of f at x."""
        return np.asarray(self.weights @ self.client_subgradients(np.tile(self._point(x), (self.n, 1))))

    def client_values(self, x: Array, ids: Any = None) -> Array:
        """f_i at x, or at row i of x."""
        x = np.atleast_2d(np.asarray(x, dtype=float))
        return np.asarray(self.loops_over(ids).values(np.ascontiguousarray(x)) + self.terms_at(x))

    def terms_at(self, x: Array) -> Array | float:
        """The l2 and l1 terms at each row of x."""
        if not (self.l2 or self.l1):
            return 0.0
        p = x[:, : self.penalised]
        return np.asarray(self.l2 / 2 * (p * p).sum(axis=1) + self.l1 * abs(p).sum(axis=1))

    def client_subgradients(self, x: Array, ids: Any = None) -> Array:
        """A subgradient of f_i at row i of x."""
        x = np.ascontiguousarray(x, dtype=float)
        return np.asarray(self.loops_over(ids).subgradients(x) + self.term_slopes_at(x))

    def term_slopes_at(self, x: Array) -> Array | float:
        """A subgradient of the l2 and l1 terms at each row of x."""
        if not (self.l2 or self.l1):
            return 0.0
        slopes = self.l2 * x + self.l1 * np.sign(x)
        slopes[:, self.penalised :] = 0.0
        return np.asarray(slopes)

    def cut(self, slopes: Array) -> tuple[float, Array]:
        """A number a and a vector p with Σ_j ω_j ℓ(a_j·x, b_j) >= a + p·x for all x, from one slope per row.

        By Fenchel-Young ℓ(p, b) >= s p - ℓ*(s) for every s in the loss's box; slopes outside are clipped to it.
        """
        s = np.clip(slopes, *self._box)
        a = -float(self.total_row_weights @ self.loss.conjugate(s, self.y))
        weighted = self.total_row_weights * s
        return a, np.asarray(weighted @ self.X if isinstance(self.X, np.ndarray) else weighted @ self.matrix())

    @cached_property
    def total_row_weights(self) -> Array:
        """ω_j = w_i c_j: how much row j counts in f."""
        return np.asarray(np.repeat(self.weights, self.rows_per_client) * self.row_weights)

    @cached_property
    def _box(self) -> tuple[Array, Array]:
        return self.loss.box(self.y)

    @cached_property
    def rows(self) -> Rows:
        """The rows of all clients as the compiled loops take them."""
        return Rows(self.X, self.y, self.row_weights, self.offsets[:-1], self.offsets[1:])

    @property
    def dual_rows(self) -> DualRows:
        """The rows of all clients as the dual sees them."""
        return DualRows(*self.rows, *self._box, self.loss.kind)

    @property
    def penalty(self) -> Penalty:
        """The l2 and l1 terms as the compiled loops take them."""
        return Penalty(self.l2, self.l1, self.penalised)

    @cached_property
    def loops(self) -> Loops:
        """The compiled loops over the rows of all clients."""
        return self.loops_with(self.rows)

    def loops_with(self, rows: Rows, threads: int = 1) -> Loops:
        """The compiled loops for this loss, over these rows."""
        if self.device == "cpu":
            return ProcessorLoops(rows, self.loss.kind, self.penalty, threads)
        from fedmls.local.cuda import NUMBERS, CudaLoops, DeviceRows

        return CudaLoops(rows, self.penalty, DeviceRows(rows, self.loss.kind, self.dimension, NUMBERS[self.device]))

    def on(self, device: str) -> "Problem":
        """This problem with its rows on another device: "cpu", "cuda" (an NVIDIA GPU) or "cuda-float32", where the rows
        are rounded to half of the bytes."""
        one_of("device", device, DEVICES)
        if device not in self._elsewhere:
            other = copy(self)
            other.__dict__.pop("loops", None)
            other.device = device
            self._elsewhere[device] = other
        return self._elsewhere[device]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "loops"}  # they hold memory of a GPU

    def loops_over(self, ids: Any) -> Loops:
        """The compiled loops over the rows of these clients."""
        return self.loops if ids is None or ids is self._everyone else self.loops.of(self._ids(ids))

    def lipschitz(self, radius: float | None = None) -> Array:
        """G_i: no subgradient of f_i is longer (in the ball ‖x‖ <= radius, where one is given).

        Without a radius it is infinite for squared hinge and for an l2 term.
        """
        bound = np.inf if radius is None else at_least("radius", radius, 0.0)
        lengths = np.sqrt(self.row_squares.sum(axis=1))
        slopes = np.full(len(self.y), self.loss.lipschitz())
        if np.isinf(slopes).any():
            slopes = 2 * (1 + lengths * bound)
        G = np.array([self._client_lipschitz(i, lengths, slopes) for i in range(self.n)])
        return np.asarray(G + (self.l2 * bound if self.l2 else 0.0) + self.l1 * np.sqrt(self.penalised))

    @cached_property
    def row_squares(self) -> Array:
        """‖a_j‖² of each row, over the penalised coordinates and over the rest (the intercept)."""
        penalised = np.arange(self.dimension) < self.penalised
        return np.asarray(row_squares(self.X, len(self.y), penalised.astype(float), (~penalised).astype(float)))

    def _client_lipschitz(self, i: int, lengths: Array, slopes: Array) -> float:
        part = slice(self.offsets[i], self.offsets[i + 1])
        scaled = self.row_weights[part] * slopes[part]
        bound = float(scaled @ lengths[part])
        if isinstance(self.X, np.ndarray) and np.isfinite(bound) and min(self.X[part].shape) <= 500:
            bound = min(bound, _spectral_norm(scaled, self.X[part]) * len(scaled) ** 0.5)
        return bound

    def matrix(self) -> Any:
        """The rows as a scipy CSR array, in the order of ``y``, with the column of ones of the intercept."""
        from scipy.sparse import csr_array

        return csr_array(self.X, shape=(len(self.y), self.dimension)) if isinstance(self.X, np.ndarray) else self._csr

    @cached_property
    def _csr(self) -> Any:
        """Sparse rows as a scipy CSR array, which shares their numbers."""
        from scipy.sparse import csr_array

        return csr_array(self.X, shape=(len(self.y), self.dimension))

    def local(self, seed: int = 0, batch: float = 1.0, ids: Sequence[int] | None = None) -> RowsLocal:
        """All clients at once (or those of ``ids``), for a simulation."""
        own = self._ids(ids)
        return RowsLocal(self, seed, check_batch(batch), own, Among(own, self.n, self.weights[own], True))

    def local_of(self, some: slice, seed: int = 0, batch: float = 1.0) -> RowsLocal:
        """These clients at once: as those of ``local``, but what it keeps is of their rows alone."""
        part, among = self._part(some), Among(self._everyone[some], self.n, self.weights[some], True)
        return RowsLocal(part, seed, check_batch(batch), part._everyone, among)

    def local_as(self, client: int, n: int, weight: float, seed: int = 0, batch: float = 1.0) -> RowsLocal:
        """This problem's only client as client number ``client`` of n, for a federation."""
        among = Among(np.array([client]), n, np.array([weight]), False)
        return RowsLocal(self, seed, check_batch(batch), self._ids([0]), among)

    def _part(self, some: slice) -> "Problem":
        """The rows of these clients, which stay where they are, as a problem."""
        first, last = self.offsets[some.start], self.offsets[some.stop]
        part = copy(self)
        for name, value in vars(Problem).items():
            if isinstance(value, cached_property):
                part.__dict__.pop(name, None)
        part.X = _rows_between(self.X, first, last)
        part.y, part.row_weights = self.y[first:last], self.row_weights[first:last]
        part.offsets = self.offsets[some.start : some.stop + 1] - first
        part.rows_per_client, part.weights = self.rows_per_client[some], self.weights[some]
        part.client_names = self.client_names[some]
        part.n = len(part.weights)
        return part

    @cached_property
    def optimum(self) -> Optimum:
        """The certified optimum, solved once; see :func:`fedmls.optimum`."""
        if self.device != "cpu":
            return self.on("cpu").optimum
        from fedmls.optima.solve import optimum

        return optimum(self)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all that the problem is, to recognise a finished run by."""
        digest = hashlib.sha256()
        arrays = (self.X,) if isinstance(self.X, np.ndarray) else self.X
        for array in (*arrays, self.y, self.row_weights, self.offsets, self.weights):
            digest.update(np.ascontiguousarray(array).data)
        digest.update(repr((self.loss, self.intercept, self.l2, self.l1, self.dimension)).encode())
        return digest.hexdigest()[:16]

    def _ids(self, ids: Any) -> Integers:
        return self._everyone if ids is None else np.asarray(ids, dtype=np.int64)

    @cached_property
    def _everyone(self) -> Integers:
        return np.arange(self.n)

    def _point(self, x: Any) -> Array:
        point = np.asarray(x, dtype=float)
        if point.shape != (self.dimension,):
            raise ValueError(f"x has shape {point.shape}; this problem has {self.dimension} coordinates")
        return point


class OracleProblem:
    """Clients given by functions: ``clients[i] = (value, subgradient)``.

    ``value(x)`` is f_i(x); ``subgradient(x, rng)`` a subgradient of f_i, or an unbiased estimate drawn with
    ``rng``, a NumPy generator that depends on seed, round and client alone.
    """

    def __init__(
        self,
        clients: Sequence[tuple[Callable[[Array], float], Callable[[Array, np.random.Generator], Any]]],
        dimension: int,
        weights: Any = None,
    ) -> None:
        self.clients = list(clients)
        if not self.clients:
            raise ValueError("there are no clients; give at least one pair (value, subgradient)")
        for i, pair in enumerate(self.clients):
            if not (isinstance(pair, tuple | list) and len(pair) == 2 and all(callable(part) for part in pair)):
                raise ValueError(f"clients[{i}] is {pair!r}; give a pair of functions value(x) and subgradient(x, rng)")
        self.dimension = whole("dimension", dimension)
        self.n = len(self.clients)
        self.weights = check_weights(weights, np.ones(self.n))

    def value(self, x: Any) -> float:
        point = np.asarray(x, dtype=float)
        return float(sum(w * f(point) for w, (f, _) in zip(self.weights, self.clients, strict=True)))

    def local(self, seed: int = 0, batch: float = 1.0, ids: Sequence[int] | None = None) -> OracleLocal:
        if batch != 1.0:
            raise ValueError(
                f"batch is {batch!r}, but a problem made of functions has no rows: draw the batch in the "
                "subgradient function, with the generator it is given"
            )
        return OracleLocal(self, seed, np.arange(self.n) if ids is None else np.asarray(ids))


def _check_labels(y: Any, m: int, loss: Loss, given: Any = None) -> tuple[Array, Any]:
    labels = no_missing("y", y)
    if labels.shape != (m,):
        raise ValueError(f"y has shape {labels.shape} but X has {m} rows; give one label per row")
    if loss.is_classification and given is not None:
        classes = np.asarray(given)
        if classes.shape != (2,) or not np.isin(labels, classes).all():
            raise ValueError(f"classes is {given!r}; give the two labels that y holds, or one of which it holds")
        return np.where(labels == classes[1], 1.0, -1.0), classes
    if loss.is_classification:
        classes, places = distinct("y", labels)
        if len(classes) != 2:
            shown = ", ".join(str(c) for c in classes[:5]) + (", ..." if len(classes) > 5 else "")
            raise ValueError(
                f"the {loss.name} loss needs labels of two classes; y has {len(classes)} ({shown}): "
                "for more classes train one against the rest"
            )
        return np.where(places == 1, 1.0, -1.0), classes
    try:
        numbers = labels.astype(float) if labels.dtype.kind in "biufO" else None
    except (TypeError, ValueError):
        numbers = None
    if numbers is None:
        raise ValueError(f"the {loss.name} loss needs numbers as labels; y holds {labels.dtype}")
    if not np.isfinite(numbers).all():
        j = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise ValueError(f"y[{j}] is {numbers[j]}; drop rows without a finite label")
    return numbers, None


def _check_clients(clients: Any, m: int) -> tuple[Any, list[Any]]:
    if clients is None:
        return np.zeros(m, dtype=np.int64), [0]
    of_row = no_missing("clients", clients)
    if of_row.shape != (m,):
        raise ValueError(f"clients has shape {of_row.shape} but X has {m} rows; give one client per row")
    if of_row.dtype.kind == "f":
        if (of_row != np.floor(of_row)).any():
            raise ValueError("clients holds fractions; give whole numbers 0..n-1 or names")
        of_row = of_row.astype(np.int64)
    present, places = distinct("clients", of_row)
    if of_row.dtype.kind in "iub":
        if present[0] < 0:
            raise ValueError(f"clients holds {present[0]}; clients are numbered 0, 1, 2, ...")
        if present[-1] >= len(present):
            missing = int(np.flatnonzero(present != np.arange(len(present)))[0])
            raise ValueError(
                f"client {missing} of 0..{present[-1]} has no rows; number clients 0..n-1 without gaps, "
                "e.g. with fedmls.partition.by_column"
            )
    return places, present.tolist()


def check_weights(weights: Any, rows_per_client: Any) -> Array:
    n = len(rows_per_client)
    if weights is None:
        return np.full(n, 1 / n)
    if isinstance(weights, str):
        one_of("weights", weights, ("rows",))
        return np.asarray(rows_per_client / rows_per_client.sum(), dtype=float)
    given = _numbers("weights", weights)
    if given.shape != (n,):
        raise ValueError(f"weights has shape {given.shape} for {n} clients; give one weight per client")
    if not (given > 0).all() or not np.isfinite(given).all():
        raise ValueError(f"weights holds {given.min()}; every weight must be positive")
    if abs(given.sum() - 1) > 1e-9:
        raise ValueError(f"weights sum to {given.sum():g}, not 1; divide them by their sum")
    return given


def _check_sample_weight(sample_weight: Any, m: int) -> Array:
    if sample_weight is None:
        return np.ones(m)
    given = _numbers("sample_weight", sample_weight)
    if given.shape != (m,):
        raise ValueError(f"sample_weight has shape {given.shape} but X has {m} rows; give one per row")
    if not (given >= 0).all() or not np.isfinite(given).all():
        raise ValueError(f"sample_weight holds {given.min()}; weights must be finite and not negative")
    return given


def _numbers(name: str, values: Any) -> Array:
    try:
        return np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {values!r}; it must hold numbers") from None


def _layout(rows: Any, order: Integers, intercept: bool, on_disk: Any) -> Matrix:
    """Rows by client, with the intercept's column of ones; where they are, or in a temporary file, if on disk."""
    if isinstance(rows, np.ndarray):
        columns = rows.shape[1]
        if on_disk is not None and not intercept and (order[:-1] < order[1:]).all() and _is_whole(on_disk):
            if on_disk.flags.writeable:
                return np.asarray(on_disk)
            # Compiled loops for arrays that can only be read would be others; what is written here reaches no file.
            return np.asarray(np.memmap(on_disk.filename, float, "c", on_disk.offset, on_disk.shape))
        X = _room((len(order), columns + intercept), on_disk is not None)
        X[:, columns:] = 1.0
        for part in parts(len(order), columns):
            X[part, :columns] = rows[order[part]]
        return X
    return _layout_csr(rows, order, intercept)


def _layout_csr(rows: Any, order: Integers, intercept: bool) -> CSR:
    from scipy.sparse import csr_array, hstack

    m = len(order)
    indptr = np.concatenate([[0], np.cumsum(np.diff(rows.indptr)[order] + intercept)]).astype(np.int64)
    data, indices = np.empty(indptr[-1]), np.empty(indptr[-1], dtype=np.int64)
    for part in parts(m, max(1, rows.nnz // m)):
        block = rows[order[part]]
        if intercept:
            block = hstack([block, csr_array(np.ones((block.shape[0], 1)))], format="csr")
        place = slice(indptr[part.start], indptr[min(part.stop, m)])
        data[place], indices[place] = block.data, block.indices
    return CSR(data, indices, indptr)


def _rows_between(X: Matrix, first: int, last: int) -> Matrix:
    """Return the rows from first up to, but not including, last, without a copy."""
    if isinstance(X, np.ndarray):
        return X[first:last]
    ends = X.indptr[first : last + 1]
    place = slice(ends[0], ends[-1])
    return CSR(X.data[place], X.indices[place], ends - ends[0])


def _spectral_norm(scales: Array, X: Array) -> float:
    """The spectral norm of diag(scales) X, without a copy of X where it has many rows."""
    if len(X) <= X.shape[1]:
        return float(np.linalg.norm(scales[:, None] * X, 2))
    gram = np.zeros((X.shape[1], X.shape[1]))
    for part in parts(*X.shape):
        block = scales[part, None] * X[part]
        gram += block.T @ block
    return float(np.sqrt(max(0.0, np.linalg.eigvalsh(gram)[-1])))


def _is_whole(X: Any) -> bool:
    """Whether this is all of a file's array, as the compiled loops take it. (In an NPZ file few are aligned.)"""
    return isinstance(X.base, mmap) and X.dtype == float and X.flags.c_contiguous and X.flags.aligned


def _room(shape: tuple[int, int], on_disk: bool) -> Array:
    """Return an array to be filled: in memory, or in a temporary file that goes with it."""
    if not on_disk:
        return np.empty(shape)
    with TemporaryFile() as file:
        return np.asarray(np.memmap(file, dtype=float, shape=shape))
