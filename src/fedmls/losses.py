"""Losses ℓ(p, b) of a prediction p = a·x and a label b, each written once, as compiled scalar functions.

=====================  =============================  ==================================================
name                   ℓ(p, b)                        slope taken at the kink
=====================  =============================  ==================================================
hinge                  max(0, 1 - bp)                 0 at bp = 1
squared_hinge          max(0, 1 - bp)²                (smooth)
absolute               |p - b|                        0 at p = b
pinball(q)             max(q(b - p), (q - 1)(b - p))  0 at p = b
epsilon_insensitive    max(0, |p - b| - ε)            0 at |p - b| = ε
huber(δ)               r²/2 up to |r| = δ, then       (smooth)
                       δ(|r| - δ/2), r = p - b
logistic               log(1 + exp(-bp))              (smooth)
=====================  =============================  ==================================================

The first, second and last are for classes, b in {-1, +1}. ``conjugate`` is ℓ*(s) = sup_p sp - ℓ(p, b), finite
for s in ``box``: the dual weights that a lower bound may use.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit

from fedmls.checks import at_least, positive, real, unknown
from fedmls.types import Array

HINGE, SQUARED_HINGE, ABSOLUTE, PINBALL, EPSILON_INSENSITIVE, HUBER, LOGISTIC = range(7)


class LossKind(NamedTuple):
    """A loss as the compiled code takes it: which one, and its parameter (q, ε or δ)."""

    code: int
    parameter: float


@dataclass(frozen=True)
class Loss:
    """A loss by its name, the number the compiled code knows it by, and its parameter (q, ε or δ)."""

    name: str
    code: int
    parameter: float = 0.0

    @property
    def kind(self) -> LossKind:
        """The loss as the compiled code takes it."""
        return LossKind(self.code, self.parameter)

    @property
    def is_classification(self) -> bool:
        return self.code in (HINGE, SQUARED_HINGE, LOGISTIC)

    @property
    def is_polyhedral(self) -> bool:
        return self.code in (HINGE, ABSOLUTE, PINBALL, EPSILON_INSENSITIVE)

    @property
    def dead_zone(self) -> float:
        """How far from its label a prediction costs nothing: values are rounded by as much as this is."""
        return self.parameter if self.code == EPSILON_INSENSITIVE else 0.0

    def value(self, p: Array, b: Array) -> Array:
        return _each(_VALUE, self.kind, *_paired(p, b))

    def slope(self, p: Array, b: Array) -> Array:
        return _each(_SLOPE, self.kind, *_paired(p, b))

    def conjugate(self, s: Array, b: Array) -> Array:
        """ℓ*(s) for s inside the box."""
        return _each(_CONJUGATE, self.kind, *_paired(s, b))

    def box(self, b: Array) -> tuple[Array, Array]:
        """The slopes the loss can have at the labels b: the domain of its conjugate."""
        b = np.asarray(b, dtype=float)
        zero, one = np.zeros_like(b), np.ones_like(b)
        if self.code in (HINGE, LOGISTIC):
            return np.minimum(-b, 0.0), np.maximum(-b, 0.0)
        if self.code == SQUARED_HINGE:
            return np.where(b > 0, -np.inf, zero), np.where(b > 0, zero, np.inf)
        if self.code == PINBALL:
            return -self.parameter * one, (1 - self.parameter) * one
        if self.code == HUBER:
            return -self.parameter * one, self.parameter * one
        return -one, one

    def lipschitz(self) -> float:
        """The largest |slope| there is."""
        low, high = self.box(np.array([-1.0, 1.0]))
        return float(max(-low.min(), high.max()))


def pinball(q: float = 0.5) -> Loss:
    """Quantile regression at level q."""
    level = real(q)
    if level is None or not 0 < level < 1:
        raise ValueError(f"q is {q!r}; the pinball loss needs a quantile level in (0, 1)")
    return Loss("pinball", PINBALL, level)


def epsilon_insensitive(epsilon: float = 0.1) -> Loss:
    return Loss("epsilon_insensitive", EPSILON_INSENSITIVE, at_least("epsilon", epsilon, 0.0))


def huber(delta: float = 1.0) -> Loss:
    return Loss("huber", HUBER, positive("delta", delta))


LOSSES: dict[str, Loss] = {
    "hinge": Loss("hinge", HINGE),
    "squared_hinge": Loss("squared_hinge", SQUARED_HINGE),
    "absolute": Loss("absolute", ABSOLUTE),
    "pinball": pinball(),
    "epsilon_insensitive": epsilon_insensitive(),
    "huber": huber(),
    "logistic": Loss("logistic", LOGISTIC),
}


WITH_PARAMETER = {"pinball": pinball, "epsilon_insensitive": epsilon_insensitive, "huber": huber}


def get_loss(loss: str | Loss, parameter: float | None = None) -> Loss:
    """A loss by its name and, if it is not to be the usual one, its parameter."""
    if isinstance(loss, Loss):
        return loss
    if not isinstance(loss, str) or loss not in LOSSES:
        raise ValueError(unknown("loss", loss, LOSSES))
    if parameter is None:
        return LOSSES[loss]
    if loss not in WITH_PARAMETER:
        raise ValueError(f"loss_parameter is {parameter!r}, but {loss!r} takes none; leave it out")
    try:
        return WITH_PARAMETER[loss](parameter)
    except ValueError as error:
        raise ValueError(f"loss_parameter: {error}") from None


@njit(cache=True, nogil=True)
def value(loss: LossKind, p: float, b: float) -> float:
    """ℓ(p, b). Comparisons are written so that NaN stays NaN: that is how a diverging run is noticed."""
    code, c = loss
    if code == HINGE:
        return 0.0 if b * p >= 1.0 else 1.0 - b * p
    if code == SQUARED_HINGE:
        return 0.0 if b * p >= 1.0 else (1.0 - b * p) ** 2
    if code == ABSOLUTE:
        return abs(p - b)
    if code == PINBALL:
        return max(c * (b - p), (c - 1.0) * (b - p))
    if code == EPSILON_INSENSITIVE:
        return 0.0 if abs(p - b) <= c else abs(p - b) - c
    if code == HUBER:
        r = abs(p - b)
        return 0.5 * r * r if r <= c else c * (r - 0.5 * c)
    m = b * p
    return max(-m, 0.0) + math.log1p(math.exp(-abs(m)))


@njit(cache=True, nogil=True, error_model="numpy")
def slope(loss: LossKind, p: float, b: float) -> float:
    """The derivative in p; at a kink the one named in the table above.

    "numpy": a division that might raise an error, though 1 + exp is never 0, makes the loops around it count references
    to their arrays in each step, which took a fifth of the step.
    """
    code, c = loss
    if code == HINGE:
        return 0.0 if b * p >= 1.0 else -b
    if code == SQUARED_HINGE:
        return 0.0 if b * p >= 1.0 else -2.0 * b * (1.0 - b * p)
    if code == LOGISTIC:
        return -b / (1.0 + math.exp(b * p))
    r = p - b
    if code == HUBER:
        return min(max(r, -c), c)
    # Arithmetic on comparisons instead of branches, which random residuals would mispredict.
    if code == PINBALL:
        return (1.0 - c) * (r > 0.0) - c * (r < 0.0)
    return 1.0 * (r > c) - 1.0 * (r < -c)  # absolute (c = 0) and ε-insensitive


@njit(cache=True, nogil=True)
def conjugate(loss: LossKind, s: float, b: float) -> float:
    """ℓ*(s) for s inside the box."""
    code, c = loss
    if code in (HINGE, ABSOLUTE, PINBALL):
        return s * b
    if code == SQUARED_HINGE:
        return s * b + 0.25 * s * s
    if code == EPSILON_INSENSITIVE:
        return s * b + c * abs(s)
    if code == HUBER:
        return s * b + 0.5 * s * s
    a = abs(s)
    return (a * math.log(a) if a > 0.0 else 0.0) + ((1 - a) * math.log1p(-a) if a < 1.0 else 0.0)


@njit(cache=True, nogil=True)
def second(loss: LossKind, p: float, b: float) -> float:
    """ℓ'' in p, of a smooth loss."""
    code, c = loss
    if code == LOGISTIC:
        chance = abs(slope(loss, p, b))
        return chance * (1.0 - chance)
    if code == SQUARED_HINGE:
        return 2.0 if b * p < 1.0 else 0.0
    return 1.0 if abs(p - b) < c else 0.0


@njit(cache=True, nogil=True)
def kink_distance(loss: LossKind, p: float, b: float) -> float:
    """How far a prediction is from the nearest kink of the loss."""
    code, c = loss
    if code == HINGE:
        return abs(1.0 - b * p)
    return abs(abs(p - b) - (c if code == EPSILON_INSENSITIVE else 0.0))


_VALUE, _SLOPE, _CONJUGATE = range(3)


@njit(cache=True, nogil=True)
def _each(which: int, loss: LossKind, p: Array, b: Array) -> Array:
    """One of the functions above, number by number."""
    out = np.empty(p.shape[0])
    for j in range(p.shape[0]):
        if which == _VALUE:
            out[j] = value(loss, p[j], b[j])
        elif which == _SLOPE:
            out[j] = slope(loss, p[j], b[j])
        else:
            out[j] = conjugate(loss, p[j], b[j])
    return out


def _paired(p: Array, b: Array) -> tuple[Array, Array]:
    first, second = np.broadcast_arrays(np.asarray(p, float), np.asarray(b, float))
    return np.ascontiguousarray(np.atleast_1d(first)), np.ascontiguousarray(np.atleast_1d(second))
