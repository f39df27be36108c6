"""Several runs of one algorithm as one simulation: all seeds, and parameters that are plain numbers, side by side.

The Python of a round is paid once for all of them (see :mod:`fedmls.local.stacked`). Histories are equal, but for the
seconds, to those of the runs one by one, to the last bit.
"""

import copy
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedmls.local.client import EMPTY
from fedmls.local.stacked import StackedLocal
from fedmls.problem import Problem
from fedmls.rounds import EachRandom, ServerRandom, array_sizes, blocks
from fedmls.simulation import checkpoint as checkpoints
from fedmls.simulation.config import PlannedRun, RunConfig
from fedmls.simulation.cost import Counters, cost_of_round
from fedmls.simulation.observers import Row, View
from fedmls.simulation.recorder import Recorder, gap_scale
from fedmls.types import Algorithm, Array, Run

SAVE_EVERY_SECONDS = 30.0
PLAIN = ("round", "exchanges", "x", "going", "diverged", "objective")  # of a stack, and of its clients: what is saved
COUNTED = ("steps", "subgradients", "rows_read", "going")
MOST_NUMBERS = 2**25  # in the rows of a stack, and in its states: with more, Python takes no time beside the loops

Shown = Callable[[int, Array], Any]  # of the rounds done, and the relative gap of each run


class Record(NamedTuple):
    """A round of all runs: columns of the history with one number for each run, or one for all."""

    has_row: Any  # which runs have it in their history
    columns: dict[str, Any]


def stacks(runs: Mapping[int, PlannedRun]) -> Iterator[list[int]]:
    """Yield the groups of those runs, named by their numbers, that can be one simulation: of two or more."""
    groups: dict[Any, list[int]] = {}
    for i, run in runs.items():
        key = _kind(*run)
        if key is not None:
            groups.setdefault(key, []).append(i)
    for group in groups.values():
        if len(group) > 1:
            yield group


def _kind(algorithm: Algorithm, problem: Any, config: RunConfig) -> Any:
    """Return what runs of a stack have in common; None for a run that cannot be in one."""
    varied = algorithm.traits.stacks
    if varied is None or algorithm.participants is not None or not isinstance(problem, Problem):
        return None
    if config.certificate is not None or config.until is not None or len(problem.y) * problem.dimension > MOST_NUMBERS:
        return None
    if len(blocks(problem.n, problem.dimension)) > 1:
        return None
    same = [(field.name, repr(getattr(algorithm, field.name))) for field in fields(algorithm)]  # type: ignore[arg-type]
    same = [(name, value) for name, value in same if name not in varied or not _is_number(getattr(algorithm, name))]
    terms = problem.loss, problem.l2, problem.l1, problem.dimension, problem.n, isinstance(problem.X, np.ndarray)
    settings = config.rounds, config.batch, config.every, config.target, tuple(config.metrics or ())
    return type(algorithm), tuple(same), terms, settings


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int)


def joined(algorithms: Sequence[Algorithm]) -> Algorithm:
    """Return the algorithms as one, whose numbers that differ are arrays with one number for each run."""
    together = copy.copy(algorithms[0])
    for name in algorithms[0].traits.stacks or ():
        values = [getattr(algorithm, name) for algorithm in algorithms]
        if any(value != values[0] for value in values):
            object.__setattr__(together, name, np.array(values, dtype=float)[:, None, None])
    return together


