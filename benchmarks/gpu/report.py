"""Summarise the rows of the GPU campaign beside those of the first one.

    report.py RESULTS FIRST      writes RESULTS/summary.json; FIRST: folder of the first runs

RESULTS is `benchmarks/results/gpu`. A configuration's time is the median of its three samples; all
averages over matrices are geometric.
"""

from __future__ import annotations

import csv
import json
import lzma
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

PARAMETERS = (
    *("work", "lanes", "vec", "cols", "stage", "unroll", "block", "grid", "reorder", "piece"),
    *("sigma", "batch", "window", "math"),
)
OPS = ("spmm:32", "spmm:128", "spmm:512", "spmv", "sddmm:32", "sddmm:128")
ROUNDED = ("tf32", "bf16")  # tensor cores with rounded operands
WINDOWS = ("windows", "window-pieces")
Key = tuple[str, ...]


class Run(NamedTuple):
    matrix: str
    op: str
    config: Key  # values of PARAMETERS, or (algorithm,)
    us: float
    error: float
    dtype: str
    session: str


def read(path: Path) -> Iterable[dict[str, str]]:
    with lzma.open(path, "rt", newline="") as f:
        yield from csv.DictReader(f)


def median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def runs_of(path: Path) -> list[Run]:
    runs = []
    for row in read(path):
        if row.get("status", "ok") != "ok":
            continue
        times = row.get("times_us") or row["time_us"]
        algorithm = row.get("algorithm")
        key = (algorithm,) if algorithm else tuple(row.get(p, "") for p in PARAMETERS)
        us = median(float(t) for t in times.split(";"))
        error, dtype = float(row.get("error") or 0), row.get("dtype", "f32")
        runs.append(Run(row["matrix"], row["op"], key, us, error, dtype, row["session"]))
    return runs


def mean(ratios: Iterable[float]) -> float:
    logs = [math.log(r) for r in ratios]
    return round(math.exp(sum(logs) / len(logs)), 3) if logs else math.nan


def spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    at = {"p10": 0.1, "median": 0.5, "p90": 0.9}
    quantiles = {name: round(ordered[int(q * (len(ordered) - 1))], 3) for name, q in at.items()}
    return {"count": len(ordered), **quantiles}


def share(ratios: Iterable[float], limit: float) -> float:
    values = list(ratios)
    return round(sum(r < limit for r in values) / len(values), 3)


def field(key: Key, name: str) -> str:
    return key[PARAMETERS.index(name)]


class Campaign:
    """Both campaigns' float32 rows, by matrix and operation."""

    def __init__(self, results: Path, first: Path) -> None:
        self.first: dict[tuple[str, str], dict[Key, float]] = defaultdict(dict)
        self.new: dict[tuple[str, str], list[Run]] = defaultdict(list)
        self.library: dict[tuple[str, str], float] = {}
        self.listed: dict[str, set[Key]] = defaultdict(set)
        first_library = runs_of(first / "cusparse.csv.xz")
        self.libraries = runs_of(results / "cusparse.csv.xz")
        for run in runs_of(first / "runs.csv.xz"):
            self.first[run.matrix, run.op][run.config] = run.us
            self.listed[run.op].add(run.config)
        for run in runs_of(results / "runs.csv.xz"):
            self.new[run.matrix, run.op].append(run)
        for run in first_library + [r for r in self.libraries if r.dtype == "f32"]:
            at = run.matrix, run.op
            self.library[at] = min(run.us, self.library.get(at, math.inf))
        self.first_library = {(r.matrix, r.op, r.config): r.us for r in first_library}
        with (results / "patterns.csv").open(newline="") as f:
            self.shapes = {
                row["matrix"]: (int(row["rows"]), int(row["columns"]), int(row["entries"]))
                for row in csv.DictReader(f)
            }

    def kind(self, op: str, key: Key) -> str:
        work, arithmetic = field(key, "work"), field(key, "math")
        if work in WINDOWS:
            return f"windows {arithmetic}"
        if key in self.listed[op]:
            return "first space"
        return {"pieces": "more pieces", "entries": "small equal pieces"}.get(work, work)

    def pattern(self, matrix: str) -> str:
        rows, columns, entries = self.shapes[matrix]
        if entries >= 0.05 * rows * columns:
            return "near-dense (5 % or more)"
        mean_length = entries / rows
        if mean_length < 8:
            return "short rows (mean under 8)"
        return "rows of 8 to 64" if mean_length < 64 else "long rows (64 or more)"


