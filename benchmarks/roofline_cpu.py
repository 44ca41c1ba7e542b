"""How near the best measured kernels are to the machine's bounds, as a roofline per matrix class.

    python benchmarks/roofline_cpu.py DATABASE MANIFEST OUT_FOLDER

Writes roofline_cpu.json and, with matplotlib, roofline_cpu.svg. Bounds are measured here, on all
cores: multiply-adds from registers, and the bandwidth of a triad over arrays that fit the second
level cache, the last level, and neither. The intensity of a kernel is its flops over the bytes it
must move at least once (matrix in CSR, dense operands, result); which bandwidth bounds it follows
from how large those bytes are together. Runs on a quiet machine only: the load is in the result.
"""

from __future__ import annotations

import csv
import ctypes
import json
import os
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from machine import about

from embeddb.core.config import Op
from embeddb.database import Database
from embeddb.kernels import build as cpu_build

_SOURCE = r"""
#include <omp.h>
#include <stdint.h>
typedef float vec __attribute__((vector_size(64), aligned(4)));

/* Seconds of `rounds` triads a = b + s c over `n` floats per thread, each on its own arrays. */
double triad(float *base, int64_t n, int64_t rounds, int threads)
{
    double start = 0, end = 0;
#pragma omp parallel num_threads(threads)
    {
        float *a = base + (int64_t)omp_get_thread_num() * 3 * n, *b = a + n, *c = b + n;
        for (int64_t i = 0; i < 3 * n; i++)
            a[i] = 1.0f;
#pragma omp barrier
#pragma omp single
        start = omp_get_wtime();
        for (int64_t r = 0; r < rounds; r++) {
            for (int64_t i = 0; i < n; i++)
                a[i] = b[i] + 0.5f * c[i];
            __asm__ volatile("" ::: "memory");
        }
#pragma omp barrier
#pragma omp single
        end = omp_get_wtime();
    }
    return end - start;
}

/* Seconds of rounds * 16 vector multiply-adds per thread on registers. */
double fma_peak(int64_t rounds, int threads, float *sink)
{
    const double start = omp_get_wtime();
#pragma omp parallel num_threads(threads)
    {
        vec s[16];
        for (int x = 0; x < 16; x++)
            s[x] = (vec){0} + (float)x;
        const vec a = (vec){0} + 0.999f, b = (vec){0} + 1e-3f;
        for (int64_t r = 0; r < rounds; r++)
#pragma GCC unroll 16
            for (int x = 0; x < 16; x++)
                s[x] = s[x] * a + b;
        for (int x = 0; x < 16; x++)
            sink[omp_get_thread_num()] += s[x][0];
    }
    return omp_get_wtime() - start;
}
"""
#: Bytes of the three triad arrays of one thread.
_SIZES = {"second level": 384 << 10, "last level": 6 << 20, "memory": 384 << 20}


