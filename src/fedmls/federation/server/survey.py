"""What the server makes of the exchange before round 1: who is client number i, and the columns, labels, means and
scales that all have in common. A node that does not fit is refused by name, with the difference.
"""

import re
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from fedmls.datasets.categories import MOST_LEVELS, Column, columns_of, features_of
from fedmls.datasets.files import sorted_classes
from fedmls.federation.columns import column_means, column_scales, squares_around
from fedmls.federation.job import Job
from fedmls.federation.messages import Surveyed
from fedmls.problem import check_weights
from fedmls.types import Array


class SurveyedProblem(NamedTuple):
    """The problem as the server knows it: all but the rows. It stands in for a Problem where rows are not needed."""

    nodes: list[str]
    rows: Any  # of each node
    weights: Array
    columns: list[str]
    classes: list[str] | None
    means: Array
    scales: Array | None
    l2: float
    l1: float
    intercept: bool
    reports_objective: bool
    keys: list[bytes] | None  # of each node, if sums are secure
    levels: dict[str, list[str]] | None = None  # of columns of categories, each of which has its own column here
    label: str | None = None  # the name of the label column, if all nodes call it so

    @property
    def n(self) -> int:
        return len(self.nodes)

    @property
    def penalised(self) -> int:
        return len(self.columns)

    @property
    def dimension(self) -> int:
        return len(self.columns) + self.intercept


def natural(name: str) -> list[Any]:
    """Return a key for sorting: site-2 before site-10."""
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name)]


def agree(job: Job, replies: dict[str, Surveyed]) -> SurveyedProblem:
    """Return what these nodes agree on; raise a ValueError that names the node that does not fit."""
    nodes = sorted(replies, key=natural)
    found = [replies[node] for node in nodes]
    table = _agreed_columns(nodes, found)
    levels = None if job.categorical is None else _agreed_levels(nodes, found, table)
    columns = features_of(table, levels or {})
    if not columns:
        raise ValueError(f"the columns {_some(table)} have one value each; there is nothing to learn from")
    classes = _agreed_classes(nodes, found) if job.get_loss().is_classification else None
    means, scales = _means_and_scales(job, columns, levels, found)
    rows = np.array([one.rows for one in found])
    silent = [node for node, one in zip(nodes, found, strict=True) if not one.reports_objective]
    _check_objective(job, silent, len(columns) + job.intercept, len(nodes))
    return SurveyedProblem(
        nodes,
        rows,
        _weights(job, nodes, rows),
        columns,
        classes,
        means,
        scales,
        job.l2,
        job.l1,
        job.intercept,
        job.report_objective and not silent,
        [one.key for one in found if one.key is not None] if job.secure else None,
        levels,
        found[0].label if len({one.label for one in found}) == 1 else None,
    )


def _agreed_columns(nodes: list[str], found: list[Surveyed]) -> list[str]:
    """Return the columns that most nodes have, in the order of the first of them."""
    sets = [frozenset(one.columns) for one in found]
    common = Counter(sets).most_common(1)[0][0]
    wrong = []
    for node, own in zip(nodes, sets, strict=True):
        lacks, more = sorted(common - own), sorted(own - common)
        if lacks or more:
            parts = [f"lacks {_some(lacks)}"] * bool(lacks) + [f"has {_some(more)}"] * bool(more)
            wrong.append(f"node {node} {' and '.join(parts)}")
    if wrong:
        raise _differ("columns", wrong, common)
    return list(found[sets.index(common)].columns)


def _agreed_levels(nodes: list[str], found: list[Surveyed], table: list[str]) -> dict[str, list[str]]:
    """Return the levels of each column of categories, all that any node tells."""
    agreed = {}
    for name in table:
        own = [(one.levels or {}).get(name) for one in found]  # None: numbers; empty: no value, or none that is told
        levels = sorted({level for known in own for level in known or ()})
        if levels and None in own:
            text = next(node for node, known in zip(nodes, own, strict=True) if known)
            raise ValueError(
                f"column {name!r} holds numbers at node {nodes[own.index(None)]} and text at node {text}; make them "
                "alike, or name it in ignore"
            )
        if not levels and None not in own:
            raise ValueError(
                f"no node tells a value in column {name!r}: at none do min_rows of the rows have the same one, if they "
                "have any, as where each row has its own; leave it out with ignore"
            )
        if len(levels) > MOST_LEVELS:
            raise ValueError(
                f"column {name!r} has {len(levels)} different values over all nodes, and a 0/1 column for each is too "
                f"many (more than {MOST_LEVELS}); leave it out with ignore"
            )
        if levels:
            agreed[name] = levels
    return agreed


