"""How many rounds and local steps FedMLS needs for a wanted accuracy, and what they cost.

Palenzuela, Dadras, Yurtsever, Löfstedt (IEEE MLSP 2025), Corollary, and a sharper choice that does not grow with
the number of clients. The derivation is in docs/theory.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedmls.checks import at_least, one_of, positive, whole
from fedmls.problem import OracleProblem, Problem
from fedmls.types import Array

RULES = ("sharp", "paper")
BYTES = 8  # of one number of a vector
MOST = 1e15  # rounds or steps: beyond it, floating-point numbers no longer count


@dataclass(frozen=True)
class Plan:
    """``FedMLS(lam=plan.lam, T=plan.T)`` over ``plan.K`` rounds: f(x_K) - f* <= bound <= eps (in the mean, with noise).

    G: the constant the rule took: Ḡ = (Σ w_i G_i²)^½ ("sharp") or the largest G_i ("paper").
    distance: D0 = ‖x0 - x*‖, or an upper bound.  sigma: E‖g̃_i - g_i‖² <= σ² for every client's subgradients.
    """

    rule: str
    K: int
    T: int
    lam: float
    bound: float
    eps: float
    G: float
    distance: float
    n: int
    sigma: float = 0.0
    dimension: int | None = None

    @property
    def local_steps(self) -> int:
        """The local steps of each client."""
        return self.K * self.T

    @property
    def exchanges(self) -> int:
        return self.K

    @property
    def paired_exchanges(self) -> int:
        """The exchanges that ``FedMLS(paired=True)`` takes."""
        return -(-self.K // 2)

    @property
    def vectors_up(self) -> int:
        """The vectors that all clients together send."""
        return self.n * self.K

    @property
    def vectors_down(self) -> int:
        return self.n * self.K

    @property
    def bytes_up(self) -> int | None:
        """The bytes that all clients together send; None where the dimension is not known."""
        return None if self.dimension is None else BYTES * self.dimension * self.vectors_up

    @property
    def bytes_down(self) -> int | None:
        return None if self.dimension is None else BYTES * self.dimension * self.vectors_down

    def __str__(self) -> str:
        rows = side_by_side([self])
        width = max(len(name) for name, _ in rows)
        return "\n".join([describe(self), *(f"  {name:{width}}  {value}" for name, value in rows)])


def plan(
    problem: Problem | OracleProblem | None = None,
    *,
    eps: float,
    G: float | Sequence[float] | Array | None = None,
    distance: float,
    n: int | None = None,
    sigma: float = 0.0,
    rule: str = "sharp",
    dimension: int | None = None,
) -> Plan:
    """Constant λ and T, and the number of rounds K, with which FedMLS ends within ``eps`` of the optimum.

    problem: gives n, the weights, the dimension and, unless ``G`` is given, G = problem.lipschitz().
    G: no subgradient of f_i is longer; one number for all clients or one for each (of equal weight without a problem).
    distance: ‖x0 - x*‖, or an upper bound: the start's distance to a minimiser.
    sigma: standard deviation of the (mini-batch) subgradients, E‖g̃ - g‖² <= sigma²; the bound then holds in the mean.
    rule: "sharp" (K does not depend on n) or "paper" (its Corollary).
    """
    one_of("rule", rule, RULES)
    eps, distance, sigma = positive("eps", eps), positive("distance", distance), at_least("sigma", sigma, 0.0)
    n, weights, dimension = _clients(problem, G, n, dimension)
    mean, largest = _constants(problem, G, n, weights)
    constant, choose = (mean, _sharp) if rule == "sharp" else (largest, _paper)
    mu, K, T = choose(eps, constant, distance, n, sigma)
    if not (0 < mu <= n * mu < math.inf and max(K, T) <= MOST):
        raise ValueError(
            f"eps is {eps!r}, for which no run can be planned with G = {constant:g}, distance {distance:g} and "
            f"sigma {sigma:g}: take an eps nearer to G * distance"
        )
    bound = gap_bound(K, T, mu, G=mean, distance=distance, sigma=sigma)
    return Plan(rule, K, T, n * mu, bound, eps, constant, distance, n, sigma, dimension)


def gap_bound(K: int, T: int, mu: float, *, G: float, distance: float, sigma: float = 0.0) -> float:
    """f(x_K) - f* of FedMLS with constant λ = n μ and T is at most this, where G is Ḡ = (Σ w_i G_i²)^½."""
    if K == 1:
        return G * distance  # whatever the clients do, x_1 is x_0
    short = 1 - 2 / ((T + 1) * (T + 2))
    start = 4 * (1 + 1 / short) * distance / (mu * K) * (distance / (K + 1))
    local = (2 * G + sigma) * mu * (2 * G + sigma) * (2 * K + 1) / (3 * (T + 3))
    return start + local + G * mu * G / 2


def side_by_side(plans: Sequence[Plan]) -> list[list[str]]:
    """A table of plans as text, header first, one column a plan."""
    lines: list[tuple[str, list[Any], str]] = [
        ("lambda", [p.lam for p in plans], ".4g"),
        ("rounds K", [p.K for p in plans], ","),
        ("exchanges when paired", [p.paired_exchanges for p in plans], ","),
        ("local steps per round T", [p.T for p in plans], ","),
        ("local steps in all, per client", [p.local_steps for p in plans], ","),
        ("vectors up (and as many down), all clients", [p.vectors_up for p in plans], ","),
        ("bytes up (and as many down), all clients", [p.bytes_up for p in plans], ","),
        ("bound on the gap", [p.bound for p in plans], ".4g"),
    ]
    known = [(name, values, form) for name, values, form in lines if None not in values]
    return [["rule", *(p.rule for p in plans)]] + [
        [name, *(f"{v:{form}}" for v in values)] for name, values, form in known
    ]


def describe(p: Plan) -> str:
    noise = f", sigma = {p.sigma:g}" if p.sigma else ""
    clients = f"{p.n} client" + ("s" if p.n > 1 else "")
    return f"FedMLS for a gap of at most {p.eps:g}: G = {p.G:.4g}, distance {p.distance:.4g}, {clients}{noise}"


def _sharp(eps: float, G: float, distance: float, n: int, sigma: float) -> tuple[float, int, int]:
    """μ, K and T that make the bound's three terms at most 2/9, 2/9 and 1/2 of eps."""
    K = _up(6 * (distance / eps * G))
    noise = 2 + sigma / G
    return eps / G / G, K, _up(3 * noise * noise * (K + 0.5) - 3)


