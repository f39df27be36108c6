"""Data that comes with the package, and makers of problems (:mod:`fedmls.datasets.synthetic`)."""

import csv
from importlib import resources
from typing import Any

import numpy as np

from fedmls.datasets.synthetic import chain, lad, svm
from fedmls.types import Array

__all__ = ["DATASETS", "breast_cancer_wisconsin", "chain", "impute_means", "lad", "svm"]

BREAST_CANCER_COLUMNS = (
    "clump_thickness",
    "cell_size_uniformity",
    "cell_shape_uniformity",
    "marginal_adhesion",
    "epithelial_cell_size",
    "bare_nuclei",
    "bland_chromatin",
    "normal_nucleoli",
    "mitoses",
)


def breast_cancer_wisconsin(impute: bool = True) -> tuple[Array, Array]:
    """The original Wisconsin breast cancer data: X (699, 9), each value 1..10, and y, +1 for malignant (241 rows).

    16 values of bare_nuclei are missing: column means stand in for them, or NaN with ``impute=False``.

    O. L. Mangasarian and W. H. Wolberg, "Cancer diagnosis via linear programming", SIAM News 23(5), 1990;
    W. H. Wolberg and O. L. Mangasarian, "Multisurface method of pattern separation for medical diagnosis
    applied to breast cytology", PNAS 87, 1990. UCI Machine Learning Repository; the patient numbers are left out.
    """
    file = resources.files(__package__).joinpath("breast_cancer_wisconsin.csv")
    with file.open(encoding="ascii") as lines:
        rows = list(csv.reader(lines))[1:]
    X = np.array([[float(v) if v else np.nan for v in row[:-1]] for row in rows])
    y = np.array([1.0 if row[-1] == "malignant" else -1.0 for row in rows])
    return (impute_means(X) if impute else X), y


def impute_means(X: Any, means: Any = None) -> Array:
    """X with every NaN replaced by its column's mean (over X itself, unless ``means`` are given)."""
    X = np.array(X, dtype=float)
    if means is None:
        empty = np.flatnonzero(np.isnan(X).all(axis=0))
        if empty.size:
            raise ValueError(f"column {empty[0]} holds no number at all; drop it")
        means = np.nanmean(X, axis=0)
    return np.asarray(np.where(np.isnan(X), means, X))


DATASETS = {"breast_cancer_wisconsin": breast_cancer_wisconsin}
