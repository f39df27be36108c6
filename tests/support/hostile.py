"""Messages that nobody should send."""

import re

import msgpack
from hypothesis import strategies as st


def nested(depth):
    """What :func:`packed` makes a list in a list in a list of, deeper than MessagePack itself would write."""
    return msgpack.ExtType(42, depth.to_bytes(2, "big"))


ARRAY = {"dtype": "float64", "shape": [2], "raw": bytes(16)}
ARRAYS = st.one_of(
    st.sampled_from([ARRAY, ARRAY | {"dtype": "int64"}, ARRAY | {"shape": [2, 1]}]),
    st.builds(lambda n: ARRAY | {"shape": [n], "raw": bytes(8 * n)}, st.integers(0, 12)),
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=8),
    st.binary(max_size=24),
    st.builds(nested, st.integers(0, 1000)),
    ARRAYS,
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)),
    max_leaves=8,
)
ANYTHING = st.one_of(ARRAYS, LEAVES, TREES)  # trees alone would be lists most of the time


def packed(whole):
    def deep(found):
        return b"\x91" * int.from_bytes(found[1], "big") + b"\x90"

    return re.sub(rb"\xd5\x2a(..)", deep, msgpack.packb(whole), flags=re.DOTALL)


def places(value, path=()):
    """Where something could stand in a message's place."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*path, key))


def put(whole, path, value):
    if not path:
        return value
    inner = whole
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return whole