def _paper(eps: float, G: float, distance: float, n: int, sigma: float) -> tuple[float, int, int]:
    """The Corollary: λ = ε/G², of which μ = λ/n."""
    reach = distance / eps * G * math.sqrt(n)
    noise = sigma / G
    return eps / G / G / n, _up(6 * reach), _up(36 * math.sqrt(3) * reach * (4 + noise * noise))


def _up(value: float) -> int:
    """Rounded up, but 600.0000000001, which only floating-point arithmetic made of 600, is 600."""
    return max(1, math.ceil(value * (1 - 1e-12))) if value < MOST else int(2 * MOST)


def _clients(
    problem: Problem | OracleProblem | None, G: Any, n: int | None, dimension: int | None
) -> tuple[int, Array, int | None]:
    """n, the weights and the dimension, from the problem or as given."""
    n = None if n is None else whole("n", n)
    dimension = None if dimension is None else whole("dimension", dimension)
    if problem is not None:
        if not isinstance(problem, Problem | OracleProblem):
            raise ValueError(f"problem is {problem!r}; give a fedmls.Problem, or leave it out and name eps, G, ...")
        for name, given, known in (("n", n, problem.n), ("dimension", dimension, problem.dimension)):
            if given not in (None, known):
                raise ValueError(f"{name} is {given!r}, but the problem has {known}; leave {name} out")
        return problem.n, problem.weights, problem.dimension
    if n is None and np.ndim(G) == 1 and len(G) > 0:
        n = len(G)
    if n is None:
        raise ValueError("n is missing; give the number of clients, a problem, or one G per client")
    return n, np.full(n, 1 / n), dimension


def _constants(problem: Any, G: Any, n: int, weights: Array) -> tuple[float, float]:
    """Ḡ and the largest G_i."""
    if G is None:
        each = _of_problem(problem)
    elif np.ndim(G) == 0:
        return (positive("G", G),) * 2
    else:
        each = np.asarray(G, dtype=float)
        if each.shape != (n,):
            raise ValueError(f"G has shape {each.shape} for {n} clients; give one number, or one per client")
    if not (np.isfinite(each).all() and each.min() >= 0 and each.max() > 0):
        bad = each.max() if each.max() <= 0 else each[~(np.isfinite(each) & (each >= 0))][0]
        raise ValueError(f"G holds {bad}; every G_i must be finite and not negative, and one of them positive")
    largest = float(each.max())
    return largest * float(np.sqrt(weights @ (each / largest) ** 2)), largest


def _of_problem(problem: Any) -> Array:
    if problem is None:
        raise ValueError("G is missing; give a bound on the length of the subgradients, or a problem")
    if isinstance(problem, OracleProblem):
        raise ValueError(
            "G is missing; a problem made of functions does not tell it: give G, one number or one per client"
        )
    each = problem.lipschitz()
    if np.isinf(each).any():
        raise ValueError(
            f"the subgradients of {problem!r} grow without bound (squared hinge or an l2 term); "
            "give G=problem.lipschitz(R) and train with FedMLS(radius=R), where R > ‖x*‖"
        )
    return np.asarray(each)
