"""What travels between server and nodes, and what both keep on disk: a class for each kind of message.

A message is a MessagePack map with the keys of its header (``schema``, ``run``, ``exchange``, ``round``, ``kind``) and
``body``, whose keys are the fields of the kind's class, in their order. :func:`encode` and :func:`decode` are the only
places where a class becomes a map and a map a class. :func:`decode` checks every field's type, so that what the rest of
the package reads is what the annotations say; sizes and values are checked by those who know what they asked for
(:mod:`fedmls.federation.server.replies`, :mod:`fedmls.federation.node`).

A field with the default None came later than the others. It is left out of the map where it is None, so that messages
and files without it are read and written as they were.
"""

import math
import re
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from fedmls.checks import real
from fedmls.federation.codec import MEBIBYTE, MessageError, check_plain, fields, pack, unpack
from fedmls.types import Array

SCHEMA = 1
HEADER = ("schema", "run", "exchange", "round", "kind", "body")
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

# The server's questions, and a node's answers


class Survey(NamedTuple):
    """Asks a node what it has, for this job."""

    job: dict[str, Any]


class Surveyed(NamedTuple):
    """How many rows a node has, its columns and labels, and column sums if the job needs them.

    counts, sums, squares: for each column, how many values, their sum, and their squared distances to their mean.
    key: its public key, if sums are secure.
    label: the name of its label column.  levels: of its columns of categories, those that at least ``min_rows`` rows
    have; none for a column without a value.  level_counts: how many rows have each, if the job needs it.
    """

    rows: int
    columns: list[str]
    classes: list[str] | None
    counts: Any  # int64
    sums: Array | None
    squares: Array | None
    reports_objective: bool
    key: bytes | None
    label: str | None = None
    levels: dict[str, list[str]] | None = None
    level_counts: dict[str, list[int]] | None = None


class Sums(NamedTuple):
    """Asks for column sums under masks; with means, for the squared distances to them.

    columns, levels: as when the run begins.
    """

    job: dict[str, Any]
    keys: list[bytes]
    columns: list[str]
    means: Array | None
    client: int
    levels: dict[str, list[str]] | None = None


class Begin(NamedTuple):
    """Begins the run at a node, which is client number ``client`` of n.

    keys: the public keys of all nodes, if sums are secure.
    columns: those of the rows as they are prepared, where each level of a category has its own.
    levels: those of each column of categories that all nodes together have.
    """

    job: dict[str, Any]
    n: int
    keys: list[bytes] | None
    columns: list[str]
    classes: list[str] | None
    means: Array
    scales: Array | None
    start: Array
    client: int
    weight: float
    levels: dict[str, list[str]] | None = None


class Begun(NamedTuple):
    lipschitz: float  # G_i, which may be infinite


class Task(NamedTuple):
    """A round to work on: what the algorithm sends down, and whether the round is recorded."""

    k: int
    down: dict[str, Any]
    asked: bool


class Point(NamedTuple):
    """A model at which f_i is asked for: that of round k, or one of several candidates."""

    k: int
    candidate: int
    x: Array


class Round(NamedTuple):
    """Asks for rounds, and for f_i at points.

    after: the last exchange whose answer the server has used: the node goes on from its state after it.
    among: if sums are secure, the clients of the sum, each with its own ``after``.
    """

    after: int
    rounds: list[Task]
    points: list[Point]
    among: list[tuple[int, int]] | None


class Cut(NamedTuple):
    """A lower bound on f_i: a + p·x."""

    a: float
    p: Array


class Upload(NamedTuple):
    """One round of a client: the fields of the algorithm's Up, a cut if one is due, and the work done in the exchange
    so far.
    """

    k: int
    up: dict[str, Any]
    cut: Cut | None
    steps: int
    subgradients: int


class Value(NamedTuple):
    """f_i at a point."""

    k: int
    candidate: int
    value: float


class Done(NamedTuple):
    rounds: list[Upload]
    values: list[Value]


class Work(NamedTuple):
    """What the server can read of a round under masks."""

    k: int
    steps: int
    subgradients: int


class Masked(NamedTuple):
    """The same as :class:`Done`, or column sums, as numbers under masks (int64); None where nothing was asked for."""

    rounds: list[Work]
    uploads: Any
    values: Any


class Score(NamedTuple):
    """Asks for the scores of a model on the rows that a node holds out."""

    x: Array


class Scored(NamedTuple):
    """Sums over these rows (:mod:`fedmls.federation.scores`); if sums are secure they are :class:`Masked` instead."""

    sums: Array


class Refusal(NamedTuple):
    """Why a node does not answer; None if what it said is no text."""

    why: str | None


class Forgotten(NamedTuple):
    """Why a node does not answer: it knows nothing of the run."""

    why: str | None


