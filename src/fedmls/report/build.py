"""All that a report shows, as plain values made of the folders' files: numbers for the script, text for the page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmls.report import about, model, numerals, tables
from fedmls.report.chart import chart
from fedmls.report.curves import Curve, costs_of, curves_of, measures_of
from fedmls.results.read import UniformResults, read_uniform


def summarise(paths: Sequence[Path]) -> dict[str, Any]:
    folders = read_uniform(paths)
    curves = [curve for place, folder in enumerate(folders) for curve in curves_of(folder, place)]
    measures, costs = measures_of(curves), costs_of(curves)
    shown = [_shown(folder, [curve for curve in curves if curve.folder == i]) for i, folder in enumerate(folders)]
    return {
        "title": " and ".join(folder["label"] for folder in shown) if len(shown) > 1 else shown[0]["title"],
        "folders": shown,
        "chart": chart(curves, measures, costs),
        "ends": tables.ends(curves, measures, costs),
        "targets": tables.targets(curves, measures, costs),
        "held_out": [about.held_out(folder.setup.get("held_out")) for folder in folders],
        "clients": [about.clients(folder.setup.get("partition")) for folder in folders],
        "coefficients": [model.coefficients(path) for path in paths],
        "setup": about.setup([folder.setup for folder in folders]),
    }


def _shown(folder: UniformResults, curves: list[Curve]) -> dict[str, Any]:
    diverged = [f"{curve.name}: {curve.lost}" for curve in curves if curve.lost]
    title = str(folder.setup.get("title") or folder.label)
    return {
        "label": folder.label,
        "title": title,
        "lead": _lead(folder, curves),
        "diverged": diverged,
        "unfinished": folder.unfinished,
    }


def _lead(folder: UniformResults, curves: list[Curve]) -> str:
    """Return a sentence such as "360 runs: 4 methods in 18 curves, 20 seeds each, up to 1,000 rounds."""
    methods = len({curve.names[0] for curve in curves})
    seeds = max(curve.seeds.all for curve in curves)
    rounds = numerals.several(int(folder.history["round"].max()), "round")
    if len(curves) == seeds == 1:
        return f"One run of {curves[0].name}, {rounds}."
    runs = sum(curve.seeds.all for curve in curves)
    several = numerals.several
    return (
        f"{several(runs, 'run')}: {several(methods, 'method')} in {several(len(curves), 'curve')}, "
        f"{several(seeds, 'seed')} each, up to {rounds}."
    )
