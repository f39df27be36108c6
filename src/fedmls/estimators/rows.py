"""What a fit minimises: the rows of all clients and the objective, and the :class:`fedmls.Problem` they make.

The estimators minimise a multiple (``unit``) of Σ_j c_j ℓ(a_j·x, b_j) + l2/2 ‖w‖² + l1 ‖w‖_1 over all rows. That is n
times f = Σ_i f_i/n with the terms divided by n, so the minimum does not depend on how the rows are dealt out.
"""

from typing import Any, NamedTuple

import numpy as np

from fedmls.checks import is_sparse
from fedmls.losses import Loss
from fedmls.problem import Problem
from fedmls.types import Array


class TrainingRows(NamedTuple):
    """The rows of all clients that a fit trains on, with their weights c_j and the client 0..n-1 of each."""

    X: Any
    y: Array
    weights: Array
    clients: Any

    @property
    def n(self) -> int:
        return int(self.clients.max()) + 1

    def quantile(self, level: float) -> float:
        """Return the mean of the clients' quantiles of y, weighted by how much their rows count."""
        order, total = np.lexsort([self.y, self.clients]), 0.0
        for part in np.split(order, np.flatnonzero(np.diff(self.clients[order])) + 1):
            so_far = np.cumsum(self.weights[part])
            total += so_far[-1] * self.y[part[np.searchsorted(so_far, level * so_far[-1])]]
        return float(total / self.weights.sum())


class Objective(NamedTuple):
    """The objective: unit times Σ_j c_j ℓ(a_j·x, b_j) + l2/2 ‖w‖² + l1 ‖w‖_1, x = (w, intercept) or w."""

    loss: Loss
    intercept: bool
    unit: float
    l2: float = 0.0
    l1: float = 0.0


def make_problem(rows: TrainingRows, objective: Objective) -> Problem:
    loss, n = objective.loss, rows.n
    return Problem(
        rows.X,
        rows.y,
        rows.clients,
        loss,
        intercept=objective.intercept,
        l2=objective.l2 / n,
        l1=objective.l1 / n,
        sample_weight=rows.weights,
        classes=(-1, 1) if loss.is_classification else None,
    )


def with_penalty_rows(rows: TrainingRows, objective: Objective) -> tuple[Problem, Any]:
    """Return the problem with its l1 term made of rows, for algorithms that only know rows; and which rows are data.

    The pinball losses of w_k and of -w_k with the label 0 make |w_k|. So every client gets the rows ±e_k, of weight
    l1/n, which hold no data. The intercept's column of ones is 0 in them.
    """
    m, d = rows.X.shape
    if is_sparse(rows.X):
        from scipy import sparse as stack

        eye, ones = stack.eye_array(d, format="csr"), stack.csr_array(np.ones((m, 1)))
        none = stack.csr_array((2 * d * rows.n, 1))
    else:
        stack, eye, ones, none = np, np.eye(d), np.ones((m, 1)), np.zeros((2 * d * rows.n, 1))
    X = stack.vstack([rows.X, *[eye, -eye] * rows.n])
    if objective.intercept:
        X = stack.hstack([X, stack.vstack([ones, none])])
    problem = Problem(
        X,
        np.concatenate([rows.y, np.zeros(2 * d * rows.n)]),
        np.concatenate([rows.clients, np.repeat(np.arange(rows.n), 2 * d)]),
        objective.loss,
        intercept=False,
        sample_weight=np.concatenate([rows.weights, np.full(2 * d * rows.n, objective.l1 / rows.n)]),
    )
    ends = np.repeat(problem.offsets[1:], problem.rows_per_client)  # of each row's client: these rows are its last
    return problem, np.arange(len(problem.y)) < ends - 2 * d
