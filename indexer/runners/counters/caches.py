"""Geometry of the simulated caches: given, or this machine's."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

_MACHINE = Path("/sys/devices/system/cpu/cpu0/cache")


class Level(NamedTuple):
    """One cache: how many sets, and how many lines in each."""

    sets: int
    ways: int


@dataclass(frozen=True, slots=True)
class Caches:
    """Three levels of data caches; L1 and L2 belong to one thread, L3 to all of them."""

    l1: Level
    l2: Level
    l3: Level
    line_bytes: int = 64

    def sliced(self, threads: int) -> Caches:
        """With the part of L3 that one of so many threads has."""
        return replace(self, l3=self.l3._replace(sets=max(1, self.l3.sets // threads)))

    @property
    def last_bytes(self) -> int:
        """Bytes of the last level."""
        return self.l3.sets * self.l3.ways * self.line_bytes

    def __str__(self) -> str:
        levels = (self.l1, self.l2, self.l3)
        return "+".join(f"{c.sets * c.ways * self.line_bytes >> 10}K/{c.ways}" for c in levels)


#: Default where the system describes no caches: 32 KiB, 1 MiB and 32 MiB.
PLAIN = Caches(Level(64, 8), Level(1024, 16), Level(32768, 16))


def caches_here(folder: Path = _MACHINE) -> Caches:
    """The caches of the first processor as described by the system, else `PLAIN`."""
    levels: dict[str, Level] = {}
    line = PLAIN.line_bytes
    for index in sorted(folder.glob("index[0-9]*")):
        if _text(index / "type") not in ("Data", "Unified"):
            continue
        sets, ways, bytes_ = (
            _number(index / name)
            for name in ("number_of_sets", "ways_of_associativity", "coherency_line_size")
        )
        if 0 < sets <= 1 << 24 and 0 < ways <= 64 and 16 <= bytes_ <= 256:
            levels[_text(index / "level")] = Level(sets, ways)
            line = bytes_
    if "1" not in levels or "2" not in levels:
        return PLAIN
    # Without a third level, what misses the second goes to memory: a cache of one line.
    return Caches(levels["1"], levels["2"], levels.get("3", Level(1, 1)), line)


def _number(path: Path) -> int:
    text = _text(path)
    return int(text) if re.fullmatch(r"\d{1,9}", text) else 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
