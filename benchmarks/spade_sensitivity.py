"""SPADE's timing model: whether it makes sense, and how much it hangs on what was assumed.

    python benchmarks/spade_sensitivity.py sense MATRICES > benchmarks/results/spade_sense.json
    python benchmarks/spade_sensitivity.py vary MATRICES > benchmarks/results/spade_sensitivity.json

MATRICES is a folder with a MANIFEST.csv (columns file, class, rows, nnz). Matrices are taken from
each of COGNATE's bins of rows, of as many classes as there are. `sense` times every legal
configuration of SpMM and SDDMM on 30 of up to a million non-zeros. `vary` halves and doubles each
assumption, for SpMM (SDDMM where only it has any) on smaller and fewer. `--per-bin` and `--most`
change how many and how large. No time in the result is of real hardware: all of it comes from the
timing model.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
import time
from collections import Counter
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from machine import about
from numpy.typing import NDArray
from scipy.stats import spearmanr

from embeddb.core.config import Op
from embeddb.core.pattern import Pattern
from embeddb.matrix_files import read_pattern
from embeddb.platforms.platform import Platform, load_platform
from indexer.runners.spade_model.model import Hardware, Model

#: COGNATE, Section 4.1: the bins of rows that its matrices are balanced over.
_BINS = (8192, 32768, 65536, 131072)
#: What the papers say is no assumption.
_GIVEN = ("processing_elements", "clock_ghz")
_OPS = (Op("spmm", 128), Op("sddmm", 128))


@dataclass(frozen=True)
class Grid:
    """Seconds float64[c] of every legal configuration of one pattern."""

    pattern: Pattern
    bin: int
    names: list[str]
    seconds: NDArray[np.float64]
    default: int
    winner: str
    bound: str

    @property
    def gain(self) -> float:
        """The default's time over the best one's."""
        return float(self.seconds[self.default] / self.seconds.min())


def choose(folder: Path, per_bin: int, most: int) -> list[tuple[int, Path]]:
    """Bin and file; in each bin, matrices of the classes that were taken least often so far."""
    with (folder / "MANIFEST.csv").open(newline="", encoding="utf-8") as lines:
        rows = [r for r in csv.DictReader(lines) if r["file"].endswith(".npz")]
    order = np.random.default_rng(0).permutation(len(rows))
    taken: Counter[str] = Counter()
    chosen = []
    for at in range(len(_BINS) + 1):
        fits = [rows[i] for i in order if _bin(int(rows[i]["rows"])) == at]
        fits = [r for r in fits if 1000 <= int(r["nnz"]) <= most]
        for _ in range(min(per_bin, len(fits))):
            row = min(fits, key=lambda r: taken[r["class"]])
            fits.remove(row)
            taken[row["class"]] += 1
            chosen.append((at, folder / row["file"]))
    return chosen


def _bin(rows: int) -> int:
    return sum(rows >= edge for edge in _BINS)


def grid(platform: Platform, hardware: Hardware, op: Op, pattern: Pattern) -> Grid:
    m, n = pattern.shape
    space = platform.space(op, pattern.sizes)
    model, configs = Model(hardware, pattern, op), list(space.enumerate())
    found = [model.estimate(space.numeric(config)) for config in configs]
    seconds = np.array([estimate.seconds for estimate in found])
    best = int(seconds.argmin())
    # Panels wider than the matrix are all the same configuration.
    numbers = space.numeric(configs[best])
    numbers["column_panels"] = (
        "all" if int(numbers["column_panels"]) >= n else numbers["column_panels"]
    )
    return Grid(
        pattern,
        _bin(m),
        [str(config) for config in configs],
        seconds,
        configs.index(platform.default(op, pattern.sizes)),
        ",".join(f"{name}={value}" for name, value in numbers.items()),
        found[best].bound,
    )


def sense(grids: list[Grid]) -> dict[str, Any]:
    """Distribution of optimum over default, and whether one configuration wins everywhere."""
    gains = np.array([g.gain for g in grids])
    winners = Counter(g.winner for g in grids)
    common = sorted(set.intersection(*(set(g.names) for g in grids)))
    relative = np.array(
        [[g.seconds.min() / g.seconds[g.names.index(name)] for name in common] for g in grids]
    )
    means = np.exp(np.log(relative).mean(axis=0))
    return {
        "matrices": len(grids),
        "best_over_default": _geomean(gains),
        "quantiles_0_25_50_75_100": np.quantile(gains, [0, 0.25, 0.5, 0.75, 1]).round(3).tolist(),
        "best_over_default_by_bin_of_rows": {
            str(b): _geomean(np.array([g.gain for g in grids if g.bin == b]))
            for b in sorted({g.bin for g in grids})
        },
        "distinct_winners": len(winners),
        "most_frequent_winner": winners.most_common(1)[0],
        "static_best": common[int(means.argmax())],
        "static_best_of_optimum": round(float(means.max()), 4),
        "wins_by_value": _values(grids),
        "bound_of_the_best": dict(Counter(g.bound for g in grids)),
    }


def _values(grids: list[Grid]) -> dict[str, int]:
    return dict(sorted(Counter(part for g in grids for part in g.winner.split(",")).items()))


def varied(
    platform: Platform, hardware: Hardware, patterns: list[Pattern]
) -> dict[str, dict[str, Any]]:
    """Each assumption halved and doubled, against the assumptions as they are."""
    base = {op: [grid(platform, hardware, op, p) for p in patterns] for op in _OPS}
    result = {
        f"as assumed, {op}": {"best_over_default": _geomean(np.array([g.gain for g in base[op]]))}
        for op in _OPS
    }
    for field in fields(Hardware):
        if field.name in _GIVEN:
            continue
        op = _OPS[1] if field.name == "reduce_cycles" else _OPS[0]  # SpMM has none
        for factor in (0.5, 2.0):
            changed = replace(hardware, **{field.name: getattr(hardware, field.name) * factor})
            found = [grid(platform, changed, op, p) for p in patterns]
            result[f"{field.name} x {factor:g}"] = _against(base[op], found)
            print(f"{field.name} x {factor:g}", file=sys.stderr)
    return result


def _against(base: list[Grid], found: list[Grid]) -> dict[str, Any]:
    pairs = list(zip(base, found, strict=True))
    ranks = [float(spearmanr(a.seconds, b.seconds).statistic) for a, b in pairs]
    kept = [b.seconds[a.seconds.argmin()] / b.seconds.min() for a, b in pairs]
    return {
        "best_over_default": _geomean(np.array([g.gain for g in found])),
        "rank_correlation_median": round(float(np.median(ranks)), 4),
        "rank_correlation_least": round(min(ranks), 4),
        "old_best_over_new_best": _geomean(np.array(kept)),
        "same_winner": round(float(np.mean([a.winner == b.winner for a, b in pairs])), 3),
    }


def _geomean(values: NDArray[np.float64]) -> float:
    return round(math.exp(float(np.log(values).mean())), 4)


def made_sense(platform: Platform, hardware: Hardware, patterns: list[Pattern]) -> dict[str, Any]:
    """`sense` of both operations, with what it cost here."""
    result: dict[str, Any] = {}
    grid(platform, hardware, _OPS[0], patterns[0])  # compiles
    for op in _OPS:
        start = time.process_time()
        grids = [grid(platform, hardware, op, p) for p in patterns]
        cpu_s = time.process_time() - start
        points = sum(len(g.names) for g in grids)
        work = sum(len(g.names) * g.pattern.nnz for g in grids)
        cost = {"points": points, "cpu_s": cpu_s, "ns_per_nonzero_and_point": cpu_s / work * 1e9}
        result[str(op)] = {**sense(grids), "cost": cost}
        print(op, file=sys.stderr)
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("sense", "vary"))
    parser.add_argument("matrices", type=Path)
    parser.add_argument("--per-bin", type=int)
    parser.add_argument("--most", type=int)
    asked = parser.parse_args()
    per_bin, most, do = {
        "sense": (6, 1_000_000, made_sense),
        "vary": (2, 150_000, varied),
    }[asked.what]
    platform = load_platform("spade")
    hardware = Hardware.from_traits(platform.traits)
    chosen = choose(asked.matrices, asked.per_bin or per_bin, asked.most or most)
    patterns = [read_pattern(file) for _, file in chosen]
    result: dict[str, Any] = {
        "about": about(),
        "source": "timing model, no hardware",
        "matrices": [[p.name, *p.shape, p.nnz] for p in patterns],
        asked.what: do(platform, hardware, patterns),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
