"""The exchanges before round 1, which every node must answer.

survey   every node tells how many rows it has, its columns and labels, and column sums if they are needed
sums     if sums are secure: column sums, once for means and once more for scales
begin    every node is told its number, its weight and the common columns, and tells G_i
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from fedmls.federation import secure_sums
from fedmls.federation.columns import column_means, column_scales
from fedmls.federation.job import Job
from fedmls.federation.messages import Begin, Message, Sums, Survey
from fedmls.federation.server import replies
from fedmls.federation.server.exchange import Exchange
from fedmls.federation.server.survey import SurveyedProblem, agree
from fedmls.simulation.cost import Counters
from fedmls.types import Array

Q = TypeVar("Q", Survey, Sums, Begin)
T = TypeVar("T")
UNTOLD = ("nodes", "weights", "start")  # of the job: what concerns other nodes, and the server's files


class FirstExchanges:
    """Asks every node, counts what it costs in ``spent``, and tells ``event`` of each exchange."""

    def __init__(self, run: str, job: Job, exchange: Exchange, event: Callable[[str, Counters], None]) -> None:
        self.run, self.job, self.exchange, self.event, self.spent = run, job, exchange, event, Counters()
        self.public_job = {key: value for key, value in job.to_dict().items() if key not in UNTOLD}

    def survey(self, nodes: Sequence[str]) -> SurveyedProblem:
        found = self._everyone(
            {node: Survey(self.public_job) for node in nodes},
            lambda data, asked: replies.surveyed(data, asked, self.job),
        )
        survey = agree(self.job, found)
        if not self.job.secure:
            return survey
        secure_sums.check_enough(survey.n)
        return self._with_sums(survey) if self.job.impute or self.job.standardise else survey

    def _with_sums(self, survey: SurveyedProblem) -> SurveyedProblem:
        """Return the survey with the means and scales that secure sums give."""
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
        lost = (varied > 0) & (squares < survey.n * secure_sums.COARSE)
        if lost.any():
            raise ValueError(
                f"the squares in column {survey.columns[int(np.argmax(lost))]!r} are too small for secure sums, which "
                "go in steps of 2^-64; give the column in a smaller unit"
            )
        return survey._replace(means=means, scales=column_scales(counts, squares))

    def _sums(self, survey: SurveyedProblem, means: Array | None) -> Any:
        """Return two sums for each column: counts and sums, or, with means, squares and whether any."""
        assert survey.keys is not None
        size = 2 * len(survey.columns)
        found = self._everyone(
            {
                node: Sums(self.public_job, survey.keys, survey.columns, means, i, survey.levels)
                for i, node in enumerate(survey.nodes)
            },
            lambda data, asked: replies.masked_sums(data, asked, size),
        )
        return np.split(secure_sums.total(found.values()), 2)

    def begin(self, survey: SurveyedProblem, x0: Array) -> Array:
        """Begin the run at every node; return G_i of each."""
        begun = self._everyone(self._begins(survey, x0, range(survey.n)), replies.begun)
        return np.array([begun[node] for node in survey.nodes])

    def begin_again(self, survey: SurveyedProblem, x0: Array, client: int, exchange: int) -> float:
        """Tell a client that has forgotten the run how it began, as if that had been in this exchange; return G_i."""
        self.spent = self.spent._replace(exchanges=exchange - 1)
        [G] = self._everyone(self._begins(survey, x0, [client]), replies.begun).values()
        return float(G)

    def _begins(self, survey: SurveyedProblem, x0: Array, clients: Iterable[int]) -> dict[str, Begin]:
        """Return what each of these clients is told when the run begins."""
        bodies = {
            survey.nodes[i]: Begin(
                job=self.public_job,
                n=survey.n,
                keys=survey.keys,
                columns=survey.columns,
                classes=survey.classes,
                means=survey.means,
                scales=survey.scales,
                start=x0,
                client=i,
                weight=float(survey.weights[i]),
                levels=survey.levels,
            )
            for i in clients
        }
        self.spent = self.spent.plus(Counters(vectors_down=len(bodies)))  # x0
        return bodies

    def _everyone(self, bodies: dict[str, Q], check: Callable[[bytes, Message[Q]], T]) -> dict[str, T]:
        exchange = self.spent.exchanges + 1
        messages = {node: Message(self.run, exchange, 0, body) for node, body in bodies.items()}
        answers = self.exchange.ask(messages, check, all_needed=True)
        self.spent = self.spent.plus(answers.cost)._replace(exchanges=exchange)
        self.event(next(iter(messages.values())).kind, self.spent)
        return answers.good
