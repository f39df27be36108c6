"""Reads a results folder, whichever command wrote it, and also as earlier versions did. Computes nothing."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from fedmls.algorithms import ALGORITHMS
from fedmls.results.events import end_of, history_of, read_events
from fedmls.results.layout import EVENTS, HISTORY, LABELS, LIVE, POINTS, RUNS, SETUP, SUMMARY, Labels
from fedmls.results.live import LiveReader, Unfinished, joined
from fedmls.simulation.store import RunStore
from fedmls.types import Run


class Results(NamedTuple):
    """A folder of finished results, as its files have them."""

    folder: Path
    history: pd.DataFrame
    summary: pd.DataFrame
    setup: dict[str, Any]


def read_results(folder: Path) -> Results:
    """Return what an experiment has written."""
    for name in (HISTORY, SUMMARY, SETUP):
        if not (folder / name).exists():
            raise ValueError(f"{folder} holds no {name}; it is no folder of finished results")
    return Results(
        folder,
        pd.read_parquet(folder / HISTORY),
        pd.read_csv(
            folder / SUMMARY, keep_default_na=False, na_values=["nan", ""], dtype=dict.fromkeys(LABELS, str)
        ).fillna(dict.fromkeys(LABELS, "")),
        read_setup(folder),
    )


def is_results(folder: Path) -> bool:
    """Return whether the folder holds results, or what a run under way has written of them."""
    return any((folder / name).exists() for name in (RUNS, LIVE, HISTORY, SETUP, EVENTS, POINTS)) or any(
        folder.glob("job.*")
    )


def read_setup(folder: Path) -> dict[str, Any]:
    """Return what was run; nothing where no set-up is written."""
    file = folder / SETUP
    if not file.exists():
        return {}
    setup: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return setup


def read_runs(folder: Path) -> Iterator[Run]:
    """Yield the finished runs that the folder keeps."""
    files = sorted((folder / RUNS).glob("*.parquet"))
    if not files:
        raise ValueError(f"{folder} keeps no runs (there is no {folder / RUNS}/*.parquet); name a results folder")
    store = RunStore(folder / RUNS)
    for file in files:
        run = store.load(file.stem)
        if run is None:
            raise ValueError(f"{file} cannot be read; delete it and run again")
        yield run


class Seeds(NamedTuple):
    """How many runs a curve has, and how many of them diverged."""

    all: int
    diverged: int


class UniformResults(NamedTuple):
    """A results folder in one form, whichever command and version wrote it.

    history: LABELS, seed, diverged, bytes (up and down) and the columns of :class:`fedmls.types.Run`, with metrics.
    seeds: every curve, in the order of the experiment; also those whose runs all diverged in round 1, and which
    therefore have no row in the history.
    unfinished: how far the runs are, if they are not finished; the history is what there is so far.
    """

    label: str
    history: pd.DataFrame
    seeds: dict[Labels, Seeds]
    setup: dict[str, Any]
    unfinished: str = ""


def read_uniform(paths: Sequence[Path]) -> list[UniformResults]:
    """Return these folders in one form, each with a label that tells it from the others."""
    for path in paths:
        if not path.is_dir():
            what = "no folder" if path.exists() else "not there"
            raise ValueError(f"{path} is {what}; give a results folder, as fedmls run or fedmls reproduce writes it")
    return [_uniform(path, label) for path, label in zip(paths, _folder_labels(paths), strict=True)]


def _folder_labels(paths: Sequence[Path]) -> list[str]:
    """Return the folders' names, or their paths where two have one name."""
    places = [path.resolve() for path in paths]
    for i, place in enumerate(places):
        if place in places[:i]:
            raise ValueError(f"{paths[i]} is given twice; give two folders")
    names = [place.name for place in places]
    return names if len({*names}) == len(names) else [str(path) for path in paths]


def _uniform(path: Path, label: str) -> UniformResults:
    live = LiveReader(path).read()
    if live is not None:
        return of_unfinished(live, label)
    setup = _checked_setup(path)
    events = read_events(path) if (path / EVENTS).exists() else []
    if events and not end_of(events):
        return of_events(events, setup, label)
    history = _history(path, setup)
    status = str(setup.get("status", ""))
    stopped = f"the run was {status}" if status.startswith("stopped") else ""
    return UniformResults(label, history, _seeds(history, path / SUMMARY), setup, stopped)


def of_unfinished(live: Unfinished, label: str) -> UniformResults:
    """Return what there is of an unfinished experiment."""
    history = joined(live)
    if history.empty:
        raise ValueError(f"{live.sentence()}; there are no rows yet: wait a little, or run it again")
    history = _with_labels(history, live.setup)
    return UniformResults(label, history, dict(_counted(history)), live.setup, live.sentence())


