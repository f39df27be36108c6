"""Cutting a file into the parts of a federation, for a trial: a data file and a configuration for each node."""

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedmls.checks import distinct, unknown
from fedmls.datasets.categories import features_of
from fedmls.datasets.files import Unreadable, kind_of, read_frame
from fedmls.datasets.overview import FRAMES, look_at
from fedmls.federation.errors import Refused
from fedmls.federation.node.rows import SiteRows, column_sums, encoded, label_texts, prepared, read_rows
from fedmls.federation.node_config import NodeConfig
from fedmls.federation.sites import site_names, write_node
from fedmls.files import check_folder
from fedmls.partition import dirichlet, iid, kmeans


class Part(NamedTuple):
    """A part of a file: how many rows, and the value that they have in common, if they were cut by a column."""

    rows: int
    value: str | None


def split(
    file: str | Path,
    out: str | Path,
    *,
    by: str = "kmeans",
    clients: int = 10,
    label: str | None = None,
    ignore: Sequence[str] = (),
    alpha: float = 0.5,
    seed: int = 0,
    decimal: str | None = None,
    algorithms: Sequence[str] = (),
) -> dict[Path, Part]:
    """Cut a file into parts, and write each with its node's configuration.

    by: "kmeans", "iid" or "dirichlet" (:mod:`fedmls.partition`), or a column; its values are the sites and name them.
    label: the label column; the last one unless given.  ignore: columns that are not used.
    decimal: what the numbers in a CSV are written with, "." or ","; found out unless given.
    algorithms: those from outside of the package, "module:Class", that nodes are to run.
    Returns the configurations, with what each part holds. Rows stay as they are written in the file.
    """
    file, out = Path(file), Path(out)
    if not file.exists():
        raise ValueError(f"{file} is not there")
    if check_folder(out).exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty; name another folder")
    try:
        source = source_file(file, label)
    except Unreadable as error:
        raise ValueError(f"{file}: {error}") from None
    named, frame = by not in PARTITIONERS, kind_of(file) in FRAMES
    sites = _by_value(file, source, by) if named else []
    ignored = list(dict.fromkeys([*ignore, by])) if named and frame else list(ignore)
    if frame:
        decimal = look_at(file, source.label, ignored, decimal).decimal
    common: dict[str, Any] = {"label": source.label, "columns": source.columns, "ignore": ignored}
    common |= {"decimal": decimal or ".", "algorithms": list(algorithms)}
    if not named:
        whole = NodeConfig(name="all", data=file, state=out, min_rows=1, **common)
        sites = _partitioned(whole, by, clients, alpha, seed)
    written = {}
    for name, value, rows in sites:
        about = {"name": name, "data": name + source.suffix, "state": f"state/{name}", **common}
        written[write_node(out / f"{name}.toml", about)] = Part(len(rows), value)
        source.write(out / f"{name}{source.suffix}", rows)
    return written


Site = tuple[str, str | None, Any]  # its name, its value, and which rows it has


def _partitioned(whole: NodeConfig, by: str, clients: int, alpha: float, seed: int) -> list[Site]:
    try:
        of_row = PARTITIONERS[by](read_rows(whole), clients, alpha, seed)
    except Refused as error:
        raise ValueError(f"{whole.data}: {error}") from None
    return [(f"site-{i + 1}", None, np.flatnonzero(of_row == i)) for i in range(int(of_row.max()) + 1)]


def _by_value(file: Path, source: "SourceFile", by: str) -> list[Site]:
    """Return a site for each value of the column."""
    column = source.column(by)
    empty = sum(value == "" for value in column)
    if empty:
        raise ValueError(f"{file}: column {by!r} is empty in {empty} of {len(column)} rows; it names their site")
    values, of_row = distinct(f"column {by!r}", column)
    texts = [str(value) for value in values]
    names = site_names(texts, by)
    return [(names[i], texts[i], np.flatnonzero(of_row == i)) for i in range(len(texts))]


PARTITIONERS: dict[str, Callable[[SiteRows, int, float, int], Any]] = {
    "kmeans": lambda rows, clients, alpha, seed: kmeans(_filled(rows), clients, seed),
    "iid": lambda rows, clients, alpha, seed: iid(rows.X.shape[0], clients, seed),
    "dirichlet": lambda rows, clients, alpha, seed: dirichlet(label_texts(rows.y), clients, alpha, seed),
}


def _filled(rows: SiteRows) -> Any:
    """Return the rows as numbers: each level of a category has a column, and missing values are their column's mean."""
    features = features_of(rows.columns, rows.levels)
    counts, sums, _ = column_sums(encoded(rows, features, rows.levels), least=1)
    return prepared(rows, features, sums / np.maximum(counts, 1), None, rows.levels)


class SourceFile(NamedTuple):
    """A file that can be cut by rows: its label column, and for svmlight how many columns it has."""

    suffix: str
    label: str | None
    columns: int | None
    column: Callable[[str], Any]
    write: Callable[[Path, Any], None]


def source_file(file: Path, label: str | None) -> SourceFile:
    kind = kind_of(file)
    if kind in FRAMES:
        return _frame_file(file, label)
    return _svmlight_file(file) if kind == "svmlight" else _npz_file(file, label)


def _frame_file(file: Path, label: str | None) -> SourceFile:
    parquet = kind_of(file) == "Parquet"
    frame = read_frame(file, as_text=True)  # what is written is what was read, to the letter
    names = [str(name) for name in frame.columns]
    if label is not None and label not in names:
        raise ValueError(unknown("column", label, names))

    def column(name: str) -> Any:
        if name not in names:
            raise ValueError(unknown("way to cut, or column,", name, (*PARTITIONERS, *names)))
        return frame[name].to_numpy()

    def write(part: Path, rows: Any) -> None:
        if parquet:
            frame.iloc[rows].to_parquet(part, index=False)
        else:
            frame.iloc[rows].to_csv(part, index=False)

    return SourceFile(".parquet" if parquet else ".csv", label or names[-1], None, column, write)


def _svmlight_file(file: Path) -> SourceFile:
    text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    lines = [line for line in text.decode().splitlines() if line.split("#")[0].strip()]
    columns = read_rows(NodeConfig(name="all", data=file, state=file.parent, min_rows=1)).X.shape[1]

    def write(part: Path, rows: Any) -> None:
        part.write_text("".join(lines[j] + "\n" for j in rows))

    def column(name: str) -> Any:
        raise ValueError(unknown("way to cut", name, PARTITIONERS))

    return SourceFile(".svm", None, columns, column, write)


def _npz_file(file: Path, label: str | None) -> SourceFile:
    with np.load(file, allow_pickle=False) as saved:
        arrays = dict(saved)
    label = label or "y"
    if label not in arrays:
        raise ValueError(unknown("array", label, arrays))

    def write(part: Path, rows: Any) -> None:
        kept = {name: array[rows] for name, array in arrays.items() if name in ("X", label)}
        np.savez(part, **kept, **{name: array for name, array in arrays.items() if name == "columns"})

    def column(name: str) -> Any:
        if name not in arrays or len(arrays[name]) != len(arrays[label]):
            raise ValueError(unknown("way to cut, or array,", name, (*PARTITIONERS, *arrays)))
        return arrays[name]

    return SourceFile(".npz", label, None, column, write)
