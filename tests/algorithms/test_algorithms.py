"""What holds for every algorithm in the registry, and the invariants of each."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedmls
from fedmls import rounds
from fedmls.algorithms import from_dict, to_dict
from fedmls.rounds import ServerRandom, drawn
from fedmls.simulation.config import RunConfig
from fedmls.simulation.run import Simulation
from tests.support.algorithms import NEEDS, SMALL_STEPS, run_client_by_client, seen, states
from tests.support.problems import lad, svm

EXACT = ("bundle",)  # they read all rows whatever the batch, in order, and toss no coins


@pytest.fixture(params=fedmls.ALGORITHMS)
def algorithm(request):
    return fedmls.make(request.param, **SMALL_STEPS[request.param])


def test_one_client_at_a_time_gives_the_same_bits_as_all_at_once(algorithm):
    weights = None if algorithm.participants else [0.1, 0.2, 0.3, 0.4]
    problem = svm(n=4, m=50, weights=weights, l2=0.1)
    run = fedmls.simulate(algorithm, problem, rounds=15, batch=0.3, seed=9)
    assert np.array_equal(run.x, run_client_by_client(algorithm, problem, 15, 0.3, 9))


def test_blocks_of_clients_give_the_same_bits_as_one_client_at_a_time(algorithm, monkeypatch):
    problem = lad(n=8, l2=0.1)
    monkeypatch.setattr(rounds, "BLOCK", 3 * problem.dimension)
    run = fedmls.simulate(algorithm, problem, rounds=8, batch=0.3, seed=9)
    assert np.array_equal(run.x, run_client_by_client(algorithm, problem, 8, 0.3, 9))


@pytest.mark.parametrize("density", [None, 0.5], ids=["dense", "CSR"])
def test_blocks_of_clients_count_what_all_at_once_do(algorithm, density, monkeypatch):
    """In the first round: from there on the runs are the same but for the rounding of the mean, by which the passes of
    an exact proximal step differ."""
    problem = lad(n=8, l2=0.1, density=density)
    at_once = fedmls.simulate(algorithm, problem, rounds=3, batch=0.3, seed=9).history
    monkeypatch.setattr(rounds, "BLOCK", 3 * problem.dimension)
    in_blocks = fedmls.simulate(algorithm, problem, rounds=3, batch=0.3, seed=9).history
    np.testing.assert_allclose(in_blocks["objective"], at_once["objective"], rtol=1e-6)
    for name in at_once.columns.drop(["seconds", "objective", "gap", "relative_gap"]):
        assert in_blocks[name][0] == at_once[name][0]


def test_equal_seeds_equal_bits_other_seeds_other_bits(algorithm):
    problem = svm(**NEEDS.get(algorithm.name, {}))
    first, again, other = (fedmls.simulate(algorithm, problem, rounds=10, batch=0.4, seed=seed).x for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert np.array_equal(first, other) == (algorithm.name in EXACT)


def test_gets_closer_to_the_optimum(algorithm):
    problem = svm(m=100, **NEEDS.get(algorithm.name, {}))
    history = fedmls.simulate(algorithm, problem, rounds=150, batch=0.5).history
    assert history["gap"].iloc[-1] < 0.2 * history["gap"].iloc[0]
    assert (history["gap"] > -1e-9).all()


def test_states_are_never_changed_in_place(algorithm):
    problem = lad(**NEEDS.get(algorithm.name, {}))
    server, client = algorithm.init(np.zeros(problem.dimension), problem.n)
    for field in (*server, *client):
        if isinstance(field, np.ndarray):
            field.setflags(write=False)
    server_before, random, local = server, ServerRandom(0), problem.local()
    stacked = type(client)(*(np.tile(field, (problem.n, 1)) for field in client))
    for field in stacked:
        field.setflags(write=False)
    server, down = algorithm.broadcast(1, server, random.at(1))
    local.begin(1)
    _, up = algorithm.client_round(1, stacked, down, local)
    algorithm.server_round(1, server, seen(algorithm, problem.weights, up, problem.dimension))
    assert all(np.all(a == b) for a, b in zip(server_before, algorithm.init(np.zeros(5), 5)[0], strict=True))


def test_plain_values_and_back(algorithm):
    assert from_dict(to_dict(algorithm)) == algorithm


def test_hyperparameters_are_frozen(algorithm):
    with pytest.raises(dataclasses.FrozenInstanceError):
        algorithm.name_of_nothing = 1


@given(
    rounds=st.integers(1, 12),
    seed=st.integers(0, 2**32),
    radius=st.sampled_from([None, 0.4]),
    lam0=st.sampled_from([2.0, "auto"]),
)
@settings(max_examples=40, deadline=None)
def test_paired_rounds_are_bit_identical_in_half_the_exchanges(rounds, seed, radius, lam0):
    problem = svm()
    kwargs = {"rounds": rounds, "batch": 0.3, "seed": seed}
    one = fedmls.simulate(fedmls.FedMLS(lam0=lam0, radius=radius), problem, **kwargs)
    two = fedmls.simulate(fedmls.FedMLS(lam0=lam0, radius=radius, paired=True), problem, **kwargs)
    assert np.array_equal(one.x, two.x)
    assert two.history["exchanges"].iloc[-1] == -(-rounds // 2)
    same = [c for c in one.history if c not in ("exchanges", "seconds")]
    assert one.history[same].equals(two.history[same])


def test_the_local_work_of_the_last_round_never_reaches_the_model():
    problem = svm()
    K = 12
    whole = fedmls.simulate(fedmls.FedMLS(T=5), problem, rounds=K)
    # Another number of steps in round K alone: T(k) = 5 for k < K, 50 in round K.
    simulation = Simulation(fedmls.FedMLS(T=5), problem, RunConfig(K - 1))
    for _ in simulation.play():
        pass
    simulation.rounds, simulation.algorithm = K, fedmls.FedMLS(T=50)
    for _ in simulation.play():
        pass
    assert np.array_equal(simulation.x, whole.x)


def test_subgradient_is_fedavg_with_one_local_step():
    problem = svm()
    one, other = (
        fedmls.simulate(algorithm, problem, rounds=40, batch=0.3, seed=3).x
        for algorithm in (fedmls.Subgradient(eta0=0.05), fedmls.FedAvg(eta0=0.05, T=1))
    )
    assert np.array_equal(one, other)


def test_subgradient_keeps_its_bound():
    problem = lad(reduction="mean")
    G, D = problem.lipschitz(), np.linalg.norm(problem.optimum.x)
    gap = fedmls.simulate(fedmls.Subgradient(eta0=1.0, output="average"), problem, rounds=300).history["gap"]
    eta = 1 / np.sqrt(np.arange(1, 301))
    bound = (D**2 + (problem.weights @ G) ** 2 * np.cumsum(eta**2)) / (2 * np.cumsum(eta))
    assert (gap <= bound).all()
    assert gap.iloc[-1] < 0.05


def test_fedprox_without_a_pull_is_fedavg_and_with_one_it_drifts_less():
    problem = svm(m=100)
    fedavg, weak, strong = (
        fedmls.simulate(algorithm, problem, rounds=80).history["gap"].iloc[-1]
        for algorithm in (
            fedmls.FedAvg(eta=0.01, T=300),
            fedmls.FedProx(eta=0.01, T=300, rho=1e9),
            fedmls.FedProx(eta=0.01, T=300, rho=0.05),
        )
    )
    assert weak == pytest.approx(fedavg, rel=1e-6)
    assert 0.01 < strong < 0.5 * fedavg


@pytest.mark.parametrize("problem", [svm(reduction="mean"), lad(reduction="mean")], ids=["svm", "lad"])
def test_dcs_keeps_its_bound_and_takes_no_more_than_one_over_eps_rounds(problem):
    G, D = np.sqrt(problem.weights @ problem.lipschitz() ** 2), np.linalg.norm(problem.optimum.x)
    eta, K = G / D, 160
    T = 16 * K
    gap = fedmls.simulate(fedmls.DCS(eta=eta, T=T), problem, rounds=K).history["gap"]
    k, c = np.arange(1, K + 1), (T + 1) * (T + 2) / (T * (T + 3))
    assert (gap <= (c * eta * D**2 / 2 + G**2 / (2 * eta)) / k + 16 * G**2 / (eta * (T + 3))).all()
    assert gap.iloc[-1] < 0.6 * gap.iloc[K // 2 - 1] < 0.36 * gap.iloc[K // 4 - 1]


def test_dcs_dual_variables_sum_to_zero():
    problem = svm(weights=np.array([0.1, 0.3, 0.15, 0.25, 0.2]))
    for at in states(fedmls.DCS(eta=10.0), problem, 40, batch=0.5):
        assert np.abs(problem.weights @ at.clients.y).max() < 1e-10 * max(1.0, np.abs(at.clients.y).max())
    assert np.abs(at.clients.y).max() > 0.1


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_c_is_the_mean_of_the_clients(option):
    problem = svm(weights=np.array([0.1, 0.3, 0.15, 0.25, 0.2]))
    for at in states(fedmls.Scaffold(option=option), problem, 30, batch=0.5):
        np.testing.assert_allclose(at.server.c, problem.weights @ at.clients.c, atol=1e-10)
    assert np.abs(at.server.c).max() > 1e-3


def test_scaffnew_h_sums_to_zero():
    problem = svm(weights=np.array([0.1, 0.3, 0.15, 0.25, 0.2]))
    for at in states(fedmls.Scaffnew(eta0=0.02), problem, 60, batch=0.5):
        scale = max(1.0, np.abs(at.clients.h).max())
        assert np.abs(problem.weights @ at.clients.h).max() < 1e-10 * scale
    assert np.abs(at.clients.h).max() > 1e-2


def test_scaffnew_as_released_never_learns_h():
    for at in states(fedmls.Scaffnew(as_released=True), svm(), 30):
        assert not at.clients.h.any()


def test_gradskip_h_sums_to_zero_though_clients_rest():
    problem, algorithm = svm(weights=np.array([0.1, 0.3, 0.15, 0.25, 0.2])), fedmls.GradSkip(eta0=0.02, q=0.7)
    for k, at in enumerate(states(algorithm, problem, 60), start=1):
        ratio = 1 / algorithm._eta_over_p(at.server.t)
        h = at.clients.h_hat + ratio * (at.server.x - at.clients.x_hat)
        assert np.abs(problem.weights @ h).max() < 1e-9 * max(1.0, np.abs(h).max()), k
    assert at.steps.max() < at.server.t  # somebody rested


def test_gradskip_that_never_rests_is_scaffnew():
    problem = svm()
    ours = fedmls.simulate(fedmls.GradSkip(eta0=0.01, q=1.0), problem, rounds=120, batch=0.5, seed=2)
    theirs = fedmls.simulate(fedmls.Scaffnew(eta0=0.01), problem, rounds=120, batch=0.5, seed=2)
    np.testing.assert_allclose(ours.x, theirs.x, rtol=1e-9)


def test_gradskip_spares_subgradients():
    problem = svm()
    rested = fedmls.simulate(fedmls.GradSkip(eta0=0.01, q=0.5), problem, rounds=100).history.iloc[-1]
    never = fedmls.simulate(fedmls.GradSkip(eta0=0.01, q=1.0), problem, rounds=100).history.iloc[-1]
    assert rested["subgradients"] < 0.5 * never["subgradients"]


def test_scaffnew_meets_with_the_probability_it_says():
    """With p_t = 1/√t there are about 2√t meetings in t steps."""
    history = fedmls.simulate(fedmls.Scaffnew(eta0=1e-3), svm(), rounds=1000, batch=0.1).history
    assert 0.9 < 1000 / (2 * np.sqrt(history["local_steps"].iloc[-1])) < 1.1


@given(radius=st.floats(0.05, 2.0), lam0=st.floats(0.1, 50.0))
@settings(max_examples=20, deadline=None)
def test_a_radius_holds_for_clients_and_server(radius, lam0):
    for at in states(fedmls.FedMLS(lam0=lam0, radius=radius), svm(), 10, batch=0.5):
        assert np.linalg.norm(at.clients.z, axis=1).max() <= radius * (1 + 1e-12)
        assert np.linalg.norm(at.server.x) <= radius * (1 + 1e-12)


def test_the_last_iterate_is_an_answer_too():
    problem = svm(m=200)
    average, last = (
        fedmls.simulate(fedmls.FedMLS(output=output), problem, rounds=60, batch=0.2) for output in ("average", "last")
    )
    assert last.history["gap"].iloc[-1] < average.history["gap"].iloc[-1]


@pytest.mark.parametrize(
    ("problem", "lam", "eps"), [(svm(), 0.05, 0.1), (lad(), 0.05, 0.1), (svm(n=8, m=160), 0.05, 0.2)]
)
def test_fedmlse_takes_half_the_rounds_of_fedmls_at_equal_mu_and_T(problem, lam, eps):
    def rounds(cls):
        gap = fedmls.simulate(cls(lam=lam, T=300), problem, rounds=400).history["gap"]
        assert gap.iloc[-1] < eps
        return int((gap > eps).to_numpy().nonzero()[0][-1]) + 2

    assert 0.4 < rounds(fedmls.FedMLSE) / rounds(fedmls.FedMLS) < 0.6


@pytest.mark.parametrize("cls", [fedmls.FedMLS, fedmls.FedMLSE])
def test_the_best_output_is_the_better_of_the_two_and_costs_an_exchange(cls):
    problem = svm(m=100)
    average, last, best = (
        fedmls.simulate(cls(output=output), problem, rounds=40, batch=0.3).history
        for output in ("average", "last", "best")
    )
    assert best["objective"].equals(np.minimum(average["objective"], last["objective"]))
    assert (best["exchanges"] == average["exchanges"] + 1).all()
    assert (best["vectors_down"] == average["vectors_down"] + 2 * problem.n).all()
    assert (best["bytes_up"] == average["bytes_up"] + 2 * 8 * problem.n).all()


@pytest.mark.parametrize("algorithm", [fedmls.FedAvg(participants=2), fedmls.Scaffold(participants=2)])
def test_some_of_the_clients_alone_give_the_same_bits(algorithm):
    problem = svm(n=4, m=50)
    run = fedmls.simulate(algorithm, problem, rounds=15, batch=0.3, seed=9)
    assert np.array_equal(run.x, run_client_by_client(algorithm, problem, 15, 0.3, 9))


@pytest.mark.parametrize("cls", [fedmls.FedAvg, fedmls.Scaffold])
def test_all_clients_drawn_are_all_clients(cls):
    problem = svm()
    some, every = (
        fedmls.simulate(cls(participants=p), problem, rounds=20, batch=0.3).history["objective"] for p in (5, None)
    )
    np.testing.assert_allclose(some, every, rtol=1e-12)


def test_scaffold_c_is_the_mean_of_all_clients_though_some_are_idle():
    problem = svm()
    for at in states(fedmls.Scaffold(participants=2), problem, 30, batch=0.5):
        np.testing.assert_allclose(at.server.c, problem.weights @ at.clients.c, atol=1e-10)


def test_idle_clients_send_and_compute_nothing():
    problem = svm(n=20, m=200)
    for algorithm in (fedmls.FedMLSP(participants=3), fedmls.FedAvg(participants=3)):
        history = fedmls.simulate(algorithm, problem, rounds=10).history.iloc[-1]
        assert history["vectors_down"] == 10 * 3
        assert history["subgradients"] == 3 * 55


def test_every_client_is_drawn_equally_often():
    algorithm, random = fedmls.FedAvg(participants=3), ServerRandom(0)
    found = np.array([drawn(algorithm, 10, random, k) for k in range(1, 4001)])
    assert (np.diff(found, axis=1) > 0).all()
    counts = np.bincount(found.ravel(), minlength=10) / 4000
    assert abs(counts - 0.3).max() < 5 * np.sqrt(0.3 * 0.7 / 4000)


def test_fedmlsp_needs_equally_many_visits_of_each_client_however_few_take_part():
    problem = lad(n=20, m=200, reduction="mean")

    def visits(some):
        gap = fedmls.simulate(
            fedmls.FedMLSP(participants=some, lam=2.0, T=60), problem, rounds=100 * 20 // some
        ).history["gap"]
        assert gap.iloc[-1] < 0.05
        return (int((gap > 0.05).to_numpy().nonzero()[0][-1]) + 2) * some / 20

    everybody = visits(20)
    assert all(0.8 * everybody < visits(some) < 1.25 * everybody for some in (10, 5, 2))


def test_fedmlsp_keeps_the_means_of_all_clients():
    """x̄ and z̄ on the server are those of the clients, when the rounds that they slept through are made good."""
    problem = svm(n=6, m=90)
    for at in states(fedmls.FedMLSP(participants=2, lam0=0.5), problem, 25, batch=0.5):
        x, z, theta = at.clients
        x = z + (at.server.before / theta) ** 2 * (x - z)
        np.testing.assert_allclose(at.server.z, z.mean(axis=0), atol=1e-10)
        np.testing.assert_allclose(at.server.x, x.mean(axis=0), atol=1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fedmls.simulate(fedmls.FedAvg(participants=6), svm(), rounds=1), "participants is 6, but there are 5"),
        (lambda: fedmls.simulate(fedmls.Scaffold(participants=0), svm(), rounds=1), "participants is 0; it must be"),
        (lambda: fedmls.FedMLSP(participants=0), "participants is 0; it must be a whole number of at least 1"),
        (
            lambda: fedmls.simulate(fedmls.FedMLSP(participants=2), svm(weights=[0.1, 0.3, 0.15, 0.25, 0.2]), rounds=1),
            "rounds with some of the clients need equal client weights",
        ),
    ],
)
def test_bad_participants(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value).startswith(message)
