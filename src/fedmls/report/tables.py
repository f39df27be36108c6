"""The tables of a report, as text: how curves ended, and what it took to come to each target."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedmls.report import numerals
from fedmls.report.curves import GAPS, Curve, Quantities, Quantity, column, groups_of, median_cost, median_end

TARGETS = (-1, -2, -3, -4)  # powers of ten


def ends(curves: Sequence[Curve], measures: Quantities, costs: Quantities) -> dict[str, Any]:
    """Return every curve at its end, by method, the best parameter first; the smallest of each folder is marked."""
    shown = {key: one for key, one in measures.items() if key != "objective" or "relative_gap" not in measures}
    groups, least = groups_of(curves), _least(curves, next(iter(shown), ""))
    rows = []
    for curve in sorted(curves, key=lambda curve: (groups.index(curve.group), curve.folder, curve.rank)):
        cells = [_spread(column(curve.ends, key), quantity) for key, quantity in shown.items()]
        cells += [_spread(column(curve.ends, key), quantity) | {"note": ""} for key, quantity in costs.items()]
        for cell in cells[:1]:
            cell["best"] = len(curves) > 1 and curve.names == least.get(curve.folder)
        about = {"group": curve.group, "folder": curve.folder, "parameter": curve.parameter, "lost": curve.lost}
        rows.append({**about, "best": curve.rank == 0, "cells": cells})
    return {"columns": [quantity.title for quantity in (*shown.values(), *costs.values())], "rows": rows}


def _least(curves: Sequence[Curve], key: str) -> dict[int, Any]:
    """Return for each folder the names of the curve with the smallest median at the end."""
    finite = [curve for curve in curves if math.isfinite(median_end(curve, key))]
    falling = sorted(finite, key=lambda curve: median_end(curve, key), reverse=True)
    return {curve.folder: curve.names for curve in falling}


def _spread(values: Any, quantity: Quantity) -> dict[str, Any]:
    """Return the median as text, with the least and the largest as a note."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return {"text": numerals.NOTHING, "note": "", "best": False}
    low, high = quantity.written(finite.min()), quantity.written(finite.max())
    note = f"{low} to {high}" if low != high else ""
    return {"text": quantity.written(float(np.median(finite))), "note": note, "best": False}


class Taken(NamedTuple):
    """What a curve took to a target: how many seeds came there, and the median of each cost, infinite if not more
    than half did.
    """

    curve: Curve
    reached: int
    costs: dict[str, float]


def targets(curves: Sequence[Curve], measures: Quantities, costs: Quantities) -> dict[str, Any]:
    """Return a table for each gap and cost: a row for each method, a column for each target and folder.

    For each target a method is shown with the parameter that took the fewest exchanges (rounds, where those are not
    counted), the median over seeds; the other costs are what that very parameter took, as in ``fedmls compare``.
    """
    gaps = {key: measures[key] for key in GAPS if key in measures}
    counted = {key: costs[key] for key in costs if key != "seconds"}
    made = []
    for gap, measure in gaps.items():
        chosen = _chosen(curves, gap, list(counted))
        for key, cost in counted.items():
            title = f"{cost.title} until the {measure.title.lower()} is at most"
            made.append({"gap": gap, "cost": key, "title": title, "rows": _rows(chosen, key, cost)})
    return {
        "heads": [numerals.power(exponent) for exponent in TARGETS],
        "gaps": [{"key": key, "title": quantity.title} for key, quantity in gaps.items()],
        "costs": [{"key": key, "title": quantity.title} for key, quantity in counted.items()],
        "tables": made,
    }


def _chosen(curves: Sequence[Curve], gap: str, costs: list[str]) -> dict[str, list[Taken | str]]:
    """Return what each method took to each target in each folder, target by target; or why there is nothing."""
    judge = "exchanges" if "exchanges" in costs else costs[0]
    chosen: dict[str, list[Taken | str]] = {}
    for group in groups_of(curves):
        cells: list[Taken | str] = []
        for exponent in TARGETS:
            for folder in sorted({curve.folder for curve in curves}):
                mine = [curve for curve in curves if (curve.group, curve.folder) == (group, folder)]
                measured = [curve for curve in mine if curve.runs.empty or np.isfinite(column(curve.runs, gap)).any()]
                taken = [_taken(curve, gap, 10.0**exponent, costs) for curve in measured]
                least = min(taken, key=lambda one: (one.costs[judge], -one.reached), default=None)
                cells.append(least or ("not measured" if mine else "not run"))
        if any(isinstance(cell, Taken) for cell in cells):
            chosen[group] = cells
    return chosen


def _taken(curve: Curve, gap: str, target: float, costs: list[str]) -> Taken:
    first = curve.runs[column(curve.runs, gap) <= target].drop_duplicates("seed")
    return Taken(curve, len(first), {key: median_cost(curve, column(first, key)) for key in costs})


def _rows(chosen: dict[str, list[Taken | str]], cost: str, quantity: Quantity) -> list[dict[str, Any]]:
    taken = {
        group: [c.costs[cost] if isinstance(c, Taken) else math.inf for c in cells] for group, cells in chosen.items()
    }
    least = [min(values) for values in zip(*taken.values(), strict=True)]
    return [
        {"group": group, "cells": [_cell(c, cost, quantity, best) for c, best in zip(cells, least, strict=True)]}
        for group, cells in chosen.items()
    ]


def _cell(one: Taken | str, cost: str, quantity: Quantity, least: float) -> dict[str, Any]:
    if isinstance(one, str):
        return {"text": one, "note": "", "best": False, "reached": False}
    value = one.costs[cost]
    if math.isfinite(value):
        return {"text": quantity.written(value), "note": one.curve.parameter, "best": value == least, "reached": True}
    some = f"{one.reached} of {one.curve.seeds.all} seeds did" if one.reached else ""
    return {"text": "not reached", "note": some, "best": False, "reached": False}
