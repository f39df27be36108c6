"""A model on disk: what a person reads in it, and the pipeline that is loaded from it."""

import csv
import json
import math
import pickle
import re

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.metrics import log_loss

import fedmls
from fedmls.experiments.run import Experiment
from fedmls.experiments.spec import make
from fedmls.results.model import read_description, read_model
from fedmls.results.pipeline import predict_file
from tests.support.clinics import COLUMNS, clinics, federation, patients, with_gaps

HOLED = {"missing": "mean", "categorical": "onehot", "label": "ill"}


def experiment(folder, table, data=HOLED, algorithms=("fedmlsb",), **values):
    """Run an experiment on the table; return its folder."""
    table.to_csv(folder / "rows.csv", index=False)
    values = {"rounds": 8, "partition": {"by": "iid", "clients": 3}, "algorithms": list(algorithms)} | values
    Experiment(make(values | {"data": {"file": str(folder / "rows.csv")} | data})).run(folder / "out", jobs=1)
    return folder / "out"


@pytest.fixture(scope="module")
def pooled():
    """The rows of all six clinics."""
    tables = [patients(40, seed=i) for i in range(1, 5)]
    return pd.concat([*tables, with_gaps(patients(40, 5)), patients(40, 6, ["heart", "eyes"])], ignore_index=True)


@pytest.fixture(scope="module", params=["federation", "run"])
def trained(request, tmp_path_factory, pooled):
    """The folder of a model with categories, gaps and scaling, and the objective that it was told to have."""
    folder = tmp_path_factory.mktemp("trained")
    if request.param == "federation":
        result = federation(folder, algorithm=fedmls.FedMLSB(), standardise=True, certificate=True)
        return result.folder, float(result.history["objective"].iloc[-1]), 6
    data = HOLED | {"standardise": True}
    out = experiment(folder, pooled, data, certificate=True)
    return out, float(pd.read_parquet(out / "history.parquet")["objective"].iloc[-1]), 3


def formula(told, row):
    """The score of a row, a dict of text cells, from model.json alone; also the largest of its parts."""
    parts = [told["intercept"]]
    for column in told["columns"]:
        name, cell = column["name"], row[column["name"]]
        if column["kind"] == "number":
            parts.append(told["coefficients"][name] * (float(cell) if cell else column["missing"]))
        elif cell:
            parts.append(told["coefficients"].get(f"{name}={cell}", 0.0))
        else:
            parts += [told["coefficients"][feature] * share for feature, share in column["missing"].items()]
    return math.fsum(parts), max(map(abs, parts))


def test_the_score_is_the_plain_formula_of_what_a_person_reads(trained, tmp_path):
    folder, _, _ = trained
    new = with_gaps(patients(300, seed=99))
    new.loc[:4, "ward"] = "garden"  # a level that the model does not know
    new.to_csv(tmp_path / "new.csv", index=False)
    told = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    with open(tmp_path / "new.csv", newline="") as stream:
        expected = [formula(told, row) for row in csv.DictReader(stream)]
    with pytest.warns(UserWarning, match=r"column 'ward' has 1 \('garden'\)"):
        scores = fedmls.load(folder).decision_function(pd.read_csv(tmp_path / "new.csv"))
    assert len(scores) == len(expected) == 300
    for score, (value, largest) in zip(scores, expected, strict=True):
        assert score == pytest.approx(value, rel=0, abs=1e-12 * max(abs(value), largest))


def test_the_pipeline_prepares_rows_as_the_training_did(trained, pooled):
    """The objective of the scores is the one that the run has told; its n clients have equal weights."""
    folder, objective, n = trained
    margins = np.where(pooled["ill"] == "yes", 1, -1) * fedmls.load(folder).decision_function(pooled)
    assert np.maximum(0, 1 - margins).sum() / n == pytest.approx(objective, rel=1e-9)


