"""Columns of categories between machines: levels are agreed on in the survey, and rare ones are nobody's business."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedmls
from fedmls.federation import InProcess, Job, NodeConfig, Stopped, drive, split
from fedmls.federation.codec import MessageError
from fedmls.federation.messages import Message, Survey, Surveyed, decode, encode
from fedmls.federation.server import replies
from fedmls.federation.trial.prepare import node_files, problem_of
from fedmls.results.model import read_description
from tests.support.clinics import clinics, federation, nodes, patients, with_gaps
from tests.support.federations import Recording

FEDMLS = fedmls.FedMLS(lam0=0.1)


def sites(folder, tables, **options):
    """A node for each table, a, b, c, …"""
    files = [folder / f"{name}.csv" for name, _ in zip("abcdef", tables, strict=False)]
    for file, table in zip(files, tables, strict=True):
        table.to_csv(file, index=False)
    return nodes(files, **options)


def run(folder, configs, transport=InProcess, **job):
    values = {"algorithm": FEDMLS, "rounds": 4, "categorical": "onehot"} | job
    Job(**values).write(folder / "job")
    return drive(folder / "job", transport(configs), resume=False)


@pytest.mark.parametrize("standardise", [False, True])
def test_the_model_is_that_of_all_rows_together(standardise, tmp_path):
    result = federation(tmp_path, algorithm=FEDMLS, rounds=5, batch=0.5, standardise=standardise)
    pooled = pd.concat(clinics(tmp_path / "again").values(), ignore_index=True)[[*patients(1, 0)]]
    data = fedmls.datasets.read(pooled, label="ill", categorical="onehot", missing="mean")
    X = (data.X - data.X.mean(axis=0)) / data.X.std(axis=0) if standardise else data.X
    if standardise:  # the scales are those of the values that are there
        gaps = fedmls.datasets.read(pooled, label="ill", categorical="onehot", missing="keep").X
        X = (data.X - np.nanmean(gaps, axis=0)) / np.nanstd(gaps, axis=0)
    problem = fedmls.Problem(X, data.y, clients=np.repeat(np.arange(6), 40))
    simulated = fedmls.simulate(FEDMLS, problem, rounds=5, batch=0.5, optimum=None)
    np.testing.assert_allclose(result.x, simulated.x, rtol=1e-9, atol=1e-12)
    described = read_description(result.folder)
    assert tuple(described.model.columns) == data.columns
    assert {name: tuple(levels) for name, levels in described.levels.items()} == data.levels
    assert described.label == "ill"


@pytest.mark.parametrize("standardise", [False, True])
def test_the_simulation_of_a_trial_has_the_same_bits(standardise, tmp_path):
    job = Job(algorithm=FEDMLS, rounds=5, batch=0.5, standardise=standardise, categorical="onehot")
    split(_pooled(tmp_path), tmp_path / "parts", clients=4)
    files = node_files(tmp_path / "parts", job)
    job.write(tmp_path / "job")
    result = drive(tmp_path / "job", InProcess(list(files.values())))
    simulated = fedmls.simulate(FEDMLS, problem_of(job, files), rounds=5, batch=0.5, optimum=None)
    np.testing.assert_array_equal(result.x, simulated.x)


def _pooled(folder):
    pd.concat([patients(120, 0), with_gaps(patients(120, 1))]).to_csv(folder / "rows.csv", index=False)
    return folder / "rows.csv"


@pytest.mark.parametrize("standardise", [False, True])
def test_secure_sums_give_the_same_means_and_scales(standardise, tmp_path):
    job = {"algorithm": FEDMLS, "rounds": 3, "standardise": standardise}
    results = [federation(tmp_path / str(hidden), secure=hidden, **job) for hidden in (False, True)]
    plain, secure = (read_description(result.folder) for result in results)
    np.testing.assert_allclose(secure.fill, plain.fill, rtol=1e-12)
    np.testing.assert_allclose(secure.model.scales, plain.model.scales, rtol=1e-12)
    np.testing.assert_allclose(secure.model.x, plain.model.x, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("secure", [False, True])
def test_a_level_of_few_rows_is_not_told_and_counts_for_nobody(secure, tmp_path):
    tables = [patients(40, seed) for seed in range(3)]
    tables[0].loc[:3, "ward"] = "plastic surgery of Jane Doe"  # four rows, and min_rows is five
    tables[1].loc[:3, "ward"] = "roof"  # rare here, but not there
    tables[2].loc[:5, "ward"] = "roof"
    transport = Recording(sites(tmp_path, tables))
    result = run(tmp_path, [], lambda _: transport, secure=secure, standardise=True)
    assert not any(b"Jane Doe" in reply for _, _, reply in transport.carried)
    surveyed = {node: decode(reply).body for node, _, reply in transport.carried[:3]}
    assert surveyed["b"].levels["ward"] == ["eyes", "heart", "surgery"]
    assert surveyed["c"].levels["ward"] == ["eyes", "heart", "roof", "surgery"]
    assert (surveyed["c"].level_counts is None) == secure
    described = read_description(result.folder)
    assert list(described.levels["ward"]) == ["eyes", "heart", "roof", "surgery"]
    roof = described.model.columns.index("ward=roof")
    assert described.fill[roof] == pytest.approx(6 / 120)  # four at b are not counted
    rows = np.concatenate([table["ward"] == "roof" for table in tables])
    assert rows.sum() == 10  # but they are trained on
    scores = fedmls.load(result.folder).decision_function
    with pytest.warns(UserWarning, match=r"column 'ward' has 1 \('plastic surgery of Jane Doe'\)"):
        margins = [scores(table) * np.where(table["ill"] == "yes", 1, -1) for table in tables]
    objective = np.maximum(0, 1 - np.concatenate(margins)).sum() / 3
    assert objective == pytest.approx(result.history["objective"].iloc[-1], rel=1e-9)


def test_a_column_without_a_value_at_one_site_is_no_difference(tmp_path):
    tables = [patients(40, seed) for seed in range(3)]
    tables[1]["ward"] = np.nan
    result = run(tmp_path, sites(tmp_path, tables))
    assert list(read_description(result.folder).levels["ward"]) == ["eyes", "heart", "surgery"]


def test_sites_that_do_not_fit_are_named(tmp_path):
    tables = [patients(40, seed) for seed in range(3)]
    number = [tables[0], tables[1].assign(ward=3.5), tables[2]]
    message = "column 'ward' holds numbers at node b and text at node a; make them alike, or name it in ignore"
    with pytest.raises(Stopped, match=re.escape(message)):
        run(tmp_path, sites(tmp_path, number))
    rare = [table.assign(ward=[f"{seed}-{i}" for i in range(40)]) for seed, table in enumerate(tables)]
    with pytest.raises(Stopped, match=r"no node tells a value in column 'ward': .* leave it out with ignore"):
        run(tmp_path, sites(tmp_path, rare))
    with pytest.raises(Stopped, match="column 'ward' has 120 different values over all nodes"):
        run(tmp_path, sites(tmp_path, rare, min_rows=1))
    many = [pd.concat([table] * 3).assign(ward=[f"{i}" + "x" for i in range(120)]) for table in tables]
    message = "node a refuses: its column 'ward' has more than 100 different values"
    with pytest.raises(Stopped, match=message):
        run(tmp_path, sites(tmp_path, many, min_rows=1))
    alike = [table[["ward", "ill"]].assign(ward="roof") for table in tables]
    with pytest.raises(Stopped, match="the columns 'ward' have one value each; there is nothing to learn from"):
        run(tmp_path, sites(tmp_path, alike))
    with pytest.raises(Stopped, match="node a refuses: its column 'ward' holds no numbers; set categorical"):
        run(tmp_path, sites(tmp_path, tables), categorical=None)
    twice = [table.assign(**{"smoker=yes": 1.0}) for table in tables]
    with pytest.raises(Stopped, match="two features are called 'smoker=yes'; rename a column"):
        run(tmp_path, sites(tmp_path, twice))


def test_a_model_goes_on_only_with_the_same_levels(tmp_path):
    tables = [patients(40, seed) for seed in range(2)]
    first = run(tmp_path, sites(tmp_path, tables))
    (tmp_path / "first.npz").write_bytes((first.folder / "model.npz").read_bytes())
    carried = Recording(sites(tmp_path, tables))
    run(tmp_path, [], lambda _: carried, start=str(tmp_path / "first.npz"))
    begins = [decode(asked).body for _, asked, _ in carried.carried if decode(asked).kind == "begin"]
    np.testing.assert_array_equal([begin.start for begin in begins], [first.x] * 2)
    tables[1].loc[:9, "ward"] = "roof"
    with pytest.raises(Stopped, match="is a model of other columns"):
        run(tmp_path, sites(tmp_path, tables), start=str(tmp_path / "first.npz"))


def test_a_run_with_categories_goes_on_from_its_checkpoint(tmp_path):
    tables = [patients(40, seed) for seed in range(3)]
    (tmp_path / "whole").mkdir()
    whole = run(tmp_path / "whole", sites(tmp_path / "whole", tables), rounds=6)
    configs = sites(tmp_path, tables)
    run(tmp_path, configs, rounds=3)
    Job(algorithm=FEDMLS, rounds=6, categorical="onehot").write(tmp_path / "job")
    result = drive(tmp_path / "job", InProcess(configs), resume=True)
    np.testing.assert_array_equal(result.x, whole.x)
    assert list(read_description(result.folder).levels["ward"]) == ["eyes", "heart", "surgery"]


def test_jobs_say_what_becomes_of_text():
    assert Job(algorithm=FEDMLS, rounds=1, categorical="refuse") == Job(algorithm=FEDMLS, rounds=1)
    assert "categorical" not in Job(algorithm=FEDMLS, rounds=1).to_dict()
    with pytest.raises(ValueError, match="categorical"):
        Job(algorithm=FEDMLS, rounds=1, categorical="ordinal")
    private = {"clip": 1.0, "noise": 1.0, "delta": 1e-5}
    values = {"rounds": 1, "algorithm": {"name": "fedmls"}, "impute": False, "report_objective": False}
    with pytest.raises(ValueError, match="with privacy clients tell nothing but their uploads: set no categorical"):
        Job.from_dict(values | {"privacy": private, "categorical": "onehot"})


GOOD = Surveyed(
    rows=20,
    columns=["age", "ward"],
    classes=["no", "yes"],
    counts=np.array([20, 18]),
    sums=np.array([3.0, 0.0]),
    squares=None,
    reports_objective=True,
    key=None,
    levels={"ward": ["eyes", "heart"]},
    level_counts={"ward": [8, 9]},
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"levels": None, "level_counts": None}, "levels is missing"),
        ({"level_counts": None}, "level_counts is missing"),
        ({"levels": {"age2": []}, "level_counts": {"age2": []}}, "a column 'age2' that it does not have"),
        ({"levels": {"ward": ["eyes", "eyes"]}}, "levels of column 'ward' are more than 100, or two are the same"),
        ({"levels": {"ward": [str(i) for i in range(101)]}}, "levels of column 'ward' are more than 100"),
        ({"level_counts": {"ward": [8]}}, "level_counts of column 'ward' are not of its levels, or of too many rows"),
        ({"level_counts": {"ward": [10, 9]}}, "or of too many rows"),
        ({"level_counts": {}}, "level_counts is not of the columns that have levels"),
        ({"level_counts": {"age": [1], "ward": [8, 9]}}, "level_counts is not of the columns that have levels"),
        ({"level_counts": {"ward": [0, 9]}}, "level_counts is 0, which is no whole number of at least 1"),
        ({"level_counts": {"ward": 9}}, "one of level_counts is no list"),
        ({"level_counts": {"other": []}}, "level_counts is not of the columns that have levels"),
        ({"levels": {"ward": [1, 2]}}, "one of levels is no list of names"),
        ({"levels": ["ward"]}, "levels is no map of fields"),
        ({"label": 3}, "label is no text"),
    ],
)
def test_hostile_levels_are_rejected(changes, message):
    job = Job(algorithm=FEDMLS, rounds=1, categorical="onehot")
    asked = Message("r", 1, 0, Survey(job.to_dict()))
    assert replies.surveyed(encode(asked.reply(GOOD)), asked, job).levels == GOOD.levels
    with pytest.raises(MessageError, match=re.escape(message)):
        replies.surveyed(encode(asked.reply(GOOD._replace(**changes))), asked, job)


def test_levels_that_were_not_asked_for_are_rejected():
    job = Job(algorithm=FEDMLS, rounds=1)
    asked = Message("r", 1, 0, Survey(job.to_dict()))
    with pytest.raises(MessageError, match="levels that were not asked for"):
        replies.surveyed(encode(asked.reply(GOOD)), asked, job)


def test_a_node_refuses_columns_that_are_not_what_it_is_told(tmp_path):
    """A server that calls numbers categories, or categories numbers, gets nothing."""
    from fedmls.federation.errors import Refused
    from fedmls.federation.node.rows import encoded, read_rows

    [config] = sites(tmp_path, [patients(40, 0)])
    rows = read_rows(config)
    with pytest.raises(Refused, match="its column 'age' holds numbers, and is told to be one of categories"):
        encoded(rows, ["age=1", "age=2", "age=3"], {"age": ["1", "2", "3"]})
    with pytest.raises(Refused, match="its column 'ward' holds no numbers"):
        encoded(rows, ["ward"], {})


def test_cutting_a_file_with_text_keeps_its_cells(tmp_path):
    file = _pooled(tmp_path)
    written = split(file, tmp_path / "parts", by="kmeans", clients=3)
    parts = [NodeConfig.read(config).data for config in written]
    lines = sorted(line for part in parts for line in Path(part).read_text().splitlines()[1:])
    assert lines == sorted(file.read_text().splitlines()[1:])
