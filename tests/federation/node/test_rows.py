"""A client's own data: files of four kinds, what a node tells before round 1 and what never, and cutting a file."""

import gzip
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.preprocessing import StandardScaler

import fedmls
from fedmls.cli import federation as cli
from fedmls.federation import InProcess, Job, Node, NodeConfig, Refused, Stopped, drive, split
from fedmls.federation.codec import unseal
from fedmls.federation.messages import Envelope, pack_envelope, unpack_envelope
from fedmls.federation.node.rows import SiteRows, column_sums, label_texts, read_rows, sorted_classes
from fedmls.federation.server.survey import natural
from tests.support.federations import Recording, parts
from tests.support.problems import lad, svm

COLUMNS = ["age", "dose", "time"]


def frame(m=40, seed=0, columns=COLUMNS):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(rng.normal(size=(m, len(columns))), columns=columns)
    table["ill"] = np.where(table.sum(axis=1) + rng.normal(size=m) > 0, "yes", "no")
    return table


def node(folder, name, table, **options):
    table.to_csv(folder / f"{name}.csv", index=False)
    return NodeConfig(
        name=name, data=folder / f"{name}.csv", state=folder / f"state-{name}", **{"label": "ill"} | options
    )


def run(folder, configs, transport=InProcess, **job):
    Job(**{"algorithm": fedmls.FedMLS(), "rounds": 3} | job).write(folder)
    return drive(folder, transport(configs), resume=False)


def survey(**job):
    values = Job(**{"algorithm": fedmls.FedMLS(), "rounds": 3} | job).to_dict()
    return pack_envelope(Envelope("survey", "r", 1, 0, {"job": values}))


def refusal(config, **job):
    """What the node says to the survey."""
    reply = unpack_envelope(Node(config).answer(survey(**job)))
    assert reply.kind == "refused"
    return reply.body["why"]


def svmlight(X, y):
    """To the last bit, which scikit-learn's writer does not do."""
    rows = [" ".join(f"{j + 1}:{float(v)!r}" for j, v in enumerate(row) if v) for row in X]
    return "".join(f"{float(label)!r} {row}\n" for label, row in zip(y, rows, strict=True))


def write(kind, folder, table):
    """The table in a file of this kind; its configuration."""
    X, y = table[COLUMNS].to_numpy(), (table["ill"] == "yes").to_numpy().astype(float)
    file, label, more = folder / f"rows{kind}", "ill", {}
    if kind == ".csv":
        table.to_csv(file, index=False)
    elif kind == ".csv.gz":
        table.to_csv(file, index=False, compression="gzip")
    elif kind == ".parquet":
        table.to_parquet(file)
    elif kind == ".npz":
        np.savez(file, X=X, ill=table["ill"].to_numpy(dtype=str), columns=np.array(COLUMNS))
    else:
        text = svmlight(X, y).encode()
        file.write_bytes(gzip.compress(text) if kind.endswith(".gz") else text)
        label, more = None, {"columns": 3}
    return NodeConfig(name="a", data=file, state=folder / "state", label=label, **more)


@pytest.mark.parametrize("kind", [".csv", ".csv.gz", ".parquet", ".npz", ".svm", ".svm.gz"])
def test_every_kind_of_file_gives_the_same_rows(kind, tmp_path):
    table = frame()
    config = write(kind, tmp_path, table)
    rows = read_rows(config)
    X = rows.X.toarray() if sparse.issparse(rows.X) else rows.X
    np.testing.assert_array_equal(X, table[COLUMNS].to_numpy())
    if kind.startswith(".svm"):
        assert rows.columns == ("1", "2", "3")
        assert label_texts(rows.y) == ["1" if ill == "yes" else "0" for ill in table["ill"]]
    else:
        assert rows.columns == tuple(COLUMNS)
        assert label_texts(rows.y) == table["ill"].tolist()


