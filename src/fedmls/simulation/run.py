"""Engine 1: all clients in one process. One run is :func:`simulate`; many, in parallel, are :func:`fedmls.sweep`."""

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedmls.checks import whole
from fedmls.hyperparameters import describe, to_dict
from fedmls.local.clients import Clients
from fedmls.problem import Problem
from fedmls.progress import Bar
from fedmls.rounds import (
    ServerRandom,
    Sizes,
    array_sizes,
    check_participants,
    drawn,
    require_algorithm,
)
from fedmls.simulation import checkpoint as checkpoints
from fedmls.simulation.config import AnyProblem, Metrics, RunConfig, check_problem, name_of, on_device
from fedmls.simulation.cost import NOTHING, Counters, cost_of_round
from fedmls.simulation.observers import (
    Callback,
    CallbackRows,
    Observer,
    Progress,
    Row,
    View,
    check_callbacks,
    shown_gap,
    stopping_rules,
)
from fedmls.simulation.recorder import Recorder
from fedmls.types import Algorithm, Array, Optimum, Run

SAVE_EVERY_SECONDS = 30


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


class Measured(NamedTuple):
    """A model, and what it took: what a row of the history is made of."""

    spent: Counters
    x: Array
    objective: float
    slopes: Array
    server: Any
    rows_read: int


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
    device: str = "cpu",
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
    device: where the clients compute: "cpu", "cuda" (an NVIDIA GPU; needs the extra ``gpu``), or "cuda-float32".
    """
    require_algorithm(algorithm)
    callbacks = check_callbacks(callback)
    config = RunConfig(rounds, batch, seed, x0, optimum, metrics, every, target, certificate, until)
    with Bar(algorithm.name, whole("rounds", rounds), "rounds", progress) as bar, ExitStack() as ends:
        check_problem(problem)
        simulation = Simulation(algorithm, on_device(problem, device), config)
        if checkpoint is not None:
            simulation.resume(Path(checkpoint))
        try:
            with ctrl_c() as stop:
                _begin(callbacks, simulation, ends)
                simulation.run([Progress(bar.update, shown_gap(config)), CallbackRows(callbacks)], stop)
        except KeyboardInterrupt:
            simulation.save()
            kept = f"; run again to go on from {checkpoint}" if checkpoint is not None else ""
            done = simulation.result()
            raise Interrupted(f"stopped after round {simulation.at.counters.round}{kept}", [done]) from None
        simulation.save()
        return simulation.result()


def _begin(callbacks: list[Callback], simulation: "Simulation", ends: ExitStack) -> None:
    """Tell the callbacks what runs; ``ends`` will tell them how it ended."""
    for callback in callbacks:
        if hasattr(callback, "begin"):
            callback.begin(simulation.about())
        if hasattr(callback, "end"):
            ends.push(partial(_end, callback, simulation))


def _end(callback: Any, simulation: "Simulation", _: Any, error: BaseException | None, __: Any) -> None:
    callback.end(simulation.result(), error)


class Simulation:
    """One run, exchange by exchange. ``at`` is the last whole exchange; only :meth:`play` moves it.

    :meth:`run` plays it to its end and shows it to observers.
    """

    def __init__(self, algorithm: Algorithm, problem: AnyProblem, config: RunConfig) -> None:
        require_algorithm(algorithm)
        check_problem(problem)
        self.algorithm, self.problem, self.config = algorithm, problem, config.resolved(problem)
        config = self.config
        self.rounds = config.rounds
        self.local = Clients(problem, config.seed, config.batch, algorithm.traits.aggregate == "stack")
        self.random = ServerRandom(config.seed)
        self.x: Array = config.x0
        check_participants(algorithm, problem)
        server, client = algorithm.init(self.x, problem.n)
        clients = self.local.states(client)
        metrics, proof = config.metrics or {}, config.certificate
        self.recorder = Recorder(algorithm, problem, server, self.x, config.best, metrics, proof, ("passes",))
        self.rules = stopping_rules(config, self.recorder.radius is not None)
        if self.recorder.radius is not None and not algorithm.traits.proves:
            self.keep_slopes()
        self.at = Snapshot(Counters(), self.local.steps.copy(), self.local.slopes, server, clients)
        self.message_sizes: tuple[int, tuple[Sizes, Sizes]] = 0, ({}, {})  # of the last round, and what it took
        self.message_cost = NOTHING
        self.rows: list[Row] = []
        self.unrecorded: Measured | None = None  # the last round, if it has no row
        self.diverged = False
        self.file: Path | None = None
        self.identity = config.identity(algorithm, problem)

    def keep_slopes(self) -> None:
        """Let clients keep the slopes of their rows, by which observers prove something. Call it before round 1."""
        self.local.certify()

    def run(self, observers: Sequence[Observer] = (), stop: threading.Event | None = None) -> View:
        """Play until the last round, or until an observer or a rule of the settings stops it; return the end.

        stop: see :meth:`play`. If an observer raises an error, the run is saved, between two exchanges.
        """
        watching = [*self.rules, *observers]
        view = self.view([*self.rows], [])
        if self.rows and self._stops(watching, view):  # those of a checkpoint
            return view
        for view in self.play(stop):
            if self._stops(watching, view):
                break
        return view

    def _stops(self, observers: list[Observer], view: View) -> bool:
        """Show the view to all observers; return whether one of them stops the run."""
        try:
            wishes = [observer.on_rows(view) for observer in observers]
            return any(wishes)
        except Exception:
            self.save()
            raise

    def view(self, rows: list[Row], models: list[Array]) -> View:
        """Return the run as it is now, for observers; these rows, with their models, are new."""
        return View(
            rows,
            models,
            self.rows[-1] if self.rows else None,
            self.at.counters,
            self.recorder.asked,
            self.at.server,
            self.local.slopes,
            self.local.cut_slopes,
            self.diverged,
        )

    def play(self, stop: threading.Event | None = None) -> Iterator[View]:
        """Go on to the last round, exchange by exchange. When ``stop`` is set, KeyboardInterrupt is raised."""
        seconds = self.rows[-1]["seconds"] if self.rows else 0.0
        began = saved = time.monotonic()
        while self.at.counters.round < self.rounds and not self.diverged:
            if stop is not None and stop.is_set():
                raise KeyboardInterrupt
            with np.errstate(over="ignore", invalid="ignore"):
                after, models, measured = self._exchange()
                rows = [self._row(one) for one in measured]
            for row in rows:
                row["seconds"] = seconds + time.monotonic() - began
            self.diverged = len(models) < after.counters.round - self.at.counters.round
            self.rows.extend(rows)
            if models:
                self.x = models[-1]
            if not self.diverged:
                self.at = after
            if self.file is not None and time.monotonic() - saved > SAVE_EVERY_SECONDS:
                self.save()
                saved = time.monotonic()
            paused = time.monotonic()
            yield self.view(rows, [one.x for one in measured])
            began += time.monotonic() - paused  # what observers take is not the run's

    def _exchange(self) -> tuple[Snapshot, list[Array], list[Measured]]:
        """Do one exchange of one round or, paired, two; return where it ends, its finite models and those to record."""
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
        models, measured, asked = [], [], Counters()
        for k, seen, spent, slopes, rows_read in done:
            server = algorithm.server_round(k, server, seen)
            x, objective = self.recorder.answer(server)
            if not (np.isfinite(objective) and np.isfinite(x).all()):
                if self.unrecorded is not None:  # the last finite round ends the history, whatever ``every`` is
                    measured.append(self.unrecorded)
                break
            models.append(x)
            one = Measured(spent.plus(asked), x, objective, slopes, server, rows_read)
            self.unrecorded = one
            if k % self.config.every == 0 or k == self.rounds:
                self.unrecorded = None
                measured.append(one)
                if self.config.until is not None:  # it is really asked for, each time, with the next exchange
                    asked = asked.plus(self.recorder.asked)._replace(exchanges=0)
        counters = counters.plus(asked)
        local = self.local
        after = Snapshot(counters, local.steps.copy(), local.slopes, server, clients, local.rows_read)
        return after, models, measured

    def _row(self, one: Measured) -> Row:
        """Return a row of the history; passes are rows read by all clients together over all rows."""
        row = self.recorder.row(one.spent, one.x, one.objective, one.slopes, one.server)
        return row | {"passes": one.rows_read / self.local.rows_in_all}

    def _clients_round(self, k: int, clients: Any, down: Any, spent: Counters) -> tuple[Any, Any, Counters]:
        """Do round k of the clients that take part; return their states, what the server sees, what has been spent."""
        some = drawn(self.algorithm, self.problem.n, self.random, k)
        clients, seen, sizes = self.local.round(self.algorithm, k, clients, down, some)
        return clients, seen, self._count(k, self.problem.n if some is None else len(some), spent, down, sizes)

    def _count(self, k: int, clients: int, before: Counters, down: Any, up: Sizes) -> Counters:
        """Return what has been spent after the clients' part of round k, whose uploads have these sizes."""
        sizes = array_sizes(down), up
        if (clients, sizes) != self.message_sizes:
            self.message_sizes = clients, sizes
            self.message_cost = cost_of_round(self.algorithm, clients, self.problem.dimension, *sizes)
        took = self.message_cost
        return Counters(
            k,
            self.at.counters.exchanges + 1,
            int(self.local.steps.max()),
            self.local.subgradients,
            before.vectors_up + took.vectors_up,
            before.vectors_down + took.vectors_down,
            before.bytes_up + took.bytes_up,
            before.bytes_down + took.bytes_down,
        )

    def about(self) -> dict[str, Any]:
        """Return what runs, in plain values, for callbacks."""
        what = repr(self.problem) if isinstance(self.problem, Problem) else name_of(self.problem)
        seed, batch = self.config.seed, self.config.batch
        return about_run(self.algorithm, seed, batch, self.recorder.best, problem=what, rounds=self.rounds)

    def result(self) -> Run:
        import pandas as pd

        last = self.at.counters.round
        rows = [row for row in self.rows if row["round"] <= last or self.diverged]
        history = pd.DataFrame(rows, columns=pd.Index(self.recorder.columns))
        seed, batch = self.config.seed, self.config.batch
        return Run(self.algorithm, seed, batch, self.x, history, self.recorder.best, self.diverged)

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


def about_run(algorithm: Algorithm, seed: int, batch: float, optimum: float | None, **more: Any) -> dict[str, Any]:
    """Return a run in plain values, for callbacks. ``name``: the algorithm, its chosen parameters, the seed."""
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
