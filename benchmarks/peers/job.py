"""The job that every peer runs, with NumPy alone: FedAvg on the paper's SVM, ten clients, 10% batches, equal weights.

f(x) = Σ_i f_i(x)/10, f_i(x) = Σ_j max(0, 1 - b_j a_j·x) over the rows of client i; the last column of the rows is 1. A
local step is x <- x - ETA (m_i/b) Σ_batch -b_j a_j [b_j a_j·x < 1] with a batch of b = ⌈m_i/10⌉ rows.
"""

import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

ROUNDS, STEPS, ETA = 50, 20, 1e-5
WARM_UP = 2  # rounds that are not timed: what is compiled is compiled there


class Client(NamedTuple):
    """The rows and labels of a client, and how many of them are in a batch."""

    X: Any
    y: Any
    batch: int


def clients() -> list[Client]:
    """Return the clients of the file that the first argument names."""
    data = np.load(sys.argv[1])
    ends = data["offsets"]
    return [
        Client(data["X"][first:last], data["y"][first:last], -(-int(last - first) // 10))
        for first, last in pairwise(ends)
    ]


def objective(x: Any) -> float:
    """Return f(x)."""
    return float(np.mean([np.maximum(0.0, 1 - c.y * (c.X @ x)).sum() for c in clients()]))


def measure(train: Callable[[int], Any], *packages: str, clock: Callable[[], float] = time.process_time) -> None:
    """Time ``train(rounds)``, which returns the model, and print what the table needs.

    clock: the computing of this process, which other work on the machine changes little, unless there are several.
    The least of several attempts, less the least that a few rounds take: in those is what is done once.
    """
    once, seconds = list[float](), list[float]()
    train(WARM_UP)
    while len(seconds) < 3 or (len(seconds) < 50 and sum(seconds) < 3):
        began = clock()
        train(WARM_UP)
        once.append(clock() - began)
        began = clock()
        x = np.asarray(train(WARM_UP + ROUNDS), dtype=float)
        seconds.append(clock() - began)
    steps = ROUNDS * STEPS * len(clients())
    versions = {package: version(package) for package in packages}
    print(json.dumps({"us": (min(seconds) - min(once)) / steps * 1e6, "objective": objective(x), "versions": versions}))
