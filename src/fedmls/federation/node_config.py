"""The configuration of a node, which stays with it: a TOML or JSON file.

    name = "clinic-a"
    data = "clinic-a.csv"       # CSV, Parquet, svmlight (.svm, .svmlight, .libsvm, also .gz) or NPZ (arrays X and y)
    label = "diagnosis"         # its label column; in an NPZ file the name of its array
    state = "state"             # the folder that the node keeps its runs in

Paths are relative to the configuration file.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

from fedmls.checks import check_share, one_of, positive, truth, unknown, whole
from fedmls.datasets.files import DECIMALS, kind_of
from fedmls.federation.job import read_config
from fedmls.federation.secure_sums import from_text
from fedmls.hyperparameters import hyperparameters


@hyperparameters
class NodeConfig:
    """ignore: columns that are not used.  columns: how many features an svmlight file has; it does not say itself.
    decimal: what the numbers in a CSV are written with, "." or ",".

    report_objective: whether f_i may be told.  min_rows: column sums and the like are told only of at least so many
    rows (and values in a column): those of one row would be the row. So are the levels of a column of text.
    holdout: rows that never train, whatever the job says: a share of the rows, a column that marks them with 1 and the
    others with 0, or a file of rows beside the data.  report_scores: whether the scores of a model on the held-out rows
    may be told by themselves; if not, they are told in secure sums only.
    max_epsilon: take part only in runs with privacy, as long as ε of all runs begun here, for the δ of this
    configuration, is at most this.
    key: the file of its own key for secure sums; made in the state folder unless given.  peers: take part only in
    secure runs, and with nodes of these public keys (:mod:`fedmls.federation.secure_sums`).
    algorithms: "module:Class" of algorithms from outside of the package that the node runs when a job names them.
    Importing a module runs it, so no others are imported, but for the entry points that are installed here.
    """

    name: str
    data: Path
    state: Path
    label: str | None = None
    ignore: tuple[str, ...] = ()
    columns: int | None = None
    decimal: str = DECIMALS[0]
    report_objective: bool = True
    min_rows: int = 5
    max_epsilon: float | None = None
    delta: float = 1e-5
    key: Path | None = None
    peers: tuple[str, ...] | None = None
    algorithms: tuple[str, ...] = ()
    holdout: float | str | Path | None = None
    report_scores: bool = True

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
        one_of("decimal", self.decimal, DECIMALS)
        truth("report_objective", self.report_objective)
        truth("report_scores", self.report_scores)
        if _names_file(self.holdout):
            object.__setattr__(self, "holdout", Path(self.holdout))  # type: ignore[arg-type]
        elif self.holdout is not None and (not isinstance(self.holdout, str) or not self.holdout):
            check_share("holdout", self.holdout)
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
        """Read a TOML or JSON file."""
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
            if _names_file(values.get("holdout")):
                values["holdout"] = file.parent / values["holdout"]
            return cls(**values)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None


def _names_file(holdout: Any) -> bool:
    """Return whether this is a file of rows, by the end of its name, and no column."""
    with suppress(ValueError):
        return isinstance(holdout, str | Path) and bool(kind_of(Path(holdout)))
    return isinstance(holdout, Path)
