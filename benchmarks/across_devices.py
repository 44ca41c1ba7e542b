"""SpMV formats on devices of others: each device left out, then with 1 to 20 of its own matrices.

    python benchmarks/across_devices.py SHARED_RUNS > benchmarks/results/across_devices.json

SHARED_RUNS has `spmv-research/runs.csv.xz`: 53 matrices of known size, float64, 3 to 11 formats on
each of six CPUs and three GPUs, some on one device only. Folds hold out matrices everywhere, three
seeds. Rows are those of `embeddb eval --across`; nothing is measured, so the figures repeat.
"""

from __future__ import annotations

import csv
import json
import lzma
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from machine import about

from embeddb.core.config import Op
from embeddb.database import Database
from indexer.index_runs import index_runs
from indexer.readers.base.row import ReadOptions
from tuners.evaluation.across import evaluate_across

#: The default of each kind of device, and the devices.
KINDS = {
    "cpus": ("Naive_CSR_CPU", ("epyc", "altra", "power9", "xeon")),
    "gpus": ("cuSPARSE_csr11", ("a100", "v100", "p100")),
}
CURVE, SEEDS = (0, 1, 2, 5, 10, 20), (0, 1, 2)


def main(folder: Path) -> None:
    with lzma.open(folder / "spmv-research/runs.csv.xz", "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    found = [row for kind in KINDS for row in rows_of(kind, rows)]
    print(json.dumps({"about": about(), "rows": found}, indent=1))


def rows_of(kind: str, rows: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
    """Rows of the evaluation of one kind of device."""
    default, devices = KINDS[kind]
    own = [row for row in rows if row["device"].startswith(devices)]
    with tempfile.TemporaryDirectory() as home, Database.create(Path(home) / "db") as db:
        log, toml = Path(home) / "runs.csv", Path(home) / "platform.toml"
        with log.open("w", newline="") as file:
            table = csv.DictWriter(file, list(own[0]))
            table.writeheader()
            table.writerows(own)
        formats = json.dumps(sorted({row["format"] for row in own}))
        toml.write_text(
            f'name = "{kind}"\nversion = "1"\ntitle = "SpMV formats"\nportable = true\n'
            f'[[space]]\nkernels = ["spmv"]\n[space.params]\n'
            f'format = {{ type = "choice", values = {formats} }}\n'
            f'[space.default]\nformat = "{default}"\n'
        )
        options = ReadOptions(op=Op.parse("spmv:f64"))
        index_runs(db.index, [log], platform=str(toml), options=options)
        found = evaluate_across(db.index, curve=CURVE, seeds=SEEDS)
        return [{"kind": kind, **row.document()} for row in found]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
