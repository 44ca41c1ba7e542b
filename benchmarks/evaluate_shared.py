"""The evaluation table on other groups' measurements: ginkgo, LCM, RA-SpMM.

    python benchmarks/evaluate_shared.py SHARED_RUNS_FOLDER > benchmarks/results/eval_shared.json

Whole groups are held out, 5 folds, 3 seeds; nothing is measured here, so the figures repeat.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from machine import about

from embeddb.database import Database
from indexer.embed import embed
from indexer.ingest import ingest
from indexer.readers.base.row import ReadOptions
from tuners.evaluation.evaluate import evaluate

LOGS = (
    "ginkgo/spmv_times.csv.gz",
    "lcm/spmm_tiles_niagara.csv.gz",
    "lcm/spmv_ddt_niagara.csv.gz",
    "ra-spmm/rtx3090_sweep.csv",
    "ra-spmm/rtx3090_unseen_sweep.csv",
)


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as home, Database.create(Path(home) / "db") as db:
        for log in LOGS:
            features = folder / "ginkgo/matrix_features.csv.gz" if "ginkgo" in log else None
            ingest(db.store, folder / log, options=ReadOptions(features=features))
        started = time.perf_counter()
        embed(db.index)
        indexed = time.perf_counter()
        rows = evaluate(
            db.index, progress=lambda what, at, of: print(what, at, of, file=sys.stderr)
        )
        result = {
            "about": about(),
            "runs": db.store.count_runs(),
            "index_s": indexed - started,
            "evaluate_s": time.perf_counter() - indexed,
            "rows": [row.document() for row in rows],
        }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
