"""Concurrency: open reads of one process, and one writer over all processes."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from embeddb.core.errors import StoreError, StoreLocked
from embeddb.core.files.safe_write import open_own
from embeddb.store.failures import translating

_POLL_S = 0.005
#: Concurrent reads of one process: each takes a slot of LMDB's table of readers, which has 512 for
#: all processes.
_MOST_READS = 64


class ReadGate:
    """Counter and limit of the open reads of this process, so that the data is not moved during one
    and any number of threads may request one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers: list[int] = []
        self._closed = False

    def enter(self) -> int:
        thread = threading.get_ident()
        with self._changed:
            # A thread that is inside already may enter again: the gate waits for it.
            self._changed.wait_for(lambda: self._open or thread in self._readers)
            self._readers.append(thread)
        return thread

    @property
    def _open(self) -> bool:
        return not self._closed and len(self._readers) < _MOST_READS

    def leave(self, thread: int) -> None:
        with self._changed:
            self._readers.remove(thread)
            self._changed.notify_all()

    def refuse_own_read(self) -> None:
        """Refuse a write inside a read of the same thread: it may have to wait for that one."""
        if threading.get_ident() in self._readers:
            raise StoreError("a write inside a read of the same thread", hint="end the read first")

    @contextmanager
    def alone(self, wait_s: float) -> Iterator[None]:
        """Wait for the open reads to end; new ones wait until this context ends."""
        self.refuse_own_read()
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._closed = True
            try:
                if not self._changed.wait_for(lambda: not self._readers, wait_s):
                    raise StoreLocked(
                        f"a read in this process has not ended for {wait_s:g} s",
                        hint="end it, then try again",
                    )
                yield
            finally:
                self._closed = False
                self._changed.notify_all()


def take_lock(fd: int, kind: int, wait_s: float) -> bool:
    """`flock` with a timeout of `wait_s`; return true if it succeeded."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)


@contextmanager
def locked_file(path: Path, wait_s: float) -> Iterator[None]:
    """Hold the file `path` exclusively, with the holder's process id in it.

    LMDB serialises writers itself but waits for ever; this waits `wait_s` and names the holder.

    Raises: StoreLocked if another process (or thread) holds it that long; StoreError where a link
    or another file type is in its place.
    """
    with translating(path.parent, OSError):
        lock = open_own(path, "a+b")
    with lock:
        fd = lock.fileno()
        if not take_lock(fd, fcntl.LOCK_EX, wait_s):
            pid = os.pread(fd, 20, 0).decode("ascii", "replace") or "?"
            raise StoreLocked(
                f"{path.parent}: process {pid} is writing since {wait_s:g} s or more",
                hint="wait for it or end it, then try again",
            )
        with suppress(OSError):  # a full disk must not prevent a write that frees space
            os.ftruncate(fd, 0)
            os.write(fd, str(os.getpid()).encode())
        yield
