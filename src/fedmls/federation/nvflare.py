"""NVFlare carries the federation: start-up kits, an administrator's console, and a deployment on this machine.

What runs inside NVFlare's processes is in :mod:`fedmls.federation.nvflare_app`.
"""

import argparse
import hashlib
import json
import math
import os
import re
import select
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from fedmls.federation.post import Stopped
from fedmls.federation.processes import Processes, exit_on_signals, free_port

PROJECT = "fedmls"
ADMIN = "admin@fedmls.org"
SERVER, CONSOLE = "server", "console"  # processes of a deployment, besides the nodes
HOST = "localhost"
RESERVED = (SERVER, CONSOLE, HOST)
NODE_FILE = "FEDMLS_NODE"  # the variable that names a node's configuration file
OUTCOME = "nvflare.json"  # in the job's folder: how the last attempt ended
POLL_SECONDS = 0.3  # between two looks at a job
LOOKS = 10  # at a job for one at the nodes
START_SECONDS = 120.0  # for a server and its nodes to find each other
ATTEMPTS = 5  # of a job, one after the other, that come no exchange further

CONTROLLER = "nvflare.collab.runtime.controller.CollabController"
EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
SERVER_APP = "fedmls.federation.nvflare_app.ServerApp"
NODE_APP = "fedmls.federation.nvflare_app.NodeApp"

# The administrator may run jobs made of these four classes and ask how they are; nobody may send code or read files.
AUTHORIZATION = {
    "format_version": "1.0",
    "permissions": {
        "project_admin": {
            **dict.fromkeys(("submit_job", "manage_job", "view", "operate"), "any"),
            **dict.fromkeys(("clone_job", "download_job", "shell_commands", "byoc"), "none"),
        }
    },
}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"out": {"class": "logging.StreamHandler", "formatter": "plain", "stream": "ext://sys.stdout"}},
    "loggers": {
        "root": {"level": "WARNING", "handlers": ["out"]},
        **{
            f"nvflare.{name}": {"level": "INFO"}
            for name in (
                "fuel.f3.sfm.conn_manager",  # who connects and who cannot
                "private.fed.authenticator",
                "private.fed.client.client_executor",
                "private.fed.server.client_manager",
                "private.fed.server.job_runner",
            )
        },
    },
}


class Lost(ConnectionError):
    """The server does not answer the console."""


def provision(
    folder: Path, server: str, nodes: Iterable[str], port: int, storage: Path, days: int = 360, admin: str = ADMIN
) -> dict[str, Path]:
    """Start-up kits by name, for the server, the nodes and the administrator: mutual TLS under one CA.

    server: the name under which nodes reach it, which its certificate proves.  storage: a folder of the server's
    machine for NVFlare's own files.  days: for which the CA is valid. A folder that holds a CA keeps it, so nodes can
    be added later; whoever reads the CA's key, in the folder's ``state``, can make certificates.
    """
    from nvflare.lighter.entity import Project
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.signature import SignatureBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    project = Project(PROJECT, "fedmls over NVFlare")
    project.set_server(server, PROJECT, {"fed_learn_port": port, "admin_port": port})
    for name in nodes:
        project.add_client(name, PROJECT, {})
    project.add_admin(admin, PROJECT, {"role": "project_admin"})
    builders = [
        WorkspaceBuilder(["master_template.yml"]),
        StaticFileBuilder("config"),
        CertBuilder(days),
        SignatureBuilder(),
    ]
    private = Path(folder) / PROJECT / "state"  # NVFlare would let everybody read it
    private.mkdir(parents=True, exist_ok=True)
    private.chmod(0o700)
    made = Provisioner(str(folder), builders).provision(project, logger=_Silence())
    if "current_prod_dir" not in made:
        raise RuntimeError(f"NVFlare could not make the kits: {made}")
    kits = {kit.name: kit for kit in Path(made["current_prod_dir"]).iterdir() if (kit / "startup").is_dir()}
    for name, kit in kits.items():
        (kit / "transfer").mkdir(exist_ok=True)
        if name != admin:
            _configure(kit / "local", storage if name == server else None)
    return kits


class _Silence:
    debug = info = warning = error = staticmethod(lambda *_: None)


def _configure(local: Path, storage: Path | None) -> None:
    """A site's own policy: only our classes, no code in jobs, no logs to the server, storage where it is wanted."""
    resources = json.loads((local / "resources.json.default").read_text())
    resources["class_allow_list"] = [CONTROLLER, EXECUTOR, SERVER_APP, NODE_APP]
    resources["allow_log_streaming"] = False
    parts = [part for part in resources["components"] if part["id"] not in ("site_log_streamer", "log_receiver")]
    resources["components"] = parts
    if storage is not None:
        resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(storage / "snapshots")
        for part in parts:
            if part["id"] == "job_manager":
                part["args"]["uri_root"] = str(storage / "jobs")
    for name, values in (
        ("resources.json", resources),
        ("authorization.json", AUTHORIZATION),
        ("log_config.json", LOGGING),
    ):
        (local / name).write_text(json.dumps(values, indent=2))


