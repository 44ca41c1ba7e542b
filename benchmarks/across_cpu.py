"""Machines held out, by replay: `embeddb eval --across` on the starter, written to a file.

python benchmarks/across_cpu.py DATABASE OUT [INSTANCE ...]

Every instance is left out in turn, or the named ones.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from machine import about

from embeddb.core.config import Op
from embeddb.database import Database
from tuners.evaluation.across import evaluate_across

_OPS = ("spmm:32", "spmm:128", "spmv")


def main() -> None:
    place, out, *instances = sys.argv[1:]
    with Database.open(place, readonly=True) as db:
        names = {
            i: dict(p.environment) for i in db.store.platforms() if (p := db.store.platform(i))
        }
        keep = ("cpu", "compiler", "threads", "flags")
        told = {i: {k: v for k, v in facts.items() if k in keep} for i, facts in names.items()}
        rows = []
        for op in _OPS:
            scope = [(Op.parse(op), "cpu")]
            rows += evaluate_across(db.index, scopes=scope, instances=instances, seeds=(0,))
            body = {"machine": about(), "instances": told, "rows": [r.document() for r in rows]}
            Path(out).write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
            print(op, flush=True)


if __name__ == "__main__":
    main()