# Files


class ClientState(NamedTuple):
    """A client between two exchanges: the algorithm's own state, and what its local work has left."""

    client: dict[str, Any]
    slopes: Any
    steps: int
    subgradients: int


class RunFile(NamedTuple):
    """What a node keeps of a run; the header's exchange is the last one that it was asked in.

    data: a fingerprint of the rows in its file.  answered: what it was asked in that exchange, by name, as digests.
    terms: what the run may not change, by name, as digests.
    begin: what it was told when the run began; None before.  problem: a fingerprint of the rows as they were prepared.
    before, after: the client's state before and after the last rounds, and of which exchange each is.  done: what came
    of these rounds.  released: how many rounds it has answered.
    """

    data: str
    answered: dict[str, str]
    terms: dict[str, str]
    begin: Begin | None
    problem: str
    before: ClientState | None
    before_exchange: int
    after: ClientState | None
    after_exchange: int
    done: list[Upload]
    released: int


class CheckpointFile(NamedTuple):
    """What the server keeps of a run: its job, and the plain values of its survey and of its snapshot."""

    job: dict[str, Any]
    survey: dict[str, Any]
    at: dict[str, Any]


Body = (  # what a message may hold
    Survey
    | Surveyed
    | Sums
    | Begin
    | Begun
    | Round
    | Done
    | Masked
    | Score
    | Scored
    | Refusal
    | Forgotten
    | RunFile
    | CheckpointFile
)
PARTS = (Begin, Task, Point, Cut, Upload, Value, Work, ClientState)  # classes within a body
KINDS: dict[type[Any], str] = {
    Survey: "survey",
    Surveyed: "surveyed",
    Sums: "sums",
    Begin: "begin",
    Begun: "begun",
    Round: "round",
    Done: "done",
    Masked: "masked",
    Score: "score",
    Scored: "scored",
    Refusal: "refused",
    Forgotten: "forgotten",
    RunFile: "state",
    CheckpointFile: "checkpoint",
}
FIELDS: dict[str, frozenset[str]] = {kind: frozenset(body._fields) for body, kind in KINDS.items()}
OPTIONAL: dict[str, frozenset[str]] = {kind: frozenset(body._field_defaults) for body, kind in KINDS.items()}

B = TypeVar("B", bound=Body, covariant=True)
R = TypeVar("R", bound=Body)


class Message(NamedTuple, Generic[B]):
    run: str
    exchange: int
    round: int
    body: B

    @property
    def kind(self) -> str:
        return KINDS[type(self.body)]

    def reply(self, body: R) -> "Message[R]":
        """Return an answer to this message."""
        return Message(self.run, self.exchange, self.round, body)


def encode(message: Message[Body], whole: bool = False, compact: bool = False) -> bytes:
    """Return the message as bytes. whole, compact: write arrays shorter, and exactly (:func:`.codec.pack`)."""
    run, exchange, k, body = message
    return pack_envelope(Envelope(message.kind, run, exchange, k, plain(as_map(body))), whole, compact)


def decode(data: bytes, limit: int = 256 * MEBIBYTE, arrays: int | None = None, own: bool = False) -> Message[Body]:
    """Return the message in the bytes, of which there may be at most ``limit``; raise nothing but a MessageError.

    arrays: how many bytes all its arrays may take together; ``limit`` unless given.  own: a file of ours, of which
    nothing need be counted.
    """
    kind, run, exchange, k, body = unpack_envelope(data, limit, arrays, own)
    return Message(run, exchange, k, READERS[kind](body))


class Envelope(NamedTuple):
    """A message whose body is still a map."""

    kind: str
    run: str
    exchange: int
    round: int
    body: dict[str, Any]


def pack_envelope(envelope: Envelope, whole: bool = False, compact: bool = False) -> bytes:
    kind, run, exchange, k, body = envelope
    message = {"schema": SCHEMA, "run": run, "exchange": exchange, "round": k, "kind": kind, "body": body}
    return pack(message, whole, compact)


def unpack_envelope(data: bytes, limit: int = 256 * MEBIBYTE, arrays: int | None = None, own: bool = False) -> Envelope:
    """Return the header of the message in the bytes, checked, and its body, of which the keys are checked."""
    whole = unpack(data, limit, limit if arrays is None else arrays, own)
    if not isinstance(whole, dict) or tuple(sorted(whole)) != tuple(sorted(HEADER)):
        raise MessageError("no message: the header is not that of a message")
    schema = whole["schema"]
    if type(schema) is not int or schema != SCHEMA:
        raise MessageError(f"a message of schema {schema!r:.60}, not {SCHEMA}: install the same fedmls everywhere")
    check_plain(whole)
    kind, run, body = whole["kind"], whole["run"], whole["body"]
    if not isinstance(kind, str) or kind not in FIELDS:
        raise MessageError(f"a message of unknown kind {kind!r:.60}")
    if not isinstance(run, str) or not RUN_NAME.fullmatch(run):
        raise MessageError(f"a message of run {run!r:.60}, which is no name of a run")
    for name in ("exchange", "round"):
        if type(whole[name]) is not int or not 0 <= whole[name] < 2**62:
            raise MessageError(f"a message of {name} {whole[name]!r:.60}, which is no whole number")
    if not isinstance(body, dict):
        raise MessageError("a message without a body")
    fields("a message", body, FIELDS[kind], OPTIONAL[kind])
    return Envelope(kind, run, whole["exchange"], whole["round"], body)


