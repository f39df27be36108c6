"""Messages to nodes over a transport, and what is done when a node does not answer or its answer is not good."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from fedmls.federation.codec import MessageError, printable
from fedmls.federation.errors import Stopped
from fedmls.federation.job import Job
from fedmls.federation.messages import Body, Message, encode
from fedmls.federation.server.replies import NodeForgot, NodeRefused
from fedmls.federation.transports.base import Transport
from fedmls.simulation.cost import Counters

Q = TypeVar("Q", bound=Body)  # a question
T = TypeVar("T")
OPTIONAL_ATTEMPTS = 2  # to reach a node without which the run goes on, if the job says that it waits
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0  # seconds between two attempts to reach a node


class Answers(NamedTuple, Generic[T]):
    """The checked answers by node, why other nodes failed, which know nothing of the run where that is no failure, and
    what it cost.
    """

    good: dict[str, T]
    failed: dict[str, str]
    forgot: list[str]
    cost: Counters


class Exchange:
    """Asks nodes, again where the job says so; counts what is sent; tells ``event`` when it waits."""

    def __init__(self, transport: Transport, job: Job, event: Callable[..., None]) -> None:
        self.transport, self.job, self.event = transport, job, event
        self.answered: dict[str, float] = {}  # seconds that each node took in the last exchange

    def ask(
        self,
        messages: Mapping[str, Message[Q]],
        check: Callable[[bytes, Message[Q]], T],
        all_needed: bool,
        may_forget: bool = False,
        optional: bool = False,
    ) -> "Answers[T]":
        """Send the messages and return the checked answers.

        all_needed: nobody can be left out, whatever the job says.  optional: everybody can, and nobody is waited for
        longer than for a second attempt.
        may_forget: to know nothing of the run is no failure.
        """
        sent = {node: encode(message, whole=self.job.algorithm.traits.short) for node, message in messages.items()}
        good: dict[str, T] = {}
        failed: dict[str, str] = {}
        forgot: list[str] = []
        waiting, pause, cost, attempts = list(sent), FIRST_PAUSE, Counters(), 0
        began, self.answered = time.monotonic(), {}
        while waiting:
            attempts += 1
            since = time.monotonic() - began
            replies, failures = self.transport.exchange({node: sent[node] for node in waiting}, self.job.timeout)
            seconds = getattr(replies, "seconds", {})
            self.answered |= {node: round(since + seconds[node], 3) for node in waiting if node in seconds}
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
            if not optional:
                self._judge(bad, self.job.on_bad, all_needed)
                self._judge(missing, self.job.on_missing, all_needed)
            given_up = optional and attempts == OPTIONAL_ATTEMPTS
            waiting = list(missing) if self.job.on_missing == "wait" and not given_up else []
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
    """Return how many vectors like the model a message's body holds, outside of fields named ``but``."""
    if isinstance(value, np.ndarray):
        return value.size // dimension if value.ndim == 1 else 0
    if isinstance(value, dict):
        value = [part for name, part in value.items() if name not in but]
    return sum(vectors(part, dimension, but) for part in value) if isinstance(value, list | tuple) else 0
