"""What a node answers after the last round: sums over the rows that it holds out, of which the scores of the model are
made.
"""

from typing import Any

import numpy as np

from fedmls.federation.errors import Refused
from fedmls.federation.job import Job
from fedmls.federation.messages import Begin, Forgotten, Masked, Message, Score, Scored, encode
from fedmls.federation.node.held_out import DividedRows
from fedmls.federation.node.masks import hidden
from fedmls.federation.node.rounds import unknown_run
from fedmls.federation.node.rows import label_texts, prepared
from fedmls.federation.node.site import Site
from fedmls.federation.node.state import LOST
from fedmls.federation.scores import class_sums, number_sums
from fedmls.federation.uploads import check_array
from fedmls.types import Array


def answer_score(site: Site, asked: Message[Score]) -> bytes:
    """Return sums over the held-out rows, under masks if sums are secure; keep before that it was asked for them."""
    found = site.state.load(asked.run)
    if found is None or found.kept.begin is None:
        return encode(asked.reply(Forgotten(unknown_run(site, asked.run))))
    begin = found.kept.begin
    job = site.job(begin.job)
    site.limits.check_scores(job)
    if found.kept.data != site.data():
        raise Refused(f"its data have changed since the run began; {LOST}")
    site.problem(asked.run, begin, found.kept.problem)  # that the rows which train are still the same
    x = check_array("x", asked.body.x, (len(begin.start),))
    state = found.asked(asked, {"scores": asked.body}, {})
    if state != found:
        site.state.save(state)
    told = _sums(site.divided(job), begin, job, x, site.config.min_rows)
    if not job.secure:
        return encode(asked.reply(Scored(told)), compact=True)
    words = hidden(site.config, asked, begin, told, list(range(begin.n)), asked.body)
    return encode(asked.reply(Masked([], words, None)))


def _sums(parts: DividedRows, begin: Begin, job: Job, x: Array, least: int) -> Array:
    """Return the sums over the held-out rows.  least: of at least how many rows the server may see a bin by itself."""
    rows, p = parts.held_out, len(begin.columns)
    X = prepared(rows, begin.columns, begin.means, begin.scales, begin.levels)
    with np.errstate(over="ignore", invalid="ignore"):
        predictions = X @ x[:p] + (x[p] if job.intercept else 0.0)
    if begin.classes is None:
        return number_sums(predictions, np.asarray(rows.y, dtype=float))
    return class_sums(predictions, _signs(rows.y, begin.classes), None if job.secure else least)


def _signs(y: Any, classes: list[str]) -> Array:
    labels = np.array(label_texts(y), dtype=str)
    if not np.isin(labels, classes).all():
        raise Refused("its held-out rows have a label that the other rows of the run have not")
    return np.where(labels == classes[1], 1.0, -1.0)
