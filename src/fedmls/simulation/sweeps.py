"""Many runs in parallel: every algorithm with every seed."""

import hashlib
import json
import multiprocessing
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedmls.checks import check_jobs, one_of, whole
from fedmls.hyperparameters import describe
from fedmls.problem import OracleProblem, Problem
from fedmls.progress import Bar, Board, shown_board
from fedmls.rounds import require_algorithm
from fedmls.simulation.config import AnyProblem, Metrics, PlannedRun, RunConfig, check_problem, known_optimum, on_device
from fedmls.simulation.observers import Observer, Progress, shown_gap
from fedmls.simulation.run import Interrupted, Simulation, ctrl_c
from fedmls.simulation.stacked_sweeps import StackedSweep
from fedmls.simulation.store import RunStore
from fedmls.types import Algorithm, Optimum, Run

SAVERS = 4  # threads that write finished runs
BACKENDS = {"threads": "threading", "processes": "loky", "dask": "dask"}


class Follower(Protocol):
    """Whoever follows the runs of a sweep."""

    def begin(self, keys: list[str]) -> Sequence[Observer]:
        """Learn the store keys of all runs, before the first begins; return an observer for each, which may be sent to
        another process.
        """

    def finished(self, place: int) -> None:
        """Learn that the run at this place is in the store."""


def store_key(task: PlannedRun) -> str:
    """Return the name of a run in a store: equal keys, equal results (metrics count by their names only)."""
    if isinstance(task.problem, OracleProblem):
        raise ValueError("runs of a problem made of functions cannot be stored; leave out store=")
    config = task.config.resolved(task.problem)
    text = json.dumps([config.identity(task.algorithm, task.problem), *config.stops(), version("fedmls")])
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
    target: float | None = None,
    certificate: float | bool | None = None,
    until: float | None = None,
    jobs: int = -1,
    backend: str = "processes",
    store: str | Path | None = None,
    errors: str = "raise",
    progress: bool | None = None,
    device: str = "cpu",
) -> list[Run]:
    """:func:`fedmls.simulate` for every algorithm and seed, in that order; ``fedmls.table`` joins the histories.

    problem, metrics: as for one run, or functions of the seed.
    certificate, until: as for one run, for the algorithms that make a certificate; the others run without.
    device: as for one run; on a GPU "processes" are threads.
    jobs: how many at once; -1 is one per core. Runs of an algorithm that can be stacked are one simulation, in threads,
    whatever the backend; their ``seconds`` are equal shares of its time.
    backend: "processes"; "threads", which start at once and suit short sweeps (the compiled loop runs outside the
    interpreter's lock); or "dask", which sends the runs to the cluster of the current ``dask.distributed.Client``.
    store: a folder that keeps every run as it finishes; runs found there are not run again.
    errors: "raise" what a run raises, or "keep" it as that run's ``error``, and go on; it is not stored.
    On Ctrl-C an :class:`fedmls.Interrupted` is raised, with the finished runs in ``.runs``.
    """
    config = RunConfig(rounds, batch, 0, x0, optimum, None, every, target, certificate, until)
    return run_all(
        algorithms,
        problem,
        config,
        seeds,
        metrics=metrics,
        jobs=jobs,
        backend=backend,
        store=store,
        errors=errors,
        progress=progress,
        device=device,
    )


