"""Scores of a model on held-out rows, made of sums over these rows, which can be added up over nodes.

Classes: how many rows of each class are predicted to be of each give accuracy and balanced accuracy. The area under the
ROC curve (AUC) is the share of pairs, a row of either class, whose predictions stand in the right order; it is made of
histograms of the predictions over fixed bins. A node that the server sees by itself takes at least ``least`` rows
together, neighbours by their predictions, and tells in which bins such a group begins and ends, and how many of its
rows are of each class. The order of two rows in one bin, in one group, or in groups that overlap is not known; so the
AUC is told with the largest error that it may have.

Numbers: absolute and squared errors; for a quantile also its coverage, the share of labels at most as large as their
predictions.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from fedmls.federation.codec import MessageError
from fedmls.losses import PINBALL, Loss
from fedmls.types import Array

# From 2^-8 to 2^8, where the predictions of classes are, edges are 3 to 6 % apart, and the same bits on every machine.
POWERS = np.ldexp(1 + np.arange(16) / 16, np.arange(-8, 8)[:, None]).ravel()
EDGES: Array = np.concatenate([-POWERS[::-1], [0.0], POWERS])
BINS = len(EDGES) + 1


class ClassSums(NamedTuple):
    """confusion: rows by their class and by the predicted one, -1 first.

    lowest, highest: rows by their class and by the first and the last bin in which their prediction may be.
    """

    confusion: Array
    lowest: Array
    highest: Array


class NumberSums(NamedTuple):
    """covered: how many labels are at most as large as their predictions."""

    rows: float
    absolute: float
    squared: float
    covered: float


def class_sums(predictions: Array, labels: Array, least: int | None) -> Array:
    """Return the sums over rows of these predictions and labels, -1 and +1, as one vector.

    least: of how many rows a group is at least; None: every row in its own bin, told once.
    """
    order = np.argsort(predictions, kind="stable")
    positive, predicted = labels[order] > 0, predictions[order] > 0
    bins = np.searchsorted(EDGES, predictions[order])
    ends = [bins] if least is None else _groups(bins, least)
    told = [np.bincount(end[positive == label], minlength=BINS) for end in ends for label in (False, True)]
    return np.concatenate([np.bincount(2 * positive + predicted, minlength=4), *told]).astype(float)


def _groups(bins: Any, least: int) -> list[Any]:
    """Return for each row, given their bins in order, the first and the last bin of its group.

    The last group is of up to twice as many rows as the others.
    """
    m = len(bins)
    most = max(m // least - 1, 0)  # the number of the last group
    group = np.minimum(np.arange(m) // least, most)
    stops = np.where(group == most, m, (group + 1) * least)
    return [bins[group * least], bins[stops - 1]]


def number_sums(predictions: Array, labels: Array) -> Array:
    """Return the sums over rows of these predictions and labels, which are numbers."""
    with np.errstate(over="ignore", invalid="ignore"):
        r = predictions - labels
        return np.array([len(r), np.abs(r).sum(), (r**2).sum(), (r >= 0).sum()], dtype=float)


def sums_size(loss: Loss, secure: bool) -> int:
    """Return how many numbers the sums are."""
    return 4 + (2 if secure else 4) * BINS if loss.is_classification else len(NumberSums._fields)


def check_sums(sums: Array, loss: Loss, most: int) -> Array:
    """Return the sums, if there are rows that they may be of, at most so many; raise a MessageError otherwise."""
    if not (sums >= 0).all():
        raise MessageError("the sums over held-out rows hold negative numbers")
    if loss.is_classification:
        found = _class_sums(sums)
        counts, by_class = sums, found.confusion.sum(axis=1)
        fit = all((found_in.sum(axis=1) == by_class).all() for found_in in (found.lowest, found.highest))
    else:
        numbers = NumberSums(*sums.tolist())
        counts, fit = np.array([numbers.rows, numbers.covered]), numbers.covered <= numbers.rows
    if not fit or (counts != np.rint(counts)).any() or rows_of(sums, loss) > most:
        raise MessageError(f"the sums over held-out rows are of no rows, or of more than {most}")
    return sums


def _class_sums(sums: Array) -> ClassSums:
    told = sums[4:].reshape(-1, 2, BINS)
    return ClassSums(sums[:4].reshape(2, 2), told[0], told[-1])


def rows_of(sums: Array, loss: Loss) -> int:
    """Return of how many rows the sums are."""
    return int(sums[:4].sum() if loss.is_classification else sums[0])


def scores_of(sums: Array, loss: Loss) -> dict[str, float]:
    """Return the scores by name, without those that these rows do not tell: of one class alone, or of none at all."""
    rows = rows_of(sums, loss)
    if not rows:
        return {}
    if loss.is_classification:
        return _class_scores(_class_sums(sums))
    _, absolute, squared, covered = sums.tolist()
    scores = {"mean_absolute_error": absolute / rows, "mean_squared_error": squared / rows}
    return {"coverage": covered / rows} | scores if loss.code == PINBALL else scores


def _class_scores(sums: ClassSums) -> dict[str, float]:
    right, by_class = np.diag(sums.confusion), sums.confusion.sum(axis=1)
    scores = {"accuracy": float(right.sum() / by_class.sum())}
    if not by_class.all():
        return scores
    scores["balanced_accuracy"] = float((right / by_class).mean())
    negative, positive = np.stack([sums.lowest, sums.highest], axis=1)  # by their first and by their last bin
    least, most = _above(positive[0], negative[1]), _above(positive[1], negative[0]) + _ties(positive[1], negative[0])
    pairs = math.prod(by_class.tolist())
    (true_negative, false_positive), (false_negative, true_positive) = sums.confusion.tolist()
    least, most = max(least, true_positive * true_negative), min(most, pairs - false_negative * false_positive)
    if most - least == pairs:  # it may be anything
        return scores
    middle = np.mean([_above(p, n) + _ties(p, n) / 2 for p, n in zip(positive, negative, strict=True)])
    middle = min(max(middle, least), most)
    return scores | {"auc": float(middle / pairs), "auc_error": float(max(middle - least, most - middle) / pairs)}


def _above(positive: Array, negative: Array) -> float:
    """Return how many pairs have the positive row in a higher bin."""
    return float(positive @ (np.cumsum(negative) - negative))


def _ties(positive: Array, negative: Array) -> float:
    """Return how many pairs have both rows in one bin."""
    return float(positive @ negative)


def only_class(sums: Array) -> int | None:
    """Return which class, 0 or 1, the model predicts for every row; None if it predicts both, or for no row."""
    predicted = sums[:4].reshape(2, 2).sum(axis=0)
    return int(predicted.argmax()) if predicted.any() and not predicted.all() else None
