"""Figures of a results folder, drawn from its files alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmls.experiments.results import read

# Colours that stay apart for colour-blind readers (Okabe and Ito), and markers for print without colour.
STYLES = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"))
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
TITLES = {"text": "as in the paper's text", "code": "as in the released code"}


def draw(folder: Path) -> list[Path]:
    """figure.*: one panel per method, in the text's reading; readings.*: the methods that have two."""
    history = read(folder).history
    read_in = history.groupby("method")["reading"].nunique()
    main = history[history["reading"] != "code"]
    methods = [(name, main[main["method"] == name], name) for name in main["method"].unique()]
    two = [
        (name, history[(history["method"] == name) & (history["reading"] == reading)], f"{name}, {TITLES[reading]}")
        for name in history["method"].unique()
        if read_in[name] > 1
        for reading in ("text", "code")
    ]
    files = _panels(methods, folder / "figure")
    return files + (_panels(two, folder / "readings") if two else [])


def _panels(panels: list[tuple[str, pd.DataFrame, str]], stem: Path) -> list[Path]:
    """Relative gap against rounds as lines and against local steps as dots, log-log, on equal axes."""
    import matplotlib as mpl

    mpl.use("Agg", force=False)
    import matplotlib.pyplot as plt

    columns = 2 if len(panels) > 2 else len(panels)
    lines = -(-len(panels) // columns)
    with mpl.rc_context(RC):
        figure, axes = plt.subplots(
            lines, columns, figsize=(3.6 * columns, 2.9 * lines), sharex=True, sharey=True, squeeze=False
        )
        for ax, (_, history, title) in zip(axes.flat, panels, strict=False):
            _panel(ax, history)
            ax.set_title(title, loc="left", fontsize=10)
        for ax in axes[-1]:
            ax.set_xlabel("rounds (lines), local steps (dots)")
        for ax in axes[:, 0]:
            ax.set_ylabel("relative gap  (f − f*)/f*")
        seeds = panels[0][1]["seed"].nunique()
        figure.supxlabel(f"mean over {seeds} seeds; bands from the smallest to the largest", fontsize=8, color="0.4")
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out once, for both files
        files = [stem.with_suffix(".png"), stem.with_suffix(".pdf")]
        for file in files:
            figure.savefig(file, dpi=200)
        plt.close(figure)
    return files


def _panel(ax: Any, history: pd.DataFrame) -> None:
    seeds = history["seed"].nunique()
    finite = history[~history["diverged"]]
    for (colour, marker), name in zip(STYLES, history["parameter"].unique(), strict=False):
        mine = finite[finite["parameter"] == name]
        if mine.empty:
            ax.plot([], [], color=colour, marker=marker, label=f"{name}: diverged")
            continue
        per_round = mine.groupby("round").agg({"relative_gap": ["mean", "min", "max"], "local_steps": "mean"})
        kept = per_round.iloc[_log_spaced(len(per_round), 60)]
        gap = kept["relative_gap"]
        lost = seeds - mine["seed"].nunique()
        label = f"{name} ({lost} of {seeds} diverged)" if lost else name
        ax.plot(kept.index, gap["mean"], color=colour, lw=1.4, marker=marker, markevery=12, ms=4, label=label)
        ax.fill_between(kept.index, gap["min"].clip(lower=1e-16), gap["max"], color=colour, alpha=0.15, lw=0)
        ax.plot(kept["local_steps"].iloc[::2], gap["mean"].iloc[::2], ls="", marker=".", ms=3, color=colour)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.minorticks_off()
    ax.legend(fontsize=8, loc="lower left")


def _log_spaced(count: int, points: int) -> Any:
    """Up to so many places out of 0..count-1, evenly on a logarithmic axis."""
    return np.unique(np.geomspace(1, count, points).round().astype(int)) - 1
