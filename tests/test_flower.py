"""Flower: the real client app and real messages within one process; and, marked ``deployed``, a real federation."""

import json
import os
import signal
import ssl
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmls
from fedmls.federation import Job, Stopped, drive
from tests.federations import parts
from tests.problems import svm

pytest.importorskip("flwr", reason="Flower is not installed; it comes with fedmls[flower]")

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from fedmls.federation import flower
from fedmls.federation.flower import Deployment, FlowerTransport, certificates, client_app, node_key, write_app
from fedmls.federation.processes import free_port, marked

SETTINGS = {"rounds": 4, "batch": 0.3, "seed": 9}
ALGORITHMS = {
    "fedmls": fedmls.FedMLS(paired=True),
    "fedmlse": fedmls.FedMLSE(),
    "scaffold": fedmls.Scaffold(eta0=0.01),
}


def node_files(folder, problem):
    """Node files by name, for each client of the problem."""
    files = {}
    for config in parts(problem, folder):
        files[config.name] = folder / f"{config.name}.toml"
        files[config.name].write_text(
            f"name = {json.dumps(config.name)}\ndata = {json.dumps(str(config.data))}\n"
            f"state = {json.dumps(str(config.state))}\n"
        )
    return files


def write_job(folder, name, **settings):
    Job(algorithm=ALGORITHMS[name], **{**SETTINGS, **settings}).write(folder)
    return folder


def check_model(folder, name, problem, **settings):
    run = fedmls.simulate(ALGORITHMS[name], problem, optimum=None, **{**SETTINGS, **settings})
    np.testing.assert_allclose(np.load(folder / "model.npz")["x"], run.x, rtol=0, atol=1e-12)


class MemoryGrid(Grid):
    """Flower's grid in one process, with the real client app. ``lose`` makes a message vanish or fail."""

    def __init__(self, files, app=None):
        self.app = app or client_app()
        self.contexts = {
            name: Context(1, number, {"node": str(file)} if file else {}, RecordDict(), {})
            for number, (name, file) in enumerate(files.items(), start=1)
        }
        self.activated = dict.fromkeys(files, "first")
        self.offline = set()
        self.sent, self.replies = [], {}
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 0  # of a process that Flower starts

    def lose(self, name, message):
        """None, an error, or True: nothing ever comes back."""

    def get_nodes(self):
        return [
            NodeInfo(node_id=context.node_id, name=name, last_activated_at=self.activated[name])
            for name, context in self.contexts.items()
            if name not in self.offline
        ]

    def get_node_ids(self):
        return [node.node_id for node in self.get_nodes()]

    def push_messages(self, messages):
        return [self._deliver(message) for message in messages]

    def _deliver(self, message):
        [(name, context)] = [item for item in self.contexts.items() if item[1].node_id == message.metadata.dst_node_id]
        message = travelled(message)
        self.sent.append(name)
        lost = self.lose(name, message)
        if isinstance(lost, Error):
            self.replies[message.metadata.message_id] = Message(lost, reply_to=message)
        elif not lost:
            self.replies[message.metadata.message_id] = travelled(self.app(message, context))
        return message.metadata.message_id

    def pull_messages(self, message_ids):
        return [self.replies.pop(number) for number in message_ids if number in self.replies]

    def create_message(self, *_):
        raise NotImplementedError

    send_and_receive = set_run = run = create_message


def travelled(message):
    """The message after Flower has taken it apart, as it does for the network, and put it together again."""
    number = message.object_id
    contents = {key: part.deflate() for key, part in get_all_nested_objects(message).items()}
    arrived = inflate_object_from_contents(number, contents)
    arrived.metadata.__dict__["_message_id"] = number
    return arrived


def echo():
    from flwr.clientapp import ClientApp

    def answer(message, _):
        data = message.content["fedmls"]["message"]
        return Message(RecordDict({"fedmls": ConfigRecord({"message": data[::-1]})}), reply_to=message)

    app = ClientApp()
    app.train()(answer)
    return app


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(flower, "POLL_SECONDS", 0.001)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_run_over_flowers_messages_is_the_simulation(name, tmp_path):
    problem = svm(n=3, m=40)
    transport = FlowerTransport(MemoryGrid(node_files(tmp_path / "parts", problem)))
    assert transport.nodes == ["site-1", "site-2", "site-3"]
    result = drive(write_job(tmp_path / "job", name), transport)
    assert abs(result.x).max() > 0
    check_model(tmp_path / "job", name, problem)


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.binary(max_size=300)))
def test_bytes_come_back_to_their_own_node(messages):
    transport = FlowerTransport(MemoryGrid(dict.fromkeys("abc"), echo()))
    replies, failures = transport.exchange(messages, timeout=1)
    assert replies == {name: data[::-1] for name, data in messages.items()}
    assert failures == {}


