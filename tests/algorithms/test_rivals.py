"""TAMUNA, LoCoDL, FedComLoc, CoCoA+, FedDyn and FedSplit: exact limits, invariants, special cases, bytes."""

import itertools

import numpy as np
import pytest

import fedmls
from fedmls.federation import Job
from fedmls.rounds import ServerRandom, drawn
from fedmls.schedules import schedule
from fedmls.simulation.config import RunConfig
from fedmls.simulation.run import Simulation
from tests.support import transliterations as plain
from tests.support.algorithms import run_client_by_client, states
from tests.support.problems import lad, svm

WEIGHTS = np.array([0.1, 0.3, 0.15, 0.25, 0.2])


def quadratics(n=6, d=8, condition=12.0, weights=None):
    """f_i(x) = ½ x·H_i x - b_i·x with eigenvalues from 1 to the condition number: the problem and its minimiser."""
    rng = np.random.default_rng(0)
    clients, H, b = [], np.zeros((d, d)), np.zeros(d)
    for i in range(n):
        Q = np.linalg.qr(rng.normal(size=(d, d)))[0]
        Hi, bi = Q @ np.diag(np.geomspace(1, condition, d)) @ Q.T, rng.normal(size=d)
        clients.append(
            (lambda x, H=Hi, b=bi: 0.5 * x @ H @ x - b @ x, lambda x, rng, H=Hi, b=bi: 0.5 * (H + H.T) @ x - b)
        )
        w = 1 / n if weights is None else weights[i]
        H, b = H + w * Hi, b + w * bi
    return fedmls.OracleProblem(clients, d, weights), np.linalg.solve(H, b)


RATES = {"eta": 1 / 12, "p": 0.3}
EXACT = [
    (fedmls.Tamuna(s=6, **RATES), 400),
    (fedmls.Tamuna(s=2, **RATES), 800),
    (fedmls.Tamuna(s=3, participants=4, **RATES), 1500),
    (fedmls.LoCoDL(level=0.25, c=0.5, **RATES), 3000),
    (fedmls.LoCoDL(method="quantise", level=4, c=0.5, **RATES), 1500),
    (fedmls.FedComLoc(level=1.0, **RATES), 400),
    (fedmls.FedDyn(alpha=4.0, T=150), 300),
    (fedmls.FedDyn(alpha=4.0, T=150, participants=3), 900),
    (fedmls.FedSplit(s=0.3, T=150), 300),
]


@pytest.mark.parametrize(("algorithm", "rounds"), EXACT, ids=lambda value: getattr(value, "name", None))
def test_the_limit_is_exact_on_quadratics(algorithm, rounds):
    problem, solution = quadratics()
    x = fedmls.simulate(algorithm, problem, rounds=rounds, every=rounds, optimum=None).x
    assert np.abs(x - solution).max() < 1e-11
    assert np.abs(solution).max() > 0.05


