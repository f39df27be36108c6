"""Rows larger than memory: those of an NPZ or Parquet file as an array that is mapped into memory.

An array X that an NPZ file holds as it is (``numpy.savez``) stays where it is. What is packed, by columns, or not of
64-bit numbers is unpacked once, part by part, into a temporary file (in ``TMPDIR``), which goes with the array.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from zipfile import ZIP_STORED, ZipFile

import numpy as np

from fedmls.checks import parts
from fedmls.datasets.files import ONE_NPZ_AT_A_TIME, Table, Unreadable
from fedmls.types import Array


def npz_on_disk(file: Path) -> Table:
    """The arrays of an NPZ file, X of them on disk."""
    with ONE_NPZ_AT_A_TIME, np.load(file, allow_pickle=False) as saved:
        arrays = {name: saved[name] for name in saved.files if name != "X"}
        if "X" not in saved.files:
            return Table(None, [], arrays)
        X = _mapped(file)
    return Table(X, [str(name) for name in arrays.pop("columns", range(X.shape[1]))], arrays)


def _mapped(file: Path) -> Any:
    """The array X of an NPZ file."""
    with ZipFile(file) as packed, packed.open("X.npy") as stream:
        shape, by_columns, kind = _header(stream)
        if len(shape) != 2 or by_columns or kind.kind not in "biuf":
            how = ", column by column" if by_columns else ""
            raise Unreadable(
                f"its X has shape {shape} and holds {kind}{how}; rows on disk are numbers in two dimensions, "
                "row by row: save numpy.ascontiguousarray(X)"
            )
        about = packed.getinfo("X.npy")
        if about.compress_type == ZIP_STORED and kind == np.dtype(float):
            return np.memmap(file, kind, "c", _begin(file, about.header_offset) + stream.tell(), shape)
        return _unpacked(_blocks_of(stream, shape, kind), shape)


def _header(stream: Any) -> tuple[tuple[int, ...], bool, Any]:
    """The shape of a NPY file's array, whether it is by columns, and its type; the stream is then at its numbers."""
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    return read[np.lib.format.read_magic(stream)](stream)


def _begin(file: Path, header: int) -> int:
    """Where a member of a zip file begins: after its local header, with a name and more of lengths told there."""
    with file.open("rb") as stream:
        stream.seek(header)
        local = stream.read(30)
    return header + 30 + int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")


def _blocks_of(stream: Any, shape: tuple[int, ...], kind: Any) -> Iterator[Array]:
    """Yield the rows of an array, part by part, from a stream of its numbers."""
    rows, columns = shape
    for part in parts(rows, columns * kind.itemsize):  # unpacking takes several times a part
        some = min(part.stop, rows) - part.start
        yield np.frombuffer(stream.read(some * columns * kind.itemsize), kind).reshape(some, columns)


def parquet_on_disk(file: Path, features: Sequence[str], others: Iterable[str]) -> Table:
    """The features of a Parquet file, all of them numbers, on disk; other columns in memory."""
    from pyarrow.parquet import ParquetFile, read_table

    with ParquetFile(file, pre_buffer=False) as stored:
        shape = (stored.metadata.num_rows, len(features))
        size = next(parts(shape[0], len(features)), slice(0, 1)).stop
        batches = (  # of a group of rows after the other: asked for all at once they are all kept in memory
            batch
            for group in range(stored.num_row_groups)
            for batch in stored.iter_batches(batch_size=size, row_groups=[group], columns=list(features))
        )
        X = _unpacked((_numbers(batch, features) for batch in batches), shape)
    kept = read_table(file, columns=list(others)).to_pandas()
    return Table(X, list(features), {name: kept[name].to_numpy() for name in kept.columns})


def _numbers(batch: Any, names: Sequence[str]) -> Array:
    """The columns of a batch of rows as numbers, NaN where one is missing."""
    rows = np.empty((batch.num_rows, len(names)))
    for j, name in enumerate(names):
        rows[:, j] = batch.column(name).cast("float64", safe=False).to_numpy(zero_copy_only=False)
    return rows


def _unpacked(blocks: Iterable[Array], shape: tuple[int, ...]) -> Any:
    """Write blocks of rows into a temporary file, and map it into memory."""
    if 0 in shape:
        return np.empty(shape)
    with TemporaryFile() as file:
        for block in blocks:
            file.write(np.ascontiguousarray(block, dtype=float).data)
        file.flush()
        return np.memmap(file, float, "c", shape=shape)
