"""Columns of categories: their levels, and the 0/1 features that they become.

Shared by experiments (:mod:`fedmls.datasets.tables`), by the nodes and the server of a federation, and by the models
that are loaded from a results folder.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedmls.datasets.files import label_text
from fedmls.types import Array

MOST_LEVELS = 100  # of a column that becomes a 0/1 feature for each of them


class Column(NamedTuple):
    """A column of a table: of numbers, or, with levels, of categories.

    A column of numbers is a feature by itself. Of categories each level is a feature, 1 where a row has it and 0 where
    not; two levels make one feature, of the second, and one level makes none.
    """

    name: str
    levels: tuple[str, ...] | None = None

    @property
    def shown(self) -> tuple[str, ...]:
        """Return the levels that are features."""
        levels = self.levels or ()
        return levels[1:] if len(levels) <= 2 else levels

    @property
    def features(self) -> list[str]:
        return [self.name] if self.levels is None else [f"{self.name}={level}" for level in self.shown]


def features_of(columns: Iterable[str], levels: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names of the features that these columns become; raise a ValueError if two have one name.

    levels: of the columns of categories.
    """
    named = [Column(name, tuple(levels[name]) if name in levels else None) for name in columns]
    names = [name for column in named for name in column.features]
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"two features are called {twice!r}; rename a column")
    return names


def columns_of(features: Sequence[str], levels: Mapping[str, Sequence[str]] | None) -> list[Column]:
    """Return the columns that became these features.  levels: of the columns of categories."""
    categories = [Column(name, tuple(known)) for name, known in (levels or {}).items()]
    column = {feature: one for one in categories for feature in one.features}
    return list(dict.fromkeys(column.get(feature, Column(feature)) for feature in features))


def level_texts(values: Any) -> list[str | None]:
    """Return the levels of a data frame's column as text, the same for 1 and 1.0; None where a value is missing."""
    lacks = values.isna().tolist()
    found = zip(values.tolist(), lacks, strict=True)
    return [None if missing else value if isinstance(value, str) else label_text(value) for value, missing in found]


def level_codes(texts: Sequence[str | None], levels: Sequence[str]) -> Array:
    """Return the place of each text among the levels, their number for others, and NaN where a value is missing."""
    places: dict[str | None, float] = {level: float(i) for i, level in enumerate(levels)} | {None: np.nan}
    return np.array([places.get(text, float(len(levels))) for text in texts], dtype=float)


def indicators(codes: Array, column: Column) -> Array:
    """Return the features of a column of categories, from the codes of its rows: 0 in all of them for an unknown
    level, and NaN where the value is missing.
    """
    shown = np.arange(len(column.levels or ()))[-len(column.shown) :] if column.shown else np.arange(0)
    block: Array = (codes[:, None] == shown).astype(float)
    block[np.isnan(codes)] = np.nan
    return block
