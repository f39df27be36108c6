"""An algorithm in a file outside of the package, wherever an algorithm goes. Nothing in the package knows of it."""

import json
import os
import pickle
import subprocess
import sys
from importlib.metadata import EntryPoint

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import fedmls
from fedmls.algorithms import _external, find, find_installed, from_dict, names, to_dict
from fedmls.benchmark.methods import method_of
from fedmls.cli import app
from fedmls.federation import InProcess, Job, NodeConfig, Stopped, drive, split
from tests.support.fedexp import written
from tests.support.problems import svm

MODULE = "fedexp_of_a_test"


@pytest.fixture
def file(tmp_path):
    """The algorithm's file, which no package knows of."""
    return written(tmp_path / "fedexp.py")


@pytest.fixture
def address(file):
    return f"{file}:FedExP"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The same as a module that can be imported."""
    (tmp_path / "installed").mkdir()
    written(tmp_path / "installed" / f"{MODULE}.py")
    monkeypatch.syspath_prepend(tmp_path / "installed")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "installed"), os.environ.get("PYTHONPATH", "")]))
    yield f"{MODULE}:FedExP"
    sys.modules.pop(MODULE, None)


@pytest.fixture
def offered(module, monkeypatch):
    """The same offered by a package."""
    point = EntryPoint("fedexp", module, _external.GROUP)
    monkeypatch.setattr(_external, "entry_points", lambda group: [point] if group == _external.GROUP else [])
    _external.offered.cache_clear()
    yield "fedexp"
    _external.offered.cache_clear()


def command(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.output


@pytest.mark.parametrize("how", ["address", "module", "offered"])
def test_it_is_found_by_file_module_and_entry_point_and_keeps_the_contract(how, request):
    algorithm = fedmls.make(request.getfixturevalue(how), eta=0.02)
    assert algorithm.eta == 0.02
    fedmls.check_algorithm(algorithm)
    assert from_dict(json.loads(json.dumps(to_dict(algorithm)))) == algorithm


def test_its_plain_values_name_the_file_whole(file, address, monkeypatch):
    monkeypatch.chdir(file.parent)
    assert to_dict(fedmls.make("fedexp.py:FedExP"))["name"] == address
    assert find("fedexp.py:FedExP") is find(address)


def test_it_is_the_algorithm_of_the_paper(address):
    """Against three rounds in plain NumPy."""
    problem, eta, T, eps = svm(), 0.02, 4, 1e-3
    run = fedmls.simulate(fedmls.make(address, eta=eta, T=T, eps=eps), problem, rounds=3)
    x = before = np.zeros(problem.dimension)
    for _ in range(3):
        u = np.tile(x, (problem.n, 1))
        for _ in range(T):
            u = u - eta * problem.client_subgradients(u)
        moved = u - x
        mean = moved.mean(axis=0)
        step = max(1.0, (moved**2).sum() / (2 * problem.n * (mean @ mean + eps)))
        x, before = x + step * mean, x
    np.testing.assert_allclose(run.x, (x + before) / 2, rtol=1e-9)


def test_simulate_and_sweep_also_in_processes_of_their_own(address, tmp_path):
    problem = svm()
    algorithms = [fedmls.make(address, eta=eta) for eta in (0.01, 0.03)]
    wanted = [fedmls.simulate(one, problem, rounds=5, batch=0.5).x for one in algorithms]
    for options in ({"jobs": 1}, {"jobs": 2}, {"jobs": 1, "store": tmp_path / "kept"}, {"store": tmp_path / "kept"}):
        runs = fedmls.sweep(algorithms, problem, rounds=5, batch=0.5, progress=False, **options)
        assert [run.algorithm for run in runs] == algorithms
        assert all(np.array_equal(run.x, x) for run, x in zip(runs, wanted, strict=True))


@pytest.mark.processes
def test_another_process_finds_it_by_its_file(address, tmp_path):
    kept = tmp_path / "algorithm.pickle"
    kept.write_bytes(pickle.dumps(fedmls.make(address, eta=0.5)))
    told = f"import pickle; print(pickle.load(open({str(kept)!r}, 'rb')))"
    printed = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True).stdout
    assert printed == "FedExP(eta=0.5, T=10, eps=0.001)\n"


def test_fedmls_run_reads_it_relative_to_the_experiment(file, tmp_path):
    (tmp_path / "mine.toml").write_text("""
