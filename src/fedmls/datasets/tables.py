"""From a table to rows of numbers: text columns, missing values and labels are handled as asked, or refused by name."""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedmls.checks import is_sparse, one_of, parts, truth
from fedmls.datasets.categories import (
    MOST_LEVELS,
    Column,
    features_of,
    indicators,
    level_codes,
    level_texts,
)
from fedmls.datasets.files import (
    DECIMALS,
    UNREADABLE,
    Table,
    Unreadable,
    frame_table,
    kind_of,
    label_text,
    no_category,
    number_of,
    read_table,
    sorted_classes,
    text_columns,
)
from fedmls.datasets.on_disk import npz_on_disk, parquet_on_disk
from fedmls.types import Array

MISSING = ("refuse", "mean", "drop", "keep")
CATEGORICAL = ("refuse", "onehot")
Found = TypeVar("Found")
REST = "the rest"  # the class of all labels but the one to tell from them


class Data(NamedTuple):
    """Rows as :class:`fedmls.Problem` takes them: ``Problem(data.X, data.y, clients=data.clients)``.

    X: dense or CSR.  y: numbers, or -1 and +1 for classes.  clients: the name of each row's client, if a column was
    named.  label: the name of y.  classes: the labels that became -1 and +1; None for numbers.
    notes: what was done, in sentences.  levels: of the columns of text that became 0/1 columns, by name.
    """

    X: Any
    y: Any
    clients: Any
    columns: tuple[str, ...]
    label: str
    classes: tuple[str, str] | None
    notes: tuple[str, ...]
    levels: Mapping[str, tuple[str, ...]] = {}


def read(
    file: Any,
    *,
    label: str | None = None,
    clients: str | None = None,
    ignore: Sequence[str] = (),
    missing: str = "refuse",
    categorical: str = "refuse",
    positive: Any = None,
    columns: int | None = None,
    decimal: str = ".",
    on_disk: bool = False,
) -> Data:
    """Rows from a CSV, Parquet, svmlight or NPZ file (or a data frame, or a pair of arrays X, y).

    label: its column; the last one unless given (in an NPZ file the array "y").  clients: a column whose values are the
    clients.  ignore: columns that are not used.
    missing: "refuse" empty cells, fill in the column's "mean", "drop" such rows, or "keep" them as NaN.
    categorical: "refuse" columns of text, or "onehot": a 0/1 column for each value (for two values one column).
    positive: the class to tell from all others; of two classes the larger becomes +1 unless given.
    columns: how many features an svmlight file has; it does not say itself.
    decimal: what the numbers in a CSV are written with, "." or ",".
    on_disk: for rows larger than memory, from a Parquet file of numbers or an NPZ file: X is mapped into memory
    (``fedmls.datasets.on_disk``), and :class:`fedmls.Problem` leaves it on disk.
    """
    one_of("decimal", decimal, DECIMALS)
    if truth("on_disk", on_disk):
        name, (table, label, ignore) = _asked(file, lambda path: _on_disk(path, label, clients, ignore, missing))
    else:
        name, table = _table(file, columns, decimal)
    return prepared(
        name,
        table,
        label=label,
        clients=clients,
        ignore=ignore,
        missing=missing,
        categorical=categorical,
        positive=positive,
        decimal=decimal,
    )


def prepared(name: str, table: Table, **options: Any) -> Data:
    """The table as rows of numbers; options as in :func:`read`, and name begins what is told of a mistake."""
    try:
        return _prepare(table, **options)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _table(file: Any, columns: int | None, decimal: str) -> tuple[str, Table]:
    """The table, and what to call it."""
    if hasattr(file, "columns"):
        return "the data frame", frame_table(file)
    if isinstance(file, tuple | list) and len(file) == 2:
        X = file[0].tocsr() if is_sparse(file[0]) else np.asarray(file[0], dtype=float)
        return "the arrays", Table(X, [str(j) for j in range(X.shape[1] if X.ndim == 2 else 0)], {"y": file[1]})
    if not isinstance(file, str | Path):
        raise ValueError(f"file is {file!r}; give a path, a data frame, or the arrays (X, y)")
    return _asked(file, lambda path: read_table(path, columns, zero_based="auto", decimal=decimal))


def _asked(file: Any, reader: Callable[[Path], Found]) -> tuple[str, Found]:
    """What the file is called, and what the reader makes of it."""
    path = Path(file)
    kind = kind_of(path)
    if not path.is_file():
        raise ValueError(f"{path} is not there")
    try:
        return str(path), reader(path)
    except Unreadable as error:
        raise ValueError(f"{path}: {error}") from None
    except UNREADABLE as error:
        raise ValueError(f"{path}: it cannot be read as {kind}: {str(error).strip()}") from None


