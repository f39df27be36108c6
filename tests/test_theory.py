"""The theory's parameters keep what the theory promises, on paper and in runs."""

import itertools
import math
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import fedmls
from fedmls.theory import gap_bound
from tests.support.problems import lad, svm

MEAN = {"reduction": "mean"}
PROBLEMS = [
    pytest.param(lad(seed=1, **MEAN), id="lad"),
    pytest.param(lad(n=12, seed=2, loss=fedmls.pinball(0.8), **MEAN), id="quantile"),
    pytest.param(svm(seed=3, **MEAN), id="svm"),
    pytest.param(svm(n=7, seed=4, weights="rows", l1=0.02, **MEAN), id="svm-weights-l1"),
]
scale = st.floats(-3, 3).map(lambda e: 10.0**e)


def distance(problem):
    return float(np.linalg.norm(problem.optimum.x))  # runs start at zero


def mean_constant(problem):
    return float(np.sqrt(problem.weights @ problem.lipschitz() ** 2))


@settings(max_examples=400, deadline=None)
@given(
    rule=st.sampled_from(["sharp", "paper"]),
    reach=st.floats(-3, 5).map(lambda e: 10.0**e),
    G=st.one_of(scale, st.lists(st.one_of(st.just(0.0), scale), min_size=1, max_size=6)),
    distance=scale,
    noise=st.one_of(st.just(0.0), scale),
    n=st.integers(1, 10_000),
)
def test_the_bound_is_at_most_eps(rule, reach, G, distance, noise, n):
    assume(np.max(G) > 0)
    largest = float(np.max(G))
    p = fedmls.plan(
        eps=largest * distance / reach,
        G=G,
        distance=distance,
        n=n if isinstance(G, float) else None,
        sigma=noise * largest,
        rule=rule,
    )
    assert p.bound <= p.eps
    # For equal G_i a plan can be made from its own numbers again.
    if isinstance(G, float):
        assert fedmls.plan(eps=p.eps, G=p.G, distance=p.distance, n=p.n, sigma=p.sigma, rule=p.rule) == p


