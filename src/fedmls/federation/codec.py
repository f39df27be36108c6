"""MessagePack with arrays: plain values to bytes and back, by name, nothing pickled.

An array is a map: ``dtype`` ("float64", "int64", "whole" or "short"), ``shape`` and ``raw``, its numbers as
little-endian bytes in C order. Whole numbers are int64 in the code of :mod:`fedmls.golomb`; short ones are float32 as
:mod:`fedmls.wire` has them, two bytes and whole numbers. Where most numbers are zero, ``places``
holds the places of the others (uint32) and ``raw`` only those; where few differ, ``raw`` holds the different ones and
``codes`` says, in one or two bytes, which of them each entry is.

A decoder believes nothing: the size is checked before anything is read; then, before anything is made, how deep the
message nests and of how many parts it is; and the sizes that all arrays declare together before the first is made.
Whatever the bytes are, all that it raises is a :class:`MessageError`.
"""

import hashlib
import math
from typing import Any

import msgpack
import numpy as np

from fedmls import golomb
from fedmls.wire import HEADER, as_whole, from_whole

MEBIBYTE = 2**20
DTYPES = {"float64": "<f8", "int64": "<i8"}
CODED = {"whole": "int64", "short": "float32"}
WIDTH = 8  # bytes that are counted for a number, whatever it is
PLAIN = (str, bytes, bool, int, float, np.ndarray, type(None))
CODES = {1: "<u1", 2: "<u2"}
DEEPEST, MOST_PARTS, MOST_CONTAINERS = 16, 2**22, 2**16  # of a message; lists and maps are containers


class MessageError(ValueError):
    """Bytes that are no message, or not the one they should be."""


def pack(value: Any, whole: bool = False, compact: bool = False) -> bytes:
    """Return the plain value as bytes.

    whole: write whole numbers in as few bits as they need.  compact: write all arrays in the shortest of the ways
    above, each of them exact; who reads them must know how large they may be.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return _packed(value, whole or compact, compact)
        if isinstance(value, np.generic):
            return value.item()
        raise TypeError(f"{type(value).__name__} is nothing to send")

    packed: bytes = msgpack.packb(value, default=plain)
    return packed


def unpack(data: bytes, limit: int, arrays: int, own: bool) -> Any:
    """Return the plain value in the bytes, of which there may be at most ``limit``.

    arrays: how many bytes all its arrays may take together.  own: a file of ours, of which nothing need be counted.
    """
    if len(data) > limit:
        raise MessageError(f"a message of {len(data):,} bytes; at most {limit:,} are expected")
    if not own:
        _check_parts(data)
    budget = _Budget(math.inf if own else arrays)
    try:
        return msgpack.unpackb(
            data, object_pairs_hook=lambda pairs: _unpacked(pairs, budget), ext_hook=_no_extension, strict_map_key=True
        )
    except MessageError:
        raise
    except (ValueError, TypeError, RecursionError) as error:  # msgpack's own errors are ValueErrors
        raise MessageError(f"no message: {printable(str(error)) or type(error).__name__}") from None


class _Budget:
    """The bytes that the arrays of a message may take, all of them together."""

    def __init__(self, limit: float) -> None:
        self.limit, self.used = limit, 0

    def take(self, size: int) -> None:
        self.used += size
        if size > self.limit:
            raise MessageError(f"an array of {size:,} bytes; at most {self.limit:,} are expected")
        if self.used > self.limit:
            raise MessageError(f"arrays of {self.used:,} bytes together; at most {self.limit:,} are expected")


# The first byte of a part of a MessagePack message, by the specification: how many bytes follow that are no parts (and
# where their number is written), or of how many parts it is made.
_FIXED = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_FIXED |= {0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}  # extensions, with their kind
_COUNTED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}  # width of the number
_CONTAINERS = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}  # the same, and parts for each of it


def _check_parts(data: bytes) -> None:
    """Walk over the bytes, making nothing: no list is longer than what is there, and nothing nests too deep."""
    place, end, containers, parts = 0, len(data), 0, 1
    waiting = [1]  # how many parts each open container still has
    while waiting:
        if not waiting[-1]:
            waiting.pop()
            continue
        waiting[-1] -= 1
        if place >= end:
            raise MessageError("no message: it is cut off")
        code = data[place]
        place += 1
        if 0xA0 <= code <= 0xBF:
            place += code & 0x1F
        elif code < 0x80 or code >= 0xE0:
            pass
        elif code in _COUNTED:
            width = _COUNTED[code]
            place += width + int.from_bytes(data[place : place + width], "big") + (0xC7 <= code <= 0xC9)
        elif code in _FIXED:
            place += _FIXED[code]
        elif code <= 0x9F or code in _CONTAINERS:
            width, each = _CONTAINERS.get(code, (0, 2 if code <= 0x8F else 1))
            inside = each * (int.from_bytes(data[place : place + width], "big") if width else code & 0x0F)
            place, containers, parts = place + width, containers + 1, parts + inside
            waiting.append(inside)
            if inside > end - place or parts > MOST_PARTS or containers > MOST_CONTAINERS:
                raise MessageError("no message: it has more parts than bytes, or than any message")
            if len(waiting) > DEEPEST:
                raise MessageError(f"no message: it nests deeper than {DEEPEST}")


def printable(text: str, most: int = 1000) -> str:
    """Return words of others for a terminal: cut, and without anything that is no letter, figure or sign."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text[:most])


