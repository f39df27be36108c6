"""Means and scales of columns, from the sums of several nodes."""

from typing import Any

import numpy as np

from fedmls.types import Array


def column_means(columns: list[str], counts: Any, sums: Array) -> Array:
    if (counts == 0).any():
        raise ValueError(f"no node has a value in column {columns[int(np.argmin(counts))]!r}; leave it out with ignore")
    return np.asarray(sums / counts)


def column_scales(counts: Any, squares: Array) -> Array:
    scales = np.sqrt(squares / counts)
    return np.where(scales > 0, scales, 1.0)


def squares_around(means: Array, counts: Any, sums: Array, squares: Array) -> Array:
    """Return squared distances to these means, from those to the own ones (Chan, Golub, LeVeque 1983)."""
    return np.asarray(squares + counts * (sums / np.maximum(counts, 1) - means) ** 2)
