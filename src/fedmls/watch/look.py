"""What a results folder tells now of its run, sweep or federation: plain values, numbers as people write them."""

import shlex
import statistics
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fedmls.experiments.figures import log_spaced
from fedmls.report import numerals
from fedmls.report.about import held_out
from fedmls.report.chart import chart
from fedmls.report.curves import costs_of, curves_of, measures_of
from fedmls.results.events import Event, end_of, exchanges_of, read_events
from fedmls.results.layout import EVENTS, HISTORY, LABELS, POINTS
from fedmls.results.live import LiveReader, LiveRun, Unfinished
from fedmls.results.read import UniformResults, of_events, of_unfinished, read_setup, read_uniform

POINTS_OF_RUN = 120  # that a curve is drawn by
RUNS_SHOWN = 40  # of those under way
EXCHANGES_SHOWN = 30  # of a federation, the last ones
NODES_SHOWN = 60
QUIET_SECONDS = 5.0  # after which it is told how long a server has said nothing


class Watcher:
    """Looks at one folder, again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reader = LiveReader(folder)

    def look(self) -> dict[str, Any]:
        """Return what there is to see now."""
        live = self.reader.read()
        if live is not None:
            return _sweep(live, self.folder)
        events = read_events(self.folder) if (self.folder / EVENTS).exists() else []
        if events:
            return _federation(events, read_setup(self.folder), self.folder)
        if (self.folder / HISTORY).exists():
            return _finished(self.folder)
        if (self.folder / POINTS).exists():
            raise ValueError(f"{self.folder} is of fedmls compare, which has its own page, report.md")
        return _page(
            self.folder.name, "waiting", "nothing has begun yet: f* is being solved for, or nodes are being started"
        )


def _page(title: str, status: str, sentence: str, **more: Any) -> dict[str, Any]:
    absent = dict.fromkeys(("share", "chart", "runs", "nodes", "scores"))
    return {"title": title, "status": status, "sentence": sentence, "tiles": [], "notes": [], **absent, **more}


def _tile(name: str, value: str, note: str = "") -> dict[str, str]:
    return {"name": name, "value": value, "note": note}


def _about(seconds: float) -> str:
    """Write a time in two digits."""
    for unit, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * unit:
            return f"{seconds / unit:.0f} {name}" if seconds >= 9.5 * unit else f"{seconds / unit:.1f} {name}"
    return f"{seconds:.0f} s"


def _chart(results: UniformResults) -> dict[str, Any] | None:
    curves = curves_of(results, 0)
    measures = measures_of(curves)
    return chart(curves, measures, costs_of(curves)) if measures else None


def _report(folder: Path) -> str:
    return f"fedmls report {shlex.quote(str(folder))} --open makes a page of it to keep"


def _finished(folder: Path) -> dict[str, Any]:
    """Return the page of an experiment that has come to its end."""
    (results,) = read_uniform([folder])
    runs = sum(seeds.all for seeds in results.seeds.values())
    tiles = [_tile("Runs", f"{runs:,}", "all finished"), *_costs(results)]
    title = str(results.setup.get("title") or results.label)
    return _page(title, "finished", _report(folder), share=1.0, tiles=tiles, chart=_chart(results))


def _costs(results: UniformResults) -> list[dict[str, str]]:
    """Return what all runs together have spent so far."""
    last = results.history.sort_values("round").groupby([*LABELS, "seed"], sort=False).last()
    tiles = []
    if "exchanges" in last:
        tiles.append(_tile("Exchanges", numerals.count(float(last["exchanges"].sum())), "of all runs together"))
    if "bytes" in last:
        tiles.append(_tile("Bytes", numerals.size(float(last["bytes"].sum())), "up and down, all runs together"))
    return tiles


# A sweep


def _sweep(live: Unfinished, folder: Path) -> dict[str, Any]:
    """Return the page of an experiment that is under way, or was stopped."""
    title, running = str(live.setup.get("title") or folder.name), live.status == "running"
    finished, total = live.finished, len(live.runs)
    share = sum(_share(run, live.setup) for run in live.runs) / total
    tiles = [_tile("Runs finished", f"{finished:,} of {total:,}", f"{len(live.under_way)} under way")]
    if running:
        so_far = _about(time.time() - live.began)
        tiles.append(_tile("Time left", _time_left(live, share), f"about; {so_far} so far"))
    again = f"{live.setup['command']} goes on" if live.setup.get("command") else "run it again to go on"
    sentence = f"from {folder}" if running else f"finished runs are kept; {again}"
    shown = {"share": share, "runs": _runs(live), "tiles": tiles}
    thin = live._replace(runs=[_thin(run) for run in live.runs])
    try:
        results = of_unfinished(thin, folder.name)
    except ValueError:  # no rows yet
        return _page(title, live.status, sentence, **shown)
    tiles += _costs(results) + _best(results)
    return _page(title, live.status, sentence, **shown | {"chart": _chart(results)})


def _share(run: LiveRun, setup: Mapping[str, Any]) -> float:
    """Return how much of the run is done, by its rounds; it may end before the last."""
    if run.finished or run.history is None:
        return float(run.finished)
    return float(run.history["round"].iloc[-1] / setup["rounds"])


def _time_left(live: Unfinished, share: float) -> str:
    """Return about how long it takes, if what is left takes as long as what was done."""
    done = share * len(live.runs) - live.before
    left = (1 - share) * len(live.runs)
    return _about((time.time() - live.began) * left / done) if done > 0 else "not known yet"


def _thin(run: LiveRun) -> LiveRun:
    """Return the run with as many rows as a curve needs, the last among them."""
    if run.history is None or run.history.empty:
        return run
    return run._replace(history=run.history.iloc[log_spaced(len(run.history), POINTS_OF_RUN)])


def _best(results: UniformResults) -> list[dict[str, str]]:
    """Return the smallest gap so far, as measured and as proved, and whose it is."""
    tiles = []
    for key, title in (("relative_gap", "Smallest gap"), ("certified_gap", "Smallest proved gap")):
        rows = results.history[~results.history["diverged"]]
        if key in rows and np.isfinite(rows[key]).any():
            row = rows.loc[rows[key].idxmin()]
            name = ", ".join(filter(None, (row[label] for label in LABELS)))
            tiles.append(_tile(title, numerals.small(float(row[key])), f"{name}, seed {row['seed']}"))
    return tiles


def _runs(live: Unfinished) -> dict[str, Any] | None:
    """Return a table of the runs under way."""
    columns = {"round": "Round", "exchanges": "Exchanges", "bytes": "Bytes", "relative_gap": "Relative gap"}
    columns |= {"certified_gap": "Proved gap"} if any(_has(run, "certified_gap") for run in live.under_way) else {}
    rows = [
        {
            "name": ", ".join([*filter(None, (run.names[label] for label in LABELS)), f"seed {run.names['seed']}"]),
            "share": _share(run, live.setup),
            "cells": [_last(run, key, live.setup) for key in columns],
        }
        for run in live.under_way[:RUNS_SHOWN]
    ]
    left = len(live.under_way) - len(rows)
    return {"columns": list(columns.values()), "rows": rows, "left": left} if rows else None


def _has(run: LiveRun, key: str) -> bool:
    return run.history is not None and key in run.history


def _last(run: LiveRun, key: str, setup: Mapping[str, Any]) -> str:
    row = {} if run.history is None else run.history.iloc[-1].to_dict()
    if key == "round":
        return f"{row['round']:,.0f} of {setup['rounds']:,}"
    if key == "bytes":
        return numerals.size(row["bytes_up"] + row["bytes_down"])
    value = row.get(key, float("nan"))
    return numerals.count(value) if key == "exchanges" else numerals.small(value)


# A federation


def _federation(events: list[Event], setup: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the page of a federation's run, from its events."""
    end, done = end_of(events), exchanges_of(events)
    status = {"": "running", "proved": "finished"}.get(end, end)
    job = setup.get("job") or {}
    title = str(setup.get("title") or folder.name)
    shown: dict[str, Any] = {"nodes": _nodes(done, setup), "scores": _scores(setup), "notes": _waiting(events)}
    if done:
        shown["tiles"] = _tiles(done, job, end)
        shown["share"] = 1.0 if end in ("finished", "proved") else min(1.0, done[-1]["round"] / job.get("rounds", 1))
    try:
        results = read_uniform([folder])[0] if end else of_events(events, setup, folder.name)
        shown["chart"] = _chart(results)
    except ValueError:  # no objective is known yet
        pass
    return _page(title, status, _sentence(events, end, folder), **shown)


