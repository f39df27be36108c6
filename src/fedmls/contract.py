"""Whether an algorithm keeps the contract of :mod:`fedmls.types`, on a small problem: what scikit-learn's
``check_estimator`` is to estimators.
"""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from fedmls.algorithms import find_installed, from_dict, to_dict
from fedmls.compression import Compressed, address_inside
from fedmls.federation import InProcess, Job, NodeConfig, drive
from fedmls.federation.messages import Envelope, pack_envelope, unpack_envelope
from fedmls.problem import OracleProblem, Problem
from fedmls.rounds import ServerRandom, drawn, require_algorithm, weighted_mean
from fedmls.simulation.run import simulate
from fedmls.types import DERIVE, Algorithm, Array, Run, Traits
from fedmls.wire import bytes_of

ROUNDS, BATCH, SEED, L2 = 6, 0.4, 7, 0.1
ROWS = 10  # of a client


class BrokenContract(ValueError):
    """What an algorithm does that an engine cannot work with, and what to do about it."""


def check_algorithm(algorithm: Algorithm, *, clients: int = 4) -> None:
    """Raise an error that says why, unless both engines can run the algorithm and agree.

    What is checked: that it declares its parameters and messages; its states; that a client gives the same numbers on
    its own as beside the others; that vectors and bytes are counted right; that nothing is changed in place; that equal
    seeds give equal bits; that a run goes on from a checkpoint; that messages can be sent; that a federation in this
    process, where the algorithm can be found by name, ends with the model of the simulation.

    clients: of the small problem on which it runs. Take parameters with which it does not diverge.
    """
    require_algorithm(algorithm)
    _check_declared(algorithm)
    _check_parameters(algorithm)
    example = _example(algorithm, clients)
    _check_states(algorithm, example)
    together, apart = _Together(algorithm, example), _Apart(algorithm, example)
    server = _play(algorithm, example, together)
    x = _answer(algorithm, server, example)
    run = _simulated(algorithm, example)
    _check_same(run.x, x, "run by hand", RANDOM)
    _check_same(run.x, _answer(algorithm, _play(algorithm, example, apart), example), "one client at a time", SHAPES)
    _check_same(run.x, _simulated(algorithm, example).x, "again with the same seed", RANDOM)
    _check_counts(algorithm, example, run, apart)
    _check_resumed(algorithm, example, run)
    _check_proved(algorithm, server, run)
    _check_oracles(algorithm, example)
    _check_federation(algorithm, example, run)


SHAPES = "client_round must do the same to arrays of shape (d,) and (n, d): index with [..., j], sum over axis=-1"
RANDOM = "take random numbers from the rng of broadcast and from local alone, and keep nothing outside of the states"


class _Example(NamedTuple):
    """A small problem, and of each client what it has on its own machine."""

    problem: Problem
    parts: list[Problem]
    X: Array
    y: Array

    def rows(self, client: int) -> slice:
        return slice(ROWS * client, ROWS * (client + 1))


def _example(algorithm: Algorithm, clients: int) -> _Example:
    n = max(clients, 2 if algorithm.participants is None else algorithm.participants + 1)
    columns = 5 if n != 6 else 6  # with the intercept never as many coordinates as clients
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS * n, columns)) + np.repeat(rng.normal(size=(n, columns)), ROWS, axis=0)
    y = np.where(X @ rng.normal(size=columns) + rng.normal(size=len(X)) > 0, 1.0, -1.0)
    weights = np.arange(1, n + 1) / (n * (n + 1) / 2) if algorithm.participants is None else None
    options: dict[str, Any] = {"loss": "hinge", "l2": L2, "classes": ["-1", "1"]}
    labels = np.array(["1" if label > 0 else "-1" for label in y])
    whole = Problem(X, labels, clients=np.repeat(np.arange(n), ROWS), weights=weights, **options)
    parts = [Problem(X[rows], labels[rows], **options) for rows in (slice(ROWS * i, ROWS * (i + 1)) for i in range(n))]
    return _Example(whole, parts, X, y)


