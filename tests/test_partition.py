"""Ways to cut rows into clients."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.metrics import adjusted_rand_score

from fedmls import partition
from fedmls.datasets import breast_cancer_wisconsin, impute_means

X, Y = breast_cancer_wisconsin()


def test_the_wisconsin_data():
    raw, y = breast_cancer_wisconsin(impute=False)
    assert raw.shape == (699, 9)
    assert np.isnan(raw).sum() == np.isnan(raw[:, 5]).sum() == 16
    assert (y == 1).sum() == 241
    assert (y == -1).sum() == 458
    assert np.nanmin(raw) == 1
    assert np.nanmax(raw) == 10
    np.testing.assert_allclose(X[np.isnan(raw)], np.nanmean(raw[:, 5]))
    with pytest.raises(ValueError, match="column 1 holds no number"):
        impute_means([[1.0, np.nan], [2.0, np.nan]])


def test_kmeans_finds_clusters_and_is_seeded():
    rng = np.random.default_rng(0)
    truth = np.arange(200) % 4
    rows = 10 * rng.normal(size=(4, 3))[truth] + 0.1 * rng.normal(size=(200, 3))
    assert adjusted_rand_score(truth, partition.kmeans(rows, 4, seed=1)) == 1
    first = partition.kmeans(X, 10, seed=0)
    assert np.array_equal(first, partition.kmeans(X, 10, seed=0))
    assert not np.array_equal(first, partition.kmeans(X, 10, seed=1))
    assert np.bincount(first).min() > 0


@given(m=st.integers(1, 200), n=st.integers(1, 50), seed=st.integers(0, 99))
def test_iid_deals_evenly(m, n, seed):
    if m < n:
        with pytest.raises(ValueError, match=f"there are {m} rows for {n} clients; ask for at most {m}"):
            partition.iid(m, n, seed)
        return
    sizes = np.bincount(partition.iid(m, n, seed), minlength=n)
    assert sizes.max() - sizes.min() <= 1
    assert sizes.min() >= 1


@given(n=st.integers(1, 20), alpha=st.floats(0.01, 100), seed=st.integers(0, 99))
def test_dirichlet_leaves_no_client_empty(n, alpha, seed):
    clients = partition.dirichlet(Y, n, alpha, seed)
    assert len(clients) == 699
    assert np.bincount(clients, minlength=n).min() >= 1


def test_dirichlet_skews_labels_the_more_the_smaller_alpha():
    def skew(alpha):
        clients = partition.dirichlet(Y, 10, alpha, seed=3)
        shares = np.array([(Y[clients == i] > 0).mean() for i in range(10)])
        return np.abs(shares - (Y > 0).mean()).mean()

    assert skew(0.05) > 0.25 > 0.1 > skew(1000)


def test_by_column():
    frame = pd.DataFrame({"school": ["b", "a", "b"], "grade": [1, 2, 3]})
    assert partition.by_column(frame, "school").tolist() == [1, 0, 1]
    assert partition.by_column([204, 17, 204]).tolist() == [1, 0, 1]
    assert partition.by_column(np.array([[5.0, 1], [6.0, 2]]), 0).tolist() == [0, 1]


def test_sparse_rows_are_cut_too():
    rows = sparse.csr_array(X)
    assert len(np.unique(partition.kmeans(rows, 5))) == 5
    assert np.array_equal(partition.by_column(rows, 0), partition.by_column(X, 0))
    assert np.bincount(partition.iid(rows, 3)).tolist() == [233, 233, 233]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: partition.kmeans(X[:5], 10), "there are 5 rows for 10 clients; ask for at most 5 clients"),
        (lambda: partition.kmeans(np.ones((20, 2)), 3), "X has 1 distinct rows for 3 clients"),
        (lambda: partition.iid(X, 0), "n_clients is 0; it must be a whole number of at least 1"),
        (lambda: partition.dirichlet(Y, 5, alpha=0), "alpha is 0; it must be a positive number"),
        (lambda: partition.by_column(pd.DataFrame({"a": [1]}), "b"), "there is no column 'b'; there are a"),
        (lambda: partition.by_column(["a", None]), "values[1] is missing (None)"),
        (lambda: partition.dirichlet([1.0, np.nan], 1), "y[1] is missing (nan)"),
        (lambda: partition.kmeans(np.full((9, 2), np.nan), 3), "X[0, 0] is nan"),
        (lambda: partition.kmeans(np.ones(9), 3), "X has shape (9,)"),
        (lambda: partition.by_column(X, 9), "column is 9; X has columns 0..8"),
        (lambda: partition.by_column([1.0, np.nan]), "values[1] is missing (nan); fill it in or drop the row"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value).startswith(message)
