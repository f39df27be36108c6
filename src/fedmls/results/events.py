"""Reads the events of a federation: a line for each exchange, which its server writes as it goes."""

import json
from bisect import bisect_left
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmls.results.layout import EVENTS

if TYPE_CHECKING:
    import pandas as pd

Event = dict[str, Any]
ENDS = ("finished", "proved", "stopped")
MEASURED = ("objective", "certified_gap")
NO_COUNTS = {"time", "kind", "failed", "answered", "measured_round", "also_measured", *MEASURED}


def read_events(folder: Path) -> list[Event]:
    file = folder / EVENTS
    return parsed(file.read_bytes()) if file.exists() else []


def parsed(lines: bytes) -> list[Event]:
    """Return the events of these lines; one that a killed server left half written is none."""
    found = []
    for text in lines.splitlines():
        with suppress(ValueError):
            found.append(json.loads(text))
    return found


def exchanges_of(events: list[Event]) -> list[Event]:
    """Return the events of exchanges that were done."""
    return [event for event in events if "kind" in event]


def end_of(events: list[Event]) -> str:
    """Return how the run ended: finished, proved or stopped; nothing while it goes on."""
    last = events[-1].get("event", "") if events else ""
    return last if last in ENDS else ""


def history_of(events: list[Event]) -> "pd.DataFrame":
    """Return a row for each round that was measured so far, with what had been spent by then."""
    import pandas as pd

    done = exchanges_of(events)
    rounds = sorted((event for event in done if event["kind"] == "round"), key=lambda event: event["round"])
    measured: dict[int, tuple[Event, Event]] = {}  # what was found of a round, and the event that tells it
    for event in done:
        for one in (*event.get("also_measured", ()), event):
            if "measured_round" in one:
                measured.setdefault(int(one["measured_round"]), (one, event))
    rows = []
    for k, (one, event) in sorted(measured.items()):
        place = bisect_left(rounds, k, key=lambda other: other["round"])  # of its exchange, in which others may be too
        spent = rounds[place] if place < len(rounds) else event
        counts = {name: value for name, value in spent.items() if name not in NO_COUNTS}
        rows.append(counts | {"round": k} | {name: one.get(name) for name in MEASURED})
    return pd.DataFrame(rows).astype(dict.fromkeys(MEASURED, float)) if rows else pd.DataFrame()
