"""Writes a results folder. Every file is there whole or not at all."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmls.files import whole_file
from fedmls.problem import Problem
from fedmls.results import latex
from fedmls.results.held_out import HeldOutScores
from fedmls.results.layout import CHOSEN, HISTORY, LABELS, POINTS, PROBLEMS, SUMMARY, SUMMARY_LATEX, SUMMARY_TEXT
from fedmls.results.read import Results
from fedmls.results.setup import PACKAGES as PACKAGES
from fedmls.results.setup import write_setup as write_setup
from fedmls.results.summary import TARGETS, cells, markdown, summary_of
from fedmls.simulation.sweeps import joined_histories
from fedmls.types import Run


def write_results(
    folder: Path,
    runs: Sequence[Run],
    labels: Sequence[Sequence[str]],
    setup: Mapping[str, Any],
    targets: Sequence[float] = TARGETS,
) -> Results:
    """Write the history, the summary and the set-up; ``labels`` has (method, variant, parameter) for each run."""
    history = write_history(folder, runs, labels)
    summary = write_summary(folder, runs, labels, targets)
    return Results(folder, history, summary, write_setup(folder, setup))


def write_history(folder: Path, runs: Sequence[Run], labels: Sequence[Sequence[str]]) -> pd.DataFrame:
    """Write all histories as one table, the labels of each run in front; return the table."""
    history: pd.DataFrame = joined_histories(runs, dict(zip(LABELS, zip(*labels, strict=True), strict=True)))
    _write_parquet(folder / HISTORY, history)
    return history


def write_summary(
    folder: Path,
    runs: Sequence[Run],
    labels: Sequence[Sequence[str]],
    targets: Sequence[float] = TARGETS,
    held_out: HeldOutScores | None = None,
) -> pd.DataFrame:
    """Write one row per curve, as a table, for papers and as text to read, which goes on with scores on held-out rows;
    return the table.
    """
    summary = summary_of(runs, labels, targets)
    shown = cells(summary)
    _write_csv(folder / SUMMARY, summary)
    text = markdown(shown)
    if held_out is not None:
        text += "\n" + markdown(held_out.cells()) + "".join(f"\n- {remark}" for remark in held_out.remarks())
    _write_text(folder / SUMMARY_TEXT, text.rstrip("\n") + "\n")
    _write_text(folder / SUMMARY_LATEX, latex.table(shown, words=sum(name in LABELS for name in shown[0])))
    return summary


def write_comparison(
    folder: Path, points: pd.DataFrame, chosen: pd.DataFrame, problems: pd.DataFrame, setup: Mapping[str, Any]
) -> None:
    """Write the tables of a comparison: every grid point, the best ones, the problems; and the set-up."""
    _write_parquet(folder / POINTS, points)
    _write_csv(folder / CHOSEN, chosen)
    _write_csv(folder / PROBLEMS, problems)
    write_setup(folder, setup)


def partition_table(problem: Problem, classes: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return each client's name, rows and labels, for the set-up: counts of the classes, or the smallest, the median
    and the largest number.

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


def _write_parquet(file: Path, frame: pd.DataFrame) -> None:
    with whole_file(file) as stream:
        frame.to_parquet(stream, index=False)


def _write_csv(file: Path, frame: pd.DataFrame) -> None:
    _write_text(file, frame.to_csv(index=False))


def _write_text(file: Path, text: str) -> None:
    with whole_file(file) as stream:
        stream.write(text.encode())
