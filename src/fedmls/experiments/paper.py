"""Section 4 of the FedMLS paper: four methods on an SVM whose ten clients are k-means clusters.

Where the paper's text and its released code disagree (docs/ledger.md), both readings are run.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedmls import datasets, partition
from fedmls.algorithms import FedAvg, FedMLS, Scaffnew, Scaffold
from fedmls.checks import whole
from fedmls.experiments import figures, results
from fedmls.problem import Problem
from fedmls.sweep import sweep
from fedmls.types import Algorithm, Array

CLIENTS = 10
BATCH = 0.1
LAM0 = (0.1, 1.0, 10.0)
ETA0 = (1e-4, 1e-3, 1e-2)


class Series(NamedTuple):
    """One curve of the figure: a method in one reading ("text", "code", or "" where they agree) and its parameter."""

    method: str
    reading: str
    parameter: str
    algorithm: Algorithm


def series() -> list[Series]:
    """Every curve, the methods in the paper's order."""
    curves = [Series("FedMLS", "", f"λ₀ = {v:g}", FedMLS(lam0=v)) for v in LAM0]
    for eta0 in ETA0:
        parameter = f"η₀ = {eta0:g}"
        curves += [
            Series("FedAvg", "", parameter, FedAvg(eta0=eta0)),
            Series("Scaffold", "text", parameter, Scaffold(eta0=eta0, decay="step")),
            Series("Scaffold", "code", parameter, Scaffold(eta0=eta0, decay="round")),
            Series("Scaffnew", "text", parameter, Scaffnew(eta0=eta0)),
            Series("Scaffnew", "code", parameter, Scaffnew(eta0=eta0, as_released=True)),
        ]
    order = ("FedMLS", "FedAvg", "Scaffold", "Scaffnew")
    return sorted(curves, key=lambda curve: (order.index(curve.method), curve.reading != "text"))


@dataclass(frozen=True)
class Accuracy:
    """The share of held-out rows that a model puts on the right side."""

    X: Array
    y: Array

    def __call__(self, x: Array) -> float:
        return float(np.mean(np.where(self.X @ x[:-1] + x[-1] > 0, 1.0, -1.0) == self.y))


class Split(NamedTuple):
    problem: Problem
    test: Accuracy | None


@lru_cache(maxsize=64)
def split(seed: int, holdout: float) -> Split:
    """The seed's problem: all rows, or a random part of them, with the other part for testing."""
    X, y = datasets.breast_cancer_wisconsin(impute=False)
    order = np.random.default_rng(seed).permutation(len(y)) if holdout else np.arange(len(y))
    test, train = np.split(order, [round(holdout * len(y))])
    means = np.nanmean(X[train], axis=0)
    X = datasets.impute_means(X, means)
    clients = partition.kmeans(X[train], CLIENTS, seed)
    problem = Problem(X[train], y[train], clients=clients, loss="hinge")
    return Split(problem, Accuracy(X[test], y[test]) if holdout else None)


def reproduce(
    out: Path, rounds: int, seeds: int, holdout: float = 0.0, jobs: int = -1, progress: bool | None = None
) -> results.Results:
    """Run what is not there yet, write the results folder, draw the figures."""
    whole("rounds", rounds)
    whole("seeds", seeds)
    if holdout and not 0.01 <= holdout <= 0.9:
        raise ValueError(
            f"holdout is {holdout!r}; it is the share of rows kept for testing: 0 for none, or from 0.01 to 0.9"
        )
    curves = series()
    runs = sweep(
        [curve.algorithm for curve in curves],
        lambda seed: split(seed, holdout).problem,
        metrics=(lambda seed: {"test_accuracy": split(seed, holdout).test}) if holdout else None,  # type: ignore[dict-item]
        rounds=rounds,
        seeds=range(seeds),
        batch=BATCH,
        jobs=jobs,
        store=out / "runs",
        progress=progress,
    )
    setup = {"rounds": rounds, "seeds": seeds, "holdout": holdout, "batch": BATCH, "clients": CLIENTS}
    labels = [curve[:3] for curve in curves for _ in range(seeds)]
    done = results.write(out, runs, labels, setup)
    figures.draw(out)
    return done


def reading(done: results.Results) -> list[str]:
    """What the figure shows, in sentences made from the numbers."""
    best = done.summary.dropna(subset="relative_gap").sort_values("relative_gap")
    lines = [
        "Best of each grid by the relative gap after the last round, and how it moved over the last half of the rounds:"
    ]
    for (method, how), rows in best.groupby(["method", "reading"], sort=False):
        name = f"{method} ({figures.TITLES[how]})" if how else method
        row = rows.iloc[0]
        fell = _halving(done.history, method, how, row["parameter"])
        lines.append(f"  {row['relative_gap']:8.1e}  {name}, {row['parameter']}: {fell}")
    return [
        *lines,
        "FedMLS alone has a guarantee for non-smooth problems with clients as unlike as these; see docs/ledger.md.",
    ]


def _halving(history: Any, method: str, how: str, parameter: str) -> str:
    """In words: the mean gap at the last round against that at half the rounds."""
    mine = history[(history["method"] == method) & (history["reading"] == how) & (history["parameter"] == parameter)]
    means = mine[~mine["diverged"]].groupby("round")["relative_gap"].mean()
    ratio = means.iloc[-1] / means.iloc[(len(means) - 1) // 2]
    if ratio > 1.1:
        return f"rose by a factor {ratio:.2g}"
    return f"fell by a factor {1 / ratio:.2g}" if ratio < 0.9 else "hardly moved"
