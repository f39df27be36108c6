"""Steps with which every algorithm gets on, and runs of one client at a time."""

import numpy as np

import fedmls
from fedmls.rounds import ServerRandom, drawn, weighted_mean
from fedmls.simulation.config import RunConfig
from fedmls.simulation.run import Simulation

SMALL_STEPS = {
    "fedmls": {"lam0": 0.5},
    "fedmlse": {"lam0": 0.5},
    "fedmlsp": {"lam0": 0.5, "participants": 3},
    "fedmlsb": {},
    "fedmlsd": {},
    "fedavg": {"eta0": 0.01},
    "scaffold": {"eta0": 0.01},
    "scaffnew": {"eta0": 0.01},
    "gradskip": {"eta0": 0.01, "q": 0.95},
    "tamuna": {"eta0": 0.01, "s": 2, "participants": 3},
    "locodl": {"eta0": 0.01},
    "fedcomloc": {"eta0": 0.01, "method": "quantise", "level": 12},
    "fedprox": {"eta0": 0.01, "rho": 0.5},
    "feddyn": {"alpha": 10.0},
    "fedsplit": {"s": 0.05},
    "subgradient": {"eta0": 0.02},
    "dcs": {"eta": 20.0},
    "admm": {"rho": 5.0},
    "cocoa": {},
    "bundle": {"radius": 3.0, "max_cuts": 12},
}


NEEDS = {"cocoa": {"l2": 0.5}}  # of the problem


def client_problem(problem, i):
    """What client i has on its own machine: a problem of its rows alone."""
    part = slice(problem.offsets[i], problem.offsets[i + 1])
    X = problem.matrix()[part].toarray()[:, : problem.penalised]
    own = fedmls.Problem(X, np.zeros(len(X)), loss="absolute", l2=problem.l2, l1=problem.l1)
    own.loss, own.y, own.row_weights = problem.loss, problem.y[part], problem.row_weights[part]
    return own


def seen(algorithm, weights, up, d):
    """What the server sees of the uploads."""
    return up if algorithm.traits.aggregate == "stack" else weighted_mean(weights, up, d)


def run_client_by_client(algorithm, problem, rounds, batch, seed):
    """A federation in the small: every client alone with its own rows and arrays of shape (d,)."""
    n = problem.n
    server, client = algorithm.init(np.zeros(problem.dimension), n)
    clients, random = [client] * n, ServerRandom(seed)
    locals_ = [client_problem(problem, i).local_as(i, n, problem.weights[i], seed=seed, batch=batch) for i in range(n)]
    for k in range(1, rounds + 1):
        some = drawn(algorithm, n, random, k)
        taking_part = range(n) if some is None else some
        server, down = algorithm.broadcast(k, server, random.at(k))
        ups = []
        for i in taking_part:
            locals_[i].begin(k)
            clients[i], up = algorithm.client_round(k, clients[i], down, locals_[i])
            sizes = [field.size for name, field in up._asdict().items() if name not in algorithm.traits.numbers]
            assert all(size == 1 or size % problem.dimension == 0 for size in sizes)
            ups.append(up)
        stacked = type(ups[0])(*(np.stack(fields) for fields in zip(*ups, strict=True)))
        weights = problem.weights[list(taking_part)]
        server = algorithm.server_round(k, server, seen(algorithm, weights / weights.sum(), stacked, problem.dimension))
    return algorithm.model(server)


def states(algorithm, problem, rounds, **options):
    simulation = Simulation(algorithm, problem, RunConfig(rounds, **options))
    for _ in simulation.play():
        yield simulation.at