def test_sparse_rows_give_the_simulations_model(tmp_path):
    problem = lad(n=3, m=60, density=0.3)
    configs = []
    for i in range(3):
        part = slice(problem.offsets[i], problem.offsets[i + 1])
        X = problem.matrix()[part][:, : problem.penalised].toarray()
        (tmp_path / f"{i}.svm").write_text(svmlight(X, problem.y[part]))
        config = f'name = "n{i}"\ndata = "{i}.svm"\nstate = "s{i}"\ncolumns = 4\n'
        (tmp_path / f"{i}.toml").write_text(config)
        configs.append(tmp_path / f"{i}.toml")
    result = run(tmp_path, configs, loss="absolute", batch=0.4, rounds=6)
    simulated = fedmls.simulate(fedmls.FedMLS(), problem, rounds=6, batch=0.4, optimum=None)
    np.testing.assert_allclose(result.x, simulated.x, rtol=0, atol=1e-12)
    with pytest.raises(Stopped, match="sparse, and standardising would fill them in"):
        run(tmp_path, configs, loss="absolute", standardise=True)


def test_columns_in_another_order_and_labels_written_otherwise(tmp_path):
    table = frame(60)
    table["ill"] = (table["ill"] == "yes").astype(int)
    first, second = table.iloc[:30], table.iloc[30:].copy()
    second = second[["time", "ill", "age", "dose"]].astype({"ill": float})
    configs = [node(tmp_path, "a", first), node(tmp_path, "b", second)]
    problem = fedmls.Problem(table[COLUMNS], table["ill"], np.repeat([0, 1], 30))
    simulated = fedmls.simulate(fedmls.FedMLS(), problem, rounds=3, optimum=None)
    np.testing.assert_array_equal(run(tmp_path, configs).x, simulated.x)


def test_a_node_may_have_one_of_the_labels_only(tmp_path):
    table = frame(60)
    table = table.sort_values("ill", kind="stable")
    few = int((table["ill"] == "no").sum())
    configs = [node(tmp_path, "a", table.iloc[:few]), node(tmp_path, "b", table.iloc[few:])]
    problem = fedmls.Problem(table[COLUMNS], table["ill"], np.repeat([0, 1], [few, 60 - few]))
    simulated = fedmls.simulate(fedmls.FedMLS(), problem, rounds=3, optimum=None)
    np.testing.assert_array_equal(run(tmp_path, configs).x, simulated.x)


def test_a_problem_of_one_label_is_told_both():
    X = np.eye(3)
    assert fedmls.Problem(X, ["b"] * 3, classes=["a", "b"]).y.tolist() == [1, 1, 1]
    assert fedmls.Problem(X, ["a"] * 3, classes=["a", "b"]).y.tolist() == [-1, -1, -1]
    for classes in (["a", "c"], ["a", "b", "c"], ["b"]):
        with pytest.raises(ValueError, match="give the two labels"):
            fedmls.Problem(X, ["a", "b", "b"], classes=classes)


@pytest.mark.parametrize("standardise", [False, True])
def test_means_and_scales_are_those_of_all_rows_together(standardise, tmp_path):
    table = frame(90)
    table["dose"] = 1e6 + 3 * table["dose"]  # a mean that would swallow the deviation
    table["time"] = 7.0  # constant
    table.loc[::7, "age"] = np.nan
    configs = [node(tmp_path, f"n{i}", table.iloc[30 * i : 30 * i + 30]) for i in range(3)]
    result = run(tmp_path, configs, standardise=standardise, rounds=4, batch=0.5)
    X = fedmls.datasets.impute_means(table[COLUMNS])
    if standardise:
        scaler = StandardScaler().fit(table[COLUMNS].to_numpy())
        X = scaler.transform(X)
        with np.load(tmp_path / "model.npz") as model:
            np.testing.assert_allclose(model["means"], scaler.mean_, rtol=1e-12)
            np.testing.assert_allclose(model["scales"], scaler.scale_, rtol=1e-9)
    problem = fedmls.Problem(X, table["ill"], np.repeat(range(3), 30))
    simulated = fedmls.simulate(fedmls.FedMLS(), problem, rounds=4, batch=0.5, optimum=None)
    np.testing.assert_allclose(result.x, simulated.x, rtol=1e-8)


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_column_sums_are_right(seed, as_sparse):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(12, 3)) * rng.integers(0, 2, size=(12, 3)) + rng.integers(0, 3)
    X[rng.random(X.shape) < 0.2] = np.nan
    X[:5] = 1.0
    rows = SiteRows(sparse.csr_array(X) if as_sparse else X, np.zeros(12), ("a", "b", "c"))
    counts, sums, squares = column_sums(rows, least=5)
    np.testing.assert_array_equal(counts, (~np.isnan(X)).sum(axis=0))
    np.testing.assert_allclose(sums, np.nansum(X, axis=0), atol=1e-12)
    np.testing.assert_allclose(squares, counts * np.nanvar(X, axis=0), atol=1e-9)


