"""One thread for linear algebra on matrices of hundreds of rows.

On those a second thread of BLAS gains little, and on a machine with other work, or in a container
whose quota is smaller than its processors, threads wait for each other by spinning: answers by a
process took 2.5 times as long (docs/explanation/decisions.md#one-blas-thread).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

_FIRST = Lock()


@contextmanager
def one_thread() -> Iterator[None]:
    """Limits BLAS to one thread; also a decorator. Of nested uses and of those that overlap in
    several threads only the first has an effect, to its end: the limit is of the whole process, and
    what a later one would restore is the limit of the first."""
    if not _FIRST.acquire(blocking=False):
        yield
        return
    try:
        with _controller(len(sys.modules)).limit(limits=1):
            yield
    finally:
        _FIRST.release()


@lru_cache(maxsize=1)
def _controller(_modules: int) -> ThreadpoolController:
    """The BLAS libraries of this process, looked up again (3 ms) once further modules are loaded,
    which may bring their own."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")
