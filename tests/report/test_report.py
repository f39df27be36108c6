"""``fedmls report``: the numbers on the page are those of the files, and the page works in a real browser."""

import json
import os
import re
import statistics
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes

import fedmls
from fedmls import federation, report
from fedmls.report import about, numerals, tables
from fedmls.report.curves import Curve, costs_of, measures_of
from fedmls.report.figure import draw
from fedmls.results.model import read_model
from fedmls.results.read import Seeds
from fedmls.results.write import partition_table, write_results
from tests.support.federations import federate
from tests.support.problems import svm

ROOT = Path(__file__).parents[2]
EVIL = "<script>window.ran = 1; alert(1)</script>"


def runs(method, parameter, gaps, *, variant="", diverged=(), **more):
    """The history of one curve: a row of relative gaps for each seed, one gap for each round."""
    frames = []
    for seed, values in enumerate(gaps):
        rounds = np.arange(1, len(values) + 1)
        columns = {
            "method": method,
            "variant": variant,
            "parameter": parameter,
            "seed": seed,
            "diverged": seed in diverged,
            "round": rounds,
            "exchanges": rounds + 1,
            "local_steps": rounds * (rounds + 1) // 2,
            "bytes_up": 80 * rounds,
            "bytes_down": 80 * rounds,
            "objective": 2.0 * (1 + np.array(values, float)),
            "relative_gap": np.array(values, float),
            "seconds": 0.01 * rounds,
        }
        frames.append(pd.DataFrame(columns | more))
    return pd.concat(frames, ignore_index=True)


SETUP = {
    "title": "A trial",
    "command": "fedmls run trial.toml",
    "spec": {
        "loss": "hinge",
        "rounds": 5,
        "data": {"name": "x"},
        "algorithms": [{"name": "fedmls", "lam0": [0.1, 1.0]}],
    },
    "problem": {"data": "x", "rows": 12, "coordinates": 3, "loss": "hinge", "clients": 2},
    "partition": [
        {"client": "north", "rows": 8, "classes": {"no": 6, "yes": 2}},
        {"client": "south", "rows": 4, "classes": {"yes": 4}},
    ],
    "optimum": {"0": 2.0, "1": 2.0},
    "rounds": 5,
    "versions": {"fedmls": "0.1.0", "python": "3.11.7"},
}
TRIAL = [
    runs("FedMLS", "λ₀ = 1", [[2, 0.5, 0.1, 0.02, 0.004], [4, 1, 0.3, 0.05, 0.008], [3, 0.8, 0.2, 0.04, 0.006]]),
    runs("FedMLS", "λ₀ = 10", [[9, 0.09, 0.08, 0.07, 0.06]] * 2 + [[9, 9, 9, 9, 9]], diverged=(2,)),
    runs("FedAvg", "η₀ = 1", [[1, 0.9, 0.8, 0.7, 0.6], [1, 0.9, 0.8, 0.7, 0.05], [1, 0.9, 0.8, 0.7, 0.6]]),
]


def folder(path, *histories, setup=SETUP):
    path.mkdir(parents=True, exist_ok=True)
    pd.concat(histories, ignore_index=True).to_parquet(path / "history.parquet", index=False)
    if setup is not None:
        (path / "setup.json").write_text(json.dumps(setup), encoding="utf-8")
    return path


@pytest.fixture
def trial(tmp_path):
    return folder(tmp_path / "trial", *TRIAL)


def curve_of(summary, name):
    return next(curve for curve in summary["chart"]["curves"] if curve["name"] == name)


def table_of(summary, cost, gap="relative_gap"):
    found = next(t for t in summary["targets"]["tables"] if (t["gap"], t["cost"]) == (gap, cost))
    return {row["group"]: row["cells"] for row in found["rows"]}


# The numbers


def test_a_curve_is_medians_and_quantiles_over_seeds(trial):
    curve = curve_of(report.summarise([trial]), "FedMLS, λ₀ = 1")
    gaps = np.array([[2, 0.5, 0.1, 0.02, 0.004], [4, 1, 0.3, 0.05, 0.008], [3, 0.8, 0.2, 0.04, 0.006]])
    for name, q in (("low", 0), ("first", 0.25), ("median", 0.5), ("third", 0.75), ("high", 1)):
        assert curve["y"]["relative_gap"][name] == pytest.approx(np.quantile(gaps, q, axis=0), rel=1e-5)
    assert curve["x"]["round"] == [1, 2, 3, 4, 5]
    assert curve["x"]["exchanges"] == [2, 3, 4, 5, 6]
    assert curve["x"]["bytes"] == [160, 320, 480, 640, 800]
    assert curve["x"]["local_steps"] == [1, 3, 6, 10, 15]


def test_long_curves_are_thinned_to_points_of_the_history(tmp_path):
    gaps = 1 / np.arange(1, 10_001)
    summary = report.summarise([folder(tmp_path / "long", runs("FedMLS", "", [gaps]))])
    curve = summary["chart"]["curves"][0]
    rounds, shown = curve["x"]["round"], curve["y"]["relative_gap"]["median"]
    assert 100 < len(rounds) <= 300
    assert rounds[:3] == [1, 2, 3]
    assert rounds[-1] == 10_000
    assert shown == pytest.approx([gaps[k - 1] for k in rounds], rel=1e-5)
    assert max(b / a for a, b in pairwise(rounds[20:])) < 1.1  # evenly on a logarithmic axis


