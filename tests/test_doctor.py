"""fedmls doctor, what it finds broken, and what is said of work that takes long."""

import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import pytest
import rich.console

import fedmls
from fedmls import doctor, progress
from fedmls.local import descent
from fedmls.optima import solve
from tests.support.problems import svm

FEDMLS = [sys.executable, "-m", "fedmls.cli"]


def run(*arguments, cwd, code=0, **env):
    done = subprocess.run(
        [*FEDMLS, "doctor", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | env,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.mark.processes
def test_a_sound_installation(tmp_path):
    done = run(cwd=tmp_path)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == f"fedmls         {fedmls.__version__}"
    assert lines[-1] == "Nothing is broken."
    assert f"numpy {np.__version__}" in " ".join(done.stdout.split())
    assert "agrees with NumPy to" in done.stdout
    for extra in ("dask", "flower", "mlflow", "nvflare", "tensorboard"):
        assert f"  {extra:<13}" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.processes
def test_what_is_compiled_ahead_is_not_compiled_again(tmp_path):
    """Numba keeps one .nbc file for each compiled loop; a run of other rows, columns and parameters adds none."""
    own = {"NUMBA_CACHE_DIR": str(tmp_path / "numba")}
    assert "Nothing is broken." in run("--compile", cwd=tmp_path, **own).stdout
    compiled = set((tmp_path / "numba").rglob("*.nbc"))
    assert compiled
    code = """
import fedmls
for density in (1.0, 0.3):
    problem = fedmls.datasets.lad(200, 20, 5, density=density)
    for algorithm in (fedmls.FedMLS(), fedmls.FedAvg(eta0=0.1), fedmls.FedMLSB(), fedmls.ADMM()):
        fedmls.simulate(algorithm, problem, rounds=5, batch=0.1)
"""
    subprocess.run([sys.executable, "-c", code], env=os.environ | own, check=True, timeout=300)
    assert set((tmp_path / "numba").rglob("*.nbc")) == compiled


@pytest.mark.processes
def test_as_json(tmp_path):
    found = json.loads(run("--json", cwd=tmp_path).stdout)
    assert found["broken"] == []
    assert found["python"].startswith(platform.python_version())
    assert found["packages"]["numba"]["version"] == version("numba")
    assert found["compiled_loop"]["works"]
    assert 0 <= found["compiled_loop"]["difference"] < 1e-12
    assert found["cache"]["writable"]
    assert found["disk"]["free_gb"] > 0
    assert 1 <= found["cores"]["usable"] <= found["cores"]["all"]


def test_no_user_and_no_host_is_named(monkeypatch):
    folder = Path(descent.descend_rows.stats.cache_path)
    monkeypatch.setenv("HOME", str(folder.parent.parent))
    monkeypatch.setenv("NUMBA_MADE_UP", f"{folder.parent.parent}/cache")
    found = doctor.examine(Path.home() / "results")
    assert found["cache"]["folder"] == f"~/{folder.parent.name}/{folder.name}"
    assert found["settings"]["NUMBA_MADE_UP"] == "~/cache"
    assert found["disk"]["folder"] == "~/results"
    for said in (json.dumps(found), "\n".join(doctor.lines(found))):
        assert str(Path.home()) not in said
        assert platform.node() not in said


def test_only_settings_of_the_computation_are_shown(monkeypatch):
    monkeypatch.setenv("NUMBA_NUM_THREADS_MADE_UP", "2")
    monkeypatch.setenv("MY_PASSWORD", "secret")
    found = doctor.examine(Path("results"))
    assert found["settings"]["NUMBA_NUM_THREADS_MADE_UP"] == "2"
    assert "secret" not in json.dumps(found)


def test_a_loop_that_computes_something_else_is_broken(monkeypatch):
    true = descent.descend_rows

    def wrong(*arguments):
        u, average = true(*arguments)
        return u + 1e-6, average

    monkeypatch.setattr(descent, "descend_rows", wrong)
    assert doctor.loop_against_numpy() == pytest.approx(1e-6, rel=1e-3)
    found = doctor.examine(Path("results"))
    assert "the compiled loop and NumPy disagree by 1.0e-06; results cannot be trusted" in found["broken"]
    assert "compiled loop  does not work" in "\n".join(doctor.lines(found))


@pytest.mark.processes
def test_without_compilation_the_exit_code_is_one(tmp_path):
    done = run(cwd=tmp_path, code=1, NUMBA_DISABLE_JIT="1")
    assert "BROKEN: the compiled loop does not run: TypeError: for compiled code only" in done.stdout
    assert "settings       NUMBA_DISABLE_JIT=1" in done.stdout
    assert json.loads(run("--json", cwd=tmp_path, code=1, NUMBA_DISABLE_JIT="1").stdout)["broken"]


def test_missing_and_old_packages(monkeypatch):
    def there(name):
        if name in ("numba", "tensorboard"):
            raise PackageNotFoundError(name)
        return {"scipy": "0.1", "flwr": "1.2"}.get(name) or version(name)

    monkeypatch.setattr(doctor, "version", there)
    found = doctor.examine(Path("results"))
    assert found["broken"] == [
        "fedmls needs numba>=0.60, but it is not installed; run pip install 'numba>=0.60'",
        "fedmls needs scipy>=1.13, but 0.1 is installed; run pip install 'scipy>=1.13'",
    ]
    text = "\n".join(doctor.lines(found))
    assert "tensorboard  not installed: pip install 'fedmls[tensorboard]'" in text
    assert "flower       flwr 1.2; needs flwr <1.42,>=1.41: pip install 'fedmls[flower]'" in text


def test_what_is_not_broken_and_yet_wrong_is_pointed_at(monkeypatch):
    found = doctor.examine(Path("results")) | {"broken": []}
    sound = found | {"left_behind": {}, "disk": found["disk"] | {"free_gb": 50.0}}
    assert doctor.lines(sound)[-1] == "Nothing is broken."
    flower = {"flwr": {"version": "1.2", "wanted": ">=1.41", "fits": False}}
    unfit = sound | {"extras": found["extras"] | {"flower": flower}, "left_behind": {"results/a": [3]}}
    assert doctor.lines(unfit)[-1] == "Nothing that is needed is broken; see left behind, flower above."
    little = sound | {"disk": found["disk"] | {"free_gb": 0.5}}
    assert doctor.lines(little)[-1] == "Nothing that is needed is broken; see disk above."


def test_folders_that_cannot_be_written_to(monkeypatch, tmp_path):
    def refused(**_):
        raise PermissionError

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refused)
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    found = doctor.examine(tmp_path / "not" / "there")
    assert found["broken"] == [
        "the compiled loop cannot be kept; set NUMBA_CACHE_DIR to a folder that can be written to",
        f"results cannot be written to {doctor._short(str(tmp_path / 'not' / 'there'))}; go elsewhere or give --out",
    ]
    text = "\n".join(doctor.lines(found))
    assert "Nothing" not in text
    assert "NOT writable" in text
    assert "there, which cannot be written to: go elsewhere or give --out" in text
    assert list(tmp_path.iterdir()) == []


# Ctrl-C


def interrupted(command, ready, cwd, **env):
    """Start it, press Ctrl-C when ``ready`` says so; its exit code and stderr."""
    process = subprocess.Popen(
        [*FEDMLS, *command],
        cwd=cwd,
        env=os.environ | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not ready() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    return process.returncode, err


@pytest.mark.processes
def test_ctrl_c_while_the_loop_is_compiled(tmp_path):
    cache = tmp_path / "cache"
    ready = lambda: cache.exists() and any(cache.rglob("*.nbi"))  # noqa: E731 (the first of several functions is done)
    assert interrupted(["doctor"], ready, tmp_path, NUMBA_CACHE_DIR=str(cache)) == (130, "stopped\n")


@pytest.mark.processes
def test_ctrl_c_while_the_optimum_is_solved_for(tmp_path):
    """In the middle of a solver, which knows nothing of signals; this one is a sleep outside the interpreter's lock."""
    (tmp_path / "sitecustomize.py").write_text(
        "import ctypes\n"
        "from fedmls.optima import programs\n"
        "def solve(program):\n"
        "    open('solving', 'w').close()\n"
        "    ctypes.CDLL(None).sleep(300)\n"
        "programs.solve = solve\n"
    )
    began = time.monotonic()
    ready = (tmp_path / "solving").exists
    assert interrupted(["compare"], ready, tmp_path, PYTHONPATH=str(tmp_path)) == (130, "stopped\n")
    assert time.monotonic() - began < 250


@pytest.mark.processes
def test_ctrl_c_in_a_comparison(tmp_path):
    ready = lambda: any(tmp_path.glob("out/runs/*.parquet"))  # noqa: E731
    command = ["compare", "--algorithms", "fedavg,fedmls", "--rounds", "400", "--out", "out", "--jobs", "1"]
    code, err = interrupted(command, ready, tmp_path)
    assert code == 130
    assert err.startswith("stopped with ")
    assert err.endswith("they are kept in out/runs: run again to go on\n")
    assert err.count("\n") == 1


@pytest.mark.processes
def test_a_reader_that_goes_away_is_no_error(tmp_path):
    done = subprocess.run(
        f"{sys.executable} -m fedmls.cli compare --list | true",
        shell=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""


# waiting


def test_waiting_gives_what_the_work_gives():
    assert progress.waiting("counting", lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        progress.waiting("dividing", lambda: 1 / 0)


def test_ctrl_c_is_heard_while_the_work_goes_on():
    """A solver in compiled code takes no notice of it; waiting does."""
    go_on = threading.Event()
    timer = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        progress.waiting("nothing", lambda: go_on.wait(60), patience=0.05)
    assert progress.abandoned()
    go_on.set()
    timer.join()
    deadline = time.monotonic() + 20
    while progress.abandoned() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not progress.abandoned()


def test_a_terminal_is_told_what_is_waited_for(monkeypatch):
    said = []

    @contextmanager
    def status(console, what):
        said.append(what)
        yield
        said.append("gone")

    monkeypatch.setattr(rich.console.Console, "status", status)
    slow = lambda: time.sleep(0.3)  # noqa: E731
    progress.waiting("quick", lambda: None)
    progress.waiting("slow", slow, patience=0.01)
    assert said == []  # stderr is no terminal
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    progress.waiting("slow", slow, patience=0.01)
    assert said == ["slow", "gone"]


def test_the_bar_says_it_where_there_is_one(capsys):
    with progress.Bar("run", 3, "rounds", shown=True) as bar:
        assert progress.Bar.current is bar
        progress.waiting("solving for the optimum", lambda: time.sleep(0.5), patience=0.01)
        bar.bar.refresh()
    assert progress.Bar.current is None
    assert "solving for the optimum" in capsys.readouterr().err


def test_a_log_file_gets_lines_without_escape_codes(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with progress.Bar("sweep", 3, "runs", shown=True) as bar:
        progress.Bar.tell("f* of seed 2 of 5")
        progress.waiting("solving for the optimum", lambda: time.sleep(0.1), patience=0.01)
        bar.update(1.5, 0.25, finished=1)
        bar.update(3, 0.125)
    written = capsys.readouterr().err
    assert "\x1b" not in written
    assert written.splitlines() == [
        "sweep: 0/3 runs f* of seed 2 of 5",
        "sweep: 0/3 runs f* of seed 2 of 5: solving for the optimum",
        "sweep: 0/3 runs f* of seed 2 of 5",
        "sweep: 1/3 runs gap 2.50e-01",
        "sweep: 3/3 runs gap 1.25e-01",
        "sweep: 3/3 runs gap 1.25e-01",
    ]


def test_the_bar_counts_finished_runs_only(monkeypatch):
    shown = []
    board, over = progress.Board(3), threading.Event()

    class Bar:
        def update(self, done, gap, finished):
            shown.append((done, gap, finished))
            over.set()

    board.report(0, 1.0, 0.5)
    board.written = 0.0
    board.report(2, 0.75, 0.25)
    board.show(Bar(), 4, over)
    assert shown == [(5.75, 0.25, 5)]


def test_the_optimum_is_waited_for(monkeypatch):
    seen = []
    module = solve
    monkeypatch.setattr(module, "waiting", lambda what, work: seen.append(what) or work())
    fedmls.optimum(svm())
    assert seen == ["solving for the optimum"]
