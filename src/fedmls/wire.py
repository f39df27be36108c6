"""What numbers take when they are sent: eight bytes each, or fewer where an algorithm has made them short.

Short numbers are of two kinds, and travel as whole ones in as few bits as these need (:mod:`fedmls.golomb`).

- Whole numbers (int64), as they are.
- Numbers with few significant bits (float32), which ``rounded`` makes. The bits of a positive float32, read as a
  whole number, grow with it. Those that are 0 in all numbers of an array are cut off, and the rest is counted from a
  power of 2 above the largest down, with the number's sign; 0 is 0.
"""

from typing import Any

import numpy as np

from fedmls import golomb
from fedmls.types import Array

SMALLEST, LARGEST = 1e-37, 1e37  # of the numbers that can be short
HEADER = 2  # bytes: how many bits are cut off, and the exponent that is counted from
PIECE = 2**16  # numbers that are read at once: in between they take several times the memory
MANTISSA, INFINITE = 23, 0xFF  # of a float32: how many bits it has, and the first exponent of no number


def rounded(values: Array, bits: Any, up: bool = False) -> Any:
    """The values with so many significant bits, at most 24: the nearest ones, or, if they are positive, the next
    larger. bits: a number, or one for each.

    They are off by 2^-bits of themselves, at most; twice that upwards. They are float32, unless one is too large or too
    small for that.
    """
    mantissa, exponent = np.frexp(values)
    steps = np.ldexp(1.0, bits)
    turned = np.ceil(mantissa * steps) if up else np.rint(mantissa * steps)
    found = np.ldexp(turned / steps, exponent)
    return found.astype(np.float32) if _can_be_short(np.abs(found)) else found


def exactly(values: Array) -> Any:
    """The values as whole numbers or as float32, if that is what they are; else as they are."""
    size = np.abs(values)
    if (size < 2**52).all() and (values == np.rint(values)).all():
        return values.astype(np.int64)
    if not _can_be_short(size):
        return values
    short = values.astype(np.float32)
    return short if np.array_equal(short, values) else values


def _can_be_short(size: Array) -> bool:
    return bool(((size == 0) | ((size > SMALLEST) & (size < LARGEST))).all())


def as_whole(short: Any) -> tuple[Any, Any, Any]:
    """Return numbers of few bits as whole ones, each array (the last axis) by itself: how many bits are cut off; the
    exponent, as a float32 has it, that is counted from; and how far below it each is."""
    bits = np.ascontiguousarray(np.abs(short)).view(np.uint32).astype(np.int64)
    used = np.bitwise_or.reduce(bits, axis=-1, keepdims=True) | 2**MANTISSA
    cut = np.log2(used & -used).astype(np.int64)
    top = (bits.max(axis=-1, keepdims=True, initial=0) >> MANTISSA) + 1
    down = ((top << MANTISSA) - bits) >> cut
    return cut, top, np.where(bits == 0, 0, np.where(np.signbit(short), -down, down))


def from_whole(cut: int, top: int, down: Any) -> Array:
    """The inverse, of one array; raise a ValueError if there are no such numbers."""
    pieces = range(0, len(down), PIECE)
    return np.concatenate([np.empty(0), *(_from_whole(cut, top, down[at : at + PIECE]) for at in pieces)])


def _from_whole(cut: int, top: int, down: Any) -> Array:
    bits = (top << MANTISSA) - (np.abs(down) << cut)
    if cut > MANTISSA or top > INFINITE or (bits <= 0).any() or (np.abs(down) > top << MANTISSA).any():
        raise ValueError(f"numbers from 2^{top - 127} down, with {cut} bits less, that no float32 is")
    short = np.where(down == 0, 0, bits).astype(np.uint32).view(np.float32).astype(float)
    return np.asarray(np.where(down < 0, -short, short))


def bytes_of(array: Any) -> float:
    """What the numbers of one client take, in the mean over clients."""
    plain = float(array.shape[-1] * array.itemsize)
    if not array.size or array.dtype not in (np.int64, np.float32):
        return plain
    each = array.reshape(-1, array.shape[-1])
    if array.dtype == np.int64:
        return min(golomb.lengths(each) / len(each), plain) if golomb.fits(each) else plain
    return HEADER + golomb.lengths(as_whole(each)[2]) / len(each)
