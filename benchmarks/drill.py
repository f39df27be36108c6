"""Real federations on this machine, three nodes and secure sums, to which one thing after another happens in the
middle of a run: ``make drill``, ``make drill ENGINE=flower SEED=2 ONLY=killed``. Linux.

A run is FedMLS with paired rounds. Each fault strikes at a moment that the seed tells: after which exchange, and how
long after it. The run has to come to its end, and to the model of the same federation within one process, to the last
bit. Where it must not go on, it has to say why, and what is begun in its place has to come to its end.

Seconds lost are those from the first round's exchange to the last, less what as many exchanges take at the run's own
pace: the median of its pauses between two of them. The row "nothing" is a run that nothing happens to, and shows how
far from zero that is by itself.
"""

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import drill_faults as faults
import numpy as np
from drill_deployments import DEPLOYMENTS, VICTIM, Background, exchanges, wait_until
from drill_faults import AGAIN, COMMAND, FAULTS, GOES_ON, NEW_START, NOTHING, Fault, Scene, small_disk

import fedmls
from fedmls.federation import InProcess, Job, NodeConfig, drive
from fedmls.federation.server.folder import CHECKPOINT
from fedmls.federation.trial.prepare import ENGINES, Source, node_files, problem_of, simulation
from fedmls.results.events import read_events
from fedmls.results.layout import MODEL

ROUNDS = {"nvflare": 160, "flower": 14}  # some twenty seconds each
RUN_SECONDS = 300.0  # for a run to come to its end
FIRST = 4  # the exchange of the first round; it and those before it are slow, and nothing happens before its end
CLOSE = 1e-12  # to the simulation, which does not round to the steps of secure sums
HOW = {GOES_ON: "survived", AGAIN: "stopped, run again", NEW_START: "refused, as it must"}
FAILED, NOT_TRIED = "FAILED", "not tried"
TITLES = ("engine", "what happened", "after", "outcome", "s lost", "equal")
WIDTHS = (8, 34, 6, 20, 7, 5)


class Moment(NamedTuple):
    exchange: int
    seconds: float  # after that


class Row(NamedTuple):
    engine: str
    fault: str
    after: str  # which exchange
    outcome: str
    lost: str
    equal: str
    note: str = ""

    @property
    def good(self) -> bool:
        return self.outcome == NOT_TRIED or (self.outcome != FAILED and self.equal == "yes")