def run_all(
    algorithms: Sequence[Algorithm],
    problem: AnyProblem | Callable[[int], AnyProblem],
    config: RunConfig,
    seeds: Iterable[int],
    *,
    metrics: Metrics | Callable[[int], Metrics] | None = None,
    jobs: int = -1,
    backend: str = "processes",
    store: str | Path | None = None,
    errors: str = "raise",
    progress: bool | None = None,
    device: str = "cpu",
    follower: Follower | None = None,
) -> list[Run]:
    """Do what :func:`sweep` does, with the settings of a run in ``config``; each run has its seed and metrics.

    follower: follows the runs as they go, on this machine; only with a store.
    """
    one_of("backend", backend, BACKENDS)
    one_of("errors", errors, ("raise", "keep"))
    check_jobs(jobs)
    if device != "cpu" and backend == "processes":
        backend = "threads"  # so that the rows are on the GPU once
    algorithms, seeds = _several("algorithms", algorithms), _several("seeds", seeds)
    total = len(algorithms) * len(seeds)
    finished: dict[int, Run] = {}
    kept: RunStore | None = None
    saving: list[Future[None]] = []
    together: StackedSweep | None = None
    try:
        with Bar("sweep", total, "runs", progress) as bar, ThreadPoolExecutor(SAVERS) as savers:
            tasks = _tasks(algorithms, problem, config, seeds, metrics, device)
            kept = None if store is None else RunStore(store)
            keys = [] if kept is None else [store_key(task) for task in tasks]
            if kept is not None:
                finished = {i: run for i, key in enumerate(keys) if (run := kept.load(key)) is not None}
            observers = [] if follower is None else follower.begin(keys)
            todo = {i: task for i, task in enumerate(tasks) if i not in finished}
            together = None if backend == "dask" else StackedSweep(todo, keys, kept, observers)
            for i, run in _finished(todo, together, jobs, backend, errors == "keep", bar, observers):
                finished[i] = run
                saving.append(savers.submit(_keep, i, run, kept, keys, follower))  # others go on in the meantime
                saving = [one for one in saving if not one.done() or one.result()]  # or what it raised
            for one in saving:
                one.result()
    except KeyboardInterrupt:
        if kept is not None:  # one may have been finished and not saved yet
            finished = {i: run for i, run in finished.items() if kept.has(keys[i])}
        where = "" if kept is None else kept.told(finished)
        runs = [finished[i] for i in sorted(finished)]
        raise Interrupted(f"stopped with {len(runs)} of {total} runs finished{where}", runs) from None
    finally:
        if together is not None:
            together.forget()
    return [finished[i] for i in range(total)]


def _keep(i: int, run: Run, store: RunStore | None, keys: list[str], follower: "Follower | None") -> None:
    """Put a finished run into the store, if there is one; then it needs not be followed any more."""
    if store is not None and not run.error:
        store.save(keys[i], run)
    if follower is not None:
        follower.finished(i)


def _several(name: str, values: Any) -> list[Any]:
    example = {"algorithms": ", such as [fedmls.FedMLS()]", "seeds": ", such as range(20)"}.get(name, "")
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{name} is {values!r}; give a list{example}")
    several = list(values)
    if not several:
        raise ValueError(f"{name} is empty; give a list{example}")
    return several


def table(runs: Iterable[Run]) -> Any:
    """Return all histories in one DataFrame, with the columns algorithm, parameters, seed and diverged in front."""
    return joined_histories(_several("runs", runs), {})


def joined_histories(runs: Sequence[Run], front: Mapping[str, Sequence[Any]]) -> Any:
    """Return what :func:`table` does, with further columns in front, which have one value for each run."""
    import pandas as pd

    frames = [run.history for run in runs]
    front = {
        **front,
        "algorithm": [run.algorithm.name for run in runs],
        "parameters": [describe(run.algorithm) for run in runs],
        "seed": [run.seed for run in runs],
        "diverged": [run.diverged for run in runs],
    }
    joined = pd.concat([frame for frame in frames if len(frame)] or frames, ignore_index=True)
    of_run = np.repeat(np.arange(len(frames)), [len(frame) for frame in frames])
    for place, (name, values) in enumerate(front.items()):
        joined.insert(place, name, pd.Series(values).iloc[of_run].array)
    return joined


def _config_of_each(algorithms: list[Algorithm], config: RunConfig) -> list[RunConfig]:
    """Return the settings of each algorithm: those that make no certificate run without."""
    if config.certificate is None:
        return [config] * len(algorithms)
    for algorithm in algorithms:
        require_algorithm(algorithm)
    able = [algorithm.traits.certifies or algorithm.traits.proves for algorithm in algorithms]
    if not any(able):
        raise ValueError(
            f"certificate is {config.certificate!r}, but none of the algorithms makes one; fedmls, fedmlse and "
            "fedmlsd do"
        )
    without = replace(config, certificate=None, until=None)
    return [config if makes_one else without for makes_one in able]


