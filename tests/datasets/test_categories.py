"""Columns of categories: levels, and the features that they become, beside scikit-learn's encoder."""

import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import OneHotEncoder

from fedmls.datasets.categories import (
    Column,
    columns_of,
    features_of,
    indicators,
    level_codes,
    level_texts,
)
from fedmls.datasets.files import no_category


@given(
    known=st.lists(st.sampled_from("abcde"), min_size=1, max_size=20),
    new=st.lists(st.sampled_from([*"abcdefg", None]), min_size=1, max_size=20),
)
def test_features_are_those_of_scikit_learn(known, new):
    """Unknown levels are 0 everywhere; a missing value is NaN everywhere, which scikit-learn's encoder has not."""
    encoder = OneHotEncoder(drop="if_binary", handle_unknown="ignore", sparse_output=False)
    encoder.fit(np.array(known, dtype=object)[:, None])
    column = Column("c", tuple(sorted({*known})))
    features = indicators(level_codes(new, column.levels), column)
    lacks = np.array([one is None for one in new])
    assert np.isnan(features[lacks]).all()
    if len(column.levels) == 1:  # always the same, and no feature; scikit-learn keeps one
        assert features.shape == (len(new), 0)
        assert column.features == []
    elif (~lacks).any():
        there = np.array(new, dtype=object)[~lacks][:, None]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of unknown levels
            expected = encoder.transform(there)
        np.testing.assert_array_equal(features[~lacks], expected)
        assert column.features == [name.replace("x0_", "c=") for name in encoder.get_feature_names_out()]


def test_columns_are_found_again_from_their_features():
    levels = {"b": ["x", "y", "z"], "d": ["no", "yes"], "e": ["only"]}
    features = features_of(["a", "b", "c", "d", "e"], levels)
    assert features == ["a", "b=x", "b=y", "b=z", "c", "d=yes"]
    assert columns_of(features, levels) == [
        *(Column("a"), Column("b", ("x", "y", "z")), Column("c"), Column("d", ("no", "yes"))),
    ]
    with pytest.raises(ValueError, match="two features are called 'd=yes'; rename a column"):
        features_of(["d", "d=yes"], levels)


def test_levels_are_the_same_however_they_are_written():
    assert level_texts(pd.Series(["1", "01", None, "x"])) == ["1", "01", None, "x"]
    assert level_texts(pd.Series([1.0, np.nan, 2.5])) == ["1", None, "2.5"]
    assert level_texts(pd.Series([True, None], dtype=object)) == ["True", None]
    assert level_texts(pd.Series([1, 2], dtype="category")) == ["1", "2"]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (pd.Series(pd.to_datetime(["2026-01-01"])), "holds times"),
        (pd.Series([1 + 2j]), "holds complex numbers"),
        (pd.Series(["1,5", "2,5", "x"]), "holds numbers with a comma"),
        (pd.Series(["1.5", "2.5", "secret"]), "holds numbers but for 1 value"),
    ],
)
def test_what_is_no_category_is_told_without_a_value(values, why):
    mistake = no_category(values)
    assert mistake.why == why
    assert "secret" not in mistake.why + mistake.remedy


def test_categories_are_categories():
    assert no_category(pd.Series(["red", "green", None])) is None
    assert no_category(pd.Series(["1", "red", "green"])) is None
