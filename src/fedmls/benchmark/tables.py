"""A comparison in tables and sentences, for the terminal and as a Markdown page (docs/benchmarks.md is one)."""

import shutil
from itertools import groupby
from pathlib import Path

import numpy as np
import pandas as pd

from fedmls.benchmark import claims, profile
from fedmls.benchmark.compare import TARGETS, Comparison, averaging, near_first, table
from fedmls.benchmark.methods import METHODS, PASSES, method_of
from fedmls.benchmark.suite import SUITE
from fedmls.results.summary import markdown

HEADS = {"exchanges": "exchanges", "passes": "passes", "bytes": "MB"}
GROUPS = {False: "needs only averages", True: "needs every client's upload"}
READING = """\
## How to read it

A pair is a problem and a target: a relative gap (f − f\\*)/f\\* to the certified optimum. All runs start at 0. Methods
on mini-batches take {batch} of a client's rows in a local step.

Each method that is tuned has {grid} grid points, placed around the problem's own scale D0/Ḡ (D0 = ‖x\\*‖; Ḡ is the rms
length of the clients' subgradients), which takes the solution to know: nobody can tune so well in practice. Some of the
points of methods with local steps make {passes} passes over the rows in a round, as many as FedMLS-D with its five
lanes. Every point runs with seed 0; those that are best for some target run with {seeds} seeds in all. Of these the
best is chosen for each target on its own, by exchanges, the median over seeds; the other costs are what that point
took. Least and most over the seeds are in brackets where they differ ("–": not reached with one of them). What takes no
mini-batches runs once.

Exchanges are messages to and from every client, with those that asking for the model takes. Passes are rows read by all
clients together over all rows, those for objective values and first guesses included. Bytes (up and down) are of all
clients together. A number takes eight; FedMLS-B rounds its numbers, and LoCoDL and FedComLoc compress theirs. The other
rivals would take half the bytes in four a number, which most of them would not notice. "not reached": not within the
rounds (Bundle: {rounds}). "not run": Bundle, in more than {most} coordinates or with more than {clients} clients;
CoCoA+, without an l2 term. Bold: the least of its kind, methods whose server needs only averages, which are fit for
secure sums, or the others. FedMLS-P is left out: it is for rounds with some of the clients, so that its exchanges are
others.

The figure is a performance profile (Dolan, Moré, "Benchmarking optimization software with performance profiles", Math.
Prog. 2002) of the methods that need only averages: the share of the pairs on which a method takes at most τ times as
much as the best one."""
BOLD = "**{}**"
Cells = list[list[str]]


def write(done: Comparison, cost: str = "exchanges", copy: Path | None = None) -> None:
    """report.md and profile.* into the results folder; with ``copy`` the page once more there, its figure beside it."""
    shown = averaging(done) or done.methods
    profile.draw(table(done, cost)[shown], cost, done.folder / "profile")
    (done.folder / "report.md").write_text(page(done, cost), encoding="utf-8")
    if copy is not None:
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(page(done, cost), encoding="utf-8")
        shutil.copyfile(done.folder / "profile.png", copy.parent / "profile.png")


def costs_of(done: Comparison, problem: str, target: float) -> Cells:
    """One problem, one target: what each method took, the fewest of each group marked, and by which parameters."""
    at = _at(done, problem, target)
    cells = [["method", *HEADS.values(), "parameters"]]
    for group in _groups(done):
        cells.append([f"{GROUPS[bool(method_of(group[0]).more)]}:"] + [""] * (len(HEADS) + 1))
        columns = [_marked(at, group, cost, "{} *") for cost in HEADS]
        for i, name in enumerate(group):
            parameters = at["parameters"].get(name, "")
            cells.append([method_of(name).title, *(column[i] for column in columns), parameters])
    return cells


def exchanges_of(done: Comparison, target: float) -> Cells:
    """Exchanges to one target: a row for each problem, a column for each method, the fewest of each group marked."""
    cells = [["problem", *(method_of(name).title for name in done.methods)]]
    for problem in done.problems:
        at = _at(done, problem, target)
        texts: dict[str, str] = {}
        for group in _groups(done):
            marked = _marked(at, group, "exchanges", BOLD)
            texts |= {name: text + _spread(at, name) for name, text in zip(group, marked, strict=True)}
        cells.append([problem, *(texts[name] for name in done.methods)])
    return cells


