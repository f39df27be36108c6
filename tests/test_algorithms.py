"""What holds for every algorithm in the registry, and the invariants of each."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedmls
from fedmls.algorithms import from_dict, to_dict
from fedmls.simulate import ServerRandom, Simulation, weighted_mean
from tests.problems import lad, svm

SMALL_STEPS = {
    "fedmls": {"lam0": 0.5},
    "fedavg": {"eta0": 0.01},
    "scaffold": {"eta0": 0.01},
    "scaffnew": {"eta0": 0.01},
    "gradskip": {"eta0": 0.01, "q": 0.95},
}


@pytest.fixture(params=fedmls.ALGORITHMS)
def algorithm(request):
    return fedmls.make(request.param, **SMALL_STEPS[request.param])


def client_problem(problem, i):
    """What client i has on its own machine: a problem of its rows alone."""
    part = slice(problem.offsets[i], problem.offsets[i + 1])
    X = problem.matrix()[part].toarray()[:, : problem.penalised]
    own = fedmls.Problem(X, np.zeros(len(X)), loss="absolute", l2=problem.l2, l1=problem.l1)
    own.loss, own.y, own.row_weights = problem.loss, problem.y[part], problem.row_weights[part]
    return own


def run_client_by_client(algorithm, problem, rounds, batch, seed):
    """A federation in the small: every client alone with its own rows and arrays of shape (d,)."""
    n = problem.n
    server, client = algorithm.init(np.zeros(problem.dimension), n)
    clients, random = [client] * n, ServerRandom(seed)
    locals_ = [client_problem(problem, i).local_as(i, n, problem.weights[i], seed=seed, batch=batch) for i in range(n)]
    for k in range(1, rounds + 1):
        server, down = algorithm.broadcast(k, server, random.at(k))
        ups = []
        for i in range(n):
            locals_[i].begin(k)
            clients[i], up = algorithm.client_round(k, clients[i], down, locals_[i])
            assert all(np.shape(field) == (problem.dimension,) for field in up)
            ups.append(up)
        stacked = type(ups[0])(*(np.stack(fields) for fields in zip(*ups, strict=True)))
        server = algorithm.server_round(k, server, weighted_mean(problem.weights, stacked))
    return algorithm.model(server)


def test_one_client_at_a_time_gives_the_same_bits_as_all_at_once(algorithm):
    problem = svm(n=4, m=50, weights=[0.1, 0.2, 0.3, 0.4], l2=0.1)
    run = fedmls.simulate(algorithm, problem, rounds=15, batch=0.3, seed=9)
    assert np.array_equal(run.x, run_client_by_client(algorithm, problem, 15, 0.3, 9))


def test_equal_seeds_equal_bits_other_seeds_other_bits(algorithm):
    problem = svm()
    first, again, other = (fedmls.simulate(algorithm, problem, rounds=10, batch=0.4, seed=seed).x for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_gets_closer_to_the_optimum(algorithm):
    history = fedmls.simulate(algorithm, svm(m=100), rounds=150, batch=0.5).history
    assert history["gap"].iloc[-1] < 0.2 * history["gap"].iloc[0]
    assert (history["gap"] > -1e-9).all()


def test_states_are_never_changed_in_place(algorithm):
    problem = lad()
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
    algorithm.server_round(1, server, weighted_mean(problem.weights, up))
    assert all(np.all(a == b) for a, b in zip(server_before, algorithm.init(np.zeros(5), 5)[0], strict=True))


def test_plain_values_and_back(algorithm):
    assert from_dict(to_dict(algorithm)) == algorithm


def test_hyperparameters_are_frozen(algorithm):
    with pytest.raises(dataclasses.FrozenInstanceError):
        algorithm.name_of_nothing = 1


@given(rounds=st.integers(1, 12), seed=st.integers(0, 2**32), radius=st.sampled_from([None, 0.4]))
@settings(max_examples=25, deadline=None)
def test_paired_rounds_are_bit_identical_in_half_the_exchanges(rounds, seed, radius):
    problem = svm()
    kwargs = {"rounds": rounds, "batch": 0.3, "seed": seed}
    one = fedmls.simulate(fedmls.FedMLS(lam0=2.0, radius=radius), problem, **kwargs)
    two = fedmls.simulate(fedmls.FedMLS(lam0=2.0, radius=radius, paired=True), problem, **kwargs)
    assert np.array_equal(one.x, two.x)
    assert two.history["exchanges"].iloc[-1] == -(-rounds // 2)
    same = [c for c in one.history if c not in ("exchanges", "seconds")]
    assert one.history[same].equals(two.history[same])


def test_the_local_work_of_the_last_round_never_reaches_the_model():
    problem = svm()
    K = 12
    whole = fedmls.simulate(fedmls.FedMLS(T=5), problem, rounds=K)
    # Another number of steps in round K alone: T(k) = 5 for k < K, 50 in round K.
    simulation = Simulation(fedmls.FedMLS(T=5), problem, K - 1)
    for _ in simulation.play():
        pass
    simulation.rounds, simulation.algorithm = K, fedmls.FedMLS(T=50)
    for _ in simulation.play():
        pass
    assert np.array_equal(simulation.x, whole.x)


def states(algorithm, problem, rounds, **options):
    simulation = Simulation(algorithm, problem, rounds, **options)
    for _ in simulation.play():
        yield simulation.at


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