def _agreed_classes(nodes: list[str], found: list[Surveyed]) -> list[str]:
    """Return the two labels; a node may have one of them only."""
    own = [frozenset(one.classes or ()) for one in found]
    both = Counter(frozenset(one.classes) for one in found if one.classes and len(one.classes) == 2).most_common(1)
    common = both[0][0] if both else frozenset[str]().union(*own)
    wrong = [
        f"node {node} has {_some(sorted(labels - common))}"
        for node, labels in zip(nodes, own, strict=True)
        if not labels <= common
    ]
    if wrong:
        raise _differ("labels", wrong, common)
    if len(common) != 2:
        raise ValueError(f"the nodes' labels are {_some(sorted(common))}; the loss takes two")
    return sorted_classes(sorted(common))


def _means_and_scales(
    job: Job, columns: list[str], levels: dict[str, list[str]] | None, found: list[Surveyed]
) -> tuple[Array, Array | None]:
    """Return the columns' means and scales over the rows of all nodes, from their sums."""
    if job.secure or not (job.impute or job.standardise):  # secure: the sums come later
        return np.zeros(len(columns)), None
    table = columns_of(columns, levels)
    counts, sums, squares = (np.array(each) for each in zip(*(_feature_sums(one, table) for one in found), strict=True))
    total = counts.sum(axis=0)
    means = column_means(columns, total, sums.sum(axis=0))
    if not job.standardise:
        return means, None
    return means, column_scales(total, squares_around(means, counts, sums, squares).sum(axis=0))


def _feature_sums(one: Surveyed, table: list[Column]) -> tuple[Any, Any, Any]:
    """Return a node's counts, sums and squared distances to its means, with a place for each level.

    A level that the node does not tell counts as if none of its rows had it.
    """
    assert one.sums is not None
    places = [one.columns.index(column.name) for column in table for _ in column.features]
    counts, sums = one.counts[places], one.sums[places]
    squares = np.zeros(len(places)) if one.squares is None else one.squares[places]
    names = [(column.name, level) for column in table for level in (column.shown or (None,))]
    for i, (name, level) in enumerate(names):
        if level is not None:
            known = dict(zip((one.levels or {})[name], (one.level_counts or {})[name], strict=True))
            sums[i] = known.get(level, 0)
            squares[i] = sums[i] - sums[i] ** 2 / max(counts[i], 1)  # of so many ones among zeros
    return counts, sums, squares


def _weights(job: Job, nodes: list[str], rows: Any) -> Array:
    if not isinstance(job.weights, dict):
        return check_weights(None if job.weights == "equal" else job.weights, rows)
    if sorted(job.weights) != sorted(nodes):
        raise ValueError(f"weights names {_some(sorted(job.weights))}, but the nodes are {_some(nodes)}")
    return check_weights([job.weights[node] for node in nodes], rows)


def _check_objective(job: Job, silent: list[str], dimension: int, n: int) -> None:
    """Refuse a job that needs the objective, if a node or the job does not tell it."""
    server, _ = job.algorithm.init(np.zeros(dimension), n)
    best = isinstance(job.algorithm.model(server), tuple)  # of several candidates
    if (silent or not job.report_objective) and (best or job.until is not None):
        why = f"node {silent[0]} does not tell it (report_objective)" if silent else "report_objective is false"
        raise ValueError(f"{'output = best' if best else 'until'} needs the objective, but {why}")


def _differ(what: str, wrong: list[str], common: frozenset[str]) -> ValueError:
    return ValueError(f"the nodes have different {what}: {'; '.join(wrong)}; the others have {_some(sorted(common))}")


def _some(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:5])
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")
