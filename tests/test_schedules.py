"""Schedules: powers of the round, for one run and for several side by side, and coins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmls.schedules import Power, PowerRows, first_success, total


@given(
    scales=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=4),
    exponent=st.sampled_from([0.0, -0.5, -0.75, 1.0]),
    firsts=st.lists(st.integers(1, 10**6), min_size=4, max_size=4),
    counts=st.lists(st.integers(1, 50), min_size=4, max_size=4),
)
def test_rows_of_several_runs_are_those_of_each(scales, exponent, firsts, counts):
    scales, firsts, counts = (np.array(values[: len(scales)])[:, None, None] for values in (scales, firsts, counts))
    rows = Power(scales, exponent).array(firsts, counts)
    assert isinstance(rows, PowerRows)
    assert rows.shape == np.asarray(rows).shape
    for i, (scale, first, count) in enumerate(
        zip(*(v.ravel().tolist() for v in (scales, firsts, counts)), strict=True)
    ):
        own = Power(scale, exponent).array(first, count)
        assert np.asarray(rows)[i, :count].tolist() == own.tolist()
        assert not np.asarray(rows)[i, count:].any()
        assert total(rows)[i, 0, 0] == total(own)


@pytest.mark.parametrize("p", [Power(1.0, -0.5), Power(0.05), Power(1e-3, 0.5), Power(2.0, -0.3)])
@pytest.mark.parametrize("after", [0, 7, 5000])
def test_the_first_head_is_that_of_plain_tosses(p, after):
    for seed in range(20):
        plain, count = np.random.default_rng(seed), 1
        while plain.random() >= min(1.0, p(after + count)):
            count += 1
        assert first_success(p, after, np.random.default_rng(seed)) == count


def test_a_coin_that_never_falls_is_refused(monkeypatch):
    monkeypatch.setattr("fedmls.schedules.MOST_TOSSES", 1000)
    with pytest.raises(ValueError, match="gave no meeting in 1,000 steps after step 3"):
        first_success(Power(1e-300), 3, np.random.default_rng(0))
    with pytest.raises(ValueError, match="gave no meeting in 1,000 steps after step 100"):
        first_success(Power(0.5, -200.0), 100, np.random.default_rng(0))
