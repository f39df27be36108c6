"""``fedmls predict``: from a results folder and a file of new rows to a file of predictions."""

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import fedmls
from fedmls.cli import app
from tests.support.clinics import federation, patients, with_gaps


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return federation(tmp_path_factory.mktemp("federation"), algorithm=fedmls.FedMLSB(), standardise=True).folder


@pytest.fixture(scope="module")
def logistic(tmp_path_factory):
    made = tmp_path_factory.mktemp("logistic")
    return federation(made, algorithm=fedmls.FedMLSB(), loss="logistic", standardise=True).folder


def predict(*arguments):
    return CliRunner().invoke(app, ["predict", *map(str, arguments)])


def test_rows_without_a_label(folder, tmp_path):
    new = with_gaps(patients(25, 50)).drop(columns="ill").assign(number=np.arange(100, 125))
    new.to_csv(tmp_path / "new.csv", index=False, sep=";", encoding="utf-8-sig")
    done = predict(folder, tmp_path / "new.csv", "--out", tmp_path / "predictions.csv", "--keep", "number")
    assert done.exit_code == 0, done.output
    assert done.stdout == f"25 predictions in {tmp_path / 'predictions.csv'}\n"
    found = pd.read_csv(tmp_path / "predictions.csv")
    assert list(found) == ["number", "prediction", "score"]
    assert found["number"].tolist() == new["number"].tolist()
    model = fedmls.load(folder)
    assert found["prediction"].tolist() == model.predict(new).tolist()
    np.testing.assert_array_equal(found["score"], model.decision_function(new))
    assert set(found["prediction"]) == {"no", "yes"}


def test_with_the_label_it_tells_how_many_are_right(logistic, tmp_path):
    new = patients(50, 50)
    new.loc[:9, "ill"] = None
    new.loc[:2, "ward"] = "garden"
    new.to_parquet(tmp_path / "new.parquet")
    done = predict(logistic, tmp_path / "new.parquet", "--out", tmp_path / "out.csv")
    assert done.exit_code == 0, done.output
    found = pd.read_csv(tmp_path / "out.csv")
    right = np.mean(found["prediction"][10:] == new["ill"][10:])
    assert done.stdout.splitlines() == [
        "unknown levels count as none: column 'ward' has 1 ('garden')",
        f"accuracy on 40 rows with the label 'ill': {right:.4g}",
        f"50 predictions in {tmp_path / 'out.csv'}",
    ]
    assert right > 0.6
    assert list(found) == ["prediction", "score", "probability"]
    np.testing.assert_allclose(found["probability"], 1 / (1 + np.exp(-found["score"])), rtol=1e-12)


def test_levels_that_look_like_numbers_stay_as_they_are_written(tmp_path):
    """A new file may hold only such levels of a category, and pandas would take "01" for 1."""
    from tests.results.test_model import experiment

    table = patients(90, 0)
    table["ward"] = table["ward"].map({"surgery": "01", "heart": "x", "eyes": "y"})
    out = experiment(tmp_path, table)
    new = table[table["ward"] == "01"].assign(ward=lambda rows: rows["ward"].mask(rows.index < 4))
    new.to_csv(tmp_path / "new.csv", index=False)
    done = predict(out, tmp_path / "new.csv", "--out", tmp_path / "out.csv")
    assert "unknown" not in done.stdout
    np.testing.assert_allclose(pd.read_csv(tmp_path / "out.csv")["score"], fedmls.load(out).decision_function(new))


def test_kept_cells_are_copied_to_the_letter(folder, tmp_path):
    new, out = tmp_path / "new.csv", tmp_path / "out.csv"
    patients(3, 1).assign(number=["00123", "", "7"], score="7.50").to_csv(new, index=False)
    done = predict(folder, new, "--out", out, "--keep", "number", "--keep", "age")
    assert done.exit_code == 0, done.output
    assert pd.read_csv(out, dtype=str)["number"].fillna("").tolist() == ["00123", "", "7"]
    assert out.read_text().splitlines()[1].startswith(f"00123,{new.read_text().splitlines()[1].split(',')[0]},")
    done = predict(folder, new, "--out", out, "--keep", "score")
    message = f"keep has 'score', as a column of the predictions is called; rename it in {new}"
    assert done.stderr == f"error: {message}\n"


def test_labels_that_the_model_does_not_know_are_told(folder, tmp_path):
    new, out = tmp_path / "new.csv", tmp_path / "out.csv"
    patients(30, 1).assign(ill=lambda rows: rows["ill"].str.upper()).to_csv(new, index=False)
    done = predict(folder, new, "--out", out)
    said = " ".join(done.stdout.split())
    assert "the label 'ill' holds 'NO', 'YES', not only the model's 'no' and 'yes'" in said
    assert "accuracy" not in said
    assert said.endswith(f"30 predictions in {out}")


def test_mistakes_are_one_line(folder, tmp_path):
    new, out = tmp_path / "new.csv", tmp_path / "out.csv"
    patients(5, 1).drop(columns="ward").to_csv(new, index=False)
    known = ".csv, .parquet, .svm, .svmlight, .libsvm, .npz"
    written = "fedmls run, reproduce and federate write one when a run has ended"
    mistakes = {
        (folder, new, "--out", out): f"{new}: there is no column 'ward'; there are age, dose, smoker, ill",
        (folder, new, "--out", "x"): "--out is 'x'; predictions are written as CSV: name a file that ends in .csv",
        (folder, tmp_path / "no.csv", "--out", out): f"{tmp_path / 'no.csv'} is not there",
        (tmp_path, new, "--out", out): f"{tmp_path} holds no model.json; {written}",
        (folder, folder / "job.toml", "--out", out): f"job.toml is of no known kind; take one of {known}",
    }
    for arguments, message in mistakes.items():
        done = predict(*arguments)
        assert (done.exit_code, done.stderr) == (2, f"error: {message}\n")
    patients(5, 1).to_csv(new, index=False)
    done = predict(folder, new, "--out", out, "--keep", "number")
    assert done.stderr == f"error: {new}: there is no column 'number'; there are age, dose, ward, smoker, ill\n"
    assert not out.exists()


def test_the_rows_are_not_overwritten_by_their_predictions(tmp_path):
    rows = tmp_path / "new.csv"
    rows.write_text("a,b\n1,2\n")
    (tmp_path / "d.csv").mkdir()
    for out, why in ((rows, "the file of the rows, which would be lost"), (tmp_path / "d.csv", "a folder")):
        done = CliRunner().invoke(app, ["predict", str(tmp_path), str(rows), "--out", str(out)])
        assert done.exit_code == 2
        assert why in done.output.replace("\n  ", " ")
    assert rows.read_text() == "a,b\n1,2\n"
