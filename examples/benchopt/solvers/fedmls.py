"""The algorithms of fedmls: one iteration is one round."""
# ruff: noqa: RUF012 (benchopt reads them from the class)

import numpy as np
from benchopt import BaseSolver

import fedmls

OPTIONS = {"fedmls": {"lam0": "auto"}, "fedmlse": {"lam0": "auto"}, "fedavg": {"eta": 0.01}}


class Solver(BaseSolver):
    name = "fedmls"
    requirements = ["pip::fedmls"]
    parameters = {"algorithm": ["fedmlsd", "fedmls", "fedavg"], "batch": [0.1]}
    sampling_strategy = "iteration"

    def set_objective(self, X, y, clients, l2):
        self.problem = fedmls.Problem(X, y, clients, "hinge", intercept=False, l2=l2)
        self.solver = fedmls.make(self.algorithm, **OPTIONS.get(self.algorithm, {}))
        self.seed = self.get_seed(use_repetition=True)

    def warm_up(self):
        self.run(1)  # compiles the loop

    def run(self, n_iter):
        self.x, self.exchanges = np.zeros(self.problem.dimension), 0
        if n_iter > 0:  # every: the objective is benchopt's to evaluate, once
            random = {"batch": self.batch, "seed": self.seed}
            once = {"rounds": n_iter, "every": n_iter, "optimum": None}
            run = fedmls.simulate(self.solver, self.problem, **once, **random)
            self.x, self.exchanges = run.x, int(run.history["exchanges"].iloc[-1])

    def get_result(self):
        return {"x": self.x, "exchanges": self.exchanges}
