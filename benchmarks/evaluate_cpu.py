"""The evaluation table on our own CPU runs: all matrices, and those whose complete grid ran.

    python benchmarks/evaluate_cpu.py DATABASE > benchmarks/results/eval_cpu.json

DATABASE is the starter database. Whole matrix families are held out, 5 folds, 3 seeds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from machine import about

from embeddb.core.errors import NothingFound
from embeddb.database import Database
from tuners.evaluation.evaluate import EvalOptions, evaluate

#: Fewer complete matrices than this say little about families that are held out.
_FEWEST_COMPLETE = 50


def main(database: Path) -> None:
    result: dict[str, Any] = {"about": about()}
    with Database.open(database, readonly=True) as db:
        for name, complete in (("rows", False), ("complete", True)):
            try:
                rows = evaluate(db.index, EvalOptions(complete=complete), progress=_told)
            except NothingFound:
                rows = []
            least = _FEWEST_COMPLETE if complete else 0
            result[name] = [row.document() for row in rows if row.matrices >= least]
    print(json.dumps(result, indent=1))


def _told(what: str, at: int, of: int) -> None:
    print(what, at, of, file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
