"""The client's side: answers messages from its own rows and from the state that it keeps on disk.

A node needs nothing but its configuration: it may stay in memory, or be made anew for every message. Its state folder
holds one file for each run (:mod:`fedmls.federation.node_state`), written before a reply leaves. A message delivered
twice gets the same reply; if the server never saw the reply and went on without it, the node goes back to the state
before; and a message that comes after a later one is not answered.
"""

import json
import math
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedmls.checkpoint import whole_file
from fedmls.checks import is_sparse, real
from fedmls.engine import ServerRandom, drawn
from fedmls.federation import replies, secure, work
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
from fedmls.federation.job import Job, reveals_objective
from fedmls.federation.locks import alone
from fedmls.federation.messages import MEBIBYTE, Message, MessageError, decode, encode
from fedmls.federation.node_state import LOST, RunState, StateFolder, fingerprint
from fedmls.federation.privacy import check_installed, epsilon
from fedmls.federation.survey import squares_around
from fedmls.local import RowsLocal
from fedmls.problem import Problem
from fedmls.types import Array

MOST_BYTES = 1024 * MEBIBYTE
LOG, LEDGER = "errors.log", "privacy.jsonl"


class Node:
    """One client of a federation: ``Node(config).answer(message)`` for a configuration or its file."""

    def __init__(self, config: NodeConfig | str | Path) -> None:
        self.config = config if isinstance(config, NodeConfig) else NodeConfig.read(config)
        self.name = self.config.name
        self.state = StateFolder(self.config.state)
        self._read: tuple[Any, Rows] | None = None
        self._problem: tuple[Any, Problem] | None = None

    def answer(self, message: bytes) -> bytes:
        """The reply. What goes wrong is told in a reply, too, in words that hold nothing of a row."""
        asked = Message("refused", "unknown", 0, 0, {})
        try:
            asked = decode(message, MOST_BYTES, len(message))
            kinds: dict[str, Callable[[Message], bytes]] = {
                "survey": self._survey,
                "sums": self._sums,
                "begin": self._begin,
                "round": self._round,
            }
            if asked.kind not in kinds:
                raise Refused(f"a node answers no message of the kind {asked.kind!r}")
            self.state.make()
            with alone(self.config.state / "lock", wait=True):  # a slow answer must not overwrite a later state
                return kinds[asked.kind](asked)
        except (Refused, MessageError) as error:
            why = str(error)
        except Exception as error:
            why = self._failed(error)
        return encode(asked._replace(kind="refused", body={"why": why}))

    def surveyed(self, job: Job) -> dict[str, Any]:
        """What is safe to share: how many rows, which columns, which labels, and column sums if they are needed."""
        self._check_terms(job)
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
            "key": secure.public_key(self._key()) if job.secure else None,
        }
        if not job.standardise:
            body["squares"] = None
        if job.secure:  # they are told later, masked
            body |= {"counts": None, "sums": None, "squares": None}
        return body

    def _survey(self, asked: Message) -> bytes:
        body = self.surveyed(_job(asked.body["job"]))
        self._opening(asked)
        return encode(asked._replace(kind="surveyed", body=body))

    def _sums(self, asked: Message) -> bytes:
        """Column sums, masked: of values and how many they are; if the means are known, of squares and whether any."""
        body, job = asked.body, _job(asked.body["job"])
        self._check_terms(job)
        if not (job.secure and (job.impute or job.standardise)):
            raise Refused("it is asked for column sums that the job has no need of")
        rows = self._rows()
        order = [rows.columns.index(column) for column in body["columns"]]
        counts, sums, squares = (each[order] for each in column_sums(rows, self.config.min_rows))
        told = np.concatenate([counts, sums])
        if body["means"] is not None:
            around = squares_around(body["means"], counts, sums, squares)
            told = np.concatenate([around, around > 0])
        words = self._hidden(asked, body, told, list(range(len(body["keys"]))))
        self._opening(asked, {"sums" if body["means"] is None else "squares": body["means"]})
        return encode(asked._replace(kind="masked", body={"rounds": [], "uploads": words, "values": None}))

    def _opening(self, asked: Message, terms: dict[str, Any] | None = None) -> RunState:
        """Keep that it was asked before round 1, and refuse what differs from what it was asked before."""
        data = fingerprint(self._rows())
        kept = self.state.load(asked.run) or RunState.new(asked.run, data)
        if kept.data != data:
            raise Refused(f"its data have changed since the run began; {LOST}")
        fixed = {name: asked.body[name] for name in ("job", "keys", "client", "columns") if name in asked.body}
        state = kept.asked(asked, {asked.kind: asked.body}, fixed | (terms or {}))
        if asked.kind != "begin" and state != kept:
            self.state.save(state)
        return state

    def _begin(self, asked: Message) -> bytes:
        """The run begins: the state of a client before round 1."""
        body, job, problem = asked.body, _job(asked.body["job"]), self._problem_of(asked)
        kept = self._opening(asked, {"begin": asked.body})
        G = math.inf if job.secure or job.privacy is not None else float(problem.lipschitz()[0])
        reply = encode(asked._replace(kind="begun", body={"lipschitz": G}))
        if kept.begin is not None:
            return reply
        self._check_terms(job, begins=asked.run)
        weight = real(body["weight"])
        if weight is None or not 0 < weight <= 1:
            raise Refused(f"its weight is told to be {body['weight']!r:.20}, which is not between 0 and 1")
        if job.secure and len(self._keys(body)[1]) != body["n"]:
            raise Refused(f"it is told {len(body['keys'])} keys of {body['n']} nodes")
        _, client = job.algorithm.init(body["start"], body["n"])
        state = work.snapshot(client, self._local(body, problem))
        self.state.save(
            kept._replace(
                begin=body, problem=problem.fingerprint, before=state, after=state, after_exchange=asked.exchange
            )
        )
        return reply

    def _round(self, asked: Message) -> bytes:
        """The rounds that are asked for, and f_i at the points."""
        kept = self.state.load(asked.run)
        if kept is None or kept.begin is None:
            file = self.state.file(asked.run).name
            why = f"it has no state of the run {asked.run}: the file {file} is not there; {LOST}"
            return encode(asked._replace(kind="forgotten", body={"why": why}))
        begin, body = kept.begin, asked.body
        job, problem = _job(begin["job"]), self._problem_of(asked._replace(body=begin), kept.problem)
        if body["points"]:
            self._check_objective(job)
        questions = {"points": body["points"]} if body["points"] else {}
        questions |= {"work": {"after": body["after"], "rounds": body["rounds"]}} if body["rounds"] else {}
        state = kept.asked(asked, questions, {})
        if body["rounds"] and not (kept.exchange == asked.exchange and "work" in kept.answered):
            state = self._worked(asked, state, job, problem)
        if state != kept:
            self.state.save(state)
        values, done = work.values(body["points"], problem), state.done if body["rounds"] else []
        if job.secure:
            return self._masked(asked, begin, job, done, values)
        compact = job.algorithm.traits.packed is not None
        return encode(asked._replace(kind="done", body={"rounds": done, "values": values}), compact)

    def _worked(self, asked: Message, state: RunState, job: Job, problem: Problem) -> RunState:
        """The state after these rounds."""
        begin, before = state.begin, state.client_after(asked.body["after"])
        assert begin is not None
        local = self._local(begin, problem, before)
        released = state.released + len(asked.body["rounds"])
        if job.privacy is not None and released > job.rounds:
            raise Refused(f"it has answered {job.rounds} rounds of the run {asked.run}, for which its ε was told")
        client, done = work.work(job, begin, before, local, asked.body["rounds"])
        return state._replace(
            done=done,
            before=before,
            before_exchange=asked.body["after"],
            after=work.snapshot(client, local),
            after_exchange=asked.exchange,
            released=released,
        )

    def _masked(self, asked: Message, begin: dict[str, Any], job: Job, done: Any, values: Any) -> bytes:
        """The reply of which the server can read nothing but sums. What it cannot check is checked here."""
        among, rounds, points = asked.body["among"], asked.body["rounds"], asked.body["points"]
        uploads, told, everyone = None, None, list(range(begin["n"]))
        if rounds:
            self._check_uploads(begin, job, done, rounds)
            clients = [client for client, _ in among]
            some = drawn(job.algorithm, begin["n"], ServerRandom(job.seed), rounds[0]["k"])
            size = begin["n"] if some is None else len(some)
            if sorted({*clients} & {*everyone}) != sorted(clients) or len(clients) != size:
                raise Refused(f"it is asked for a sum over clients {clients}, not over {size} of {begin['n']}")
            if [begin["client"], asked.body["after"]] not in among:
                raise Refused("it is asked for a sum without itself, or after another exchange than it is told")
            uploads = self._hidden(asked, begin, begin["weight"] * work.flat(done), clients, rounds, among)
        if points:
            own = begin["weight"] * np.array([value["value"] for value in values])
            told = self._hidden(asked, begin, own, everyone, points)
        did = [{name: one[name] for name in ("k", "steps", "subgradients")} for one in done]
        return encode(asked._replace(kind="masked", body={"rounds": did, "uploads": uploads, "values": told}))

    def _check_uploads(self, begin: dict[str, Any], job: Job, done: Any, rounds: Any) -> None:
        d, n = len(begin["start"]), begin["n"]
        shapes = replies.upload_shapes(job.algorithm, d, n, job.sends_cuts, job.max_norm)
        try:
            for one, wanted in zip(done, rounds, strict=True):
                replies.upload(one, wanted, shapes)
        except MessageError:  # its words say how long the upload is, and that is nobody's business
            raise Refused("its upload is not finite, or longer than max_norm; take smaller steps") from None

    def _hidden(self, asked: Message, begin: dict[str, Any], values: Array, among: list[int], *parts: Any) -> Any:
        """Numbers under the masks of these clients. The question: what all were told alike, and the parts."""
        key, keys = self._keys(begin)
        common = {name: value for name, value in begin.items() if name not in ("client", "weight")}
        question = secure.question(asked, common, *parts)
        try:
            return secure.masked(values, key, keys, begin["client"], among, question)
        except ValueError as error:
            raise Refused(str(error)) from None

    def _key(self) -> Any:
        try:
            return secure.private_key(self.config.key_file)
        except (ValueError, OSError) as error:
            raise Refused(f"it has no key for a secure run: {error}") from None

    def _keys(self, body: dict[str, Any]) -> tuple[Any, list[bytes]]:
        """Its own key, and the public ones of all nodes."""
        key = self._key()
        try:
            return key, secure.check_keys(body["keys"], body["client"], key, self.config.peers)
        except ValueError as error:
            raise Refused(f"it does not take part: {error}") from None

    def _check_objective(self, job: Job) -> None:
        if not (self.config.report_objective and job.report_objective):
            raise Refused("it does not tell its objective (report_objective = false)")

    def _check_terms(self, job: Job, begins: str | None = None) -> None:
        """Refuse what tells more than the configuration allows; of a run with privacy that begins a note is kept."""
        if self.config.peers is not None and not job.secure:
            raise Refused("it takes part only in secure runs (peers)")
        if not self.config.report_objective and (why := reveals_objective(job)):
            raise Refused(f"it does not tell its objective (report_objective = false), and {why}")
        limit = self.config.max_epsilon
        if job.privacy is None:
            if limit is not None:
                raise Refused("it takes part only in runs with privacy (max_epsilon)")
            return
        try:
            check_installed()
        except ValueError as error:
            raise Refused(str(error)) from None
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
            with whole_file(file, private=True) as stream:
                stream.write("".join(json.dumps(one) + "\n" for one in [*noted, this]).encode())

    def _local(self, begin: dict[str, Any], problem: Problem, state: dict[str, Any] | None = None) -> RowsLocal:
        job = _job(begin["job"])
        local = problem.local_as(begin["client"], begin["n"], begin["weight"], seed=job.seed, batch=job.batch)
        if job.sends_cuts:
            local.certify()
        if state is not None:
            local.slopes = state["slopes"]
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

    def _failed(self, error: Exception) -> str:
        """What may be told of an error that nobody has foreseen; the rest goes to the log."""
        with suppress(OSError):
            self.state.make()
            self.state.append(LOG, "".join(traceback.format_exception(error)) + "\n")
            return f"it failed ({type(error).__name__}); its file {LOG} says more"
        return f"it failed ({type(error).__name__}), and its state folder cannot be written"


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


def _stamp(file: Path) -> Any:
    try:
        about = file.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size
