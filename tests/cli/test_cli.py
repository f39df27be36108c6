"""The command line as a user meets it, and the paper's experiment in small."""

import os
import re
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pandas as pd
import pytest
from matplotlib import image

from fedmls.datasets import BREAST_CANCER_COLUMNS
from fedmls.experiments import paper
from fedmls.experiments.run import Experiment
from fedmls.results.read import read_results

with warnings.catch_warnings():  # typer takes from click what a newer click warns of
    warnings.simplefilter("ignore", DeprecationWarning)
    from typer.testing import CliRunner

    from fedmls.cli import app

FEDMLS = [sys.executable, "-m", "fedmls.cli"]
SMALL = ["reproduce", "--rounds", "6", "--seeds", "2", "--jobs", "2"]


def fedmls(*arguments, cwd, code=0):
    done = subprocess.run([*FEDMLS, *arguments], capture_output=True, text=True, cwd=cwd, timeout=300, check=False)
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduce")
    return folder, fedmls(*SMALL, "--out", "out", cwd=folder)


@pytest.mark.processes
def test_reproduce_writes_a_results_folder(reproduced):
    folder, done = reproduced
    out = folder / "out"
    names = {file.name for file in out.iterdir()}
    assert names == {
        "runs",
        "history.parquet",
        "summary.csv",
        "summary.md",
        "summary.tex",
        "setup.json",
        "model.npz",
        "model.json",
        "figure.png",
        "figure.pdf",
        "variants.png",
        "variants.pdf",
        "best.png",
        "best.pdf",
    }
    for name in names - {"runs"}:
        assert str(out.relative_to(folder) / name) in done.stdout
    assert "36 runs of 6 rounds (18 curves, 2 seeds)" in done.stdout
    assert "Best of each grid by the relative gap" in done.stdout
    assert len(list((out / "runs").iterdir())) == 36
    assert done.stderr == ""  # no progress bar where there is no terminal
    for figure in ("figure.png", "variants.png"):
        pixels = image.imread(out / figure)
        assert pixels.shape[0] > 800
        assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 50


@pytest.mark.processes
def test_reproduce_keeps_a_model_and_says_which(reproduced):
    folder, done = reproduced
    assert "To predict: fedmls predict out NEW.csv --out predictions.csv\n" in done.stdout
    best = read_results(folder / "out").summary.sort_values("relative_gap").iloc[0]
    names = ", ".join(name for name in best[["method", "variant", "parameter"]] if name)
    assert f"The model is that of the best curve, {names}, with its first seed, 0.\n" in done.stdout
    new = pd.DataFrame([[1.0] * 9, [10.0] * 9], columns=list(BREAST_CANCER_COLUMNS))
    new.to_csv(folder / "new.csv", index=False)
    assert "2 predictions in out.csv\n" in fedmls("predict", "out", "new.csv", "--out", "out.csv", cwd=folder).stdout
    assert pd.read_csv(folder / "out.csv")["prediction"].tolist() == ["benign", "malignant"]


@pytest.mark.processes
def test_the_table_is_the_history(reproduced):
    folder, _ = reproduced
    history, summary = read_results(folder / "out")[1:3]
    assert len(history) == 36 * 6
    mine = history[
        (history["method"] == "Scaffnew") & (history["variant"] == "code") & (history["parameter"] == "η₀ = 0.01")
    ]
    row = summary[
        (summary["method"] == "Scaffnew") & (summary["variant"] == "code") & (summary["parameter"] == "η₀ = 0.01")
    ]
    last = mine[mine["round"] == 6]["relative_gap"]
    assert len(last) == 2
    assert row["relative_gap"].item() == pytest.approx(last.median())
    assert [row["smallest"].item(), row["largest"].item()] == pytest.approx([last.min(), last.max()])
    markdown = (folder / "out" / "summary.md").read_text(encoding="utf-8").splitlines()
    assert len(markdown) == 20
    assert markdown[0].startswith("| method | variant | parameter | relative gap |")


@pytest.mark.processes
def test_a_second_start_runs_nothing_again(reproduced):
    folder, first = reproduced
    before = {f.name: f.stat().st_mtime_ns for f in (folder / "out" / "runs").iterdir()}
    again = fedmls(*SMALL, "--out", "out", cwd=folder)
    assert {f.name: f.stat().st_mtime_ns for f in (folder / "out" / "runs").iterdir()} == before
    assert again.stdout == first.stdout


