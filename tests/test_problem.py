"""Problems: values and subgradients against NumPy, and every kind of bad input."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import fedmls
from fedmls.losses import LOSSES, pinball
from tests.support.problems import lad, svm

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 3))
Y = np.where(X[:, 0] + 0.3 * RNG.normal(size=30) > 0, 1, -1)
CLIENTS = np.arange(30) % 3


def test_value_is_the_formula():
    weights, sample_weight = np.array([0.2, 0.3, 0.5]), RNG.random(30)
    problem = fedmls.Problem(
        X, Y, CLIENTS, "hinge", l2=0.7, l1=0.2, reduction="mean", weights=weights, sample_weight=sample_weight
    )
    x = np.array([0.5, -1.0, 2.0, 0.3])
    hinge = np.maximum(0, 1 - Y * (X @ x[:3] + x[3])) * sample_weight
    expected = sum(weights[i] * hinge[CLIENTS == i].sum() / 10 for i in range(3))
    expected += 0.35 * x[:3] @ x[:3] + 0.2 * np.abs(x[:3]).sum()
    assert problem.value(x) == pytest.approx(expected, rel=1e-14)


def test_the_intercept_is_not_penalised():
    problem = fedmls.Problem(X, Y, CLIENTS, l2=1e6, l1=1e6)
    assert problem.value([0, 0, 0, 5.0]) == pytest.approx(fedmls.Problem(X, Y, CLIENTS).value([0, 0, 0, 5.0]))
    assert problem.subgradient([0, 0, 0, 5.0]) == pytest.approx(
        fedmls.Problem(X, Y, CLIENTS).subgradient([0, 0, 0, 5.0])
    )
    local = problem.local()
    u, _ = local.descend(np.array([0, 0, 0, 5.0]), np.array([0.0]))
    assert u == pytest.approx(np.tile([0, 0, 0, 5.0], (3, 1)))


@pytest.mark.parametrize("loss", [*LOSSES, pinball(0.8)], ids=str)
@given(x=st.lists(st.floats(-5, 5), min_size=4, max_size=4), z=st.lists(st.floats(-5, 5), min_size=4, max_size=4))
@settings(max_examples=30, deadline=None)
def test_subgradient_inequality(loss, x, z):
    labels = Y if fedmls.losses.get_loss(loss).is_classification else X[:, 1] * 2
    problem = fedmls.Problem(X, labels, CLIENTS, loss, l2=0.3, l1=0.1)
    x, z = np.array(x), np.array(z)
    assert problem.value(z) >= problem.value(x) + problem.subgradient(x) @ (z - x) - 1e-8


@pytest.mark.parametrize("loss", LOSSES)
def test_dense_and_csr_agree(loss):
    labels = Y if LOSSES[loss].is_classification else X[:, 1]
    rows = X * (RNG.random(X.shape) < 0.5)
    dense = fedmls.Problem(rows, labels, CLIENTS, loss, l2=0.1, l1=0.05)
    csr = fedmls.Problem(sparse.csc_matrix(rows), labels, CLIENTS, loss, l2=0.1, l1=0.05)
    x = RNG.normal(size=4)
    assert csr.value(x) == pytest.approx(dense.value(x), rel=1e-13)
    np.testing.assert_allclose(csr.subgradient(x), dense.subgradient(x), rtol=1e-12, atol=1e-12)
    one, two = (fedmls.simulate(fedmls.FedMLS(lam0=0.1), p, rounds=30, batch=0.4, optimum=None) for p in (dense, csr))
    np.testing.assert_allclose(one.x, two.x, rtol=1e-9, atol=1e-12)


@given(st.lists(st.floats(-10, 10), min_size=4, max_size=4))
@settings(max_examples=40, deadline=None)
def test_lipschitz_bounds_hold(x):
    x = np.array(x)
    for problem in (svm(n=3, columns=3), lad(n=3, columns=3), svm(n=3, columns=3, l1=0.5)):
        norms = np.linalg.norm(problem.client_subgradients(np.tile(x, (3, 1))), axis=1)
        assert (norms <= problem.lipschitz() * (1 + 1e-12)).all()
    bounded = fedmls.Problem(X, Y, CLIENTS, "squared_hinge", l2=0.5)
    assert np.isinf(bounded.lipschitz()).all()
    norms = np.linalg.norm(bounded.client_subgradients(np.tile(x, (3, 1))), axis=1)
    assert (norms <= bounded.lipschitz(radius=float(np.linalg.norm(x))) * (1 + 1e-12)).all()


def test_labels_of_any_two_kinds():
    words = np.where(Y > 0, "yes", "no")
    assert fedmls.Problem(X, words, CLIENTS).value(np.ones(4)) == fedmls.Problem(X, Y, CLIENTS).value(np.ones(4))


def test_clients_by_name():
    names = np.array(["ulm", "bonn", "kiel"])[CLIENTS]
    problem = fedmls.Problem(X, Y, names)
    assert problem.client_names == ["bonn", "kiel", "ulm"]
    assert problem.value(np.ones(4)) == pytest.approx(fedmls.Problem(X, Y, CLIENTS).value(np.ones(4)))


def test_weights_by_rows():
    uneven = np.array([0] * 20 + [1] * 6 + [2] * 4)
    problem = fedmls.Problem(X, Y, uneven, reduction="mean", weights="rows")
    pooled = fedmls.Problem(X, Y, reduction="mean")
    assert problem.value(np.ones(4)) == pytest.approx(pooled.value(np.ones(4)))


def broken(values, at, value):
    values = np.array(values, dtype=float)
    values[at] = value
    return values


BAD = {
    "text in objects": (lambda: fedmls.Problem(np.array([["a"]], dtype=object), [1], [0]), "X must hold numbers"),
    "complex": (lambda: fedmls.Problem(X + 1j, Y, CLIENTS), "X holds complex128; it must hold real numbers"),
    "masked": (lambda: fedmls.Problem(np.ma.array(X), Y, CLIENTS), "X is a masked array"),
    "label missing": (lambda: fedmls.Problem(X, [None] + ["a"] * 14 + ["b"] * 15, CLIENTS), "y[0] is missing (None)"),
    "label NA": (
        lambda: fedmls.Problem(X, pd.array([pd.NA] + ["a"] * 14 + ["b"] * 15, dtype="string"), CLIENTS),
        "y[0] is missing (<NA>)",
    ),
    "label infinite": (lambda: fedmls.Problem(X, broken(X[:, 0], 3, np.inf), CLIENTS, "absolute"), "y[3] is inf"),
    "client missing": (lambda: fedmls.Problem(X, Y, ["a"] * 29 + [None]), "clients[29] is missing (None)"),
    "client fraction": (lambda: fedmls.Problem(X, Y, CLIENTS / 2), "clients holds fractions"),
    "intercept": (lambda: fedmls.Problem(X, Y, CLIENTS, intercept="no"), "intercept is 'no'; it must be True or False"),
    "weights text": (lambda: fedmls.Problem(X, Y, CLIENTS, weights=["a"] * 3), "weights is ['a', 'a', 'a']; it must"),
    "loss list": (lambda: fedmls.Problem(X, Y, CLIENTS, loss=["hinge"]), "unknown loss ['hinge']"),
    "no functions": (lambda: fedmls.OracleProblem([], 2), "there are no clients"),
    "not a pair": (lambda: fedmls.OracleProblem([max], 2), "clients[0] is <built-in function max>; give a pair"),
    "dimension": (lambda: fedmls.OracleProblem([(max, max)], 2.5), "dimension is 2.5; it must be a whole number"),
    "NaN": (lambda: fedmls.Problem(broken(X, (4, 1), np.nan), Y, CLIENTS), "X[4, 1] is nan; drop such rows or fill"),
    "infinite": (lambda: fedmls.Problem(broken(X, (2, 0), np.inf), Y, CLIENTS), "X[2, 0] is inf"),
    "sparse NaN": (
        lambda: fedmls.Problem(sparse.csr_array(broken(X, (4, 1), np.nan)), Y, CLIENTS),
        "X[4, 1] is nan",
    ),
    "text": (lambda: fedmls.Problem([["a"]], [1], [0]), "X holds <U1; it must hold real numbers"),
    "one dimension": (lambda: fedmls.Problem(X[:, 0], Y, CLIENTS), "X has shape (30,)"),
    "no rows": (lambda: fedmls.Problem(X[:0], Y[:0], CLIENTS[:0]), "X has shape (0, 3)"),
    "label NaN": (lambda: fedmls.Problem(X, broken(X[:, 0], 3, np.nan), CLIENTS, "absolute"), "y[3] is missing (nan)"),
    "one class": (
        lambda: fedmls.Problem(X, np.ones(30), CLIENTS),
        "the hinge loss needs labels of two classes; y has 1 (1.0)",
    ),
    "three classes": (
        lambda: fedmls.Problem(X, np.arange(30) % 3, CLIENTS, "logistic"),
        "the logistic loss needs labels of two classes; y has 3 (0, 1, 2): for more classes",
    ),
    "text labels": (lambda: fedmls.Problem(X, ["a"] * 30, CLIENTS, "absolute"), "the absolute loss needs numbers"),
    "short labels": (lambda: fedmls.Problem(X, Y[:-1], CLIENTS), "y has shape (29,) but X has 30 rows"),
    "short clients": (lambda: fedmls.Problem(X, Y, CLIENTS[:-1]), "clients has shape (29,) but X has 30 rows"),
    "empty client": (lambda: fedmls.Problem(X, Y, CLIENTS * 2), "client 1 of 0..4 has no rows; number clients 0..n-1"),
    "far client": (lambda: fedmls.Problem(X, Y, CLIENTS + 10**9), "client 0 of 0..1000000002 has no rows"),
    "negative client": (lambda: fedmls.Problem(X, Y, CLIENTS - 1), "clients holds -1"),
    "weights": (lambda: fedmls.Problem(X, Y, CLIENTS, weights=[0.5, 0.5]), "weights has shape (2,) for 3 clients"),
    "weights sum": (lambda: fedmls.Problem(X, Y, CLIENTS, weights=[1, 1, 1]), "weights sum to 3, not 1"),
    "zero weight": (lambda: fedmls.Problem(X, Y, CLIENTS, weights=[0, 0.5, 0.5]), "weights holds 0.0"),
    "negative l2": (lambda: fedmls.Problem(X, Y, CLIENTS, l2=-1), "l2 is -1; it must be a number of at least 0"),
    "reduction": (lambda: fedmls.Problem(X, Y, CLIENTS, reduction="max"), "unknown reduction 'max'"),
    "sample weight": (
        lambda: fedmls.Problem(X, Y, CLIENTS, sample_weight=-np.ones(30)),
        "sample_weight holds -1.0",
    ),
    "point": (lambda: fedmls.Problem(X, Y, CLIENTS).value([1.0]), "x has shape (1,); this problem has 4 coordinates"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case):
    call, message = BAD[case]
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_labels_and_clients_of_many_kinds_mean_the_same():
    plain = fedmls.Problem(X, Y, CLIENTS)
    x = np.ones(4)
    for labels in (pd.Series(Y, index=range(100, 130)), list(Y), Y.astype(object), Y > 0):
        assert fedmls.Problem(X, labels, CLIENTS).value(x) == plain.value(x)
    for clients in (CLIENTS.astype(float), CLIENTS.astype(object), pd.Categorical(CLIENTS), list(CLIENTS)):
        assert fedmls.Problem(X, Y, clients).value(x) == plain.value(x)
    numbers = fedmls.Problem(X, X[:, 0], CLIENTS, "absolute")
    assert fedmls.Problem(X, X[:, 0].astype(object), CLIENTS, "absolute").value(x) == numbers.value(x)


def test_numpy_numbers_are_numbers():
    assert fedmls.FedMLS(lam0=np.int64(1), T=np.float32(3)) == fedmls.FedMLS(lam0=1, T=3) == fedmls.FedMLS(T=3.0)
    assert repr(fedmls.FedMLS(lam0=1)) == repr(fedmls.FedMLS(lam0=np.float64(1.0)))
    assert fedmls.GradSkip(q=np.float32(0.5)) == fedmls.GradSkip(q=0.5)
    assert fedmls.Problem(X, Y, CLIENTS, l2=np.float32(0.5)).l2 == 0.5
    run = fedmls.simulate(fedmls.FedMLS(), fedmls.Problem(X, Y, CLIENTS), rounds=np.int64(2), batch=np.float32(0.5))
    assert len(run.history) == 2


@pytest.fixture
def on_disk(tmp_path):
    """Return a function that puts an array into a file and maps it into memory."""

    def mapped(array):
        np.save(tmp_path / "X.npy", array)
        return np.load(tmp_path / "X.npy", mmap_mode="r")

    return mapped


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("clients", [[0] * 30 + [1] * 30, [0, 1] * 30], ids=["in order", "mixed"])
@pytest.mark.parametrize("algorithm", [fedmls.FedMLS(), fedmls.FedMLSB()], ids=["fedmls", "fedmlsb"])
def test_rows_on_disk_are_the_same_rows(on_disk, intercept, clients, algorithm):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 4)), rng.choice([-1, 1], 60)
    runs = [
        fedmls.simulate(algorithm, fedmls.Problem(rows, y, clients, intercept=intercept), rounds=3, batch=0.5)
        for rows in (X, on_disk(X))
    ]
    np.testing.assert_array_equal(runs[0].x, runs[1].x)


@pytest.mark.parametrize(("intercept", "copies"), [(False, False), (True, True)])
def test_rows_on_disk_stay_there(on_disk, intercept, copies):
    """Without a column of ones to add they are used where they are; otherwise they are copied into another file."""
    X = on_disk(np.random.default_rng(0).normal(size=(200_000, 20)))
    y = np.where(X[:, 0] > 0, 1, -1)
    tracemalloc.start()
    problem = fedmls.Problem(X, y, intercept=intercept)
    problem.value(np.zeros(problem.dimension))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (problem.X.base.filename == X.filename) is not copies
    assert peak < 0.6 * X.nbytes  # labels, weights and their order are a fifth of it


def test_a_problem_copies_its_rows_once():
    X = np.random.default_rng(0).normal(size=(100_000, 50))
    y = np.where(X[:, 0] > 0, 1, -1)
    tracemalloc.start()
    problem = fedmls.Problem(X, y)
    assert problem.row_squares.shape == (100_000, 2)
    assert problem.lipschitz() > 0
    assert problem.fingerprint
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.6 * X.nbytes


def test_a_problem_does_not_change_with_the_array_it_was_made_of():
    X, y = np.random.default_rng(0).normal(size=(20, 3)), np.repeat([-1, 1], 10)
    problem = fedmls.Problem(X, y, intercept=False)
    before = problem.X.copy()
    X[:] = 0.0
    np.testing.assert_array_equal(problem.X, before)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_the_squares_of_rows(is_sparse):
    X = np.random.default_rng(0).normal(size=(30, 5)) * (np.random.default_rng(1).random((30, 5)) < 0.6)
    problem = fedmls.Problem(sparse.csr_array(X) if is_sparse else X, np.repeat([-1, 1], 15), clients=[0, 1, 2] * 10)
    rows = problem.matrix().toarray()
    np.testing.assert_allclose(problem.row_squares, np.column_stack([(rows[:, :5] ** 2).sum(axis=1), np.ones(30)]))