def write_job(folder: Path, job_folder: Path, nodes: Iterable[str]) -> None:
    """The job as NVFlare takes it: configuration that names our classes and the folder on the server, and no code.

    Its name stands for the folder: submitting it aborts what is left of an earlier attempt.
    """
    names = sorted(nodes)
    server = {
        "format_version": 2,
        "server": {"task_request_interval": 0.1},
        "workflows": [{"id": "controller", "path": CONTROLLER, "args": {"server_obj_id": "server"}}],
        "components": [{"id": "server", "path": SERVER_APP, "args": {"job_folder": str(job_folder)}}],
    }
    node = {
        "format_version": 2,
        "executors": [{"tasks": ["*"], "executor": {"path": EXECUTOR, "args": {"client_obj_id": "node"}}}],
        "components": [{"id": "node", "path": NODE_APP, "args": {}}],
    }
    about = {
        "name": f"{PROJECT}-{hashlib.sha256(bytes(job_folder)).hexdigest()[:16]}",
        "resource_spec": {},
        "min_clients": len(names),
        "mandatory_clients": names,
        "deploy_map": {"app": ["server", *names]},
    }
    config = folder / "app" / "config"
    config.mkdir(parents=True, exist_ok=True)
    for file, values in (
        (folder / "meta.json", about),
        (config / "config_fed_server.json", server),
        (config / "config_fed_client.json", node),
    ):
        file.write_text(json.dumps(values, indent=2))


class Console:
    """The administrator's side, on the server's machine: runs jobs to their end, whoever is lost on the way.

    A node that was started again cannot come back into a running NVFlare job. So a job that lost a node is submitted
    again as soon as the node is back, and goes on from its checkpoint.
    """

    def __init__(self, kit: Path, processes: Processes, patience: float) -> None:
        self.kit, self.processes, self.patience = kit, processes, patience
        self.start()

    def start(self) -> None:
        program = [sys.executable, "-m", "fedmls.federation.nvflare_app", str(self.kit)]
        process = self.processes.start(CONSOLE, program, os.environ, self.kit, pipes=True)
        assert process.stdin is not None
        assert process.stdout is not None
        self.commands, self.answers = process.stdin, process.stdout

    def ask(self, command: str, *arguments: str, seconds: float = 30.0) -> Any:
        """What the server answers to a command of :class:`fedmls.federation.nvflare_app.Session`."""
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

    def wait_for(self, since: Mapping[str, float], revive: Callable[[], bool] = lambda: False) -> None:
        """Until the server answers, and each node that has connected after its time."""
        deadline = time.monotonic() + self.patience
        while True:
            revive()
            try:
                last = self.ask("connected")
                missing = [name for name in since if last.get(name, -math.inf) < since[name]]
                missing = missing or [name for name in since if name not in self.ask("jobs")]
                trouble = f"{', '.join(sorted(missing))} did not come online"
            except Lost as lost:
                missing, trouble = list(since), f"the server did not answer ({lost})"
            if not missing:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{trouble} within {self.patience:g} s; see the logs in {self.processes.logs}")
            time.sleep(POLL_SECONDS)

    def run(self, job_folder: Path, since: Mapping[str, float], revive: Callable[[], bool] = lambda: False) -> None:
        """Submit the job, and again from its checkpoint until it has ended; Stopped if it failed.

        since: the nodes, and since when they are there.  revive: starts again what has died, where that is in our
        hands, and says whether something had.
        """
        folder, trouble, left = Path(job_folder).resolve(), "", ATTEMPTS
        if not folder.is_dir():
            raise ValueError(f"{folder} is no folder with a job")
        definition = self.kit / "transfer" / "job"
        write_job(definition, folder, since)
        while left:
            before = _progress(folder)
            try:
                self.wait_for(since, revive)
                trouble = self._follow(self.ask("submit", str(definition)), folder, revive)
            except Lost as lost:
                trouble = f"the server did not answer ({lost})"
            if not trouble:
                return
            left = left - 1 if _progress(folder) == before else ATTEMPTS
        raise Stopped(f"tried {ATTEMPTS} times, came no further: {trouble}; see the logs in {self.processes.logs}")

    def _follow(self, job: str, folder: Path, revive: Callable[[], bool]) -> str:
        """Why the job is lost; nothing if it came to its end."""
        joined: set[str] = set()
        while True:
            for _ in range(LOOKS):
                time.sleep(POLL_SECONDS)
                status = self.ask("status", job)
                outcome = _read(folder / OUTCOME)  # read last: it is written before a job ends
                if outcome.get("job") == job:
                    if outcome["failure"]:
                        raise Stopped(outcome["failure"])
                    return ""
                if status.startswith("FINISHED"):
                    return f"NVFlare ended the job ({status})"
                if revive():
                    return "a process died"
            jobs = self.ask("jobs")
            joined |= {name for name in jobs if job in jobs[name]}
            gone = [name for name in jobs if name in joined and job not in jobs[name]]
            if gone:
                return f"{', '.join(gone)} has no part in the job any more"


