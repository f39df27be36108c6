"""Linear models with scikit-learn's interface, trained by the algorithms of this package over rows held by clients.

base.py                        parameters and attributes of all: read FederatedLinearModel first
classifiers.py, regressors.py  the four estimators
training.py                    one fit: the rounds, the looks, when to stop
rows.py, frame.py              the problem that a fit solves, and the coordinates it is solved in
proof.py                       how close to the optimum a model is proved to be
solvers.py                     an algorithm for a name, with step sizes that fit the problem
"""

from fedmls.estimators.classifiers import FederatedLinearSVC, FederatedLogisticRegression
from fedmls.estimators.regressors import FederatedLADRegressor, FederatedQuantileRegressor

__all__ = [
    "FederatedLADRegressor",
    "FederatedLinearSVC",
    "FederatedLogisticRegression",
    "FederatedQuantileRegressor",
]
