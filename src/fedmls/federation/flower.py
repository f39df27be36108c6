"""Flower carries the federation: its two apps, the transport over its grid, and a deployment on this machine.

One exchange is one Flower message to each node and its reply. Flower starts a process anew for every message, so this
module imports little, and a node keeps its state on disk (:mod:`fedmls.federation.node`).

A node is known by the name its key was registered with (``flwr supernode register KEY --name NAME``): the name is
proved by the key, and asking for it costs no exchange.
"""

import ipaddress
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp

from fedmls.federation import processes
from fedmls.federation.data import NodeConfig
from fedmls.federation.processes import MARK, Processes, exit_on_signals, free_port

if TYPE_CHECKING:
    from flwr.proto.node_pb2 import NodeInfo

POLL_SECONDS = 0.5  # between two looks for replies; who finds one half sent waits a second for the rest
JSON = ("--format", "json")
NAME = "fedmls"  # of the app, and of the connection to the SuperLink
OURS = SERVER, COMMAND, GUARD = "server", "flwr", "guard"  # processes of a deployment, besides those of the nodes
NODE_NAME = re.compile(r"[A-Za-z0-9_-]+")
START_SECONDS = 150  # for a process to come online; a killed node is refused for up to 60

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # seconds until a message finds its process; 1 unless told
}

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
from fedmls.federation.flower import client_app, server_app

server = server_app()
client = client_app()
""",
}

# Ends a deployment whose owner was killed: the pipe closes with the owner. Without fedmls, which takes long to import.
GUARD_PROGRAM = """\
import contextlib, os, runpy, shutil, signal, sys
module, mark, private = sys.argv[1:]
sys.stdin.read()
while found := runpy.run_path(module)["marked"](mark):
    for process in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
shutil.rmtree(private, ignore_errors=True)
"""

# The node is there and has refused: sending the message again would end in the same.
FINAL = {ErrorCode.CLIENT_APP_RAISED_EXCEPTION, ErrorCode.LOAD_CLIENT_APP_EXCEPTION, ErrorCode.INVALID_FAB}


def client_app() -> ClientApp:
    """The app of a node: hands each message to the :class:`~fedmls.federation.node.Node` of its configuration file."""

    def answer(message: Message, context: Context) -> Message:
        asked: Any = message.content["fedmls"]
        return Message(_pack(message=_answer(context, asked["node"], asked["message"])), reply_to=message)

    app = ClientApp()
    app.train()(answer)
    return app


def _answer(context: Context, name: str, message: bytes) -> bytes:
    from fedmls.federation import messages
    from fedmls.federation.node import Node

    file = context.node_config.get("node")
    try:
        if not isinstance(file, str):
            raise ValueError("its SuperNode has no node file; start it with --node-config \"node='/path/node.toml'\"")
        node = Node(Path(file))
        if node.name != name:
            raise ValueError(f"its node file is of {node.name!r}, but its key is registered as {name!r}")
    except ValueError as error:
        return messages.encode(messages.Message("refused", "unknown", 0, 0, {"why": str(error)}))
    return node.answer(message)


def server_app() -> ServerApp:
    """The app of the server: drives the job in the folder that the run's configuration names."""

    def main(grid: Grid, context: Context) -> None:
        from fedmls.federation.driver import drive

        folder = context.run_config.get("job")
        if not isinstance(folder, str) or not folder:
            raise ValueError("the run names no job; add --run-config \"job='/path/of/the/job/folder'\"")
        drive(Path(folder), FlowerTransport(grid))

    app = ServerApp()
    app.main()(main)
    return app


def _pack(**fields: Any) -> RecordDict:
    return RecordDict({"fedmls": ConfigRecord(fields)})


def _unpack(reply: Message) -> bytes:
    """What a node answered; nothing, which no message is, if it sent something else."""
    try:
        answer = reply.content["fedmls"]["message"]
    except KeyError:
        return b""
    return answer if isinstance(answer, bytes) else b""


