"""Sites that are named after files or values, and the configurations of their nodes."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmls.federation import NodeConfig
from fedmls.federation.node.rows import read_rows
from fedmls.federation.sites import (
    TAKEN,
    data_files,
    look_at_sites,
    site_names,
    write_node,
    write_nodes,
    write_own_node,
)
from fedmls.federation.trial.prepare import ENGINES


def test_names_that_people_know_again():
    texts = ["Orléans", "St. Mary's", "3", "3 ", "north", "North", "", "server", "no"]
    named = ["Orleans", "St-Mary-s", "ward-3", "ward-3-2", "north", "North-2", "ward", "ward-server", "ward-no"]
    assert site_names(texts, "ward") == named
    assert site_names(["3", "病院"]) == ["site-3", "site"]


@given(st.lists(st.text(max_size=80), max_size=8), st.text(max_size=80))
def test_every_text_gives_a_name_of_its_own_that_engines_take(texts, column):
    names = site_names(texts, column)
    assert len({name.lower() for name in names}) == len(texts)
    for name in names:
        assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,59}", name) or column
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,110}", name)
        assert name.lower() not in TAKEN


def test_names_of_the_engines_own_processes_are_taken():
    assert {name for engine in ENGINES.values() for name in engine.reserved} == {*TAKEN}


def test_the_files_of_a_folder_are_those_with_rows(tmp_path):
    for name in ("b10.csv", "b9.CSV", "a.parquet", "c.csv.gz", "notes.txt", ".hidden.csv", "rows.npz"):
        (tmp_path / name).touch()
    (tmp_path / "folder.csv").mkdir()
    assert [file.name for file in data_files([tmp_path])] == ["a.parquet", "b9.CSV", "b10.csv", "c.csv.gz"]


def test_a_configuration_is_written_once_and_can_be_read(tmp_path):
    (tmp_path / "x.csv").write_text("a;b;y\n1;2,5;0\n")
    [file] = write_nodes(look_at_sites([tmp_path / "x.csv"], ignore=["a"]), tmp_path / "out")
    config = NodeConfig.read(file)
    assert config.data.resolve() == tmp_path / "x.csv"
    assert config.state == tmp_path / "out" / "state" / "x"
    assert (config.name, config.label, config.ignore, config.decimal) == ("x", "y", ("a",), ",")
    before = file.read_text()
    with pytest.raises(FileExistsError):
        write_node(file, {"name": "z"})
    assert file.read_text() == before
    assert "decimal" not in write_node(tmp_path / "y.toml", {"name": "y", "decimal": "."}).read_text()


def test_each_site_has_its_own_way_to_write_numbers(tmp_path):
    (tmp_path / "a.csv").write_text("x;y\n2,5;0\n")
    (tmp_path / "b.csv").write_text("x,y\n2.5,0\n")
    found = look_at_sites([tmp_path])
    assert [one.decimal for one in found.values()] == [",", "."]
    with pytest.raises(
        ValueError, match=r"b\.csv: column 'x' holds numbers with a point, such as '2\.5'; take decimal"
    ):
        look_at_sites([tmp_path], decimal=",")


@pytest.mark.parametrize("kind", ["csv", "svm", "npz"])
def test_a_nodes_own_file_of_any_kind(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / f"clinic a.{kind}"
    rows = np.arange(20.0).reshape(10, 2) + 1
    if kind == "csv":
        file.write_text("u,v,y\n" + "".join(f"{u},{v},{u % 2}\n" for u, v in rows))
    elif kind == "svm":
        file.write_text("".join(f"{u % 2} 1:{u} 2:{v}\n" for u, v in rows))
    else:
        np.savez(file, X=rows, y=rows[:, 0] % 2)
    written, found = write_own_node(file)
    assert written == Path("clinic-a.toml")
    assert (found is None) == (kind != "csv")
    read = read_rows(NodeConfig.read(written))
    X = read.X if kind != "svm" else read.X.toarray()
    np.testing.assert_array_equal(X, rows)
    with pytest.raises(ValueError, match=r"clinic-a\.toml is there already; name another file with --out"):
        write_own_node(file)