def _on_disk(
    file: Path, label: str | None, clients: str | None, ignore: Sequence[str], missing: str
) -> tuple[Table, str | None, Sequence[str]]:
    """The table with its features on disk; the name of the label; what of ``ignore`` is left to do."""
    if kind_of(file) not in ("NPZ", "Parquet"):
        raise Unreadable("rows on disk are those of an NPZ or Parquet file; leave out on_disk, or write such a file")
    if missing != "refuse":
        raise Unreadable(f'missing is {missing!r}, but rows on disk stay as they are; take missing = "refuse"')
    if kind_of(file) == "NPZ":
        if len(ignore):
            raise Unreadable("ignore names columns, but the rows of an NPZ file stay where they are; leave one out")
        return npz_on_disk(file), label, ignore
    from pyarrow.parquet import read_schema

    empty = frame_table(read_schema(file).empty_table().to_pandas())
    taken = _take_frame(empty, label, clients, ignore)
    text = text_columns(taken.features)
    if text:
        raise Unreadable(f"no numbers are in {some(text, 5)}; rows on disk are numbers: name such columns in ignore")
    others = [taken.label, *([] if clients is None else [clients])]
    return parquet_on_disk(file, taken.names, others), taken.label, ()


class _Taken(NamedTuple):
    """The table cut into its parts. ``label`` is the name of y."""

    features: Any
    names: list[str]
    y: Any
    clients: Any
    label: str


def _prepare(
    table: Table,
    label: str | None = None,
    clients: str | None = None,
    ignore: Sequence[str] = (),
    missing: str = "refuse",
    categorical: str = "refuse",
    positive: Any = None,
    decimal: str = ".",
) -> Data:
    one_of("missing", missing, MISSING)
    one_of("categorical", categorical, CATEGORICAL)
    if isinstance(ignore, str):
        raise ValueError(f"ignore is {ignore!r}; give a list of columns")
    taken = _take_frame(table, label, clients, ignore) if table.is_frame else _take(table, label, clients, ignore)
    X, names, notes = taken.features, taken.names, list[str]()
    levels: dict[str, tuple[str, ...]] = {}
    if X.shape[0] == 0:
        raise ValueError("it holds no rows")
    if table.is_frame:
        X, names, levels, notes = _encoded(taken.features, categorical, decimal)
    if not names:
        raise ValueError(f"there is no column but the label {taken.label!r}; there is nothing to learn from")
    X, y, of_row, more = _without_missing(X, names, taken, missing)
    _check_finite(X, names)
    y, classes = labels(y, positive, taken.label)
    notes += more
    if classes is not None:
        notes.append(mapping(taken.label, classes))
    named = None if of_row is None else label_texts(of_row)
    return Data(X, y, named, tuple(names), taken.label, classes, tuple(notes), levels)


def _take_frame(table: Table, label: str | None, clients: str | None, ignore: Sequence[str]) -> _Taken:
    frame, names = table.features, table.names
    twice = sorted({name for name in names if names.count(name) > 1}) if len({*names}) < len(names) else []
    if twice:
        raise ValueError(f"two columns are called {twice[0]!r}; rename one")
    for asked in (*([] if label is None else [label]), *([] if clients is None else [clients]), *ignore):
        if asked not in names:
            raise ValueError(no_column(asked, names))
    free = [name for name in names if name not in (clients, *ignore)]
    if label is None:
        if len(names) > 1 and all(number_of(name) is not None for name in names):
            raise ValueError(f"its first line holds numbers ({some(names, 5)}); it must name the columns")
        if not free:
            raise ValueError("it has no column left for the label")
        label = free[-1]
    if label not in free:
        raise ValueError(f"{label!r} is the label and is named in {'clients' if label == clients else 'ignore'} too")
    kept = [name for name in free if name != label]
    of_row = None if clients is None else frame[clients].to_numpy()
    y = frame[label]
    numbers = not text_columns(frame[[label]]) and y.dtype.kind != "b" and str(y.dtype) != "boolean"
    return _Taken(
        frame[kept], kept, y.to_numpy(dtype=float, na_value=np.nan) if numbers else y.to_numpy(), of_row, label
    )


def _take(table: Table, label: str | None, clients: str | None, ignore: Sequence[str]) -> _Taken:
    """The parts of arrays: of an NPZ or svmlight file, or given as such."""
    X, names, others = table.features, table.names, table.others
    label = label or "y"
    for asked in ("X", label, *([] if clients is None else [clients])):
        if asked not in others and (asked != "X" or X is None):
            raise ValueError(f"it has no array {asked!r}; it has {some([*(['X'] * (X is not None)), *others])}")
    if X.ndim != 2 or len(names) != X.shape[1]:
        raise ValueError(f"its X has shape {X.shape} and {len(names)} columns have names; X needs rows and columns")
    y, of_row = np.asarray(others[label]), None if clients is None else np.asarray(others[clients])
    for name, array in ((label, y), (clients, of_row)):
        if array is not None and array.shape != (X.shape[0],):
            raise ValueError(f"its {name!r} has shape {array.shape} for {X.shape[0]} rows of X; give one for each")
    for asked in ignore:
        if asked not in names:
            raise ValueError(no_column(asked, names))
    kept = [j for j, name in enumerate(names) if name not in ignore]
    return _Taken(X[:, kept] if ignore else X, [names[j] for j in kept], y, of_row, label)


