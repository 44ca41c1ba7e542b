"""Whether schedules hold at another size, and in another program: answers by replay of what
`embeddb nest measure` ran at several sizes.

    embeddb nest measure DB blur matmul ... --size small --size medium --size large
    python benchmarks/nest_sizes.py DB > benchmarks/results/nest_sizes.json

Every nest of the twelve applications of "Performance Embeddings" (Table 2) is asked about, at each
size, from four sets of measured nests: other programs at all sizes, other programs at the asked
size alone, other programs at other sizes alone, and all programs, its own too, at other sizes.
Figures are those of docs/evaluation.md for one program, their geometric mean over programs, and the
standard error of its logarithm over programs.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from machine import about
from numpy.typing import NDArray

from embeddb.core.config import Op
from embeddb.database import Database, open_database
from embeddb.index.answer_index import AnswerIndex
from embeddb.ranking.query import Query
from indexer.programs import SIZES, applications
from tuners.evaluation.bench import Bench
from tuners.evaluation.evaluate import Table

OP, SCOPE = Op("nest"), "nest-cpu"
KNOWN = ("other programs", "other programs, this size", "other programs and sizes", "other sizes")
METHODS = ("default", "random", "static-best", "knn-stats", "slot-copy", "embeddb", "oracle")
FIGURES = ("speedup@1", "speedup@5", "of_optimum@1", "of_optimum@5")


class OneProgram(Bench):
    """The nests of a program at a size are asked about, those that are `KNOWN` are learned from."""

    def __init__(self, db: Database, platform: str) -> None:
        super().__init__(db.index, OP, SCOPE, instance=platform)
        self.asked = self.known = np.zeros(0, dtype=np.int64)
        #: By the rows that are known, what is asked.
        self.made: dict[bytes, AnswerIndex] = {}

    def ask(self, program: str, size: str, known: str) -> None:
        named = [self.infos[row.pattern_id].name for row in self.evidence.rows]
        sized = np.array([name.endswith(f"_{size}") for name in named])
        own = self.evidence.groups == program
        kept = {
            "other programs": ~own,
            "other programs, this size": ~own & sized,
            "other programs and sizes": ~own & ~sized,
            "other sizes": ~sized,
        }[known]
        self.asked = np.intersect1d(self.counted, np.flatnonzero(own & sized))
        self.known = np.flatnonzero(kept)

    def folds(self, folds: int, seed: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        yield self.known, self.asked

    def queries_of(
        self, train: NDArray[np.int64], test: NDArray[np.int64]
    ) -> Iterator[tuple[int, Query]]:
        """As `Bench` does, with what several sizes or programs are asked from made once."""
        if train.tobytes() not in self.made:
            facts = {i: p.environment for i, p in self.platforms.items()}
            known = self.evidence.take(train).pruned()
            self.made[train.tobytes()] = AnswerIndex.build(
                known, self.vectors, scope=self.scope, facts=facts
            )
        for row in test:
            yield int(row), self.query(int(row), self.made[train.tobytes()])


def of_program(bench: OneProgram) -> dict[str, dict[str, float]]:
    """Figures by method."""
    rows = {row.method: row.figures for row in Table(bench).rows((0,), 1, None)}
    return {m: {f: float(rows[m][f]) for f in FIGURES} for m in METHODS if m in rows}


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By what is known and method, over the programs of `rows`; `against` is the logarithm of
    embeddb's figure less that of the same with other programs of all sizes known."""
    found: dict[str, Any] = {}
    base = {(r["size"], r["program"]): r["figures"] for r in rows if r["known"] == KNOWN[0]}
    for known in KNOWN:
        mine = [r for r in rows if r["known"] == known]
        told: dict[str, Any] = {"programs": len(mine)}
        for method in METHODS:
            having = [r["figures"][method] for r in mine if method in r["figures"]]
            told[method] = {f: mean_of([one[f] for one in having]) for f in FIGURES}
        told["against"] = {
            f: error_of(
                [
                    math.log(r["figures"]["embeddb"][f])
                    - math.log(base[r["size"], r["program"]]["embeddb"][f])
                    for r in mine
                ]
            )
            for f in FIGURES
        }
        found[known] = told
    return found


def mean_of(values: Sequence[float]) -> dict[str, float]:
    logs = error_of([math.log(value) for value in values])
    return {"mean": math.exp(logs["mean"]), "standard_error": logs["standard_error"]}


def error_of(values: Sequence[float]) -> dict[str, float]:
    spread = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return {"mean": statistics.mean(values), "standard_error": spread}


def measured(db: Database, platform: str) -> Iterator[dict[str, Any]]:
    bench = OneProgram(db, platform)
    for size in SIZES:
        for program in applications():
            for known in KNOWN:
                bench.ask(program, size, known)
                if not bench.asked.size:
                    continue
                print(size, program, known, file=sys.stderr)
                yield {
                    "size": size,
                    "program": program,
                    "known": known,
                    "nests": len(bench.asked),
                    "figures": of_program(bench),
                }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("db")
    parser.add_argument("--platform", default="", help="The instance asked about.")
    asked = parser.parse_args()
    with open_database(asked.db, readonly=True) as db:
        rows = list(measured(db, asked.platform))
    document = {
        "machine": about(),
        "all sizes": summary(rows),
        **{size: summary([r for r in rows if r["size"] == size]) for size in SIZES},
        "rows": rows,
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
