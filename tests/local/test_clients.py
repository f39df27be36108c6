"""Many clients, in blocks: the same runs as all at once, and none of them takes more memory than a block needs."""

import tracemalloc
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmls
from fedmls import rounds
from fedmls.local.clients import Clients
from fedmls.rounds import blocks, weighted_mean
from tests.support.problems import lad, svm


@given(st.integers(1, 10**6), st.integers(1, 10**7))
def test_blocks_hold_every_client_once(clients, d):
    found = blocks(clients, d)
    assert [block.start for block in found] == [0, *(block.stop for block in found[:-1])]
    assert found[-1].stop == clients
    assert all(0 < (block.stop - block.start) * d <= max(d, rounds.BLOCK) for block in found)


@given(st.integers(1, 30), st.integers(1, 20))
def test_means_of_blocks_are_means(clients, block):
    rng = np.random.default_rng(clients)
    up = fedmls.FedAvg.Up(rng.normal(size=(clients, 4)))
    weights, before = rng.random(clients), up.u.copy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "BLOCK", 4 * block)
        np.testing.assert_allclose(weighted_mean(weights, up, 4).u, weights @ up.u, rtol=1e-12)
    assert np.array_equal(up.u, before)


@pytest.mark.parametrize("algorithm", [fedmls.FedMLS(lam0=0.5), fedmls.FedMLSD(), fedmls.FedMLSB()], ids=repr)
def test_certificates_and_checkpoints_of_blocks(algorithm, monkeypatch, tmp_path):
    problem = svm(n=7, m=90, columns=210, l2=0.1)  # so many columns that FedMLS-B has clients keep slopes too
    options = {"batch": 0.3, "certificate": 5.0, "progress": False, "optimum": None}
    at_once = fedmls.simulate(algorithm, problem, rounds=6, **options)
    monkeypatch.setattr(rounds, "BLOCK", 3 * problem.dimension)
    whole = fedmls.simulate(algorithm, problem, rounds=6, **options)
    fedmls.simulate(algorithm, problem, rounds=3, checkpoint=tmp_path / "run.npz", **options)
    resumed = fedmls.simulate(algorithm, problem, rounds=6, checkpoint=tmp_path / "run.npz", **options)
    assert np.array_equal(resumed.x, whole.x)
    for name in ("lower_bound", "objective"):
        assert resumed.history[name].equals(whole.history[name])
        np.testing.assert_allclose(whole.history[name], at_once.history[name], rtol=1e-6)


def test_the_optimum_is_the_same_in_blocks(monkeypatch):
    from fedmls.optima import solve

    monkeypatch.setattr(solve, "ROWS", 10)
    at_once = lad(n=9, m=200).optimum
    monkeypatch.setattr(rounds, "BLOCK", 10)
    in_blocks = lad(n=9, m=200).optimum
    assert np.isinf(in_blocks.radius)  # by cuts
    assert in_blocks.value == pytest.approx(at_once.value, rel=1e-9)


def test_a_part_of_a_problem_shares_its_rows():
    problem = lad(n=9, m=50, density=0.5)
    part = problem.local_of(slice(2, 5)).problem
    assert np.shares_memory(part.X.data, problem.X.data)
    assert np.array_equal(part.matrix().toarray(), problem.matrix().toarray()[problem.offsets[2] : problem.offsets[5]])
    assert part.n == 3
    assert part.client_names == [2, 3, 4]


@pytest.mark.parametrize("algorithm", [fedmls.FedMLSB(), fedmls.FedAvg(eta0=0.01)], ids=repr)
def test_clients_without_a_state_take_no_memory_beyond_a_block(algorithm, monkeypatch):
    problem = lad(n=4000, m=4000, columns=19)
    clients = Clients(problem)
    server, client = algorithm.init(np.zeros(20), 4000)
    _, down = algorithm.broadcast(1, server, np.random.default_rng(0))

    def peak():
        tracemalloc.start()
        Clients(problem).round(algorithm, 1, clients.states(client), down, None)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak()  # loads compiled code
    at_once = peak()
    monkeypatch.setattr(rounds, "BLOCK", 100 * 20)
    assert peak() < at_once / 4


def test_means_over_very_many_clients_are_rounded_by_little():
    """Added one after the other, a hundred thousand equal numbers are wrong by 1e-12."""

    class Up(NamedTuple):
        f: np.ndarray

    n = 100_000
    (mean,) = weighted_mean(np.full(n, 1 / n), Up(np.full((n, 1), 1 / 3)), 1)
    assert abs(Fraction(mean[0]) - n * Fraction(1 / n) * Fraction(1 / 3)) <= Fraction(1, 3 * 2**46)
