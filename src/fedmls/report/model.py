"""The model on the page: its coefficients."""

from pathlib import Path
from typing import Any

import numpy as np

from fedmls.report import numerals
from fedmls.results.layout import MODEL
from fedmls.results.model import read_model

COEFFICIENTS = 40  # shown; of more those that matter most


def coefficients(folder: Path) -> dict[str, Any] | None:
    """Return the coefficients of the folder's model, in the units of the rows, those that matter most first: by how
    much a column's standard deviation moves the prediction, or by themselves where the run did not standardise.
    """
    if not (folder / MODEL).exists():
        return None
    try:
        model = read_model(folder)
    except ValueError:
        return None
    p = len(model.columns)
    slopes, standardised = model.x[:p] / model.scales, bool((model.scales != 1).any())
    order = np.argsort(-np.abs(model.x[:p]), kind="stable")[:COEFFICIENTS]
    most = max(float(np.abs(model.x[:p]).max(initial=0.0)), 1e-300)
    rows = [
        {
            "name": model.columns[i],
            "texts": [numerals.small(float(slopes[i])), *([numerals.small(float(model.x[i]))] if standardised else [])],
            "width": round(50 * abs(float(model.x[i])) / most, 2),
            "negative": bool(model.x[i] < 0),
        }
        for i in order
    ]
    start = float(model.x[p] - slopes @ model.means) if model.intercept else None
    return {
        "columns": ["Coefficient", *(["per standard deviation"] if standardised else [])],
        "rows": rows,
        "intercept": None if start is None else numerals.small(start),
        "classes": model.classes,
        "standardised": standardised,
        "left": p - len(rows),
    }
