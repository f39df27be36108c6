"""Whole numbers in place of real ones: nothing is off by more than it is said to be."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmls
from fedmls.algorithms import _grids
from fedmls.algorithms._grids import Grids
from fedmls.bounds.cuts import Terms
from fedmls.local.curvature import packed
from fedmls.simulation.config import RunConfig
from fedmls.simulation.run import Simulation
from tests.support.problems import lad, svm

PARTS = 3


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 5), st.integers(1, 4))
def test_answers_are_off_by_half_a_unit_at_most(seed, points, d, clients):
    rng = np.random.default_rng(seed)
    grids = Grids(rng.integers(-20, 20, d), rng.integers(-30, 0, 3))
    f = rng.exponential(size=(clients, points, PARTS)) * 10.0 ** rng.integers(-3, 4)
    g = rng.normal(size=(clients, points, PARTS, d)) * 2.0**grids.profile
    H = packed(np.eye(d)) if d > 1 else np.ones(1)
    total, above, slopes, bent = _grids.answers_sent(grids, f, g, np.tile(H, (clients, 1)))
    assert {above.dtype, slopes.dtype, bent.dtype} == {np.dtype(np.int64)}
    weights = rng.dirichlet(np.ones(clients))
    seen = [weights @ field.astype(float) for field in (total, above, slopes)]
    heights, steep = _grids.answers_received(grids, *seen, PARTS)
    true_heights, true_slopes = np.tensordot(weights, f, 1), np.tensordot(weights, g, 1)
    room = 1e-12 * np.abs(f).max()
    assert (heights <= true_heights + room).all()
    assert (true_heights - heights <= grids.heights + room).all()
    assert (np.abs(steep - true_slopes) <= grids.slopes / 2 * (1 + 1e-9)).all()


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 6))
def test_points_come_back_to_the_bit(seed, points, d):
    rng = np.random.default_rng(seed)
    grids = Grids(rng.integers(-20, 20, d), rng.integers(-30, 0, 3))
    x = grids.points * np.rint(rng.normal(size=(points, d)) / grids.points)
    assert np.array_equal(_grids.points_received(grids, _grids.points_sent(grids, x), points), x)


def test_numbers_too_large_to_be_whole_ones_are_sent_as_they_are():
    grids = Grids(np.zeros(1, np.int64), np.full(3, -60))
    f, g = np.full((1, 1, PARTS), 1.0), np.full((1, 1, PARTS, 1), 1e3)
    _, _, slopes, _ = _grids.answers_sent(grids, f, g, np.empty((1, 0)))
    assert slopes.dtype == np.float64
    assert slopes[0, 0] * 2.0**-60 == 1e3


def test_units_get_smaller_with_the_gap_and_no_smaller_than_double_precision():
    terms, profile = Terms(0.0, 0.0, 2, 0.0, 2), np.zeros(2, np.int64)
    moves, summed, x, steep = np.array([[0.1, 0.0]]), np.ones(2), np.ones((1, 2)), np.ones(2)
    asked = [
        _grids.scales(profile, terms, 1.0, gap, gap, moves, summed, x, steep) for gap in 10.0 ** -np.arange(0, 40, 3)
    ]
    assert all((after <= before).all() for before, after in itertools.pairwise(asked))
    assert (asked[0] > asked[3]).all()
    assert np.array_equal(asked[-1], asked[-2])
    assert (asked[-1] >= -50).all()


def test_points_are_so_fine_that_rounding_them_costs_little():
    """By the metric, in which two columns that are all but equal are steep each, and flat together."""
    H, gain = 50.0 * np.array([[1.0, 0.999], [0.999, 1.0]]), 1e-3
    profile = _grids.profile(H, Terms(0.0, 0.0, 2, 0.0, 2), 1.0, np.ones(2))
    moves, summed, x = np.array([[3.0, -3.0]]), np.ones(2), np.ones((1, 2))
    scales = _grids.scales(profile, Terms(0.0, 0.0, 2, 0.0, 2), 1.0, 1.0, gain, moves, summed, x, np.diag(H))
    unit = Grids(profile, scales).points
    assert len(profile) == 2
    assert max(e @ H @ e / 2 for e in unit * np.array([[1, 1], [1, -1]]) / 2) < 1e-3 * gain


@pytest.mark.parametrize(
    ("H", "terms", "rounds"),
    [
        (np.eye(3), Terms(0.0, 0.0, 2, 0.0, 3), True),
        (np.eye(3), Terms(0.0, 0.1, 2, 0.0, 3), False),  # an l1 term
        (np.eye(3), Terms(0.0, 0.0, 2, -np.inf, 3), False),  # functions instead of rows
        (np.ones((3, 3)), Terms(0.0, 0.0, 2, 0.0, 3), False),  # columns that are all the same
        (np.eye(3) + 1e4, Terms(0.0, 0.0, 2, 0.0, 3), False),
        (np.ones((3, 3)), Terms(1.0, 0.0, 3, 0.0, 3), True),
        (np.eye(40), Terms(0.0, 0.0, 40, 0.0, 40), False),  # too many without an l2 term
        (np.eye(40), Terms(0.1, 0.0, 39, 0.0, 40), True),
        (np.ones(300), Terms(0.1, 0.0, 300, 0.0, 300), False),  # a diagonal
    ],
)
def test_what_is_rounded(H, terms, rounds):
    assert (len(_grids.profile(H, terms, 1.0, np.ones(len(H)))) > 0) == rounds


def test_a_curvature_that_has_vanished_makes_no_profile():
    """As that of a logistic loss far from its kink has: by it x may go anywhere."""
    terms = Terms(0.0, 0.0, 2, 0.0, 2)
    assert len(_grids.profile(1e-4 * np.eye(2), terms, 1.0, np.ones(2)))
    assert not len(_grids.profile(1e-40 * np.eye(2), terms, 1.0, np.ones(2)))
    assert not len(_grids.profile(np.full((2, 2), np.inf), terms, 1.0, np.ones(2)))


def indicated(loss):
    """One column says of some rows that they are of the first class: the best slope along it is without end."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(400, 4))
    y = np.sign(X[:, 0] + rng.normal(size=400))
    some = (rng.random(400) < 0.3) & (y > 0)
    return fedmls.Problem(np.column_stack([X, some]), y, clients=np.arange(400) % 5, loss=loss)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_where_no_box_is_found_slopes_are_exact_again_and_prove(loss):
    simulation = Simulation(fedmls.FedMLSB(), indicated(loss), RunConfig(25, certificate=True, optimum=None))
    rounded = [len(simulation.at.server.profile) > 0 for _ in simulation.play()]
    assert rounded[1]
    assert not rounded[-1]
    server = simulation.at.server
    assert server.f - server.bound <= 1e-6 * server.f
    assert (server.blur == 0).all()  # those that were not exact were dropped: far away they are above f
    assert np.abs(server.x).max() < 1e6


