"""What a results folder tells of an experiment and of a federation that are not finished."""

import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pandas as pd
import pytest

import fedmls
from fedmls import report
from fedmls.results import layout, live
from fedmls.results.events import end_of, history_of, read_events
from fedmls.results.live import LiveReader, LiveRows
from fedmls.results.read import read_uniform
from fedmls.simulation.config import RunConfig
from fedmls.simulation.run import Simulation
from fedmls.simulation.stacked import Stack
from tests.support.federations import federate, wait_until
from tests.support.live import SETUP, half_done, swept
from tests.support.problems import svm


@pytest.fixture
def at_once(monkeypatch):
    """Rows are written as soon as they are there."""
    monkeypatch.setattr(live, "WRITE_SECONDS", -1.0)


@pytest.fixture
def stopped(tmp_path):
    return half_done(tmp_path / "two")


def test_a_finished_experiment_leaves_nothing_of_it(tmp_path):
    swept(tmp_path)
    assert not (tmp_path / layout.LIVE).exists()
    assert LiveReader(tmp_path).read() is None


def test_rows_of_a_run_under_way_are_those_of_its_history(tmp_path, at_once):
    rows = LiveRows(tmp_path / "run.csv")
    run = fedmls.simulate(fedmls.FedMLS(), svm(), rounds=7, certificate=3.0)
    simulation = Simulation(fedmls.FedMLS(), svm(), RunConfig(7, certificate=3.0))
    simulation.run([pickle.loads(pickle.dumps(rows))])  # as another process gets it
    found = live._read_rows(tmp_path / "run.csv")
    counted = [name for name in run.history if name != "seconds"]
    pd.testing.assert_frame_equal(found[counted], run.history[counted], check_dtype=False, check_exact=True)


def test_runs_that_are_done_together_tell_how_far_they_are(tmp_path):
    exchange = Stack._exchange

    def stopping(stack):
        if stack.round == 6:
            raise KeyboardInterrupt
        exchange(stack)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stack, "_exchange", stopping)
        with pytest.raises(KeyboardInterrupt):
            swept(tmp_path, rounds=9, together=True)
    found = LiveReader(tmp_path).read()
    under_way = [run for run in found.runs if run.history is not None and len(run.history)]
    assert len(under_way) == 2  # the seeds of the first curve
    for run, seed in zip(under_way, (0, 1), strict=True):
        expected = fedmls.simulate(fedmls.FedMLS(), svm(), rounds=6, seed=seed).history
        assert run.history["objective"].tolist() == expected["objective"].tolist()
    swept(tmp_path, rounds=9, together=True)
    assert LiveReader(tmp_path).read() is None


def test_a_short_run_writes_nothing(tmp_path):
    Simulation(fedmls.FedMLS(), svm(), RunConfig(3)).run([LiveRows(tmp_path / "run.csv")])
    assert list(tmp_path.iterdir()) == []


def test_a_run_goes_on_where_its_rows_cannot_be_written(tmp_path, at_once):
    run = Simulation(fedmls.FedMLS(), svm(), RunConfig(3))
    run.run([LiveRows(tmp_path / "not" / "there.csv")])
    assert len(run.rows) == 3


def test_half_a_line_is_no_row(tmp_path):
    file = tmp_path / "run.csv"
    file.write_text("round,objective\n1,2.5\n2,")
    assert live._read_rows(file).to_dict("records") == [{"round": 1, "objective": 2.5}]
    file.write_text("round,obj")
    assert live._read_rows(file) is None


def test_a_stopped_experiment_tells_how_far_it_is(stopped):
    found = LiveReader(stopped).read()
    assert (found.status, found.finished, len(found.runs)) == ("stopped", 1, 4)
    assert [run.names["seed"] for run in found.under_way] == [1]
    assert found.under_way[0].history["round"].tolist() == [1, 2]
    assert found.setup == SETUP
    assert found.sentence() == ("the experiment was stopped: 1 of 4 runs are finished, 1 under way and 2 not begun")


def test_one_whose_process_was_killed_is_stopped(stopped):
    file = stopped / layout.LIVE / layout.PLAN
    plan = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(plan | {"status": "running"}), encoding="utf-8")
    assert LiveReader(stopped).read().status == "running"  # this very process
    file.write_text(json.dumps(plan | {"status": "running", "process": [plan["process"][0], 0.0]}), encoding="utf-8")
    assert LiveReader(stopped).read().status == "stopped"


def test_a_report_of_unfinished_results_says_so(stopped):
    (results,) = read_uniform([stopped])
    assert results.history.groupby("seed")["round"].max().to_dict() == {0: 4, 1: 2}
    summary = report.summarise([stopped])
    assert summary["folders"][0]["unfinished"].startswith("the experiment was stopped: 1 of 4 runs")
    assert [curve["name"] for curve in summary["chart"]["curves"]] == ["FedMLS, λ₀ = 1"]
    assert "<strong>Unfinished:</strong> the experiment was stopped" in report.write([stopped]).read_text(
        encoding="utf-8"
    )


def test_started_again_it_goes_on_and_ends(stopped):
    before = {file.name: file.stat().st_mtime_ns for file in (stopped / layout.RUNS).iterdir()}
    assert len(before) == 1
    assert [len(run.history) for run in swept(stopped)] == [4, 4, 4, 4]
    after = {file.name: file.stat().st_mtime_ns for file in (stopped / layout.RUNS).iterdir()}
    assert len(after) == 4
    assert after.items() >= before.items()
    assert not (stopped / layout.LIVE).exists()


