"""How an engine's attempt to run a job ended: one attempt at a time, and a word in the job's folder."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fedmls.federation.errors import Stopped
from fedmls.federation.locks import exclusive
from fedmls.files import whole_file

OUTCOME = "outcome.json"  # in the job's folder: how the last attempt ended


class Outcome(NamedTuple):
    attempt: str  # the engine's name for it
    failure: str  # nothing, if the run came to its end


@contextmanager
def attempt(folder: Path, name: str, given_up: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Leave the outcome of what is done within in the folder, unless a signal breaks it off or it is given up.

    It waits for its turn: an attempt that was given up may still be on its way out.
    """
    with exclusive(folder, wait=True):
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


def has_ended(folder: Path, name: str) -> bool:
    """Return whether the attempt came to the end of the run; raise Stopped if the run failed."""
    file = folder / OUTCOME
    outcome = Outcome(**json.loads(file.read_text())) if file.exists() else Outcome("", "")
    if outcome.attempt != name:
        return False
    if outcome.failure:
        raise Stopped(outcome.failure)
    return True
