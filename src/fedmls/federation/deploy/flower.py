"""Flower carries the federation: a deployment on this machine.

What runs inside Flower's processes is in :mod:`fedmls.federation.transports.flower`; keys and certificates are in
:mod:`fedmls.federation.deploy.certificates`.
"""

import argparse
import json
import os
import socket
import ssl
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any

import tomli_w

from fedmls.federation.deploy.base import SERVER, Deployment
from fedmls.federation.deploy.certificates import make_certificates, make_node_key
from fedmls.federation.deploy.processes import Say, free_port
from fedmls.federation.deploy.restarts import Restarts
from fedmls.federation.errors import Stopped
from fedmls.federation.node_config import NodeConfig
from fedmls.federation.server.outcome import has_ended

LOST = "the job is lost with the server"
NAME = "fedmls"  # of the app, and of the connection to the SuperLink
WARM = "warm"  # the folder through which the server's processes are started
POLL_SECONDS = 0.2
START_SECONDS = 120.0  # for a process to come online; a killed node is refused for a while
ANSWER_SECONDS = 60.0  # for Flower's command
STATUS_SECONDS = 10.0  # between two looks at what Flower says of a job

# Nobody outside is told or asked anything.
ENVIRONMENT = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
POLL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"  # seconds until a message finds its process; 1 unless told

APP = {
    "pyproject.toml": """\
[project]
name = "fedmls"
version = "1.0.0"
description = "fedmls over Flower; the package fedmls must be installed on the server and on every node"
license = "MIT"
dependencies = ["fedmls[flower]"]

[tool.flwr.app]
publisher = "fedmls"

[tool.flwr.app.components]
serverapp = "fedmls_app:server"
clientapp = "fedmls_app:client"

[tool.flwr.app.config]
job = ""
""",
    "fedmls_app.py": """\
from fedmls.federation.flower_app import client_app, server_app

server = server_app()
client = client_app()
""",
}


class Lost(ConnectionError):
    """The job is lost with the server or with its own process."""


