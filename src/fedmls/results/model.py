"""The model in a results folder, and what it is a model of."""

from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np

from fedmls.files import whole_file
from fedmls.results.layout import MODEL
from fedmls.types import Array


class Model(NamedTuple):
    """A linear model: it predicts ((row - means)/scales)·x, and + x[-1] with an intercept."""

    x: Array
    columns: list[str]  # of a row
    classes: list[str]  # that -1 and +1 stand for; none where numbers are predicted
    means: Array
    scales: Array
    intercept: bool


def write_model(folder: Path, model: Model) -> None:
    """Write the model into the results folder."""
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


def model_file(path: str | Path) -> Path:
    """Return the file of a model, of which the path names the file itself or the results folder."""
    return Path(path) / MODEL if Path(path).is_dir() else Path(path)


def read_model(path: str | Path) -> Model:
    """Return the model of a results folder, or of its file."""
    file = model_file(path)
    try:
        with np.load(file, allow_pickle=False) as saved:
            x, columns, classes, means, scales, intercept = (saved[name] for name in Model._fields)
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise ValueError(f"{file} is no model of an earlier run ({error})") from None
    return Model(x, columns.tolist(), classes.tolist(), means, scales, bool(intercept))