def check_plain(value: Any) -> None:
    """Raise a MessageError if the value holds something that is no part of a message."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            check_plain(part)
    elif not isinstance(value, PLAIN):
        raise MessageError(f"no message: it holds a {type(value).__name__}")


def fields(what: str, found: Any, wanted: Any, optional: Any = ()) -> dict[str, Any]:
    """Return ``found``, if it is a map with exactly the keys ``wanted``; raise a MessageError otherwise.

    optional: those of the keys that may be left out.
    """
    if not isinstance(found, dict):
        raise MessageError(f"{what} is no map of fields")
    missing, strange = sorted({*wanted} - {*found} - {*optional}), sorted({*found} - {*wanted})
    if missing or strange:
        lacks = f"without {', '.join(missing)}" if missing else ""
        holds = f"with the unknown {printable(', '.join(strange), 80)}" if strange else ""
        raise MessageError(f"{what} {' and '.join(part for part in (lacks, holds) if part)}")
    return found


def _packed(array: Any, whole: bool, compact: bool) -> dict[str, Any]:
    name = array.dtype.name
    about: dict[str, Any] = {"dtype": name, "shape": list(array.shape)}
    if name == "float32":
        return about | {"dtype": "short", "raw": _short(array.ravel())}
    if name not in DTYPES:
        raise TypeError(f"arrays of {name} are not sent; make them float64, float32 or int64")
    flat = np.ascontiguousarray(array, dtype=DTYPES[name]).ravel()
    if whole and name == "int64" and golomb.fits(flat) and golomb.length(flat) < flat.nbytes:
        return about | {"dtype": "whole", "raw": golomb.encode(flat)}
    if compact and len(flat) < 2**32:
        # zero is told by its bits: minus zero is another number
        places = np.flatnonzero(flat.view("<u8"))
        values, codes = np.unique(flat.view("<u8"), return_inverse=True)
        width = 1 if len(values) <= 2**8 else 2
        by_places = 12 * len(places)
        by_codes = 8 * len(values) + width * len(flat) if len(values) <= 2**16 else math.inf
        if by_places < min(by_codes, flat.nbytes):
            return about | {"places": places.astype("<u4").tobytes(), "raw": flat[places].tobytes()}
        if by_codes < flat.nbytes:
            return about | {"codes": codes.astype(CODES[width]).tobytes(), "raw": values.tobytes()}
    return about | {"raw": flat.tobytes()}


def _unpacked(pairs: list[tuple[Any, Any]], budget: _Budget) -> Any:
    """Return the map of these pairs, or the array that it stands for."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise MessageError("no message: a key stands there twice")
    if not all(isinstance(key, str) for key in found):
        raise MessageError("no message: a key is no text")
    if "raw" not in found and "dtype" not in found:
        return found
    encoding = {"places", "codes"} & {*found}
    fields("an array", found, {"dtype", "shape", "raw", *sorted(encoding)[:1]})
    dtype, shape, raw = found["dtype"], found["shape"], found["raw"]
    if dtype not in (*DTYPES, *CODED) if isinstance(dtype, str) else True:
        raise MessageError(f"an array of {dtype!r:.60}; only {', '.join((*DTYPES, *CODED))} are sent")
    if not (isinstance(shape, list) and len(shape) <= 8 and all(type(s) is int and 0 <= s < 2**62 for s in shape)):
        raise MessageError(f"an array of shape {shape!r:.60}")
    size = math.prod(shape)
    budget.take(WIDTH * size)
    numbers = _numbers(dtype, raw, size)
    if "places" in found:
        numbers = _from_places(found["places"], numbers, size)
    elif "codes" in found:
        numbers = _from_codes(found["codes"], numbers, size)
    if len(numbers) != size:
        raise MessageError(f"an array of shape {shape} with {len(numbers)} numbers")
    return numbers.astype(CODED.get(dtype, dtype)).reshape(shape)


