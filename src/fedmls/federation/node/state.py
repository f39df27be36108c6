"""What a node keeps of each run, in its state folder, and which questions it therefore answers.

One file for each run, written whole or not at all, readable by its owner alone. It holds what the run may not change
once the node has been told (the job, the keys of all nodes, its own number, the columns, its data), the last exchange
it was asked in and what it was asked there, and the client's state before and after the last rounds it worked on.

The exchanges of a run only grow: an earlier one is never answered again, and the last one only if it is the same that
is asked. So no question has two answers, and what a lying server gets for asking again is what it has already.
"""

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedmls.checks import is_sparse
from fedmls.federation.codec import MEBIBYTE, MessageError, seal, unseal
from fedmls.federation.errors import Refused
from fedmls.federation.messages import (
    Body,
    ClientState,
    Envelope,
    Message,
    RunFile,
    decode,
    encode,
    pack_envelope,
    plain,
)
from fedmls.federation.node.rows import SiteRows
from fedmls.files import whole_file

LOST = "a new run from the last model is the way to go on"
STATE, CLEARED = ".state", ".cleared"  # how the names of files end: of a run, and of one that was cleared


class RunState(NamedTuple):
    """A run at a node: its name, the last exchange that it was asked in, and the rest of the run's file."""

    run: str
    exchange: int
    kept: RunFile

    @classmethod
    def new(cls, run: str, data: str) -> "RunState":
        """Return the state of a run of which nothing is known yet; ``data`` is the fingerprint of the node's rows."""
        return cls(run, 0, RunFile(data, {}, {}, None, "", None, 0, None, 0, [], 0))

    def asked(self, message: Message[Body], questions: Mapping[str, Any], terms: Mapping[str, Any]) -> "RunState":
        """Return the state in which these questions of the message, under these terms, may be answered; else raise
        Refused.
        """
        digests = {name: digest(value) for name, value in terms.items()}
        for name, found in digests.items():
            if self.kept.terms.get(name, found) != found:
                raise Refused(
                    f"the run {self.run} has begun here already, otherwise than it is told now"
                    if name == "begin"
                    else f"it was told another {name} in the run {self.run} before"
                )
        if message.exchange < self.exchange:
            raise Refused(
                f"it is asked in exchange {message.exchange} of the run {self.run}, and has been asked in exchange "
                f"{self.exchange} already: a message that comes too late is not answered"
            )
        before = self.kept.answered if message.exchange == self.exchange else {}
        now = {name: digest(value) for name, value in questions.items()}
        for name, found in now.items():
            if before.get(name, found) != found:
                raise Refused(
                    f"in exchange {message.exchange} of the run {self.run} it was asked for other {name} before"
                )
        kept = self.kept._replace(answered=before | now, terms=self.kept.terms | digests)
        return self._replace(exchange=message.exchange, kept=kept)

    def client_after(self, exchange: int) -> ClientState:
        """Return the client's state after the exchange that the server knows of."""
        kept = self.kept
        if exchange < self.exchange:
            for known, state in ((kept.after_exchange, kept.after), (kept.before_exchange, kept.before)):
                if known == exchange and state is not None:  # the one before: the last reply never arrived
                    return state
        raise Refused(
            f"its state of the run {self.run} is that after exchange {kept.after_exchange}, and the server knows of "
            f"exchange {exchange!r:.20}: the file was replaced by another; {LOST}"
        )


def digest(value: Any) -> str:
    """Return a hash of messages' parts, plain values and arrays, alike wherever it is computed."""
    return hashlib.sha256(pack_envelope(Envelope("digest", "digest", 0, 0, {"value": plain(value)}))).hexdigest()


def fingerprint(rows: SiteRows) -> str:
    """Return a hash of a file's rows, labels and columns."""
    about = (rows.columns, rows.X.shape, *([dict(rows.levels)] if rows.levels else []))
    found = hashlib.sha256(repr(about).encode())
    for array in (rows.X.data, rows.X.indices, rows.X.indptr) if is_sparse(rows.X) else (rows.X,):
        found.update(np.ascontiguousarray(array).tobytes())
    labels = np.asarray(rows.y)
    found.update(repr(labels.tolist()).encode() if labels.dtype.kind == "O" else labels.tobytes())
    if rows.marks is not None:
        found.update(rows.marks.tobytes())
    return found.hexdigest()


class StateFolder:
    """The files of a node's runs."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self) -> None:
        """Make the folder, readable by its owner alone."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.path.stat().st_mode & 0o077:
            with suppress(PermissionError):  # somebody else's, who lets us write there
                self.path.chmod(0o700)

    def file(self, run: str) -> Path:
        return self.path / f"{run}{STATE}"

    def load(self, run: str) -> RunState | None:
        """Return the run's state, None if nothing is known of it; raise Refused if it is damaged or was cleared."""
        if (self.path / f"{run}{CLEARED}").exists():
            raise Refused(f"the run {run} was cleared here; {LOST}")
        try:
            data = self.file(run).read_bytes()
        except FileNotFoundError:
            return None
        try:
            kept = decode(unseal(data), limit=max(len(data), MEBIBYTE), own=True)
            if not isinstance(kept.body, RunFile):
                raise MessageError(f"a file of the kind {kept.kind!r}, not 'state'")
        except MessageError as error:
            raise Refused(f"its state of the run {run} is damaged ({error}); {LOST}") from None
        return RunState(run, kept.exchange, kept.body)

    def save(self, state: RunState) -> None:
        with whole_file(self.file(state.run), private=True) as stream:
            stream.write(seal(encode(Message(state.run, state.exchange, 0, state.kept))))

    def runs(self) -> list[str]:
        """Return the names of the runs that are kept, the oldest first."""
        files = sorted(self.path.glob(f"*{STATE}"), key=lambda file: file.stat().st_mtime_ns)
        return [file.name.removesuffix(STATE) for file in files]

    def clear(self, run: str) -> None:
        """Delete what is kept of a run. Its name stays: nothing in it is answered again."""
        if run not in self.runs():
            raise ValueError(f"no run {run!r} is kept in {self.path}; there are {', '.join(self.runs()) or 'none'}")
        with whole_file(self.path / f"{run}{CLEARED}", private=True):
            pass
        self.file(run).unlink()

    def append(self, name: str, text: str) -> None:
        """Add to a file, which its owner alone can read."""
        with open(self.path / name, "a", encoding="utf-8", opener=_private) as stream:
            stream.write(text)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
