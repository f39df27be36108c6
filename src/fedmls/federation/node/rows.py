"""A node's own rows: read from its file, summed up for the survey, prepared for the run."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedmls.checks import is_sparse
from fedmls.datasets.categories import (
    MOST_LEVELS,
    Column,
    columns_of,
    indicators,
    level_codes,
    level_texts,
)
from fedmls.datasets.files import (
    UNREADABLE,
    Table,
    Unreadable,
    label_text,
    no_category,
    number_of,
    read_table,
    text_columns,
)
from fedmls.datasets.files import sorted_classes as sorted_classes
from fedmls.federation.errors import Refused
from fedmls.federation.node_config import NodeConfig
from fedmls.types import Array


class SiteRows(NamedTuple):
    """One client's rows, NaN where a value is missing; X is dense or CSR. Labels are as they stand in the file.

    levels: of each column of text; X holds their numbers, from 0 on.  label: the name of the label column.
    marks: which rows a column says are held out, where the configuration names one.
    """

    X: Any
    y: Any
    columns: tuple[str, ...]
    levels: Mapping[str, tuple[str, ...]] = {}
    label: str | None = None
    marks: Any = None


def read_rows(config: NodeConfig) -> SiteRows:
    """Return the rows of a node's file; what is wrong with it is told without a value of it."""
    if not config.data.exists():
        raise Refused(f"its data file {config.data.name} is not there")
    try:
        table = read_table(config.data, config.columns, decimal=config.decimal)
        rows = frame_rows(table, config) if table.is_frame else array_rows(table, config)
        if isinstance(config.holdout, str):
            rows = rows._replace(marks=_marks(table, config.holdout))
    except Refused:
        raise
    except Unreadable as error:
        raise Refused(f"its data file {config.data.name}: {error}") from None
    except UNREADABLE as error:
        raise Refused(f"its data file {config.data.name} cannot be read ({type(error).__name__})") from error
    m = rows.X.shape[0]
    if m < config.min_rows:
        raise Refused(f"it has {m} rows and answers only for at least {config.min_rows} (min_rows)")
    infinite = np.isinf(rows.X.data if is_sparse(rows.X) else rows.X)
    if infinite.any():
        places = rows.X.indices[infinite] if is_sparse(rows.X) else np.flatnonzero(infinite.any(axis=0))
        raise Refused(f"its column {rows.columns[int(places[0])]!r} holds infinite values")
    return rows


def refusal(config: NodeConfig) -> str:
    """Return why the node would refuse to answer from its rows, or nothing."""
    try:
        read_rows(config)
    except Refused as error:
        return str(error)
    return ""


def _unused(config: NodeConfig) -> tuple[str, ...]:
    """Return the columns that are no features, but for the label."""
    return (*config.ignore, config.holdout) if isinstance(config.holdout, str) else config.ignore


def _marks(table: Table, column: str) -> Any:
    """Return which rows a column marks, in which 0 and 1 or truth values must be."""
    if table.is_frame:
        values = table.features[column].to_numpy()
    elif column in table.others:
        values = np.asarray(table.others[column])
    elif column in table.names and not is_sparse(table.features):
        values = table.features[:, table.names.index(column)]
    else:
        raise Refused(f"its data has no column {column!r}, which holdout names")
    if values.dtype.kind not in "biuf" or not np.isin(values, (0, 1)).all():
        raise Refused(f"its column {column!r}, which holdout names, must hold 0 and 1 only: 1 for a row held out")
    return values.astype(bool)


