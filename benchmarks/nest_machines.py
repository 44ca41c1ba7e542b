"""What a user of a new machine meets: each machine of a database of loop nests held out whole, then
some of its nests given back.

    python benchmarks/nest_machines.py starter MORE.db > benchmarks/results/nest_machines.json

The rows are those of `embeddb eval DB --op nest --across`, at fewer steps, for each database, so
that one with a machine more can be compared with one without. Nothing is measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from machine import about

from embeddb.core.config import Op
from embeddb.database import open_database
from tuners.evaluation.across import evaluate_across

SCOPES = [(Op("nest"), "nest-cpu")]


def told(_: str, at: int, total: int) -> None:
    print(f"{at} of {total}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dbs", nargs="+", metavar="DB")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--platform", action="append", default=[], help="This instance alone.")
    parser.add_argument("--curve", type=int, nargs="+", default=[0, 5, 20])
    asked = parser.parse_args()
    found = {}
    for path in asked.dbs:
        with open_database(path, readonly=True) as db:
            rows = evaluate_across(
                db.index,
                scopes=SCOPES,
                instances=asked.platform,
                curve=asked.curve,
                seeds=range(asked.seeds),
                progress=told,
            )
        found[Path(path).stem] = [row.document() for row in rows]
    print(json.dumps({"machine": about(), "seeds": asked.seeds, "databases": found}, indent=1))


if __name__ == "__main__":
    main()
