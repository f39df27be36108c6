"""Flower: the real client app and real messages within one process; and, marked ``deployed``, a real federation."""

import itertools
import json
import os
import re
import signal
import ssl
import stat
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmls
from fedmls.federation import Job, Stopped, drive, messages
from tests.support.federations import parts, wait_until
from tests.support.problems import svm

pytest.importorskip("flwr", reason="Flower is not installed; it comes with fedmls[flower]")

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from fedmls.federation.deploy import flower_warm
from fedmls.federation.deploy.certificates import make_certificates, make_node_key
from fedmls.federation.deploy.flower import FlowerDeployment, write_app
from fedmls.federation.deploy.processes import free_port, marked
from fedmls.federation.transports import flower as flower_app
from fedmls.federation.transports.flower import FlowerTransport, client_app

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
    monkeypatch.setattr(flower_app, "POLL_SECONDS", 0.001)


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


def test_what_is_the_same_for_all_nodes_is_sent_once():
    """Flower sends every part of a message by a request of its own, and parts that are alike once."""
    parts = {}

    class Counting(MemoryGrid):
        def push_messages(self, messages):
            for message in messages:
                parts.update(get_all_nested_objects(message))
            return super().push_messages(messages)

    transport = FlowerTransport(Counting(dict.fromkeys("abc"), echo()))
    assert transport.exchange(dict.fromkeys("abc", b"12"), timeout=60) == (dict.fromkeys("abc", b"21"), {})
    assert len(parts) == 3 + 2  # each message, and what is in all of them: a RecordDict and a ConfigRecord


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


@pytest.mark.parametrize("slow", [False, True])
def test_a_reply_that_is_half_sent_is_asked_for_again_once_and_still_looked_for(quick, slow):
    """The process that sends it may have been killed, or is slow: whichever reply is whole first is taken."""

    class Half(MemoryGrid):
        looks = 0

        def lose(self, name, message):
            if name == "b" and self.sent.count("b") == 1:
                self.first = message
            return name == "b" and (slow or self.sent.count("b") == 1)

        def pull_messages(self, message_ids):
            found = super().pull_messages(message_ids)
            self.looks += 1
            if self.first.metadata.message_id in message_ids:
                whole = self.app(self.first, self.contexts["b"])
                half = Message(Error(ErrorCode.MESSAGE_UNAVAILABLE, "half"), reply_to=self.first)
                found.append(whole if slow and self.looks > 5 else half)
            return found

    grid = Half(dict.fromkeys("ab"), echo())
    assert FlowerTransport(grid).exchange({"a": b"12", "b": b"34"}, timeout=60) == ({"a": b"21", "b": b"43"}, {})
    assert sorted(grid.sent) == ["a", "b", "b"]


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


@contextmanager
def resident(file):
    """A resident process of the node; gives it and its socket, whose path must be short."""
    with TemporaryDirectory() as folder:
        socket = Path(folder) / "node"
        process = subprocess.Popen([sys.executable, "-m", "fedmls.federation.node.resident", str(file), str(socket)])
        try:
            wait_until(socket.exists)
            yield process, socket
        finally:
            process.kill()
            process.wait()


@pytest.mark.processes
def test_a_resident_process_answers_for_its_node(tmp_path):
    """It is its owner's alone, it refuses another name, and nothing is answered by the process that hands over."""
    problem = svm(n=2, m=40)
    files = node_files(tmp_path / "parts", problem)
    with resident(files["site-1"]) as (_, socket):
        assert stat.S_IMODE(socket.stat().st_mode) & 0o077 == 0
        grid = MemoryGrid({"site-1": None, "site-2": files["site-2"]})  # only the resident process knows the file
        grid.contexts["site-1"].node_config["resident"] = str(socket)
        drive(write_job(tmp_path / "job", "fedmls"), FlowerTransport(grid))
        check_model(tmp_path / "job", "fedmls", problem)
        told = messages.decode(flower_app.ask_resident(str(socket), "site-2", b""), 10**6, 10**6).body
        assert told.why == "its node file is of 'site-1', but its key is registered as 'site-2'"


@pytest.mark.processes
def test_where_the_resident_process_is_killed_the_next_message_is_answered_without_it(tmp_path):
    problem = svm(n=2, m=40)
    files = node_files(tmp_path / "parts", problem)
    with resident(files["site-1"]) as (process, socket):

        class Killing(MemoryGrid):
            def lose(self, name, message):
                if len(self.sent) == 7:
                    process.kill()
                    process.wait()

        grid = Killing(files)
        grid.contexts["site-1"].node_config["resident"] = str(socket)
        drive(write_job(tmp_path / "job", "fedmls"), FlowerTransport(grid))
    assert process.returncode == -signal.SIGKILL
    assert len(grid.sent) > 8
    check_model(tmp_path / "job", "fedmls", problem)


