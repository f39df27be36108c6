"""The processes of a deployment on this machine, found by a mark in their environment whoever started them. Linux."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

MARK = "FEDMLS_PROCESS"  # the deployment's folder and the participant's name: what a participant starts inherits it


class Processes:
    """Participants by name, each a process with its descendants; one deployment at a time in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        self.lock = (folder / "lock").open("w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.lock.close()
            raise ValueError(f"{folder} is in use by another deployment; name another folder") from None
        self.end()  # what an earlier deployment left behind, if it had no time to take itself down

    def start(
        self, name: str, command: list[str], environment: Mapping[str, str], cwd: Path, pipes: bool = False
    ) -> subprocess.Popen[bytes]:
        """Start a participant, out of reach of Ctrl-C, its output in the log; with pipes, only its errors."""
        with self.log(name).open("ab") as log:
            self.started[name] = subprocess.Popen(
                command,
                bufsize=0,
                cwd=cwd,
                env={**environment, MARK: f"{self.folder}|{name}"},
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else log,
                stderr=log,
                start_new_session=True,
            )
        return self.started[name]

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def is_running(self, name: str) -> bool:
        return name in self.started and self.started[name].poll() is None

    def end(self, name: str = "", patience: float = 0.0) -> None:
        """End a participant, or all: kindly if there is patience, and for certain."""
        ours = [process for each, process in list(self.started.items()) if name in ("", each)]
        for kind, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 30.0)):
            deadline = time.monotonic() + seconds
            while seconds and (found := self._alive(name)):
                for process in found:
                    with suppress(ProcessLookupError):
                        os.kill(process, kind)
                if time.monotonic() > deadline:
                    break
                time.sleep(0.05)
        for each in ours:  # a process loses its environment, and so its mark, a moment before it has ended
            with suppress(subprocess.TimeoutExpired):
                each.wait(5.0)

    def close(self) -> None:
        self.end(patience=2.0)
        for process in self.started.values():
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        self.lock.close()

    def _alive(self, name: str) -> list[int]:
        for process in list(self.started.values()):
            process.poll()  # the dead ones are buried
        return marked(f"{self.folder}|{name}", whole=bool(name))


def marked(mark: str, whole: bool = False) -> list[int]:
    """The processes whose mark begins with this, or is this; not the one that asks."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone, or somebody else's
            for part in (entry / "environ").read_bytes().split(b"\0"):
                if part == wanted or (part.startswith(wanted) and not whole):
                    found.append(int(entry.name))
    return [process for process in found if process != os.getpid()]


def free_port() -> int:
    """A port of loopback that nothing listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def exit_on_signals() -> Callable[[], None]:
    """From now on SIGTERM and SIGHUP leave the way Ctrl-C does, and the first of the three is the last that is heard:
    another one must not break off the taking down. Calling what is returned ends that.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {kind: handler for kind in kinds if (handler := signal.getsignal(kind)) != signal.SIG_IGN}  # as by nohup

    def leave(number: int, _: object) -> None:
        for kind in before:
            signal.signal(kind, signal.SIG_IGN)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + number)

    def restore() -> None:
        for kind, handler in before.items():
            signal.signal(kind, handler)

    for kind in before:
        signal.signal(kind, leave)
    return restore
