"""Static or dynamic scheduling of SpMM, decided by the nearest other matrix: the case study of
"Performance Embeddings", Section 6.2, Table 3.

    python benchmarks/static_or_dynamic.py MATRICES MANIFEST ROWS [--limit 130] \
        > benchmarks/results/static_or_dynamic.json

Every matrix is multiplied by a dense one of 512 columns, once by the kernels of platform `cpu`
(rows, then entries, then columns) with MKL beside them, and once as a loop nest of
`indexer/programs/science/spmm.c` whose index arrays hold the matrix, under OpenMP's static schedule
and its dynamic one of 8 rows at a time, in interleaved rounds. What was measured is kept in ROWS,
a line a matrix: started again, the script goes on. Then for each matrix the nearest of the others,
families left out whole, says which schedule to take, by every featurizer there is.

Two threads, as here, show less imbalance than the paper's 36 cores. The views `modelled` say what
36 threads would see: the entries of the busiest thread, rows handed out as libgomp does, where a
row costs one entry more and a chunk that is handed out 2, 8 or 32 (8: some 150 ns); no memory, no
caches.
With --modelled nothing else is done, and nothing is timed.

A matrix counts as decided where the ratio of both is further from 1 than 2 % and than two robust
standard errors of its rounds; `against_itself` is how often static against static would count so.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from machine import about
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import EmbeddbError
from embeddb.core.pattern import Pattern
from embeddb.dynamics.caches import caches_of
from embeddb.dynamics.counting import assign
from embeddb.dynamics.execution import plain
from embeddb.dynamics.profile import profile
from embeddb.featurizers import Featurizers, reads
from embeddb.featurizers.nest_embedding import NestEmbedding
from embeddb.matrix_files import read_pattern
from embeddb.nests.check import canonical_schedule
from embeddb.nests.nest import Nest
from indexer.programs import nests_of
from indexer.runners.base import RunOptions
from indexer.runners.cpu import CpuRunner
from indexer.runners.nest import NestRunner
from indexer.runners.nest_counters.counting import count_nest

WIDTH, CHUNK = 512, 8
#: Rows and columns together, and entries, of what is measured: operands of some 400 MB.
MOST_LINES, MOST_ENTRIES, FEWEST_ENTRIES = 100_000, 1_000_000, 1000
LEAST_RATIO = math.log(1.02)
PRUNED = "pruned DNN weights"
#: Of the modelled views; what handing a chunk out costs, in entries.
THREADS, HANDED = 36, (2, 8, 32)
TIMED, MODELLED = ("cpu", "nest"), tuple(f"modelled, {cost}" for cost in HANDED)
MKL = ("mkl-csr", "mkl-csr-optimized")

# -- measuring -------------------------------------------------------------------------------------


def cpu_times(runner: CpuRunner, matrix: Pattern, rounds: int) -> dict[str, list[float]]:
    """Median seconds of each round; `again` is static once more."""
    plain = Config({"order": "ijk", "format": "csr", "threads": "all", "schedule": "static"})
    dynamic = Config({**plain, "schedule": "dynamic", "chunk": CHUNK})
    named = {"static": plain, "dynamic": dynamic, "again": plain}
    options = RunOptions(repeats=3, max_repeats=7, min_time_s=0.01)
    op = Op("spmm", WIDTH)
    found: dict[str, list[float]] = {}
    for number in range(rounds):
        names = list(named)
        np.random.default_rng([int(matrix.id[:8], 16), number]).shuffle(names)
        ran = list(runner.run(matrix, op, [named[n] for n in names], options=options))
        told = [(name, m) for name, (_, m) in zip(names, ran, strict=True)]
        told += runner.baselines(matrix, op, options=options, only=MKL).items()
        for name, measured in told:
            if not measured.ok:
                raise EmbeddbError(f"{matrix.name}: {name}: {measured.error}")
            found.setdefault(name, []).append(measured.seconds)
    return found


def nest_times(runner: NestRunner, nest: Nest, rounds: int) -> dict[str, list[float]]:
    """Seconds of each round, in which both schedules take turns."""
    plain = canonical_schedule(nest).config
    dynamic = Config({**plain, "schedule": "dynamic", "chunk": CHUNK})
    options = RunOptions(repeats=2 * rounds, max_repeats=2 * rounds)
    found = {}
    ran = runner.run(nest, Op("nest"), [plain, dynamic], options=options)
    for name, (_, measured) in zip(("static", "dynamic"), ran, strict=True):
        if not measured.ok:
            raise EmbeddbError(f"{nest.name}: {name}: {measured.error}")
        found[name] = list(measured.times_s)
    return found


def modelled(matrix: Pattern, threads: int, handed: int) -> dict[str, float]:
    """By schedule, the work of the busiest thread, in entries."""
    rows = matrix.shape[0]
    work, starts = np.diff(matrix.indptr) + 1, np.array([0, rows])
    found = {}
    for schedule, chunk in (("static", 0), ("dynamic", CHUNK)):
        if chunk:
            work[::chunk] += handed
        owner = assign(work, starts, schedule=schedule, chunk=chunk, threads=threads)
        found[schedule] = float(np.bincount(owner, weights=work).max())
    return found


def counted(matrix: Pattern, threads: int) -> list[float]:
    """What follows from the pattern and this machine's caches, of rows in order."""
    found = profile(matrix, Op("spmm", WIDTH), plain(threads), caches=caches_of({}))
    told = [*found.vector(), *(found.quantities[n].value for n in sorted(found.quantities))]
    return list(map(float, np.log2(1 + np.nan_to_num(np.array(told, dtype=np.float64)))))


