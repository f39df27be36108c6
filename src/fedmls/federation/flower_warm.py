"""Flower's commands, warm: ``python -m fedmls.federation.flower_warm flower-supernode ...`` in the place of
``flower-supernode ...``, and the same with ``flower-superlink``.

Flower starts a command of its own for every message and every job, which takes seconds of computing until all is
imported and compiled code is loaded. Here that is done once: commands of the same names, first on the PATH, hand their
arguments to this process, which forks. What runs then is Flower's own code, but for its pauses (see ``hasten``) and for
what becomes of a reply whose process is killed before it has given it away (see ``Worker``). Linux.
"""

import argparse
import ctypes
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext, suppress
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

STARTED = {  # by each command
    "flower-supernode": ("flower-superexec", "flwr-clientapp"),
    "flower-superlink": ("flower-superexec", "flwr-serverapp", "flwr"),  # the last one by us
}
NEEDED, WORKER = "flower-superexec", "flwr-clientapp"
PIPE = "pipe"
# One write, so that two at a time do not mix; tabs are in none of the arguments. The first field is empty.
STUB = """\
#!/bin/sh
printf '%s\\n' "$(printf '\\t%s' {name} "$@")" > "${{0%/*}}/pipe"
"""
PR_SET_PDEATHSIG = 1
DEATH = signal.SIGUSR1  # to a SuperNode: a process that works on messages was killed
REFUSED = 49  # the exit status of a SuperNode that is not let in
LET_IN_SECONDS, PAUSE = 90.0, 2.0  # for how long, and how often, one is started again
LOOK, HEARTBEAT, RETRY = 0.5, 10, 3  # seconds, see hasten; a look costs the SuperLink 5 to 20 ms

Command = Callable[[], object]


def main(arguments: list[str]) -> int:
    """Run the command until it ends; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m fedmls.federation.flower_warm")
    parser.add_argument("--in", dest="folder", type=Path, help="a folder for the pipe, which others may write to")
    parser.add_argument("--look", type=float, default=LOOK, help="seconds between a SuperNode's looks for messages")
    parser.add_argument("command", choices=list(STARTED))
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the command's own")
    given = parser.parse_args(arguments)
    home, started = os.environ.get("FLWR_HOME"), STARTED[given.command]
    place: Any = nullcontext(given.folder)
    if given.folder is None:
        place = tempfile.TemporaryDirectory(dir=home if home and Path(home).is_dir() else None)
    with place as folder:
        lines = prepare(Path(folder).resolve(), started)
        hasten(given.look)
        commands = {name: load(name) for name in (given.command, *started)}
        return Family(commands, [given.command, *given.arguments], lines).serve()


def prepare(folder: Path, names: tuple[str, ...]) -> int:
    """Commands of these names in the folder, first on the PATH; the open pipe that they write to."""
    folder.mkdir(mode=0o700, exist_ok=True)
    pipe = folder / PIPE
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe, 0o600)
    for name in names:
        (folder / name).write_text(STUB.format(name=name))
        (folder / name).chmod(0o700)
    own = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join([str(folder), os.environ.get("PATH", os.defpath), own])
    return os.open(pipe, os.O_RDWR | os.O_CLOEXEC)  # what comes before we are ready waits in the pipe


def hasten(look: float) -> None:
    """Shorten Flower's pauses, before the rest of it is imported, and let a SuperNode that is refused say so.

    A SuperNode looks for messages every ``look`` seconds instead of 3, and tells every few seconds that it is there, so
    that a dead one is missed after 2 HEARTBEAT = 20 seconds instead of 60. One that has lost its server tries again
    after RETRY seconds at most, instead of 20. And where it would wait for ever, for the rest of a reply whose process
    was killed, it gives that reply up: the server asks again.
    """
    constants = import_module("flwr.common.constant")
    constants.HEARTBEAT_DEFAULT_INTERVAL, constants.MAX_RETRY_DELAY = HEARTBEAT, RETRY  # type: ignore[attr-defined]
    node = import_module("flwr.supernode.start_client_internal")

    def sleep(seconds: float) -> None:
        waiting_for_reply = sys._getframe(1).f_code.co_name == REST_OF_A_REPLY
        if not waiting_for_reply:
            Worker.take_death()  # one that was killed before it had a reply; Flower tells the server
        time.sleep(min(seconds, look))
        if waiting_for_reply and Worker.take_death():
            raise ConnectionError(
                "the process that worked on the message was killed before it had given its reply away"
            )

    node.time = SimpleNamespace(sleep=sleep)  # type: ignore[attr-defined]
    send_what_is_left(node)
    connection = import_module("flwr.supernode.fleet_http_connection")
    leave = connection.flwr_exit

    def refused(*arguments: object) -> None:
        """Flower's own exit status is 1, whatever went wrong."""
        try:
            leave(*arguments)
        except SystemExit:
            raise SystemExit(REFUSED) from None

    connection.flwr_exit = refused  # type: ignore[attr-defined]


