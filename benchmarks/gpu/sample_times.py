"""A sample of the shipped runs, timed again through runner `cuda`: ratios and rank correlation."""

from __future__ import annotations

import csv
import lzma
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr
from sections import Options, run

from embeddb.core.config import Config, Op
from embeddb.core.pattern import Pattern
from embeddb.matrix_files import matrix_files, matrix_name, read_pattern
from embeddb.platforms.platform import load_platform
from indexer.runners.base import RunOptions
from indexer.runners.cuda import CudaRunner

RESULTS = Path(__file__).resolve().parents[1] / "results" / "gpu"
#: The GPU of the shipped runs.
SHIPPED_GPU = "NVIDIA H200"
OPS = ("spmm:32", "spmm:128", "spmm:512", "spmv", "sddmm:32", "sddmm:128")
_MATRICES, _CONFIGS, _MOST_ENTRIES = 6, 18, 6_000_000
#: Median seconds of the shipped runs, by operation and configuration, of one matrix.
Shipped = dict[tuple[str, Config], float]


def section(options: Options) -> dict[str, Any]:
    """Six matrices, six operations, some twenty configurations each."""
    ops, count = (OPS, _CONFIGS) if not options.emulate else (("spmm:32", "spmv"), 1)
    patterns = chosen_matrices(options.matrices, _MATRICES if not options.emulate else 1)
    if not patterns:
        reason = f"{options.matrices} has no matrix of {RESULTS / 'patterns.csv'}"
        return {"ok": False, "error": f"{reason}: give a folder that has some by --matrices"}
    shipped = shipped_runs(patterns)
    rows: list[dict[str, Any]] = []
    with CudaRunner(*(["emulated_worker"] if options.emulate else [])) as runner:
        if (reason := runner.available()) is not None:
            return {"ok": False, "error": reason}
        facts = {**runner.facts(), **runner.platform().environment}
        for text in ops:
            asked = asked_configs(shipped, text, count)
            every = dict.fromkeys(config for configs in asked.values() for config in configs)
            runner.prepare(Op.parse(text), list(every))
            for name, pattern in patterns.items():
                if options.left_s < 5:
                    break
                rows += timed(runner, pattern, text, asked[name], shipped[name])
        state = runner.state()
    return {**summary(rows, facts), "state": state, "rows": rows}


def chosen_matrices(folder: Path, count: int) -> dict[str, Pattern]:
    """Some matrices of the folder that ran, of evenly spread size."""
    entries = known_entries()
    files = {matrix_name(file): file for file in matrix_files(folder)}
    names = [name for name in files if 0 < entries.get(name, 0) <= _MOST_ENTRIES]
    names.sort(key=lambda name: (entries[name], name))
    at = np.unique(np.linspace(0, len(names) - 1, min(count, len(names))).round().astype(int))
    return {names[i]: read_pattern(files[names[i]]) for i in at}


def known_entries() -> dict[str, int]:
    """Entries of the matrices that ran, by name."""
    with (RESULTS / "patterns.csv").open(newline="") as file:
        return {row["matrix"]: int(row["entries"]) for row in csv.DictReader(file)}


def shipped_runs(names: Iterable[str]) -> dict[str, Shipped]:
    """Of these matrices, in float32, the runs that succeeded; cuSPARSE's too."""
    wanted, runs = set(names), defaultdict[str, Shipped](dict)
    spaces = load_platform("cuda").kernels
    for table in ("runs", "cusparse"):
        with lzma.open(RESULTS / f"{table}.csv.xz", "rt", newline="") as file:
            for row in csv.DictReader(file):
                kernel = row["op"].partition(":")[0]
                known = row["matrix"] in wanted and kernel in spaces
                if not known or row["status"] != "ok" or row["dtype"] != "f32":
                    continue
                if kernel == "spmm" and row.get("block") == "32":
                    continue  # tried, and not in the space
                if table == "cusparse":
                    algorithm = row["algorithm"].removeprefix("cusparse-")
                    values: dict[str, Any] = {"work": "cusparse", "algorithm": algorithm}
                else:
                    parameters = (p.name for p in spaces[kernel].space.params)
                    values = {p: row[p] for p in parameters if row.get(p)}
                config = Config({k: int(v) if v.isdigit() else v for k, v in values.items()})
                times = [float(time) / 1e6 for time in row["times_us"].split(";")]
                runs[row["matrix"]][row["op"], config] = statistics.median(times)
    return dict(runs)


