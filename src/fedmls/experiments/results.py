"""A results folder: all histories (Parquet), the summary (CSV and Markdown) and the set-up, to be read by anyone.

runs/            one file per finished run, kept as it finishes
history.parquet  every recorded round of every run, with the names of its curve: method, variant and parameter
summary.csv      one row per curve; summary.md is the same table to read
setup.json       the experiment, the problem with its clients, f*, versions
"""

import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedmls.files import whole_file
from fedmls.problem import Problem
from fedmls.simulation.recorder import RESERVED
from fedmls.simulation.sweeps import table
from fedmls.types import Run

LABELS = ("method", "variant", "parameter")
TARGETS = (1e-1, 1e-2)
PACKAGES = ("fedmls", "numpy", "scipy", "numba", "pandas", "scikit-learn")


class Results(NamedTuple):
    folder: Path
    history: pd.DataFrame
    summary: pd.DataFrame
    setup: dict[str, Any]


def write(
    folder: Path,
    runs: Sequence[Run],
    labels: Sequence[Sequence[str]],
    setup: Mapping[str, Any],
    targets: Sequence[float] = TARGETS,
) -> Results:
    """Write the folder's files from the runs; ``labels`` has (method, variant, parameter) for each run."""
    folder.mkdir(parents=True, exist_ok=True)
    frames = [labelled(table([run]), names) for run, names in zip(runs, labels, strict=True)]
    history = pd.concat([frame for frame in frames if len(frame)] or frames, ignore_index=True)
    with whole_file(folder / "history.parquet") as stream:
        history.to_parquet(stream, index=False)
    summary = summarise(runs, labels, targets)
    summary.to_csv(folder / "summary.csv", index=False)
    (folder / "summary.md").write_text(markdown(cells(summary)), encoding="utf-8")
    return Results(folder, history, summary, write_setup(folder, setup))


def labelled(history: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """The history with (method, variant, parameter) in front."""
    named = history.copy()
    for place, (label, name) in enumerate(zip(LABELS, names, strict=True)):
        named.insert(place, label, name)
    return named


def write_setup(folder: Path, setup: Mapping[str, Any]) -> dict[str, Any]:
    """setup.json: the parameters, and the versions of what computed."""
    versions = {name: version(name) for name in PACKAGES} | {"python": platform.python_version()}
    written = {**setup, "versions": versions}
    with whole_file(folder / "setup.json") as stream:
        stream.write((json.dumps(written, indent=2, ensure_ascii=False) + "\n").encode())
    return written


def read(folder: Path) -> Results:
    for name in ("history.parquet", "summary.csv", "setup.json"):
        if not (folder / name).exists():
            raise ValueError(f"{folder} holds no {name}; it is no folder of finished results")
    return Results(
        folder,
        pd.read_parquet(folder / "history.parquet"),
        pd.read_csv(
            folder / "summary.csv", keep_default_na=False, na_values=["nan", ""], dtype=dict.fromkeys(LABELS, str)
        ).fillna(dict.fromkeys(LABELS, "")),
        json.loads((folder / "setup.json").read_text(encoding="utf-8")),
    )


def partition_table(problem: Problem, classes: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Each client's name, rows and labels: counts of the classes, or the smallest, the median and the largest number.

    classes: what -1 and +1 stand for.
    """
    told = []
    for i, name in enumerate(problem.client_names):
        y = problem.y[problem.offsets[i] : problem.offsets[i + 1]]
        about: dict[str, Any] = {"client": str(name), "rows": len(y)}
        if problem.loss.is_classification:
            names = [str(one) for one in (classes or problem.classes)]
            about["classes"] = {names[0]: int((y < 0).sum()), names[1]: int((y > 0).sum())}
        else:
            about["label"] = {"min": float(y.min()), "median": float(np.median(y)), "max": float(y.max())}
        told.append(about)
    return told


def summarise(runs: Sequence[Run], labels: Sequence[Sequence[str]], targets: Sequence[float] = TARGETS) -> pd.DataFrame:
    """One row per curve: the relative gap after the last round (mean, standard deviation over seeds), the median round
    at which it first fell to each target (empty if not even half of the seeds got there), how many runs diverged, and
    the means of the objective, of certified gaps and of metrics after the last round.

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
        for target in targets:
            reached = [_first_round(history, target) for history in finished] + [np.inf] * row["diverged"]
            row[f"rounds_to_{target:g}"] = float(np.median(reached))
        row["local_steps"], row["bytes_up"] = last["local_steps"].mean(), last["bytes_up"].mean()
        row["objective"] = last["objective"].mean()
        for name in (name for name in last if name == "certified_gap" or name not in RESERVED):
            row[name] = last[name].mean()
        rows.append(row)
    return pd.DataFrame(rows).replace(np.inf, np.nan)


def _first_round(history: pd.DataFrame, target: float) -> float:
    rounds = history.loc[history["relative_gap"] <= target, "round"]
    return float(rounds.iloc[0]) if len(rounds) else np.inf


def best(summary: pd.DataFrame, target: float | None = None) -> pd.DataFrame:
    """The best row of each method and variant, the best one first.

    By the rounds to the target, if there is one, then by the gap or, where f* is not known, by the objective.
    """
    measure = "relative_gap" if summary["relative_gap"].notna().any() else "objective"
    order = [measure] if target is None else [f"rounds_to_{target:g}", measure]
    ranked = summary.sort_values(order, kind="stable")
    return ranked.groupby(["method", "variant"], sort=False).head(1)


NAMES = {"bytes_up": "MB up"}


def cells(summary: pd.DataFrame) -> list[list[str]]:
    """The summary as text, header first: what Markdown and the terminal show. Columns that say nothing are left out."""
    measured = summary["relative_gap"].notna().any() or summary["diverged"].eq(summary["seeds"]).all()
    hidden = {"spread", "seeds", "diverged"} | ({"objective"} if measured else {"relative_gap"})
    hidden |= {name for name in ("variant", "parameter") if not summary[name].any()}
    if not measured:
        hidden |= {name for name in summary if name.startswith("rounds_to_")}
    columns = [name for name in summary if name not in hidden]
    header = [NAMES.get(name, name.replace("_", " ")) for name in columns]
    return [header] + [[_cell(row, name) for name in columns] for _, row in summary.iterrows()]


def _cell(row: Any, column: str) -> str:
    value = row[column]
    if column in LABELS:
        return str(value)
    if column.startswith("rounds_to_"):
        return f"{value:.0f}" if value == value else "not reached"
    text = _number(column, value) if value == value else "–"
    if column == "relative_gap" and value == value and row["seeds"] - row["diverged"] > 1:
        text += f" ± {row['spread']:.0e}"
    if column in ("relative_gap", "objective") and row["diverged"]:
        text += f" ({row['diverged']} of {row['seeds']} diverged)"
    return text


def _number(column: str, value: float) -> str:
    if column in ("relative_gap", "certified_gap"):
        return f"{value:.2e}"
    if column == "bytes_up":
        return f"{value / 1e6:.3g}"
    if column == "local_steps":
        return f"{value:,.0f}"
    return f"{value:.3f}" if column == "test_accuracy" else f"{value:.5g}"


def markdown(cells: list[list[str]]) -> str:
    """Text cells, header first, as a Markdown table."""
    header, *rows = cells
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
