"""One thread for linear algebra on matrices of hundreds of rows.

On those a second thread of BLAS gains little, and on a machine with other work, or in a container
whose quota is smaller than its processors, threads wait for each other by spinning: answers by a
process took 2.5 times as long (docs/explanation/decisions.md#one-blas-thread).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

_CHANGE = Lock()
#: Limits of the first use, and the number of modules when the last of them was set.
_HELD: list[tuple[ExitStack, int]] = []


@contextmanager
def one_thread() -> Iterator[None]:
    """Limits BLAS to one thread; also a decorator. Of nested uses and of those that overlap in
    several threads the first limits, to its end: the limit is of the whole process, and what a
    later one would restore is the limit of the first. A later one adds the libraries that were
    loaded since."""
    with _CHANGE:
        first = not _HELD
        limits, modules = (ExitStack(), -1) if first else _HELD[0]
        if modules != len(sys.modules):
            limits.enter_context(_controller(len(sys.modules)).limit(limits=1))
        _HELD[:] = [(limits, len(sys.modules))]
    try:
        yield
    finally:
        if first:
            with _CHANGE:
                _HELD.pop()[0].close()


@lru_cache(maxsize=1)
def _controller(_modules: int) -> ThreadpoolController:
    """The BLAS libraries of this process, looked up again (3 ms) once further modules are loaded,
    which may bring their own."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")