def _encoded(
    frame: Any, categorical: str, decimal: str
) -> tuple[Array, list[str], dict[str, tuple[str, ...]], list[str]]:
    """The columns as numbers, with NaN where there is none; their names; the levels of categories; what was done."""
    text = text_columns(frame)
    if not text:
        return np.ascontiguousarray(frame.to_numpy(dtype=float, na_value=np.nan)), list(frame.columns), {}, []
    for name in text:
        mistake = no_category(frame[name], decimal)
        if mistake is not None:
            raise ValueError(f"column {name!r} {mistake.why}{mistake.example}; {mistake.remedy}")
    if categorical == "refuse":
        shown = [f"{name!r} ({frame[name].dropna().iloc[0]!r})" for name in text if frame[name].notna().any()]
        raise ValueError(
            f"no numbers are in {some(shown or text, 5)}; "
            'take categorical = "onehot" for a 0/1 column of each value, or name such columns in ignore'
        )
    encoded, levels, notes = [], dict[str, tuple[str, ...]](), []
    for name in frame.columns:
        if name not in text:
            encoded.append(frame[name].to_numpy(dtype=float, na_value=np.nan)[:, None])
            continue
        texts = level_texts(frame[name])
        levels[name] = _levels(name, texts)
        column = Column(name, levels[name])
        told = f"0/1 for {some(column.shown)}" if column.shown else "one value only, left out"
        notes.append(f"column {name!r}: {told}")
        encoded.append(indicators(level_codes(texts, levels[name]), column))
    return np.ascontiguousarray(np.concatenate(encoded, axis=1)), features_of(frame.columns, levels), levels, notes


def _levels(name: str, texts: Sequence[str | None]) -> tuple[str, ...]:
    levels = sorted({text for text in texts if text is not None})
    if len(levels) > MOST_LEVELS:
        raise ValueError(
            f"column {name!r} has {len(levels)} different values, {some([repr(v) for v in levels], 3)}; "
            f"a column for each is too many (more than {MOST_LEVELS}): name it in ignore"
        )
    return tuple(levels)


def _without_missing(X: Any, names: list[str], taken: _Taken, missing: str) -> tuple[Any, Any, Any, list[str]]:
    """X, y and clients without missing values, but those that are to be kept; what was done."""
    import pandas as pd

    y, of_row = taken.y, taken.clients
    lacks_y = np.asarray(pd.isna(y))
    lacks_client = np.zeros(len(y), dtype=bool) if of_row is None else np.asarray(pd.isna(of_row))
    counts, lacks_x = missing_values(X)
    bad = lacks_y | lacks_client | lacks_x
    if not bad.any():
        return X, y, of_row, []
    if missing == "drop":
        _check_rest(bad, counts, names)
        kept = np.flatnonzero(~bad)
        told = [f"{bad.sum()} of {len(bad)} rows have missing values and are left out"]
        return X[kept], y[kept], None if of_row is None else of_row[kept], told
    for what, lacks in ((f"the label {taken.label!r}", lacks_y), ("the client", lacks_client)):
        if lacks.any():
            places = f"in {lacks.sum()} of {len(lacks)} rows, first in row {int(lacks.argmax()) + 1}"
            raise ValueError(f"{what} is missing {places}; " + _mend(X, 'missing = "drop"'))
    if missing == "refuse":
        way = _mend(X, 'missing = "mean" or missing = "drop"')
        raise ValueError(
            f"{counts.sum()} values are missing, in {holes(counts, names)}; {way}, or name such columns in ignore"
        )
    empty = np.flatnonzero(counts == X.shape[0])
    if empty.size:
        raise ValueError(f"column {names[empty[0]]!r} holds no value at all; name it in ignore")
    if missing == "keep":
        return X, y, of_row, []
    return impute_means(X), y, of_row, [f"missing values became their column's mean: {holes(counts, names)}"]


def _mend(X: Any, options: str) -> str:
    """What can be done about missing values."""
    return "fill them in the file, or leave out on_disk" if isinstance(X, np.memmap) else f"take {options}"


