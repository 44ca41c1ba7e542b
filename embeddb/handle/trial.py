"""The first calls as a measurement: two configurations take turns, and the faster one stays."""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.handle.served import Served

__all__ = ["TRIED", "Trial"]

#: Calls of each; the first one warms up and does not count.
TRIED = 4


@dataclass(slots=True, eq=False)
class Trial:
    """Rivals, the answer first, with the seconds of their calls. An answer from other machines'
    runs may be wrong here by a factor of two, and calls that have to be made anyway show it."""

    rivals: tuple[tuple[Served, Config], tuple[Served, Config]]
    _seconds: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def compute(self, b: Any, c: Any, out: Any) -> NDArray[Any]:
        """As `Served.compute`, by the one whose turn it is."""
        with self._lock:
            at = int(len(self._seconds[0]) > len(self._seconds[1]))
        start = time.perf_counter()
        made = self.rivals[at][0].compute(b, c, out)
        with self._lock:
            self._seconds[at].append(time.perf_counter() - start)
        return made

    @property
    def over(self) -> bool:
        """Whether both were tried often enough."""
        return min(map(len, self._seconds)) >= TRIED

    @property
    def winner(self) -> tuple[Served, Config]:
        """The faster one."""
        first, second = self._medians()
        return self.rivals[int(second < first)]

    def told(self) -> str:
        """One line: who won, and by how much."""
        took, (_, won), names = self._medians(), self.winner, [str(c) for _, c in self.rivals]
        return (
            f"first calls tried two: {names[0]} {1e3 * took[0]:.3f} ms, {names[1]} "
            f"{1e3 * took[1]:.3f} ms; {won} stays"
        )

    def _medians(self) -> tuple[float, float]:
        first, second = (statistics.median(of[1:]) for of in self._seconds)
        return first, second
