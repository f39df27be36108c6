"""Many runs in parallel: every algorithm with every seed."""

import hashlib
import json
import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from fedmls.checks import one_of
from fedmls.problem import OracleProblem, Problem
from fedmls.progress import Bar
from fedmls.simulate import AnyProblem, Interrupted, Metrics, Simulation, ctrl_c
from fedmls.store import RunStore
from fedmls.types import Algorithm, Optimum, Run

BACKENDS = {"threads": "threading", "processes": "loky", "dask": "dask"}


class Task(NamedTuple):
    """One run to be done: all that :class:`fedmls.simulate.Simulation` takes."""

    algorithm: Algorithm
    problem: AnyProblem
    rounds: int
    batch: float
    seed: int
    x0: Any
    optimum: float | Optimum | str | None
    metrics: Metrics
    every: int

    @property
    def key(self) -> str:
        """Names the run in a store: equal keys, equal results."""
        problem = getattr(self.problem, "fingerprint", None)
        if problem is None:
            raise ValueError("runs of a problem made of functions cannot be stored; leave out store=")
        parts = (repr(self.algorithm), problem, self.rounds, self.batch, self.seed, repr(self.x0), self.every)
        text = json.dumps([*parts, sorted(self.metrics)])
        return hashlib.sha256(text.encode()).hexdigest()[:20]


def sweep(
    algorithms: Sequence[Algorithm],
    problem: AnyProblem | Callable[[int], AnyProblem],
    *,
    rounds: int,
    seeds: Iterable[int] = (0,),
    batch: float = 1.0,
    x0: Any = None,
    optimum: float | Optimum | str | None = "auto",
    metrics: Metrics | Callable[[int], Metrics] | None = None,
    every: int = 1,
    jobs: int = -1,
    backend: str = "processes",
    store: str | Path | None = None,
    progress: bool | None = None,
) -> list[Run]:
    """:func:`fedmls.simulate` for every algorithm and seed, in that order; ``fedmls.table`` joins the histories.

    problem, metrics: as for one run, or functions of the seed.
    jobs: how many at once; -1 is one per core.
    backend: "processes"; "threads", which start at once and suit short sweeps (the compiled loop runs outside the
    interpreter's lock); or "dask", which sends the runs to the cluster of the current ``dask.distributed.Client``.
    store: a folder that keeps every run as it finishes; runs found there are not run again.
    On Ctrl-C an :class:`fedmls.Interrupted` is raised, with the finished runs in ``.runs``.
    """
    one_of("backend", backend, BACKENDS)
    algorithms, seeds = list(algorithms), list(seeds)
    total = len(algorithms) * len(seeds)
    kept = RunStore(store) if store is not None else None
    finished: dict[int, Run] = {}
    try:
        with Bar("sweep", total, "runs", progress) as bar:
            tasks = _tasks(algorithms, problem, seeds, rounds, batch, x0, optimum, metrics, every)
            if kept is not None:
                finished = {i: run for i, task in enumerate(tasks) if (run := kept.load(task.key)) is not None}
            todo = [(i, task) for i, task in enumerate(tasks) if i not in finished]
            for i, run in _parallel(todo, jobs, backend, bar, len(finished)):
                if kept is not None:
                    kept.save(tasks[i].key, run)
                finished[i] = run
    except KeyboardInterrupt:
        where = f"; they are kept in {store}: run again to go on" if store is not None else ""
        runs = [finished[i] for i in sorted(finished)]
        raise Interrupted(f"stopped with {len(runs)} of {total} runs finished{where}", runs) from None
    return [finished[i] for i in range(total)]


def table(runs: Iterable[Run]) -> Any:
    """All histories in one DataFrame, with the columns algorithm, parameters, seed and diverged in front."""
    import pandas as pd

    from fedmls.algorithms import describe

    frames = []
    for run in runs:
        frame = run.history.copy()
        frame.insert(0, "algorithm", run.algorithm.name)
        frame.insert(1, "parameters", describe(run.algorithm))
        frame.insert(2, "seed", run.seed)
        frame.insert(3, "diverged", run.diverged)
        frames.append(frame)
    return pd.concat([frame for frame in frames if len(frame)] or frames, ignore_index=True)


def _tasks(
    algorithms: list[Algorithm],
    problem: Any,
    seeds: list[int],
    rounds: int,
    batch: float,
    x0: Any,
    optimum: Any,
    metrics: Any,
    every: int,
) -> list[Task]:
    if not algorithms or not seeds:
        raise ValueError("there is nothing to run; give at least one algorithm and one seed")
    problems = {seed: problem if isinstance(problem, Problem | OracleProblem) else problem(seed) for seed in seeds}
    measured = {seed: metrics(seed) if callable(metrics) else dict(metrics or {}) for seed in seeds}
    tasks = [
        Task(algorithm, problems[seed], rounds, batch, seed, x0, optimum, measured[seed], every)
        for algorithm in algorithms
        for seed in seeds
    ]
    for algorithm in algorithms:  # bad input is refused, and f* solved, before any work is done
        Simulation(*tasks[0]._replace(algorithm=algorithm))
    return tasks


def _parallel(
    tasks: list[tuple[int, Task]], jobs: int, backend: str, bar: Bar, before: int
) -> Iterator[tuple[int, Run]]:
    """The runs as they finish."""
    import joblib

    if backend == "processes" and joblib.effective_n_jobs(jobs) == 1:
        backend = "threads"
    with ExitStack() as stack:
        rounds = None
        if backend == "threads":
            rounds = Rounds(bar, before, stack.enter_context(ctrl_c()))
        stack.enter_context(joblib.parallel_config(backend=BACKENDS[backend], n_jobs=jobs))
        # max_nbytes=None: arrays mapped from a file are read-only, for which the loop would be compiled anew
        parallel = joblib.Parallel(return_as="generator_unordered", batch_size=1, max_nbytes=None)
        done = before
        for i, run in parallel(joblib.delayed(_run)(i, task, rounds) for i, task in tasks):
            done += 1
            if rounds is None:
                gaps = run.history["relative_gap"]
                bar.update(done, float(gaps.iloc[-1]) if len(gaps) else None)
            yield i, run


class Rounds:
    """Threads report their rounds here, so that the bar moves while runs are under way."""

    def __init__(self, bar: Bar, before: int, stop: threading.Event) -> None:
        self.bar, self.done, self.stop = bar, float(before), stop

    def report(self, share: float, gap: float | None) -> None:
        self.done += share
        self.bar.update(self.done, gap)


def _run(i: int, task: Task, rounds: Rounds | None) -> tuple[int, Run]:
    in_worker = rounds is None and multiprocessing.parent_process() is not None
    if in_worker and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    simulation = Simulation(*task)
    simulation.stop = None if rounds is None else rounds.stop
    last = 0
    for k, gap in simulation.play():
        if rounds is not None:
            rounds.report((k - last) / task.rounds, gap)
        last = k
    return i, simulation.result()
