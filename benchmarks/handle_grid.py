"""Compiled handles over forty real matrices whose families the database never saw: the whole time
of 1, 10, 100 and 1,000 calls, asking, copying and conversion counted, against scipy, torch's CSR
and MKL (`sparse_dot_mkl`, if it is installed).

    python benchmarks/handle_grid.py MATRICES DB hold-out       # the starter without these families
    python benchmarks/handle_grid.py MATRICES DB prepare        # answers, and builds what is chosen
    python benchmarks/handle_grid.py MATRICES DB > benchmarks/results/handle_grid.json

Every cell is asked with the number of its calls. A total is the shortest of five preparations, each
with its first twelve calls (with the trial of a handle), and as many times the shortest call of
interleaved rounds as are left. Answers are cached and kernels built before; `first_compile_s` is
the first compilation of a process. `--cpu` takes CPU time in place of the clock.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from handle import matrix, mean
from machine import about

import embeddb
from embeddb.core.config import Config, Op
from embeddb.database import open_database
from embeddb.handle.autotune import usual_config
from embeddb.handle.handle import Handle
from embeddb.handle.matrix import matrix_of
from indexer.exchange.exchange import export_file, import_file

LEAST, MOST = 20_000, 1_500_000
WIDTHS = (1, 16, 32, 100, 128, 512)
CALLS = (1, 10, 100, 1000)
FIRST = 12
#: Clock of all timings; `--cpu` replaces it by the CPU time of the process.
clock = time.perf_counter
#: Interleaved rounds and repeats of a preparation; calls timed together.
ROUNDS, BATCH = 5, 4
#: Widths in double precision, where half as much is measured.
DOUBLE = (1, 32, 128)


def chosen(folder: Path, count: int) -> list[tuple[str, str]]:
    """Name and family of one matrix a family, evenly by non-zeros."""
    with open_database("starter", readonly=True) as db:
        found = {
            info.group: (info.nnz, info.name)
            for info in db.patterns(kind="matrix")
            if LEAST <= info.nnz <= MOST and (folder / f"{info.name}.npz").is_file()
        }
    ranked = sorted((nnz, name, group) for group, (nnz, name) in found.items())
    at = np.linspace(0, len(ranked) - 1, count).round().astype(int)
    return [ranked[i][1:] for i in at]


def hold_out(folder: Path, db: Path, count: int) -> None:
    """The starter without the runs of the chosen matrices' families."""
    groups = {group for _, group in chosen(folder, count)}
    whole, kept = db.with_suffix(".whole.jsonl"), db.with_suffix(".jsonl")
    with open_database("starter", readonly=True) as opened:
        export_file(opened.index, whole, platform="cpu")
    dropped: set[Any] = set()
    gone: Counter[str] = Counter()
    with whole.open(encoding="utf-8") as lines, kept.open("w", encoding="utf-8") as out:
        for line in lines:
            if line.startswith('["pattern"'):
                parts = json.loads(line)
                if parts[7] in groups:
                    dropped.add(parts[1])
            elif line.startswith('["run"') and json.loads(line)[1] in dropped:
                gone["runs"] += 1
                continue
            out.write(line)
    with open_database(db, create=True) as opened:
        import_file(opened.index, kept, rejects=False)
        from indexer.embed import embed

        embed(opened.index, build=False)
    print(f"{len(dropped)} matrices and {gone['runs']} of their runs held out", file=sys.stderr)


def compiled(a: Any, k: int, calls: int, db: Path, **more: Any) -> Handle:
    kernel = "spmv" if k == 1 else "spmm"
    made = embeddb.compile(a, kernel, k=None if k == 1 else k, calls=calls, db=db, **more)
    assert isinstance(made, Handle)
    return made


def prepare(a: Any, k: int, db: str) -> None:
    """Build the usual kernel, and what the answer for most calls needs."""
    op = Op("spmv" if k == 1 else "spmm", k, "f64" if a.dtype == np.float64 else "f32")
    if (usual := usual_config(op, matrix_of(a))) is not None:
        compiled(a, k, CALLS[-1], db, config=usual)
    compiled(a, k, CALLS[-1], db, build=True)


def cells(given: argparse.Namespace) -> Iterator[tuple[str, Any, int]]:
    names = (
        given.names.split(",")
        if given.names
        else [name for name, _ in chosen(given.folder, given.count)]
    )
    for name in names:
        a = matrix(given.folder, name)
        for dtype in given.dtypes.split(","):
            for k in map(int, given.widths.split(",")):
                if dtype == "float32" or k in DOUBLE:
                    yield name, a.astype(dtype), k


def others(a: Any, b: Any) -> dict[str, Callable[[], Callable[[], Any]]]:
    """Makers of products by other libraries, by name: what preparing one takes counts."""
    import torch

    def by_torch() -> Callable[[], Any]:
        t = torch.sparse_csr_tensor(
            *(torch.from_numpy(x.copy()) for x in (a.indptr, a.indices, a.data)), size=a.shape
        )
        tb = torch.from_numpy(b)
        return lambda: t @ tb

    makers: dict[str, Callable[[], Callable[[], Any]]] = {
        "scipy": lambda: lambda: a @ b,
        "torch": by_torch,
    }
    try:
        from scipy.sparse import csr_matrix
        from sparse_dot_mkl import dot_product_mkl
    except ImportError:
        return makers
    m = csr_matrix(a)
    return makers | {"mkl": lambda: lambda: dot_product_mkl(m, b)}


