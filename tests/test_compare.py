"""Comparing methods: the grids, what is chosen and counted, tables and words, the figure, the command."""

import json
import sys
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import image

import fedmls
from fedmls.algorithms import describe
from fedmls.datasets import lad
from fedmls.experiments import compare, profile, tables
from fedmls.experiments.methods import METHODS, Method, Scale, alone, scale
from fedmls.experiments.suite import SUITE, Entry
from tests.problems import svm
from tests.test_cli import fedmls as command

SMALL = {
    "one": Entry("a small SVM", partial(svm, n=3, m=60, l2=0.3)),
    "two": Entry("a small LAD", partial(lad, 60, 4, 3, planted=True), rounds=25),
}
SETTINGS = compare.Settings(rounds=40, seeds=2, grid=3, batch=0.5)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return compare.compare(SMALL, tmp_path_factory.mktemp("compare"), SETTINGS, jobs=1)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("points", [1, 2, 3, 12])
def test_every_method_has_the_same_budget(name, points):
    """And each of its points is another algorithm. What tunes itself has one point."""
    windows = METHODS[name].grid(Scale(n=10, step=0.01, reach=3.0), points)
    algorithms = [algorithm for window in windows for algorithm in window]
    assert len(set(map(repr, algorithms))) == len(algorithms) == (1 if METHODS[name].ours == "auto" else points)
    assert {algorithm.name for algorithm in algorithms} <= {*fedmls.ALGORITHMS}


def test_methods_are_listed_by_what_they_need():
    """Those said to need only averages and mini-batches do: the server sees the mean, and no method there asks for
    an exact proximal step; GradSkip takes one subgradient over all rows when a client rests."""
    for name, method in METHODS.items():
        (algorithm,) = method.grid(Scale(n=10, step=0.01, reach=3.0), 1)[0]
        if not method.more:
            assert algorithm.traits.aggregate == "mean"
        assert (name == "bundle") == (algorithm.traits.aggregate == "stack")
    assert {name for name, method in METHODS.items() if method.more} == {"subgradient", "admm", "bundle"}


@given(factor=st.floats(0.01, 100))
def test_the_scale_goes_with_the_problem(factor):
    """In other units of x and of the rows the same grid points mean the same runs."""
    problem = lad(60, 4, 3, planted=True)
    X, y = problem.matrix().toarray(), problem.y
    clients = np.repeat(np.arange(problem.n), problem.rows_per_client)
    other = fedmls.Problem(factor * X, y, clients=clients, loss="absolute", intercept=False)
    one, two = scale(problem), scale(other)
    assert two.reach == pytest.approx(one.reach / factor)
    assert two.step == pytest.approx(one.step / factor**2, rel=1e-6)


