"""Scores from sums over held-out rows, beside scikit-learn's from the rows themselves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from fedmls.federation.codec import MessageError
from fedmls.federation.scores import (
    BINS,
    EDGES,
    check_sums,
    class_sums,
    number_sums,
    only_class,
    rows_of,
    scores_of,
    sums_size,
)
from fedmls.losses import get_loss

HINGE, ABSOLUTE = get_loss("hinge"), get_loss("absolute")
PREDICTIONS = st.one_of(st.floats(-3, 3), st.sampled_from([-1e6, -1.0, -1e-9, 0.0, 1e-9, 1.0, 1e6]))
ROWS = st.lists(st.tuples(PREDICTIONS, st.sampled_from([-1.0, 1.0])), min_size=1, max_size=60)
SITES = st.lists(ROWS, min_size=1, max_size=4)


def arrays(rows):
    return np.array([p for p, _ in rows]), np.array([label for _, label in rows])


@given(sites=SITES, least=st.sampled_from([None, 1, 5, 7]))
def test_scores_of_classes_are_those_of_scikit_learn(sites, least):
    sums = sum(class_sums(*arrays(rows), least) for rows in sites)
    check_sums(sums, HINGE, 1000)
    predictions, labels = arrays([row for rows in sites for row in rows])
    scores = scores_of(sums, HINGE)
    predicted = np.where(predictions > 0, 1.0, -1.0)
    assert rows_of(sums, HINGE) == len(labels)
    assert scores["accuracy"] == pytest.approx(metrics.accuracy_score(labels, predicted), rel=1e-14)
    if len({*labels}) < 2:
        assert [*scores] == ["accuracy"]
        return
    assert scores["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(labels, predicted), rel=1e-14)
    if "auc" in scores:
        auc = metrics.roc_auc_score(labels, predictions)
        assert abs(scores["auc"] - auc) <= scores["auc_error"] + 1e-12
        assert 0 <= scores["auc_error"] < 1


def test_the_area_is_known_well_where_the_bins_are_fine():
    rng = np.random.default_rng(0)
    labels = np.where(rng.random(5000) < 0.3, 1.0, -1.0)
    predictions = 0.8 * labels + rng.normal(size=5000)
    plain, grouped = (scores_of(class_sums(predictions, labels, least), HINGE) for least in (None, 5))
    assert plain["auc_error"] < 0.004
    assert grouped["auc_error"] < 0.005
    assert plain["auc"] == pytest.approx(metrics.roc_auc_score(labels, predictions), abs=1e-3)


@given(rows=ROWS, least=st.integers(2, 8))
def test_no_group_is_of_fewer_rows_than_may_be_told(rows, least):
    """Nor is one of fewer told where there are too few rows for any: a node refuses before."""
    predictions, labels = arrays(rows)
    ends = class_sums(predictions, labels, least)[4:].reshape(2, 2, BINS)
    for end in ends:
        np.testing.assert_array_equal(end.sum(axis=1), [(labels < 0).sum(), (labels > 0).sum()])
        together = end.sum(axis=0)
        assert together[together > 0].min() >= min(least, len(labels))
    assert (np.cumsum(ends[0], axis=1) >= np.cumsum(ends[1], axis=1)).all()  # no group ends before it begins


def test_the_bins_are_the_same_bits_everywhere():
    assert len(EDGES) == BINS - 1 == 513
    assert EDGES[256] == 0
    assert (np.diff(EDGES) > 0).all()
    np.testing.assert_array_equal(EDGES * 4096, np.rint(EDGES * 4096))


@pytest.mark.parametrize(("loss", "names"), [("absolute", []), ("huber", []), ("pinball", ["coverage"])])
def test_scores_of_numbers_are_those_of_scikit_learn(loss, names):
    rng = np.random.default_rng(1)
    labels, kind = rng.normal(size=(3, 20)), get_loss(loss)
    predictions = labels + rng.standard_t(3, size=(3, 20))
    sums = sum(number_sums(p, b) for p, b in zip(predictions, labels, strict=True))
    scores = scores_of(check_sums(sums, kind, 60), kind)
    assert [*scores] == [*names, "mean_absolute_error", "mean_squared_error"]
    b, p = labels.ravel(), predictions.ravel()
    assert scores["mean_absolute_error"] == pytest.approx(metrics.mean_absolute_error(b, p), rel=1e-14)
    assert scores["mean_squared_error"] == pytest.approx(metrics.mean_squared_error(b, p), rel=1e-14)
    if names:
        assert scores["coverage"] == (b <= p).mean()


def test_of_no_rows_there_are_no_scores():
    nothing = np.zeros(0)
    assert scores_of(class_sums(nothing, nothing, 5), HINGE) == {}
    assert scores_of(number_sums(nothing, nothing), ABSOLUTE) == {}
    assert only_class(class_sums(nothing, nothing, 5)) is None


@pytest.mark.parametrize(("sign", "place"), [(-1.0, 0), (1.0, 1)])
def test_a_model_of_one_class_is_found_out(sign, place):
    predictions = sign * np.arange(1.0, 9.0)
    assert only_class(class_sums(predictions, np.tile([-1.0, 1.0], 4), 5)) == place
    assert only_class(class_sums(np.append(predictions, -sign), np.tile([-1.0, 1.0, 1.0], 3), 5)) is None


def spoilt(place, value):
    sums = class_sums(np.linspace(-2, 2, 12), np.tile([-1.0, 1.0], 6), None)
    sums[place] = value
    return sums


@pytest.mark.parametrize("sums", [spoilt(0, -1.0), spoilt(0, 100.0), spoilt(6, 1.0), spoilt(0, 2.5)])
def test_sums_that_cannot_be_are_rejected(sums):
    with pytest.raises(MessageError, match="the sums over held-out rows"):
        check_sums(sums, HINGE, 50)


@pytest.mark.parametrize(
    "sums",
    [[5, 1, 1, 6], [5, -1, 1, 2], [51, 1, 1, 2], [4.5, 1, 1, 2]],
    ids=["more covered than there are", "a negative error", "too many rows", "half a row"],
)
def test_sums_of_numbers_that_cannot_be_are_rejected(sums):
    with pytest.raises(MessageError, match="the sums over held-out rows"):
        check_sums(np.array(sums, dtype=float), ABSOLUTE, 50)


@pytest.mark.parametrize("secure", [False, True])
def test_as_many_numbers_are_expected_as_are_told(secure):
    predictions, labels = np.linspace(-2, 2, 12), np.tile([-1.0, 1.0], 6)
    assert len(class_sums(predictions, labels, None if secure else 5)) == sums_size(HINGE, secure)
    assert len(number_sums(predictions, labels)) == sums_size(ABSOLUTE, secure)
