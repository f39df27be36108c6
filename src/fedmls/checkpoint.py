"""A run on disk between two exchanges: one NPZ file, written whole or not at all, nothing pickled."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import BadZipFile

import numpy as np

FORMAT = 1


@contextmanager
def whole_file(file: Path, private: bool = False) -> Iterator[BinaryIO]:
    """A stream into a file that is there whole or not at all, also after a power cut. private: for its owner alone."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(file.name + ".part")
    try:
        with open(part, "wb", opener=lambda path, flags: os.open(path, flags, 0o600 if private else 0o666)) as stream:
            if private:
                part.chmod(0o600)  # one that a power cut has left may have other rights
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(file)
    except BaseException:  # a full disk has room again for a word on it
        part.unlink(missing_ok=True)
        raise
    sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    """A new name is on disk only when its folder is."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def save(file: Path, identity: dict[str, Any], snapshot: Any, rows: list[dict[str, float]]) -> None:
    fields: dict[str, Any] = {name: getattr(snapshot, name) for name in ("steps", "slopes", "rows_read")}
    for part in ("counters", "server", "clients"):
        for name, value in getattr(snapshot, part)._asdict().items():
            fields[f"{part}.{name}"] = value
    for name in rows[0] if rows else ():
        fields[f"history.{name}"] = np.array([row[name] for row in rows])
    fields["identity"] = json.dumps({"format": FORMAT, **identity})
    with whole_file(file) as stream:
        np.savez(stream, **fields)


def load(file: Path, identity: dict[str, Any], like: Any) -> tuple[Any, list[dict[str, float]]]:
    """The snapshot and its rows; ``like`` is the snapshot of a new run, whose types the saved one takes."""
    try:
        with np.load(file, allow_pickle=False) as saved:
            fields = dict(saved)
        found = json.loads(str(fields["identity"]))
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise ValueError(f"{file} is not a checkpoint ({error}); delete it to start anew") from None
    for name, value in {"format": FORMAT, **identity}.items():
        if found.get(name) != value:
            raise ValueError(
                f"{file} belongs to another run: its {name} is {found.get(name)!r}, not {value!r}; "
                "delete it or name another file"
            )

    def restored(part: str) -> Any:
        fresh = getattr(like, part)
        values = {name: fields[f"{part}.{name}"] for name in fresh._fields}
        return fresh._replace(**{name: v if v.ndim else v.item() for name, v in values.items()})

    plain = {name: fields[name] for name in ("steps", "slopes")}
    plain["rows_read"] = int(fields.get("rows_read", 0))  # a file of an earlier version has none
    parts = {name: restored(name) for name in ("counters", "server", "clients")}
    snapshot = type(like)(**plain, **parts)
    names = [name.removeprefix("history.") for name in fields if name.startswith("history.")]
    columns = [fields[f"history.{name}"].tolist() for name in names]
    return snapshot, [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