def _check_declared(algorithm: Algorithm) -> None:
    kind = type(algorithm).__name__
    dataclass_parameters = vars(type(algorithm)).get("__dataclass_params__")
    if dataclass_parameters is None or not dataclass_parameters.frozen:
        raise BrokenContract(f"{kind} is no frozen dataclass of its parameters; put @hyperparameters above it")
    if not isinstance(getattr(algorithm, "name", None), str) or not algorithm.name:
        raise BrokenContract(f'{kind} has no name; write name: ClassVar[str] = "{kind.lower()}"')
    for what in ("Down", "Up"):
        try:
            found = getattr(algorithm, what)
        except TypeError as error:
            raise BrokenContract(str(error)) from None
        if not _is_named_tuple(found):
            raise BrokenContract(f"{what} of {kind} is {found!r}, which is no NamedTuple; {DERIVE}")
    if not isinstance(algorithm.traits, Traits):
        raise BrokenContract(f"traits of {kind} is {algorithm.traits!r}; make it a fedmls.types.Traits")
    if algorithm.traits.aggregate not in ("mean", "stack"):
        raise BrokenContract(f"aggregate is {algorithm.traits.aggregate!r}; it must be 'mean' or 'stack'")
    _check_fields(algorithm)


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields")


def _check_fields(algorithm: Algorithm) -> None:
    """Fields that traits and references name are there."""
    up, down = algorithm.Up._fields, algorithm.Down._fields
    named = {
        "on_demand": (algorithm.traits.on_demand, up),
        "numbers": (algorithm.traits.numbers, (*up, *down)),
        "references": (tuple(algorithm.references), up),
        "values of references": (tuple(of for of in algorithm.references.values() if of is not None), down),
    }
    for what, (some, known) in named.items():
        for name in some:
            if name not in known:
                raise BrokenContract(f"{what} has {name!r}, which is no field; there are {', '.join(known)}")
    missing = [name for name in up if algorithm.references and name not in algorithm.references]
    if missing:
        raise BrokenContract(f"references lacks {missing[0]!r} of Up: without it that would be sent without noise")


def _check_parameters(algorithm: Algorithm) -> None:
    inner = algorithm.algorithm if isinstance(algorithm, Compressed) else algorithm
    try:
        plain = json.loads(json.dumps(to_dict(algorithm)))
    except TypeError as error:
        raise BrokenContract(
            f"{algorithm!r} cannot be written as JSON ({error}); take numbers, texts and lists"
        ) from None
    again = from_dict(plain, lambda name: type(inner))
    if again != algorithm:
        raise BrokenContract(f"{algorithm!r} becomes {again!r} when its parameters are written down and read again")


def _check_states(algorithm: Algorithm, example: _Example) -> None:
    server, client = algorithm.init(np.zeros(example.problem.dimension), example.problem.n)
    for state, whose in ((server, "server"), (client, "client")):
        if not _is_named_tuple(type(state)):
            raise BrokenContract(f"the {whose}'s state is a {type(state).__name__}; make it a NamedTuple")
    for name, value in server._asdict().items():
        if not isinstance(value, np.ndarray | float | int | np.generic):
            raise BrokenContract(f"{name} of the server's state is {value!r}; states hold arrays and numbers")
    for name, value in client._asdict().items():
        if not isinstance(value, np.ndarray) or value.ndim != 1:
            raise BrokenContract(
                f"{name} of the client's state is {value!r}; make it an array of one dimension, also for one number"
            )


class _Together:
    """All clients at once, with arrays of shape (n, d)."""

    def __init__(self, algorithm: Algorithm, example: _Example) -> None:
        self.algorithm, self.problem = algorithm, example.problem
        _, client = algorithm.init(np.zeros(self.problem.dimension), self.problem.n)
        self.clients = type(client)(*(np.tile(field, (self.problem.n, 1)) for field in client))
        self.local = self.problem.local(SEED, BATCH)

    def work(self, k: int, down: Any, among: list[int]) -> Any:
        everyone = len(among) == self.problem.n
        local = self.local if everyone else self.problem.local(SEED, BATCH, among)
        local.begin(k)
        some = type(self.clients)(*(field[among] for field in self.clients))
        after, up = _untouched(self.algorithm.client_round, k, some, down, local)
        _check_shapes(self.algorithm, up, "Up", len(among), self.problem.dimension)
        _check_shapes(self.algorithm, after, "the client's state", len(among), None)
        self.clients = type(after)(*(_with_rows(old, among, new) for old, new in zip(self.clients, after, strict=True)))
        return up


