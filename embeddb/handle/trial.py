"""The first calls as a measurement: rivals take turns, and the fastest stays."""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.handle.served import Served

__all__ = ["TRIED", "Rival", "Trial"]

#: Calls of each; the first one warms up and does not count.
TRIED = 4
#: What computes, and its configuration; None for scipy.
Rival = tuple[Served, Config | None]


@dataclass(slots=True, eq=False)
class Trial:
    """Rivals, the answer first, with the seconds of their calls. An answer from other machines'
    runs may be wrong here by a factor of two, and calls that have to be made anyway show it."""

    rivals: tuple[Rival, ...]
    _seconds: tuple[list[float], ...] = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._seconds = tuple([] for _ in self.rivals)

    def compute(self, b: Any, c: Any, out: Any) -> NDArray[Any]:
        """As `Served.compute`, by the one whose turn it is."""
        with self._lock:
            made_by = [len(seconds) for seconds in self._seconds]
        at = made_by.index(min(made_by))
        start = time.perf_counter()
        made = self.rivals[at][0].compute(b, c, out)
        with self._lock:
            self._seconds[at].append(time.perf_counter() - start)
        return made

    @property
    def over(self) -> bool:
        """Whether all were tried often enough."""
        return min(map(len, self._seconds)) >= TRIED

    @property
    def winner(self) -> Rival:
        """The fastest one; of equals the first."""
        took = self._medians()
        return self.rivals[took.index(min(took))]

    def told(self) -> str:
        """One line: what each took, and who stays."""
        each = zip(map(_name, self.rivals), self._medians(), strict=True)
        tried = ", ".join(f"{name} {1e3 * took:.3f} ms" for name, took in each)
        return f"first calls tried {tried}; {_name(self.winner)} stays"

    def _medians(self) -> list[float]:
        return [statistics.median(of[1:]) for of in self._seconds]


def _name(rival: Rival) -> str:
    return "scipy" if rival[1] is None else str(rival[1])
