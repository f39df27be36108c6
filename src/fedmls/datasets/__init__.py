"""Data: from files (:func:`read`), by name (:data:`DATASETS`, :func:`load`), made up (:mod:`.synthetic`)."""

from fedmls.datasets.named import DATASETS, load
from fedmls.datasets.synthetic import chain, lad, svm
from fedmls.datasets.tables import Data, impute_means, read
from fedmls.types import Array

__all__ = [
    "DATASETS",
    "Data",
    "breast_cancer_wisconsin",
    "chain",
    "impute_means",
    "lad",
    "load",
    "read",
    "svm",
]

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
    data = load("breast_cancer_wisconsin", missing="mean" if impute else "keep")
    return data.X, data.y
