"""Files that are there whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


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


def check_folder(path: Path) -> Path:
    """Return the path, if a folder is there or can be made there."""
    there = next(one for one in (path, *path.parents, Path()) if one.exists())
    if not there.is_dir():
        raise ValueError(f"{there} is a file; name a folder")
    return path


def relative_to(file: Path, folder: Path) -> str:
    """Return the path of the file from the folder on."""
    return Path(os.path.relpath(file.resolve(), folder.resolve())).as_posix()


def sync_folder(folder: Path) -> None:
    """A new name is on disk only when its folder is."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
