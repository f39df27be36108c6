"""How an engine's attempt to run a job ended: one attempt at a time, and a word in the job's folder."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from fedmls.federation.errors import Stopped
from fedmls.federation.locks import exclusive
from fedmls.files import whole_file

OUTCOME = "outcome.json"  # in the job's folder: how the last attempt ended
ROOM = 4096  # bytes of that file at least: a full disk is told in their place
MOST_LETTERS = 600  # which fit in there, whatever they are


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
        with suppress(OSError):  # a disk that is full by now will be told of, if it ever had room for that
            _write(folder / OUTCOME, Outcome("", ""))
        try:
            yield
            failure = ""
        except Exception as error:
            failure = str(error) or type(error).__name__
            raise
        finally:
            if failure is not None and not given_up():
                _write(folder / OUTCOME, Outcome(name, failure))


def _write(file: Path, outcome: Outcome) -> None:
    """Write the outcome; on a full disk in the place of the one before, in as many words as fit."""
    try:
        with whole_file(file) as stream:
            stream.write(_encoded(outcome))
    except OSError:
        with file.open("r+b") as stream:
            stream.write(_encoded(outcome._replace(failure=outcome.failure[:MOST_LETTERS])))
            stream.truncate()


def _encoded(outcome: Outcome) -> bytes:
    return json.dumps(outcome._asdict(), ensure_ascii=False).encode("utf-8", "replace").ljust(ROOM)


def has_ended(folder: Path, name: str) -> bool:
    """Return whether the attempt came to the end of the run; raise Stopped if the run failed."""
    outcome = Outcome("", "")
    with suppress(FileNotFoundError, json.JSONDecodeError):  # not there, or about to be written on a full disk
        outcome = Outcome(**json.loads((folder / OUTCOME).read_text(encoding="utf-8")))
    if outcome.attempt != name:
        return False
    if outcome.failure:
        raise Stopped(outcome.failure)
    return True
