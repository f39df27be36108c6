"""Federated learning of convex models with few communication rounds.

problem = fedmls.Problem(X, y, clients=labels, loss="hinge")
run = fedmls.simulate(fedmls.FedMLS(lam0=1.0), problem, rounds=200, batch=0.1)
run.x, run.history
"""

from typing import TYPE_CHECKING, Any

from fedmls import datasets, partition
from fedmls.algorithms import (
    ADMM,
    ALGORITHMS,
    DCS,
    Bundle,
    CoCoA,
    FedAvg,
    FedComLoc,
    FedDyn,
    FedMLS,
    FedMLSB,
    FedMLSD,
    FedMLSE,
    FedMLSP,
    FedProx,
    FedSplit,
    GradSkip,
    LoCoDL,
    Scaffnew,
    Scaffold,
    Subgradient,
    Tamuna,
    make,
)
from fedmls.algorithms._mopes import mopes
from fedmls.compression import Compressed
from fedmls.losses import LOSSES, epsilon_insensitive, huber, pinball
from fedmls.optima.solve import optimum
from fedmls.problem import OracleProblem, Problem
from fedmls.schedules import Power
from fedmls.simulation.run import Interrupted, simulate
from fedmls.simulation.sweeps import sweep, table
from fedmls.theory import Plan, plan
from fedmls.types import Run

if TYPE_CHECKING:
    from fedmls.contract import check_algorithm
    from fedmls.estimators import (
        FederatedLADRegressor,
        FederatedLinearSVC,
        FederatedLogisticRegression,
        FederatedQuantileRegressor,
    )
    from fedmls.results.pipeline import load

__version__ = "0.1.0"

__all__ = [
    "ADMM",
    "ALGORITHMS",
    "DCS",
    "LOSSES",
    "Bundle",
    "CoCoA",
    "Compressed",
    "FedAvg",
    "FedComLoc",
    "FedDyn",
    "FedMLS",
    "FedMLSB",
    "FedMLSD",
    "FedMLSE",
    "FedMLSP",
    "FedProx",
    "FedSplit",
    "FederatedLADRegressor",
    "FederatedLinearSVC",
    "FederatedLogisticRegression",
    "FederatedQuantileRegressor",
    "GradSkip",
    "Interrupted",
    "LoCoDL",
    "OracleProblem",
    "Plan",
    "Power",
    "Problem",
    "Run",
    "Scaffnew",
    "Scaffold",
    "Subgradient",
    "Tamuna",
    "check_algorithm",
    "datasets",
    "epsilon_insensitive",
    "huber",
    "load",
    "make",
    "mopes",
    "optimum",
    "partition",
    "pinball",
    "plan",
    "simulate",
    "sweep",
    "table",
]


def __getattr__(name: str) -> Any:
    """The estimators are loaded when they are asked for: scikit-learn takes a while. So are the check of algorithms and
    the loading of models.
    """
    if name == "load":
        from fedmls.results.pipeline import load

        return load
    if name == "check_algorithm":
        from fedmls.contract import check_algorithm

        return check_algorithm
    if name == "estimators" or name.startswith("Federated"):
        import importlib

        estimators = importlib.import_module("fedmls.estimators")
        if name == "estimators":
            return estimators
        if name in estimators.__all__:
            return getattr(estimators, name)
    raise AttributeError(f"module 'fedmls' has no attribute {name!r}")
