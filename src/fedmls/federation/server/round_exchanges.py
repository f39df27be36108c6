"""One exchange of a run with its clients: who is asked, who stands in for whom, and what the server learns from it.

Where the job lets the run go on without a client that fails, another one works in its place. If sums are secure, all
are asked again then: the masks of the others still hold those they had in common with the one that is gone.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from fedmls.federation import secure_sums
from fedmls.federation.codec import MessageError
from fedmls.federation.errors import Stopped
from fedmls.federation.job import Job
from fedmls.federation.messages import Done, Masked, Message, Point, Round, Task, Upload
from fedmls.federation.server import replies
from fedmls.federation.server.exchange import Exchange, vectors
from fedmls.federation.server.snapshot import Snapshot
from fedmls.federation.server.survey import SurveyedProblem
from fedmls.federation.uploads import Shapes, check_vector
from fedmls.rounds import ServerRandom, drawn, weighted_mean
from fedmls.simulation.cost import Counters
from fedmls.types import Array


class AggregatedRound(NamedTuple):
    """One round: what the server sees of the uploads, Σ w_i of the cuts, and of each client that worked what it did."""

    up: Any
    cut: tuple[float, Array] | None
    steps: list[int]
    subgradients: list[int]


class RoundsResult(NamedTuple):
    """What an exchange gave."""

    working: list[int]
    rounds: list[AggregatedRound]
    objectives: dict[tuple[int, int], float]  # Σ w_i f_i by round and candidate, where every client told its own
    failed: dict[int, str]
    spent: Counters  # since the run began


class Forgot(Exception):
    """Clients know nothing of the run any more, and need not: they can be told again how it began."""

    def __init__(self, clients: list[int], spent: Counters) -> None:
        super().__init__(clients)
        self.clients, self.spent = clients, spent


class RoundExchanges:
    """Asks the clients of a run for rounds. ``ask`` changes nothing here."""

    def __init__(self, run: str, job: Job, survey: SurveyedProblem, shapes: Shapes, exchange: Exchange) -> None:
        self.run, self.job, self.survey, self.shapes, self.exchange = run, job, survey, shapes, exchange
        self.random = ServerRandom(job.seed)

    def ask(self, at: Snapshot, rounds: list[Task], may_forget: bool = False) -> RoundsResult:
        """Ask for these rounds, and for the objectives that are pending.

        may_forget: clients may have forgotten the run; then raise Forgot.
        """
        exchange, points = at.spent.exchanges + 1, _points(at)
        working, spare = self._working(at, rounds, exchange)
        others = [i for i in spare if at.aside[i] < exchange] if points else []
        if self.job.secure and len(working) + len(others) < self.survey.n:
            others, points = [], []  # some cannot tell, and without them there is no sum
        asked, spent = [*working, *others], at.spent
        done: dict[int, Any] = {}
        failed: dict[int, str] = {}
        while asked:
            messages = {self.survey.nodes[i]: self._message(at, i, rounds, points, working) for i in asked}
            answers = self.exchange.ask(messages, self._check, all_needed=False, may_forget=may_forget)
            spent = spent.plus(answers.cost).plus(self._vectors(messages, answers.good))
            if answers.forgot:
                raise Forgot([i for i in asked if self.survey.nodes[i] in answers.forgot], spent)
            done |= {i: answers.good[node] for i in asked if (node := self.survey.nodes[i]) in answers.good}
            failed |= {i: answers.failed[node] for i in asked if (node := self.survey.nodes[i]) in answers.failed}
            lost = [i for i in asked if i in working and i in failed]
            spare = [i for i in spare if i not in failed]
            if len(lost) > len(spare):
                why = "; ".join(f"node {self.survey.nodes[i]} {word}" for i, word in failed.items())
                raise Stopped(f"a round takes {len(working)} clients, and there are no others to ask: {why}")
            stand_ins, spare = spare[: len(lost)], spare[len(lost) :]
            working = sorted({*working, *stand_ins} - {*lost})
            asked = working if self.job.secure and lost else stand_ins
            points = [] if self.job.secure else points  # there is no sum of them any more
        if self.job.secure:
            seen, objectives = self._unmasked(rounds, working, done), self._summed(at, done)
        else:
            seen, objectives = self._plain(rounds, working, done), self._objectives(at, done)
        spent = spent._replace(exchanges=exchange if done or failed else exchange - 1)
        return RoundsResult(working, seen, objectives, failed, spent)

    def _working(self, at: Snapshot, rounds: list[Task], exchange: int) -> tuple[list[int], list[int]]:
        """Return the clients of these rounds, in order, and the others, in the order in which they may stand in."""
        n = self.survey.n
        if not rounds:
            return [], list(range(n))
        k = rounds[0].k
        some = drawn(self.job.algorithm, n, self.random, k)
        if some is None:
            return list(range(n)), []
        others = [i for i in self.random.at(k, purpose=2).permutation(n).tolist() if i not in some]
        order = sorted([*some.tolist(), *others], key=lambda i: bool(at.aside[i] >= exchange))
        return sorted(order[: len(some)]), order[len(some) :]

    def _message(
        self, at: Snapshot, i: int, rounds: list[Task], points: list[Point], working: list[int]
    ) -> Message[Round]:
        work = rounds if i in working else []
        among = [(j, int(at.answered[j])) for j in working] if self.job.secure else None
        body = Round(int(at.answered[i]), work, points, among)
        return Message(self.run, at.number + 1, at.spent.round + len(work), body)

    def _check(self, data: bytes, asked: Message[Round]) -> Done | Masked:
        check = replies.masked if self.job.secure else replies.done
        return check(data, asked, self.shapes)

    def _vectors(self, messages: dict[str, Message[Round]], good: dict[str, Any]) -> Counters:
        d, but = self.survey.dimension, self.job.algorithm.traits.numbers
        down = sum(vectors(message.body, d, but) for message in messages.values())
        up = sum(vectors(reply, d, but) for reply in good.values())
        if self.job.secure:
            sent = [part for node in good for part in self.shapes.parts(messages[node].body.rounds)]
            up = sum(math.prod(shape) // d for name, shape in sent if name not in but)
        return Counters(vectors_up=up, vectors_down=down)

    def _plain(self, rounds: list[Task], working: list[int], done: dict[int, Done]) -> list[AggregatedRound]:
        seen = []
        for r, each in enumerate(rounds):
            uploads = [done[i].rounds[r] for i in working]
            steps, subgradients = [one.steps for one in uploads], [one.subgradients for one in uploads]
            seen.append(AggregatedRound(self._seen(each, working, uploads), self._cut(uploads), steps, subgradients))
        return seen

    def _objectives(self, at: Snapshot, done: dict[int, Done]) -> dict[tuple[int, int], float]:
        everyone = [
            {(one.k, one.candidate): one.value for one in done[i].values} if i in done else {}
            for i in range(self.survey.n)
        ]
        found = {}
        for point in map(_name, _points(at)):
            found[point] = float(self.survey.weights @ np.array([values.get(point, np.nan) for values in everyone]))
        return found

    def _seen(self, wanted: Task, working: list[int], uploads: list[Upload]) -> Any:
        """Return what the server sees of the uploads; fields that were not asked for are unknown."""
        stacked = {
            name: np.stack([upload.up.get(name, np.full(shape, np.nan)) for upload in uploads])
            for name, shape in self.shapes.up(wanted).items()
        }
        up = self.job.algorithm.Up(**stacked)
        if self.job.algorithm.traits.aggregate == "stack":
            return up
        weights = self.survey.weights
        if self.job.algorithm.participants is not None:
            weights = weights[working] / weights[working].sum()
        return weighted_mean(weights, up, self.survey.dimension)

    def _cut(self, uploads: list[Upload]) -> tuple[float, Array] | None:
        cuts = [upload.cut for upload in uploads if upload.cut is not None]
        if not cuts:
            return None
        weights = self.survey.weights
        return float(weights @ np.array([a for a, _ in cuts])), weights @ np.stack([p for _, p in cuts])

    def _unmasked(self, rounds: list[Task], working: list[int], done: dict[int, Masked]) -> list[AggregatedRound]:
        """Return the same from masked uploads. What a single one cannot be checked for, the mean is."""
        if not rounds:
            return []
        mean = _total([done[i].uploads for i in working])
        if self.job.algorithm.participants is not None:
            mean = mean / self.survey.weights[working].sum()
        seen = []
        for r, each in enumerate(rounds):
            unknown, parts = {name: np.full(shape, np.nan) for name, shape in self.shapes.up(each).items()}, {}
            units = self.shapes.units(each)
            for name, shape in self.shapes.parts([each]):
                part, mean = np.split(mean, [math.prod(shape)])
                parts[name] = self._checked(name, part.reshape(shape), units.get(name, 1.0), each.k)
            cut = (float(parts.pop("cut.a")), parts.pop("cut.p")) if "cut.a" in parts else None
            steps, subgradients = (
                [done[i].rounds[r].steps for i in working],
                [done[i].rounds[r].subgradients for i in working],
            )
            seen.append(AggregatedRound(self.job.algorithm.Up(**unknown | parts), cut, steps, subgradients))
        return seen

    def _checked(self, name: str, mean: Array, unit: Array | float, k: int) -> Array:
        longest = math.inf if name == "cut.a" else self.shapes.longest(name)
        try:
            return check_vector(name, mean, mean.shape, longest, unit)
        except MessageError as error:
            raise Stopped(f"the mean of round {k} is rejected, and nobody can tell by which node: {error}") from None

    def _summed(self, at: Snapshot, done: dict[int, Masked]) -> dict[tuple[int, int], float]:
        points, told = _points(at), [done[i].values for i in range(self.survey.n) if i in done]
        if not points or len(told) < self.survey.n or any(values is None for values in told):
            return {}
        return dict(zip(map(_name, points), _total(told).tolist(), strict=True))


def _total(parts: list[Any]) -> Array:
    try:
        return secure_sums.total(parts)
    except MessageError as error:
        raise Stopped(
            f"{error}: a node has answered another question than the others, and nobody can tell which"
        ) from None


def _points(at: Snapshot) -> list[Point]:
    """Return the models whose objectives are to be told."""
    return [Point(one.counters.round, c, x) for one in at.pending for c, x in enumerate(one.models)]


def _name(point: Point) -> tuple[int, int]:
    return point.k, point.candidate