def test_a_run_that_ended_early_keeps_its_last_value(tmp_path):
    summary = report.summarise([folder(tmp_path / "a", runs("M", "", [[1, 0.1], [1, 0.5, 0.4, 0.2]]))])
    curve = summary["chart"]["curves"][0]
    assert curve["y"]["relative_gap"]["low"] == [1, 0.1, 0.1, 0.1]
    assert curve["y"]["relative_gap"]["high"] == [1, 0.5, 0.4, 0.2]
    assert curve["x"]["exchanges"] == [2, 3, 4, 5]


def test_the_best_parameter_has_the_smallest_median_at_the_end(trial):
    summary = report.summarise([trial])
    best = {row["group"]: row for row in summary["ends"]["rows"] if row["best"]}
    assert best["FedMLS"]["parameter"] == "λ₀ = 1"
    assert best["FedMLS"]["cells"][0] == {"text": "6.00 × 10⁻³", "note": "4.00 × 10⁻³ to 8.00 × 10⁻³", "best": True}
    assert best["FedAvg"]["cells"][0] == {"text": "0.600", "note": "0.0500 to 0.600", "best": False}
    columns = dict(zip(summary["ends"]["columns"], best["FedMLS"]["cells"], strict=True))
    assert {name: columns[name]["text"] for name in ("Rounds", "Exchanges", "Bytes", "Local steps", "Seconds")} == {
        "Rounds": "5",
        "Exchanges": "6",
        "Bytes": "800 B",
        "Local steps": "15",
        "Seconds": "0.05 s",
    }


def test_diverged_runs_are_said_and_left_out(trial):
    summary = report.summarise([trial])
    assert summary["folders"][0]["diverged"] == ["FedMLS, λ₀ = 10: 1 of 3 diverged"]
    curve = curve_of(summary, "FedMLS, λ₀ = 10")
    assert curve["lost"] == "1 of 3 diverged"
    assert curve["y"]["relative_gap"]["high"] == [9, 0.09, 0.08, 0.07, 0.06]


def test_a_curve_without_a_row_is_told_by_the_summary(tmp_path):
    """Runs that diverge in round 1 have no row in the history."""
    path = folder(tmp_path / "a", *TRIAL)
    lines = ["method,variant,parameter,seeds,diverged", "FedMLS,,λ₀ = 1,4,1", "FedAvg,,η₀ = 100,3,3", "Old,,,3,0"]
    (path / "summary.csv").write_text("\n".join(lines), encoding="utf-8")
    summary = report.summarise([path])
    assert summary["folders"][0]["diverged"] == [
        "FedMLS, λ₀ = 1: 1 of 4 diverged",
        "FedAvg, η₀ = 100: all 3 diverged",
        "FedMLS, λ₀ = 10: 1 of 3 diverged",
    ]
    assert curve_of(summary, "FedAvg, η₀ = 100")["y"] == {}
    assert "all 3 diverged" in report.write([path]).read_text(encoding="utf-8")


def test_what_it_took_to_each_target(trial):
    summary = report.summarise([trial])
    assert summary["targets"]["heads"] == ["10⁻¹", "10⁻²", "10⁻³", "10⁻⁴"]
    rounds = table_of(summary, "round")
    assert [cell["text"] for cell in rounds["FedMLS"]] == ["2", "5", "not reached", "not reached"]
    assert [cell["note"] for cell in rounds["FedMLS"]] == ["λ₀ = 10", "λ₀ = 1", "", ""]
    assert [cell["best"] for cell in rounds["FedMLS"]] == [True, True, False, False]
    assert [cell["text"] for cell in rounds["FedAvg"]] == ["not reached"] * 4
    assert rounds["FedAvg"][0]["note"] == "1 of 3 seeds did"
    assert table_of(summary, "bytes")["FedMLS"][1]["text"] == "800 B"
    assert table_of(summary, "exchanges")["FedMLS"][0]["text"] == "3"


@settings(max_examples=40)
@given(
    st.lists(
        st.lists(st.sampled_from([3.0, 0.1, 0.05, 0.01, 1e-3, 1e-5]), min_size=1, max_size=6), min_size=1, max_size=5
    )
)
def test_targets_are_medians_of_first_rounds(gaps):
    history = runs("M", "", gaps).assign(bytes=1)
    curve = Curve(0, ("M", "", ""), Seeds(len(gaps), 0), history, history.groupby("seed").last())
    made = tables.targets([curve], measures_of([curve]), costs_of([curve]))
    cells = next(table for table in made["tables"] if table["cost"] == "round")["rows"][0]["cells"]
    for exponent, cell in zip(tables.TARGETS, cells, strict=True):
        first = [next((k for k, gap in enumerate(one, 1) if gap <= 10.0**exponent), float("inf")) for one in gaps]
        middle = statistics.median(first)
        assert cell["text"] == ("not reached" if middle == float("inf") else numerals.count(middle))


