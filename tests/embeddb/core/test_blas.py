"""Linear algebra of answers uses one thread, and afterwards as many as before."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
from threadpoolctl import ThreadpoolController, threadpool_limits

from embeddb.core.blas import one_thread


def threads() -> set[int]:
    own = ThreadpoolController().select(user_api="blas").info()
    return {library["num_threads"] for library in own}


def test_one_inside_and_the_same_as_before_outside() -> None:
    with threadpool_limits(2, user_api="blas"):
        with one_thread():
            assert threads() == {1}
            with one_thread():
                assert threads() == {1}
            assert threads() == {1}
        assert threads() == {2}


def test_a_library_that_is_loaded_inside_is_limited_by_the_next_use() -> None:
    """In a process of its own: here scipy's library is loaded already."""
    code = """
import numpy
from threadpoolctl import threadpool_info
from embeddb.core.blas import one_thread
own = lambda: [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]
with one_thread():
    before = own()
    import scipy.linalg
    print(set(own()))
    with one_thread():
        print(len(own()) > len(before), set(own()))
    print(set(own()))
print(set(own()))
"""
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert result.stdout.splitlines() == ["{1, 2}", "True {1}", "{1}", "{2}"]


def test_overlapping_uses_of_threads_leave_nothing_behind() -> None:
    """The second begins within the first and ends after it."""
    before = threads()
    first_in, second_in, first_out = (threading.Event() for _ in range(3))

    def first() -> None:
        with one_thread():
            first_in.set()
            second_in.wait(10)
        first_out.set()

    def second() -> None:
        first_in.wait(10)
        with one_thread():
            second_in.set()
            first_out.wait(10)

    workers = [threading.Thread(target=work) for work in (first, second)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert first_out.is_set() and threads() == before


def test_it_ends_with_an_error() -> None:
    @one_thread()
    def fails() -> None:
        raise ValueError("on purpose")

    before = threads()
    for _ in range(2):
        with pytest.raises(ValueError, match="on purpose"):
            fails()
        assert threads() == before
