"""Messages to nodes over a transport, and what is done when a node does not answer or its answer is not good."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from fedmls.federation.job import Job
from fedmls.federation.messages import Message, MessageError, encode, printable
from fedmls.federation.replies import NodeForgot, NodeRefused
from fedmls.record import Counters

T = TypeVar("T")
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0  # seconds between two attempts to reach a node


class Transport(Protocol):
    """All that carries a federation."""

    @property
    def nodes(self) -> Sequence[str]:
        """The names of the connected nodes."""

    def exchange(self, messages: Mapping[str, bytes], timeout: float) -> tuple[dict[str, bytes], dict[str, str]]:
        """Send each named node its message; return what came back within timeout seconds, and for every other node a
        word on why not.
        """


class Stopped(ValueError):
    """The run cannot go on, and why. Its checkpoint is that of the last exchange."""


class Answers(NamedTuple):
    good: dict[str, Any]
    failed: dict[str, str]
    forgot: list[str]  # nodes that know nothing of the run, where that is no failure
    cost: Counters


class Post:
    """Asks nodes, again where the job says so; counts what is sent; tells ``event`` when it waits."""

    def __init__(self, transport: Transport, job: Job, event: Callable[..., None]) -> None:
        self.transport, self.job, self.event = transport, job, event

    def ask(
        self,
        messages: Mapping[str, Message],
        check: Callable[[bytes, Message], T],
        all_needed: bool,
        may_forget: bool = False,
    ) -> Answers:
        """The checked answers, why others failed, and what it cost.

        all_needed: nobody can be left out, whatever the job says.
        may_forget: to know nothing of the run is no failure.
        """
        sent = {node: encode(message) for node, message in messages.items()}
        good: dict[str, T] = {}
        failed: dict[str, str] = {}
        forgot: list[str] = []
        waiting, pause, cost = list(sent), FIRST_PAUSE, Counters()
        while waiting:
            replies, failures = self.transport.exchange({node: sent[node] for node in waiting}, self.job.timeout)
            bad: dict[str, str] = {}
            for node in [node for node in waiting if node in replies]:
                try:
                    good[node] = check(replies[node], messages[node])
                except NodeRefused as error:
                    if may_forget and isinstance(error, NodeForgot):
                        forgot.append(node)
                    else:
                        bad[node] = f"refuses: {error}"
                except MessageError as error:
                    bad[node] = f"sent what was rejected: {error}"
                except Exception as error:  # no check should raise it: a fault of ours, but of this reply's making
                    bad[node] = f"sent what was rejected: a check of it failed ({type(error).__name__})"
            missing = {
                node: f"does not answer: {printable(failures.get(node, 'no word'))}"
                for node in waiting
                if node not in replies
            }
            cost = cost.plus(_cost(sent, waiting, replies))
            self._judge(bad, self.job.on_bad, all_needed)
            self._judge(missing, self.job.on_missing, all_needed)
            waiting = list(missing) if self.job.on_missing == "wait" else []
            failed |= bad | {node: why for node, why in missing.items() if node not in waiting}
            if waiting:
                self.event(event="waiting", nodes=missing)
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        return Answers(good, failed, forgot, cost)

    def _judge(self, failures: dict[str, str], policy: str, all_needed: bool) -> None:
        if failures and (policy == "stop" or (policy == "without" and all_needed)):
            raise Stopped("; ".join(f"node {node} {why}" for node, why in failures.items()))


def _cost(sent: dict[str, bytes], asked: list[str], replies: Mapping[str, bytes]) -> Counters:
    return Counters(
        bytes_up=sum(len(replies[node]) for node in asked if node in replies),
        bytes_down=sum(len(sent[node]) for node in asked),
    )


def vectors(value: Any, dimension: int, but: tuple[str, ...] = ()) -> int:
    """How many vectors like the model a message's body holds, outside of fields named ``but``."""
    if isinstance(value, np.ndarray):
        return value.size // dimension if value.ndim == 1 else 0
    if isinstance(value, dict):
        value = [part for name, part in value.items() if name not in but]
    return sum(vectors(part, dimension, but) for part in value) if isinstance(value, list | tuple) else 0
