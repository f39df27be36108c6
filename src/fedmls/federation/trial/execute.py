"""``fedmls federate``: a whole federation on this machine, and what came of it beside the simulation."""

import math
import shlex
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np

from fedmls.federation.deploy.processes import Say, end_left_behind
from fedmls.federation.errors import Stopped
from fedmls.federation.job import Job
from fedmls.federation.server.folder import CHECKPOINT, EVENTS
from fedmls.federation.trial.prepare import DEPLOYMENT, ENGINES, Trial, ended, simulation
from fedmls.local.cut_rows import compiled
from fedmls.results.events import parsed, read_events
from fedmls.results.held_out import HeldOutScores
from fedmls.results.layout import HISTORY
from fedmls.results.model import read_model
from fedmls.simulation.run import simulate

LOOK_SECONDS = 0.1  # between two looks at the events
ROUNDING = 1e-9  # a larger difference to the simulation is none of rounding


class Times(NamedTuple):
    """How many seconds each part of a trial took."""

    start: float  # of the server and the nodes
    first: float  # from the job's submission to the end of its first exchange
    others: float  # all other exchanges
    median: float  # of one with rounds
    end: float  # to take everything down


class TrialOutcome(NamedTuple):
    trial: Trial
    times: Times
    last: dict[str, float]  # row of the history
    epsilon: float | None
    held_out: HeldOutScores | None  # scores, if the job holds out rows
    difference: float | str  # to the simulation: the largest of a coordinate (or a score), or why there is none
    notes: list[str]


def run(trial: Trial, say: Say) -> TrialOutcome:
    """Deploy, run the job, take everything down, simulate and compare."""
    try:
        times = _deploy(trial, say)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped, and everything is taken down; {kept(trial)}") from None
    except SystemExit as left:  # SIGTERM or SIGHUP
        print(f"stopped, and everything is taken down; {kept(trial)}", file=sys.stderr)
        raise SystemExit(left.code) from None
    except (ValueError, RuntimeError, OSError) as error:
        raise Stopped(f"{error}\n{kept(trial, 'once that is mended, ')}") from error
    return _outcome(trial, times)


def _deploy(trial: Trial, say: Say) -> Times:
    engine, n = ENGINES[trial.engine], len(trial.nodes)
    for left in end_left_behind(trial.folder.parent):
        say(left)
    say(f"{engine.title}: starting a server and {n} nodes on this machine")
    say(f"logs are in {trial.folder / DEPLOYMENT}")
    if not compiled():
        say("the first time nodes compile their loops, which takes up to a minute")
    marks = [time.time()]
    with Lines(trial, say) as lines, engine(trial.folder / DEPLOYMENT, trial.nodes) as running:
        marks.append(time.time())
        say(f"all are online after {marks[1] - marks[0]:.1f} s; submitting the job")
        running.run(trial.folder, say)
        marks.append(time.time())
    marks.append(time.time())
    return lines.times(*marks)


class Lines:
    """Tells a run as it goes: a thread follows the events that the server's process writes."""

    def __init__(self, trial: Trial, say: Say) -> None:
        self.file, self.say, self.job = trial.folder / EVENTS, say, trial.job
        self.read = self.file.stat().st_size if self.file.exists() else 0
        self.seen: list[dict[str, Any]] = []
        self.waiting: set[str] = set()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def _follow(self) -> None:
        over = False
        while not over:
            over = self.ended.wait(LOOK_SECONDS)  # then a last look
            for event in self._new():
                with suppress(BrokenPipeError):  # nobody listens any more; the run goes on
                    self._tell(event)

    def _new(self) -> list[dict[str, Any]]:
        if not self.file.exists():
            return []
        with self.file.open("rb") as stream:
            stream.seek(self.read)
            lines, newline, _ = stream.read().rpartition(b"\n")
        self.read += len(lines) + len(newline)
        return parsed(lines)

    def _tell(self, event: dict[str, Any]) -> None:
        if event.get("event") == "waiting":
            for name in sorted({*event["nodes"]} - self.waiting):
                self.say(f"waiting for {name}: {event['nodes'][name]}")
            self.waiting = {*event["nodes"]}
        elif event.get("event") == "privacy":
            self.say(f"privacy: ε = {event['epsilon']:.3g} for δ = {event['delta']:g}")
        elif "kind" in event:
            if not self.seen:
                self.say(header(self.job))
            self.seen.append(event)
            self.waiting.clear()
            self.say(line(self.job, event))
            for name, why in event["failed"].items():
                self.say(f"without {name}: {why}")

    def times(self, began: float, online: float, ended: float, down: float) -> Times:
        at = [event["time"] for event in self.seen] or [online]
        rounds = [after - before for before, after in pairwise(at)]
        own = [seconds for seconds, event in zip(rounds, self.seen[1:], strict=True) if event["kind"] == "round"]
        median = float(np.median(own)) if own else math.nan
        return Times(online - began, at[0] - online, at[-1] - at[0], median, down - ended)


WIDTHS = {"exchange": 8, "round": 7, "objective": 13, "at round": 9, "certified gap": 14, "kB up": 9, "kB down": 10}


def header(job: Job) -> str:
    return _line(job, {name: name for name in WIDTHS}, "seconds")


