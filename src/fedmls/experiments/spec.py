"""An experiment as a TOML file: read, checked, every list of parameters made into its curves.

docs/experiments.md has all keys. A mistake is told with the file, the key and the value. What the rows themselves say
(columns, labels, clients) is checked by :mod:`fedmls.experiments.run`.
"""

import inspect
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from fedmls.checks import at_least, check_batch, one_of, positive, real, setting, truth, unknown, whole
from fedmls.datasets import DATASETS
from fedmls.datasets.files import DECIMALS
from fedmls.datasets.tables import CATEGORICAL
from fedmls.experiments.grid import OPTIONS, TOP, PlannedCurve, check_keys, curves, word
from fedmls.losses import Loss, get_loss
from fedmls.problem import Problem
from fedmls.simulation.config import RunConfig

READ = ("label", "ignore", "missing", "categorical", "positive", "columns", "decimal")  # as in fedmls.datasets.read
DATA = ("name", "file", *READ, "standardise", "holdout")
PARTITION = ("by", "clients", "alpha", "seed")
PARTITIONS = ("kmeans", "iid", "dirichlet")
MISSING = ("refuse", "mean", "drop")
METRICS = ("test_accuracy", "test_error", "test_loss")
MOST_ROUNDS = 10_000  # of a run that ends at its target, unless told otherwise


@dataclass(frozen=True)
class DataSpec:
    """A named data set or a file.  options: of :func:`fedmls.datasets.read`, or the parameters of a maker."""

    name: str | None
    file: Path | None
    options: Mapping[str, Any]
    standardise: bool = False
    holdout: float = 0.0

    @property
    def maker(self) -> Callable[..., Problem] | None:
        """Return what makes the problem, where no rows are read."""
        return None if self.name is None else DATASETS[self.name].maker


@dataclass(frozen=True)
class PartitionSpec:
    """by: one of PARTITIONS, or a column; None where the data say it themselves.  seed: each run's own, if None."""

    by: str | None
    clients: int
    alpha: float
    seed: int | None


@dataclass(frozen=True)
class Spec:
    """All of an experiment; ``values`` is the file with its overrides, as plain values."""

    title: str
    out: Path | None
    data: DataSpec
    partition: PartitionSpec
    problem: Mapping[str, Any]  # loss, intercept, l2, l1, reduction, weights of fedmls.Problem, where given
    curves: tuple[PlannedCurve, ...]
    variants: Mapping[str, str]
    config: RunConfig  # of every run, but for its seed and its metrics
    seeds: tuple[int, ...]
    metrics: tuple[str, ...]
    values: Mapping[str, Any]
    file: str = ""  # to begin what is told of a mistake

    @property
    def loss(self) -> Loss | None:
        """Return the loss; None where the data are made with theirs."""
        return self.problem.get("loss")


def shipped() -> dict[str, str]:
    """Return the text of the experiments that come with the package, by name."""
    found = [file for file in resources.files(__package__).iterdir() if file.name.endswith(".toml")]
    return {file.name.removesuffix(".toml"): file.read_text(encoding="utf-8") for file in sorted(found, key=str)}


def read(file: str | Path, settings: Sequence[str] = ()) -> Spec:
    """Return the experiment of a file, or of that name; settings, "key=value" with dots in keys, win over the file."""
    written = text(file)
    try:
        values = _parsed(written)
        pairs = (setting(one, "--set rounds=50 --set data.file=x.csv") for one in settings)
        given = [(key.split("."), value) for key, value in pairs]
        for key, value in given:
            _override(values, key, value)
        # a path in the file is relative to it, one in a setting to where the command is given
        typed = any(key == ["data", "file"] for key, _ in given)
        return replace(make(values, Path() if typed else Path(file).parent), file=str(file))
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def text(file: str | Path) -> str:
    """Return the text of the file, or of the experiment of that name."""
    path, own = Path(file), shipped()
    if str(file) in own and not path.is_file():
        return own[str(file)]
    if not path.is_file():
        what = "it is a folder" if path.is_dir() else "there is no such file"
        hint = f"fedmls run --example > my.toml writes one to start from, and {' and '.join(own)} need no file"
        raise ValueError(f"{file}: {what}; {hint}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{file}: it is no UTF-8 text; save it as UTF-8") from None


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"no TOML: {error}") from None