def test_methods_that_prove_nothing_are_not_in_the_table_of_certified_gaps(tmp_path):
    proved = runs("FedMLS", "", [[1, 0.5]], certified_gap=[1.0, 0.05], lower_bound=[-np.inf, 1.0])
    summary = report.summarise([folder(tmp_path / "a", proved, TRIAL[2])])
    assert [y["key"] for y in summary["chart"]["y"]] == ["relative_gap", "certified_gap", "objective"]
    assert list(table_of(summary, "round", "certified_gap")) == ["FedMLS"]
    assert table_of(summary, "round", "certified_gap")["FedMLS"][0]["text"] == "2"
    assert curve_of(summary, "FedAvg, η₀ = 1")["y"].keys() == {"relative_gap", "objective"}


def test_without_an_optimum_the_objective_is_shown(tmp_path):
    history = runs("M", "p", [[3, 2], [5, 4]]).assign(relative_gap=np.nan)
    summary = report.summarise([folder(tmp_path / "a", history, runs("M", "q", [[1, 1]]).assign(relative_gap=np.nan))])
    assert [y["key"] for y in summary["chart"]["y"]] == ["objective"]
    assert summary["ends"]["columns"][0] == "Objective"
    assert [row["parameter"] for row in summary["ends"]["rows"] if row["best"]] == ["q"]
    assert summary["targets"]["tables"] == []
    assert "No optimum is known" in report.write([tmp_path / "a"]).read_text(encoding="utf-8")


def test_a_history_of_rounds_alone(tmp_path):
    path = folder(tmp_path / "a", pd.DataFrame({"round": [1, 2]}), setup=None)
    summary = report.summarise([path])
    assert [x["key"] for x in summary["chart"]["x"]] == ["round"]
    assert summary["chart"]["y"] == []
    text = report.write([path]).read_text(encoding="utf-8")
    for sentence in ("nothing to draw", "how the rows were divided", "do not tell the command"):
        assert sentence in text


def test_metrics_and_seconds_are_offered_where_they_are(tmp_path):
    history = runs("M", "", [[1, 0.5]], test_accuracy=[0.5, 0.9], seconds=0.0)
    chart = report.summarise([folder(tmp_path / "a", history)])["chart"]
    assert [y["title"] for y in chart["y"]] == ["Relative gap", "Objective", "Test accuracy"]
    assert [y["log"] for y in chart["y"]] == [True, True, False]
    assert [x["key"] for x in chart["x"]] == ["round", "exchanges", "bytes", "local_steps"]


def test_a_negative_objective_has_no_logarithmic_axis(tmp_path):
    history = runs("M", "", [[1, 0.5]]).assign(objective=[1.0, -1.0])
    chart = report.summarise([folder(tmp_path / "a", history)])["chart"]
    assert {y["key"]: y["can_log"] for y in chart["y"]} == {"relative_gap": True, "objective": False}


def test_curves_differ_without_colour(tmp_path):
    """No two share marker, dash and filling; the best of the first folder is solid, that of the second is not."""
    histories = [runs(f"M{i}", f"p{j}", [[1, 0.1 * (j + 1)]]) for i in range(8) for j in range(3)]
    paths = [folder(tmp_path / name, *histories) for name in ("a", "b")]
    for some in (paths[:1], paths):
        curves = report.summarise(some)["chart"]["curves"]
        assert (
            len({(curve["symbol"], curve["dash"], curve["open"]) for curve in curves}) == len(curves) == 24 * len(some)
        )
    assert {curve["dash"] for curve in curves if curve["best"] and curve["folder"] == 0} == {""}
    assert "" not in {curve["dash"] for curve in curves if curve["best"] and curve["folder"] == 1}


def test_two_folders_side_by_side(trial, tmp_path):
    other = folder(tmp_path / "other", TRIAL[0], runs("New", "", [[1, 0.01]]), setup=SETUP | {"rounds": 9})
    summary = report.summarise([trial, other])
    assert summary["title"] == "trial and other"
    cells = table_of(summary, "round")
    assert len(cells["FedMLS"]) == 8
    assert cells["FedAvg"][1]["text"] == "not run"
    assert cells["New"][0]["text"] == "not run"
    assert cells["New"][1]["best"]  # each folder has its own best
    assert cells["FedMLS"][0]["best"]
    differ = [row["name"] for row in summary["setup"]["facts"] if row["differs"]]
    assert differ == ["rounds"]
    assert report.write([trial, other]) == trial / "report-with-other.html"


def test_folders_of_one_name_are_told_apart_by_their_paths(tmp_path):
    paths = [folder(tmp_path / name / "results", TRIAL[0]) for name in ("a", "b")]
    labels = [one["label"] for one in report.summarise(paths)["folders"]]
    assert labels == [str(path) for path in paths]


# Folders as the commands write them


