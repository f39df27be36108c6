"""A linear SVM on the rows of n clients: f(x) = 1/n Σ_j max(0, 1 - b_j a_j·x) + l2/2 ‖x‖²."""
# ruff: noqa: RUF012 (benchopt reads them from the class)

import numpy as np
from benchopt import BaseObjective


class Objective(BaseObjective):
    name = "Federated SVM"
    min_benchopt_version = "1.7"
    parameters = {"l2": [0.1, 1.0]}

    def set_data(self, X, y, clients):
        self.X, self.y, self.clients = X, y, clients
        self.n = len(np.unique(clients))

    def get_objective(self):
        return {"X": self.X, "y": self.y, "clients": self.clients, "l2": self.l2}

    def evaluate_result(self, x, exchanges):
        """``exchanges``: messages to and from every client; 0 for one that has all rows."""
        hinge = np.maximum(0, 1 - self.y * (self.X @ x)).sum() / self.n
        return {"value": hinge + self.l2 / 2 * x @ x, "exchanges": exchanges}

    def get_one_result(self):
        return {"x": np.zeros(self.X.shape[1]), "exchanges": 0}
