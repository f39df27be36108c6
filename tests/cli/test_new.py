"""fedmls new and fedmls node: files to begin with, written from what data files hold."""

import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedmls.experiments import spec as specs
from fedmls.experiments.run import Experiment
from fedmls.federation import InProcess, Job, NodeConfig, drive

with warnings.catch_warnings():  # typer takes from click what a newer click warns of
    warnings.simplefilter("ignore", DeprecationWarning)
    from typer.testing import CliRunner

    from fedmls.cli import app


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def patients(m=80, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "patient": [f"p{seed}-{i}" for i in range(m)] if m > 100 else np.arange(m),
            "age": rng.integers(20, 90, m),
            "crp": rng.gamma(2, 4, m).round(2),
            "clinic": rng.choice(["north", "south", "west"], m),
        }
    )
    frame["ill"] = np.where(frame["age"] / 20 + frame["crp"] / 4 + rng.normal(size=m) > 5, "yes", "no")
    frame.loc[[1, 5], "crp"] = np.nan
    return frame


def fedmls(*arguments, code=0):
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == code, done.output
    assert max(map(len, done.output.splitlines())) <= 80 or code
    return done.output


def test_an_experiment_on_a_file_runs_as_it_stands():
    patients(m=150).to_csv("rows.csv", index=False, sep=";", decimal=",")
    said = fedmls("new", "rows.csv")
    assert said == "rows.toml: 150 rows, label 'ill'\nRun it with:\n  fedmls run rows.toml\n"
    text = Path("rows.toml").read_text()
    assert re.search(r'^ignore = \["patient"\] +# patient: 150 different values$', text, re.M)
    assert re.search(r'^categorical = "onehot" +# text: clinic \(3 values\)$', text, re.M)
    assert re.search(r'^missing = "mean" +# gaps: crp \(2\)$', text, re.M)
    assert re.search(r'^decimal = ","', text, re.M)
    assert re.search(r'^by = "kmeans" +# or iid, dirichlet; a column: "clinic"$', text, re.M)
    assert max(map(len, text.splitlines())) <= 80
    data = Experiment(specs.read("rows.toml")).data
    assert data.columns == ("age", "crp", "clinic=north", "clinic=south", "clinic=west")
    assert data.classes == ("no", "yes")
    assert fedmls("new", "rows.csv", code=2) == "error: rows.toml is there already; name another file with --out\n"


@pytest.mark.parametrize(
    ("labels", "loss", "more"),
    [
        (lambda m: np.linspace(0, 1, m), "absolute", {}),
        (lambda m: np.arange(m) % 2, "hinge", {}),
        (lambda m: np.array(list("abc"))[np.arange(m) % 3], "hinge", {"positive": "a"}),
        (
            lambda m: np.where(np.arange(m) < 3, "", np.array(["no", "yes"])[np.arange(m) % 2]),
            "hinge",
            {"missing": "drop"},
        ),
    ],
    ids=["numbers", "0 and 1", "three classes", "rows without a label"],
)
def test_the_loss_is_that_of_the_label(labels, loss, more):
    patients().drop(columns=["patient", "clinic"]).assign(ill=labels(80)).to_csv("rows.csv", index=False)
    fedmls("new", "rows.csv", "--out", "folder/my.toml")
    spec = specs.read("folder/my.toml")
    assert spec.loss.name == loss
    assert {key: spec.data.options[key] for key in more} == more
    assert Experiment(spec).first.n == 5


def test_a_job_on_a_folder_of_files_runs_as_it_stands():
    Path("hospitals").mkdir()
    for seed, name in enumerate(["east", "north"]):
        patients(seed=seed).drop(columns="patient").to_csv(f"hospitals/{name}.csv", index=False)
    said = fedmls("new", "hospitals", "--label", "ill")
    assert said == (
        "2 sites, 160 rows: east, north\nRun it with:\n"
        "  fedmls federate --job hospitals-job/job.toml --parts hospitals-job/parts\n"
    )
    text = Path("hospitals-job/job.toml").read_text()
    assert re.search(r"^loss = \"hinge\" +# label 'ill': no is -1, yes is \+1$", text, re.M)
    assert re.search(r"^impute = true +# gaps become their column's mean: crp \(4\)$", text, re.M)
    assert Job.read("hospitals-job").name == "hospitals-job"
    nodes = sorted(Path("hospitals-job/parts").glob("*.toml"))
    assert [NodeConfig.read(file).ignore for file in nodes] == [(), ()]
    assert re.search(r"^categorical = \"onehot\" +# clinic$", text, re.M)
    result = drive("hospitals-job", InProcess(nodes), resume=False)
    assert len(result.x) == 6  # age, crp, three clinics and the intercept
    again = fedmls("new", "hospitals", "--label", "ill", code=2)
    assert again == "error: hospitals-job is not empty; name another folder\n"


