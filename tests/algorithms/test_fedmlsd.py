"""FedMLS-D: its transliteration, its relation to ADMM, its bound; and the dual steps that it takes."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedmls
from fedmls.local.prox import prox
from fedmls.local.random import draw, stream
from fedmls.losses import LOSSES
from fedmls.simulation.config import RunConfig
from fedmls.simulation.run import Simulation
from tests.support.problems import lad, svm

WEIGHTS = np.array([0.1, 0.3, 0.15, 0.25, 0.2])
X0 = np.array([0.3, -0.2, 0.1, 0.5, -0.4])


def orders(m, seed, k, i):
    """The rows of client i in round k, in random order, again and again: all that is random."""
    counter, order = stream(np.uint64(seed), k, i, 0), np.arange(m)
    while True:
        counter = draw(order, m, m, np.uint64(counter))
        yield order.tolist()


class PlainLane:
    """Plain NumPy, with loops over clients and rows, for the hinge and the absolute loss."""

    def __init__(self, problem, x0, batch, seed):
        self.problem, self.batch, self.seed = problem, batch, seed
        self.slopes, self.z, self.x = np.zeros(len(problem.y)), x0, x0
        self.x_hat, self.Y, self.mu = [x0] * problem.n, [0 * x0] * problem.n, [np.inf] * problem.n

    def round(self, k, mu, alpha, T, learn=True):
        """mu: one number for each client."""
        problem, z, new = self.problem, self.z, []
        for i in range(problem.n):
            self.Y[i] = self.Y[i] + (self.x_hat[i] - z) / self.mu[i]
        for i in range(problem.n):
            new.append(self.prox(i, k, z - mu[i] * self.Y[i], mu[i], T))
            self.x_hat[i] = alpha * new[i] + (1 - alpha) * z
        self.z = sum(w * x for w, x in zip(problem.weights, self.x_hat, strict=True))
        self.x = sum(w * x for w, x in zip(problem.weights, new, strict=True))
        self.mu = mu if learn else [np.inf] * problem.n

    def prox(self, i, k, v, mu, T):
        problem, b = self.problem, self.problem.y
        A, hinge = problem.matrix().toarray(), problem.loss.name == "hinge"
        rows = range(problem.offsets[i], problem.offsets[i + 1])
        u = v - mu * sum(problem.row_weights[j] * self.slopes[j] * A[j] for j in rows)
        size = int(np.ceil(self.batch * len(rows) - 1e-9))
        shuffled, left = orders(len(rows), self.seed, k, i), []
        for _ in range(max(T, 5 * -(-len(rows) // size))):
            left = left or next(shuffled)
            chosen, left = left[:size], left[size:]
            for j in (rows[r] for r in chosen):
                c, a = problem.row_weights[j], A[j]
                low, high = (min(-b[j], 0.0), max(-b[j], 0.0)) if hinge else (-1.0, 1.0)
                kink = b[j] if not hinge else 1 / b[j]
                best = np.clip(self.slopes[j] + (a @ u - kink) / (mu * c * a @ a), low, high)
                u = u - mu * c * (best - self.slopes[j]) * a
                self.slopes[j] = best
        return u

    def lengths(self):
        """Σ w_i ‖p^i‖²."""
        p = [self.slopes[part] @ rows for part, rows in weighted_rows(self.problem)]
        return sum(w * v @ v for w, v in zip(self.problem.weights, p, strict=True))


def plain_fedmlsd(problem, x0, K, mu, alpha, batch, seed):
    lane, models = PlainLane(problem, x0, batch, seed), []
    for k in range(1, K + 1):
        lane.round(k, [mu] * problem.n, alpha, k)
        models.append(lane.x)
    return models


def plain_auto(problem, x0, K, alpha, batch, seed):
    """Five lanes, each with a μ of its own; after rounds 4, 6, 10, 16, ... all go on from the best."""
    places = [0, -1, 1, -2, 2]
    lanes, models = [PlainLane(problem, x0, batch, seed) for _ in places], []
    values = problem.client_values(np.tile(x0, (problem.n, 1)))
    squares = (problem.client_subgradients(np.tile(x0, (problem.n, 1))) ** 2).sum(axis=1)
    for lane, j in zip(lanes, places, strict=True):
        lane.round(1, 10 * 3.0**j * values / squares, 1.0, 1, learn=False)
    mu = [
        0.4 * 3.0**j * np.linalg.norm(lane.x - x0) / lane.lengths() ** 0.5
        for lane, j in zip(lanes, places, strict=True)
    ]
    models.append(lanes[0].x)
    for k in range(2, K + 1):
        known = [problem.value(lane.x) for lane in lanes]
        for lane, own in zip(lanes, mu, strict=True):
            lane.round(k, [own] * problem.n, alpha, k)
        best = int(np.argmin(known))
        models.append(lanes[best].x)
        if k in (4, 6, 10, 16, 24, 36):
            lanes = [copy.deepcopy(lanes[best]) for _ in places]
            found = 0.4 * np.linalg.norm(lanes[0].x - x0) / lanes[0].lengths() ** 0.5
            mu = [np.clip(mu[best], found / 300, 10 * found) * 2.0**j for j in places]
    return models


def test_the_race_for_mu_cannot_run_away():
    """Where values say little, μ stays within its limits, also if it begins outside of them."""
    problem = svm(l2=1e-3)
    algorithm = fedmls.FedMLSD()
    simulation = Simulation(algorithm, problem, RunConfig(60, batch=0.3, optimum=None))
    for factor, limit in ((1e6, 10), (1e-6, 1 / 300)):
        for k in (view.round for view in simulation.play()):
            if k == 3:
                break
        server = simulation.at.server
        simulation.at = simulation.at._replace(server=server._replace(mu=server.mu * factor))
        for k in (view.round for view in simulation.play()):
            if k == 4:
                break
        server = simulation.at.server
        best = slice(server.start * problem.dimension, (server.start + 1) * problem.dimension)
        squares = problem.weights @ (simulation.at.clients.p[:, best] ** 2).sum(axis=1)
        found = 0.4 * np.linalg.norm(server.x[: problem.dimension]) / squares**0.5
        assert server.mu[0] == pytest.approx(limit * found)
        simulation = Simulation(algorithm, problem, RunConfig(60, batch=0.3, optimum=None))


@pytest.mark.parametrize("problem", [svm(), lad(weights=WEIGHTS), lad(density=0.4)], ids=["svm", "lad", "sparse lad"])
@pytest.mark.parametrize(("batch", "alpha"), [(1.0, 1.0), (0.3, 1.7)])
def test_equals_its_transliteration(problem, batch, alpha):
    lam0, kept = 0.4, []
    fedmls.simulate(
        fedmls.FedMLSD(lam0=lam0, relaxation=alpha),
        problem,
        rounds=60,
        batch=batch,
        seed=5,
        x0=X0,
        metrics={"model": lambda x: kept.append(x) or 0.0},
    )
    expected = np.array(plain_fedmlsd(problem, X0, 60, lam0 / problem.n, alpha, batch, 5))
    assert np.abs(np.array(kept) - expected).max() <= 1e-9 * np.abs(expected).max()


@pytest.mark.parametrize("problem", [svm(weights=WEIGHTS), lad(density=0.4)], ids=["svm", "sparse lad"])
def test_lanes_equal_their_transliteration(problem):
    kept = []
    metrics = {"model": lambda x: kept.append(x) or 0.0}
    fedmls.simulate(fedmls.FedMLSD(), problem, rounds=40, batch=0.3, seed=5, x0=X0, metrics=metrics)
    expected = np.array(plain_auto(problem, X0, 40, 1.8, 0.3, 5))
    assert np.abs(np.array(kept) - expected).max() <= 1e-9 * np.abs(expected).max()


def test_with_many_local_steps_it_is_admm():
    problem = svm(weights=WEIGHTS, l2=0.1)
    ours = fedmls.simulate(fedmls.FedMLSD(lam0=0.5, T=3000, relaxation=1.0), problem, rounds=40, batch=0.4)
    theirs = fedmls.simulate(fedmls.ADMM(rho=problem.n / 0.5, relaxation=1.0), problem, rounds=40)
    np.testing.assert_allclose(ours.history["objective"], theirs.history["objective"], rtol=1e-6)


@pytest.mark.parametrize("problem", [svm(reduction="mean"), lad(reduction="mean")], ids=["svm", "lad"])
@pytest.mark.parametrize("factor", [0.3, 1.0, 3.0])
def test_the_average_keeps_its_bound(problem, factor):
    G, D = np.sqrt(problem.weights @ problem.lipschitz() ** 2), np.linalg.norm(problem.optimum.x)
    mu = factor * D / G
    algorithm = fedmls.FedMLSD(lam0=mu * problem.n, T=500, relaxation=1.0, output="average")
    gap = fedmls.simulate(algorithm, problem, rounds=120).history["gap"]
    assert (gap <= (D**2 / mu + mu * G**2) / (2 * np.arange(1, 121))).all()
    assert gap.iloc[-1] < 0.3 * gap.iloc[9]


def test_multipliers_sum_to_zero():
    problem = svm(weights=WEIGHTS)
    simulation = Simulation(fedmls.FedMLSD(), problem, RunConfig(40, batch=0.5))
    for _ in simulation.play():
        Y = simulation.at.clients.Y
        assert Y.shape == (problem.n, 5 * problem.dimension)
        assert np.abs(WEIGHTS @ Y).max() < 1e-10 * max(1.0, np.abs(Y).max())
    assert np.abs(Y).max() > 0.1


@pytest.mark.slow
@given(
    loss=st.sampled_from(sorted(LOSSES)),
    seed=st.integers(0, 10**6),
    weight=st.floats(0.01, 3.0),
    l2=st.sampled_from([0.0, 0.4]),
    batch=st.sampled_from([0.2, 1.0]),
    density=st.sampled_from([None, 0.6]),
)
@settings(max_examples=60, deadline=None)
def test_dual_steps_lead_to_the_proximal_step(loss, seed, weight, l2, batch, density):
    problem = lad(n=3, m=24, columns=3, seed=seed, l2=l2, density=density)
    if LOSSES[loss].is_classification:
        problem.y = np.where(problem.y > 1, 1.0, -1.0)
    problem.loss = LOSSES[loss]
    v = np.random.default_rng(seed).standard_normal((3, 4))
    exact = prox(problem, v, weight)
    local, p, before = problem.local(seed, batch), np.zeros((3, 4)), None
    weights = np.full((3, 1), weight)
    for k in range(1, 60):
        local.begin(k)
        x, p = local.ascend(v, weights, p, 40)
        slopes = local.cut_slopes
        again = np.array([slopes[part] @ row for part, row in weighted_rows(problem)])
        np.testing.assert_allclose(p, again, atol=1e-8 * max(1.0, np.abs(again).max()))
        dual = dual_value(problem, v, weight, slopes)
        assert before is None or dual >= before - 1e-9 * max(1.0, abs(before))
        before = dual
    best = dual_value(problem, v, weight, exact.slopes)
    assert best - 1e-3 * max(1.0, abs(best)) < before <= best + 1e-9 * max(1.0, abs(best))
    assert ((x - exact.x) ** 2).sum() <= 2 * weight * (best - before) + 1e-8


def weighted_rows(problem):
    rows = problem.row_weights[:, None] * problem.matrix().toarray()
    for i in range(problem.n):
        part = slice(problem.offsets[i], problem.offsets[i + 1])
        yield part, rows[part]


def dual_value(problem, v, weight, slopes):
    """Σ_i min_x [‖x - v_i‖²/(2 weight) + l2/2 ‖x‖² + <p_i, x>] - Σ_j c_j ℓ*(s_j)."""
    total = -float(problem.row_weights @ problem.loss.conjugate(slopes, problem.y))
    h = np.full(problem.dimension, 1 / weight)
    h[: problem.penalised] += problem.l2
    for i, (part, rows) in enumerate(weighted_rows(problem)):
        p = slopes[part] @ rows
        x = (v[i] / weight - p) / h
        total += float(((x - v[i]) ** 2).sum() / (2 * weight) + p @ x)
        total += problem.l2 / 2 * float((x[: problem.penalised] ** 2).sum())
    return total


@pytest.mark.parametrize(("lam0", "lanes", "numbers"), [(1.0, 1, 0), ("auto", 5, 10)])
def test_a_step_is_a_mini_batch_and_a_round_at_least_five_passes(lam0, lanes, numbers):
    problem = svm(n=4, m=80)
    history = fedmls.simulate(fedmls.FedMLSD(lam0=lam0, T=2), problem, rounds=3, batch=0.25).history.iloc[-1]
    assert history["local_steps"] == lanes * 3 * 5 * 4
    assert history["subgradients"] == lanes * 3 * 5 * 4 * 4 + 4 * (lanes > 1)  # for each client's own guess
    assert history["vectors_up"] == history["vectors_down"] == lanes * 3 * 4
    assert history["bytes_up"] == 3 * 4 * 8 * (lanes * problem.dimension + numbers)
    assert history["bytes_down"] == 3 * 4 * 8 * (lanes * problem.dimension + lanes)


def test_after_settling_the_step_stays():
    simulation, steps = Simulation(fedmls.FedMLSD(settle=8), lad(), RunConfig(40, batch=0.5)), {}
    for k in (view.round for view in simulation.play()):
        steps[k] = simulation.at.server.mu.copy()
    assert (steps[4] != steps[3]).all()
    assert (steps[8] != steps[7]).all()
    for k in range(9, 41):
        np.testing.assert_array_equal(steps[k], steps[8])
    assert simulation.rows[-1]["relative_gap"] < 0.01


@given(seed=st.integers(0, 10**6), start=st.integers(0, 2))
@settings(max_examples=20, deadline=None)
def test_a_lane_is_what_it_would_be_alone(seed, start):
    """Three lanes in one call, twice, the second time all from the slopes of one: as three runs of one lane each."""
    problem, rng = lad(n=3, m=30, columns=3, seed=seed), np.random.default_rng(seed)
    v, weights = rng.standard_normal((2, 3, 3, 4)), rng.uniform(0.1, 2.0, (2, 3, 3))
    together, p = problem.local(seed, 0.3), np.zeros((3, 12))
    for k, begin in ((1, -1), (2, start)):
        together.begin(k)
        p = p if begin < 0 else np.tile(p[:, 4 * begin : 4 * begin + 4], 3)
        x, p = together.ascend(np.hstack(v[k - 1]), weights[k - 1].T, p, 7, 2, begin)
    for j in range(3):
        alone, q = problem.local(seed, 0.3), np.zeros((3, 4))
        for k, lane in ((1, start), (2, j)):
            alone.begin(k)
            y, q = alone.ascend(v[k - 1, lane], weights[k - 1, lane][:, None], q, 7, 2)
        np.testing.assert_array_equal(x[:, 4 * j : 4 * j + 4], y)
        np.testing.assert_array_equal(together.slopes[j], alone.slopes[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fedmls.FedMLSD(relaxation=2.0), "relaxation is 2.0; it must be below 2"),
        (lambda: fedmls.FedMLSD(output="z"), "output"),
        (lambda: fedmls.simulate(fedmls.FedMLSD(), svm(l1=0.1), rounds=1), "l1 is 0.1; the proximal step has no l1"),
        (
            lambda: fedmls.simulate(
                fedmls.FedMLSD(lam0=1.0),
                fedmls.OracleProblem([(lambda x: abs(x[0]), lambda x, rng: np.sign(x))], dimension=1),
                rounds=1,
            ),
            "a problem made of functions has no rows to keep slopes of",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert message in str(error.value)
