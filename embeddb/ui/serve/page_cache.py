"""What is worth keeping between requests, for as long as the database stays as it is."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import TypeVar

from embeddb.core.errors import StoreError
from embeddb.store import Store
from embeddb.store.lmdb_engine import DATA_FILE

T = TypeVar("T")
RESTART = "start the server again once it is back"


def file_of(store: Store) -> os.stat_result | None:
    """Of the data file that is there now; None in memory and on a server.

    Raises: StoreError if there is none.
    """
    if store.path is None or store.shared:
        return None
    try:
        return (store.path / DATA_FILE).stat()
    except OSError:
        raise StoreError(f"{store.path.name} was removed", hint=RESTART) from None


class PageCache:
    """Values by key, dropped together when the token they were made under is another.

    At most `most` are kept, those used last. A value is made outside the lock: two threads may
    make the same one, neither waits for the other.
    """

    def __init__(self, token: Callable[[], Hashable], most: int = 512) -> None:
        self._token = token
        self._most = most
        self._now: Hashable = None
        self._held: OrderedDict[Hashable, object] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of a key as of now."""
        now = self._token()
        with self._lock:
            if now != self._now:
                self._held.clear()
                self._now = now
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]  # type: ignore[return-value]  # a key has one maker
        made = make()
        with self._lock:
            if now == self._now:
                self._held[key] = made
                while len(self._held) > self._most:
                    self._held.popitem(last=False)
        return made
