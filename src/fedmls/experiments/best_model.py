"""Which model of an experiment's runs is kept for predictions, and what it is a model of."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedmls.datasets import Data
from fedmls.datasets.files import label_text
from fedmls.problem import Problem
from fedmls.results.layout import LABELS, Labels
from fedmls.results.model import Description, Model, proof, training
from fedmls.results.summary import best
from fedmls.types import Array, Run

WHY = "the first seed of the best curve: the one with the fewest rounds to the target, or else the smallest gap"


class Preparation(NamedTuple):
    """What was done to the rows' columns, by the rows for training.

    fill: what stands in for a missing value; None if nothing does.  means, scales: None if nothing is standardised.
    """

    fill: Array | None = None
    means: Array | None = None
    scales: Array | None = None


def chosen(runs: Sequence[Run], labels: Sequence[Labels], summary: Any, target: float | None) -> int | None:
    """Return the place of the run whose model is kept: the first seed of the best curve that has not diverged; None if
    every run has.
    """
    for _, row in best(summary, target).iterrows():
        names = tuple(row[name] for name in LABELS)
        for i, (run, own) in enumerate(zip(runs, labels, strict=True)):
            if tuple(own) == names and not run.diverged and not run.error and not run.history.empty:
                return i
    return None


def described(run: Run, labels: Labels, problem: Problem, data: Data | None, prepared: Preparation) -> Description:
    """Return the model of a run with all that leads from a table to predictions.

    data: the rows; None if they are made, and their columns have no names.
    """
    p, loss = problem.penalised, problem.loss
    columns = [str(j + 1) for j in range(p)] if data is None else list(data.columns)
    classes = problem.classes if data is None or data.classes is None else data.classes
    means, scales = prepared.means, prepared.scales
    model = Model(
        run.x,
        columns,
        [label_text(one) for one in classes] if loss.is_classification else [],
        np.zeros(p) if means is None else means,
        np.ones(p) if scales is None else scales,
        problem.intercept,
    )
    about: dict[str, Any] = {"clients": problem.n, "rows": len(problem.y)}
    about |= {name: getattr(problem, name) for name in ("intercept", "l2", "l1", "reduction")}
    curve = dict(zip(LABELS, labels, strict=True))
    return Description(
        model,
        None if data is None else data.label,
        loss.name,
        loss.parameter or None,
        {} if data is None else data.levels,
        prepared.fill,
        scales is not None,
        training(run, {"how": "simulation", "curve": curve, "chosen": WHY, **about}),
        proof(run),
    )
