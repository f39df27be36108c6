"""One at a time: a lock on a file, which the kernel takes back when its holder dies."""

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
def exclusive(file: Path, wait: bool) -> Iterator[None]:
    """Hold the lock; wait for it, or raise :class:`InUse`."""
    with file.open("w") as lock:
        if fcntl is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise InUse(f"{file} is held by another process") from None
        yield
