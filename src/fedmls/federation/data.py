"""A client's own data: one file of rows, named in a node's configuration.

    name = "clinic-a"
    data = "clinic-a.csv"       # CSV, Parquet, svmlight (.svm, .svmlight, .libsvm, also .gz) or NPZ (arrays X and y)
    label = "diagnosis"         # its label column; in an NPZ file the name of its array
    state = "state"             # the folder that the node keeps its runs in

Paths are relative to the configuration file.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedmls.checks import is_sparse, positive, truth, unknown, whole
from fedmls.datasets.files import UNREADABLE, Table, kind_of, label_text, read_table, text_columns
from fedmls.datasets.files import sorted_classes as sorted_classes
from fedmls.federation.job import read_config
from fedmls.federation.secure import from_text
from fedmls.hyperparameters import hyperparameters
from fedmls.types import Array


class Refused(ValueError):
    """Why a node does not answer, in words that may leave it: they hold no value from a row."""


@hyperparameters
class NodeConfig:
    """ignore: columns that are not used.  columns: how many features an svmlight file has; it does not say itself.

    report_objective: whether f_i may be told.  min_rows: column sums and the like are told only of at least so many
    rows (and values in a column): those of one row would be the row.
    max_epsilon: take part only in runs with privacy, as long as ε of all runs begun here, for the δ of this
    configuration, is at most this.
    key: the file of its own key for secure sums; made in the state folder unless given.  peers: take part only in
    secure runs, and with nodes of these public keys (:mod:`fedmls.federation.secure`).
    algorithms: "module:Class" of algorithms from outside of the package that the node runs when a job names them.
    Importing a module runs it, so no others are imported, but for the entry points that are installed here.
    """

    name: str
    data: Path
    state: Path
    label: str | None = None
    ignore: tuple[str, ...] = ()
    columns: int | None = None
    report_objective: bool = True
    min_rows: int = 5
    max_epsilon: float | None = None
    delta: float = 1e-5
    key: Path | None = None
    peers: tuple[str, ...] | None = None
    algorithms: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"name is {self.name!r}; give the node a name")
        for key in ("data", "state") if self.key is None else ("data", "state", "key"):
            if not isinstance(getattr(self, key), str | Path):
                raise ValueError(f"{key} is {getattr(self, key)!r}; give a path")
            object.__setattr__(self, key, Path(getattr(self, key)))
        kind_of(self.data)
        if self.label is not None and not isinstance(self.label, str):
            raise ValueError(f"label is {self.label!r}; give the name of a column")
        if not isinstance(self.ignore, list | tuple) or not all(isinstance(column, str) for column in self.ignore):
            raise ValueError(f"ignore is {self.ignore!r}; give a list of columns")
        object.__setattr__(self, "ignore", tuple(self.ignore))
        if self.peers is not None:
            if not isinstance(self.peers, list | tuple) or not all(isinstance(one, str) for one in self.peers):
                raise ValueError(f"peers is {self.peers!r}; give a list of public keys")
            for key in self.peers:
                from_text(key)
            object.__setattr__(self, "peers", tuple(self.peers))
        if not isinstance(self.algorithms, list | tuple) or not all(isinstance(one, str) for one in self.algorithms):
            raise ValueError(f'algorithms is {self.algorithms!r}; give a list such as ["my_module:MyAlgorithm"]')
        object.__setattr__(self, "algorithms", tuple(self.algorithms))
        if self.columns is not None:
            whole("columns", self.columns)
        truth("report_objective", self.report_objective)
        whole("min_rows", self.min_rows)
        if self.max_epsilon is not None:
            positive("max_epsilon", self.max_epsilon)
        if not positive("delta", self.delta) < 1:
            raise ValueError(f"delta is {self.delta!r}; take it between 0 and 1, e.g. 1e-5")

    @property
    def key_file(self) -> Path:
        return self.state / "secure.key" if self.key is None else self.key

    @classmethod
    def read(cls, file: str | Path) -> "NodeConfig":
        """From a TOML or JSON file."""
        file = Path(file)
        known = list(cls.__dataclass_fields__)
        try:
            values = read_config(file)
            for key in values:
                if key not in known:
                    raise ValueError(unknown("key of a node", key, known))
            for key in ("name", "data", "state"):
                if key not in values:
                    raise ValueError(f"the node has no {key!r}")
            for key in ("data", "state", "key"):
                if isinstance(values.get(key), str):
                    values[key] = file.parent / values[key]
            return cls(**values)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None


class Rows(NamedTuple):
    """One client's rows, NaN where a value is missing; X is dense or CSR. Labels are as they stand in the file."""

    X: Any
    y: Any
    columns: tuple[str, ...]


def read_rows(config: NodeConfig) -> Rows:
    """The rows of a node's file; whatever is wrong with it is told without a value of it."""
    if not config.data.exists():
        raise Refused(f"its data file {config.data.name} is not there")
    try:
        table = read_table(config.data, config.columns)
        rows = frame_rows(table, config.label, config.ignore) if table.is_frame else array_rows(table, config)
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


def frame_rows(table: Table, label: str | None, ignore: tuple[str, ...] = ()) -> Rows:
    """The rows of a data frame with a label column."""
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
    return Rows(X, table.features[label].to_numpy(), tuple(features.columns))


def array_rows(table: Table, config: NodeConfig) -> Rows:
    """The rows of an svmlight file, whose label has no name, or of an NPZ file."""
    X, columns, sparse = table.features, table.names, is_sparse(table.features)
    label = "y" if sparse else config.label or "y"
    if X is None or label not in table.others:
        raise Refused(f"its data file has no array {'X' if X is None else label!r}")
    y = table.others[label]
    if sparse:
        return Rows(X, y, tuple(columns))
    if X.ndim != 2 or len(columns) != X.shape[1] or y.shape != (X.shape[0],):
        raise Refused(f"its arrays do not fit: X {X.shape}, {label} {y.shape}, {len(columns)} columns")
    keep = [j for j, column in enumerate(columns) if column not in config.ignore]
    return Rows(X[:, keep], y, tuple(columns[j] for j in keep))


def check_numbers(y: Any) -> None:
    """Labels of a regression."""
    labels = np.asarray(y)
    if labels.dtype.kind not in "biuf":
        raise Refused("its label column holds no numbers")
    if not np.isfinite(labels).all():
        raise Refused("its label column has missing or infinite values")


def label_texts(y: Any) -> list[str]:
    """Labels as text, the same for 1, 1.0 and "1": files of one federation write them in their own ways."""
    labels = np.asarray(y).tolist()
    if any(value is None or value != value for value in labels):
        raise Refused("its label column has missing values")
    return [label_text(value) for value in labels]


def column_sums(rows: Rows, least: int) -> tuple[Any, Array, Array]:
    """Per column how many values there are, their sum, and the sum of their squared distances to their mean."""
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


def _sparse_sums(rows: Rows, least: int) -> tuple[Any, Array, Array]:
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


def _enough_values(rows: Rows, counts: Any, least: int) -> None:
    few = np.flatnonzero((counts > 0) & (counts < least))
    if few.size:
        raise Refused(
            f"its column {rows.columns[few[0]]!r} has {counts[few[0]]} values and it tells sums only of at least "
            f"{least} (min_rows)"
        )


def prepared(rows: Rows, columns: list[str], means: Array, scales: Array | None) -> Any:
    """The rows' columns in this order, missing values filled by the means; with scales, (x - mean)/scale."""
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
