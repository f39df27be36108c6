"""What is done to a federation in the middle of a run, and what the run has to make of it."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from drill_deployments import SERVER, TWIN, VICTIM, Background, exchanges, family, halted, kill, wait_until

from fedmls.federation import InProcess, NodeConfig, Stopped, drive
from fedmls.federation.codec import MessageError, unseal

STOP_SECONDS, CUT_SECONDS, TWIN_SECONDS = 10.0, 30.0, 15.0
TRIES = 10  # to change a state file while no node is about to write it anew
NOTICE_SECONDS = 4.0  # for a changed state file to be noticed
DISK = "1m"
FILLER = "filler"

GOES_ON, AGAIN, NEW_START = "goes on", "run again", "new start"  # what has to become of a run


class Unexpected(RuntimeError):
    """The fault could not strike, or what had to be refused was not."""


class Scene(NamedTuple):
    deployment: Any
    nodes: dict[str, Path]
    run: Background

    @property
    def state(self) -> Path:
        """The folder in which the node keeps its states."""
        return NodeConfig.read(self.nodes[VICTIM]).state

    def state_file(self) -> Path:
        """Of this run, which is the last."""
        return max(self.state.glob("*.state"), key=lambda file: file.stat().st_mtime_ns)


class Fault(NamedTuple):
    title: str
    strike: Callable[[Scene], object]
    then: str = GOES_ON
    says: str = ""  # in the words in which the run must end then
    engine: str = ""  # the only one that has it
    disk: str = ""  # what has to be on a small disk: "node" or "server"


def kills(name: str, which: slice) -> Callable[[Scene], None]:
    """Kill these of a participant's processes, which may have to be waited for."""

    def strike(scene: Scene) -> None:
        found: list[int] = []

        def there() -> bool:
            found[:] = family(scene.deployment, name)[which]
            return bool(found)

        if not wait_until(there, 30.0):
            raise Unexpected("there was no such process")
        kill(found)

    return strike


def halts(name: str) -> Callable[[Scene], None]:
    def strike(scene: Scene) -> None:
        with halted(scene.deployment, name):
            time.sleep(STOP_SECONDS)

    return strike


def cuts(scene: Scene) -> None:
    with scene.deployment.proxy.cut():
        time.sleep(CUT_SECONDS)


def starts_twin(scene: Scene) -> None:
    scene.deployment.start_twin()
    scene.run.ended(TWIN_SECONDS)
    scene.deployment.processes.end(TWIN)


def starts_second_driver(scene: Scene) -> None:
    """Another driver in the folder of the job, and another deployment in that of the deployment."""
    for second, error, words in (
        (lambda: drive(scene.run.folder, InProcess(scene.nodes.values())), Stopped, "another server is at work"),
        (type(scene.deployment)(scene.deployment.folder, scene.nodes).__enter__, ValueError, "is in use by another"),
    ):
        try:
            second()
        except error as refused:
            if words not in str(refused):
                raise
        else:
            raise Unexpected("the second was not refused")


def changes_state(change: Callable[[Path], object]) -> Callable[[Scene], None]:
    """Change the node's state file, and again where the node has just written another in its place."""

    def strike(scene: Scene) -> None:
        for _ in range(TRIES):
            with halted(scene.deployment, VICTIM):
                if (file := scene.state_file()).exists():
                    change(file)
            if scene.run.ended(NOTICE_SECONDS):
                return

    return strike


def damage(file: Path) -> None:
    """Change one bit of a state file, unless it is damaged already: the same bit once more would mend it."""
    data = bytearray(file.read_bytes())
    with suppress(MessageError):
        unseal(bytes(data))
        data[len(data) // 2] ^= 1
        file.write_bytes(data)


def puts_back_old_state(scene: Scene) -> None:
    file, before = scene.state_file(), exchanges(scene.run.folder)
    old = shutil.copy(file, file.with_suffix(".old"))
    wait_until(lambda: exchanges(scene.run.folder) >= before + 3, 60.0)
    changes_state(lambda now: shutil.copy(old, now))(scene)


def fills(where: Callable[[Scene], Path]) -> Callable[[Scene], None]:
    def strike(scene: Scene) -> None:
        try:
            with (where(scene) / FILLER).open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
        except OSError:
            pass  # it is full

    return strike


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """The folder as a disk of its own; whether it could be made, which takes root."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=700", "fedmls-drill", str(folder)]
    made = os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield made
    finally:
        if made:
            subprocess.run(["umount", "--lazy", str(folder)], check=False)


ALL, FIRST = slice(None), slice(0, 1)
NOTHING = "nothing"
FAULTS = [
    Fault(NOTHING, lambda scene: None),
    Fault("killed: all of a node", kills(VICTIM, ALL)),
    Fault("killed: a node's parent process", kills(VICTIM, FIRST)),
    Fault("killed: a node's job process", kills(VICTIM, slice(1, 2)), engine="nvflare"),
    Fault("killed: a node's SuperNode", kills(VICTIM, slice(1, 2)), engine="flower"),
    Fault("killed: a node's SuperExec", kills(VICTIM, slice(2, 3)), engine="flower"),
    Fault("killed: a node's worker", kills(VICTIM, slice(3, 4)), engine="flower"),
    Fault("killed: all of the server", kills(SERVER, ALL)),
    Fault("killed: server's parent process", kills(SERVER, FIRST)),
    Fault("killed: server's job process", kills(SERVER, slice(1, 2)), engine="nvflare"),
    Fault("killed: the SuperLink", kills(SERVER, slice(1, 2)), engine="flower"),
    Fault("killed: server's SuperExec", kills(SERVER, slice(2, 3)), engine="flower"),
    Fault("killed: server's job process", kills(SERVER, slice(3, 4)), engine="flower"),
    Fault("killed: the console", kills("console", ALL), engine="nvflare"),
    Fault("killed: the guard", kills("guard", ALL)),
    Fault(f"stopped for {STOP_SECONDS:g} s: a node", halts(VICTIM)),
    Fault(f"stopped for {STOP_SECONDS:g} s: the server", halts(SERVER)),
    Fault(f"connection cut for {CUT_SECONDS:g} s", cuts),
    Fault("one node started twice", starts_twin),
    Fault("two drivers on one folder", starts_second_driver),
    Fault("disk full: a node's", fills(lambda scene: scene.state), AGAIN, "site-2 refuses: it failed", disk="node"),
    Fault("disk full: the server's", fills(lambda scene: scene.run.folder), AGAIN, "No space left", disk="server"),
    Fault("state file deleted", changes_state(Path.unlink), NEW_START, "is not there"),
    Fault("state file damaged, one bit", changes_state(damage), NEW_START, "is damaged"),
    Fault("state file of an older exchange", puts_back_old_state, NEW_START, "was replaced by another"),
]
COMMAND = "killed: the whole command"  # which is a command of its own, see drill.py
