"""The methods that are compared, and where each one's parameters are looked for on a given problem.

All grids have the same number of points, spaced evenly on a logarithmic scale around the problem's own scale. Where a
second parameter matters much, the points are shared between some of its values. Methods with local steps get some of
their points with as much local work in a round as FedMLS-D makes. To add a method: one line in METHODS. Any other
algorithm, also from outside of the package, gets its points around its own fair start (:func:`method_of`).
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fedmls.algorithms import (
    ADMM,
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
    FedProx,
    FedSplit,
    GradSkip,
    LoCoDL,
    Scaffnew,
    Scaffold,
    Subgradient,
    Tamuna,
    find,
    names,
)
from fedmls.problem import Problem
from fedmls.schedules import Power
from fedmls.types import Algorithm, Scale

PASSES = 25  # over a client's rows, in a round with much local work


def scale(problem: Problem, batch: float = 0.1) -> Scale:
    """Measured with the known optimum. Runs start at 0, so D0 = ‖x*‖. Ḡ is the rms length of the clients' subgradients
    at 0 and at random points as far from x* as 0 is: bounds such as ``problem.lipschitz`` can be far too large.
    """
    x = problem.optimum.x
    distance = float(np.linalg.norm(x))
    rng = np.random.default_rng(0)
    points = [0 * x] + [x + distance * rng.normal(size=len(x)) / len(x) ** 0.5 for _ in range(8)]
    squares = [(problem.client_subgradients(np.tile(point, (problem.n, 1))) ** 2).sum(axis=1) for point in points]
    length = float(np.mean(squares @ problem.weights)) ** 0.5
    return Scale(
        problem.n, distance / length, float(abs(x).max()), round(PASSES / batch), not problem.loss.is_polyhedral
    )


UNIT = Scale(n=10, step=1.0, reach=1.0)  # of some problem
Grid = Callable[[Scale, int], list[list[Algorithm]]]  # for so many points; each inner list has its window's ends


def along(make: Callable[[Scale, float], Algorithm], low: float, high: float) -> Grid:
    """``make`` at so many c from low to high."""

    def grid(s: Scale, points: int) -> list[list[Algorithm]]:
        middle = (low * high) ** 0.5
        return [[make(s, float(c)) for c in (np.geomspace(low, high, points) if points > 1 else [middle])]]

    return grid


def shared(*grids: Grid) -> Grid:
    """The points shared out evenly between several grids; the first get one more where they do not go up."""

    def grid(s: Scale, points: int) -> list[list[Algorithm]]:
        each = [len(part) for part in np.array_split(np.arange(points), len(grids))]
        return [window for one, count in zip(grids, each, strict=True) if count for window in one(s, count)]

    return grid


def untuned(make: Callable[[Scale], Algorithm]) -> Grid:
    """Return the grid of a method that needs no tuning: one point, however many are allowed."""
    return lambda s, points: [[make(s)]]


def three_digits(value: float) -> float:
    """Three digits, to be readable."""
    return float(f"{value:.3g}")


class Method(NamedTuple):
    """A method in the comparison.

    tuned: what its grid varies, c being the number that goes through the window.
    ours: "grid" or "auto" for a method of this package, by how its λ0 is chosen; empty for the others. NAME-auto is
    NAME with nothing to tune.
    more: what its server needs beyond averages; such methods are listed apart.
    reads: what it reads of a client's rows where it takes no mini-batches; such methods run once, without seeds.
    rounds, dimension, clients: no run is longer, none is made in more coordinates or with more clients: its rounds get
    ever more expensive.
    """

    title: str
    tuned: str
    grid: Grid
    ours: str = ""
    more: str = ""
    reads: str = ""
    rounds: int | None = None
    dimension: int | None = None
    clients: int | None = None

    @property
    def example(self) -> Algorithm:
        """A grid point of it, on some problem."""
        return self.grid(UNIT, 1)[0][0]

    def runs_on(self, problem: Problem) -> bool:
        return (
            problem.dimension <= (self.dimension or problem.dimension)
            and problem.n <= (self.clients or problem.n)
            and (problem.l2 > 0 or not self.example.traits.needs_l2)
        )


# Of the two models the better one almost always, and no exchange is needed to find out.
LAST: dict[str, Any] = {"output": "last"}
LONG = f"{PASSES}/batch"  # local steps, in words
ROOT = Power(10, 0.5)  # T_k = ⌈10√k⌉, where T_k = k has hardly begun


def _lam0(make: Callable[..., Algorithm], low: float, high: float, **options: Any) -> Grid:
    return along(lambda s, c: make(lam0=three_digits(c * s.n * s.step), **options), low, high)


def _eta0(make: Callable[..., Algorithm], low: float, high: float, **options: Any) -> Grid:
    return along(lambda s, c: make(eta0=three_digits(c * s.step), **options), low, high)


def _much_work(make: Callable[..., Algorithm], low: float, high: float, **options: Any) -> Grid:
    """η_k = c D0/(Ḡ√k), with many local steps."""
    return along(lambda s, c: make(eta0=three_digits(c * s.step), T=s.many, **options), low, high)


def _fedprox(low: float, high: float, T: float | None, rho: float) -> Grid:
    """Return the grid of FedProx.  T: None for many local steps."""
    return along(
        lambda s, c: FedProx(eta0=three_digits(c * s.step), rho=three_digits(rho * s.step), T=T or s.many), low, high
    )


def _steady(s: Scale, c: float) -> Power:
    """c D0/Ḡ: over √t, but constant for smooth losses, as in the papers of Scaffnew and TAMUNA."""
    return Power(three_digits(c * s.step), 0.0 if s.smooth else -0.5)


def _tamuna(low: float, high: float, exponent: float) -> Grid:
    return along(
        lambda s, c: Tamuna(eta=Power(three_digits(c * s.step), exponent), s=max(2, int(0.9 * s.n))), low, high
    )


Steps = Callable[[Scale], "float | Power | None"]  # T of a problem; None is T_k = k


def growing(s: Scale) -> None:
    """T_k = k."""


def rooted(s: Scale) -> Power:
    return ROOT


def many(s: Scale) -> float:
    return s.many


def _feddyn(low: float, high: float, T: Steps) -> Grid:
    return along(lambda s, c: FedDyn(alpha=three_digits(1 / (c * s.step)), T=T(s)), low, high)


def _fedsplit(low: float, high: float, T: Steps) -> Grid:
    return along(lambda s, c: FedSplit(s=three_digits(c * s.step), T=T(s)), low, high)


def _cocoa(passes: int) -> Grid:
    return along(lambda s, c: CoCoA(sigma=three_digits(c), passes=passes), 0.1, 1.2)


def _dcs(low: float, high: float, T: Steps) -> Grid:
    return along(lambda s, c: DCS(eta=three_digits(1 / (c * s.step)), T=T(s), **LAST), low, high)


def _bundle(times: float) -> Grid:
    return along(lambda s, c: Bundle(radius=three_digits(times * s.reach), level=three_digits(c)), 0.1, 0.95)


METHODS: dict[str, Method] = {
    "fedmlsb": Method("FedMLS-B", "nothing", untuned(lambda s: FedMLSB()), ours="auto"),
    "fedmlsd-auto": Method("FedMLS-D, auto", "nothing", untuned(lambda s: FedMLSD()), ours="auto"),
    "fedmlse-auto": Method("FedMLS-E, auto", "nothing", untuned(lambda s: FedMLSE(lam0="auto", **LAST)), ours="auto"),
    "fedmls-paired-auto": Method(
        "FedMLS paired, auto", "nothing", untuned(lambda s: FedMLS(lam0="auto", paired=True, **LAST)), ours="auto"
    ),
    "fedmlsd": Method("FedMLS-D", "λ0/n = c D0/Ḡ", _lam0(FedMLSD, 0.1, 20), ours="grid"),
    "fedmls": Method(
        "FedMLS",
        "λ0/n = c D0/Ḡ; T_k = k or 10√k",
        shared(_lam0(FedMLS, 0.05, 20, **LAST), _lam0(FedMLS, 0.05, 50, T=ROOT, **LAST)),
        ours="grid",
    ),
    "fedmls-paired": Method(
        "FedMLS paired",
        "as FedMLS",
        shared(_lam0(FedMLS, 0.05, 20, paired=True, **LAST), _lam0(FedMLS, 0.05, 50, T=ROOT, paired=True, **LAST)),
        ours="grid",
    ),
    "fedmlse": Method(
        "FedMLS-E",
        "λ0/n = c D0/Ḡ; T_k = k or 10√k",
        shared(_lam0(FedMLSE, 0.02, 10, **LAST), _lam0(FedMLSE, 0.03, 30, T=ROOT, **LAST)),
        ours="grid",
    ),
    "fedavg": Method(
        "FedAvg",
        f"η_k = c D0/(Ḡ√k); T = 10, 30 or {LONG}",
        shared(_eta0(FedAvg, 0.01, 3, T=10), _eta0(FedAvg, 0.005, 2, T=30), _much_work(FedAvg, 0.001, 1)),
    ),
    "fedprox": Method(
        "FedProx",
        f"η_k = c D0/(Ḡ√k); ρ = D0/Ḡ with T = 30 or {LONG}, or ρ = 10 or 100 D0/Ḡ with T = 10",
        shared(
            _fedprox(0.005, 2, 30, 1),
            _fedprox(0.02, 6, 10, 10),
            _fedprox(0.01, 3, 10, 100),
            _fedprox(0.002, 1, None, 1),
        ),
    ),
    "scaffold": Method(
        "Scaffold",
        "c D0/(Ḡ√n) over the round or over all local steps so far, with T_k = k, or over k^¾ with T_k = 10√k or "
        f"T = {LONG}",
        shared(
            _eta0(Scaffold, 0.05, 5),
            along(lambda s, c: Scaffold(eta=Power(three_digits(c * s.step / s.n**0.5), -0.75), T=ROOT), 0.01, 3),
            _eta0(Scaffold, 0.5, 500, decay="step"),
            along(lambda s, c: Scaffold(eta=Power(three_digits(c * s.step / s.n**0.5), -0.75), T=s.many), 0.003, 1),
        ),
    ),
    "scaffnew": Method(
        "Scaffnew",
        f"c D0/(Ḡ√t) with p_t = 1/√t, 0.1 (a constant step for smooth losses) or one in {LONG} steps, or c D0/(Ḡ t^¾) "
        "with p_t = 1/√t",
        shared(
            _eta0(Scaffnew, 0.03, 10),
            along(lambda s, c: Scaffnew(eta=Power(three_digits(c * s.step), -0.75)), 0.1, 60),
            along(lambda s, c: Scaffnew(eta=_steady(s, c), p=0.1), 0.03, 3),
            along(lambda s, c: Scaffnew(eta0=three_digits(c * s.step), p=1 / s.many), 0.01, 3),
        ),
    ),
    "gradskip": Method(
        "GradSkip",
        "c D0/(Ḡ√t), p_t = 1/√t; q = 0.9 or 0.99 (a client that rests takes one subgradient over all rows)",
        shared(_eta0(GradSkip, 0.03, 3, q=0.9), _eta0(GradSkip, 0.03, 3, q=0.99)),
    ),
    "tamuna": Method(
        "TAMUNA",
        "as Scaffnew; s = 0.9 n with p_t = 1/√t, s = n/2 with p = 0.1",
        shared(
            _tamuna(0.02, 20, -0.5),
            _tamuna(0.1, 60, -0.75),
            along(lambda s, c: Tamuna(eta=_steady(s, c), p=0.1, s=max(2, int(0.5 * s.n))), 0.03, 3),
        ),
    ),
    "locodl": Method(
        "LoCoDL",
        "c D0/(Ḡ√t), p_t = 1/√t; half of the entries, or 8 bits for each",
        shared(_eta0(LoCoDL, 0.03, 10, level=0.5), _eta0(LoCoDL, 0.03, 10, method="quantise", level=8)),
    ),
    "fedcomloc": Method(
        "FedComLoc",
        "c D0/(Ḡ√t), p_t = 1/√t; half of the entries, or 12 bits for each",
        shared(_eta0(FedComLoc, 0.03, 10, level=0.5), _eta0(FedComLoc, 0.03, 10, method="quantise", level=12)),
    ),
    "feddyn": Method(
        "FedDyn",
        f"1/α = c D0/Ḡ; T_k = k, 10√k or {LONG}",
        shared(_feddyn(0.005, 5, growing), _feddyn(0.02, 5, rooted), _feddyn(0.02, 5, many)),
    ),
    "fedsplit": Method(
        "FedSplit",
        f"s = c D0/Ḡ; T_k = k, 10√k or {LONG}",
        shared(_fedsplit(0.005, 5, growing), _fedsplit(0.02, 5, rooted), _fedsplit(0.02, 5, many)),
    ),
    "cocoa": Method(
        "CoCoA+",
        "σ' = c n; 1, 5 or 20 passes over a client's rows",
        shared(_cocoa(1), _cocoa(5), _cocoa(20)),
    ),
    "dcs": Method(
        "DCS",
        f"1/η = c D0/Ḡ; T_k = k, 10√k or {LONG}",
        shared(_dcs(0.02, 5, growing), _dcs(0.02, 5, rooted), _dcs(0.02, 5, many)),
    ),
    "subgradient": Method("Subgradient", "η_k = c D0/(Ḡ√k)", _eta0(Subgradient, 0.2, 10), reads="all"),
    "admm": Method(
        "ADMM",
        "1/ρ = c D0/Ḡ",
        along(lambda s, c: ADMM(rho=three_digits(1 / (c * s.step))), 0.1, 60),
        reads="all, again and again: exact proximal steps",
    ),
    "bundle": Method(
        "Bundle",
        "level c; radius 1.5 or 5 times the farthest coordinate of the solution",
        shared(_bundle(1.5), _bundle(5)),
        more="every client's upload",
        reads="all",
        rounds=30,
        dimension=70,
        clients=100,
    ),
}


def is_method(name: str) -> bool:
    """Whether :func:`method_of` knows the name, without loading anything."""
    return name in METHODS or ":" in name or name in names()


@cache
def _around_fair_start(name: str) -> Method:
    algorithm = find(name)

    def make(s: Scale, c: float) -> Algorithm:
        return algorithm.fair_start(s._replace(step=three_digits(c * s.step)))

    more = "every client's upload" if make(UNIT, 1.0).traits.aggregate == "stack" else ""
    if make(UNIT, 1.0) == make(UNIT, 2.0):
        return Method(algorithm.title, "nothing", untuned(lambda s: make(s, 1.0)), more=more)
    return Method(algorithm.title, "its fair start, with c D0/Ḡ for D0/Ḡ", along(make, 0.1, 10), more=more)


def method_of(name: str) -> Method:
    """Return the method of this name: one of METHODS, or any other algorithm (:func:`fedmls.algorithms.find`)."""
    return METHODS[name] if name in METHODS else _around_fair_start(name)
