"""One data file for each site: the names of the sites, and the configurations of their nodes."""

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmls.datasets.files import KINDS, UNREADABLE, kind_of, read_columns, read_table, stem
from fedmls.datasets.overview import FRAMES, Overview, look_at
from fedmls.datasets.tables import some
from fedmls.datasets.toml_lines import toml_line
from fedmls.federation.server.survey import natural
from fedmls.files import relative_to

# What NVFlare takes for truth values and numbers where it reads the name of a node from a command line
NO_TEXT = ("yes", "true", "t", "y", "no", "false", "f", "n", "nan", "inf", "infinity")
TAKEN = ("server", "console", "guard", "localhost", *NO_TEXT)  # others are names of processes of the engines
COMMENTS = {
    "data": "a path from this file on",
    "state": "a folder of this node alone, in which it keeps its runs",
    "label": "the label column",
    "decimal": "what its numbers are written with",
    "columns": "those that the file shows; all sites must have the same",
}


def site_names(texts: Sequence[str], column: str = "site") -> list[str]:
    """Return a name for each of these texts, of letters, digits, - and _; a number gets the column before it."""
    names: list[str] = []
    before = _plain(column) or "site"
    before = f"site-{before}" if before.lower() in TAKEN else before
    for text in texts:
        name = _plain(text)
        if not re.match("[A-Za-z]", name) or name.lower() in TAKEN:
            name = f"{before}-{name}".rstrip("-")
        seen, number, unique = {one.lower() for one in names}, 1, name  # names of files, too, so without case
        while unique.lower() in seen:
            number += 1
            unique = f"{name}-{number}"
        names.append(unique)
    return names


def _plain(text: str) -> str:
    letters = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9_-]+", "-", letters).strip("-_")[:25]


def data_files(paths: Sequence[Path]) -> list[Path]:
    """Return the CSV and Parquet files among these paths, in natural order; a folder stands for those in it."""
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ValueError(
                f"{path} is not there; name a folder of CSV or Parquet files, or the files (an option such as --ignore "
                "takes one value, and is repeated for more)"
            )
        inside = sorted(path.iterdir(), key=lambda file: natural(file.name)) if path.is_dir() else [path]
        files = [file for file in inside if _is_frame(file)]
        if not files:
            what = "holds no file of rows" if path.is_dir() else "is no file of rows"
            raise ValueError(f"{path} {what} (.csv, .csv.gz or .parquet); there must be one for each site")
        found += files
    twice = [file for file, count in Counter(file.resolve() for file in found).items() if count > 1]
    if twice:
        raise ValueError(f"{twice[0]} is named twice; each file is a site of its own")
    return found


def left_out(folder: Path) -> list[str]:
    """Return the names of the files in the folder that :func:`data_files` does not take."""
    return sorted(file.name for file in folder.iterdir() if not file.name.startswith(".") and not _is_frame(file))


def _is_frame(file: Path) -> bool:
    known = any(suffix.lower() in KINDS for suffix in file.suffixes[-2:])
    return known and file.is_file() and not file.name.startswith(".") and kind_of(file) in FRAMES


def look_at_sites(
    paths: Sequence[Path], label: str | None = None, ignore: Sequence[str] = (), decimal: str | None = None
) -> dict[Path, Overview]:
    """Return what the file of each site holds.

    label: the label column; the last one unless given, if that is one in all files.  ignore: columns that are not used,
    each of at least one file.  decimal: what all files write their numbers with; found out for each unless given.
    """
    columns = {file: _columns(file) for file in data_files(paths)}
    label = _common_label(columns) if label is None else label
    for name in ignore:
        if not any(name in names for names in columns.values()):
            first, names = next(iter(columns.items()))
            raise ValueError(f"no file has the column {name!r} of ignore; {first} has {some(names)}")
    return {
        file: look_at(file, label, [name for name in ignore if name in names], decimal)
        for file, names in columns.items()
    }


def write_nodes(
    found: Mapping[Path, Overview], out: Path, leave_out: Collection[str] = (), algorithms: Sequence[str] = ()
) -> list[Path]:
    """Write a node's configuration into the folder ``out`` for each file; the rows stay where they are.

    Sites have the names of their files.  leave_out: more columns that are not used, where they are.
    algorithms: those from outside of the package, "module:Class", that nodes are to run.
    """
    written = []
    for name, (file, one) in zip(site_names([stem(file) for file in found]), found.items(), strict=True):
        columns = (*one.numbers, *one.text, *one.unfit)
        about = {
            "name": name,
            "data": relative_to(file, out),
            "state": f"state/{name}",
            "label": one.label,
            "ignore": [*one.ignored, *(column for column in columns if column in leave_out)],
            "decimal": one.decimal,
            "algorithms": list(algorithms),
        }
        written.append(write_node(out / f"{name}.toml", about))
    return written


def write_own_node(
    file: Path,
    out: Path | None = None,
    *,
    name: str | None = None,
    label: str | None = None,
    ignore: Sequence[str] = (),
    decimal: str | None = None,
) -> tuple[Path, Overview | None]:
    """Write the configuration of the node that has this file, and return it with what is in the file.

    out: NAME.toml unless given.  name: that of the file unless given.  Other options as in look_at_sites; there is no
    overview of an svmlight or NPZ file.
    """
    name = site_names([stem(file)])[0] if name is None else name
    out = Path(f"{name}.toml") if out is None else out
    if out.exists():
        raise ValueError(f"{out} is there already; name another file with --out")
    about: dict[str, Any] = {"name": name, "data": relative_to(file, out.parent), "state": f"state/{name}"}
    about |= {"label": label, "ignore": list(ignore), "decimal": decimal or "."}
    if kind_of(file) in FRAMES:
        found = look_at(file, label, ignore, decimal)
        return write_node(out, about | {"label": found.label, "decimal": found.decimal}), found
    if kind_of(file) == "svmlight":
        about["columns"] = read_table(file).features.shape[1]
    return write_node(out, about), None


def write_node(file: Path, about: Mapping[str, Any]) -> Path:
    """Write the configuration of a node, without what is empty or goes without saying; return its file.

    The file must be new.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = ["# The configuration of a node, which stays at its site. All keys: docs/federation.md\n"]
    for key, value in about.items():
        if value not in (None, []) and (key, value) != ("decimal", "."):
            lines.append(toml_line(key, value, COMMENTS.get(key, "")) + "\n")
    with file.open("x", encoding="utf-8") as stream:
        stream.writelines(lines)
    return file


def _columns(file: Path) -> list[str]:
    try:
        return read_columns(file)
    except UNREADABLE as error:
        raise ValueError(f"{file}: {error}") from None


def _common_label(columns: Mapping[Path, list[str]]) -> str:
    """Return the last column, if it is the same in all files."""
    last = {file: names[-1] for file, names in columns.items()}
    (first, label), *others = last.items()
    for file, name in others:
        if name != label:
            raise ValueError(
                f"the last column is {label!r} in {first.name} and {name!r} in {file.name}; "
                "name the label column with --label"
            )
    return label
