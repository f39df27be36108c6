"""What runs inside NVFlare's processes: the app of the server, the app of a node, and the administrator's console.

A job brings no code: its configuration names the two classes, and every site runs the fedmls that is installed there.
One exchange is one call of ``answer`` at every node, over NVFlare's Collab API.
"""

import json
import logging
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nvflare.collab import collab
from nvflare.collab.api.exceptions import RunAborted

from fedmls.federation.messages import Message, encode
from fedmls.federation.nvflare import NODE_FILE
from fedmls.federation.shared_timer import SharedTimer

NODE_SECONDS = 2.0  # for a node to tell the console of its jobs
SERVER_NAME = "server"  # NVFlare's name for it in every job; no site can have it
logger = logging.getLogger(__name__)


def share_timers() -> None:
    """Let NVFlare remember the streams that it has received with one thread, not with a thread for each.

    It forgets a stream a minute after its end by a timer: as many threads as there were messages in that minute, some
    thousands at the server of a job with short rounds.
    """
    receiver: Any = import_module("nvflare.fuel.f3.streaming.byte_receiver")
    receiver.threading = SimpleNamespace(**{**vars(threading), "Timer": SharedTimer})


share_timers()  # as soon as a job's process imports this


class NodeApp:
    """Hands each message of the server to the :class:`~fedmls.federation.node.Node` of the site's configuration file.

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
    return encode(Message("refused", "unknown", 0, 0, {"why": why}))


def _node(site: str) -> Any:
    from fedmls.federation.node import Node

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
        from fedmls.federation.attempts import attempt
        from fedmls.federation.driver import drive

        folder = Path(self.job_folder)
        with attempt(folder, collab.fl_ctx.get_job_id(), given_up=lambda: bool(collab.is_aborted)):
            drive(folder, NVFlareTransport())


class NVFlareTransport:
    """A :class:`~fedmls.federation.driver.Transport` over the Collab API, inside the server's job."""

    @property
    def nodes(self) -> Sequence[str]:
        return sorted(client.name for client in collab.clients)

    def exchange(self, messages: Mapping[str, bytes], timeout: float) -> tuple[dict[str, bytes], dict[str, str]]:
        there = set(self.nodes)
        failures = dict.fromkeys(messages.keys() - there, "it is not in this job")
        alike: dict[bytes, list[str]] = {}  # NVFlare calls many nodes at once with one message
        for name in messages.keys() & there:
            alike.setdefault(messages[name], []).append(name)
        calls = [
            collab.get_clients(names)(blocking=False, timeout=timeout).answer(message)
            for message, names in alike.items()
        ]
        replies: dict[str, bytes] = {}
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


class Session:
    """An administrator's session: what the console can be asked for."""

    def __init__(self, kit: Path) -> None:
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        about = json.loads((kit / "startup" / "fed_admin.json").read_text())
        self.flare = new_secure_session(about["admin"]["username"], str(kit), timeout=5.0)

    def connected(self) -> dict[str, float]:
        """The nodes that the server knows, and when it last heard of each."""
        return {client.name: client.last_connect_time or 0.0 for client in self.flare.get_connected_client_list()}

    def jobs(self) -> dict[str, list[str]]:
        """The nodes that answer now, and the jobs that each runs.

        One after the other: the server waits for a node that has stopped as long as we do for the server, and whoever
        asked for all of them would get no answer of any.
        """
        found: dict[str, list[str]] = {}
        for name in self.connected():  # which raises if it is the server that does not answer
            for entry in self._job_status(name):
                if entry.get("status") != "no_reply":
                    found.setdefault(entry["client_name"], []).extend([entry["job_id"]] if "job_id" in entry else [])
        return found

    def _job_status(self, name: str) -> list[dict[str, Any]]:
        from nvflare.fuel.flare_api.api_spec import NoConnection

        self.flare.set_timeout(NODE_SECONDS)
        try:
            return self.flare.get_client_job_status([name]) or []
        except NoConnection:
            return []
        finally:
            self.flare.unset_timeout()

    def submit(self, folder: str) -> str:
        """Submit a job, in the place of those of its name that have not ended."""
        name = json.loads((Path(folder) / "meta.json").read_text())["name"]
        for job in self.flare.list_jobs(name_prefix=name):
            if not str(job.get("status")).startswith("FINISHED"):
                with suppress(Exception):  # it has ended meanwhile
                    self.flare.abort_job(job["job_id"])
        return str(self.flare.submit_job(folder))

    def status(self, job: str) -> str:
        return str(self.flare.get_job_status(job))


def console(kit: Path) -> None:
    """Answer commands, one line of JSON each, until there are no more.

    It is a process of its own because NVFlare's session leaves threads behind and prints as it likes.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    session = None
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        try:
            session = session or Session(kit)
            answer = {"answer": getattr(session, command)(*arguments)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
    os._exit(0)


if __name__ == "__main__":
    console(Path(sys.argv[1]))