def frame_rows(table: Table, config: NodeConfig) -> SiteRows:
    """Return the rows of a data frame with a label column."""
    label, names = config.label, table.names
    if label is None:
        raise Refused("its configuration names no label column")
    if len({*names}) < len(names):
        raise Refused("two of its columns have one name; rename one")
    if label not in names and all(number_of(name) is not None for name in names):
        raise Refused("the first line of its data file holds numbers; it must name the columns")
    _check_columns((label, *_unused(config)), names)
    if len(table.features) == 0:
        raise Refused("its data file holds no rows")
    features, levels = table.features.drop(columns=[label, *_unused(config)]), dict[str, tuple[str, ...]]()
    for name in text_columns(features):
        mistake = no_category(features[name], config.decimal)
        if mistake is not None:
            raise Refused(f"its column {name!r} {mistake.why}; {mistake.remedy}")
        texts = level_texts(features[name])
        levels[name] = tuple(sorted({text for text in texts if text is not None}))
        features = features.assign(**{name: level_codes(texts, levels[name])})
    X = features.to_numpy(dtype=float, na_value=np.nan)
    return SiteRows(X, table.features[label].to_numpy(), tuple(features.columns), levels, label)


def _check_columns(asked: tuple[str, ...], names: list[str]) -> None:
    for column in asked:
        if column not in names:
            raise Refused(f"its data has no column {column!r}")


def array_rows(table: Table, config: NodeConfig) -> SiteRows:
    """Return the rows of an svmlight file, whose label has no name, or of an NPZ file."""
    X, columns, sparse = table.features, table.names, is_sparse(table.features)
    label = "y" if sparse else config.label or "y"
    if X is None or label not in table.others:
        raise Refused(f"its data file has no array {'X' if X is None else label!r}")
    y = table.others[label]
    if X.ndim != 2 or len(columns) != X.shape[1] or y.shape != (X.shape[0],):
        raise Refused(f"its arrays do not fit: X {X.shape}, {label} {y.shape}, {len(columns)} columns")
    unused = _unused(config)
    if not unused:
        return SiteRows(X, y, tuple(columns), label=None if sparse else label)
    _check_columns(config.ignore, columns)
    keep = [j for j, column in enumerate(columns) if column not in unused]
    return SiteRows(X[:, keep], y, tuple(columns[j] for j in keep), label=label)


def check_numbers(y: Any) -> None:
    """Raise Refused if these are no labels of a regression."""
    import pandas as pd

    labels = np.asarray(y)
    if labels.dtype.kind not in "biuf":
        mistake = no_category(pd.Series(labels))
        told = "column holds no numbers" if mistake is None else f"{mistake.why}; {mistake.remedy}"
        raise Refused(f"its label {told}")
    if not np.isfinite(labels).all():
        raise Refused("its label column has missing or infinite values")


def label_texts(y: Any) -> list[str]:
    """Return labels as text, the same for 1, 1.0 and "1": files of one federation write them in their own ways."""
    labels = np.asarray(y).tolist()
    if any(value is None or value != value for value in labels):
        raise Refused("its label column has missing values")
    return [label_text(value) for value in labels]


def column_sums(rows: SiteRows, least: int) -> tuple[Any, Array, Array]:
    """Return for each column how many values there are, their sum, and their squared distances to their mean.

    Of a column of text both of these are 0: its numbers mean nothing.
    """
    if is_sparse(rows.X):
        return _sparse_sums(rows, least)
    there = ~np.isnan(rows.X)
    counts = there.sum(axis=0).astype(np.int64)
    _enough_values(rows, counts, least)
    values = np.where(there, rows.X, 0.0)
    sums = values.sum(axis=0)
    means = sums / np.maximum(counts, 1)
    squares = (np.where(there, rows.X - means, 0.0) ** 2).sum(axis=0)
    numbers = np.array([column not in rows.levels for column in rows.columns])
    return counts, sums * numbers, squares * numbers


def _sparse_sums(rows: SiteRows, least: int) -> tuple[Any, Array, Array]:
    m, d = rows.X.shape
    missing = np.isnan(rows.X.data)
    counts = (m - np.bincount(rows.X.indices[missing], minlength=d)).astype(np.int64)
    _enough_values(rows, counts, least)
    there, values = rows.X.indices[~missing], rows.X.data[~missing]
    sums = np.bincount(there, values, minlength=d).astype(float)
    means = sums / np.maximum(counts, 1)
    squares = np.bincount(there, (values - means[there]) ** 2, minlength=d)
    zeros = counts - np.bincount(there, minlength=d)
    return counts, sums, squares + zeros * means**2


