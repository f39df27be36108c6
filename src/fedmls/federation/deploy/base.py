"""A deployment on this machine, whatever the engine: a server, and a participant for each node, as processes that
listen on loopback only.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Self

from fedmls.federation.deploy.processes import GUARD, Processes, Say, exit_on_signals, silent
from fedmls.federation.deploy.restarts import Restarts

SERVER = "server"  # the name of the server's process; the others have the names of their nodes


class Deployment(ABC):
    """A server and its nodes::

        with NVFlareDeployment(folder, {"site-1": Path("site-1/node.toml"), ...}) as deployment:
            deployment.run(job_folder)

    Entering makes a CA, certificates and keys, starts every process, and waits until all nodes are online. Leaving ends
    every process and removes the keys; the folder keeps the logs. Linux.
    """

    title: ClassVar[str]  # of the engine
    package: ClassVar[str]  # that the engine is
    extra: ClassVar[str]  # of fedmls, that brings the package
    megabytes: ClassVar[int]  # of memory for a node
    reserved: ClassVar[tuple[str, ...]] = (SERVER, GUARD)  # no names for nodes
    private: Path  # keys, and the engine's own files, while it runs

    def __init__(self, folder: Path, nodes: Mapping[str, Path]) -> None:
        self.check_installed()
        self.folder = Path(folder).resolve()
        self.nodes = {name: Path(file).resolve() for name, file in nodes.items()}
        for name, file in self.nodes.items():
            if name.lower() in self.reserved or not re.fullmatch(r"[A-Za-z0-9_-]{1,60}", name):
                raise ValueError(
                    f"{name!r} is no name for a node; take letters, digits, - and _, "
                    f"but not {', '.join(self.reserved[:-1])} or {self.reserved[-1]}"
                )
            self._check_node(name, file)

    @classmethod
    def check_installed(cls) -> None:
        """Raise a ValueError if the engine is not there."""
        if find_spec(cls.package) is None:
            raise ValueError(f"{cls.title} is not installed; pip install 'fedmls[{cls.extra}]'")

    def __enter__(self) -> Self:
        self.processes, self._restore = Processes(self.folder), exit_on_signals()
        try:
            self.private = self.processes.private()
            self._start_all()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process; remove the keys and the engine's own files."""
        self.processes.close()
        self._restore()

    def run(self, job_folder: Path, say: Say = silent) -> None:
        """Run the job to its end, starting again what dies on the way; raise Stopped if the job failed."""
        folder = Path(job_folder).resolve()
        if not folder.is_dir():
            raise ValueError(f"{folder} is no folder with a job")
        self._run(folder, Restarts(folder), say)

    def kill(self, name: str) -> None:
        """End a node, or the "server", as a power failure would."""
        process = self.processes.started[name]  # another one may have been started when it has ended
        self.processes.end(name)
        process.wait()  # what has just lost its environment may not have ended yet

    def _restart_dead(self, restarts: Restarts, say: Say) -> list[str]:
        """Start what does not run, and return the names."""
        dead = self.processes.collect_dead((SERVER, *self.nodes), restarts, say)
        for name in dead:
            self._start(name)
        return dead

    @abstractmethod
    def _check_node(self, name: str, file: Path) -> None:
        """Raise a ValueError if this is no configuration file of the node."""

    @abstractmethod
    def _start_all(self) -> None:
        """Make keys in the private folder, start the server and the nodes, and wait until all are online."""

    @abstractmethod
    def _start(self, name: str) -> None:
        """Start the server's process, or a node's."""

    @abstractmethod
    def _run(self, folder: Path, restarts: Restarts, say: Say) -> None:
        """Submit the job of the folder, and again from its checkpoint until it has ended."""