def _short(numbers: Any) -> bytes:
    cut, top, down = as_whole(numbers)
    return bytes([int(cut[0]), int(top[0])]) + golomb.encode(down)


def _numbers(dtype: str, raw: Any, size: int) -> Any:
    """Return the numbers in the bytes; of whole and short ones just as many as there should be."""
    if dtype in CODED and isinstance(raw, bytes):
        try:
            if dtype == "whole":
                return golomb.decode(raw, size)
            if len(raw) < HEADER:
                raise ValueError(f"{len(raw)} bytes for short numbers")
            return from_whole(raw[0], raw[1], golomb.decode(raw[HEADER:], size))
        except ValueError as error:
            raise MessageError(f"an array of {error}") from None
    if not isinstance(raw, bytes) or len(raw) % WIDTH:
        raise MessageError(f"an array whose bytes are not whole numbers of {WIDTH} bytes")
    return np.frombuffer(raw, dtype=DTYPES[dtype])


def _from_places(raw: Any, numbers: Any, size: int) -> Any:
    if not isinstance(raw, bytes) or len(raw) != 4 * len(numbers):
        raise MessageError("an array whose places do not fit its numbers")
    places = np.frombuffer(raw, dtype="<u4")
    if len(places) and (places[-1] >= size or (places[1:] <= places[:-1]).any()):
        raise MessageError("an array whose places are not in order")
    out = np.zeros(size, dtype=numbers.dtype)
    out[places] = numbers
    return out


def _from_codes(raw: Any, numbers: Any, size: int) -> Any:
    width = 1 if len(numbers) <= 2**8 else 2
    if not isinstance(raw, bytes) or len(raw) != width * size:
        raise MessageError("an array whose codes do not fit its shape")
    codes = np.frombuffer(raw, dtype=CODES[width])
    if len(codes) and codes.max() >= len(numbers):
        raise MessageError("an array with a code that stands for nothing")
    return numbers[codes]


def _no_extension(code: int, data: bytes) -> Any:
    raise MessageError(f"no message: it holds an extension of kind {code}")


def seal(data: bytes) -> bytes:
    """Return the bytes with their digest in front, for a file: damage is noticed."""
    return hashlib.sha256(data).digest() + data


def unseal(data: bytes) -> bytes:
    if hashlib.sha256(data[32:]).digest() != data[:32]:
        raise MessageError("the file is damaged: its digest is another")
    return data[32:]