def rounds(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Shortest of many calls in interleaved rounds, in each of which every contestant makes up to
    ten calls in a row, as a loop does, after a warm-up call. On a shared machine the shortest is
    the only figure that repeats."""
    took = dict.fromkeys(calls, float("inf"))
    before = ""
    for _ in range(ROUNDS):
        for name, call in calls.items():
            settle(before)
            before = name
            call()
            end = clock() + 0.03
            for _ in range(4):
                start = clock()
                for _ in range(BATCH):
                    call()
                took[name] = min(took[name], (clock() - start) / BATCH)
                if clock() > end:
                    break
    return took


def settle(before: str) -> None:
    """Wait until no thread of the previous contestant spins; MKL's do so for 0.2 s."""
    time.sleep(0.25 if before == "mkl" else 0.01)


def begun(make: Callable[[], Callable[[], Any]], calls: int) -> tuple[float, float]:
    """Shortest seconds of preparation, and of preparation with the first calls as they come."""
    prepared = whole = float("inf")
    for _ in range(ROUNDS):
        settle("")
        start = clock()
        call = make()
        prepared = min(prepared, clock() - start)
        for _ in range(calls):
            call()
        whole = min(whole, clock() - start)
        if whole > 1.0:
            break
    return prepared, whole


def cell(a: Any, k: int, db: Path | str) -> dict[str, Any]:
    b = np.random.default_rng(1).random((a.shape[1], k)).astype(a.dtype)
    b = b[:, 0].copy() if k == 1 else b
    makers = others(a, b)
    handles = {}
    for n in CALLS:
        start = clock()
        compiled(a, k, n, db)
        first_s = clock() - start
        handles[n] = (first_s, compiled(a, k, n, db))
    calls = {name: make() for name, make in makers.items()}
    for _, f in handles.values():
        for _ in range(FIRST):  # a trial may end with another configuration
            f(b)
        calls[f"ours {f.config}"] = lambda f=f: f(b)  # type: ignore[misc]
    took = rounds(calls)
    result: dict[str, Any] = {"nnz": int(a.nnz), "calls": {}}
    for n, (first_s, f) in handles.items():
        once, later = min(n, FIRST), max(0, n - FIRST)
        prepare_s, begun_s = begun(lambda n=n: bound(compiled(a, k, n, db), b), once)  # type: ignore[misc]
        call_s = {"ours": took[f"ours {f.config}"], **{name: took[name] for name in makers}}
        totals = {"ours": begun_s + later * call_s["ours"]}
        for name, make in makers.items():
            totals[name] = begun(make, once)[1] + later * took[name]
        result["calls"][n] = {
            "config": "scipy" if f.config is None else str(Config(f.config)),
            "first_compile_s": first_s,
            "compile_s": prepare_s,
            "first_calls_s": begun_s - prepare_s,
            "call_s": call_s,
            "totals_s": totals,
        }
    return result


def on_one_thread() -> None:
    """Time the process's CPU instead of the clock, for a machine that others keep busy: meaningful
    for contestants on one thread, as handles are there."""
    import torch

    global clock
    clock = time.process_time
    torch.set_num_threads(1)


def bound(f: Handle, b: Any) -> Callable[[], Any]:
    return lambda: f(b)


def summary(cells_: list[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means over the others of whole times, and how often it is slower by 5 % than the
    better of scipy and torch."""
    told: dict[str, Any] = {}
    for n in CALLS:
        totals = [c["calls"][n]["totals_s"] for c in cells_]
        names = [name for name in totals[0] if not name.startswith("ours")]
        late = [t["ours"] > 1.05 * min(t["scipy"], t["torch"]) for t in totals]
        told[f"{n} calls"] = {
            **{f"over {x}": round(mean([t[x] / t["ours"] for t in totals]), 3) for x in names},
            "over the better of scipy and torch": round(
                mean([min(t["scipy"], t["torch"]) / t["ours"] for t in totals]), 3
            ),
            "slower by 5 %": sum(late) / len(late),
        }
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("db")
    parser.add_argument("what", nargs="?", default="measure")
    parser.add_argument("--count", type=int, default=40, help="matrices")
    parser.add_argument("--names", default="", help="these matrices, in place of a count")
    parser.add_argument("--dtypes", default="float32,float64")
    parser.add_argument("--widths", default=",".join(map(str, WIDTHS)))
    parser.add_argument("--cpu", action="store_true", help="CPU time, torch on one thread")
    given = parser.parse_args()
    if given.cpu:
        on_one_thread()
    if given.what == "hold-out":
        hold_out(given.folder, Path(given.db), given.count)
        return
    rows: dict[str, dict[str, Any]] = {}
    for name, a, k in cells(given):
        key = f"{a.dtype} k={k}"
        if given.what == "prepare":
            prepare(a, k, given.db)
        else:
            rows.setdefault(key, {})[name] = cell(a, k, given.db)
        print(name, key, file=sys.stderr)
    if given.what != "prepare":
        summaries = {key: summary(list(cells_.values())) for key, cells_ in rows.items()}
        print(json.dumps({"about": about(), "summary": summaries, "cells": rows}, indent=1))


if __name__ == "__main__":
    main()
