"""Where people already look: the rows of a run in TensorBoard or MLflow, while it runs or afterwards.

A callback of :func:`fedmls.simulate` is a function of a row of the history, a dict. It may have two methods beside:

    begin(about)      before the first row: name, algorithm, parameters, problem, seed, batch,
                      rounds, optimum
    end(run, error)   after the last: the Run so far, and what stopped it (None, or an exception)

A run that goes on from a checkpoint begins with the rows of the checkpoint: a callback sees the whole history, in its
order. An exception in a callback ends the run, with its checkpoint saved; all callbacks are told the end.
"""

import json
import logging
import math
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, Self

from fedmls.algorithms import from_dict
from fedmls.results.events import Event, end_of, history_of, read_events
from fedmls.results.layout import MODEL, RUNS
from fedmls.results.live import LiveReader, LiveRun
from fedmls.results.model import read_description
from fedmls.results.pipeline import load
from fedmls.results.read import read_runs, read_setup
from fedmls.simulation.observers import Callback
from fedmls.simulation.run import about_run
from fedmls.types import Run

FLUSH_SECONDS = 2.0
FOLLOW_SECONDS = 1.0  # between two looks at a results folder


def log(runs: Iterable[Run] | str | Path, callback: Callback, **more: Any) -> None:
    """Tell a callback of finished runs: those of a sweep, or all that a results folder keeps.

    more: what else there is to say about all of them, such as ``problem="SVM, ten hospitals"``.
    """
    if isinstance(runs, str | Path):
        more = _problem_of(Path(runs)) | more
        runs = read_runs(Path(runs))
    for run in runs:
        if hasattr(callback, "begin"):
            callback.begin(about_run(run.algorithm, run.seed, run.batch, run.optimum, **more))
        for row in run.history.to_dict("records"):
            callback(row)
        if hasattr(callback, "end"):
            callback.end(run, None)


class Tracker(Protocol):
    """A callback with all that it may have."""

    def begin(self, about: dict[str, Any]) -> None: ...
    def __call__(self, row: dict[str, float]) -> None: ...
    def end(self, run: "Run | LiveRun | None", error: BaseException | None) -> None: ...


class Follower:
    """Logs the runs of a results folder as they go, each with a tracker of its own, while it is entered.

    A thread follows the files that an experiment or a federation writes; at the end the rest is logged, too. Runs that
    were finished before are not logged again. The runs come first: if a tracker fails, a warning says so at the end.
    """

    def __init__(self, folder: Path, tracker: Callable[[], Tracker]) -> None:
        self.folder, self.tracker, self.reader = folder, tracker, LiveReader(folder)
        self.open: dict[str, tuple[Tracker, set[int]]] = {}  # by key, with the rounds that were logged
        self.ended: set[str] = set()
        self.trackers: dict[str, Tracker] = {}  # of an experiment's runs, by algorithm and seed
        self.failure: Exception | None = None
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        self.began = time.time()
        self.ended = {file.stem for file in (self.folder / RUNS).glob("*.parquet")}
        self.thread.start()
        return self

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        self.over.set()
        self.thread.join()
        self._look()
        if error is None:
            self._try(self._log_model)
        for tracker, _rows in self.open.values():
            self._try(lambda tracker=tracker: tracker.end(None, error))  # type: ignore[misc]
        if self.failure is not None:
            warnings.warn(f"not all was logged: {self.failure}", stacklevel=2)

    def _follow(self) -> None:
        while not self.over.wait(FOLLOW_SECONDS):
            self._look()

    def _look(self) -> None:
        if self.failure is None:
            self._try(self._log)

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.failure = self.failure or error

    def _log(self) -> None:
        live = self.reader.read()
        if live is not None and live.began >= self.began:
            for run in live.runs:
                if run.key not in self.ended and run.history is not None:
                    self._log_run(run, live.setup)
        events = read_events(self.folder)
        setup = read_setup(self.folder) if events else {}
        if "job" in setup and setup["run"] not in self.ended:
            self._log_federation(events, setup)

    def _log_run(self, run: LiveRun, setup: dict[str, Any]) -> None:
        about = about_run(from_dict(run.algorithm), run.names["seed"], setup["batch"], None, problem=setup["problem"])
        self._rows(run.key, about | {"rounds": setup["rounds"]}, run.history)
        self.trackers[_run_name(run.algorithm, run.names["seed"])] = self.open[run.key][0]
        if run.finished:
            self._end(run.key, run)

    def _log_model(self) -> None:
        """Log the model that the experiment keeps, with the run that it is of."""
        if not self.trackers or not (self.folder / MODEL).exists():
            return
        trained = read_description(self.folder).trained
        tracker = self.trackers.get(_run_name(trained["algorithm"], trained["seed"]))
        if isinstance(tracker, MLflow):
            tracker.log_model(load(self.folder))

    def _log_federation(self, events: list[Event], setup: dict[str, Any]) -> None:
        job, key = setup["job"], setup["run"]
        about = about_run(from_dict(job["algorithm"]), job["seed"], job["batch"], None, problem=setup["problem"])
        self._rows(key, about | {"rounds": job["rounds"]}, history_of(events))
        if end_of(events) in ("finished", "proved") and (self.folder / MODEL).exists():
            tracker = self.open[key][0]
            if isinstance(tracker, MLflow):
                tracker.log_model(load(self.folder))
            self._end(key, None)

    def _rows(self, key: str, about: dict[str, Any], history: Any) -> None:
        """Log the rows that are new. Of runs done together some come only when they are finished."""
        if key not in self.open:
            tracker = self.tracker()
            tracker.begin(about)
            self.open[key] = tracker, set()
        tracker, logged = self.open[key]
        for row in history[~history["round"].isin(logged)].to_dict("records") if len(history) else ():
            tracker(row)
            logged.add(row["round"])

    def _end(self, key: str, run: LiveRun | None) -> None:
        tracker, _ = self.open.pop(key)
        self.ended.add(key)
        tracker.end(run, None)


