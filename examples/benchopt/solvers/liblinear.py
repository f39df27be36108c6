"""LinearSVC of scikit-learn (LIBLINEAR) on all rows: what federated solvers should come to."""
# ruff: noqa: RUF012 (benchopt reads them from the class)

import warnings

import numpy as np
from benchopt import BaseSolver
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC


class Solver(BaseSolver):
    name = "liblinear"
    requirements = ["pip::scikit-learn"]
    sampling_strategy = "iteration"

    def set_objective(self, X, y, clients, l2):
        self.X, self.y = X, y
        # It minimises ½ ‖x‖² + C Σ_j max(0, 1 - b_j a_j·x).
        self.C = 1 / (l2 * len(np.unique(clients)))

    def run(self, n_iter):
        self.x = np.zeros(self.X.shape[1])
        if n_iter > 0:
            svm = LinearSVC(loss="hinge", C=self.C, fit_intercept=False)
            svm.set_params(tol=1e-12, max_iter=n_iter, random_state=0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                self.x = svm.fit(self.X, self.y).coef_[0]

    def get_result(self):
        return {"x": self.x, "exchanges": 0}