def test_a_folder_as_sweeps_are_written(tmp_path):
    problem = svm()
    done = fedmls.sweep(
        [fedmls.FedMLS(lam0=v) for v in (0.1, 1.0)], problem, rounds=4, seeds=range(2), batch=0.5, jobs=1
    )
    labels = [("FedMLS", "", f"λ₀ = {run.algorithm.lam0:g}") for run in done]
    write_results(tmp_path, done, labels, {"partition": partition_table(problem)})
    summary = report.summarise([tmp_path])
    assert summary["folders"][0]["lead"] == "4 runs: 1 method in 2 curves, 2 seeds each, up to 4 rounds."
    last = np.median([run.history["relative_gap"].iloc[-1] for run in done[:2]])
    assert curve_of(summary, "FedMLS, λ₀ = 0.1")["y"]["relative_gap"]["median"][-1] == pytest.approx(last, rel=1e-5)
    assert len(summary["clients"][0]["bars"]) == problem.n


def test_a_folder_of_a_federation(tmp_path):
    X, y = fedmls.datasets.breast_cancer_wisconsin()
    columns = [f"c{i}" for i in range(X.shape[1])]
    pd.DataFrame(X, columns=columns).assign(label=y).to_csv(tmp_path / "rows.csv", index=False)
    federation.split(tmp_path / "rows.csv", tmp_path / "parts", clients=3)
    job = federation.Job(algorithm=fedmls.FedMLS(paired=True), rounds=4, batch=0.1, certificate=10.0)
    job.write(tmp_path / "job")
    federation.drive(tmp_path / "job", federation.InProcess(sorted((tmp_path / "parts").glob("*.toml"))))
    summary = report.summarise([tmp_path / "job"])
    assert summary["folders"][0]["lead"].startswith("One run of FedMLS, paired=True")
    assert [y["key"] for y in summary["chart"]["y"]] == ["certified_gap", "objective"]
    assert [bar["client"] for bar in summary["clients"][0]["bars"]] == ["site-1", "site-2", "site-3"]
    (again,) = summary["setup"]["commands"]
    assert again["command"] == "fedmls federate --job job.toml"
    assert federation.Job.from_dict(tomllib.loads(again["file"])) == job
    assert "Log axes" in report.write([tmp_path / "job"]).read_text(encoding="utf-8")


def test_the_page_of_a_federation_tells_its_job_and_its_model(tmp_path):
    job = {"algorithm": fedmls.FedMLSB(), "rounds": 3, "standardise": True, "weights": "rows", "secure": False}
    federate(svm(n=3), tmp_path, **job)
    summary = report.summarise([tmp_path / "job"])
    facts = {row["name"]: row["values"] for row in summary["setup"]["facts"]}
    assert facts["columns scaled (standardise)"] == ["yes"]
    assert facts["weights of the nodes"] == ["rows"]
    assert facts["secure sums"] == ["no"]
    (shown,) = summary["coefficients"]
    model = read_model(tmp_path / "job")
    order = np.argsort(-np.abs(model.x[:4]))
    assert [row["name"] for row in shown["rows"]] == [model.columns[i] for i in order]
    assert [row["texts"][0] for row in shown["rows"]] == [numerals.small(model.x[i] / model.scales[i]) for i in order]
    constant = model.x[4] - (model.x[:4] / model.scales) @ model.means
    assert shown["intercept"] == numerals.small(constant)
    assert summary["held_out"] == [None]
    text = report.write([tmp_path / "job"]).read_text(encoding="utf-8")
    assert "above 0 the model predicts 1, else -1" in text


def test_scores_on_held_out_rows_are_shown(trial):
    scores = {"rows": 12, "values": {"accuracy": 0.75, "auc": 0.8125, "auc_error": 0.01}}
    told = {"together": scores, "nodes": {}, "without": {"south": EVIL}, "notes": ["rounded"]}
    (trial / "setup.json").write_text(json.dumps(SETUP | {"held_out": told}), encoding="utf-8")
    (shown,) = report.summarise([trial])["held_out"]
    assert shown["cells"][1:] == [["all", "12", "0.750", "0.812 ± 0.011"]]
    assert shown["remarks"] == ["rounded", f"without south: {EVIL}"]
    text = report.write([trial]).read_text(encoding="utf-8")
    assert text.count("On held-out rows") == 1
    assert EVIL not in text


# A figure for a paper


def test_a_figure_is_as_wide_as_is_asked(trial):
    from matplotlib import image

    files = draw(trial, x="bytes", width=3.5)
    assert [file.name for file in files] == ["figure-bytes.png", "figure-bytes.pdf"]
    assert image.imread(files[0]).shape[1] == 3.5 * 200
    (narrow, _) = draw(trial, x="bytes", methods=["fedavg"], width=2.0, out=trial / "mine.pdf")
    assert narrow == trial / "mine.png"
    assert image.imread(narrow).shape[1] == 400


