"""Section 4 of the FedMLS paper: four methods on an SVM whose ten clients are k-means clusters.

The experiment is paper_svm.toml. Where the paper's text and its released code disagree (docs/ledger.md), it has both as
variants.
"""

import tomllib
from typing import Any

from fedmls.experiments.spec import Spec, make, shipped
from fedmls.results.layout import LABELS
from fedmls.results.read import Results
from fedmls.results.summary import best

FULL = 10_000  # rounds of the released code


def spec(rounds: int, seeds: int, holdout: float = 0.0) -> Spec:
    """Return the experiment, with so many rounds and seeds, and this share of the rows kept for testing."""
    values = tomllib.loads(shipped()["paper_svm"])
    data = values["data"] | ({"holdout": holdout} if holdout else {})
    return make(values | {"rounds": rounds, "seeds": seeds, "data": data})


def sentences(done: Results) -> list[str]:
    """Return what the figure shows in sentences, made from the numbers."""
    titles = done.setup["variants"]
    lines = [
        "Best of each grid by the relative gap after the last round, and how it moved over the last half of the rounds:"
    ]
    for _, row in best(done.summary.dropna(subset="relative_gap")).iterrows():
        name = f"{row['method']} ({titles[row['variant']]})" if row["variant"] else row["method"]
        lines.append(f"  {row['relative_gap']:8.1e}  {name}, {row['parameter']}: {_halving(done.history, row)}")
    return [
        *lines,
        "FedMLS alone has a guarantee for non-smooth problems with clients as unlike as these; see docs/ledger.md.",
    ]


def _halving(history: Any, row: Any) -> str:
    """Say how the median gap at the last round compares with that at half the rounds."""
    keys = list(LABELS)
    mine = history[(history[keys] == row[keys].tolist()).all(axis=1)]
    medians = mine[~mine["diverged"]].groupby("round")["relative_gap"].median()
    ratio = medians.iloc[-1] / medians.iloc[(len(medians) - 1) // 2]
    if ratio > 1.1:
        return f"rose by a factor {ratio:.2g}"
    return f"fell by a factor {1 / ratio:.2g}" if ratio < 0.9 else "hardly moved"
