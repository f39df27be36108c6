"""A results folder: all histories (Parquet), the summary (CSV and Markdown) and the set-up, to be read by anyone.

runs/            one file per finished run, kept as it finishes
history.parquet  every recorded round of every run
summary.csv      one row per curve; summary.md is the same table to read
setup.json       parameters and versions
"""

import json
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedmls.sweep import table
from fedmls.types import Run

LABELS = ("method", "reading", "parameter")
TARGETS = (1e-1, 1e-2)
PACKAGES = ("fedmls", "numpy", "scipy", "numba", "pandas", "scikit-learn")


class Results(NamedTuple):
    folder: Path
    history: pd.DataFrame
    summary: pd.DataFrame


def write(folder: Path, runs: Sequence[Run], labels: Sequence[Sequence[str]], setup: dict[str, Any]) -> Results:
    """Write the folder's files from the runs; ``labels`` has (method, reading, parameter) for each run."""
    folder.mkdir(parents=True, exist_ok=True)
    frames = []
    for run, names in zip(runs, labels, strict=True):
        frame = table([run])
        for place, (label, name) in enumerate(zip(LABELS, names, strict=True)):
            frame.insert(place, label, name)
        frames.append(frame)
    history = pd.concat([frame for frame in frames if len(frame)], ignore_index=True)
    history.to_parquet(folder / "history.parquet", index=False)
    summary = summarise(runs, labels)
    summary.to_csv(folder / "summary.csv", index=False)
    (folder / "summary.md").write_text(markdown(cells(summary)), encoding="utf-8")
    write_setup(folder, setup)
    return Results(folder, history, summary)


def write_setup(folder: Path, setup: dict[str, Any]) -> None:
    """setup.json: the parameters, and the versions of what computed."""
    versions = {name: version(name) for name in PACKAGES} | {"python": platform.python_version()}
    text = json.dumps({**setup, "versions": versions}, indent=2)
    (folder / "setup.json").write_text(text + "\n", encoding="utf-8")


def read(folder: Path) -> Results:
    return Results(
        folder,
        pd.read_parquet(folder / "history.parquet"),
        pd.read_csv(folder / "summary.csv", keep_default_na=False, na_values=["nan"]),
    )


def summarise(runs: Sequence[Run], labels: Sequence[Sequence[str]]) -> pd.DataFrame:
    """One row per curve: the relative gap after the last round (mean, standard deviation over seeds), the median round
    at which it first fell to each target (empty if not even half of the seeds got there), and how many runs diverged.

    Diverged runs are counted and left out of the means.
    """
    curves: dict[tuple[str, ...], list[Run]] = {}
    for run, names in zip(runs, labels, strict=True):
        curves.setdefault(tuple(names), []).append(run)
    rows = []
    for names, mine in curves.items():
        finished = [run.history for run in mine if not run.diverged]
        last = pd.DataFrame([history.iloc[-1] for history in finished], columns=mine[0].history.columns)
        row: dict[str, Any] = dict(zip(LABELS, names, strict=True))
        row["seeds"], row["diverged"] = len(mine), len(mine) - len(finished)
        row["relative_gap"], row["spread"] = last["relative_gap"].mean(), last["relative_gap"].std(ddof=0)
        for target in TARGETS:
            reached = [_first_round(history, target) for history in finished] + [np.inf] * row["diverged"]
            row[f"rounds_to_{target:g}"] = float(np.median(reached))
        row["local_steps"], row["bytes_up"] = last["local_steps"].mean(), last["bytes_up"].mean()
        if "test_accuracy" in last:
            row["test_accuracy"] = last["test_accuracy"].mean()
        rows.append(row)
    return pd.DataFrame(rows).replace(np.inf, np.nan)


def _first_round(history: pd.DataFrame, target: float) -> float:
    rounds = history.loc[history["relative_gap"] <= target, "round"]
    return float(rounds.iloc[0]) if len(rounds) else np.inf


def cells(summary: pd.DataFrame) -> list[list[str]]:
    """The summary as text, header first: what Markdown and the terminal show."""
    names = {
        "relative_gap": "relative gap",
        "local_steps": "local steps",
        "bytes_up": "MB up",
        "test_accuracy": "test accuracy",
    }
    columns = [c for c in summary.columns if c not in ("spread", "seeds", "diverged")]
    header = [names.get(c, c.replace("rounds_to_", "rounds to ")) for c in columns]
    return [header] + [[_cell(row, c) for c in columns] for _, row in summary.iterrows()]


def _cell(row: Any, column: str) -> str:
    value = row[column]
    if column == "relative_gap":
        lost = f" ({row['diverged']} of {row['seeds']} diverged)" if row["diverged"] else ""
        return (f"{value:.2e} ± {row['spread']:.0e}" if value == value else "–") + lost
    if column.startswith("rounds_to_"):
        return f"{value:.0f}" if value == value else "not reached"
    if column == "bytes_up":
        return f"{value / 1e6:.1f}"
    if column == "local_steps":
        return f"{value:,.0f}"
    if column == "test_accuracy":
        return f"{value:.3f}"
    return str(value)


def markdown(cells: list[list[str]]) -> str:
    """Text cells, header first, as a Markdown table."""
    header, *rows = cells
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
