"""Progress callbacks of long tasks, and reports of their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Called with a task's name, the number of items done and their total (0: not known).
Progress = Callable[[str, int, int], None]


#: Called with one line.
Announce = Callable[[str], None]


def ignore_progress(task: str, done: int, total: int) -> None:
    """No-op progress callback."""


def ignore_message(message: str) -> None:
    """No-op callback for lines."""


class Report:
    """Base of dataclasses with `slots` that count what a task did."""

    __slots__ = ()

    def document(self) -> dict[str, Any]:
        """The fields as plain values, by name."""
        names: tuple[str, ...] = self.__slots__
        return {name: getattr(self, name) for name in names}
