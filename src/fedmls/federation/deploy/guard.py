"""The guard of a deployment: waits until its owner has ended, and then ends every participant and removes all keys.

It runs as a file, not as a module of the package: it must start at once and outlive its owner, however that ends. So it
imports nothing of ours.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress

import psutil

MARK = "fedmls.PROCESS"  # the deployment's folder and the participant's name: what a participant starts inherits it


def marked_processes() -> Iterator[tuple[psutil.Process, str]]:
    """Yield all processes that have a mark in their environment, but for the one that asks, with their marks."""
    for process in psutil.process_iter(["environ"]):  # None where the process is gone, or somebody else's
        mark = (process.info["environ"] or {}).get(MARK)
        if mark is not None and process.pid != os.getpid():
            yield process, mark


def processes_of(mark: str, whole: bool = False) -> list[psutil.Process]:
    """Return the processes whose mark begins with this, or, if ``whole``, is this."""
    return [process for process, own in marked_processes() if own == mark or (own.startswith(mark) and not whole)]


def main(mark: str, private: str) -> None:
    sys.stdin.read()  # the pipe closes with its owner
    while found := processes_of(mark):
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
    shutil.rmtree(private, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