def exact(run: Run) -> bool:
    """Products and sums in float32; tf32x3 sums in the tensor cores, which cut off."""
    return field(run.config, "math") in ("", "fp32")


def close(run: Run) -> bool:
    return field(run.config, "math") not in ROUNDED


def anchors(c: Campaign) -> dict[str, Any]:
    """The same configuration (and cuSPARSE algorithm) here over the first runs, by session."""
    out: dict[str, Any] = {}
    for op in OPS:
        by_session: dict[str, list[float]] = defaultdict(list)
        for (matrix, o), runs in c.new.items():
            if o == op:
                for run in runs:
                    before = c.first[matrix, op].get(run.config)
                    if before:
                        by_session[run.session].append(run.us / before)
        library = [
            r.us / c.first_library[r.matrix, r.op, r.config]
            for r in c.libraries
            if r.op == op and r.dtype == "f32" and (r.matrix, r.op, r.config) in c.first_library
        ]
        own = {s: spread(v) for s, v in sorted(by_session.items())}
        out[op] = {"own_by_session": own, "cusparse": spread(library)}
    return out


def first_runs_as_evidence(c: Campaign) -> dict[str, Any]:
    """Of the configurations that ran in both campaigns on a matrix, the fastest of the first runs,
    as a share of the fastest of the last session here."""
    out: dict[str, Any] = {}
    for op in OPS:
        shares, counts = [], []
        for (matrix, o), runs in c.new.items():
            if o == op:
                last = {r.config: r.us for r in sorted(runs, key=lambda r: r.session)}
                both = last.keys() & c.first[matrix, op].keys()
                chosen = min(both, key=lambda k: (c.first[matrix, op][k], k))
                shares.append(min(last[k] for k in both) / last[chosen])
                counts.append(float(len(both)))
        out[op] = {"configurations": median(counts), "share": mean(shares), **spread(shares)}
    return out


def repeats(c: Campaign) -> dict[str, Any]:
    """The same configuration in two sessions of this campaign: later over earlier, by kind."""
    out: dict[str, Any] = {}
    for op in OPS:
        ratios: dict[str, list[float]] = defaultdict(list)
        for (_, o), runs in c.new.items():
            if o != op:
                continue
            seen: dict[Key, Run] = {}
            for run in runs:
                earlier = seen.setdefault(run.config, run)
                if earlier.session < run.session and run.session == "5":
                    ratios[c.kind(op, run.config)].append(run.us / earlier.us)
        out[op] = {k: spread(v) for k, v in ratios.items() if len(v) >= 20}
    return out


def best(runs: Iterable[Run], wanted: Callable[[Run], bool]) -> Run | None:
    return min((r for r in runs if wanted(r)), key=lambda r: r.us, default=None)


def headline(c: Campaign, op: str, matrices: list[str]) -> dict[str, Any]:
    """cuSPARSE's best time over own best times: above 1 own kernels are faster."""
    columns: dict[str, list[float]] = defaultdict(list)
    for m in matrices:
        library, before = c.library[m, op], min(c.first[m, op].values())
        of_first = best(c.new[m, op], lambda r: r.config in c.listed[op])
        first = min(before, of_first.us if of_first else math.inf)
        fp32, threefold = best(c.new[m, op], exact), best(c.new[m, op], close)
        anything = best(c.new[m, op], lambda r: True)
        columns["first space"].append(library / before)
        columns["first space, mended source too"].append(library / first)
        columns["with new, float32"].append(library / min(before, fp32.us if fp32 else math.inf))
        us = min(before, threefold.us if threefold else math.inf)
        columns["with new, float32 and tf32x3"].append(library / us)
        columns["with new, all"].append(library / min(before, anything.us if anything else before))
    return {
        name: {
            "times_cusparse": mean(r),
            "slower": share(r, 1),
            "slower_by_5_percent": share(r, 0.95),
        }
        for name, r in columns.items()
    }


