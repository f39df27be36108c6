"""Timers that all wait in one thread, in the place of ``threading.Timer``, each of which is a thread of its own."""

import heapq
import logging
import threading
import time
from collections.abc import Callable
from importlib import import_module
from itertools import count
from types import SimpleNamespace
from typing import Any, ClassVar

logger = logging.getLogger(__name__)


class SharedTimer:
    """Calls a function after so many seconds, unless it is cancelled before."""

    daemon = True  # whoever sets it has no other choice

    _wake: ClassVar = threading.Condition()
    _waiting: ClassVar[list[tuple[float, int, "SharedTimer"]]] = []  # a heap: when, which, and the timer
    _numbers: ClassVar = count()
    _thread: ClassVar[threading.Thread | None] = None

    def __init__(self, interval: float, function: Callable[..., object], args: Any = (), kwargs: Any = None) -> None:
        self.interval, self.function, self.args, self.kwargs = interval, function, args or (), kwargs or {}
        self.cancelled = False

    def start(self) -> None:
        with SharedTimer._wake:
            due = time.monotonic() + self.interval
            heapq.heappush(SharedTimer._waiting, (due, next(SharedTimer._numbers), self))
            if SharedTimer._thread is None or not SharedTimer._thread.is_alive():  # as after a fork
                SharedTimer._thread = threading.Thread(target=SharedTimer._serve, daemon=True, name="shared timer")
                SharedTimer._thread.start()
            SharedTimer._wake.notify()

    def cancel(self) -> None:
        self.cancelled = True

    @classmethod
    def _serve(cls) -> None:
        while True:
            timer = cls._next()
            try:
                if not timer.cancelled:
                    timer.function(*timer.args, **timer.kwargs)
            except Exception:
                logger.exception("a timer failed")

    @classmethod
    def _next(cls) -> "SharedTimer":
        """Wait for the timer that is due next, and return it."""
        with cls._wake:
            while not cls._waiting or cls._waiting[0][0] > time.monotonic():
                cls._wake.wait(cls._waiting[0][0] - time.monotonic() if cls._waiting else None)
            return heapq.heappop(cls._waiting)[2]


def share_timers() -> None:
    """Let NVFlare remember the streams that it has received with one thread, not with a thread for each.

    It forgets a stream a minute after its end by a timer: as many threads as there were messages in that minute, some
    thousands at the server of a job with short rounds.
    """
    receiver: Any = import_module("nvflare.fuel.f3.streaming.byte_receiver")
    receiver.threading = SimpleNamespace(**{**vars(threading), "Timer": SharedTimer})
