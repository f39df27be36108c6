"""Comparing methods: the grids, what is chosen and counted, tables and words, the figure, the command."""

import json
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import image

import fedmls
from fedmls.algorithms import describe
from fedmls.benchmark import claims, compare, profile, tables
from fedmls.benchmark.methods import METHODS, Method, Scale, scale, untuned
from fedmls.benchmark.suite import SUITE, Entry
from fedmls.datasets import lad
from fedmls.simulation import sweeps
from tests.cli.test_cli import fedmls as command
from tests.support.problems import svm

SMALL = {
    "one": Entry("a small SVM", partial(svm, n=3, m=60, l2=0.3)),
    "two": Entry("a small LAD", partial(lad, 60, 4, 3, planted=True), rounds=25),
}
SETTINGS = compare.Settings(rounds=40, seeds=2, grid=3, batch=0.5)
NUMBERS = (*compare.COSTS, "certified", "least", "most")


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


def test_methods_are_listed_by_what_their_server_needs():
    for name, method in METHODS.items():
        (algorithm,) = method.grid(Scale(n=10, step=0.01, reach=3.0), 1)[0]
        assert bool(method.more) == (algorithm.traits.aggregate == "stack") == (name == "bundle")
    assert {name for name, method in METHODS.items() if method.reads} == {"subgradient", "admm", "bundle"}


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold", "feddyn", "fedsplit", "dcs", "scaffnew"])
@pytest.mark.parametrize("many", [50, 250])
def test_part_of_the_points_make_much_local_work(name, many):
    """Between a fifth and a third of them; Scaffnew meets once in so many steps."""
    windows = METHODS[name].grid(Scale(n=10, step=0.01, reach=3.0, many=many), 15)
    algorithms = [algorithm for window in windows for algorithm in window]
    steps = [1 / algorithm.p if name == "scaffnew" else algorithm.T for algorithm in algorithms if _says(algorithm)]
    assert 3 <= sum(one == pytest.approx(many) for one in steps) <= 5


def _says(algorithm):
    """Whether it has a constant number of local steps."""
    return isinstance(algorithm.p if algorithm.name == "scaffnew" else algorithm.T, int | float)


def test_much_local_work_is_25_passes():
    problem = lad(60, 4, 3, planted=True)
    assert [scale(problem, batch).many for batch in (0.1, 0.5, 1.0)] == [250, 50, 25]
    runs = [fedmls.simulate(fedmls.FedAvg(T=scale(problem, b).many), problem, rounds=2, batch=b) for b in (0.1, 0.5)]
    assert [run.history["passes"].iloc[-1] for run in runs] == pytest.approx([50, 50])


def test_constant_steps_are_tried_on_smooth_losses_alone():
    for name in ("scaffnew", "tamuna"):
        for smooth in (False, True):
            windows = METHODS[name].grid(Scale(n=10, step=0.01, reach=3.0, smooth=smooth), 15)
            constant = [one for window in windows for one in window if one.eta is not None and one.eta.exponent == 0]
            assert bool(constant) == smooth
    assert not scale(lad(60, 4, 3)).smooth
    X = np.random.default_rng(0).normal(size=(30, 2))
    assert scale(fedmls.Problem(X, X.sum(axis=1) + 1, loss="huber")).smooth


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
        assert cost["passes"] == row["passes"]
        assert np.isnan(cost["certified"])
    assert np.isfinite(compare.costs(run)[0]["exchanges"])


def test_a_proof_is_counted_from_the_certificate():
    problem = svm(n=3, m=60)
    best = problem.optimum.value
    run = fedmls.simulate(fedmls.FedMLSB(), problem, rounds=60, certificate=True, until=1e-4 * best)
    for cost in compare.costs(run):
        proved = run.history[run.history["certified_gap"] <= cost["target"] * best]
        assert cost["certified"] == proved["exchanges"].iloc[0] >= cost["exchanges"]


def points(rows):
    """(parameters, edge, seed, exchanges, bytes) of one method on one problem, to one target."""
    columns = ["parameters", "edge", "seed", "exchanges", "bytes"]
    table = pd.DataFrame(rows, columns=columns).assign(problem="p", method="fedmls", target=0.1, certified=np.nan)
    return table.assign(rounds=table["exchanges"], passes=table["exchanges"], error="")


