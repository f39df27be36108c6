"""The summary of a results folder: one row per curve, as a table and as text.

One statistic is used here, in figures and in reports: the median over seeds of the runs that did not diverge, beside it
the smallest and the largest, and how many diverged. One rule says what is reached: what more than half of all seeds
came to; the number is the median over all seeds, in which those that never came there are infinite.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedmls.results.layout import LABELS
from fedmls.simulation.recorder import RESERVED
from fedmls.types import Run

TARGETS = (1e-1, 1e-2)  # relative gaps that rounds are counted to
TITLES = {"bytes_up": "MB up", "range": "smallest to largest"}  # of columns that are not called by their names
RANGE = ("smallest", "largest")  # columns of the relative gap over seeds


def median_to(values: Any, seeds: int) -> float:
    """Return the median over all seeds of what those that came to a target took; infinite if not more than half did."""
    return float(np.median([*values, *[np.inf] * (seeds - len(values))])) if seeds else np.inf


def judged(values: Any, seeds: int) -> float:
    """Return what a curve is ranked by: the median of these runs; infinite if they are not more than half of all."""
    return float(np.median(values)) if 2 * len(values) > seeds else np.inf


def summary_of(
    runs: Sequence[Run], labels: Sequence[Sequence[str]], targets: Sequence[float] = TARGETS
) -> pd.DataFrame:
    """Return one row per curve: the relative gap after the last round (median, smallest and largest over seeds), the
    median round at which it first fell to each target (empty if not more than half of the seeds got there), how many
    runs diverged, and the medians of the objective, of certified gaps and of metrics after the last round.

    Diverged runs are counted and left out of the medians at the end.
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
        gaps = last["relative_gap"]
        row["relative_gap"], row["smallest"], row["largest"] = gaps.median(), gaps.min(), gaps.max()
        for target in targets:
            reached = [first for history in finished if (first := _first_round(history, target)) is not None]
            row[f"rounds_to_{target:g}"] = median_to(reached, len(mine))
        row["local_steps"], row["bytes_up"] = last["local_steps"].median(), last["bytes_up"].median()
        row["objective"] = last["objective"].median()
        for name in (name for name in last if name == "certified_gap" or name not in RESERVED):
            row[name] = last[name].median()
        rows.append(row)
    return pd.DataFrame(rows).replace(np.inf, np.nan)


def _first_round(history: pd.DataFrame, target: float) -> float | None:
    rounds = history.loc[history["relative_gap"] <= target, "round"]
    return float(rounds.iloc[0]) if len(rounds) else None


def best(summary: pd.DataFrame, target: float | None = None) -> pd.DataFrame:
    """Return the best row of each method and variant, the best one first.

    By the rounds to the target, if there is one, then by the gap or, where f* is not known, by the objective; curves of
    which half of the runs diverged come last.
    """
    measure = "relative_gap" if summary["relative_gap"].notna().any() else "objective"
    order = [measure] if target is None else [f"rounds_to_{target:g}", measure]
    ranked = summary.assign(lost=2 * summary["diverged"] >= summary["seeds"])
    ranked = ranked.sort_values(["lost", *order], kind="stable").drop(columns="lost")
    return ranked.groupby(["method", "variant"], sort=False).head(1)


def cells(summary: pd.DataFrame) -> list[list[str]]:
    """Return the summary as text, header first, for people, without columns that say nothing."""
    return [[TITLES.get(name, name.replace("_", " ")) for name in columns_of(summary)], *_rows(summary)]


def columns_of(summary: pd.DataFrame) -> list[str]:
    """Return the columns that are shown, in order; "range" is made of the smallest and the largest gap."""
    measured = summary["relative_gap"].notna().any() or summary["diverged"].eq(summary["seeds"]).all()
    hidden = {*RANGE, "seeds", "diverged"} | ({"objective"} if measured else {"relative_gap"})
    hidden |= {name for name in ("variant", "parameter") if not summary[name].any()}
    if not measured:
        hidden |= {name for name in summary if name.startswith("rounds_to_")}
    shown = [name for name in summary if name not in hidden]
    if (summary["seeds"] - summary["diverged"]).gt(1).any() and "relative_gap" in shown:
        shown.insert(shown.index("relative_gap") + 1, "range")
    return shown


def least_important(summary: pd.DataFrame) -> list[str]:
    """Return the titles of the columns that can be done without where there is no room, in the order of their going."""
    shown = columns_of(summary)
    targets = [name for name in shown if name.startswith("rounds_to_")]
    kept = {*LABELS, "relative_gap", "objective", "certified_gap", *targets}
    metrics = [name for name in shown if name not in kept and name not in TITLES and name != "local_steps"]
    going = ["range", "local_steps", "bytes_up", *targets[:-1], "certified_gap", *targets[-1:], *reversed(metrics)]
    return [TITLES.get(name, name.replace("_", " ")) for name in going if name in shown]


def _rows(summary: pd.DataFrame) -> list[list[str]]:
    return [[_cell(row, name) for name in columns_of(summary)] for _, row in summary.iterrows()]


def _cell(row: Any, column: str) -> str:
    if column == "range":
        several = row["seeds"] - row["diverged"] > 1
        return f"{row['smallest']:.1e} to {row['largest']:.1e}" if several else "–"
    value = row[column]
    if column in LABELS:
        return str(value)
    if column.startswith("rounds_to_"):
        return f"{value:.0f}" if value == value else "not reached"
    text = _number(column, value) if value == value else "–"
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
    """Return text cells, header first, as a Markdown table."""
    header, *rows = cells
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
