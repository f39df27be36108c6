"""What the live page shows is what the folder's files say."""

import json
import time

import pytest

import fedmls
from fedmls.results import layout
from fedmls.watch.look import Watcher
from tests.support.federations import federate
from tests.support.live import half_done, swept
from tests.support.problems import svm


@pytest.fixture
def stopped(tmp_path):
    return half_done(tmp_path / "two")


def tiles(seen):
    return {tile["name"]: tile["value"] for tile in seen["tiles"]}


def test_a_folder_in_which_nothing_has_begun(tmp_path):
    seen = Watcher(tmp_path).look()
    assert seen["status"] == "waiting"
    assert seen["chart"] is None


def test_a_comparison_is_refused_with_a_word(tmp_path):
    (tmp_path / layout.POINTS).touch()
    with pytest.raises(ValueError, match="of fedmls compare, which has its own page"):
        Watcher(tmp_path).look()


def test_a_sweep_that_is_not_finished(stopped):
    seen = Watcher(stopped).look()
    assert (seen["title"], seen["status"]) == ("Two", "stopped")
    assert "fedmls run two.toml goes on" in seen["sentence"]
    assert seen["share"] == pytest.approx((4 + 2) / 16)
    assert tiles(seen)["Runs finished"] == "1 of 4"
    assert tiles(seen)["Exchanges"] == "6"
    (run,) = seen["runs"]["rows"]
    assert run["name"] == "FedMLS, λ₀ = 1, seed 1"
    assert run["share"] == 0.5
    assert dict(zip(seen["runs"]["columns"], run["cells"], strict=True))["Round"] == "2 of 4"
    (curve,) = seen["chart"]["curves"]
    assert curve["x"]["round"] == [1, 2, 3, 4]
    json.dumps(seen, allow_nan=False)


def test_the_time_left_is_that_of_the_runs_left(stopped):
    file = stopped / layout.LIVE / layout.PLAN
    plan = json.loads(file.read_text(encoding="utf-8"))
    plan |= {"status": "running", "began": time.time() - 60}  # a run and a half in a minute: two and a half are left
    file.write_text(json.dumps(plan), encoding="utf-8")
    assert tiles(Watcher(stopped).look())["Time left"] == "1.7 min"
    file.write_text(json.dumps(plan | {"before": 1}), encoding="utf-8")  # half a run in a minute
    assert tiles(Watcher(stopped).look())["Time left"] == "5.0 min"


def test_a_finished_experiment(tmp_path):
    from fedmls.results.write import write_results

    runs = swept(tmp_path)
    write_results(tmp_path, runs, [("FedMLS", "", "λ₀ = 1")] * 2 + [("FedAvg", "", "")] * 2, {"title": "Two"})
    seen = Watcher(tmp_path).look()
    assert (seen["status"], seen["share"], seen["runs"]) == ("finished", 1.0, None)
    assert tiles(seen)["Runs"] == "4"
    assert len(seen["chart"]["curves"]) == 2


# A federation


@pytest.fixture
def federation(tmp_path):
    job = {"algorithm": fedmls.FedMLSB(), "rounds": 6, "certificate": True, "until": 1e-12, "name": "clinics"}
    federate(svm(n=3), tmp_path, **job, faults={"late": {("site-2", 5)}})
    return tmp_path / "job"


def events(folder, keep):
    """Keep the events up to the first that ``keep`` refuses; take the results away."""
    lines = (folder / layout.EVENTS).read_bytes().splitlines(keepends=True)
    place = next(i for i, line in enumerate(lines) if not keep(json.loads(line)))
    (folder / layout.EVENTS).write_bytes(b"".join(lines[:place]))
    (folder / layout.HISTORY).unlink()


def test_a_federation_that_goes_on(federation):
    events(federation, lambda event: event.get("round", 0) < 5)
    seen = Watcher(federation).look()
    assert (seen["title"], seen["status"], seen["share"]) == ("clinics", "running", pytest.approx(4 / 6))
    shown = tiles(seen)
    assert shown["Round"] == "4 of 6"
    assert {"Exchanges", "Bytes", "Time left", "Objective", "Proved gap"} <= {*shown}
    assert [row["name"] for row in seen["nodes"]["rows"]] == ["site-1", "site-2", "site-3"]
    assert len(seen["nodes"]["exchanges"]) == len(seen["nodes"]["rows"][0]["cells"])
    assert max(cell["height"] for row in seen["nodes"]["rows"] for cell in row["cells"]) == 100
    (curve,) = seen["chart"]["curves"]
    assert curve["name"].startswith("FedMLS-B")
    json.dumps(seen, allow_nan=False)


def test_who_is_waited_for_is_named(federation):
    events(federation, lambda event: event.get("event") != "waiting")
    waiting = {"time": time.time(), "event": "waiting", "nodes": {"site-2": "does not answer: nothing within 600 s"}}
    with (federation / layout.EVENTS).open("a") as file:
        file.write(json.dumps(waiting) + "\n")
    assert Watcher(federation).look()["notes"] == ["waiting for site-2: does not answer: nothing within 600 s"]


def test_a_federation_that_has_ended(federation):
    seen = Watcher(federation).look()
    assert (seen["status"], seen["share"]) == ("finished", 1.0)
    assert "Time left" not in tiles(seen)
    assert "fedmls report" in seen["sentence"]


def test_nodes_that_failed_and_scores_are_shown(federation):
    lines = [json.loads(line) for line in (federation / layout.EVENTS).read_text().splitlines()]
    last = next(line for line in reversed(lines) if line.get("kind") == "round")
    last["failed"], last["answered"] = {"site-3": "sent <nonsense>"}, {"site-1": 0.5}
    (federation / layout.EVENTS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    setup = json.loads((federation / layout.SETUP).read_text(encoding="utf-8"))
    scores = {"rows": 12, "values": {"accuracy": 0.75, "auc": 0.8125, "auc_error": 0.01}}
    told = {"together": scores, "nodes": {"site-1": scores, "site-2": scores}, "notes": []}
    told["without"] = {"site-3": "no rows"}
    (federation / layout.SETUP).write_text(json.dumps(setup | {"held_out": told}), encoding="utf-8")
    seen = Watcher(federation).look()
    nodes = {row["name"]: row for row in seen["nodes"]["rows"]}
    assert nodes["site-3"]["failed"] == 1
    crossed = {"kind": "failed", "about": "sent <nonsense>", "height": 100}
    assert crossed in nodes["site-3"]["cells"]
    assert any(cell["kind"] == "idle" for cell in nodes["site-2"]["cells"])
    assert seen["scores"]["columns"] == ["Held-out rows", "Accuracy", "AUC"]
    assert seen["scores"]["rows"][0] == {"name": "all", "cells": ["12", "0.750", "0.812 ± 0.011"]}
    assert seen["scores"]["notes"] == ["without site-3: no rows"]
