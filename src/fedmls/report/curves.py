"""The curves of results folders, and what is measured along them.

A curve is a method in one variant with one parameter; its runs differ in their seeds.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedmls.report import numerals
from fedmls.results.layout import LABELS, Labels
from fedmls.results.read import Seeds, UniformResults
from fedmls.results.summary import judged, median_to
from fedmls.simulation.recorder import RESERVED


class Quantity(NamedTuple):
    title: str
    axis: str
    about: str
    written: Callable[[float], str]


Quantities = dict[str, Quantity]
COSTS: Quantities = {
    "round": Quantity("Rounds", "rounds", "", numerals.count),
    "exchanges": Quantity(
        "Exchanges", "exchanges", "Messages to and from every client so far; paired rounds share one.", numerals.count
    ),
    "bytes": Quantity("Bytes", "bytes", "Bytes sent so far, up and down, all clients together.", numerals.size),
    "local_steps": Quantity("Local steps", "local steps", "Local steps of the busiest client so far.", numerals.count),
    "seconds": Quantity(
        "Seconds", "seconds", "Wall-clock time so far, whatever else the machine was doing.", numerals.seconds
    ),
}
MEASURES: Quantities = {
    "relative_gap": Quantity(
        "Relative gap", "relative gap (f − f*)/|f*|", "How far the objective is above the optimum f*.", numerals.small
    ),
    "certified_gap": Quantity(
        "Certified gap", "certified gap", "f minus a lower bound on f* that the run itself has proved.", numerals.small
    ),
    "objective": Quantity("Objective", "objective f", "The objective f at the model.", numerals.small),
}
GAPS = ("relative_gap", "certified_gap")
NO_METRICS = {*RESERVED, *LABELS, "reading", "algorithm", "parameters", "seed", "diverged", "bytes"}


class Curve(NamedTuple):
    """One curve of a report: the runs of a method in one variant with one parameter.

    runs: the history of those that did not diverge.  ends: the last row of each.

    rank: the curve's place among the parameters of its method, from 0 for the smallest median at the end.
    """

    folder: int
    names: Labels
    seeds: Seeds
    runs: pd.DataFrame
    ends: pd.DataFrame
    rank: int = 0

    @property
    def group(self) -> str:
        """The method in its variant, for which a parameter is chosen."""
        return ", ".join(name for name in self.names[:2] if name)

    @property
    def parameter(self) -> str:
        return self.names[2]

    @property
    def name(self) -> str:
        return ", ".join(name for name in self.names if name)

    @property
    def lost(self) -> str:
        """A note on runs that diverged; empty without any."""
        if not self.seeds.diverged:
            return ""
        some = "all" if self.seeds.diverged == self.seeds.all else f"{self.seeds.diverged} of"
        return f"{some} {self.seeds.all} diverged"


def curves_of(folder: UniformResults, place: int) -> list[Curve]:
    """Return the curves of a folder, in the order of the experiment."""
    parts = dict(iter(folder.history.groupby(list(LABELS), sort=False)))
    found = []
    for names, seeds in folder.seeds.items():
        mine = parts.get(names, folder.history.iloc[:0])
        runs = mine[~mine["diverged"]].replace([np.inf, -np.inf], np.nan)
        runs = runs.sort_values(["seed", "round"], kind="stable")
        found.append(Curve(place, names, seeds, runs, runs.groupby("seed").last()))
    return _ranked(found)


def _ranked(curves: list[Curve]) -> list[Curve]:
    judge = next(iter(measures_of(curves)), "")
    ranks: dict[Labels, int] = {}
    for group in groups_of(curves):
        mine = [curve for curve in curves if curve.group == group]
        mine.sort(key=lambda curve: median_end(curve, judge))
        ranks |= {curve.names: rank for rank, curve in enumerate(mine)}
    return [curve._replace(rank=ranks[curve.names]) for curve in curves]


def groups_of(curves: Iterable[Curve]) -> list[str]:
    return list(dict.fromkeys(curve.group for curve in curves))


def measures_of(curves: Sequence[Curve]) -> Quantities:
    """Return what was measured; the first is what curves are judged by."""
    columns = {str(key): None for curve in curves for key in curve.runs.select_dtypes("number").columns}
    titles = {key: key.replace("_", " ") for key in columns if key not in NO_METRICS}
    metrics = {key: Quantity(title.capitalize(), title, "", numerals.small) for key, title in titles.items()}
    return {
        key: quantity
        for key, quantity in (MEASURES | metrics).items()
        if any(np.isfinite(column(curve.runs, key)).any() for curve in curves)
    }


def costs_of(curves: Sequence[Curve]) -> Quantities:
    def is_counted(key: str) -> bool:
        return key == "round" or any((column(curve.runs, key) > 0).any() for curve in curves)

    return {key: quantity for key, quantity in COSTS.items() if is_counted(key)}


def column(frame: pd.DataFrame, key: str) -> Any:
    """Return the column as floats, NaN where there is no such column."""
    return frame[key].to_numpy(float) if key in frame else np.full(len(frame), np.nan)


def median_end(curve: Curve, key: str) -> float:
    """Return the median over seeds at the end; infinite if half of the runs diverged or were not measured."""
    return judged(_finite(column(curve.ends, key)), curve.seeds.all)


def median_cost(curve: Curve, values: Any) -> float:
    """Return the median over all seeds of what those that came to a target took; infinite if not more than half did."""
    return median_to(_finite(values), curve.seeds.all)


def _finite(values: Any) -> Any:
    return values[np.isfinite(values)]
