"""Performance profiles.

Dolan, Moré, "Benchmarking optimization software with performance profiles" (Math. Prog. 2002).
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmls.benchmark.methods import method_of
from fedmls.experiments.figures import RC

# Colours that stay apart for colour-blind readers (Okabe and Ito); markers and dashes for print without colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "os^DvP*X<>phd8"
MOST = 16.0  # the largest ratio shown


def ratios(costs: pd.DataFrame) -> pd.DataFrame:
    """Each cost over the smallest of its row; rows that no method reached are left out."""
    best = costs.min(axis=1)
    reached = np.isfinite(best)
    return costs[reached].div(best[reached], axis=0)


def share_within(ratio: Any, tau: Any) -> Any:
    """ρ(τ): the share of pairs on which the ratio is at most τ, for every τ."""
    ordered = np.sort(np.asarray(ratio, dtype=float))
    return np.searchsorted(ordered, np.asarray(tau) * (1 + 1e-12), side="right") / max(1, len(ordered))


def draw(costs: pd.DataFrame, cost: str, stem: Path) -> list[Path]:
    """The profile of every column as a curve; the legend in the order of the curves at τ = 2."""
    import matplotlib as mpl

    mpl.use("Agg", force=False)
    import matplotlib.pyplot as plt

    found = ratios(costs)
    tau = np.geomspace(1, MOST, 400)
    order = sorted(costs.columns, key=lambda name: (-share_within(found[name], 2.0), -share_within(found[name], MOST)))
    with mpl.rc_context(RC):
        figure, ax = plt.subplots(figsize=(6.8, max(3.9, 0.2 * len(order) + 0.5)))  # the legend must fit
        for name in order:
            _curve(ax, name, list(costs.columns).index(name), len(order), order.index(name), tau, found[name])
        ax.set_xscale("log", base=2)
        ax.set_xlim(1, MOST)
        ax.set_ylim(-0.02, 1.02)
        ticks = [2.0**i for i in range(int(np.log2(MOST)) + 1)]
        ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
        ax.set_xlabel(f"τ: at most so many times the {cost} of the best method")
        ax.set_ylabel("share of problem and target pairs")
        ax.set_title(f"{len(found)} pairs that some method reached", loc="left", fontsize=9, color="0.3")
        ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8, handlelength=4.2, labelspacing=0.7)
        files = [stem.with_suffix(".png"), stem.with_suffix(".pdf")]
        for file in files:
            figure.savefig(file, dpi=200)
        plt.close(figure)
    return files


def _curve(ax: Any, name: str, style: int, curves: int, rank: int, tau: Any, ratio: Any) -> None:
    """Methods of this package are solid and thicker; markers of different curves sit at different places."""
    ours = method_of(name).ours
    every = len(tau) // 4
    ax.step(
        tau,
        share_within(ratio, tau),
        where="post",
        color=COLOURS[style % len(COLOURS)],
        marker=MARKERS[style % len(MARKERS)],
        markevery=(rank * every // max(1, curves), every),
        ms=4.5,
        lw=2.0 if ours else 1.2,
        ls="-" if ours == "auto" else (0, (3.5, 1)) if ours else (0, (1.2, 1.2)),
        label=method_of(name).title,
    )
