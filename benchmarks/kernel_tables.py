"""The results of `tiles.py` and `fused.py` as tables in Markdown, for docs/results/index.md.

python benchmarks/kernel_tables.py benchmarks/results/tiles.json benchmarks/results/fused.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_ERRORS = ("ape", "mape")
_SPLITS = {"program": "programs held out", "family": "families held out"}


def main() -> None:
    for name in sys.argv[1:]:
        for line in tables(json.loads(Path(name).read_text(encoding="utf-8"))):
            print(line)


def tables(result: Mapping[str, Any]) -> Iterator[str]:
    """Lines: every method on every split, then Figure 4 and the grid, as far as they are there."""
    splits = result.get("splits", {})
    for by, methods in splits.items():
        error = next((e for e in _ERRORS for m in methods.values() if e in m), "")
        if not error:
            continue
        yield f"| {_SPLITS[by]} | {error} mean (± error) | median | tau mean | median |"
        yield "|---|---|---|---|---|"
        for method, told in methods.items():
            yield _row(method, told, error)
        if by == "program" and result.get("ceiling"):
            yield _row("another round of the same tiles", result["ceiling"], error)
        yield ""
    four = {
        by: {m: t["figure_4"] for m, t in splits[by].items() if "figure_4" in t} for by in splits
    }
    for by, gains in four.items():
        if not gains:
            continue
        yield f"| faster than untiled, {_SPLITS[by]} | first | best of 10 | exhaustive |"
        yield "|---|---|---|---|"
        for method, gain in gains.items():
            numbers = " | ".join(f"{gain[name]:.3f}×" for name in ("1", "10", "exhaustive"))
            yield f"| {method} | {numbers} |"
        yield ""
    if result.get("grid"):
        yield "| network | ape mean | median | tau mean | above the first | trained, s |"
        yield "|---|---|---|---|---|---|"
        for name, told in result["grid"].items():
            seconds = told["training"]["train_cpu_s"]
            figures = f"{told['ape']:.1f} | {told['ape_median']:.1f} | {told['tau']:.3f}"
            above = told.get("above")  # files of one seed have none
            apart = f"{above['mean']:+.3f} ± {above['error']:.3f}" if above else "-"
            yield f"| {name} | {figures} | {apart} | {seconds:.0f} |"
        yield ""


def _row(name: str, told: Mapping[str, Any], error: str) -> str:
    tau, middle = (f"{told[t]:.2f}" if t in told else "" for t in ("tau", "tau_median"))
    off = told.get(f"{error}_error", 0.0)
    figures = f"{told[error]:.1f} ± {off:.1f} | {told[f'{error}_median']:.1f}"
    return f"| {name} | {figures} | {tau} | {middle} |"


if __name__ == "__main__":
    main()
