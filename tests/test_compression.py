"""Compressed uploads: what is sent, what it costs, and that runs still get there."""

import numpy as np
import pytest

import fedmls
from fedmls.algorithms import describe, from_dict, to_dict
from fedmls.compression import kept_entries, variance
from fedmls.local.compressors import compress
from fedmls.simulation.config import RunConfig
from fedmls.simulation.run import Simulation
from tests.support.algorithms import run_client_by_client
from tests.support.problems import lad, svm

INNER = [fedmls.FedMLS(lam0=0.5), fedmls.FedMLSE(lam0=0.5), fedmls.FedAvg(), fedmls.Scaffold(), fedmls.Scaffnew()]
METHODS = [("top_k", 0.4), ("random_k", 0.4), ("quantise", 6)]


def call(v, method, level, k=1):
    return compress(v, method, level, np.uint64(3), k, np.arange(len(v)), 7)


def test_top_k_keeps_the_largest():
    v = np.array([[3.0, -5.0, 0.1, 4.0], [0.0, 1.0, 2.0, -3.0]])
    assert call(v, "top_k", 0.5).tolist() == [[0, -5.0, 0, 4.0], [0, 0, 2.0, -3.0]]
    assert np.array_equal(call(v, "top_k", 1.0), v)


def test_random_k_keeps_k_entries_each_equally_often():
    v = np.ones((1, 10))
    kept = np.concatenate([call(v, "random_k", 0.3, k) for k in range(1, 3001)])
    assert (kept.sum(axis=1) == 3).all()
    assert abs(kept.mean(axis=0) - 0.3).max() < 5 * np.sqrt(0.21 / 3000)


def test_quantise_is_right_in_the_mean_and_takes_few_values():
    v = np.array([[0.3, -1.7, 0.0, 2.2, 0.01]])
    drawn = np.concatenate([call(v, "quantise", 3, k) for k in range(1, 4001)])
    step = np.linalg.norm(v) / 3
    np.testing.assert_allclose(drawn / step, np.round(drawn / step), atol=1e-12)
    assert abs(drawn.mean(axis=0) - v).max() < 5 * step / np.sqrt(4000)
    assert not call(np.zeros((1, 4)), "quantise", 3).any()


@pytest.mark.parametrize(("method", "level"), [("random_k", 0.3), ("random_k", 1.0), ("quantise", 3), ("quantise", 6)])
def test_the_variance_is_no_larger_than_said(method, level):
    """With the factor d/k random-k is right in the mean, and its variance just ω = d/k - 1."""
    v = np.array([[0.3, -1.7, 0.0, 2.2, 0.01, 0.5, -0.4, 1.1, 0.9, -3.0]])
    factor = 10 / kept_entries(level, 10) if method == "random_k" else 1.0
    drawn = factor * np.concatenate([call(v, method, level, k) for k in range(1, 4001)])
    squares = ((drawn - v) ** 2).sum(axis=1) / (v**2).sum()
    omega, error = variance(method, level, 10), 5 * squares.std() / np.sqrt(4000)
    assert squares.mean() <= omega + error
    if method == "random_k":
        assert squares.mean() >= omega - error
    assert abs(drawn.mean(axis=0) - v).max() <= 5 * drawn.std(axis=0).max() / np.sqrt(4000) + 1e-12


@pytest.mark.parametrize("inner", [INNER[0], INNER[2]], ids=lambda a: a.name)
@pytest.mark.parametrize(("method", "level"), METHODS)
def test_fedmls_and_fedavg_still_get_there(inner, method, level):
    """Scaffold and Scaffnew need not: their control variates can blow up under top-k and random-k."""
    problem = svm(m=100)
    algorithm = fedmls.Compressed(algorithm=inner, method=method, level=level)
    history = fedmls.simulate(algorithm, problem, rounds=200, batch=0.5).history
    assert history["gap"].iloc[-1] < 0.25 * history["gap"].iloc[0]
    assert np.isfinite(history["objective"]).all()


@pytest.mark.parametrize("inner", INNER, ids=lambda a: a.name)
@pytest.mark.parametrize(("method", "level"), METHODS)
def test_client_by_client_gives_the_same_bits(inner, method, level):
    problem = svm(n=4, m=50, weights=[0.1, 0.2, 0.3, 0.4])
    algorithm = fedmls.Compressed(algorithm=inner, method=method, level=level)
    run = fedmls.simulate(algorithm, problem, rounds=8, batch=0.3, seed=9)
    assert np.array_equal(run.x, run_client_by_client(algorithm, problem, 8, 0.3, 9))


def test_everything_kept_is_no_compression():
    problem = lad()
    for inner in INNER:
        whole = fedmls.simulate(inner, problem, rounds=30, batch=0.5).x
        kept = fedmls.simulate(fedmls.Compressed(algorithm=inner, level=1.0), problem, rounds=30, batch=0.5).x
        np.testing.assert_allclose(kept, whole, rtol=1e-8, atol=1e-10)


def test_the_server_holds_the_mean_of_the_kept_states():
    problem = svm()
    simulation = Simulation(fedmls.Compressed(algorithm=fedmls.Scaffold(), level=0.3), problem, RunConfig(20))
    for _ in simulation.play():
        at = simulation.at
        for name in ("kept_dy", "kept_dc"):
            expected = problem.weights @ getattr(at.clients, name)
            np.testing.assert_allclose(getattr(at.server, name), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("method", "level", "size"), [("top_k", 0.1, 12), ("random_k", 0.5, 24), ("quantise", 4, 8 + 3), ("top_k", 1, 60)]
)
def test_bytes_are_counted_as_sent(method, level, size):
    problem = svm()  # 5 clients, 5 coordinates
    algorithm = fedmls.Compressed(algorithm=fedmls.FedMLS(), method=method, level=level)
    last = fedmls.simulate(algorithm, problem, rounds=3).history.iloc[-1]
    assert last["bytes_up"] == 3 * 5 * size
    assert last["bytes_down"] == 3 * 5 * 40
    assert last["vectors_up"] == 15


def test_pairs_checkpoints_and_plain_values(tmp_path):
    problem, inner = svm(), fedmls.FedMLS(lam0=0.5, paired=True)
    algorithm = fedmls.Compressed(algorithm=inner, method="random_k", level=0.5)
    whole = fedmls.simulate(algorithm, problem, rounds=20)
    fedmls.simulate(algorithm, problem, rounds=7, checkpoint=tmp_path / "c")
    resumed = fedmls.simulate(algorithm, problem, rounds=20, checkpoint=tmp_path / "c")
    assert np.array_equal(resumed.x, whole.x)
    assert whole.history["exchanges"].iloc[-1] == 10
    assert from_dict(to_dict(algorithm)) == algorithm
    assert describe(algorithm) == "algorithm=fedmls(lam0=0.5, paired=True), method=random_k, level=0.5"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "topk"}, "unknown method 'topk': did you mean 'top_k'?"),
        ({"level": 0}, "level is 0.0; top_k takes the share of entries kept, in (0, 1]"),
        ({"level": 1.5}, "level is 1.5; top_k takes"),
        ({"method": "quantise", "level": 1}, "level is 1.0; quantise takes whole bits from 2 to 16"),
        ({"method": "quantise", "level": 2.5}, "level is 2.5; quantise takes whole bits"),
        ({"algorithm": fedmls.FedAvg(participants=2)}, "compressed uploads need all clients in every round"),
    ],
)
def test_bad_input(changes, message):
    with pytest.raises(ValueError) as error:
        fedmls.Compressed(**{"algorithm": fedmls.FedMLS(), **changes})
    assert str(error.value).startswith(message)