def test_several_files_are_sites():
    for seed, name in enumerate(["east", "north"]):
        patients(seed=seed)[["age", "crp"]].to_csv(f"{name}.csv", index=False)
    fedmls("new", "east.csv", "north.csv", "--out", "my", "--label", "age")
    assert Job.read("my").loss == "absolute"
    patients(seed=3)[["age", "clinic"]].to_csv("west.csv", index=False)
    told = fedmls("new", "east.csv", "west.csv", code=2)
    assert told == (
        "error: the last column is 'crp' in east.csv and 'clinic' in west.csv; name the label column with --label\n"
    )


def test_a_nodes_configuration():
    patients().drop(columns="patient").to_csv("Clinic Süd.csv", index=False)
    said = fedmls("node", "Clinic Süd.csv", "--label", "ill")
    assert said == (
        "Clinic-Sud.toml: node Clinic-Sud, 80 rows, label 'ill'\n"
        "gaps, which a job with impute fills: 'crp' (2)\n"
        "text is in 'clinic' (3 values); a job takes it with categorical = \"onehot\", or\n"
        "  name such columns in ignore\n"
    )
    said = fedmls(*("node", "Clinic Süd.csv", "--ignore", "clinic", "--name", "south", "--out", "nodes/s.toml"))
    assert "refuse" not in said
    config = NodeConfig.read("nodes/s.toml")
    assert (config.name, config.ignore, config.data.resolve()) == (
        "south",
        ("clinic",),
        Path("Clinic Süd.csv").resolve(),
    )


def test_a_node_is_told_all_that_it_would_refuse():
    rows = patients(m=150)
    rows["patient"] = [f"p{i}" for i in range(len(rows))]
    rows.loc[rows.index[4], "ill"] = None
    rows.loc[rows.index[5], "ill"] = "maybe"
    rows.loc[rows.index[6], "crp"] = np.inf
    rows.to_csv("rows.csv", index=False)
    said = " ".join(fedmls("node", "rows.csv", "--label", "ill").split())
    assert "no job can use 'patient' (150 different values): put into ignore, at all sites alike" in said
    assert "1 of 150 rows have no label 'ill'; take them out" in said
    assert "the label 'ill' has 3 values, and losses for classes take two" in said
    assert "as it is, it would refuse: its column 'crp' holds infinite values" in said
    rows.iloc[:1].to_csv("one.csv", index=False)
    said = " ".join(fedmls("node", "one.csv", "--label", "ill").split())
    assert "as it is, it would refuse: it has 1 rows and answers only for at least 5 (min_rows)" in said


def test_what_is_wrong_with_ones_own_file_is_shown_with_its_place():
    Path("rows.csv").write_text("a,b,y\n1,2,0\n1,<5,1\n3,4,0\n")
    for command in ("new", "node"):
        assert fedmls(command, "rows.csv", code=2) == (
            "error: rows.csv: column 'b' holds numbers but for 1 value, such as '<5' in row 2; leave the cell of a "
            "missing value empty, and write numbers like 1234.5\n"
        )
        assert fedmls(command, "none.csv", code=2) == "error: none.csv is not there\n"
        told = "error: rows.csv: there is no column 'z'; there are a, b, y\n"
        assert fedmls(command, "rows.csv", "--label", "z", code=2) == told
    Path("rows.svm").write_text("1 1:2\n")
    told = fedmls("new", "rows.svm", code=2)
    assert told == "error: rows.svm is no CSV or Parquet file, whose columns have names\n"
