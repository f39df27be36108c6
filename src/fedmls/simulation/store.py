"""Finished runs on disk: one Parquet file a run, its history as the table, the rest as JSON in the file's metadata."""

import hashlib
import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmls.hyperparameters import to_dict
from fedmls.types import Run

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 1


class RunStore:
    """A folder of finished runs. A file is there whole or not at all."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        if not os.access(self.folder, os.W_OK):
            raise ValueError(f"{self.folder} cannot be written to; name another folder")

    def save(self, key: str, run: Run) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        about = {"format": FORMAT, **_about(run)}
        history = pa.Table.from_pandas(run.history, preserve_index=False)
        history = history.replace_schema_metadata({"fedmls": json.dumps(about)})
        part = self.folder / f"{key}.{threading.get_ident()}.part"  # equal runs may be saved side by side
        pq.write_table(history, part)
        part.replace(self._file(key))

    def stack_file(self, keys: list[str]) -> Path:
        """Return the file that keeps runs done together while they are under way."""
        return self.folder / f"{hashlib.sha256(' '.join(keys).encode()).hexdigest()[:20]}.stack.npz"

    def told(self, finished: Any) -> str:
        """Return what is to be said of the store when a sweep is stopped: nothing, if it keeps nothing."""
        if not finished and not any(self.folder.glob("*.stack.npz")):
            return ""
        what = "they are" if finished else "what has been done is"
        return f"; {what} kept in {self.folder}: run again to go on"

    def has(self, key: str) -> bool:
        return self._file(key).exists()

    def load(self, key: str) -> Run | None:
        """Return the run, or None if it is not there or not readable (a damaged file is run again)."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self.has(key):
            return None
        try:
            return _run(pq.read_table(self._file(key)))
        except (pa.ArrowInvalid, OSError, KeyError, ValueError):
            return None

    def _file(self, key: str) -> Path:
        return self.folder / f"{key}.parquet"


def _about(run: Run) -> dict[str, Any]:
    return {
        "algorithm": to_dict(run.algorithm),
        "seed": run.seed,
        "batch": run.batch,
        "x": run.x.tolist(),
        "optimum": run.optimum,
        "diverged": run.diverged,
    }


def _run(table: "pa.Table") -> Run:
    from fedmls.algorithms import from_dict

    about = json.loads((table.schema.metadata or {})[b"fedmls"])
    if about.pop("format") != FORMAT:
        raise ValueError("written by another version")
    algorithm, x = from_dict(about.pop("algorithm")), np.array(about.pop("x"))
    return Run(algorithm=algorithm, x=x, history=table.to_pandas(ignore_metadata=True), **about)
