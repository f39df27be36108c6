"""Engine 2: the server's side. Runs the algorithm of a job over a transport, exchange by exchange.

    survey, begin   before round 1 (:mod:`fedmls.federation.server.first_exchanges`)
    round           what the algorithm sends down; what it sends up (paired FedMLS: two rounds in one exchange)
    close           the objective at the last model
    score           scores of that model on the rows that nodes hold out
                    (:mod:`fedmls.federation.server.last_exchange`)

Objectives ride on the next exchange: the model of round k is known only when its uploads are in, so nodes are asked for
f_i there together with round k + 1, and once more at the end. After every exchange the whole run is in the folder's
checkpoint; a driver that is started again goes on from there, and nodes that have answered already answer the same.
"""

import secrets
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedmls.bounds.certificate import least
from fedmls.federation.errors import Stopped
from fedmls.federation.job import Job
from fedmls.federation.locks import InUse, exclusive
from fedmls.federation.messages import Task
from fedmls.federation.server.exchange import Exchange
from fedmls.federation.server.first_exchanges import FirstExchanges
from fedmls.federation.server.folder import RunFolder, read_start
from fedmls.federation.server.last_exchange import LastExchange
from fedmls.federation.server.round_exchanges import Forgot, RoundExchanges, RoundsResult
from fedmls.federation.server.snapshot import Pending, Result, Snapshot
from fedmls.federation.server.survey import SurveyedProblem, natural
from fedmls.federation.transports.base import Transport
from fedmls.federation.uploads import upload_shapes
from fedmls.results.events import MEASURED
from fedmls.rounds import ServerRandom, check_participants, start_point
from fedmls.simulation.cost import Counters
from fedmls.simulation.recorder import Recorder
from fedmls.types import Array, Run

LOCK = "lock"  # in the job's folder: one server at a time
ASIDE = 10  # exchanges for which a node that failed is left alone


def keeps_nothing(job: Job, start: Array, n: int) -> bool:
    """Return whether a client could do its next round without what it has kept of the run.

    That is so if its state is empty and it adds up no slopes. If sums are secure, or noise is added, what it keeps also
    guards that no mask hides two values and that no more rounds are answered than ε was told for.
    """
    _, client = job.algorithm.init(start, n)
    guards = job.secure or job.privacy is not None
    return not guards and not job.sends_cuts and all(np.size(value) == 0 for value in client)


def drive(folder: str | Path, transport: Transport, *, resume: bool | None = None, start: Any = None) -> Result:
    """Run the job of the folder (job.toml or job.json) and write its results there.

    resume: go on from the folder's checkpoint: if there is one (None), or else an error (True), or not (False).
    start: begin at this model, an earlier run's folder or its model.npz: the way on when a client's state is lost.
    Unless given, the job's.
    """
    return Driver(RunFolder(folder), transport).run(resume, start)