def test_nodes_that_do_not_fit_are_refused_by_name(tmp_path):
    good = [node(tmp_path, f"n{i}", frame(seed=i)) for i in range(3)]
    other = node(tmp_path, "odd", frame(columns=["age", "Dose", "time"]))
    message = "node odd lacks 'dose' and has 'Dose'; the others have 'age', 'dose', 'time'"
    with pytest.raises(Stopped, match=re.escape(message)):
        run(tmp_path, [*good, other])
    labels = frame().replace({"yes": "Yes"})
    message = "the nodes have different labels: node odd has 'Yes'; the others have 'no', 'yes'"
    with pytest.raises(Stopped, match=re.escape(message)):
        run(tmp_path, [*good, node(tmp_path, "odd", labels)])
    kept = [unpack_envelope(unseal(file.read_bytes())) for file in tmp_path.glob("state-*/*.state")]
    assert [one.body["begin"] for one in kept] == [None] * len(kept)  # nothing has begun
    same = frame()
    same["ill"] = "yes"
    with pytest.raises(Stopped, match="the nodes' labels are 'yes'; the loss takes two"):
        run(tmp_path, [node(tmp_path, "a", same)])


def test_a_column_that_nobody_has_a_value_of(tmp_path):
    table = frame()
    table["dose"] = np.nan
    with pytest.raises(Stopped, match="no node has a value in column 'dose'"):
        run(tmp_path, [node(tmp_path, "a", table)])


def test_refusals_name_the_reason_and_no_value(tmp_path):
    secret = "Jane-Doe-1961"
    table = frame()
    table["patient"] = secret
    message = (
        "its column 'patient' holds no numbers; set categorical = \"onehot\" in the job (--categorical onehot), "
        "or name the column in ignore"
    )
    assert refusal(node(tmp_path, "a", table)) == message
    table["patient"] = ["1.5"] * 30 + [secret] * 10
    message = (
        "its column 'patient' holds numbers but for 10 values; leave the cell of a missing value empty, and write "
    )
    for categorical in (None, "onehot"):
        told = refusal(node(tmp_path, "a", table), categorical=categorical)
        assert told == f"{message}numbers like 1234.5"
    table["patient"] = [f"{secret}-{i % 10}" for i in range(40)]  # four rows each: no level is told
    reply = Node(node(tmp_path, "a", table)).answer(survey(categorical="onehot"))
    assert secret.encode() not in reply
    assert unpack_envelope(reply).body["levels"] == {"patient": []}
    assert refusal(node(tmp_path, "a", table, label="sick")) == "its data has no column 'sick'"
    assert refusal(node(tmp_path, "a", frame(), label=None)) == "its configuration names no label column"
    assert refusal(node(tmp_path, "a", frame(3))) == "it has 3 rows and answers only for at least 5 (min_rows)"
    ids = frame()
    ids["ill"] = [f"{secret}-{i}" for i in range(40)]
    assert refusal(node(tmp_path, "a", ids)) == "its label column has 40 values, and the hinge loss takes two"
    few = frame()
    few.loc[3:, "dose"] = np.nan
    message = "its column 'dose' has 3 values and it tells sums only of at least 5 (min_rows)"
    assert refusal(node(tmp_path, "a", few)) == message
    missing = frame()
    missing.loc[0, "dose"] = np.nan
    assert (
        refusal(node(tmp_path, "a", missing), impute=False)
        == "its rows have missing values; fill them in, or set impute"
    )
    missing.loc[0, "dose"] = np.inf
    assert refusal(node(tmp_path, "a", missing)) == "its column 'dose' holds infinite values"
    unlabelled = frame()
    unlabelled.loc[0, "ill"] = np.nan
    assert refusal(node(tmp_path, "a", unlabelled)) == "its label column has missing values"
    regression = {"loss": "absolute"}
    assert refusal(node(tmp_path, "a", frame()), **regression) == "its label column holds no numbers"
    heights = frame().drop(columns="ill").assign(ill=np.arange(40.0))
    heights.loc[3, "ill"] = np.nan
    told = "its label column has missing or infinite values"
    assert refusal(node(tmp_path, "a", heights), **regression) == told
    config = node(tmp_path, "a", frame())
    config.data.unlink()
    assert refusal(config) == "its data file a.csv is not there"


