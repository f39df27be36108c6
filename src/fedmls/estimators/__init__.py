"""Linear models with scikit-learn's interface, trained by the algorithms of this package over rows held by clients.

base.py                        parameters and attributes of all: read FederatedLinearModel first
classifiers.py, regressors.py  the four estimators
fit.py                         one fit: the run, the looks at its model, when to stop
rows.py                        the rows and the objective, and the problem that they make
scaling.py                     the coordinates in which it is solved
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
