"""Federated learning of convex models with few communication rounds.

problem = fedmls.Problem(X, y, clients=labels, loss="hinge")
run = fedmls.simulate(fedmls.FedMLS(lam0=1.0), problem, rounds=200, batch=0.1)
run.x, run.history
"""

from typing import TYPE_CHECKING

from fedmls.lazy import loader

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
    from fedmls.results.pipeline import load
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

# The module of each name, loaded when the name is asked for; "" for a module. Names that are not here are algorithms.
_MODULES = dict.fromkeys(__all__, "algorithms") | {
    "algorithms": "",
    "compression": "",
    "datasets": "",
    "estimators": "",
    "losses": "",
    "partition": "",
    "problem": "",
    "schedules": "",
    "theory": "",
    "types": "",
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
    "load": "results.pipeline",
    "mopes": "algorithms._mopes",
    "optimum": "optima.solve",
    "pinball": "losses",
    "plan": "theory",
    "simulate": "simulation.run",
    "sweep": "simulation.sweeps",
    "table": "simulation.sweeps",
}

if not TYPE_CHECKING:  # a type checker finds the names above, and no others
    __getattr__ = loader(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
