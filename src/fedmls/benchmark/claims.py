"""What a comparison says of the methods that have nothing to tune, counted from its tables, in sentences and lists.

A rival is a method of others whose server needs only averages, tuned by its grid for each target on its own. Pairs of
problem and target that only one side reaches count, for the side that does, and are told apart.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from fedmls.benchmark.compare import NEAR, TARGETS, Comparison, averaging, near_first, table
from fedmls.benchmark.methods import method_of

BEST, DUAL = "fedmlsb", "fedmlsd-auto"
CLOSE = TARGETS[1:]  # targets that claims are made for; at the first one a single exchange decides
EARLIER = ("fedavg", "fedprox", "scaffold", "scaffnew", "gradskip", "dcs")  # the rivals of the first comparison
SLACK, PLUS = 1.5, 5  # a proof is soon if it takes at most so many times the exchanges, plus so many
SOON, COLUMNS = 60, 100  # exchanges to the last target, on problems with at most so many columns
Pairs = list[tuple[str, float]]


def rivals(done: Comparison) -> list[str]:
    """Return the methods of others whose server needs only averages."""
    return [name for name in averaging(done) if not method_of(name).ours]


class Standing(NamedTuple):
    """On how many pairs a method is first or within 10%; how many it or a rival reaches; both; one of them alone."""

    near: int
    pairs: int
    both: int
    alone: int
    without: int

    def __str__(self) -> str:
        return f"{self.near} of {self.pairs} ({self.near / self.pairs:.0%})"


def standing(costs: pd.DataFrame, name: str, against: Sequence[str]) -> Standing:
    own, best = np.isfinite(costs[name]), np.isfinite(costs[list(against)].min(axis=1))
    near = near_first(costs, [name], list(against))
    sums = near, own | best, own & best, own & ~best, best & ~own
    return Standing(*(int(some.sum()) for some in sums))


def at(costs: pd.DataFrame, *targets: float) -> pd.DataFrame:
    """Return the pairs with these targets."""
    return costs[costs.index.get_level_values("target").isin(targets)]


def unseen(done: Comparison, costs: pd.DataFrame) -> pd.DataFrame:
    """Return the pairs of the problems that no method was designed on."""
    seen = [name for name, entry in done.problems.items() if entry.seen]
    return costs[~costs.index.get_level_values("problem").isin(seen)]


def the_rivals(done: Comparison) -> list[str]:
    """A sentence that names them."""
    others = rivals(done)
    if not others:
        return []
    return [
        f"Rivals are the {len(others)} methods of others whose server needs only averages, each tuned by "
        f"{done.settings.grid} grid points for each target on its own: {titles(others)}."
    ]


def against_rivals(done: Comparison, name: str) -> list[str]:
    """Sentences on how often a method is first or within 10% of the tuned rivals in exchanges."""
    others, costs = rivals(done), table(done)
    if name not in done.methods or not others:
        return []
    whole, title = standing(at(costs, *CLOSE), name, others), _title(name)
    if not whole.pairs:
        return [f"No pair at {_listed(CLOSE)} is reached by {title} or by a rival."]
    ours = [own for own in averaging(done) if method_of(own).ours == "grid"]
    seen = [problem for problem, entry in done.problems.items() if entry.seen]
    lines = [
        f"{title}, with nothing tuned, is first or within 10% of the best tuned rival in exchanges on {whole} pairs at "
        f"{_listed(CLOSE)}. Both sides reach {whole.both} of these pairs, {title} alone {whole.alone}, a rival alone "
        f"{whole.without}. By target: {_by_target(costs, name, others)}."
    ]
    rest = unseen(done, costs)
    if seen and standing(at(rest, *CLOSE), name, others).pairs:
        lines.append(
            f"{title} without the {len(seen)} problems that were looked at while FedMLS-B was designed: "
            f"{standing(at(rest, *CLOSE), name, others)}. By target: {_by_target(rest, name, others)}."
        )
    if ours:
        more = standing(at(costs, *CLOSE), name, [*others, *ours])
        lines.append(f"{title} with {titles(ours)}, tuned by grid, among the rivals too: {more}.")
    return lines


def _by_target(costs: pd.DataFrame, name: str, others: list[str]) -> str:
    found = {target: standing(at(costs, target), name, others) for target in TARGETS}
    return ", ".join(f"{one if one.pairs else 'none is reached'} at {target:g}" for target, one in found.items())


def earlier_claim(done: Comparison) -> list[str]:
    """FedMLS-D as it was judged first: all targets, against the rivals of then."""
    some = [name for name in EARLIER if name in done.methods]
    if DUAL not in done.methods or not some:
        return []
    costs = table(done)
    if not standing(costs, DUAL, some).pairs:
        return []
    return [
        f"{_title(DUAL)}, as it was judged first, at all four targets against {titles(some)} alone: "
        f"{standing(costs, DUAL, some)}; against all {len(rivals(done))} rivals: {standing(costs, DUAL, rivals(done))}."
    ]


def prices(done: Comparison, name: str) -> list[str]:
    """Sentences on bytes and passes of a method against the rivals', where both reach a pair at the closer targets."""
    others = rivals(done)
    if name not in done.methods or not others:
        return []
    costs = at(table(done), *CLOSE)
    first = costs[others].min(axis=1)
    both = np.isfinite(costs[name]) & np.isfinite(first)
    lines = []
    for cost in ("bytes", "passes"):
        own, least = at(table(done, cost), *CLOSE), at(least_of_grid(done, cost), *CLOSE)
        firsts = own[others].where(costs[others].eq(first, axis=0)).min(axis=1)
        cheapest, fastest = own[name][both] / least[others].min(axis=1)[both], (own[name] / firsts)[both]
        if both.any():
            lines.append(
                f"{_title(name)} takes {_spread(cheapest)} times the {cost} of the rival that is cheapest in "
                f"{cost} (each at its cheapest grid point), and {_spread(fastest)} times those of the rival that is "
                f"first in exchanges: medians over {int(both.sum())} pairs that both reach, the middle 80% in brackets."
            )
    return lines


