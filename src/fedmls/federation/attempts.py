"""Attempts of an engine to run a job: one at a time, a word on how each ended, and when to give up. Linux."""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fedmls.federation.folder import CHECKPOINT
from fedmls.federation.post import Stopped
from fedmls.files import whole_file

OUTCOME = "outcome.json"  # in the job's folder: how the last attempt ended
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
    try:
        yield
        failure = ""
    except Exception as error:
        failure = str(error) or type(error).__name__
        raise
    finally:
        if failure is not None and not given_up():
            with whole_file(folder / OUTCOME) as stream:
                stream.write(json.dumps(Outcome(name, failure)._asdict()).encode())
        os.close(alone)


def has_ended(folder: Path, name: str) -> bool:
    """Whether the attempt came to the end of the run; Stopped if the run failed."""
    file = folder / OUTCOME
    outcome = Outcome(**json.loads(file.read_text())) if file.exists() else Outcome("", "")
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
