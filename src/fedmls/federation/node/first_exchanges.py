"""What a node answers before round 1: to the survey, to the question for column sums, and when the run begins."""

import math
from typing import Any

import numpy as np

from fedmls.checks import is_sparse
from fedmls.federation import secure_sums
from fedmls.federation.columns import squares_around
from fedmls.federation.errors import Refused
from fedmls.federation.job import Job
from fedmls.federation.messages import Begin, Begun, Masked, Message, Sums, Survey, Surveyed, as_map, encode
from fedmls.federation.node.masks import hidden, keys_of, own_key
from fedmls.federation.node.rounds import client_state, local_of
from fedmls.federation.node.rows import (
    SiteRows,
    check_numbers,
    column_sums,
    encoded,
    label_texts,
    sorted_classes,
    told_levels,
)
from fedmls.federation.node.site import Site
from fedmls.federation.node.state import LOST, RunState


def answer_survey(site: Site, asked: Message[Survey]) -> bytes:
    body = surveyed(site, site.job(asked.body.job))
    _keep_terms(site, asked, {})
    return encode(asked.reply(body))


def surveyed(site: Site, job: Job) -> Surveyed:
    """Return what is safe to share: how many rows, which columns, which labels, and column sums if they are needed."""
    site.job(job.to_dict())  # that it has the algorithm
    site.limits.check_job(job)
    parts, classes = site.divided(job), None
    rows = parts.training
    if job.get_loss().is_classification:
        classes = sorted_classes(sorted({*label_texts(rows.y), *label_texts(parts.held_out.y)}))
        if len(classes) > 2:
            raise Refused(f"its label column has {len(classes)} values, and the {job.loss} loss takes two")
    else:
        check_numbers(rows.y)
        check_numbers(parts.held_out.y)
    counts = sums = squares = None
    if job.impute or job.standardise:
        counts, sums, squares = column_sums(rows, site.config.min_rows)
    elif any(np.isnan(part.X.data if is_sparse(part.X) else part.X).any() for part in parts):
        raise Refused("its rows have missing values; fill them in, or set impute")
    told = _levels(rows, site.config.min_rows, job)
    if job.secure:  # they are told later, masked
        counts = sums = squares = None
    return Surveyed(
        rows=rows.X.shape[0],
        columns=list(rows.columns),
        classes=classes,
        counts=counts,
        sums=sums,
        squares=squares if job.standardise else None,
        reports_objective=site.config.report_objective,
        key=secure_sums.public_key(own_key(site.config)) if job.secure else None,
        label=rows.label,
        levels=None if told is None else {name: list(levels) for name, levels in told.items()},
        level_counts=None
        if told is None or counts is None
        else {name: list(levels.values()) for name, levels in told.items()},
    )


def _levels(rows: SiteRows, least: int, job: Job) -> dict[str, dict[str, int]] | None:
    """Return the levels of the columns of text, with the numbers of their rows; None if the job takes no text."""
    if job.categorical is not None:
        return {} if is_sparse(rows.X) else told_levels(rows, least)
    if rows.levels:
        raise Refused(
            f'its column {next(iter(rows.levels))!r} holds no numbers; set categorical = "onehot" in the job '
            "(--categorical onehot), or name the column in ignore"
        )
    return None


def answer_sums(site: Site, asked: Message[Sums]) -> bytes:
    """Return column sums, masked: of values and how many they are; with means, of squares and whether there are any."""
    body, job = asked.body, site.job(asked.body.job)
    site.limits.check_job(job)
    if not (job.secure and (job.impute or job.standardise)):
        raise Refused("it is asked for column sums that the job has no need of")
    rows, least = site.divided(job).training, site.config.min_rows
    counts, sums, squares = column_sums(encoded(rows, body.columns, body.levels, least), least)
    told = np.concatenate([counts, sums])
    if body.means is not None:
        around = squares_around(body.means, counts, sums, squares)
        told = np.concatenate([around, around > 0])
    words = hidden(site.config, asked, body, told, list(range(len(body.keys))))
    _keep_terms(site, asked, {"sums" if body.means is None else "squares": body.means})
    return encode(asked.reply(Masked([], words, None)))


def answer_begin(site: Site, asked: Message[Begin]) -> bytes:
    """Begin the run: keep the state of a client before round 1, and return G_i."""
    body, job, problem = asked.body, site.job(asked.body.job), site.problem(asked.run, asked.body)
    state = _keep_terms(site, asked, {"begin": body})
    G = math.inf if job.secure or job.privacy is not None else float(problem.lipschitz()[0])
    reply = encode(asked.reply(Begun(G)))
    if state.kept.begin is not None:
        return reply
    site.limits.check_job(job, begins=asked.run)
    if job.secure and len(keys_of(site.config, body)[1]) != body.n:
        raise Refused(f"it is told {len(body.keys or ())} keys of {body.n} nodes")
    _, client = job.algorithm.init(body.start, body.n)
    fresh = client_state(client, local_of(body, job, problem))
    kept = state.kept._replace(
        begin=body, problem=problem.fingerprint, before=fresh, after=fresh, after_exchange=asked.exchange
    )
    site.state.save(state._replace(kept=kept))
    return reply


def _keep_terms(site: Site, asked: Message[Survey | Sums | Begin], more: dict[str, Any]) -> RunState:
    """Keep that the node was asked before round 1, and refuse what differs from what it was asked before."""
    body, data = asked.body, site.data()
    found = site.state.load(asked.run) or RunState.new(asked.run, data)
    if found.kept.data != data:
        raise Refused(f"its data have changed since the run began; {LOST}")
    terms: dict[str, Any] = {"job": body.job}
    if not isinstance(body, Survey):
        terms |= {"keys": body.keys, "client": body.client, "columns": body.columns}
        terms |= {} if body.levels is None else {"levels": body.levels}
    state = found.asked(asked, {asked.kind: as_map(body)}, terms | more)
    if not isinstance(body, Begin) and state != found:
        site.state.save(state)
    return state