def _enough_values(rows: SiteRows, counts: Any, least: int) -> None:
    few = np.flatnonzero((counts > 0) & (counts < least))
    if few.size:
        raise Refused(
            f"its column {rows.columns[few[0]]!r} has {counts[few[0]]} values and it tells sums only of at least "
            f"{least} (min_rows)"
        )


def told_levels(rows: SiteRows, least: int) -> dict[str, dict[str, int]]:
    """Return how many rows have each level of each column of text, if at least so many do.

    A column without a value may be one of text elsewhere, and has no levels.
    """
    told: dict[str, dict[str, int]] = {}
    for j, name in enumerate(rows.columns):
        codes = rows.X[:, j]
        if name in rows.levels:
            levels = rows.levels[name]
            counts = np.bincount(codes[~np.isnan(codes)].astype(int), minlength=len(levels)).tolist()
            told[name] = {level: n for level, n in zip(levels, counts, strict=True) if n >= least}
            if len(told[name]) > MOST_LEVELS:
                raise Refused(
                    f"its column {name!r} has more than {MOST_LEVELS} different values, and a 0/1 column for each is "
                    "too many; name it in ignore"
                )
        elif np.isnan(codes).all():
            told[name] = {}
    return told


def encoded(
    rows: SiteRows, columns: Sequence[str], levels: Mapping[str, Sequence[str]] | None, least: int = 1
) -> SiteRows:
    """Return the rows with these columns, in which each level of a category has its own.

    levels: those of each column of categories; another one is 0 in all of its columns.  least: a level that fewer rows
    have counts as none has it.
    """
    if not rows.levels and not levels:
        order = [rows.columns.index(column) for column in columns]
        if is_sparse(rows.X) and order == list(range(rows.X.shape[1])):
            return rows
        return rows._replace(X=rows.X[:, order], columns=tuple(columns))
    blocks = [_block(rows, column, least) for column in columns_of(columns, levels)]
    return SiteRows(np.concatenate(blocks, axis=1), rows.y, tuple(columns), label=rows.label)


def _block(rows: SiteRows, column: Column, least: int) -> Array:
    """Return the features of one column."""
    values = np.asarray(rows.X[:, rows.columns.index(column.name)], dtype=float)
    own = rows.levels.get(column.name)
    if column.levels is None:
        if own is not None:
            raise Refused(f"its column {column.name!r} holds no numbers")
        return values[:, None]
    if own is None:
        if not np.isnan(values).all():
            raise Refused(f"its column {column.name!r} holds numbers, and is told to be one of categories")
        return indicators(values, column)
    places = level_codes(own, column.levels)  # of its own levels among all
    there = ~np.isnan(values)
    codes = np.where(there, places[np.where(there, values, 0.0).astype(int)] if own else np.nan, np.nan)
    block = indicators(codes, column)
    rare = np.nansum(block, axis=0) < least
    return np.where(there[:, None] & rare, 0.0, block)


def prepared(
    rows: SiteRows,
    columns: Sequence[str],
    means: Array,
    scales: Array | None,
    levels: Mapping[str, Sequence[str]] | None = None,
) -> Any:
    """Return the rows with these columns (see :func:`encoded`), missing values filled by the means; with scales,
    (x - mean)/scale.
    """
    X = encoded(rows, columns, levels).X
    if is_sparse(X):
        if scales is not None:
            raise Refused("its rows are sparse, and standardising would fill them in; leave out standardise")
        X = X.tocsr().copy()
        missing = np.isnan(X.data)
        X.data[missing] = means[X.indices[missing]]
        return X
    X = np.where(np.isnan(X), means, X)
    return X if scales is None else (X - means) / scales
