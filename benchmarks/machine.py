"""What a result file says about where it was made."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def about() -> dict[str, Any]:
    """CPU, cores, load, Python, and the commit with a mark if the tree had changes."""
    import os

    info = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    cpu = next((x.split(":", 1)[1].strip() for x in info.splitlines() if "model name" in x), "?")
    commit = _git("rev-parse", "--short=10", "HEAD")
    if _git("status", "--porcelain", "--", ":!benchmarks/results"):
        commit += " with changes"
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "command": " ".join(["python", *(_shown(arg) for arg in sys.argv)]),
        "commit": commit,
    }


def _shown(arg: str) -> str:
    """Without folders that exist on this machine only."""
    return Path(arg).name if Path(arg).is_absolute() else arg


def _git(*args: str) -> str:
    done = subprocess.run(["git", *args], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


if __name__ == "__main__":
    print(json.dumps(about()))
