"""Short numbers: what they are rounded by, and that they come back from their messages to the bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmls import golomb, wire
from fedmls.federation.codec import MessageError, pack, unpack
from fedmls.wire import as_whole, bytes_of, from_whole, rounded

NUMBERS = st.one_of(
    st.just(0.0), st.floats(1e-36, 1e36), st.floats(-1e36, -1e-36), st.floats(-10, 10, allow_subnormal=False, width=16)
)
WHOLE = st.one_of(st.integers(-3, 3), st.integers(-1000, 1000), st.integers(-(2**61) + 1, 2**61 - 1))


@given(st.lists(NUMBERS, max_size=150), st.integers(1, 24), st.booleans())
def test_rounded_numbers_are_as_near_as_their_bits_allow(values, bits, up):
    values = np.abs(np.array(values)) if up else np.array(values)
    short = rounded(values, bits, up)
    assert short.dtype == np.float32
    error = short.astype(float) - values
    assert (np.abs(error) <= (2 if up else 1) * 2.0**-bits * np.abs(values)).all()
    assert not up or (error >= 0).all()


def test_numbers_beside_one_that_no_short_one_can_be_are_rounded_all_the_same():
    """Or a client alone would round them, and together with others it would not."""
    for odd in (1e38, 1e-38, np.nan, np.inf):
        found = rounded(np.array([1 / 3, odd]), 8)
        assert found.dtype == np.float64
        assert found[0] == rounded(np.array([1 / 3]), 8)[0]


@given(st.lists(NUMBERS, max_size=150), st.integers(1, 24))
def test_short_numbers_come_back_to_the_bit(values, bits):
    short = rounded(np.array(values), bits)
    for compact in (False, True):
        packed = pack({"x": short}, compact=compact)
        assert np.array_equal(unpack(packed, 10**6, 10**6, False)["x"], short.astype(float))
    assert bytes_of(short) == (2 + golomb.length(as_whole(short)[2]) if len(short) else 0)


def test_fewer_bits_take_fewer_bytes():
    values = np.random.default_rng(0).normal(size=300)
    sizes = [bytes_of(rounded(values, bits)) for bits in (2, 5, 8, 12, 16, 24)]
    assert sizes == sorted(sizes)
    assert sizes[1] < 300 * 9 / 8
    assert sizes[-1] < 300 * 28 / 8


@given(st.lists(WHOLE, max_size=200))
def test_whole_numbers_come_back(numbers):
    numbers = np.array(numbers, dtype=np.int64)
    data = golomb.encode(numbers)
    assert len(data) == golomb.length(numbers)
    assert np.array_equal(golomb.decode(data, len(numbers)), numbers)


@given(st.integers(0, 10**6), st.sampled_from([1.0, 30.0, 1e6]))
def test_whole_numbers_take_little_more_than_they_must(seed, size):
    """Next to the entropy of normal ones; a single large one among them costs little."""
    numbers = np.rint(size * np.random.default_rng(seed).normal(size=640)).astype(np.int64)
    must = max(1.0, np.log2(size * np.sqrt(2 * np.pi * np.e)))
    assert golomb.length(numbers) * 8 / 640 < must + 1
    numbers[100] = 2**60
    assert golomb.length(numbers) * 8 / 640 < must + 2


@given(st.binary(max_size=60), st.integers(0, 70))
def test_no_bytes_break_the_decoder(data, size):
    try:
        found = golomb.decode(data, size)
    except ValueError:
        return
    assert len(found) == size


@given(st.binary(max_size=40), st.integers(0, 40))
def test_no_bytes_break_the_reader_of_short_numbers(data, size):
    message = pack({"x": {"dtype": "short", "shape": [size], "raw": data}})
    try:
        found = unpack(message, 10**6, 10**6, False)["x"]
    except MessageError:
        return
    assert found.shape == (size,)
    assert np.isfinite(found).all()


@pytest.mark.parametrize(("cut", "top", "down"), [(24, 127, [1]), (0, 256, [1]), (0, 1, [2**23]), (0, 1, [2**60])])
def test_what_no_short_number_is(cut, top, down):
    with pytest.raises(ValueError, match="that no float32 is"):
        from_whole(cut, top, np.array(down))


@pytest.mark.parametrize("large", [2**61, -(2**61), 2**62 + 2**40, -(2**63)])
def test_numbers_too_large_for_the_code_take_eight_bytes_and_are_never_read_by_it(large):
    numbers = np.array([[1, large, 3]])
    assert bytes_of(numbers) == 24
    assert np.array_equal(unpack(pack({"x": numbers}, whole=True), 10**6, 10**6, False)["x"], numbers)
    for reads in (golomb.encode, golomb.length, golomb.lengths):
        with pytest.raises(ValueError, match="cannot be written in Golomb's codes"):
            reads(numbers)


def test_many_short_numbers_come_back_in_pieces(monkeypatch):
    short = rounded(np.random.default_rng(0).normal(size=100), 12)
    expected = pack({"x": short})
    monkeypatch.setattr(wire, "PIECE", 7)
    assert np.array_equal(unpack(expected, 10**6, 10**6, False)["x"], short.astype(float))
