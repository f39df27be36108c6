"""Federated learning of convex models with few communication rounds.

problem = fedmls.Problem(X, y, clients=labels, loss="hinge")
run = fedmls.simulate(fedmls.FedMLS(lam0=1.0), problem, rounds=200, batch=0.1)
run.x, run.history
"""

from fedmls import datasets, partition
from fedmls.algorithms import ALGORITHMS, FedAvg, FedMLS, GradSkip, Scaffnew, Scaffold, make
from fedmls.losses import LOSSES, epsilon_insensitive, huber, pinball
from fedmls.mopes import mopes
from fedmls.optimum import optimum
from fedmls.problem import OracleProblem, Problem
from fedmls.schedules import Power
from fedmls.simulate import Interrupted, simulate
from fedmls.sweep import sweep, table
from fedmls.types import Run

__version__ = "0.1.0"

__all__ = [
    "ALGORITHMS",
    "LOSSES",
    "FedAvg",
    "FedMLS",
    "GradSkip",
    "Interrupted",
    "OracleProblem",
    "Power",
    "Problem",
    "Run",
    "Scaffnew",
    "Scaffold",
    "datasets",
    "epsilon_insensitive",
    "huber",
    "make",
    "mopes",
    "optimum",
    "partition",
    "pinball",
    "simulate",
    "sweep",
    "table",
]
