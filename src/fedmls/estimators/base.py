"""What the estimators have in common. They prepare what scikit-learn hands them; fit.py fits."""

import warnings
from numbers import Real
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_consistent_length, check_non_negative

from fedmls import partition
from fedmls.checks import check_batch, one_of, positive, truth, whole
from fedmls.estimators.fit import Fit, FitSettings
from fedmls.estimators.rows import TrainingRows
from fedmls.estimators.solvers import check_solver
from fedmls.types import DEVICES, Array


class FederatedLinearModel(BaseEstimator):  # type: ignore[misc]
    """A linear model trained over rows held by clients, which a simulation keeps apart.

    Parameters of all four:

    fit_intercept: whether there is an intercept. It is never penalised.
    solver: "auto" (FedMLS-B), the name of any algorithm (``fedmls.ALGORITHMS``) with a step size made for the problem,
    or an algorithm such as ``fedmls.FedMLSD(lam0=1.0)``.
    tol: stop as soon as objective - lower_bound <= tol max(objective, tol times the objective at the start). Where no
    lower bound is to be had (see ``certified_gap_``): as soon as the objective fell by less than that in the second
    half of the rounds, which proves nothing.
    max_rounds: stop there at the latest, with a ConvergenceWarning.
    check_every: look at the model, for ``tol`` and ``history_``, once in so many rounds; a look costs an exchange. With
    FedMLS-B it costs nothing, and every round is looked at.
    batch: the fraction of a client's rows in a local step; FedMLS-B reads all.
    n_clients, partition: how rows are dealt out without ``groups``: "iid" (at random), "kmeans" (clusters of rows) or
    "dirichlet" (skewed classes). With fewer rows than n_clients each row is a client. The fitted model is the same.
    warm_start: start from the model of the last fit.
    random_state: of the partition and of the mini-batches.
    verbose: show a progress bar.
    device: where the clients compute: "cpu", "cuda" (an NVIDIA GPU; needs the extra ``gpu``), or "cuda-float32".

    Attributes of all four:

    coef_, intercept_: as scikit-learn has them.
    certified_gap_: the objective is proved to be at most this far above its minimum. Infinite where nothing is proved:
    for non-smooth losses by solvers other than FedMLS-B, FedMLS, -E and -D, and by the last three without a penalty in
    more than 100 coordinates. FedMLS-B proves next to nothing without a penalty in more than 200.
    objective_: the objective, as each class below states it.
    n_iter_: rounds.  exchanges_: messages to and from every client, with those that looks take.
    history_: a data frame with a row for each look: the columns of :class:`fedmls.types.Run` that are known here, in
    the units of the objective.
    """

    fit_intercept: bool
    solver: Any
    tol: float
    max_rounds: int
    check_every: int
    batch: float
    n_clients: int
    partition: str
    warm_start: bool
    random_state: Any
    verbose: bool
    device: str

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _settings(self) -> FitSettings:
        check_solver(self.solver)
        one_of("device", self.device, DEVICES)
        truth("fit_intercept", self.fit_intercept)
        return FitSettings(
            self.solver,
            positive("tol", self.tol),
            whole("max_rounds", self.max_rounds),
            whole("check_every", self.check_every),
            check_batch(self.batch),
            int(check_random_state(self.random_state).randint(2**31)),
            truth("verbose", bool(self.verbose) if self.verbose in (0, 1, 2) else self.verbose),
            self.device,
        )

    def _rows(
        self, X: Any, y: Any, sample_weight: Any, groups: Any, seed: int, class_weight: Any = None
    ) -> TrainingRows:
        """Return the rows that count, with their clients. Rows of weight 0 are as if they were not there."""
        weights = _row_weights(sample_weight, X.shape[0])
        counts = weights > 0
        if groups is not None:
            check_consistent_length(X, groups)
            groups = np.asarray(groups)[counts]
        X, y, weights = X[counts], y[counts], weights[counts]
        return TrainingRows(X, y, weights, self._clients(X, y, groups, seed))

    def _clients(self, X: Any, y: Any, groups: Any, seed: int) -> Any:
        """Return the client 0..n-1 of every row."""
        if groups is not None:
            return partition.by_column(groups)
        n_clients = min(whole("n_clients", self.n_clients), X.shape[0])
        one_of("partition", self.partition, ("iid", "kmeans", "dirichlet"))
        if self.partition == "dirichlet":
            if not is_classifier(self):
                raise ValueError("partition is 'dirichlet', which deals out classes; a regressor has none: take 'iid'")
            return partition.dirichlet(y, n_clients, seed=seed)
        return getattr(partition, self.partition)(X, n_clients, seed=seed)

    def _before(self, run: int, runs: int, features: int) -> tuple[Array | None, float | None]:
        """Return, with ``warm_start``, the model of one of so many runs of the last fit, and the λ_0 it ended with."""
        if not truth("warm_start", self.warm_start) or not hasattr(self, "coef_"):
            return None, None
        coef = np.atleast_2d(self.coef_)
        if coef.shape != (runs, features):
            raise ValueError(
                f"warm_start goes on from coefficients of shape {coef.shape}, but this fit has {(runs, features)}; "
                "fit a clone of the estimator instead"
            )
        b = [np.atleast_1d(self.intercept_)[run]] if self.fit_intercept else []
        return np.concatenate([coef[run], b]), self._lam0[run]

    def _keep(self, fits: list[Fit]) -> None:
        """Set the attributes that do not depend on the kind of model: sums over several runs, but the most rounds."""
        self.n_iter_ = max(fit.rounds for fit in fits)
        self.exchanges_ = sum(fit.exchanges for fit in fits)
        self.objective_ = sum(fit.objective for fit in fits)
        self.certified_gap_ = sum(fit.certified_gap for fit in fits)
        self._lam0 = [fit.lam0 for fit in fits]
        for fit in fits:
            _warn(fit, self.tol)


