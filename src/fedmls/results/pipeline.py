"""A trained model as a scikit-learn pipeline, and its predictions for the rows of a file."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from fedmls.checks import is_sparse
from fedmls.datasets.categories import Column, indicators, level_codes, level_texts
from fedmls.datasets.files import UNREADABLE, Unreadable, kind_of, label_text, number_of, read_frame, read_table
from fedmls.datasets.overview import has_commas
from fedmls.datasets.tables import REST, no_column, some
from fedmls.results.model import Description, read_description
from fedmls.types import Array


def load(folder: str | Path) -> Pipeline:
    """Return the model of a results folder as a fitted scikit-learn pipeline: encode, impute, scale, predict, as far as
    the training did.

    folder: of a federation, of ``fedmls run`` or of ``fedmls reproduce``; or its model.json.

    The pipeline takes a data frame with the columns that the model was trained on, in any order and with others among
    them; or, where all are numbers, an array of them in their order. Text columns become 0/1 columns, a level that the
    model does not know is 0 in all of them, with a warning, and a missing value is filled as it was in training. A
    model of classes has ``decision_function`` and, with the logistic loss, ``predict_proba``; its ``classes_`` are the
    labels of the rows.
    """
    return pipeline(read_description(folder))


def pipeline(described: Description) -> Pipeline:
    """Return the fitted pipeline of a model."""
    model = described.model
    steps: list[tuple[str, Any]] = [("encode", TableEncoder(described.columns, refuse_missing=described.fill is None))]
    if described.fill is not None:
        steps.append(("impute", SimpleImputer().fit(described.fill[None, :])))  # the means of one row are the row
    if described.scaled:
        scaler = StandardScaler()
        scaler.mean_, scaler.scale_, scaler.var_ = model.means, model.scales, model.scales**2
        scaler.n_features_in_, scaler.n_samples_seen_ = len(model.means), described.trained.get("rows", 1)
        steps.append(("scale", scaler))
    return Pipeline([*steps, ("model", _linear_model(described))])


def _linear_model(described: Description) -> Any:
    """Return scikit-learn's linear model of the loss's kind, with the coefficients of ours."""
    x, p = described.model.x, len(described.model.columns)
    intercept = float(x[p]) if described.model.intercept else 0.0
    linear: Any
    if not described.model.classes:
        linear = LinearRegression()
        linear.coef_, linear.intercept_ = x[:p], intercept
    else:
        linear = LogisticRegression() if described.loss == "logistic" else LinearSVC()
        linear.coef_, linear.intercept_ = x[None, :p], np.array([intercept])
        linear.classes_ = _labels(described.model.classes)
    linear.n_features_in_ = p
    return linear


def _labels(classes: Sequence[str]) -> Any:
    """Return the two classes as they were in the rows: numbers or truth values, if both are, else text."""
    numbers = [number_of(name) for name in classes]
    if None not in numbers:
        whole = all(number == int(number) for number in numbers if number is not None)
        return np.array(numbers, dtype=int if whole else float)
    return np.array([False, True]) if list(classes) == ["False", "True"] else np.array(classes)


class TableEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Turns the columns of a table into the features of a model: numbers stay, a category becomes 0/1 columns.

    columns: of the table, with the levels of categories.  refuse_missing: whether missing values are refused, with a
    word; otherwise each is NaN in all features of its column.

    A level that is not among them is 0 in all features of its column; one warning tells which columns have such, and
    how many.
    """

    def __init__(self, columns: Sequence[Column] = (), refuse_missing: bool = False) -> None:
        self.columns = columns
        self.refuse_missing = refuse_missing

    def __sklearn_is_fitted__(self) -> bool:
        return True

    @property
    def feature_names_in_(self) -> Any:
        return np.array([column.name for column in self.columns], dtype=object)

    @property
    def n_features_in_(self) -> int:
        return len(self.columns)

    def fit(self, X: Any, y: Any = None) -> "TableEncoder":
        """Learn nothing: the columns are known."""
        return self

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        return np.array([name for column in self.columns for name in column.features], dtype=object)

    def transform(self, X: Any) -> Any:
        """Return the features of the rows."""
        features: Any = self._of_frame(X) if hasattr(X, "iloc") else self._of_array(X)
        values = features.data if is_sparse(features) else features
        if np.isinf(values).any():
            raise ValueError("the rows hold an infinite value; take it out")
        if self.refuse_missing and np.isnan(values).any():
            lacks = np.isnan(features.toarray() if is_sparse(features) else features).sum(axis=0)
            names = self.get_feature_names_out()
            raise ValueError(
                f"values are missing in {some(f'{names[j]!r} ({lacks[j]})' for j in np.flatnonzero(lacks))}, and the "
                "model was trained on rows without gaps; fill them in"
            )
        return features

    def _of_frame(self, frame: Any) -> Array:
        names = [str(name) for name in frame.columns]
        lacking = [column.name for column in self.columns if column.name not in names]
        if len(lacking) == 1:
            raise ValueError(no_column(lacking[0], names))
        if lacking:
            raise ValueError(f"there are no columns {some(map(repr, lacking))}; there are {some(names)}")
        twice = [column.name for column in self.columns if names.count(column.name) > 1]
        if twice:
            raise ValueError(f"two columns are called {twice[0]!r}; rename one")
        unknown: dict[str, list[str]] = {}
        blocks = [self._block(column, frame.iloc[:, names.index(column.name)], unknown) for column in self.columns]
        if unknown:
            warnings.warn(_unknown(unknown), UserWarning, stacklevel=4)
        return np.concatenate([np.empty((len(frame), 0)), *blocks], axis=1)

    def _block(self, column: Column, values: Any, unknown: dict[str, list[str]]) -> Array:
        """Return the features of one column, and note levels that are not known."""
        if column.levels is None:
            return _numbers(column.name, values)
        texts = level_texts(values)
        strange = {text for text in texts if text is not None} - {*column.levels}
        if strange:
            unknown[column.name] = sorted(strange)
        return indicators(level_codes(texts, column.levels), column)

    def _of_array(self, X: Any) -> Any:
        """Return rows without names: all columns in their order, numbers only."""
        if any(column.levels is not None for column in self.columns):
            raise ValueError("some columns hold categories; give a data frame, whose columns have names")
        rows = X.tocsr() if is_sparse(X) else np.asarray(X, dtype=float)
        if rows.ndim != 2 or rows.shape[1] != len(self.columns):
            raise ValueError(f"X has shape {rows.shape}; the model takes rows of {len(self.columns)} columns")
        return rows


