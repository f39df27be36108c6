"""Engine 1: all clients in one process. One run is :func:`simulate`; many, in parallel, are :func:`fedmls.sweep`."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedmls.checks import check_batch, positive, real, unknown, whole
from fedmls.hyperparameters import describe, to_dict
from fedmls.problem import OracleProblem, Problem
from fedmls.progress import Bar
from fedmls.rounds import (
    ServerRandom,
    arrays,
    check_participants,
    drawn,
    require_algorithm,
    start_point,
    weighted_mean,
)
from fedmls.simulation import checkpoint as checkpoints
from fedmls.simulation.recorder import AnyProblem, Counters, Metrics, Recorder
from fedmls.types import Algorithm, Array, Optimum, Run

SAVE_EVERY_SECONDS = 30
Callback = Callable[[dict[str, float]], Any]  # and begin(about), end(run, error), where it has them


class Interrupted(KeyboardInterrupt):
    """Ctrl-C. ``runs`` holds the finished runs (of :func:`simulate`: the one run so far)."""

    def __init__(self, message: str, runs: list[Run]) -> None:
        super().__init__(message)
        self.runs = runs


@contextmanager
def ctrl_c() -> Iterator[threading.Event]:
    """Inside, Ctrl-C sets the event, and runs stop after their current exchange; a second one stops at once.

    An exception thrown into compiled code, or between two halves of an exchange, would leave a mess.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handler(*_: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


class Snapshot(NamedTuple):
    """All of a run between two exchanges: what a checkpoint holds. Client arrays have one row per client."""

    counters: Counters
    steps: Any  # local steps of each client
    slopes: Array  # that clients keep, one per row (FedMLS-D: and lane); empty without any
    server: Any
    clients: Any
    rows_read: int = 0  # by all clients together


def simulate(
    algorithm: Algorithm,
    problem: AnyProblem,
    *,
    rounds: int,
    batch: float = 1.0,
    seed: int = 0,
    x0: Any = None,
    optimum: float | Optimum | str | None = "auto",
    metrics: Metrics | None = None,
    every: int = 1,
    target: float | None = None,
    certificate: float | bool | None = None,
    until: float | None = None,
    checkpoint: str | Path | None = None,
    callback: Callback | Sequence[Callback] | None = None,
    progress: bool | None = None,
) -> Run:
    """Run an algorithm for a number of rounds; return the model and its history (see :class:`fedmls.types.Run`).

    batch: fraction of a client's rows in each local step, drawn without replacement; 1 takes all.
    optimum: f*, for the gaps (without any radius of the algorithm); "auto" solves the problem, once, which takes long
    for many thousands of rows; None leaves the gaps empty.
    metrics: further columns, each a function of the model.  every: record each so many-th round, and the last.
    target: stop as soon as a recorded relative_gap is at most this; looking is not counted as asking for the model.
    certificate: prove a lower bound on f* in every row. True: with nothing known (FedMLS-B on every problem; FedMLS, -E
    and -D where all coordinates have an l2 term). Otherwise a radius ρ >= ‖x* - x0‖.  until: stop when the gap is
    proved to be at most this; others than FedMLS-B are asked for it with the next exchange.
    checkpoint: a file the run is saved to, every half minute, at the end and on Ctrl-C; if it exists, the run goes
    on from there and ends in the same bits as without a break.
    callback: called with each row of the history, a dict, as it is recorded; or several. Those of a checkpoint come
    first. Begin, end and errors, and callbacks for TensorBoard and MLflow: :mod:`fedmls.tracking`.
    progress: show a bar on a terminal (None), always, or never.
    """
    require_algorithm(algorithm)
    callbacks = check_callbacks(callback)
    with Bar(algorithm.name, whole("rounds", rounds), "rounds", progress) as bar, ExitStack() as ends:
        simulation = Simulation(
            algorithm, problem, rounds, batch, seed, x0, optimum, metrics, every, target, certificate, until
        )
        if checkpoint is not None:
            simulation.resume(Path(checkpoint))
        try:
            with ctrl_c() as simulation.stop:
                simulation.begin(callbacks, ends)
                simulation.tell()
                for k, gap in simulation.play():
                    bar.update(k, gap)
                    simulation.tell()
        except KeyboardInterrupt:
            simulation.save()
            kept = f"; run again to go on from {checkpoint}" if checkpoint is not None else ""
            done = simulation.result()
            raise Interrupted(f"stopped after round {simulation.at.counters.round}{kept}", [done]) from None
        simulation.save()
        return simulation.result()


class Simulation:
    """One run, exchange by exchange. ``at`` is the last whole exchange; only :meth:`play` moves it."""

    def __init__(
        self,
        algorithm: Algorithm,
        problem: AnyProblem,
        rounds: int,
        batch: float = 1.0,
        seed: int = 0,
        x0: Any = None,
        optimum: float | Optimum | str | None = "auto",
        metrics: Metrics | None = None,
        every: int = 1,
        target: float | None = None,
        certificate: float | bool | None = None,
        until: float | None = None,
    ) -> None:
        require_algorithm(algorithm)
        check_problem(problem)
        self.algorithm, self.problem = algorithm, problem
        self.rounds, self.every = whole("rounds", rounds), whole("every", every)
        self.seed, self.batch = whole("seed", seed, least=0, most=2**63 - 1), check_batch(batch)
        self.local = problem.local(self.seed, self.batch)
        self.random = ServerRandom(self.seed)
        self.x = x0 = start_point(problem, x0)
        check_participants(algorithm, problem)
        server, client = algorithm.init(x0, problem.n)
        clients = type(client)(*(np.tile(field, (problem.n, 1)) for field in client))
        best = known_optimum(problem, optimum)
        self.recorder = Recorder(algorithm, problem, server, x0, best, check_metrics(metrics), certificate, ("passes",))
        self.until, self.target = _until(until, self.recorder), _target(target, best)
        if self.recorder.radius is not None and not algorithm.traits.proves:
            self.local.certify()
        self.at = Snapshot(Counters(), self.local.steps.copy(), self.local.slopes, server, clients)
        self.rows: list[dict[str, float]] = []
        self.unrecorded: Any = None  # what a row of the last round would be made of
        self.diverged = self.proved = self.reached = False
        self.stop: threading.Event | None = None
        self.file: Path | None = None
        self.callbacks: list[Callback] = []
        self.told = 0  # rows that the callbacks have seen
        self.identity = {
            "algorithm": repr(algorithm),
            "problem": getattr(problem, "fingerprint", f"{problem.n} functions of {problem.dimension} numbers"),
            "start": [float(value) for value in x0],
            "batch": self.batch,
            "seed": self.seed,
            "every": self.every,
            "optimum": best,
            "metrics": sorted(self.recorder.metrics),
            "certificate": None if certificate is None else float(certificate),
        }

    def play(self) -> Iterator[tuple[int, float | None]]:
        """Go on to the last round, exchange by exchange; yields the round and the gap to show (or None)."""
        seconds = self.rows[-1]["seconds"] if self.rows else 0.0
        began = saved = time.monotonic()
        shown = "relative_gap" if self.until is None else "certified_gap"
        while self.at.counters.round < self.rounds and not (self.diverged or self.proved or self.reached):
            if self.stop is not None and self.stop.is_set():
                raise KeyboardInterrupt
            with np.errstate(over="ignore", invalid="ignore"):
                after, models, rows = self._exchange()
            for row in rows:
                row["seconds"] = seconds + time.monotonic() - began
            self.diverged = len(models) < after.counters.round - self.at.counters.round
            self.rows.extend(rows)
            if models:
                self.x = models[-1]
            if not self.diverged:
                self.at = after
            self.proved = self.until is not None and any(row["certified_gap"] <= self.until for row in rows[-1:])
            self.reached = self._reached(rows)
            if self.file is not None and time.monotonic() - saved > SAVE_EVERY_SECONDS:
                self.save()
                saved = time.monotonic()
            paused = time.monotonic()
            yield self.at.counters.round, self.rows[-1][shown] if self.rows else None
            began += time.monotonic() - paused  # what callbacks take is not the run's

    def _exchange(self) -> tuple[Snapshot, list[Array], list[dict[str, float]]]:
        """One exchange of one round or, paired, two: where it ends, its finite models and their rows."""
        algorithm = self.algorithm
        counters, server, clients = self.at.counters, self.at.server, self.at.clients
        first = counters.round + 1
        ks = range(first, min(first + algorithm.rounds_per_exchange, self.rounds + 1))
        downs, done = [], []
        for k in ks:
            server, down = algorithm.broadcast(k, server, self.random.at(k))
            downs.append(down)
        for k, down in zip(ks, downs, strict=True):
            clients, seen, counters = self._clients_round(k, clients, down, counters)
            done.append((k, seen, counters, self.local.cut_slopes, self.local.rows_read))
        models, rows, asked = [], [], Counters()
        for k, seen, spent, slopes, rows_read in done:
            server = algorithm.server_round(k, server, seen)
            x, objective = self.recorder.answer(server)
            if not (np.isfinite(objective) and np.isfinite(x).all()):
                if self.unrecorded:  # the last finite round ends the history, whatever ``every`` is
                    rows.append(self._row(*self.unrecorded))
                break
            models.append(x)
            about = spent if self.until is None else spent.plus(asked), x, objective, slopes, server, rows_read
            self.unrecorded = about
            if k % self.every == 0 or k == self.rounds:
                self.unrecorded = None
                rows.append(self._row(*about))
                if self.until is not None:  # the answer is really asked for, again and again, with the next exchange
                    asked = asked.plus(self.recorder.asked)._replace(exchanges=0)
        if self.until is not None:
            counters = counters.plus(asked)
        local = self.local
        after = Snapshot(counters, local.steps.copy(), local.slopes, server, clients, local.rows_read)
        return after, models, rows

    def _row(self, spent: Counters, x: Array, objective: float, slopes: Array, server: Any, rows_read: int) -> Any:
        """A row of the history; passes are rows read by all clients together over all rows."""
        row = self.recorder.row(spent, x, objective, slopes, server)
        return row | {"passes": rows_read / self.local.rows_in_all}

    def _clients_round(self, k: int, clients: Any, down: Any, spent: Counters) -> tuple[Any, Any, Counters]:
        """Round k of the clients that take part: their states, what the server sees, what has been spent."""
        weights, taking_part = self.problem.weights, self._taking_part(k)
        if taking_part is None:
            self.local.begin(k)
            clients, up = self.algorithm.client_round(k, clients, down, self.local)
        else:  # idle clients do no work; the last exchange stays as it was, for a checkpoint
            local = self.problem.local(self.seed, self.batch, taking_part)
            local.begin(k)
            some = type(clients)(*(field[taking_part] for field in clients))
            some, up = self.algorithm.client_round(k, some, down, local)
            clients = type(clients)(*(field.copy() for field in clients))
            for field, new in zip(clients, some, strict=True):
                field[taking_part] = new
            self.local.steps[taking_part] += local.steps
            self.local.subgradients += local.subgradients
            self.local.rows_read += local.rows_read
            weights = weights[taking_part] / weights[taking_part].sum()
        seen = up if self.algorithm.traits.aggregate == "stack" else weighted_mean(weights, up)
        return clients, seen, self._count(k, len(weights), spent, down, up)

    def _taking_part(self, k: int) -> Any:
        """The clients of round k, in order; None for all."""
        return drawn(self.algorithm, self.problem.n, self.random, k)

    def _count(self, k: int, clients: int, before: Counters, down: Any, up: Any) -> Counters:
        """What has been spent after the clients' part of round k."""
        traits = self.algorithm.traits
        sent, received = arrays(up, traits.on_demand + traits.numbers), arrays(down, traits.numbers)
        senders = self.algorithm.participants or clients  # the others only hear what came of the last round
        numbers_up, numbers_down = _numbers(arrays(up, traits.on_demand), sent), _numbers(arrays(down), received)
        return Counters(
            k,
            self.at.counters.exchanges + 1,
            int(self.local.steps.max()),
            self.local.subgradients,
            before.vectors_up + senders * self._vectors(sent),
            before.vectors_down + clients * self._vectors(received),
            before.bytes_up + _bytes(sent, senders, traits.packed) + 8 * clients * numbers_up,
            before.bytes_down + _bytes(received, clients, traits.packed_down) + 8 * clients * numbers_down,
        )

    def _vectors(self, fields: list[Array]) -> int:
        """How many vectors like the model the fields hold; the others are single numbers."""
        return sum(field.shape[-1] // self.problem.dimension for field in fields)

    def _reached(self, rows: list[dict[str, float]]) -> bool:
        return self.target is not None and any(row["relative_gap"] <= self.target for row in rows)

    def begin(self, callbacks: list[Callback], ends: ExitStack) -> None:
        """Tell the callbacks what runs; ``ends`` will tell them how it ended."""
        self.callbacks = callbacks
        for callback in callbacks:
            if hasattr(callback, "begin"):
                callback.begin(self.about())
            if hasattr(callback, "end"):
                ends.push(partial(self._end, callback))

    def tell(self) -> None:
        """The callbacks get the rows that they have not seen. What one raises ends the run, between two exchanges."""
        new, self.told = self.rows[self.told :], len(self.rows)
        try:
            for row, callback in product(new, self.callbacks):
                callback(dict(row))
        except Exception:
            self.save()
            raise

    def _end(self, callback: Any, _: Any, error: BaseException | None, __: Any) -> None:
        callback.end(self.result(), error)

    def about(self) -> dict[str, Any]:
        what = repr(self.problem) if isinstance(self.problem, Problem) else self.identity["problem"]
        return about_run(self.algorithm, self.seed, self.batch, self.recorder.best, problem=what, rounds=self.rounds)

    def result(self) -> Run:
        import pandas as pd

        last = self.at.counters.round
        rows = [row for row in self.rows if row["round"] <= last or self.diverged]
        history = pd.DataFrame(rows, columns=pd.Index(self.recorder.columns))
        return Run(self.algorithm, self.seed, self.batch, self.x, history, self.recorder.best, self.diverged)

    def save(self) -> None:
        if self.file is not None:
            rows = [row for row in self.rows if row["round"] <= self.at.counters.round]
            checkpoints.save(self.file, self.identity, self.at, rows)

    def resume(self, file: Path) -> None:
        """Keep the run in this file, and go on from it if it is there."""
        self.file = file
        if file.exists():
            self.at, self.rows = checkpoints.load(file, self.identity, self.at)
            if self.at.counters.round > self.rounds:
                raise ValueError(
                    f"{file} is at round {self.at.counters.round} already; ask for at least so many rounds"
                )
            self.local.steps, self.local.slopes = self.at.steps.copy(), self.at.slopes
            self.local.subgradients, self.local.rows_read = self.at.counters.subgradients, self.at.rows_read
            self.x, _ = self.recorder.answer(self.at.server)
            self.recorder.resume(self.rows)
            self.reached = self._reached(self.rows)


def _bytes(vectors: list[Array], clients: int, packed: Callable[[int, int], float] | None) -> int:
    """Return the bytes of so many clients' vectors, each of d numbers taking packed(d, clients), or 8 d."""
    sizes = [vector.shape[-1] for vector in vectors]
    each: float = sum(8 * d if packed is None else packed(d, clients) for d in sizes)
    return round(clients * each)


def _numbers(fields: list[Array], vectors: list[Array]) -> int:
    """Return how many numbers the fields hold beside the vectors among them."""
    return sum(int(field.shape[-1]) for field in fields) - sum(int(vector.shape[-1]) for vector in vectors)


def about_run(algorithm: Algorithm, seed: int, batch: float, optimum: float | None, **more: Any) -> dict[str, Any]:
    """A run in plain values, for callbacks. ``name``: the algorithm, the parameters that were chosen and the seed."""
    plain = to_dict(algorithm)
    return {
        "name": f"{algorithm.name} {describe(algorithm)}, seed={seed}",
        "algorithm": plain["name"],
        "parameters": plain["parameters"],
        "seed": seed,
        "batch": batch,
        "optimum": optimum,
        **more,
    }


def check_problem(problem: Any) -> None:
    if not isinstance(problem, Problem | OracleProblem):
        raise ValueError(f"{type(problem).__name__} is no problem; give a fedmls.Problem or a fedmls.OracleProblem")


def check_metrics(metrics: Any) -> dict[str, Any]:
    if not isinstance(metrics or {}, Mapping) or not all(callable(metric) for metric in (metrics or {}).values()):
        raise ValueError(f"metrics is {metrics!r}; give functions by name: {{'norm': lambda x: ...}}")
    return dict(metrics or {})


def check_callbacks(callback: Any) -> list[Callback]:
    callbacks = [] if callback is None else list(callback) if isinstance(callback, list | tuple) else [callback]
    for one in callbacks:
        if isinstance(one, type) or not callable(one):
            raise ValueError(f"callback is {one!r}; give a function of a row of the history, such as print")
    return callbacks


def _until(until: float | None, recorder: Recorder) -> float | None:
    if until is None:
        return None
    if recorder.radius is None:
        raise ValueError(f"until is {until!r}, but there is no certificate to prove it by; add certificate=")
    return positive("until", until)


def _target(target: float | None, best: float | None) -> float | None:
    if target is None:
        return None
    if best is None:
        raise ValueError(f"target is {target!r}, but there is no optimum to measure the gap by; give optimum=")
    return positive("target", target)


def known_optimum(problem: AnyProblem, optimum: float | Optimum | str | None) -> float | None:
    if isinstance(optimum, str):
        if optimum != "auto":
            raise ValueError(unknown("optimum", optimum, ("auto",)) + ", or give a number or None")
        return problem.optimum.value if isinstance(problem, Problem) else None
    if isinstance(optimum, Optimum):
        return float(optimum.value)
    if optimum is not None and real(optimum) is None:
        raise ValueError(f"optimum is {optimum!r}; give a number, what fedmls.optimum returns, 'auto' or None")
    return real(optimum)