def as_map(body: Any) -> dict[str, Any]:
    """Return the fields of one of the classes above by name, without later ones that are None."""
    later = body._field_defaults
    return {name: value for name, value in body._asdict().items() if value is not None or name not in later}


def plain(value: Any) -> Any:
    """Return the value with maps in the place of the classes above."""
    if isinstance(value, PARTS):
        return {name: plain(part) for name, part in as_map(value).items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return value


# Fields of a body, each checked for its type


def array(name: str, value: Any, dtype: str = "float64") -> Any:
    if not isinstance(value, np.ndarray) or value.dtype != dtype:
        raise MessageError(f"{name} is no array of {dtype}")
    return value


def number(name: str, value: Any) -> float:
    if type(value) is not float or not math.isfinite(value):
        raise MessageError(f"{name} is {value!r:.60}, which is no finite number")
    return value


def count(name: str, value: Any, least: int = 0) -> int:
    if type(value) is not int or not least <= value < 2**62:
        raise MessageError(f"{name} is {value!r:.60}, which is no whole number of at least {least}")
    return value


def texts(name: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise MessageError(f"{name} is no list of names")
    return value


def _levels(name: str, value: Any) -> dict[str, list[str]]:
    return {column: texts(f"one of {name}", known) for column, known in _map(name, value).items()}


def _level_counts(name: str, value: Any) -> dict[str, list[int]]:
    found = _map(name, value).items()
    return {column: [count(name, one, 1) for one in _list(f"one of {name}", counts)] for column, counts in found}


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise MessageError(f"{name} is no text")
    return value


def _truth(name: str, value: Any) -> bool:
    if type(value) is not bool:
        raise MessageError(f"{name} is no truth value")
    return value


def _map(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MessageError(f"{name} is no map of fields")
    return value


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise MessageError(f"{name} is no list")
    return value


def _key(name: str, value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise MessageError(f"{name} is no public key")
    return value


def _keys(value: Any) -> list[bytes]:
    return [_key("one of keys", one) for one in _list("keys", value)]


def _weight(value: Any) -> float:
    weight = real(value)
    if weight is None or not 0 < weight <= 1:
        raise MessageError(f"its weight is told to be {value!r:.20}, which is not between 0 and 1")
    return weight


T = TypeVar("T")


def _unless_none(check: Callable[..., T], name: str, value: Any, *more: Any) -> T | None:
    return None if value is None else check(name, value, *more)


# Bodies. Their keys are those of their classes: unpack_envelope has seen to that.


def _survey(body: dict[str, Any]) -> Survey:
    return Survey(_map("job", body["job"]))


def _surveyed(body: dict[str, Any]) -> Surveyed:
    return Surveyed(
        count("rows", body["rows"], 1),
        texts("columns", body["columns"]),
        _unless_none(texts, "classes", body["classes"]),
        _unless_none(array, "counts", body["counts"], "int64"),
        _unless_none(array, "sums", body["sums"]),
        _unless_none(array, "squares", body["squares"]),
        _truth("reports_objective", body["reports_objective"]),
        _unless_none(_key, "key", body["key"]),
        _unless_none(_text, "label", body.get("label")),
        _unless_none(_levels, "levels", body.get("levels")),
        _unless_none(_level_counts, "level_counts", body.get("level_counts")),
    )


def _sums(body: dict[str, Any]) -> Sums:
    return Sums(
        _map("job", body["job"]),
        _keys(body["keys"]),
        texts("columns", body["columns"]),
        _unless_none(array, "means", body["means"]),
        count("client", body["client"]),
        _unless_none(_levels, "levels", body.get("levels")),
    )


def _begin(body: dict[str, Any]) -> Begin:
    return Begin(
        _map("job", body["job"]),
        count("n", body["n"], 1),
        None if body["keys"] is None else _keys(body["keys"]),
        texts("columns", body["columns"]),
        _unless_none(texts, "classes", body["classes"]),
        array("means", body["means"]),
        _unless_none(array, "scales", body["scales"]),
        array("start", body["start"]),
        count("client", body["client"]),
        _weight(body["weight"]),
        _unless_none(_levels, "levels", body.get("levels")),
    )


def _begun(body: dict[str, Any]) -> Begun:
    G = body["lipschitz"]
    if type(G) is not float or not G >= 0:
        raise MessageError(f"lipschitz is {G!r:.60}, which is no number of at least 0")
    return Begun(G)


def _round(body: dict[str, Any]) -> Round:
    return Round(
        count("after", body["after"]),
        [_task(one) for one in _list("rounds", body["rounds"])],
        [_point(one) for one in _list("points", body["points"])],
        _unless_none(_pairs, "among", body["among"]),
    )


def _task(found: Any) -> Task:
    fields("a round", found, Task._fields)
    down = _map("what is sent down", found["down"])
    return Task(count("k", found["k"], 1), down, _truth("asked", found["asked"]))


def _point(found: Any) -> Point:
    fields("a point", found, Point._fields)
    return Point(count("k", found["k"]), count("candidate", found["candidate"]), array("x", found["x"]))


def _pairs(name: str, value: Any) -> list[tuple[int, int]]:
    pairs = _list(name, value)
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(one, int) for one in pair):
            raise MessageError(f"{name} is no list of pairs of whole numbers")
    return [(client, after) for client, after in pairs]


def _done(body: dict[str, Any]) -> Done:
    uploads = [_upload(one) for one in _list("rounds", body["rounds"])]
    return Done(uploads, [_value(one) for one in _list("values", body["values"])])


def _upload(found: Any) -> Upload:
    fields("a round", found, Upload._fields)
    return Upload(
        count("k", found["k"]),
        _map("an upload", found["up"]),
        _unless_none(_cut, "a cut", found["cut"]),
        count("steps", found["steps"]),
        count("subgradients", found["subgradients"]),
    )


def _cut(name: str, found: Any) -> Cut:
    fields(name, found, Cut._fields)
    return Cut(number("a", found["a"]), array("p", found["p"]))


def _value(found: Any) -> Value:
    fields("a value", found, Value._fields)
    value = number("value", found["value"])
    return Value(count("k", found["k"]), count("candidate", found["candidate"]), value)


def _masked(body: dict[str, Any]) -> Masked:
    return Masked(
        [_work(one) for one in _list("rounds", body["rounds"])],
        _unless_none(array, "uploads", body["uploads"], "int64"),
        _unless_none(array, "values", body["values"], "int64"),
    )


def _work(found: Any) -> Work:
    fields("a round", found, Work._fields)
    return Work(*(count(name, found[name]) for name in Work._fields))


def _score(body: dict[str, Any]) -> Score:
    return Score(array("x", body["x"]))


def _scored(body: dict[str, Any]) -> Scored:
    return Scored(array("sums", body["sums"]))


def _refusal(body: dict[str, Any]) -> Refusal:
    return Refusal(_text_or_none(body["why"]))


def _forgotten(body: dict[str, Any]) -> Forgotten:
    return Forgotten(_text_or_none(body["why"]))


def _text_or_none(why: Any) -> str | None:
    return why if isinstance(why, str) else None


def _run_file(body: dict[str, Any]) -> RunFile:
    begin = body["begin"]
    return RunFile(
        _text("data", body["data"]),
        _map("answered", body["answered"]),
        _map("terms", body["terms"]),
        None if begin is None else _begin(fields("begin", begin, Begin._fields, Begin._field_defaults)),
        _text("problem", body["problem"]),
        _unless_none(_client_state, "before", body["before"]),
        count("before_exchange", body["before_exchange"]),
        _unless_none(_client_state, "after", body["after"]),
        count("after_exchange", body["after_exchange"]),
        [_upload(one) for one in _list("done", body["done"])],
        count("released", body["released"]),
    )


def _client_state(name: str, found: Any) -> ClientState:
    fields(name, found, ClientState._fields)
    client, slopes = _map("client", found["client"]), found["slopes"]
    return ClientState(client, slopes, count("steps", found["steps"]), count("subgradients", found["subgradients"]))


def _checkpoint(body: dict[str, Any]) -> CheckpointFile:
    return CheckpointFile(_map("job", body["job"]), _map("survey", body["survey"]), _map("at", body["at"]))


READERS: dict[str, Callable[[dict[str, Any]], Body]] = {
    "survey": _survey,
    "surveyed": _surveyed,
    "sums": _sums,
    "begin": _begin,
    "begun": _begun,
    "round": _round,
    "done": _done,
    "masked": _masked,
    "score": _score,
    "scored": _scored,
    "refused": _refusal,
    "forgotten": _forgotten,
    "state": _run_file,
    "checkpoint": _checkpoint,
}
