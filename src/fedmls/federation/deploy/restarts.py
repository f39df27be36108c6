"""When to give up starting again what was lost."""

from pathlib import Path

from fedmls.federation.errors import Stopped
from fedmls.federation.server.folder import CHECKPOINT

MOST = 5  # attempts, one after the other, that come no exchange further


class Attempts:
    """Counts what was begun again since the run in a folder last came further."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint, self.lost = folder / CHECKPOINT, 0
        self.before = self._progress()

    def again(self, why: str) -> None:
        """Something was lost and is to be begun again; Stopped if that was tried too often."""
        now = self._progress()
        self.lost = self.lost + 1 if now == self.before else 1
        self.before = now
        if self.lost >= MOST:
            raise Stopped(f"tried {MOST} times, came no further: {why}")

    def _progress(self) -> int:
        """Changes with every exchange that is done."""
        return self.checkpoint.stat().st_mtime_ns if self.checkpoint.exists() else 0
