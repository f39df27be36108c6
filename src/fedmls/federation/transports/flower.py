"""What runs inside Flower's processes: the app of the server, the app of a node, and the transport over Flower's grid.

One exchange is one Flower message to each node and its reply. Flower starts a process anew for every message, so this
module imports little, and a node keeps its state on disk (:mod:`fedmls.federation.node.node`).

A node is known by the name its key was registered with (``flwr supernode register KEY --name NAME``): the name is
proved by the key, and asking for it costs no exchange. A message names it as its group, so that its contents, the same
for all nodes in most rounds, are sent to the SuperLink once.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.inflatable.inflatable_utils import pull_objects

from fedmls.federation.transports.base import Replies

if TYPE_CHECKING:
    from flwr.proto.node_pb2 import NodeInfo

POLL_SECONDS = 0.5  # between two looks for replies
REST_SECONDS = 3.0  # for the rest of a reply that is found half sent; then it is asked for again

# The node is there and has refused: sending the message again would end in the same.
FINAL = {ErrorCode.CLIENT_APP_RAISED_EXCEPTION, ErrorCode.LOAD_CLIENT_APP_EXCEPTION, ErrorCode.INVALID_FAB}


def client_app() -> ClientApp:
    """Return the app of a node, which hands each message to the Node of its configuration file."""

    def answer(message: Message, context: Context) -> Message:
        asked: Any = message.content["fedmls"]
        name = message.metadata.group_id
        return Message(_pack(message=_answer(context, name, asked["message"])), reply_to=message)

    app = ClientApp()
    app.train()(answer)
    return app


def _answer(context: Context, name: str, message: bytes) -> bytes:
    """Return the node's reply: of its resident process where there is one, which has all in memory that it takes."""
    socket, file = context.node_config.get("resident"), context.node_config.get("node")
    if isinstance(socket, str) and (reply := ask_resident(socket, name, message)) is not None:
        return reply

    from fedmls.federation.node.node import Node
    from fedmls.federation.node.resident import answer_as, refusal

    if not isinstance(file, str):
        return refusal("its SuperNode has no node file; start it with --node-config \"node='/path/node.toml'\"")
    try:
        node = Node(Path(file))
    except (ValueError, OSError) as error:
        return refusal(str(error))
    return answer_as(name, node, message)


def ask_resident(socket: str, name: str, message: bytes) -> bytes | None:
    """Return the reply of the process that listens at the socket (:mod:`fedmls.federation.node.resident`), if any."""
    from multiprocessing.connection import Client

    with suppress(OSError, EOFError), Client(socket, "AF_UNIX") as connection:
        connection.send_bytes(name.encode())
        connection.send_bytes(message)
        return connection.recv_bytes()
    return None


def server_app() -> ServerApp:
    """Return the app of the server, which drives the job in the folder that the run's configuration names."""

    def main(grid: Grid, context: Context) -> None:
        from fedmls.federation.server.driver import drive
        from fedmls.federation.server.outcome import attempt

        folder = context.run_config.get("job")
        if not isinstance(folder, str) or not Path(folder).is_dir():
            raise ValueError(f"{folder!r} is no folder with a job; say --run-config \"job='/path/of/the/job/folder'\"")
        bound_pulls()
        with attempt(Path(folder), str(context.run_id)):
            drive(Path(folder), FlowerTransport(grid))

    app = ServerApp()
    app.main()(main)
    return app


def bound_pulls() -> None:
    """Let a look for replies end soon where one is half sent.

    Flower waits for its rest for minutes, and with it for the replies of all others, although the process that was
    sending it may have been killed.
    """
    grid: Any = import_module("flwr.superlink.grid.http_grid")
    grid.pull_objects = partial(pull_objects, max_time=REST_SECONDS, initial_backoff=0.1, backoff_cap=0.5)


def _pack(**fields: Any) -> RecordDict:
    return RecordDict({"fedmls": ConfigRecord(fields)})


def _unpack(reply: Message) -> bytes:
    """Return what a node answered; nothing, which no message is, if it sent something else."""
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
        """Return the names of the nodes that are online."""
        return sorted(self._online())

    def exchange(self, messages: Mapping[str, bytes], timeout: float) -> tuple[dict[str, bytes], dict[str, str]]:
        """Send each node its message, and again where it got lost; the replies, and why others did not reply.

        A message is lost with the process that works on it: Flower tells so after a minute, or the node has gone
        online again since, or its reply stays half sent. Of that one the rest may still come: both are looked for.
        """
        deadline = time.monotonic() + timeout
        replies = Replies()
        failures = dict.fromkeys(messages, "it is not online")
        waiting, sessions = set(messages), dict[str, str]()  # since when a node was online when it was sent its message
        sent: dict[str, str] = {}  # the node of each message, by the message's id
        halves: set[str] = set()  # messages whose reply was found half sent
        while True:
            online = self._online()
            due = [name for name in waiting & online.keys() if sessions.get(name) != online[name].last_activated_at]
            sent |= self._send({name: messages[name] for name in due}, online, max(deadline - time.monotonic(), 1.0))
            sessions |= {name: online[name].last_activated_at for name in due}
            failures |= dict.fromkeys(due, f"no reply within {timeout:g} s")
            for reply in self.grid.pull_messages(list(sent)) if sent else ():
                number = reply.metadata.reply_to_message_id
                name = sent.pop(number)
                if not reply.has_error():
                    replies[name] = _unpack(reply)
                    waiting.discard(name)
                    continue
                failures[name] = str(reply.error.reason)
                if reply.error.code in FINAL:
                    waiting.discard(name)
                    continue
                if number not in halves:  # send it again once the node is back
                    sessions.pop(name, None)
                if reply.error.code == ErrorCode.MESSAGE_UNAVAILABLE:
                    halves.add(number)
                    sent[number] = name
            sent = {number: name for number, name in sent.items() if name in waiting}
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
        """Send the messages; return the nodes by the ids of the messages to them."""
        if not messages:
            return {}
        contents = {data: _pack(message=data) for data in set(messages.values())}  # Flower sends like contents once
        packed = [
            Message(contents[data], online[name].node_id, MessageType.TRAIN, ttl=ttl, group_id=name)
            for name, data in messages.items()
        ]
        return dict(zip(self.grid.push_messages(packed), messages, strict=True))