def test_the_best_point_is_the_least_median_over_seeds():
    nan = np.nan
    rows = [("a", True, 0, 1, 9), ("a", True, 1, nan, nan), ("a", True, 2, nan, nan)]  # mostly not reached
    rows += [("b", False, 0, 5, 9), ("b", False, 1, 6, 9), ("b", False, 2, 50, 9)]
    rows += [("c", True, 0, 7, 9), ("c", True, 1, 7, 9), ("c", True, 2, 7, 9)]
    (best,) = compare.choose(points(rows)).to_dict("records")
    assert (best["parameters"], best["exchanges"], best["edge"]) == ("b", 6, False)
    assert (best["least"], best["most"], best["seeds"]) == (5, 50, 3)


def test_points_that_ran_once_are_not_chosen_beside_those_with_all_seeds():
    rows = [("a", False, 0, 4, 9), ("b", False, 0, 3, 9), ("b", False, 1, 9, 9), ("b", False, 2, np.nan, np.nan)]
    (best,) = compare.choose(points(rows)).to_dict("records")
    assert (best["parameters"], best["exchanges"], best["least"]) == ("b", 9, 3)
    assert np.isnan(best["most"])


def test_the_best_points_for_some_target_run_again(monkeypatch):
    """And what has nothing to tune; not what takes no mini-batches."""
    makers = {"fedavg": fedmls.FedAvg, "subgradient": fedmls.Subgradient, "fedmlsb": None}
    candidates = [
        compare.Candidate(name, make(eta0=eta0) if make else fedmls.FedMLSB(), False)
        for name, make in makers.items()
        for eta0 in ((1.0, 2.0, 3.0) if make else (None,))
    ]
    exchanges = {0.1: [5, 3, 9, 5, 3, 9, NAN], 0.01: [8, 9, 9, 8, 9, 9, NAN]}
    rows = [
        {"problem": "p", **compare._about(one), "seed": 0, "target": target, "certified": NAN}
        | dict.fromkeys(compare.COSTS, float(cost))
        for target, costs in exchanges.items()
        for one, cost in zip(candidates, costs, strict=True)
    ]
    again = compare.best_of(candidates, pd.DataFrame(rows))
    assert [(one.method, getattr(one.algorithm, "eta0", None)) for one in again] == [
        ("fedavg", 1.0),
        ("fedavg", 2.0),
        ("fedmlsb", None),
    ]


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
    first = kept[kept["seed"] == 0]
    assert len(first) == (2 * sum(points.values()) - points["cocoa"]) * 4  # problems, targets
    seeds = kept.groupby(["problem", "method"])["seed"].max()
    auto = [name for name, method in METHODS.items() if method.ours == "auto"]
    assert (seeds.loc[:, auto] == SETTINGS.seeds - 1).all()
    assert (seeds.loc[:, ["subgradient", "admm", "bundle"]] == 0).all()
    assert set(kept["error"]) == {""}
    pd.testing.assert_frame_equal(kept, done.points)
    chosen = pd.read_csv(done.folder / "chosen.csv", keep_default_na=False, na_values={c: [""] for c in NUMBERS})
    pd.testing.assert_frame_equal(chosen, done.chosen, check_dtype=False)
    assert list(chosen["problem"].unique()) == list(SMALL)
    facts = pd.read_csv(done.folder / "problems.csv")
    assert facts.to_dict("records")[0] == {
        **{"problem": "one", "rows": 60, "clients": 3, "columns": SMALL["one"].make().penalised},
        **{"loss": "hinge", "l2": 0.3},
    }
    setup = json.loads((done.folder / "setup.json").read_text())
    assert (setup["rounds"], setup["grid"], setup["problems"]) == (40, 3, list(SMALL))
    assert "numpy" in setup["versions"]
    assert done.points[done.points["problem"] == "two"]["rounds"].max() <= 25
    assert done.points["rounds"].max() > 25


def test_the_chosen_costs_are_reproduced_by_a_run(done):
    """From the table alone: the parameters of a line, run again, take what it says."""
    averaging = done.chosen[done.chosen["method"].isin(["fedavg", "scaffold", "fedmlsd"])]
    row = averaging[(averaging["target"] == 0.1) & averaging["exchanges"].notna()].iloc[0]
    entry = SMALL[row["problem"]]
    windows = METHODS[row["method"]].grid(scale(entry.make(), SETTINGS.batch), SETTINGS.grid)
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
    monkeypatch.setattr(sweeps, "_run", lambda *_: pytest.fail("run again"))
    again = compare.compare(SMALL, done.folder, SETTINGS, jobs=1)
    pd.testing.assert_frame_equal(again.chosen, done.chosen)


