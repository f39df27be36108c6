"""The diagnostic breast cancer data of scikit-learn, cut by their first principal component."""
# ruff: noqa: RUF012 (benchopt reads them from the class)

import numpy as np
from benchopt import BaseDataset
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale


class Dataset(BaseDataset):
    name = "Breast cancer"
    requirements = ["pip::scikit-learn"]
    parameters = {"n_clients": [10]}

    def get_data(self):
        X, y = load_breast_cancer(return_X_y=True)
        X = scale(X)
        along = X @ np.linalg.svd(X, full_matrices=False)[2][0]
        clients = np.argsort(np.argsort(along)) * self.n_clients // len(y)
        return {"X": X, "y": np.where(y == 1, 1, -1), "clients": clients}
