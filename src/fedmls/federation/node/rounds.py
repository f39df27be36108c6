"""What a node does in an exchange with rounds: its state before and after, what it sends, f_i at given points."""

from typing import Any

import numpy as np

from fedmls.federation.codec import fields
from fedmls.federation.errors import Refused
from fedmls.federation.job import Job
from fedmls.federation.messages import (
    Begin,
    ClientState,
    Cut,
    Done,
    Forgotten,
    Message,
    Point,
    Round,
    Task,
    Upload,
    Value,
    encode,
)
from fedmls.federation.node.masks import masked_reply
from fedmls.federation.node.site import Site
from fedmls.federation.node.state import LOST, RunState
from fedmls.federation.privacy import noisy
from fedmls.local.client import RowsLocal
from fedmls.problem import Problem


def answer_round(site: Site, asked: Message[Round]) -> bytes:
    """Return the reply with the rounds that are asked for, and f_i at the points; keep the client's state before."""
    found, body = site.state.load(asked.run), asked.body
    if found is None or found.kept.begin is None:
        return encode(asked.reply(Forgotten(unknown_run(site, asked.run))))
    begin = found.kept.begin
    job, problem = site.job(begin.job), site.problem(asked.run, begin, found.kept.problem)
    if body.points:
        site.limits.check_objective(job)
    questions: dict[str, Any] = {"points": body.points} if body.points else {}
    questions |= {"work": {"after": body.after, "rounds": body.rounds}} if body.rounds else {}
    state = found.asked(asked, questions, {})
    if body.rounds and not (found.exchange == asked.exchange and "work" in found.kept.answered):
        state = _worked(asked, state, begin, job, problem)
    if state != found:
        site.state.save(state)
    values, done = _values(body.points, problem), state.kept.done if body.rounds else []
    if job.secure:
        return encode(asked.reply(masked_reply(site, asked, begin, job, done, values)))
    compact = job.algorithm.traits.packed is not None or job.algorithm.traits.short
    return encode(asked.reply(Done(done, values)), compact=compact)


def unknown_run(site: Site, run: str) -> str:
    """Return why the node cannot answer in a run that it knows nothing of."""
    return f"it has no state of the run {run}: the file {site.state.file(run).name} is not there; {LOST}"


def _worked(asked: Message[Round], state: RunState, begin: Begin, job: Job, problem: Problem) -> RunState:
    """Return the state after these rounds."""
    before = state.client_after(asked.body.after)
    local = local_of(begin, job, problem, before)
    released = state.kept.released + len(asked.body.rounds)
    if job.privacy is not None and released > job.rounds:
        raise Refused(f"it has answered {job.rounds} rounds of the run {asked.run}, for which its ε was told")
    client, done = _work(job, begin, before, local, asked.body.rounds)
    kept = state.kept._replace(
        done=done,
        before=before,
        before_exchange=asked.body.after,
        after=client_state(client, local),
        after_exchange=asked.exchange,
        released=released,
    )
    return state._replace(kept=kept)


def _work(
    job: Job, begin: Begin, before: ClientState, local: RowsLocal, rounds: list[Task]
) -> tuple[Any, list[Upload]]:
    """Return the client's state after the rounds, and what it sends."""
    algorithm = job.algorithm
    _, fresh = algorithm.init(begin.start, begin.n)
    client, done = fresh._replace(**before.client), []
    for k, sent_down, asked in rounds:
        down = fields("what is sent down", sent_down, algorithm.Down._fields)
        local.begin(k)
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                client, up = algorithm.client_round(k, client, algorithm.Down(**down), local)
        except ValueError as error:  # of the algorithm and its parameters
            raise Refused(f"it cannot work on round {k}: {error}") from None
        sent = up._asdict()
        for name in () if asked else algorithm.traits.on_demand:
            del sent[name]
        if job.secure:  # all numbers of a sum have the same width
            sent = {name: value.astype(float) for name, value in sent.items()}
        if job.privacy is not None:
            sent = noisy(job.privacy, algorithm.references, sent, down)
        cut = Cut(*local.problem.cut(local.cut_slopes)) if asked and job.sends_cuts else None
        done.append(Upload(k, sent, cut, int(local.steps[0]), local.subgradients))
    return client, done


def _values(points: list[Point], problem: Problem) -> list[Value]:
    """Return f_i at the points."""
    return [Value(point.k, point.candidate, problem.value(point.x)) for point in points]


def client_state(client: Any, local: RowsLocal) -> ClientState:
    """Return the client's state as the node keeps it."""
    return ClientState(client._asdict(), local.slopes, int(local.steps[0]), local.subgradients)


def local_of(begin: Begin, job: Job, problem: Problem, state: ClientState | None = None) -> RowsLocal:
    """Return the client's local work on its rows, as it was in this state."""
    local = problem.local_as(begin.client, begin.n, begin.weight, seed=job.seed, batch=job.batch)
    if job.sends_cuts:
        local.certify()
    if state is not None:
        local.slopes = state.slopes
    return local
