"""An algorithm for a name, with step sizes that fit the problem; "auto" is FedMLS-B.

FedMLS-B takes the fewest exchanges of the methods that send only averages (docs/benchmarks.md) and proves how close
it is. FedMLS-D and other methods on slopes get an l1 term as rows (see :func:`works_on_slopes`). The others get their
step from f(x0)/‖g(x0)‖², Polyak's for f* = 0, times the middle of the window in which the benchmark looks for it: a
fair start, not a tuned one.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

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
)
from fedmls.checks import unknown
from fedmls.problem import Problem
from fedmls.types import Algorithm, Array

# A step, how far the minimiser may be (f/‖g‖, were f linear) and the number of clients make an algorithm.
BY_NAME: dict[str, Callable[[float, float, int], Algorithm]] = {
    "fedmlsb": lambda step, far, n: FedMLSB(),
    "fedmls": lambda step, far, n: FedMLS(lam0="auto", paired=True, output="last"),
    "fedmlse": lambda step, far, n: FedMLSE(lam0="auto", output="last"),
    "fedmlsp": lambda step, far, n: FedMLSP(lam0=0.5 * n * step, participants=math.ceil(n / 2), output="last"),
    "fedmlsd": lambda step, far, n: FedMLSD(settle=16),
    "fedavg": lambda step, far, n: FedAvg(eta0=0.2 * step, T=10),
    "fedprox": lambda step, far, n: FedProx(eta0=0.2 * step, rho=10 * step, T=10),
    "scaffold": lambda step, far, n: Scaffold(eta0=0.5 * step),
    "scaffnew": lambda step, far, n: Scaffnew(eta0=0.5 * step),
    "gradskip": lambda step, far, n: GradSkip(eta0=0.3 * step, q=0.9),
    "tamuna": lambda step, far, n: Tamuna(eta0=0.3 * step, s=max(2, n // 2)),
    "locodl": lambda step, far, n: LoCoDL(eta0=0.3 * step),
    "fedcomloc": lambda step, far, n: FedComLoc(eta0=0.3 * step, method="quantise", level=12),
    "feddyn": lambda step, far, n: FedDyn(alpha=1 / step),
    "fedsplit": lambda step, far, n: FedSplit(s=step),
    "subgradient": lambda step, far, n: Subgradient(eta0=step),
    "dcs": lambda step, far, n: DCS(eta=1 / (0.3 * step), output="last"),
    "admm": lambda step, far, n: ADMM(rho=1 / (2 * step)),
    "cocoa": lambda step, far, n: CoCoA(passes=5),
    "bundle": lambda step, far, n: Bundle(radius=1000 * far),  # a generous box costs few rounds
}


def check_solver(solver: Any) -> None:
    known = ("auto", *ALGORITHMS)
    if not hasattr(solver, "client_round") and solver not in known:
        raise ValueError(unknown("solver", solver, known) + ", or give an algorithm such as fedmls.FedMLSD(lam0=1.0)")


def works_on_slopes(solver: Any) -> bool:
    """Whether it moves the slopes of rows, FedMLS-D, ADMM and CoCoA do, and so can have an l1 term only as rows."""
    while hasattr(solver, "algorithm"):
        solver = solver.algorithm
    if isinstance(solver, FedSplit):
        return solver.exact
    return solver in (FedMLSD.name, ADMM.name, CoCoA.name) or isinstance(solver, FedMLSD | ADMM | CoCoA)


def make_solver(solver: Any, problem: Problem, x0: Array, lam0: float | None = None) -> Algorithm:
    """The algorithm for a name; an algorithm is left as it is. lam0: FedMLS-D's λ_0 from an earlier fit, for "auto"."""
    if not isinstance(solver, str):
        made: Algorithm = solver
        return made
    name = FedMLSB.name if solver == "auto" else solver
    if name == FedMLSD.name and lam0 is not None:
        return FedMLSD(lam0=lam0)
    g = problem.client_subgradients(np.tile(x0, (problem.n, 1)))
    value, square = problem.value(x0), float(problem.weights @ (g * g).sum(axis=1))
    length = float(np.linalg.norm(problem.weights @ g))
    return BY_NAME[name](
        value / square if value and square else 1.0, value / length if value and length else 1.0, problem.n
    )
