"""Runs an experiment: from its file (:mod:`fedmls.experiments.spec`) to a problem for each seed, to the runs, to a
results folder (:mod:`fedmls.results`) with its figures.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedmls import partition
from fedmls.checks import is_sparse, unknown
from fedmls.datasets import DATASETS, Data, impute_means, load, read
from fedmls.datasets.tables import column_means, holes, labels, mapping, missing_values
from fedmls.experiments import figures
from fedmls.experiments.best_model import Preparation, chosen, described
from fedmls.experiments.spec import PARTITIONS, Spec
from fedmls.losses import Loss
from fedmls.problem import Problem
from fedmls.results.layout import RUNS, Labels
from fedmls.results.live import LiveFolder
from fedmls.results.model import write_model
from fedmls.results.read import Results
from fedmls.results.summary import TARGETS
from fedmls.results.write import partition_table, write_results
from fedmls.simulation.sweeps import run_all
from fedmls.types import Array, Run

MANY_ROWS = 20_000  # from which on it is worth saying that solving for f* takes a while


@dataclass(frozen=True)
class Metric:
    """How a model does on rows that were kept for testing.

    test_accuracy: the share on the right side.  test_loss: the mean loss.  test_error: the mean absolute error, or for
    quantiles (pinball) the mean loss.
    """

    name: str
    X: Any
    y: Array
    loss: Loss
    intercept: bool

    def __call__(self, x: Array) -> float:
        p = self.X.shape[1]
        predictions = self.X @ x[:p] + (x[p] if self.intercept else 0.0)
        if self.name == "test_accuracy":
            return float(np.mean(np.where(predictions > 0, 1.0, -1.0) == self.y))
        if self.name == "test_loss" or self.loss.name == "pinball":
            return float(np.mean(self.loss.value(predictions, self.y)))
        return float(np.mean(np.abs(predictions - self.y)))


class Split(NamedTuple):
    """A seed's problem, and what is measured beside it."""

    problem: Problem
    metrics: dict[str, Metric]
    prepared: Preparation = Preparation()


