"""Every algorithm equals its transliteration, to 1e-9 over hundreds of rounds."""

import numpy as np
import pytest

import fedmls
from fedmls.rounds import ServerRandom, draw_participants
from fedmls.simulation.config import RunConfig
from fedmls.simulation.run import Simulation
from tests.support import transliterations as plain
from tests.support.problems import lad, plain_subgradients, svm

WEIGHTS = np.array([0.1, 0.3, 0.15, 0.25, 0.2])
PROBLEMS = {
    "svm": svm(),
    "lad": lad(),
    "weighted svm": svm(weights=WEIGHTS, reduction="mean"),
    "sparse lad": lad(density=0.4),
}
X0 = np.array([0.3, -0.2, 0.1, 0.5, -0.4])


@pytest.fixture(params=PROBLEMS, ids=str)
def problem(request):
    return PROBLEMS[request.param]


def models(algorithm, problem, rounds, **options):
    """The models after every round."""
    kept = []
    fedmls.simulate(
        algorithm, problem, rounds=rounds, x0=X0, metrics={"model": lambda x: kept.append(x) or 0.0}, **options
    )
    assert len(kept) == rounds
    return np.array(kept)


def agree(ours, theirs):
    theirs = np.array(theirs)
    assert np.abs(ours - theirs).max() <= 1e-9 * np.abs(theirs).max()


