"""Progress of long tasks, and reports of what they did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Called with a task's name, the number of items done and their total (0: not known).
Progress = Callable[[str, int, int], None]


def ignore_progress(task: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


class Report:
    """Base of dataclasses with `slots` that count what a task did."""

    __slots__ = ()

    def document(self) -> dict[str, Any]:
        """Its fields as plain values, by name."""
        names: tuple[str, ...] = self.__slots__
        return {name: getattr(self, name) for name in names}
