"""The results folder: one format, written and read in one place, whoever writes it."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

import fedmls
from fedmls.results import layout
from fedmls.results.read import read_results, read_runs, read_setup, read_uniform
from fedmls.results.write import PACKAGES, write_comparison, write_results, write_setup
from tests.support.federations import federate
from tests.support.problems import svm

SOURCE = Path(fedmls.__file__).parent


def written(folder):
    runs = fedmls.sweep([fedmls.FedMLS(), fedmls.FedAvg()], svm(), rounds=3, jobs=1, store=folder / layout.RUNS)
    return write_results(folder, runs, [("FedMLS", "", "λ₀ = 1"), ("FedAvg", "text", "")], {"title": "two"})


def test_what_is_written_is_read(tmp_path):
    done, found = written(tmp_path), read_results(tmp_path)
    pd.testing.assert_frame_equal(found.history, done.history)
    pd.testing.assert_frame_equal(found.summary, done.summary)
    assert found.setup == done.setup
    assert list(found.history)[:3] == list(found.summary)[:3] == list(layout.LABELS)


def test_the_runs_themselves_are_kept_and_read(tmp_path):
    written(tmp_path)
    assert {run.algorithm for run in read_runs(tmp_path)} == {fedmls.FedMLS(), fedmls.FedAvg()}


def test_an_experiment_and_a_federation_write_one_format(tmp_path):
    written(tmp_path / "experiment")
    federate(svm(n=3), tmp_path / "federation", algorithm=fedmls.FedMLS(), rounds=3)
    experiment, federation = read_uniform([tmp_path / "experiment", tmp_path / "federation" / "job"])
    assert list(experiment.setup["versions"]) == list(federation.setup["versions"]) == [*PACKAGES, "python"]
    for found in (experiment, federation):
        assert all(name in found.history for name in (*layout.LABELS, "seed", "diverged", "round", "bytes"))
        assert all(seeds == (1, 0) for seeds in found.seeds.values())


def test_versions_are_recorded_once_and_last(tmp_path):
    write_setup(tmp_path, {"title": "a"})
    again = write_setup(tmp_path, read_setup(tmp_path) | {"title": "b"})
    text = (tmp_path / layout.SETUP).read_text(encoding="utf-8")
    assert text == json.dumps(again, indent=2, ensure_ascii=False) + "\n"
    assert list(again) == ["title", "versions"]
    assert again["title"] == "b"


def test_a_comparison_has_tables_of_its_own(tmp_path):
    table = pd.DataFrame({"problem": ["a"]})
    write_comparison(tmp_path, table, table, table, {})
    assert {file.name for file in tmp_path.iterdir()} == {layout.POINTS, layout.CHOSEN, layout.PROBLEMS, layout.SETUP}
    with pytest.raises(ValueError, match="fedmls compare has its own page"):
        read_uniform([tmp_path])


def test_no_other_module_names_the_files():
    names = [
        value for name, value in vars(layout).items() if name.isupper() and isinstance(value, str) and "." in value
    ]
    assert len(names) == 12
    quoted = re.compile("|".join(rf'"{re.escape(name)}"' for name in names))
    others = [file for file in SOURCE.rglob("*.py") if file.parent.name != "results"]
    assert not [str(file) for file in others if quoted.search(file.read_text(encoding="utf-8"))]