class Stack:
    """Several runs, exchange by exchange. Each ends at its own time: at the last round, its target, or diverged."""

    def __init__(self, planned: Sequence[PlannedRun], threads: int = 1) -> None:
        runs = [run._replace(config=run.config.resolved(run.problem)) for run in planned]
        one: Any = runs[0]
        self.runs, self.config, self.count = runs, one.config, len(runs)
        self.algorithm = joined([run.algorithm for run in runs])
        seeds = [run.config.seed for run in runs]
        problems: list[Any] = [run.problem for run in runs]  # of rows, all of them
        self.local = StackedLocal(problems, seeds, self.config.batch, threads)
        self.random = [ServerRandom(seed) for seed in seeds]
        x0 = np.array([run.config.x0 for run in runs])[:, None, :]
        server, _ = one.algorithm.init(one.config.x0, one.problem.n)
        _, down = one.algorithm.broadcast(1, server, ServerRandom(seeds[0]).at(1))
        self.travels = set(array_sizes(down))  # a number of each run is an array, too, but does not
        self.server, client = self.algorithm.init(x0, one.problem.n)
        self.clients = type(client)(*(np.tile(field, (1, one.problem.n, 1)) for field in client))
        self.x = x0[:, 0].copy()
        self.best = np.array([np.nan if run.config.best is None else run.config.best for run in runs])
        self.scales = np.array([gap_scale(run.config.best) for run in runs])
        self.rows = np.array([len(problem.y) for problem in problems])
        self.going, self.diverged = np.ones(self.count, bool), np.zeros(self.count, bool)
        self.round = self.exchanges = 0
        self.objective = np.full(self.count, np.nan)
        self.spent = Counters()
        self.message_sizes: Any = None  # of the last round, and what they cost: the same in most
        self.message_cost = Counters()
        self.asked = Recorder(one.algorithm, one.problem, server, one.config.x0, None, {}, None).asked
        self.records: list[Record] = []
        self.unrecorded: dict[str, Any] | None = None
        self.began = self.seconds = 0.0  # when the runs would have begun without a break; what they took before it
        self.file: Path | None = None

    def run(self, stop: threading.Event | None = None, show: Shown | None = None) -> None:
        """Play all runs to their ends. When ``stop`` is set, KeyboardInterrupt is raised between two exchanges."""
        saved = time.monotonic()
        self.began = saved - self.seconds
        pause, first = SAVE_EVERY_SECONDS, self.round
        while self.round < self.config.rounds and self.going.any():
            if stop is not None and stop.is_set():
                if self.round > first:
                    self.save()
                raise KeyboardInterrupt
            with np.errstate(all="ignore"):
                self._exchange()
            if show is not None:
                show(self.round, self._gaps(self.objective)[1])
            if time.monotonic() - saved > pause:
                before = time.monotonic()
                self.save()
                saved = time.monotonic()
                pause = max(SAVE_EVERY_SECONDS, 300 * (saved - before))  # long histories take a while to write

    def _exchange(self) -> None:
        """Do one exchange of one round or, paired, two, of all runs."""
        algorithm, first = self.algorithm, self.round + 1
        ks = range(first, min(first + algorithm.rounds_per_exchange, self.config.rounds + 1))
        downs, done = [], []
        for k in ks:
            self.server, down = algorithm.broadcast(k, self.server, EachRandom(self.random, k))  # type: ignore[arg-type]
            downs.append(down)
        self.exchanges += 1
        for k, down in zip(ks, downs, strict=True):
            self.local.begin(k)
            self.clients, up = algorithm.client_round(k, self.clients, down, self.local)  # type: ignore[arg-type]
            self.spent = self.spent.plus(self._cost(down, up))
            work = self.local.steps.max(axis=1), self.local.subgradients.copy(), self.local.rows_read.copy()
            done.append((k, self._mean(up), self.spent, work))
        for k, seen, spent, work in done:
            self.server = algorithm.server_round(k, self.server, seen)
            self._record(k, spent, work)
        self.round = ks[-1]

    def _mean(self, up: Any) -> Any:
        """Return Σ w_i up_i of every run."""
        return type(up)(*((self.local.weights[:, None, :] @ field) for field in up))

    def _cost(self, down: Any, up: Any) -> Counters:
        """Return what the messages of a round take, of each run."""
        algorithm, problem = self.runs[0].algorithm, self.runs[0].problem
        sizes = {name: size for name, size in array_sizes(down).items() if name in self.travels}, array_sizes(up)
        if sizes != self.message_sizes:
            self.message_sizes, self.message_cost = (
                sizes,
                cost_of_round(algorithm, problem.n, problem.dimension, *sizes),
            )
        return self.message_cost

    def _record(self, k: int, spent: Counters, work: tuple[Any, Any, Any]) -> None:
        """Look at the models after round k: keep a row of each, and end the runs that diverge or reach their target."""
        x, objective = self._answer()
        self.objective = objective
        finite = np.isfinite(objective) & np.isfinite(x).all(axis=1)
        lost = self.going & ~finite
        if lost.any():
            if self.unrecorded is not None:  # the last finite round ends the history, whatever ``every`` is
                self.records.append(Record(lost, self.unrecorded | self._metrics()))
            self.diverged |= lost
            self._end(lost)
        self.x[self.going] = x[self.going]
        columns = self._columns(k, spent, work, objective)
        self.unrecorded = columns
        if k % self.config.every == 0 or k == self.config.rounds:
            self.unrecorded = None
            columns |= self._metrics()
            self.records.append(Record(self.going.copy(), columns))
            if self.config.target is not None:
                self._end(self.going & (columns["relative_gap"] <= self.config.target))

    def _answer(self) -> tuple[Array, Array]:
        """Return the model of each run and its objective; of several candidates the best."""
        models = self.algorithm.model(self.server)
        candidates = models if isinstance(models, tuple) else (models,)
        objectives = np.array([self.local.objectives(x) for x in candidates])
        chosen, each = objectives.argmin(axis=0), np.arange(self.count)
        return np.array([x[:, 0] for x in candidates])[chosen, each], objectives[chosen, each]

    def _end(self, runs: Any) -> None:
        """End these runs; the clients of the others go on."""
        if runs.any():
            self.going &= ~runs
            self.local.end(runs)

    def _columns(self, k: int, spent: Counters, work: tuple[Any, Any, Any], objective: Array) -> dict[str, Any]:
        gap, relative_gap = self._gaps(objective)
        steps, subgradients, rows_read = work
        counters = spent._replace(round=k, exchanges=self.exchanges).plus(self.asked)
        return {
            **counters._asdict(),
            "local_steps": steps,
            "subgradients": subgradients,
            "passes": rows_read / self.rows,
            "objective": objective,
            "gap": gap,
            "relative_gap": relative_gap,
            "seconds": (time.monotonic() - self.began) / self.count,
        }

    def _gaps(self, objective: Array) -> tuple[Array, Array]:
        gap = objective - self.best
        return gap, gap / self.scales

    def _metrics(self) -> dict[str, Any]:
        """Return the further columns: of each run, whatever its metrics say of its model."""
        names = self.config.metrics or {}
        return {
            name: np.array(
                [float((run.config.metrics or {})[name](x)) for run, x in zip(self.runs, self.x, strict=True)]
            )
            for name in names
        }

    def views(self, since: int, most: int) -> Iterator[View]:
        """Yield each run as it is now, for observers; its rows of the records from this one on are new. Of many records
        there are so many at ``most``, evenly spaced, and the last.
        """
        records = self.records[since:][:: -max(1, -(-(len(self.records) - since) // most))][::-1]
        columns = {name: self._columns_of(records, name).tolist() for name in (records[0].columns if records else ())}
        for i, diverged in enumerate(self.diverged):
            which = [j for j, record in enumerate(records) if record.has_row[i]]
            rows: list[Row] = [{name: values[j][i] for name, values in columns.items()} for j in which]
            last = rows[-1] if rows else None
            yield View(rows, [], last, self.spent, self.asked, self.server, EMPTY, EMPTY, bool(diverged))

    def save(self) -> None:
        """Write all runs as they are now, between two exchanges, into the file that :meth:`resume` was given."""
        if self.file is None:
            return
        state = {f"self.{name}": getattr(self, name) for name in PLAIN}
        state |= {f"local.{name}": getattr(self.local, name) for name in COUNTED}
        for part in ("server", "clients", "spent"):
            state |= {f"{part}.{name}": value for name, value in getattr(self, part)._asdict().items()}
        state["seconds"] = (time.monotonic() - self.began) / self.count
        state["has_row"] = np.array([record.has_row for record in self.records], dtype=bool)
        for name in self.records[0].columns if self.records else ():
            state[f"history.{name}"] = self._columns_of(self.records, name)
        for name, value in (self.unrecorded or {}).items():
            state[f"unrecorded.{name}"] = value
        checkpoints.save_stack(self.file, state)

    def resume(self, file: Path) -> None:
        """Keep the runs in this file, and go on from it if it is there."""
        self.file = file
        state = checkpoints.load_stack(file)
        if state is None:
            return
        for name in PLAIN:
            setattr(self, name, state[f"self.{name}"])
        for name in COUNTED:
            setattr(self.local, name, state[f"local.{name}"])
        for part in ("server", "clients", "spent"):
            fresh = getattr(self, part)
            setattr(self, part, fresh._replace(**{name: state[f"{part}.{name}"] for name in fresh._fields}))
        self.seconds = self.count * float(state.get("seconds", 0.0))
        named = {name: _within(state, name) for name in ("history", "unrecorded")}
        self.unrecorded = named["unrecorded"] or None
        self.records = [
            Record(has_row, {name: column[j] for name, column in named["history"].items()})
            for j, has_row in enumerate(state["has_row"])
        ]

    def _columns_of(self, records: list[Record], name: str) -> Any:
        """Return a column of the history, with a row for each of the records, and a number for each run."""
        return np.array([np.broadcast_to(record.columns[name], self.count) for record in records])

    def results(self) -> list[Run]:
        """Return the runs as they are now."""
        import pandas as pd

        names = [
            *Counters._fields,
            "passes",
            "objective",
            "gap",
            "relative_gap",
            "seconds",
            *(self.config.metrics or {}),
        ]
        has_row = np.array([record.has_row for record in self.records], dtype=bool).reshape(-1, self.count)
        columns = {name: self._columns_of(self.records, name) for name in names}
        return [
            Run(
                run.algorithm,
                run.config.seed,
                run.config.batch,
                self.x[i],
                pd.DataFrame({name: column[has_row[:, i], i] for name, column in columns.items()})
                if has_row[:, i].any()
                else pd.DataFrame([], columns=pd.Index(names)),
                run.config.best,
                bool(self.diverged[i]),
            )
            for i, run in enumerate(self.runs)
        ]


def _within(state: dict[str, Any], part: str) -> dict[str, Any]:
    """Return what is saved under ``part``, by name."""
    return {name.removeprefix(f"{part}."): value for name, value in state.items() if name.startswith(f"{part}.")}
