"""A federation's model on the page: its scores on held-out rows, and its coefficients."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedmls.checks import real
from fedmls.report import numerals
from fedmls.results.layout import MODEL
from fedmls.results.model import read_model

COEFFICIENTS = 40  # shown; of more those that matter most


def scores(setup: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the scores on held-out rows: of all together first, then of each node; None where there are none."""
    told = setup.get("held_out")
    together = told.get("together") if isinstance(told, dict) else None
    if not isinstance(told, dict) or not isinstance(together, dict):
        return None
    of_nodes = {name: one for name, one in (told.get("nodes") or {}).items() if isinstance(one, dict)}
    names = [name for name in together.get("values") or {} if not name.endswith("_error")]
    rows = [{"name": "all nodes", "cells": _scores(together, names)}]
    rows += [{"name": name, "cells": _scores(one, names)} for name, one in of_nodes.items() if len(of_nodes) > 1]
    without = [f"without {name}: {why}" for name, why in (told.get("without") or {}).items()]
    titles = ["AUC" if name == "auc" else name.replace("_", " ").capitalize() for name in names]
    return {"columns": ["Held-out rows", *titles], "rows": rows, "notes": [*(told.get("notes") or []), *without]}


def _scores(one: Mapping[str, Any], names: list[str]) -> list[str]:
    values = one.get("values") or {}
    numbers = [real(values.get(name)) for name in names]
    texts = [numerals.NOTHING if number is None else f"{number:.3f}" for number in numbers]
    return [f"{one.get('rows', 0):,}", *texts]


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
        "left": p - len(rows),
    }
