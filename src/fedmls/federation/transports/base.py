"""The interface of all that carries messages between the server and the nodes."""

from collections.abc import Mapping, Sequence
from typing import Protocol

NODE_FILE = "fedmls.NODE"  # the environment variable that names a node's configuration file to an NVFlare client


class Transport(Protocol):
    """All that carries a federation."""

    @property
    def nodes(self) -> Sequence[str]:
        """Return the names of the connected nodes."""

    def exchange(self, messages: Mapping[str, bytes], timeout: float) -> tuple[dict[str, bytes], dict[str, str]]:
        """Send each named node its message; return what came back within timeout seconds, and for every other node a
        word on why not.
        """
