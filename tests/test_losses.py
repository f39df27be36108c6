"""Losses: subgradient inequality, conjugates, and plain formulas."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import huber as scipy_huber
from sklearn.metrics import log_loss, mean_pinball_loss

import fedmls
from fedmls.losses import LOSSES, epsilon_insensitive, huber, pinball

ALL = [*LOSSES.values(), pinball(0.2), epsilon_insensitive(0.7), huber(0.3)]
numbers = st.floats(-20, 20)


def label(loss, b):
    return (1.0 if b > 0 else -1.0) if loss.is_classification else b


def one(function, *values):
    return float(function(*(np.array([v]) for v in values))[0])


@pytest.mark.parametrize("loss", ALL, ids=repr)
@given(p=numbers, other=numbers, b=numbers, kink=st.booleans())
def test_the_slope_is_a_subgradient(loss, p, other, b, kink):
    b = label(loss, b)
    if kink:
        p = {"hinge": b, "squared_hinge": b, "epsilon_insensitive": b + loss.parameter}.get(loss.name, b)
    value, slope = one(loss.value, p, b), one(loss.slope, p, b)
    assert one(loss.value, other, b) >= value + slope * (other - p) - 1e-9 * max(1, abs(value))
    low, high = loss.box(np.array([b]))
    assert low[0] <= slope <= high[0]


@pytest.mark.parametrize("loss", ALL, ids=repr)
@given(p=numbers, other=numbers, b=numbers)
def test_fenchel_young(loss, p, other, b):
    """ℓ(p) + ℓ*(s) >= sp for every slope s, with equality where s is the slope at p."""
    b = label(loss, b)
    slope = one(loss.slope, p, b)
    conjugate = one(loss.conjugate, slope, b)
    tolerance = 1e-9 * max(1.0, abs(conjugate), abs(slope * p), abs(slope * other))
    assert abs(one(loss.value, p, b) + conjugate - slope * p) <= tolerance
    assert one(loss.value, other, b) + conjugate >= slope * other - tolerance


def test_values_agree_with_other_packages():
    rng = np.random.default_rng(0)
    p, b = rng.normal(size=50), rng.normal(size=50)
    c = np.sign(b)
    np.testing.assert_allclose(LOSSES["hinge"].value(p, c), np.maximum(0, 1 - c * p))
    np.testing.assert_allclose(LOSSES["squared_hinge"].value(p, c), np.maximum(0, 1 - c * p) ** 2)
    np.testing.assert_allclose(LOSSES["absolute"].value(p, b), np.abs(p - b))
    np.testing.assert_allclose(pinball(0.3).value(p, b).mean(), mean_pinball_loss(b, p, alpha=0.3))
    np.testing.assert_allclose(huber(0.6).value(p, b), scipy_huber(0.6, p - b))
    np.testing.assert_allclose(epsilon_insensitive(0.2).value(p, b), np.maximum(0, np.abs(p - b) - 0.2))
    expected = log_loss(c, 1 / (1 + np.exp(-p)), labels=[-1, 1])
    np.testing.assert_allclose(LOSSES["logistic"].value(p, c).mean(), expected)


def test_logistic_does_not_overflow():
    p, b = np.array([1e4, -1e4]), np.array([1.0, 1.0])
    np.testing.assert_allclose(LOSSES["logistic"].value(p, b), [0, 1e4])
    np.testing.assert_allclose(LOSSES["logistic"].slope(p, b), [0, -1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pinball(1.0), "q is 1.0; the pinball loss needs a quantile level in (0, 1)"),
        (lambda: huber(0), "delta is 0; it must be a positive number"),
        (lambda: epsilon_insensitive(-1), "epsilon is -1; it must be a number of at least 0"),
        (lambda: fedmls.Problem([[1.0]], [1], loss="hing"), "unknown loss 'hing': did you mean 'hinge'?"),
    ],
)
def test_bad_losses(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("loss", ALL, ids=repr)
def test_the_loss_of_nan_is_nan(loss):
    assert np.isnan(loss.value(np.array([np.nan]), np.array([1.0])))