def made_up(costs, methods=("fedmls", "fedmlse", "fedavg", "bundle"), problems=("p",), seen=(), **columns):
    """A comparison with these exchanges: a row for each pair, a column for each method; NaN is not reached. All other
    costs are the same number, but those given in ``columns`` for a method.
    """
    pairs = [(problem, target) for problem in problems for target in compare.TARGETS]
    rows = [
        {"problem": problem, "method": method, "target": target, "parameters": "", "edge": False}
        | dict.fromkeys((*compare.COSTS, "certified", "least", "most"), float(cost))
        | {"seed": 0, "error": ""}
        | columns.get(method, {})
        for (problem, target), line in zip(pairs, costs, strict=True)
        for method, cost in zip(methods, line, strict=True)
        if cost is not None
    ]
    entries = {name: SMALL["one"]._replace(seen=name in seen) for name in problems}
    facts = [compare.facts_of(name, SMALL["one"].make()) for name in problems]
    chosen = pd.DataFrame(rows)
    return compare.Comparison(None, SETTINGS, list(methods), entries, chosen, chosen, pd.DataFrame(facts))


NAN = np.nan
COUNTED = made_up([[10, 11, 12, 1], [22, 30, 20, 1], [NAN, NAN, 5, 1], [NAN, NAN, NAN, 1]])


def test_the_ranking_counts_the_pairs():
    first, *ranks = tables.ranking(COUNTED)
    assert first.startswith("4 pairs of problem and target, 1 of them reached by no method that needs only averages")
    assert "On the other 3, first or within 10% of the first in exchanges:" in first
    assert [line.split() for line in ranks] == [
        ["2", "(", "67%)", "FedMLS"],
        ["2", "(", "67%)", "FedAvg"],
        ["1", "(", "33%)", "FedMLS-E"],
    ]


CLAIMED = made_up(
    [
        *([4, 3, 9, 9, 1], [11, 10, 9.9, 9, 1], [20, NAN, 10, 9, 1], [70, NAN, NAN, 9, 1]),
        *([1, 1, 1, 1, 1], [5, 9, 4, 9, 1], [NAN, 30, NAN, 9, 1], [NAN, NAN, NAN, 9, 1]),
    ],
    methods=("fedmlsb", "fedavg", "admm", "fedmlsd", "bundle"),
    problems=("p", "q"),
    seen=("q",),
)


def test_claims_are_against_all_tuned_rivals_that_need_only_averages():
    """At the closer targets, in p: behind ADMM, behind, alone; in q: behind, not reached, reached by nobody."""
    assert claims.rivals(CLAIMED) == ["fedavg", "admm"]
    first, unseen, ours = claims.against_rivals(CLAIMED, "fedmlsb")
    assert "FedMLS-B, with nothing tuned, is first or within 10% of the best tuned rival" in first
    assert "on 1 of 5 (20%) pairs at 0.01, 0.001 and 0.0001." in first
    assert "Both sides reach 3 of these pairs, FedMLS-B alone 1, a rival alone 1." in first
    assert first.endswith("1 of 2 (50%) at 0.1, 0 of 2 (0%) at 0.01, 0 of 2 (0%) at 0.001, 1 of 1 (100%) at 0.0001.")
    assert "without the 1 problems that were looked at while FedMLS-B was designed: 1 of 3 (33%)." in unseen
    assert ours == "FedMLS-B with FedMLS-D, tuned by grid, among the rivals too: 0 of 6 (0%)."


def test_pairs_that_a_rival_wins_are_listed_by_name():
    header, *rows = claims.lost(CLAIMED, "fedmlsb")
    assert header == ["problem", "target", "FedMLS-B", "the best rival", "its exchanges"]
    assert rows == [
        ["p", "0.1", "4", "FedAvg", "3"],
        ["p", "0.01", "11", "ADMM", "9.9"],
        ["p", "0.001", "20", "ADMM", "10"],
        ["q", "0.01", "5", "ADMM", "4"],
        ["q", "0.001", "not reached", "FedAvg", "30"],
    ]
    assert claims.one_sided(CLAIMED, "fedmlsb") == [
        "Reached by FedMLS-B alone: p (0.0001).",
        "Reached by a rival alone: q (0.001).",
        "Reached by neither: q (0.0001).",
    ]


