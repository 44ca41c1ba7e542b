"""Make a database of the campaign's rows, as the starter has them.

    database.py RESULTS MATRICES DB [CONFIGURATIONS]

RESULTS is the folder of the rows, MATRICES that of their matrices, with a MANIFEST.csv of their
families. Of each operation the database has cuSPARSE's algorithms, the default, and the most useful
of the configurations that ran on (nearly) all matrices, CONFIGURATIONS in all, three quarters of
them exact; of each run the last session that made it. The instance is the GPU of the rows.
"""

from __future__ import annotations

import csv
import lzma
import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.database import Database
from embeddb.featurizers.stats import Stats
from embeddb.matrix_files import read_pattern
from embeddb.platforms.platform import Platform, load_platform

#: Facts of the machine, under the names that the runner gives them. The kernels are those before
#: the generations that the product counts.
FACTS = {
    "gpu": "NVIDIA H200",
    "capability": "90",
    "driver": "13.0",
    "toolkit": "13.0",
    "kernels": "campaign",
    "multiprocessors": "132",
    "l2_bytes": "62914560",
    "copy_gb_s": "4290",
    "launch_us": "3.3",
    "graph_launch_us": "0.5",
}
IDENTITY = ("gpu", "capability", "driver", "toolkit", "kernels")
#: When the sessions ran, to the day.
WHEN = 1795651200.0
#: Share of the matrices that a configuration ran on, failures included, and of exact ones kept.
EVERYWHERE, EXACT = 0.95, 0.75
CONFIGURATIONS = 100

Key = tuple[str, str]  # operation, matrix
Timings = dict[Key, dict[Config, Measurement]]


def main(results: Path, matrices: Path, place: Path, configurations: int = CONFIGURATIONS) -> None:
    bare = load_platform("cuda")
    platform = Platform.at(bare, bare.at("", {n: FACTS[n] for n in IDENTITY}).instance, FACTS)
    patterns = dict(read_patterns(results, matrices))
    timings = read_timings(results, platform, patterns)
    operations = sorted({op for op, _ in timings})
    kept = {op: select(timings, Op.parse(op), platform, configurations) for op in operations}
    with Database.create(place) as db:
        db.store.put_platform(platform)
        db.store.put_patterns(map(info_of, patterns.values()))
        for op in operations:
            db.store.append(
                Run(patterns[matrix].id, Op.parse(op), platform.id, config, m)
                for (name, matrix), ran in timings.items()
                for config, m in ran.items()
                if name == op and config in kept[op]
            )
        print(f"{db.store.count_runs()} runs, {platform.id}, {place}")


def read_patterns(results: Path, matrices: Path) -> Iterator[tuple[str, Pattern]]:
    with (matrices / "MANIFEST.csv").open(newline="") as f:
        families = {row["name"]: row["family"] for row in csv.DictReader(f)}
    with (results / "patterns.csv").open(newline="") as f:
        for row in csv.DictReader(f):
            name = row["matrix"]
            group = families.get(name) or name
            yield name, read_pattern(matrices / f"{name}.npz", name=name, group=group)


def info_of(pattern: Pattern) -> WorkloadInfo:
    """Sizes, statistics and density of a matrix, which stand for its structure in the starter."""
    info, stats = WorkloadInfo.of(pattern), Stats()
    features = stats.as_features(stats.embed(pattern))
    return msgspec.structs.replace(info, features=features, **info.workload.facts(pattern))


def read_timings(results: Path, platform: Platform, patterns: dict[str, Pattern]) -> Timings:
    """The float32 rows whose configuration is legal on their matrix."""
    timings: Timings = defaultdict(dict)
    legal: dict[tuple[str, str, Config], bool] = {}
    illegal = 0
    for row in sorted(rows_of(results), key=lambda row: row["session"]):
        op, pattern = Op.parse(row["op"]), patterns[row["matrix"]]
        space = platform.space(op, pattern.sizes)
        values = {p.name: row[p.name] for p in space.params if row.get(p.name)}
        config = space.canonical({n: int(v) if v.isdigit() else v for n, v in values.items()})
        at = row["op"], row["matrix"], config
        if at not in legal:
            legal[at] = space.reason(config) is None
        if legal[at]:
            timings[at[:2]][config] = measurement(row, platform)
        else:
            illegal += 1
    print(f"{illegal} rows left out: their configurations are not in the space")
    return timings


def rows_of(results: Path) -> Iterator[dict[str, str]]:
    with lzma.open(results / "runs.csv.xz", "rt", newline="") as f:
        yield from csv.DictReader(f)
    with lzma.open(results / "cusparse.csv.xz", "rt", newline="") as f:
        for row in csv.DictReader(f):
            if row["dtype"] == "f32" and not row["op"].startswith("sddmm"):
                algorithm = row["algorithm"].removeprefix("cusparse-")
                yield {**row, "work": "cusparse", "algorithm": algorithm}


def measurement(row: dict[str, str], platform: Platform) -> Measurement:
    status = platform.log.statuses.get(row["status"], row["status"])
    times = [float(f"{float(us) / 1e6:.4g}") for us in row["times_us"].split(";") if us]
    ok = status == "ok"
    return Measurement(status, tuple(times) if ok else (), when=WHEN)


def select(timings: Timings, op: Op, platform: Platform, count: int) -> set[Config]:
    """The configurations of an operation that are kept. Each is the one that adds most to the best
    of those before it, as a share of the optimum averaged over matrices; among equal ones, that of
    the largest share itself."""
    kernel = platform.kernel(op)
    ran = [found for (name, _), found in timings.items() if name == str(op)]
    met = defaultdict(int)
    for found in ran:
        for config in found:
            met[config] += 1
    everywhere = [config for config, times in met.items() if times >= EVERYWHERE * len(ran)]
    seconds = np.array([[seconds_of(found.get(c)) for found in ran] for c in everywhere])
    exact = np.array([kernel.is_exact(c) for c in everywhere])
    given = [
        at for at, c in enumerate(everywhere) if c == kernel.default or c.get("work") == "cusparse"
    ]
    chosen = greedy(seconds, exact, given, round(EXACT * count))
    chosen = greedy(seconds, np.ones(len(exact), bool), chosen, count)
    best = np.min(seconds, axis=0)
    share = np.exp(np.mean(np.log(best / np.min(seconds[chosen], axis=0))))
    print(f"{op}: {len(chosen)} of {len(everywhere)} configurations, best of them {share:.4f}")
    return {everywhere[at] for at in chosen}


def seconds_of(measurement: Measurement | None) -> float:
    return math.inf if measurement is None else measurement.seconds


def greedy(
    seconds: NDArray[np.float64], allowed: NDArray[np.bool_], given: list[int], count: int
) -> list[int]:
    """Shapes: seconds float64[configurations, matrices]."""
    share = np.min(np.where(allowed[:, None], seconds, np.inf), axis=0) / seconds
    chosen = list(given)
    reached = share[chosen].max(axis=0) if chosen else np.zeros(share.shape[1])
    while len(chosen) < min(count, int(allowed.sum())):
        gain = np.maximum(share - reached, 0.0).mean(axis=1) + 1e-6 * share.mean(axis=1)
        gain[~allowed] = gain[chosen] = -1.0
        at = int(np.argmax(gain))
        chosen.append(at)
        reached = np.maximum(reached, share[at])
    return chosen


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), *map(int, sys.argv[4:]))
