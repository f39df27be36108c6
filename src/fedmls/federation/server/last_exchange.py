"""The exchange after the last round: every node tells sums over the rows that it holds out, of which the scores of the
model are made. A node that does not answer, or refuses, is left out and named: the run has come to its end without it.
If sums are secure there are none without it.
"""

import numpy as np

from fedmls.federation import secure_sums
from fedmls.federation.codec import MessageError
from fedmls.federation.job import Job
from fedmls.federation.messages import Message, Score
from fedmls.federation.scores import check_sums, only_class, rows_of, scores_of, sums_size
from fedmls.federation.server import replies
from fedmls.federation.server.exchange import Exchange
from fedmls.federation.server.round_exchanges import Forgot
from fedmls.federation.server.snapshot import Snapshot
from fedmls.federation.server.survey import SurveyedProblem
from fedmls.results.held_out import HeldOutScores, Scores
from fedmls.simulation.cost import Counters
from fedmls.types import Array

NONE = Scores(0, {})


class LastExchange:
    """Asks the clients of a run for scores of its model. ``ask`` changes nothing here."""

    def __init__(self, run: str, job: Job, survey: SurveyedProblem, exchange: Exchange) -> None:
        self.run, self.job, self.survey, self.exchange = run, job, survey, exchange
        self.loss = job.get_loss()

    def ask(self, at: Snapshot, may_forget: bool) -> tuple[HeldOutScores, Counters]:
        """Return the scores of the run's model, and what was spent since the run began.

        may_forget: clients may have forgotten the run; then raise Forgot.
        """
        nodes, message = self.survey.nodes, Message(self.run, at.number + 1, at.spent.round, Score(at.x))
        answers = self.exchange.ask(
            dict.fromkeys(nodes, message), self._check, all_needed=False, may_forget=may_forget, optional=True
        )
        spent = at.spent.plus(answers.cost).plus(Counters(vectors_down=len(nodes)))
        if answers.forgot:
            raise Forgot([nodes.index(node) for node in answers.forgot], spent)
        scores = self._secure(answers.good) if self.job.secure else self._plain(answers.good)
        return scores._replace(without=answers.failed), spent._replace(exchanges=at.spent.exchanges + 1)

    def _check(self, data: bytes, asked: Message[Score]) -> Array:
        size = sums_size(self.loss, self.job.secure)
        if self.job.secure:
            return np.asarray(replies.masked_sums(data, asked, size))
        return check_sums(replies.scored(data, asked, size), self.loss, self.job.max_rows)

    def _plain(self, sums: dict[str, Array]) -> HeldOutScores:
        """Return the scores of each node that answered, and of all together."""
        scores = {node: Scores(rows_of(one, self.loss), scores_of(one, self.loss)) for node, one in sums.items()}
        together, notes = self._together(list(sums.values()))
        return HeldOutScores(together, scores, {}, notes)

    def _secure(self, masked: dict[str, Array]) -> HeldOutScores:
        """Return the scores of all nodes together, which are known only if all have answered."""
        if len(masked) < self.survey.n:
            return HeldOutScores(NONE, {}, {}, ["a secure sum takes all nodes, and some have not answered"])
        try:
            total = secure_sums.total(masked.values())
            check_sums(total, self.loss, self.survey.n * self.job.max_rows)
        except MessageError as error:
            why = f"the sums over held-out rows are rejected, and nobody can tell by which node: {error}"
            return HeldOutScores(NONE, {}, {}, [why])
        together, notes = self._together([total])
        return HeldOutScores(together, {}, {}, notes)

    def _together(self, sums: list[Array]) -> tuple[Scores, list[str]]:
        """Return the scores of all these rows, and what is to be said of them."""
        total = sum(sums[1:], start=sums[0]) if sums else None
        if total is None or not (rows := rows_of(total, self.loss)):
            return NONE, ["no node holds out a row"] if sums else []
        notes, classes = list[str](), self.survey.classes
        if classes is not None and (one := only_class(total)) is not None:
            notes.append(f"the model predicts {classes[one]!r} for every held-out row")
        return Scores(rows, scores_of(total, self.loss)), notes