def winners(c: Campaign, op: str, wanted: Callable[[Run], bool]) -> dict[str, Any]:
    """Matrices where a kind has the best time, 2 % better than the best of all others."""
    gains: dict[str, list[float]] = defaultdict(list)
    for (m, o), runs in c.new.items():
        if o != op:
            continue
        times: dict[str, float] = {"first space": min(c.first[m, op].values())}
        for run in runs:
            if wanted(run):
                kind = c.kind(op, run.config)
                times[kind] = min(run.us, times.get(kind, math.inf))
        ordered = sorted((us, kind) for kind, us in times.items())
        if (
            len(ordered) > 1
            and ordered[0][1] != "first space"
            and ordered[0][0] * 1.02 < ordered[1][0]
        ):
            gains[ordered[0][1]].append(times["first space"] / ordered[0][0])
    return {
        kind: {"matrices": len(g), "over_first_space": mean(g), "largest": round(max(g), 2)}
        for kind, g in sorted(gains.items(), key=lambda item: -len(item[1]))
    }


def errors(c: Campaign, types: list[Run]) -> dict[str, Any]:
    """Largest and median relative error against the plain kernel of the same type."""
    by_arithmetic: dict[str, list[float]] = defaultdict(list)
    for runs in c.new.values():
        for run in runs:
            arithmetic = field(run.config, "math") or "fp32"
            by_arithmetic[f"f32, {arithmetic}"].append(run.error)
    for run in types:
        arithmetic = field(run.config, "math")
        by_arithmetic[f"{run.dtype}{', tensor cores' if arithmetic else ''}"].append(run.error)
    return {
        k: {"rows": len(v), "median": median(v), "largest": max(v)}
        for k, v in sorted(by_arithmetic.items())
    }


def other_types(c: Campaign, types: list[Run]) -> dict[str, Any]:
    own: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    plain: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    library: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for run in types:
        at = run.op, run.dtype
        own[at][run.matrix] = min(run.us, own[at].get(run.matrix, math.inf))
        if not field(run.config, "math"):
            plain[at][run.matrix] = min(run.us, plain[at].get(run.matrix, math.inf))
    for run in c.libraries:
        at = run.op, run.dtype
        library[at][run.matrix] = min(run.us, library[at].get(run.matrix, math.inf))
    out = {}
    for at in sorted(own):
        both = sorted(own[at].keys() & library[at].keys())
        ratios = [library[at][m] / own[at][m] for m in both]
        f32 = [(min(c.first[m, at[0]].values())) / own[at][m] for m in own[at]]
        out[f"{at[0]} {at[1]}"] = {
            "matrices": len(both),
            "times_cusparse": mean(ratios),
            "without_tensor_cores": mean(library[at][m] / plain[at][m] for m in both),
            "slower": share(ratios, 1),
            "over_own_float32": mean(f32),
        }
    return out


def traffic(c: Campaign, copy_gb_s: float) -> dict[str, Any]:
    """GB/s of A, B and C (SDDMM: A, X, B, values) read or written once, matrices of 1 M entries."""
    out = {}
    for op in OPS:
        rates = []
        for m, (rows, columns, entries) in c.shapes.items():
            if entries < 1_000_000 or (m, op) not in c.first:
                continue
            run = best(c.new[m, op], exact)
            us = min([*c.first[m, op].values(), run.us if run else math.inf])
            k = int(op.partition(":")[2] or 1)
            sparse = 8 * entries + 4 * rows + (4 * entries if op.startswith("sddmm") else 0)
            rates.append((sparse + 4 * k * (rows + columns)) / us / 1000)
        of_op = spread(rates)
        out[op] = of_op | {"median_share_of_copy": round(of_op["median"] / copy_gb_s, 3)}
    return out