def test_columns_in_any_order_others_ignored_and_missing_ones_named(trained):
    folder, _, _ = trained
    model, new = fedmls.load(folder), patients(30, seed=7)
    scores = model.decision_function(new)
    other = new.assign(patient=np.arange(30), ward2="x")[["ward2", "smoker", "ill", "dose", "patient", "ward", "age"]]
    np.testing.assert_array_equal(model.decision_function(other), scores)
    assert list(model.feature_names_in_) == COLUMNS
    with pytest.raises(ValueError, match=r"there is no column 'ward'; did you mean 'wards'\? there are age"):
        model.predict(new.rename(columns={"ward": "wards"}))
    with pytest.raises(ValueError, match="there are no columns 'age', 'dose'; there are ward, smoker, ill"):
        model.predict(new.drop(columns=["age", "dose"]))
    with pytest.raises(ValueError, match="two columns are called 'age'; rename one"):
        model.predict(new.rename(columns={"dose": "age"}).assign(dose=1.0))
    with pytest.raises(ValueError, match="some columns hold categories; give a data frame"):
        model.predict(new[COLUMNS].to_numpy())
    with pytest.raises(ValueError, match=r"column 'age' holds numbers in the model, but here 'old'; leave the cell"):
        model.predict(new.astype({"age": object}).replace({"age": {new["age"][3]: "old"}}))
    with pytest.raises(ValueError, match="column 'age' holds numbers in the model, but here datetime64"):
        model.predict(new.assign(age=pd.Timestamp("2026-01-01")))
    np.testing.assert_array_equal(model.decision_function(new.astype({"age": str})), scores)
    with pytest.raises(ValueError, match="the rows hold an infinite value"):
        model.predict(new.assign(age=np.inf))


def test_an_unknown_level_is_no_level_and_told_once(trained):
    folder, _, _ = trained
    model, new = fedmls.load(folder), patients(3, seed=7)
    new["ward"], new["smoker"] = ["garden", "roof", "garden"], ["perhaps", "yes", "no"]
    message = "unknown levels count as none: column 'ward' has 2 ('garden', 'roof')"
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}; column 'smoker' has 1") as told:
        features = model[0].transform(new)
    assert len(told) == 1
    assert list(model[0].get_feature_names_out()) == [
        *("age", "dose", "ward=eyes", "ward=heart", "ward=surgery", "smoker=yes"),
    ]
    np.testing.assert_array_equal(features[:, 2:], [[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]])


def test_a_pipeline_can_be_pickled_and_cloned(trained):
    folder, _, _ = trained
    model, new = fedmls.load(folder), with_gaps(patients(30, seed=7))
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.decision_function(new), model.decision_function(new))
    np.testing.assert_array_equal(clone(model[0]).transform(new), model[0].transform(new))
    assert again.score(new, new["ill"]) == np.mean(model.predict(new) == new["ill"]) > 0.6


def test_what_a_person_reads(trained):
    folder, objective, n = trained
    told = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    assert told["label"] == "ill"
    assert told["classes"] == ["no", "yes"]
    assert list(told["coefficients"]) == [
        *("age", "dose", "ward=eyes", "ward=heart", "ward=surgery", "smoker=yes"),
    ]
    assert told["coefficients"]["ward=heart"] > told["coefficients"]["ward=eyes"]
    assert [column["kind"] for column in told["columns"]] == ["number", "number", "category", "category"]
    assert told["columns"][2]["levels"] == ["eyes", "heart", "surgery"]
    assert "The prediction is yes where the score is above 0, else no." in told["about"]
    trained_how = told["trained"]
    assert (trained_how["clients"], trained_how["rows"]) == (n, 240)
    assert trained_how["algorithm"] == {"name": "fedmlsb", "parameters": {"lanes": 3}}
    assert trained_how["how"] == ("federation" if n == 6 else "simulation")
    proved = told["proved"]
    assert proved["objective"] == pytest.approx(objective, rel=1e-12)
    assert 0 <= proved["gap"] == proved["objective"] - proved["lower_bound"] < 0.5 * objective