def _check_rest(bad: Any, counts: Any, names: list[str]) -> None:
    """Whether any row is left without the bad ones."""
    if bad.all():
        worst = int(counts.argmax())
        more = f"; column {names[worst]!r} lacks {counts[worst]}: name it in ignore" if counts.any() else ""
        raise ValueError(f"each of its {len(bad)} rows has a missing value{more}")


def holes(counts: Any, names: Sequence[str]) -> str:
    """The columns that lack values, and how many."""
    return some(f"{names[j]!r} ({counts[j]})" for j in np.flatnonzero(counts).tolist())


def missing_values(X: Any) -> tuple[Any, Any]:
    """How many values each column lacks, and for each row whether it lacks any."""
    if not is_sparse(X):
        counts, rows = np.zeros(X.shape[1], dtype=np.int64), np.zeros(X.shape[0], dtype=bool)
        for part in parts(*X.shape):
            lacks = np.isnan(X[part])
            counts += lacks.sum(axis=0)
            rows[part] = lacks.any(axis=1)
        return counts, rows
    X = X.tocsr()
    lacks = np.isnan(X.data)
    rows = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
    counts = np.bincount(X.indices[lacks], minlength=X.shape[1])
    return counts, np.bincount(rows[lacks], minlength=X.shape[0]) > 0


def impute_means(X: Any, means: Any = None) -> Any:
    """X with every NaN replaced by its column's mean (over X itself, unless ``means`` are given)."""
    if is_sparse(X):
        filled = X.tocsr().copy()
        lacks = np.isnan(filled.data)
        means = column_means(filled) if means is None else means
        filled.data[lacks] = np.asarray(means)[filled.indices[lacks]]
        return filled
    X = np.array(X, dtype=float)
    return np.asarray(np.where(np.isnan(X), column_means(X) if means is None else means, X))


def column_means(X: Any) -> Array:
    """Return the means of the values that are there; what a sparse X does not store is 0, and counts."""
    empty = np.flatnonzero(missing_values(X)[0] == X.shape[0])
    if empty.size:
        raise ValueError(f"column {empty[0]} holds no number at all; drop it")
    if not is_sparse(X):
        return np.asarray(np.nanmean(X, axis=0))
    there = ~np.isnan(X.data)
    sums = np.bincount(X.indices[there], X.data[there], minlength=X.shape[1])
    return np.asarray(sums / (X.shape[0] - missing_values(X)[0]))


def _check_finite(X: Any, names: list[str]) -> None:
    values = X.data[:, None] if is_sparse(X) else X
    for part in parts(*values.shape):
        infinite = np.isinf(values[part])
        if not infinite.any():
            continue
        j = X.indices[part][infinite.argmax()] if is_sparse(X) else infinite.any(axis=0).argmax()
        raise ValueError(f"column {names[j]!r} holds an infinite value; take it out, or name the column in ignore")


def labels(y: Any, positive: Any = None, name: str = "y", classes: bool = False) -> tuple[Any, tuple[str, str] | None]:
    """The labels as numbers or, for text, truth values or with ``positive``, as -1 and +1 with the two classes' names.

    classes: take numbers for classes too.
    """
    y = np.asarray(y)
    if y.dtype.kind in "iuf" and positive is None and not classes:
        if not np.isfinite(y).all():
            raise ValueError(f"the label {name!r} holds an infinite value")
        return y.astype(float), None
    texts = label_texts(y)
    found = sorted_classes(np.unique(texts).tolist())
    if len(found) == 1:
        raise ValueError(f"the label {name!r} is {found[0]} in every row; there is nothing to tell apart")
    if positive is None:
        if len(found) > 2:
            raise ValueError(
                f"the label {name!r} has {len(found)} classes, {some([repr(one) for one in found], 5)}; "
                f'name the one to tell from the rest, e.g. positive = "{found[0]}"'
            )
        return np.where(texts == found[1], 1.0, -1.0), (found[0], found[1])
    wanted = label_text(positive)
    if wanted not in found:
        raise ValueError(f"positive is {positive!r}, but the label {name!r} has {some([repr(one) for one in found])}")
    others = [one for one in found if one != wanted]
    return np.where(texts == wanted, 1.0, -1.0), (others[0] if len(others) == 1 else REST, wanted)


def label_texts(values: Any) -> Any:
    """Each value as text. Of numbers and texts there may be many rows, and few that differ."""
    if values.dtype.kind in "iufU":
        found, places = np.unique(values, return_inverse=True)
        return np.array([label_text(value) for value in found.tolist()])[places]
    return np.array([label_text(value) for value in values.tolist()])


def mapping(label: str, classes: tuple[str, str]) -> str:
    return f"label {label!r}: {classes[0]} is -1, {classes[1]} is +1"


def no_column(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"there is no column {name!r}; {hint}there are {some(names)}"


def some(names: Iterable[str], most: int = 10) -> str:
    """The first few, and how many there are more."""
    listed = list(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")
