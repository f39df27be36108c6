"""NVFlare carries the federation: an administrator's console, and a deployment on this machine.

What runs inside NVFlare's processes is in :mod:`fedmls.federation.transports.nvflare`; start-up kits are made in
:mod:`fedmls.federation.deploy.nvflare_kits`.
"""

import argparse
import json
import math
import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fedmls.federation.deploy.base import SERVER, Deployment
from fedmls.federation.deploy.nvflare_kits import ADMIN, PROJECT, provision, write_job
from fedmls.federation.deploy.processes import GUARD, Processes, Say, free_port, silent
from fedmls.federation.deploy.restarts import Restarts
from fedmls.federation.job import Job
from fedmls.federation.server.outcome import has_ended
from fedmls.federation.sites import NO_TEXT
from fedmls.federation.transports.base import NODE_FILE

CONSOLE = "console"  # a process of a deployment, besides the server and the nodes
HOST = "localhost"
POLL_SECONDS = 0.3  # between two looks at a job
LOOKS = 10  # at a job for one at the nodes
JOBS_SECONDS = 300.0  # for all nodes to be asked for their jobs, some of which may not answer
START_SECONDS = 120.0  # for a server and its nodes to find each other

WITH = "the job is lost with "


class Lost(ConnectionError):
    """The server does not answer the console."""


class Console:
    """The administrator's side, on the server's machine: runs jobs to their end, whoever is lost on the way.

    A node that was started again cannot come back into a running NVFlare job. So a job that lost a node is submitted
    again as soon as the node is back, and goes on from its checkpoint.
    """

    def __init__(self, kit: Path, processes: Processes, patience: float) -> None:
        self.kit, self.processes, self.patience = kit, processes, patience
        self.start()

    def start(self) -> None:
        program = [sys.executable, "-m", "fedmls.federation.deploy.nvflare_session", str(self.kit)]
        process = self.processes.start(CONSOLE, program, os.environ, self.kit, pipes=True)
        assert process.stdin is not None
        assert process.stdout is not None
        self.commands, self.answers = process.stdin, process.stdout

    def ask(self, command: str, *arguments: str, seconds: float = 30.0) -> Any:
        """Return what the server answers to a command of :class:`fedmls.federation.deploy.nvflare_session.Session`."""
        if not self.processes.is_running(CONSOLE):
            self.start()
        try:
            self.commands.write(json.dumps([command, *arguments]).encode() + b"\n")
            ready, _, _ = select.select([self.answers], [], [], seconds)
            answer = json.loads(self.answers.readline()) if ready else {"error": f"no answer in {seconds:g} s"}
        except (OSError, ValueError):
            answer = {"error": "the console has ended"}
        if "error" in answer:
            self.processes.end(CONSOLE)  # and its session, which may be of no use any more
            raise Lost(answer["error"])
        return answer["answer"]

    def wait_for(
        self, since: Mapping[str, float], look: Callable[[], object] = lambda: None, for_ever: bool = False
    ) -> None:
        """Wait until the server answers, and each node has connected after its time; call ``look`` meanwhile.

        for_ever: nodes are waited for as long as it takes, as by the job; the server is not.
        """
        deadline = time.monotonic() + self.patience
        while True:
            look()
            try:
                last = self.ask("connected")
                missing = [name for name in since if last.get(name, -math.inf) < since[name]]
                missing = missing or [name for name in since if name not in self.ask("jobs", seconds=JOBS_SECONDS)]
                trouble = f"{', '.join(sorted(missing))} did not come online"
                deadline = time.monotonic() + self.patience if for_ever else deadline
            except Lost as lost:
                missing, trouble = list(since), f"the server did not answer ({lost})"
            if not missing:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{trouble} within {self.patience:g} s; the logs are in {self.processes.logs}")
            time.sleep(POLL_SECONDS)

    def run(
        self,
        folder: Path,
        since: Mapping[str, float],
        restarts: Restarts,
        say: Say = silent,
        restart_dead: Callable[[], list[str]] = lambda: [],
    ) -> None:
        """Submit the job of the folder, and again from its checkpoint until it has ended; raise Stopped if it failed.

        since: the nodes, and since when they are there.  restart_dead: starts again what has died, where that is in our
        hands, and returns the names.
        """
        definition = self.kit / "transfer" / "job"
        write_job(definition, folder, since)
        waits = False
        while True:
            try:
                self.wait_for(since, restart_dead, for_ever=waits)
                waits = Job.read(folder).on_missing == "wait"  # it has begun: who is away now is waited for
                lost = self._follow(self.ask("submit", str(definition)), folder, restart_dead)
            except Lost as error:
                dead = restart_dead()
                lost = WITH + ", ".join(dead) if dead else f"the server does not answer ({error})"
            if not lost:
                return
            if not lost.startswith(WITH):  # that counts already
                restarts.add(f"{lost}; the logs are in {self.processes.logs}")
            say(f"{lost}; submitting the job again, which goes on from its last exchange")

    def _follow(self, job: str, folder: Path, restart_dead: Callable[[], list[str]]) -> str:
        """Return why the job is lost; nothing if it came to its end."""
        joined: set[str] = set()
        while True:
            for _ in range(LOOKS):
                time.sleep(POLL_SECONDS)
                status = self.ask("status", job)
                if has_ended(folder, job):  # looked at last: it is told before a job ends
                    return ""
                if dead := restart_dead():
                    return WITH + ", ".join(dead)
                if status.startswith("FINISHED"):
                    return f"NVFlare ended the job ({status})"
            jobs = self.ask("jobs", seconds=JOBS_SECONDS)
            joined |= {name for name in jobs if job in jobs[name]}
            gone = [name for name in jobs if name in joined and job not in jobs[name]]
            if gone:
                return f"{', '.join(gone)} has no part in the job any more"