def test_costs_are_those_of_the_first_round_that_is_close_enough():
    problem = svm(n=3, m=60)
    run = fedmls.simulate(fedmls.FedMLS(lam0=0.3, output="best", paired=True), problem, rounds=60, target=1e-4)
    for target, cost in zip(compare.TARGETS, compare.costs(run), strict=True):
        assert cost["target"] == target
        close = run.history[run.history["relative_gap"] <= target]
        if close.empty:
            assert np.isnan([cost[name] for name in compare.COSTS]).all()
            continue
        row = close.iloc[0]
        assert cost["rounds"] == row["round"]
        assert cost["exchanges"] == -(-row["round"] // 2) + 1  # one more to ask which model is the better one
        assert cost["bytes"] == row["bytes_up"] + row["bytes_down"]
        assert cost["subgradients"] == row["subgradients"]
    assert np.isfinite(compare.costs(run)[0]["exchanges"])


def points(rows):
    """(parameters, edge, seed, exchanges, bytes) of one method on one problem, to one target."""
    columns = ["parameters", "edge", "seed", "exchanges", "bytes"]
    table = pd.DataFrame(rows, columns=columns).assign(problem="p", method="fedmls", target=0.1)
    return table.assign(rounds=table["exchanges"], subgradients=table["exchanges"])


def test_the_best_point_is_the_least_median_over_seeds():
    nan = np.nan
    rows = [("a", True, 0, 1, 9), ("a", True, 1, nan, nan), ("a", True, 2, nan, nan)]  # mostly not reached
    rows += [("b", False, 0, 5, 9), ("b", False, 1, 6, 9), ("b", False, 2, 50, 9)]
    rows += [("c", True, 0, 7, 9), ("c", True, 1, 7, 9), ("c", True, 2, 7, 9)]
    (best,) = compare.choose(points(rows)).to_dict("records")
    assert (best["parameters"], best["exchanges"], best["edge"]) == ("b", 6, False)


def test_ties_go_to_fewer_bytes_and_are_no_sign_of_a_narrow_window():
    rows = [("a", True, 0, 5, 8), ("b", False, 0, 5, 9)]
    (best,) = compare.choose(points(rows)).to_dict("records")
    assert (best["parameters"], best["edge"]) == ("a", False)
    (best,) = compare.choose(points(rows[:1])).to_dict("records")
    assert (best["parameters"], best["edge"]) == ("a", True)


def test_what_is_not_reached_has_no_parameters():
    (best,) = compare.choose(points([("a", True, 0, np.nan, np.nan)])).to_dict("records")
    assert np.isnan(best["exchanges"])
    assert (best["parameters"], best["edge"]) == ("", False)


def test_the_results_are_on_disk(done):
    kept = pd.read_parquet(done.folder / "points.parquet")
    points = {name: 1 if method.ours == "auto" else SETTINGS.grid for name, method in METHODS.items()}
    assert len(kept) == (2 * sum(points.values()) - points["cocoa"]) * 2 * 4  # problems, seeds, targets
    pd.testing.assert_frame_equal(kept, done.points)
    chosen = pd.read_csv(done.folder / "chosen.csv", keep_default_na=False, na_values={c: [""] for c in compare.COSTS})
    pd.testing.assert_frame_equal(chosen, done.chosen, check_dtype=False)
    assert list(chosen["problem"].unique()) == list(SMALL)
    setup = json.loads((done.folder / "setup.json").read_text())
    assert (setup["rounds"], setup["grid"], setup["problems"]) == (40, 3, list(SMALL))
    assert "numpy" in setup["versions"]
    assert done.points[done.points["problem"] == "two"]["rounds"].max() <= 25
    assert done.points["rounds"].max() > 25


def test_the_chosen_costs_are_reproduced_by_a_run(done):
    """From the table alone: the parameters of a line, run again, take what it says."""
    averaging = done.chosen[done.chosen["method"].isin(compare.averaging(done))]
    row = averaging[(averaging["target"] == 0.1) & averaging["exchanges"].notna()].iloc[0]
    entry = SMALL[row["problem"]]
    windows = METHODS[row["method"]].grid(scale(entry.make()), SETTINGS.grid)
    (algorithm,) = (one for window in windows for one in window if describe(one) == row["parameters"])
    rounds = min(SETTINGS.rounds, entry.rounds)
    runs = [fedmls.simulate(algorithm, entry.make(), rounds=rounds, batch=0.5, seed=seed) for seed in range(2)]
    found = [compare.costs(run)[0] for run in runs]
    for cost in compare.COSTS:
        assert row[cost] == np.median([one[cost] for one in found])


def test_a_method_that_needs_an_l2_term_is_not_run_without_one(done):
    assert set(done.chosen.loc[done.chosen["method"] == "cocoa", "problem"]) == {"one"}
    header, one, two = tables.exchanges_of(done, 0.1)
    place = header.index(METHODS["cocoa"].title)
    assert (one[place] == "not run", two[place]) == (False, "not run")


def test_a_second_start_runs_nothing_again(done, monkeypatch):
    monkeypatch.setattr(sys.modules["fedmls.sweep"], "_run", lambda *_: pytest.fail("run again"))
    again = compare.compare(SMALL, done.folder, SETTINGS, jobs=1)
    pd.testing.assert_frame_equal(again.chosen, done.chosen)


def made_up(costs, methods=("fedmls", "fedmlse", "fedavg", "bundle"), problems=("p",)):
    """A comparison with these exchanges: a row for each pair, a column for each method; NaN is not reached."""
    pairs = [(problem, target) for problem in problems for target in compare.TARGETS]
    rows = [
        {"problem": problem, "method": method, "target": target, "parameters": "", "edge": False}
        | dict.fromkeys(compare.COSTS, float(cost))
        for (problem, target), line in zip(pairs, costs, strict=True)
        for method, cost in zip(methods, line, strict=True)
        if cost is not None
    ]
    entries = dict.fromkeys(problems, SMALL["one"])
    chosen = pd.DataFrame(rows)
    return compare.Comparison(None, SETTINGS, list(methods), entries, chosen, chosen)


NAN = np.nan
COUNTED = made_up([[10, 11, 12, 1], [22, 30, 20, 1], [NAN, NAN, 5, 1], [NAN, NAN, NAN, 1]])


def test_sentences_count_the_pairs():
    first, *ranks, together = tables.sentences(COUNTED)
    assert first.startswith("4 pairs of problem and target, 1 of them reached by no method that needs only averages")
    assert "On the other 3, first or within 10% of the first in exchanges:" in first
    assert [line.split() for line in ranks] == [
        ["2", "(", "67%)", "FedMLS"],
        ["2", "(", "67%)", "FedAvg"],
        ["1", "(", "33%)", "FedMLS-E"],
    ]
    assert "tuned by grid (FedMLS; FedMLS-E), against FedAvg, tuned by grid: one is first" in together
    assert together.endswith("on 2 of 3 pairs (67%).")


def test_methods_that_tune_themselves_are_counted_against_the_others_alone(monkeypatch):
    """Our own tuned methods are no rivals of theirs."""
    own = METHODS["fedmls"]._replace(title="FedMLS auto", ours="auto")
    monkeypatch.setitem(METHODS, "auto", own)
    done = made_up([[5, 10, 11, 1]] * 4, methods=("fedmls", "auto", "fedavg", "bundle"))
    assert [line.rsplit(" on ", 1)[1] for line in tables.sentences(done)[-2:]] == ["4 of 4 pairs (100%)."] * 2
    done = made_up([[5, 12, 10, 1]] * 4, methods=("fedmls", "auto", "fedavg", "bundle"))
    assert tables.sentences(done)[-1].endswith("on 0 of 4 pairs (0%).")


def test_nothing_is_said_of_methods_that_were_not_run():
    assert tables.sentences(made_up([[1]] * 4, methods=["bundle"])) == []


def test_the_score_table_counts_by_target():
    header, *rows = tables.scores(COUNTED)
    assert header[:6] == ["method", "0.1", "0.01", "0.001", "0.0001", "all"]
    assert [row[:7] for row in rows] == [
        ["FedMLS", "1", "1", "0", "0", "2", "2"],
        ["FedMLS-E", "1", "0", "0", "0", "1", "2"],
        ["FedAvg", "0", "1", "1", "0", "2", "3"],
    ]


def test_tables_mark_the_best_of_each_kind_and_say_what_was_not_reached():
    done = made_up([[3, 4, 1234.5, None], [NAN, 4, 4, None], [NAN] * 3 + [None], [NAN] * 3 + [None]])
    column = [row[:2] for row in tables.costs_of(done, "p", 0.1)]
    assert column == [
        ["method", "exchanges"],
        ["only averages, mini-batches:", ""],
        ["FedMLS", "3 *"],
        ["FedMLS-E", "4"],
        ["FedAvg", "1,234"],
        ["needs more than averages, or all rows:", ""],
        ["Bundle", "not run"],
    ]
    assert tables.exchanges_of(done, 0.01) == [
        ["problem", "FedMLS", "FedMLS-E", "FedAvg", "Bundle"],
        ["p", "not reached", "**4**", "**4**", "not run"],
    ]
    header, *rows = tables.all_costs_of(done, "p")
    assert len(header) == 17
    assert rows[2][:6] == ["FedAvg", "1,234", "1,234", "1,234", "0.00123", "**4**"]


@given(st.lists(st.lists(st.one_of(st.floats(1, 1e6), st.just(np.inf)), min_size=3, max_size=3), min_size=1))
def test_profiles_are_shares_of_the_pairs_that_were_reached(values):
    costs = pd.DataFrame(values, columns=["a", "b", "c"])
    found = profile.ratios(costs)
    assert len(found) == np.isfinite(costs.min(axis=1)).sum()
    tau = np.geomspace(1, 1e7, 50)
    for name in costs:
        curve = profile.share_within(found[name], tau)
        assert (np.diff(curve) >= 0).all()
        by_hand = [np.mean([r <= t * (1 + 1e-12) for r in found[name]]) if len(found) else 0.0 for t in tau]
        assert curve == pytest.approx(by_hand)
    assert (found == 1).any(axis=1).all()  # every pair has a best method


def test_page_and_figure(done, tmp_path):
    tables.write(done, "bytes", tmp_path / "docs" / "benchmarks.md")
    page = (done.folder / "report.md").read_text(encoding="utf-8")
    assert (tmp_path / "docs" / "benchmarks.md").read_text(encoding="utf-8") == page
    for line in tables.sentences(done):
        assert line.strip() in page
    assert "![Performance profile by bytes](profile.png)" in page
    for name in SMALL:
        assert f"\n### {name}\n" in page
    for line in page.strip().split("\n\n"):
        if line.startswith("|"):
            assert len({row.count("|") for row in line.split("\n")}) == 1
    figures = [done.folder / "profile.png", tmp_path / "docs" / "profile.png"]
    assert figures[0].read_bytes() == figures[1].read_bytes()
    pixels = image.imread(figures[0])
    assert pixels.shape[0] > 600
    assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 50


def test_a_method_is_added_by_one_line(monkeypatch, tmp_path):
    own = Method("Mine", "nothing", alone(lambda s: fedmls.FedAvg(eta0=s.step)), ours="auto")
    monkeypatch.setitem(METHODS, "mine", own)
    done = compare.compare({"one": SMALL["one"]}, tmp_path, SETTINGS._replace(rounds=3), ["mine", "dcs"], jobs=1)
    assert done.methods == ["dcs", "mine"]
    tables.write(done)
    assert "| Mine |" in (tmp_path / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ["fedmls", "scafold"]}, "unknown method 'scafold': did you mean 'scaffold'? choose from "),
        ({"rounds": 0}, "rounds is 0; it must be a whole number of at least 1"),
        ({"seeds": 1.5}, "seeds is 1.5; it must be a whole number of at least 1"),
        ({"grid": 0}, "grid is 0; it must be a whole number of at least 1"),
        ({"batch": 2}, "batch is 2; it is the fraction of rows used in a step"),
        ({"problems": {}}, "there are no problems; name some"),
    ],
)
def test_bad_input(changes, message, tmp_path):
    problems, methods = changes.pop("problems", SMALL), changes.pop("methods", None)
    with pytest.raises(ValueError) as error:
        compare.compare(problems, tmp_path / "none", SETTINGS._replace(**changes), methods)
    assert str(error.value).startswith(message)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["papr-std"], "error: unknown problem 'papr-std': did you mean 'paper-std'? choose from paper-std, "),
        (["--suite", "paper-std"], "error: --suite is all problems; leave out --suite or the names\n"),
        (["--profile-by", "exchange"], "error: unknown profile-by 'exchange': did you mean 'exchanges'? choose from"),
    ],
)
def test_errors_are_one_line(arguments, message, tmp_path):
    failed = command("compare", *arguments, cwd=tmp_path, code=2)
    assert failed.stderr.startswith(message)
    assert failed.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_command(tmp_path):
    options = ["--rounds", "5", "--grid", "2", "--algorithms", "fedmls,fedavg,admm", "--out", "out"]
    shown = command("compare", "chain-8", "lad-none-d10-n3", *options, cwd=tmp_path)
    assert "1/2 chain-8: the worst case of the lower bound, 8 links\n" in shown.stdout
    assert shown.stdout.count("to a relative gap of") == 8
    assert "not reached" in shown.stdout
    assert "8 pairs of problem and target" in shown.stdout
    assert shown.stderr == ""
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert names == {"runs", "points.parquet", "chosen.csv", "report.md", "profile.png", "profile.pdf", "setup.json"}


def test_the_list(tmp_path):
    listed = command("compare", "--list", cwd=tmp_path).stdout
    for name in (*SUITE, *METHODS):
        assert f"  {name} " in listed
