"""The client's side: answers messages from its own rows and from the state that it keeps on disk.

A node needs nothing but its configuration: it may stay in memory, or be made anew for every message. Its state folder
holds one file for each run, written whole or not at all: the state before and after the last message it worked on,
that message's digest, and the reply. A message delivered twice gets the same reply, and if the server never saw the
reply and went on without it, the node goes back to the state before.
"""

import hashlib
import json
import math
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedmls.checkpoint import whole_file
from fedmls.checks import is_sparse
from fedmls.engine import message_types
from fedmls.federation.data import (
    NodeConfig,
    Refused,
    Rows,
    check_numbers,
    column_sums,
    label_texts,
    prepared,
    read_rows,
    sorted_classes,
)
from fedmls.federation.job import Job
from fedmls.federation.messages import MEBIBYTE, Message, MessageError, decode, encode, fields, seal, unseal
from fedmls.federation.privacy import epsilon, noisy
from fedmls.local import RowsLocal
from fedmls.problem import Problem

try:
    import fcntl
except ImportError:  # not on Windows, where messages must come one at a time
    fcntl = None  # type: ignore[assignment]

MOST_BYTES = 1024 * MEBIBYTE
LOG, LEDGER = "errors.log", "privacy.jsonl"
LOST = "a new run from the last model is the way to go on"


