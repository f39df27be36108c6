"""A node that stays in memory, for an engine that starts a process for every message.

python -m fedmls.federation.node.resident NODE.toml SOCKET

Flower does. The process that it starts hands the message to the socket and takes the reply from there
(:func:`fedmls.federation.transports.flower.ask_resident`), instead of importing fedmls, loading compiled code and
reading the rows each time; where nobody listens, it does that itself. The socket is a file of its owner alone: nobody
else may ask. Linux and macOS.
"""

import argparse
import os
from contextlib import suppress
from multiprocessing.connection import Connection, Listener
from pathlib import Path

from fedmls.federation.messages import Message, Refusal, encode
from fedmls.federation.node.node import Node


def answer_as(name: str, node: Node, message: bytes) -> bytes:
    """Return the node's reply, if the name that its key is registered with is its own."""
    if node.name != name:
        return refusal(f"its node file is of {node.name!r}, but its key is registered as {name!r}")
    return node.answer(message)


def refusal(why: str) -> bytes:
    """Return a reply that says why there is no other."""
    return encode(Message("unknown", 0, 0, Refusal(why)))


def serve(file: Path, socket: Path) -> None:
    """Answer the messages that come to the socket, one after the other, until the process is ended."""
    node = Node(file)
    socket.unlink(missing_ok=True)
    os.umask(0o077)  # the socket is its owner's
    with Listener(str(socket), "AF_UNIX") as listener:
        while True:
            with suppress(OSError, EOFError), listener.accept() as connection:  # who asks may be killed meanwhile
                _answer_one(node, connection)


def _answer_one(node: Node, connection: "Connection[bytes, bytes]") -> None:
    name = connection.recv_bytes().decode()
    connection.send_bytes(answer_as(name, node, connection.recv_bytes()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fedmls.federation.node.resident", description=serve.__doc__)
    parser.add_argument("file", type=Path, help="the configuration of the node", metavar="NODE.toml")
    parser.add_argument("socket", type=Path, help="where to listen; the SuperNode's node-config names it as resident")
    given = parser.parse_args()
    with suppress(KeyboardInterrupt):
        serve(given.file, given.socket)


if __name__ == "__main__":
    main()