def test_a_lost_message_is_sent_again(quick):
    losses = [
        Error(ErrorCode.NODE_UNAVAILABLE, "gone"),
        Error(ErrorCode.CLIENT_APP_CRASHED, "killed"),
        Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, "expired"),
    ]

    class Losing(MemoryGrid):
        def lose(self, name, message):
            return losses.pop() if name == "b" and losses else None

    grid = Losing(dict.fromkeys("ab"), echo())
    replies, failures = FlowerTransport(grid).exchange({"a": b"12", "b": b"34"}, timeout=60)
    assert replies == {"a": b"21", "b": b"43"}
    assert failures == {}
    assert sorted(grid.sent) == ["a", "b", "b", "b", "b"]


def test_a_node_that_was_started_again_is_sent_its_message_again(quick):
    """Flower says nothing of a message that a killed node had taken, once the node is back."""

    class Restarting(MemoryGrid):
        def lose(self, name, message):
            if self.activated[name] == "first":
                self.looks = 0
                return True
            return None

        def get_nodes(self):
            if hasattr(self, "looks"):
                self.looks += 1
                self.offline = {"a"} if 2 < self.looks < 4 else set()
                self.activated["a"] = "first" if self.looks < 5 else "second"
            return super().get_nodes()

    grid = Restarting({"a": None}, echo())
    assert FlowerTransport(grid).exchange({"a": b"12"}, timeout=60) == ({"a": b"21"}, {})
    assert grid.sent == ["a", "a"]


def test_what_a_client_raises_is_told_and_not_sent_again(quick):
    class Raising(MemoryGrid):
        def lose(self, name, message):
            return Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "no disk") if name == "a" else None

    grid = Raising(dict.fromkeys("ab"), echo())
    replies, failures = FlowerTransport(grid).exchange({"a": b"12", "b": b"34"}, timeout=60)
    assert replies == {"b": b"43"}
    assert failures == {"a": "no disk"}
    assert sorted(grid.sent) == ["a", "b"]


def test_who_does_not_answer_in_time_is_named(quick):
    class Silent(MemoryGrid):
        def lose(self, name, message):
            return name == "b"

    grid = Silent(dict.fromkeys("abc"), echo())
    grid.offline = {"c"}
    replies, failures = FlowerTransport(grid).exchange(dict.fromkeys("abcd", b"12"), timeout=0.05)
    assert replies == {"a": b"21"}
    assert failures == {"b": "no reply within 0.05 s", "c": "it is not online", "d": "it is not online"}


def test_two_nodes_of_one_name_are_refused():
    class Twice(MemoryGrid):
        def get_nodes(self):
            return [NodeInfo(node_id=1, name="a"), NodeInfo(node_id=2, name="a")]

    with pytest.raises(ValueError, match="unregister one"):
        FlowerTransport(Twice({})).exchange({"a": b""}, timeout=1)


def test_an_answer_that_is_none_of_ours_stops_the_run(tmp_path):
    from flwr.clientapp import ClientApp

    app = ClientApp()
    app.train()(lambda message, _: Message(RecordDict(), reply_to=message))
    grid = MemoryGrid(node_files(tmp_path / "parts", svm(n=2, m=20)), app)
    with pytest.raises(Stopped, match="rejected"):
        drive(write_job(tmp_path / "job", "fedmls"), FlowerTransport(grid))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda files: files | {"site-1": None}, "has no node file"),
        (
            lambda files: files | {"site-1": files["site-2"]},
            "its node file is of 'site-2', but its key is registered as",
        ),
        (lambda files: files | {"site-1": Path("nowhere.toml")}, "nowhere.toml: there is no such file"),
    ],
    ids=["none", "another's", "missing"],
)
def test_a_wrong_node_file_stops_the_run_and_says_so(wrong, why, tmp_path):
    grid = MemoryGrid(wrong(node_files(tmp_path / "parts", svm(n=2, m=20))))
    with pytest.raises(Stopped, match=f"node site-1 refuses: .*{why}"):
        drive(write_job(tmp_path / "job", "fedmls"), FlowerTransport(grid))


def test_the_app_folder_is_the_one_that_a_deployment_writes(tmp_path):
    write_app(tmp_path)
    ready = Path(__file__).parent.parent / "apps" / "flower"
    assert {file.name: file.read_text() for file in ready.iterdir() if file.is_file()} == {
        file.name: file.read_text() for file in tmp_path.iterdir()
    }