def test_both_files_hold_the_same_model(trained):
    folder, _, _ = trained
    numbers, described = read_model(folder), read_description(folder).model
    for one, other in zip(numbers, described, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["well", "ill"], ["ill", "well"]),
        ([0, 1], [0, 1]),
        ([2.5, -1.0], [-1.0, 2.5]),
        ([True, False], [False, True]),
    ],
)
def test_classes_are_the_labels_of_the_rows(labels, classes, tmp_path):
    table = patients(60, 0)
    table["ill"] = np.where(table["ill"] == "yes", *labels)
    model = fedmls.load(experiment(tmp_path, table))
    assert model.classes_.tolist() == classes
    assert model.classes_.dtype.kind == np.array(classes).dtype.kind
    assert is_classifier(model)
    assert np.mean(model.predict(table) == table["ill"]) > 0.7


def test_one_class_against_the_rest(tmp_path):
    table = patients(90, 0).assign(ill=lambda rows: np.where(rows["dose"] > 400, "much", rows["ill"]))
    out = experiment(tmp_path, table, HOLED | {"positive": "much"})
    model = fedmls.load(out)
    assert model.classes_.tolist() == ["the rest", "much"]
    right = np.mean((model.predict(table) == "much") == (table["ill"] == "much"))
    assert right > 0.8
    found = predict_file(out, tmp_path / "rows.csv")
    assert found.notes == [f"accuracy on 90 rows with the label 'ill': {right:.4g}"]


def test_a_logistic_model_has_probabilities(tmp_path):
    table = patients(120, 0)
    out = experiment(tmp_path, table, loss="logistic", rounds=10)
    model = fedmls.load(out)
    scores, chances = model.decision_function(table), model.predict_proba(table)
    np.testing.assert_allclose(chances[:, 1], 1 / (1 + np.exp(-scores)), rtol=1e-12)
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    objective = pd.read_parquet(out / "history.parquet")["objective"].iloc[-1]
    assert log_loss(table["ill"], chances) * len(table) / 3 == pytest.approx(objective, rel=1e-9)
    assert not hasattr(fedmls.load(experiment(tmp_path, table)), "predict_proba")  # of the hinge loss


@pytest.mark.parametrize("loss", ["absolute", "pinball", "huber", "epsilon_insensitive"])
def test_losses_of_numbers_make_a_regressor(loss, tmp_path):
    table = with_gaps(patients(120, 0)).assign(height=lambda rows: 100 + rows["dose"] / 10)
    parameter = {"pinball": 0.9, "huber": 2.0, "epsilon_insensitive": 0.5}.get(loss)
    more = {} if parameter is None else {"loss_parameter": parameter}
    data = HOLED | {"label": "height", "ignore": ["ill", "dose"], "standardise": True}
    out = experiment(tmp_path, table, data, loss=loss, l2=0.1, **more)
    model, described = fedmls.load(out), read_description(out)
    assert is_regressor(model)
    assert (described.loss, described.loss_parameter) == (loss, parameter)
    residuals = model.predict(table) - table["height"]
    value = fedmls.losses.get_loss(loss, parameter).value(residuals.to_numpy(), np.zeros(120)).sum() / 3
    penalty = 0.1 / 2 * (described.model.x[:-1] ** 2).sum()
    objective = pd.read_parquet(out / "history.parquet")["objective"].iloc[-1]
    assert value + penalty == pytest.approx(objective, rel=1e-9)


def test_without_means_missing_values_are_refused_by_name(tmp_path):
    table = patients(60, 0)
    model = fedmls.load(experiment(tmp_path, table, HOLED | {"missing": "drop"}))
    assert len(model.predict(table)) == 60
    gapped = table.assign(age=table["age"].mask(table.index < 3))
    with pytest.raises(
        ValueError, match=r"values are missing in 'age' \(3\), and the model was trained on rows without"
    ):
        model.predict(gapped)


