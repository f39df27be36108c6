"""fedmls itself."""

import sys
from typing import Any

import numpy as np
from job import ETA, STEPS, measure

import fedmls

data = np.load(sys.argv[1])
of_row = np.repeat(np.arange(len(data["offsets"]) - 1), np.diff(data["offsets"]))
problem = fedmls.Problem(data["X"], data["y"], clients=of_row, intercept=False)


def train(rounds: int) -> Any:
    algorithm = fedmls.FedAvg(eta=ETA, T=STEPS)
    return fedmls.simulate(algorithm, problem, rounds=rounds, batch=0.1, optimum=None, every=rounds, progress=False).x


measure(train, "fedmls", "numba")
