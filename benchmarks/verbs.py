"""What whole commands cost in two trees of embeddb, taking turns: seconds of the processor.

    python benchmarks/verbs.py SHARED BEFORE AFTER [--rounds 7] > benchmarks/results/verbs.json

SHARED has `runs/` and `matrices/`. Each tree needs its own starter (imported here, not counted).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import about

LOG = "runs/lcm/spmm_tiles_niagara.csv.gz"
EXPORT = "runs/cpu-zen3/runs.jsonl.gz"
MATRIX = "matrices/4elt.npz"
#: By name: the words of the command; `{db}` is a new database of that round.
VERBS = {
    "query": ["query", "starter", "{shared}/" + MATRIX, "--platform", "cpu", "--op", "spmm:128"],
    "ingest": ["ingest", "{db}", "{scratch}/log.csv.gz", "--format", "lcm"],
    "index": ["index", "{db}", "{scratch}/log.csv.gz", "--format", "lcm"],
    "db import": ["db", "import", "{db}", "{scratch}/export.jsonl.gz"],
}


def cpu_seconds(tree: Path, home: Path, words: list[str]) -> float:
    """User and system time of one command and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    env = {**os.environ, "PYTHONPATH": str(tree), "EMBEDDB_HOME": str(home)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # modules are compiled once, as for everybody
    command = [sys.executable, "-m", "embeddb.ui.cli.main", *words]
    done = subprocess.run(command, env=env, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def timed(shared: Path, trees: dict[str, Path], homes: Path, rounds: int) -> dict[str, object]:
    found: dict[str, dict[str, list[float]]] = {v: {t: [] for t in trees} for v in VERBS}
    for number in range(rounds + 1):
        for verb, words in VERBS.items():
            for name in sorted(trees, reverse=number % 2 == 1):
                with tempfile.TemporaryDirectory() as scratch:
                    shutil.copy(shared / LOG, Path(scratch) / "log.csv.gz")
                    shutil.copy(shared / EXPORT, Path(scratch) / "export.jsonl.gz")
                    db = f"{scratch}/x.db"
                    if verb == "ingest":
                        cpu_seconds(trees[name], homes / name, ["init", db])
                    filled = [w.format(db=db, shared=shared, scratch=scratch) for w in words]
                    seconds = cpu_seconds(trees[name], homes / name, filled)
                if number:  # the first round warms caches
                    found[verb][name].append(round(seconds, 3))
    return {verb: summary(found[verb]) for verb in VERBS}


def summary(times: dict[str, list[float]]) -> dict[str, object]:
    pairs = zip(times["after"], times["before"], strict=True)
    return {
        "before_s": statistics.median(times["before"]),
        "after_s": statistics.median(times["after"]),
        "ratio": round(statistics.median(a / b for a, b in pairs), 3),
        "all": times,
    }


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("shared", type=Path)
    ask.add_argument("before", type=Path)
    ask.add_argument("after", type=Path)
    ask.add_argument("--homes", type=Path, help="keeps the two starters, in `before` and `after`")
    ask.add_argument("--rounds", type=int, default=7)
    asked = ask.parse_args()
    trees = {"before": asked.before.resolve(), "after": asked.after.resolve()}
    with tempfile.TemporaryDirectory() as made:
        homes = (asked.homes or Path(made)).resolve()
        verbs = timed(asked.shared.resolve(), trees, homes, asked.rounds)
    print(json.dumps({"about": about(), "verbs": verbs}, indent=1))


if __name__ == "__main__":
    main()