class Driver:
    """One run, exchange by exchange. ``at`` is the last whole exchange; only :meth:`_step` moves it."""

    name: str  # of the run
    at: Snapshot
    survey: SurveyedProblem
    recorder: Recorder
    exchanges: RoundExchanges

    def __init__(self, folder: RunFolder, transport: Transport) -> None:
        self.folder, self.transport, self.job = folder, transport, folder.job
        self.algorithm, self.random = self.job.algorithm, ServerRandom(self.job.seed)
        self.exchange = Exchange(transport, self.job, folder.event)
        self.began = time.monotonic()
        self.told = 0  # rows of the history that events have told of
        self.reminded = 0  # the last exchange after which clients had forgotten the run and were told again

    def run(self, resume: bool | None, start: Any) -> Result:
        try:
            with exclusive(self.folder.path / LOCK, wait=False):
                return self._run(resume, start)
        except InUse:
            raise Stopped(
                f"another server is at work in {self.folder.path}; wait for it, or take another folder"
            ) from None

    def _run(self, resume: bool | None, start: Any) -> Result:
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
                self._begin(self.job.start if start is None else start)
            while not self._finished():
                self._step()
            while self.job.holdout is not None and self.at.held_out is None:
                self._score()
        except KeyboardInterrupt:
            self._stop("interrupted")
            raise
        except (ValueError, OSError) as error:  # a full disk is no reason to leave without a word
            self._stop(str(error))
            raise error if isinstance(error, Stopped) else Stopped(str(error)) from error
        status = "proved" if self.at.proved else "finished"
        self.folder.event(event=status, **self.at.spent._asdict())
        return self._result(status)

    def _stop(self, why: str) -> None:
        """Write what is there so far like a result: a new run may begin at its model."""
        with suppress(OSError):
            self.folder.event(event="stopped", why=why)
        if hasattr(self, "at"):
            with suppress(OSError):
                self._result(f"stopped: {why}")

    def _finished(self) -> bool:
        return self.at.proved or (self.at.spent.round >= self.job.rounds and not self.at.pending)

    def _begin(self, start: Any) -> None:
        """Do the exchanges before round 1."""
        job = self.job
        if job.privacy is not None:
            self.folder.event(event="privacy", epsilon=job.privacy.epsilon(job.rounds), delta=job.privacy.delta)
        nodes = sorted(job.nodes or self.transport.nodes, key=natural)
        if not nodes:
            raise Stopped("no node is connected")
        self.name = f"{job.name}-{secrets.token_hex(4)}"
        first = FirstExchanges(self.name, job, self.exchange, lambda kind, spent: self._event(kind, spent, {}))
        self.survey = first.survey(nodes)
        check_participants(self.algorithm, self.survey)
        x0 = start_point(self.survey, None if start is None else read_start(start, self.survey))
        server, _ = self.algorithm.init(x0, self.survey.n)
        self._prepare(server, x0)
        G, zeros = first.begin(self.survey, x0), np.zeros(self.survey.n, dtype=np.int64)
        spent = first.spent
        self.at = Snapshot(x0, x0, server, G, zeros, zeros, zeros + spent.exchanges, zeros, spent)
        self._save()
        self.folder.tell(self.survey, G, {"run": self.name, "status": "running", "epsilon": None})

    def _prepare(self, server: Any, x0: Array) -> None:
        survey, job = self.survey, self.job
        self.recorder = Recorder(self.algorithm, survey, server, x0, None, {}, job.certificate)
        shapes = upload_shapes(self.algorithm, survey.dimension, survey.n, job.sends_cuts, job.max_norm)
        self.exchanges = RoundExchanges(self.name, job, survey, shapes, self.exchange)

    def _resume(self) -> None:
        self.name, self.survey, at, before = self.folder.load()
        server, _ = self.algorithm.init(at.x0, self.survey.n)
        self._prepare(server, at.x0)
        self.at = replace(at, proved=not at.pending and self._proved(at.rows))
        self.recorder.resume(self.at.rows)
        self.began, self.told = self.began - self.at.seconds, max(0, len(self.at.rows) - 3)  # some again
        if before.rounds != self.job.rounds:  # nodes may have answered the next exchange, with other rounds in it
            self.at = replace(self.at, skipped=at.skipped + 1, released=at.released + len(self._next(before.rounds)))
            self._save()

    def _save(self) -> None:
        self.at = replace(self.at, seconds=time.monotonic() - self.began)
        self.folder.save(self.name, self.survey, self.at)

    def _step(self) -> None:
        """Do one exchange: one round, or, paired, two; none at the end. It counts when its checkpoint is written."""
        at = self.at
        server, rounds = at.server, list[Task]()
        for k in self._next(self.job.rounds):
            server, down = self.algorithm.broadcast(k, server, self.random.at(k))
            rounds.append(Task(k, down._asdict(), self._recorded(k)))
        try:
            found = self.exchanges.ask(at, rounds, self._may_forget())
        except Forgot as forgot:
            self._begin_again(forgot)
            return
        aside = at.aside.copy()
        aside[list(found.failed)] = found.spent.exchanges + ASIDE
        at = self._measured(replace(at, spent=found.spent, aside=aside), found, last=not rounds)
        self.at = at if at.proved else self._moved(at, server, rounds, found)
        self._save()
        named = {self.survey.nodes[i]: why for i, why in found.failed.items()}
        self._event("round" if rounds else "close", self.at.spent, named)

    def _score(self) -> None:
        """Do the exchange after the last round, which the last row of the history counts, too."""
        at = self.at
        last = LastExchange(self.name, self.job, self.survey, self.exchange)
        try:
            scores, spent = last.ask(at, self._may_forget())
        except Forgot as forgot:
            self._begin_again(forgot)
            return
        self.at = replace(at, spent=spent, rows=_with_total(at.rows, spent), held_out=scores)
        self._save()
        self._event("score", spent, scores.without, held_out=scores.plain())

    def _may_forget(self) -> bool:
        """Return whether clients that know nothing of the run may be told again how it began."""
        return self.reminded < self.at.number and keeps_nothing(self.job, self.at.x0, self.survey.n)

    def _begin_again(self, forgot: Forgot) -> None:
        """Tell clients that have lost their states, in which nothing was, how the run began; the exchange is to be
        asked for again, once.
        """
        at, nodes = self.at, self.survey.nodes
        first = FirstExchanges(self.name, self.job, self.exchange, lambda *_: None)
        first.spent = forgot.spent
        for i in forgot.clients:
            if first.begin_again(self.survey, at.x0, i, int(at.answered[i])) != at.lipschitz[i]:
                raise Stopped(f"node {nodes[i]} has lost its state, and its data have changed since the run began")
        self.reminded = at.number
        self.at = replace(at, spent=first.spent._replace(exchanges=at.spent.exchanges))
        self._save()
        self.folder.event(event="began again", nodes=[nodes[i] for i in forgot.clients])

    def _next(self, last: int) -> range:
        """Return the rounds of the next exchange, if there are ``last`` in the run."""
        first = self.at.spent.round + 1
        return range(first, min(first + self.algorithm.rounds_per_exchange, last + 1))

    def _proved(self, rows: list[dict[str, float]]) -> bool:
        return self.job.until is not None and bool(rows) and rows[-1]["certified_gap"] <= self.job.until

    def _recorded(self, k: int) -> bool:
        return k % self.job.every == 0 or k == self.job.rounds

    def _measured(self, at: Snapshot, found: RoundsResult, last: bool) -> Snapshot:
        """Return the run with rows for rounds whose objective is known now; its last row counts all that was spent."""
        if not at.pending:
            return at
        x, rows = at.x, list(at.rows)
        for one in at.pending:
            k = one.counters.round
            objectives = [found.objectives.get((k, candidate), np.nan) for candidate in range(len(one.models))]
            chosen = 0 if np.isnan(objectives).any() else int(np.argmin(objectives))
            x = one.models[chosen]
            rows.append(self._row(one, x, objectives[chosen], reported=True))
        proved = self._proved(rows)
        if last or proved:
            rows = _with_total(rows, at.spent)
        return replace(at, x=x, rows=rows, pending=[], proved=proved)

    def _row(self, one: Pending, x: Array, objective: float, reported: bool = False) -> dict[str, float]:
        """Return a row of the history.

        reported: clients told the objective, later than the row is of; an algorithm that proves did not know it then.
        """
        known = not (reported and self.algorithm.traits.proves)
        row = self.recorder.row_of(one.counters, x, objective, one.bound, known)
        return row | {"seconds": time.monotonic() - self.began}

    def _moved(self, at: Snapshot, server: Any, rounds: list[Task], found: RoundsResult) -> Snapshot:
        """Return the run after these rounds of the server."""
        working = found.working
        steps, subgradients, answered = at.steps.copy(), at.subgradients.copy(), at.answered.copy()
        answered[working] = at.number
        pending, rows, x, spent = [], list(at.rows), at.x, at.spent
        for wanted, seen in zip(rounds, found.rounds, strict=True):
            k = wanted.k
            steps[working] = at.steps[working] + seen.steps
            subgradients[working] = at.subgradients[working] + seen.subgradients
            with np.errstate(over="ignore", invalid="ignore"):
                server = self.algorithm.server_round(k, server, seen.up)
            spent = spent._replace(round=k, local_steps=int(steps.max()), subgradients=int(subgradients.sum()))
            if not wanted.asked:
                continue
            objective, bound = self._known(server, seen.cut)
            one = Pending(spent, self._models(k, server), bound)
            x = one.models[0]
            if np.isnan(objective) and self.survey.reports_objective:
                pending.append(one)
            else:
                rows.append(self._row(one, x, objective))
        return replace(
            at,
            proved=not pending and self._proved(rows),
            x=x,
            server=server,
            spent=spent,
            steps=steps,
            subgradients=subgradients,
            answered=answered,
            released=at.released + len(rounds),
            pending=pending,
            rows=rows,
            held_out=None,
        )

    def _models(self, k: int, server: Any) -> list[Array]:
        models = self.algorithm.model(server)
        found = list(models) if isinstance(models, tuple) else [models]
        if not all(np.isfinite(x).all() for x in found):
            raise Stopped(f"the run has diverged: the model of round {k} is not finite; take smaller steps")
        return found

    def _known(self, server: Any, cut: tuple[float, Array] | None) -> tuple[float, float]:
        """Return the objective, where the server knows it by itself (else NaN), and the lower bound, by itself or by
        the clients' cuts; -inf without a certificate.
        """
        if self.algorithm.traits.proves:
            objective = self.algorithm.objective(server)
            return objective, self.recorder.known(server)[0]
        if self.recorder.radius is None or cut is None:
            return np.nan, -np.inf
        return np.nan, least(self.survey, *cut, self.recorder.radius, self.at.x0)

    def _event(self, kind: str, spent: Counters, failed: dict[str, str], **more: Any) -> None:
        """Write a line on the exchange that was done. The objective is that of the last round for which it is known; if
        it came to be known for others too, these are there as well.
        """
        rows = self.at.rows if hasattr(self, "at") else []
        known: list[dict[str, Any]] = [
            {"measured_round": row["round"], **{name: row.get(name) for name in MEASURED}}
            for row in rows[self.told :] or rows[-1:]
        ]
        self.told = len(rows)
        last = known[-1] if known else {}
        measured = last | ({"also_measured": known[:-1]} if known[:-1] else {})
        seconds = round(time.monotonic() - self.began, 3)
        answered = self.exchange.answered
        self.folder.event(
            kind=kind, **spent._asdict(), **measured, seconds=seconds, failed=failed, answered=answered, **more
        )

    def _result(self, status: str) -> Result:
        import pandas as pd

        at, job = self.at, self.job
        history = pd.DataFrame(at.rows, columns=pd.Index(self.recorder.columns))
        history = history.astype(dict.fromkeys(Counters._fields, "int64"))
        run = Run(job.algorithm, job.seed, job.batch, at.x, history, None)
        epsilon = self._epsilon()
        about: dict[str, Any] = {"run": self.name, "status": status, "epsilon": epsilon}
        if at.held_out is not None:
            about["held_out"] = at.held_out.plain()
        self.folder.finish(self.survey, at.x, history, at.lipschitz, about)
        return Result(self.folder.path, run, tuple(self.survey.nodes), at.lipschitz, at.proved, epsilon, at.held_out)

    def _epsilon(self) -> float | None:
        """Return ε of what was released. While the run goes on, answers to its next exchange may be on their way."""
        if self.job.privacy is None:
            return None
        return self.job.privacy.epsilon(self.at.released + len(self._next(self.job.rounds)))


def _with_total(rows: list[dict[str, float]], spent: Counters) -> list[dict[str, float]]:
    """Return the rows of a history, the last of them with all that was sent."""
    total = spent._asdict()
    sent = {name: total[name] for name in total if name.startswith(("exchanges", "vectors", "bytes"))}
    return [*rows[:-1], *(row | sent for row in rows[-1:])]
