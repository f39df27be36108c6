"""Figures of a results folder, drawn from its files alone: PDF for papers, PNG to look at.

figure    one panel for each method (in its first variant) with a curve for each parameter
variants  the methods that have several variants, one panel for each
best      the best parameter of each method in one panel, as wide as a column of a paper
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedmls.results.layout import LABELS
from fedmls.results.read import Results, read_results
from fedmls.results.summary import best

# Colours that stay apart for colour-blind readers (Okabe and Ito), and markers for print without colour.
STYLES = (
    *(("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D")),
    *(("#E69F00", "v"), ("#56B4E9", "P"), ("#000000", "X")),
)
COLUMN = 3.5  # inches
RC = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "0.92",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "pdf.fonttype": 42,
}


class Panel(NamedTuple):
    """A panel with its curves, told apart by one of the columns."""

    title: str
    history: pd.DataFrame
    by: str = "parameter"


class Measure(NamedTuple):
    """What the figures show: the gap, or the objective where f* is not known."""

    column: str
    title: str


def draw(folder: Path, done: Results | None = None) -> list[Path]:
    """Draw all figures of the folder; return the files. If every run diverged in its first round, there are none.

    done: what the folder holds, where it was read before.
    """
    done = read_results(folder) if done is None else done
    if done.history.empty:
        return []
    history, titles = _drawn(done.history), done.setup.get("variants") or {}
    measure = Measure("relative_gap", "relative gap  (f − f*)/f*")
    if history["relative_gap"].isna().all():
        measure = Measure("objective", "objective  f")
    each = history.groupby("method", sort=False, observed=True)
    named = {str(name): mine["variant"].unique().tolist() for name, mine in each}
    main = [Panel(name, _of(history, name, variants[0])) for name, variants in named.items()]
    several = [
        Panel(f"{name}, {titles.get(variant, variant)}".rstrip(", "), _of(history, name, variant))
        for name, variants in named.items()
        if len(variants) > 1
        for variant in variants
    ]
    files = _panels(main, measure, folder / "figure")
    for old in folder.glob("variants.*"):
        old.unlink()
    if several:
        files += _panels(several, measure, folder / "variants")
    if history[measure.column].notna().any():  # otherwise all runs diverged at once
        files += _best(done._replace(history=history), measure, folder / "best")
    return files


def _drawn(history: pd.DataFrame) -> pd.DataFrame:
    """Return what is drawn of the history, with words as categories, which are quick to compare."""
    columns = [*LABELS, "seed", "diverged", "round", "local_steps", "objective", "relative_gap"]
    return history[columns].astype(dict.fromkeys(LABELS, "category"))


def _of(history: pd.DataFrame, *names: str) -> pd.DataFrame:
    """Return the rows with this method, of this variant and with this parameter, as far as they are given."""
    return history[np.logical_and.reduce([history[label] == name for label, name in zip(LABELS, names, strict=False)])]


def _panels(panels: list[Panel], measure: Measure, stem: Path) -> list[Path]:
    """Draw the measure against rounds as lines and against local steps as dots, log-log, on equal axes."""
    plt, rc = pyplot()
    columns = min(len(panels), 2 if len(panels) <= 6 else 3)
    lines = -(-len(panels) // columns)
    with rc:
        figure, axes = plt.subplots(
            lines, columns, figsize=(3.6 * columns, 2.9 * lines), sharex=True, sharey=True, squeeze=False
        )
        for ax, panel in zip(axes.flat, panels, strict=False):
            _curves(ax, panel, measure, dots=True)
            ax.set_title(panel.title, loc="left", fontsize=10)
            if (panel.history["parameter"] != "").any():
                ax.legend(fontsize=8, loc="lower left")
        for ax in axes.flat[len(panels) :]:
            ax.set_axis_off()
        for ax in axes.flat[max(0, len(panels) - columns) : len(panels)]:
            ax.set_xlabel("rounds (lines), local steps (dots)")
            ax.tick_params(labelbottom=True)
        for ax in axes[:, 0]:
            ax.set_ylabel(measure.title)
        figure.supxlabel(_note(panels[0].history), fontsize=8, color="0.4")
        return saved(figure, stem)


def _best(done: Results, measure: Measure, stem: Path) -> list[Path]:
    """Draw the measure against rounds, for the best parameter of each method and variant."""
    plt, rc = pyplot()
    keys = list(LABELS)
    chosen = best(done.summary, done.setup.get("target"))[keys]
    mine = [(_name(*names), _of(done.history, *names)) for names in chosen.to_numpy().tolist()]
    history = pd.concat([rows.assign(curve=name) for name, rows in mine], ignore_index=True)
    columns = 1 if len(mine) < 3 else 2
    with rc:
        figure, ax = plt.subplots(figsize=(COLUMN, 2.3 + 0.16 * -(-len(mine) // columns)))
        _curves(ax, Panel("", history, "curve"), measure, dots=False)
        ax.set_xlabel("rounds")
        ax.set_ylabel(measure.title)
        figure.legend(loc="outside upper left", fontsize=7, ncols=columns, columnspacing=1.0)
        figure.supxlabel(_note(history), fontsize=7, color="0.4")
        return saved(figure, stem)


def _name(method: str, variant: str, parameter: str) -> str:
    return ", ".join(filter(None, [f"{method} ({variant})" if variant else method, parameter]))


def _note(history: pd.DataFrame) -> str:
    seeds = history["seed"].nunique()
    return f"median over {seeds} seeds; bands from the smallest to the largest" if seeds > 1 else "one seed"


def pyplot() -> tuple[Any, Any]:
    """Return Matplotlib without a window, and its settings to draw with."""
    import matplotlib as mpl

    mpl.use("Agg", force=False)
    import matplotlib.pyplot as plt

    return plt, mpl.rc_context(RC)


def saved(figure: Any, stem: Path) -> list[Path]:
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, for both files
    files = [stem.with_suffix(".png"), stem.with_suffix(".pdf")]
    for file in files:
        figure.savefig(file, dpi=200)
    pyplot()[0].close(figure)
    return files


def _curves(ax: Any, panel: Panel, measure: Measure, dots: bool) -> None:
    seeds = panel.history["seed"].nunique()
    finite = panel.history[~panel.history["diverged"]]
    names = panel.history[panel.by].unique()
    for (colour, marker), name in zip(styles(len(names)), names, strict=True):
        mine = finite[finite[panel.by] == name]
        if mine.empty:
            ax.plot([], [], color=colour, marker=marker, label=f"{name}: diverged")
            continue
        values, steps = _per_round(mine, measure.column), _per_round(mine, "local_steps").median(axis=1)
        kept = log_spaced(len(values), 60)
        middle, low, high = (values.iloc[kept].quantile(q, axis=1) for q in (0.5, 0.0, 1.0))
        lost = seeds - mine["seed"].nunique()
        label = f"{name} ({lost} of {seeds} diverged)" if lost else name
        ax.plot(middle.index, middle, color=colour, lw=1.4, marker=marker, markevery=12, ms=4, label=label)
        ax.fill_between(middle.index, low.clip(lower=1e-16), high, color=colour, alpha=0.15, lw=0)
        if dots:
            ax.plot(steps.iloc[kept].iloc[::2], middle.iloc[::2], ls="", marker=".", ms=3, color=colour)
    if (finite[measure.column] > 0).any():
        ax.set_xscale("log")
        ax.set_yscale("log")
    ax.minorticks_off()


def _per_round(history: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the column by round and seed; a run that ended early stays where it was."""
    return history.pivot(index="round", columns="seed", values=column).ffill()


def styles(curves: int) -> list[tuple[Any, str]]:
    """Return a colour and a marker for each curve; more than there are colours get shades from dark to light."""
    if curves <= len(STYLES):
        return list(STYLES[:curves])
    import matplotlib as mpl

    shades = mpl.colormaps["viridis"](np.linspace(0, 0.9, curves))
    return [(tuple(shade), STYLES[i % len(STYLES)][1]) for i, shade in enumerate(shades)]


def log_spaced(count: int, points: int) -> Any:
    """Return up to so many places out of 0..count-1, evenly on a logarithmic axis."""
    return np.unique(np.geomspace(1, count, points).round().astype(int)) - 1
