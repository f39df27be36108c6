"""Ways to cut rows into clients. Each returns the client 0..n-1 of every row, for ``Problem(clients=...)``."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmls.checks import check_rows, distinct, is_sparse, positive, whole

Labels = NDArray[np.int64]


def kmeans(X: Any, n_clients: int = 10, seed: int = 0) -> Labels:
    """Clients are k-means clusters of the rows (10 restarts), as in the FedMLS paper: very unlike each other."""
    from sklearn.cluster import KMeans

    X = check_rows(X)
    _enough(X.shape[0], n_clients)
    found = X.shape[0] if is_sparse(X) else len(np.unique(X, axis=0))
    if found < n_clients:
        raise ValueError(
            f"X has {found} distinct rows for {n_clients} clients; k-means needs at least as many: "
            "ask for fewer clients"
        )
    model = KMeans(n_clusters=n_clients, n_init=10, random_state=seed).fit(X)
    return np.asarray(model.labels_, dtype=np.int64)


def iid(X: Any, n_clients: int = 10, seed: int = 0) -> Labels:
    """Clients of equal size (within one row), rows dealt at random. X: the rows, or how many there are."""
    m = whole("X", X) if isinstance(X, int | np.integer) else X.shape[0] if hasattr(X, "shape") else len(X)
    _enough(m, n_clients)
    clients = np.arange(m, dtype=np.int64) % n_clients
    return np.random.default_rng(seed).permutation(clients)


def dirichlet(y: Any, n_clients: int = 10, alpha: float = 0.5, seed: int = 0) -> Labels:
    """Label skew: each class is dealt out in shares drawn from a Dirichlet(alpha); small alpha, strong skew.

    Hsu, Qi, Brown (2019). A client left without rows gets one row from the largest client.
    """
    _, labels = distinct("y", y)
    _enough(len(labels), n_clients)
    positive("alpha", alpha)
    rng = np.random.default_rng(seed)
    clients = np.empty(len(labels), dtype=np.int64)
    for value in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == value))
        shares = rng.dirichlet(np.full(n_clients, alpha))
        cuts = np.floor(np.cumsum(shares)[:-1] * len(rows) + 0.5).astype(int)
        for client, part in enumerate(np.split(rows, cuts)):
            clients[part] = client
    for client in range(n_clients):
        if not (clients == client).any():
            largest = np.bincount(clients, minlength=n_clients).argmax()
            clients[np.flatnonzero(clients == largest)[0]] = client
    return clients


def by_column(X: Any, column: Any = None) -> Labels:
    """Rows with equal values in a column share a client. X: rows with ``column``, or the values themselves."""
    if column is None:
        values = X
    elif hasattr(X, "columns"):
        if column not in X.columns:
            raise ValueError(f"there is no column {column!r}; there are {', '.join(map(str, X.columns))}")
        values = X[column]
    else:
        rows: Any = X.tocsc() if is_sparse(X) else np.asarray(X)
        if not isinstance(column, int | np.integer) or not -rows.shape[1] <= column < rows.shape[1]:
            raise ValueError(f"column is {column!r}; X has columns 0..{rows.shape[1] - 1}")
        values = rows[:, [column]].toarray().ravel() if is_sparse(rows) else rows[:, column]
    if np.ndim(values) != 1:
        raise ValueError(f"the values have shape {np.shape(values)}; name a column to cut by")
    return np.asarray(distinct("values", values)[1])


def _enough(m: int, n_clients: int) -> None:
    whole("n_clients", n_clients)
    if m < n_clients:
        raise ValueError(f"there are {m} rows for {n_clients} clients; ask for at most {m} clients")
