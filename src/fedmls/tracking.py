"""Where people already look: the rows of a run in TensorBoard or MLflow, while it runs or afterwards.

A callback of :func:`fedmls.simulate` is a function of a row of the history, a dict. It may have two methods beside:

    begin(about)      before the first row: name, algorithm, parameters, problem, seed, batch,
                      rounds, optimum
    end(run, error)   after the last: the Run so far, and what stopped it (None, or an exception)

A run that goes on from a checkpoint begins with the rows of the checkpoint: a callback sees the whole history, in its
order. An exception in a callback ends the run, with its checkpoint saved; all callbacks are told the end.
"""

import math
import re
import time
import warnings
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from fedmls.results.read import read_runs, read_setup
from fedmls.simulation.observers import Callback
from fedmls.simulation.run import about_run
from fedmls.types import Run

FLUSH_SECONDS = 2.0


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

    def end(self, run: Run, error: BaseException | None) -> None:
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

    def end(self, run: Run, error: BaseException | None) -> None:
        stopped = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        try:
            self._send()
            self._client.set_tag(self._run, "diverged", str(run.diverged))
        finally:
            self._client.set_terminated(self._run, "FINISHED" if error is None else stopped)


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
