"""What the probe of the machine costs, and how far its figures spread.

    python benchmarks/probe_cpu.py benchmarks/results/probe_cpu.json [REPEATS]

Long form (facts, without their cache) and short form (state), both by way of the worker process,
one after the other, REPEATS times (20): milliseconds, and each figure's median, extremes and half
the relative range of the middle 80 %. `apart` are states against the one before and against the
median of all, in the unit whose limit is `embeddb.core.machine_state.APART`. The load is in the
result: figures of shared hosts spread with it. Also what a question pays: `CpuRunner.platform()`
in a process that asks for the first time, with facts kept.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from machine import about, spread

from embeddb.core.machine_state import APART, apart, usual
from indexer.runners.cpu import CpuRunner

_PLATFORM = """
import time
from indexer.runners.cpu import CpuRunner
from embeddb.platforms.platform import load_platform
load_platform("cpu")
start = time.perf_counter()
CpuRunner().platform()
print(time.perf_counter() - start)
"""


def timed(call: Callable[[], dict[str, float]]) -> tuple[float, dict[str, float]]:
    """Milliseconds, and what was told."""
    start = time.perf_counter()
    found = call()
    return 1e3 * (time.perf_counter() - start), found


def form(samples: Sequence[tuple[float, dict[str, float]]]) -> dict[str, Any]:
    """Time and figures of one form of the probe."""
    names = samples[0][1]
    return {
        "ms": _rounded(spread([ms for ms, _ in samples])),
        "figures": {name: _figure([told[name] for _, told in samples]) for name in names},
    }


def _figure(values: Sequence[float]) -> dict[str, float]:
    low, high = np.quantile(values, (0.1, 0.9))
    half = float(high - low) / (2 * float(np.median(values)))
    return {**_rounded(spread(values)), "half_range_80": round(half, 3)}


def _rounded(held: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in held.items()}


def distances(states: Sequence[dict[str, float]]) -> dict[str, Any]:
    """How far states taken one after the other are apart where nobody changed anything."""
    normal = usual(states)
    steps = [apart(one, other) or 0.0 for one, other in pairwise(states)]
    offs = [apart(state, normal) or 0.0 for state in states]
    return {
        "limit": APART,
        "to_the_one_before": _rounded(spread(steps)),
        "to_the_median": _rounded(spread(offs)),
        "beyond_the_limit": sum(far > APART for far in (*steps, *offs)),
    }


def first_platform_s() -> float:
    done = subprocess.run(
        [sys.executable, "-c", _PLATFORM], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def main(out: Path, repeats: int) -> None:
    with CpuRunner() as runner:
        runner.facts()  # compiled, and kept for the questions below
        first, _ = timed(runner.state)
        long, short = [], []
        for _ in range(repeats):
            long.append(timed(lambda: runner._probe(0, short=False)))
            short.append(timed(runner.state))
    result = {
        "about": about(),
        "environment": dict(CpuRunner().platform().environment),
        "repeats": repeats,
        "long": form(long),
        "short": {"first_ms": round(first, 1), **form(short)},
        "apart": distances([told for _, told in short]),
        "first_platform_ms": _rounded(spread([1e3 * first_platform_s() for _ in range(repeats)])),
    }
    out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 20)