def against_torch(c: Campaign, facts: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for f in (f for session in facts.values() for f in session.get("torch", [])):
        m, op = f["matrix"], f["op"]
        run = best(c.new[m, op], exact)
        own = min([*c.first[m, op].values(), run.us if run else math.inf])
        old = next((r for r in rows if (r["matrix"], r["op"]) == (m, op)), None)
        if old:  # the second session's call: keep the faster
            f = f | {k: min(f[k], old[k]) for k in ("graph_us", "gpu_us", "waited_us")}
            rows.remove(old)
        rows.append(
            {"matrix": m, "op": op, "own_us": own}
            | {k: round(f[k], 2) for k in ("graph_us", "gpu_us", "waited_us")}
        )
    return rows


def edges(c: Campaign, op: str) -> dict[str, dict[str, int]]:
    """Matrices (of all) on which a value is within 2 % of the best time (tf32x3 too), by kind."""
    hits: dict[str, Counter[str]] = defaultdict(Counter)
    for (m, o), runs in c.new.items():
        if o != op:
            continue
        by: dict[tuple[str, str], float] = {}
        least = min(c.first[m, op].values())
        for run in runs:
            kind = c.kind(op, run.config)
            if not close(run) or kind == "first space":
                continue
            least = min(least, run.us)
            for name, value in zip(PARAMETERS, run.config, strict=True):
                if value and name not in ("work", "math", "stage", "grid", "reorder"):
                    at = f"{kind}: {name}", value
                    by[at] = min(run.us, by.get(at, math.inf))
        for (name, value), us in by.items():
            hits[name][value] += us <= 1.02 * least
    return {
        name: dict(sorted(count.items(), key=lambda item: float(item[0])))
        for name, count in sorted(hits.items())
        if max(count.values()) >= 4 and len(count) > 1
    }


def driver_facts(facts: dict[str, Any]) -> dict[str, Any]:
    return {session: f["driver"] for session, f in facts.items()}


def nvrtc(facts: dict[str, Any]) -> dict[str, Any]:
    times = [f["nvrtc"] for f in facts.values() if "nvrtc" in f]
    compile_s = [t for n in times for t in n["compile_s"].values()]
    load_ms = [
        1e3 * (n["first_call_s"][k] - t)
        for n in times
        for k, t in n["compile_s"].items()
        if k in n["first_call_s"]
    ]
    return {"compile_s": spread(compile_s), "load_and_first_launch_ms": spread(load_ms)}


def statuses(results: Path) -> dict[str, dict[str, int]]:
    count: dict[str, Counter[str]] = {}
    for table in ("runs", "types", "cusparse"):
        count[table] = Counter(r["status"] for r in read(results / f"{table}.csv.xz"))
    return {k: dict(v) for k, v in count.items()}


def torch_ratios(rows: list[dict[str, Any]]) -> dict[str, Any]:
    out = {}
    for op in OPS:
        of_op = [r for r in rows if r["op"] == op]
        out[op] = {
            "in_graph": mean(r["graph_us"] / r["own_us"] for r in of_op),
            "in_stream": mean(r["gpu_us"] / r["own_us"] for r in of_op),
            "least_in_graph": round(min(r["graph_us"] / r["own_us"] for r in of_op), 2),
            "largest_in_graph": round(max(r["graph_us"] / r["own_us"] for r in of_op), 2),
        }
    return out


def main(results: str, first: str) -> None:
    folder = Path(results)
    c = Campaign(folder, Path(first))
    facts = json.loads((folder / "facts.json").read_text())
    types = runs_of(folder / "types.csv.xz")
    matrices = sorted({m for m, _ in c.new})
    classes: dict[str, list[str]] = defaultdict(list)
    for m in matrices:
        classes[c.pattern(m)].append(m)
    copy = facts["5"]["driver"]["copy_by_memcpy_in_stream_4096_mib_gb_s"]
    torch = against_torch(c, facts)
    summary = {
        "statuses": statuses(folder),
        "anchors_over_first_runs": anchors(c),
        "first_runs_as_evidence": first_runs_as_evidence(c),
        "session_5_over_3_and_4": repeats(c),
        "over_cusparse": {op: headline(c, op, matrices) for op in OPS},
        "over_cusparse_by_class": {
            name: {"matrices": len(ms)} | {op: headline(c, op, ms) for op in OPS}
            for name, ms in sorted(classes.items())
        },
        "winners_float32": {op: winners(c, op, exact) for op in OPS},
        "winners_and_tf32x3": {op: winners(c, op, close) for op in OPS},
        "winners_with_tolerance": {op: winners(c, op, lambda r: True) for op in OPS},
        "errors": errors(c, types),
        "other_types": other_types(c, types),
        "driver": driver_facts(facts),
        "nvrtc": nvrtc(facts),
        "over_torch_on_ten": torch_ratios(torch),
        "torch_rows": torch,
        "compulsory_traffic_gb_s": traffic(c, copy),
        "near_best_by_value": {op: edges(c, op) for op in OPS},
    }
    text = json.dumps(summary, indent=1)
    (folder / "summary.json").write_text(text + "\n")
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