def all_costs_of(done: Comparison, problem: str) -> Cells:
    """One problem: all costs to all targets."""
    cells = [["method", *(f"{target:g}: {HEADS[cost]}" for target in TARGETS for cost in HEADS)]]
    for group in _groups(done):
        columns = [_marked(_at(done, problem, t), group, cost, BOLD) for t in TARGETS for cost in HEADS]
        cells += [[method_of(name).title, *(column[i] for column in columns)] for i, name in enumerate(group)]
    return cells


def scores(done: Comparison) -> Cells:
    """On how many problems each method that needs only averages is first or within 10%, for each target and in all."""
    some = averaging(done)
    costs = table(done)
    edges = done.chosen[done.chosen["exchanges"].notna()].groupby("method")["edge"].agg(["sum", "count"])
    cells = [["method", *(f"{target:g}" for target in TARGETS), "all", "reached", "at an end of its window"]]
    for name in some:
        near = near_first(costs, [name], some)
        by_target = near.groupby("target").sum()
        reached = np.isfinite(costs[name]).sum()
        at_end = f"{edges['sum'].get(name, 0)} of {edges['count'].get(name, 0)}"
        counts = [*(by_target[target] for target in TARGETS), near.sum(), reached]
        cells.append([method_of(name).title, *(str(count) for count in counts), at_end])
    return cells


def sentences(done: Comparison) -> list[str]:
    """What the numbers say, made from them."""
    said = [
        *claims.the_rivals(done),
        *claims.against_rivals(done, claims.BEST),
        *claims.prices(done, claims.BEST),
        *claims.proofs(done),
        *claims.beside_others(done, claims.BEST),
        *claims.against_rivals(done, claims.DUAL),
        *claims.prices(done, claims.DUAL),
        *claims.earlier_claim(done),
    ]
    return said + ranking(done) + [line for name in averaging(done) for line in _without_a_grid(table(done), name)]


def ranking(done: Comparison) -> list[str]:
    """On how many pairs each method that needs only averages is first or within 10%."""
    some = averaging(done)
    if not some:
        return []
    costs = table(done)
    reached = int(np.isfinite(costs[some].min(axis=1)).sum())
    if not reached:
        return [
            f"None of the {len(costs)} pairs of problem and target is reached by a method that needs only averages."
        ]
    lines = [
        f"{len(costs)} pairs of problem and target, {len(costs) - reached} of them reached by no method that needs "
        f"only averages. On the other {reached}, first or within 10% of the first in exchanges:"
    ]
    near = {name: int(near_first(costs, [name], some).sum()) for name in some}
    for name in sorted(some, key=lambda name: -near[name]):
        lines.append(f"  {near[name]:4d} ({near[name] / reached:4.0%})  {method_of(name).title}")
    return lines


def _without_a_grid(costs: pd.DataFrame, name: str) -> list[str]:
    """How far a method that tunes itself is from the same one tuned by grid."""
    twin = name.removesuffix("-auto")
    if twin == name or twin not in costs:
        return []
    reached = costs[np.isfinite(costs[twin])]
    both = reached[np.isfinite(reached[name])]
    if both.empty:
        return []
    ratio = both[name] / both[twin]
    low, middle, high = (f"{value:.2g}" for value in ratio.quantile([0.1, 0.5, 0.9]))
    count = len(both.index.get_level_values("problem").unique())
    problems = "one problem" if count == 1 else f"{count} problems"
    return [
        f"{method_of(name).title}: {middle} times the exchanges of {method_of(twin).title} tuned by grid for that "
        f"target, in the median over {len(both)} pairs of {problems} ({low} to {high} for the middle 80%); "
        f"{len(reached) - len(both)} pairs are reached with the grid alone."
    ]