def test_prices_are_against_the_cheapest_and_the_first():
    """FedAvg takes 2 bytes, ADMM, which is first, 5, FedMLS-B 10; pairs that one side alone reaches do not count."""
    bytes_of = {"fedmlsb": {"bytes": 10.0}, "fedavg": {"bytes": 2.0}, "admm": {"bytes": 5.0}}
    costs = [[3, 3, 2], [3, 3, 2], [3, 3, 2], [NAN, 3, 3]]
    done = made_up(costs, methods=("fedmlsb", "fedavg", "admm"), **bytes_of)
    in_bytes, in_passes = claims.prices(done, "fedmlsb")
    assert in_bytes.startswith("FedMLS-B takes 5 (5 to 5) times the bytes of the rival that is cheapest in bytes")
    assert "and 2 (2 to 2) times those of the rival that is first in exchanges: medians over 2 pairs" in in_bytes
    assert in_passes.startswith("FedMLS-B takes 1.5 (1.5 to 1.5) times the passes of the rival")


def test_the_cheapest_grid_point_of_a_rival_counts():
    """Not what the point with the fewest exchanges took."""
    done = made_up([[3, 3]] * 4, methods=("fedmlsb", "fedavg"))
    other = done.points[done.points["method"] == "fedavg"].assign(bytes=1.0, exchanges=50.0, parameters="b")
    done = done._replace(points=pd.concat([done.points, other]))
    assert claims.prices(done, "fedmlsb")[0].startswith("FedMLS-B takes 3 (3 to 3) times the bytes")


def test_proofs_and_few_exchanges_are_counted():
    late = CLAIMED.chosen["method"].eq("fedmlsb") & CLAIMED.chosen["exchanges"].eq(20)
    done = CLAIMED._replace(chosen=CLAIMED.chosen.assign(certified=CLAIMED.chosen["certified"].mask(late, 36)))
    proved, soon = claims.proofs(done)
    assert proved.endswith("plus 5, on 5 of 6 pairs; not on p (0.001).")
    assert (
        soon == "FedMLS-B is at 0.0001 within 60 exchanges on 0 of 2 problems with at most 100 columns; not on p and q."
    )
    wide = CLAIMED.facts.assign(columns=[101, 4])
    assert claims.proofs(CLAIMED._replace(facts=wide))[1].endswith(
        "on 0 of 1 problems with at most 100 columns; not on q."
    )


def test_what_needs_every_upload_is_told_of_apart():
    (line,) = claims.beside_others(CLAIMED, "fedmlsb")
    assert line.startswith(
        "FedMLS-B takes 16 (6.8 to 55) times the exchanges of Bundle, which needs every client's upload"
    )
    assert line.endswith("over 4 pairs that both reach.")


def test_the_first_claim_of_fedmlsd_is_told_again():
    done = made_up([[5, 5, 1]] * 3 + [[5, NAN, NAN]], methods=("fedmlsd-auto", "fedavg", "admm"))
    (line,) = claims.earlier_claim(done)
    assert line.endswith("against FedAvg alone: 4 of 4 (100%); against all 2 rivals: 1 of 4 (25%).")


def test_nothing_is_said_of_no_pairs():
    methods = ("fedmlsb", "fedmlsd-auto", "fedavg", "admm")
    one = made_up([[3, 4, 5, 6], [3, 4, 5, 6], [3, 4, NAN, 6], [NAN] * 4], methods=methods, seen=("p",))
    none = made_up([[NAN] * 4] * 4, methods=methods)
    for done in (one, none):
        said = "\n".join(tables.sentences(done))
        assert "of 0" not in said
        assert "0 pairs" not in said.replace("; 0 pairs are reached", "")
    assert "none is reached at 0.0001" in "\n".join(tables.sentences(one))
    assert "No pair at 0.01, 0.001 and 0.0001 is reached by FedMLS-B or by a rival." in tables.sentences(none)
    (ranked,) = tables.ranking(none)
    assert ranked.startswith("None of the 4 pairs of problem and target is reached")


def test_nothing_is_said_of_methods_that_were_not_run():
    assert tables.sentences(made_up([[1]] * 4, methods=["bundle"])) == []
    assert not any("FedMLS-B" in line for line in tables.sentences(COUNTED))


