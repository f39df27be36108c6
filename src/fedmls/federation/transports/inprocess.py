"""Nodes in the server's own process: real nodes, real messages, no network. For tests and trials.

Faults can be asked for by the node's name and the number of the transport's call of ``exchange``, from 1: messages that
get lost, messages delivered twice, replies that come too late, replies that are damaged on the way.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from fedmls.federation.node.node import Node
from fedmls.federation.node_config import NodeConfig
from fedmls.federation.transports.base import Replies

When = tuple[str, int]


class InProcess:
    """A transport to nodes of these configurations (or their files).

    fresh: make a node anew for every message, as an engine does that starts a process for each.
    drop: the message never arrives.  twice: it arrives twice, and the second reply is returned.  late: the node works
    on it, but the reply is not there in time.  corrupt: what becomes of the reply.
    """

    def __init__(
        self,
        configs: Iterable[NodeConfig | str | Path],
        *,
        fresh: bool = False,
        drop: Collection[When] = (),
        twice: Collection[When] = (),
        late: Collection[When] = (),
        corrupt: Mapping[When, Callable[[bytes], bytes]] | None = None,
    ) -> None:
        made = [Node(config) for config in configs]
        self._nodes = {node.name: node for node in made}
        if len(self._nodes) != len(made):
            raise ValueError("two nodes have one name; give each a name of its own")
        self.fresh, self.drop, self.twice, self.late, self.corrupt = fresh, drop, twice, late, corrupt or {}
        self.calls = 0

    @property
    def nodes(self) -> list[str]:
        return list(self._nodes)

    def exchange(self, messages: Mapping[str, bytes], timeout: float) -> tuple[dict[str, bytes], dict[str, str]]:
        self.calls += 1
        with ThreadPoolExecutor(max_workers=16) as pool:  # nodes wait for their disks most of the time
            replies = Replies()
            calls = {pool.submit(self._deliver, item): item[0] for item in messages.items()}
            for call in as_completed(calls):
                reply = call.result()
                if reply is not None:
                    replies[calls[call]] = reply
        return replies, {name: f"nothing within {timeout:g} s" for name in messages if name not in replies}

    def _deliver(self, item: tuple[str, bytes]) -> bytes | None:
        """Return what comes back from a node; None if nothing does."""
        name, message = item
        when = name, self.calls
        if name not in self._nodes or when in self.drop:
            return None
        for _ in range(2 if when in self.twice else 1):
            reply = self._node(name).answer(message)
        return None if when in self.late else self.corrupt.get(when, bytes)(reply)

    def _node(self, name: str) -> Node:
        return Node(self._nodes[name].config) if self.fresh else self._nodes[name]
