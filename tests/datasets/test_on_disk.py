"""Rows that stay on disk: the same as those that are read into memory, and no more of them in memory than a part."""

import tracemalloc

import numpy as np
import pandas as pd
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedmls
from fedmls.datasets import read


def same(file, **options):
    """Read it both ways; return the rows on disk."""
    mapped, whole = read(file, on_disk=True, **options), read(file, **options)
    assert isinstance(mapped.X, np.memmap)
    np.testing.assert_array_equal(mapped.X, whole.X)
    assert list(mapped.y) == list(whole.y)
    assert (mapped.columns, mapped.label, mapped.classes) == (whole.columns, whole.label, whole.classes)
    assert mapped.clients is whole.clients is None or list(mapped.clients) == list(whole.clients)
    return mapped


@given(
    rows=st.integers(1, 50),
    columns=st.integers(1, 5),
    kind=st.sampled_from(["f8", "f4", "i2", ">f8", "?"]),
    packed=st.booleans(),
)
@settings(max_examples=25)
def test_npz_files(rows, columns, kind, packed, tmp_path_factory):
    rng, file = np.random.default_rng(rows), tmp_path_factory.mktemp("npz") / "rows.npz"
    save = np.savez_compressed if packed else np.savez
    save(file, y=rng.normal(size=rows), X=(10 * rng.normal(size=(rows, columns))).astype(kind), site=np.arange(rows))
    same(file, clients="site")


@given(rows=st.integers(1, 60), group=st.integers(1, 60))
@settings(max_examples=15)
def test_parquet_files(rows, group, tmp_path_factory):
    rng, file = np.random.default_rng(rows), tmp_path_factory.mktemp("parquet") / "rows.parquet"
    frame = pd.DataFrame(
        {
            "age": rng.integers(90, size=rows),
            "site": rng.choice(["north", "south"], rows),
            "weight": rng.normal(size=rows).astype("f4"),
            "name": "somebody",
            "smokes": rng.random(rows) < 0.5,
            "score": rng.normal(size=rows),
        }
    )
    frame.to_parquet(file, row_group_size=group)
    data = same(file, clients="site", ignore=["name"])
    assert data.columns == ("age", "weight", "smokes")


@pytest.mark.parametrize("intercept", [True, False])
def test_runs_are_those_of_rows_in_memory(intercept, tmp_path):
    rng, file = np.random.default_rng(0), tmp_path / "rows.parquet"
    frame = pd.DataFrame(rng.normal(size=(90, 4)), columns=list("abcd"))
    frame["site"], frame["ill"] = np.repeat([1, 2, 3], 30), np.where(frame["a"] + rng.normal(size=90) > 0, "yes", "no")
    frame.to_parquet(file, row_group_size=25)
    runs = []
    for on_disk in (True, False):
        data = read(file, clients="site", on_disk=on_disk)
        problem = fedmls.Problem(data.X, data.y, clients=data.clients, intercept=intercept)
        assert isinstance(problem.X.base, np.memmap) is on_disk
        runs.append(fedmls.simulate(fedmls.FedMLSB(), problem, rounds=4, progress=False))
    assert np.array_equal(runs[0].x, runs[1].x)


@pytest.mark.parametrize("name", ["rows.parquet", "rows.npz", "packed.npz"])
def test_rows_on_disk_stay_there(name, tmp_path):
    rng, file = np.random.default_rng(0), tmp_path / name
    X, y = rng.normal(size=(100_000, 40)), rng.normal(size=100_000)
    if name == "rows.parquet":
        pd.DataFrame(X, columns=[f"x{j}" for j in range(40)]).assign(y=y).to_parquet(file, row_group_size=10_000)
    else:
        (np.savez if name == "rows.npz" else np.savez_compressed)(file, X=X, y=y)
    read(file, on_disk=True)  # imports
    tracemalloc.start()
    data = read(file, on_disk=True)
    problem = fedmls.Problem(data.X, data.y, loss="absolute", intercept=False)
    problem.value(np.zeros(40))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 0.6 * X.nbytes  # parts of a million numbers are a quarter of it, labels and the order of rows a tenth


def test_no_more_than_some_groups_of_a_parquet_file_are_in_memory(tmp_path):
    file, before = tmp_path / "rows.parquet", pyarrow.default_memory_pool()
    X = np.random.default_rng(0).normal(size=(200_000, 20))
    pd.DataFrame(X, columns=[f"x{j}" for j in range(20)]).assign(y=1.0).to_parquet(file, row_group_size=10_000)
    counted = pyarrow.proxy_memory_pool(before)
    pyarrow.set_memory_pool(counted)
    try:
        read(file, on_disk=True)
    finally:
        pyarrow.set_memory_pool(before)
    assert 0 < counted.max_memory() < 0.5 * X.nbytes  # a group is a twentieth of it, packed and unpacked a tenth


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("rows.csv", {}, "rows on disk are those of an NPZ or Parquet file"),
        ("rows.parquet", {"missing": "mean"}, "missing is 'mean', but rows on disk stay as they are"),
        ("rows.parquet", {"label": "c", "clients": "d"}, "no numbers are in b; rows on disk are numbers"),
        ("rows.parquet", {"label": "e"}, "there is no column 'e'"),
        ("holes.parquet", {}, "1 values are missing, in 'a' (1); fill them in the file, or leave out on_disk"),
        ("rows.npz", {"ignore": ["0"]}, "ignore names columns, but the rows of an NPZ file stay where they are"),
        ("columns.npz", {}, "its X has shape (3, 2) and holds float64, column by column"),
        ("text.npz", {}, "its X has shape (3,) and holds <U1"),
        ("none.npz", {}, "it has no array 'X'"),
    ],
)  # fmt: skip
def test_what_cannot_stay_on_disk(name, options, message, tmp_path):
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": ["x", "y", "z"], "c": [1, 2, 3], "d": [0, 0, 1]})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    frame.to_parquet(tmp_path / "rows.parquet")
    pd.DataFrame({"a": [1.0, None, 3.0], "c": [1, 2, 3]}).to_parquet(tmp_path / "holes.parquet")
    y = np.arange(3.0)
    np.savez(tmp_path / "rows.npz", X=np.ones((3, 2)), y=y)
    np.savez(tmp_path / "columns.npz", X=np.asfortranarray(np.ones((3, 2))), y=y)
    np.savez(tmp_path / "text.npz", X=np.array(["a", "b", "c"]), y=y)
    np.savez(tmp_path / "none.npz", y=y)
    with pytest.raises(ValueError) as error:
        read(tmp_path / name, on_disk=True, **options)
    assert message in str(error.value)
