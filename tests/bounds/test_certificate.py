"""The certificate: never above f*, obeys the theorem's bound, stops a run, and says when it is void."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedmls
from fedmls.losses import LOSSES
from tests.support.problems import lad, svm

CERTIFYING = [fedmls.FedMLS, fedmls.FedMLSE]


@given(
    cls=st.sampled_from([*CERTIFYING, fedmls.FedMLSD]),
    seed=st.integers(0, 10**6),
    loss=st.sampled_from(sorted(LOSSES)),
    batch=st.sampled_from([0.2, 0.5, 1.0]),
    lam0=st.floats(0.05, 20),
    penalty=st.sampled_from([(0.0, 0.0), (0.3, 0.0), (0.0, 0.3), (0.2, 0.2)]),
    start=st.floats(-1, 1),
    density=st.sampled_from([None, 0.6]),
)
@settings(max_examples=120, deadline=None)
def test_never_above_the_optimum_at_any_round(cls, seed, loss, batch, lam0, penalty, start, density):
    if cls is fedmls.FedMLSD:
        penalty = (penalty[0], 0.0)  # it has no l1 term
    problem = lad(n=3, m=24, columns=3, seed=seed, l2=penalty[0], l1=penalty[1], density=density)
    if LOSSES[loss].is_classification:
        problem.y = np.where(problem.y > 1, 1.0, -1.0)
    problem.loss = LOSSES[loss]
    try:
        best = problem.optimum
    except ValueError:  # no minimum to compare with
        return
    x0 = np.full(4, start)
    radius = float(np.linalg.norm(best.x - x0)) + 1e-9  # the smallest that is allowed
    run = fedmls.simulate(
        cls(lam0=lam0), problem, rounds=25, batch=batch, seed=seed, x0=x0, certificate=max(radius, 1e-6)
    )
    assert (run.history["lower_bound"] <= best.value + 1e-7 * max(1.0, abs(best.value))).all()
    assert run.history["lower_bound"].is_monotonic_increasing
    assert (run.history["certified_gap"] >= run.history["gap"] - 1e-7).all()


def bound(cls, mu, K, T, G, D):
    P = 2 / ((T + 1) * (T + 2))
    if cls is fedmls.FedMLS:
        first, second = (
            4 * (1 + 1 / (1 - P)) * D**2 / (mu * K * (K + 1)),
            (2 * G) ** 2 * mu * (2 * K + 1) / (3 * (T + 3)),
        )
    else:
        first, second = 2 * D**2 / ((1 - P) * mu * K * (K + 1)), 2 * mu * (2 * G) ** 2 * (2 * K + 1) / (3 * (T + 3))
    return first + second + G**2 * mu / 2


@pytest.mark.parametrize("cls", CERTIFYING)
@pytest.mark.parametrize("problem", [lad(reduction="mean"), svm(reduction="mean")], ids=["lad", "svm"])
@pytest.mark.parametrize(("lam", "T"), [(1.0, 50), (0.2, 20), (5.0, 200)])
def test_the_certified_gap_obeys_the_theorems_bound(cls, problem, lam, T):
    radius = 2 * float(np.linalg.norm(problem.optimum.x))
    G = float(np.sqrt(problem.weights @ problem.lipschitz() ** 2))
    for K in (5, 20, 80):
        run = fedmls.simulate(cls(lam=lam, T=T), problem, rounds=K, certificate=radius)
        last = run.history.iloc[-1]
        assert last["gap"] <= last["certified_gap"] + 1e-9
        assert last["certified_gap"] <= bound(cls, lam / problem.n, K, T, G, radius)


@pytest.mark.parametrize("batch", [1.0, 0.2])
@pytest.mark.parametrize("cls", CERTIFYING)
def test_it_shrinks_and_changes_nothing_else(cls, batch):
    problem = svm(m=200, reduction="mean")
    radius = 1.5 * float(np.linalg.norm(problem.optimum.x))
    with_it = fedmls.simulate(cls(lam0=10.0), problem, rounds=150, batch=batch, certificate=radius)
    without = fedmls.simulate(cls(lam0=10.0), problem, rounds=150, batch=batch)
    assert np.array_equal(with_it.x, without.x)
    gaps = with_it.history["certified_gap"]
    assert gaps.iloc[-1] < 0.1 * gaps.iloc[9]


@pytest.mark.parametrize("cls", CERTIFYING)
def test_weights_and_steps_of_each_clients_own(cls):
    problem = svm(m=100, weights=[0.1, 0.3, 0.15, 0.25, 0.2], reduction="mean")
    radius = float(np.linalg.norm(problem.optimum.x))
    run = fedmls.simulate(cls(lam=0.5, T=[20, 5, 40, 10, 1]), problem, rounds=200, batch=0.5, certificate=radius)
    last = run.history.iloc[-1]
    assert last["local_steps"] == 200 * 40
    assert last["subgradients"] == 200 * 76
    assert (run.history["lower_bound"] <= problem.optimum.value + 1e-9).all()
    assert last["certified_gap"] < 0.5 * run.history["certified_gap"].iloc[9]


def test_an_l2_term_makes_a_radius_unnecessary():
    problem = svm(intercept=False, l2=0.5)
    run = fedmls.simulate(fedmls.FedMLSE(lam0=0.5), problem, rounds=200, certificate=True)
    last = run.history.iloc[-1]
    assert last["gap"] <= last["certified_gap"] < 0.2 * problem.optimum.value
    ball = fedmls.simulate(fedmls.FedMLSE(lam0=0.5), problem, rounds=200, certificate=1e9).history.iloc[-1]
    assert ball["lower_bound"] == pytest.approx(last["lower_bound"])


def test_until_stops_when_the_gap_is_proved_and_counts_what_was_asked():
    problem = svm(reduction="mean")
    radius = float(np.linalg.norm(problem.optimum.x))
    algorithm = fedmls.FedMLS(lam0=30.0)
    run = fedmls.simulate(algorithm, problem, rounds=5000, certificate=radius, until=0.2, every=5)
    assert len(run.history) < 1000
    assert (run.history["certified_gap"].iloc[:-1] > 0.2).all()
    last = run.history.iloc[-1]
    assert last["certified_gap"] <= 0.2
    assert last["gap"] <= 0.2
    asked, k, n, d = len(run.history), last["round"], problem.n, problem.dimension
    assert last["exchanges"] == k + 1  # all but the last answer come with the next round
    assert last["vectors_up"] == last["vectors_down"] == n * (k + asked)
    assert last["bytes_up"] == n * (8 * d * (k + asked) + 16 * asked)
    # Without until= each row counts one certificate: that of a run which ends there.
    once = fedmls.simulate(algorithm, problem, rounds=int(k), certificate=radius, every=5).history.iloc[-1]
    assert once["exchanges"] == k + 1
    assert once["lower_bound"] == last["lower_bound"]


def test_a_resumed_run_proves_the_same(tmp_path):
    problem = svm()
    kwargs = {"batch": 0.3, "certificate": 5.0, "checkpoint": tmp_path / "c"}
    whole = fedmls.simulate(fedmls.FedMLS(paired=True), problem, rounds=30, batch=0.3, certificate=5.0)
    fedmls.simulate(fedmls.FedMLS(paired=True), problem, rounds=11, **kwargs)
    resumed = fedmls.simulate(fedmls.FedMLS(paired=True), problem, rounds=30, **kwargs)
    assert resumed.history["lower_bound"].equals(whole.history["lower_bound"])


def test_a_radius_that_the_run_refutes_is_void():
    problem = svm(m=200)
    with pytest.warns(UserWarning, match="the certificate is void: in round .* give a larger radius"):
        run = fedmls.simulate(fedmls.FedMLS(lam0=0.5), problem, rounds=300, certificate=0.01)
    assert run.history["lower_bound"].iloc[-1] == -np.inf
    assert run.history["certified_gap"].iloc[-1] == np.inf


FUNCTIONS = fedmls.OracleProblem([(lambda x: 0.0, lambda x, rng: x)], dimension=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": fedmls.FedAvg()}, "fedavg makes no certificate; fedmlsb, fedmls, fedmlse and fedmlsd do"),
        ({"problem": FUNCTIONS, "optimum": None}, "a problem made of functions has no rows to prove anything by"),
        ({"certificate": True}, "certificate=True proves nothing here (there is no l2 term); give a radius"),
        ({"certificate": True, "problem": svm(l2=1.0)}, "certificate=True proves nothing here (the intercept is not"),
        ({"certificate": -1}, "certificate is -1; it must be a positive number"),
        ({"until": 0.0}, "until is 0.0; it must be a positive number"),
        ({"until": 0.1, "certificate": None}, "until is 0.1, but there is no certificate to prove it by"),
    ],
)
def test_bad_input(changes, message):
    kwargs = {"algorithm": fedmls.FedMLS(), "problem": svm(), "rounds": 3, "certificate": 1.0, **changes}
    with pytest.raises(ValueError) as error:
        fedmls.simulate(**kwargs)
    assert str(error.value).startswith(message)


def test_fedmlsd_proves_what_it_found():
    """Its slopes are dual weights, not averages of them: the certified gap falls as fast as the gap."""
    problem = svm(m=200, l2=0.01)
    radius = 1.2 * float(np.linalg.norm(problem.optimum.x))
    history = fedmls.simulate(fedmls.FedMLSD(), problem, rounds=200, batch=0.2, certificate=radius).history
    assert history["certified_gap"].iloc[-1] < 1e-3 * problem.optimum.value
    assert (history["lower_bound"] <= problem.optimum.value + 1e-9).all()
