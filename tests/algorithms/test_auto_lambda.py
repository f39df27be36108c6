"""lam0="auto": free of units, sends a few numbers, and ends near the best of a grid."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedmls
from fedmls.algorithms._auto_lambda import due
from tests.support.problems import lad, svm

AUTO = [fedmls.FedMLS(lam0="auto"), fedmls.FedMLSE(lam0="auto"), fedmls.FedMLSD()]


def names(algorithm):
    return algorithm.name


@pytest.mark.parametrize("algorithm", AUTO, ids=names)
@given(units=st.floats(1e-3, 1e3), worth=st.floats(1e-3, 1e3), seed=st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_other_units_give_the_same_run(algorithm, units, worth, seed):
    """Columns in other units, the intercept's too, and a loss counted in another currency change nothing."""
    base = lad(seed=seed)
    X, clients = base.matrix().toarray(), np.repeat(np.arange(base.n), base.rows_per_client)
    scaled = fedmls.Problem(
        X * units, base.y, clients=clients, loss="absolute", intercept=False, sample_weight=np.full(len(X), worth)
    )
    plain = fedmls.Problem(X, base.y, clients=clients, loss="absolute", intercept=False)
    one, other = (
        fedmls.simulate(algorithm, problem, rounds=30, batch=0.5, seed=seed).history["objective"]
        for problem in (plain, scaled)
    )
    np.testing.assert_allclose(one * worth, other, rtol=1e-6)


@pytest.mark.parametrize("algorithm", AUTO[:2], ids=names)
def test_two_numbers_travel_beside_the_vector(algorithm):
    problem = svm()
    one, two = fedmls.simulate(algorithm, problem, rounds=2).history["bytes_up"]
    assert two - one == problem.n * (8 * problem.dimension + 16)


@pytest.mark.parametrize("algorithm", AUTO, ids=names)
@pytest.mark.parametrize(
    "problem", [svm(n=8, m=400), lad(n=8, m=400), lad(reduction="mean")], ids=["svm", "lad", "mean"]
)
def test_it_is_not_far_from_the_best_of_a_grid(algorithm, problem):
    """To a relative gap of 1e-2, without knowing anything, against the best of thirteen λ_0 over six decades.

    At most four times the rounds, and the four before λ_0 is first set; most of the thirteen never get there.
    """

    def rounds(lam0):
        tuned = fedmls.make(algorithm.name, lam0=lam0, output="last")
        history = fedmls.simulate(tuned, problem, rounds=200, batch=0.25, target=1e-2).history
        return history["round"].iloc[-1] if history["relative_gap"].iloc[-1] <= 1e-2 else np.inf

    tried = [rounds(lam0) for lam0 in np.geomspace(1e-3, 1e3, 13) * problem.n / problem.row_weights.sum()]
    assert sum(np.isinf(tried)) >= 5
    assert rounds("auto") <= 4 * min(tried) + 4


def test_a_start_that_is_the_optimum_stays():
    X, y = np.random.default_rng(0).standard_normal((20, 3)), np.zeros(20)
    problem = fedmls.Problem(X, y, clients=np.arange(20) % 4, loss="absolute", intercept=False)
    for algorithm in AUTO:
        run = fedmls.simulate(algorithm, problem, rounds=8)
        assert run.history["objective"].iloc[-1] == 0
        assert not run.diverged


def test_clients_with_nothing_to_gain_do_no_harm():
    """Client 0 is at its minimum when the run begins."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((60, 3))
    y = np.where(np.arange(60) < 20, 0.0, X @ np.array([1.0, -2.0, 0.5]) + 0.1 * rng.standard_normal(60))
    problem = fedmls.Problem(X, y, clients=np.arange(60) // 20, loss="absolute", intercept=False)
    for algorithm in AUTO:
        gaps = fedmls.simulate(algorithm, problem, rounds=150, batch=0.5).history["relative_gap"]
        assert gaps.iloc[-1] < 0.05


def test_when_the_step_is_set():
    rounds = [k for k in range(1, 200) if due(k)]
    assert rounds == [4, 6, 10, 16, 24, 36, 54, 82, 124, 186]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fedmls.FedMLS(lam0="automatic"), "lam0 is 'automatic'; it must be a positive number, or 'auto'"),
        (lambda: fedmls.FedMLSE(lam0="auto", lam=0.1), "lam0 is 'auto', but lam is 0.1; leave one of them out"),
        (lambda: fedmls.FedMLSD(lam0=-1.0), "lam0 is -1.0"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert message in str(error.value)
