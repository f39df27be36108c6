"""The level bundle method, its cuts and the server's two programs."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import fedmls
from fedmls.bounds import bundle_master as master
from fedmls.simulation.config import RunConfig
from fedmls.simulation.run import Simulation
from tests.support.problems import lad, svm


@pytest.fixture(scope="module")
def paper():
    X, y = fedmls.datasets.breast_cancer_wisconsin()
    return fedmls.Problem(X, y, clients=fedmls.partition.kmeans(X, n_clients=10, seed=0), loss="hinge")


def servers(algorithm, problem, rounds):
    simulation = Simulation(algorithm, problem, RunConfig(rounds))
    states = [simulation.at.server]
    for _ in simulation.play():
        states.append(simulation.at.server)
    return states, simulation.result().history


@pytest.mark.parametrize(("radius", "cuts"), [(5.0, 100), (10.0, 100), (10.0, 10)])
def test_the_papers_problem_takes_few_rounds_and_the_two_bounds_meet(paper, radius, cuts):
    states, history = servers(fedmls.Bundle(radius=radius, max_cuts=cuts), paper, 40)
    gap = history["relative_gap"].to_numpy()
    assert 8 <= (gap > 1e-2).sum() + 1 <= 20
    assert gap[-1] < 1e-6
    bounds = np.array([server.f_low for server in states])
    assert (np.diff(bounds[1:]) >= 0).all()
    assert bounds[-1] <= paper.optimum.value * (1 + 1e-12)
    assert bounds[-1] >= paper.optimum.value * (1 - 1e-6)
    assert max(server.g.shape[1] for server in states) == min(cuts, 40)
    assert all(server.b.shape == server.use.shape == server.g.shape[:2] for server in states)


@pytest.mark.parametrize(
    "problem",
    [lad(l1=0.3, l2=0.1, weights=[0.1, 0.3, 0.15, 0.25, 0.2]), svm(l2=0.5), lad(loss="huber"), lad(density=0.4)],
    ids=["lad l1 l2", "svm l2", "huber", "sparse"],
)
def test_cuts_are_below_f_and_the_bound_below_the_minimum(problem):
    states, history = servers(fedmls.Bundle(radius=5.0, max_cuts=15), problem, 60)
    points = np.random.default_rng(0).uniform(-5, 5, size=(200, problem.dimension))
    values = np.array([problem.weights * problem.client_values(x) for x in points])
    for server in states[1::10]:
        cuts = server.b[None] + np.einsum("ijk,pk->pij", server.g, points)
        assert (cuts <= values[:, :, None] + 1e-9).all()
    assert all(server.f_low <= problem.optimum.value + 1e-8 for server in states)
    assert history["relative_gap"].iloc[-1] < 1e-4


def test_the_answer_is_the_best_of_the_points_that_were_sent():
    problem = svm()
    states, history = servers(fedmls.Bundle(radius=3.0), problem, 15)
    sent = [problem.value(server.x) for server in states[:-1]]
    np.testing.assert_array_equal(states[0].x, np.zeros(5))
    np.testing.assert_allclose(history["objective"], np.minimum.accumulate(sent), rtol=1e-14)
    np.testing.assert_allclose([server.f_best for server in states[1:]], history["objective"], rtol=1e-12)


def test_a_box_without_the_minimiser_gives_the_best_point_of_the_box():
    problem = lad()
    radius = 0.5 * np.abs(problem.optimum.x).max()
    states, _ = servers(fedmls.Bundle(radius=radius), problem, 40)
    last = states[-1]
    assert np.abs([server.x for server in states]).max() <= radius
    assert last.f_best - last.f_low < 1e-6
    assert last.f_low > problem.optimum.value + 0.01


def test_a_client_sends_one_vector_and_one_number():
    problem = svm(n=4, m=40)
    last = fedmls.simulate(fedmls.Bundle(), problem, rounds=6).history.iloc[-1]
    assert last["bytes_up"] == 6 * 4 * 8 * (5 + 1)
    assert last["bytes_down"] == 6 * 4 * 8 * 5
    assert last["subgradients"] == 6 * 4


def random_model(seed, n=3, cuts=4, d=2):
    rng = np.random.default_rng(seed)
    return master.BundleModel(rng.normal(size=(n, cuts, d)), rng.normal(size=(n, cuts)), rng.normal(size=d), 1.5)


def height(model, x):
    return (model.b + model.g @ x).max(axis=1).sum()


@given(seed=st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_the_bound_holds_for_any_multipliers_and_is_tight_for_the_solvers(seed):
    model, rng = random_model(seed), np.random.default_rng(seed + 1)
    low = master.lowest(model)
    points = model.center + rng.uniform(-1.5, 1.5, size=(50, 2))
    assert model.bound(rng.normal(size=model.b.shape)) <= min(height(model, x) for x in points) + 1e-9
    assert model.bound(low.multipliers) == pytest.approx(height(model, low.x), abs=1e-7)


@given(seed=st.integers(0, 2**32), share=st.floats(0.05, 0.95))
@settings(max_examples=50, deadline=None)
def test_the_projection_is_the_nearest_point_of_the_level_set(seed, share):
    """⟨point - x, other - x⟩ <= 0 for every other point of a convex set says that x is the projection."""
    model, rng = random_model(seed), np.random.default_rng(seed + 1)
    point, low = model.center + rng.uniform(-1.5, 1.5, size=2), master.lowest(model)
    bottom = height(model, low.x)
    assume(height(model, point) > bottom + 0.01)
    level = bottom + share * (height(model, point) - bottom)
    x = master.project(model, point, level).x
    assert height(model, x) <= level + 1e-6
    others = [low.x + s * (o - low.x) for o in model.center + rng.uniform(-1.5, 1.5, size=(100, 2)) for s in (0.1, 1)]
    inside = [other for other in others if height(model, other) <= level]
    assert all((point - x) @ (other - x) <= 1e-6 for other in [low.x, *inside])


def test_an_empty_level_set_gives_way_to_the_models_minimiser():
    model = random_model(0)
    low = master.lowest(model)
    assert master.project(model, model.center, height(model, low.x) - 1.0) is None
    step = master.next_point(model, model.center, best=height(model, low.x) - 9.0, bound=-np.inf, share=0.5)
    np.testing.assert_array_equal(step.x, low.x)
    assert step.bound == model.bound(low.multipliers)


def test_a_linear_program_that_fails_leaves_all_as_it_is(monkeypatch):
    monkeypatch.setattr(master, "lowest", lambda model: None)
    model = random_model(0)
    step = master.next_point(model, model.center, best=3.0, bound=1.0, share=0.3)
    assert step.bound == 1.0
    np.testing.assert_array_equal(step.x, model.center)


def test_the_least_used_cut_goes_and_of_idle_ones_the_oldest():
    g, b = np.arange(12.0).reshape(2, 3, 2), np.arange(6.0).reshape(2, 3)
    use = np.array([[0.5, 0.1, 0.4], [1.0, 2e-9, 1e-9]])
    new_g, new_b = np.full((2, 2), -1.0), np.array([-1.0, -2.0])
    kept_g, kept_b = master.with_cuts(g, b, use, new_g, new_b, most=3)
    np.testing.assert_array_equal(kept_b, [[0, 2, -1], [3, 5, -2]])
    np.testing.assert_array_equal(kept_g[:, :2], [g[0, [0, 2]], g[1, [0, 2]]])
    more_g, more_b = master.with_cuts(g, b, use, new_g, new_b, most=4)
    assert more_g.shape == (2, 4, 2)
    np.testing.assert_array_equal(more_b[:, :3], b)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"radius": 0.0}, "radius is 0.0; it must be a positive number"),
        ({"level": 1.0}, "level is 1.0; take it between 0 and 1, e.g. 0.3"),
        ({"max_cuts": 1}, "max_cuts is 1; it must be a whole number of at least 2"),
    ],
)
def test_bad_parameters(parameters, message):
    with pytest.raises(ValueError) as error:
        fedmls.Bundle(**parameters)
    assert str(error.value) == message
