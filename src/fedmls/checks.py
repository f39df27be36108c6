"""Checks of what a user passes in. Each error names the value and says what to do."""

import difflib
import math
import tomllib
from collections.abc import Iterable, Iterator
from numbers import Real
from typing import Any

import numpy as np


def unknown(kind: str, name: object, known: Iterable[str]) -> str:
    """One line for a name that does not exist, with the nearest one that does."""
    options = list(known)
    near = difflib.get_close_matches(str(name), options, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown {kind} {name!r}: {hint}choose from {', '.join(options)}"


def setting(text: str, example: str) -> tuple[str, Any]:
    """``name=value`` of an option --set; the value is what it looks like in TOML, or a word."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not (name and equals and value):
        raise ValueError(f"--set {text!r} sets nothing; write name=value, e.g. {example}")
    try:
        return name, tomllib.loads(f"value = {value.lower() if value in ('True', 'False') else value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value


def real(value: object) -> float | None:
    """The value as a float, if it is a finite number (NumPy's included; truth values are none)."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def positive(name: str, value: object) -> float:
    number = real(value)
    if number is None or number <= 0:
        raise ValueError(f"{name} is {value!r}; it must be a positive number")
    return number


def at_least(name: str, value: object, least: float) -> float:
    number = real(value)
    if number is None or number < least:
        raise ValueError(f"{name} is {value!r}; it must be a number of at least {least:g}")
    return number


def truth(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}; it must be True or False")
    return value


def one_of(name: str, value: object, options: Iterable[str]) -> None:
    if value not in tuple(options):
        raise ValueError(unknown(name, value, options))


def whole(name: str, value: object, least: int = 1, most: int | None = None) -> int:
    number = None if isinstance(value, bool) else getattr(value, "__index__", lambda: None)()
    if number is None or number < least or (most is not None and number > most):
        limit = "" if most is None else f" and at most {most}"
        raise ValueError(f"{name} is {value!r}; it must be a whole number of at least {least}{limit}")
    return int(number)


def check_batch(batch: object) -> float:
    number = real(batch)
    if number is None or not 0 < number <= 1:
        raise ValueError(
            f"batch is {batch!r}; it is the fraction of rows used in a step: take it in (0, 1], 1 for all rows"
        )
    return number


def check_jobs(jobs: object) -> int:
    if not isinstance(jobs, int) or jobs == 0:
        raise ValueError(f"jobs is {jobs!r}; it must be a whole number, -1 for one per core")
    return jobs


def check_share(name: str, value: object) -> float:
    number = real(value)
    if number is None or not 0 < number < 1:
        raise ValueError(f"{name} is {value!r}; it is a share of the rows: take it between 0 and 1, e.g. 0.2")
    return number


def no_missing(name: str, values: Any) -> Any:
    """The values as an array, none of them missing (None, NaN, NaT, pandas.NA)."""
    if np.ma.isMaskedArray(values):
        raise ValueError(f"{name} is a masked array; fill it in first, e.g. with values.filled(...)")
    array = np.asarray(values)
    if array.dtype.kind in "OfcmM":
        flat = array.ravel()
        missing = np.flatnonzero(
            [value is None or bool(_is_missing(value)) for value in flat] if flat.dtype.kind == "O" else flat != flat
        )
        if missing.size:
            raise ValueError(f"{name}[{missing[0]}] is missing ({flat[missing[0]]}); fill it in or drop the row")
    return array


def _is_missing(value: object) -> bool:
    if type(value).__name__ == "NAType":  # pandas.NA does not compare
        return True
    return value != value  # true of NaN and NaT alone


def distinct(name: str, values: Any) -> tuple[Any, Any]:
    """The distinct values, sorted, and the place of each value among them; mixed kinds are compared as text."""
    array = no_missing(name, values)
    try:
        kinds, places = np.unique(array, return_inverse=True)
    except TypeError:
        kinds, places = np.unique(array.astype(str), return_inverse=True)
    return kinds, places.astype(np.int64)


def is_sparse(X: Any) -> bool:
    """Whether X is one of SciPy's sparse arrays or matrices, without loading them: that takes a while."""
    return hasattr(X, "tocsr")


def parts(rows: int, columns: int = 1) -> Iterator[slice]:
    """Cut so many rows into parts of about a million numbers: what is done with one of them takes little memory."""
    size = max(1, (1 << 20) // max(1, columns))
    return (slice(first, first + size) for first in range(0, rows, size))


def check_rows(X: Any) -> Any:
    """X as finite numbers in two dimensions, a NumPy array or a CSR array: X itself where it is one."""
    if is_sparse(X):
        from scipy.sparse import csr_array

        rows: Any = csr_array(X, dtype=float)
        rows.sum_duplicates()
        values = rows.data
    else:
        rows = values = _dense(X)
    if rows.ndim != 2:
        raise ValueError(f"X has shape {rows.shape}; it must have two dimensions, rows and columns")
    if 0 in rows.shape:
        raise ValueError(f"X has shape {rows.shape}; it needs at least one row and one column")
    if not all(np.isfinite(values[part]).all() for part in parts(*values.shape)):
        bad = np.argwhere(~np.isfinite(rows.toarray() if is_sparse(rows) else rows))[0]
        raise ValueError(
            f"X[{bad[0]}, {bad[1]}] is {rows[tuple(bad)]}; drop such rows or fill them in, "
            "e.g. with fedmls.datasets.impute_means(X)"
        )
    return rows


def _dense(X: Any) -> Any:
    if np.ma.isMaskedArray(X):
        raise ValueError("X is a masked array; fill it in first, e.g. with X.filled(numpy.nan) and impute_means")
    array = np.asarray(X)
    if array.dtype.kind not in "biufO":
        raise ValueError(f"X holds {array.dtype}; it must hold real numbers: encode other columns first")
    try:
        return array.astype(float, copy=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"X must hold numbers: {error}; encode text columns first") from None
