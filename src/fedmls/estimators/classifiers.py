"""Support vector machines and logistic regression."""

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from fedmls.checks import one_of, positive
from fedmls.estimators.base import FederatedLinearModel, parted
from fedmls.estimators.fit import fit_model
from fedmls.estimators.rows import Objective, TrainingRows
from fedmls.losses import get_loss
from fedmls.types import Array


class FederatedClassifier(ClassifierMixin, FederatedLinearModel):  # type: ignore[misc]
    """A classifier of two classes, or of several, each set against the rest."""

    C: float
    class_weight: Any

    def _fit(self, X: Any, y: Any, groups: Any, sample_weight: Any, loss: str) -> None:
        settings, C = self._settings(), positive("C", self.C)
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        check_classification_targets(y)
        classes, y = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(f"y has one class only, {classes[0]!r}; a classifier needs at least two")
        rows = self._weighted(self._rows(X, y, sample_weight, groups, settings.seed), classes)
        objective = Objective(get_loss(loss), self.fit_intercept, C, l2=1 / C)
        runs = [1] if len(classes) == 2 else list(range(len(classes)))
        fits = []
        for run, positive_class in enumerate(runs):
            own = rows._replace(y=np.where(rows.y == positive_class, 1.0, -1.0))
            fits.append(fit_model(own, objective, settings, *self._before(run, len(runs), X.shape[1])))
        self.classes_ = classes
        parts = [parted(fit.x, self.fit_intercept) for fit in fits]
        self.coef_ = np.array([coef for coef, _ in parts])
        self.intercept_ = np.array([intercept for _, intercept in parts])
        self.history_ = _joined([fit.history for fit in fits], classes[runs])
        self._keep(fits)

    def _weighted(self, rows: TrainingRows, classes: Any) -> TrainingRows:
        """Return the rows weighted by class too; each class must count."""
        totals = np.bincount(rows.y, rows.weights, len(classes))
        if isinstance(self.class_weight, str) and self.class_weight == "balanced":
            each = totals.sum() / (len(classes) * np.maximum(totals, np.finfo(float).tiny))
        else:
            each = compute_class_weight(self.class_weight, classes=classes, y=classes[rows.y])
        if not (totals * each > 0).all():
            raise ValueError(
                f"the class {classes[(totals * each).argmin()]!r} has no row of positive weight; drop its rows"
            )
        return rows._replace(weights=rows.weights * each[rows.y])

    def decision_function(self, X: Any) -> Array:
        """Return X·coef_ + intercept_: a number for each row, or for each row and class if there are more than two."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        scores = np.asarray(X @ self.coef_.T + self.intercept_)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> Any:
        """Return the class of each row."""
        scores = self.decision_function(X)
        return self.classes_[scores.argmax(axis=1) if scores.ndim == 2 else (scores > 0).astype(int)]


def _joined(histories: list[Any], classes: Any) -> Any:
    """Return the histories of all runs in one table, with the class that each sets against the rest."""
    import pandas as pd

    for history, label in zip(histories, classes, strict=True):
        history.insert(0, "class", [label] * len(history))
    return pd.concat(histories, ignore_index=True)


class FederatedLinearSVC(FederatedClassifier):
    """A linear support vector machine: minimise ½ ‖w‖² + C Σ_j c_j max(0, 1 - y_j (x_j·w + b)), the loss squared with
    loss="squared_hinge".

    c_j is the sample weight times the class weight. As scikit-learn's SVC(kernel="linear") it leaves the intercept b
    without a penalty, where LinearSVC penalises it as one more coefficient. The other parameters and the attributes:
    :class:`FederatedLinearModel`.
    """

    def __init__(
        self,
        *,
        C: float = 1.0,
        loss: str = "hinge",
        class_weight: Any = None,
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
        self.C = C
        self.loss = loss
        self.class_weight = class_weight
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

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> "FederatedLinearSVC":
        """Train on the rows of X. groups: the client of each row, by any labels; without it see ``n_clients``."""
        one_of("loss", self.loss, ("hinge", "squared_hinge"))
        self._fit(X, y, groups, sample_weight, self.loss)
        return self


class FederatedLogisticRegression(FederatedClassifier):
    """Logistic regression: minimise ½ ‖w‖² + C Σ_j c_j log(1 + exp(-y_j (x_j·w + b))).

    c_j is the sample weight times the class weight. For two classes this is the objective of scikit-learn's
    LogisticRegression; for more, one class is set against the rest, as by OneVsRestClassifier. The other parameters and
    the attributes: :class:`FederatedLinearModel`.
    """

    def __init__(
        self,
        *,
        C: float = 1.0,
        class_weight: Any = None,
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
        self.C = C
        self.class_weight = class_weight
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

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> "FederatedLogisticRegression":
        """Train on the rows of X. groups: the client of each row, by any labels; without it see ``n_clients``."""
        self._fit(X, y, groups, sample_weight, "logistic")
        return self

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class; of more than two, those of each against the rest, made to sum to 1."""
        from scipy.special import expit

        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.column_stack([expit(-scores), expit(scores)])
        chances = np.maximum(expit(scores), np.finfo(float).tiny)
        return np.asarray(chances / chances.sum(axis=1, keepdims=True))

    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithm of the probability of each class."""
        return np.asarray(np.log(self.predict_proba(X)))
