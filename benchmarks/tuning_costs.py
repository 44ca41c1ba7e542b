"""What a run costs when a matrix is tuned, for `benchmarks/tuning_replay.py`.

    python benchmarks/tuning_costs.py MATRIX.npz [...] [--op spmm:128 ...] [--configs 12]
        > benchmarks/results/tuning_costs.json

Of configurations drawn by chance: `compile_s`, the median of the processor's seconds that compiling
a kernel takes (not the clock's, so that others on the machine count less); then, all compiled and
in the scheduler's real-time class where that is allowed, `overhead_s`, the median of what a run
takes beside converting and calls. `calls_beside` are calls of a kernel beside the
repeats: the one that is checked, and two that warm up.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from machine import about

from embeddb.core.config import Op
from embeddb.core.records import PatternInfo
from embeddb.matrix_files import read_pattern
from embeddb.platforms.of_subject import space_of
from embeddb.platforms.platform import load_platform, platform_here, runner_for
from tuners.tune_matrix import MatrixTuneRequest

CALLS_BESIDE = 3


def compiled(runner: Any, op: Op, configs: list[Any]) -> list[float]:
    """Seconds of the processor, of each configuration whose kernel is new."""
    found = []
    for config in configs:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        runner.prepare(op, [config])
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if took > 0.01:
            found.append(took)
    return found


def real_time() -> bool:
    """From here on, the worker too, which is not started yet."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        return False
    return True


def overhead(runner: Any, pattern: Any, op: Op, configs: list[Any]) -> list[float]:
    options, found, converted = MatrixTuneRequest().options, [], set[float | None]()
    begun = time.perf_counter()
    for _, m in runner.run(pattern, op, configs, options=options):
        took = time.perf_counter() - begun
        if m.ok:
            # A form that is there already tells the seconds that it took then.
            fresh = 0.0 if m.conversion_s in converted else m.conversion_s or 0.0
            converted.add(m.conversion_s)
            found.append(max(took - fresh - sum(m.times_s) - CALLS_BESIDE * m.seconds, 0.0))
        begun = time.perf_counter()
    return found[1:]  # the first brings the matrix there


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("matrices", nargs="+", type=Path)
    parser.add_argument("--op", action="append", default=[])
    parser.add_argument("--configs", type=int, default=12)
    asked = parser.parse_args()
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()
    runner = runner_for(load_platform("cpu"))
    here = platform_here(runner, threads=0)
    ops = [Op.parse(text) for text in asked.op or ["spmm:128", "spmv", "spmm:32", "sddmm:128"]]
    patterns = [read_pattern(file) for file in asked.matrices]
    rows, drawn, took = {}, {}, {}
    for op in ops:
        space = space_of(here, op, PatternInfo.of(patterns[0]))
        drawn[op] = space.sample(asked.configs, rng=np.random.default_rng(0))
        took[op] = compiled(runner, op, drawn[op])
    alone = real_time()
    for op in ops:
        configs, compile_s = drawn[op], took[op]
        beside = [s for pattern in patterns for s in overhead(runner, pattern, op, configs)]
        rows[str(op)] = {
            "compile_s": round(statistics.median(compile_s), 4),
            "overhead_s": round(statistics.median(beside), 4),
            "overhead_s_range": [round(min(beside), 4), round(max(beside), 4)],
            "calls_beside": CALLS_BESIDE,
            "kernels": len(compile_s),
        }
    head = {"machine": about(), "platform": here.id, "real_time": alone}
    print(json.dumps({**head, "ops": rows}, indent=1))


if __name__ == "__main__":
    main()
