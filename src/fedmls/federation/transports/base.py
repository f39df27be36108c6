"""The interface of all that carries messages between the server and the nodes."""

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

NODE_FILE = "fedmls.NODE"  # the environment variable that names a node's configuration file to an NVFlare client


class Replies(dict[str, bytes]):
    """Replies by node, which remember when each came: in seconds since these were begun to be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.began = time.monotonic()
        self.seconds: dict[str, float] = {}

    def __setitem__(self, node: str, reply: bytes) -> None:
        super().__setitem__(node, reply)
        self.seconds[node] = time.monotonic() - self.began


class Transport(Protocol):
    """All that carries a federation."""

    @property
    def nodes(self) -> Sequence[str]:
        """Return the names of the connected nodes."""

    def exchange(self, messages: Mapping[str, bytes], timeout: float) -> tuple[dict[str, bytes], dict[str, str]]:
        """Send each named node its message; return what came back within timeout seconds, and for every other node a
        word on why not. Those that are ``Replies`` tell when each came.
        """