def test_an_error_before_the_first_run_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match="unknown errors 'other'"):
        swept(tmp_path / "out", errors="other")
    assert not (tmp_path / "out").exists()


@pytest.mark.processes
def test_rows_of_other_processes_survive_ctrl_c(tmp_path):
    (tmp_path / "long.toml").write_text(
        textwrap.dedent("""
            rounds = 1000000
            [data]
            name = "svm"
            rows = 200
            [[algorithms]]
            name = "fedavg"
            eta0 = [0.01, 0.02]
        """)
    )
    command = [sys.executable, "-m", "fedmls", "run", "long.toml", "--out", "out", "--jobs", "2"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    wait_until(lambda: len(list(tmp_path.glob("out/live/*.csv"))) == 2)
    assert LiveReader(tmp_path / "out").read().status == "running"
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    found = LiveReader(tmp_path / "out").read()
    assert (found.status, found.finished, len(found.under_way)) == ("stopped", 0, 2)
    assert all(len(run.history) > 1 for run in found.under_way)


# A federation


def test_events_tell_the_history_of_a_federation(tmp_path):
    result = federate(svm(n=3, m=500), tmp_path, algorithm=fedmls.FedMLSB(), rounds=6, certificate=True)
    events = read_events(tmp_path / "job")
    found = history_of(events)
    assert end_of(events) == "finished"
    assert found["round"].tolist() == result.run.history["round"].tolist()
    told = [one["measured_round"] for event in events for one in event.get("also_measured", ())]
    assert told == [5]  # whose model was ahead, and known when that of round 6 was proved to be close
    for name in ("objective", "certified_gap", "local_steps"):
        assert found[name].tolist() == pytest.approx(result.run.history[name].tolist(), nan_ok=True), name
    for name in ("exchanges", "bytes_up", "bytes_down"):  # the history's last row counts the exchanges after it, too
        assert found[name].tolist()[:-1] == result.run.history[name].tolist()[:-1], name


def test_events_of_paired_rounds_tell_what_each_had_spent(tmp_path):
    result = federate(svm(n=3), tmp_path, algorithm=fedmls.FedMLS(paired=True), rounds=6)
    found, history = history_of(read_events(tmp_path / "job")), result.run.history
    assert found["round"].tolist() == history["round"].tolist() == [1, 2, 3, 4, 5, 6]
    assert found["exchanges"].tolist()[:-2] == history["exchanges"].tolist()[:-2]
    assert found[["seconds", "local_steps", "bytes_up"]].notna().all(axis=None)


def test_events_tell_when_each_node_answered(tmp_path):
    federate(svm(n=3), tmp_path, algorithm=fedmls.FedMLS(), rounds=3, faults={"late": {("site-2", 4)}})
    done = [event for event in read_events(tmp_path / "job") if event.get("kind") == "round"]
    for event in done:
        assert sorted(event["answered"]) == ["site-1", "site-2", "site-3"]
        assert all(0 <= seconds < 60 for seconds in event["answered"].values())
    late = next(event["answered"] for event in done if event["answered"]["site-2"] > 0.05)  # asked once more
    assert late["site-2"] > max(late["site-1"], late["site-3"])


def test_a_federation_that_goes_on_can_be_reported(tmp_path):
    federate(svm(n=3, m=500), tmp_path, algorithm=fedmls.FedMLSB(), rounds=6, certificate=True)
    job = tmp_path / "job"
    lines = (job / layout.EVENTS).read_bytes().splitlines(keepends=True)
    (job / layout.EVENTS).write_bytes(b"".join(lines[:-3]))  # two rounds and the end are still to come
    (job / layout.HISTORY).unlink()
    (results,) = read_uniform([job])
    assert results.unfinished == "the run is not finished: 3 of 6 rounds are measured"  # the model of round 4 is ahead
    assert results.history["round"].tolist() == [1, 2, 3]
    assert results.history["method"].unique().tolist() == ["FedMLS-B"]
    assert "Unfinished" in report.write([job]).read_text(encoding="utf-8")


def test_a_federation_tells_its_set_up_from_the_beginning(tmp_path, monkeypatch):
    from fedmls.federation.server.driver import Driver

    seen = []
    step = Driver._step

    def looked(driver):
        seen.append(json.loads((tmp_path / "job" / layout.SETUP).read_text(encoding="utf-8"))["status"])
        step(driver)

    monkeypatch.setattr(Driver, "_step", looked)
    federate(svm(n=3), tmp_path, algorithm=fedmls.FedMLS(), rounds=2)
    assert set(seen) == {"running"}
    assert json.loads((tmp_path / "job" / layout.SETUP).read_text(encoding="utf-8"))["status"] == "finished"


def test_reading_while_it_is_written_never_fails(tmp_path):
    """A reader looks as often as it can, while runs begin, end and are taken away."""
    over, failures, looks = threading.Event(), [], []

    def read():
        reader = LiveReader(tmp_path)
        while not over.is_set():
            try:
                looks.append(reader.read())
            except Exception as error:
                failures.append(error)
            time.sleep(0.001)

    thread = threading.Thread(target=read)
    thread.start()
    for rounds in (20, 30, 40):
        swept(tmp_path, rounds=rounds)
    over.set()
    thread.join()
    assert failures == []
    assert any(found is not None and found.under_way for found in looks)