def line(job: Job, event: Mapping[str, Any]) -> str:
    """Return a line on an exchange. The objective is that of the last round for which it is known."""
    kind, objective = event["kind"], event.get("objective")
    cells = {
        "exchange": str(event["exchanges"]),
        "round": str(event["round"]) if kind == "round" else kind,
        "objective": _number(objective),
        "at round": "–" if objective is None else f"{event['measured_round']:.0f}",
        "certified gap": _number(event.get("certified_gap")),
        "kB up": f"{event['bytes_up'] / 1000:.1f}",
        "kB down": f"{event['bytes_down'] / 1000:.1f}",
    }
    return _line(job, cells, f"{event['seconds']:.2f}")


def _line(job: Job, cells: Mapping[str, str], seconds: str) -> str:
    shown = [name for name in WIDTHS if name != "certified gap" or job.certificate is not None]
    return "".join(f"{cells[name]:>{WIDTHS[name]}}" for name in shown) + f"{seconds:>9}"


def _number(value: float | None) -> str:
    return "–" if value is None or value != value else f"{value:.6g}"


def kept(trial: Trial, when: str = "") -> str:
    """Return what there is of a run that was stopped, and how to go on with it, in words."""
    if ended(trial.folder, trial.job):
        return f"the run had come to its end, and the results are in {trial.folder}; only the comparison is missing"
    done = [event for event in read_events(trial.folder) if "kind" in event]
    what = "nothing was done yet"
    if done and (trial.folder / CHECKPOINT).exists():
        what = f"{done[-1]['round']} rounds in {done[-1]['exchanges']} exchanges are kept"
    return f"{what}; {when}go on with: fedmls federate --resume --out {shlex.quote(str(trial.folder))}"


def _outcome(trial: Trial, times: Times) -> TrialOutcome:
    import pandas as pd

    from fedmls.results.read import read_setup
    from fedmls.results.write import write_setup

    last = pd.read_parquet(trial.folder / HISTORY).iloc[-1].to_dict()
    setup = read_setup(trial.folder)
    write_setup(trial.folder, setup | _about(trial, setup))
    try:
        difference, notes = _compare(trial)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped; {kept(trial)}") from None
    found = setup.get("held_out")
    scores = None if found is None else HeldOutScores.from_plain(found)
    return TrialOutcome(trial, times, last, setup["epsilon"], scores, difference, notes)


def _about(trial: Trial, setup: Mapping[str, Any]) -> dict[str, Any]:
    """What the server of a federation does not know, but we do."""
    from fedmls.results.write import partition_table

    partition = partition_table(trial.problem)
    return {
        "title": f"{len(partition)} nodes over {ENGINES[trial.engine].title}",
        "command": trial.command,
        "partition": [one | {"client": node["name"]} for one, node in zip(partition, setup["nodes"], strict=True)],
    }


def _compare(trial: Trial) -> tuple[float | str, list[str]]:
    """Return the largest difference of a coordinate, or why there is none; and what the simulation has to say.

    With secure sums and categories it is that of a row's score: rounding moves the coefficients of a column's levels
    and the intercept against each other.
    """
    done = [event for event in read_events(trial.folder) if event.get("kind") == "round"]
    without = sorted({name for event in done for name in event["failed"]})
    odd = [event["round"] for event in done if event["round"] % trial.job.algorithm.rounds_per_exchange]
    if trial.job.privacy is not None:
        return "the nodes add noise that nobody else knows (privacy)", []
    if trial.job.start is not None:
        return "the run began at an earlier model (start)", []
    if without:
        return f"the run went on without {', '.join(without)} at times, and the simulation loses nobody", []
    if odd and odd[0] < trial.job.rounds:
        return f"the run was taken further after round {odd[0]}, in the middle of a pair", []
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        run = simulation(simulate, trial.job, trial.problem)
    moved = read_model(trial.folder).x - run.x
    if trial.job.secure and trial.job.categorical is not None:  # a column's levels can move together, by rounding
        moved = trial.problem.matrix() @ moved
    return float(np.abs(moved).max()), [str(note.message) for note in notes]


def summary(outcome: TrialOutcome) -> list[str]:
    trial, times, last = outcome.trial, outcome.times, outcome.last
    proof = ""
    if "lower_bound" in last:  # of a model ahead the clients have told the objective by now
        proof = f", certified gap {_number(float(last['objective'] - last['lower_bound']))}"
    median = "" if math.isnan(times.median) else f" ({times.median:.3g} each, the median)"
    lines = [
        f"{last['round']:.0f} rounds of {trial.job.algorithm.title} in {last['exchanges']:.0f} exchanges: "
        f"objective {_number(last['objective'])}{proof}",
        f"sent: {last['bytes_up'] / 1e6:.3g} MB up, {last['bytes_down'] / 1e6:.3g} MB down, all nodes together",
        f"seconds: {times.start:.1f} to start, {times.first:.1f} until the first exchange was done, "
        f"{times.others:.1f} for the others{median}, {times.end:.1f} to take everything down",
    ]
    if outcome.held_out is not None:
        lines[1:1] = outcome.held_out.lines()
    if outcome.epsilon is not None:
        lines.append(f"privacy: ε = {outcome.epsilon:.3g} for every client")
    return [*lines, *outcome.notes, _compared(outcome)]


def _compared(outcome: TrialOutcome) -> str:
    what = "difference to the simulation of the same seed"
    if isinstance(outcome.difference, str):
        return f"{what}: not compared, for {outcome.difference}"
    if outcome.difference > ROUNDING:
        return f"{what}: {outcome.difference:.2g}, which is more than rounding; please report it"
    return f"{what}: {outcome.difference:.2g}" + (" (equal to the last bit)" if outcome.difference == 0 else "")
