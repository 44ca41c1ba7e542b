"""Puts what run.sh brought back into one table per kind of row.

    collect.py OUT SESSION=FOLDER…

FOLDER is a run's $OUT, SESSION a number that its rows get. Written to OUT: runs.csv.xz (float32),
types.csv.xz (double, half, bfloat16), cusparse.csv.xz (all types), facts.json. Nothing is left out:
configurations that did not run keep a status and no times.
"""

from __future__ import annotations

import csv
import io
import json
import lzma
import sys
from collections.abc import Iterator
from pathlib import Path

from space import PARAMETERS, Config, published

#: Columns of driver.cpp's rows.csv; times in ns.
ROW = ("matrix", "op", "dtype", "id", "status", "a", "b", "c", "error")
OWN = ("matrix", "op", *PARAMETERS, "times_us", "status", "error", "dtype", "session")
LIBRARY = ("matrix", "op", "algorithm", "times_us", "status", "error", "dtype", "session")


def measured(folder: Path) -> Iterator[dict[str, str]]:
    with lzma.open(folder / "run/rows.csv.xz", "rt", newline="") as f:
        for row in csv.DictReader(f, ROW):
            times = [f"{int(row.pop(c)) / 1000:.3f}" for c in "abc" if row[c]]
            for c in "abc":
                row.pop(c, None)
            yield row | {"times_us": ";".join(times)}


def configs_of(folder: Path) -> dict[str, Config]:
    with (folder / "configs.csv").open(newline="") as f:
        return {row.pop("id"): {k: v for k, v in row.items() if v} for row in csv.DictReader(f)}


def facts_of(folder: Path) -> dict[str, object]:
    file = folder / "facts.json"
    facts: dict[str, object] = json.loads(file.read_text()) if file.exists() else {}
    pairs = (line.split() for line in (folder / "facts.txt").read_text().splitlines())
    return facts | {"driver": {name: float(value) for name, value in pairs}}


def write(path: Path, columns: tuple[str, ...], rows: list[Config]) -> None:
    text = io.StringIO()
    table = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
    table.writeheader()
    table.writerows(rows)
    path.write_bytes(lzma.compress(text.getvalue().encode(), preset=6))


def main(out: str, *sessions: str) -> None:
    target = Path(out)
    target.mkdir(parents=True, exist_ok=True)
    tables: dict[str, list[Config]] = {"runs": [], "types": [], "cusparse": []}
    facts = {}
    for argument in sessions:
        session, _, name = argument.partition("=")
        folder = Path(name)
        configs = configs_of(folder)
        for row in measured(folder):
            row["session"] = session
            if row["id"] in configs:
                table = "runs" if row["dtype"] == "f32" else "types"
                tables[table].append(row | published(row["op"], configs[row["id"]]))
            else:
                tables["cusparse"].append(row | {"algorithm": row["id"]})
        facts[session] = facts_of(folder)
    for name, rows in tables.items():
        write(target / f"{name}.csv.xz", LIBRARY if name == "cusparse" else OWN, rows)
    (target / "facts.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
