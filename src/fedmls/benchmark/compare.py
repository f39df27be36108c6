"""Every method on many problems, each tuned by equally many grid points: what it takes to come within a relative gap.

runs/           one file per finished run, kept as it finishes
points.parquet  exchanges, rounds, passes over the rows and bytes of every grid point and seed, to every target
chosen.csv      the best grid point of each method, for each problem and target: the median over seeds, least and most
problems.csv    rows, clients, columns and loss of each problem
setup.json      parameters and versions

Tables and words are made of these by :mod:`fedmls.benchmark.tables`, the figure by :mod:`fedmls.benchmark.profile`.

Every grid point runs with seed 0. The best of each method for each target run again with the other seeds, and of these
the best for each target is chosen, on its own, by exchanges (the median over seeds): that is kind to methods that need
tuning. The other columns are what that very point took. What takes no mini-batches runs once.

A run that raises an error reaches nothing; points.parquet holds what it said.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedmls.benchmark.methods import METHODS, is_method, method_of, scale
from fedmls.benchmark.suite import Entry
from fedmls.checks import check_batch, unknown, whole
from fedmls.hyperparameters import describe
from fedmls.problem import Problem
from fedmls.results.layout import RUNS
from fedmls.results.write import write_comparison
from fedmls.simulation.config import RunConfig
from fedmls.simulation.sweeps import run_all
from fedmls.types import Algorithm, Run

TARGETS = (1e-1, 1e-2, 1e-3, 1e-4)
COSTS = ("exchanges", "rounds", "passes", "bytes")
NEAR = 1.1  # "within 10% of the first"


class Settings(NamedTuple):
    """rounds: of a run at most; some problems and methods have fewer.  grid: points for each method."""

    rounds: int = 500
    seeds: int = 3
    grid: int = 15
    batch: float = 0.1


class Comparison(NamedTuple):
    folder: Path
    settings: Settings
    methods: list[str]
    problems: Mapping[str, Entry]
    points: pd.DataFrame
    chosen: pd.DataFrame
    facts: pd.DataFrame


def compare(
    problems: Mapping[str, Entry],
    out: Path,
    settings: Settings = Settings(),  # noqa: B008 (a constant)
    methods: Sequence[str] | None = None,
    *,
    jobs: int = -1,
    progress: bool | None = None,
    tell: Callable[[str], None] = lambda line: None,
    device: str = "cpu",
) -> Comparison:
    """Run what is not there yet, choose the best grid points, write them to the results folder."""
    names = check(problems, settings, methods)
    runner = Runner(out / RUNS, jobs, progress, tell, device)
    points, facts = [], []
    for place, (name, entry) in enumerate(problems.items(), start=1):
        tell(f"{place}/{len(problems)} {name}: {entry.about}")
        problem = entry.make()
        facts.append(facts_of(name, problem))
        points.append(measure(name, entry, problem, settings, names, runner))
    table = pd.concat(points, ignore_index=True)
    done = Comparison(out, settings, names, dict(problems), table, choose(table), pd.DataFrame(facts))
    setup = {**settings._asdict(), "targets": TARGETS, "methods": names, "problems": list(problems)}
    write_comparison(out, done.points, done.chosen, done.facts, setup)
    return done


def check(problems: Mapping[str, Entry], settings: Settings, methods: Sequence[str] | None) -> list[str]:
    """The methods' names, in the order of METHODS; then those from outside of the package."""
    if not problems:
        raise ValueError("there are no problems; name some")
    for name in ("rounds", "seeds", "grid"):
        whole(name, getattr(settings, name))
    check_batch(settings.batch)
    asked = list(METHODS) if methods is None else list(methods)
    for name in asked:
        if not is_method(name):
            raise ValueError(unknown("method", name, METHODS))
        method_of(name)  # that it can be loaded
    return [*(name for name in METHODS if name in asked), *(name for name in asked if name not in METHODS)]


