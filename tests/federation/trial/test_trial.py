"""``fedmls federate``: with an engine in one process here; and, marked ``deployed``, the command with the real ones."""

import json
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmls
from fedmls import report
from fedmls.checks import setting
from fedmls.federation import InProcess, Job, NodeConfig, Stopped, drive
from fedmls.federation.deploy.processes import marked
from fedmls.federation.node.site import Site
from fedmls.federation.trial import execute as federating
from fedmls.federation.trial import prepare as trials
from fedmls.federation.trial.prepare import Source
from fedmls.results.model import read_model
from fedmls.results.read import read_results
from tests.support.clinics import clinics, patients, with_gaps, write_nodes
from tests.support.federations import wait_until
from tests.support.problems import svm

with warnings.catch_warnings():  # typer takes from click what a newer click warns of
    warnings.simplefilter("ignore", DeprecationWarning)
    from typer.testing import CliRunner

    from fedmls.cli import app


class Deployment:
    """An engine for tests: the nodes in this process."""

    title, megabytes = "One process", 1
    faults: ClassVar = {}  # of the transport
    until = None  # the exchange in which ``error`` is raised
    error: BaseException

    def __init__(self, folder, nodes):
        assert folder.name == "deployment"
        self.nodes, self.open = nodes, False

    @staticmethod
    def check_installed():
        """It is."""

    def __enter__(self):
        self.open = True
        return self

    def __exit__(self, *_):
        self.open = False

    def run(self, job_folder, say):
        assert self.open
        say("the job is on its way")
        kind = type("Stopping", (InProcess,), {"exchange": Deployment._exchange})
        drive(job_folder, kind(self.nodes.values(), **self.faults))

    def _exchange(self, messages, timeout):
        if self.calls + 1 == Deployment.until:
            raise Deployment.error
        return InProcess.exchange(self, messages, timeout)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(trials.ENGINES, "inprocess", Deployment)
    monkeypatch.setattr(Deployment, "faults", {})
    monkeypatch.setattr(Deployment, "until", None)


def job(**options):
    settings = {"algorithm": fedmls.FedMLS(paired=True), "rounds": 6, "batch": 0.3, "seed": 2}
    return Job(**settings | options)


