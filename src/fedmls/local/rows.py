"""The rows as compiled loops take them, and what is done with one row: products, sums, squares.

A matrix of rows is a dense (m, d) array or a :class:`CSR`. The functions below are for compiled code only, which picks
the dense or the CSR form by the type of the matrix.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from fedmls.losses import LossKind
from fedmls.types import Array

Integers = NDArray[np.int64]

# Sums may be reordered (SIMD) and multiply-adds fused; NaN and infinity keep their meaning,
# because that is how a diverging run is noticed.
FASTMATH = {"reassoc", "contract", "nsz"}


class CSR(NamedTuple):
    """Sparse rows: row j has the numbers data[e] in the columns indices[e], for e from indptr[j] to indptr[j + 1]."""

    data: Array
    indices: NDArray[np.integer]
    indptr: Integers


Matrix = Array | CSR


class Rows(NamedTuple):
    """The rows of some clients: row j is a_j = X[j], with the label b_j and the weight c_j.

    Client i of them has the rows from first[i] up to, but not including, last[i].
    """

    X: Matrix
    labels: Array
    weights: Array
    first: Integers
    last: Integers

    def of(self, clients: Integers) -> "Rows":
        """The rows of these of the clients."""
        return self._replace(first=self.first[clients], last=self.last[clients])


class DualRows(NamedTuple):
    """The rows as the dual sees them: the slope s_j of row j lies in the box from low[j] to high[j] of the loss."""

    X: Matrix
    labels: Array
    weights: Array
    first: Integers
    last: Integers
    low: Array
    high: Array
    loss: LossKind

    def of(self, clients: Integers) -> "DualRows":
        """The rows of these of the clients."""
        return self._replace(first=self.first[clients], last=self.last[clients])


class Penalty(NamedTuple):
    """l2/2 ‖x‖² + l1 ‖x‖_1 over the first ``penalised`` coordinates of x."""

    l2: float
    l1: float
    penalised: int


def choose_layout(
    function: Callable[..., object], dense: Callable[..., object], csr: Callable[..., object], **options: object
) -> None:
    """Let compiled code that calls ``function`` call ``dense`` or ``csr`` instead, by the type of the first argument:
    a matrix, or rows.
    """

    def chosen(first: types.Type, *rest: types.Type) -> Callable[..., object]:
        matrix = first.types[first.fields.index("X")] if "X" in getattr(first, "fields", ()) else first
        return dense if isinstance(matrix, types.Array) else csr

    # strict=False: the three need not have the same annotations.
    overload(function, strict=False, **options)(chosen)


def dot(X: Matrix, row: int, u: Array) -> float:
    """a_row · u."""
    raise TypeError("for compiled code only")


def _dot_dense(X: Array, row: int, u: Array) -> float:
    p = 0.0
    for j in range(u.shape[0]):
        p += X[row, j] * u[j]
    return p


def _dot_csr(X: CSR, row: int, u: Array) -> float:
    data, indices, indptr = X
    p = 0.0
    for e in range(indptr[row], indptr[row + 1]):
        p += data[e] * u[indices[e]]
    return p


choose_layout(dot, _dot_dense, _dot_csr, jit_options={"fastmath": FASTMATH})


def add(X: Matrix, row: int, amount: float, x: Array) -> None:
    """x <- x + amount a_row, in place."""
    raise TypeError("for compiled code only")


def add_dense(X: Array, row: int, amount: float, x: Array) -> None:
    for j in range(x.shape[0]):
        x[j] += amount * X[row, j]


def add_csr(X: CSR, row: int, amount: float, x: Array) -> None:
    data, indices, indptr = X
    for e in range(indptr[row], indptr[row + 1]):
        x[indices[e]] += amount * data[e]


choose_layout(add, add_dense, add_csr, jit_options={"fastmath": FASTMATH})


def pour(X: Matrix, rows: range, x: Array, total: Array) -> None:
    """total <- total + x, then x <- 0, where x is a sum of these rows, in the columns that they have."""
    raise TypeError("for compiled code only")


def _pour_dense(X: Array, rows: range, x: Array, total: Array) -> None:
    total += x
    x[:] = 0.0


def _pour_csr(X: CSR, rows: range, x: Array, total: Array) -> None:
    _, indices, indptr = X
    for row in rows:
        for e in range(indptr[row], indptr[row + 1]):
            total[indices[e]] += x[indices[e]]
            x[indices[e]] = 0.0


choose_layout(pour, _pour_dense, _pour_csr)


def add_scaled(X: Matrix, row: int, amount: float, scale: Array, x: Array) -> None:
    """x <- x + amount a_row * scale, coordinate by coordinate, in place."""
    raise TypeError("for compiled code only")


def _add_scaled_dense(X: Array, row: int, amount: float, scale: Array, x: Array) -> None:
    for j in range(x.shape[0]):
        x[j] += amount * X[row, j] * scale[j]


def _add_scaled_csr(X: CSR, row: int, amount: float, scale: Array, x: Array) -> None:
    data, indices, indptr = X
    for e in range(indptr[row], indptr[row + 1]):
        x[indices[e]] += amount * data[e] * scale[indices[e]]


choose_layout(add_scaled, _add_scaled_dense, _add_scaled_csr, jit_options={"fastmath": FASTMATH})


def add_squares(X: Matrix, row: int, amount: float, x: Array) -> None:
    """x <- x + amount a_row², coordinate by coordinate, in place."""
    raise TypeError("for compiled code only")


def _add_squares_dense(X: Array, row: int, amount: float, x: Array) -> None:
    for j in range(x.shape[0]):
        x[j] += amount * X[row, j] * X[row, j]


def _add_squares_csr(X: CSR, row: int, amount: float, x: Array) -> None:
    data, indices, indptr = X
    for e in range(indptr[row], indptr[row + 1]):
        x[indices[e]] += amount * data[e] * data[e]


choose_layout(add_squares, _add_squares_dense, _add_squares_csr, jit_options={"fastmath": FASTMATH})


def square(X: Matrix, row: int, scale: Array) -> float:
    """Σ_k a_k² scale_k over the coordinates k of a row."""
    raise TypeError("for compiled code only")


def _square_dense(X: Array, row: int, scale: Array) -> float:
    total = 0.0
    for j in range(scale.shape[0]):
        total += X[row, j] * X[row, j] * scale[j]
    return total


def _square_csr(X: CSR, row: int, scale: Array) -> float:
    data, indices, indptr = X
    total = 0.0
    for e in range(indptr[row], indptr[row + 1]):
        total += data[e] * data[e] * scale[indices[e]]
    return total


choose_layout(square, _square_dense, _square_csr, jit_options={"fastmath": FASTMATH})