@pytest.mark.slow
@pytest.mark.processes
def test_ctrl_c_and_start_again(tmp_path):
    command = ["reproduce", "--rounds", "3000", "--seeds", "1", "--out", "out"]
    process = subprocess.Popen(
        [*FEDMLS, *command],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 400  # many programs may run beside this one
    while not list(tmp_path.glob("out/runs/*.parquet")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    kept = re.fullmatch(r"stopped with (\d+) of 18 runs finished; they are kept in out/runs: run again to go on\n", err)
    assert kept is not None, err
    assert len(list(tmp_path.glob("out/runs/*.parquet"))) == int(kept[1]) >= 1
    assert no_process_left(process.pid)


def no_process_left(group):
    """Workers end with their parent, or a moment later."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    os.killpg(group, signal.SIGKILL)
    return False


@pytest.mark.processes
def test_holdout_measures_accuracy_on_rows_that_were_not_used(tmp_path):
    done = fedmls("reproduce", "--rounds", "30", "--seeds", "1", "--holdout", "0.2", cwd=tmp_path)
    out = tmp_path / "results" / "paper-30-rounds-holdout-0.2"
    summary = pd.read_csv(out / "summary.csv")
    assert summary["test_accuracy"].between(0.3, 1).all()
    assert summary["test_accuracy"].max() > 0.9
    [above, below] = [
        line for line in done.stdout.splitlines() if line.startswith("┃")
    ]  # ten columns: titles are folded
    assert (above.split("┃")[-2].strip(), below.split("┃")[-2].strip()) == ("test", "accuracy")


def test_the_split_of_the_released_code():
    problem, metrics, _ = Experiment(paper.spec(1, 1, holdout=0.2)).split(3)
    assert len(problem.y) == 559
    assert len(metrics["test_accuracy"].y) == 140
    whole, none, _ = Experiment(paper.spec(1, 1)).split(3)
    assert len(whole.y) == 699
    assert none == {}
    assert whole.n == problem.n == 10


@pytest.mark.processes
def test_the_set_up_of_the_paper(reproduced):
    folder, _ = reproduced
    setup = read_results(folder / "out").setup
    assert setup["command"] == "fedmls reproduce --rounds 6 --seeds 2 --jobs 2 --out out"
    assert setup["spec"] == paper.spec(6, 2).values
    assert setup["problem"]["rows"] == sum(client["rows"] for client in setup["partition"]) == 699
    assert sum(client["classes"]["malignant"] for client in setup["partition"]) == 241
    assert setup["optimum"]["0"] == pytest.approx(4.926310429054)  # docs/ledger.md
    assert setup["seeds"] == 2


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "--rounds", "0"], "error: rounds is 0; it must be a whole number of at least 1\n"),
        (["reproduce", "--full", "--rounds", "5"], "error: --full is 10,000 rounds; leave out --rounds or --full\n"),
        (["reproduce", "--jobs", "0"], "error: jobs is 0; it must be a whole number, -1 for one per core\n"),
        (["reproduce", "--seeds", "0"], "error: seeds is 0; it must be a whole number of at least 1\n"),
        (["reproduce", "--holdout", "1"], "error: holdout is 1.0; it is the share of rows kept for testing"),
    ],
)
def test_errors_are_one_line(arguments, message, tmp_path):
    done = fedmls(*arguments, cwd=tmp_path, code=2)
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


COMMANDS = ["reproduce", "run my.toml", "compare"]


@pytest.mark.parametrize("command", [*COMMANDS, "split rows.csv"])
def test_a_file_is_no_results_folder(command, tmp_path, monkeypatch):
    assert refused(f"{command} --out rows.csv", tmp_path, monkeypatch) == "error: rows.csv is a file; name a folder\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_no_jobs_at_a_time_are_refused_at_once(command, tmp_path, monkeypatch):
    told = "error: jobs is 0; it must be a whole number, -1 for one per core\n"
    assert refused(f"{command} --jobs 0", tmp_path, monkeypatch) == told


def refused(arguments, folder, monkeypatch):
    """Return all that the command says; it leaves the folder as it was."""
    monkeypatch.chdir(folder)
    (folder / "rows.csv").write_text("a,y\n1,2\n")
    (folder / "my.toml").write_text('algorithms = ["fedmlsb"]\nrounds = 1\n[data]\nname = "breast_cancer_wisconsin"\n')
    done = CliRunner().invoke(app, arguments.split())
    assert done.exit_code == 2
    assert sorted(file.name for file in folder.iterdir()) == ["my.toml", "rows.csv"]
    return done.output


@pytest.mark.processes
def test_help_and_list(tmp_path):
    assert "reproduce" in fedmls("--help", cwd=tmp_path).stdout
    listed = fedmls("list", cwd=tmp_path).stdout
    for line in ("Algorithms: fedmls, ", "Losses: hinge, ", "Experiments for fedmls run: example, ", "  schools   "):
        assert f"\n{line}" in f"\n{listed}"
    one = fedmls("list", "scaffold", cwd=tmp_path).stdout
    assert one.startswith("Scaffold, scaffold in files and commands\n")
    assert "\n  option        'II'\n" in one
    assert max(map(len, one.splitlines())) <= 80
    assert (
        "unknown algorithm 'scafold': did you mean 'scaffold'?"
        in fedmls("list", "scafold", cwd=tmp_path, code=2).stderr
    )
    assert fedmls("--version", cwd=tmp_path).stdout.startswith("fedmls 0.")
