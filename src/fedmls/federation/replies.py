"""Checks of every reply before it is used: size, header, fields, shapes, finite numbers, norms.

A reply that fails one is a :class:`fedmls.federation.messages.MessageError`; a node that says itself why it does not
answer is a :class:`NodeRefused`. Nothing of either is used, and nothing else is raised, whatever the reply is.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from fedmls.engine import message_types
from fedmls.federation.job import Job
from fedmls.federation.messages import MEBIBYTE, Message, MessageError, decode, fields, printable
from fedmls.problem import Problem
from fedmls.types import Algorithm, Array

SURVEY_LIMIT = 64 * MEBIBYTE  # columns and their sums, of which nobody knows yet how many there are
LARGEST = 1e140  # of a column sum: squares of such numbers can still be added up
OVERHEAD = 4096  # bytes of names and numbers around the vectors of one round


class NodeRefused(ValueError):
    """A node's own word."""


class NodeForgot(NodeRefused):
    """A node's own word that it knows nothing of the run."""


class Shapes(NamedTuple):
    """What a round's upload looks like: the shape of each field, how long it may be, and which are sent on demand."""

    algorithm: Algorithm
    dimension: int
    n: int
    first: dict[str, tuple[int, ...]]  # of round 1
    cut: bool
    max_norm: float

    @property
    def packed(self) -> bool:
        """Whether arrays may be written shorter than they are."""
        return self.algorithm.traits.packed is not None

    def up(self, wanted: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        """The shape of each field in the round that is asked for."""
        if not self.algorithm.traits.varying:
            return self.first
        down_type, _ = message_types(self.algorithm)
        return _shapes(self.algorithm, wanted["k"], down_type(**wanted["down"]), self.dimension, self.n)

    def longest(self, name: str) -> float:
        """How long a field may be. Numbers may be squared lengths, and slopes of a loss products with its rows."""
        traits = self.algorithm.traits
        return self.max_norm**2 if name in traits.numbers or traits.proves else self.max_norm

    def limit(self, rounds: list[dict[str, Any]], points: int, width: int = 8) -> int:
        """No good reply has more bytes. width: of a number."""
        sizes = [sum(math.prod(shape) for shape in self.up(each).values()) for each in rounds]
        return OVERHEAD + sum(width * (size + self.dimension * self.cut) + OVERHEAD for size in sizes) + 128 * points

    def sent(self, wanted: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        """The fields of an upload; some only when the model is asked for."""
        on_demand = () if wanted["asked"] else self.algorithm.traits.on_demand
        return {name: shape for name, shape in self.up(wanted).items() if name not in on_demand}

    def parts(self, rounds: list[dict[str, Any]]) -> list[tuple[str, tuple[int, ...]]]:
        """All that a client uploads in these rounds, in order: the fields, and with a certificate its cut."""
        found: list[tuple[str, tuple[int, ...]]] = []
        for each in rounds:
            found += list(self.sent(each).items())
            found += [("cut.p", (self.dimension,)), ("cut.a", ())] if each["asked"] and self.cut else []
        return found


class Upload(NamedTuple):
    """One round of one client."""

    up: dict[str, Array]
    cut: tuple[float, Array] | None
    steps: int
    subgradients: int


class Done(NamedTuple):
    uploads: list[Upload]  # in the order of the rounds
    values: dict[tuple[int, int], float]  # f_i by round and candidate


class Masked(NamedTuple):
    """The same, if sums are secure: only the work done can be read."""

    uploads: Any  # all numbers of all rounds; None if no round was asked for
    values: Any  # f_i at the points; None if there are none
    steps: list[int]
    subgradients: list[int]


def upload_shapes(algorithm: Algorithm, dimension: int, n: int, cut: bool, max_norm: float) -> Shapes:
    """The shapes of an algorithm's uploads."""
    server, _ = algorithm.init(np.zeros(dimension), n)
    _, down = algorithm.broadcast(1, server, np.random.default_rng(0))
    return Shapes(algorithm, dimension, n, _shapes(algorithm, 1, down, dimension, n), cut, max_norm)


def _shapes(algorithm: Algorithm, k: int, down: Any, dimension: int, n: int) -> dict[str, tuple[int, ...]]:
    """The shapes of an upload, found by a round of a client that has one row of ones."""
    ones = Problem(np.ones((1, dimension)), np.ones(1), loss="absolute", intercept=False, l2=1.0)
    _, client = algorithm.init(np.zeros(dimension), n)
    local = ones.local_as(0, n, 1 / n)
    local.begin(k)
    with np.errstate(all="ignore"):
        _, up = algorithm.client_round(k, client, down, local)
    assert isinstance(up, message_types(algorithm)[1])
    return {name: np.shape(value) for name, value in up._asdict().items()}


def opened(data: bytes, asked: Message, kind: str, limit: int, packed: bool = False) -> dict[str, Any]:
    """The body of the reply of this kind to what was asked.

    packed: its arrays may take ``limit`` bytes; otherwise no more than the reply itself, which holds them as they are.
    """
    reply = decode(data, limit, limit if packed else len(data))
    if reply.kind in ("refused", "forgotten"):
        why = reply.body["why"]
        raise (NodeRefused if reply.kind == "refused" else NodeForgot)(
            printable(why) if isinstance(why, str) and why.isprintable() else "it refuses and does not say why"
        )
    if reply.run != asked.run:
        raise MessageError(f"a reply for the run {reply.run}, not {asked.run}")
    if (reply.exchange, reply.round) != (asked.exchange, asked.round):
        raise MessageError(
            f"a reply for exchange {reply.exchange} and round {reply.round}, "
            f"not for exchange {asked.exchange} and round {asked.round}"
        )
    if reply.kind != kind:
        raise MessageError(f"a reply of the kind {reply.kind!r}, not {kind!r}")
    return reply.body


def surveyed(data: bytes, asked: Message, job: Job) -> dict[str, Any]:
    """What a node tells before round 1, of which only what the job needs."""
    body = opened(data, asked, "surveyed", SURVEY_LIMIT)
    rows, columns, classes = body["rows"], body["columns"], body["classes"]
    if _count("rows", rows, least=1) > job.max_rows:
        raise MessageError(f"rows is {rows}; at most {job.max_rows} are allowed (max_rows)")
    _texts("columns", columns)
    if not columns or len(set(columns)) != len(columns):
        raise MessageError("its columns are none, or two have one name")
    if job.get_loss().is_classification:
        _texts("classes", classes)
        if len(set(classes)) not in (1, 2):
            raise MessageError(f"classes has {len(set(classes))} labels")
    if type(body["reports_objective"]) is not bool:
        raise MessageError("reports_objective is no truth value")
    shape = (len(columns),)
    if job.secure:
        if not isinstance(body["key"], bytes) or len(body["key"]) != 32:
            raise MessageError("key is no public key")
        return body
    if job.impute or job.standardise:
        counts = _array("counts", body["counts"], shape, dtype="int64")
        if not ((counts >= 0) & (counts <= rows)).all():
            raise MessageError(f"counts holds numbers outside of 0..{rows}")
        _no_larger("sums", _array("sums", body["sums"], shape), columns, LARGEST)
    if job.standardise:
        squares = _array("squares", body["squares"], shape)
        if (squares < 0).any():
            raise MessageError("squares holds negative numbers")
        _no_larger("squares", squares, columns, LARGEST**2)
    return body


def begun(data: bytes, asked: Message) -> float:
    """G_i, which may be infinite."""
    G = opened(data, asked, "begun", OVERHEAD)["lipschitz"]
    if type(G) is not float or not G >= 0:
        raise MessageError(f"lipschitz is {G!r:.60}, which is no number of at least 0")
    return G


def done(data: bytes, asked: Message, shapes: Shapes) -> Done:
    """What a client sends for the rounds and points it was asked for, and nothing else."""
    wanted, points = asked.body["rounds"], asked.body["points"]
    body = opened(data, asked, "done", shapes.limit(wanted, len(points)), shapes.packed)
    uploads = [upload(one, each, shapes) for one, each in _each("rounds", body["rounds"], wanted)]
    values = {}
    for found, point in _each("values", body["values"], points):
        fields("a value", found, {"k", "candidate", "value"})
        _same("a value for round", found["k"], point["k"])
        _same("a value for candidate", found["candidate"], point["candidate"])
        values[point["k"], point["candidate"]] = _number("value", found["value"])
    return Done(uploads, values)


def masked(data: bytes, asked: Message, shapes: Shapes) -> Masked:
    """The same, if sums are secure."""
    wanted, points = asked.body["rounds"], asked.body["points"]
    body = opened(data, asked, "masked", shapes.limit(wanted, len(points), width=16))
    steps, subgradients = [], []
    for found, each in _each("rounds", body["rounds"], wanted):
        fields("a round", found, {"k", "steps", "subgradients"})
        _same("an upload for round", found["k"], each["k"])
        steps.append(_count("steps", found["steps"]))
        subgradients.append(_count("subgradients", found["subgradients"]))
    size = sum(math.prod(shape) for _, shape in shapes.parts(wanted))
    uploads = _words("uploads", body["uploads"], size if wanted else None)
    return Masked(uploads, _words("values", body["values"], len(points) or None), steps, subgradients)


def masked_sums(data: bytes, asked: Message, size: int) -> Any:
    """Column sums, if they are secure."""
    body = opened(data, asked, "masked", OVERHEAD + 16 * (size + 1))
    _each("rounds", body["rounds"], [])
    _words("values", body["values"], None)
    return _words("uploads", body["uploads"], size)


def _words(name: str, value: Any, size: int | None) -> Any:
    """So many masked numbers and their mark; None for none."""
    if size is None:
        if value is not None:
            raise MessageError(f"{name} that were not asked for")
        return None
    return _array(name, value, (2, size + 1), dtype="int64")


def _each(name: str, found: Any, wanted: list[Any]) -> Any:
    if not isinstance(found, list) or len(found) != len(wanted):
        raise MessageError(f"{name} has not {len(wanted)} entries")
    return zip(found, wanted, strict=True)


def upload(found: Any, wanted: dict[str, Any], shapes: Shapes) -> Upload:
    """One round of a reply."""
    fields("a round", found, {"k", "up", "cut", "steps", "subgradients"})
    asked = wanted["asked"]
    _same("an upload for round", found["k"], wanted["k"])
    sent = shapes.sent(wanted)
    fields("an upload", found["up"], list(sent))
    up = {name: vector(name, found["up"][name], shape, shapes.longest(name)) for name, shape in sent.items()}
    cut = None
    if asked and shapes.cut:
        fields("a cut", found["cut"], {"a", "p"})
        p = vector("p", found["cut"]["p"], (shapes.dimension,), shapes.max_norm)
        cut = _number("a", found["cut"]["a"]), p
    elif found["cut"] is not None:
        raise MessageError("a cut that was not asked for")
    return Upload(up, cut, _count("steps", found["steps"]), _count("subgradients", found["subgradients"]))


def vector(name: str, value: Any, shape: tuple[int, ...], max_norm: float) -> Array:
    """The value, if it is a finite array of this shape, and no longer."""
    array: Array = _array(name, value, shape)
    with np.errstate(over="ignore"):
        norm = float(np.linalg.norm(array))
    if not norm <= max_norm:
        raise MessageError(f"{name} has norm {norm:.3g}; at most {max_norm:g} is allowed (max_norm)")
    return array


def _array(name: str, value: Any, shape: tuple[int, ...], dtype: str = "float64") -> Any:
    if not isinstance(value, np.ndarray) or value.dtype != dtype:
        raise MessageError(f"{name} is no array of {dtype}")
    if value.shape != shape:
        raise MessageError(f"{name} has shape {value.shape}, not {shape}")
    if not np.isfinite(value).all():
        raise MessageError(f"{name} holds values that are not finite")
    return value


def _no_larger(name: str, values: Array, columns: list[str], largest: float) -> None:
    """Column sums that could be added up to infinity would be found out by honest nodes, and the sender by nobody."""
    if not (np.abs(values) <= largest).all():
        column = columns[int(np.argmax(np.abs(values)))]
        raise MessageError(
            f"{name} is {np.abs(values).max():.3g} in column {column!r:.60}; at most {largest:g} is allowed"
        )


def _same(what: str, found: Any, wanted: int) -> None:
    if type(found) is not int or found != wanted:
        raise MessageError(f"{what} {found!r:.20}, not {wanted}")


def _number(name: str, value: Any) -> float:
    if type(value) is not float or not math.isfinite(value):
        raise MessageError(f"{name} is {value!r:.60}, which is no finite number")
    return value


def _count(name: str, value: Any, least: int = 0) -> int:
    if type(value) is not int or not least <= value < 2**62:
        raise MessageError(f"{name} is {value!r:.60}, which is no whole number of at least {least}")
    return value


def _texts(name: str, value: Any) -> None:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise MessageError(f"{name} is no list of names")