def _unknown(levels: dict[str, list[str]]) -> str:
    found = [f"column {name!r} has {len(each)} ({some(map(repr, each), 3)})" for name, each in levels.items()]
    return f"unknown levels count as none: {'; '.join(found)}"


def _numbers(name: str, values: Any) -> Array:
    """Return a column of numbers, NaN where a value is missing."""
    if values.dtype.kind in "mMc":
        raise ValueError(f"column {name!r} holds numbers in the model, but here {values.dtype}; turn them into numbers")
    try:
        return np.asarray(pd.to_numeric(values).to_numpy(dtype=float, na_value=np.nan))[:, None]
    except (TypeError, ValueError):
        odd = next((one for one in values.dropna() if number_of(one) is None), None)
        raise ValueError(
            f"column {name!r} holds numbers in the model, but here {odd!r}; leave the cell of a missing value empty, "
            "and write numbers like 1234.5"
        ) from None


class Predictions(NamedTuple):
    """The predictions for the rows of a file, and what is to be said of them, in sentences."""

    table: pd.DataFrame
    notes: list[str]


def predict_file(folder: str | Path, file: Path, keep: Sequence[str] = (), decimal: str | None = None) -> Predictions:
    """Return the predictions of a results folder's model for the rows of a file, which need no label.

    keep: columns of the file to be copied beside the predictions.  decimal: what the numbers in a CSV are written with;
    found out unless given.

    The table has a column "prediction"; for classes also "score", above 0 for the larger class, and with the logistic
    loss "probability", that of the larger class.
    """
    described = read_description(folder)
    rows, fitted = _rows(file, described, decimal), pipeline(described)
    if not rows.shape[0]:
        raise ValueError(f"{file}: it holds no rows")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            features = fitted[:-1].transform(rows)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None
    linear = fitted[-1]
    found = {"prediction": linear.predict(features)}
    if described.model.classes:
        found["score"] = linear.decision_function(features)
    if described.loss == "logistic":
        found["probability"] = linear.predict_proba(features)[:, 1]
    notes = [*(str(one.message) for one in caught), *_measured(described, rows, found["prediction"])]
    for name in keep:
        if name in found:
            raise ValueError(f"keep has {name!r}, as a column of the predictions is called; rename it in {file}")
    return Predictions(pd.DataFrame({**_kept(file, rows, keep), **found}), notes)