def bounds() -> dict[str, float]:
    """GFLOP/s of multiply-adds (f32) and GB/s by level; the best of 9, as a bound should be."""
    lib = ctypes.CDLL(str(cpu_build.build(_SOURCE).path))
    lib.triad.restype = lib.fma_peak.restype = ctypes.c_double
    threads = len(os.sched_getaffinity(0))
    sink = np.zeros(threads, dtype=np.float32)
    rounds = 20_000_000
    peak = [
        rounds * 16 * 16 * 2 * threads / lib.fma_peak(ctypes.c_int64(rounds), threads, _at(sink))
        for _ in range(9)
    ]
    found = {"flops": max(peak) / 1e9}
    for level, size in _SIZES.items():
        n = size // 12
        base = np.empty(3 * n * threads, dtype=np.float32)
        times = max(1, (2 << 30) // size)
        rates = [
            12
            * n
            * times
            * threads
            / lib.triad(_at(base), ctypes.c_int64(n), ctypes.c_int64(times), threads)
            for _ in range(9)
        ]
        found[level] = max(rates) / 1e9
    return found


def _at(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def work(op: Op, m: int, n: int, nnz: int) -> tuple[float, float]:
    """Flops, and the bytes that must move at least once (f32)."""
    k = op.width
    flops = 2.0 * nnz * k
    matrix = 8.0 * nnz + 8.0 * (m + 1)
    if op.kernel == "sddmm":
        return flops + nnz, matrix + 4.0 * nnz + 4.0 * k * (m + n)
    return flops, matrix + 4.0 * k * (m + n)


def points(db: Database, classes: dict[str, str], bound: dict[str, float]) -> list[dict[str, Any]]:
    """Each matrix and op: intensity, rate of the best kernel, share of its bound."""
    found = []
    infos = {p.id: p for p in db.store.patterns()}
    for op, scope in db.index.scopes():
        evidence, _ = db.index.evidence(op, scope)
        for at, row in enumerate(evidence.rows):
            best, p = float(evidence.row(at).seconds.min()), infos[row.pattern_id]
            if not np.isfinite(best) or p.nnz <= 0:
                continue
            flops, size = work(op, p.m, p.n, p.nnz)
            level = next((x for x in ("second level", "last level") if size < _LIMITS[x]), "memory")
            roof = min(bound["flops"], bound[level] * flops / size)
            found.append(
                {
                    "op": str(op),
                    "class": classes.get(p.name, "unknown"),
                    "intensity": flops / size,
                    "gflops": flops / best / 1e9,
                    "level": level,
                    "of_bound": flops / best / 1e9 / roof,
                }
            )
    return found


#: A kernel's data are bounded by a level when they are smaller than this (two cores' caches).
_LIMITS = {"second level": 2 << 20, "last level": 32 << 20}


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Median share of the bound and rate, per op and level, and per op and class."""
    by: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for p in found:
        by[f"{p['op']} | {p['level']}"].append(p)
        by[f"{p['op']} | {p['class']}"].append(p)
    return {
        key: {
            "matrices": len(held),
            "gflops": statistics.median(p["gflops"] for p in held),
            "of_bound": statistics.median(p["of_bound"] for p in held),
        }
        for key, held in sorted(by.items())
    }


def draw(found: list[dict[str, Any]], bound: dict[str, float], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "embeddb"
    from matplotlib import pyplot

    ops = sorted({p["op"] for p in found})
    figure, panes = pyplot.subplots(1, len(ops), figsize=(4.2 * len(ops), 4.4), sharey=True)
    names = sorted({p["class"] for p in found})
    marks = "osv^<>DPX*phd1234"
    for pane, op in zip(np.atleast_1d(panes), ops, strict=True):
        x = np.logspace(-1.5, 2.5, 100)
        for level in ("memory", "last level", "second level"):
            pane.plot(
                x, np.minimum(bound["flops"], bound[level] * x), lw=1, label=f"bound: {level}"
            )
        for i, name in enumerate(names):
            held = [p for p in found if p["op"] == op and p["class"] == name]
            pane.scatter(
                [p["intensity"] for p in held],
                [p["gflops"] for p in held],
                s=14,
                marker=marks[i % len(marks)],
                color=pyplot.get_cmap("tab20")(i % 20),
                label=name,
            )
        pane.set(xscale="log", yscale="log", title=op, xlabel="flops per byte (each moved once)")
        pane.grid(True, which="major", lw=0.3)
    np.atleast_1d(panes)[0].set_ylabel("GFLOP/s, best configuration")
    handles, labels = np.atleast_1d(panes)[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="center right", fontsize=7)
    figure.tight_layout(rect=(0, 0, 0.9, 1))
    figure.savefig(path, metadata={"Date": None})


def main(database: Path, manifest: Path, out: Path) -> None:
    with manifest.open(newline="", encoding="utf-8") as lines:
        classes = {row["name"]: row["class"] for row in csv.DictReader(lines)}
    bound = bounds()
    with Database.open(database, readonly=True) as db:
        found = points(db, classes, bound)
    result = {"about": about(), "bounds": bound, "shares": summary(found)}
    (out / "roofline_cpu.json").write_text(json.dumps(result, indent=1) + "\n")
    try:
        draw(found, bound, out / "roofline_cpu.svg")
    except ImportError:
        print("matplotlib is not installed: no plot", file=sys.stderr)


if __name__ == "__main__":
    main(*(Path(arg) for arg in sys.argv[1:4]))
