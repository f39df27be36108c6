"""A node's own rows: read from its file, summed up for the survey, prepared for the run."""

from typing import Any, NamedTuple

import numpy as np

from fedmls.checks import is_sparse
from fedmls.datasets.files import UNREADABLE, Table, label_text, read_table, text_columns
from fedmls.datasets.files import sorted_classes as sorted_classes
from fedmls.federation.errors import Refused
from fedmls.federation.node_config import NodeConfig
from fedmls.types import Array


class SiteRows(NamedTuple):
    """One client's rows, NaN where a value is missing; X is dense or CSR. Labels are as they stand in the file.

    marks: which rows a column says are held out, where the configuration names one.
    """

    X: Any
    y: Any
    columns: tuple[str, ...]
    marks: Any = None


def read_rows(config: NodeConfig) -> SiteRows:
    """Return the rows of a node's file; what is wrong with it is told without a value of it."""
    if not config.data.exists():
        raise Refused(f"its data file {config.data.name} is not there")
    try:
        table = read_table(config.data, config.columns)
        rows = frame_rows(table, config.label, _unused(config)) if table.is_frame else array_rows(table, config)
        if isinstance(config.holdout, str):
            rows = rows._replace(marks=_marks(table, config.holdout))
    except Refused:
        raise
    except UNREADABLE as error:
        raise Refused(f"its data file {config.data.name} cannot be read ({type(error).__name__})") from error
    m = rows.X.shape[0]
    if m < config.min_rows:
        raise Refused(f"it has {m} rows and answers only for at least {config.min_rows} (min_rows)")
    values = rows.X.data if is_sparse(rows.X) else rows.X
    if np.isinf(values).any():
        raise Refused("its rows hold infinite values")
    return rows


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


def frame_rows(table: Table, label: str | None, ignore: tuple[str, ...] = ()) -> SiteRows:
    """Return the rows of a data frame with a label column."""
    if label is None:
        raise Refused("its configuration names no label column")
    for column in (label, *ignore):
        if column not in table.names:
            raise Refused(f"its data has no column {column!r}")
    features = table.features.drop(columns=[label, *ignore])
    text = text_columns(features)
    if text:
        raise Refused(f"its column {text[0]!r} holds no numbers; encode it, or name it in ignore")
    X = features.to_numpy(dtype=float, na_value=np.nan)
    return SiteRows(X, table.features[label].to_numpy(), tuple(features.columns))


def array_rows(table: Table, config: NodeConfig) -> SiteRows:
    """Return the rows of an svmlight file, whose label has no name, or of an NPZ file."""
    X, columns, sparse = table.features, table.names, is_sparse(table.features)
    label = "y" if sparse else config.label or "y"
    if X is None or label not in table.others:
        raise Refused(f"its data file has no array {'X' if X is None else label!r}")
    y = table.others[label]
    if sparse:
        return SiteRows(X, y, tuple(columns))
    if X.ndim != 2 or len(columns) != X.shape[1] or y.shape != (X.shape[0],):
        raise Refused(f"its arrays do not fit: X {X.shape}, {label} {y.shape}, {len(columns)} columns")
    keep = [j for j, column in enumerate(columns) if column not in _unused(config)]
    return SiteRows(X[:, keep], y, tuple(columns[j] for j in keep))


def check_numbers(y: Any) -> None:
    """Raise Refused if these are no labels of a regression."""
    labels = np.asarray(y)
    if labels.dtype.kind not in "biuf":
        raise Refused("its label column holds no numbers")
    if not np.isfinite(labels).all():
        raise Refused("its label column has missing or infinite values")


def label_texts(y: Any) -> list[str]:
    """Return labels as text, the same for 1, 1.0 and "1": files of one federation write them in their own ways."""
    labels = np.asarray(y).tolist()
    if any(value is None or value != value for value in labels):
        raise Refused("its label column has missing values")
    return [label_text(value) for value in labels]


def column_sums(rows: SiteRows, least: int) -> tuple[Any, Array, Array]:
    """Return for each column how many values there are, their sum, and their squared distances to their mean."""
    if is_sparse(rows.X):
        return _sparse_sums(rows, least)
    there = ~np.isnan(rows.X)
    counts = there.sum(axis=0).astype(np.int64)
    _enough_values(rows, counts, least)
    values = np.where(there, rows.X, 0.0)
    sums = values.sum(axis=0)
    means = sums / np.maximum(counts, 1)
    squares = (np.where(there, rows.X - means, 0.0) ** 2).sum(axis=0)
    return counts, sums, squares


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


def prepared(rows: SiteRows, columns: list[str], means: Array, scales: Array | None) -> Any:
    """Return the rows' columns in this order, missing values filled by the means; with scales, (x - mean)/scale."""
    order = [rows.columns.index(column) for column in columns]
    if is_sparse(rows.X):
        if scales is not None:
            raise Refused("its rows are sparse, and standardising would fill them in; leave out standardise")
        X = rows.X[:, order].tocsr() if order != list(range(len(order))) else rows.X.copy()
        missing = np.isnan(X.data)
        X.data[missing] = means[X.indices[missing]]
        return X
    X = rows.X[:, order]
    X = np.where(np.isnan(X), means, X)
    return X if scales is None else (X - means) / scales
