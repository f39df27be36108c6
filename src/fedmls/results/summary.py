"""The summary of a results folder: one row per curve, as a table and as text."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedmls.results.layout import LABELS
from fedmls.simulation.recorder import RESERVED
from fedmls.types import Run

TARGETS = (1e-1, 1e-2)  # relative gaps that rounds are counted to
TITLES = {"bytes_up": "MB up"}  # of columns that are not called by their names


def summary_of(
    runs: Sequence[Run], labels: Sequence[Sequence[str]], targets: Sequence[float] = TARGETS
) -> pd.DataFrame:
    """Return one row per curve: the relative gap after the last round (mean, standard deviation over seeds), the median
    round at which it first fell to each target (empty if not even half of the seeds got there), how many runs diverged,
    and the means of the objective, of certified gaps and of metrics after the last round.

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
    """Return the best row of each method and variant, the best one first.

    By the rounds to the target, if there is one, then by the gap or, where f* is not known, by the objective.
    """
    measure = "relative_gap" if summary["relative_gap"].notna().any() else "objective"
    order = [measure] if target is None else [f"rounds_to_{target:g}", measure]
    ranked = summary.sort_values(order, kind="stable")
    return ranked.groupby(["method", "variant"], sort=False).head(1)


def cells(summary: pd.DataFrame) -> list[list[str]]:
    """Return the summary as text, header first, for Markdown and the terminal, without columns that say nothing."""
    measured = summary["relative_gap"].notna().any() or summary["diverged"].eq(summary["seeds"]).all()
    hidden = {"spread", "seeds", "diverged"} | ({"objective"} if measured else {"relative_gap"})
    hidden |= {name for name in ("variant", "parameter") if not summary[name].any()}
    if not measured:
        hidden |= {name for name in summary if name.startswith("rounds_to_")}
    columns = [name for name in summary if name not in hidden]
    header = [TITLES.get(name, name.replace("_", " ")) for name in columns]
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
    """Return text cells, header first, as a Markdown table."""
    header, *rows = cells
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