@pytest.mark.processes
def test_the_app_of_a_node_loads_little_before_it_answers():
    code = """
import sys
from fedmls.federation.flower_app import client_app
client_app()
print(*(name for name in ("numba", "pandas", "sklearn", "fedmls.algorithms", "msgpack") if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_app_folder_is_the_one_that_a_deployment_writes(tmp_path):
    write_app(tmp_path)
    ready = Path(__file__).parents[3] / "apps" / "flower"
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
    make_certificates(ours, ["fed.example.org", "127.0.0.1"])
    make_certificates(foreign, ["fed.example.org", "127.0.0.1"])
    handshake(ours, ours, "fed.example.org")
    handshake(ours, ours, "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(ours, ours, "other.example.org")
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        handshake(ours, foreign, "fed.example.org")
    before = (ours / "server.crt").read_bytes()
    make_certificates(ours, ["new.example.org"])  # a new certificate of the same CA
    assert (ours / "server.crt").read_bytes() != before
    handshake(ours, ours, "new.example.org")


def test_secrets_are_for_the_owner_alone(tmp_path):
    make_certificates(tmp_path, ["localhost"])
    make_node_key(tmp_path / "node")
    for secret in ("ca.key", "server.key", "node"):
        assert stat.S_IMODE((tmp_path / secret).stat().st_mode) == 0o600


def test_flower_takes_a_node_key(tmp_path):
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    make_node_key(tmp_path / "node")
    public = try_load_public_key(tmp_path / "node.pub")
    assert public == public_key_to_bytes(load_ssh_private_key((tmp_path / "node").read_bytes(), None).public_key())


# In the SuperNode's place: refused twice, then it starts a client, asks for an answer, and ends when both are there.
WARM = """
import subprocess, sys, time
from pathlib import Path
from tempfile import TemporaryDirectory
from fedmls.federation.deploy import flower_warm as warm

folder, out = Path(sys.argv[1]), Path(sys.argv[2])

def first():
    tries = folder / "tries"
    tries.write_text(tries.read_text() + "." if tries.exists() else ".")
    if len(tries.read_text()) < 3:
        sys.exit(warm.REFUSED)
    subprocess.run(["flwr-clientapp", "--token", "secret", "two words"], check=True)
    with (folder / "pipe").open("w") as pipe:
        pipe.write(f"{folder}/answer\\tsay\\tone\\ttwo words\\n")
    while not ((folder / "answer").exists() and "unrecognized arguments: two words" in out.read_text()):
        time.sleep(0.05)
    sys.exit(7)

warm.PAUSE, warm.warm_up = 0.01, lambda name: None
commands = {"first": first, "say": lambda: print(sys.argv), "flwr-clientapp": warm.load("flwr-clientapp")}
sys.exit(warm.Family(commands, ["first"], warm.prepare(folder, ("flwr-clientapp",))).serve())
"""


@pytest.mark.processes
def test_warm_commands_are_forks_of_one_process(tmp_path):
    folder, out = tmp_path / "fork s", tmp_path / "out"
    with out.open("wb") as log:
        command = [sys.executable, "-c", WARM, str(folder), str(out)]
        done = subprocess.run(command, stdout=log, stderr=log, timeout=300, check=False)
    assert done.returncode == 7, out.read_text()
    assert (folder / "answer").read_text() == "['say', 'one', 'two words']\n"
    assert (folder / "tries").read_text() == "..."


# In the SuperNode's place: it starts the process that hands messages on, which dies.
LOST = """
import os, subprocess, sys, time
from pathlib import Path
from tempfile import TemporaryDirectory
from fedmls.federation.deploy import flower_warm as warm

def first():
    subprocess.run([warm.NEEDED, "--parent-pid", str(os.getpid())], check=True)
    time.sleep(100)