class NVFlareDeployment(Deployment):
    """A deployment over NVFlare: everybody has a certificate of one CA."""

    title, package, extra, megabytes = "NVFlare", "nvflare", "nvflare", 360
    reserved = (SERVER, CONSOLE, GUARD, HOST, *NO_TEXT)

    def __init__(self, folder: Path, nodes: Mapping[str, Path]) -> None:
        path = Path(folder).resolve()
        self.check_installed()
        if re.search(r"[\s'\"\\]", str(path)):
            raise ValueError(f"NVFlare takes no spaces or quotes in a path, as in {path}; name another folder")
        super().__init__(folder, nodes)
        self.since = dict.fromkeys(self.nodes, 0.0)  # when each was started

    def _check_node(self, name: str, file: Path) -> None:
        if not file.is_file():
            raise ValueError(f"node {name!r} has no configuration file {file}")

    def _start_all(self) -> None:
        self.port = free_port()
        kits = provision(self.private, HOST, self.nodes, self.port, self.private)
        self.kits = {**kits, SERVER: kits[HOST]}
        for name in (SERVER, *self.nodes):
            self._start(name)
        self.console = Console(kits[ADMIN], self.processes, START_SECONDS)
        self.console.wait_for(self.since, self._check_started)

    def _run(self, folder: Path, restarts: Restarts, say: Say) -> None:
        self.console.run(folder, self.since, restarts, say, lambda: self._restart_dead(restarts, say))

    def _check_started(self) -> None:
        for name in (SERVER, *self.nodes):
            if not self.processes.is_running(name):
                raise RuntimeError(self.processes.how_it_ended(name))

    def _restart_dead(self, restarts: Restarts, say: Say) -> list[str]:
        dead = super()._restart_dead(restarts, say)
        if SERVER in dead:
            self.processes.end(CONSOLE)  # its session was with the old one
        return dead

    def _start(self, name: str) -> None:
        kind, settings, node = "server", [], {}
        if name != SERVER:
            kind, settings, node = "client", [f"uid={name}"], {NODE_FILE: str(self.nodes[name])}
            self.since[name] = time.time()
        program = [sys.executable, "-m", f"nvflare.private.fed.app.{kind}.{kind}_train", "-m", str(self.kits[name])]
        settings += ["secure_train=true", f"org={PROJECT}", "config_folder=config"]
        command = [*program, "-s", f"fed_{kind}.json", "--set", *settings]
        self.processes.start(name, command, {**os.environ, **node}, self.kits[name])


def run_job(kit: Path, job_folder: Path, nodes: Iterable[str], patience: float = 3600.0, say: Say = silent) -> None:
    """Run a job, on the server's machine, of a federation that is deployed; raise Stopped if it failed.

    kit: the administrator's.  patience: how many seconds to wait for nodes, or the server, that are away.
    """
    kit, folder = Path(kit).resolve(), Path(job_folder).resolve()
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder with a job")
    processes = Processes(kit)
    try:
        Console(kit, processes, patience).run(folder, dict.fromkeys(nodes, 0.0), Restarts(folder), say)
    finally:
        processes.close()


def main() -> None:
    """Run ``python -m fedmls.federation.nvflare kits`` and ``... run``, for a federation between machines."""
    parser = argparse.ArgumentParser(prog="python -m fedmls.federation.nvflare")
    commands = parser.add_subparsers(dest="command", required=True)
    kits = commands.add_parser("kits", help="make the start-up kits of a federation")
    kits.add_argument("folder", type=Path, help="where; a CA that is there is kept")
    kits.add_argument("--server", required=True, help="the name under which nodes reach the server")
    kits.add_argument("--port", type=int, default=8002)
    kits.add_argument(
        "--storage", type=Path, required=True, help="a folder of the server's machine for NVFlare's files"
    )
    kits.add_argument("--days", type=int, default=360, help="how long the CA is valid")
    run = commands.add_parser("run", help="run a job to its end, on the server's machine")
    run.add_argument("kit", type=Path, help="the administrator's kit")
    run.add_argument("job_folder", type=Path)
    for command in (kits, run):
        command.add_argument("nodes", nargs="+", help="their names")
    given = parser.parse_args()
    if given.command == "run":
        run_job(given.kit, given.job_folder, given.nodes, say=print)
        return
    for name, kit in provision(given.folder, given.server, given.nodes, given.port, given.storage, given.days).items():
        print(f"{name}: {kit}")


if __name__ == "__main__":
    main()
