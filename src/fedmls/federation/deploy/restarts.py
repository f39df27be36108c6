"""When to give up starting again what was lost."""

from pathlib import Path

from fedmls.federation.errors import Stopped
from fedmls.federation.server.folder import CHECKPOINT

MOST = 5  # restarts, one after the other, that come no exchange further


class Restarts:
    """Counts what was started again since the run in a folder last came further."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint, self.count = folder / CHECKPOINT, 0
        self.before = self._progress()

    def add(self, why: str) -> None:
        """Count a restart of something that was lost; raise Stopped if there were too many."""
        now = self._progress()
        self.count = self.count + 1 if now == self.before else 1
        self.before = now
        if self.count >= MOST:
            raise Stopped(f"tried {MOST} times, came no further: {why}")

    def _progress(self) -> int:
        """Return a number that changes with every exchange that is done."""
        return self.checkpoint.stat().st_mtime_ns if self.checkpoint.exists() else 0