def _sentence(events: list[Event], end: str, folder: Path) -> str:
    if end == "stopped":
        return str(events[-1].get("why", ""))
    if end:
        return f"{'the gap is proved; ' if end == 'proved' else ''}{_report(folder)}"
    quiet = time.time() - events[-1]["time"]
    return f"from {folder}" + (f"; the server's last word is {_about(quiet)} old" if quiet > QUIET_SECONDS else "")


def _waiting(events: Sequence[Event]) -> list[str]:
    """Return who is being waited for, and why."""
    waited = events[-1]["nodes"] if events[-1].get("event") == "waiting" else {}
    return [f"waiting for {name}: {why}" for name, why in waited.items()]


def _tiles(done: list[Event], job: Mapping[str, Any], end: str) -> list[dict[str, str]]:
    last, rounds = done[-1], job.get("rounds", 0)
    each = [after["time"] - before["time"] for before, after in pairwise(done) if after["kind"] == "round"]
    note = f"{numerals.seconds(statistics.median(each))} each, the median" if each else ""
    tiles = [
        _tile("Round", f"{last['round']:,}" + (f" of {rounds:,}" if rounds else "")),
        _tile("Exchanges", f"{last['exchanges']:,}", note),
    ]
    up, down = numerals.size(last["bytes_up"]), numerals.size(last["bytes_down"])
    tiles.append(_tile("Bytes", numerals.size(last["bytes_up"] + last["bytes_down"]), f"{up} up, {down} down"))
    if not end:
        tiles.append(_tile("Time left", _left(done, rounds), "at most" if job.get("until") is not None else "about"))
    if last.get("objective") is not None:
        tiles.append(_tile("Objective", numerals.small(last["objective"]), f"at round {last['measured_round']:.0f}"))
    if job.get("certificate"):
        gap = last.get("certified_gap")
        until = f"until {numerals.small(job['until'])}" if job.get("until") is not None else ""
        tiles.append(_tile("Proved gap", numerals.NOTHING if gap is None else numerals.small(gap), until))
    return tiles