def of_events(events: list[dict[str, Any]], setup: dict[str, Any], label: str) -> UniformResults:
    """Return what there is of a federation's run that goes on, or whose server was killed."""
    history = history_of(events)
    if history.empty:
        raise ValueError("the run has just begun, and no objective is known yet; wait a little")
    history = _with_labels(history, setup)
    rounds = (setup.get("job") or {}).get("rounds", "?")
    how_far = f"the run is not finished: {history['round'].max()} of {rounds} rounds are measured"
    return UniformResults(label, history, dict(_counted(history)), setup, how_far)


def _refusal(file: Path, error: Exception) -> ValueError:
    why = (str(error).splitlines() or [type(error).__name__])[0]
    return ValueError(f"{file} cannot be read ({why}); start the experiment again: it keeps its finished runs")


def _checked_setup(folder: Path) -> dict[str, Any]:
    try:
        setup = read_setup(folder)
    except ValueError as error:
        raise _refusal(folder / SETUP, error) from None
    if not isinstance(setup, dict):
        raise ValueError(f"{folder / SETUP} holds a {type(setup).__name__}; it must hold an object")
    if "job" in setup and not setup.get("command"):  # a federation's server does not know what was typed
        setup["command"] = "fedmls federate --job job.toml"
    return setup


def _history(path: Path, setup: dict[str, Any]) -> pd.DataFrame:
    file = path / HISTORY
    if not file.exists():
        raise ValueError(f"{path} holds no {HISTORY}; {_instead(path)}")
    try:
        history = pd.read_parquet(file)
    except Exception as error:  # a damaged file makes pyarrow and pandas fail in all kinds of ways
        raise _refusal(file, error) from None
    if "round" not in history or not pd.api.types.is_numeric_dtype(history["round"]):
        raise ValueError(f"{file} has no column 'round' of numbers; it is no history of runs")
    if history.empty:
        raise ValueError(f"{file} holds no rows: no run came through its first round")
    return _with_labels(history.reset_index(drop=True), setup)


def _instead(path: Path) -> str:
    if (path / POINTS).exists():
        return "fedmls compare has its own page, report.md"
    if (path / RUNS).is_dir():
        return "the experiment is not finished: start it again to go on"
    return "give a results folder, as fedmls run or fedmls reproduce writes it"


def _with_labels(history: pd.DataFrame, setup: dict[str, Any]) -> pd.DataFrame:
    """Return the history with the labels of its curves. A federation's is one run without; old ones say ``reading``."""
    name, parameters, seed = _of_job(setup.get("job"))
    found = {
        "method": ("method", "algorithm", name),
        "variant": ("variant", "reading", ""),
        "parameter": ("parameter", "parameters", parameters),
        "seed": ("seed", "", seed),
        "diverged": ("diverged", "", False),
    }
    for column, (own, other, default) in found.items():
        history[column] = history[own] if own in history else history.get(other, default)
    for column in LABELS:
        history[column] = history[column].astype(object).where(history[column].notna(), "").astype(str)
    history["method"] = history["method"].replace(_titles())
    history["diverged"] = history["diverged"].fillna(False).astype(bool)
    sent = [column for column in ("bytes_up", "bytes_down") if column in history]
    if sent:
        history["bytes"] = history[sent].sum(axis=1)
    return history


def _titles() -> dict[str, str]:
    """Return the titles of algorithms by their names and by those of their classes, which earlier versions wrote."""
    return {name: cls.title for cls in ALGORITHMS.values() for name in (cls.name, cls.__name__)}


def _of_job(job: Any) -> tuple[str, str, int]:
    """Return the name, the parameters and the seed of a federation's run."""
    algorithm = job.get("algorithm") if isinstance(job, dict) else None
    if not isinstance(algorithm, dict):
        return "run", "", 0
    parameters = algorithm.get("parameters") or {}
    shown = (f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in parameters.items())
    return str(algorithm.get("name", "run")), ", ".join(shown), int(job.get("seed", 0))


def _seeds(history: pd.DataFrame, summary: Path) -> dict[Labels, Seeds]:
    """Return the seeds of each curve, counted in the history and corrected by the summary, with runs without a row."""
    counted = dict(_counted(history))
    told = dict(_told(summary)) if summary.exists() else {}
    lost = {names: seeds for names, seeds in told.items() if names in counted or seeds.all == seeds.diverged}
    return lost | {names: lost.get(names, seeds) for names, seeds in counted.items()}


def _counted(history: pd.DataFrame) -> Iterator[tuple[Labels, Seeds]]:
    for names, mine in history.groupby(list(LABELS), sort=False):
        yield names, Seeds(mine["seed"].nunique(), mine.loc[mine["diverged"], "seed"].nunique())


def _told(summary: Path) -> Iterator[tuple[Labels, Seeds]]:
    try:
        table = pd.read_csv(summary, keep_default_na=False, dtype=str).rename(columns={"reading": "variant"})
        if {*LABELS, "seeds", "diverged"} <= {*table.columns}:
            table["method"] = table["method"].replace(_titles())
            for *names, seeds, diverged in table[[*LABELS, "seeds", "diverged"]].itertuples(index=False):
                yield tuple(names), Seeds(int(seeds), int(diverged))
    except ValueError as error:
        raise _refusal(summary, error) from None
