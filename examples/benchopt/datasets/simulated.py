"""Two classes, with clients whose rows lie around points of their own."""
# ruff: noqa: RUF012 (benchopt reads them from the class)

import numpy as np
from benchopt import BaseDataset


class Dataset(BaseDataset):
    name = "Simulated"
    parameters = {"rows": [1000], "columns": [20], "n_clients": [10]}
    test_parameters = {"rows": [60], "columns": [5], "n_clients": [3]}

    def get_data(self):
        rng = np.random.default_rng(self.get_seed(use_repetition=True))
        clients = np.arange(self.rows) % self.n_clients
        X = rng.normal(size=(self.rows, self.columns))
        X += rng.normal(size=(self.n_clients, self.columns))[clients]
        y = np.where(X @ rng.normal(size=self.columns) + rng.normal(size=self.rows) > 0, 1, -1)
        return {"X": X, "y": y, "clients": clients}
