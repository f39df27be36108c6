"""Made-up problems: how unlike the clients are is a dial, and some optima are known by construction.

``heterogeneity`` goes from 0 (all clients draw from one distribution) to 1 (each has rows of its own kind and an answer
of its own). Clients have equally many rows, within one. With ``density`` below 1 the rows are CSR, each with about that
share of its columns filled, some columns more often than others. Columns have unit variance.
"""

from typing import Any

import numpy as np

from fedmls import partition
from fedmls.bounds.certificate import lower_bound
from fedmls.checks import at_least, positive, real, truth, whole
from fedmls.problem import Problem
from fedmls.types import Array, Optimum

SHIFT = 2.0  # at heterogeneity 1, how far from 0 the rows of a client are centred
SIGNAL = 3.0  # the length of lad's x; at heterogeneity 1 a client's own answer is 1 away from it


def svm(
    rows: int = 1000,
    dimension: int = 10,
    n: int = 10,
    heterogeneity: float = 0.5,
    *,
    noise: float = 0.1,
    density: float = 1.0,
    seed: int = 0,
    **options: Any,
) -> Problem:
    """A support vector machine: a row's label is its side of its client's plane, flipped for a share ``noise`` of rows.

    The normal of client i's plane is w + heterogeneity v_i, with w and v_i random of length 1. ``options`` go to
    :class:`fedmls.Problem`.
    """
    unlike, flips = _share("heterogeneity", heterogeneity), _share("noise", noise)
    rng, clients = _start(seed, rows, n)
    X = _rows(rng, clients, dimension, unlike, density)
    normals = _directions(rng, 1, dimension) + unlike * _directions(rng, n, dimension)
    above = _by_client(X, clients, normals) > 0
    y = np.where(above ^ (rng.random(rows) < flips), 1.0, -1.0)
    return Problem(X, y, clients=clients, loss="hinge", **options)


def lad(
    rows: int = 1000,
    dimension: int = 10,
    n: int = 10,
    heterogeneity: float = 0.5,
    *,
    noise: float = 0.3,
    density: float = 1.0,
    planted: bool = False,
    seed: int = 0,
    **options: Any,
) -> Problem:
    """Least absolute deviations: b_j = a_j·(x + heterogeneity v_i) + ``noise`` times a Laplace number, ‖v_i‖ = 1.

    planted: x is a minimiser by construction, and ``problem.optimum`` is there without a solver. A tenth of the rows
    lie on x. The others come in threes, whose residuals at x have signs with s a + s' a' + s'' a'' = 0: their
    subgradients cancel. For that the third row is computed from the two others instead of drawn. There are no
    ``options`` then, and no intercept.
    """
    unlike, scale = _share("heterogeneity", heterogeneity), at_least("noise", noise, 0.0)
    if truth("planted", planted) and options:
        raise ValueError(f"planted=True makes x optimal for the plain problem only; leave out {', '.join(options)}")
    rng, clients = _start(seed, rows, n)
    X = _rows(rng, clients, dimension, unlike, density)
    x = SIGNAL * _directions(rng, 1, dimension)[0]
    residuals = _by_client(X, clients, unlike * _directions(rng, n, dimension)) + scale * rng.laplace(size=rows)
    if not planted:
        return Problem(X, X @ x + residuals, clients=clients, loss="absolute", **options)
    X, residuals = _balanced(rng, X, residuals)
    problem = Problem(X, X @ x + residuals, clients=clients, loss="absolute", intercept=False)
    off = problem.matrix() @ x - problem.y
    problem.optimum = _proved(problem, x, np.where(abs(off) > 1e-9, np.sign(off), 0.0))
    return problem


