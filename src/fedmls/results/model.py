"""The model in a results folder, and what it is a model of.

model.npz   the numbers, for a federation to begin from
model.json  the same for people and other programs: the columns and how they are prepared, the coefficients in the
            columns' own units, the classes, how it was trained, what is proved
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np

from fedmls.datasets.categories import Column, columns_of
from fedmls.files import whole_file
from fedmls.hyperparameters import to_dict
from fedmls.results.layout import MODEL, MODEL_TEXT
from fedmls.types import Array, Run

FORMAT = 1  # of model.json


class Model(NamedTuple):
    """A linear model: it predicts ((row - means)/scales)·x, and + x[-1] with an intercept."""

    x: Array
    columns: list[str]  # of a row
    classes: list[str]  # that -1 and +1 stand for; none where numbers are predicted
    means: Array
    scales: Array
    intercept: bool

    def in_own_units(self) -> tuple[Array, float]:
        """Return the coefficients and the intercept for rows as they stand, without means and scales."""
        coefficients = self.x[: len(self.columns)] / self.scales
        constant = float(self.x[-1]) if self.intercept else 0.0
        return coefficients, constant - float(coefficients @ self.means)


class Description(NamedTuple):
    """A model, and what leads from a table to it and on to predictions.

    levels: of the columns of categories, each of which is a column of the model.  fill: what stands in for a missing
    value in each column of the model; None if nothing does.  scaled: whether it was trained on scaled columns.
    trained: how.  proved: how good it is, if that is known.
    """

    model: Model
    label: str | None
    loss: str
    loss_parameter: float | None
    levels: Mapping[str, Sequence[str]]
    fill: Array | None
    scaled: bool
    trained: Mapping[str, Any]
    proved: Mapping[str, float] | None

    @property
    def columns(self) -> list[Column]:
        """Return the columns of a table that it takes."""
        return columns_of(self.model.columns, self.levels)


def write_model(folder: Path, described: Description) -> None:
    """Write the model into the results folder, for programs and for people."""
    model = described.model
    with whole_file(folder / MODEL) as stream:
        np.savez(
            stream,
            x=model.x,
            columns=np.array(model.columns),
            classes=np.array(model.classes, dtype=str),
            means=model.means,
            scales=model.scales,
            intercept=np.array(model.intercept),
        )
    with whole_file(folder / MODEL_TEXT) as stream:
        stream.write((json.dumps(_told(described), indent=2, ensure_ascii=False) + "\n").encode())


def _told(described: Description) -> dict[str, Any]:
    """Return what model.json holds."""
    model = described.model
    coefficients, intercept = model.in_own_units()
    return {
        "format": FORMAT,
        "about": _about(described),
        "label": described.label,
        "classes": model.classes or None,
        "loss": described.loss,
        "loss_parameter": described.loss_parameter,
        "intercept": intercept,
        "coefficients": dict(zip(model.columns, coefficients.tolist(), strict=True)),
        "columns": _told_columns(described),
        "preparation": {
            "scaled": described.scaled,
            "means": model.means.tolist(),
            "scales": model.scales.tolist(),
            "x": model.x.tolist(),
            "intercept": model.intercept,
        },
        "trained": dict(described.trained),
        "proved": None if described.proved is None else dict(described.proved),
    }


def _about(described: Description) -> str:
    """Return how a row's prediction is computed from this file, in sentences."""
    score = "The score of a row is intercept + the sum of coefficient · value over its columns."
    levels = ' The value of "column=level" is 1 where the column has that level, else 0.' if described.levels else ""
    truth = " Truth values count as 1 and 0."
    gaps = " A missing value is refused." if described.fill is None else ' A missing value counts as "missing" says.'
    if not described.model.classes:
        return f"{score}{truth}{levels}{gaps} The prediction is the score."
    low, high = described.model.classes
    chance = f" The probability of {high} is 1 / (1 + exp(-score))." if described.loss == "logistic" else ""
    return f"{score}{truth}{levels}{gaps} The prediction is {high} where the score is above 0, else {low}.{chance}"


