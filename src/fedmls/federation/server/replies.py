"""Checks of every reply before it is used: size, header, fields, shapes, finite numbers, norms.

A reply that fails one is a :class:`fedmls.federation.codec.MessageError`; a node that says itself why it does not
answer is a :class:`NodeRefused`. Nothing of either is used, and nothing else is raised, whatever the reply is.
"""

import math
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np

from fedmls.datasets.categories import MOST_LEVELS
from fedmls.federation.codec import MEBIBYTE, MessageError, printable
from fedmls.federation.job import Job
from fedmls.federation.messages import (
    KINDS,
    Begun,
    Body,
    Done,
    Forgotten,
    Masked,
    Message,
    Refusal,
    Round,
    Scored,
    Surveyed,
    Value,
    decode,
    texts,
)
from fedmls.federation.uploads import OVERHEAD, Shapes, check_array, check_same, check_upload
from fedmls.types import Array

SURVEY_LIMIT = 64 * MEBIBYTE  # columns and their sums, of which nobody knows yet how many there are
LARGEST = 1e140  # of a column sum: squares of such numbers can still be added up

F = TypeVar("F")
R = TypeVar("R", Begun, Done, Masked, Scored, Surveyed)
W = TypeVar("W")


class NodeRefused(ValueError):
    """A node says that it does not answer, and why."""


class NodeForgot(NodeRefused):
    """A node says that it knows nothing of the run."""


def opened(data: bytes, asked: Message[Body], kind: type[R], limit: int, packed: bool = False) -> R:
    """Return the body of the reply of this kind to what was asked.

    packed: its arrays may take ``limit`` bytes; otherwise no more than the reply itself, which holds them as they are.
    """
    reply = decode(data, limit, limit if packed else len(data))
    if isinstance(reply.body, Refusal | Forgotten):
        why = reply.body.why
        raise (NodeRefused if isinstance(reply.body, Refusal) else NodeForgot)(
            printable(why) if why is not None and why.isprintable() else "it refuses and does not say why"
        )
    if reply.run != asked.run:
        raise MessageError(f"a reply for the run {reply.run}, not {asked.run}")
    if (reply.exchange, reply.round) != (asked.exchange, asked.round):
        raise MessageError(
            f"a reply for exchange {reply.exchange} and round {reply.round}, "
            f"not for exchange {asked.exchange} and round {asked.round}"
        )
    if not isinstance(reply.body, kind):
        raise MessageError(f"a reply of the kind {reply.kind!r}, not {KINDS[kind]!r}")
    return reply.body


def surveyed(data: bytes, asked: Message[Body], job: Job) -> Surveyed:
    """Return what a node tells before round 1, if it is what the job needs."""
    body = opened(data, asked, Surveyed, SURVEY_LIMIT)
    rows, columns = body.rows, body.columns
    if rows > job.max_rows:
        raise MessageError(f"rows is {rows}; at most {job.max_rows} are allowed (max_rows)")
    if not columns or len(set(columns)) != len(columns):
        raise MessageError("its columns are none, or two have one name")
    if job.get_loss().is_classification:
        classes = texts("classes", body.classes)
        if len(set(classes)) not in (1, 2):
            raise MessageError(f"classes has {len(set(classes))} labels")
    if not job.secure:
        _check_column_sums(body, job)
    elif body.key is None or len(body.key) != 32:
        raise MessageError("key is no public key")
    _check_levels(body, job)
    return body


def _check_column_sums(body: Surveyed, job: Job) -> None:
    shape = (len(body.columns),)
    if job.impute or job.standardise:
        counts = check_array("counts", body.counts, shape, dtype="int64")
        if not ((counts >= 0) & (counts <= body.rows)).all():
            raise MessageError(f"counts holds numbers outside of 0..{body.rows}")
        _no_larger("sums", check_array("sums", body.sums, shape), body.columns, LARGEST)
    if job.standardise:
        squares = check_array("squares", body.squares, shape)
        if (squares < 0).any():
            raise MessageError("squares holds negative numbers")
        _no_larger("squares", squares, body.columns, LARGEST**2)