class FlowerDeployment(Deployment):
    """A deployment over Flower: a SuperLink with a certificate, and SuperNodes whose keys are registered."""

    title, package, extra, megabytes = "Flower", "flwr", "flower", 290

    def __init__(self, folder: Path, nodes: Mapping[str, Path]) -> None:
        super().__init__(folder, nodes)
        self.look = max(0.5, 0.15 * len(self.nodes))  # seconds; who looks for messages takes time from who works
        self.begin: dict[str, int] = {}  # where a process's log begins, since its last start
        self.numbers = count(1)  # of answers

    def _check_node(self, name: str, file: Path) -> None:
        if (own := NodeConfig.read(file).name) != name:
            raise ValueError(f"{file} is of node {own!r}, not of {name!r}; make the names the same")

    def _start_all(self) -> None:
        self._prepare()
        self._start(SERVER)
        self._wait_for([SERVER])
        self._register()
        for name in self.nodes:
            self._start(name)
        self._wait_for(self.nodes)

    def _run(self, folder: Path, restarts: Restarts, say: Say) -> None:
        """A node that died is waited for by the run. With the server the job is lost: it is submitted again, and goes
        on from its checkpoint.
        """
        (self.private / "run.toml").write_text(tomli_w.dumps({"job": str(folder)}), encoding="utf-8")
        while True:
            try:
                [answer] = self._flwr([["run", "app", NAME, "--run-config", "run.toml"]])
                return self._follow(folder, answer["run-id"], restarts, say)
            except Lost as lost:
                self._restart_dead(restarts, say)
                say(f"{lost}; submitting the job again, which goes on from its last exchange")
            self._wait_for([SERVER])

    def _follow(self, folder: Path, number: str, restarts: Restarts, say: Say) -> None:
        """Wait until the job has ended; raise Lost if the server has died."""
        look = time.monotonic() + STATUS_SECONDS
        while not has_ended(folder, number):
            if SERVER in self._restart_dead(restarts, say):
                raise Lost(LOST)
            if time.monotonic() > look:
                self._check(folder, number, restarts)
                look = time.monotonic() + STATUS_SECONDS
            time.sleep(POLL_SECONDS)

    def _check(self, folder: Path, number: str, restarts: Restarts) -> None:
        """Whether Flower takes the job for ended although it has told no outcome: its process was killed, or failed."""
        [answer] = self._flwr([["list", NAME, "--run-id", number]])
        [found] = answer["runs"]
        if not found["status"].startswith("finished") or has_ended(folder, number):
            return
        if "exception" in found["status-details"]:
            raise Stopped(f"{found['status-details']}; the logs are in {self.processes.logs}")
        why = f"Flower ended the job ({found['status']}: {found['status-details'] or 'no word'})"
        restarts.add(f"{why}; the logs are in {self.processes.logs}")
        raise Lost(why)

    def _wait_for(self, names: Iterable[str]) -> None:
        """Wait until these processes are online."""
        deadline, waiting = time.monotonic() + START_SECONDS, list(names)
        while waiting := [name for name in waiting if not self._online(name)]:
            for name in waiting:
                if not self.processes.is_running(name):
                    raise RuntimeError(self.processes.how_it_ended(name))
                if time.monotonic() > deadline:
                    log = self.processes.log(name)
                    raise TimeoutError(f"{name} is not online after {START_SECONDS:g} s; its log is {log}")
            time.sleep(POLL_SECONDS)

    def _prepare(self) -> None:
        (self.private / "nodes").mkdir()
        make_certificates(self.private, ["localhost", "127.0.0.1"])
        for name, file in self.nodes.items():
            make_node_key(self.private / "nodes" / name)
            (self.private / "nodes" / f"{name}.toml").write_text(tomli_w.dumps({"node": str(file)}), encoding="utf-8")
        self.port = free_port()
        link = {"address": f"127.0.0.1:{self.port}", "root-certificates": str(self.private / "ca.crt")}
        config = tomli_w.dumps({"superlink": {NAME: link}})
        (self.private / "config.toml").write_text(config, encoding="utf-8")
        write_app(self.private / "app")

    def _register(self) -> None:
        self._flwr([["supernode", "register", f"nodes/{name}.pub", NAME, "--name", name] for name in self.nodes])

    def _start(self, name: str) -> None:
        warm = [sys.executable, "-m", "fedmls.federation.deploy.flower_warm"]
        if name == SERVER:
            command = [*warm, "--in", WARM, "flower-superlink", "--port", str(self.port), "--enable-supernode-auth"]
            command += ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.crt", "--ssl-keyfile", "server.key"]
            command += ["--database", "superlink.db", "--disable-runtime-dependency-installation"]
        else:
            command = [*warm, "--look", f"{self.look:g}", "flower-supernode", "--superlink", f"127.0.0.1:{self.port}"]
            command += ["--port", str(free_port())]
            command += ["--root-certificates", "ca.crt", "--auth-supernode-private-key", f"nodes/{name}"]
            command += ["--node-config", f"nodes/{name}.toml"]
        log = self.processes.log(name)
        self.begin[name] = log.stat().st_size if log.exists() else 0
        self.processes.start(name, [*command, "--host", "127.0.0.1"], self._environment(name), self.private)

    def _online(self, name: str) -> bool:
        if name != SERVER:
            return b"SuperNode ID" in self.processes.log(name).read_bytes()[self.begin[name] :]
        trust = ssl.create_default_context(cafile=self.private / "ca.crt")
        with ExitStack() as stack, suppress(OSError):
            plain = stack.enter_context(socket.create_connection(("127.0.0.1", self.port), timeout=5))
            stack.enter_context(trust.wrap_socket(plain, server_hostname="127.0.0.1"))
            return True
        return False

    def _environment(self, name: str) -> dict[str, str]:
        own = {"FLWR_HOME": str(self.private), "NO_PROXY": "127.0.0.1"}
        return {**os.environ, **ENVIRONMENT, **own, **({} if name == SERVER else {POLL: f"{0.4 * self.look:g}"})}

    def _flwr(self, commands: Iterable[list[str]]) -> list[dict[str, Any]]:
        """Return what Flower's command answers to each of these arguments; they run at the same time."""
        files = []
        for arguments in commands:
            files.append(f"answer-{next(self.numbers)}")
            line = "\t".join([files[-1], "flwr", *arguments, "--format", "json"])
            try:
                pipe = os.open(self.private / WARM / "pipe", os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                raise Lost(LOST) from None
            with os.fdopen(pipe, "wb") as stream:
                stream.write(f"{line}\n".encode())
        return [self._answer(self.private / file) for file in files]

    def _answer(self, file: Path) -> dict[str, Any]:
        deadline = time.monotonic() + ANSWER_SECONDS
        while not file.exists():
            if not self.processes.is_running(SERVER):
                raise Lost(LOST)
            if time.monotonic() > deadline:
                raise TimeoutError(f"Flower does not answer within {ANSWER_SECONDS:g} s; see {self.processes.logs}")
            time.sleep(0.05)
        printed = file.read_text()
        file.unlink()
        with self.processes.log("flwr").open("a") as log:
            log.write(printed)
        with suppress(json.JSONDecodeError):
            answer = json.loads(printed[printed.find("{") : printed.rfind("}") + 1])
            if answer.get("success"):
                return dict(answer)
            printed = answer.get("error-message", printed)
        raise RuntimeError(f"Flower refuses: {printed.strip()}")


def write_app(folder: Path) -> None:
    """Write the app that ``flwr run`` takes: it names the two apps of :mod:`fedmls.federation.transports.flower`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in APP.items():
        (folder / name).write_text(text)


def main() -> None:
    """Run ``python -m fedmls.federation.flower``, for a federation between machines."""
    parser = argparse.ArgumentParser(prog="python -m fedmls.federation.flower", description=write_app.__doc__)
    parser.add_argument("folder", type=Path, help="where to write it")
    write_app(parser.parse_args().folder)


if __name__ == "__main__":
    main()
