"""Files of rows, as they stand: CSV, Parquet, svmlight (the first and the last also gzipped) and NPZ.

The one reader of the package. What becomes of text, missing values and labels is decided elsewhere: for an experiment
in :mod:`fedmls.datasets.tables`, for a node of a federation in :mod:`fedmls.federation.node.rows`.
"""

import csv
import gzip
import re
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile, is_zipfile

import numpy as np

KINDS = {
    ".csv": "CSV",
    ".parquet": "Parquet",
    ".svm": "svmlight",
    ".svmlight": "svmlight",
    ".libsvm": "svmlight",
    ".npz": "NPZ",
}
ZIPPED = ("CSV", "svmlight")  # kinds that may end in .gz
DECIMALS = (".", ",")  # what numbers in a CSV may be written with
# Words that stand for a missing number in a CSV: all that pandas knows. In a column of text they are text: None may be
# an answer.
GAPS = (
    *("NA", "#NA", "N/A", "n/a", "#N/A", "#N/A N/A", "<NA>", "NaN", "nan", "-NaN", "-nan", "NULL", "null", "None"),
    *("1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
)
TRUTH = {"True": True, "TRUE": True, "true": True, "False": False, "FALSE": False, "false": False}
INFINITE = {f"{sign}{word}": float(f"{sign}inf") for sign in ("", "+", "-") for word in ("inf", "Inf", "Infinity")}
ONE_NPZ_AT_A_TIME = threading.Lock()  # NumPy parses headers, which CPython 3.11 cannot do in two threads at once
UNREADABLE = (ValueError, OSError, KeyError, EOFError, BadZipFile, zlib.error)  # what reading a bad file may raise


class Unreadable(ValueError):
    """Why a file cannot be read, and what to do, without a value of its rows."""


class Table(NamedTuple):
    """What a file holds. features: a data frame of all columns, or a dense or CSR array; None in an NPZ without X.

    names: of the features, in their order.  others: arrays beside them, by name; the label of svmlight is "y".
    """

    features: Any
    names: list[str]
    others: dict[str, Any]

    @property
    def is_frame(self) -> bool:
        return hasattr(self.features, "columns")


def kind_of(file: Path) -> str:
    """CSV, Parquet, svmlight or NPZ, by the end of the name."""
    suffixes = [suffix.lower() for suffix in file.suffixes]
    zipped = suffixes[-1:] == [".gz"]
    kind = KINDS.get("".join(suffixes[-2:-1] if zipped else suffixes[-1:]), "")
    if not kind or (zipped and kind not in ZIPPED):
        raise ValueError(f"{file.name} is of no known kind; take one of {', '.join(KINDS)}")
    return kind


def stem(file: Path) -> str:
    """Return the file's name without the end that tells its kind."""
    return file.name.removesuffix(file.suffix) if file.suffix.lower() != ".gz" else stem(file.with_suffix(""))


def read_table(
    file: Path, columns: int | None = None, zero_based: bool | str = False, decimal: str = DECIMALS[0]
) -> Table:
    """The file as it stands. columns: how many features an svmlight file has; it does not say itself.

    zero_based: whether an svmlight file counts its columns from 0; "auto" looks for a 0.  decimal: as in read_frame.
    """
    kind = kind_of(file)
    if kind == "svmlight":
        return _read_svmlight(file, columns, zero_based)
    return _read_npz(file) if kind == "NPZ" else frame_table(read_frame(file, decimal=decimal))


def frame_table(frame: Any) -> Table:
    """A data frame as a table; the names of its columns become text."""
    frame = frame.set_axis([str(column) for column in frame.columns], axis=1)
    return Table(frame, list(frame.columns), {})


def read_frame(file: Path, as_text: bool = False, text: Sequence[str] = (), decimal: str = DECIMALS[0]) -> Any:
    """A CSV or Parquet file; raises Unreadable where it can be said what is wrong without a value.

    as_text: the cells of a CSV to the letter, as they are written.  text: columns that are text even where they look
    like numbers.  decimal: what its numbers are written with, a point or a comma.
    """
    import pandas as pd

    if kind_of(file) == "Parquet":
        return pd.read_parquet(file)
    _check_names(file)
    options: dict[str, Any] = {"dtype": dict.fromkeys(text, str), "decimal": decimal, "na_values": [""]}
    frame = _read_csv(file, keep_default_na=False, **{"dtype": str} if as_text else options)
    if not isinstance(frame.index, pd.RangeIndex):  # pandas takes what is too much for names of the rows
        raise Unreadable("its rows have more values than its first line has names")
    if len(frame.columns) > 1 and frame.iloc[:, -1].isin(["", np.nan]).any():
        _check_lines(file, len(frame.columns))
    for name in () if as_text else text_columns(frame.drop(columns=[*text], errors="ignore")):
        frame[name] = _without_gaps(frame[name], decimal)
    return frame


def _without_gaps(column: Any, decimal: str) -> Any:
    """Return a column of text in which all but words for gaps are numbers or truth values as one of those; of nothing
    but such words as one of missing numbers; others as they are."""
    gaps = column.isin(GAPS)
    if not gaps.any():
        return column
    left = column.mask(gaps, np.nan)
    values = left.dropna()
    if len(values) and values.isin(TRUTH).all():
        return left.map(TRUTH)
    if any(value not in INFINITE and number_of(value, decimal) is None for value in values):
        return column
    return left.map({value: INFINITE.get(value, number_of(value, decimal)) for value in values.unique()}).astype(float)


def read_columns(file: Path) -> list[str]:
    """Return the names of the columns of a CSV or Parquet file, without reading its rows."""
    if kind_of(file) == "Parquet":
        from pyarrow.parquet import read_schema

        return [str(name) for name in read_schema(file).names]
    _check_names(file)
    return [str(name) for name in _read_csv(file, nrows=0).columns]


def _check_names(file: Path) -> None:
    """Refuse a CSV file whose first line leaves out a name, or has one twice: pandas would make up others."""
    names, seen = next((cells for _, cells in _lines(file) if any(map(str.strip, cells))), []), set[str]()
    for j, name in enumerate(names, start=1):
        if not name.strip():
            remedy = "save the table without its row numbers, or give the column a name (and leave it out with ignore)"
            raise Unreadable(f"its column {j} has no name in the first line; {remedy}")
        if name in seen:
            raise Unreadable(f"two of its columns are called {name!r}; rename one")
        seen.add(name)


def _check_lines(file: Path, columns: int) -> None:
    """Refuse a CSV file with a line that ends too soon: pandas would take what it lacks for gaps."""
    for number, cells in _lines(file):
        if any(map(str.strip, cells)) and len(cells) < columns:
            values = "1 value" if len(cells) == 1 else f"{len(cells)} values"
            raise Unreadable(f"its line {number} has {values}, and its first line names {columns} columns")


def _lines(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each line, with its number."""
    separator = _separator(file)
    try:
        with (gzip.open if file.suffix.lower() == ".gz" else open)(
            file, "rt", encoding="utf-8-sig", newline=""
        ) as text:
            lines = csv.reader(text, delimiter=separator)
            for cells in lines:
                yield lines.line_num, cells
    except UnicodeDecodeError:
        raise Unreadable("it is no UTF-8 text; save it as UTF-8") from None
    except csv.Error:  # what pandas says of it is told
        return


def _read_csv(file: Path, **options: Any) -> Any:
    import pandas as pd

    try:
        return pd.read_csv(file, sep=_separator(file), **options)
    except UnicodeDecodeError:
        raise Unreadable("it is no UTF-8 text; save it as UTF-8") from None
    except pd.errors.EmptyDataError:
        raise Unreadable("it is empty; its first line must name the columns") from None
    except pd.errors.ParserError as error:
        raise _ragged(error) from error


def _ragged(error: ValueError) -> ValueError:
    """Return what pandas says of a line that is too long, or of a quote, as a sentence; other errors as they are."""
    quote = re.search(r"EOF inside string starting at row (\d+)", str(error))
    if quote is not None:
        return Unreadable(f'a quote (") in its line {int(quote[1]) + 1} is not closed')
    found = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error))
    if found is None:
        return error
    expected, line, seen = found.groups()
    return Unreadable(f"its line {line} has {seen} values, and its first line names {expected} columns")


def _separator(file: Path) -> str:
    """Return what is between the names in the first line: the most frequent of comma, semicolon and tab."""
    with gzip.open(file) if file.suffix.lower() == ".gz" else file.open("rb") as stream:
        first = stream.readline()
    return max((",", ";", "\t"), key=lambda mark: first.count(mark.encode()))


def _read_svmlight(file: Path, columns: int | None, zero_based: bool | str) -> Table:
    from scipy.sparse import csr_array
    from sklearn.datasets import load_svmlight_file

    X, y = load_svmlight_file(str(file), n_features=columns, zero_based=zero_based)
    rows = csr_array(X)
    if rows.nnz < 2**31:  # scikit-learn reads no others
        rows.indices, rows.indptr = rows.indices.astype(np.int32), rows.indptr.astype(np.int32)
    return Table(rows, [str(j + 1) for j in range(X.shape[1])], {"y": y})


def _read_npz(file: Path) -> Table:
    if not is_zipfile(file):
        raise Unreadable("it is no NPZ file; numpy.savez(file, X=X, y=y) writes one")
    with ONE_NPZ_AT_A_TIME, np.load(file, allow_pickle=False) as saved:
        arrays = dict(saved)
    if "X" not in arrays:
        return Table(None, [], arrays)
    X = np.asarray(arrays.pop("X"), dtype=float)
    numbers = range(X.shape[1] if X.ndim == 2 else 0)
    return Table(X, [str(name) for name in arrays.pop("columns", numbers)], arrays)


def text_columns(frame: Any) -> list[str]:
    """The columns that hold no numbers."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    def is_text(column: Any) -> bool:
        return column.dtype.kind not in "biuf" and not (is_numeric_dtype(column) or is_bool_dtype(column))

    return [name for name in frame.columns if is_text(frame[name])]


class Mistake(NamedTuple):
    """Why a column of text holds no categories, in words without a value of it; and an example, with a value."""

    why: str
    remedy: str
    example: str = ""


def no_category(column: Any, decimal: str = DECIMALS[0]) -> Mistake | None:
    """Return why a data frame's column of text holds no categories: times, or numbers with something else between."""
    if column.dtype.kind in "mMc":
        what = "complex numbers" if column.dtype.kind == "c" else "times"
        return Mistake(f"holds {what}", "turn them into numbers, or name it in ignore")
    there, [other] = column.dropna().tolist(), [mark for mark in DECIMALS if mark != decimal]
    odd = [value for value in there if number_of(value, decimal) is None]
    marked = [value for value in odd if isinstance(value, str) and number_of(value, other) is not None]
    if len(marked) > len(there) / 2:
        name = {".": "point", ",": "comma"}[other]
        return Mistake(f"holds numbers with a {name}", f'take decimal = "{other}"', f", such as {marked[0]!r}")
    if not odd or len(odd) > len(there) / 2:
        return None
    written = "1234.5" if decimal == "." else "1234,5"
    return Mistake(
        f"holds numbers but for {len(odd)} {'value' if len(odd) == 1 else 'values'}",
        f"leave the cell of a missing value empty, and write numbers like {written}",
        f", such as {odd[0]!r} in row {column.tolist().index(odd[0]) + 1}",
    )


def number_of(value: Any, decimal: str = DECIMALS[0]) -> float | None:
    """The value as a finite number, also if it is written as text; truth values are none, nor are codes like 12_34."""
    if isinstance(value, bool | np.bool_) or (isinstance(value, str) and ("_" in value or not value.isascii())):
        return None
    if isinstance(value, str) and decimal == ",":
        value = value.replace(".", " ").replace(",", ".")  # with a space in it, it is none
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if np.isfinite(number) else None


def label_text(value: Any) -> str:
    """A label as text, the same for 1, 1.0 and "1": files write them in their own ways."""
    number = number_of(value)
    if number is None:
        return str(value)
    return str(int(number)) if number == int(number) else repr(number)


def sorted_classes(classes: list[str]) -> list[str]:
    """The larger one, which becomes +1, last; numbers as numbers, the rest as text."""
    if any(number_of(text) is None for text in classes):
        return sorted(classes)
    return sorted(classes, key=float)