def table(name, labels="text", m=60):
    """A CSV file with a missing value, columns of different scale, and a column for cutting."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(m, 3)) * [1, 10, 100], columns=list("abc"))
    frame.loc[5, "b"] = np.nan
    frame["ward"] = rng.choice(["east", "north", "west"], m)
    frame["y"] = frame["a"] + 0.1 * rng.normal(size=m)
    if labels == "text":
        frame["y"] = np.where(frame["y"] > 0, "ill", "well")
    frame.to_csv(name, index=False)
    return Path(name)


def run(wanted, rows, out="out"):
    said = []
    outcome = federating.run(trials.begin(Path(out), "inprocess", wanted, rows), said.append)
    return outcome, said


def test_the_papers_rows_are_the_default():
    outcome, said = run(job(rounds=5), Source())
    with np.load("out/model.npz") as model:
        assert list(model["columns"]) == list(fedmls.datasets.BREAST_CANCER_COLUMNS)
        assert list(model["classes"]) == ["benign", "malignant"]
    X, y = fedmls.datasets.breast_cancer_wisconsin()
    problem = fedmls.Problem(X, y, clients=fedmls.partition.kmeans(X, 3, seed=2))
    expected = fedmls.simulate(outcome.trial.job.algorithm, problem, rounds=5, batch=0.3, seed=2, optimum=None)
    assert outcome.last["objective"] == pytest.approx(expected.history["objective"].iloc[-1], rel=1e-12)
    assert outcome.difference == 0
    assert {file.name for file in Path("out").iterdir()} == {
        *("checkpoint", "events.jsonl", "history.parquet", "job.toml", "lock", "model.npz", "model.json", "setup.json"),
        *("parts", "summary.csv", "summary.md", "summary.tex", "trial.json"),
    }
    assert "the job is on its way" in said
    lines = [line.split() for line in said]
    kinds = [line[1] for line in lines if line[0].isdigit()]
    assert kinds == ["survey", "begin", "2", "4", "5", "close"]
    assert float(lines[-1][2]) == pytest.approx(outcome.last["objective"], rel=1e-5)


def test_the_folder_is_one_that_a_report_reads():
    trials.split(table("rows.csv"), "parts", by="ward", label="y")
    trial = trials.begin(Path("out"), "inprocess", job(), Source(parts=Path("parts")), "fedmls federate --parts parts")
    federating.run(trial, print)
    found = read_results(Path("out"))
    assert set(found.history["method"]) == set(found.summary["method"]) == {"FedMLS"}
    assert set(found.history["variant"]) == {""}
    assert set(found.history["parameter"]) == set(found.history["parameters"]) == {"paired=True"}
    assert list(found.history["round"]) == [1, 2, 3, 4, 5, 6]
    assert found.summary["objective"][0] == found.history["objective"].iloc[-1]
    setup, rows = found.setup, pd.read_csv("rows.csv")
    assert setup["command"] == "fedmls federate --parts parts"
    assert setup["title"] == "3 nodes over One process"
    assert setup["spec"] == setup["job"] == trial.job.to_dict()
    assert setup["problem"] | {"rows": 60, "coordinates": 4, "loss": "hinge", "clients": 3} == setup["problem"]
    counts = rows.groupby(["ward", "y"]).size()
    assert [(one["client"], one["classes"]) for one in setup["partition"]] == [
        (ward, {label: counts[ward, label] for label in ("ill", "well")}) for ward in ["east", "north", "west"]
    ]
    assert report.write([Path("out")]).exists()


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({}, {"by": "ward"}),
        ({"standardise": True, "weights": "rows"}, {"by": "iid", "nodes": 4, "ignore": ("ward",)}),
        ({"loss": "absolute", "l2": 0.1, "standardise": True}, {"by": "ward", "labels": "numbers"}),
        ({"nodes": ["east", "west"], "impute": True}, {"by": "ward"}),
        ({"algorithm": fedmls.FedAvg(participants=2), "reduction": "mean", "intercept": False}, {"by": "ward"}),
        ({"certificate": 5.0, "until": 1e9}, {"by": "ward"}),
        ({"secure": True, "standardise": True, "reduction": "mean"}, {"by": "ward"}),
    ],
    ids=["plain", "standardised", "regression", "some nodes", "participants", "proved", "secure"],
)
def test_the_simulation_is_of_the_same_rows_prepared_alike(options, rows):
    rows = dict(rows)
    file = table("rows.csv", rows.pop("labels", "text"))
    outcome, _ = run(job(**options), Source(file=file, label="y", **rows))
    assert outcome.difference <= 1e-12
    assert outcome.notes == []
    assert federating.summary(outcome)[-1].startswith("difference to the simulation of the same seed: ")


@pytest.mark.parametrize("secure", [False, True])
def test_held_out_rows_are_left_out_of_the_simulation_too(secure):
    if secure:
        pytest.importorskip("cryptography")
    file = table("rows.csv", m=120)
    wanted = job(holdout=0.25, standardise=True, weights="rows", secure=secure)
    outcome, said = run(wanted, Source(file=file, label="y", by="iid", nodes=3, ignore=("ward",)))
    assert outcome.difference <= 1e-12
    assert outcome.trial.problem.y.size == 90
    assert outcome.held_out.together.rows == 30
    shown = federating.summary(outcome)
    assert shown[1].startswith(f"30 held-out rows: accuracy {outcome.held_out.together.values['accuracy']:.3f}, ")
    assert [line.split()[1] for line in said if line.split()[0].isdigit()][-1] == "score"
    _, _, after = report.write([Path("out")]).read_text().partition("On held-out rows")
    section = after.partition("</section>")[0]
    assert '<th scope="row">all</th><td class="number">30</td>' in section
    assert ("site-2" in section) != secure


def test_nodes_that_hold_out_rows_by_themselves_agree_with_the_simulation():
    trials.split(table("rows.csv", m=120), "parts", by="iid", clients=3, label="y", ignore=["ward"])
    marked_rows = pd.read_csv("parts/site-2.csv").assign(test=[1] * 10 + [0] * 30)
    marked_rows.to_csv("parts/site-2.csv", index=False)
    with Path("parts/site-2.toml").open("a") as file:
        file.write('holdout = "test"\n')
    outcome, _ = run(job(holdout=True), Source(parts=Path("parts")))
    assert outcome.difference <= 1e-12
    assert {name: scores.rows for name, scores in outcome.held_out.nodes.items()} == {
        "site-1": 0,
        "site-2": 10,
        "site-3": 0,
    }


def test_sparse_rows():
    problem = svm(n=1, m=40)
    X, lines = problem.matrix().toarray()[:, : problem.penalised], []
    for row, label in zip(X, problem.y, strict=True):
        lines.append(
            f"{label:g} " + " ".join(f"{j + 1}:{value!r}" for j, value in enumerate(row.tolist()) if value > 0)
        )
    Path("rows.svm").write_text("\n".join(lines) + "\n")
    outcome, _ = run(job(), Source(file=Path("rows.svm"), by="iid", nodes=2))
    assert not isinstance(outcome.trial.problem.X, np.ndarray)
    assert outcome.difference <= 1e-12


def test_a_folder_of_parts():
    trials.split(table("rows.csv"), "parts", by="ward", label="y")
    outcome, _ = run(job(), Source(parts=Path("parts")))
    assert outcome.difference == 0
    assert list(outcome.trial.nodes) == ["east", "north", "west"]
    assert not Path("out/parts").exists()


def hospitals(folder="hospitals", town=False):
    """Six files as hospitals send them: columns in another order, a mark at the beginning, semicolons, commas, gaps."""
    rng = np.random.default_rng(0)
    Path(folder).mkdir()
    frames = []
    for i, name in enumerate(["Orléans", "St. Mary's", "east", "north", "south", "3"]):
        m = 30 + 5 * i
        frame = pd.DataFrame({"age": rng.integers(20, 90, m), "dose": rng.normal(5, 2, m).round(2)})
        frame["ill"] = np.where(frame["age"] / 20 + frame["dose"] + rng.normal(size=m) > 8, "yes", "no")
        frame.loc[3, "dose"] = np.nan
        if town:
            frame["town"] = rng.choice(["Paris", "Rome"] if i else ["Rome"], m)
        frames.append(frame)
        frame = frame[list(frame.columns[::-1])] if i % 2 else frame
        odd = {"sep": ";", "encoding": "utf-8-sig"} if i == 2 else {}
        if i == 4:
            frame.to_parquet(f"{folder}/{name}.parquet")
        else:
            frame.to_csv(f"{folder}/{name}.csv", index=False, **odd)
    return frames


def test_a_file_for_each_site():
    frames = hospitals()
    Path("hospitals/about.txt").touch()
    outcome, _ = run(job(), Source(parts=Path("hospitals"), label="ill"))
    assert list(outcome.trial.nodes) == ["Orleans", "St-Mary-s", "east", "north", "site-3", "south"]
    assert outcome.difference == 0
    rows = pd.concat([frames[i] for i in (0, 1, 2, 3, 5, 4)])
    problem = outcome.trial.problem
    X = fedmls.datasets.impute_means(rows[["age", "dose"]])
    np.testing.assert_allclose(problem.X[:, :2], X, rtol=1e-12)
    np.testing.assert_array_equal(problem.y, np.where(rows["ill"] == "yes", 1, -1))
    assert outcome.trial.notes == (
        "sites: Orleans (30 rows), St-Mary-s (35 rows), east (40 rows), north (45 rows), site-3 (55 rows), south (50 "
        "rows); no is -1, yes is +1",
        "6 gaps are filled with the column's mean over all sites (impute): 'dose' (6)",
        "not read in hospitals: about.txt",
    )
    assert sorted(file.name for file in Path("out/parts").glob("*.csv")) == []  # the rows stay where they are
    assert trials.reopen(Path("out"), None, {"rounds": 8}).nodes["east"] == Path("out/parts/east.toml")


def test_some_files_one_by_one_and_a_column_of_text():
    hospitals(town=True)
    files = [Path("hospitals/east.csv"), Path("hospitals/south.parquet")]
    told = "node east refuses: its column 'town' holds no numbers; set categorical = \"onehot\" in the job"
    with pytest.raises(ValueError, match=re.escape(told)):
        trials.begin(None, "inprocess", job(), Source(parts=files, label="ill"))
    trial = trials.begin(None, "inprocess", job(), Source(parts=files, label="ill", ignore=("town",)))
    assert list(trial.nodes) == ["east", "south"]


def test_a_column_that_one_site_alone_has_may_be_ignored():
    hospitals()
    frame = pd.read_csv("hospitals/north.csv").assign(ward="B")
    frame.to_csv("hospitals/north.csv", index=False)
    with pytest.raises(ValueError, match="node north refuses: its column 'ward' holds no numbers"):
        trials.begin(None, "inprocess", job(), Source(parts=Path("hospitals"), label="ill"))
    frame.assign(ward=1).to_csv("hospitals/north.csv", index=False)
    with pytest.raises(ValueError, match="node north has 'ward'; the others have 'age', 'dose'"):
        trials.begin(None, "inprocess", job(), Source(parts=Path("hospitals"), label="ill"))
    trial = trials.begin(None, "inprocess", job(), Source(parts=Path("hospitals"), label="ill", ignore=("ward",)))
    assert trial.problem.penalised == 2


@pytest.mark.filterwarnings("ignore:the certificate is void")  # of the server, which is in this process here
def test_what_the_simulation_warns_of_is_told():
    wanted = job(rounds=60, certificate=1e-3, standardise=True)
    outcome, _ = run(wanted, Source(file=table("rows.csv"), label="y", by="ward"))
    assert [note for note in federating.summary(outcome) if note.startswith("the certificate is void")]


def test_with_privacy_there_is_nothing_to_compare_with():
    pytest.importorskip("dp_accounting", reason="privacy needs an accountant: pip install 'fedmls[privacy]'")
    private = {"privacy": {"clip": 0.5, "noise": 5.0}, "report_objective": False, "impute": False}
    wanted = Job.from_dict(job().to_dict() | private)
    frame = pd.read_csv(table("rows.csv")).dropna()
    frame.to_csv("rows.csv", index=False)
    outcome, said = run(wanted, Source(file=Path("rows.csv"), label="y", by="ward"))
    assert "noise that nobody else knows" in outcome.difference
    assert outcome.epsilon == pytest.approx(wanted.privacy.epsilon(6))
    assert any(line.startswith("privacy: ε = ") for line in said)
    assert "objective –" in federating.summary(outcome)[0]


def test_a_run_that_went_on_without_a_node_is_not_compared(monkeypatch):
    lost = {("north", call) for call in range(3, 40)}
    monkeypatch.setattr(Deployment, "faults", {"drop": lost})
    algorithm = fedmls.FedAvg(participants=2)
    outcome, said = run(
        job(algorithm=algorithm, on_missing="without"), Source(file=table("r.csv"), label="y", by="ward")
    )
    assert "without north" in outcome.difference
    assert any(line.startswith("without north: does not answer") for line in said)


def test_a_node_that_is_waited_for_is_named_once(monkeypatch):
    monkeypatch.setattr(Deployment, "faults", {"drop": {("north", call) for call in (3, 4, 6)}})
    outcome, said = run(job(), Source(file=table("r.csv"), label="y", by="ward"))
    assert [line.partition(":")[0] for line in said].count("waiting for north") == 2  # exchange 3 twice, then 4
    assert outcome.difference == 0


@pytest.mark.parametrize("until", [1, 2, 3, 5])
def test_a_run_that_was_stopped_goes_on_to_the_same_model(monkeypatch, until):
    trial = trials.begin(Path("out put"), "inprocess", job(), Source(file=table("r.csv"), label="y", by="ward"))
    monkeypatch.setattr(Deployment, "until", until)
    monkeypatch.setattr(Deployment, "error", KeyboardInterrupt(), raising=False)
    with pytest.raises(KeyboardInterrupt, match="go on with: fedmls federate --resume --out 'out put'") as stopped:
        federating.run(trial, print)
    done = "nothing was done yet" if until <= 2 else f"{2 * (until - 3)} rounds in {until - 1} exchanges are kept"
    assert f"taken down; {done}; go on" in str(stopped.value)
    monkeypatch.setattr(Deployment, "until", None)
    said = []
    outcome = federating.run(trials.reopen(Path("out put"), None, {}), said.append)
    assert outcome.difference == 0
    numbers = [int(line.split()[0]) for line in said if line.split()[0].isdigit()]
    assert numbers == list(range(1 if until <= 2 else until, 7))


def test_a_run_that_has_ended_goes_on_to_more_rounds():
    run(job(), Source(file=table("r.csv"), label="y", by="ward"))
    for rounds in (None, 6, 5):
        with pytest.raises(ValueError, match="has done 6 rounds; a larger --rounds"):
            trials.reopen(Path("out"), None, {"rounds": rounds})
    outcome = federating.run(trials.reopen(Path("out"), None, {"rounds": 9, "until": None}), print)
    assert outcome.last["round"] == 9
    assert outcome.difference == 0


def test_other_pairs_of_rounds_are_not_compared():
    """With lam0="auto" it matters which two rounds are done together."""
    wanted = job(rounds=5, algorithm=fedmls.FedMLS(lam0="auto", paired=True))
    run(wanted, Source(file=table("r.csv"), label="y", by="ward"))
    outcome = federating.run(trials.reopen(Path("out"), None, {"rounds": 8}), print)
    assert "taken further after round 5" in outcome.difference


def test_a_run_that_was_proved_has_ended():
    run(job(certificate=5.0, until=1e9), Source(file=table("r.csv"), label="y", by="ward"))
    for until in (None, 1e9, 2e9):
        with pytest.raises(ValueError, match="its gap was proved"):
            trials.reopen(Path("out"), None, {"rounds": 100, "until": until})


def test_a_run_that_was_proved_goes_on_to_a_smaller_gap():
    run(job(certificate=5.0, until=1e9), Source(file=table("r.csv"), label="y", by="ward"))
    outcome = federating.run(trials.reopen(Path("out"), None, {"until": 1e-9}), print)
    assert outcome.last["round"] == 6
    assert json.loads(Path("out/setup.json").read_text())["status"] == "finished"
    assert outcome.difference == 0


def test_sigterm_and_failures_say_what_is_kept(monkeypatch, capsys):
    trial = trials.begin(Path("out"), "inprocess", job(), Source(file=table("r.csv"), label="y", by="ward"))
    monkeypatch.setattr(Deployment, "until", 4)
    monkeypatch.setattr(Deployment, "error", SystemExit(143), raising=False)
    with pytest.raises(SystemExit) as left:
        federating.run(trial, print)
    assert left.value.code == 143
    assert "2 rounds in 3 exchanges are kept; go on with" in capsys.readouterr().err
    monkeypatch.setattr(Deployment, "until", 1)
    monkeypatch.setattr(Deployment, "error", RuntimeError("the server is gone"), raising=False)
    with pytest.raises(
        Stopped, match=r"(?s)^the server is gone.2 rounds in 3 exchanges are kept; once that is mended, go on"
    ):
        federating.run(trials.reopen(Path("out"), None, {}), print)


def test_a_line_that_a_killed_server_left_half_written(monkeypatch):
    trial = trials.begin(Path("out"), "inprocess", job(), Source(file=table("r.csv"), label="y", by="ward"))
    monkeypatch.setattr(Deployment, "until", 4)
    monkeypatch.setattr(Deployment, "error", KeyboardInterrupt(), raising=False)
    with pytest.raises(KeyboardInterrupt):
        federating.run(trial, print)
    with Path("out/events.jsonl").open("a") as file:
        file.write('{"time": 12')
    monkeypatch.setattr(Deployment, "until", None)
    outcome = federating.run(trials.reopen(Path("out"), None, {}), print)
    assert outcome.last["round"] == 6
    assert outcome.difference == 0


def test_a_run_whose_results_are_not_written_has_not_ended(monkeypatch):
    """As when the server is killed after the last exchange."""
    trial = trials.begin(Path("out"), "inprocess", job(), Source(file=table("r.csv"), label="y", by="ward"))
    federating.run(trial, print)
    assert "had come to its end" in federating.kept(trial)
    for name in ("setup.json", "model.npz", "history.parquet"):
        Path("out", name).unlink()
    assert "go on with" in federating.kept(trial)
    outcome = federating.run(trials.reopen(Path("out"), None, {}), print)
    assert outcome.difference == 0
    assert federating.summary(outcome)


def test_folders_without_a_name_are_numbered():
    rows = Source(file=table("r.csv"), label="y", by="ward")
    for number in (1, 2):
        assert trials.begin(None, "inprocess", job(), rows).folder == Path(f"results/federation-{number}")
    Path("results/federation-old").mkdir()
    shutil.rmtree("results/federation-1")
    assert trials.reopen(None, None, {}).folder == Path("results/federation-2")
    assert trials.begin(None, "inprocess", job(), rows).folder == Path("results/federation-3")


def test_a_job_of_options():
    made = trials.make_job(None, None, (), {"rounds": None, "seed": 4})
    assert made.algorithm == fedmls.FedMLSB()
    assert made.certificate is True  # it costs nothing
    assert (made.rounds, made.seed, made.batch) == (10, 4, 0.1)
    assert trials.make_job(None, "fedmls", (), {}).algorithm == fedmls.FedMLS(lam0="auto", paired=True)
    settings = ("T=[3, 9]", "output=last", "paired=False", "lam0=2", "lam={power = [0.5, -0.5]}")
    made = trials.make_job(None, "fedmls", settings, {})
    assert made.algorithm == fedmls.FedMLS(T=(3, 9), output="last", lam0=2.0, lam=fedmls.Power(0.5, -0.5))
    assert trials.make_job(None, "fedavg", ("eta0=0.5",), {}).algorithm == fedmls.FedAvg(eta0=0.5)


def test_options_win_over_the_jobs_file():
    Path("job.toml").write_text(
        'rounds = 7\nl2 = 0.5\nname = "mine"\n[algorithm]\nname = "scaffold"\n[algorithm.parameters]\neta0 = 0.1\n'
    )
    made = trials.make_job(Path("job.toml"), None, ("option=I",), {"rounds": 9})
    assert made == Job(algorithm=fedmls.Scaffold(eta0=0.1, option="I"), rounds=9, l2=0.5, name="mine")
    assert trials.make_job(Path("job.toml"), "fedmls", ("lam0=3",), {}).algorithm == fedmls.FedMLS(lam0=3, paired=True)


def test_a_jobs_file_may_leave_out_what_options_say():
    Path("job.toml").write_text("l2 = 0.5\n")
    assert trials.make_job(Path("job.toml"), None, (), {}) == Job(algorithm=fedmls.FedMLSB(), rounds=10, l2=0.5)
    made = trials.make_job(Path("job.toml"), "fedavg", ("eta0=0.5",), {"rounds": 3})
    assert made == Job(algorithm=fedmls.FedAvg(eta0=0.5), rounds=3, l2=0.5)
    with pytest.raises(ValueError, match=r"^job\.toml: the job has no 'algorithm'"):  # by itself it is none
        Job.read("job.toml")


@pytest.mark.parametrize(
    "algorithm", ['algorithm = "fedavg"', 'algorithm = { name = "fedavg" }', '[algorithm]\nname = "fedavg"']
)
def test_an_algorithm_without_parameters_may_be_its_name_alone(algorithm):
    Path("job.toml").write_text(f"rounds = 3\n{algorithm}\n")
    assert Job.read("job.toml") == Job(algorithm=fedmls.FedAvg(), rounds=3)
    assert trials.make_job(Path("job.toml"), None, ("eta0=0.5",), {}).algorithm == fedmls.FedAvg(eta0=0.5)
    assert trials.make_job(Path("job.toml"), "fedmls", (), {}).algorithm == fedmls.FedMLS(lam0="auto", paired=True)


def test_an_algorithm_that_is_neither_name_nor_table_is_refused():
    Path("job.toml").write_text("rounds = 3\nalgorithm = 7\n")
    with pytest.raises(ValueError, match=r"^job\.toml: algorithm is 7; give its name, or a table with name and"):
        trials.make_job(Path("job.toml"), None, ("eta0=1",), {})
    assert trials.make_job(Path("job.toml"), "fedavg", (), {}).algorithm == fedmls.FedAvg()


def test_the_parameter_of_a_loss_is_an_option():
    table("rows.csv", labels="numbers")
    arguments = (
        "--engine inprocess --data rows.csv --label y --ignore ward --by iid --rounds 2 --out out --loss pinball"
    )
    done = CliRunner().invoke(app, ["federate", *arguments.split(), "--loss-parameter", "0.9"])
    assert done.exit_code == 0, done.output
    assert Job.read("out").get_loss() == fedmls.losses.get_loss("pinball", 0.9)


def test_the_example_is_the_job_that_runs_without_one():
    done = CliRunner().invoke(app, ["federate", "--example"])
    assert done.exit_code == 0, done.output
    assert max(map(len, done.output.splitlines())) <= 80
    Path("job.toml").write_text(done.output)
    default = trials.make_job(None, None, (), {})
    assert trials.make_job(Path("job.toml"), None, (), {}) == default
    shown = dict(re.findall(r"^# (\w+) = (\S+)", done.output, re.M))
    for key in {*shown} - {"loss_parameter", "until", "name", "lam0", "categorical", "holdout"}:
        assert getattr(default, key) == tomllib.loads(f"value = {shown[key]}")["value"], key
    whole = done.output.partition("# In place of")[0].replace('\nalgorithm = "fedmlsb"', "")
    Path("job.toml").write_text(whole + done.output[done.output.index("# [algorithm]") :].replace("# ", ""))
    assert trials.make_job(Path("job.toml"), None, (), {}).algorithm == fedmls.FedMLS(lam0=1.0)


@given(st.one_of(st.integers(1, 10**6), st.floats(1e-300, 1e300), st.booleans(), st.sampled_from(["last", "best"])))
def test_values_of_settings_are_what_they_look_like(value):
    text = value if isinstance(value, str) else json.dumps(value)
    assert setting(f" name = {text} ", "") == ("name", value)


BAD = {
    "--nodes 0": "nodes is 0; it must be a whole number",
    "--nodes 40 --data rows.csv --label y --ignore ward": "ask for fewer nodes, or cut by iid",
    "--engine gloo": "unknown engine 'gloo': choose from nvflare, flower",
    "--data rows.csv --label wart": "unknown column 'wart': did you mean 'ward'?",
    "--data rows.csv --label y": "'ward' holds no numbers; set categorical = \"onehot\" in the job (--categorical",
    "--data rows.csv --label c --by ward --ignore y": "label column has",
    "--data nothing.csv": "nothing.csv is not there",
    "--data rows.csv --by wart": "unknown way to cut, or column, 'wart': did you mean 'ward'?",
    "--by class --nodes 3": "leave out --nodes",
    "--parts . --nodes 3": "leave out --nodes",
    "--parts full": "full holds no file of rows (.csv, .csv.gz or .parquet); there must be one for each site",
    "--parts full/file": "full/file is no file of rows",
    "--parts nothing": "nothing is not there; name a folder",
    "--parts rows.csv --label yy": "rows.csv: there is no column 'yy'; did you mean 'y'? there are a, b, c, ward, y",
    "--parts rows.csv --parts ./rows.csv": "rows.csv is named twice",
    "--parts rows.csv rows.csv": "rows.csv is named twice",
    "--parts rows.csv --ignore wart": "no file has the column 'wart' of ignore; rows.csv has a, b, c, ward, y",
    "--parts rows.csv jobs/other.csv": "the last column is 'y' in rows.csv and 'b' in other.csv; name the label column "
    "with --label",
    "--parts jobs/sites --label y": "the nodes in jobs/sites have configurations (*.toml), which say it; leave out "
    "--label",
    "--decimal ,": "--decimal is of a file",
    "--label y": "--label is of a file",
    "--algorithm fedmlsd --set lam_0=1": "unknown parameter of FedMLSD 'lam_0': did you mean 'lam0'?",
    "--job jobs/private.toml --algorithm fedmls": "lam0 is 'auto', for which clients send more than privacy covers",
    "--job jobs/private.toml --algorithm fedmlsd": "fedmlsd does not go with privacy; take one of fedmls, ",
    "--set lam0": "write name=value",
    "--algorithm fedmsl": "unknown algorithm 'fedmsl': did you mean 'fedmls'?",
    "--algorithm fedmlsp --set participants=4": "participants is 4, but there are 3 clients",
    "--algorithm fedavg --certificate 3": "fedavg makes no certificate",
    "--algorithm fedmls --until 0.1": "add certificate",
    "--job nothing.toml": "there is no such file",
    "--out full": "full is not empty; name another folder",
    "--out rows.csv": "rows.csv is a file; name a folder",
    "--out rows.csv/out": "rows.csv is a file; name a folder",
    "--out a'b": "NVFlare takes no spaces or quotes in a path",
    "--resume --out full": "holds no run of fedmls federate",
    "--resume": "there is no run in results",
    "--resume --batch 0.5": "leave out --batch",
    "--nodes 60000 --by iid --data many.csv --label y --ignore ward": "of memory",
}


@pytest.mark.parametrize("arguments", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(arguments, monkeypatch):
    monkeypatch.setattr("fedmls.federation.deploy.base.find_spec", lambda name: name)
    table("rows.csv")
    Path("jobs").mkdir()
    Path("jobs/private.toml").write_text(
        'rounds = 3\nreport_objective = false\nimpute = false\nalgorithm = { name = "fedavg" }\n'
        "privacy = { clip = 0.5, noise = 5.0 }\n"
    )
    Path("jobs/other.csv").write_text("a,y,b\n1,2,3\n")
    Path("jobs/sites").mkdir()
    Path("jobs/sites/a.toml").touch()
    Path("full").mkdir()
    Path("full/file").touch()
    if "many.csv" in arguments:
        monkeypatch.setattr(trials.ENGINES["nvflare"], "megabytes", 10**6)
        table("many.csv")
        arguments = arguments.replace("60000", "4")
    before = sorted(Path().rglob("*"))
    done = CliRunner().invoke(app, ["federate", *arguments.split()])
    assert done.exit_code == 2
    assert done.output.count("\n") == 1
    assert done.output.startswith("error: ")
    assert BAD.get(arguments, "of memory") in done.output
    assert sorted(Path().rglob("*")) == before


def test_the_folder_of_another_run_is_left_alone():
    rows = Source(file=table("r.csv"), label="y", by="ward")
    run(job(), rows)
    with pytest.raises(ValueError, match="out holds a run already; go on with it by --resume"):
        trials.begin(Path("out"), "inprocess", job(), rows)
    assert Path("out/model.npz").exists()


@pytest.mark.parametrize("name", ["nvflare", "flower"])
def test_an_engine_that_is_missing_is_one_line(name, monkeypatch):
    monkeypatch.setattr("fedmls.federation.deploy.base.find_spec", lambda _: None)
    done = CliRunner().invoke(app, ["federate", "--engine", name])
    assert done.output == f"error: {trials.ENGINES[name].title} is not installed; pip install 'fedmls[{name}]'\n"


def test_until_needs_no_more_than_itself_where_the_algorithm_proves(tmp_path):
    assert trials.make_job(None, None, [], {"until": 0.05}).certificate is True
    (tmp_path / "job.toml").write_text('name = "a"\nrounds = 5\nuntil = 0.1\n[algorithm]\nname = "fedmlsb"\n')
    assert Job.read(tmp_path).certificate is True
    with pytest.raises(ValueError, match=r"^until is 0.05, which takes a proof; add certificate"):
        trials.make_job(None, "fedmls", [], {"until": 0.05})


def test_the_command_from_begin_to_end(monkeypatch):
    table("rows.csv")
    arguments = "--engine inprocess --data rows.csv --label y --by ward --rounds 4"
    monkeypatch.setattr(sys, "argv", ["fedmls", "federate", *arguments.split()])
    done = CliRunner().invoke(app, ["federate", *arguments.split()])
    assert done.exit_code == 0, done.output
    assert "certified gap" in done.output
    assert "4 rounds of FedMLS-B in 7 exchanges: objective" in done.output  # one to ask for f at a model ahead
    assert re.search(r"objective [0-9.]+, certified gap [0-9.e-]+\n", done.output)
    told = "To predict: fedmls predict results/federation-1 NEW.csv --out predictions.csv"
    assert f"the same seed: 0 (equal to the last bit)\n{told}\nFiles:\n" in done.output
    assert "results/federation-1/history.parquet" in done.output
    again = CliRunner().invoke(app, ["federate", "--resume", "--rounds", "6"])
    assert again.exit_code == 0, again.output
    assert "6 rounds of FedMLS-B in 10 exchanges" in again.output  # f at the model ahead is asked for again
    assert read_results(Path("results/federation-1")).setup["command"] == f"fedmls federate {arguments}"


def test_the_command_on_a_file_for_each_site():
    hospitals()
    files = sorted(map(str, Path("hospitals").iterdir()))
    arguments = [
        "--engine",
        "inprocess",
        "--label",
        "ill",
        "--rounds",
        "3",
        "--parts",
        *files,
    ]  # as a shell's * gives them
    done = CliRunner().invoke(app, ["federate", *arguments])
    assert done.exit_code == 0, done.output
    assert done.output.startswith(
        "sites: Orleans (30 rows), St-Mary-s (35 rows), east (40 rows), north (45 rows),\n"
        "  site-3 (55 rows), south (50 rows); no is -1, yes is +1\n"
        "6 gaps are filled with the column's mean over all sites (impute): 'dose' (6)\n"
    )
    assert "difference to the simulation of the same seed: 0 (equal to the last bit)" in done.output
    again = CliRunner().invoke(app, ["federate", "--resume", *files])
    assert again.output == "error: with --resume the job is that of the run; leave out --parts\n"


def held_out_accuracy(folder):
    """The share of held-out rows that a trial's model predicts rightly, by NumPy from the nodes' files."""
    wanted, model, right = Job.read(folder), read_model(folder), []
    nodes = trials.node_files(folder / "parts", wanted)
    survey = trials.survey_of(wanted, trials.answers_of(wanted, nodes))
    for file in nodes.values():
        rows = Site(NodeConfig.read(file)).divided(wanted).held_out
        X = np.where(np.isnan(rows.X), survey.means, rows.X)
        right.append((X @ model.x[:-1] + model.x[-1] > 0) == (rows.y == model.classes[1]))
    return np.concatenate(right).mean()


def deployed(name, *values):
    missing = find_spec(trials.ENGINES[name].package) is None
    reason = f"{trials.ENGINES[name].title} is not installed: pip install 'fedmls[{name}]'"
    marks = [pytest.mark.deployed, pytest.mark.skipif(missing, reason=reason)]
    return pytest.param(name, *values, marks=marks)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("engine", "rounds", "kind"), [deployed("nvflare", 100, signal.SIGKILL), deployed("flower", 6, signal.SIGINT)]
)
def test_a_real_federation_that_is_broken_off_goes_on(engine, rounds, kind, tmp_path):
    """Ctrl-C or kill -9 after the first rounds, nothing is left, and --resume ends in the model of the simulation."""
    command = [sys.executable, "-m", "fedmls.cli", "federate"]
    options = ["--engine", engine, "--nodes", "2", "--rounds", str(rounds), "--algorithm", "fedmls"]
    options += ["--holdout", "0.2"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as first:
        said = []
        for line in first.stdout:
            said.append(line)
            if re.match(r" +3 +2 ", line):
                first.send_signal(kind)
                break
        rest = first.communicate(timeout=120)[0]
    folder = tmp_path / "results" / "federation-1" / "deployment"
    if kind == signal.SIGINT:
        assert first.returncode == 130, "".join(said) + rest
        assert "go on with: fedmls federate --resume --out results/federation-1" in rest
    else:
        assert first.returncode == -kind, "".join(said) + rest
        wait_until(lambda: not marked(f"{folder}|"))  # the guard ends what is left, a moment later
    assert not marked(f"{folder}|")
    assert {file.name for file in folder.iterdir()} == {"lock", "logs"}  # the keys are gone
    again = subprocess.run([*command, "--resume"], capture_output=True, text=True, timeout=300, check=False)
    assert again.returncode == 0, again.stderr
    assert f"{rounds} rounds of FedMLS in {4 + rounds // 2} exchanges" in again.stdout
    accuracy = held_out_accuracy(tmp_path / "results" / "federation-1")
    assert f"\n140 held-out rows: accuracy {accuracy:.3f}, balanced accuracy " in again.stdout
    [difference] = re.findall(r"simulation of the same seed: (\S+)", again.stdout)
    assert float(difference) <= 1e-12
    assert not marked(f"{folder}|")


def from_files_to_predictions(command, engine):
    """Six clinics, whose files say the same in six ways: train over the engine, and predict for new rows."""
    write_nodes(clinics(Path("clinics")))
    with_gaps(patients(100, seed=50)).drop(columns="ill").to_csv("new.csv", index=False)
    options = ["--parts", "clinics", "--categorical", "onehot", "--rounds", "6", "--engine", engine]
    told = command("federate", *options, "--out", "results/ill")
    assert "difference to the simulation of the same seed: 0 (equal to the last bit)" in told
    assert command("predict", "results/ill", "new.csv", "--out", "out.csv") == "100 predictions in out.csv\n"
    found = pd.read_csv("out.csv")
    assert found["prediction"].tolist() == fedmls.load("results/ill").predict(pd.read_csv("new.csv")).tolist()
    assert np.mean(found["prediction"] == patients(100, seed=50)["ill"]) > 0.7


def test_from_six_files_to_predictions():
    def command(*arguments):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
        return done.stdout

    from_files_to_predictions(command, "inprocess")


def test_with_secure_sums_levels_move_together_and_scores_do_not():
    write_nodes(clinics(Path("clinics")))
    wanted = job(algorithm=fedmls.FedMLSB(), categorical="onehot", secure=True, standardise=True, rounds=10)
    outcome, _ = run(wanted, Source(parts=Path("clinics")))
    assert outcome.difference < 1e-10


@pytest.mark.processes
@pytest.mark.parametrize("engine", [deployed("nvflare"), deployed("flower")])
def test_from_six_files_to_predictions_over_a_real_engine(engine):
    def command(*arguments):
        call = [sys.executable, "-m", "fedmls", *arguments]
        done = subprocess.run(call, capture_output=True, text=True, timeout=400, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    from_files_to_predictions(command, engine)
