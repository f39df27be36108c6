"""Engine 1: all clients in one process. One run is :func:`simulate`; many, in parallel, are :func:`fedmls.sweep`."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedmls import checkpoint as checkpoints
from fedmls.checks import check_batch, unknown, whole
from fedmls.problem import OracleProblem, Problem
from fedmls.progress import Bar
from fedmls.types import Algorithm, Array, Optimum, Run

AnyProblem = Problem | OracleProblem
Metrics = Mapping[str, Callable[[Array], float]]
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


class Counters(NamedTuple):
    """What has been spent so far; the columns are explained in :class:`fedmls.types.Run`."""

    round: int = 0
    exchanges: int = 0
    local_steps: int = 0
    subgradients: int = 0
    vectors_up: int = 0
    vectors_down: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


class Snapshot(NamedTuple):
    """All of a run between two exchanges: what a checkpoint holds. Client arrays have one row per client."""

    counters: Counters
    steps: Any
    server: Any
    clients: Any


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
    checkpoint: str | Path | None = None,
    progress: bool | None = None,
) -> Run:
    """Run an algorithm for a number of rounds; return the model and its history (see :class:`fedmls.types.Run`).

    batch: fraction of a client's rows in each local step, drawn without replacement; 1 takes all.
    optimum: f*, for the gaps; "auto" solves the problem (once), None leaves the gaps empty.
    metrics: further columns, each a function of the model.  every: record each so many-th round, and the last.
    checkpoint: a file the run is saved to, every half minute, at the end and on Ctrl-C; if it exists, the run goes
    on from there and ends in the same bits as without a break.
    progress: show a bar on a terminal (None), always, or never.
    """
    simulation = Simulation(algorithm, problem, rounds, batch, seed, x0, optimum, metrics, every)
    if checkpoint is not None:
        simulation.resume(Path(checkpoint))
    with ctrl_c() as simulation.stop, Bar(algorithm.name, rounds, "rounds", progress) as bar:
        try:
            for k, gap in simulation.play():
                bar.update(k, gap)
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
    ) -> None:
        self.algorithm, self.problem = algorithm, problem
        self.rounds, self.every = whole("rounds", rounds), whole("every", every)
        self.seed, self.batch = whole("seed", seed, least=0), check_batch(batch)
        self.local = problem.local(self.seed, self.batch)
        self.random = ServerRandom(self.seed)
        x0 = start_point(problem, x0)
        server, client = algorithm.init(x0, problem.n)
        clients = type(client)(*(np.tile(field, (problem.n, 1)) for field in client))
        self.best = known_optimum(problem, optimum)
        self.metrics = dict(metrics or {})
        self.stop: threading.Event | None = None
        self.at = Snapshot(Counters(), self.local.steps.copy(), server, clients)
        self.rows: list[dict[str, float]] = []
        self.x, self.diverged = x0, False
        self.file: Path | None = None
        self.identity = {
            "algorithm": repr(algorithm),
            "problem": getattr(problem, "fingerprint", "functions"),
            "start": [float(value) for value in x0],
            "batch": self.batch,
            "seed": self.seed,
        }

    def play(self) -> Any:
        """Go on to the last round, exchange by exchange; yields the round and the relative gap (or None)."""
        seconds = self.rows[-1]["seconds"] if self.rows else 0.0
        began = saved = time.monotonic()
        while self.at.counters.round < self.rounds and not self.diverged:
            if self.stop is not None and self.stop.is_set():
                raise KeyboardInterrupt
            with np.errstate(over="ignore", invalid="ignore"):
                after, models, rows = self._exchange()
            for row in rows:
                row["seconds"] = seconds + time.monotonic() - began
            self.diverged = len(models) < after.counters.round - self.at.counters.round
            self.rows.extend(rows)
            if not self.diverged:
                self.at, self.x = after, models[-1]
            elif models:
                self.x = models[-1]
            if self.file is not None and time.monotonic() - saved > SAVE_EVERY_SECONDS:
                self.save()
                saved = time.monotonic()
            yield self.at.counters.round, self.rows[-1].get("relative_gap") if self.rows else None

    def _exchange(self) -> tuple[Snapshot, list[Array], list[dict[str, float]]]:
        """One exchange of one round or, paired, two: where it ends, its finite models and their rows."""
        algorithm, n = self.algorithm, self.problem.n
        counters, _, server, clients = self.at
        first = counters.round + 1
        ks = range(first, min(first + algorithm.rounds_per_exchange, self.rounds + 1))
        downs, ups, counts = [], [], []
        for k in ks:
            server, down = algorithm.broadcast(k, server, self.random.at(k))
            downs.append(down)
        for k, down in zip(ks, downs, strict=True):
            self.local.begin(k)
            clients, up = algorithm.client_round(k, clients, down, self.local)
            ups.append(up)
            counters = Counters(
                k,
                self.at.counters.exchanges + 1,
                int(self.local.steps.max()),
                self.local.subgradients,
                counters.vectors_up + n * len(arrays(up)),
                counters.vectors_down + n * len(arrays(down)),
                counters.bytes_up + sum(field.nbytes for field in arrays(up)),
                counters.bytes_down + n * sum(field.nbytes for field in arrays(down)),
            )
            counts.append(counters)
        models, rows = [], []
        for k, up, counters in zip(ks, ups, counts, strict=True):
            seen = up if algorithm.aggregate == "stack" else weighted_mean(self.problem.weights, up)
            server = algorithm.server_round(k, server, seen)
            x = algorithm.model(server)
            objective = self.problem.value(x)
            if not (np.isfinite(objective) and np.isfinite(x).all()):
                break
            models.append(x)
            if k % self.every == 0 or k == self.rounds:
                rows.append(self._row(counters, x, objective))
        return Snapshot(counters, self.local.steps.copy(), server, clients), models, rows

    def _row(self, counters: Counters, x: Array, objective: float) -> dict[str, float]:
        gap = np.nan if self.best is None else objective - self.best
        row = {
            **counters._asdict(),
            "objective": objective,
            "gap": gap,
            "relative_gap": gap / (abs(self.best) if self.best and abs(self.best) > 1e-9 else 1.0),
            "seconds": 0.0,
        }
        row.update({name: float(metric(x)) for name, metric in self.metrics.items()})
        return row

    def result(self) -> Run:
        import pandas as pd

        last = self.at.counters.round
        rows = [row for row in self.rows if row["round"] <= last or self.diverged]
        columns = [*Counters._fields, "objective", "gap", "relative_gap", "seconds", *self.metrics]
        history = pd.DataFrame(rows, columns=pd.Index(columns))
        return Run(self.algorithm, self.seed, self.batch, self.x, history, self.best, self.diverged)

    def save(self) -> None:
        if self.file is not None:
            rows = [row for row in self.rows if row["round"] <= self.at.counters.round]
            checkpoints.save(self.file, self.identity, self.at, rows)

    def resume(self, file: Path) -> None:
        """Keep the run in this file, and go on from it if it is there."""
        self.file = file
        if file.exists():
            self.at, self.rows = checkpoints.load(file, self.identity, self.at)
            self.local.steps = self.at.steps.copy()
            self.local.subgradients = self.at.counters.subgradients
            self.x = self.algorithm.model(self.at.server)


def arrays(message: Any) -> list[Array]:
    """The fields of a message that travel as vectors."""
    return [field for field in message if isinstance(field, np.ndarray)]


def weighted_mean(weights: Array, up: Any) -> Any:
    """Σ w_i up_i, field by field."""
    return type(up)(*(weights @ field for field in up))


class ServerRandom:
    """The server's coins: they depend on seed and round alone. One generator, set anew for each round."""

    def __init__(self, seed: int) -> None:
        self.bits = np.random.Philox(key=seed)
        self.fresh: Any = self.bits.state
        self.generator = np.random.Generator(self.bits)

    def at(self, k: int) -> np.random.Generator:
        self.fresh["state"]["counter"][:] = (0, 0, 0, k)
        self.bits.state = self.fresh
        return self.generator


def start_point(problem: AnyProblem, x0: Any) -> Array:
    if x0 is None:
        return np.zeros(problem.dimension)
    start = np.array(x0, dtype=float)
    if start.shape != (problem.dimension,) or not np.isfinite(start).all():
        raise ValueError(f"x0 has shape {start.shape}; it must be {problem.dimension} finite numbers")
    return start


def known_optimum(problem: AnyProblem, optimum: float | Optimum | str | None) -> float | None:
    if isinstance(optimum, str):
        if optimum != "auto":
            raise ValueError(unknown("optimum", optimum, ("auto",)) + ", or give a number or None")
        return problem.optimum.value if isinstance(problem, Problem) else None
    return float(optimum.value) if isinstance(optimum, Optimum) else optimum