def test_the_lines_of_a_figure_are_the_medians_of_the_report(trial, monkeypatch):
    drawn, original = {}, Axes.plot

    def plot(ax, x, y, **options):
        drawn[options["label"]] = (list(x), list(y))
        return original(ax, x, y, **options)

    monkeypatch.setattr(Axes, "plot", plot)
    draw(trial, x="bytes")
    assert list(drawn) == ["FedMLS, λ₀ = 1", "FedAvg, η₀ = 1"]  # the best parameter of each
    summary = report.summarise([trial])
    for name, (x, y) in drawn.items():
        curve = curve_of(summary, name)
        assert x == curve["x"]["bytes"]
        assert y == pytest.approx(curve["y"]["relative_gap"]["median"], rel=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"x": "byte"}, "unknown x 'byte': did you mean 'bytes'?"),
        ({"y": "accuracy"}, "unknown y 'accuracy'"),
        ({"methods": ["FedAvgg"]}, "unknown method 'FedAvgg': did you mean 'FedAvg'?"),
        ({"width": 0.5}, "width is 0.5; it must be a number of at least 1.5"),
    ],
)
def test_what_a_figure_cannot_show_is_named(trial, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        draw(trial, **options)


# Clients and set-up


def test_clients_with_classes(trial):
    (clients,) = report.summarise([trial])["clients"]
    assert clients["lead"] == "2 clients with 12 rows, 4 to 8 each"
    assert clients["classes"] == ["no", "yes"]
    north, south = clients["bars"]
    assert [(part["rows"], part["width"]) for part in north["parts"]] == [("6", 75.0), ("2", 25.0)]
    assert [part["rows"] for part in south["parts"]] == ["0", "4"]
    assert south["width"] == 50


def test_clients_with_numbers_as_labels():
    parts = [
        {"client": "a", "rows": 3, "label": {"min": -10, "median": 0, "max": 5}},
        {"client": "b", "rows": 3, "label": {"min": 0, "median": 5, "max": 10}},
    ]
    bars = about.clients(parts)["bars"]
    assert [(b["label"]["left"], b["label"]["width"], b["label"]["middle"]) for b in bars] == [
        (0, 75, 50),
        (50, 50, 75),
    ]


def test_many_clients_and_many_classes_are_shortened():
    parts = [
        {"client": i, "rows": i + 10, "classes": {str(c): i for c in range(10)} | {"0": i + 10}} for i in range(50)
    ]
    clients = about.clients(parts)
    assert len(clients["bars"]) == about.CLIENTS
    assert clients["bars"][0]["client"] == "49"
    assert clients["left"] == "and 10 smaller clients"
    assert clients["classes"] == ["0", "1", "2", "3", "4", "others"]
    assert [part["rows"] for part in clients["bars"][0]["parts"]] == ["59", "49", "49", "49", "49", "245"]


@pytest.mark.parametrize(
    "partition", [None, [], {}, "x", [1, None], [{"client": "a"}], [{"rows": 0}], [{"rows": "many"}]]
)
def test_a_partition_that_says_nothing(partition):
    assert about.clients(partition) is None


def test_the_set_up_is_told_whole(trial):
    setup = report.summarise([trial])["setup"]
    facts = {row["name"]: row["values"] for row in setup["facts"]}
    assert facts["optimum f*"] == ["2"]
    assert facts["loss"] == ["hinge"]
    assert {row["name"]: row["values"][0] for row in setup["versions"]} == SETUP["versions"]
    (again,) = setup["commands"]
    assert again["command"] == "fedmls run trial.toml"
    assert tomllib.loads(again["file"]) == SETUP["spec"]
    assert "[[algorithms]]\n" in again["file"]


def test_an_experiment_that_toml_cannot_say_is_shown_as_json():
    spec = {"target": None, "methods": [{"a": {"b": 1}}, 2]}
    (again,) = about.setup([{"spec": spec, "command": ["fedmls", "run", "a b.toml"]}])["commands"]
    assert json.loads(again["file"]) == spec
    assert again["command"] == "fedmls run 'a b.toml'"


# Words


@pytest.mark.parametrize(
    ("say", "value", "said"),
    [
        (numerals.small, 0.0217, "0.0217"),
        (numerals.small, 0.00999, "9.99 × 10⁻³"),
        (numerals.small, 1.1, "1.10"),
        (numerals.small, -1234.6, "−1,235"),
        (numerals.small, 0.0, "0"),
        (numerals.small, 2.5e7, "2.50 × 10⁷"),
        (numerals.small, float("nan"), "–"),
        (numerals.count, 374.5, "374.5"),
        (numerals.count, 12345.0, "12,345"),
        (numerals.size, 999, "999 B"),
        (numerals.size, 1.6e6, "1.60 MB"),
        (numerals.size, 999_950, "1.00 MB"),
        (numerals.size, 12_345, "12.3 kB"),
        (numerals.size, 999.9, "1.00 kB"),
        (numerals.seconds, 0.0441, "0.044 s"),
        (numerals.seconds, 150, "2.5 min"),
        (numerals.seconds, 7200, "2 h"),
    ],
)  # fmt: skip
def test_numbers_for_people(say, value, said):
    assert say(value) == said


@given(st.floats(1, 9e11))
def test_sizes_have_three_digits(value):
    number, unit = numerals.size(value).split()
    scale = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]
    assert float(number) * scale == pytest.approx(value, rel=0.5 if value < 3 else 0.2 if value < 10 else 0.006)
    assert len(number.replace(".", "")) <= 3 or unit == "GB"


# The page as a file


