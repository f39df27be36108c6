"""The processes of a deployment on this machine, found by a mark in their environment whoever started them. Linux."""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

from fedmls.federation.deploy import guard
from fedmls.federation.deploy.guard import MARK, marked_processes, processes_of
from fedmls.federation.deploy.restarts import Restarts
from fedmls.federation.locks import InUse, exclusive, is_free
from fedmls.files import whole_file

GUARD = "guard"  # the participant that outlives us, to clean up
PRIVATE = "private"  # keys, and the engine's own files
LOCK = "lock"  # held by the owner of a deployment as long as it lives

COLOURS = re.compile(rb"\x1b\[[0-9;]*m")  # of Flower's lines, wherever they go

Say = Callable[[str], None]


def silent(line: str) -> None:
    """Say nothing."""


def absolute_paths(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with a PYTHONPATH that means the same in every folder."""
    paths = [os.path.abspath(path) for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {**environment, **({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})}


class Processes:
    """Participants by name, each a process with its descendants; one deployment at a time in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        self.keys: Path | None = None
        self.turn = threading.RLock()  # who ends a participant does not meet the one that is started in its place
        self.lock = ExitStack()
        try:
            self.lock.enter_context(exclusive(folder / LOCK, wait=False))
        except InUse:
            raise ValueError(f"{folder} is in use by another deployment; name another folder") from None
        self.end()  # what an earlier deployment left behind, if it had no time to take itself down

    def private(self) -> Path:
        """Make a new folder for keys, for the owner alone, and return it. It goes with us: a guard removes it, and ends
        every participant, if we are killed; after a power failure it stays until there is another deployment in the
        folder.
        """
        self.keys = self.folder / PRIVATE
        shutil.rmtree(self.keys, ignore_errors=True)
        program = [sys.executable, guard.__file__, f"{self.folder}|", str(self.keys)]
        self.start(GUARD, program, os.environ, self.folder, pipes=True)
        self.keys.mkdir(mode=0o700)
        return self.keys

    def start(
        self, name: str, command: list[str], environment: Mapping[str, str], cwd: Path, pipes: bool = False
    ) -> subprocess.Popen[bytes]:
        """Start a participant, out of reach of Ctrl-C, its output in the log; with pipes, only its errors."""
        with self.turn, self.log(name).open("ab") as log:
            self.started[name] = subprocess.Popen(
                command,
                bufsize=0,
                cwd=cwd,
                env={**absolute_paths(environment), MARK: f"{self.folder}|{name}"},
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

    def how_it_ended(self, name: str) -> str:
        """Return a line on a participant that does not run any more."""
        status, log = self.started[name].returncode, self.log(name)
        how = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
        lines = COLOURS.sub(b"", log.read_bytes()).decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
        last = "".join(letter for letter in last[:200] if letter.isprintable())
        return f"{name} {how}; its last word was: {last} (in {log})"

    def collect_dead(self, names: Iterable[str], restarts: Restarts, say: Say) -> list[str]:
        """Return those that do not run any more, to be started again; end what is left of them."""
        dead = [name for name in names if not self.is_running(name)]
        for name in dead:
            restarts.add(self.how_it_ended(name))
            say(f"{name} has died; starting it again")
            self.end(name)
        return dead

    def end(self, name: str = "", patience: float = 0.0) -> None:
        """End a participant, or all: kindly if there is patience, and for certain."""
        with self.turn:
            self._end(name, patience)

    def _end(self, name: str, patience: float) -> None:
        ours = [process for each, process in list(self.started.items()) if name in ("", each)]
        for kind, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 30.0)):
            deadline = time.monotonic() + seconds
            while seconds and (found := self._alive(name)):
                for process in found:
                    with suppress(psutil.NoSuchProcess):
                        process.send_signal(kind)
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
        if self.keys is not None:
            shutil.rmtree(self.keys, ignore_errors=True)
        self._uncolour_logs()
        self.lock.close()

    def _uncolour_logs(self) -> None:
        """Take escape codes out of the logs, which are for people and for grep."""
        for log in self.logs.glob("*.log"):
            with suppress(OSError):  # a full disk: they stay as they are
                found = log.read_bytes()
                plain = COLOURS.sub(b"", found)
                if plain != found:
                    with whole_file(log) as stream:
                        stream.write(plain)

    def _alive(self, name: str) -> list[psutil.Process]:
        for process in list(self.started.values()):
            process.poll()  # the kernel keeps a dead process until it is asked for its exit status
        return processes_of(f"{self.folder}|{name}", whole=bool(name))


def marked(mark: str, whole: bool = False) -> list[int]:
    """Return the numbers of the processes whose mark begins with this, or, if ``whole``, is this."""
    return [process.pid for process in processes_of(mark, whole)]


def left_behind() -> dict[Path, list[int]]:
    """Return the processes of deployments whose owner and guard were killed, by the deployment's folder.

    Nobody holds the lock of such a deployment.
    """
    found: dict[Path, list[int]] = {}
    for process, mark in marked_processes():
        found.setdefault(Path(mark.rpartition("|")[0]), []).append(process.pid)
    return {folder: sorted(processes) for folder, processes in found.items() if is_free(folder / LOCK)}


def end_left_behind(results: Path) -> list[str]:
    """End what trials in this results folder have left behind, with their keys; return a line on each."""
    said = []
    for folder, processes in left_behind().items():
        if folder.parent.parent == results.resolve():
            Processes(folder).close()
            shutil.rmtree(folder / PRIVATE, ignore_errors=True)
            said.append(f"ended {len(processes)} processes that an earlier trial had left behind in {folder.parent}")
    return said


def free_port() -> int:
    """Return a port of loopback that nothing listens on, and that the kernel gives to no connection meanwhile."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])  # of those that are given
    for _ in range(100):
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", secrets.choice(range(10_000, first)) if first > 12_000 else 0))
            return int(one.getsockname()[1])
    raise OSError("no port of loopback is free")


def exit_on_signals() -> Callable[[], None]:
    """Let SIGTERM and SIGHUP leave the way Ctrl-C does from now on; the first of the three is the last that is heard:
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
