"""A comparison in tables and sentences, for the terminal and as a Markdown page (docs/benchmarks.md is one)."""

import shutil
from itertools import groupby
from pathlib import Path

import numpy as np
import pandas as pd

from fedmls.experiments import profile
from fedmls.experiments.compare import COSTS, TARGETS, Comparison, averaging, near_first, table
from fedmls.experiments.methods import METHODS
from fedmls.experiments.results import markdown
from fedmls.experiments.suite import SUITE

HEADS = {"exchanges": "exchanges", "rounds": "rounds", "passes": "passes", "bytes": "MB"}
GROUPS = {False: "only averages, mini-batches", True: "needs more than averages, or all rows"}
READING = """\
## How to read it

A pair is a problem and a target: a relative gap (f − f\\*)/f\\* to the certified optimum. All runs start at 0. Methods
on mini-batches take {batch} of a client's rows in a local step.

Each method has equally many grid points, placed around the problem's own scale D0/Ḡ (D0 = ‖x\\*‖; Ḡ is the rms length
of the clients' subgradients), which takes the solution to know: nobody can tune so well in practice. The best point is
chosen for each target on its own, by exchanges, the median over seeds; the other costs are what that point took.

Exchanges are messages to and from every client, with those that asking for the model takes. Subgradients and bytes (up
and down) are of all clients together. "not reached": not within the rounds. "not run": Bundle, in more than {most}
coordinates or with more than {clients} clients. Bold: the least of its kind, methods that need only averages and
mini-batches or the others. FedMLS-P is left out: it is for rounds with some of the clients, so that its exchanges are
others.

The figure is a performance profile (Dolan, Moré, "Benchmarking optimization software with performance profiles", Math.
Prog. 2002) of the methods that need only averages and mini-batches: the share of the pairs on which a method takes at
most τ times as much as the best one."""
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
        cells.append([f"{GROUPS[bool(METHODS[group[0]].more)]}:"] + [""] * (len(COSTS) + 1))
        columns = [_marked(at, group, cost, "{} *") for cost in COSTS]
        for i, name in enumerate(group):
            parameters = at["parameters"].get(name, "")
            cells.append([METHODS[name].title, *(column[i] for column in columns), parameters])
    return cells


def exchanges_of(done: Comparison, target: float) -> Cells:
    """Exchanges to one target: a row for each problem, a column for each method, the fewest of each group marked."""
    cells = [["problem", *(METHODS[name].title for name in done.methods)]]
    for problem in done.problems:
        at = _at(done, problem, target)
        marked = [_marked(at, group, "exchanges", BOLD) for group in _groups(done)]
        cells.append([problem, *(text for texts in marked for text in texts)])
    return cells


def all_costs_of(done: Comparison, problem: str) -> Cells:
    """One problem: all costs to all targets."""
    cells = [["method", *(f"{target:g}: {HEADS[cost]}" for target in TARGETS for cost in COSTS)]]
    for group in _groups(done):
        columns = [_marked(_at(done, problem, t), group, cost, BOLD) for t in TARGETS for cost in COSTS]
        cells += [[METHODS[name].title, *(column[i] for column in columns)] for i, name in enumerate(group)]
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
        cells.append([METHODS[name].title, *(str(count) for count in counts), at_end])
    return cells


def sentences(done: Comparison) -> list[str]:
    """What the numbers say, made from them."""
    some = averaging(done)
    if not some:
        return []
    costs = table(done)
    reached = int(np.isfinite(costs[some].min(axis=1)).sum())
    lines = [
        f"{len(costs)} pairs of problem and target, {len(costs) - reached} of them reached by no method that needs "
        f"only averages and mini-batches. On the other {reached}, first or within 10% of the first in exchanges:"
    ]
    near = {name: int(near_first(costs, [name], some).sum()) for name in some}
    for name in sorted(some, key=lambda name: -near[name]):
        lines.append(f"  {near[name]:4d} ({near[name] / max(1, reached):4.0%})  {METHODS[name].title}")
    others = [name for name in some if not METHODS[name].ours]
    for kind, how in (("grid", "tuned by grid"), ("auto", 'with lam0="auto"')):
        ours = [name for name in some if METHODS[name].ours == kind]
        if ours and others:
            pairs = int(np.isfinite(costs[ours + others].min(axis=1)).sum())
            first = int(near_first(costs, ours, others).sum())
            lines.append(
                f"Of this package, {how} ({_titles(ours)}), against {_titles(others)}, tuned by grid: one is first or "
                f"within 10% on {first} of {pairs} pairs ({first / max(1, pairs):.0%})."
            )
    return lines + [line for name in some for line in _without_a_grid(costs, name)]


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
        f"{METHODS[name].title}: {middle} times the exchanges of {METHODS[twin].title} tuned by grid for that target, "
        f"in the median over {len(both)} pairs of {problems} ({low} to {high} for the middle 80%); "
        f"{len(reached) - len(both)} pairs are reached with the grid alone."
    ]


def page(done: Comparison, cost: str = "exchanges") -> str:
    """The Markdown page."""
    parts = [
        "# Benchmarks",
        f"Made by `{_command(done, cost)}`; not edited by hand.",
        *_listed(sentences(done)),
        f"![Performance profile by {cost}](profile.png)",
        READING.format(
            batch=f"{done.settings.batch:.0%}", most=METHODS["bundle"].dimension, clients=METHODS["bundle"].clients
        ),
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


def _titles(names: list[str]) -> str:
    return "; ".join(METHODS[name].title for name in names)


def _command(done: Comparison, cost: str) -> str:
    s = done.settings
    problems = "--suite" if list(done.problems) == list(SUITE) else " ".join(done.problems)
    chosen = "" if done.methods == list(METHODS) else f" --algorithms {','.join(done.methods)}"
    options = f"--rounds {s.rounds} --seeds {s.seeds} --grid {s.grid} --batch {s.batch:g} --profile-by {cost}"
    return f"fedmls compare {problems}{chosen} {options}"


def _methods(done: Comparison) -> Cells:
    cells = [["method", "the grid", "needs more than averages and mini-batches"]]
    return cells + [[METHODS[name].title, METHODS[name].tuned, METHODS[name].more] for name in done.methods]


def _problems(done: Comparison) -> Cells:
    cells = [["problem", "what it is", "rounds at most"]]
    for name, entry in done.problems.items():
        cells.append([name, entry.about, str(min(done.settings.rounds, entry.rounds))])
    return cells


def _listed(lines: list[str]) -> list[str]:
    """Paragraphs; indented lines become a Markdown list."""
    runs = groupby(lines, key=lambda line: line.startswith(" "))
    return [
        "\n".join(f"- {line.strip()}" for line in some) if indented else "\n\n".join(some) for indented, some in runs
    ]


def _groups(done: Comparison) -> list[list[str]]:
    """The methods that need only averages and mini-batches, and the others; those that there are."""
    split = [[name for name in done.methods if bool(METHODS[name].more) == more] for more in (False, True)]
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


def _text(value: float, cost: str) -> str:
    if np.isnan(value):
        return "not reached"
    if cost == "bytes":
        return f"{value / 1e6:.3g}"
    return f"{value:,.0f}" if value >= 1000 or value == round(value) else f"{value:.1f}"
