"""Small problems and plain subgradients for the tests."""

import numpy as np
from scipy import sparse

import fedmls


def svm(n=5, m=60, columns=4, seed=0, **options):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(m, columns)) + rng.normal(size=(n, columns))[np.arange(m) % n]
    y = np.where(X @ rng.normal(size=columns) + rng.normal(size=m) > 0, 1, -1)
    return fedmls.Problem(X, y, clients=np.arange(m) % n, loss="hinge", **options)


def lad(n=5, m=60, columns=4, seed=0, loss="absolute", density=None, **options):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(m, columns))
    if density is not None:
        X = X * (rng.random(size=X.shape) < density)
    y = X @ rng.normal(size=columns) + rng.standard_t(2, size=m) + (np.arange(m) % n)
    rows = X if density is None else sparse.csr_array(X)
    return fedmls.Problem(rows, y, clients=np.arange(m) % n, loss=loss, **options)


def plain_subgradients(problem):
    """Client subgradients by NumPy, from the dense rows alone; hinge and absolute loss."""
    A = problem.matrix().toarray()

    def of(i):
        part = slice(problem.offsets[i], problem.offsets[i + 1])
        rows, b, c = A[part], problem.y[part], problem.row_weights[part]

        def subgradient(x):
            p = rows @ x
            s = np.where(b * p < 1, -b, 0.0) if problem.loss.name == "hinge" else np.sign(p - b)
            return rows.T @ (c * s)

        return subgradient

    return [of(i) for i in range(problem.n)]


def cvxpy_losses(loss, p, b):
    """The losses of predictions p as cvxpy writes them, from their definitions alone."""
    import cvxpy as cp

    r, margin, c = p - b, cp.multiply(b, p), loss.parameter
    return {
        "hinge": lambda: cp.pos(1 - margin),
        "squared_hinge": lambda: cp.square(cp.pos(1 - margin)),
        "absolute": lambda: cp.abs(r),
        "pinball": lambda: cp.maximum(-c * r, (1 - c) * r),
        "epsilon_insensitive": lambda: cp.pos(cp.abs(r) - c),
        "huber": lambda: cp.huber(r, c) / 2,
        "logistic": lambda: cp.logistic(-margin),
    }[loss.name]()
