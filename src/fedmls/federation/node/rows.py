"""A node's own rows: read from its file, summed up for the survey, prepared for the run."""

from typing import Any, NamedTuple

import numpy as np

from fedmls.checks import is_sparse
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
    """One client's rows, NaN where a value is missing; X is dense or CSR. Labels are as they stand in the file."""

    X: Any
    y: Any
    columns: tuple[str, ...]


def read_rows(config: NodeConfig) -> SiteRows:
    """Return the rows of a node's file; what is wrong with it is told without a value of it."""
    if not config.data.exists():
        raise Refused(f"its data file {config.data.name} is not there")
    try:
        table = read_table(config.data, config.columns, decimal=config.decimal)
        rows = frame_rows(table, config) if table.is_frame else array_rows(table, config)
    except Refused:
        raise
    except Unreadable as error:
        raise Refused(f"its data file {config.data.name}: {error}") from None
    except UNREADABLE as error:
        raise Refused(f"its data file {config.data.name} cannot be read ({type(error).__name__})") from error
    m = rows.X.shape[0]
    if m < config.min_rows:
        raise Refused(f"it has {m} rows and answers only for at least {config.min_rows} (min_rows)")
    values = rows.X.data if is_sparse(rows.X) else rows.X
    if np.isinf(values).any():
        raise Refused("its rows hold infinite values")
    return rows


def refusal(config: NodeConfig) -> str:
    """Return why the node would refuse to answer from its rows, or nothing."""
    try:
        read_rows(config)
    except Refused as error:
        return str(error)
    return ""


def frame_rows(table: Table, config: NodeConfig) -> SiteRows:
    """Return the rows of a data frame with a label column."""
    label, names = config.label, table.names
    if label is None:
        raise Refused("its configuration names no label column")
    if len({*names}) < len(names):
        raise Refused("two of its columns have one name; rename one")
    if label not in names and all(number_of(name) is not None for name in names):
        raise Refused("the first line of its data file holds numbers; it must name the columns")
    _check_columns((label, *config.ignore), names)
    if len(table.features) == 0:
        raise Refused("its data file holds no rows")
    features = table.features.drop(columns=[label, *config.ignore])
    _check_text(features, config.decimal)
    X = features.to_numpy(dtype=float, na_value=np.nan)
    return SiteRows(X, table.features[label].to_numpy(), tuple(features.columns))


def _check_columns(asked: tuple[str, ...], names: list[str]) -> None:
    for column in asked:
        if column not in names:
            raise Refused(f"its data has no column {column!r}")


def _check_text(features: Any, decimal: str) -> None:
    """Raise Refused if a column holds text; its cells are counted, not shown."""
    text = text_columns(features)
    for name in text:
        mistake = no_category(features[name], decimal)
        if mistake is not None:
            raise Refused(f"its column {name!r} {mistake.why}; {mistake.remedy}")
    if text:
        raise Refused(
            f'its column {text[0]!r} holds no numbers; set categorical = "onehot" in the job, or name the column in '
            "ignore"
        )


def array_rows(table: Table, config: NodeConfig) -> SiteRows:
    """Return the rows of an svmlight file, whose label has no name, or of an NPZ file."""
    X, columns, sparse = table.features, table.names, is_sparse(table.features)
    label = "y" if sparse else config.label or "y"
    if X is None or label not in table.others:
        raise Refused(f"its data file has no array {'X' if X is None else label!r}")
    y = table.others[label]
    if X.ndim != 2 or len(columns) != X.shape[1] or y.shape != (X.shape[0],):
        raise Refused(f"its arrays do not fit: X {X.shape}, {label} {y.shape}, {len(columns)} columns")
    if not config.ignore:
        return SiteRows(X, y, tuple(columns))
    _check_columns(config.ignore, columns)
    keep = [j for j, column in enumerate(columns) if column not in config.ignore]
    return SiteRows(X[:, keep], y, tuple(columns[j] for j in keep))


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