def _row_weights(sample_weight: Any, rows: int) -> Array:
    """Return a weight, not negative, for each of so many rows: 1 unless given. Errors are those of scikit-learn."""
    if sample_weight is None:
        return np.ones(rows)
    if isinstance(sample_weight, Real):
        sample_weight = np.full(rows, float(sample_weight))
    weights = check_array(sample_weight, ensure_2d=False, dtype=np.float64, order="C", input_name="sample_weight")
    if weights.ndim != 1:
        raise ValueError(
            f"Sample weights must be 1D array or scalar, got {weights.ndim}D array. Expected either a scalar value "
            f"or a 1D array of length {rows}."
        )
    if weights.shape != (rows,):
        raise ValueError(f"sample_weight.shape == {weights.shape}, expected {(rows,)}!")
    if not weights.any():
        raise ValueError("Sample weights must contain at least one non-zero number.")
    check_non_negative(weights, "`sample_weight`")
    return np.asarray(weights)


def _warn(fit: Fit, tol: float) -> None:
    if fit.ended == "diverged":
        warnings.warn(
            f"the run diverged after {fit.rounds} rounds, and the best model before that is kept; "
            "take a smaller step size, or solver='auto'",
            ConvergenceWarning,
            stacklevel=4,
        )
    elif fit.ended == "rounds":
        known = np.isfinite(fit.certified_gap)
        what = f"a gap of {fit.certified_gap:.3g} is proved" if known else "no gap is proved"
        warnings.warn(
            f"max_rounds = {fit.rounds} reached: {what} for the objective {fit.objective:.6g}, and tol is {tol:g}; "
            "scale the columns (StandardScaler), raise max_rounds or tol",
            ConvergenceWarning,
            stacklevel=4,
        )


def parted(x: Array, intercept: bool) -> tuple[Array, float]:
    return (x[:-1], float(x[-1])) if intercept else (x, 0.0)