rounds = 5
data.name = "breast_cancer_wisconsin"
partition.clients = 3

[[algorithms]]
name = "fedexp.py:FedExP"
eta = [0.0003, 0.001]

[[algorithms]]
name = "compressed"
algorithm = { name = "fedexp.py:FedExP", T = 5 }
""")
    code, told = command("run", tmp_path / "mine.toml", "--out", tmp_path / "out", "--jobs", 1)
    assert code == 0, told
    history = pd.read_parquet(tmp_path / "out" / "history.parquet")
    assert [*dict.fromkeys(history["method"])] == ["FedExP", "FedExP top_k"]
    assert [*dict.fromkeys(history["parameter"])][:2] == ["η = 0.0003", "η = 0.001"]


def test_fedmls_compare_tunes_it_around_its_fair_start(address, tmp_path):
    options = ("--rounds", 10, "--grid", 3, "--seeds", 1, "--jobs", 1, "--out", tmp_path / "out")
    code, told = command("compare", "--algorithms", "fedavg", "--also", address, *options)
    assert code == 0, told
    chosen = pd.read_csv(tmp_path / "out" / "chosen.csv")
    assert {*chosen["method"]} == {"fedavg", address}
    assert "FedExP" in told
    points = pd.read_parquet(tmp_path / "out" / "points.parquet")
    assert points[points["method"] == address]["parameters"].nunique() == 3


def test_a_comparison_of_what_has_no_step_takes_one_point(file):
    text = file.read_text().replace("return cls(eta=0.05 * scale.step)", "return cls()")
    (file.parent / "steady.py").write_text(text)
    assert method_of(f"{file.parent / 'steady.py'}:FedExP").tuned == "nothing"


@pytest.mark.parametrize("how", ["address", "module", "offered"])
def test_estimators_take_its_name_or_an_object(how, request):
    name, problem = request.getfixturevalue(how), svm(m=100)
    X, y = problem.matrix().toarray()[:, :4], problem.y
    for solver in (name, fedmls.make(name, eta=0.01)):
        model = fedmls.FederatedLinearSVC(solver=solver, max_rounds=40, tol=0.5).fit(X, y)
        assert model.score(X, y) > 0.7


def federation(problem, folder, module, **options):
    """A job with the algorithm, and nodes whose rows are those of the problem."""
    X = problem.matrix().toarray()[:, : problem.penalised]
    rows = pd.DataFrame(X, columns=list("abcd")).assign(y=problem.y, client=np.repeat(np.arange(problem.n), 12))
    rows.to_csv(folder / "rows.csv", index=False)
    files = split(folder / "rows.csv", folder / "parts", by="client", label="y", **options)
    Job(algorithm=fedmls.make(module, eta=0.02), rounds=4, batch=0.5).write(folder / "job")
    return [NodeConfig.read(file) for file in files]


def test_a_federation_of_nodes_that_allow_it_ends_with_the_model_of_the_simulation(module, tmp_path):
    problem = svm()
    nodes = federation(problem, tmp_path, module, algorithms=[module])
    assert all(node.algorithms == (module,) for node in nodes)
    result = drive(tmp_path / "job", InProcess(nodes))
    assert np.array_equal(result.x, fedmls.simulate(fedmls.make(module, eta=0.02), problem, rounds=4, batch=0.5).x)


def test_a_node_imports_nothing_at_the_servers_word(module, tmp_path):
    nodes = federation(svm(), tmp_path, module)
    sys.modules.pop(MODULE)
    for name, text in {MODULE: "raise SystemExit('it was run')", "other": "raise SystemExit('it was run')"}.items():
        (tmp_path / "installed" / f"{name}.py").write_text(text)
    inside = {"name": "compressed", "parameters": {"algorithm": {"name": "other:X", "parameters": {}}}}
    for algorithm in ({"name": module}, inside):
        told = ask(nodes[0], {"algorithm": algorithm, "rounds": 4})
        assert 'is not allowed here; add algorithms = ["' in told
    assert "is a file, and nodes run only modules that they can import" in ask(
        nodes[0], {"algorithm": {"name": f"{tmp_path}/installed/other.py:X"}, "rounds": 4}
    )


def ask(config, job):
    """Why the node refuses the job."""
    from fedmls.federation import Message, Node, decode, encode
    from fedmls.federation.messages import Survey

    reply = decode(Node(config).answer(encode(Message("run", 1, 0, Survey(job)))))
    assert reply.kind == "refused"
    return reply.body.why


def test_a_run_says_which_node_does_not_have_it(module, tmp_path):
    nodes = federation(svm(), tmp_path, module)
    with pytest.raises(Stopped, match=f"algorithm '{module}' is not allowed here"):
        drive(tmp_path / "job", InProcess(nodes))


def test_a_node_that_allows_what_is_not_installed_says_so(module, tmp_path):
    nodes = federation(svm(), tmp_path, module, algorithms=["nowhere:X"])
    told = ask(nodes[0], {"algorithm": {"name": "nowhere:X", "parameters": {}}, "rounds": 4})
    assert "there is no module 'nowhere' here; install it" in told


def test_entry_points_are_allowed_everywhere(offered, module):
    assert find_installed(offered) is find_installed(module) is find(module)
    assert names()[-1] == "fedexp"
    assert "bundle, fedexp" in command("list")[1]


def test_a_file_is_no_algorithm_of_a_job(address):
    told = r"is a file, and nodes run only modules .*: set PYTHONPATH to its folder, .*, and call it fedexp:FedExP$"
    with pytest.raises(ValueError, match=told):
        Job(algorithm=fedmls.make(address), rounds=1)
    with pytest.raises(ValueError, match=told):
        Job(algorithm=fedmls.Compressed(algorithm=fedmls.make(address)), rounds=1)
    code, told = command("federate", "--algorithm", address)
    assert code == 2
    assert "set PYTHONPATH to its folder" in told
    code, told = command("federate", "--algorithm", "fedexp:FedExP")
    assert code == 2
    assert "there is no module 'fedexp' here; install it, or set PYTHONPATH to its folder" in told


@pytest.mark.deployed
@pytest.mark.parametrize("engine", ["nvflare", "flower"])
def test_a_real_federation_runs_it(engine, module, tmp_path):
    words = ("--algorithm", module, "--set", "eta=0.001", "--rounds", 3, "--out", tmp_path / "out", "--engine", engine)
    code, told = command("federate", *words)
    assert code == 0, told
    assert len(pd.read_parquet(tmp_path / "out" / "history.parquet")) == 3


WRONG = {
    "fedexp.py:FedExp": "there is no class 'FedExp'; it has FedExP",
    "fedexp.py:Server": "is no class of an algorithm; derive it from Algorithm[Server, Client, Down, Up]",
    "nothing.py:FedExP": "there is no file ",
    "broken.py:FedExP": "cannot be imported (ZeroDivisionError: division by zero); mend it first",
    "no_such_module:FedExP": "there is no module 'no_such_module' here; install it, or set PYTHONPATH to its folder",
    "json:JSONEncoder": "is no class of an algorithm",
    "fedmsl": "unknown algorithm 'fedmsl': did you mean 'fedmls'?",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_found_is_told(name, file, monkeypatch):
    monkeypatch.chdir(file.parent)
    (file.parent / "broken.py").write_text("1 / 0")
    with pytest.raises(ValueError) as error:
        fedmls.make(name)
    assert WRONG[name] in str(error.value)
    assert name in str(error.value)


def test_a_broken_entry_point_is_told(offered, tmp_path):
    (tmp_path / "installed" / f"{MODULE}.py").write_text("1 / 0")
    with pytest.raises(ValueError, match=r"algorithm 'fedexp' cannot be imported \(ZeroDivisionError"):
        find("fedexp")