def _tasks(
    algorithms: list[Algorithm], problem: Any, config: RunConfig, seeds: list[int], metrics: Any, device: str
) -> list[PlannedRun]:
    configs = _config_of_each(algorithms, config)
    if not isinstance(problem, Problem | OracleProblem) and not callable(problem):
        raise ValueError(f"{type(problem).__name__} is no problem; give one, or a function of the seed that makes one")
    for seed in seeds:
        whole("seed", seed, least=0)
    problems = {seed: problem if isinstance(problem, Problem | OracleProblem) else problem(seed) for seed in seeds}
    for one in problems.values():
        check_problem(one)
    best = {}
    for place, (seed, one) in enumerate(problems.items(), start=1):
        Bar.tell(f"f* of seed {place} of {len(problems)}")
        best[seed] = known_optimum(one, config.optimum)
    Bar.tell("preparing")
    problems = {seed: on_device(one, device) for seed, one in problems.items()}
    measured = {seed: metrics(seed) if callable(metrics) else metrics or {} for seed in seeds}
    tasks = [
        PlannedRun(algorithm, problems[seed], replace(own, seed=int(seed), optimum=best[seed], metrics=measured[seed]))
        for algorithm, own in zip(algorithms, configs, strict=True)
        for seed in seeds
    ]
    for task in tasks:  # bad input is refused before any run begins
        Simulation(*task)
    return tasks


def _finished(
    todo: dict[int, PlannedRun],
    together: StackedSweep | None,
    jobs: int,
    backend: str,
    keep_errors: bool,
    bar: Bar,
    observers: Sequence[Observer],
) -> Iterator[tuple[int, Run]]:
    """Yield the runs as they finish: first those that are done together, then the others."""
    left = dict(todo)
    for i, run in () if together is None else together.runs(jobs, keep_errors, bar):
        del left[i]
        yield i, run
    yield from _parallel(list(left.items()), jobs, backend, keep_errors, bar, observers)


def _parallel(
    tasks: list[tuple[int, PlannedRun]],
    jobs: int,
    backend: str,
    keep_errors: bool,
    bar: Bar,
    observers: Sequence[Observer] = (),
) -> Iterator[tuple[int, Run]]:
    """Yield the runs as they finish."""
    import joblib

    if not tasks:
        return
    before = bar.total - len(tasks)
    if backend == "processes" and joblib.effective_n_jobs(jobs) == 1:
        backend = "threads"
    with ExitStack() as stack:
        stop = stack.enter_context(ctrl_c()) if backend == "threads" else None
        board = stack.enter_context(shown_board(bar, before, len(tasks))) if backend != "dask" and bar.shown else None
        stack.enter_context(joblib.parallel_config(backend=BACKENDS[backend], n_jobs=jobs))
        stack.enter_context(warnings.catch_warnings())  # on Ctrl-C, of runs that are given up: they are counted anyway
        warnings.filterwarnings("ignore", message=".*still being processed by the workers.*")
        # max_nbytes=None: arrays mapped from a file are read-only, for which the loop would be compiled anew
        parallel = joblib.Parallel(return_as="generator_unordered", batch_size=1, max_nbytes=None)
        play = _try if keep_errors else _run
        own = [observers[i : i + 1] if backend != "dask" else () for i, _ in tasks]
        jobs_to_do = (
            joblib.delayed(play)(i, task, place, board, stop, own[place]) for place, (i, task) in enumerate(tasks)
        )
        for done, (i, run) in enumerate(parallel(jobs_to_do), start=before + 1):
            if board is None:
                gaps = run.history["relative_gap"]
                bar.update(done, float(gaps.iloc[-1]) if len(gaps) else None)
            yield i, run


def _run(
    i: int,
    task: PlannedRun,
    place: int,
    board: Board | None,
    stop: threading.Event | None,
    observers: Sequence[Observer] = (),
) -> tuple[int, Run]:
    in_worker = stop is None and multiprocessing.parent_process() is not None
    if in_worker and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    simulation = Simulation(*task)
    if board is None:
        simulation.run(observers, stop)
        return i, simulation.result()
    rounds, column = task.config.rounds, shown_gap(task.config)
    end = simulation.run([Progress(lambda k, gap: board.report(place, k / rounds, gap), column), *observers], stop)
    board.report(place, 1.0, None if end.last is None else end.last["relative_gap"])  # perhaps before its last round
    return i, simulation.result()


def _try(
    i: int,
    task: PlannedRun,
    place: int,
    board: Board | None,
    stop: threading.Event | None,
    observers: Sequence[Observer] = (),
) -> tuple[int, Run]:
    """Do the run; if it raises an error, return an empty run that holds the error."""
    try:
        return _run(i, task, place, board, stop, observers)
    except Exception as error:  # whatever it is: the other runs go on
        nothing = Simulation(*task).result()
        return i, replace(nothing, error=f"{type(error).__name__}: {error}")