def asked_configs(shipped: dict[str, Shipped], op: str, count: int) -> dict[str, list[Config]]:
    """By matrix: its best configurations, those that ran on the most matrices (few kernels are to
    be compiled), and cuSPARSE's."""
    of_op = {
        name: {config: seconds for (one, config), seconds in runs.items() if one == op}
        for name, runs in shipped.items()
    }
    ran = Counter(config for runs in of_op.values() for config in runs if not library(config))
    order = random.Random(op)
    common = sorted(sorted(ran, key=str), key=lambda config: (-ran[config], order.random()))
    asked = {}
    for name, runs in of_op.items():
        own = [config for config in runs if not library(config)]
        best = sorted(own, key=lambda config: (runs[config], str(config)))[: max(1, count // 6)]
        others = [config for config in common if config in runs and config not in best]
        theirs = [config for config in runs if library(config) and not op.startswith("sddmm")]
        asked[name] = [*best, *others[: count - len(best)], *theirs]
    return asked


def library(config: Config) -> bool:
    return bool(config["work"] == "cusparse")


def timed(
    runner: CudaRunner, pattern: Pattern, text: str, configs: list[Config], shipped: Shipped
) -> list[dict[str, Any]]:
    options = RunOptions(repeats=3, timeout_s=20.0, max_bytes=32 << 30)
    rows = []
    for config, measured in runner.run(pattern, Op.parse(text), configs, options=options):
        seconds = statistics.median(measured.times_s) if measured.ok else None
        rows.append(
            {
                "matrix": pattern.name,
                "op": text,
                "config": str(config),
                "status": measured.status,
                "error": measured.error,
                "us": seconds and round(seconds * 1e6, 3),
                "shipped_us": round(shipped[text, config] * 1e6, 3),
                "conversion_us": measured.conversion_s and round(measured.conversion_s * 1e6, 1),
            }
        )
    return rows


def summary(rows: list[dict[str, Any]], facts: dict[str, str]) -> dict[str, Any]:
    statuses = Counter(row["status"] for row in rows)
    # How many registers a kernel needs, and so what is invalid, depends on the architecture.
    fine = {"ok"} if facts.get("gpu") == SHIPPED_GPU else {"ok", "invalid"}
    failures = [row for row in rows if row["status"] not in fine]
    reasons = [f"{r['status']} {r['matrix']} {r['op']} {r['config']}" for r in failures]
    groups = {"all": rows}
    for op in dict.fromkeys(row["op"] for row in rows):
        groups[op] = [r for r in rows if r["op"] == op and "algorithm" not in r["config"]]
    groups["cusparse"] = [r for r in rows if "algorithm" in r["config"]]
    compared = {name: ratios(of) for name, of in groups.items()}
    table = [
        f"{facts.get('gpu')}, driver {facts.get('driver')}, toolkit {facts.get('toolkit')}, "
        f"copy {facts.get('copy_gb_s')} GB/s, launch {facts.get('launch_us')} us, "
        f"in a graph {facts.get('graph_launch_us')} us",
        f"{'':10}{'runs':>6}{'ratio':>8}{'p10':>7}{'p90':>7}{'Spearman':>10}",
        *(
            f"{name:10}{c['count']:6}{c['median']:8.3f}{c['p10']:7.2f}{c['p90']:7.2f}"
            f"{'' if c['spearman'] is None else c['spearman']:>10}"
            for name, c in compared.items()
            if c["count"] > 1
        ),
        f"statuses: {dict(statuses)}",
        *(f"{text}: {r['error']}" for text, r in zip(reasons[:8], failures, strict=False)),
    ]
    ok = bool(rows) and not failures
    return {"ok": ok, "facts": facts, "statuses": statuses, "compared": compared, "table": table}


def ratios(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Time now over the shipped one, and the rank correlation of the two (the mean of those within
    a matrix and operation)."""
    ran = [row for row in rows if row["us"]]
    if not ran:
        return {"count": 0}
    within = defaultdict(list)
    for row in ran:
        within[row["matrix"], row["op"]].append((row["us"], row["shipped_us"]))
    several = [np.array(pairs) for pairs in within.values() if len(pairs) > 3]
    correlations = [spearmanr(pairs[:, 0], pairs[:, 1]).statistic for pairs in several]
    quotients = [row["us"] / row["shipped_us"] for row in ran]
    quantiles = np.quantile(quotients, (0.1, 0.5, 0.9)).round(3)
    spread = dict(zip(("p10", "median", "p90"), map(float, quantiles), strict=True))
    mean = round(float(np.mean(correlations)), 3) if several else None
    return {"count": len(ran), **spread, "spearman": mean}


if __name__ == "__main__":
    run(section)