class Elements(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.ids = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.ids += [value for name, value in attributes if name == "id"]

    def handle_data(self, data):
        self.texts.append(data)


def evil(tmp_path):
    """A folder in which everything that has a name is called by a script."""
    history = runs(EVIL, EVIL, [[1, 0.1], [1, 0.2]], variant=EVIL, diverged=(1,)).assign(**{EVIL: 1.0})
    setup = {
        "title": EVIL,
        "command": EVIL,
        "spec": {EVIL: EVIL},
        "problem": {EVIL: EVIL},
        "partition": [{"client": EVIL, "rows": 3, "classes": {EVIL: 3}}],
        "versions": {EVIL: EVIL},
    }
    return folder(tmp_path / "<i>evil", history, runs("FedAvg", "", [[9, 5]]), setup=setup)


def test_names_from_files_are_text(tmp_path):
    text = report.write([evil(tmp_path)]).read_text(encoding="utf-8")
    found = Elements(text)
    assert found.tags.count("script") == 4  # data, plotly, ours
    assert "i" not in {tag for tag in found.tags if tag == "evil"}
    assert text.count("<script>window") == 0
    assert sum(EVIL in one for one in found.texts) > 10
    assert len({*found.ids}) == len(found.ids)


def test_a_large_experiment_stays_near_five_megabytes(tmp_path):
    rng = np.random.default_rng(0)
    gaps = [np.exp(-np.arange(1000) / 100 + rng.normal(size=(20, 1000))) for _ in range(15)]
    path = folder(tmp_path / "large", *(runs(f"M{i // 3}", f"p{i % 3}", one) for i, one in enumerate(gaps)))
    assert report.write([path]).stat().st_size < 5.5e6


def test_the_wheel_holds_the_template_and_what_goes_into_it():
    wheel = pytest.importorskip("hatchling.builders.wheel")
    held = {file.distribution_path for file in wheel.WheelBuilder(str(ROOT)).recurse_included_files()}
    assert {f"fedmls/report/{name}" for name in ("page.html.j2", "report.js", "report.css", "build.py")} <= held


# The command


def fedmls_report(*arguments, cwd, **options):
    command = [sys.executable, "-m", "fedmls.cli", "report", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=120, check=False, **options)


@pytest.mark.processes
def test_the_command_writes_into_the_folder_and_opens_it(trial, tmp_path):
    browser = f"{sys.executable} -c \"import sys; print('opened', sys.argv[1])\" %s"
    done = fedmls_report("trial", "--open", cwd=tmp_path, env=os.environ | {"BROWSER": browser})
    assert (done.returncode, done.stderr) == (0, "")
    file = (trial / "report.html").resolve()
    assert re.fullmatch(rf"trial/report.html \(\d\.\d MB\)\nopened {re.escape(file.as_uri())}\n", done.stdout)


@pytest.mark.processes
def test_the_command_writes_elsewhere(trial, tmp_path):
    done = fedmls_report("trial", "--out", "new/page.html", cwd=tmp_path)
    assert done.stdout.startswith("new/page.html (")
    assert (tmp_path / "new" / "page.html").exists()
    assert not (trial / "report.html").exists()


@pytest.mark.processes
def test_an_error_of_the_command(tmp_path):
    done = fedmls_report("nowhere", cwd=tmp_path)
    assert done.returncode == 2
    said = "error: nowhere is not there; give a results folder, as fedmls run or fedmls reproduce writes it\n"
    assert (done.stdout, done.stderr) == ("", said)


def broken(tmp_path, what):
    path = tmp_path / what
    if what == "missing":
        return path
    if what == "file":
        path.write_text("x", encoding="utf-8")
        return path
    folder(path, *TRIAL)
    parquet = path / "history.parquet"
    if what == "cut":
        parquet.write_bytes(parquet.read_bytes()[:-200])
    elif what == "noise":
        parquet.write_bytes(b"no parquet at all\n" * 20)
    elif what == "no rows":
        pd.read_parquet(parquet).iloc[:0].to_parquet(parquet)
    elif what == "no rounds":
        pd.read_parquet(parquet).drop(columns="round").to_parquet(parquet)
    elif what == "no JSON":
        (path / "setup.json").write_text("{", encoding="utf-8")
    elif what == "a list":
        (path / "setup.json").write_text("[]", encoding="utf-8")
    elif what == "bad summary":
        (path / "summary.csv").write_text("method,variant,parameter,seeds,diverged\na,b,c,many,1\n", encoding="utf-8")
    else:
        parquet.unlink()
        if what == "unfinished":
            (path / "runs").mkdir()
        elif what == "compared":
            (path / "points.parquet").write_text("", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("missing", "is not there; give a results folder"),
        ("file", "is no folder; give a results folder"),
        ("no history", "holds no history.parquet; give a results folder"),
        ("unfinished", "holds no history.parquet; the experiment is not finished: start it again to go on"),
        ("compared", "holds no history.parquet; fedmls compare has its own page, report.md"),
        ("cut", "history.parquet cannot be read"),
        ("noise", "history.parquet cannot be read"),
        ("no rows", "history.parquet holds no rows: no run came through its first round"),
        ("no rounds", "history.parquet has no column 'round' of numbers"),
        ("no JSON", "setup.json cannot be read"),
        ("a list", "setup.json holds a list; it must hold an object"),
        ("bad summary", "summary.csv cannot be read"),
    ],
)
def test_errors_are_one_line(what, said, tmp_path):
    with pytest.raises(ValueError) as error:
        report.write([broken(tmp_path, what)])
    assert str(error.value).startswith(str(tmp_path / what))
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.rglob("*.html"))