@pytest.mark.parametrize("radius", [None, 0.5])
def test_fedmls_with_the_remarks_schedule(problem, radius):
    expected = plain.fedmls(
        plain_subgradients(problem),
        problem.weights,
        X0,
        200,
        lambda k: 0.7 / k,
        lambda k: -(-3 * k // 2),
        radius or np.inf,
    )
    agree(models(fedmls.FedMLS(lam0=0.7, T0=1.5, radius=radius), problem, 200), expected)


def test_fedmls_with_constants(problem):
    g = plain_subgradients(problem)
    expected = plain.fedmls(g, problem.weights, X0, 300, lambda k: 0.02, lambda k: 7)
    agree(models(fedmls.FedMLS(lam=0.02, T=7), problem, 300), expected)


def test_fedmls_with_steps_of_each_clients_own(problem):
    T = [3, 11, 1, 7, 5]
    g = plain_subgradients(problem)
    expected = plain.fedmls(g, problem.weights, X0, 200, lambda k: 0.02, lambda k: T)
    agree(models(fedmls.FedMLS(lam=0.02, T=T), problem, 200), expected)


@pytest.mark.parametrize("output", ["average", "last"])
def test_fedmlse(problem, output):
    g = plain_subgradients(problem)
    averages, lasts = plain.fedmlse(g, problem.weights, X0, 200, lambda k: 0.4 / k, lambda k: k)
    ours = models(fedmls.FedMLSE(lam0=0.4, output=output), problem, 200)
    agree(ours, averages if output == "average" else lasts)


def test_fedavg(problem):
    g = plain_subgradients(problem)
    expected = plain.fedavg(g, problem.weights, X0, 200, lambda k: 0.003 / np.sqrt(k), lambda k: k)
    agree(models(fedmls.FedAvg(eta0=0.003), problem, 200), expected)


@pytest.mark.parametrize("output", ["last", "average"])
def test_subgradient(problem, output):
    g = plain_subgradients(problem)
    lasts, averages = plain.subgradient(g, problem.weights, X0, 300, root(0.02))
    agree(models(fedmls.Subgradient(eta0=0.02, output=output), problem, 300), lasts if output == "last" else averages)


def test_fedprox(problem):
    g = plain_subgradients(problem)
    expected = plain.fedprox(g, problem.weights, X0, 200, root(0.003), lambda k: k, 1 / 0.3)
    agree(models(fedmls.FedProx(eta0=0.003, rho=0.3), problem, 200), expected)


@pytest.mark.parametrize("output", ["average", "last"])
def test_dcs(problem, output):
    g = plain_subgradients(problem)
    averages, lasts = plain.dcs(g, problem.weights, X0, 200, 20.0, 1 / 20.0, lambda k: k)
    agree(models(fedmls.DCS(eta=20.0, output=output), problem, 200), averages if output == "average" else lasts)


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("decay", ["round", "step"])
def test_scaffold(problem, option, decay):
    g = plain_subgradients(problem)
    expected = plain.scaffold(g, problem.weights, X0, 150, 0.004, lambda k: k, option, decay)
    agree(models(fedmls.Scaffold(eta0=0.004, option=option, decay=decay), problem, 150), expected)


def meetings_of(algorithm, problem, rounds, seed):
    history = fedmls.simulate(algorithm, problem, rounds=rounds, seed=seed, x0=X0).history
    return history["local_steps"].tolist()


def root(scale):
    return lambda t: scale / np.sqrt(t)


@pytest.mark.parametrize("seed", [0, 1])
def test_scaffnew(problem, seed):
    algorithm = fedmls.Scaffnew(eta0=0.01)
    meetings = meetings_of(algorithm, problem, 150, seed)
    expected = plain.scaffnew(plain_subgradients(problem), problem.weights, X0, meetings, root(0.01), root(1.0))
    agree(models(algorithm, problem, 150, seed=seed), expected)


def test_scaffnew_with_a_constant_coin(problem):
    algorithm = fedmls.Scaffnew(eta=0.003, p=0.2)
    meetings = meetings_of(algorithm, problem, 150, 0)
    g = plain_subgradients(problem)
    expected = plain.scaffnew(g, problem.weights, X0, meetings, lambda t: 0.003, lambda t: 0.2)
    agree(models(algorithm, problem, 150), expected)


def test_gradskip(problem):
    q = (0.9, 0.99, 1.0, 0.5, 0.8)
    algorithm, seed = fedmls.GradSkip(eta0=0.01, q=q), 3
    meetings = meetings_of(fedmls.Scaffnew(eta0=0.01), problem, 100, seed)
    local, awake = problem.local(seed), []
    for k in range(1, 101):
        local.begin(k)
        awake.append(local.run_length(q).ravel().tolist())
    g = plain_subgradients(problem)
    expected = plain.gradskip(g, problem.weights, X0, meetings, root(0.01), root(1.0), awake)
    agree(models(algorithm, problem, 100, seed=seed), expected)


def orders_of(problem, some, rounds, seed):
    """The clients of each round, in the order in which they are drawn."""
    return [draw_participants(problem.n, some, ServerRandom(seed), k).tolist() for k in range(1, rounds + 1)]


@pytest.mark.parametrize("s", [2, 3, 5])
def test_tamuna(problem, s):
    algorithm, seed = fedmls.Tamuna(eta0=0.01, s=s), 1
    meetings = meetings_of(algorithm, problem, 150, seed)
    orders = orders_of(problem, problem.n, 150, seed)
    g = plain_subgradients(problem)
    expected = plain.tamuna(g, problem.weights, X0, meetings, root(0.01), root(1.0), s, orders)
    agree(models(algorithm, problem, 150, seed=seed), expected)


@pytest.mark.parametrize("name", ["svm", "lad"])
@pytest.mark.parametrize(("s", "some"), [(2, 2), (2, 4), (3, 4)])
def test_tamuna_with_some_of_the_clients(name, s, some):
    problem, seed = PROBLEMS[name], 4
    algorithm = fedmls.Tamuna(eta=0.004, p=0.3, s=s, participants=some)
    meetings = [int(t) for t in steps_of(algorithm, problem, 150, seed)]
    g, orders = plain_subgradients(problem), orders_of(problem, some, 150, seed)
    expected = plain.tamuna(g, problem.weights, X0, meetings, lambda t: 0.004, lambda t: 0.3, s, orders)
    agree(models(algorithm, problem, 150, seed=seed), expected)


def steps_of(algorithm, problem, rounds, seed):
    """The steps t of the server's clock at each meeting."""
    simulation = Simulation(algorithm, problem, RunConfig(rounds, seed=seed, x0=X0))
    for _ in simulation.play():
        yield simulation.at.server.t


@pytest.mark.parametrize("c", [0.0, 0.2])
@pytest.mark.parametrize(("level", "kept"), [(0.4, 2), (0.6, 3), (1.0, 5)])
def test_locodl(problem, level, kept, c):
    algorithm, seed = fedmls.LoCoDL(eta0=0.01, level=level, c=c), 2
    meetings = meetings_of(algorithm, problem, 150, seed)

    def compress(k, i, v):
        places = next(plain.batches(seed, k, i, len(v), kept, call=2**32 + 1))
        out = np.zeros_like(v)
        out[places] = len(v) / kept * v[places]
        return out

    g = plain_subgradients(problem)
    expected = plain.locodl(g, problem.weights, X0, meetings, root(0.01), root(1.0), c, len(X0) / kept - 1, compress)
    agree(models(algorithm, problem, 150, seed=seed), expected)


@pytest.mark.parametrize("where", ["upload", "download", "gradient"])
def test_fedcomloc(problem, where):
    algorithm = fedmls.FedComLoc(eta0=0.004, level=0.6, where=where)
    meetings = meetings_of(algorithm, problem, 120, 0)
    g = plain_subgradients(problem)
    expected = plain.fedcomloc(
        g, problem.weights, X0, meetings, root(0.004), root(1.0), lambda v: plain.top_k(v, 3), where
    )
    agree(models(algorithm, problem, 120), expected)


def test_feddyn(problem):
    g, everybody = plain_subgradients(problem), range(problem.n)
    expected = plain.feddyn(g, problem.weights, X0, 150, 20.0, lambda k: k, lambda k: everybody)
    agree(models(fedmls.FedDyn(alpha=20.0), problem, 150), expected)
    agree(np.array(expected), plain.fedpd(g, problem.weights, X0, 150, 1 / 20.0, lambda k: k))


@pytest.mark.parametrize("name", ["svm", "lad"])
def test_feddyn_with_some_of_the_clients(name):
    problem, seed = PROBLEMS[name], 3
    orders = orders_of(problem, 2, 150, seed)
    expected = plain.feddyn(
        plain_subgradients(problem), problem.weights, X0, 150, 20.0, lambda k: 7, lambda k: orders[k - 1]
    )
    agree(models(fedmls.FedDyn(alpha=20.0, T=7, participants=2), problem, 150, seed=seed), expected)


@pytest.mark.parametrize("alpha", [2.0, 1.3])
def test_fedsplit(problem, alpha):
    g = plain_subgradients(problem)
    expected = plain.fedsplit(g, problem.weights, X0, 150, 0.05, lambda k: k, alpha)
    agree(models(fedmls.FedSplit(s=0.05, relaxation=alpha), problem, 150), expected)


@pytest.mark.parametrize("batch", [1.0, 0.4])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(("make", "weights"), [(svm, None), (svm, WEIGHTS), (lad, WEIGHTS)])
def test_cocoa(make, weights, intercept, batch):
    problem, seed, passes = make(l2=0.5, weights=weights, intercept=intercept), 6, 3
    A, rows = problem.matrix().toarray(), []
    for i in range(problem.n):
        part = slice(problem.offsets[i], problem.offsets[i + 1])
        rows.append((A[part], problem.y[part], problem.row_weights[part]))

    def orders(k, i):
        m = len(rows[i][1])
        return plain.batches(seed, k, i, m, m)

    sigma, loss = 1.2 * problem.n, problem.loss.name
    expected = plain.cocoa(rows, problem.weights, 0.5, 150, passes, sigma, orders, loss, intercept)
    run = Simulation(fedmls.CoCoA(passes=passes, sigma=1.2), problem, RunConfig(150, batch, seed))
    agree(np.array([run.x for _ in run.play()]), expected)


def prox_by_cvxpy(problem, i):
    import cvxpy as cp

    part = slice(problem.offsets[i], problem.offsets[i + 1])
    A, b, c = problem.matrix().toarray()[part], problem.y[part], problem.row_weights[part]
    x, v, root = cp.Variable(problem.dimension), cp.Parameter(problem.dimension), cp.Parameter(nonneg=True)
    rows = cp.pos(1 - cp.multiply(b, A @ x)) if problem.loss.name == "hinge" else cp.abs(A @ x - b)
    program = cp.Problem(cp.Minimize(c @ rows + cp.sum_squares(root * x - v) / 2))

    def prox(center, weight):
        root.value, v.value = weight**-0.5, weight**-0.5 * center
        program.solve(solver="CLARABEL", tol_gap_abs=1e-13, tol_gap_rel=1e-13, tol_feas=1e-13)
        return x.value

    return prox


@pytest.mark.parametrize("alpha", [1.0, 1.6])
@pytest.mark.parametrize("name", ["lad", "weighted svm"])
def test_admm(name, alpha):
    """The reference solver, not we, is why this is 1e-6."""
    problem = PROBLEMS[name]
    prox = [prox_by_cvxpy(problem, i) for i in range(problem.n)]
    expected = np.array(plain.admm(prox, problem.weights, X0, 30, 3.0, alpha))
    ours = models(fedmls.ADMM(rho=3.0, relaxation=alpha), problem, 30)
    assert np.abs(ours - expected).max() <= 1e-6 * np.abs(expected).max()


def test_admm_where_the_proximal_step_is_a_linear_system():
    """Least squares: a Huber loss that never leaves its parabola."""
    problem = lad(loss=fedmls.huber(1e9), weights=WEIGHTS, l2=0.2)
    A = problem.matrix().toarray()

    def solve(i):
        part = slice(problem.offsets[i], problem.offsets[i + 1])
        ridge = np.diag(np.where(np.arange(5) < 4, 0.2, 0.0))

        def prox(v, weight):
            system = A[part].T @ A[part] + ridge + np.eye(5) / weight
            return np.linalg.solve(system, A[part].T @ problem.y[part] + v / weight)

        return prox

    expected = plain.admm([solve(i) for i in range(problem.n)], WEIGHTS, X0, 200, 7.0, 1.6)
    agree(models(fedmls.ADMM(rho=7.0), problem, 200, optimum=None), expected)


@pytest.mark.parametrize("name", ["lad", "weighted svm"])
def test_bundle(name):
    """The solvers, not we, are why this is 1e-5; all cuts are kept for the 12 rounds."""
    problem = PROBLEMS[name]
    f = [lambda x, i=i: problem.client_values(x)[i] for i in range(problem.n)]
    points, bounds = plain.bundle(f, plain_subgradients(problem), problem.weights, X0, 12, 4.0, 0.4)
    simulation = Simulation(fedmls.Bundle(radius=4.0, level=0.4), problem, RunConfig(12, x0=X0))
    ours = [simulation.at.server.x]
    lows = []
    for _ in simulation.play():
        ours.append(simulation.at.server.x)
        lows.append(simulation.at.server.f_low)
    np.testing.assert_allclose(ours[:-1], points, atol=1e-5)
    np.testing.assert_allclose(lows, np.maximum.accumulate(bounds), atol=1e-6)


def test_mini_batches_are_the_documented_ones():
    """FedAvg with 30% batches, the batches drawn again in plain Python."""
    problem, seed, rounds = svm(m=83), 11, 40
    A = problem.matrix().toarray()
    x, expected = X0, []
    for k in range(1, rounds + 1):
        ends = []
        for i in range(problem.n):
            part = slice(problem.offsets[i], problem.offsets[i + 1])
            rows, b, m = A[part], problem.y[part], problem.rows_per_client[i]
            size = int(np.ceil(0.3 * m))
            drawn = plain.batches(seed, k, i, m, size)
            u = x
            for _ in range(k):
                batch = next(drawn)
                s = np.where(b[batch] * (rows[batch] @ u) < 1, -b[batch], 0.0)
                u = u - 0.01 / np.sqrt(k) * (m / size) * rows[batch].T @ s
            ends.append(u)
        x = np.mean(ends, axis=0)
        expected.append(x)
    agree(models(fedmls.FedAvg(eta0=0.01), problem, rounds, batch=0.3, seed=seed), expected)


def test_stochastic_runs_agree_in_the_mean_over_twenty_seeds():
    """FedMLS with 10% batches against the transliteration with NumPy's own random numbers."""
    problem, rounds = svm(n=4, m=200, seed=5), 40
    A = problem.matrix().toarray()

    def oracle(i, rng):
        part = slice(problem.offsets[i], problem.offsets[i + 1])
        rows, b, m = A[part], problem.y[part], problem.rows_per_client[i]

        def subgradient(x):
            batch = rng.choice(m, size=int(np.ceil(0.1 * m)), replace=False)
            s = np.where(b[batch] * (rows[batch] @ x) < 1, -b[batch], 0.0)
            return rows[batch].T @ s * (m / len(batch))

        return subgradient

    theirs = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        g = [oracle(i, rng) for i in range(problem.n)]
        end = plain.fedmls(g, problem.weights, np.zeros(5), rounds, lambda k: 1.0 / k, lambda k: k)[-1]
        theirs.append(problem.value(end))
    runs = fedmls.sweep(
        [fedmls.FedMLS(lam0=1.0)], problem, rounds=rounds, seeds=range(20), batch=0.1, backend="threads"
    )
    ours = [run.history["objective"].iloc[-1] for run in runs]
    error = np.sqrt(np.var(ours) / 20 + np.var(theirs) / 20)
    assert error > 0
    assert abs(np.mean(ours) - np.mean(theirs)) < 4 * error
