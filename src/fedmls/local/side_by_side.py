"""Several plays in one thread: while one waits for a GPU, the others go on."""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from threading import get_ident
from typing import Any, TypeVar

T = TypeVar("T")


def side_by_side(plays: Iterable[Callable[[], T]], most: int) -> Iterator[T]:
    """Do all plays in this thread, and yield what each returns, as they end: while one waits for the GPU, others go on,
    so many at ``most``.

    Where one is stopped (KeyboardInterrupt), the others are left to stop as well before that is raised. Threads would
    take turns too, but hand over Python's lock each time, which takes longer than what is done in between.
    """
    try:
        from greenlet import greenlet
    except ImportError:
        raise ValueError("device='cuda' needs greenlet, which is not installed; pip install 'fedmls[gpu]'") from None
    to_do, going = iter(plays), deque[Any]()
    stopped: KeyboardInterrupt | None = None
    while True:
        for play in islice(to_do, 0 if stopped else most - len(going)):
            going.append((greenlet(play), None))
            going[-1][0].others = going[-1][0].parent  # `wait` switches to it
        if not going:
            break
        task, event = going.popleft()
        if event is not None and not event.done:
            going.append((task, event))
            continue
        try:
            found = task.switch()
        except KeyboardInterrupt as error:
            stopped = error
            continue
        if task.dead:
            yield found
        else:
            going.append((task, found))
    if stopped is not None:
        raise stopped


def _current() -> Any:
    """Return the greenlet that runs now; None if there are none in this process."""
    greenlets = sys.modules.get("greenlet")
    return None if greenlets is None else greenlets.getcurrent()


def who() -> tuple[int, int]:
    """Return what tells apart those who may use a piece of memory at a time: the thread, and the play in it."""
    return get_ident(), id(_current())


def wait(event: Any) -> None:
    """Return when the GPU has come to this event; a play that is done side by side with others lets these go on."""
    others = getattr(_current(), "others", None)
    if others is None:
        event.synchronize()
    else:
        others.switch(event)