def handshake(folder, trusted, name):
    """TLS without a network: the client believes ``trusted`` and expects ``name``."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=trusted / "ca.crt")
    server.load_cert_chain(folder / "server.crt", folder / "server.key")
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    a, b = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [server.wrap_bio(a, b, server_side=True), client.wrap_bio(b, a, server_hostname=name)]
    for _ in range(6):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    assert ends[1].version() == "TLSv1.3"


def test_certificates_prove_the_server_to_who_knows_the_ca(tmp_path):
    ours, foreign = tmp_path / "ours", tmp_path / "foreign"
    certificates(ours, ["fed.example.org", "127.0.0.1"])
    certificates(foreign, ["fed.example.org", "127.0.0.1"])
    handshake(ours, ours, "fed.example.org")
    handshake(ours, ours, "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(ours, ours, "other.example.org")
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        handshake(ours, foreign, "fed.example.org")
    before = (ours / "server.crt").read_bytes()
    certificates(ours, ["new.example.org"])  # a new certificate of the same CA
    assert (ours / "server.crt").read_bytes() != before
    handshake(ours, ours, "new.example.org")


def test_secrets_are_for_the_owner_alone(tmp_path):
    certificates(tmp_path, ["localhost"])
    node_key(tmp_path / "node")
    for secret in ("ca.key", "server.key", "node"):
        assert stat.S_IMODE((tmp_path / secret).stat().st_mode) == 0o600


def test_flower_takes_a_node_key(tmp_path):
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    node_key(tmp_path / "node")
    public = try_load_public_key(tmp_path / "node.pub")
    assert public == public_key_to_bytes(load_ssh_private_key((tmp_path / "node").read_bytes(), None).public_key())


def test_a_warm_node_runs_flowers_client_and_ends_with_the_supernode(tmp_path):
    """In the SuperNode's place: a script that starts two clients and waits until they have said what is expected."""
    script, out = tmp_path / "flower-supernode", tmp_path / "out"
    script.write_text(
        f"""#!/bin/sh
        echo "got $1"; flwr-clientapp --help; flwr-clientapp --token secret 'two words'
        until grep -q 'Run a Flower ClientApp' {out} && grep -q 'unrecognized arguments: two words' {out}
        do sleep 0.1; done
        exit 7"""
    )
    script.chmod(0o700)
    with out.open("wb") as log:
        done = subprocess.run(
            [sys.executable, "-m", "fedmls.federation.flower_node", "an-argument"],
            env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "FLWR_HOME": str(tmp_path)},
            stdout=log,
            stderr=log,
            timeout=300,
            check=False,
        )
    assert done.returncode == 7, out.read_text()
    assert "got an-argument" in out.read_text()
    assert sorted(tmp_path.iterdir()) == [script, out]


def test_a_deployment_says_what_is_wrong_with_its_nodes(tmp_path):
    files = node_files(tmp_path, svm(n=2, m=20))
    with pytest.raises(ValueError, match=r"nowhere.toml: there is no such file"):
        Deployment(tmp_path, {"a": tmp_path / "nowhere.toml"})
    with pytest.raises(ValueError, match="is of node 'site-1', not of 'site-2'"):
        Deployment(tmp_path, {"site-2": files["site-1"]})
    for name in ("server", "guard", "a b", "", "../a"):
        with pytest.raises(ValueError, match="is no name for a node"):
            Deployment(tmp_path, {name: files["site-1"]})


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    folder, problem = tmp_path_factory.mktemp("flower"), svm(n=3, m=40)
    with Deployment(folder / "deployment", node_files(folder / "parts", problem)) as deployment:
        yield deployment, problem


def events(folder):
    file = folder / "events.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


class Background(threading.Thread):
    """A run of a job in a thread; ``error`` is what it raised."""

    def __init__(self, deployment, folder):
        super().__init__()
        self.deployment, self.folder, self.error = deployment, folder, None
        self.start()

    def run(self):
        try:
            self.deployment.run(self.folder)
        except RuntimeError as error:
            self.error = error

    def wait(self):
        self.join(timeout=300)
        assert not self.is_alive()

    def wait_for_a_round(self):
        while not any(event.get("kind") == "round" for event in events(self.folder)):
            assert self.is_alive(), self.error
            time.sleep(0.1)


@pytest.mark.deployed
def test_a_deployed_run_is_the_simulation(deployed, tmp_path):
    deployment, problem = deployed
    job = write_job(tmp_path / "job", "scaffold", rounds=2)
    deployment.run(job)
    check_model(job, "scaffold", problem, rounds=2)