@pytest.mark.parametrize(
    ("algorithm", "rounds"),
    [one for one in EXACT if getattr(one[0], "participants", None) is None],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_limit_is_exact_with_unequal_weights(algorithm, rounds):
    problem, solution = quadratics(weights=np.array([0.1, 0.15, 0.2, 0.25, 0.12, 0.18]))
    if isinstance(algorithm, fedmls.Tamuna):  # of n w_i f_i the largest has n w_i = 1.5 times the curvature
        algorithm = fedmls.Tamuna(s=algorithm.s, eta=1 / 18, p=0.3)
    x = fedmls.simulate(algorithm, problem, rounds=2 * rounds, every=2 * rounds, optimum=None).x
    assert np.abs(x - solution).max() < 1e-11


SMOOTH = {
    "huber": lad(loss="huber", l2=0.5, reduction="mean", weights=WEIGHTS),
    "squared hinge": fedmls.Problem(
        lad().matrix().toarray()[:, :4], lad().y > 2, np.arange(60) % 5, "squared_hinge", l2=0.5, reduction="mean"
    ),
    "logistic": fedmls.Problem(
        lad().matrix().toarray()[:, :4], lad().y > 2, np.arange(60) % 5, "logistic", l2=0.5, reduction="mean"
    ),
}
STEADY = {"eta": 0.05, "p": 0.3}


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize(
    ("algorithm", "rounds"),
    [
        (fedmls.Tamuna(s=3, **STEADY), 1500),
        (fedmls.LoCoDL(level=0.6, c=0.2, **STEADY), 3000),
        (fedmls.FedDyn(alpha=2.0, T=300), 300),
        (fedmls.FedSplit(s=0.5, exact=True), 300),
        (fedmls.CoCoA(passes=3), 2000),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_limit_is_exact_on_smooth_losses(name, algorithm, rounds):
    problem = SMOOTH[name]
    run = fedmls.simulate(algorithm, problem, rounds=rounds, every=rounds)
    assert np.abs(problem.subgradient(run.x)).max() < 1e-10
    assert abs(run.history["relative_gap"].iloc[-1]) < 1e-8


def test_fedcomloc_with_top_k_comes_near_and_no_nearer():
    """As its paper says. More entries, a smaller error."""
    problem, solution = quadratics()
    start = np.linalg.norm(solution)
    for where in ("upload", "download", "gradient"):
        errors = []
        for level in (0.5, 0.875, 1.0):
            algorithm = fedmls.FedComLoc(level=level, where=where, **RATES)
            x = fedmls.simulate(algorithm, problem, rounds=400, every=400, optimum=None).x
            errors.append(np.linalg.norm(x - solution) / start)
        assert 0.9 > errors[0] > errors[1] > 1e-3
        assert errors[2] < 1e-12


# Invariants


@pytest.mark.parametrize("options", [{}, {"s": 5}, {"participants": 3}])
def test_tamuna_h_sums_to_zero(options):
    algorithm = fedmls.Tamuna(eta0=0.02, **options)
    problem = svm() if "participants" in options else svm(weights=WEIGHTS)
    for at in states(algorithm, problem, 60, batch=0.5):
        rate = algorithm._eta(at.server.t, 5) / schedule(None, 0.02, -0.5)(at.server.t)
        h = at.clients.h + rate * at.clients.q * (at.server.x - at.clients.x_hat)
        assert np.abs(h.sum(axis=0)).max() < 1e-9 * max(1.0, np.abs(h).max())
    assert np.abs(h).max() > 0.1


@pytest.mark.parametrize(("s", "tau", "d"), [(2, 5, 5), (3, 5, 7), (5, 5, 4), (2, 3, 5), (4, 4, 6), (2, 5, 2)])
def test_tamuna_every_coordinate_comes_from_s_clients_and_they_share_the_work(s, tau, d):
    problem = svm(columns=d - 1)
    algorithm = fedmls.Tamuna(s=s, participants=None if tau == 5 else tau)
    masks = []
    for k, at in enumerate(states(algorithm, problem, 30), start=1):
        assert (at.clients.q.sum(axis=0) == s).all()
        sends = at.clients.q.sum(axis=1)[drawn(fedmls.FedAvg(participants=tau), 5, ServerRandom(0), k)]
        assert set(sends) <= {s * d // tau, -(-s * d // tau)}
        masks.append(at.clients.q)
    assert s == 5 or np.ptp(masks, axis=0).max() == 1  # they are drawn anew


def test_locodl_u_and_v_sum_to_zero_and_all_know_the_same_y():
    problem, algorithm = svm(weights=WEIGHTS), fedmls.LoCoDL(eta0=0.02, level=0.4, c=0.1)
    for at in states(algorithm, problem, 60, batch=0.5):
        rho, a = algorithm._rates(at.server.t, 5, 5)
        u = at.clients.u + a * (at.server.d - at.clients.d)
        v = at.clients.v + a * at.server.d
        scale = max(1.0, np.abs(u).max())
        assert np.abs(problem.weights @ u + v[0]).max() < 1e-9 * scale
        np.testing.assert_allclose(v, np.tile(at.server.v, (5, 1)), atol=1e-9 * scale)
        np.testing.assert_allclose(at.clients.y_hat + rho * at.server.d, np.tile(at.server.y, (5, 1)), atol=1e-9)
    assert np.abs(u).max() > 0.1
    assert np.abs(v).max() > 1e-3


def test_fedcomloc_h_sums_to_zero_where_only_gradients_are_compressed():
    algorithm, problem = fedmls.FedComLoc(eta0=0.01, where="gradient"), svm(weights=WEIGHTS)
    for at in states(algorithm, problem, 40, batch=0.5):
        assert np.abs(problem.weights @ at.clients.h).max() < 1e-9 * max(1.0, np.abs(at.clients.h).max())
    assert np.abs(at.clients.h).max() > 0.1


@pytest.mark.parametrize("participants", [None, 2])
def test_feddyn_h_is_the_mean_of_the_clients_gradients(participants):
    problem = svm(weights=None if participants else WEIGHTS)
    for at in states(fedmls.FedDyn(alpha=20.0, participants=participants), problem, 40, batch=0.5):
        np.testing.assert_allclose(at.server.h, problem.weights @ at.clients.g, atol=1e-9)
    assert np.abs(at.server.h).max() > 1e-3


def test_feddyn_keeps_the_gradients_at_the_points_that_it_sends():
    problem = SMOOTH["logistic"]
    before, after = list(states(fedmls.FedDyn(alpha=2.0, T=20_000), problem, 3))[-2:]
    u = before.server.x + (before.clients.g - after.clients.g) / 2.0
    np.testing.assert_allclose(after.clients.g, problem.client_subgradients(u), atol=1e-6)
    assert np.ptp(u, axis=0).max() > 1e-3


def test_fedsplit_x_is_the_mean_of_the_clients_z():
    problem = svm(weights=WEIGHTS)
    for at in states(fedmls.FedSplit(s=0.05), problem, 40, batch=0.5):
        np.testing.assert_allclose(at.server.x, problem.weights @ at.clients.z, atol=1e-12)
    assert np.ptp(at.clients.z, axis=0).max() > 0.01


@pytest.mark.parametrize("intercept", [False, True])
def test_cocoa_x_is_made_of_slopes_in_their_box(intercept):
    problem = lad(l2=0.5, weights=WEIGHTS, intercept=intercept)
    low, high = problem.loss.box(problem.y)
    for at in states(fedmls.CoCoA(), problem, 40, batch=0.5):
        s = at.slopes[0]
        assert ((s >= low) & (s <= high)).all()
        expected = -(problem.total_row_weights * s) @ problem.matrix() / problem.l2
        np.testing.assert_allclose(at.server.x[:4], expected[:4], atol=1e-11)
        own = [s[a:b] @ problem.matrix()[a:b] for a, b in itertools.pairwise(problem.offsets)]
        np.testing.assert_allclose(at.clients.p, own, atol=1e-11)
    assert np.abs(s).max() > 0.5


def test_cocoa_balances_the_slopes_where_there_is_an_intercept():
    """The constraint that the intercept is the multiplier of: Σ ω_j s_j = 0."""
    problem = lad(l2=0.5, weights=WEIGHTS)
    *_, at = states(fedmls.CoCoA(passes=3), problem, 400)
    assert abs(problem.total_row_weights @ at.slopes[0]) < 1e-6
    assert abs(at.server.x[-1] - problem.optimum.x[-1]) < 1e-3
    assert abs(problem.optimum.x[-1]) > 0.1


# Special cases


@pytest.mark.parametrize("rates", [{"eta0": 0.01}, {"eta": 0.003, "p": 0.2}])
def test_tamuna_with_all_clients_for_all_coordinates_is_scaffnew(rates):
    problem, settings = svm(), {"rounds": 120, "batch": 0.5, "seed": 2}
    one = fedmls.simulate(fedmls.Tamuna(s=5, **rates), problem, **settings)
    drawn_all = fedmls.simulate(fedmls.Tamuna(s=5, participants=5, **rates), problem, **settings)
    other = fedmls.simulate(fedmls.Scaffnew(**rates), problem, **settings)
    np.testing.assert_allclose(one.x, other.x, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(drawn_all.x, other.x, rtol=1e-12, atol=1e-13)
    assert one.history["bytes_up"].equals(other.history["bytes_up"])


@pytest.mark.parametrize("where", ["upload", "download", "gradient"])
def test_fedcomloc_that_keeps_everything_is_scaffnew(where):
    problem, settings = svm(weights=WEIGHTS), {"rounds": 60, "seed": 2}
    one = fedmls.simulate(fedmls.FedComLoc(level=1.0, where=where), problem, **settings)
    other = fedmls.simulate(fedmls.Scaffnew(), problem, **settings)
    np.testing.assert_allclose(one.x, other.x, rtol=1e-10)


def test_locodl_that_keeps_everything_is_scaffnew_with_one_more_client():
    """g is the function of that client, who counts as much as all the others; χ = ½ halves the rate of the h_i."""
    problem, w, c = svm(weights=WEIGHTS), np.append(WEIGHTS / 2, 0.5), 0.3
    algorithm = fedmls.LoCoDL(eta=0.004, p=0.2, level=1.0, c=c)
    simulation = Simulation(algorithm, problem, RunConfig(100))
    ours, meetings = zip(*[(simulation.x, simulation.at.server.t) for _ in simulation.play()], strict=True)

    def of(i):
        return lambda x: problem.client_subgradients(x[None], np.array([i]))[0] - c * x

    g = [of(i) for i in range(5)] + [lambda x: c * x]
    theirs = plain.scaffnew(g, w, np.zeros(5), meetings, lambda t: 0.004, lambda t: 0.1)
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("relaxation", [1.0, 1.6])
def test_fedsplit_with_exact_steps_is_relaxed_admm(relaxation):
    problem = svm(weights=WEIGHTS)
    one = fedmls.simulate(fedmls.FedSplit(s=0.2, relaxation=relaxation, exact=True), problem, rounds=60)
    other = fedmls.simulate(fedmls.ADMM(rho=5.0, relaxation=relaxation), problem, rounds=60)
    np.testing.assert_allclose(one.x, other.x, rtol=1e-10, atol=1e-12)


def test_fedsplit_takes_the_limit_of_its_local_steps():
    """More steps come closer to the exact proximal step."""
    problem, ends = lad(), {}
    for T in (10, 100, 1000, 10_000):
        ends[T] = fedmls.simulate(fedmls.FedSplit(s=0.05, T=T), problem, rounds=5).x
    exact = fedmls.simulate(fedmls.FedSplit(s=0.05, exact=True), problem, rounds=5).x
    errors = [np.linalg.norm(end - exact) for end in ends.values()]
    assert errors[0] > 3 * errors[1] > 9 * errors[2]
    assert errors[-1] < 1e-2 * np.linalg.norm(exact)


def test_cocoa_with_one_client_solves_its_problem_in_one_round():
    problem = lad(n=1, l2=0.5, intercept=False)
    run = fedmls.simulate(fedmls.CoCoA(passes=20_000), problem, rounds=1)
    assert run.history["relative_gap"].iloc[0] < 1e-9


# Non-smooth problems, against the certified optimum


@pytest.mark.parametrize(
    "algorithm",
    [
        fedmls.Tamuna(eta0=0.02, s=3),
        fedmls.Tamuna(eta0=0.02, s=2, participants=4),
        fedmls.LoCoDL(eta0=0.02, level=0.6),
        fedmls.FedComLoc(eta0=0.02, method="quantise", level=16),
        fedmls.FedDyn(alpha=30.0),
        fedmls.FedSplit(s=0.03),
        fedmls.FedSplit(s=0.1, relaxation=1.6, exact=True),
        fedmls.CoCoA(passes=3),
    ],
    ids=lambda algorithm: algorithm.name,
)
@pytest.mark.parametrize("problem", [svm(l2=0.5), lad(l2=0.5)], ids=["svm", "lad"])
def test_non_smooth_problems_are_solved_to_half_a_percent(algorithm, problem):
    gap = fedmls.simulate(algorithm, problem, rounds=400).history["relative_gap"]
    assert -1e-9 < gap.iloc[-1] < 5e-3
    assert gap.iloc[0] > 0.03


def test_cocoa_proves_its_gap():
    problem = svm(l2=0.5, intercept=False, weights=WEIGHTS)
    history = fedmls.simulate(fedmls.CoCoA(passes=2), problem, rounds=600, certificate=True).history
    assert (history["certified_gap"] >= history["gap"] - 1e-9).all()
    assert history["certified_gap"].iloc[-1] < 1e-3 * history["objective"].iloc[-1]


def test_cocoa_uses_the_intercept_of_x0_alone():
    problem, start = lad(l2=0.5), np.array([5.0, -3.0, 2.0, 1.0, 2.5])
    given = fedmls.simulate(fedmls.CoCoA(), problem, rounds=20, x0=start).x
    alone = fedmls.simulate(fedmls.CoCoA(), problem, rounds=20, x0=start * [0, 0, 0, 0, 1]).x
    zero = fedmls.simulate(fedmls.CoCoA(), problem, rounds=20).x
    assert np.array_equal(given, alone)
    assert not np.allclose(given, zero, rtol=1e-3)


# Bytes


@pytest.mark.parametrize(("s", "numbers"), [(2, 10), (3, 15), (5, 25)])
def test_tamuna_sends_s_d_over_tau_numbers_a_client(s, numbers):
    last = fedmls.simulate(fedmls.Tamuna(s=s), svm(), rounds=7).history.iloc[-1]  # 5 clients, 5 coordinates
    assert last["bytes_up"] == 7 * 8 * numbers
    assert last["bytes_down"] == 7 * 5 * 8 * 5


def test_tamuna_asks_those_of_the_last_round_once_more_and_nobody_else():
    problem, algorithm, seed = svm(n=12, m=120), fedmls.Tamuna(s=2, participants=3), 5
    history = fedmls.simulate(algorithm, problem, rounds=30, seed=seed).history.iloc[-1]
    plain_draw = [drawn(fedmls.FedAvg(participants=3), 12, ServerRandom(seed), k) for k in range(1, 31)]
    asked = [len(plain_draw[0])] + [len({*a, *b}) for a, b in itertools.pairwise(plain_draw)]
    assert history["vectors_up"] == 30 * 3
    assert history["vectors_down"] == sum(asked) < 30 * 6
    assert history["bytes_up"] == 30 * 8 * 2 * 5 + 8 * sum(asked)
    assert history["bytes_down"] == 8 * 5 * sum(asked)
    assert history["subgradients"] == 3 * _steps(algorithm, problem, 30, seed)


def _steps(algorithm, problem, rounds, seed):
    simulation = Simulation(algorithm, problem, RunConfig(rounds, seed=seed))
    for _ in simulation.play():
        pass
    return simulation.at.server.t


@pytest.mark.parametrize(
    ("algorithm", "up", "down"),
    [
        (fedmls.LoCoDL(level=0.4), 2 * 8, 40),
        (fedmls.LoCoDL(level=0.5), 3 * 8, 40),
        (fedmls.LoCoDL(method="quantise", level=4), 8 + 3, 40),
        (fedmls.FedComLoc(level=0.4), 2 * 12, 40),
        (fedmls.FedComLoc(method="quantise", level=8), 8 + 5, 40),
        (fedmls.FedComLoc(level=0.4, where="download"), 40, 2 * 12),
        (fedmls.FedComLoc(level=0.4, where="gradient"), 40, 40),
        (fedmls.FedDyn(), 40, 40),
        (fedmls.FedSplit(), 40, 40),
        (fedmls.CoCoA(), 40, 40),
    ],
)
def test_bytes_of_each_client_and_round(algorithm, up, down):
    last = fedmls.simulate(algorithm, svm(l2=0.1), rounds=6).history.iloc[-1]
    assert last["bytes_up"] == 6 * 5 * up
    assert last["bytes_down"] == 6 * 5 * down
    assert last["vectors_up"] == last["vectors_down"] == 30


def test_what_is_said_to_be_left_out_is_zero():
    """Bytes are counted by formula; the uploads have no more entries than that."""
    problem = svm()
    for algorithm, most in [(fedmls.LoCoDL(level=0.4), 2), (fedmls.FedComLoc(level=0.4), 2), (fedmls.Tamuna(s=2), 2)]:
        server, client = algorithm.init(np.zeros(5), 5)
        local, random = problem.local(), ServerRandom(0)
        clients = type(client)(*(np.tile(field, (5, 1)) for field in client))
        for k in (1, 2, 3):
            server, down = algorithm.broadcast(k, server, random.at(k))
            local.begin(k)
            clients, up = algorithm.client_round(k, clients, down, local)
            sent = np.count_nonzero(up[0], axis=1)
            assert (sent <= most).all()
            assert sent.max() == most
            server = algorithm.server_round(k, server, type(up)(*(problem.weights @ field for field in up)))


# One client at a time, for the settings that the registry's tests leave out


@pytest.mark.parametrize(
    "algorithm",
    [
        fedmls.Tamuna(s=3),
        fedmls.Tamuna(s=2, participants=2),
        fedmls.LoCoDL(method="quantise", level=5, c=0.05),
        fedmls.FedComLoc(level=0.4),
        fedmls.FedComLoc(method="quantise", level=6, where="download"),
        fedmls.FedComLoc(method="quantise", level=6, where="gradient"),
        fedmls.FedDyn(participants=2),
        fedmls.FedSplit(exact=True),
        fedmls.CoCoA(passes=2, sigma=1.5),
    ],
    ids=lambda algorithm: algorithm.name,
)
def test_client_by_client_gives_the_same_bits(algorithm):
    weights = None if getattr(algorithm, "participants", None) else [0.1, 0.2, 0.3, 0.4]
    problem = svm(n=4, m=50, weights=weights, l2=0.1)
    run = fedmls.simulate(algorithm, problem, rounds=12, batch=0.3, seed=9)
    assert np.array_equal(run.x, run_client_by_client(algorithm, problem, 12, 0.3, 9))


# Errors


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fedmls.Tamuna(s=1), "s is 1; it must be a whole number of at least 2"),
        (lambda: fedmls.Tamuna(s=4, participants=3), "s is 4; it must be a whole number of at least 2 and at most 3"),
        (lambda: fedmls.Tamuna(participants=1), "participants is 1; it must be a whole number of at least 2"),
        (
            lambda: fedmls.simulate(fedmls.Tamuna(s=6), svm(), rounds=1),
            "s is 6, but 5 clients take part; take at most 5",
        ),
        (lambda: fedmls.LoCoDL(method="top_k"), "unknown method 'top_k': choose from random_k, quantise"),
        (lambda: fedmls.LoCoDL(level=0.0), "level is 0.0; random_k takes the share of entries kept, in (0, 1]"),
        (lambda: fedmls.LoCoDL(c=-1.0), "c is -1.0; it must be a number of at least 0"),
        (lambda: fedmls.FedComLoc(method="random_k"), "unknown method 'random_k': choose from top_k, quantise"),
        (lambda: fedmls.FedComLoc(where="uplod"), "unknown where 'uplod': did you mean 'upload'?"),
        (lambda: fedmls.FedDyn(alpha=0), "alpha is 0.0; it must be a positive number"),
        (lambda: fedmls.FedSplit(relaxation=2.5), "relaxation is 2.5; it must be at most 2, which is FedSplit's"),
        (lambda: fedmls.FedSplit(exact=1), "exact is 1; it must be True or False"),
        (lambda: fedmls.CoCoA(passes=0), "passes is 0; it must be a whole number of at least 1"),
        (lambda: fedmls.CoCoA(sigma=0), "sigma is 0.0; it must be a positive number"),
        (
            lambda: fedmls.simulate(fedmls.CoCoA(), svm(), rounds=1),
            "cocoa needs rows and an l2 term, and here l2 is 0; give a fedmls.Problem with l2 > 0, or take another",
        ),
        (lambda: fedmls.simulate(fedmls.CoCoA(), svm(l2=0.1, l1=0.1), rounds=1), "l1 is 0.1; the proximal step has no"),
        (
            lambda: fedmls.simulate(fedmls.CoCoA(), quadratics()[0], rounds=1),
            "cocoa needs rows and an l2 term, and here l2 is 0",
        ),
        (
            lambda: fedmls.Compressed(algorithm=fedmls.LoCoDL()),
            "locodl compresses what it sends by itself; leave out Compressed",
        ),
        (
            lambda: Job(algorithm=fedmls.Tamuna(participants=3), rounds=5, on_missing="without"),
            "on_missing is 'without', but tamuna",
        ),
    ],
)
def test_errors_say_what_to_do(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value).startswith(message)
