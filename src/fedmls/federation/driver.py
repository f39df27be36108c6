"""Engine 2: the server's side. Runs the algorithm of a job over a transport, exchange by exchange.

    survey   every node tells how many rows it has, its columns and labels, and column sums if they are needed
    begin    every node is told its number, its weight and the common columns, and tells G_i
    round    what the algorithm sends down; what it sends up (paired FedMLS: two rounds in one exchange)
    close    the objective at the last model

Objectives ride on the next exchange: the model of round k is known only when its uploads are in, so nodes are asked for
f_i there together with round k + 1, and once more at the end. After every exchange the whole run is in the folder's
checkpoint; a driver that is started again goes on from there, and nodes that have answered already answer the same.
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedmls.certificate import least
from fedmls.engine import (
    ServerRandom,
    check_participants,
    drawn,
    message_types,
    participants,
    start_point,
    weighted_mean,
)
from fedmls.federation import replies
from fedmls.federation.folder import Folder, read_start
from fedmls.federation.messages import Message
from fedmls.federation.post import Post, Stopped, Transport, vectors
from fedmls.federation.replies import Done
from fedmls.federation.survey import Survey, agree, natural
from fedmls.record import Counters, Recorder
from fedmls.types import Array, Run

ASIDE = 10  # exchanges for which a node that failed is left alone


@dataclass(frozen=True)
class Result:
    """What a federated run gave: the run as a simulation would give it, and where its files are."""

    folder: Path
    run: Run
    nodes: tuple[str, ...]
    lipschitz: Array  # G_i of each node
    proved: bool  # whether ``until`` was reached
    epsilon: float | None  # with privacy: ε of every client for the job's δ

    @property
    def x(self) -> Array:
        return self.run.x

    @property
    def history(self) -> Any:
        return self.run.history


class Pending(NamedTuple):
    """A recorded round whose objective is not known yet."""

    counters: Counters
    models: list[Array]
    bound: float


@dataclass(frozen=True)
class At:
    """All of a run between two exchanges: what the checkpoint holds, besides the survey."""

    x0: Array
    x: Array
    server: Any
    lipschitz: Array  # this and the next: of each client
    steps: Any
    subgradients: Any
    answered: Any  # the last exchange in which it worked
    aside: Any  # until which exchange it is left alone
    spent: Counters
    pending: list[Pending] = field(default_factory=list)
    rows: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0
    proved: bool = False

    def plain(self) -> dict[str, Any]:
        names = list(self.rows[0]) if self.rows else []
        return {
            **self.__dict__,
            "server": self.server._asdict(),
            "spent": self.spent._asdict(),
            "pending": [{**one._asdict(), "counters": one.counters._asdict()} for one in self.pending],
            "rows": {name: np.array([row[name] for row in self.rows], dtype=float) for name in names},
        }

    @classmethod
    def from_plain(cls, values: dict[str, Any], server: Any) -> "At":
        """``server``: a state of the algorithm, whose type the saved one takes."""
        columns = values["rows"]
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        return cls(
            **{
                **values,
                "server": server._replace(**values["server"]),
                "spent": Counters(**values["spent"]),
                "pending": [Pending(**{**one, "counters": Counters(**one["counters"])}) for one in values["pending"]],
                "rows": [dict(zip(columns, row, strict=True)) for row in rows],
            }
        )


def drive(folder: str | Path, transport: Transport, *, resume: bool | None = None, start: Any = None) -> Result:
    """Run the job of the folder (job.toml or job.json) and write its results there.

    resume: go on from the folder's checkpoint: if there is one (None), or else an error (True), or not (False).
    start: begin at this model, an earlier run's folder or its model.npz: the way on when a client's state is lost.
    """
    return Driver(Folder(folder), transport).run(resume, start)


class Driver:
    """One run, exchange by exchange. ``at`` is the last whole exchange; only :meth:`_step` moves it."""

    name: str  # of the run
    at: At
    survey: Survey
    recorder: Recorder
    shapes: replies.Shapes

    def __init__(self, folder: Folder, transport: Transport) -> None:
        self.folder, self.transport, self.job = folder, transport, folder.job
        self.algorithm, self.random = self.job.algorithm, ServerRandom(self.job.seed)
        self.post = Post(transport, self.job, folder.event)
        self.epsilon = None if self.job.privacy is None else self.job.privacy.epsilon(self.job.rounds)
        self.began = time.monotonic()

    def run(self, resume: bool | None, start: Any) -> Result:
        file = self.folder.checkpoint
        if resume and not file.exists():
            raise ValueError(f"{file} is not there: nothing to go on from; leave out resume")
        go_on = file.exists() and resume is not False
        if go_on and start is not None:
            raise ValueError(f"{file} is there, and start= is for a new run; say resume=False to leave the old one")
        try:
            if go_on:
                self._resume()
            else:
                self.folder.begin()
                self._begin(start)
            while not self._finished():
                self._step()
        except KeyboardInterrupt:
            self._stop("interrupted")
            raise
        except ValueError as error:
            self._stop(str(error))
            raise error if isinstance(error, Stopped) else Stopped(str(error)) from error
        status = "proved" if self.at.proved else "finished"
        self.folder.event(event=status, **self.at.spent._asdict())
        return self._result(status)

    def _stop(self, why: str) -> None:
        """What is there so far is written like a result: a new run may begin at its model."""
        self.folder.event(event="stopped", why=why)
        if hasattr(self, "at"):
            self._result(f"stopped: {why}")

    def _finished(self) -> bool:
        return self.at.proved or (self.at.spent.round >= self.job.rounds and not self.at.pending)

    def _begin(self, start: Any) -> None:
        """The two exchanges before round 1."""
        job = self.job
        if job.privacy is not None:
            self.folder.event(event="privacy", epsilon=self.epsilon, delta=job.privacy.delta)
        nodes = sorted(job.nodes or self.transport.nodes, key=natural)
        if not nodes:
            raise Stopped("no node is connected")
        self.name = f"{job.name}-{secrets.token_hex(4)}"
        asked = Message("survey", self.name, 1, 0, {"job": self._told()})
        found, spent = self._everyone(
            Counters(), dict.fromkeys(nodes, asked), lambda data, to: replies.surveyed(data, to, job)
        )
        self.survey = agree(job, found)
        check_participants(self.algorithm, self.survey)
        x0 = start_point(self.survey, None if start is None else read_start(start, self.survey))
        server, _ = self.algorithm.init(x0, self.survey.n)
        self._prepare(server, x0)
        spent = spent._replace(vectors_down=self.survey.n)  # x0
        begun, spent = self._everyone(spent, self._begin_messages(x0), replies.begun)
        G, zeros = np.array([begun[node] for node in self.survey.nodes]), np.zeros(self.survey.n, dtype=np.int64)
        self.at = At(x0, x0, server, G, zeros, zeros, zeros + spent.exchanges, zeros, spent)
        self._save()

    def _told(self) -> dict[str, Any]:
        """The job as nodes see it: nothing about other nodes."""
        return {key: value for key, value in self.job.to_dict().items() if key not in ("nodes", "weights")}

    def _everyone(
        self, spent: Counters, messages: dict[str, Message], check: Callable[[bytes, Message], Any]
    ) -> tuple[dict[str, Any], Counters]:
        """An exchange that every node must answer: the answers, and what has been spent."""
        answers = self.post.ask(messages, check, all_needed=True)
        spent = spent.plus(answers.cost)._replace(exchanges=spent.exchanges + 1)
        [kind] = {message.kind for message in messages.values()}
        self._event(kind, spent, {})
        return answers.good, spent

    def _begin_messages(self, x0: Array) -> dict[str, Message]:
        survey = self.survey
        common = {
            "job": self._told(),
            "n": survey.n,
            "columns": survey.columns,
            "classes": survey.classes,
            "means": survey.means,
            "scales": survey.scales,
            "start": x0,
        }
        return {
            node: Message("begin", self.name, 2, 0, {**common, "client": i, "weight": float(survey.weights[i])})
            for i, node in enumerate(survey.nodes)
        }

    def _prepare(self, server: Any, x0: Array) -> None:
        survey, job = self.survey, self.job
        self.recorder = Recorder(self.algorithm, survey, server, x0, None, {}, job.certificate)
        self.shapes = replies.upload_shapes(
            self.algorithm, survey.dimension, survey.n, job.certificate is not None, job.max_norm
        )

    def _resume(self) -> None:
        self.name, self.survey, values = self.folder.load()
        server, _ = self.algorithm.init(values["x0"], self.survey.n)
        self._prepare(server, values["x0"])
        self.at = At.from_plain(values, server)
        self.recorder.resume(self.at.rows)
        self.began -= self.at.seconds

    def _save(self) -> None:
        self.at = replace(self.at, seconds=time.monotonic() - self.began)
        spent = self.at.spent
        self.folder.save(self.name, spent.exchanges, spent.round, self.survey, self.at.plain())

    def _step(self) -> None:
        """One exchange: one round, or, paired, two; none at the end. It counts when its checkpoint is written."""
        at, first = self.at, self.at.spent.round + 1
        ks = range(first, min(first + self.algorithm.rounds_per_exchange, self.job.rounds + 1))
        server, rounds = at.server, []
        for k in ks:
            server, down = self.algorithm.broadcast(k, server, self.random.at(k))
            rounds.append({"k": k, "down": down._asdict(), "asked": self._recorded(k)})
        done, failed, spent = self._answers(rounds)
        aside = at.aside.copy()
        aside[list(failed)] = spent.exchanges + ASIDE
        at = self._measured(replace(at, spent=spent, aside=aside), done, last=not rounds)
        self.at = at if at.proved else self._moved(at, server, rounds, done)
        self._save()
        named = {self.survey.nodes[i]: why for i, why in failed.items()}
        self._event("round" if rounds else "close", self.at.spent, named)

    def _recorded(self, k: int) -> bool:
        return k % self.job.every == 0 or k == self.job.rounds

    def _answers(self, rounds: list[dict[str, Any]]) -> tuple[dict[int, Done], dict[int, str], Counters]:
        """Every client's answer in this exchange, who failed, and what has been spent.

        Where the job lets the run go on without a client that fails, another one works in its place.
        """
        exchange = self.at.spent.exchanges + 1
        working, spare = self._working(rounds, exchange)
        asked = [(i, rounds) for i in working]
        if self.at.pending:
            asked += [(i, []) for i in spare if self.at.aside[i] < exchange]
        done: dict[int, Done] = {}
        failed: dict[int, str] = {}
        spent = self.at.spent
        while asked:
            messages = {self.survey.nodes[i]: self._message(i, work, exchange) for i, work in asked}
            answers = self.post.ask(messages, lambda data, to: replies.done(data, to, self.shapes), all_needed=False)
            spent = spent.plus(answers.cost).plus(self._vectors(messages, answers.good))
            done |= {i: answers.good[node] for i, _ in asked if (node := self.survey.nodes[i]) in answers.good}
            failed |= {i: answers.failed[node] for i, _ in asked if (node := self.survey.nodes[i]) in answers.failed}
            lost = [i for i, work in asked if work and i in failed]
            spare = [i for i in spare if i not in failed]
            if len(lost) > len(spare):
                why = "; ".join(f"node {self.survey.nodes[i]} {word}" for i, word in failed.items())
                raise Stopped(f"a round takes {len(working)} clients, and there are no others to ask: {why}")
            asked, spare = [(i, rounds) for i in spare[: len(lost)]], spare[len(lost) :]
        return done, failed, spent._replace(exchanges=exchange)

    def _working(self, rounds: list[dict[str, Any]], exchange: int) -> tuple[list[int], list[int]]:
        """The clients of these rounds, in order, and the others, in the order in which they may stand in."""
        n = self.survey.n
        if not rounds:
            return [], list(range(n))
        k = rounds[0]["k"]
        some = drawn(self.algorithm, n, self.random, k)
        if some is None:
            return list(range(n)), []
        others = [i for i in self.random.at(k, purpose=2).permutation(n).tolist() if i not in some]
        order = sorted([*some.tolist(), *others], key=lambda i: bool(self.at.aside[i] >= exchange))
        return sorted(order[: len(some)]), order[len(some) :]

    def _message(self, i: int, rounds: list[dict[str, Any]], exchange: int) -> Message:
        points = [
            {"k": one.counters.round, "candidate": c, "x": x}
            for one in self.at.pending
            for c, x in enumerate(one.models)
        ]
        body = {"after": int(self.at.answered[i]), "rounds": rounds, "points": points}
        return Message("round", self.name, exchange, self.at.spent.round + len(rounds), body)

    def _vectors(self, messages: dict[str, Message], good: dict[str, Any]) -> Counters:
        d = self.survey.dimension
        down = sum(vectors(message.body, d) for message in messages.values())
        return Counters(vectors_up=sum(vectors(reply, d) for reply in good.values()), vectors_down=down)

    def _measured(self, at: At, done: dict[int, Done], last: bool) -> At:
        """The rows of the rounds whose objective is known now; the run's last row counts all that was spent."""
        if not at.pending:
            return at
        x, rows = at.x, list(at.rows)
        for one in at.pending:
            k = one.counters.round
            objectives = [self._objective(done, k, candidate) for candidate in range(len(one.models))]
            chosen = 0 if np.isnan(objectives).any() else int(np.argmin(objectives))
            x = one.models[chosen]
            rows.append(self._row(one, x, objectives[chosen]))
        proved = self.job.until is not None and rows[-1]["certified_gap"] <= self.job.until
        if last or proved:
            total = at.spent._asdict()
            rows[-1] |= {name: total[name] for name in total if name.startswith(("exchanges", "vectors", "bytes"))}
        return replace(at, x=x, rows=rows, pending=[], proved=proved)

    def _objective(self, done: dict[int, Done], k: int, candidate: int) -> float:
        """Σ w_i f_i, if every client told its own."""
        values = [done[i].values.get((k, candidate), np.nan) if i in done else np.nan for i in range(self.survey.n)]
        return float(self.survey.weights @ np.array(values))

    def _row(self, one: Pending, x: Array, objective: float) -> dict[str, float]:
        row = self.recorder.row_of(one.counters, x, objective, one.bound)
        return row | {"seconds": time.monotonic() - self.began}

    def _moved(self, at: At, server: Any, rounds: list[dict[str, Any]], done: dict[int, Done]) -> At:
        """The run after these rounds of the server."""
        working = [i for i in range(self.survey.n) if i in done and done[i].uploads]
        steps, subgradients, answered = at.steps.copy(), at.subgradients.copy(), at.answered.copy()
        answered[working] = at.spent.exchanges
        pending, rows, x, spent = [], list(at.rows), at.x, at.spent
        for r, wanted in enumerate(rounds):
            k, uploads = wanted["k"], [done[i].uploads[r] for i in working]
            steps[working] = [upload.steps for upload in uploads]
            subgradients[working] = [upload.subgradients for upload in uploads]
            with np.errstate(over="ignore", invalid="ignore"):
                server = self.algorithm.server_round(k, server, self._seen(working, uploads))
            spent = spent._replace(round=k, local_steps=int(steps.max()), subgradients=int(subgradients.sum()))
            if not wanted["asked"]:
                continue
            one = Pending(spent, self._models(k, server), self._bound(uploads))
            x = one.models[0]
            if self.survey.reports_objective:
                pending.append(one)
            else:
                rows.append(self._row(one, x, np.nan))
        return replace(
            at,
            x=x,
            server=server,
            spent=spent,
            steps=steps,
            subgradients=subgradients,
            answered=answered,
            pending=pending,
            rows=rows,
        )

    def _seen(self, working: list[int], uploads: list[replies.Upload]) -> Any:
        """What the server sees of the uploads; fields that were not asked for are unknown."""
        _, up_type = message_types(self.algorithm)
        stacked = {
            name: np.stack([upload.up.get(name, np.full(shape, np.nan)) for upload in uploads])
            for name, shape in self.shapes.up.items()
        }
        up = up_type(**stacked)
        if self.algorithm.traits.aggregate == "stack":
            return up
        weights = self.survey.weights
        if participants(self.algorithm) is not None:
            weights = weights[working] / weights[working].sum()
        return weighted_mean(weights, up)

    def _models(self, k: int, server: Any) -> list[Array]:
        models = self.algorithm.model(server)
        found = list(models) if isinstance(models, tuple) else [models]
        if not all(np.isfinite(x).all() for x in found):
            raise Stopped(f"the run has diverged: the model of round {k} is not finite; take smaller steps")
        return found

    def _bound(self, uploads: list[replies.Upload]) -> float:
        """The lower bound that the clients' cuts give; -inf without a certificate."""
        cuts = [upload.cut for upload in uploads if upload.cut is not None]
        if self.recorder.radius is None or not cuts:
            return -np.inf
        a = float(self.survey.weights @ np.array([a for a, _ in cuts]))
        p = self.survey.weights @ np.stack([p for _, p in cuts])
        return least(self.survey, a, p, self.recorder.radius, self.at.x0)

    def _event(self, kind: str, spent: Counters, failed: dict[str, str]) -> None:
        """A line on the exchange that was done; the objective is that of the last round for which it is known."""
        rows = self.at.rows if hasattr(self, "at") else []
        known = {name: rows[-1].get(name) for name in ("objective", "certified_gap")} if rows else {}
        seconds = round(time.monotonic() - self.began, 3)
        measured = {"measured_round": rows[-1]["round"], **known} if rows else {}
        self.folder.event(kind=kind, **spent._asdict(), **measured, seconds=seconds, failed=failed)

    def _result(self, status: str) -> Result:
        import pandas as pd

        at, job = self.at, self.job
        history = pd.DataFrame(at.rows, columns=pd.Index(self.recorder.columns))
        history = history.astype(dict.fromkeys(Counters._fields, "int64"))
        run = Run(job.algorithm, job.seed, job.batch, at.x, history, None)
        about = {"run": self.name, "status": status, "epsilon": self.epsilon}
        self.folder.finish(self.survey, at.x, history, at.lipschitz, about)
        return Result(self.folder.path, run, tuple(self.survey.nodes), at.lipschitz, at.proved, self.epsilon)