def _left(done: list[Event], rounds: int) -> str:
    """Return about how long the other rounds take, if they take as long as those so far."""
    own = [event for event in done if event["kind"] == "round"]
    if len(own) < 2:
        return "not known yet"
    pace = (own[-1]["time"] - own[0]["time"]) / (own[-1]["round"] - own[0]["round"])
    return _about(pace * max(0, rounds - own[-1]["round"]))


def _nodes(done: list[Event], setup: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return who answered when: for each node its seconds in the last exchanges, or why it failed."""
    told = [event for event in done if event.get("answered") or event.get("failed")]
    names = [node["name"] for node in setup.get("nodes") or ()]
    names += [name for event in told for name in (*event.get("answered", {}), *event["failed"])]
    names = list(dict.fromkeys(names))
    if not told or not names:
        return None
    shown = told[-EXCHANGES_SHOWN:]
    most = max((seconds for event in shown for seconds in event.get("answered", {}).values()), default=0.0)
    rows = [_node(name, shown, most) for name in names[:NODES_SHOWN]]
    heads = [f"exchange {event['exchanges']}: {_kind(event)}" for event in shown]
    return {"exchanges": heads, "rows": rows, "left": len(names) - len(rows), "most": numerals.seconds(most)}


def _kind(event: Event) -> str:
    return f"round {event['round']}" if event["kind"] == "round" else str(event["kind"])


def _node(name: str, shown: list[Event], most: float) -> dict[str, Any]:
    cells, took = [], []
    for event in shown:
        seconds = event.get("answered", {}).get(name)
        if name in event["failed"]:
            cells.append({"kind": "failed", "about": event["failed"][name], "height": 100})
        elif seconds is None:
            cells.append({"kind": "idle", "about": "was not asked", "height": 0})
        else:
            took.append(seconds)
            height = round(100 * seconds / most) if most else 0
            cells.append({"kind": "answered", "about": numerals.seconds(seconds), "height": height})
    median = numerals.seconds(statistics.median(took)) if took else numerals.NOTHING
    failed = sum(cell["kind"] == "failed" for cell in cells)
    return {"name": name, "last": cells[-1]["about"], "median": median, "failed": failed, "cells": cells}


def _scores(setup: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the scores on held-out rows as a table: of all rows together first, then of each node's."""
    told = held_out(setup.get("held_out"))
    if told is None:
        return None
    [_, *titles], *rows = told["cells"]
    shown = [{"name": name, "cells": cells} for name, *cells in rows]
    columns = [title[:1].upper() + title[1:] for title in titles]
    return {"columns": columns, "rows": shown, "notes": told["remarks"]}
