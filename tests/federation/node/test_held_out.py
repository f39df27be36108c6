"""Which rows a node holds out."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

import fedmls
from fedmls.federation import Job, NodeConfig, Refused
from fedmls.federation.node.held_out import divide, drawn
from fedmls.federation.node.rows import SiteRows, read_rows
from fedmls.federation.node.site import Site


def rows_of(m, seed=0):
    rng = np.random.default_rng(seed)
    return SiteRows(rng.normal(size=(m, 2)), np.tile([-1, 1], m)[:m], ("a", "b"))


def job(**options):
    return Job(**{"algorithm": fedmls.FedAvg(), "rounds": 1} | options)


def node(folder, frame, **options):
    frame.to_csv(folder / "rows.csv", index=False)
    return NodeConfig(name="a", data=folder / "rows.csv", state=folder / "state", label="y", **options)


def table(m=40, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(m, 2)), columns=["a", "b"])
    return frame.assign(y=np.where(frame["a"] > 0, "ill", "well"))


@given(m=st.integers(5, 200), share=st.floats(0.01, 0.99), least=st.integers(1, 5))
def test_a_share_goes_in_steps_of_min_rows_and_leaves_as_many(m, share, least):
    held_out = drawn(rows_of(m), share, least).sum()
    assert held_out % least == 0
    assert m - held_out >= least
    assert abs(held_out - share * m) <= least / 2 or m - held_out < 2 * least


def test_the_same_rows_are_held_out_whatever_the_run_and_a_larger_share_holds_a_smaller_one():
    rows = rows_of(100)
    for least in (1, 5):
        few, many = drawn(rows, 0.2, least), drawn(rows, 0.5, least)
        np.testing.assert_array_equal(few, drawn(rows, 0.2, least))
        assert few.sum() == 20
        assert many.sum() == 50
        assert (few <= many).all()


def test_other_data_have_other_rows_held_out():
    assert (drawn(rows_of(100), 0.2, 5) != drawn(rows_of(100, seed=1), 0.2, 5)).any()


def test_rows_are_drawn_evenly():
    counts = sum(drawn(rows_of(20, seed), 0.25, 5).astype(int) for seed in range(400))
    assert counts.sum() == 400 * 5
    assert counts.min() > 60
    assert counts.max() < 145


def test_nobody_who_chooses_seeds_and_shares_sees_fewer_rows_than_min_rows(tmp_path):
    """The differences of two runs are of so many rows, or of none: the server tells seed and share."""
    config, frame = node(tmp_path, table(), min_rows=4), table()
    sets = set()
    for seed in range(3):
        for share in np.linspace(0.02, 0.9, 45):
            training = Site(config).divided(job(holdout=float(share), seed=seed)).training
            sets.add(frozenset(np.flatnonzero(np.isin(frame["a"], training.X[:, 0])).tolist()))
    assert len(sets) > 5
    assert min(len(one ^ other) for one in sets for other in sets if one != other) == 4


def test_small_nodes_hold_out_nothing(tmp_path):
    parts = Site(node(tmp_path, table(11))).divided(job(holdout=0.2))
    assert parts.training.X.shape == (11, 2)
    assert parts.held_out.X.shape == (0, 2)


def test_a_column_marks_rows_and_is_no_feature(tmp_path):
    marks = np.arange(40) % 4 == 0
    parts = Site(node(tmp_path, table().assign(test=marks.astype(int)), holdout="test")).divided(job(holdout=0.9))
    assert parts.training.columns == parts.held_out.columns == ("a", "b")
    np.testing.assert_allclose(parts.held_out.X, table()[["a", "b"]][marks])
    np.testing.assert_allclose(parts.training.X, table()[["a", "b"]][~marks])
    assert parts.held_out.y.tolist() == table()["y"][marks].tolist()


@pytest.mark.parametrize("where", ["array", "column"])
def test_an_array_or_a_column_of_an_npz_file_marks_rows(where, tmp_path):
    rows, marks = rows_of(30), np.arange(30) < 10
    arrays = {"X": rows.X, "y": rows.y, "columns": ["a", "b"]}
    if where == "column":
        arrays |= {"X": np.column_stack([rows.X, marks]), "columns": ["a", "b", "test"]}
    else:
        arrays["test"] = marks
    np.savez(tmp_path / "rows.npz", **arrays)
    config = NodeConfig(name="a", data=tmp_path / "rows.npz", state=tmp_path / "state", holdout="test")
    parts = Site(config).divided(job())
    assert parts.training.columns == ("a", "b")
    np.testing.assert_array_equal(parts.held_out.X, rows.X[:10])
    np.testing.assert_array_equal(parts.training.X, rows.X[10:])


def test_a_file_beside_the_data_is_held_out_as_a_whole(tmp_path):
    table(seed=1).to_csv(tmp_path / "later.csv", index=False)
    file = tmp_path / "node.toml"
    table().to_csv(tmp_path / "rows.csv", index=False)
    file.write_text('name = "a"\ndata = "rows.csv"\nstate = "state"\nlabel = "y"\nholdout = "later.csv"\n')
    config = NodeConfig.read(file)
    assert config.holdout == tmp_path / "later.csv"
    parts = Site(config).divided(job(holdout=0.5))
    np.testing.assert_allclose(parts.training.X, table()[["a", "b"]])
    np.testing.assert_allclose(parts.held_out.X, table(seed=1)[["a", "b"]])


def test_a_nodes_own_share_goes_before_the_jobs_and_needs_no_job(tmp_path):
    config = node(tmp_path, table(), holdout=0.5)
    for asked in (job(), job(holdout=0.1), job(holdout=True)):
        assert Site(config).divided(asked).training.X.shape == (20, 2)


def test_sparse_rows_are_divided_too():
    dense = rows_of(40)
    rows = dense._replace(X=sparse.csr_array(dense.X))
    config = NodeConfig(name="a", data="rows.svm", state="state")
    parts = divide(rows, config, job(holdout=0.25))
    assert parts.held_out.X.shape == (10, 2)
    together = np.concatenate([part.X.toarray() for part in parts])
    np.testing.assert_array_equal(np.sort(together, axis=0), np.sort(dense.X, axis=0))


@pytest.mark.parametrize(
    ("marks", "holdout", "message"),
    [
        ([1] * 3 + [0] * 37, "test", "it holds out 3 rows and tells scores only of at least 5"),
        ([1] * 37 + [0] * 3, "test", "it has 3 rows that are not held out"),
        ([2] * 20 + [0] * 20, "test", "its column 'test', which holdout names, must hold 0 and 1 only"),
        (["yes"] * 20 + ["no"] * 20, "test", "its column 'test', which holdout names, must hold 0 and 1 only"),
        ([1] * 20 + [None] * 20, "test", "its column 'test', which holdout names, must hold 0 and 1 only"),
        ([1] * 20 + [0] * 20, "tset", "its data has no column 'tset'"),
    ],
)
def test_marks_that_cannot_be_are_refused(marks, holdout, message, tmp_path):
    site = Site(node(tmp_path, table().assign(test=marks), holdout=holdout))
    with pytest.raises(Refused, match=message):
        site.divided(job(holdout=True))


def test_a_held_out_file_has_the_columns_of_the_data(tmp_path):
    table().drop(columns="b").to_csv(tmp_path / "later.csv", index=False)
    site = Site(node(tmp_path, table(), holdout=tmp_path / "later.csv"))
    with pytest.raises(Refused, match="the columns of its held-out rows are not those of its data"):
        site.divided(job(holdout=True))


def test_a_fingerprint_is_of_all_that_a_node_names(tmp_path):
    config = node(tmp_path, table(), holdout=tmp_path / "later.csv")
    found = set()
    for seed in (1, 2):
        table(seed=seed).to_csv(tmp_path / "later.csv", index=False)
        found.add(Site(config).data())
    for marks in ([0, 1] * 20, [1, 0] * 20):
        found.add(Site(node(tmp_path, table().assign(test=marks), holdout="test")).data())
    assert len(found) == 4


@pytest.mark.parametrize("value", [0, 1, 1.5, -0.1, "", True, [0.2]])
def test_what_is_no_share_column_or_file_is_refused(value, tmp_path):
    with pytest.raises(ValueError, match="holdout is"):
        NodeConfig(name="a", data=tmp_path / "rows.csv", state=tmp_path, holdout=value)


@pytest.mark.parametrize(
    ("value", "what"), [(0.0, "a share"), (1.0, "a share"), ("test", "a column or a file is named")]
)
def test_a_job_takes_a_share_or_what_nodes_hold_out(value, what):
    with pytest.raises(ValueError, match=what):
        job(holdout=value)


def test_a_job_with_a_share_goes_to_a_file_and_back(tmp_path):
    for value in (0.2, True):
        assert Job.read(job(holdout=value).write(tmp_path)).holdout == value
    assert job(holdout=False).holdout is None
    assert "holdout" not in job(holdout=False).to_dict()


def test_rows_without_a_holdout_are_as_they_stand_in_the_file(tmp_path):
    config = node(tmp_path, table())
    np.testing.assert_array_equal(Site(config).divided(job()).training.X, read_rows(config).X)
