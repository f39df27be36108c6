"""Linear algebra in one thread, where matrices are small."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


@cache
def _libraries() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


class _Inside:
    """How many are inside; the first one sets the limit, which is the whole process's, and the last one lifts it."""

    lock = threading.Lock()
    count = 0
    limit: Any = None


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, linear algebra runs in one thread: matrices here are small, and threads that wait for a busy core cost
    a hundred times the work."""
    with _Inside.lock:
        if _Inside.count == 0:
            _Inside.limit = _libraries().limit(limits=1, user_api="blas")
        _Inside.count += 1
    try:
        yield
    finally:
        with _Inside.lock:
            _Inside.count -= 1
            if _Inside.count == 0:
                _Inside.limit.restore_original_limits()