SECRET = "31337"
BAD_FILES = {  # what is in the file: what the node says of it
    "age,dose,ill\n1,2,yes\n1,<SECRET,no\n3,4,yes\n": "its column 'dose' holds numbers but for 1 value; leave "
    "the cell of a missing value empty, and write numbers like 1234.5",
    "age;dose;ill\n1;2,5;yes\n1;SECRET,5;no\n": "its column 'dose' holds numbers with a comma; take decimal = \",\"",
    "age,dose,ill\n1,2,yes\n1,SECRET,3,no\n": "its data file a.csv: its line 3 has 4 values, and its first line "
    "names 3 columns",
    "age,ill\n1,2,SECRET\n": "its data file a.csv: its rows have more values than its first line has names",
    "": "its data file a.csv: it is empty; its first line must name the columns",
    "age,dose,ill\n": "its data file holds no rows",
    "1,2,SECRET\n3,4,5\n": "the first line of its data file holds numbers; it must name the columns",
    "age,town,ill\n1,Orléans SECRET,yes\n": "its data file a.csv: it is no UTF-8 text; save it as UTF-8",
}


@pytest.mark.parametrize("text", BAD_FILES)
def test_what_is_wrong_with_a_file_is_told_without_a_value_of_it(text, tmp_path):
    config = node(tmp_path, "a", frame())
    config.data.write_bytes(text.replace("SECRET", SECRET).encode("latin-1"))
    told = refusal(config)
    assert told == BAD_FILES[text]
    assert SECRET not in told


def test_files_of_other_programs_are_read_as_they_are(tmp_path):
    table = frame().round(3)
    table.loc[3, "dose"] = np.nan
    table.to_csv(tmp_path / "a.csv", index=False, sep=";", decimal=",", encoding="utf-8-sig")
    config = NodeConfig(name="a", data=tmp_path / "a.csv", state=tmp_path / "state", label="ill", decimal=",")
    rows = read_rows(config)
    assert rows.columns == tuple(COLUMNS)
    np.testing.assert_array_equal(rows.X, table[COLUMNS].to_numpy())


def test_a_label_with_decimal_commas_is_told_apart_from_text(tmp_path):
    config = node(tmp_path, "a", frame())
    config.data.write_text("age;ill\n" + "1;2,5\n2;3,5\n" * 3)
    assert refusal(config, loss="absolute") == 'its label holds numbers with a comma; take decimal = ","'


@pytest.mark.parametrize("kind", [".csv", ".parquet", ".npz", ".svm"])
def test_every_kind_of_file_knows_ignore(kind, tmp_path):
    config = write(kind, tmp_path, frame())
    first = read_rows(config).columns[0]
    assert first not in read_rows(replace(config, ignore=(first,))).columns
    with pytest.raises(Refused, match=r"^its data has no column 'x'$"):
        read_rows(replace(config, ignore=("x",)))


def test_what_goes_wrong_unforeseen_stays_in_the_nodes_log(tmp_path, monkeypatch):
    secret = "Jane-Doe-1961"

    def fails(config):
        raise RuntimeError(f"unexpected: {secret}")

    config = node(tmp_path, "a", frame())
    monkeypatch.setattr("fedmls.federation.node.site.read_rows", fails)
    assert refusal(config) == "it failed (RuntimeError); its file errors.log says more"
    assert secret in (config.state / "errors.log").read_text()


@given(st.binary(max_size=200))
def test_a_node_answers_whatever_it_is_sent(data):
    config = NodeConfig(name="a", data="nowhere.csv", state="/nonexistent/never-made")
    assert unpack_envelope(Node(config).answer(data)).kind == "refused"