def _told_columns(described: Description) -> list[dict[str, Any]]:
    told, place = [], 0
    for column in described.columns:
        names = column.features
        fill = None if described.fill is None else described.fill[place : place + len(names)].tolist()
        place += len(names)
        if column.levels is None:
            told.append({"name": column.name, "kind": "number", "missing": None if fill is None else fill[0]})
        else:
            missing = None if fill is None else dict(zip(names, fill, strict=True))
            told.append({"name": column.name, "kind": "category", "levels": list(column.levels), "missing": missing})
    return told


def model_file(path: str | Path) -> Path:
    """Return the file of a model, of which the path names the file itself or the results folder."""
    return Path(path) / MODEL if Path(path).is_dir() else Path(path)


def read_model(path: str | Path) -> Model:
    """Return the model of a results folder, or of its file model.npz."""
    file = model_file(path)
    try:
        with np.load(file, allow_pickle=False) as saved:
            x, columns, classes, means, scales, intercept = (saved[name] for name in Model._fields)
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise ValueError(f"{file} is no model of an earlier run ({error})") from None
    return Model(x, columns.tolist(), classes.tolist(), means, scales, bool(intercept))


def read_description(folder: str | Path) -> Description:
    """Return the model of a results folder, or of its file model.json, with what it is a model of."""
    file = Path(folder)
    if not file.exists():
        raise ValueError(f"{folder} is not there; name the results folder of a run")
    file = file / MODEL_TEXT if file.is_dir() else file
    if not file.is_file():
        raise ValueError(
            f"{folder} holds no {MODEL_TEXT}; fedmls run, reproduce and federate write one when a run has ended"
        )
    try:
        return _described(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is no model ({type(error).__name__}: {error}); run it again") from None


def _described(told: Mapping[str, Any]) -> Description:
    if told["format"] != FORMAT:
        raise ValueError(f"its format is {told['format']!r}, not {FORMAT}; install the fedmls that wrote it")
    columns, prepared, names = told["columns"], told["preparation"], list(told["coefficients"])
    x, means, scales = (np.array(prepared[name], dtype=float) for name in ("x", "means", "scales"))
    fills = [_fill(one["missing"]) for one in columns]
    return Description(
        Model(x, names, told["classes"] or [], means, scales, prepared["intercept"]),
        told["label"],
        told["loss"],
        told["loss_parameter"],
        {one["name"]: tuple(one["levels"]) for one in columns if one["kind"] == "category"},
        None if None in fills else np.array([number for fill in fills for number in fill or ()]),
        prepared["scaled"],
        told["trained"],
        told["proved"],
    )


def _fill(missing: Any) -> list[float] | None:
    return None if missing is None else list(missing.values()) if isinstance(missing, dict) else [missing]


def training(run: Run, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a model was trained, as plain values: the algorithm and what its run has spent, and more."""
    counted = {} if run.history.empty else run.history.iloc[-1]
    spent = {name: int(counted[name]) for name in ("round", "exchanges", "bytes_up", "bytes_down") if name in counted}
    return {**about, "algorithm": to_dict(run.algorithm), "seed": run.seed, "batch": run.batch, **spent}


def proof(run: Run) -> dict[str, float] | None:
    """Return the objective of a run's model and how far from the best it is at most, as far as that is known."""
    if run.history.empty:
        return None
    last = run.history.iloc[-1]
    objective = float(last["objective"])
    bound = float(last["lower_bound"]) if "lower_bound" in last else -math.inf
    if math.isfinite(bound) and math.isfinite(objective):
        return {"objective": objective, "lower_bound": bound, "gap": objective - bound}
    if run.optimum is not None and math.isfinite(objective):
        return {"objective": objective, "optimum": float(run.optimum), "gap": objective - float(run.optimum)}
    return None