def test_one_folder_twice_and_a_folder_as_file(trial):
    with pytest.raises(ValueError, match="is given twice; give two folders"):
        report.write([trial, trial.parent / "." / trial.name])
    with pytest.raises(ValueError, match="is a folder; give a file, such as"):
        report.write([trial], trial)
    with pytest.raises(ValueError, match="there is no folder"):
        report.write([])


# In a browser


@pytest.fixture
def visit(browser):
    """Opens a page in an empty profile; at the end nothing may have been complained of, asked for or popped up."""
    contexts, complaints = [], []

    def opened(file, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(120_000)  # of a machine that is busy with other tests
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on("request", lambda asked: complaints.append(asked.url) if asked.url != file.as_uri() else None)
        page.goto(file.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


DRAWN = """() => {
  const { data, _fullLayout: l } = document.getElementById("chart");
  const lines = data.filter((t) => t.fill !== "toself");
  return { lines: lines.map((t) => ({ name: t.name, x: t.x, y: t.y, dash: t.line.dash })),
           bands: data.filter((t) => t.fill === "toself").map((t) => t.y),
           x: [l.xaxis.title.text, l.xaxis.type], y: [l.yaxis.title.text, l.yaxis.type] };
}"""


def flip(page, name, value=None):
    selector = f"input[name={name}]" + ("" if value is None else f"[value={value}]")
    page.locator(selector).evaluate("box => box.click()")


def test_the_switches_work(trial, visit):
    page = visit(report.write([trial]))
    drawn = page.evaluate(DRAWN)
    assert [line["name"] for line in drawn["lines"]] == ["FedMLS, λ₀ = 1", "FedAvg, η₀ = 1"]  # the best of each
    assert len(drawn["bands"]) == 2
    summary = report.summarise([trial])
    curve = curve_of(summary, "FedMLS, λ₀ = 1")
    for y in summary["chart"]["y"]:
        flip(page, "y", y["key"])
        for x in summary["chart"]["x"]:
            flip(page, "x", x["key"])
            drawn = page.evaluate(DRAWN)
            assert drawn["x"] == [x["axis"], "log"]
            assert drawn["y"] == [y["axis"], "log"]
            assert drawn["lines"][0]["x"] == curve["x"][x["key"]]
            assert drawn["lines"][0]["y"] == curve["y"][y["key"]]["median"]
            assert y["title"] + " against " + x["title"].lower() in page.locator("#caption").inner_text()
    flip(page, "logx")
    flip(page, "logy")
    drawn = page.evaluate(DRAWN)
    assert (drawn["x"][1], drawn["y"][1]) == ("linear", "linear")


def test_labels_of_logarithmic_axes_are_whole_numbers(tmp_path, visit):
    gaps = 10.0 ** -np.linspace(0, 6, 40)
    wide = report.write([folder(tmp_path / "wide", runs("M", "", [gaps]))])
    page = visit(wide)
    labels = "(name) => document.getElementById('chart')._fullLayout[name].ticktext"
    page.wait_for_selector("#chart .ytick text")
    page.wait_for_timeout(200)
    assert page.evaluate(labels, "xaxis") == ["1", "2", "5", "10", "20", "50"]
    assert page.evaluate(labels, "yaxis")[-1] == "10<sup>0</sup>"
    assert "10<sup>−3</sup>" in page.evaluate(labels, "yaxis")
    flip(page, "x", "bytes")
    page.wait_for_timeout(200)
    assert page.evaluate(labels, "xaxis") == ["200 B", "500 B", "1 kB", "2 kB", "5 kB"]
    page.evaluate("Plotly.relayout('chart', { 'xaxis.range': [3, 3.2] })")  # as by dragging
    page.wait_for_timeout(200)
    assert page.evaluate(labels, "xaxis") == ["1 kB", "1.2 kB", "1.4 kB"]


def test_the_legend_is_beside_the_curves_where_there_is_room(trial, visit):
    for width, beside in ((1280, True), (390, False)):
        page = visit(report.write([trial]), viewport={"width": width, "height": 800})
        chart, legend = (page.locator(name).bounding_box() for name in ("#chart", "#legend"))
        assert (legend["x"] >= chart["x"] + chart["width"]) == beside
        assert (legend["y"] >= chart["y"] + chart["height"]) != beside


def test_spread_and_legend(trial, visit):
    page = visit(report.write([trial]))
    quartiles = page.evaluate(DRAWN)["bands"][0]
    flip(page, "spread", "range")
    assert max(page.evaluate(DRAWN)["bands"][0]) == 4 > max(quartiles)
    flip(page, "spread", "none")
    assert page.evaluate(DRAWN)["bands"] == []
    for which, count in (("all", 3), ("none", 0), ("best", 2)):
        page.locator(f"[data-pick={which}]").click()
        assert len(page.evaluate(DRAWN)["lines"]) == count
    page.locator("#legend .chip").nth(1).click()
    assert [line["name"] for line in page.evaluate(DRAWN)["lines"]] == [
        "FedMLS, λ₀ = 1",
        "FedMLS, λ₀ = 10",
        "FedAvg, η₀ = 1",
    ]


def test_values_at_and_below_zero_are_drawn_at_the_lower_edge(tmp_path, visit):
    page = visit(report.write([folder(tmp_path / "a", runs("M", "", [[1, 0.01, 0, -1e-17]]))]))
    assert page.evaluate(DRAWN)["lines"][0]["y"] == [1, 0.01, 0.01, 0.01]
    flip(page, "logy")
    assert page.evaluate(DRAWN)["lines"][0]["y"] == [1, 0.01, 0, -1e-17]


def test_one_table_of_targets_at_a_time(trial, visit):
    page = visit(report.write([trial]))
    for cost in ("round", "exchanges", "bytes", "local_steps"):
        flip(page, "cost", cost)
        assert page.locator(".target:visible").evaluate_all("all => all.map((one) => one.dataset.cost)") == [cost]
    text = page.locator(".target:visible").inner_text()
    assert "not reached" in text
    assert "★" in text


def test_hover_tells_curve_round_and_values(trial, visit):
    page = visit(report.write([trial]), viewport={"width": 1000, "height": 900})
    page.locator("#chart .points path").last.hover(force=True)
    text = page.locator("#chart .hovertext").text_content()
    assert "FedAvg, η₀ = 1" in text
    assert re.search(r"round \d.*relative gap 0\.\d.*from 0\.\d+ to 0\.\d", text)


def test_scripts_in_names_are_shown_and_not_run(tmp_path, visit):
    page = visit(report.write([evil(tmp_path)]))
    page.locator("[data-pick=all]").click()
    assert page.locator("h1").inner_text() == EVIL
    assert page.title() == EVIL
    page.locator("#chart .points path").first.hover(force=True)
    assert EVIL in page.locator("#chart .hovertext").first.text_content()
    flip(page, "y", "objective")
    assert page.evaluate("window.ran") is None
    assert page.locator("script").count() == 4


def test_the_policy_runs_no_other_script(trial, browser):
    context = browser.new_context()
    page = context.new_page()
    page.goto(report.write([trial]).as_uri())
    add = "s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s)"
    page.evaluate(add)
    assert page.evaluate("window.ran") is None
    context.close()


def test_no_button_sends_the_chart_anywhere(trial, visit):
    page = visit(report.write([trial]))
    titles = page.locator(".modebar-btn").evaluate_all("all => all.map((one) => one.dataset.title)")
    assert len(titles) == 4
    assert not any("loud" in title for title in titles)


def test_the_command_can_be_copied(trial, visit):
    page = visit(report.write([trial]))
    page.locator(".copy").first.click()
    taken = "getSelection().toString() || document.querySelector('.copy').textContent"
    page.wait_for_function(f"['Copied', 'fedmls run trial.toml'].includes({taken})")


def test_two_folders_share_the_axes(trial, tmp_path, visit):
    other = folder(tmp_path / "other", *TRIAL[:2])
    page = visit(report.write([trial, other]))
    lines = page.evaluate(DRAWN)["lines"]
    assert [(line["name"], line["dash"]) for line in lines] == [
        ("FedMLS, λ₀ = 1", "solid"),
        ("FedMLS, λ₀ = 1", "8px,4px"),
        ("FedAvg, η₀ = 1", "solid"),
    ]
    labels = page.locator("#legend .chip").all_inner_texts()
    assert sum("trial" in label for label in labels) == 3
    assert sum("other" in label for label in labels) == 2
    assert "Filled markers: trial; open markers: other." in page.locator("#caption").inner_text()


PHONE = {"viewport": {"width": 390, "height": 800}, "is_mobile": True, "has_touch": True}


def test_on_a_phone_nothing_sticks_out(trial, tmp_path, visit):
    for paths in ([trial], [evil(tmp_path)], [trial, folder(tmp_path / "other", *TRIAL)]):
        page = visit(report.write(paths, tmp_path / f"{len(paths)}.html"), **PHONE)
        assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_dark_and_on_paper(trial, visit):
    page = visit(report.write([trial]), color_scheme="dark")
    colour = "getComputedStyle(document.body).backgroundColor"
    paper = "document.getElementById('chart')._fullLayout.paper_bgcolor"
    assert page.evaluate(colour) == "rgb(20, 23, 27)"
    assert page.evaluate(paper) == "#14171b"
    page.evaluate(
        f"addEventListener('beforeprint', () => {{ printed = [{paper}, {paper.replace('paper_bgcolor', 'width')}] }})"
    )
    assert page.pdf(format="A4").startswith(b"%PDF")
    assert page.evaluate("window.printed") == ["#fff", 670]
    assert page.evaluate(paper) == "#14171b"  # and back
    page.emulate_media(media="print")
    assert page.locator(".target:visible").count() == 4
    assert page.locator("button:visible").count() == 0


def test_without_scripts_the_tables_are_there(trial, visit):
    page = visit(report.write([trial]), java_script_enabled=False)
    assert page.locator(".target:visible").count() == 4
    assert page.locator("noscript").inner_text().startswith("The curves need JavaScript")
