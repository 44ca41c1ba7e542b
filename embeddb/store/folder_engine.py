"""One engine for each database folder of a process, shared by all its openings.

LMDB allows one environment of the same files in a process: its locks belong to the process, and
closing a second environment would release those of the first. So all openings of a folder are
counted users of one `LmdbEngine`, which is closed with the last of them. A folder is identified by
its device and inode, whatever path or link leads there; one that was removed and created again is
another.

A forked child inherits an environment that it must not use. It is closed there at once, which
requires that no thread was reading or writing: a fork waits a moment for those that are.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

from embeddb.core.errors import StoreError
from embeddb.store.engine import Engine, Txn
from embeddb.store.failures import opened_readonly, translating
from embeddb.store.lmdb_engine import LmdbEngine

T = TypeVar("T")

#: Time that a fork waits, for each open folder, for reads and writes of other threads to end.
_FORK_WAIT_S = 2.0


class _Shared:
    """The engine of a folder in this process (None: not open), and the number of its users."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.engine: LmdbEngine | None = None
        self.users = 0
        self._pid = os.getpid()
        self._gone: deque[None] = deque()
        self._state: Any = None
        self._sharing = threading.Lock()

    def state(self, make: Callable[[Engine], T], engine: LmdbEngine) -> T:
        """State that the users share beside the engine, created on first use."""
        with self._sharing:
            if self._state is None:
                self._state = make(engine)
            shared: T = self._state
            return shared

    def leave(self, *, wait: bool) -> None:
        """Remove one user; the last one closes the engine. One that was garbage-collected, in any
        thread, never waits: while the folder is being opened or closed, that operation does the
        counting."""
        if os.getpid() == self._pid:
            self._gone.append(None)
            # Again for those that left since it counted: they may not wait for the lock.
            while self._gone and self.lock.acquire(blocking=wait):
                try:
                    self.settle()
                finally:
                    self.lock.release()

    def settle(self) -> None:
        """Count the users that left; under the lock."""
        while self._gone:
            self._gone.pop()
            self.users -= 1
        if not self.users and self.engine is not None:
            engine, self.engine, self._state = self.engine, None, None
            engine.close()


_lock = threading.Lock()
_open: weakref.WeakValueDictionary[tuple[int, int], _Shared] = weakref.WeakValueDictionary()


class FolderEngine(Engine):
    """One opening of a database folder: an `Engine` that shares the folder's `LmdbEngine`.

    An opening that is read-only refuses to write, even where others may. Raises: as `LmdbEngine`,
    and StoreError when used after `close`.
    """

    def __init__(self, folder: Path, *, readonly: bool = False, create: bool = False) -> None:
        self.path = folder
        self.place = str(folder)
        self._shared, self._engine = _joined(folder, readonly=readonly, create=create)
        self._leave = weakref.finalize(self, self._shared.leave, wait=False)
        self._leave.atexit = False
        self.readonly = readonly or self._engine.readonly

    def read(self) -> AbstractContextManager[Txn]:
        return self._used().read()

    def write(self, body: Callable[[Txn], T]) -> T:
        return self._written().write(body)

    def version(self) -> int:
        return self._used().version()

    def close(self) -> None:
        """Close the opening; in a forked child too, without harm to its parent."""
        if self._leave.detach() is not None:
            self._shared.leave(wait=True)

    def shared_state(self, make: Callable[[Engine], T]) -> T:
        return self._shared.state(make, self._used())

    def size_bytes(self) -> int:
        return self._used().size_bytes()

    def compact(self) -> None:
        """Rewrite the file. Raises: StoreLocked while another process has the database open."""
        self._written().compact()

    def refuse_damage(self) -> None:
        self._used().refuse_damage()

    def problems(self) -> list[str]:
        return self._used().problems()

    def _used(self) -> LmdbEngine:
        if not self._leave.alive:
            raise StoreError(f"{self.place}: closed", hint="open the database again")
        return self._engine

    def _written(self) -> LmdbEngine:
        engine = self._used()
        if self.readonly:
            raise opened_readonly(self.place)
        return engine


def _joined(folder: Path, *, readonly: bool, create: bool) -> tuple[_Shared, LmdbEngine]:
    """The engine of a folder with one user more: the open one, or a new one."""
    with translating(folder, OSError):
        stat, place = folder.stat(), folder.resolve()
    while True:
        with _lock:
            shared = _open.setdefault((stat.st_dev, stat.st_ino), _Shared())
        with shared.lock:
            shared.settle()
            engine = shared.engine
            if engine is not None and engine.was_replaced():
                with _lock:  # its users keep it; new openings get the new folder
                    if _open.get((stat.st_dev, stat.st_ino)) is shared:
                        del _open[stat.st_dev, stat.st_ino]
                continue
            if engine is None:
                engine = LmdbEngine(place, readonly=readonly, create=create)
            elif create:
                raise StoreError(f"{folder}: a database is there already")
            elif engine.readonly and not readonly:
                engine.allow_writing()
            shared.engine = engine
            shared.users += 1
            return shared, engine


class _Fork:
    """Locks that are held during a fork."""

    still: ExitStack
    engines: list[LmdbEngine]


def _before_fork() -> None:
    _lock.acquire()
    _Fork.still, _Fork.engines = ExitStack(), []
    for shared in list(_open.values()):
        if (engine := shared.engine) is not None:
            with suppress(StoreError):  # the child cannot open this folder then
                _Fork.still.enter_context(engine.still(_FORK_WAIT_S))
                _Fork.engines.append(engine)


def _after_fork() -> None:
    _Fork.still.close()
    _lock.release()


def _after_fork_in_child() -> None:
    _after_fork()
    _open.clear()
    for engine in _Fork.engines:
        engine.close()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
)
