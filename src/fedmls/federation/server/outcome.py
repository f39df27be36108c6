"""How an engine's attempt to run a job ended: one attempt at a time, and a word in the job's folder. Linux."""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fedmls.federation.errors import Stopped
from fedmls.files import whole_file

OUTCOME = "outcome.json"  # in the job's folder: how the last attempt ended


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