class Usual(NamedTuple):
    """What is known of a run that nothing happens to."""

    exchanges: int
    pause: float  # between two exchanges

    def moment(self, seed: int, engine: str, fault: str) -> Moment:
        """In the first half of the run, but for the exchanges before round 1."""
        numbers = random.Random(f"{seed} {engine} {fault}")
        return Moment(numbers.randint(FIRST, max(FIRST, self.exchanges // 2)), numbers.uniform(0.0, self.pause))

    def lost(self, *times: Sequence[float]) -> float:
        """Return the seconds that a run lost, by the times of its exchanges: one sequence for each part of the run."""
        pace = median(pauses(*times))
        return times[-1][-1] - times[0][FIRST - 1] - (self.exchanges - FIRST) * pace


def pauses(*times: Sequence[float]) -> list[float]:
    """Return the seconds between exchanges that follow each other, from that of the first round on."""
    return [after - before for part in times for before, after in pairwise(part[FIRST - 1 :])]


class Drill:
    """The faults of one engine, one after the other in one deployment; a new one where a run did not survive."""

    def __init__(self, engine: str, seed: int, folder: Path) -> None:
        self.engine, self.seed, self.folder = engine, seed, folder
        algorithm = fedmls.FedMLS(lam0=1.0, T=20, paired=True)
        self.job = Job(algorithm=algorithm, rounds=ROUNDS[engine], batch=0.1, secure=True, seed=seed, timeout=30.0)
        self.nodes = node_files(Source().folder(folder, seed), self.job)
        self.model = self.reference()
        simulated = simulation(fedmls.simulate, replace(self.job, secure=False), problem_of(self.job, self.nodes)).x
        if not np.abs(self.model - simulated).max() <= CLOSE:
            raise RuntimeError("the federation within one process is not the simulation")

    def reference(self, start: Path | None = None) -> Any:
        """The model of the same federation within one process."""
        with tempfile.TemporaryDirectory() as name:
            configs = [NodeConfig.read(file) for file in self.nodes.values()]
            own = [replace(config, state=Path(name) / config.name) for config in configs]
            self.job.write(Path(name) / "job")
            return drive(Path(name) / "job", InProcess(own), start=start).x

    def rows(self, wanted: Sequence[Fault], command: bool) -> Iterator[Row]:
        with ExitStack() as disks:
            at = {"node": NodeConfig.read(self.nodes[VICTIM]).state, "server": self.folder / "disk"}
            small = {name: disks.enter_context(small_disk(place)) for name, place in at.items()}
            waiting = list(enumerate(wanted))
            usual: Usual | None = None
            while waiting:
                with DEPLOYMENTS[self.engine](self.folder / "deployment", self.nodes) as deployment:
                    usual = usual or self.warm_up(deployment)
                    while waiting:
                        number, fault = waiting.pop(0)
                        if fault.disk and not small[fault.disk]:
                            yield Row(self.engine, fault.title, "–", NOT_TRIED, "–", "–", "takes root")
                            continue
                        job = at["server"] / "job" if fault.disk == "server" else self.folder / f"job-{number}"
                        yield (row := self.one(deployment, usual, fault, job))
                        if not row.good:
                            break
            if command:
                yield self.command(usual)

    def warm_up(self, deployment: Any) -> Usual:
        """Return what the first run of a deployment shows; it is slower than the next ones."""
        folder = self.folder / "warm-up"
        self.job.write(folder)
        run = Background(deployment, folder)
        if not run.ended(RUN_SECONDS) or run.error:
            raise RuntimeError(f"a run that nothing happened to did not end well: {run.error or 'it hangs'}")
        times = exchange_times(folder)
        return Usual(len(times), median(pauses(times)))

    def one(self, deployment: Any, usual: Usual, fault: Fault, folder: Path) -> Row:
        """Run the job, let the fault strike, and return what became of the run."""
        moment = usual.moment(self.seed, self.engine, fault.title)
        self.job.write(folder)
        run = Background(deployment, folder)
        row = Row(self.engine, fault.title, "–" if fault.title == NOTHING else str(moment.exchange), FAILED, "–", "–")
        try:
            await_moment(moment, folder, run)
            fault.strike(Scene(deployment, self.nodes, run))
        except Exception as error:
            return row._replace(note=f"{type(error).__name__}: {error}")
        if not run.ended(RUN_SECONDS):
            return row._replace(note=f"it has not ended after {RUN_SECONDS:g} s")
        if fault.says not in run.error or bool(fault.says) != bool(run.error):
            return row._replace(note=run.error or "the run went on as if nothing had happened")
        model, note, before = self.model, run.error, []
        if fault.then != GOES_ON:
            before = [exchange_times(folder)] if fault.then == NEW_START else []  # which the new start forgets
            model = self.mended(fault, folder)
            run = Background(deployment, folder)
            if not run.ended(RUN_SECONDS) or run.error:
                return row._replace(note=f"{note}; and then: {run.error or 'it hangs'}")
        lost = str(round(usual.lost(*before, exchange_times(folder))))
        return row._replace(outcome=HOW[fault.then], lost=lost, equal=is_equal(folder, model), note=note)

    def mended(self, fault: Fault, folder: Path) -> Any:
        """Make room again, or begin a new run at the last model; the model that has to come of it."""
        for place in (folder, NodeConfig.read(self.nodes[VICTIM]).state):
            (place / faults.FILLER).unlink(missing_ok=True)
        if fault.then == AGAIN:
            return self.model
        earlier = folder.with_suffix(".npz")
        shutil.copy(folder / MODEL, earlier)
        replace(self.job, start=".").write(folder)
        (folder / CHECKPOINT).unlink()
        return self.reference(earlier)

    def command(self, usual: Usual | None) -> Row:
        """``fedmls federate`` is killed, with its console, and goes on by --resume."""
        folder, program = self.folder / "trial", [sys.executable, "-m", "fedmls.cli", "federate"]
        options = ["--engine", self.engine, "--parts", str(next(iter(self.nodes.values())).parent)]
        (self.folder / "trial.toml").write_bytes(job_text(self.job, self.folder / "file"))
        options += ["--job", str(self.folder / "trial.toml"), "--out", str(folder)]
        usual = usual or Usual(self.job.rounds // 2 + 3, 0.1)
        moment = usual.moment(self.seed, self.engine, COMMAND)
        row = Row(self.engine, COMMAND, str(moment.exchange), FAILED, "–", "–")
        with started([*program, *options]) as first:
            if not wait_until(lambda: first.poll() is not None or exchanges(folder) >= moment.exchange, RUN_SECONDS):
                return row._replace(note="it came to no exchange")
            time.sleep(moment.seconds)
            first.kill()
        with started([*program, "--resume", "--out", str(folder)]) as second:
            try:
                said = second.communicate(timeout=RUN_SECONDS)[0]
            except subprocess.TimeoutExpired:
                return row._replace(note="--resume did not end")
        if second.returncode:
            return row._replace(note=said.strip()[-300:])
        lost = str(round(usual.lost(exchange_times(folder))))
        return row._replace(outcome="survived, --resume", lost=lost, equal=is_equal(folder, self.model))


@contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A command that takes down what it has started when it is ended, as it is here at the latest."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def job_text(job: Job, folder: Path) -> bytes:
    """The job as a file."""
    job.write(folder)
    return (folder / "job.toml").read_bytes()


def await_moment(moment: Moment, folder: Path, run: Background) -> None:
    if not wait_until(lambda: not run.is_alive() or exchanges(folder) >= moment.exchange, RUN_SECONDS):
        raise RuntimeError(f"the run came to no exchange {moment.exchange} within {RUN_SECONDS:g} s")
    if not run.is_alive():
        raise RuntimeError(f"the run ended before anything happened to it: {run.error}")
    time.sleep(moment.seconds)


def exchange_times(folder: Path) -> list[float]:
    return [event["time"] for event in read_events(folder) if "kind" in event]


def is_equal(folder: Path, model: Any) -> str:
    """To the last bit."""
    with np.load(folder / MODEL) as found:
        return "yes" if np.array_equal(found["x"], model) else f"{np.abs(found['x'] - model).max():.0e}"


def table(rows: Iterable[Row]) -> list[str]:
    """At most 80 columns."""
    lines = []
    for cells in (TITLES, *(row[:6] for row in rows)):
        line = [f"{cell:<{width}}" if i in (0, 1, 3) else f"{cell:>{width - 1}} "
                for i, (cell, width) in enumerate(zip(cells, WIDTHS, strict=True))]  # fmt: skip
        lines.append("".join(line).rstrip())
    return lines


def markdown(rows: Iterable[Row], seed: int) -> str:
    """Return the table with the words in which runs ended."""
    lines = [f"`make drill SEED={seed}`, {datetime.now(UTC):%Y-%m-%d}:", "", f"| {' | '.join(TITLES)} |"]
    lines.append("|---|---|--:|---|--:|---|")
    for row in rows:
        outcome = f"{row.outcome}: {row.note}" if row.note else row.outcome
        lines.append(f"| {' | '.join(row._replace(outcome=outcome)[:6])} |")
    return "\n".join(lines) + "\n"


def engine_rows(engine: str, seed: int, only: str) -> Iterator[Row]:
    if find_spec(ENGINES[engine].package) is None:
        yield Row(engine, "all of it", "–", NOT_TRIED, "–", "–", f"{ENGINES[engine].title} is not installed")
        return
    own = [fault for fault in FAULTS if fault.engine in ("", engine)]
    wanted = [fault for fault in own if only in fault.title or fault.title == NOTHING]
    with tempfile.TemporaryDirectory(prefix="fedmls-drill-") as folder:
        yield from Drill(engine, seed, Path(folder)).rows(wanted, only in COMMAND)


def main() -> int:
    parser = argparse.ArgumentParser(description="Real federations, to which one thing after another happens.")
    parser.add_argument("--engine", choices=list(DEPLOYMENTS), help="both unless given")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("--only", default="", help="faults with this in their name", metavar="TEXT")
    parser.add_argument("--out", type=Path, help="a Markdown file for the table")
    given = parser.parse_args()
    rows: list[Row] = []
    try:
        for engine in [given.engine] if given.engine else DEPLOYMENTS:
            for row in engine_rows(engine, given.seed, given.only):
                rows.append(row)
                print(table([row])[1] + (f"\n        {row.note}" if row.note else ""), flush=True)
    finally:  # also after Ctrl-C
        print("", *table(rows), sep="\n")
        if given.out is not None:
            given.out.write_text(markdown(rows, given.seed), encoding="utf-8")
    return 0 if all(row.good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
