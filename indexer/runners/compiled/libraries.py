"""Shared objects in a worker process."""

from __future__ import annotations

import ctypes
from typing import Any

from numpy.typing import NDArray

__all__ = ["Libraries"]


class Libraries:
    """Shared objects that were loaded, by path."""

    def __init__(self) -> None:
        self._calls: dict[str, Any] = {}

    def call(
        self, path: str, which: int, arrays: list[NDArray[Any]], threads: int, times: int = 1
    ) -> float:
        """Seconds of one of so many calls of a function in it, with these arrays."""
        if path not in self._calls:
            function = ctypes.CDLL(path).embeddb_call
            function.restype = ctypes.c_double
            self._calls[path] = function
        pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
        told = (ctypes.c_int64(n) for n in (threads, times))
        return float(self._calls[path](ctypes.c_int64(which), pointers, *told))
