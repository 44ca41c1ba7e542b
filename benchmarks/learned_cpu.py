"""Cost models against neighbours, averages and boosted trees on our own CPU runs.

    python benchmarks/learned_cpu.py DATABASE PARTS > benchmarks/results/learned_cpu.json

DATABASE is the starter database. Whole matrix families are held out, 5 folds, 3 seeds; every model
learns anew in every fold, and the weight of a model against the neighbours' vote is chosen on the
training families. One line for each op and seed goes to the folder PARTS as soon as it is known;
started again it goes on with what is missing. `--rounds CAMPAIGN` (several times) adds the ceiling
of the noise: configurations chosen by one round of a campaign and judged by the next.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
from machine import about

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound
from embeddb.database import Database
from indexer.campaign.folder import Campaign
from tuners.evaluation.evaluate import EvalOptions, evaluate
from tuners.evaluation.figures import Truth, judge
from tuners.evaluation.learned_rankers import learned_rankers

#: Fewer complete matrices than this say little about families that are held out.
_FEWEST_COMPLETE = 50
#: Two rounds with fewer configurations in common have no winner to speak of.
_FEWEST_COMMON = 30

Unit = tuple[str, str, bool, int]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("database", type=Path)
    parser.add_argument("parts", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--op", action="append", help="only these")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=Path, action="append", default=[])
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes below: one core each
    asked.parts.mkdir(parents=True, exist_ok=True)
    with Database.open(asked.database, readonly=True) as db:
        scopes = [
            (str(op), s) for op, s in db.index.scopes() if not asked.op or str(op) in asked.op
        ]
    units = [
        (op, scope, complete, seed)
        for seed in range(asked.seeds)
        for op, scope in scopes
        for complete in (False, True)
    ]
    missing = [unit for unit in units if not _file(asked.parts, unit).exists()]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(asked.processes, mp_context=context) as pool:
        running = {pool.submit(judge_unit, asked.database, asked.parts, u): u for u in missing}
        for at, done in enumerate(as_completed(running), 1):
            took_s = done.result()
            print(f"{at} of {len(missing)}: {running[done]}, {took_s:.0f} s", file=sys.stderr)
    parts = [json.loads(_file(asked.parts, unit).read_text()) for unit in units]
    result = {
        "about": about(),
        "rows": averaged(p for p in parts if not p["complete"]),
        "complete": averaged(p for p in parts if p["complete"]),
        "ceiling": ceilings(asked.rounds),
    }
    print(json.dumps(result, indent=1))


def _file(parts: Path, unit: Unit) -> Path:
    op, scope, complete, seed = unit
    which = "complete" if complete else "all"
    return parts / f"{op.replace(':', '-')}_{scope}_{which}_{seed}.json"


def judge_unit(database: Path, parts: Path, unit: Unit) -> float:
    """Writes the table of one op and seed; returns the seconds it took."""
    op, scope, complete, seed = unit
    started = time.perf_counter()
    with Database.open(database, readonly=True) as db:
        try:
            rows = evaluate(
                db.index,
                EvalOptions(seeds=(seed,), complete=complete),
                scopes=[(Op.parse(op), scope)],
                rankers=learned_rankers(),
                note=lambda text: print(text, file=sys.stderr),
            )
        except NothingFound:
            rows = []
    took_s = time.perf_counter() - started
    least = _FEWEST_COMPLETE if complete else 0
    told = [row.document() for row in rows] if rows and rows[-1].matrices >= least else []
    found = {"complete": complete, "seed": seed, "took_s": took_s, "rows": told}
    new = _file(parts, unit).with_suffix(".new")
    new.write_text(json.dumps(found))
    new.replace(_file(parts, unit))
    return took_s


def averaged(parts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the same op, platform and method as one: the mean over seeds, and over them the
    spread of `of_optimum@1`."""
    held: dict[tuple[str, str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for part in parts:
        for row in part["rows"]:
            held[row["platform"], row["op"], row["method"]].append(row)
    return [{**rows[0], **_means(rows)} for rows in held.values()]


def _means(rows: list[Mapping[str, Any]]) -> dict[str, Any]:
    names = [n for n, v in rows[0].items() if isinstance(v, float) and n != "spread"]
    of_optimum = [row["of_optimum@1"] for row in rows]
    means = {n: float(np.mean([row[n] for row in rows])) for n in names}
    return {**means, "spread": max(of_optimum) - min(of_optimum), "seeds": len(rows)}


def ceilings(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """Of each campaign and op: chosen by round 0, judged by round 1."""
    found = []
    for folder in folders:
        campaign = Campaign(folder)
        rounds: dict[tuple[str, int], dict[int, dict[Config, float]]] = defaultdict(dict)
        for task in campaign.tasks():
            lines = campaign.lines(task)
            times = {c: m.seconds for c, m in lines.items() if math.isfinite(m.seconds)}
            rounds[task.op, task.matrix][task.round] = times
        lost: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for (op, _), by_round in rounds.items():
            first, second = by_round.get(0, {}), by_round.get(1, {})
            common = sorted(first.keys() & second.keys(), key=lambda c: (first[c], c.json))
            if len(common) >= _FEWEST_COMMON:
                truth = Truth({c: second[c] for c in common}, second[common[0]])
                outcome = judge(truth, common)
                lost[op].append((outcome.of_optimum_1, outcome.of_optimum_5))
        for op, values in lost.items():
            one, five = np.exp(np.mean(values, axis=0)).tolist()
            found.append(
                {"op": op, "matrices": len(values), "of_optimum@1": one, "of_optimum@5": five}
            )
    return found


if __name__ == "__main__":
    main()
