"""A run on disk between two exchanges: one NPZ file, written whole or not at all, nothing pickled."""

import json
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from fedmls.files import whole_file

FORMAT = 1


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


def save_stack(file: Path, state: dict[str, Any]) -> None:
    """Write arrays and numbers, by name."""
    with whole_file(file) as stream:
        np.savez(stream, **state)


def load_stack(file: Path) -> dict[str, Any] | None:
    """Return what was saved, or None if it is not there or not readable (damaged, the stack begins anew)."""
    try:
        with np.load(file, allow_pickle=False) as saved:
            return {name: value if value.ndim else value.item() for name, value in saved.items()}
    except (OSError, ValueError, BadZipFile):
        return None


def load(file: Path, identity: dict[str, Any], like: Any) -> tuple[Any, list[dict[str, float]]]:
    """Return the snapshot and its rows; ``like`` is the snapshot of a new run, whose types the saved one takes."""
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
