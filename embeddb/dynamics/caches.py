"""Cache sizes: of the platform if its file says them, else of this machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embeddb.core.errors import InputError, NothingFound

__all__ = ["LINE_BYTES", "Cache", "caches_of"]

#: Both vendors of x86, and most others.
LINE_BYTES = 64
_MACHINE = Path("/sys/devices/system/cpu/cpu0/cache")
_SCALES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class Cache:
    """One level of data cache; `shared` if several cores use it."""

    level: int
    size_bytes: int
    shared: bool


def caches_of(traits: Mapping[str, Any], *, folder: Path = _MACHINE) -> tuple[Cache, ...]:
    """L1 to L3, from the traits `l1_bytes`, `l2_bytes`, `l3_bytes` of a platform if it has any
    (L3 is then taken as shared), else from the system's description of the first processor.

    Raises: NothingFound if neither names a cache; InputError for a trait that is no size.
    """
    stated = [(level, traits.get(f"l{level}_bytes", 0)) for level in (1, 2, 3)]
    for level, size in stated:
        number = isinstance(size, int | float) and not isinstance(size, bool)
        if not number or not (size == 0 or LINE_BYTES <= size <= 1 << 40):
            raise InputError(f"the trait l{level}_bytes = {size!r} is no size of a cache in bytes")
    found = tuple(Cache(level, int(size), level == 3) for level, size in stated if size)
    found = found or tuple(_machine(folder))
    if not found:
        raise NothingFound(
            "the sizes of the caches are not known",
            hint="give the platform file the traits l1_bytes, l2_bytes, l3_bytes",
        )
    return found


def _machine(folder: Path) -> list[Cache]:
    found = []
    for index in sorted(folder.glob("index[0-9]*")):
        read = {name: _text(index / name) for name in ("level", "type", "size", "shared_cpu_list")}
        size = re.fullmatch(r"(\d{1,12})([KMG]?)", read["size"])
        if read["type"] in ("Data", "Unified") and read["level"] in ("1", "2", "3") and size:
            shared = not read["shared_cpu_list"].isdigit()
            found.append(Cache(int(read["level"]), int(size[1]) * _SCALES[size[2]], shared))
    return sorted(found, key=lambda cache: cache.level)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
