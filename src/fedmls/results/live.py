"""What a results folder holds of an experiment that is under way or was stopped: the folder live.

    plan.json  what is to be run: the set-up, the labels, seed and store key of every run, who runs it
    KEY.csv    the rows of a run under way, as they are recorded; when it is finished, it is in runs

The folder is there until the tables are written. It is for those who follow an experiment, and for reports of what
there is so far; an experiment that is started again begins its unfinished runs anew.
"""

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple, Self

import pandas as pd
import psutil

from fedmls.files import whole_file
from fedmls.hyperparameters import to_dict
from fedmls.results.layout import LABELS, LIVE, PLAN, RUNS, Labels
from fedmls.simulation.observers import Row, View
from fedmls.simulation.store import RunStore
from fedmls.types import Algorithm

WRITE_SECONDS = 0.5  # between two writes of a run's rows


class LiveRows:
    """An observer that appends the rows of a run to a file, twice a second; a shorter run writes nothing.

    The run comes first: if the file cannot be written, it goes on without.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.rows: list[Row] = []
        self.written: float | None = None

    def on_rows(self, view: View) -> bool:
        now = time.monotonic()
        self.written = now if self.written is None else self.written
        self.rows.extend(view.rows)
        if self.rows and now - self.written > WRITE_SECONDS:
            self.written = now
            with suppress(OSError):
                self._write()
        return False

    def _write(self) -> None:
        lines = [",".join(map(str, row.values())) for row in self.rows]
        with self.file.open("a", encoding="utf-8") as stream:
            if not stream.tell():
                lines.insert(0, ",".join(self.rows[0]))
            stream.write("\n".join(lines) + "\n")
        self.rows = []


class LiveFolder:
    """Writes the folder while an experiment runs, as the follower of its sweep; at the end it is taken away, and kept
    if the experiment is stopped.
    """

    def __init__(
        self, out: Path, curves: Mapping[Labels, Algorithm], seeds: Sequence[int], setup: Mapping[str, Any]
    ) -> None:
        self.out, self.folder, self.setup = out, out / LIVE, setup
        self.runs = [
            dict(zip(LABELS, names, strict=True)) | {"seed": seed, "algorithm": to_dict(algorithm)}
            for names, algorithm in curves.items()
            for seed in seeds
        ]
        self.plan: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            shutil.rmtree(self.folder, ignore_errors=True)
        elif self.plan:
            with suppress(OSError):
                self._write(status="stopped")

    def begin(self, keys: list[str]) -> list[LiveRows]:
        """Write the plan, when all is prepared; what is left of an earlier one goes."""
        shutil.rmtree(self.folder, ignore_errors=True)
        store, process = RunStore(self.out / RUNS), psutil.Process()
        self._write(
            status="running",
            process=[process.pid, process.create_time()],
            began=time.time(),
            before=sum(map(store.has, keys)),
            setup=dict(self.setup),
            runs=[run | {"key": key} for run, key in zip(self.runs, keys, strict=True)],
        )
        return [LiveRows(self._file(place)) for place in range(len(keys))]

    def finished(self, place: int) -> None:
        with suppress(OSError):
            self._file(place).unlink(missing_ok=True)

    def _file(self, place: int) -> Path:
        return self.folder / f"{self.plan['runs'][place]['key']}.csv"

    def _write(self, **changes: Any) -> None:
        self.plan |= changes
        with whole_file(self.folder / PLAN) as stream:
            stream.write(json.dumps(self.plan, ensure_ascii=False).encode())


class LiveRun(NamedTuple):
    """A run of an unfinished experiment. history: the rows so far; none of a run that has not begun."""

    key: str  # in the store
    algorithm: dict[str, Any]  # as plain values
    names: dict[str, Any]  # LABELS and seed
    history: pd.DataFrame | None
    finished: bool
    diverged: bool = False


class Unfinished(NamedTuple):
    """An unfinished experiment. status: running or stopped.  before: runs that were there when it began."""

    status: str
    began: float
    before: int
    setup: dict[str, Any]
    runs: list[LiveRun]

    @property
    def finished(self) -> int:
        return sum(run.finished for run in self.runs)

    @property
    def under_way(self) -> list[LiveRun]:
        return [run for run in self.runs if run.history is not None and not run.finished]

    def sentence(self) -> str:
        """Return how far it is, in words."""
        begun = len(self.under_way)
        rest = len(self.runs) - self.finished - begun
        so_far = f"{self.finished} of {len(self.runs)} runs are finished, {begun} under way and {rest} not begun"
        how = "is running" if self.status == "running" else "was stopped"
        return f"the experiment {how}: {so_far}"


class LiveReader:
    """Reads an unfinished experiment, again and again: a finished run is read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._finished: dict[str, LiveRun] = {}

    def read(self) -> Unfinished | None:
        """Return the experiment as it is now; None if there is no unfinished one."""
        try:
            plan = json.loads((self.folder / LIVE / PLAN).read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        store = RunStore(self.folder / RUNS)
        runs = [self._run(one, store) for one in plan["runs"]]
        return Unfinished(_status(plan), plan["began"], plan["before"], plan["setup"], runs)

    def _run(self, planned: dict[str, Any], store: RunStore) -> LiveRun:
        key = planned["key"]
        if key in self._finished:
            return self._finished[key]
        names = {name: planned[name] for name in (*LABELS, "seed")}
        run = store.load(key)
        if run is None:
            rows = _read_rows(self.folder / LIVE / f"{key}.csv")
            return LiveRun(key, planned["algorithm"], names, rows, finished=False)
        self._finished[key] = LiveRun(key, planned["algorithm"], names, run.history, True, run.diverged)
        return self._finished[key]


def _status(plan: Mapping[str, Any]) -> str:
    """Return the status that is written, or "stopped" if the process that wrote it is gone."""
    pid, created = plan["process"]
    try:
        alive = psutil.Process(pid).create_time() == created
    except psutil.Error:
        alive = False
    return str(plan["status"]) if alive else "stopped"


def _read_rows(file: Path) -> pd.DataFrame | None:
    """Return the whole lines of the file; None where there are none."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    whole = text[: text.rfind("\n") + 1]
    return pd.read_csv(StringIO(whole)) if whole.count("\n") > 1 else None


def joined(unfinished: Unfinished) -> pd.DataFrame:
    """Return the rows of all runs so far in one table, with the labels, the seed and whether the run diverged."""
    frames = [
        run.history.assign(**run.names, diverged=run.diverged)
        for run in unfinished.runs
        if run.history is not None and len(run.history)
    ]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
