"""Linear algebra in one thread, where matrices are small."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


@cache
def _libraries() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, linear algebra runs in one thread: matrices here are small, and threads that wait for a busy core cost
    a hundred times the work."""
    with _libraries().limit(limits=1, user_api="blas"):
        yield