def facts_of(name: str, problem: Problem) -> dict[str, Any]:
    loss = problem.loss.name + (f" {problem.loss.parameter:g}" if problem.loss.parameter else "")
    sizes = {"rows": len(problem.y), "clients": problem.n, "columns": problem.penalised}
    return {"problem": name, **sizes, "loss": loss, "l2": problem.l2}


class Candidate(NamedTuple):
    """One grid point. ``edge``: it lies at an end of its window."""

    method: str
    algorithm: Algorithm
    edge: bool


class How(NamedTuple):
    """How a grid point runs: at most so many rounds, on such batches. proves: until it has proved the last target."""

    rounds: int
    batch: float
    proves: bool

    def config(self, problem: Problem) -> RunConfig:
        """Return the settings of its run on the problem."""
        if not self.proves:
            return RunConfig(self.rounds, self.batch, target=TARGETS[-1])
        best = problem.optimum.value
        until = TARGETS[-1] * (abs(best) if abs(best) > 1e-9 else 1.0)
        return RunConfig(self.rounds, self.batch, certificate=True, until=until)


class Runner(NamedTuple):
    """Where runs are kept, how many go at a time, whether a bar is shown, and who is told what runs."""

    store: Path
    jobs: int
    progress: bool | None
    tell: Callable[[str], None]
    device: str = "cpu"

    def runs(self, algorithms: list[Algorithm], problem: Problem, how: How, seeds: range) -> list[Run]:
        """Return the runs of each algorithm with each seed, in that order."""
        return run_all(
            algorithms,
            problem,
            how.config(problem),
            seeds,
            jobs=self.jobs,
            store=self.store,
            errors="keep",
            progress=self.progress,
            device=self.device,
        )


def measure(
    name: str, entry: Entry, problem: Problem, settings: Settings, methods: list[str], runner: Runner
) -> pd.DataFrame:
    """What every grid point took on one problem with seed 0, the best of them with each seed (NaN: not reached)."""
    own = scale(problem, settings.batch)
    candidates = [
        Candidate(key, algorithm, len(window) > 1 and i in (0, len(window) - 1))
        for key in methods
        if method_of(key).runs_on(problem)
        for window in method_of(key).grid(own, settings.grid)
        for i, algorithm in enumerate(window)
    ]
    runner.tell(f"  {len(candidates)} grid points")
    first = _measured(name, candidates, problem, entry, settings, range(1), runner)
    again = best_of(candidates, first) if settings.seeds > 1 else []
    if not again:
        return first
    runner.tell(f"  the best {len(again)} of them, {settings.seeds - 1} more times")
    more = _measured(name, again, problem, entry, settings, range(1, settings.seeds), runner)
    return pd.concat([first, more], ignore_index=True)


def best_of(candidates: list[Candidate], points: pd.DataFrame) -> list[Candidate]:
    """The grid points that are best for some target, of methods for which another seed is another run. What has nothing
    to tune is best in any case."""
    chosen = choose(points)
    wanted = {*zip(chosen["method"], chosen["parameters"], strict=True)}
    return [
        one
        for one in candidates
        if not method_of(one.method).reads
        and (method_of(one.method).ours == "auto" or (one.method, describe(one.algorithm)) in wanted)
    ]