def _check_levels(body: Surveyed, job: Job) -> None:
    """Refuse levels that are not of the columns, or whose numbers of rows cannot be."""
    if (body.levels is None) != (job.categorical is None):
        raise MessageError("levels that were not asked for" if job.categorical is None else "levels is missing")
    counted = body.levels is not None and not job.secure and (job.impute or job.standardise)
    if (body.level_counts is not None) != counted:
        raise MessageError("level_counts is missing" if counted else "level_counts that were not asked for")
    for column, levels in (body.levels or {}).items():
        if column not in body.columns:
            raise MessageError(f"levels of a column {column!r:.60} that it does not have")
        if len({*levels}) != len(levels) or len(levels) > MOST_LEVELS:
            raise MessageError(f"levels of column {column!r:.60} are more than {MOST_LEVELS}, or two are the same")
    if body.level_counts is None or body.levels is None:
        return
    if {*body.level_counts} != {*body.levels}:
        raise MessageError("level_counts is not of the columns that have levels")
    for column, counts in body.level_counts.items():
        if len(counts) != len(body.levels[column]) or sum(counts) > body.counts[body.columns.index(column)]:
            raise MessageError(f"level_counts of column {column!r:.60} are not of its levels, or of too many rows")


def begun(data: bytes, asked: Message[Body]) -> float:
    """Return G_i, which may be infinite."""
    return opened(data, asked, Begun, OVERHEAD).lipschitz


def done(data: bytes, asked: Message[Round], shapes: Shapes) -> Done:
    """Return what a client sends for the rounds and points it was asked for, and nothing else."""
    tasks, points = asked.body.rounds, asked.body.points
    body = opened(data, asked, Done, shapes.limit(tasks, len(points)), shapes.packed)
    uploads = [check_upload(found, task, shapes) for found, task in _each("rounds", body.rounds, tasks)]
    values: list[Value] = []
    for found, point in _each("values", body.values, points):
        check_same("a value for round", found.k, point.k)
        check_same("a value for candidate", found.candidate, point.candidate)
        values.append(found)
    return Done(uploads, values)


def masked(data: bytes, asked: Message[Round], shapes: Shapes) -> Masked:
    """Return the same, if sums are secure."""
    tasks, points = asked.body.rounds, asked.body.points
    body = opened(data, asked, Masked, shapes.limit(tasks, len(points), width=16))
    for found, task in _each("rounds", body.rounds, tasks):
        check_same("an upload for round", found.k, task.k)
    size = sum(math.prod(shape) for _, shape in shapes.parts(tasks))
    _check_masked("uploads", body.uploads, size if tasks else None)
    _check_masked("values", body.values, len(points) or None)
    return body


def scored(data: bytes, asked: Message[Body], size: int) -> Array:
    """Return sums over held-out rows, so many of them."""
    body = opened(data, asked, Scored, OVERHEAD + 8 * size, packed=True)
    return np.asarray(check_array("sums", body.sums, (size,)))


def masked_sums(data: bytes, asked: Message[Body], size: int) -> Any:
    """Return column sums, or sums over held-out rows, if they are secure."""
    body = opened(data, asked, Masked, OVERHEAD + 16 * (size + 1))
    _each("rounds", body.rounds, list[None]())
    _check_masked("values", body.values, None)
    _check_masked("uploads", body.uploads, size)
    return body.uploads


def _check_masked(name: str, value: Any, size: int | None) -> None:
    """Refuse what is not so many masked numbers and their mark; size None: what is there at all."""
    if size is not None:
        check_array(name, value, (2, size + 1), dtype="int64")
    elif value is not None:
        raise MessageError(f"{name} that were not asked for")


def _each(name: str, found: list[F], wanted: list[W]) -> Iterator[tuple[F, W]]:
    if len(found) != len(wanted):
        raise MessageError(f"{name} has not {len(wanted)} entries")
    return zip(found, wanted, strict=True)


def _no_larger(name: str, values: Array, columns: list[str], largest: float) -> None:
    """Column sums that could be added up to infinity would be found out by honest nodes, and the sender by nobody."""
    if not (np.abs(values) <= largest).all():
        column = columns[int(np.argmax(np.abs(values)))]
        raise MessageError(
            f"{name} is {np.abs(values).max():.3g} in column {column!r:.60}; at most {largest:g} is allowed"
        )
