"""The exchanges before round 1, which every node must answer.

survey   every node tells how many rows it has, its columns and labels, and column sums if they are needed
sums     if sums are secure: column sums, once for means and once more for scales
begin    every node is told its number, its weight and the common columns, and tells G_i
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from fedmls.federation import replies, secure
from fedmls.federation.job import Job
from fedmls.federation.messages import Message
from fedmls.federation.post import Post
from fedmls.federation.survey import Survey, agree, column_means, column_scales
from fedmls.record import Counters
from fedmls.types import Array

UNTOLD = ("nodes", "weights", "start")  # of the job: what concerns other nodes, and the server's files


class Opening:
    """Asks, and counts in ``spent``; tells ``event`` of each exchange."""

    def __init__(self, run: str, job: Job, post: Post, event: Callable[[str, Counters], None]) -> None:
        self.run, self.job, self.post, self.event, self.spent = run, job, post, event, Counters()
        self.told = {key: value for key, value in job.to_dict().items() if key not in UNTOLD}

    def survey(self, nodes: Sequence[str]) -> Survey:
        found = self._everyone(
            "survey",
            {node: {"job": self.told} for node in nodes},
            lambda data, asked: replies.surveyed(data, asked, self.job),
        )
        survey = agree(self.job, found)
        if not self.job.secure:
            return survey
        secure.check_enough(survey.n)
        return self._with_sums(survey) if self.job.impute or self.job.standardise else survey

    def _with_sums(self, survey: Survey) -> Survey:
        """The survey with the means and scales that secure sums give."""
        counts, sums = self._sums(survey, None)
        if not ((counts >= 0) & (counts <= sum(survey.rows)) & (np.abs(sums) <= replies.LARGEST)).all():
            raise ValueError(
                f"the column sums are rejected, and nobody can tell by which node: they are of {counts.min():g} to "
                f"{counts.max():g} values, and the nodes have {sum(survey.rows)} rows"
            )
        means = column_means(survey.columns, counts, sums)
        if not self.job.standardise:
            return survey._replace(means=means)
        squares, varied = self._sums(survey, means)
        if (squares < 0).any():
            raise ValueError(
                "the squares of the columns are rejected, and nobody can tell by which node: some are negative"
            )
        lost = (varied > 0) & (squares < survey.n * secure.COARSE)
        if lost.any():
            raise ValueError(
                f"the squares in column {survey.columns[int(np.argmax(lost))]!r} are too small for secure sums, which "
                "go in steps of 2^-64; give the column in a smaller unit"
            )
        return survey._replace(means=means, scales=column_scales(counts, squares))

    def _sums(self, survey: Survey, means: Array | None) -> Any:
        """Two sums for each column."""
        common = {"job": self.told, "keys": survey.keys, "columns": survey.columns, "means": means}
        size = 2 * len(survey.columns)
        found = self._everyone(
            "sums",
            {node: {**common, "client": i} for i, node in enumerate(survey.nodes)},
            lambda data, asked: replies.masked_sums(data, asked, size),
        )
        return np.split(secure.total(found.values()), 2)

    def begin(self, survey: Survey, x0: Array) -> Array:
        """G_i of each client."""
        begun = self._everyone("begin", self._begins(survey, x0, range(survey.n)), replies.begun)
        return np.array([begun[node] for node in survey.nodes])

    def begin_again(self, survey: Survey, x0: Array, client: int, exchange: int) -> float:
        """Tell a client that has forgotten the run how it began, as if that had been in this exchange; return G_i."""
        self.spent = self.spent._replace(exchanges=exchange - 1)
        [G] = self._everyone("begin", self._begins(survey, x0, [client]), replies.begun).values()
        return float(G)

    def _begins(self, survey: Survey, x0: Array, clients: Iterable[int]) -> dict[str, dict[str, Any]]:
        """What each of these clients is told when the run begins."""
        common = {
            "job": self.told,
            "n": survey.n,
            "keys": survey.keys,
            "columns": survey.columns,
            "classes": survey.classes,
            "means": survey.means,
            "scales": survey.scales,
            "start": x0,
        }
        bodies = {survey.nodes[i]: {**common, "client": i, "weight": float(survey.weights[i])} for i in clients}
        self.spent = self.spent.plus(Counters(vectors_down=len(bodies)))  # x0
        return bodies

    def _everyone(
        self, kind: str, bodies: dict[str, dict[str, Any]], check: Callable[[bytes, Message], Any]
    ) -> dict[str, Any]:
        exchange = self.spent.exchanges + 1
        messages = {node: Message(kind, self.run, exchange, 0, body) for node, body in bodies.items()}
        answers = self.post.ask(messages, check, all_needed=True)
        self.spent = self.spent.plus(answers.cost)._replace(exchanges=exchange)
        self.event(kind, self.spent)
        return answers.good