class Deployment:
    """A server, and a client for each node, as processes of this machine that listen on loopback only::

        with Deployment(folder, {"site-1": Path("site-1/node.toml"), ...}) as deployment:
            deployment.run(job_folder)

    Entering makes a CA and everybody's certificates, and waits until all nodes are online. Leaving ends every process
    and removes the certificates; the folder keeps the logs. Linux.
    """

    def __init__(self, folder: Path, nodes: Mapping[str, Path]) -> None:
        if find_spec("nvflare") is None:
            raise ValueError("NVFlare is not installed; pip install 'fedmls[nvflare]'")
        self.folder = Path(folder).resolve()
        self.nodes = {name: Path(file).resolve() for name, file in nodes.items()}
        for name, file in self.nodes.items():
            if name in RESERVED or not re.fullmatch(r"[A-Za-z0-9_-]{1,60}", name):
                raise ValueError(
                    f"{name!r} is no name for a node; take letters, digits, - and _, but not {' or '.join(RESERVED)}"
                )
            if not file.is_file():
                raise ValueError(f"node {name!r} has no configuration file {file}")
        self.since = dict.fromkeys(self.nodes, 0.0)  # when each was started

    def __enter__(self) -> Self:
        self.processes = Processes(self.folder)
        self._restore = exit_on_signals()
        try:
            private = self.folder / "nvflare"
            shutil.rmtree(private, ignore_errors=True)
            private.mkdir(mode=0o700)
            self.port = free_port()
            kits = provision(private, HOST, self.nodes, self.port, private)
            self.kits = {**kits, SERVER: kits[HOST]}
            self.console = Console(kits[ADMIN], self.processes, START_SECONDS)  # first: it outlives us to clean up
            for name in (SERVER, *self.nodes):
                self._start(name)
            self.console.wait_for(self.since, self._revive)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process and remove all keys and NVFlare's own files."""
        self.processes.close()
        shutil.rmtree(self.folder / "nvflare", ignore_errors=True)
        self._restore()

    def run(self, job_folder: Path) -> None:
        """Run the job to its end, starting again what dies on the way; Stopped if the job failed."""
        self.console.run(job_folder, self.since, self._revive)

    def kill(self, name: str) -> None:
        """End a node, or the "server", as a power failure would."""
        self.processes.end(name)

    def _revive(self) -> bool:
        """Start what does not run, and say whether there was something."""
        dead = [name for name in (SERVER, *self.nodes) if not self.processes.is_running(name)]
        for name in dead:
            self.processes.end(name)  # what is left of it
            self._start(name)
        if SERVER in dead:
            self.processes.end(CONSOLE)  # its session was with the old one
        return bool(dead)

    def _start(self, name: str) -> None:
        kind, settings, node = "server", [], {}
        if name != SERVER:
            kind, settings, node = "client", [f"uid={name}"], {NODE_FILE: str(self.nodes[name])}
            self.since[name] = time.time()
        program = [sys.executable, "-m", f"nvflare.private.fed.app.{kind}.{kind}_train", "-m", str(self.kits[name])]
        settings += ["secure_train=true", f"org={PROJECT}", "config_folder=config"]
        command = [*program, "-s", f"fed_{kind}.json", "--set", *settings]
        self.processes.start(name, command, {**os.environ, **node}, self.kits[name])


def run_job(kit: Path, job_folder: Path, nodes: Iterable[str], patience: float = 3600.0) -> None:
    """Run a job, on the server's machine, of a federation that is deployed; Stopped if it failed.

    kit: the administrator's.  patience: how many seconds to wait for nodes, or the server, that are away.
    """
    kit = Path(kit).resolve()
    processes = Processes(kit)
    try:
        Console(kit, processes, patience).run(job_folder, dict.fromkeys(nodes, 0.0))
    finally:
        processes.close()


def _progress(folder: Path) -> int:
    """Changes with every exchange that is done."""
    checkpoint = folder / "checkpoint"
    return checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0


def _read(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text())) if file.exists() else {}


def main() -> None:
    """``python -m fedmls.federation.nvflare kits`` and ``... run``, for a federation between machines."""
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
        run_job(given.kit, given.job_folder, given.nodes)
        return
    for name, kit in provision(given.folder, given.server, given.nodes, given.port, given.storage, given.days).items():
        print(f"{name}: {kit}")


if __name__ == "__main__":
    main()
