"""Linear algebra of answers uses one thread, and afterwards as many as before."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from threadpoolctl import ThreadpoolController, threadpool_limits

from embeddb.core.blas import one_thread


def threads() -> set[int]:
    own = ThreadpoolController().select(user_api="blas").info()
    return {library["num_threads"] for library in own}


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    with threadpool_limits(2, user_api="blas"):
        yield


def test_one_inside_and_the_same_as_before_outside() -> None:
    with one_thread():
        assert threads() == {1}
        with one_thread():
            assert threads() == {1}
        assert threads() == {1}
    assert threads() == {2}


def test_overlapping_uses_leave_nothing_behind() -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with one_thread():
            entered.set()
            leave.wait(10)

    worker = threading.Thread(target=other)
    with one_thread():
        worker.start()
        assert entered.wait(10)
    leave.set()
    worker.join()
    assert threads() == {2}


def test_it_ends_with_an_error() -> None:
    @one_thread()
    def fails() -> None:
        raise ValueError("on purpose")

    for _ in range(2):
        with pytest.raises(ValueError, match="on purpose"):
            fails()
        assert threads() == {2}
