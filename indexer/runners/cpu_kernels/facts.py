"""The facts of this machine: those that can be read, and those measured once and then kept.

What was measured is a file per environment beside the compiled kernels, with a checksum, written
whole by a rename. One that is missing, damaged or of another probe is measured anew.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from embeddb.kernels import build as cpu_build
from indexer.runners.cpu_kernels import probe as cpu_probe

__all__ = ["keep", "kept", "still"]


@cache
def still() -> dict[str, str]:
    """Facts that need no measuring: processors, and the sizes in bytes of the caches that the first
    of them has. Empty of what the system does not tell."""
    found = {"processors": str(os.cpu_count() or 1)}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = (
                (folder / n).read_text().strip() for n in ("level", "type", "size")
            )
        except OSError:
            continue
        given = re.fullmatch(r"(\d+)([KM]?)", size)
        if kind != "Instruction" and given:
            scale = {"": 1, "K": 1 << 10, "M": 1 << 20}[given[2]]
            found[f"l{level}_bytes"] = str(int(given[1]) * scale)
    return found


def kept(identity: Mapping[str, str]) -> dict[str, str]:
    """What was measured before of an environment; empty if it was not, or its file is damaged."""
    try:
        held = json.loads(_file(identity).read_bytes())
        figures = {str(k): float(v) for k, v in held["figures"].items()}
        whole = held["sum"] == _sum(figures)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return _texts(figures) if whole else {}


def keep(identity: Mapping[str, str], figures: Mapping[str, float]) -> dict[str, str]:
    """Keep what was measured, and return it as facts. Where nothing can be written it is measured
    again another time."""
    path = _file(identity)
    body = json.dumps({"figures": dict(figures), "sum": _sum(figures)}).encode()
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(".tmp", ".facts-", path.parent)
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(body)
            Path(name).replace(path)
        finally:
            Path(name).unlink(missing_ok=True)
    return _texts(figures)


def _texts(figures: Mapping[str, float]) -> dict[str, str]:
    return {k: f"{v:g}" for k, v in figures.items() if k in cpu_probe.FACTS and 0 < v < math.inf}


def _file(identity: Mapping[str, str]) -> Path:
    # The probe is part of it: another one measures something else under the same names.
    parts = [f"{k}={identity[k]}" for k in sorted(identity)]
    parts.append(cpu_probe.source(cpu_build.vector_bytes()))
    key = hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
    return cpu_build.cache_folder() / f"{key}.facts"


def _sum(figures: Mapping[str, float]) -> str:
    text = json.dumps(dict(sorted(figures.items())))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