def _override(values: dict[str, Any], key: list[str], value: Any) -> None:
    """Put the value in its place; entries of ``algorithms`` go by their number from 0, or by their name (all of it)."""
    first, *rest = key
    if not rest:
        values[first] = value
        return
    tables = [values.setdefault(first, {})]
    if first == "algorithms" and isinstance(tables[0], list):
        which, *rest = rest
        entries = values[first] = [{"name": entry} if isinstance(entry, str) else entry for entry in tables[0]]
        names = [str(entry.get("name")) if isinstance(entry, dict) else "" for entry in entries]
        tables = [entry for i, entry in enumerate(entries) if which in (str(i), names[i])]
        if not rest:
            raise ValueError(f"--set {'.'.join(key)} names no parameter; write e.g. {'.'.join(key)}.lam0")
        if not tables:
            raise ValueError(unknown("entry of algorithms in --set", which, dict.fromkeys(names)))
    for table in tables:
        if not isinstance(table, dict):
            raise ValueError(f"--set {'.'.join(key)}: {first} is {table!r}, which has no keys")
        _override(table, rest, value)


def make(values: Mapping[str, Any], base: Path = Path()) -> Spec:
    """Return the experiment of these plain values; base: the folder that a data file's path is relative to."""
    check_keys(values, TOP)
    for key in ("data", "algorithms"):
        if key not in values:
            raise ValueError(f"there is no {key!r}; fedmls run --example prints a file with all that is needed")
    data = _data(values["data"], base)
    rounds, target = _rounds(values)
    every = whole("every", values.get("every", 1))
    certificate, until = _certificate(values)
    problem = _problem(values, data)
    return Spec(
        title=word("title", values.get("title", "")),
        out=Path(word("out", values["out"])) if "out" in values else None,
        data=data,
        partition=_partition(values.get("partition"), data),
        problem=problem,
        curves=curves(values["algorithms"], base),
        variants=_variants(values.get("variants", {})),
        config=RunConfig(
            rounds,
            batch=check_batch(values.get("batch", 1.0)),
            optimum=_optimum(values.get("optimum", "auto")),
            every=every,
            target=target,
            certificate=certificate,
            until=until,
        ),
        seeds=_seeds(values.get("seeds", 1)),
        metrics=_metrics(values.get("metrics"), data, problem.get("loss")),
        values=dict(values),
    )


def _words(key: str, value: Any) -> tuple[str, ...]:
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not all(isinstance(one, str) for one in listed):
        raise ValueError(f"{key} is {value!r}; it must be a list of texts")
    return tuple(listed)


def _data(table: Any, base: Path) -> DataSpec:
    if not isinstance(table, Mapping) or ("name" in table) == ("file" in table):
        what = "both name and" if isinstance(table, Mapping) and "name" in table else "neither name nor"
        raise ValueError(f"data has {what} file; take name = one of {', '.join(DATASETS)}, or file = a path")
    if "file" in table:
        check_keys(table, DATA, "data")
        file = base / Path(word("data.file", table["file"])).expanduser()
        return DataSpec(None, file, _read_options(table), *_share(table))
    name = word("data.name", table["name"])
    if name not in DATASETS:
        raise ValueError(unknown("data.name", name, DATASETS))
    maker = DATASETS[name].maker
    if maker is None:
        check_keys(table, [key for key in DATA if key not in ("columns", "decimal")], "data")
        return DataSpec(name, None, _read_options(table), *_share(table))
    known = [key for key, about in inspect.signature(maker).parameters.items() if about.kind is not about.VAR_KEYWORD]
    for key in (key for key in table if key in DATA and key != "name" and key not in known):
        raise ValueError(f"data.{key} is for rows that are read, and {name!r} is made; it takes {', '.join(known)}")
    check_keys(table, ["name", *known], "data")
    return DataSpec(name, None, {key: value for key, value in table.items() if key != "name"})


def _read_options(table: Mapping[str, Any]) -> dict[str, Any]:
    options = {key: table[key] for key in READ if key in table}
    if "label" in options:
        word("data.label", options["label"])
    if "ignore" in options:
        options["ignore"] = _words("data.ignore", options["ignore"])
    for key, known in (("missing", MISSING), ("categorical", CATEGORICAL), ("decimal", DECIMALS)):
        if key in options:
            one_of(f"data.{key}", options[key], known)
    if isinstance(options.get("positive"), list | dict):
        raise ValueError(f"data.positive is {options['positive']!r}; name one class")
    if "columns" in options:
        whole("data.columns", options["columns"])
    return options


def _share(table: Mapping[str, Any]) -> tuple[bool, float]:
    return truth("data.standardise", table.get("standardise", False)), check_holdout(table.get("holdout", 0.0))


def check_holdout(value: Any, key: str = "data.holdout") -> float:
    share = real(value)
    if share is None or (share and not 0.01 <= share <= 0.9):
        raise ValueError(
            f"{key} is {value!r}; it is the share of rows kept for testing: 0 for none, or from 0.01 to 0.9"
        )
    return share