UP = {  # kind of reply: its fields, as documented in docs/federation.md
    "surveyed": {"rows", "columns", "classes", "counts", "sums", "squares", "reports_objective", "key", "label"},
    "begun": {"lipschitz"},
    "done": {"rounds", "values"},
}


@pytest.mark.parametrize(
    ("algorithm", "job"),
    [
        (fedmls.FedMLS(paired=True, output="best"), {"certificate": 2.0, "standardise": True}),
        (fedmls.FedMLSE(), {"every": 2}),
        (fedmls.Scaffold(), {}),
        (fedmls.ADMM(), {}),
        (fedmls.Bundle(), {}),
        (fedmls.Compressed(algorithm=fedmls.FedMLS(), level=0.3), {}),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_no_row_leaves_a_client(algorithm, job, tmp_path):
    """Every reply of a run holds the declared vectors and numbers and nothing else, and no value of a row."""
    problem = svm(n=3, m=60)
    configs = parts(problem, tmp_path / "parts")
    Job(algorithm=algorithm, rounds=4, batch=0.3, **job).write(tmp_path)
    transport = Recording(configs)
    drive(tmp_path, transport)
    d, shapes = problem.dimension, {(problem.dimension,), (1,), (0,)}
    names = {*algorithm.Up._fields}
    values = {float(value).hex(): value for value in problem.X[:, :-1].ravel()}
    for _, _, reply in transport.carried:
        message = unpack_envelope(reply)
        assert set(message.body) == UP[message.kind]
        if message.kind == "surveyed":
            assert {np.shape(message.body[name]) for name in ("counts", "sums")} == {(d - 1,)}
            assert message.body["columns"] == ["0", "1", "2", "3"]
        for upload in message.body.get("rounds", ()):
            assert set(upload) == {"k", "up", "cut", "steps", "subgradients"}
            assert {*upload["up"]} <= names
            assert all(vector.shape in shapes for vector in upload["up"].values())
            if upload["cut"] is not None:
                assert set(upload["cut"]) == {"a", "p"}
                assert upload["cut"]["p"].shape == (d,)
        for value in message.body.get("values", ()):
            assert set(value) == {"k", "candidate", "value"}
            assert isinstance(value["value"], float)
        for value in values.values():
            assert np.float64(value).tobytes() not in reply
    assert len(values) > 200


def test_nodes_learn_nothing_of_each_other(tmp_path):
    problem = svm(n=3, m=60)
    configs = parts(problem, tmp_path / "parts")
    weights = {"site-1": 0.5, "site-2": 0.25, "site-3": 0.25}
    Job(algorithm=fedmls.FedMLS(), rounds=2, weights=weights, nodes=tuple(weights)).write(tmp_path)
    transport = Recording(configs)
    drive(tmp_path, transport)
    for name, message, _ in transport.carried:
        assert not any(other.encode() in message for other in weights if other != name)


def test_labels_in_order():
    assert label_texts(np.array([1.0, -1.0, 0.5])) == ["1", "-1", "0.5"]
    assert label_texts(np.array([1, 2])) == ["1", "2"]
    assert label_texts(np.array(["1.0", "x"], dtype=object)) == ["1", "x"]
    assert label_texts(np.array([True, False])) == ["True", "False"]
    assert sorted_classes(["10", "9"]) == ["9", "10"]
    assert sorted_classes(["b", "9"]) == ["9", "b"]
    assert sorted(["site-10", "site-9", "a", "site-9b"], key=natural) == ["a", "site-9", "site-9b", "site-10"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name = "a"', "the node has no 'data'"),
        ('name = "a"\ndata = "a.csv"\nstate = "s"\nlable = "y"', "unknown key of a node 'lable': did you mean 'label'"),
        ('name = "a"\ndata = "a.xls"\nstate = "s"', "a.xls is of no known kind; take one of .csv"),
        ('name = ""\ndata = "a.csv"\nstate = "s"', "name is ''"),
        ('name = "a"\ndata = 3\nstate = "s"', "data is 3; give a path"),
        ('name = "a"\ndata = "a.csv"\nstate = "s"\nmin_rows = 0', "min_rows is 0"),
        ('name = "a"\ndata = "a.csv"\nstate = "s"\nignore = "b"', "ignore is 'b'; give a list"),
    ],
)
def test_configurations_with_mistakes(text, message, tmp_path):
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        NodeConfig.read(tmp_path / "a.toml")
    assert str(error.value).startswith(str(tmp_path / "a.toml"))


def whole(folder, kind):
    """The rows of all parts, sorted: what the file held."""
    rows = [read_rows(NodeConfig.read(file)) for file in folder.glob("*.toml")]
    X = np.concatenate([part.X.toarray() if sparse.issparse(part.X) else part.X for part in rows])
    y = [text for part in rows for text in label_texts(part.y)]
    return sorted(zip(X.tolist(), y, strict=True))


@pytest.mark.parametrize("kind", [".csv", ".csv.gz", ".parquet", ".npz", ".svm", ".svm.gz"])
@pytest.mark.parametrize("by", ["kmeans", "iid", "dirichlet"])
def test_split_keeps_every_row_once(kind, by, tmp_path):
    config = write(kind, tmp_path, frame(50))
    written = split(config.data, tmp_path / "out", by=by, clients=4, label=config.label)
    rows = read_rows(config)
    X = rows.X.toarray() if sparse.issparse(rows.X) else rows.X
    assert whole(tmp_path / "out", kind) == sorted(zip(X.tolist(), label_texts(rows.y), strict=True))
    assert sum(part.rows for part in written.values()) == 50
    assert [NodeConfig.read(file).name for file in written] == ["site-1", "site-2", "site-3", "site-4"]


def test_split_by_kmeans_is_the_simulations_partition(tmp_path):
    """The paper's data, cut, federated: the same run as in the simulation."""
    file = next(iter(fedmls.datasets.__path__)) + "/breast_cancer_wisconsin.csv"
    configs = list(split(file, tmp_path / "parts", clients=10, seed=4))
    result = run(tmp_path, configs, algorithm=fedmls.FedMLS(paired=True), rounds=10, batch=0.1)
    X, y = fedmls.datasets.breast_cancer_wisconsin()
    problem = fedmls.Problem(X, y, fedmls.partition.kmeans(X, 10, seed=4))
    simulated = fedmls.simulate(fedmls.FedMLS(paired=True), problem, rounds=10, batch=0.1, optimum=None)
    np.testing.assert_allclose(result.x, simulated.x, rtol=0, atol=1e-12)


def test_split_by_a_column(tmp_path):
    table = frame(40)
    table.insert(0, "clinic", np.array(["north", "south"])[np.arange(40) % 2])
    table.to_csv(tmp_path / "all.csv", index=False)
    written = split(tmp_path / "all.csv", tmp_path / "out", by="clinic")
    assert list(written.values()) == [(20, "north"), (20, "south")]
    configs = [NodeConfig.read(file) for file in written]
    assert [config.name for config in configs] == ["north", "south"]
    assert configs[0].ignore == ("clinic",)
    assert configs[0].label == "ill"
    assert read_rows(configs[1]).columns == tuple(COLUMNS)
    np.testing.assert_array_equal(read_rows(configs[1]).X, table[COLUMNS].to_numpy()[1::2])


def test_split_by_an_array(tmp_path):
    np.savez(tmp_path / "all.npz", X=np.arange(40.0).reshape(20, 2), y=np.arange(20) % 2, ward=["a", "b"] * 10)
    written = split(tmp_path / "all.npz", tmp_path / "out", by="ward")
    assert [file.stem for file in written] == ["a", "b"]
    np.testing.assert_array_equal(read_rows(NodeConfig.read(next(iter(written)))).X[:, 0], np.arange(0.0, 40, 4))


def test_split_by_a_column_names_sites_after_values_that_are_no_names(tmp_path):
    table = frame(40).assign(ward=np.array([3, 12])[np.arange(40) % 2])
    table.to_csv(tmp_path / "all.csv", index=False)
    written = split(tmp_path / "all.csv", tmp_path / "out", by="ward", label="ill")
    assert {file.stem: part.value for file, part in written.items()} == {"ward-12": "12", "ward-3": "3"}
    table.loc[[0, 4], "ward"] = None
    table.to_csv(tmp_path / "all.csv", index=False)
    with pytest.raises(ValueError, match="column 'ward' is empty in 2 of 40 rows; it names their site"):
        split(tmp_path / "all.csv", tmp_path / "again", by="ward", label="ill")


def test_split_tells_which_value_became_which_site_and_of_text(tmp_path, capsys):
    table = frame(40).assign(clinic=np.array(["Zürich", "3"])[np.arange(40) % 2], sex="F")
    table.to_csv(tmp_path / "all.csv", index=False)
    cli.split(tmp_path / "all.csv", tmp_path / "out", by="clinic", label="ill", ignore=["time"])
    assert capsys.readouterr().out == (
        f"2 nodes in {tmp_path / 'out'}, label 'ill':\n"
        "  clinic-3.toml       20 rows  clinic = 3\n"
        "  Zurich.toml         20 rows  clinic = Zürich\n"
        "text is in 'sex' (1 values); a job takes it with categorical = \"onehot\", or name\n"
        "  such columns in ignore\n"
    )


def test_split_finds_out_about_decimal_commas_and_names_bad_cells(tmp_path):
    table = frame(40).round(3)
    table.to_csv(tmp_path / "all.csv", index=False, sep=";", decimal=",")
    configs = [NodeConfig.read(file) for file in split(tmp_path / "all.csv", tmp_path / "out", by="iid", clients=2)]
    assert [config.decimal for config in configs] == [",", ","]
    rows = np.concatenate([read_rows(config).X for config in configs])
    assert sorted(rows.tolist()) == sorted(table[COLUMNS].to_numpy().tolist())
    table.astype({"dose": object}).assign(dose=["<5", *table["dose"][1:]]).to_csv(tmp_path / "all.csv", index=False)
    with pytest.raises(ValueError, match="column 'dose' holds numbers but for 1 value, such as '<5' in row 1"):
        split(tmp_path / "all.csv", tmp_path / "again")


def test_split_leaves_text_as_it_is(tmp_path):
    (tmp_path / "all.csv").write_text("a,b,y\n" + "".join(f"{i}.50,007,{i % 2}\n" for i in range(12)))
    split(tmp_path / "all.csv", tmp_path / "out", by="iid", clients=2)
    lines = [line for file in (tmp_path / "out").glob("*.csv") for line in file.read_text().splitlines()[1:]]
    assert sorted(lines) == sorted(f"{i}.50,007,{i % 2}" for i in range(12))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "kmean"}, "unknown way to cut, or column, 'kmean': did you mean 'kmeans'"),
        ({"label": "il"}, "unknown column 'il': did you mean 'ill'"),
        ({"clients": 100}, "there are 40 rows for 100 clients"),
        ({"ignore": ["x"]}, "there is no column 'x'; there are age, dose, time, ill"),
    ],
)
def test_split_with_mistakes(options, message, tmp_path):
    frame().to_csv(tmp_path / "all.csv", index=False)
    with pytest.raises(ValueError, match=re.escape(message)):
        split(tmp_path / "all.csv", tmp_path / "out", **options)
    with pytest.raises(ValueError, match="is not empty; name another folder"):
        split(tmp_path / "all.csv", tmp_path)
    with pytest.raises(ValueError, match=r"none\.csv is not there"):
        split(tmp_path / "none.csv", tmp_path / "out")


@pytest.mark.processes
def test_split_from_the_command_line(tmp_path):
    frame(30).to_csv(tmp_path / "all.csv", index=False)
    command = [
        sys.executable,
        "-m",
        "fedmls.cli",
        "split",
        "all.csv",
        "--by",
        "iid",
        "--clients",
        "7",
        "--out",
        "parts",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("7 nodes in parts, label 'ill':\n")
    assert re.search(r"site-1\.toml +5 rows\n", done.stdout)
    assert re.search(r"site-7\.toml +4 rows +too few", done.stdout)
    again = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False)
    assert again.returncode == 2
    assert again.stderr == "error: parts is not empty; name another folder\n"