def send_what_is_left(node: Any) -> None:
    """Let a SuperNode that finds no message send the replies that it still has.

    Flower sends what it finds when it has taken a message, and takes it for the reply. If the server was killed, that
    can be the reply to a message of the run that was lost; from then on every reply would be sent one message later.
    """
    pull = node._pull_and_store_message

    def pull_or_send(*, state: Any, **others: Any) -> int | None:
        run: int | None = pull(state=state, **others)
        left = [entry for entry in [*state.msg_store.values()] if not entry.is_retrieved]
        return 0 if run is None and any(entry.message.metadata.reply_to_message_id for entry in left) else run

    node._pull_and_store_message = pull_or_send


REST_OF_A_REPLY = "yield_object_contents"  # Flower's function in which a SuperNode waits for it, for ever if it must


class Worker:
    """In a SuperNode: whether a process that works on messages was killed. Its parent tells it so by a signal."""

    deaths = 0

    @classmethod
    def died(cls, *_: object) -> None:
        cls.deaths += 1

    @classmethod
    def take_death(cls) -> bool:
        found, cls.deaths = cls.deaths, 0
        return found > 0


def load(name: str) -> Command:
    """The function behind a command of Flower's."""
    [found] = entry_points(group="console_scripts", name=name)
    command: Command = found.load()
    return command


def warm_up(name: str) -> None:
    """Import what the processes of this command need of ours, and load compiled code."""
    import pandas as pd  # noqa: F401

    import fedmls.federation.flower_app  # noqa: F401

    if name == "flower-supernode":
        from fedmls import FedMLS, Problem, simulate

        simulate(FedMLS(), Problem([[0.0], [1.0]], [-1, 1], clients=[0, 1]), rounds=1, optimum=None, progress=False)


class Family:
    """A command of Flower's and all that it starts: forks of this process."""

    def __init__(self, commands: dict[str, Command], arguments: list[str], lines: int) -> None:
        self.commands, self.arguments, self.lines = commands, arguments, lines
        self.answers: dict[int, Path] = {}  # where what a process prints is wanted
        self.needed: set[int] = set()  # without whom the first one could do nothing
        self.workers: set[int] = set()
        signal.signal(DEATH, signal.SIG_IGN)  # by whoever is forked, until it wants to hear of it
        self.let_in_by = time.monotonic() + LET_IN_SECONDS
        self.first = self.fork(arguments)
        for kind in (signal.SIGINT, signal.SIGTERM):
            signal.signal(kind, self.forward)

    def forward(self, number: int, _: object) -> None:
        self.let_in_by = 0.0
        with suppress(ProcessLookupError):
            os.kill(self.first, number)

    def fork(self, arguments: list[str], answer: Path | None = None) -> int:
        process = os.fork()
        if process == 0:
            os.close(self.lines)
            become(self.commands[arguments[0]], arguments, answer)
        return process

    def serve(self) -> int:
        """Fork for each line of the pipe until the first process ends; its exit status."""
        warm_up(self.arguments[0])
        rest = b""
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == self.first:
                code = os.waitstatus_to_exitcode(status)
                if code != REFUSED or time.monotonic() > self.let_in_by:
                    return code
                time.sleep(PAUSE)  # a node that was killed is taken for online, and refused, for a while
                self.first, self.needed = self.fork(self.arguments), set()
            elif ended:
                self.bury(ended, status)
            elif select.select([self.lines], [], [], 0.1)[0]:
                *calls, rest = (rest + os.read(self.lines, 65536)).split(b"\n")
                for call in calls:
                    self.call(*call.decode().split("\t"))

    def call(self, answer: str, *arguments: str) -> None:
        part = Path(f"{answer}.part") if answer else None
        process = self.fork(list(arguments), part)
        if part is not None:
            self.answers[process] = part
        if arguments[0] == NEEDED and str(self.first) in arguments:  # not one of a SuperNode that was refused
            self.needed.add(process)
        if arguments[0] == WORKER:
            self.workers.add(process)

    def bury(self, process: int, status: int) -> None:
        if process in self.workers:
            self.workers.discard(process)
            if os.waitstatus_to_exitcode(status) < 0:
                os.kill(self.first, DEATH)
        if process in self.answers:
            part = self.answers.pop(process)
            part.replace(part.with_suffix(""))
        if process in self.needed:
            self.forward(signal.SIGTERM, None)


def become(command: Command, arguments: list[str], answer: Path | None) -> None:
    """This process is that command now."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # without the one that forks it could do nothing
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, signal.SIG_DFL)
    signal.signal(DEATH, Worker.died)
    if answer is not None:
        out = os.open(answer, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(out, 1)
        os.dup2(out, 2)
    sys.argv = list(arguments)
    code: object = 1
    try:
        command()
        code = 0
    except SystemExit as left:
        code = left.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