warm.warm_up = lambda name: None
commands = {"first": first, warm.NEEDED: lambda: None}
sys.exit(warm.Family(commands, ["first"], warm.prepare(Path(sys.argv[1]), (warm.NEEDED,))).serve())
"""


@pytest.mark.processes
def test_a_warm_command_ends_with_what_it_cannot_do_without(tmp_path):
    done = subprocess.run([sys.executable, "-c", LOST, str(tmp_path / "warm")], timeout=90, check=False)
    assert done.returncode == 256 - signal.SIGTERM


def test_a_warm_command_is_one_of_flowers(capsys):
    with pytest.raises(SystemExit):
        flower_warm.main(["--look", "1", "flwr", "run"])
    assert "invalid choice: 'flwr' (choose from 'flower-supernode', 'flower-superlink')" in capsys.readouterr().err


@pytest.mark.processes
def test_flowers_pauses_are_those_that_are_shortened():
    """Another version of Flower may have others."""
    program = """
import inspect, time
from fedmls.federation.deploy import flower_warm
flower_warm.shorten_pauses(0.1)
from flwr.supercore import heartbeat
from flwr.supercore.retry import http_retry
from flwr.supernode import fleet_http_connection, start_client_internal
assert heartbeat.HEARTBEAT_DEFAULT_INTERVAL == fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL == 10
assert http_retry.MAX_RETRY_DELAY == 3
source = inspect.getsource(start_client_internal)
assert "time.sleep(3)" in source
assert f"def {flower_warm.REST_OF_A_REPLY}(" in source
from flwr.superlink.grid import http_grid
from fedmls.federation.transports import flower as flower_app
assert "all_object_contents = pull_objects(" in inspect.getsource(http_grid.HttpGrid.pull_messages)
flower_app.bound_pulls()
assert http_grid.pull_objects.keywords["max_time"] == flower_app.REST_SECONDS
began = time.monotonic()
start_client_internal.time.sleep(3)
assert time.monotonic() - began < 2.9
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


@pytest.mark.processes
def test_a_node_sends_a_reply_that_it_has_left_when_there_is_no_message():
    """Not only after the next message, in the place of that one's reply, for ever."""
    program = """
import inspect
from fedmls.federation.deploy import flower_warm
flower_warm.shorten_pauses(0.1)
from flwr.app import Message, RecordDict
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode import start_client_internal as node
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.nodestate import NodeStateFactory
TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
stores = ObjectStoreFactory()
state, store = NodeStateFactory(stores).state(), stores.store()
rest = dict.fromkeys(("node_config", "get_run", "get_fab", "pull_object", "confirm_message_received"))
idle = dict(state=state, object_store=store, receive=lambda: None, trusted_entities=None, **rest)
assert node._pull_and_store_message(**idle) is None
asked = Message(RecordDict(), 1, "train")
asked.metadata.__dict__["_message_id"] = "asked"
node._insert_message(Message(RecordDict(), reply_to=asked), state, store)
assert node._pull_and_store_message(**idle) is not None
sent = []
state.get_message_processing_duration = lambda message_id: 0.0
node._push_messages(state, store, lambda message, *_: sent.append(message) or (set(), ""), None)
assert [message.metadata.reply_to_message_id for message in sent] == ["asked"]
assert node._pull_and_store_message(**idle) is None
assert "_pull_and_store_message(" in inspect.getsource(node.start_client_internal)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_the_page_tells_the_pauses_that_the_code_sets():
    from flwr.common import constant

    page = " ".join((Path(__file__).parents[3] / "docs" / "deploy-flower.md").read_text().split())
    [told] = re.findall(
        r"\(([\d.]+) s instead of 3 between looks, a heartbeat that counts for (\d+) s instead of (\d+), "
        r"at most (\d+) s instead of (\d+) until",
        page,
    )
    own = constant.HEARTBEAT_DEFAULT_INTERVAL, constant.MAX_RETRY_DELAY
    changed = flower_warm.LOOK, flower_warm.HEARTBEAT, flower_warm.RETRY
    assert list(map(float, told)) == [changed[0], changed[1], own[0], changed[2], own[1]]
    taken_for_alive = constant.HEARTBEAT_PATIENCE * flower_warm.HEARTBEAT
    assert f"alive for up to {2 * own[0]} seconds (in a trial: {taken_for_alive})" in page


def test_a_deployment_says_what_is_wrong_with_its_nodes(tmp_path):
    files = node_files(tmp_path, svm(n=2, m=20))
    with pytest.raises(ValueError, match=r"nowhere.toml: there is no such file"):
        FlowerDeployment(tmp_path, {"a": tmp_path / "nowhere.toml"})
    with pytest.raises(ValueError, match="is of node 'site-1', not of 'site-2'"):
        FlowerDeployment(tmp_path, {"site-2": files["site-1"]})
    for name in ("server", "guard", "a b", "", "../a"):
        with pytest.raises(ValueError, match="is no name for a node"):
            FlowerDeployment(tmp_path, {name: files["site-1"]})


def test_nobody_outside_is_told_or_asked_anything(tmp_path, monkeypatch):
    """By none of our processes, whatever the environment says, nor by those of the page's units."""
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    monkeypatch.delenv("FLWR_DISABLE_UPDATE_CHECK", raising=False)
    files = node_files(tmp_path, svm(n=2, m=20))
    deployment = FlowerDeployment(tmp_path / "deployment", files)
    deployment.private = tmp_path
    off = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    for name in ("server", *files):
        environment = deployment._environment(name)
        assert {variable: environment[variable] for variable in off} == off
    page = (Path(__file__).parents[3] / "docs" / "deploy-flower.md").read_text()
    units = re.findall(r"```ini\n(.*?)```", page, re.DOTALL)
    commands = [command for unit in units for command in re.findall(r"ExecStart=(\S+)", unit)]
    assert commands == [f"/opt/fedmls/venv/bin/flower-{name}" for name in ("superlink", "supernode")]  # stock Flower
    for unit in units:
        assert "Environment=" + " ".join(f"{variable}={value}" for variable, value in off.items()) + "\n" in unit


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    folder, problem = tmp_path_factory.mktemp("flower"), svm(n=3, m=40)
    with FlowerDeployment(folder / "deployment", node_files(folder / "parts", problem)) as deployment:
        yield deployment, problem
    assert not marked(f"{folder}")
    assert {entry.name for entry in (folder / "deployment").iterdir()} == {"lock", "logs"}


