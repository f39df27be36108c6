"""Made-up problems: what the dial does, optima known by construction, and what makes the chain hard."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedmls
from fedmls.benchmark import suite
from fedmls.datasets import chain, lad, svm
from fedmls.optima.solve import optimum
from fedmls.simulation.config import RunConfig
from fedmls.simulation.run import Simulation

SHARES = st.floats(0.0, 1.0)


@pytest.mark.parametrize("make", [svm, lad])
@pytest.mark.parametrize("density", [1.0, 0.3])
def test_shapes_seeds_and_equal_clients(make, density):
    problem = make(103, 12, 5, 0.5, density=density)
    assert (problem.n, problem.dimension, len(problem.y)) == (5, 13, 103)
    assert set(problem.rows_per_client) == {20, 21}
    assert isinstance(problem.X, np.ndarray) == (density == 1)
    assert make(103, 12, 5, 0.5, density=density).fingerprint == problem.fingerprint
    assert make(103, 12, 5, 0.5, density=density, seed=1).fingerprint != problem.fingerprint
    filled = problem.matrix()[:, :-1].count_nonzero() / (103 * 12)
    assert filled == 1 if density == 1 else 0.2 < filled <= 0.3 + 0.5 / 12


@pytest.mark.parametrize("make", [svm, lad])
@pytest.mark.parametrize("density", [1.0, 0.4])
def test_the_dial_makes_clients_unlike(make, density):
    """How much the clients lose together against each on its own: f* minus the mean of their own minima."""

    def regret(heterogeneity):
        problem = make(2000, 5, 4, heterogeneity, density=density)
        alone = []
        for i in range(problem.n):
            part = slice(problem.offsets[i], problem.offsets[i + 1])
            rows = problem.matrix()[[*range(*part.indices(len(problem.y)))]][:, :-1]
            alone.append(fedmls.Problem(rows, problem.y[part], loss=problem.loss).optimum.value)
        return problem.optimum.value / np.mean(alone) - 1

    none, some, extreme = (regret(h) for h in (0.0, 0.5, 1.0))
    assert 0 <= none < 0.05
    assert 2 * none < some < extreme


def test_labels_without_noise_are_the_sides_of_one_plane():
    assert svm(200, 5, 4, 0.0, noise=0.0).optimum.value == pytest.approx(0.0, abs=1e-9)
    assert lad(200, 5, 4, 0.0, noise=0.0).optimum.value == pytest.approx(0.0, abs=1e-9)
    assert svm(200, 5, 4, 0.0, noise=0.2).optimum.value > 1


@given(heterogeneity=SHARES, seed=st.integers(0, 1000), dense=st.booleans(), n=st.integers(1, 7))
@settings(max_examples=20)
def test_the_planted_point_is_a_minimiser(heterogeneity, seed, dense, n):
    problem = lad(90, 6, n, heterogeneity, density=1.0 if dense else 0.5, planted=True, seed=seed)
    known, solved = problem.optimum, optimum(problem)
    assert known.value == pytest.approx(solved.value, rel=1e-9)
    assert known.value - known.lower_bound <= 1e-9 * known.value
    assert problem.value(known.x) == known.value
    lie_on_it = np.isclose(problem.matrix() @ known.x, problem.y, atol=1e-9).mean()
    assert 0.1 <= lie_on_it < 0.15


@given(length=st.integers(2, 30), pairs=st.integers(1, 3), data=st.data())
def test_the_chain_is_what_its_formula_says(length, pairs, data):
    problem = chain(length, 2 * pairs)
    x = np.array(data.draw(st.lists(st.floats(-3, 3), min_size=length, max_size=length)))
    ends = np.concatenate([[1.0], x, [0.0]])
    c = 2 - np.arange(length + 1) / length
    assert problem.value(x) == pytest.approx(0.5 * c @ abs(np.diff(ends)))
    known = problem.optimum
    assert known.value == problem.value(np.ones(length)) == pytest.approx(0.5)
    assert known.lower_bound == pytest.approx(0.5)
    assert optimum(problem).value == pytest.approx(0.5)
    k = data.draw(st.integers(0, length))
    reached = np.where(np.arange(length) < k, x, 0.0)
    assert problem.value(reached) >= 1 - k / (2 * length) - 1e-12
    at_best = np.where(np.arange(length) < k, 1.0, 0.0)
    assert problem.value(at_best) == pytest.approx(1 - k / (2 * length))


SPANS = {  # all but the bundle method, whose server solves a linear program, and CoCoA, which needs an l2 term
    "fedmls": {"lam0": 5.0},
    "fedmlse": {"lam0": 5.0},
    "fedmlsp": {"lam0": 5.0, "participants": 4},
    "fedmlsd": {"lam0": 5.0},
    "fedavg": {"eta0": 0.3},
    "scaffold": {"eta0": 0.3},
    "scaffnew": {"eta0": 0.3},
    "gradskip": {"eta0": 0.3, "q": 0.8},
    "tamuna": {"eta0": 0.3},
    "locodl": {"eta0": 0.3, "level": 0.5},
    "fedcomloc": {"eta0": 0.3},
    "fedprox": {"eta0": 0.3},
    "feddyn": {"alpha": 3.0},
    "fedsplit": {"s": 0.3},
    "subgradient": {"eta0": 0.3},
    "dcs": {"eta": 3.0},
    "admm": {"rho": 3.0},
}


NOT_BOUND = ("bundle", "cocoa", "fedmlsb")  # these leave the span of what was sent


@pytest.mark.parametrize("name", [name for name in fedmls.ALGORITHMS if name not in NOT_BOUND])
def test_on_the_chain_a_round_moves_one_coordinate(name):
    """After k rounds x_j = 0 for j > k, for every method and any local work; and each gets on at all."""
    problem = chain(16, 4)
    for batch in (1.0, 0.3):
        simulation = Simulation(fedmls.make(name, **SPANS[name]), problem, RunConfig(12, batch))
        farthest = []
        for k in (view.round for view in simulation.play()):
            moved = np.flatnonzero(simulation.x)
            farthest.append(moved.max() + 1 if moved.size else 0)
            assert farthest[-1] <= k
            assert simulation.rows[-1]["relative_gap"] >= 1 - k / 16 - 1e-12
        assert farthest[-1] >= 4


def test_paired_rounds_move_one_coordinate_an_exchange():
    simulation = Simulation(fedmls.FedMLS(lam0=5.0, paired=True, T=20), chain(16), RunConfig(12))
    for _ in simulation.play():
        moved = np.flatnonzero(simulation.x)
        assert (moved.max() + 1 if moved.size else 0) <= simulation.at.counters.exchanges


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: svm(heterogeneity=1.5), "heterogeneity is 1.5; it must be a number from 0 to 1"),
        (lambda: svm(noise=-0.1), "noise is -0.1; it must be a number from 0 to 1"),
        (lambda: lad(noise=-0.1), "noise is -0.1; it must be a number of at least 0"),
        (lambda: svm(density=0.0), "density is 0.0; it must be a positive number"),
        (lambda: svm(density=2), "density is 2; it is the share of a row's columns that are filled: at most 1"),
        (lambda: svm(5, n=10), "there are 5 rows for 10 clients; ask for at most 5 clients"),
        (lambda: lad(dimension=0), "dimension is 0; it must be a whole number of at least 1"),
        (lambda: lad(seed=-1), "seed is -1; it must be a whole number of at least 0"),
        (lambda: lad(planted=True, l2=1.0), "planted=True makes x optimal for the plain problem only; leave out l2"),
        (lambda: chain(1), "length is 1; it must be a whole number of at least 2"),
        (lambda: chain(5, 3), "n is 3; the chain has two groups of equally many clients: take an even number"),
        (lambda: suite.make("digits-8"), "unknown problem 'digits-8': did you mean 'digits-8-skew'? choose from"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value).startswith(message)


# Other people's data in which x0 = 0, that is the mean or the larger class, is a fair guess already.
FAIR_AT_ZERO = (
    *("schools-absolute", "kindergarten-absolute", "contraception-logistic", "immunisation-hinge"),
    *("panel-absolute", "lectures-epsilon", "poverty-hinge"),
)


@pytest.mark.parametrize("name", [name for name in suite.SUITE if "n1000" not in name and "sparse" not in name])
def test_the_suite_has_certified_optima_worth_measuring(name):
    """f* is proved, not 0, and x0 = 0 is not near it: no target that a claim is made of (1e-2 and less) is met for
    free, nor any other but on a few problems.
    """
    problem = suite.make(name)
    best = problem.optimum
    assert best.value - best.lower_bound <= 1e-8 * best.value
    assert problem.value(np.zeros(problem.dimension)) > (1.02 if name in FAIR_AT_ZERO else 1.4) * best.value


def test_the_suite_is_as_wide_as_it_says():
    sizes = [(suite.make(name).dimension, suite.make(name).n) for name in suite.SUITE]
    assert min(d for d, _ in sizes) <= 11
    assert max(d for d, _ in sizes) >= 10_000
    assert min(n for _, n in sizes) <= 3
    assert max(n for _, n in sizes) == 1000
    for name in suite.SUITE:
        for part in name.split("-"):
            if part[0] in "dn" and part[1:].isdigit():
                problem = suite.make(name)
                assert int(part[1:]) == (problem.penalised if part[0] == "d" else problem.n)