def test_sparse_rows(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 5)) * (rng.random((60, 5)) < 0.5)
    lines = [
        f"{int(row.sum() > 0)} " + " ".join(f"{j + 1}:{value!r}" for j, value in enumerate(row.tolist()) if value)
        for row in X
    ]
    (tmp_path / "rows.svm").write_text("\n".join(lines) + "\n")
    values = {"rounds": 6, "algorithms": ["fedmlsb"], "partition": {"by": "iid", "clients": 2}}
    Experiment(make(values | {"data": {"file": str(tmp_path / "rows.svm")}})).run(tmp_path / "out", jobs=1)
    model = fedmls.load(tmp_path / "out")
    assert model.classes_.tolist() == [0, 1]
    scores = model.decision_function(sparse.csr_array(X))
    np.testing.assert_allclose(scores, model.decision_function(X), rtol=1e-12)
    with pytest.raises(ValueError, match=r"X has shape \(60, 4\); the model takes rows of 5 columns"):
        model.predict(X[:, :4])


def test_made_up_rows_have_numbered_columns(tmp_path):
    values = {"rounds": 3, "algorithms": ["fedmls"], "data": {"name": "lad"}}
    ran = Experiment(make(values))
    ran.run(tmp_path, jobs=1)
    model, problem = fedmls.load(tmp_path), ran.split(0).problem
    X = problem.matrix().toarray()[:, : problem.penalised]
    residuals = model.predict(X) - problem.y
    value = np.abs(residuals) @ problem.total_row_weights
    assert value == pytest.approx(pd.read_parquet(tmp_path / "history.parquet")["objective"].iloc[-1], rel=1e-9)


def test_the_model_of_an_experiment_is_that_of_the_best_curve(tmp_path, pooled):
    algorithms = [{"name": "fedavg", "eta0": [1e-9, 1e-3]}, {"name": "fedmls", "lam0": 1e9}]
    out = experiment(tmp_path, pooled, HOLED | {"standardise": True}, algorithms, seeds=[3, 4])
    trained = read_description(out).trained
    summary = pd.read_csv(out / "summary.csv")
    best = summary.sort_values("relative_gap").iloc[0]
    assert trained["curve"]["method"] == best["method"] == "FedAvg"
    assert trained["curve"]["parameter"] == best["parameter"]
    assert trained["algorithm"]["parameters"]["eta0"] == 1e-3
    assert trained["seed"] == 3
    assert trained["chosen"].startswith("the first seed of the best curve")


def test_no_model_is_kept_where_every_run_has_diverged(tmp_path, pooled):
    out = experiment(tmp_path, pooled, algorithms=[{"name": "fedavg", "eta0": 1e30}], l2=1.0, rounds=30)
    assert pd.read_csv(out / "summary.csv")["diverged"].item() == 1
    with pytest.raises(ValueError, match=r"out holds no model.json; fedmls run, reproduce and federate write one"):
        fedmls.load(out)


def test_folders_and_files_without_a_model(tmp_path):
    with pytest.raises(ValueError, match="nowhere is not there; name the results folder of a run"):
        fedmls.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"holds no model.json"):
        fedmls.load(tmp_path)
    for text in ("[]", "{}", "no", '{"format": 2}'):
        (tmp_path / "model.json").write_text(text)
        with pytest.raises(ValueError, match=r"model.json is no model \("):
            fedmls.load(tmp_path)


def test_a_node_without_a_level_and_six_ways_to_write_a_file(tmp_path, pooled):
    files = clinics(tmp_path)
    assert len(files) == 6
    assert [*files.values()][5]["ward"].nunique() == 2
    pd.testing.assert_frame_equal(pd.concat(files.values(), ignore_index=True)[list(pooled)], pooled)
