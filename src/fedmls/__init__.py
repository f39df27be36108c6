"""Federated learning of convex models with few communication rounds.

problem = fedmls.Problem(X, y, clients=labels, loss="hinge")
run = fedmls.simulate(fedmls.FedMLS(lam0=1.0), problem, rounds=200, batch=0.1)
run.x, run.history
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from fedmls.contract import check_algorithm
    from fedmls.estimators import (
        FederatedLADRegressor,
        FederatedLinearSVC,
        FederatedLogisticRegression,
        FederatedQuantileRegressor,
    )
    from fedmls.losses import LOSSES, epsilon_insensitive, huber, pinball
    from fedmls.optima.solve import optimum
    from fedmls.problem import OracleProblem, Problem
    from fedmls.schedules import Power
    from fedmls.simulation.run import Interrupted, simulate
    from fedmls.simulation.sweeps import sweep, table
    from fedmls.theory import Plan, plan
    from fedmls.types import Run

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

# Where the names of __all__ are that are no algorithms.
_MODULES = {
    "Compressed": "compression",
    "FederatedLADRegressor": "estimators",
    "FederatedLinearSVC": "estimators",
    "FederatedLogisticRegression": "estimators",
    "FederatedQuantileRegressor": "estimators",
    "Interrupted": "simulation.run",
    "LOSSES": "losses",
    "OracleProblem": "problem",
    "Plan": "theory",
    "Power": "schedules",
    "Problem": "problem",
    "Run": "types",
    "check_algorithm": "contract",
    "epsilon_insensitive": "losses",
    "huber": "losses",
    "mopes": "algorithms._mopes",
    "optimum": "optima.solve",
    "pinball": "losses",
    "plan": "theory",
    "simulate": "simulation.run",
    "sweep": "simulation.sweeps",
    "table": "simulation.sweeps",
}
_SUBMODULES = {"algorithms", "datasets", "estimators", "losses", "partition", "problem", "schedules", "theory", "types"}


if not TYPE_CHECKING:  # a type checker finds the names above, and no others

    def __getattr__(name: str) -> Any:
        """Load what is asked for when it is asked for: NumPy, Numba and scikit-learn take a while."""
        if name in _SUBMODULES:
            return import_module(f"fedmls.{name}")
        if name not in __all__:
            raise AttributeError(f"module 'fedmls' has no attribute {name!r}")
        value = getattr(import_module(f"fedmls.{_MODULES.get(name, 'algorithms')}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})
