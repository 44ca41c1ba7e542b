"""How often `high` answers are wrong and 80 % intervals hold, replayed from complete measurements.

    python benchmarks/confidence.py OUT DATABASE OP [OP ...] [--matrices 10] [--draws 8]
                                    [--asked 12] [--left-out INSTANCE [--from DATABASE]]

Each draw makes a database of the runs of a few matrices and asks `embeddb query` about matrices of
other families. Only configurations that ran on nearly every matrix count, so that the optimum of
each is known. With --left-out the drawn database has the runs of all machines but that one, whose
answers are judged by its own runs (of the database --from). Figures are added to OUT by database,
operation, number of matrices and machine; they repeat, for nothing is measured here.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.records import Run, WorkloadInfo
from embeddb.core.timing import summarise_runs
from embeddb.database import Database, open_database
from embeddb.platforms.platform import Platform
from embeddb.ranking.answer import Request, recommend

#: A configuration counts if it ran on this part of the matrices, a matrix if it ran all of these.
_NEARLY_ALL = 0.95
_GOOD = 0.9


class Machine(NamedTuple):
    """A platform instance, and the seconds of its counted configurations by matrix."""

    platform: Platform
    seconds: Mapping[str, Mapping[Config, float]]
    runs: Mapping[str, Sequence[Run]]

    def only(self, configs: Collection[Config]) -> Machine:
        """The machine with the runs of these configurations alone."""
        kept = {
            name: [run for run in runs if run.config in configs] for name, runs in self.runs.items()
        }
        return self._replace(runs=kept)


class Answer(NamedTuple):
    """A judged answer: its share of the optimum, and whether its gain lies in the interval (None:
    none was given)."""

    confidence: str
    share: float
    held: bool | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("database")
    parser.add_argument("ops", nargs="+", type=Op.parse)
    for name, default in (("matrices", 10), ("draws", 8), ("asked", 12)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--left-out", default="")
    parser.add_argument("--from", dest="source", default="")
    wanted = parser.parse_args()
    with open_database(wanted.database, readonly=True) as full:
        for op in wanted.ops:
            machines = machines_of(full, op)
            if wanted.source:
                with open_database(wanted.source, readonly=True) as other:
                    machines |= machines_of(other, op)
            answers = replayed(full, op, machines, wanted)
            name = f"{Path(wanted.database).name} {op} {wanted.matrices} {wanted.left_out}".strip()
            figures = figures_of(answers)
            print(name, json.dumps(figures), flush=True)
            kept = json.loads(wanted.out.read_text("utf-8")) if wanted.out.exists() else {}
            kept[name] = figures
            wanted.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def machines_of(full: Database, op: Op) -> dict[str, Machine]:
    """Every instance that ran an operation on twenty matrices or more, by its id."""
    kept: dict[str, Machine] = {}
    for partition in full.store.partitions():
        if partition.op != op or len(full.store.members(partition)) < 20:
            continue
        runs: dict[str, list[Run]] = defaultdict(list)
        for run in full.store.runs(partition.platform, op):
            runs[run.pattern_id].append(run)
        timings = {name: summarise_runs(own) for name, own in runs.items()}
        ran = defaultdict(int)
        for own in timings.values():
            for config in own:
                ran[config] += 1
        counted = {config for config, count in ran.items() if count >= _NEARLY_ALL * len(timings)}
        seconds = {
            name: {config: own[config].seconds for config in counted}
            for name, own in timings.items()
            if counted <= own.keys()
        }
        platform = full.platform(partition.platform)
        kept[platform.id] = Machine(
            platform,
            seconds,
            {name: [run for run in runs[name] if run.config in counted] for name in seconds},
        )
    return kept


def replayed(
    full: Database, op: Op, machines: Mapping[str, Machine], wanted: argparse.Namespace
) -> list[Answer]:
    """Answers of all draws."""
    asked = machines[wanted.left_out or max(machines, key=lambda m: len(machines[m].seconds))]
    ran = next(iter(asked.seconds.values())).keys()
    sources = [m.only(ran) for m in machines.values() if not wanted.left_out or m is not asked]
    infos = {name: info for name in asked.seconds if (info := full.store.pattern(name)) is not None}
    answers: list[Answer] = []
    for draw in range(wanted.draws):
        order = np.random.default_rng([draw, wanted.matrices]).permutation(sorted(infos)).tolist()
        drawn = order[: wanted.matrices]
        families = {_family(infos[name]) for name in drawn}
        others = [name for name in order[len(drawn) :] if _family(infos[name]) not in families]
        others = others[: wanted.asked]
        with subset(full, sources, infos, drawn, others) as db:
            for name in others:
                made = recommend(db.index, Request(infos[name], asked.platform, op))
                judged = judge(asked, made.first, Config(made.default), name, made.confidence)
                answers += [judged] if judged is not None else []
    return answers


def subset(
    full: Database,
    sources: Sequence[Machine],
    infos: Mapping[str, WorkloadInfo],
    drawn: Sequence[str],
    others: Sequence[str],
) -> Database:
    """The runs on the drawn matrices alone, and features of the others."""
    db = Database.in_memory()
    ids = [*drawn, *others]
    for machine in sources:
        runs = [run for name in drawn for run in machine.runs.get(name, ())]
        if runs:
            db.store.put_platform(machine.platform)
            db.store.append(runs, patterns=[infos[name] for name in drawn])
    for name, plug in full.index.featurizers().items():
        db.store.vectors.put(name, plug.version, full.store.vectors.get(name, plug.version, ids))
    return db


def judge(asked: Machine, first: Any, default: Config, name: str, confidence: str) -> Answer | None:
    """None where the answer or the default has no time."""
    seconds = asked.seconds[name]
    took = seconds.get(Config(first.config), math.nan)
    base, best = seconds.get(default, math.nan), min(seconds.values())
    if not math.isfinite(base) or math.isnan(took):
        return None
    if math.isinf(took):  # a failed answer costs the time of the default, as in `embeddb eval`
        return Answer(confidence, best / base, False)
    held = None
    if first.gain_low is not None:
        held = bool(first.gain_low <= base / took * (1 + 1e-9))
        held &= bool(base / took <= first.gain_high * (1 + 1e-9))
    return Answer(confidence, best / took, held)


def _family(info: WorkloadInfo) -> str:
    return info.group or info.id


def figures_of(answers: Iterable[Answer]) -> dict[str, Any]:
    """Counts of answers and of those below 0.9 of the optimum by confidence, and how many of the
    intervals hold the gain."""
    rows = list(answers)
    by = {level: [a for a in rows if a.confidence == level] for level in ("high", "medium", "low")}
    intervals = [a.held for a in rows if a.held is not None]
    return {
        "answers": len(rows),
        **{level: len(own) for level, own in by.items()},
        **{f"{level}_below": sum(a.share < _GOOD for a in own) for level, own in by.items()},
        "of_optimum": round(math.exp(float(np.mean(np.log([a.share for a in rows])))), 4)
        if rows
        else None,
        "intervals": len(intervals),
        "held": round(float(np.mean(intervals)), 4) if intervals else None,
    }


if __name__ == "__main__":
    main()
