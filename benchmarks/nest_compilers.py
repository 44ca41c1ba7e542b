"""What the compiler makes of a loop nest by itself: the baselines of Table 2 of "Performance
Embeddings" that know no other nest.

    python benchmarks/nest_compilers.py DB [--rounds 5] [--all] \\
        > benchmarks/results/nest_compilers.json

Each nest of DB (of the paper's twelve applications; `--all`: of all programs) is compiled as it
stands, in one thread and as gcc's polyhedral optimiser (Graphite) and its automatic
parallelisation leave it, and run in rounds in which all of them and embeddb's default (the nest as
it stands, its outermost loop in parallel where that is legal) take turns. Gains are over that
default. Results are checked; what came out wrong or failed counts as gain 1, and is told.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from machine import about
from nests import known_nests

from embeddb.core.records import Measurement
from embeddb.database import open_database
from embeddb.kernels.build import threads_used
from embeddb.nests.check import canonical_schedule
from embeddb.nests.nest import Nest
from embeddb.nests.schedule import Schedule
from embeddb.platforms.platform import load_platform, this_machine
from indexer.programs import applications
from indexer.runners.base import RunOptions
from indexer.runners.harness.building import Built
from indexer.runners.harness.measuring import Measuring
from indexer.runners.nest import NestRunner
from indexer.runners.nest_code.job import MeasuredNest

GRAPHITE = ("-floop-nest-optimize",)
DEFAULT = "default"
#: Flags beside -O3 -ffast-math; whether the nest stands in parallel already.
WAYS = {
    DEFAULT: ((), True),
    "-O3, one thread": ((), False),
    "loop nests, one thread": (GRAPHITE, False),
    "loop nests, in parallel by gcc": (
        (*GRAPHITE, "-floop-parallelize-all", "-ftree-parallelize-loops={threads}"),
        False,
    ),
    "default, loop nests": (GRAPHITE, True),
}


class ByFlags(MeasuredNest):
    """A nest whose variants are the names of `WAYS`."""

    def __init__(self, nest: Nest, threads: int) -> None:
        super().__init__(nest)
        self._threads = threads

    def build(self, variants: Sequence[Any], folder: Path) -> dict[Any, Built]:
        still = Schedule(tuple(range(self.nest.depth)), (0,) * self.nest.depth)
        found = {}
        for name in variants:
            flags, parallel = WAYS[name]
            more = [flag.format(threads=self._threads) for flag in flags]
            schedule = canonical_schedule(self.nest) if parallel else still
            (found[name],) = super().build([schedule], folder, more).values()
        return found


def measured(runner: NestRunner, nest: Nest, rounds: int) -> dict[str, Measurement]:
    threads = threads_used(0)
    runner.next_subject()
    options = RunOptions(repeats=rounds, max_repeats=rounds)
    measuring: Measuring[str] = Measuring(
        ByFlags(nest, threads), runner.session, threads=threads, options=options
    )
    with measuring:
        measuring.begin(DEFAULT)
        return measuring.measure(list(WAYS))


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in WAYS:
        logs = [math.log(row["gain"][name]) for row in rows]
        found[name] = {
            "gain": math.exp(statistics.mean(logs)),
            "standard_error": statistics.stdev(logs) / math.sqrt(len(logs)),
            "best": math.exp(max(logs)),
            "worst": math.exp(min(logs)),
            "faster_by_5": sum(log > math.log(1.05) for log in logs),
            "status": dict(Counter(row["status"][name] for row in rows)),
        }
    best = [max(math.log(gain) for gain in row["gain"].values()) for row in rows]
    return {**found, "the best of these": {"gain": math.exp(statistics.mean(best))}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("db", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--all", action="store_true")
    asked = parser.parse_args()
    runner, here = this_machine(load_platform("nest-cpu"))
    assert isinstance(runner, NestRunner)
    with open_database(asked.db, readonly=True) as db:
        known = known_nests(db, here)
    wanted = set(applications())
    rows = []
    for one in known:
        if not asked.all and one.nest.group not in wanted:
            continue
        found = measured(runner, one.nest, asked.rounds)
        if not found[DEFAULT].ok:
            print(f"{one.nest.name}: {found[DEFAULT].error}", file=sys.stderr)
            continue
        base = found[DEFAULT].seconds
        rows.append(
            {
                "nest": one.nest.name,
                "program": one.nest.group,
                "default_s": base,
                "gain": {n: base / m.seconds if m.ok else 1.0 for n, m in found.items()},
                "status": {n: m.status for n, m in found.items()},
            }
        )
        print(json.dumps(rows[-1]["gain"]), one.nest.name, file=sys.stderr)
    document = {"machine": about(), "nests": len(rows), "summary": summary(rows), "rows": rows}
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