def matrix_vectors(matrix: Pattern, threads: int) -> dict[str, list[float]]:
    plugs = {n: f for n, f in Featurizers().items() if reads(f, "matrix") and n != "given"}
    found = {name: plug.embed(matrix).tolist() for name, plug in plugs.items()}
    return {**found, "dynamics": counted(matrix, threads)}


def nest_vectors(nest: Nest, threads: int) -> dict[str, list[float]]:
    """Of the nest as it stands, and with what its modelled run counts."""
    plugs = {n: f for n, f in Featurizers().items() if reads(f, "nest") and n != "given"}
    found = {name: plug.embed(nest).tolist() for name, plug in plugs.items()}
    counters = count_nest(nest, threads=threads, source="model")
    found["counters"] = np.log2(1 + np.nan_to_num(counters.values.astype(np.float64))).tolist()
    learned = plugs.get("nest-embedding")
    if isinstance(learned, NestEmbedding):
        found["nest-embedding, counters"] = learned.embed_counted(nest, counters).tolist()
    return found


def larger_half(matrix: Pattern) -> float:
    """The share of the entries that the busier of two threads has under static scheduling."""
    first = int(matrix.indptr[(matrix.shape[0] + 1) // 2])
    return max(first, matrix.nnz - first) / matrix.nnz


def described(told: dict[str, str], matrix: Pattern, nest: Nest, threads: int) -> dict[str, Any]:
    """All there is to say of a matrix without timing anything."""
    alone = {n: modelled(matrix, n, 0)["static"] for n in (2, THREADS)}
    whole = matrix.nnz + matrix.shape[0]
    spans = [modelled(matrix, THREADS, cost) for cost in HANDED]
    return {
        "name": told["name"],
        "family": told["family"],
        "pruned": told["kind"].startswith(PRUNED),
        "shape": [*matrix.shape, matrix.nnz],
        "larger_half": larger_half(matrix),
        "imbalance": {str(n): span * n / whole for n, span in alone.items()},
        "times": {
            view: {name: [work] for name, work in span.items()}
            for view, span in zip(MODELLED, spans, strict=True)
        },
        "vectors": {
            "cpu": matrix_vectors(matrix, threads),
            "nest": nest_vectors(nest, threads),
        },
    }


def chosen(manifest: Path, limit: int) -> list[dict[str, str]]:
    """What fits, and is no made-up pattern: the pruned layers, then others by a fixed draw."""
    with manifest.open(newline="", encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["format"] == "npz-csr-pattern"]
    fits = [
        row
        for row in rows
        if int(row["rows"]) + int(row["cols"]) <= MOST_LINES
        and FEWEST_ENTRIES <= int(row["nnz"]) <= MOST_ENTRIES
        and not row["kind"].startswith("synthetic")
    ]
    drawn = [fits[at] for at in np.random.default_rng(0).permutation(len(fits))]
    return sorted(drawn, key=lambda row: not row["kind"].startswith(PRUNED))[:limit]


def rows_of(asked: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows; what is not there yet is found now and kept matrix by matrix."""
    wanted = chosen(asked.manifest, asked.limit)
    lines = asked.rows.read_text().splitlines() if asked.rows.exists() else []
    known = {row["name"]: row for row in map(json.loads, lines)}  # the last of a name
    with CpuRunner() as cpu, NestRunner() as nests, asked.rows.open("a") as kept:
        threads = int(cpu.platform().environment["threads"])
        for number, told in enumerate(wanted):
            row = known.get(told["name"])
            if row is not None and (asked.modelled or "cpu" in row["times"]):
                continue
            start = time.monotonic()
            file = asked.matrices / told["file"]
            matrix = read_pattern(file, name=told["name"], group=told["family"])
            (nest,) = nests_of("spmm", {"K": WIDTH}, matrix=matrix)
            row = row or described(told, matrix, nest, threads)
            if not asked.modelled:
                row["times"]["cpu"] = cpu_times(cpu, matrix, asked.rounds)
                row["times"]["nest"] = nest_times(nests, nest, asked.rounds)
            known[told["name"]] = row
            kept.write(json.dumps(row) + "\n")
            kept.flush()
            said = f"{number + 1} of {len(wanted)}: {told['name']} {time.monotonic() - start:.1f} s"
            print(said, file=sys.stderr)
    return [known[told["name"]] for told in wanted]


# -- judging ---------------------------------------------------------------------------------------


def ratio(times: dict[str, list[float]], over: str = "static") -> float:
    """Median log of dynamic over static (or over another), round by round."""
    return float(np.median(np.log(times["dynamic"]) - np.log(times[over])))


def decided(one: Sequence[float], other: Sequence[float]) -> bool:
    logs = np.log(one) - np.log(other)
    middle = np.median(logs)
    error = 1.4826 * np.median(np.abs(logs - middle)) / math.sqrt(logs.size)
    return bool(abs(middle) > max(2 * error, LEAST_RATIO))


#: From a matrix's place to whether dynamic is taken.
Choice = Callable[[int], bool]


def nearest_says(
    vectors: NDArray[np.float64], gains: NDArray[np.float64], among: NDArray[np.bool_], k: int
) -> Choice:
    """By the mean log ratio of the k nearest of those that may be neighbours; standardised l2."""
    spread = vectors.std(axis=0)
    scaled = (vectors - vectors.mean(axis=0)) / np.where(spread > 1e-9, spread, 1.0)

    def says(at: int) -> bool:
        far = np.where(among[at], np.square(scaled - scaled[at]).sum(axis=1), np.inf)
        return bool(gains[np.argsort(far, kind="stable")[:k]].mean() < 0)

    return says


def threshold_says(
    values: NDArray[np.float64], gains: NDArray[np.float64], among: NDArray[np.bool_]
) -> Choice:
    """Dynamic above the value at which the least time is lost on the others."""

    def says(at: int) -> bool:
        held, logs = values[among[at]], gains[among[at]]
        lost = {x: np.where(held > x, logs, 0).sum() for x in (-1.0, *held.tolist())}
        return bool(values[at] > min(lost, key=lambda x: float(lost[x])))

    return says


def choices(rows: Sequence[dict[str, Any]], view: str) -> Iterator[tuple[str, Choice]]:
    gains = np.array([ratio(row["times"][view]) for row in rows])
    families = np.array([row["family"] for row in rows])
    among = families[:, None] != families[None, :]
    pruned = np.array([row["pruned"] for row in rows])
    apart = among & (pruned[:, None] != pruned[None, :])
    yield "always static", lambda at: False
    yield "always dynamic", lambda at: True
    half = np.array([row["larger_half"] for row in rows])
    yield "larger half above a threshold", threshold_says(half, gains, among)
    for kind, name in described_by(rows, view):
        vectors = np.array([row["vectors"][kind][name] for row in rows], dtype=np.float64)
        yield f"1-NN, {name}", nearest_says(vectors, gains, among, 1)
        yield f"5-NN, {name}", nearest_says(vectors, gains, among, 5)
        if pruned.any() and not pruned.all():
            yield f"1-NN, {name}, pruned from the others", nearest_says(vectors, gains, apart, 1)


def described_by(rows: Sequence[dict[str, Any]], view: str) -> list[tuple[str, str]]:
    """What has vectors, and their names, for a view: the modelled ones have both."""
    kinds = rows[0]["vectors"]
    return [(k, name) for k in kinds if k == view or view not in TIMED for name in sorted(kinds[k])]


def judged(rows: Sequence[dict[str, Any]], view: str, only: NDArray[np.bool_]) -> dict[str, Any]:
    """Choices of one view, counted on some of the rows; neighbours may be all."""
    times = [row["times"][view] for row in rows]
    gains = np.array([ratio(one) for one in times])
    clear = np.array([decided(one["dynamic"], one["static"]) for one in times])
    found: dict[str, Any] = {
        "matrices": int(only.sum()),
        "decided": int((clear & only).sum()),
        "of_them_dynamic": int((clear & only & (gains < 0)).sum()),
        "dynamic_over_static": spread(gains[only]),
        "choices": {},
    }
    if view == "cpu":
        itself = [decided(one["again"], one["static"]) for one in times]
        found["against_itself"] = int((np.array(itself) & only).sum())
        better = np.minimum(gains, 0)
        for name in MKL:
            if all(name in one for one in times):
                over = np.array([-ratio({**one, "dynamic": one[name]}) for one in times]) + better
                found[f"{name}_over_better"] = spread(-over[only])
                found[f"{name}_faster"] = int((over[only] > 0).sum())
    for name, says in choices(rows, view):
        if name.endswith("from the others") and not all(r["pruned"] for r in picked(rows, only)):
            continue
        taken = np.array([says(at) for at in range(len(rows))])
        right, lost = taken == (gains < 0), np.where(taken, gains, 0) - np.minimum(gains, 0)
        found["choices"][name] = {
            "right": float(right[only].mean()),
            "right_of_decided": float(right[only & clear].mean()) if (only & clear).any() else None,
            "over_better": float(np.exp(lost[only].mean())),
            "worst": float(np.exp(lost[only].max())),
        }
    return found


def picked(rows: Sequence[dict[str, Any]], only: NDArray[np.bool_]) -> list[dict[str, Any]]:
    return [row for row, taken in zip(rows, only, strict=True) if taken]


def spread(logs: NDArray[np.float64]) -> dict[str, float]:
    """Geometric mean and quantiles of ratios."""
    told = {"geomean": logs.mean()}
    told |= {f"q{q}": np.quantile(logs, q / 100) for q in (0, 10, 50, 90, 100)}
    return {name: float(np.exp(value)) for name, value in told.items()}


def both_views(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Of the matrices that both views decide, how many they decide alike."""
    sides = []
    for row in rows:
        times = [row["times"][view] for view in TIMED]
        if all(decided(one["dynamic"], one["static"]) for one in times):
            sides.append([ratio(one) < 0 for one in times])
    return {"decided_by_both": len(sides), "alike": sum(one == two for one, two in sides)}


def imbalance(rows: Sequence[dict[str, Any]], threads: int) -> dict[str, float]:
    """The busiest thread's entries over the mean, under the static schedule."""
    return spread(np.log([row["imbalance"][str(threads)] for row in rows]))


def table(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """As the paper's Table 3: milliseconds, medians of the rounds."""
    found = []
    for row in rows:
        told: dict[str, Any] = {"matrix": row["name"], "shape": row["shape"]}
        for view, times in row["times"].items():
            for name, taken in times.items():
                if name != "again" and view in TIMED:
                    told[f"{view}.{name}_ms"] = round(1e3 * float(np.median(taken)), 4)
        found.append(told)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("matrices", type=Path)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--limit", type=int, default=130)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--modelled", action="store_true", help="time nothing")
    asked = parser.parse_args()
    rows = rows_of(asked)
    pruned = np.array([row["pruned"] for row in rows])
    sets = {"all": np.ones_like(pruned), "pruned layers": pruned, "others": ~pruned}
    document = {
        "machine": about(),
        "width": WIDTH,
        "chunk": CHUNK,
        **({} if asked.modelled else {"both_views": both_views(rows)}),
        "views": {
            view: {name: judged(rows, view, only) for name, only in sets.items() if only.any()}
            for view in (MODELLED if asked.modelled else (*TIMED, *MODELLED))
        },
        "imbalance": {str(threads): imbalance(rows, threads) for threads in (2, THREADS)},
        **({} if asked.modelled else {"table": table(rows)}),
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
