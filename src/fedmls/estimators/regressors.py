"""Least absolute deviations and quantile regression."""

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from fedmls.checks import at_least, one_of
from fedmls.estimators.base import FederatedLinearModel, parted
from fedmls.estimators.fit import fit_model
from fedmls.estimators.rows import Objective
from fedmls.losses import pinball
from fedmls.types import Array


class FederatedRegressor(RegressorMixin, FederatedLinearModel):  # type: ignore[misc]
    """What both regressors share: they fit a quantile."""

    alpha: float
    penalty: str

    def _fit(self, X: Any, y: Any, groups: Any, sample_weight: Any, level: float, times: float) -> None:
        """Fit the quantile of this level; the objective is ``times`` the mean pinball loss, plus the penalty."""
        settings = self._settings()
        alpha, loss = at_least("alpha", self.alpha, 0.0), pinball(level)
        one_of("penalty", self.penalty, ("l1", "l2"))
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, y_numeric=True)
        rows = self._rows(X, np.asarray(y, dtype=float), sample_weight, groups, settings.seed)
        unit = times / float(rows.weights.sum())
        objective = Objective(loss, self.fit_intercept, unit, **{self.penalty: alpha / unit})
        fit = fit_model(rows, objective, settings, *self._before(0, 1, X.shape[1]))
        self.coef_, self.intercept_ = parted(fit.x, self.fit_intercept)
        self.history_ = fit.history
        self._keep([fit])

    def predict(self, X: Any) -> Array:
        """Return X·coef_ + intercept_."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        return np.asarray(X @ self.coef_ + self.intercept_)


class FederatedQuantileRegressor(FederatedRegressor):
    """Quantile regression: minimise (1/Σ c_j) Σ_j c_j ρ(y_j - x_j·w - b) + alpha ‖w‖_1, or + alpha/2 ‖w‖² for
    penalty="l2".

    ρ(r) = max(q r, (q - 1) r) for the quantile q, c_j is the sample weight. With penalty="l1" this is the objective of
    scikit-learn's QuantileRegressor. The other parameters and the attributes: :class:`FederatedLinearModel`.
    """

    def __init__(
        self,
        *,
        quantile: float = 0.5,
        alpha: float = 1.0,
        penalty: str = "l1",
        fit_intercept: bool = True,
        solver: Any = "auto",
        tol: float = 1e-3,
        max_rounds: int = 1000,
        check_every: int = 5,
        batch: float = 0.1,
        n_clients: int = 10,
        partition: str = "iid",
        warm_start: bool = False,
        random_state: Any = None,
        verbose: bool = False,
        device: str = "cpu",
    ) -> None:
        self.quantile = quantile
        self.alpha = alpha
        self.penalty = penalty
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.tol = tol
        self.max_rounds = max_rounds
        self.check_every = check_every
        self.batch = batch
        self.n_clients = n_clients
        self.partition = partition
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose
        self.device = device

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> "FederatedQuantileRegressor":
        """Train on the rows of X. groups: the client of each row, by any labels; without it see ``n_clients``."""
        self._fit(X, y, groups, sample_weight, self.quantile, times=1.0)
        return self


class FederatedLADRegressor(FederatedRegressor):
    """Least absolute deviations: minimise (1/Σ c_j) Σ_j c_j |y_j - x_j·w - b| + alpha/2 ‖w‖², or + alpha ‖w‖_1 for
    penalty="l1".

    c_j is the sample weight. For penalty="l1" it is twice the objective of scikit-learn's QuantileRegressor with
    quantile=0.5 and alpha/2. The other parameters and the attributes: :class:`FederatedLinearModel`.
    """

    def __init__(
        self,
        *,
        alpha: float = 0.0,
        penalty: str = "l2",
        fit_intercept: bool = True,
        solver: Any = "auto",
        tol: float = 1e-3,
        max_rounds: int = 1000,
        check_every: int = 5,
        batch: float = 0.1,
        n_clients: int = 10,
        partition: str = "iid",
        warm_start: bool = False,
        random_state: Any = None,
        verbose: bool = False,
        device: str = "cpu",
    ) -> None:
        self.alpha = alpha
        self.penalty = penalty
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.tol = tol
        self.max_rounds = max_rounds
        self.check_every = check_every
        self.batch = batch
        self.n_clients = n_clients
        self.partition = partition
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose
        self.device = device

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> "FederatedLADRegressor":
        """Train on the rows of X. groups: the client of each row, by any labels; without it see ``n_clients``."""
        self._fit(X, y, groups, sample_weight, 0.5, times=2.0)
        return self
