"""Every method on many problems, each tuned by equally many grid points: what it takes to come within a relative gap.

runs/           one file per finished run, kept as it finishes
points.parquet  exchanges, rounds, local subgradients and bytes of every grid point and seed, to every target
chosen.csv      the best grid point of each method, for each problem and target
setup.json      parameters and versions

Tables and words are made of these by :mod:`fedmls.experiments.tables`, the figure by :mod:`fedmls.experiments.profile`.

The best grid point is chosen for each target on its own, by exchanges (the median over seeds), which is kind to methods
that need tuning. The other columns are what that very point took.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedmls.algorithms import describe
from fedmls.checks import check_batch, unknown, whole
from fedmls.experiments import results
from fedmls.experiments.methods import METHODS, Method, scale
from fedmls.experiments.suite import Entry
from fedmls.sweep import sweep
from fedmls.types import Algorithm, Run

TARGETS = (1e-1, 1e-2, 1e-3, 1e-4)
COSTS = ("exchanges", "rounds", "subgradients", "bytes")
NEAR = 1.1  # "within 10% of the first"


class Settings(NamedTuple):
    """rounds: of a run at most; some problems and methods have fewer.  grid: points for each method."""

    rounds: int = 500
    seeds: int = 1
    grid: int = 15
    batch: float = 0.1


class Comparison(NamedTuple):
    folder: Path
    settings: Settings
    methods: list[str]
    problems: Mapping[str, Entry]
    points: pd.DataFrame
    chosen: pd.DataFrame


def compare(
    problems: Mapping[str, Entry],
    out: Path,
    settings: Settings = Settings(),  # noqa: B008 (a constant)
    methods: Sequence[str] | None = None,
    *,
    jobs: int = -1,
    progress: bool | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Run what is not there yet, choose the best grid points, write them to the results folder."""
    names = check(problems, settings, methods)
    points = []
    for place, (name, entry) in enumerate(problems.items(), start=1):
        tell(f"{place}/{len(problems)} {name}: {entry.about}")
        points.append(measure(name, entry, settings, names, out / "runs", jobs, progress))
    table = pd.concat(points, ignore_index=True)
    done = Comparison(out, settings, names, dict(problems), table, choose(table))
    done.points.to_parquet(out / "points.parquet", index=False)
    done.chosen.to_csv(out / "chosen.csv", index=False)
    setup = {**settings._asdict(), "targets": TARGETS, "methods": names, "problems": list(problems)}
    results.write_setup(out, setup)
    return done


def check(problems: Mapping[str, Entry], settings: Settings, methods: Sequence[str] | None) -> list[str]:
    """The methods' names, in the order of METHODS."""
    if not problems:
        raise ValueError("there are no problems; name some")
    for name in ("rounds", "seeds", "grid"):
        whole(name, getattr(settings, name))
    check_batch(settings.batch)
    asked = list(METHODS) if methods is None else list(methods)
    for name in asked:
        if name not in METHODS:
            raise ValueError(unknown("method", name, METHODS))
    return [name for name in METHODS if name in asked]


class Candidate(NamedTuple):
    """One grid point. ``edge``: it lies at an end of its window."""

    method: str
    algorithm: Algorithm
    edge: bool


def measure(
    name: str, entry: Entry, settings: Settings, methods: list[str], store: Path, jobs: int, progress: bool | None
) -> pd.DataFrame:
    """What every grid point took on one problem, for each seed and target (NaN: not reached)."""
    problem = entry.make()
    own = scale(problem)
    candidates = [
        Candidate(key, algorithm, len(window) > 1 and i in (0, len(window) - 1))
        for key in methods
        if METHODS[key].runs_on(problem)
        for window in METHODS[key].grid(own, settings.grid)
        for i, algorithm in enumerate(window)
    ]
    rows = []
    for (rounds, batch), some in groupby(candidates, key=lambda one: _how(METHODS[one.method], entry, settings)):
        group = list(some)
        algorithms = [one.algorithm for one in group]
        runs = sweep(
            algorithms,
            problem,
            rounds=rounds,
            seeds=range(settings.seeds),
            batch=batch,
            target=TARGETS[-1],
            jobs=jobs,
            store=store,
            progress=progress,
        )
        for i, run in enumerate(runs):
            about = group[i // settings.seeds]
            rows += [{"problem": name, **_about(about), "seed": run.seed, **cost} for cost in costs(run)]
    return pd.DataFrame(rows)


def _how(method: Method, entry: Entry, settings: Settings) -> tuple[int, float]:
    rounds = min(settings.rounds, entry.rounds, method.rounds or settings.rounds)
    return rounds, 1.0 if method.more else settings.batch


def _about(candidate: Candidate) -> dict[str, Any]:
    return {"method": candidate.method, "parameters": describe(candidate.algorithm), "edge": candidate.edge}


def costs(run: Run) -> list[dict[str, float]]:
    """For each target, what the run had spent when its relative gap first was that small."""
    history = run.history
    rows = []
    for target in TARGETS:
        there = history[history["relative_gap"] <= target]
        row = dict.fromkeys(COSTS, np.nan)
        if len(there):
            first = there.iloc[0]
            row = {
                "exchanges": first["exchanges"],
                "rounds": first["round"],
                "subgradients": first["subgradients"],
                "bytes": first["bytes_up"] + first["bytes_down"],
            }
        rows.append({"target": target, **row})
    return rows


def choose(points: pd.DataFrame) -> pd.DataFrame:
    """The best grid point for each problem, method and target: the fewest exchanges, the median over seeds.

    Among equals the one with the fewest bytes, then subgradients. ``edge``: only ends of the window are as good.
    """
    keys = ["problem", "method", "target"]
    filled = points.fillna(dict.fromkeys(COSTS, np.inf))
    medians = filled.groupby([*keys, "parameters", "edge"], sort=False)[list(COSTS)].median().reset_index()
    best = medians.groupby(keys)["exchanges"].transform("min")
    ties = medians[medians["exchanges"] == best]
    chosen = ties.sort_values(["bytes", "subgradients"], kind="stable").groupby(keys, sort=False).first()
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
    """The methods that need only averages of vectors and run on mini-batches."""
    return [name for name in done.methods if not METHODS[name].more]


def near_first(costs: pd.DataFrame, some: list[str], against: list[str]) -> "pd.Series[bool]":
    """For each pair, whether one of some methods is first, or within 10% of the first, of them and those against."""
    best = costs[[*some, *against]].min(axis=1)
    return (costs[some].min(axis=1) <= NEAR * best) & np.isfinite(best)