def events(folder):
    file = folder / "events.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


class Background(threading.Thread):
    """A run of a job in a thread; ``error`` is what it raised, ``said`` what it told."""

    def __init__(self, deployment, folder):
        super().__init__()
        self.deployment, self.folder, self.error, self.said = deployment, folder, None, []
        self.start()

    def run(self):
        try:
            self.deployment.run(self.folder, self.said.append)
        except Exception as error:
            self.error = error

    def wait(self, seconds=300):
        self.join(seconds)
        assert not self.is_alive(), f"the run has not ended within {seconds} s"
        assert self.error is None, self.error

    def wait_for_a_round(self):
        wait_until(lambda: not self.is_alive() or any(event.get("kind") == "round" for event in events(self.folder)))
        assert self.is_alive(), self.error


def check_exchanges(folder, rounds):
    """None was done twice."""
    kinds = [event["kind"] for event in events(folder) if "kind" in event]
    assert kinds == ["survey", "begin", *rounds * ["round"], "close"]


@pytest.mark.deployed
def test_a_run_goes_on_when_a_killed_node_is_back(deployed, tmp_path):
    deployment, problem = deployed
    run = Background(deployment, write_job(tmp_path / "job", "fedmls", rounds=6))
    run.wait_for_a_round()
    deployment.kill("site-2")
    run.wait()
    assert run.said == ["site-2 has died; starting it again"]
    check_exchanges(run.folder, rounds=3)
    check_model(run.folder, "fedmls", problem, rounds=6)


@pytest.mark.deployed
def test_a_run_goes_on_from_its_last_exchange_when_the_server_is_back(deployed, tmp_path):
    deployment, problem = deployed
    run = Background(deployment, write_job(tmp_path / "job", "scaffold", rounds=4))
    run.wait_for_a_round()
    deployment.kill("server")
    before = events(run.folder)
    assert "finished" not in [event.get("event") for event in before]
    run.wait()
    assert run.said == [
        "server has died; starting it again",
        "the job is lost with the server; submitting the job again, which goes on from its last exchange",
    ]
    assert events(run.folder)[: len(before)] == before
    check_exchanges(run.folder, rounds=4)
    check_model(run.folder, "scaffold", problem, rounds=4)


@pytest.mark.deployed
def test_a_run_that_fails_says_why(deployed, tmp_path):
    deployment, _ = deployed
    with pytest.raises(Stopped, match=r"holds 0 of job\.toml and job\.json"):
        deployment.run(tmp_path)
    with pytest.raises(ValueError, match="nothing is no folder with a job"):
        deployment.run(tmp_path / "nothing")


