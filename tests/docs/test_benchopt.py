"""The benchmark of examples/benchopt, by benchopt itself."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedmls

EXAMPLE = Path(__file__).parents[2] / "examples" / "benchopt"
FILES = {file.relative_to(EXAMPLE) for file in EXAMPLE.rglob("*") if file.is_file() and "__" not in str(file)}


@pytest.fixture
def benchopt(tmp_path):
    """Runs benchopt in a copy of the example, with a home of its own."""
    folder, settings = tmp_path / "benchmark", tmp_path / "benchopt.yml"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__*", "outputs"))
    settings.touch(mode=0o600)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = os.environ | {"HOME": str(tmp_path), "BENCHOPT_CONFIG": str(settings), "PATH": path}

    def call(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "benchopt", *arguments],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return folder, done.stdout

    return call


def test_the_example_is_complete():
    assert FILES == {
        Path("objective.py"),
        Path("datasets/simulated.py"),
        Path("datasets/breast_cancer.py"),
        Path("solvers/fedmls.py"),
        Path("solvers/liblinear.py"),
    }


@pytest.mark.processes
def test_fedmls_and_scikit_learn_come_to_the_same_value(benchopt):
    folder, _ = benchopt(
        *("run", ".", "-n", "12", "--no-plot", "--seed", "0", "--output", "out"),
        *("-d", "Simulated[rows=200,columns=5,n_clients=4]", "-o", "Federated SVM[l2=1.0]"),
        *("-s", "fedmls[algorithm=[fedmlsd,fedavg],batch=0.5]", "-s", "liblinear"),
    )
    table = pd.read_parquet(folder / "outputs" / "out.parquet")
    curves = {name: curve.reset_index() for name, curve in table.groupby("solver_name")}
    ours, fedavg = (curves[f"fedmls[algorithm={name},batch=0.5]"] for name in ("fedmlsd", "fedavg"))
    theirs = curves["liblinear"]
    for curve in (ours, fedavg, theirs):
        assert curve["objective_value"].iloc[0] == pytest.approx(50)  # at 0 each of 200 rows costs 1, over 4 clients
    assert ours["objective_value"].iloc[-1] == pytest.approx(theirs["objective_value"].iloc[-1], rel=0.01)
    assert fedavg["objective_value"].min() < 25
    assert ours["objective_exchanges"].tolist() == ours["stop_val"].tolist()
    assert theirs["objective_exchanges"].eq(0).all()


@pytest.mark.processes
def test_the_real_data_and_the_package_agree_on_the_objective(benchopt):
    folder, _ = benchopt(
        *("run", ".", "-n", "4", "--no-plot", "--seed", "0", "--output", "out"),
        *("-d", "Breast cancer", "-o", "Federated SVM[l2=0.1]", "-s", "fedmls[algorithm=fedmls,batch=1.0]"),
    )
    table = pd.read_parquet(folder / "outputs" / "out.parquet")
    X, y, clients = breast_cancer()
    problem = fedmls.Problem(X, y, clients, "hinge", intercept=False, l2=0.1)
    history = fedmls.simulate(fedmls.FedMLS(lam0="auto"), problem, rounds=int(table["stop_val"].max())).history
    for _, row in table[table["stop_val"] > 0].iterrows():
        objective = history.loc[history["round"] == row["stop_val"], "objective"].item()
        assert row["objective_value"] == pytest.approx(objective, rel=1e-9)


def breast_cancer():
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    order = np.argsort(X @ np.linalg.svd(X, full_matrices=False)[2][0])
    clients = np.empty(len(y), int)
    clients[order] = np.arange(len(y)) * 10 // len(y)
    return X, np.where(y == 1, 1, -1), clients


@pytest.mark.processes
def test_benchopt_finds_nothing_to_complain_about(benchopt):
    _, output = benchopt("test", ".", "--skip-install")
    assert " passed" in output
    assert "failed" not in output