class FlowerTransport:
    """A :class:`~fedmls.federation.Transport` over Flower's grid."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    @property
    def nodes(self) -> Sequence[str]:
        """The names of the nodes that are online."""
        return sorted(self._online())

    def exchange(self, messages: Mapping[str, bytes], timeout: float) -> tuple[dict[str, bytes], dict[str, str]]:
        """Send each node its message, and again where it got lost; the replies, and why others did not reply.

        A message is lost with the process that works on it: Flower tells so after a minute, or the node has gone
        online again since.
        """
        deadline = time.monotonic() + timeout
        replies: dict[str, bytes] = {}
        failures = dict.fromkeys(messages, "it is not online")
        waiting, sessions = set(messages), dict[str, str]()  # since when a node was online when it was sent its message
        sent: dict[str, str] = {}  # the node of each message, by the message's id
        while True:
            online = self._online()
            due = [name for name in waiting & online.keys() if sessions.get(name) != online[name].last_activated_at]
            sent |= self._send({name: messages[name] for name in due}, online, max(deadline - time.monotonic(), 1.0))
            sessions |= {name: online[name].last_activated_at for name in due}
            failures |= dict.fromkeys(due, f"no reply within {timeout:g} s")
            for reply in self.grid.pull_messages(list(sent)) if sent else ():
                name = sent.pop(reply.metadata.reply_to_message_id)
                if not reply.has_error():
                    replies[name] = _unpack(reply)
                    waiting.discard(name)
                    continue
                failures[name] = str(reply.error.reason)
                if reply.error.code in FINAL:
                    waiting.discard(name)
                else:  # send it again once the node is back
                    sessions.pop(name, None)
            if not waiting or time.monotonic() > deadline:
                return replies, {name: why for name, why in failures.items() if name not in replies}
            time.sleep(POLL_SECONDS)

    def _online(self) -> "dict[str, NodeInfo]":
        nodes = [node for node in self.grid.get_nodes() if node.name]
        online = {node.name: node for node in nodes}
        if len(online) < len(nodes):
            names = sorted(node.name for node in nodes)
            raise ValueError(f"two nodes that are online have one name, of {names}; unregister one of their keys")
        return online

    def _send(self, messages: Mapping[str, bytes], online: "Mapping[str, NodeInfo]", ttl: float) -> dict[str, str]:
        """The nodes by the ids of the messages to them."""
        if not messages:
            return {}
        packed = [
            Message(_pack(node=name, message=data), online[name].node_id, MessageType.TRAIN, ttl=ttl)
            for name, data in messages.items()
        ]
        return dict(zip(self.grid.push_messages(packed), messages, strict=True))


class Deployment:
    """A SuperLink, and a SuperNode for each node, as processes of this machine that listen on loopback only::

        with Deployment(folder, {"site-1": Path("site-1/node.toml"), ...}) as deployment:
            deployment.run(job_folder)

    Entering makes a CA, the server's certificate and a key for each node, registers the keys, and waits until all
    nodes are online. Leaving ends every process and removes the keys; the folder keeps the logs. Linux.
    """

    def __init__(self, folder: Path, nodes: Mapping[str, Path]) -> None:
        self.nodes = {name: Path(file).resolve() for name, file in nodes.items()}
        for name, file in self.nodes.items():
            if name in OURS or not NODE_NAME.fullmatch(name):
                raise ValueError(
                    f"{name!r} is no name for a node; take letters, digits, - and _; not {', '.join(OURS)}"
                )
            if (own := NodeConfig.read(file).name) != name:
                raise ValueError(f"{file} is of node {own!r}, not of {name!r}; make the names the same")
        self.folder = Path(folder).resolve()
        self.private = self.folder / "flower"
        self.begin: dict[str, int] = {}  # where a node's log begins, since its last start

    def __enter__(self) -> Self:
        self.processes, self._restore = Processes(self.folder), exit_on_signals()
        try:
            self._prepare()
            guard = [sys.executable, "-c", GUARD_PROGRAM, str(processes.__file__), f"{self.folder}|", str(self.private)]
            self.processes.start(GUARD, guard, self._environment(), self.folder, pipes=True)
            self.start(SERVER)
            self._register()
            for name in self.nodes:
                self._launch(name)
            for name in self.nodes:
                self.start(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process; remove the keys and Flower's files."""
        self.processes.close()
        shutil.rmtree(self.private, ignore_errors=True)
        self._restore()

    def run(self, job_folder: Path) -> None:
        """Submit the job and follow it to its end; RuntimeError if it failed."""
        config = self.private / "run.toml"
        config.write_text(f"job = {json.dumps(str(Path(job_folder).resolve()))}\n")
        number = self._answer(self._flwr("run", "app", NAME, "--run-config", str(config), *JSON))["run-id"]
        while True:
            self._printed(self._flwr("log", number, NAME, "--stream"))  # until the run has ended
            [found] = self._answer(self._flwr("list", NAME, "--run-id", number, *JSON))["runs"]
            if found["status"] == "finished:completed":
                return
            if found["status"].startswith("finished"):
                raise RuntimeError(f"{found['status']}, {found['status-details']}; logs are in {self.processes.logs}")
            time.sleep(1)

    def kill(self, name: str) -> None:
        """End a node, or the "server", as a power failure would."""
        self.processes.end(name)
        self.processes.started[name].wait()  # what has just lost its environment may not have ended yet

    def start(self, name: str) -> None:
        """Start a node, or the "server", and wait until it is online.

        After a SIGKILL the SuperLink takes the node for alive for up to a minute and refuses to see it twice, so it is
        started again and again.
        """
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if not self.processes.is_running(name):
                self._launch(name)
            while self.processes.is_running(name) and time.monotonic() < deadline:
                if self._ready(name):
                    return
                time.sleep(0.1)
            time.sleep(1)
        raise RuntimeError(f"{name} is not online after {START_SECONDS} s; see its log, {self.processes.log(name)}")

    def _prepare(self) -> None:
        shutil.rmtree(self.private, ignore_errors=True)
        self.private.mkdir(mode=0o700)
        (self.private / "nodes").mkdir()
        certificates(self.private, ["localhost", "127.0.0.1"])
        for name, file in self.nodes.items():
            node_key(self.private / "nodes" / name)
            (self.private / "nodes" / f"{name}.toml").write_text(f"node = {json.dumps(str(file))}\n")
        self.ports = {name: free_port() for name in (SERVER, *self.nodes)}
        (self.private / "config.toml").write_text(
            f'[superlink.{NAME}]\naddress = "127.0.0.1:{self.ports[SERVER]}"\n'
            f"root-certificates = {json.dumps(str(self.private / 'ca.crt'))}\n"
        )
        write_app(self.private / "app")

    def _register(self) -> None:
        """All keys at once: most of the time goes into the start of Flower's command."""
        calls = [
            self._flwr("supernode", "register", f"nodes/{name}.pub", NAME, "--name", name, *JSON) for name in self.nodes
        ]
        for call in calls:
            self._answer(call)

    def _launch(self, name: str) -> None:
        listen = ["--host", "127.0.0.1", "--port", str(self.ports[name])]
        if name == SERVER:
            command = ["flower-superlink", *listen, "--database", "superlink.db", "--enable-supernode-auth"]
            command += ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.crt", "--ssl-keyfile", "server.key"]
            command += ["--disable-runtime-dependency-installation"]
        else:
            command = [sys.executable, "-m", "fedmls.federation.flower_node", *listen]
            command += ["--superlink", f"127.0.0.1:{self.ports[SERVER]}", "--root-certificates", "ca.crt"]
            command += ["--auth-supernode-private-key", f"nodes/{name}", "--node-config", f"nodes/{name}.toml"]
        log = self.processes.log(name)
        self.begin[name] = log.stat().st_size if log.exists() else 0
        self.processes.start(name, command, self._environment(), self.private)

    def _ready(self, name: str) -> bool:
        if name != SERVER:
            return b"SuperNode ID" in self.processes.log(name).read_bytes()[self.begin[name] :]
        trust = ssl.create_default_context(cafile=self.private / "ca.crt")
        with ExitStack() as stack, suppress(OSError):
            plain = stack.enter_context(socket.create_connection(("127.0.0.1", self.ports[SERVER]), timeout=5))
            stack.enter_context(trust.wrap_socket(plain, server_hostname="127.0.0.1"))
            return True
        return False

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        own = {"PATH": path, "FLWR_HOME": str(self.private), "NO_PROXY": "127.0.0.1"}
        return {**os.environ, **ENVIRONMENT, **own}

    def _flwr(self, *arguments: str) -> subprocess.Popen[str]:
        """Flower's command."""
        return subprocess.Popen(
            ["flwr", *arguments],
            cwd=self.private,
            env={**self._environment(), MARK: f"{self.folder}|{COMMAND}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def _printed(self, command: subprocess.Popen[str]) -> str:
        printed, _ = command.communicate()
        with self.processes.log(COMMAND).open("a") as log:
            log.write(printed)
        return printed

    def _answer(self, command: subprocess.Popen[str]) -> dict[str, Any]:
        """What Flower's command answers; RuntimeError if it fails."""
        printed = self._printed(command)
        with suppress(json.JSONDecodeError):
            answer = json.loads(printed[printed.find("{") : printed.rfind("}") + 1])
            if answer.get("success"):
                return dict(answer)
        raise RuntimeError(f"{command.args!r} failed; it says: {printed.strip()}")


def write_app(folder: Path) -> None:
    """The app that ``flwr run`` takes: it names the two apps of this module."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in APP.items():
        (folder / name).write_text(text)


def certificates(folder: Path, hosts: Sequence[str], days: int = 365) -> None:
    """A CA (ca.crt, ca.key; those that are there are kept) and the server's server.crt and server.key for the hosts."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "ca.key").exists():
        _certificate(folder / "ca", "fedmls CA", 10 * days, x509.BasicConstraints(ca=True, path_length=0))
    ca = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    ca_key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    names = x509.SubjectAlternativeName([_host(host) for host in hosts])
    _certificate(folder / "server", "fedmls server", days, names, (ca, ca_key))


def _host(name: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _certificate(file: Path, name: str, days: int, kind: Any, issuer: tuple[Any, Any] | None = None) -> None:
    """Write file.crt and file.key; of its own making without an issuer."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    ca, ca_key = issuer or (None, key)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(ca.subject if ca else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(kind, critical=ca is None)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .add_extension(_usage(authority=ca is None), critical=True)
    )
    signed = builder.sign(ca_key, hashes.SHA384())
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    file.with_suffix(".crt").write_bytes(signed.public_bytes(pem))
    _secret(file.with_suffix(".key"), key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))


def _usage(authority: bool) -> Any:
    from cryptography import x509

    others = (
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "encipher_only",
        "decipher_only",
    )
    signs = {"digital_signature": not authority, "key_cert_sign": authority, "crl_sign": authority}
    return x509.KeyUsage(**signs, **dict.fromkeys(others, False))


def node_key(file: Path) -> None:
    """The key of a node, as ssh-keygen -t ecdsa -b 384 makes it: the file, and its public part in file.pub."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = ec.generate_private_key(ec.SECP384R1())
    _secret(file, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    file.with_name(f"{file.name}.pub").write_bytes(public + b"\n")


def _secret(file: Path, data: bytes) -> None:
    file.unlink(missing_ok=True)
    with open(file, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
        out.write(data)