def _partition(table: Any, data: DataSpec) -> PartitionSpec:
    if data.maker is not None and table is not None:
        raise ValueError(f"{data.name!r} is made with its clients; leave out [partition], and set data.n")
    table = {} if table is None else table
    check_keys(table, PARTITION, "partition")
    natural = DATASETS[data.name].options.get("clients") if data.name is not None else None
    by = word("partition.by", table["by"]) if "by" in table else natural or "kmeans"
    if by not in PARTITIONS and "clients" in table:
        raise ValueError(
            f"partition.clients is {table['clients']!r}, but each value of the column {by!r} is a client; "
            f"leave it out, or cut by {', '.join(PARTITIONS)}"
        )
    if "alpha" in table and by != "dirichlet":
        raise ValueError(f"partition.alpha is {table['alpha']!r}, but only dirichlet takes it, and by is {by!r}")
    return PartitionSpec(
        by if data.maker is None else None,
        whole("partition.clients", table.get("clients", 10)),
        positive("partition.alpha", table.get("alpha", 0.5)),
        whole("partition.seed", table["seed"], least=0) if "seed" in table else None,
    )


def _problem(values: Mapping[str, Any], data: DataSpec) -> dict[str, Any]:
    """Return the options of the problem that are given; without made data also the loss."""
    options: dict[str, Any] = {}
    fixed = [key for key in _fixed(data) if key in values]
    if fixed:
        raise ValueError(f"{fixed[0]} is {values[fixed[0]]!r}, but {data.name!r} is made with its own; leave it out")
    if data.maker is None:
        options["loss"] = get_loss(values.get("loss", "hinge"), values.get("loss_parameter"))
    if "intercept" in values:
        options["intercept"] = truth("intercept", values["intercept"])
    for key in ("l2", "l1"):
        if key in values:
            options[key] = at_least(key, values[key], 0.0)
    for key, known in (("reduction", ("sum", "mean")), ("weights", ("equal", "rows"))):
        if key in values:
            one_of(key, values[key], known)
            if values[key] != "equal":
                options[key] = values[key]
    return options


def _fixed(data: DataSpec) -> tuple[str, ...]:
    """Return the keys that cannot be chosen for problems that are made."""
    if data.maker is None:
        return ()
    taken = inspect.signature(data.maker).parameters.values()
    free = any(about.kind is about.VAR_KEYWORD for about in taken) and not data.options.get("planted", False)
    return ("loss", "loss_parameter") if free else ("loss", "loss_parameter", *OPTIONS)


def _rounds(values: Mapping[str, Any]) -> tuple[int, float | None]:
    target = positive("target", values["target"]) if "target" in values else None
    if "rounds" not in values and target is None and "until" not in values:
        raise ValueError("there is neither 'rounds' nor 'target'; say when a run ends, e.g. rounds = 200")
    return whole("rounds", values.get("rounds", MOST_ROUNDS)), target


def _certificate(values: Mapping[str, Any]) -> tuple[float | bool | None, float | None]:
    given = values.get("certificate")
    certificate = given if given is None or given is True else positive("certificate", given)
    until = positive("until", values["until"]) if "until" in values else None
    if until is not None and certificate is None:
        raise ValueError(f"until is {until!r}, which takes a proof; add certificate = a radius that x* is within")
    return certificate, until


def _seeds(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        return tuple(range(whole("seeds", value)))
    seeds = tuple(whole("seeds", seed, least=0) for seed in value)
    if not seeds or len({*seeds}) < len(seeds):
        raise ValueError(f"seeds is {value!r}; give how many, or a list of different ones")
    return seeds


def _optimum(value: Any) -> float | str | None:
    if value is False:
        return None
    number = real(value)
    if number is None and value != "auto":
        raise ValueError(f'optimum is {value!r}; take "auto" to solve for it, false to go without, or a number')
    return "auto" if number is None else number


def _metrics(value: Any, data: DataSpec, loss: Loss | None) -> tuple[str, ...]:
    """Return the metrics: with rows kept for testing the one that fits the loss, unless given."""
    if value is None:
        return (("test_accuracy" if loss.is_classification else "test_error"),) if data.holdout and loss else ()
    names = _words("metrics", value)
    for name in names:
        if name not in METRICS:
            raise ValueError(unknown("metric", name, METRICS))
        if not data.holdout:
            where = (
                f"{data.name!r} is made and keeps none" if data.maker is not None else "set data.holdout, e.g. to 0.2"
            )
            raise ValueError(f"metrics has {name!r}, which needs rows kept for testing; {where}")
        if loss is not None and loss.is_classification != (name == "test_accuracy") and name != "test_loss":
            fits = "test_accuracy" if loss.is_classification else "test_error"
            raise ValueError(f"metrics has {name!r}, which does not fit the {loss.name} loss; take {fits!r}")
    return names


def _variants(table: Any) -> dict[str, str]:
    if not isinstance(table, Mapping):
        raise ValueError(f"variants is {table!r}; it must be a table of names with what to call them in figures")
    return {name: word(f"variants.{name}", title) for name, title in table.items()}