def _run_name(algorithm: dict[str, Any], seed: int) -> str:
    return json.dumps([algorithm, seed], sort_keys=True)


class TensorBoard:
    """Event files: a folder for each run, in ``folder``. To see them: ``tensorboard --logdir FOLDER``.

    Steps are rounds, the relative time is that of the run (``seconds``), parameters are under HPARAMS.
    """

    def __init__(self, folder: str | Path) -> None:
        self._files = _load("tensorboard.summary.writer.event_file_writer", "tensorboard")
        self._events = _load("tensorboard.compat.proto.event_pb2", "tensorboard")
        self._hparams = _load("tensorboard.plugins.hparams.summary_v2", "tensorboard")
        self.folder = Path(folder)
        self._writer: Any = None

    def begin(self, about: dict[str, Any]) -> None:
        self._began = time.time()
        folder = _new_folder(self.folder, re.sub(r"[^\w.=+-]+", "-", about["name"]).strip("-")[:150])
        self._writer = self._files.EventFileWriter(str(folder), 100, FLUSH_SECONDS)
        known = {name: value for name, value in _flat(about).items() if value is not None}
        parameters = self._hparams.hparams_pb(known, trial_id=folder.name, start_time_secs=self._began)
        self._writer.add_event(self._events.Event(wall_time=self._began, summary=parameters))

    def __call__(self, row: dict[str, float]) -> None:
        event = self._events.Event(wall_time=self._began + row["seconds"], step=int(row["round"]))
        for name, value in _numbers(row).items():
            event.summary.value.add(tag=name, simple_value=value)
        self._writer.add_event(event)

    def end(self, run: Run | LiveRun | None, error: BaseException | None) -> None:
        self._writer.close()