def chain(length: int = 40, n: int = 2) -> Problem:
    """A chain whose links are known to two groups of clients in turn: a round moves a coordinate by one place only.

    f(x) = ½ Σ_j c_j |x_{j-1} - x_j| for j = 1, ..., length + 1, with x_0 = 1, x_{length+1} = 0 and weights c_j falling
    evenly from 2 to 1. Clients 0, 2, 4, ... hold the links with odd j, the others those with even j (each all of its
    group's, as absolute-loss rows). f* = ½, at x = (1, ..., 1), the last link being the cheapest to break.

    From x = 0, where every link but the first has slope 0, a method that moves only along subgradients and means has
    x_j = 0 for all j > k after k rounds, however much is computed locally. At such points f >= 1 - k/(2 length): a
    relative gap of 1 - k/length is left.

    After the functions of the lower bounds Ω(D0 Ḡ/ε) on rounds: Arjevani, Shamir, "Communication complexity of
    distributed convex learning and optimization" (NeurIPS 2015); Scaman, Bach, Bubeck, Lee, Massoulié, "Optimal
    algorithms for non-smooth distributed optimization in networks" (NeurIPS 2018). Theirs have such links too; what
    makes the gap fall evenly here is ours, the weights c_j and the last link, so that it is a problem of rows.
    """
    d = whole("length", length, least=2)
    if whole("n", n, least=2) % 2:
        raise ValueError(f"n is {n}; the chain has two groups of equally many clients: take an even number")
    links = np.eye(d + 1, d, -1) - np.eye(d + 1, d)  # row j - 1: x_{j-1} - x_j
    labels = np.concatenate([[-1.0], np.zeros(d)])
    c = np.linspace(2.0, 1.0, d + 1)
    owned = np.concatenate([np.arange(client % 2, d + 1, 2) for client in range(n)])
    clients = np.concatenate([np.full(len(range(client % 2, d + 1, 2)), client) for client in range(n)])
    problem = Problem(
        links[owned], labels[owned], clients=clients, loss="absolute", intercept=False, sample_weight=c[owned]
    )
    problem.optimum = _proved(problem, np.ones(d), c[-1] / problem.row_weights)
    return problem


def _proved(problem: Problem, x: Array, slopes: Array) -> Optimum:
    """x with the lower bound that the rows' slopes prove; they cancel, so that it is f(x) but for rounding."""
    radius = 10 * float(np.linalg.norm(x))
    return Optimum(x, problem.value(x), lower_bound(problem, slopes, radius), radius)


def _balanced(rng: np.random.Generator, X: Any, residuals: Array) -> tuple[Any, Array]:
    """X with every third row made from two others, and the residuals with a tenth of them 0 (see :func:`lad`)."""
    from scipy.sparse import csr_array

    m = len(residuals)
    threes = (m - -(-m // 10)) // 3
    order = rng.permutation(m)
    first, second, third = order[: 3 * threes].reshape(3, threes)
    kept = np.setdiff1d(order, third)
    s = np.where(residuals < 0, -1.0, 1.0)
    shares = np.concatenate([np.ones(len(kept)), -s[third] * s[first], -s[third] * s[second]])
    places = np.concatenate([kept, third, third]), np.concatenate([kept, first, second])
    exact = np.isin(np.arange(m), order[3 * threes :])
    return csr_array((shares, places), shape=(m, m)) @ X, np.where(exact, 0.0, residuals)


def _rows(rng: np.random.Generator, clients: Any, dimension: int, unlike: float, density: float) -> Any:
    d, filled = whole("dimension", dimension), positive("density", density)
    if filled > 1:
        raise ValueError(f"density is {density!r}; it is the share of a row's columns that are filled: at most 1")
    if filled == 1:
        centres = unlike * SHIFT * _directions(rng, clients.max() + 1, d)
        return rng.normal(size=(len(clients), d)) + centres[clients]
    return _sparse_rows(rng, clients, d, unlike, filled)


def _sparse_rows(rng: np.random.Generator, clients: Any, d: int, unlike: float, density: float) -> Any:
    """Columns are drawn with probabilities like 1/√rank; clients share the ranking, or each has its own."""
    from scipy.sparse import csr_array

    m, in_row = len(clients), max(1, round(density * d))
    columns = np.empty((m, in_row), dtype=np.int64)
    common = 1 / np.sqrt(np.arange(1, d + 1))
    for i in range(clients.max() + 1):
        popularity = (1 - unlike) * common + unlike * rng.permutation(common)
        mine = clients == i
        columns[mine] = rng.choice(d, size=(mine.sum(), in_row), p=popularity / popularity.sum())
    values = rng.normal(scale=(d / in_row) ** 0.5, size=m * in_row)
    rows = csr_array((values, columns.ravel(), np.arange(0, m * in_row + 1, in_row)), shape=(m, d))
    rows.sum_duplicates()
    return rows


def _by_client(X: Any, clients: Any, models: Array) -> Array:
    """a_j·x_i for every row j and the model x_i of its client."""
    predictions = np.empty(len(clients))
    for i, x in enumerate(models):
        predictions[clients == i] = X[clients == i] @ x
    return predictions


def _directions(rng: np.random.Generator, count: int, d: int) -> Array:
    vectors = rng.normal(size=(count, d))
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def _start(seed: int, rows: int, n: int) -> tuple[np.random.Generator, Any]:
    rng = np.random.default_rng(whole("seed", seed, least=0))
    return rng, partition.iid(whole("rows", rows), n, seed)


def _share(name: str, value: object) -> float:
    number = real(value)
    if number is None or not 0 <= number <= 1:
        raise ValueError(f"{name} is {value!r}; it must be a number from 0 to 1")
    return number