def beside_others(done: Comparison, name: str) -> list[str]:
    """Sentences on the exchanges of a method against those that need more than averages."""
    costs, lines = at(table(done), *CLOSE), list[str]()
    for other in (one for one in done.methods if method_of(one).more and name in done.methods):
        both = costs[np.isfinite(costs[name]) & np.isfinite(costs[other])]
        if len(both):
            lines.append(
                f"{_title(name)} takes {_spread(both[name] / both[other])} times the exchanges of {_title(other)}, "
                f"which needs {method_of(other).more} and is tuned, in the median over {len(both)} pairs that both "
                "reach."
            )
    return lines


def least_of_grid(done: Comparison, cost: str) -> pd.DataFrame:
    """Return the least cost of any grid point with seed 0: each pair in a row, each method in a column."""
    first = done.points[done.points["seed"] == 0]
    wide = first.pivot_table(index=["problem", "target"], columns="method", values=cost, aggfunc="min", dropna=False)
    like = table(done, cost)
    return wide.reindex(index=like.index, columns=like.columns).fillna(np.inf)


def proofs(done: Comparison) -> list[str]:
    """Sentences on how soon FedMLS-B proves what it has reached, and how many problems it solves in few exchanges."""
    if BEST not in done.methods:
        return []
    found = done.chosen[(done.chosen["method"] == BEST) & done.chosen["exchanges"].notna()]
    soon = found["certified"] <= SLACK * found["exchanges"] + PLUS
    late = [(str(row.problem), float(row.target)) for row in found[~soon].itertuples()]
    narrow = done.facts.loc[done.facts["columns"] <= COLUMNS, "problem"]
    last = found[(found["target"] == TARGETS[-1]) & found["problem"].isin(narrow)]
    quick = last.loc[last["exchanges"] <= SOON, "problem"]
    slow = [problem for problem in narrow if problem not in {*quick}]
    title = _title(BEST)
    said = [
        f"{title} has proved a relative gap within {SLACK:g} times the exchanges of the true one, plus {PLUS}, on "
        f"{int(soon.sum())} of {len(found)} pairs" + (f"; not on {_pairs(late)}." if late else "."),
        f"{title} is at {TARGETS[-1]:g} within {SOON} exchanges on {len(quick)} of {len(narrow)} problems with at most "
        f"{COLUMNS} columns" + (f"; not on {_listed(slow)}." if slow else "."),
    ]
    return [sentence for sentence, counted in zip(said, (found, narrow), strict=True) if len(counted)]


def lost(done: Comparison, name: str) -> list[list[str]]:
    """Return the cells of a table: the pairs on which a rival is better by more than 10%, and the best rival there."""
    others, costs = rivals(done), table(done)
    if name not in done.methods or not others:
        return []
    best = costs[others].min(axis=1)
    worse = costs[np.isfinite(best) & ~(costs[name] <= NEAR * costs[[name, *others]].min(axis=1))]
    cells = [["problem", "target", method_of(name).title, "the best rival", "its exchanges"]]
    for (problem, target), row in worse.iterrows():
        first = [other for other in others if row[other] == row[others].min()]
        cells.append([problem, f"{target:g}", _count(row[name]), titles(first), _count(row[others].min())])
    return cells


def one_sided(done: Comparison, name: str) -> list[str]:
    """Sentences that name the pairs that only one side reaches, or neither."""
    others, costs = rivals(done), table(done)
    if name not in done.methods or not others:
        return []
    own, best = np.isfinite(costs[name]), np.isfinite(costs[others].min(axis=1))
    kinds = {f"{_title(name)} alone": own & ~best, "a rival alone": best & ~own, "neither": ~own & ~best}
    return [f"Reached by {who}: {_pairs(list(costs.index[some])) or 'none'}." for who, some in kinds.items()]


def errors(done: Comparison) -> list[str]:
    """Sentences on the runs that raised an error."""
    failed = done.points[done.points["error"] != ""].drop_duplicates(["problem", "parameters", "seed"])
    if failed.empty:
        return ["No run raised an error."]
    lines = [f"{len(failed)} runs raised an error; they count as not reached:"]
    for (problem, method, error), some in failed.groupby(["problem", "method", "error"], sort=False):
        lines.append(f"  {problem}, {method_of(method).title}, {len(some)} runs: {error}")
    return lines


def _title(name: str) -> str:
    """Return a method's title without a comma, for a sentence."""
    return method_of(name).title.replace(",", "")


def titles(names: Sequence[str]) -> str:
    return ", ".join(method_of(name).title for name in names)


def _listed(values: Sequence[str | float]) -> str:
    texts = [value if isinstance(value, str) else f"{value:g}" for value in values]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _pairs(pairs: Pairs) -> str:
    """Return the pairs as text: each problem with its targets."""
    by_problem: dict[str, list[str]] = {}
    for problem, target in pairs:
        by_problem.setdefault(problem, []).append(f"{target:g}")
    return "; ".join(f"{problem} ({', '.join(targets)})" for problem, targets in by_problem.items())


def _spread(ratio: "pd.Series[float]") -> str:
    low, middle, high = (f"{value:.2g}" for value in ratio.quantile([0.1, 0.5, 0.9]))
    return f"{middle} ({low} to {high})"


def _count(value: float) -> str:
    return f"{value:g}" if np.isfinite(value) else "not reached"