def page(done: Comparison, cost: str = "exchanges") -> str:
    """The Markdown page."""
    parts = [
        "# Benchmarks",
        f"Made by `{_command(done, cost)}`; not edited by hand.",
        *_listed(sentences(done)),
        f"![Performance profile by {cost}](profile.png)",
        *_where_beaten(done),
        "## Runs that failed",
        *_listed(claims.errors(done)),
        _reading(done),
        markdown(_methods(done)),
        markdown(_problems(done)),
        "## On how many problems each is first or within 10%",
        markdown(scores(done)),
        "## Exchanges",
    ]
    for target in TARGETS:
        parts += [f"To a relative gap of {target:g}:", markdown(exchanges_of(done, target))]
    parts.append("## All costs")
    for problem in done.problems:
        parts += [f"### {problem}", markdown(all_costs_of(done, problem))]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _where_beaten(done: Comparison) -> list[str]:
    """Return the names of the pairs on which a rival is better than FedMLS-B, and those that only one side reaches."""
    cells = claims.lost(done, claims.BEST)
    if not cells:
        return []
    title = method_of(claims.BEST).title
    none = [f"On no pair is a rival more than 10% better than {title}."]
    return [
        f"## Where a rival is better than {title}",
        *([markdown(cells)] if len(cells) > 1 else none),
        "## What only one side reaches",
        *claims.one_sided(done, claims.BEST),
    ]


def _reading(done: Comparison) -> str:
    s, bundle = done.settings, method_of("bundle")
    limits = {"most": bundle.dimension, "clients": bundle.clients, "rounds": bundle.rounds}
    return READING.format(batch=f"{s.batch:.0%}", grid=s.grid, seeds=s.seeds, passes=PASSES, **limits)


def _command(done: Comparison, cost: str) -> str:
    s = done.settings
    problems = "--suite" if list(done.problems) == list(SUITE) else " ".join(done.problems)
    chosen = "" if done.methods == list(METHODS) else f" --algorithms {','.join(done.methods)}"
    options = f"--rounds {s.rounds} --seeds {s.seeds} --grid {s.grid} --batch {s.batch:g} --profile-by {cost}"
    return f"fedmls compare {problems}{chosen} {options}"


def _methods(done: Comparison) -> Cells:
    cells = [["method", "the grid", "reads in a step", "its server needs"]]
    for name in done.methods:
        method = method_of(name)
        reads = method.reads or ("all" if method.example.traits.reads_all_rows else "a mini-batch")
        cells.append([method.title, method.tuned, reads, method.more or "averages"])
    return cells


def _problems(done: Comparison) -> Cells:
    cells = [["problem", "what it is", *("rows", "clients", "columns", "loss", "l2", "rounds at most", "looked at")]]
    facts = done.facts.set_index("problem")
    for name, entry in done.problems.items():
        rows, clients, columns, loss, l2 = facts.loc[name]
        numbers = [str(rows), str(clients), str(columns), str(loss), f"{l2:g}"]
        rounds = str(min(done.settings.rounds, entry.rounds))
        cells.append([name, entry.about, *numbers, rounds, "yes" if entry.seen else ""])
    return cells


def _listed(lines: list[str]) -> list[str]:
    """Paragraphs; indented lines become a Markdown list."""
    runs = groupby(lines, key=lambda line: line.startswith(" "))
    return [
        "\n".join(f"- {line.strip()}" for line in some) if indented else "\n\n".join(some) for indented, some in runs
    ]


def _groups(done: Comparison) -> list[list[str]]:
    """The methods that need only averages, and the others; those that there are."""
    split = [[name for name in done.methods if bool(method_of(name).more) == more] for more in (False, True)]
    return [group for group in split if group]


def _at(done: Comparison, problem: str, target: float) -> pd.DataFrame:
    chosen = done.chosen
    return chosen[(chosen["problem"] == problem) & (chosen["target"] == target)].set_index("method")


def _marked(at: pd.DataFrame, group: list[str], cost: str, mark: str) -> list[str]:
    """What each method of the group took, as text, the least marked."""
    values = at[cost].reindex(group)
    least = values.min()
    texts = {name: mark.format(_text(v, cost)) if v == least else _text(v, cost) for name, v in values.items()}
    return [texts[name] if name in at.index else "not run" for name in group]


def _spread(at: pd.DataFrame, name: str) -> str:
    """Least and most over seeds, where they differ."""
    if name not in at.index or np.isnan(at["exchanges"][name]) or at["least"][name] == at["most"][name]:
        return ""
    least, most = at["least"][name], at["most"][name]
    return f" ({least:g} to {'–' if np.isnan(most) else f'{most:g}'})"


def _text(value: float, cost: str) -> str:
    if np.isnan(value):
        return "not reached"
    if cost == "bytes":
        return f"{value / 1e6:.3g}"
    return f"{value:,.0f}" if value >= 1000 or value == round(value) else f"{value:.1f}"