@pytest.mark.parametrize("rule", ["sharp", "paper"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_planned_run_keeps_the_promise(problem, rule):
    start = problem.value(np.zeros(problem.dimension)) - problem.optimum.value
    eps = start / (4 if rule == "sharp" else 1.5)
    p = fedmls.plan(problem, eps=eps, distance=distance(problem), rule=rule)
    run = fedmls.simulate(fedmls.FedMLS.from_plan(p), problem, rounds=p.K)
    last = run.history.iloc[-1]
    assert last["gap"] <= p.bound <= eps
    # What the plan says it costs is what the run counts.
    assert last["local_steps"] == p.local_steps
    assert (last["vectors_up"], last["vectors_down"]) == (p.vectors_up, p.vectors_down)
    assert (last["bytes_up"], last["bytes_down"]) == (p.bytes_up, p.bytes_down)
    assert (last["round"], last["exchanges"]) == (p.K, p.exchanges)


def test_paired_exchanges_are_counted_as_the_run_counts_them():
    problem = lad(**MEAN)
    p = fedmls.plan(problem, eps=1.0, G=1.0, distance=1.1)
    assert p.K == 7
    run = fedmls.simulate(fedmls.FedMLS.from_plan(p, paired=True), problem, rounds=p.K)
    assert run.history["exchanges"].iloc[-1] == p.paired_exchanges == (p.K + 1) // 2


@settings(max_examples=60, deadline=None)
@given(lam=scale, T=st.integers(1, 30), which=st.sampled_from(PROBLEMS))
def test_the_bound_holds_for_any_parameters(lam, T, which):
    (problem,) = which.values
    D0, G = distance(problem), mean_constant(problem)
    gaps = fedmls.simulate(fedmls.FedMLS(lam=lam, T=T), problem, rounds=40).history["gap"]
    bounds = [gap_bound(K, T, lam / problem.n, G=G, distance=D0) for K in range(1, 41)]
    assert (gaps.to_numpy() <= bounds).all()


def test_the_bound_of_the_any_time_schedule():
    """docs/theory.md: λ_k = λ_0/k, T_k = ⌈T_0 k⌉ and a ball that holds the start and a minimiser."""
    problem, K = svm(seed=3, **MEAN), np.arange(1, 201)
    D0, G = distance(problem), mean_constant(problem)
    for lam0, T0 in [(0.3, 1.0), (3.0, 1.0), (30.0, 4.0)]:
        algorithm = fedmls.FedMLS(lam0=lam0, T0=T0, radius=1.1 * D0)
        gaps = fedmls.simulate(algorithm, problem, rounds=200).history["gap"].to_numpy()
        mu0, D, T = lam0 / problem.n, 2.2 * D0, np.ceil(T0 * K)
        short = 1 - 2 / ((T + 1) * (T + 2))
        bound = (4 * (1 + 1 / short) * D**2 / mu0 + 8 * mu0 * G**2 / T0) / (K + 1) + G**2 * mu0 / (2 * K)
        assert (gaps <= bound).all()


def test_noise_is_paid_for():
    """Three clients |x - c_i|_1 with noisy subgradients: in the mean over seeds the gap is within the bound."""
    centres, d, sigma = np.array([-1.0, 0.5, 2.0]), 3, 4.0

    def client(c):
        return (
            lambda x: float(np.abs(x - c).sum()),
            lambda x, rng: np.sign(x - c) + rng.normal(size=d) * sigma / math.sqrt(d),
        )

    problem = fedmls.OracleProblem([client(c) for c in centres], dimension=d)
    best = problem.value(np.full(d, 0.5))
    start = np.full(d, -2.0)
    p = fedmls.plan(problem, eps=3.0, G=math.sqrt(d), distance=2.5 * math.sqrt(d), sigma=sigma)
    quiet = fedmls.plan(problem, eps=3.0, G=math.sqrt(d), distance=2.5 * math.sqrt(d))
    assert (p.K, p.lam) == (quiet.K, quiet.lam)
    assert p.T > 4 * quiet.T
    algorithm = fedmls.FedMLS.from_plan(p)
    gaps = [problem.value(fedmls.simulate(algorithm, problem, rounds=p.K, x0=start, seed=s).x) - best for s in range(2)]
    assert np.mean(gaps) <= p.bound <= 3 < problem.value(start) - best


def test_numbers_worked_out_by_hand():
    sharp = fedmls.plan(eps=0.1, G=5, distance=2, n=10, dimension=7)
    assert (sharp.K, sharp.T, sharp.local_steps) == (600, 12 * 600 + 3, 600 * 7203)
    assert sharp.lam == pytest.approx(10 * 0.1 / 25)
    assert (sharp.vectors_up, sharp.bytes_up, sharp.bytes_down) == (6000, 336_000, 336_000)
    assert sharp.bound == pytest.approx(
        4 * (1 + 1 / (1 - 2 / (7204 * 7205))) * 4 / (0.004 * 600 * 601) + 100 * 0.004 * 1201 / (3 * 7206) + 0.05
    )
    paper = fedmls.plan(eps=0.1, G=5, distance=2, n=10, sigma=3, rule="paper")
    assert paper.K == math.ceil(6 * math.sqrt(10) * 2 * 5 / 0.1)
    assert paper.T == math.ceil(36 * math.sqrt(30) * 2 * (100 + 9) / (5 * 0.1))
    assert paper.lam == pytest.approx(0.1 / 25)
    assert paper.bytes_up is None
    assert paper.bytes_down is None


def test_rounds_grow_like_one_over_eps_and_steps_like_its_square():
    plans = [fedmls.plan(eps=eps, G=3.0, distance=1.7, n=4) for eps in (0.02, 0.01, 0.005)]
    for coarse, fine in itertools.pairwise(plans):
        assert fine.K / coarse.K == pytest.approx(2, rel=1e-3)
        assert fine.local_steps / coarse.local_steps == pytest.approx(4, rel=1e-2)


def test_the_sharp_rule_is_free_of_n_and_the_papers_is_not():
    few, many = (fedmls.plan(eps=0.1, G=3, distance=2, n=n) for n in (2, 200))
    assert (few.K, few.T, few.bound) == (many.K, many.T, many.bound)
    assert many.lam == pytest.approx(100 * few.lam)
    few, many = (fedmls.plan(eps=0.1, G=3, distance=2, n=n, rule="paper") for n in (2, 200))
    assert many.K / few.K == pytest.approx(10, rel=1e-2)


def test_one_constant_per_client():
    G = [1.0, 2.0, 5.0]
    sharp, paper = (fedmls.plan(eps=0.1, G=G, distance=1, rule=rule) for rule in ("sharp", "paper"))
    assert (sharp.n, sharp.G) == (3, pytest.approx(math.sqrt(10)))
    assert (paper.n, paper.G) == (3, 5.0)
    weighted = lad(n=2, m=20, weights=[0.9, 0.1])
    assert fedmls.plan(weighted, eps=0.1, G=[1.0, 3.0], distance=1).G == pytest.approx(math.sqrt(0.9 + 0.9))


def test_a_problem_gives_n_dimension_and_G():
    problem = svm(n=6, weights="rows", **MEAN)
    p = fedmls.plan(problem, eps=0.5, distance=2.0)
    assert (p.n, p.dimension, p.G) == (6, 5, pytest.approx(mean_constant(problem)))
    assert p == fedmls.plan(problem, eps=0.5, distance=2.0, n=6, dimension=5, G=problem.lipschitz())
    ridge = svm(l2=0.1, **MEAN)
    inside = fedmls.plan(ridge, eps=0.5, distance=2.0, G=ridge.lipschitz(2.0))
    assert inside.bound <= 0.5


ORACLE = fedmls.OracleProblem([(lambda x: 0.0, lambda x, rng: 0 * x)], dimension=1)
GOOD = {"eps": 0.1, "G": 5.0, "distance": 2.0, "n": 10}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eps": 0.0}, "eps is 0.0; it must be a positive number"),
        ({"eps": math.nan}, "eps is nan; it must be a positive number"),
        ({"eps": "small"}, "eps is 'small'; it must be a positive number"),
        ({"eps": 1e-300}, "eps is 1e-300, for which no run can be planned with G = 5, distance 2 and sigma 0"),
        ({"eps": 1e300, "G": 1e-300}, "eps is 1e+300, for which no run can be planned with G = 1e-300"),
        ({"sigma": 1e300, "eps": 1e3, "rule": "paper"}, "eps is 1000.0, for which no run can be planned"),
        ({"distance": -2.0}, "distance is -2.0; it must be a positive number"),
        ({"distance": math.inf}, "distance is inf; it must be a positive number"),
        ({"G": 0}, "G is 0; it must be a positive number"),
        ({"G": None}, "G is missing; give a bound on the length of the subgradients, or a problem"),
        ({"G": [1.0, 2.0]}, "G has shape (2,) for 10 clients; give one number, or one per client"),
        ({"G": [1.0, -2.0], "n": 2}, "G holds -2.0; every G_i must be finite and not negative"),
        ({"G": [1.0, math.nan], "n": 2}, "G holds nan; every G_i must be finite and not negative"),
        ({"G": [0.0, 0.0], "n": 2}, "G holds 0.0; every G_i must be finite and not negative, and one of them positive"),
        ({"G": [], "n": None}, "n is missing; give the number of clients, a problem, or one G per client"),
        ({"G": [[1.0]], "n": 1}, "G has shape (1, 1) for 1 clients; give one number, or one per client"),
        ({"sigma": -1}, "sigma is -1; it must be a number of at least 0"),
        ({"n": None}, "n is missing; give the number of clients, a problem, or one G per client"),
        ({"n": 0}, "n is 0; it must be a whole number of at least 1"),
        ({"n": 2.5}, "n is 2.5; it must be a whole number of at least 1"),
        ({"dimension": 0}, "dimension is 0; it must be a whole number of at least 1"),
        ({"rule": "papr"}, "unknown rule 'papr': did you mean 'paper'? choose from sharp, paper"),
        ({"problem": 0.1}, "problem is 0.1; give a fedmls.Problem"),
        ({"problem": lad()}, "n is 10, but the problem has 5; leave n out"),
        ({"problem": lad(), "n": None, "dimension": 4}, "dimension is 4, but the problem has 5; leave dimension out"),
        ({"problem": ORACLE, "n": None, "G": None}, "G is missing; a problem made of functions does not tell it"),
        ({"problem": svm(l2=0.1), "n": None, "G": None}, "the subgradients of Problem(hinge, 60 dense rows"),
    ],
)
def test_bad_input_is_told_in_one_line(changes, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)) as error:
        fedmls.plan(**(GOOD | changes))
    assert "\n" not in str(error.value)


