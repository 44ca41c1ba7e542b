"""Compiled handles over forty real matrices whose families the database never saw: the whole time
of 1, 10, 100 and 1,000 calls, asking, copying and conversion counted, against scipy, torch's CSR
and MKL (`sparse_dot_mkl`, if it is installed).

    python benchmarks/handle_grid.py MATRICES DB hold-out       # the starter without these families
    python benchmarks/handle_grid.py MATRICES DB prepare        # answers, and builds what is chosen
    python benchmarks/handle_grid.py MATRICES DB > benchmarks/results/handle_grid.json

Every cell is asked with the number of its calls. A call's time is the median of interleaved rounds
of calls in a row, and a total is what `embeddb.compile` took (its second time: the answer is kept
then, and the kernels are built), the first twelve calls as they come, cold and with what a handle
tries, and as many times that as are left; of the others what making their matrix takes, and the
same.
"""

from __future__ import annotations

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
from embeddb.core.config import Config
from embeddb.database import open_database
from embeddb.handle.handle import Handle
from indexer.exchange.exchange import export_file, import_file

COUNT, LEAST, MOST = 40, 20_000, 1_500_000
WIDTHS = (1, 16, 32, 100, 128, 512)
CALLS = (1, 10, 100, 1000)
FIRST = 12
DTYPES = ("float32", "float64")
#: Widths in double precision, where half as much is measured.
DOUBLE = (1, 32, 128)


def chosen(folder: Path) -> list[tuple[str, str]]:
    """Name and family of one matrix a family, evenly by non-zeros."""
    with open_database("starter", readonly=True) as db:
        found = {
            info.group: (info.nnz, info.name)
            for info in db.patterns(kind="matrix")
            if LEAST <= info.nnz <= MOST and (folder / f"{info.name}.npz").is_file()
        }
    ranked = sorted((nnz, name, group) for group, (nnz, name) in found.items())
    at = np.linspace(0, len(ranked) - 1, COUNT).round().astype(int)
    return [ranked[i][1:] for i in at]


def hold_out(folder: Path, db: Path) -> None:
    """The starter without the runs of the chosen matrices' families."""
    groups = {group for _, group in chosen(folder)}
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


def cells(folder: Path) -> Iterator[tuple[str, Any, int]]:
    for name, _ in chosen(folder):
        a = matrix(folder, name)
        for dtype in DTYPES:
            for k in WIDTHS if dtype == "float32" else DOUBLE:
                yield name, a.astype(dtype), k


def others(a: Any, b: Any) -> tuple[dict[str, Callable[[], Any]], dict[str, float]]:
    """What multiplies instead, and what preparing it takes."""
    import torch

    start = time.perf_counter()
    t = torch.sparse_csr_tensor(
        *(torch.from_numpy(x.copy()) for x in (a.indptr, a.indices, a.data)), size=a.shape
    )
    made_s = time.perf_counter() - start
    tb = torch.from_numpy(b)
    calls: dict[str, Callable[[], Any]] = {"scipy": lambda: a @ b, "torch": lambda: t @ tb}
    try:
        from scipy.sparse import csr_matrix
        from sparse_dot_mkl import dot_product_mkl
    except ImportError:
        return calls, {"torch": made_s}
    m = csr_matrix(a)
    calls["mkl"] = lambda: dot_product_mkl(m, b)
    return calls, {"torch": made_s}


def rounds(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Medians over three interleaved rounds, in each of which everybody makes up to ten calls in a
    row, as a loop does, after one that warms up."""
    took: dict[str, list[float]] = {name: [] for name in calls}
    before = ""
    for _ in range(3):
        for name, call in calls.items():
            settle(before)
            before = name
            call()
            end = time.perf_counter() + 0.05
            for _ in range(10):
                start = time.perf_counter()
                call()
                took[name].append(time.perf_counter() - start)
                if time.perf_counter() > end:
                    break
    return {name: float(np.median(values)) for name, values in took.items()}


def settle(before: str) -> None:
    """Wait until no thread of whoever was called before spins any more; MKL's do so for 0.2 s."""
    time.sleep(0.25 if before == "mkl" else 0.02)


def first(call: Callable[[], Any]) -> list[float]:
    """Seconds of the first calls, among which a handle may try what is fastest."""
    took = []
    settle("")
    for _ in range(FIRST):
        start = time.perf_counter()
        call()
        took.append(time.perf_counter() - start)
    return took


def cell(a: Any, k: int, db: Path) -> dict[str, Any]:
    b = np.random.default_rng(1).random((a.shape[1], k)).astype(a.dtype)
    b = b[:, 0].copy() if k == 1 else b
    handles, compile_s = {}, {}
    for n in CALLS:
        compiled(a, k, n, db)
        start = time.perf_counter()
        handles[n] = compiled(a, k, n, db)
        compile_s[n] = time.perf_counter() - start
    calls, prepare_s = others(a, b)
    cold = {name: first(call) for name, call in calls.items()}
    settle("mkl")
    own_cold = {n: first(lambda f=f: f(b)) for n, f in handles.items()}  # type: ignore[misc]
    configs = {n: str(f.config) for n, f in handles.items()}  # of which a trial may be the end
    for n, config in configs.items():
        calls[f"ours {config}"] = lambda f=handles[n]: f(b)  # type: ignore[misc]
    took = rounds(calls)
    found: dict[str, Any] = {"nnz": int(a.nnz), "call_s": {}, "totals_s": {}, "configs": {}}
    names = [name for name in took if not name.startswith("ours")]
    found["call_s"] = {name: took[name] for name in names}
    for n in CALLS:
        config = configs[n]
        call_s = took[f"ours {config}"]
        later = max(0, n - FIRST)
        found["totals_s"][n] = {
            "ours": compile_s[n] + sum(own_cold[n][:n]) + later * call_s,
            **{
                name: prepare_s.get(name, 0.0) + sum(cold[name][:n]) + later * took[name]
                for name in names
            },
        }
        found["configs"][n] = str(Config.parse(config)) if config != "None" else "scipy"
        found["call_s"][f"ours for {n}"] = call_s
    return found


def summary(cells_: list[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means over the others of whole times, and how often it is slower by 5 % than the
    better of scipy and torch."""
    told: dict[str, Any] = {}
    for n in CALLS:
        totals = [c["totals_s"][n] for c in cells_]
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


def main(folder: Path, db: Path, what: str) -> None:
    if what == "hold-out":
        return hold_out(folder, db)
    found: dict[str, dict[str, Any]] = {}
    for name, a, k in cells(folder):
        key = f"{a.dtype} k={k}"
        if what == "prepare":
            for n in CALLS:
                compiled(a, k, n, db, build=n in CALLS[-2:] or None)
            continue
        found.setdefault(key, {})[name] = cell(a, k, db)
        print(name, key, file=sys.stderr)
    if what == "prepare":
        return None
    told = {key: summary(list(rows.values())) for key, rows in found.items()}
    print(json.dumps({"about": about(), "summary": told, "cells": found}, indent=1))
    return None


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "")