@pytest.mark.deployed
def test_strangers_are_refused(deployed):
    """One with a key that nobody registered, one without a key, one that trusts another CA, one without TLS."""
    deployment, _ = deployed
    make_node_key(deployment.private / "key")
    make_certificates(deployment.private / "foreign", ["127.0.0.1"])
    own = ["--auth-supernode-private-key", "key"]
    strangers = {
        "unregistered": (["--root-certificates", "ca.crt", *own], "Failed to initialize the connection"),
        "keyless": (["--root-certificates", "ca.crt"], "Failed to initialize the connection"),
        "foreign": (["--root-certificates", "foreign/ca.crt", *own], "CERTIFICATE_VERIFY_FAILED"),
        "plain": (["--insecure"], "Failed to initialize the connection"),
    }
    command = ["flower-supernode", "--superlink", f"127.0.0.1:{deployment.port}", "--max-retries", "1"]
    command += ["--isolation", "process"]  # without a process for messages, which never come
    environment = deployment._environment("stranger")
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    for name, (options, _) in strangers.items():
        whole = [*command, "--port", str(free_port()), *options]
        deployment.processes.start(name, whole, environment, deployment.private)
    for name, (_, words) in strangers.items():
        assert deployment.processes.started[name].wait(timeout=120) != 0
        said = deployment.processes.log(name).read_text()
        assert words in said
        assert "SuperNode ID" not in said


# Imported by every Python process of one node: its worker is killed once, in the middle of giving its reply away.
DYING = """
import os, signal, sys

def patch():
    worker = sys.modules.get("flwr.supernode.runtime.run_clientapp")
    if worker is None or os.path.exists({file!r}):
        return

    def die(*_, **__):
        open({file!r}, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)

    worker.push_objects = die

os.register_at_fork(after_in_child=patch)
"""


class WithDyingWorker(FlowerDeployment):
    def _environment(self, name):
        more = {"PYTHONPATH": str(self.folder.parent / "dying")} if name == "site-2" else {}
        return super()._environment(name) | more


@pytest.mark.deployed
def test_a_worker_killed_while_it_uploads_is_asked_again_within_seconds(tmp_path):
    """Its SuperNode would wait for the rest of the reply for ever, and the server for all replies together."""
    (tmp_path / "dying").mkdir()
    (tmp_path / "dying" / "sitecustomize.py").write_text(DYING.format(file=str(tmp_path / "died")))
    problem = svm(n=3, m=40)
    job = write_job(tmp_path / "job", "fedmls", rounds=4)
    with WithDyingWorker(tmp_path / "deployment", node_files(tmp_path / "parts", problem)) as deployment:
        run = Background(deployment, job)
        run.wait()
    assert (tmp_path / "died").exists()
    assert run.said == []  # it is no node that died, but its worker
    check_exchanges(job, rounds=2)
    seconds = [event["seconds"] for event in events(job) if "kind" in event]
    assert max(after - before for before, after in itertools.pairwise([0.0, *seconds])) < 30
    check_model(job, "fedmls", problem, rounds=4)


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
    processes = [process for name in ("server", *deployment.nodes) for process in marked(f"{deployment.folder}|{name}")]
    assert len(processes) >= 3 * 4  # a SuperLink and three SuperNodes, each with its SuperExec and the one that forks
    assert set.union(*map(listeners, processes)) == {"0100007F"}
    for process in processes:
        environment = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        assert {b"FLWR_TELEMETRY_ENABLED=0", b"FLWR_DISABLE_UPDATE_CHECK=1"} <= set(environment)


@pytest.mark.processes
@pytest.mark.deployed
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_a_deployment_that_is_broken_off_leaves_nothing_behind(kind, tmp_path):
    """As soon as there are keys and the SuperLink is being started."""
    files, folder = node_files(tmp_path / "parts", svm(n=2, m=20)), tmp_path / "deployment"
    program = (
        "import sys; from fedmls.federation.deploy.flower import FlowerDeployment\n"
        "folder, *nodes = sys.argv[1:]\n"
        "with FlowerDeployment(folder, {'site-1': nodes[0], 'site-2': nodes[1]}): print('it was not stopped')"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(folder), *map(str, files.values())])
    wait_until(lambda: process.poll() is not None or marked(f"{folder}|server"))
    assert list((folder / "private").glob("*.key"))
    process.send_signal(kind)
    assert process.wait(timeout=120) != 0
    if kind == signal.SIGKILL:  # the guard does it, a moment later
        wait_until(lambda: not marked(f"{folder}|"))
    assert marked(f"{folder}|") == []
    assert not (folder / "private").exists()