def test_a_plan_prints():
    text = str(fedmls.plan(eps=0.1, G=5, distance=2, n=10, sigma=1.5))
    assert text.splitlines()[0] == ("FedMLS for a gap of at most 0.1: G = 5, distance 2, 10 clients, sigma = 1.5")
    assert re.search(r"rule +sharp\n", text)
    assert re.search(r"rounds K +600\n", text)
    assert "bytes" not in text


def command(*options):
    words = [sys.executable, "-m", "fedmls.cli", "plan", "--G", "5", "--distance", "2", "--n", "10", *options]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.processes
def test_the_command_puts_both_rules_side_by_side():
    done = command("--eps", "0.1", "--dimension", "7")
    assert (done.returncode, done.stderr) == (0, "")
    title, *lines = done.stdout.splitlines()
    assert title.strip() == "FedMLS for a gap of at most 0.1: G = 5, distance 2, 10 clients"
    rows = [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in lines]
    assert [row for row in rows if row][:-1] == [
        ["rule", "sharp", "paper"],
        ["lambda", "0.04", "0.004"],
        ["rounds K", "600", "1,898"],
        ["exchanges when paired", "300", "949"],
        ["local steps per round T", "7,203", "78,873"],
        ["local steps in all, per client", "4,321,800", "149,700,954"],
        ["vectors up (and as many down), all clients", "6,000", "18,980"],
        ["bytes up (and as many down), all clients", "336,000", "1,062,880"],
    ]
    assert rows[-2][0] == "bound on the gap"
    assert all(0 < float(value) <= 0.1 for value in rows[-2][1:])
    assert "bytes" not in command("--eps", "0.1").stdout


@pytest.mark.processes
def test_the_command_tells_errors_in_one_line():
    done = command("--eps", "-1")
    assert (done.returncode, done.stderr) == (2, "error: eps is -1.0; it must be a positive number\n")
    assert "Missing option '--eps'" in command().stderr