@pytest.mark.deployed
def test_a_run_goes_on_when_a_killed_node_is_back(deployed, tmp_path):
    deployment, problem = deployed
    run = Background(deployment, write_job(tmp_path / "job", "fedmls", rounds=4))
    run.wait_for_a_round()
    deployment.kill("site-2")
    before = len(events(run.folder))
    deployment.start("site-2")
    run.wait()
    assert run.error is None
    assert len(events(run.folder)) > before
    check_model(run.folder, "fedmls", problem, rounds=4)


@pytest.mark.deployed
def test_a_run_goes_on_from_its_last_exchange_when_the_server_is_back(deployed, tmp_path):
    deployment, problem = deployed
    run = Background(deployment, write_job(tmp_path / "job", "fedmlse", rounds=3))
    run.wait_for_a_round()
    deployment.kill("server")
    run.wait()
    assert run.error is not None
    before = events(run.folder)
    assert "finished" not in [event.get("event") for event in before]
    deployment.start("server")
    deployment.run(run.folder)
    after = events(run.folder)
    assert after[: len(before)] == before
    assert [event["kind"] for event in after if "kind" in event] == ["survey", "begin", *3 * ["round"], "close"]
    check_model(run.folder, "fedmlse", problem, rounds=3)


@pytest.mark.deployed
def test_a_run_that_fails_says_why(deployed, tmp_path):
    deployment, _ = deployed
    with pytest.raises(RuntimeError, match=r"job\.toml"):
        deployment.run(tmp_path)


@pytest.mark.deployed
def test_strangers_are_refused(deployed):
    """One with a key that nobody registered, one without a key, one that trusts another CA, one without TLS."""
    deployment, _ = deployed
    node_key(deployment.private / "key")
    certificates(deployment.private / "foreign", ["127.0.0.1"])
    own = ["--auth-supernode-private-key", "key"]
    strangers = {
        "unregistered": (["--root-certificates", "ca.crt", *own], "Failed to initialize the connection"),
        "keyless": (["--root-certificates", "ca.crt"], "Failed to initialize the connection"),
        "foreign": (["--root-certificates", "foreign/ca.crt", *own], "CERTIFICATE_VERIFY_FAILED"),
        "plain": (["--insecure"], "Failed to initialize the connection"),
    }
    command = ["flower-supernode", "--superlink", f"127.0.0.1:{deployment.ports['server']}", "--max-retries", "1"]
    for name, (options, _) in strangers.items():
        whole = [*command, "--port", str(free_port()), *options]
        deployment.processes.start(name, whole, deployment._environment(), deployment.private)
    for name, (_, words) in strangers.items():
        assert deployment.processes.started[name].wait(timeout=120) != 0
        said = deployment.processes.log(name).read_text()
        assert words in said
        assert "SuperNode ID" not in said


def listeners(process):
    """The addresses on which a process listens, as the kernel writes them."""
    links = [os.readlink(link) for link in Path(f"/proc/{process}/fd").iterdir()]
    sockets = {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
    rows = [
        row.split() for kind in ("tcp", "tcp6") for row in Path(f"/proc/{process}/net/{kind}").read_text().splitlines()
    ]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in sockets}


@pytest.mark.deployed
def test_processes_listen_on_loopback_and_call_nobody(deployed):
    deployment, _ = deployed
    processes = marked(f"{deployment.folder}|")
    assert len(processes) >= 2 * 4  # a SuperLink and three SuperNodes, each with its SuperExec
    assert set.union(*map(listeners, processes)) == {"0100007F"}
    for process in processes:
        environment = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        assert {b"FLWR_TELEMETRY_ENABLED=0", b"FLWR_DISABLE_UPDATE_CHECK=1"} <= set(environment)


@pytest.mark.deployed
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_a_deployment_that_is_broken_off_leaves_nothing_behind(kind, tmp_path):
    """As soon as the SuperLink is there, while others are being started."""
    files = node_files(tmp_path / "parts", svm(n=2, m=20))
    program = (
        "import sys; from fedmls.federation.flower import Deployment\n"
        "with Deployment(sys.argv[1], {'site-1': sys.argv[2], 'site-2': sys.argv[3]}): print('it was not stopped')"
    )
    arguments = [str(tmp_path / "deployment"), *map(str, files.values())]
    process = subprocess.Popen([sys.executable, "-c", program, *arguments])
    log = tmp_path / "deployment" / "logs" / "server.log"
    while not (log.exists() and "SuperLinkLifespan: start" in log.read_text()):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(kind)
    assert process.wait(timeout=120) != 0
    deadline = time.monotonic() + (0 if kind == signal.SIGINT else 60)
    while marked(f"{tmp_path / 'deployment'}|") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert marked(f"{tmp_path / 'deployment'}|") == []
    assert not (tmp_path / "deployment" / "flower").exists()
