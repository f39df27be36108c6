"""The limit of one thread is the whole process's: whoever leaves last lifts it."""

import numpy as np
from threadpoolctl import threadpool_info

from fedmls.threads import one_thread


def blas_threads():
    np.ones((2, 2)) @ np.ones((2, 2))
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_the_last_to_leave_lifts_the_limit():
    before = blas_threads()
    one, other = one_thread(), one_thread()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert {*blas_threads()} == {1}
    other.__exit__(None, None, None)
    assert blas_threads() == before
