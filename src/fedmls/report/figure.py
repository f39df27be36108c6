"""A figure for a paper: the best parameter of each method, one measure against one cost, as wide as is wanted."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmls.checks import at_least, unknown
from fedmls.experiments.figures import COLUMN, log_spaced, pyplot, saved, styles
from fedmls.report.curves import GAPS, MEASURES, Curve, Quantity, costs_of, curves_of, measures_of
from fedmls.results.read import read_uniform

POINTS = 200  # of a curve at most
NARROWEST = 1.5  # inches
LETTERS = 17  # of the note that fit into an inch


def draw(
    folder: Path,
    *,
    x: str = "round",
    y: str | None = None,
    methods: Sequence[str] = (),
    width: float = COLUMN,
    out: Path | None = None,
) -> list[Path]:
    """Draw the figure, as PDF and PNG; return the files.

    x: a cost: round, exchanges, bytes, local_steps or seconds.  y: a measure, or a metric of the runs; the first that
    there is unless given.  methods: those to show, by the names that the folder has; all unless given.
    width: in inches.  out: the files' name without its ending; figure-X in the folder unless given.
    """
    at_least("width", width, NARROWEST)
    (results,) = read_uniform([folder])
    curves = [curve for curve in curves_of(results, 0) if curve.rank == 0]
    cost, measure = _chosen("x", x, costs_of(curves)), _chosen("y", y, measures_of(curves))
    chosen = _named(curves, methods)
    stem = folder / f"figure-{x}" if out is None else out.with_suffix("")
    stem.parent.mkdir(parents=True, exist_ok=True)
    return _drawn(chosen, cost, measure, width, stem)


def _chosen(option: str, key: str | None, known: dict[str, Quantity]) -> tuple[str, Quantity]:
    if not known:
        raise ValueError("these results hold no objective and no gap, so there is nothing to draw")
    key = next(iter(known)) if key is None else key
    if key not in known:
        raise ValueError(unknown(option, key, known))
    return key, known[key]


def _named(curves: list[Curve], methods: Sequence[str]) -> list[Curve]:
    """Return the curves of these methods, in their order; a method is named with its variant or without."""
    if not methods:
        return curves
    found = []
    for name in methods:
        mine = [curve for curve in curves if name.casefold() in (curve.group.casefold(), curve.names[0].casefold())]
        if not mine:
            raise ValueError(unknown("method", name, dict.fromkeys(curve.group for curve in curves)))
        found += mine
    return found


def _drawn(
    curves: list[Curve], cost: tuple[str, Quantity], measure: tuple[str, Quantity], width: float, stem: Path
) -> list[Path]:
    plt, rc = pyplot()
    columns = 1 if len(curves) < 3 or width < 3 else 2
    with rc:
        figure, ax = plt.subplots(figsize=(width, 0.5 * width + 0.8 + 0.16 * -(-len(curves) // columns)))
        for (colour, marker), curve in zip(styles(len(curves)), curves, strict=True):
            _line(ax, curve, cost[0], measure[0], colour, marker)
        ax.set_xscale("log")
        if measure[0] in GAPS or measure[0] in MEASURES:
            ax.set_yscale("log")
        ax.minorticks_off()
        ax.set_xlabel(cost[1].axis)
        ax.set_ylabel(measure[1].axis)
        figure.legend(loc="outside upper left", fontsize=7, ncols=columns, columnspacing=1.0)
        figure.supxlabel(textwrap.fill(_note(curves), int(LETTERS * width)), fontsize=7, color="0.4")
        return saved(figure, stem)


def _line(ax: Any, curve: Curve, cost: str, measure: str, colour: Any, marker: str) -> None:
    """Draw the median over seeds, with a band from the smallest to the largest."""
    label = curve.name + (f" ({curve.lost})" if curve.lost else "")
    if curve.runs.empty or measure not in curve.runs or cost not in curve.runs:
        ax.plot([], [], color=colour, marker=marker, label=label)
        return
    runs = curve.runs.drop_duplicates(["round", "seed"], keep="last").assign(at=lambda rows: rows["round"])
    wide = runs.set_index(["at", "seed"])[list(dict.fromkeys([cost, measure]))].astype(float).unstack("seed")
    kept = log_spaced(len(wide), POINTS)
    x, values = wide[cost].median(axis=1).cummax().iloc[kept], wide[measure].ffill().iloc[kept]
    low, middle, high = (values.quantile(q, axis=1) for q in (0.0, 0.5, 1.0))
    ax.plot(x, middle, color=colour, lw=1.4, marker=marker, markevery=max(1, len(kept) // 6), ms=4, label=label)
    ax.fill_between(x, low.clip(lower=1e-16), high, color=colour, alpha=0.15, lw=0)


def _note(curves: list[Curve]) -> str:
    seeds = max(curve.seeds.all for curve in curves)
    return f"median over {seeds} seeds; bands from the smallest to the largest" if seeds > 1 else "one seed"
