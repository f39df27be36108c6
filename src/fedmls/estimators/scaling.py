"""Coordinates in which a linear model is easier to fit, with the same predictions and the same objective.

With an intercept b, which has no penalty, w·x + b = w·(x - c) + (b + w·c): columns can be moved freely. They can be
scaled together, x/s, if the penalty of s w takes it back; and each on its own where there is no penalty at all. So
columns are centred (rows of a sparse matrix are not: they would no longer be sparse) and scaled to about 1, which is
what the intercept's column of ones is. Nothing is standardised that the model would notice.

Federated it takes the sums of the columns and of their squares, one exchange, as a survey does (docs/federation.md).
"""

from typing import NamedTuple

import numpy as np

from fedmls.checks import is_sparse
from fedmls.estimators.rows import Objective, TrainingRows
from fedmls.types import Array


class Scaling(NamedTuple):
    """Moves and scales the rows: a -> (a - centre)/scale, column by column."""

    centre: Array
    scale: Array

    def rows(self, rows: TrainingRows) -> TrainingRows:
        """Return the rows, moved and scaled."""
        if not is_sparse(rows.X):
            return rows._replace(X=(rows.X - self.centre) / self.scale)
        from scipy import sparse

        return rows._replace(X=sparse.csr_array(rows.X @ sparse.diags_array(1 / self.scale)))

    def objective(self, objective: Objective) -> Objective:
        """Return the same objective for models of scaled rows; with a penalty all scales are the same."""
        s = float(self.scale[0])
        return objective._replace(l2=objective.l2 / s**2, l1=objective.l1 / s)

    def scaled_model(self, x: Array) -> Array:
        """Return the model of the scaled rows that predicts as x, (w, b) or w, does for the rows as they came."""
        w = x[: len(self.scale)]
        return np.concatenate([w * self.scale, x[len(w) :] + w @ self.centre])

    def original_model(self, x: Array) -> Array:
        """Return the model of the rows as they came that predicts as x does for the scaled rows."""
        w = x[: len(self.scale)] / self.scale
        return np.concatenate([w, x[len(w) :] - w @ self.centre])


def make_scaling(rows: TrainingRows, objective: Objective) -> Scaling:
    """Return the scaling that brings the columns to about 1 and leaves the objective as it is."""
    X, shares = rows.X, rows.weights / rows.weights.sum()
    squares = np.asarray(shares @ (X.multiply(X) if is_sparse(X) else X * X))
    centre, spread = np.zeros(X.shape[1]), squares.copy()
    if objective.intercept and not is_sparse(X):
        centre = np.asarray(shares @ X)
        spread = np.asarray(shares @ (X - centre) ** 2)
        spread[spread <= 1e-20 * squares] = 0.0  # a constant column, and rounding
    if objective.l2 or objective.l1:
        spread[:] = spread.mean()
    scale = np.sqrt(np.where(spread > 0, spread, 1.0))
    # A strong l1 term, of slopes l1, must not be what steps are measured by: the rows' slopes are about Σ c_j/2.
    return Scaling(centre, np.maximum(scale, 2 * objective.l1 / rows.weights.sum()))