def _with_rows(whole: Array, rows: list[int], new: Array) -> Array:
    """Return the array with other values in some of its rows."""
    changed = whole.copy()
    changed[rows] = new
    return changed


class _Apart:
    """Every client by itself, with arrays of shape (d,), as on machines of their own; all that it keeps and sends goes
    through the encoding of messages. ``sent`` counts: for each round the vectors and bytes, up and down."""

    def __init__(self, algorithm: Algorithm, example: _Example) -> None:
        self.algorithm, self.dimension = algorithm, example.problem.dimension
        n, weights = example.problem.n, example.problem.weights
        _, client = algorithm.init(np.zeros(self.dimension), n)
        self.clients = [client] * n
        parts = enumerate(example.parts)
        self.locals = [part.local_as(i, n, float(weights[i]), seed=SEED, batch=BATCH) for i, part in parts]
        self.sent: list[tuple[int, int, int, int]] = []
        self.shapes: dict[str, tuple[int, ...]] | None = None

    def work(self, k: int, down: Any, among: list[int]) -> Any:
        sent, ups, received = [], [], _travelled(down, "Down")
        for i in among:
            self.locals[i].begin(k)
            after, up = _untouched(self.algorithm.client_round, k, self.clients[i], received, self.locals[i])
            if not isinstance(up, self.algorithm.Up):
                raise BrokenContract(f"client_round returns a {type(up).__name__}, not the Up that the class declares")
            self.clients[i] = _travelled(after, "the client's state")
            sent.append(up)
            ups.append(_travelled(up, "Up"))
        self._check_sizes(ups[0])
        self._count(sent, down, len(among))
        return type(ups[0])(*(np.stack(fields) for fields in zip(*ups, strict=True)))

    def _check_sizes(self, up: Any) -> None:
        shapes = {name: value.shape for name, value in up._asdict().items()}
        if self.shapes not in (None, shapes) and not self.algorithm.traits.varying:
            raise BrokenContract(
                f"the shapes of Up change from {self.shapes} to {shapes}; if that follows from Down, say "
                "Traits(varying=True)"
            )
        self.shapes = shapes

    def _count(self, ups: list[Any], down: Any, clients: int) -> None:
        """What the messages of a round hold."""
        traits = self.algorithm.traits
        senders = self.algorithm.participants or clients
        named = {name: [getattr(up, name) for up in ups] for name in ups[0]._fields if name not in traits.on_demand}
        got = {name: value for name, value in down._asdict().items() if isinstance(value, np.ndarray)}
        vectors = [values for name, values in named.items() if name not in traits.numbers]
        numbers = [values for name, values in named.items() if name in traits.numbers]
        vectors_down = [value for name, value in got.items() if name not in traits.numbers]
        self.sent.append(
            (
                senders * sum(values[0].size // self.dimension for values in vectors),
                clients * sum(value.size // self.dimension for value in vectors_down),
                round(senders * _mean_bytes(vectors) + clients * _mean_bytes(numbers)),
                round(clients * sum(bytes_of(value) for value in got.values())),
            )
        )


def _mean_bytes(fields: list[list[Any]]) -> float:
    """What some fields take, in the mean over clients."""
    return sum(sum(bytes_of(value) for value in values) / len(values) for values in fields)


def _play(algorithm: Algorithm, example: _Example, team: "_Together | _Apart") -> Any:
    """The server's state after all rounds, its clients being this team."""
    problem, random = example.problem, ServerRandom(SEED)
    server, _ = algorithm.init(np.zeros(problem.dimension), problem.n)
    for first in range(1, ROUNDS + 1, algorithm.rounds_per_exchange):
        ks, downs, ups = range(first, first + algorithm.rounds_per_exchange), [], []
        for k in ks:
            server, down = _untouched(algorithm.broadcast, k, server, random.at(k))
            if not isinstance(down, algorithm.Down):
                raise BrokenContract(f"broadcast returns a {type(down).__name__}, not the Down that the class declares")
            _check_shapes(algorithm, down, "Down", None, problem.dimension)
            downs.append(down)
        for k, down in zip(ks, downs, strict=True):
            some = drawn(algorithm, problem.n, random, k)
            among = list(range(problem.n)) if some is None else [int(i) for i in some]
            ups.append((k, among, team.work(k, down, among)))
        for k, among, up in ups:
            weights = problem.weights
            if algorithm.participants is not None:
                weights = weights[among] / weights[among].sum()
            seen = up if algorithm.traits.aggregate == "stack" else weighted_mean(weights, up, problem.dimension)
            server = _untouched(algorithm.server_round, k, server, seen)
    return server


def _untouched(call: Callable[..., Any], k: int, *given: Any) -> Any:
    """The result of the call, unless it changes a state or a message that it is given."""
    before = [deepcopy(value) for value in given if hasattr(value, "_fields")]
    with np.errstate(over="ignore", invalid="ignore"):
        result = call(k, *given)
    for old, new in zip(before, [value for value in given if hasattr(value, "_fields")], strict=True):
        for name in old._fields:
            if not np.array_equal(getattr(old, name), getattr(new, name), equal_nan=True):
                raise BrokenContract(
                    f"{call.__name__} changes {name} of the {type(old).__name__} that it is given; return a new one: "
                    "an engine may do a round again"
                )
    pair = {"broadcast": "the server's state and a Down", "client_round": "the client's state and an Up"}
    if call.__name__ in pair and not (isinstance(result, tuple) and len(result) == 2):
        raise BrokenContract(f"{call.__name__} returns {type(result).__name__}; return {pair[call.__name__]}")
    return result


def _check_shapes(algorithm: Algorithm, message: Any, what: str, clients: int | None, dimension: int | None) -> None:
    """clients: how many of them the arrays are of, along their first axis; None for one.

    dimension: of the model, of which arrays that are no ``numbers`` hold whole vectors; None for any.
    """
    for name, value in message._asdict().items():
        if clients is None and not isinstance(value, np.ndarray):
            continue  # a plain number that is sent down
        shape = np.shape(value)
        if clients is not None and (not isinstance(value, np.ndarray) or len(shape) != 2 or shape[0] != clients):
            raise BrokenContract(
                f"{name} of {what} has shape {shape} for {clients} clients, and must have ({clients}, …): a number for "
                f"each client is a column, ({clients}, 1); write {name}[..., None], or sum with keepdims=True"
            )
        if clients is None and len(shape) != 1:
            raise BrokenContract(f"{name} of {what} has shape {shape}; send arrays of one dimension")
        whole = dimension is None or name in algorithm.traits.numbers or shape[-1] % dimension == 0 or shape[-1] == 1
        if not whole:
            raise BrokenContract(
                f"{name} of {what} holds {shape[-1]} numbers, which are no vectors of {dimension}; if it holds a few "
                f"numbers, say Traits(numbers=({name!r},))"
            )


def _travelled(message: Any, what: str) -> Any:
    """The message, or a state, as it is on the other side."""
    body = {"rounds": [message._asdict()], "values": []}
    try:
        received = unpack_envelope(pack_envelope(Envelope("done", "check", 1, 1, body))).body["rounds"][0]
    except (TypeError, ValueError) as error:
        raise BrokenContract(f"{what} cannot be sent: {error}") from None
    for name, value in message._asdict().items():
        if not np.array_equal(value, received[name], equal_nan=True) or np.shape(value) != np.shape(received[name]):
            raise BrokenContract(f"{name} of {what} is {value!r}, and {received[name]!r} when it has been sent")
    return type(message)(**received)


def _answer(algorithm: Algorithm, server: Any, example: _Example) -> Array:
    models = algorithm.model(server)
    candidates = models if isinstance(models, tuple) else (models,)
    for x in candidates:
        if not isinstance(x, np.ndarray) or x.shape != (example.problem.dimension,):
            raise BrokenContract(
                f"model returns an array of shape {np.shape(x)}; it must have ({example.problem.dimension},), as x0"
            )
    return min(candidates, key=example.problem.value)


def _simulated(algorithm: Algorithm, example: _Example, rounds: int = ROUNDS, **options: Any) -> Run:
    run = simulate(
        algorithm, example.problem, rounds=rounds, batch=BATCH, seed=SEED, optimum=None, progress=False, **options
    )
    if run.diverged or len(run.history) != rounds:
        raise BrokenContract(f"{algorithm!r} diverges on a small problem; check it with smaller steps")
    return run


def _check_same(one: Array, other: Array, how: str, remedy: str) -> None:
    if not np.array_equal(one, other):
        difference = float(np.abs(one - other).max())
        raise BrokenContract(f"{how}, the model differs from the simulation's by {difference:.2g}; {remedy}")


def _check_counts(algorithm: Algorithm, example: _Example, run: Run, apart: _Apart) -> None:
    """The simulation counts what the clients sent, one by one. (What it costs to ask for the model is in every row.)"""
    columns = ("vectors_up", "vectors_down", "bytes_up", "bytes_down")
    packed = {"bytes_up": algorithm.traits.packed, "bytes_down": algorithm.traits.packed_down}
    for j, column in enumerate(columns):
        counted = np.diff(run.history[column].to_numpy())
        sent = np.array([each[j] for each in apart.sent[1:]])
        if packed.get(column) is None and not np.array_equal(counted, sent):
            raise BrokenContract(
                f"{column} of rounds 2 to {ROUNDS} are counted as {counted.tolist()}, and the messages of the clients "
                f"hold {sent.tolist()}; {SHAPES}"
            )


def _check_resumed(algorithm: Algorithm, example: _Example, run: Run) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "checkpoint.npz"
        _simulated(algorithm, example, rounds=ROUNDS - 2, checkpoint=file)
        simulate(algorithm, example.problem, rounds=2, optimum=None, progress=False)  # another run in between
        again = _simulated(replace(algorithm), example, checkpoint=file)  # type: ignore[type-var]
    _check_same(run.x, again.x, "when a run is stopped and goes on", RANDOM)


def _check_proved(algorithm: Algorithm, server: Any, run: Run) -> None:
    if not algorithm.traits.proves:
        return
    told, value = algorithm.objective(server), float(run.history["objective"].iloc[-1])
    bound = algorithm.lower_bound(server, np.inf, np.zeros(len(run.x)))
    if not np.isnan(told) and abs(told - value) > 1e-6 * max(1.0, abs(value)):
        raise BrokenContract(f"objective says {told!r}, and f at the model is {value!r}")
    if bound > value + 1e-9 * max(1.0, abs(value)):
        raise BrokenContract(f"lower_bound says {bound!r}, and f at the model is below it, {value!r}")


def _check_oracles(algorithm: Algorithm, example: _Example) -> None:
    """Without ``needs_rows`` it runs on functions, too."""
    if algorithm.traits.needs_rows:
        return

    def client(part: Problem) -> tuple[Any, Any]:
        return part.value, lambda x, rng: part.subgradient(x)

    functions = OracleProblem([client(part) for part in example.parts], example.problem.dimension)
    try:
        simulate(algorithm, functions, rounds=2, seed=SEED, progress=False)
    except ValueError as error:
        raise BrokenContract(
            f"on functions it fails ({error}); if it needs rows, say Traits(needs_rows=True)"
        ) from None


def _check_federation(algorithm: Algorithm, example: _Example, run: Run) -> None:
    """Nodes in this process. They find the algorithm by its name, so that one of a file or a notebook is left out."""
    address = address_inside(algorithm)
    try:
        from_dict(to_dict(algorithm), lambda name: find_installed(name, [address]))
        job = Job(
            algorithm=algorithm,
            rounds=ROUNDS,
            batch=BATCH,
            seed=SEED,
            l2=L2,
            weights={_site(i): float(weight) for i, weight in enumerate(example.problem.weights)},
        )
    except ValueError:
        return
    with TemporaryDirectory() as folder:
        configs = []
        for i in range(example.problem.n):
            file = Path(folder) / f"{_site(i)}.npz"
            np.savez(file, X=example.X[example.rows(i)], y=example.y[example.rows(i)])
            state = Path(folder) / "state" / _site(i)
            configs.append(NodeConfig(name=_site(i), data=file, state=state, algorithms=(address,)))
        job.write(Path(folder) / "job")
        found = drive(Path(folder) / "job", InProcess(configs))
    _check_same(run.x, found.run.x, "in a federation", SHAPES)


def _site(client: int) -> str:
    return f"site-{client + 1}"
