"""One at a time: a lock on a file or a folder, which the kernel takes back when its holder dies."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows, where nobody is kept out
    fcntl = None  # type: ignore[assignment]


class InUse(ValueError):
    """Somebody else holds the lock."""


@contextmanager
def exclusive(path: Path, wait: bool) -> Iterator[None]:
    """Hold the lock of a folder, or of a file, which is made; wait for it, or raise :class:`InUse`."""
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        if fcntl is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise InUse(f"{path} is held by another process") from None
        yield
    finally:
        os.close(handle)


def is_free(file: Path) -> bool:
    """Return whether the lock's file is there and nobody holds it."""
    try:
        with file.open() as lock:
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # also if somebody holds it
        return False
    return True
