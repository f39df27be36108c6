"""What runs inside NVFlare's processes: the app of the server and the app of a node.

A job brings no code: its configuration names the two classes, and every site runs the fedmls that is installed there.
One exchange is one call of ``answer`` at every node, over NVFlare's Collab API.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nvflare.collab import collab
from nvflare.collab.api.exceptions import RunAborted

from fedmls.federation.messages import Message, Refusal, encode
from fedmls.federation.transports.base import NODE_FILE, Replies
from fedmls.federation.transports.shared_timer import share_timers

SERVER_NAME = "server"  # NVFlare's name for it in every job; no site can have it
logger = logging.getLogger(__name__)


share_timers()  # as soon as a job's process imports this


class NodeApp:
    """Hands each message of the server to the :class:`~fedmls.federation.Node` of the site's configuration file.

    NVFlare lets every site of a job call what is published here, and says who calls by the certificate of the
    connection. Nobody but the server is answered: another site could put the server's questions in its place.
    """

    def __init__(self) -> None:
        self.node: Any = None

    @collab.publish  # type: ignore[untyped-decorator]
    def answer(self, message: bytes) -> bytes:
        if collab.caller != SERVER_NAME:
            logger.warning("%s asks this node a question, and only the server may; it gets no answer", collab.caller)
            return _refusal("it answers the server only")
        try:
            self.node = self.node or _node(collab.site_name)
        except (ValueError, OSError) as error:  # told as a refusal: asking again would not help
            return _refusal(str(error))
        reply: bytes = self.node.answer(message)
        return reply


def _refusal(why: str) -> bytes:
    return encode(Message("unknown", 0, 0, Refusal(why)))


def _node(site: str) -> Any:
    from fedmls.federation.node.node import Node

    file = os.environ.get(NODE_FILE)
    if not file:
        raise ValueError(f"its NVFlare client has no node file; start it with {NODE_FILE}=/path/of/node.toml")
    node = Node(Path(file))
    if node.name != site:
        raise ValueError(f"its node file is of {node.name!r}, but its certificate of {site!r}; make them the same")
    return node


class ServerApp:
    """Drives the job in a folder of the server's machine, and leaves a word there on how it ended."""

    def __init__(self, job_folder: str) -> None:
        self.job_folder = job_folder

    @collab.main  # type: ignore[untyped-decorator]
    def run(self) -> None:
        from fedmls.federation.server.driver import drive
        from fedmls.federation.server.outcome import attempt

        folder = Path(self.job_folder)
        with attempt(folder, collab.fl_ctx.get_job_id(), given_up=lambda: bool(collab.is_aborted)):
            drive(folder, NVFlareTransport())


class NVFlareTransport:
    """A :class:`~fedmls.federation.server.driver.Transport` over the Collab API, inside the server's job."""

    @property
    def nodes(self) -> Sequence[str]:
        return sorted(client.name for client in collab.clients)

    def exchange(self, messages: Mapping[str, bytes], timeout: float) -> tuple[dict[str, bytes], dict[str, str]]:
        there = set(self.nodes)
        failures = dict.fromkeys(messages.keys() - there, "it is not in this job")
        replies = Replies()
        alike: dict[bytes, list[str]] = {}  # NVFlare calls many nodes at once with one message
        for name in messages.keys() & there:
            alike.setdefault(messages[name], []).append(name)
        calls = [
            collab.get_clients(names)(blocking=False, timeout=timeout).answer(message)
            for message, names in alike.items()
        ]
        for results in calls:
            for name, reply in results:
                if isinstance(reply, bytes):
                    replies[name] = reply
                else:
                    failures[name] = f"its reply is no message but {type(reply).__name__}"
            failures |= {name: str(error.cause) for name, error in results.failures.items()}
        if collab.is_aborted:
            raise RunAborted("the job was aborted")
        return replies, failures
