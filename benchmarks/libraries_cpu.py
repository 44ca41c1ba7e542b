"""Our best and our first five answers against other libraries, on the same matrices.

    python benchmarks/libraries_cpu.py DATABASE MATRICES [MATRICES_PER_OP] \
        > benchmarks/results/libraries_cpu.json

DATABASE holds the measured dataset; answers come from it with the family of the matrix held out.
For every matrix all libraries, the default, the five answers and the best known configuration are
run in shuffled rounds in one process on all cores (scipy has one thread only), and the medians of
the rounds compared. Libraries that are not installed are missing from the result.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from machine import about

from embeddb.core.config import Config, Op
from embeddb.database import Database
from embeddb.matrix_files import read_pattern
from embeddb.ranking.fallback import answer
from indexer.runners.base import RunOptions
from indexer.runners.cpu import CpuRunner
from tuners.evaluation.bench import Bench

_ROUNDS = 3
_OPTIONS = RunOptions(repeats=5, max_repeats=25, min_time_s=0.02)


def questions(
    db: Database, op: Op, scope: str, count: int
) -> Iterator[tuple[str, Config, list[Config], Config]]:
    """Name of a matrix, default, five answers, best known; spread over sizes by a fixed draw."""
    bench = Bench(db.index, op, scope)
    chosen = set(np.random.default_rng(0).permutation(bench.counted)[:count].tolist())
    for row, query in bench.queries(5, 0):
        if row in chosen:
            times = bench.evidence.times(row)
            best = bench.evidence.configs[int(np.nanargmin(times))]
            found = answer(query, 5)
            yield (
                query.pattern.name,
                query.default,
                [Config(c.config) for c in found.candidates],
                best,
            )


def seconds(runner: CpuRunner, pattern: Any, op: Op, configs: list[Config]) -> dict[Any, float]:
    """Median over rounds, by configuration and library; what failed is absent."""
    taken: dict[Any, list[float]] = defaultdict(list)
    rng = np.random.default_rng(0)
    for _ in range(_ROUNDS):
        order = [configs[i] for i in rng.permutation(len(configs))]
        for config, m in runner.run(pattern, op, order, options=_OPTIONS):
            if m.ok:
                taken[config].append(m.seconds)
        for name, m in runner.baselines(pattern, op, options=_OPTIONS).items():
            if m.ok:
                taken[name].append(m.seconds)
    return {key: float(np.median(values)) for key, values in taken.items()}


def main(database: Path, matrices: Path, count: int) -> None:
    result: dict[str, Any] = {"about": about(), "ops": {}}
    with Database.open(database, readonly=True) as db, CpuRunner() as runner:
        for op, scope in db.index.scopes():
            logs: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
            for name, default, five, best in questions(db, op, scope, count):
                print(op, name, file=sys.stderr)
                pattern = read_pattern(matrices / f"{name}.npz")
                configs = list(dict.fromkeys([default, *five, best]))
                took = seconds(runner, pattern, op, configs)
                first = took.get(five[0], np.inf)
                ours = (
                    min(took[c] for c in configs if c in took),
                    min(took.get(c, np.inf) for c in five),
                    first,
                )
                for key, value in took.items():
                    if isinstance(key, str) or key == default:
                        label = key if isinstance(key, str) else "our default"
                        logs[label].append(tuple(float(np.log(value / t)) for t in ours))
            result["ops"][str(op)] = {
                label: {
                    "matrices": len(held),
                    **{
                        f"over_{what}": float(np.exp(np.mean([x[i] for x in held])))
                        for i, what in enumerate(("best", "first_five", "first"))
                    },
                    "faster_than_first_five": sum(x[1] < 0 for x in held),
                }
                for label, held in sorted(logs.items())
            }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 60)