def test_a_far_point_among_others_does_not_spoil_their_heights():
    """Its own are 1e14 times as large; they are rounded by as much as those of the others are."""
    grids = Grids(np.zeros(1, np.int64), np.array([-40, 0, -40]))
    f = np.array([[[1e14, 2e14, 3e14], [1.0, 2.0, 3.5]]])
    total, above, slopes, _ = _grids.answers_sent(grids, f, np.ones((1, 2, PARTS, 1)), np.empty((1, 0)))
    heights, _ = _grids.answers_received(grids, total[0], above[0].astype(float), slopes[0].astype(float), PARTS)
    assert (heights[1] <= f[0, 1] + 1e-15).all()
    assert np.allclose(heights[1], f[0, 1], atol=2.0**-39)


@pytest.mark.parametrize("problem", [lad(m=400), svm(m=400, l2=0.1)], ids=["lad", "svm with l2"])
def test_rounding_costs_bytes_no_exchanges_and_no_proof(problem, monkeypatch):
    """Beside a run in which nothing is rounded: within a few exchanges, for less than half of the bytes."""
    begin, histories = fedmls.FedMLSB.init, []
    for short in (0, 1):

        def init(algorithm, x0, n, short=short):
            server, client = begin(algorithm, x0, n)
            return server._replace(short=short), client

        monkeypatch.setattr(fedmls.FedMLSB, "init", init)
        until = 1e-6 * problem.optimum.value
        histories.append(fedmls.simulate(fedmls.FedMLSB(), problem, rounds=60, certificate=True, until=until).history)
    exact, rounded = histories
    assert rounded["certified_gap"].iloc[-1] <= 1e-6 * problem.optimum.value
    assert len(rounded) <= 1.3 * len(exact) + 3
    assert rounded["bytes_up"].iloc[-1] < exact["bytes_up"].iloc[-1] / 2


@pytest.mark.parametrize("size", [1e160, 1e-160, 1e-25])
def test_columns_of_any_size_are_no_error(size):
    """Their squares are no numbers of eight bytes, or no short ones."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    y = X.sum(axis=1) + rng.normal(size=60)
    problem = fedmls.Problem(X * [1.0, 1.0, size], y, clients=np.arange(60) % 3, loss="absolute")
    with np.errstate(all="ignore"):
        history = fedmls.simulate(fedmls.FedMLSB(), problem, rounds=6, optimum=None).history
    assert history["objective"].iloc[-1] <= history["objective"].iloc[0]


def test_how_long_an_upload_is_is_measured_in_the_columns_own_units():
    """Whole numbers get longer as units get smaller, and slopes do not."""
    problem = lad(m=400)
    simulation = Simulation(fedmls.FedMLSB(), problem, RunConfig(12, optimum=None))
    found = []
    for _ in simulation.play():
        server = simulation.at.server
        _, down = fedmls.FedMLSB().broadcast(99, server._replace(bound=server.f), np.random.default_rng(0))
        if not len(down.profile):
            continue
        local = problem.local(0, 1.0)
        local.begin(2)
        _, up = fedmls.FedMLSB().client_round(2, simulation.at.clients, down, local)
        units = fedmls.FedMLSB().units(down)
        assert up.g.shape[-1] == len(units["g"])
        found.append((np.linalg.norm(up.g[0]), np.linalg.norm(up.g[0] * units["g"])))
    whole, real = np.array(found).T
    assert whole[-1] > 100 * whole[1]
    assert real.max() < 10 * real.min()