class Experiment:
    """An experiment with its rows, and the problem of each seed, made once. Bad data show here, before any run."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self._splits: dict[tuple[int | None, int | None], Split] = {}
        try:
            self.data = None if spec.data.maker is not None else _load(spec)
            self.first = self.split(spec.seeds[0]).problem
        except ValueError as error:
            raise ValueError(f"{spec.file}: {error}" if spec.file else str(error)) from None

    def split(self, seed: int) -> Split:
        """Return the rows for training, in clients, and for testing. Seeds that have the same share one object."""
        spec, fixed = self.spec, self.spec.partition.seed
        key: tuple[int | None, int | None]
        if spec.data.maker is not None:
            random = "seed" in signature(spec.data.maker).parameters and "seed" not in spec.data.options
            key = (seed if random else None, None)
        else:
            cut = (seed if fixed is None else fixed) if spec.partition.by in PARTITIONS else None
            key = (seed if spec.data.holdout else None, cut)
        if key not in self._splits:
            self._splits[key] = Split(_made(spec, key[0]), {}) if self.data is None else _split(spec, self.data, *key)
        return self._splits[key]

    def run(
        self,
        out: Path,
        *,
        command: str = "",
        jobs: int = -1,
        dask: str | None = None,
        progress: bool | None = None,
        device: str = "cpu",
        followers: Sequence[AbstractContextManager[Any]] = (),
    ) -> Results:
        """Run what is not there yet, write the results folder, draw the figures.

        dask: the address of a scheduler.  followers: are entered while the folder tells of the runs as they go.
        """
        spec = self.spec
        curves = {curve[:3]: curve.algorithm for curve in spec.curves}
        with ExitStack() as stack:
            live = stack.enter_context(LiveFolder(out, curves, spec.seeds, self.setup(command, {})))
            backend = stack.enter_context(_backend(dask))
            for one in followers:
                stack.enter_context(one)
            runs = run_all(
                [curve.algorithm for curve in spec.curves],
                lambda seed: self.split(seed).problem,
                spec.config,
                spec.seeds,
                metrics=lambda seed: self.split(seed).metrics,
                jobs=jobs,
                backend=backend,
                store=out / RUNS,
                progress=progress,
                device=device,
                follower=live,
            )
            return self._write(out, runs, command)

    def _write(self, out: Path, runs: list[Run], command: str) -> Results:
        """Write the results folder and draw its figures."""
        names = [curve[:3] for curve in self.spec.curves for _ in self.spec.seeds]
        optimum = {str(run.seed): run.optimum for run in runs}
        try:
            done = write_results(out, runs, names, self.setup(command, optimum), targets(self.spec))
            self._write_model(out, runs, names, done)
            figures.draw(out, done)
        except KeyboardInterrupt:
            kept = f"all runs are kept in {out / RUNS}: run again for the tables and figures"
            raise KeyboardInterrupt(f"stopped; {kept}") from None
        return done

    def _write_model(self, out: Path, runs: Sequence[Run], names: Sequence[Labels], done: Results) -> None:
        """Write the model of the best run, if there is one."""
        place = chosen(runs, names, done.summary, self.spec.config.target)
        if place is not None:
            problem, _, prepared = self.split(runs[place].seed)
            write_model(out, described(runs[place], names[place], problem, self.data, prepared))

    def setup(self, command: str, optimum: Mapping[str, float | None]) -> dict[str, Any]:
        """Return what setup.json holds, but for the versions."""
        spec, problem = self.spec, self.first
        classes = None if self.data is None else self.data.classes
        return {
            "title": spec.title,
            "command": command,
            "spec": dict(spec.values),
            "problem": {
                "data": spec.data.name or str(spec.data.file),
                "rows": len(problem.y),
                "columns": None if self.data is None else list(self.data.columns),
                "coordinates": problem.dimension,
                "loss": problem.loss.name,
                "loss_parameter": problem.loss.parameter or None,
                "intercept": problem.intercept,
                "l2": problem.l2,
                "l1": problem.l1,
                "reduction": problem.reduction,
                "clients": problem.n,
                "by": spec.partition.by,
                "notes": [] if self.data is None else list(self.data.notes),
            },
            "partition": partition_table(problem, classes),
            "optimum": dict(optimum),
            "variants": dict(spec.variants),
            "target": spec.config.target,
            "rounds": spec.config.rounds,
            "seeds": len(spec.seeds),
            "holdout": spec.data.holdout,
            "batch": spec.config.batch,
            "clients": problem.n,
        }

    def sentences(self) -> list[str]:
        """Return in sentences what the rows are and what was done to them."""
        spec, problem = self.spec, self.first
        sizes = problem.rows_per_client
        kept = (
            f", {round(spec.data.holdout * len(self.data.y))} more for testing"
            if self.data and spec.data.holdout
            else ""
        )
        by = spec.partition.by
        how = "made with them" if by is None else by if by in PARTITIONS else f"by {by}"
        lines = [
            f"{spec.data.name or spec.data.file}: {len(problem.y):,} rows{kept}, {problem.dimension} coordinates, "
            f"{problem.loss.name} loss; {problem.n} clients ({how}) of {sizes.min():,} to {sizes.max():,} rows",
            *(() if self.data is None else self.data.notes),
        ]
        if spec.config.optimum == "auto" and len(problem.y) > MANY_ROWS and "optimum" not in problem.__dict__:
            lines.append("solving for f* first, which takes a while with so many rows; optimum = false goes without")
        return lines


def targets(spec: Spec) -> tuple[float, ...]:
    """Return the relative gaps that the summary counts rounds to."""
    target = spec.config.target
    return TARGETS if target is None or target in TARGETS else (*TARGETS, target)


def _fills_means(spec: Spec) -> bool:
    """Return whether missing values become means."""
    own = {} if spec.data.name is None else DATASETS[spec.data.name].options
    return bool(spec.data.options.get("missing", own.get("missing")) == "mean")


def _load(spec: Spec) -> Data:
    """Return the rows; missing values stay if they are to become means, which are those of the training rows."""
    source, by, loss = spec.data, spec.partition.by, spec.loss
    options = dict(source.options) | {"clients": None if by in PARTITIONS else by}
    means = _fills_means(spec)
    if means:
        options["missing"] = "keep"
    if source.file is not None and not source.file.is_file():
        raise ValueError(f"data.file is {str(source.file)!r}, which is not there")
    try:
        data = load(source.name, **options) if source.name is not None else read(source.file, **options)
    except ValueError as error:
        if by is not None and f"there is no column {by!r}" in str(error):
            raise ValueError(f"{unknown('partition.by', by, PARTITIONS)}, or a column; {error}") from None
        raise
    counts = missing_values(data.X)[0]
    if means and counts.any():
        note = f"missing values become their column's mean: {holes(counts, data.columns)}"
        data = data._replace(notes=(*data.notes, note))
    try:
        return _fit_to_loss(data, loss) if loss is not None else data
    except ValueError as error:
        raise ValueError(f"{source.name or source.file}: {error}") from None


def _fit_to_loss(data: Data, loss: Loss) -> Data:
    """Return the rows with classes for a loss of classes, and with numbers for the others."""
    if not loss.is_classification:
        if data.classes is not None:
            raise ValueError(
                f"the {loss.name} loss needs numbers, but the label {data.label!r} holds classes "
                f'({" and ".join(data.classes)}); take a loss for classes, e.g. loss = "hinge"'
            )
        return data
    if data.classes is not None:
        return data
    try:
        y, classes = labels(data.y, name=data.label, classes=True)
    except ValueError as error:
        more = ', or take a loss for numbers, e.g. loss = "absolute"' if len(np.unique(data.y)) > 2 else ""
        raise ValueError(f"{error}{more}") from None
    notes = () if classes is None else (mapping(data.label, classes),)
    return data._replace(y=y, classes=classes, notes=(*data.notes, *notes))


def _made(spec: Spec, seed: int | None) -> Problem:
    maker: Any = spec.data.maker
    options = dict(spec.data.options) | ({} if seed is None else {"seed": seed})
    try:
        made: Problem = maker(**options, **spec.problem)
    except ValueError as error:
        raise ValueError(f"data ({spec.data.name}): {error}") from None
    return made


def _split(spec: Spec, data: Data, seed: int | None, cut: int | None) -> Split:
    """Return the rows of the seed: some for testing, the rest in clients. Means and scales are those of the latter."""
    m = len(data.y)
    order = np.arange(m) if seed is None else np.random.default_rng(seed).permutation(m)
    test, train = np.split(order, [round(spec.data.holdout * m)])
    if spec.data.holdout and not len(test):
        raise ValueError(f"data.holdout is {spec.data.holdout!r}, which keeps none of {m} rows; take a larger share")
    X, prepared = _prepared(spec, data, train)
    try:
        clients = _clients(spec, data, X[train], train, cut)
    except ValueError as error:
        raise ValueError(f"partition: {error}") from None
    problem = Problem(X[train], data.y[train], clients=clients, **spec.problem)
    metrics = {name: Metric(name, X[test], data.y[test], problem.loss, problem.intercept) for name in spec.metrics}
    return Split(problem, metrics, prepared)


def _prepared(spec: Spec, data: Data, train: Any) -> tuple[Any, Preparation]:
    """Return all rows without gaps, standardised if they are to be, and what that took: means and scales of the rows
    for training.
    """
    X, fill = data.X, None
    if _fills_means(spec):
        empty = np.flatnonzero(missing_values(X[train])[0] == len(train))
        if empty.size:
            name = data.columns[empty[0]]
            raise ValueError(f"column {name!r} has no value in the rows for training; name it in ignore")
        fill = column_means(X[train])
        X = impute_means(X, fill) if missing_values(X)[0].any() else X
    if not spec.data.standardise:
        return X, Preparation(fill)
    if is_sparse(X):
        raise ValueError("data.standardise would fill in sparse rows; leave it out")
    means, scales = X[train].mean(axis=0), X[train].std(axis=0)
    scales = np.where(scales > 0, scales, 1.0)
    return (X - means) / scales, Preparation(fill, means, scales)


def _clients(spec: Spec, data: Data, X: Any, train: Any, seed: int | None) -> Any:
    by, n = spec.partition.by, spec.partition.clients
    if by == "kmeans":
        return partition.kmeans(X, n, seed or 0)
    if by == "iid":
        return partition.iid(X, n, seed or 0)
    if by == "dirichlet":
        return partition.dirichlet(data.y[train], n, spec.partition.alpha, seed or 0)
    return data.clients[train]


@contextmanager
def _backend(dask: str | None) -> Iterator[str]:
    """Yield the backend of the sweep; with an address, that cluster is the current one inside."""
    if dask is None:
        yield "processes"
        return
    if find_spec("distributed") is None:
        raise ValueError("Dask is not installed; pip install 'fedmls[dask]'")
    from distributed import Client

    try:
        client = Client(dask, timeout="10s")
    except (OSError, ValueError) as error:
        raise ValueError(f"no Dask scheduler answers at {dask!r} ({error}); start one with: dask scheduler") from None
    with client:
        yield "dask"
