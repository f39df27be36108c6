"""The metric of FedMLS-B's steps: the curvature of the loss, as clients send it, made positive definite."""

from typing import Any

import numpy as np

from fedmls.local.curvature import packed, unpacked
from fedmls.types import Array
from fedmls.wire import rounded

LEAST = 2.0**-16  # eigenvalue, each coordinate in units of its own size, of what was rounded
CLEAR = 0.05  # the same: a client's columns that are so far from being sums of others
BITS_IF_CLEAR, BITS = 5, 12  # significant ones, of what it then sends, and else
AT_ONCE = 2**22  # numbers of clients' matrices
TRUE = 2.0**-48  # the least, for each coordinate, of what was not rounded
FLAT, LOW = 1e-3, 2.0**-9  # slopes next to the largest, along a direction; curvature there of which most is rounding


def first_curvature(H: Array, d: int) -> Any:
    """That of each client, as it is sent in round 1."""
    if H.shape[-1] == d:
        return rounded(H, BITS)
    each, some = H.reshape(-1, H.shape[-1]), max(1, AT_ONCE // d**2)
    found = [least_correlations(unpacked(each[j : j + some], d)) for j in range(0, len(each), some)]
    clear = (np.concatenate(found) > CLEAR).reshape(*H.shape[:-1], 1)
    return rounded(H, np.where(clear, BITS_IF_CLEAR, BITS))


def least_correlations(H: Array) -> Array:
    """The least eigenvalue of each matrix, each coordinate in units of its own size; 0 if one has none."""
    size = np.sqrt(np.maximum(np.diagonal(H, axis1=-2, axis2=-1), 0.0))
    has_all = np.asarray((size > 0).all(axis=-1) & np.isfinite(H).all(axis=(-2, -1)))
    units = np.where(has_all[..., None], size, 1.0)
    scaled = np.where(has_all[..., None, None], H, 0.0) / units[..., :, None] / units[..., None, :]
    return np.where(has_all, np.linalg.eigvalsh(scaled)[..., 0], 0.0)


def definite(H: Array, d: int, least: float = LEAST) -> Array:
    """The nearest packed matrix whose least eigenvalue, each coordinate in units of its own size, is this one."""
    if len(H) == d:
        return H
    full = unpacked(H, d)
    if not np.isfinite(full).all():
        return H
    size = np.sqrt(np.where(np.diag(full) > 0, np.diag(full), 1.0))
    values, vectors = np.linalg.eigh(full / size / size[:, None])
    return packed((vectors * np.maximum(values, least)) @ vectors.T * size * size[:, None])


def without_rounding(H: Array, slopes: Array) -> Array:
    """A rounded packed matrix without what is but rounding in it: along directions in which no cut has more than a
    little slope, as where a column is all but a sum of others, it is 0 if it is small.

    Steps in such directions are long ones, and as long as the curvature there is exact.
    """
    d, largest = slopes.shape[1], np.abs(slopes).max(axis=0)
    if len(H) == d or not (largest > 0).any():
        return H
    used = np.where(largest > 0, largest, 1.0)
    _, sigma, directions = np.linalg.svd(slopes / used, full_matrices=False)
    flat = directions[sigma < FLAT * sigma[0]] / used
    full = unpacked(H, d)
    size = np.sqrt(np.diag(full))
    scaled = full / size / size[:, None]
    basis, _ = np.linalg.qr((flat * size).T)
    values, some = np.linalg.eigh(basis.T @ scaled @ basis)
    low = basis @ some[:, values < LOW]
    rest = np.eye(d) - low @ low.T
    return packed(rest @ scaled @ rest * size * size[:, None])


def trace(H: Array, d: int) -> float:
    return float(H.sum() if len(H) == d else np.trace(unpacked(H, d)))


def ratio(H: Array, other: Array, d: int) -> float:
    """How many times as large as the other the first is, in the mean over coordinates, whatever their units."""
    ours, others = (each if len(each) == d else np.diag(unpacked(each, d)) for each in (H, other))
    some = (ours > 0) & (others > 0)
    return float(np.mean(ours[some] / others[some])) if some.any() else 0.0


def shaped(ridge: Array, H: Array) -> Array:
    """The ridge as a matrix, or as the diagonal of one, as H is."""
    return np.diag(ridge) if H.ndim == 2 else ridge
