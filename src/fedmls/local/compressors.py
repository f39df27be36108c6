"""The compressors of :mod:`fedmls.compression`, with random numbers of each client's own."""

import numpy as np
from numba import njit

from fedmls.compression import kept_entries, quantisation_steps
from fedmls.local.random import GOLDEN, draw, mix, stream
from fedmls.local.rows import Integers
from fedmls.types import Array


def compress(v: Array, method: str, level: float, seed: np.uint64, k: int, ids: Integers, call: int) -> Array:
    """C(v) row by row, with the random numbers of each client."""
    if method == "quantise":
        return np.asarray(_quantise(v, quantisation_steps(level), seed, k, ids, call))
    count = kept_entries(level, v.shape[1])
    if method == "random_k":
        return np.asarray(_random_k(v, count, seed, k, ids, call))
    places = np.argpartition(-np.abs(v), count - 1, axis=1)[:, :count]
    out = np.zeros_like(v)
    np.put_along_axis(out, places, np.take_along_axis(v, places, axis=1), axis=1)
    return out


@njit(cache=True, nogil=True)
def _random_k(v: Array, count: int, seed: np.uint64, k: int, ids: Integers, call: int) -> Array:
    """So many entries drawn at random, the others 0."""
    out, places = np.zeros_like(v), np.arange(v.shape[1])
    for i in range(v.shape[0]):
        places[:] = np.arange(v.shape[1])
        draw(places, count, v.shape[1], stream(seed, k, ids[i], call))
        for r in range(count):
            out[i, places[r]] = v[i, places[r]]
    return out


@njit(cache=True, nogil=True)
def _quantise(v: Array, levels: int, seed: np.uint64, k: int, ids: Integers, call: int) -> Array:
    """Each entry to a multiple of ‖v‖/levels next to it, the nearer the likelier."""
    out = np.zeros_like(v)
    for i in range(v.shape[0]):
        counter = stream(seed, k, ids[i], call)
        norm = np.sqrt((v[i] * v[i]).sum())
        if norm == 0.0:
            continue
        for j in range(v.shape[1]):
            counter += GOLDEN
            uniform = np.float64(mix(counter) >> np.uint64(11)) * 2.0**-53
            out[i, j] = np.sign(v[i, j]) * np.floor(abs(v[i, j]) / norm * levels + uniform) * norm / levels
    return out