def _measured(
    name: str,
    candidates: list[Candidate],
    problem: Problem,
    entry: Entry,
    settings: Settings,
    seeds: range,
    runner: Runner,
) -> pd.DataFrame:
    rows = []
    for how, some in groupby(candidates, key=lambda one: _how(one, entry, settings)):
        group = list(some)
        runs = runner.runs([one.algorithm for one in group], problem, how, seeds)
        for i, run in enumerate(runs):
            about = {"problem": name, **_about(group[i // len(seeds)]), "seed": run.seed}
            rows += [{**about, **cost, "error": run.error} for cost in costs(run)]
    return pd.DataFrame(rows)


def _how(candidate: Candidate, entry: Entry, settings: Settings) -> How:
    method = method_of(candidate.method)
    rounds = min(settings.rounds, entry.rounds, method.rounds or settings.rounds)
    return How(rounds, 1.0 if method.reads else settings.batch, candidate.algorithm.traits.proves)


def _about(candidate: Candidate) -> dict[str, Any]:
    return {"method": candidate.method, "parameters": describe(candidate.algorithm), "edge": candidate.edge}


def costs(run: Run) -> list[dict[str, float]]:
    """Return, for each target, what the run had spent when its relative gap first was that small.

    certified: the exchanges after which that was proved.
    """
    history = run.history
    rows = []
    for target in TARGETS:
        there = history[history["relative_gap"] <= target]
        row = dict.fromkeys((*COSTS, "certified"), np.nan)
        if len(there):
            first = there.iloc[0]
            row |= {
                "exchanges": first["exchanges"],
                "rounds": first["round"],
                "passes": first["passes"],
                "bytes": first["bytes_up"] + first["bytes_down"],
            }
        if "certified_gap" in history and run.optimum is not None:
            unit = abs(run.optimum) if abs(run.optimum) > 1e-9 else 1.0
            proved = history[history["certified_gap"] <= target * unit]
            row["certified"] = proved["exchanges"].iloc[0] if len(proved) else np.nan
        rows.append({"target": target, **row})
    return rows


def choose(points: pd.DataFrame) -> pd.DataFrame:
    """The best grid point for each problem, method and target: the fewest exchanges, the median over seeds.

    Of those that ran with all seeds, if any did. Among equals the one with the fewest bytes, then passes. ``edge``:
    only ends of the window are as good.  least, most: of its exchanges over seeds (NaN: not reached with one).
    """
    keys = ["problem", "method", "target"]
    filled = points.fillna(dict.fromkeys((*COSTS, "certified"), np.inf))
    grouped = filled.groupby([*keys, "parameters", "edge"], sort=False)
    medians = grouped[[*COSTS, "certified"]].median()
    medians["least"], medians["most"] = grouped["exchanges"].min(), grouped["exchanges"].max()
    medians["seeds"] = grouped.size()
    medians = medians.reset_index()
    medians = medians[medians["seeds"] == medians.groupby(keys)["seeds"].transform("max")]
    best = medians.groupby(keys)["exchanges"].transform("min")
    ties = medians[medians["exchanges"] == best]
    chosen = ties.sort_values(["bytes", "passes"], kind="stable").groupby(keys, sort=False).first()
    chosen["edge"] = ties.groupby(keys)["edge"].all()
    unreached = np.isinf(chosen["exchanges"])
    chosen.loc[unreached, "parameters"] = ""
    chosen["edge"] &= ~unreached
    in_order = points[keys].drop_duplicates()
    return in_order.merge(chosen.replace(np.inf, np.nan).reset_index(), on=keys)


def table(done: Comparison, cost: str = "exchanges") -> pd.DataFrame:
    """The cost of each method (columns) on each pair of problem and target; infinite where not reached or not run."""
    wide = done.chosen.pivot_table(index=["problem", "target"], columns="method", values=cost, dropna=False)
    pairs = pd.MultiIndex.from_product([list(done.problems), TARGETS], names=["problem", "target"])
    return wide.reindex(index=pairs, columns=done.methods).fillna(np.inf)


def averaging(done: Comparison) -> list[str]:
    """The methods whose server needs only averages."""
    return [name for name in done.methods if not method_of(name).more]


def near_first(costs: pd.DataFrame, some: list[str], against: list[str]) -> "pd.Series[bool]":
    """Tell of each pair whether one of some methods is first, or within 10% of the first, of them and those against."""
    best = costs[[*some, *against]].min(axis=1)
    return (costs[some].min(axis=1) <= NEAR * best) & np.isfinite(best)
