"""Attempts of an engine to run a job: one at a time, a word on how each ended, and when to give up. Linux."""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from fedmls.checkpoint import whole_file
from fedmls.federation.folder import CHECKPOINT
from fedmls.federation.post import Stopped

OUTCOME = "outcome.json"  # in the job's folder: how the last attempt ended
ROOM = 4096  # bytes of that file at least: a full disk is told in their place
MOST_LETTERS = 600  # which fit in there, whatever they are
MOST = 5  # attempts, one after the other, that come no exchange further


class Outcome(NamedTuple):
    attempt: str  # the engine's name for it
    failure: str  # nothing, if the run came to its end


@contextmanager
def attempt(folder: Path, name: str, given_up: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Around a run of the job: leaves its outcome in the folder, but if a signal breaks it off or it is given up."""
    alone = os.open(folder, os.O_RDONLY)
    fcntl.flock(alone, fcntl.LOCK_EX)  # an attempt that was given up may still be on its way out
    failure: str | None = None
    with suppress(OSError):  # a disk that is full by now will be told of, if it ever had room for that
        _tell(folder / OUTCOME, Outcome("", ""))
    try:
        yield
        failure = ""
    except Exception as error:
        failure = str(error) or type(error).__name__
        raise
    finally:
        if failure is not None and not given_up():
            _tell(folder / OUTCOME, Outcome(name, failure))
        os.close(alone)


def _tell(file: Path, outcome: Outcome) -> None:
    """Write the outcome; on a full disk in the place of the one before, in as many words as fit."""
    try:
        with whole_file(file) as stream:
            stream.write(_text(outcome))
    except OSError:
        with file.open("r+b") as stream:
            stream.write(_text(outcome._replace(failure=outcome.failure[:MOST_LETTERS])))
            stream.truncate()


def _text(outcome: Outcome) -> bytes:
    return json.dumps(outcome._asdict(), ensure_ascii=False).encode("utf-8", "replace").ljust(ROOM)


def has_ended(folder: Path, name: str) -> bool:
    """Whether the attempt came to the end of the run; Stopped if the run failed."""
    file = folder / OUTCOME
    outcome = Outcome("", "")
    with suppress(FileNotFoundError, json.JSONDecodeError):  # not there, or about to be written on a full disk
        outcome = Outcome(**json.loads(file.read_text(encoding="utf-8")))
    if outcome.attempt != name:
        return False
    if outcome.failure:
        raise Stopped(outcome.failure)
    return True


class Attempts:
    """Counts what was begun again since the run in a folder last came further."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint, self.lost = folder / CHECKPOINT, 0
        self.before = self._progress()

    def again(self, why: str) -> None:
        """Something was lost and is to be begun again; Stopped if that was tried too often."""
        now = self._progress()
        self.lost = self.lost + 1 if now == self.before else 1
        self.before = now
        if self.lost >= MOST:
            raise Stopped(f"tried {MOST} times, came no further: {why}")

    def _progress(self) -> int:
        """Changes with every exchange that is done."""
        return self.checkpoint.stat().st_mtime_ns if self.checkpoint.exists() else 0
