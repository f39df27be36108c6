"""What the chart draws: each curve's points and how it looks.

Lines are medians over seeds. Runs that diverged are left out; a run that ended before the others keeps its last value.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmls.report.curves import GAPS, MEASURES, Curve, Quantities, groups_of

POINTS = 300  # of a curve at most, evenly on a logarithmic axis
QUANTILES = {"low": 0.0, "first": 0.25, "median": 0.5, "third": 0.75, "high": 1.0}
COLOURS = 7  # in report.css; methods differ in colour and marker
SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star")
DASHES = ("", "8px,4px", "2px,3px", "9px,3px,2px,3px", "15px,4px", "15px,3px,2px,3px,2px,3px")


def chart(curves: Sequence[Curve], measures: Quantities, costs: Quantities) -> dict[str, Any]:
    groups = groups_of(curves)
    folders = len({curve.folder for curve in curves})
    drawn = [
        {"number": number, **_look(curve, groups.index(curve.group), folders), **_points(curve, measures, costs)}
        for number, curve in enumerate(curves)
    ]
    return {
        "x": [{"key": key, **_shown(quantity)} for key, quantity in costs.items()],
        "y": [{"key": key, **_shown(quantity), **_scale(key, drawn)} for key, quantity in measures.items()],
        "curves": drawn,
        "seeds": max(curve.seeds.all for curve in curves),
    }


def _shown(quantity: Any) -> dict[str, str]:
    return {"title": quantity.title, "axis": quantity.axis, "about": quantity.about}


def _scale(key: str, drawn: list[dict[str, Any]]) -> dict[str, bool]:
    """Say whether a logarithmic axis can be had, and whether it comes first."""
    lowest = (value for curve in drawn if key in curve["y"] for value in curve["y"][key]["low"] if value is not None)
    possible = key in GAPS or min(lowest) > 0
    return {"can_log": possible, "log": possible and key in MEASURES}


def _look(curve: Curve, group: int, folders: int) -> dict[str, Any]:
    """Return how a curve looks: colour and marker by method, dashes by parameter and folder. The best is solid."""
    return {
        "folder": curve.folder,
        "place": group,
        "group": curve.group,
        "parameter": curve.parameter,
        "name": curve.name,
        "best": curve.rank == 0,
        "lost": curve.lost,
        "colour": group % COLOURS,
        "symbol": SYMBOLS[group % len(SYMBOLS)],
        "open": curve.folder % 2 == 1,
        "dash": DASHES[(curve.rank * folders + curve.folder) % len(DASHES)],
    }


def _points(curve: Curve, measures: Quantities, costs: Quantities) -> dict[str, Any]:
    """Return costs (medians of the runs that still go on) and quantiles of the measures, at some of the rounds."""
    if curve.runs.empty:
        return {"x": {}, "y": {}}
    keys = [key for key in (*measures, *costs) if key in curve.runs and key != "round"]
    runs = curve.runs.drop_duplicates(["round", "seed"], keep="last").set_index(["round", "seed"])
    wide = runs[keys].astype(float).unstack("seed")
    kept = _log_spaced(len(wide))
    x: dict[str, Any] = {"round": _plain(wide.index[kept])}
    y: dict[str, Any] = {}
    for key in keys:
        if key in costs:
            x[key] = _plain(wide[key].iloc[kept].median(axis=1).cummax())
        elif wide[key].notna().any(axis=None):
            over_seeds = wide[key].ffill().iloc[kept].quantile(list(QUANTILES.values()), axis=1)
            y[key] = {name: _plain(over_seeds.loc[q]) for name, q in QUANTILES.items()}
    return {"x": x, "y": y}


def _log_spaced(count: int) -> Any:
    """Return places out of 0..count-1, the last among them, evenly on a logarithmic axis."""
    return np.unique(np.geomspace(1, count, POINTS).round().astype(int)) - 1


def _plain(values: Any) -> list[float | int | None]:
    """Return the values with six digits, None for what is not finite."""
    short = (float(f"{value:.6g}") for value in np.asarray(values, float))
    return [None if not math.isfinite(v) else int(v) if v.is_integer() and abs(v) < 1e15 else v for v in short]