class Node:
    """One client of a federation: ``Node(config).answer(message)`` for a configuration or its file."""

    def __init__(self, config: NodeConfig | str | Path) -> None:
        self.config = config if isinstance(config, NodeConfig) else NodeConfig.read(config)
        self.name = self.config.name
        self._read: tuple[Any, Rows] | None = None
        self._problem: tuple[Any, Problem] | None = None

    def answer(self, message: bytes) -> bytes:
        """The reply. What goes wrong is told in a reply, too, in words that hold nothing of a row."""
        asked = Message("refused", "unknown", 0, 0, {})
        try:
            asked = decode(message, MOST_BYTES)
            kinds: dict[str, Callable[[Message, bytes], bytes]] = {
                "survey": self._survey,
                "begin": self._begin,
                "round": self._round,
            }
            if asked.kind not in kinds:
                raise Refused(f"a node answers no message of the kind {asked.kind!r}")
            with self._alone():
                return kinds[asked.kind](asked, message)
        except (Refused, MessageError) as error:
            why = str(error)
        except Exception as error:
            self._log(error)
            why = f"it failed ({type(error).__name__}); its file {LOG} says more"
        return encode(asked._replace(kind="refused", body={"why": why}))

    def _survey(self, asked: Message, message: bytes) -> bytes:
        """What is safe to share: how many rows, which columns, which labels, and column sums if they are needed."""
        job = _job(asked.body["job"])
        self._check_privacy(job)
        rows, classes = self._rows(), None
        if job.get_loss().is_classification:
            classes = sorted_classes(sorted({*label_texts(rows.y)}))
            if len(classes) > 2:
                raise Refused(f"its label column has {len(classes)} values, and the {job.loss} loss takes two")
        else:
            check_numbers(rows.y)
        sums: tuple[Any, ...] = (None, None, None)
        if job.impute or job.standardise:
            sums = column_sums(rows, self.config.min_rows)
        elif np.isnan(rows.X.data if is_sparse(rows.X) else rows.X).any():
            raise Refused("its rows have missing values; fill them in, or set impute")
        body = {
            "rows": rows.X.shape[0],
            "columns": list(rows.columns),
            "classes": classes,
            **dict(zip(("counts", "sums", "squares"), sums, strict=True)),
            "reports_objective": self.config.report_objective,
        }
        if not job.standardise:
            body["squares"] = None
        return encode(asked._replace(kind="surveyed", body=body))

    def _begin(self, asked: Message, message: bytes) -> bytes:
        """The run begins: the state of a client before round 1."""
        digest, kept = hashlib.sha256(message).hexdigest(), self._load(asked.run, missing_is_fine=True)
        if kept is not None:
            if kept.body["digest"] == digest:
                return bytes(kept.body["reply"])
            raise Refused(f"the run {asked.run} has begun here already")
        job = _job(asked.body["job"])
        self._check_privacy(job, begins=asked.run)
        problem = self._problem_of(asked)
        _, client = job.algorithm.init(asked.body["start"], asked.body["n"])
        local = self._local(asked.body, problem)
        G = float(problem.lipschitz()[0]) if job.privacy is None else math.inf
        reply = encode(asked._replace(kind="begun", body={"lipschitz": G}))
        state = _snapshot(client, local)
        body = {
            "begin": asked.body,
            "fingerprint": problem.fingerprint,
            "digest": digest,
            "reply": reply,
            "before": state,
            "before_exchange": asked.exchange,
            "after": state,
            "released": 0,
        }
        self._save(asked._replace(kind="state", body=body))
        return reply

    def _round(self, asked: Message, message: bytes) -> bytes:
        """The rounds that are asked for, and f_i at the points."""
        kept = self._load(asked.run)
        assert kept is not None
        begin, digest = kept.body["begin"], hashlib.sha256(message).hexdigest()
        if asked.body["rounds"] and kept.exchange == asked.exchange and kept.body["digest"] == digest:
            return bytes(kept.body["reply"])
        problem = self._problem_of(asked._replace(body=begin), kept.body["fingerprint"])
        if asked.body["points"]:
            self._check_objective(_job(begin["job"]))
        values = _values(asked.body["points"], problem)
        if not asked.body["rounds"]:  # nothing changes, so nothing is kept
            return encode(asked._replace(kind="done", body={"rounds": [], "values": values}))
        before, before_exchange = _state_after(kept, asked)
        job, local = _job(begin["job"]), self._local(begin, problem, before)
        released = kept.body["released"] + len(asked.body["rounds"])
        if job.privacy is not None and released > job.rounds:
            raise Refused(f"it has answered {job.rounds} rounds of the run {asked.run}, for which its ε was told")
        client, done = _work(job, begin, before, local, asked.body["rounds"])
        compact = job.algorithm.traits.packed is not None
        reply = encode(asked._replace(kind="done", body={"rounds": done, "values": values}), compact)
        body = {
            **kept.body,
            "digest": digest,
            "reply": reply,
            "before": before,
            "before_exchange": before_exchange,
            "after": _snapshot(client, local),
            "released": released,
        }
        self._save(asked._replace(kind="state", body=body))
        return reply

    def _check_objective(self, job: Job) -> None:
        if not (self.config.report_objective and job.report_objective):
            raise Refused("it does not tell its objective (report_objective = false)")

    def _check_privacy(self, job: Job, begins: str | None = None) -> None:
        """Refuse what costs more than the configuration allows; of a run that begins a note is kept."""
        limit = self.config.max_epsilon
        if job.privacy is None:
            if limit is not None:
                raise Refused("it takes part only in runs with privacy (max_epsilon)")
            return
        file = self.config.state / LEDGER
        noted = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        this = {"run": begins, "noise": job.privacy.noise, "rounds": job.rounds}
        if limit is not None:
            spent = _epsilon([*noted, this], self.config.delta)
            if spent > limit:
                raise Refused(
                    f"with this run its ε would be {spent:.3g}, and at most {limit:g} is allowed (max_epsilon)"
                )
        if begins is not None:
            with whole_file(file) as stream:
                stream.write("".join(json.dumps(one) + "\n" for one in [*noted, this]).encode())

    def _local(self, begin: dict[str, Any], problem: Problem, state: dict[str, Any] | None = None) -> RowsLocal:
        job = _job(begin["job"])
        local = problem.local_as(begin["client"], begin["n"], begin["weight"], seed=job.seed, batch=job.batch)
        if job.certificate is not None:
            local.certify()
        if state is not None:
            local.slopes, local.subgradients = state["slopes"], state["subgradients"]
            local.steps[:] = state["steps"]
        return local

    def _rows(self) -> Rows:
        """The rows of the file, read again only when it has changed."""
        stamp = _stamp(self.config.data)
        if self._read is None or self._read[0] != stamp:
            self._read = stamp, read_rows(self.config)
        return self._read[1]

    def _problem_of(self, begin: Message, fingerprint: str | None = None) -> Problem:
        """The node's own problem; with a fingerprint, the same as when the run began."""
        key = begin.run, _stamp(self.config.data)
        if self._problem is None or self._problem[0] != key:
            rows, body = self._rows(), begin.body
            job = _job(body["job"])
            X = prepared(rows, body["columns"], body["means"], body["scales"])
            problem = Problem(
                X,
                rows.y if body["classes"] is None else label_texts(rows.y),
                loss=job.get_loss(),
                intercept=job.intercept,
                l2=job.l2,
                l1=job.l1,
                reduction=job.reduction,
                classes=body["classes"],
            )
            self._problem = key, problem
        problem = self._problem[1]
        if fingerprint is not None and problem.fingerprint != fingerprint:
            self._problem = None
            raise Refused(f"its data have changed since the run began; {LOST}")
        return problem

    def _load(self, run: str, missing_is_fine: bool = False) -> Message | None:
        file = self._file(run)
        try:
            data = file.read_bytes()
            return decode(unseal(data), limit=max(len(data), MEBIBYTE))
        except FileNotFoundError:
            if missing_is_fine:
                return None
            raise Refused(f"it has no state of the run {run}: the file {file.name} is not there; {LOST}") from None
        except MessageError as error:
            raise Refused(f"its state of the run {run} is damaged ({error}); {LOST}") from None

    def _save(self, state: Message) -> None:
        with whole_file(self._file(state.run)) as stream:
            stream.write(seal(encode(state)))

    def _file(self, run: str) -> Path:
        return self.config.state / f"{run}.state"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One message at a time, whoever works on it: a slow answer must not overwrite the state of a later one."""
        self.config.state.mkdir(parents=True, exist_ok=True)
        with (self.config.state / "lock").open("w") as lock:
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _log(self, error: Exception) -> None:
        self.config.state.mkdir(parents=True, exist_ok=True)
        with (self.config.state / LOG).open("a", encoding="utf-8") as log:
            log.write("".join(traceback.format_exception(error)) + "\n")


def _job(values: Any) -> Job:
    try:
        return Job.from_dict(values)
    except (ValueError, TypeError, AttributeError) as error:
        raise Refused(f"it cannot read the job: {error}") from None


def _epsilon(runs: list[dict[str, Any]], delta: float) -> float:
    try:
        return epsilon([(run["noise"], run["rounds"]) for run in runs], delta)
    except ValueError as error:
        raise Refused(str(error)) from None


def _values(points: Any, problem: Problem) -> list[dict[str, Any]]:
    values = []
    for point in points:
        fields("a point", point, {"k", "candidate", "x"})
        values.append({"k": point["k"], "candidate": point["candidate"], "value": problem.value(point["x"])})
    return values


def _snapshot(client: Any, local: RowsLocal) -> dict[str, Any]:
    return {
        "client": client._asdict(),
        "slopes": local.slopes,
        "steps": int(local.steps[0]),
        "subgradients": local.subgradients,
    }


def _state_after(kept: Message, asked: Message) -> tuple[dict[str, Any], int]:
    """The state after the exchange that the server knows of, and that exchange."""
    after = asked.body["after"]
    if kept.exchange == after:
        return kept.body["after"], after
    if kept.body["before_exchange"] == after:  # the reply to the last message never arrived
        return kept.body["before"], after
    raise Refused(
        f"its state of the run {kept.run} is that after exchange {kept.exchange}, and the server knows of exchange "
        f"{after}: the file was replaced by another; {LOST}"
    )


def _work(
    job: Job, begin: dict[str, Any], before: dict[str, Any], local: RowsLocal, rounds: Any
) -> tuple[Any, list[dict[str, Any]]]:
    """The client's state after the rounds, and what it sends."""
    algorithm = job.algorithm
    down_type, _ = message_types(algorithm)
    _, fresh = algorithm.init(begin["start"], begin["n"])
    client, done = fresh._replace(**before["client"]), []
    for wanted in rounds:
        fields("a round", wanted, {"k", "down", "asked"})
        k, down = wanted["k"], fields("what is sent down", wanted["down"], down_type._fields)
        local.begin(k)
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                client, up = algorithm.client_round(k, client, down_type(**down), local)
        except ValueError as error:  # of the algorithm and its parameters
            raise Refused(f"it cannot work on round {k}: {error}") from None
        sent = up._asdict()
        for name in () if wanted["asked"] else algorithm.traits.on_demand:
            del sent[name]
        if job.privacy is not None:
            sent = noisy(job.privacy, algorithm.name, sent, down)
        cut = None
        if wanted["asked"] and job.certificate is not None:
            a, p = local.problem.cut(local.slopes)
            cut = {"a": a, "p": p}
        done.append({"k": k, "up": sent, "cut": cut, "steps": int(local.steps[0]), "subgradients": local.subgradients})
    return client, done


def _stamp(file: Path) -> Any:
    try:
        about = file.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size