class MLflow:
    """A run of its own for each run, with its parameters and, by round, its metrics.

    uri: where MLflow keeps them, a server or a file such as ``sqlite:///runs.db``; what MLflow is set to unless given.
    Rows are sent together, every two seconds. Ctrl-C makes a run KILLED, an exception FAILED.
    """

    def __init__(self, experiment: str = "fedmls", uri: str | None = None) -> None:
        with warnings.catch_warnings():  # MLflow's imports warn of what SQLAlchemy is going to drop
            warnings.simplefilter("ignore", DeprecationWarning)
            self._entities = _load("mlflow.entities", "mlflow")
            self._client = _client(uri)
            self.experiment = _experiment(self._client, experiment)
        self._run = ""
        self._rows: list[Any] = []

    def begin(self, about: dict[str, Any]) -> None:
        self._began = self._sent = time.time()
        self._rows = []
        about = _flat(about)
        run = self._client.create_run(self.experiment, run_name=about.pop("name"))
        self._run = run.info.run_id
        parameters = [self._entities.Param(name, str(value)[:500]) for name, value in about.items()]
        self._client.log_batch(self._run, params=parameters)

    def __call__(self, row: dict[str, float]) -> None:
        at = int(1000 * (self._began + row["seconds"]))
        metrics = [self._entities.Metric(name, value, at, int(row["round"])) for name, value in _numbers(row).items()]
        if len(self._rows) + len(metrics) > 1000 or time.time() - self._sent > FLUSH_SECONDS:
            self._send()
        self._rows += metrics

    def _send(self) -> None:
        self._client.log_batch(self._run, metrics=self._rows)
        self._rows, self._sent = [], time.time()

    def log_model(self, pipeline: Any) -> None:
        """Log a scikit-learn pipeline as the run's model: mlflow.sklearn.load_model gives it back."""
        import sklearn

        with _quiet_mlflow():
            mlflow, flavour = _load("mlflow", "mlflow"), _load("mlflow.sklearn", "mlflow")
            before = mlflow.get_tracking_uri()
            mlflow.set_tracking_uri(self._client.tracking_uri)
            needs = [f"scikit-learn=={sklearn.__version__}", "fedmls"]
            try:
                with mlflow.start_run(run_id=self._run):
                    flavour.log_model(
                        pipeline, name="model", serialization_format="cloudpickle", pip_requirements=needs
                    )
            finally:
                mlflow.set_tracking_uri(before)

    def end(self, run: Run | LiveRun | None, error: BaseException | None) -> None:
        stopped = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        try:
            self._send()
            if run is not None:
                self._client.set_tag(self._run, "diverged", str(run.diverged))
        finally:
            self._client.set_terminated(self._run, "FINISHED" if error is None else stopped)


@contextmanager
def _quiet_mlflow() -> Iterator[None]:
    """Keep MLflow from warning of its own code, and of a format that is that of every scikit-learn model."""
    logger = logging.getLogger("mlflow.sklearn")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _client(uri: str | None) -> Any:
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    try:
        return MlflowClient(tracking_uri=uri)
    except MlflowException as error:
        raise ValueError(f"MLflow does not open {uri or 'its default store'}: {error.message}") from None
    except ImportError as error:
        raise ValueError(f"a database needs more ({error}); run pip install 'fedmls[mlflow]'") from None


def _experiment(client: Any, name: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is not None and found.lifecycle_stage == "deleted":
        raise ValueError(f"experiment {name!r} has been deleted in MLflow; restore it or give another name")
    return str(found.experiment_id if found is not None else client.create_experiment(name))


def _load(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ValueError(f"{extra} cannot be loaded ({error}); run pip install 'fedmls[{extra}]'") from None


def _numbers(row: dict[str, float]) -> dict[str, float]:
    """Return the columns beside the round that hold a finite number."""
    return {name: float(value) for name, value in row.items() if name != "round" and math.isfinite(value)}


def _flat(values: dict[str, Any], inside: str = "") -> dict[str, Any]:
    """Return numbers and text, those of inner dicts too: parameters by their own names, others as "algorithm.name"."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, inside if key == "parameters" else f"{inside}{key}.")
        else:
            flat[inside + key] = value if isinstance(value, int | float | None) else str(value)
    return flat


def _new_folder(parent: Path, name: str) -> Path:
    """Make a folder of that name, or NAME-2, NAME-3, ..., that was not there; return it."""
    place = 1
    while True:
        folder = parent / (name if place == 1 else f"{name}-{place}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            place += 1


def _problem_of(results: Path) -> dict[str, Any]:
    setup = read_setup(results)
    return {"problem": setup["problem"]} if "problem" in setup else {}