def _rows(file: Path, described: Description, decimal: str | None) -> Any:
    """Return the rows of the file: a data frame, or sparse rows."""
    kind = kind_of(file)
    if not file.is_file():
        raise ValueError(f"{file} is not there")
    try:
        if kind in ("CSV", "Parquet"):
            rows = read_frame(file, text=tuple(described.levels), decimal=decimal or ".")
            numbers = rows.drop(columns=[*described.levels], errors="ignore")
            if decimal is None and kind == "CSV" and has_commas(numbers):
                return read_frame(file, text=tuple(described.levels), decimal=",")
            return rows
        table = read_table(file, len(described.model.columns), zero_based="auto")
    except Unreadable as error:
        raise ValueError(f"{file}: {error}") from None
    except UNREADABLE as error:
        raise ValueError(f"{file}: it cannot be read as {kind}: {str(error).strip()}") from None
    if table.features is None:
        raise ValueError(f"{file}: it has no array 'X'")
    return table.features if is_sparse(table.features) else pd.DataFrame(table.features, columns=table.names)


def _kept(file: Path, rows: Any, keep: Sequence[str]) -> dict[str, Any]:
    names = list(rows.columns) if hasattr(rows, "columns") else []
    for name in keep:
        if name not in names:
            raise ValueError(f"{file}: {no_column(name, names)}")
    if keep and kind_of(file) == "CSV":  # to the letter: 00123 is not 123
        rows = read_frame(file, as_text=True)
    return {name: rows[name].to_numpy() for name in keep}


def _measured(described: Description, rows: Any, predicted: Any) -> list[str]:
    """Return how good the predictions are, in a sentence, if the rows hold the label."""
    if described.label is None or described.label not in getattr(rows, "columns", ()):
        return []
    y = rows[described.label]
    there = y.notna().to_numpy()
    if not there.any():
        return []
    what = f"on {there.sum()} rows with the label {described.label!r}"
    if described.model.classes:
        low, high = described.model.classes
        told, wanted = ([label_text(one) for one in each] for each in (predicted[there].tolist(), y[there].tolist()))
        if low == REST:
            wanted = [one if one == high else REST for one in wanted]
        strange = sorted({*wanted} - {low, high})
        if strange:
            held = some(map(repr, strange), 3)
            return [
                f"the label {described.label!r} holds {held}, not only the model's {low!r} and {high!r}: how good the "
                "predictions are cannot be told"
            ]
        right = np.mean([one == other for one, other in zip(told, wanted, strict=True)])
        return [f"accuracy {what}: {right:.4g}"]
    error = np.abs(predicted[there] - y[there].to_numpy(dtype=float)).mean()
    return [f"mean absolute error {what}: {error:.4g}"]