def test_the_spread_over_seeds_is_shown():
    done = made_up([[3, 5]] * 4, methods=("fedmlsb", "fedavg"), fedavg={"least": 4.0, "most": NAN})
    assert tables.exchanges_of(done, 0.1)[1] == ["p", "**3**", "5 (4 to –)"]
    done = made_up([[3, 5]] * 4, methods=("fedmlsb", "fedavg"), fedmlsb={"least": 2.0, "most": 4.0})
    assert tables.exchanges_of(done, 0.1)[1] == ["p", "**3** (2 to 4)", "5"]


def test_a_grid_point_that_raises_an_error_does_not_stop_the_others(monkeypatch, tmp_path):
    """It reaches nothing, its error is told, and it is tried again at the next start."""
    one, settings = {"one": SMALL["one"]}, SETTINGS._replace(rounds=5, seeds=1)
    windows = METHODS["fedavg"].grid(scale(SMALL["one"].make(), SETTINGS.batch), SETTINGS.grid)
    largest = max(algorithm.eta0 for window in windows for algorithm in window)
    finish = fedmls.FedAvg.server_round

    def raising(self, k, server, up):
        if self.eta0 == largest and k == 3:
            raise RuntimeError("no more")
        return finish(self, k, server, up)

    with monkeypatch.context() as patch:
        patch.setattr(fedmls.FedAvg, "server_round", raising)
        done = compare.compare(one, tmp_path, settings, ["fedavg", "dcs"], jobs=1)
    failed = done.points[done.points["error"] != ""]
    assert set(failed["error"]) == {"RuntimeError: no more"}
    assert (len(failed), failed["exchanges"].notna().sum(), failed["parameters"].nunique()) == (4, 0, 1)
    assert len(done.points) == 2 * SETTINGS.grid * 4
    tables.write(done)
    page = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "1 runs raised an error; they count as not reached:\n\n- one, FedAvg, 1 runs: RuntimeError: no more" in page
    mended = compare.compare(one, tmp_path, settings, ["fedavg", "dcs"], jobs=1)
    assert set(mended.points["error"]) == {""}


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
        ["needs only averages:", ""],
        ["FedMLS", "3 *"],
        ["FedMLS-E", "4"],
        ["FedAvg", "1,234"],
        ["needs every client's upload:", ""],
        ["Bundle", "not run"],
    ]
    assert tables.exchanges_of(done, 0.01) == [
        ["problem", "FedMLS", "FedMLS-E", "FedAvg", "Bundle"],
        ["p", "not reached", "**4**", "**4**", "not run"],
    ]
    header, *rows = tables.all_costs_of(done, "p")
    assert len(header) == 13
    assert rows[2][:5] == ["FedAvg", "1,234", "1,234", "0.00123", "**4**"]


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
    assert "## Where a rival is better than FedMLS-B\n\n" in page
    assert "No run raised an error." in page
    assert "| Subgradient | η_k = c D0/(Ḡ√k) | all | averages |" in page
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
    own = Method("Mine", "nothing", untuned(lambda s: fedmls.FedAvg(eta0=s.step)), ours="auto")
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


@pytest.mark.processes
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


@pytest.mark.processes
def test_the_command(tmp_path):
    options = ["--rounds", "5", "--grid", "2", "--algorithms", "fedmls,fedavg,admm", "--out", "out"]
    shown = command("compare", "chain-8", "lad-none-d10-n3", *options, cwd=tmp_path)
    assert "1/2 chain-8: the worst case of the lower bound, 8 links\n" in shown.stdout
    assert shown.stdout.count("to a relative gap of") == 8
    assert "not reached" in shown.stdout
    assert "8 pairs of problem and target" in shown.stdout
    assert "  6 grid points\n" in shown.stdout
    assert shown.stderr == ""
    names = {file.name for file in (tmp_path / "out").iterdir()}
    tabled = {"points.parquet", "chosen.csv", "problems.csv", "setup.json"}
    assert names == {"runs", "report.md", "profile.png", "profile.pdf", *tabled}


@pytest.mark.processes
def test_the_list(tmp_path):
    listed = command("compare", "--list", cwd=tmp_path).stdout
    for name in (*SUITE, *METHODS):
        assert f"  {name} " in listed
