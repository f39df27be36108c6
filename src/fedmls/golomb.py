"""Whole numbers in few bits, by one of two codes: Golomb's (IEEE Trans. Inf. Theory 1966; with powers of 2 as by Rice,
1979), which is best for numbers of about one size, or the exponential one (Teuhola, "A compression method for clustered
bit-vectors", Inf. Process. Lett. 1978), which a few large ones among them do not spoil.

A number k >= 0 counts as u = 2k, k < 0 as u = -2k - 1. Its last r bits are written as they are, after the rest,
v = (u >> r) + 1: that as v - 1 zeros and a one, or, exponentially, in binary after as many zeros as it has bits, less
one. Numbers come in blocks of 64; before each block seven bits tell which code it is in, and its r. They are those that
take the fewest bits.
"""

from typing import Any

import numpy as np
from numba import njit

from fedmls.types import Array

BLOCK, WIDTH = 64, 7
MOST = 2**30  # bits of a block, more than any takes
BITS = np.array([0, *(value.bit_length() for value in range(1, 256))])
LARGEST = 2**61  # what is larger, or as large, is not written in this code


@njit(cache=True, nogil=True)
def _unsigned(k: int) -> int:
    return 2 * k if k >= 0 else -2 * k - 1


@njit(cache=True, nogil=True)
def _bits(v: int) -> int:
    """How many bits v > 0 has."""
    count = 0
    while v >= 256:
        v, count = v >> 8, count + 8
    return count + BITS[v]


@njit(cache=True, nogil=True)
def _best(numbers: Array, first: int, last: int) -> tuple[int, int]:
    """2 r, or 2 r + 1 for the exponential code, of a block; and the bits that it then takes. The best r is about as
    many bits as the numbers have in the mean."""
    middle = 0
    for j in range(first, last):
        middle += _bits(_unsigned(numbers[j]) + 1)
    middle //= last - first
    best, least = 0, 2**62
    for r in range(max(0, middle - 3), min(61, middle + 2) + 1):
        plain, exponential = r * (last - first), (r - 1) * (last - first)
        for j in range(first, last):
            v = (_unsigned(numbers[j]) >> r) + 1
            plain += min(v, MOST)
            exponential += 2 * _bits(v)
        if plain < min(least, MOST):
            best, least = 2 * r, plain
        if exponential < least:
            best, least = 2 * r + 1, exponential
    return best, least


@njit(cache=True, nogil=True)
def _length(numbers: Array) -> int:
    total = 0
    for first in range(0, numbers.shape[0], BLOCK):
        total += WIDTH + _best(numbers, first, min(first + BLOCK, numbers.shape[0]))[1]
    return (total + 7) // 8


@njit(cache=True, nogil=True)
def _write(out: Array, place: int, value: int, bits: int) -> int:
    """Write so many bits of the value, the first one first; return the place after them."""
    for shift in range(bits - 1, -1, -1):
        if (value >> shift) & 1:
            out[place >> 3] |= np.uint8(128 >> (place & 7))
        place += 1
    return place


@njit(cache=True, nogil=True)
def _read(data: Array, place: int, bits: int) -> Any:
    """The value of so many bits from this place on."""
    value: Any = np.int64(0)
    for shift in range(place, place + bits):
        value = 2 * value + ((data[shift >> 3] >> (7 - (shift & 7))) & 1)
    return value


@njit(cache=True, nogil=True)
def _encode(numbers: Array, out: Array) -> None:
    place = 0
    for first in range(0, numbers.shape[0], BLOCK):
        last = min(first + BLOCK, numbers.shape[0])
        code, _ = _best(numbers, first, last)
        r = code >> 1
        place = _write(out, place, code, WIDTH)
        for j in range(first, last):
            u = _unsigned(numbers[j])
            v = (u >> r) + 1
            size = _bits(v)
            place = _write(out, place + size - 1, v, size) if code & 1 else _write(out, place + v - 1, 1, 1)
            place = _write(out, place, u, r)


@njit(cache=True, nogil=True)
def _decode(data: Array, numbers: Array) -> int:
    """Fill the numbers; return how many bits were read, or -1 if the data are none of this code."""
    place, end, code = 0, 8 * data.shape[0], 0
    for j in range(numbers.shape[0]):
        if j % BLOCK == 0:
            if place + WIDTH > end:
                return -1
            code = _read(data, place, WIDTH)
            place += WIDTH
        r, zeros = code >> 1, 0
        while place < end and not (data[place >> 3] >> (7 - (place & 7))) & 1:
            zeros, place = zeros + 1, place + 1
        size = zeros + 1 if code & 1 else 1
        if size + r > 63 or place + size + r > end or (zeros >> (62 - r)) > 0:
            return -1
        v = _read(data, place, size) if code & 1 else zeros + 1
        place += size
        u = ((v - 1) << r) + _read(data, place, r)
        place += r
        numbers[j] = u >> 1 if u % 2 == 0 else -((u + 1) >> 1)
    return place


@njit(cache=True, nogil=True)
def _lengths(each: Array) -> int:
    total = 0
    for i in range(each.shape[0]):
        total += _length(each[i])
    return total


def fits(numbers: Array) -> bool:
    """Whether all can be written in this code."""
    return bool(((numbers > -LARGEST) & (numbers < LARGEST)).all())


def _checked(numbers: Array) -> Array:
    """Return the numbers as the compiled code takes them, which would read anywhere for larger ones."""
    if not fits(numbers):
        raise ValueError(f"whole numbers of {LARGEST} and more cannot be written in Golomb's codes")
    return np.ascontiguousarray(numbers, dtype=np.int64)


def lengths(each: Array) -> int:
    """Return how many bytes the whole numbers of each row take, in all."""
    return int(_lengths(_checked(each)))


def length(numbers: Array) -> int:
    """Return how many bytes the whole numbers take, one after the other."""
    return int(_length(_checked(numbers).ravel()))


def encode(numbers: Array) -> bytes:
    """Return the whole numbers in this code."""
    flat = _checked(numbers).ravel()
    out = np.zeros(_length(flat), dtype=np.uint8)
    _encode(flat, out)
    return out.tobytes()


def decode(data: bytes, size: int) -> Any:
    """Return so many whole numbers; raise a ValueError if the data are not just that."""
    if size > 8 * len(data):
        raise ValueError(f"{len(data)} bytes for {size} whole numbers")
    raw = np.frombuffer(data, dtype=np.uint8)
    numbers: Any = np.empty(size, dtype=np.int64)
    place = _decode(raw, numbers)
    if place < 0 or (place + 7) // 8 != len(data):
        raise ValueError(f"{len(data)} bytes that are not {size} whole numbers in Golomb's codes")
    return numbers
