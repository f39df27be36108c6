"""What the columns of a file hold, looked at before there is an experiment or a job."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedmls.datasets.categories import MOST_LEVELS
from fedmls.datasets.files import (
    DECIMALS,
    UNREADABLE,
    frame_table,
    kind_of,
    label_text,
    no_category,
    read_frame,
    sorted_classes,
    text_columns,
)
from fedmls.datasets.tables import no_column, some

FRAMES = ("CSV", "Parquet")  # kinds of files whose columns have names


class Overview(NamedTuple):
    """What the columns of a CSV or Parquet file hold, but for those that are ignored.

    numbers: the columns that can be used as they are.  text: columns of text, with their values.
    unfit: columns that cannot be used, and why.  gaps: how many values a column lacks.
    classes: the label's values, if they are text or just two; None for numbers.  unlabelled: how many rows lack one.
    ignored: columns that are not looked at.
    """

    rows: int
    label: str
    classes: list[str] | None
    unlabelled: int
    numbers: list[str]
    text: dict[str, list[str]]
    unfit: dict[str, str]
    gaps: dict[str, int]
    decimal: str
    ignored: list[str]

    def text_told(self) -> list[str]:
        """Return sentences on the columns of text, if there are any, and on those that cannot be used."""
        columns = some(f"{name!r} ({len(values)} values)" for name, values in self.text.items())
        remedy = 'a job takes it with categorical = "onehot", or name such columns in ignore'
        told = [f"text is in {columns}; {remedy}"] if self.text else []
        unfit = some(f"{name!r} ({why})" for name, why in self.unfit.items())
        return [*told, f"no job can use {unfit}: put into ignore, at all sites alike"] if self.unfit else told

    def label_told(self) -> list[str]:
        """Return sentences on what is wrong with the label."""
        lacking = f"{self.unlabelled} of {self.rows} rows have no label {self.label!r}; take them out"
        told = [lacking] if self.unlabelled else []
        if self.classes is None or len(self.classes) <= 2:
            return told
        return [*told, f"the label {self.label!r} has {len(self.classes)} values, and losses for classes take two"]


def look_at(file: Path, label: str | None = None, ignore: Sequence[str] = (), decimal: str | None = None) -> Overview:
    """Return what the file holds. A cell that is no number among numbers is an error that names its row.

    label: the last column unless given.  decimal: what its numbers are written with; found out unless given.
    """
    if kind_of(file) not in FRAMES:
        raise ValueError(f"{file.name} is no CSV or Parquet file, whose columns have names")
    if not file.is_file():
        raise ValueError(f"{file} is not there")
    try:
        return _look_at(file, label, ignore, decimal)
    except UNREADABLE as error:
        raise ValueError(f"{file}: {error}") from None


def _look_at(file: Path, label: str | None, ignore: Sequence[str], decimal: str | None) -> Overview:
    frame = frame_table(read_frame(file, decimal=decimal or DECIMALS[0])).features
    names = list(frame.columns)
    label = names[-1] if label is None else label
    for name in (label, *ignore):
        if name not in names:
            raise ValueError(no_column(name, names))
    if frame.empty:
        raise ValueError("it holds no rows")
    if decimal is None and kind_of(file) == "CSV" and has_commas(frame.drop(columns=list(ignore))):
        return _look_at(file, label, ignore, DECIMALS[1])
    features = frame.drop(columns=[label, *ignore])
    text, unfit = _text(features, decimal or DECIMALS[0])
    gaps = {name: int(count) for name, count in features.isna().sum().items() if count}
    return Overview(
        rows=len(frame),
        label=label,
        classes=_classes(frame[label]),
        unlabelled=int(frame[label].isna().sum()),
        numbers=[name for name in features.columns if name not in text and name not in unfit],
        text=text,
        unfit=unfit,
        gaps=gaps,
        decimal=decimal or DECIMALS[0],
        ignored=list(ignore),
    )


def has_commas(frame: Any) -> bool:
    """Return whether a column of text in the data frame holds numbers with a comma."""
    mistakes = [no_category(frame[name]) for name in text_columns(frame)]
    return any(mistake is not None and mistake.why.endswith("comma") for mistake in mistakes)


def _text(features: Any, decimal: str) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return the columns of text with their values, and those that are no categories with the reason."""
    text, unfit = dict[str, list[str]](), dict[str, str]()
    for name in text_columns(features):
        mistake, values = no_category(features[name], decimal), sorted({str(one) for one in features[name].dropna()})
        if mistake is not None and mistake.example:
            raise ValueError(f"column {name!r} {mistake.why}{mistake.example}; {mistake.remedy}")
        if mistake is not None:
            unfit[name] = mistake.why
        elif len(values) > MOST_LEVELS:
            unfit[name] = f"{len(values)} different values"
        else:
            text[name] = values
    empty = {name: "no value at all" for name in features.columns if features[name].isna().all()}
    return {name: values for name, values in text.items() if name not in empty}, unfit | empty


def _classes(label: Any) -> list[str] | None:
    values = sorted_classes(sorted({label_text(value) for value in label.dropna().tolist()}))
    return values if len(values) <= 2 or text_columns(label.to_frame()) else None
