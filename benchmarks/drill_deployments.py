"""Deployments of both engines that can be drilled: one node reaches the server through a proxy, and may be started
twice; processes are found by what they are.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from drill_proxy import Proxy

from fedmls.federation import Stopped
from fedmls.federation.deploy import flower, nvflare
from fedmls.federation.deploy.nvflare_kits import provision
from fedmls.federation.deploy.processes import PRIVATE, marked
from fedmls.results.events import read_events

VICTIM = "site-2"  # the node that things happen to
TWIN = "twin"
SERVER = "server"
POLL_SECONDS = 0.05


class NVFlare(nvflare.NVFlareDeployment):
    """The kit of the node is made with the proxy's port in it, under the same CA."""

    proxy: Proxy | None = None
    over = False

    def _start(self, name: str) -> None:
        if name == VICTIM and self.proxy is None:
            self.proxy, private = Proxy(self.port), self.processes.folder / PRIVATE
            self.kits[name] = provision(private, nvflare.HOST, self.nodes, self.proxy.port, private)[name]
        super()._start(name)

    def _restart_dead(self, *arguments: Any) -> list[str]:
        if self.over:
            raise Stopped("the deployment was taken down")
        return super()._restart_dead(*arguments)

    def close(self) -> None:
        self.over = True
        super().close()
        if self.proxy is not None:
            self.proxy.close()

    def start_twin(self) -> None:
        """Another client with the kit of the node."""
        since = dict(self.since)
        with renamed(self.processes):
            self._start(VICTIM)
        self.since.update(since)


class Flower(flower.FlowerDeployment):
    """The node is given the proxy's port."""

    proxy: Proxy | None = None
    over = False

    def _start(self, name: str) -> None:
        if name != VICTIM:
            super()._start(name)
            return
        port, self.proxy = self.port, self.proxy or Proxy(self.port)
        self.port = self.proxy.port
        try:
            super()._start(name)
        finally:
            self.port = port

    def _restart_dead(self, *arguments: Any) -> list[str]:
        if self.over:
            raise Stopped("the deployment was taken down")
        return super()._restart_dead(*arguments)

    def close(self) -> None:
        self.over = True
        super().close()
        if self.proxy is not None:
            self.proxy.close()

    def start_twin(self) -> None:
        """Another SuperNode with the key of the node."""
        with renamed(self.processes):
            self._start(VICTIM)


DEPLOYMENTS: dict[str, Callable[..., Any]] = {"nvflare": NVFlare, "flower": Flower}


@contextmanager
def renamed(processes: Any) -> Iterator[None]:
    """What is started meanwhile is the twin."""
    start = processes.start
    with patch.object(processes, "start", lambda _, *rest: start(TWIN, *rest)):
        yield


class Background(threading.Thread):
    """A run of a job in a thread; ``error`` is what it raised."""

    def __init__(self, deployment: Any, folder: Path) -> None:
        super().__init__(daemon=True)
        self.deployment, self.folder, self.error = deployment, folder, ""
        self.start()

    def run(self) -> None:
        try:
            self.deployment.run(self.folder)
        except Exception as error:
            self.error = str(error) or type(error).__name__

    def ended(self, seconds: float) -> bool:
        """Whether it has, or does within so many seconds."""
        deadline = time.monotonic() + seconds
        while self.is_alive() and time.monotonic() < deadline:
            self.join(POLL_SECONDS)  # Ctrl-C is heard in between
        return not self.is_alive()


def exchanges(folder: Path) -> int:
    """How many were done in the job's folder."""
    return max((event["exchanges"] for event in read_events(folder) if "kind" in event), default=0)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def family(deployment: Any, name: str) -> list[int]:
    """The processes of a participant: the one that was started, and what it started, the oldest first."""
    born = {}
    for process in marked(f"{deployment.folder}|{name}", whole=True):
        with suppress(OSError):
            born[process] = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
    own = deployment.processes.started[name].pid
    return sorted(born, key=lambda process: (process != own, born[process], process))


def kill(processes: list[int], kind: signal.Signals = signal.SIGKILL) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, kind)


@contextmanager
def halted(deployment: Any, name: str) -> Iterator[None]:
    """Meanwhile the participant's processes are stopped."""
    processes = family(deployment, name)
    kill(processes, signal.SIGSTOP)
    try:
        yield
    finally:
        kill(processes, signal.SIGCONT)
