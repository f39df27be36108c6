"""A plain loop in NumPy."""

from typing import Any

import numpy as np
from job import ETA, STEPS, clients, measure

CLIENTS = clients()


def train(rounds: int) -> Any:
    rng, x = np.random.default_rng(0), np.zeros(CLIENTS[0].X.shape[1])
    for _ in range(rounds):
        uploads = []
        for X, y, batch in CLIENTS:
            u = x
            for _ in range(STEPS):
                chosen = rng.choice(len(y), batch, replace=False)
                a, b = X[chosen], y[chosen]
                u = u + ETA * len(y) / batch * (b * (b * (a @ u) < 1)) @ a
            uploads.append(u)
        x = np.mean(uploads, axis=0)
    return x


measure(train, "numpy")
