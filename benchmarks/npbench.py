"""How much of a collection of numpy programs the DaCe front end reads (A-test of "Performance
Embeddings" is cut from NPBench): programs read, nests found, and every reason for a refusal.

    EMBEDDB_DACE_PYTHON=dace/bin/python python benchmarks/npbench.py NPBENCH \
        [--sizes S,paper] [--keep NESTS] > benchmarks/results/npbench.json

NPBENCH is a checkout of NPBench (spcl/npbench), which is yours to bring: nothing of it is in this
repository. DaCe reads each `*_dace.py` under `npbench/benchmarks` once; its graphs are cut into
nests at every size of `bench_info/*.json` that is named. Of a program without any nest the first
reason alone is known. Other functions of a file than the program itself (helpers, whose sizes are
often no parameters) are counted apart. NESTS: a folder for nests of the programs as JSON, which
`embeddb nest import` reads.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from machine import about

from embeddb.core.errors import EmbeddbError
from embeddb.nests.nest import Nest
from embeddb.nests.nest_text import nest_text
from indexer.frontends import extract
from indexer.frontends.dace.python_program import sdfg_files

#: Notes of what is meant to be so, and is no refusal: (kind, what a note says of it).
_MEANT = (
    ("statement outside of loops", "a statement outside of loops is left out"),
    ("loop cut off at one turn", "is cut off at"),
    ("never runs in that turn", "never runs in this turn"),
)


@dataclass
class Counted:
    """One function of a program at one size."""

    program: str
    function: str
    size: str
    main: bool
    nests: int = 0
    by_depth: dict[int, int] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    crashed: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What `bench_info` says of a program. `sizes`: by name, the whole numbers among parameters."""

    path: Path
    function: str
    sizes: dict[str, dict[str, int | float]]


def benchmarks_of(folder: Path) -> Iterator[Benchmark]:
    """Every program that has a DaCe version, by name."""
    told = {}
    for file in sorted((folder / "bench_info").glob("*.json")):
        one = json.loads(file.read_text())["benchmark"]
        told[one["module_name"]] = one
    for path in sorted((folder / "npbench" / "benchmarks").rglob("*_dace.py")):
        one = told[path.stem.removesuffix("_dace")]
        sizes = {
            name: {n: v for n, v in given.items() if isinstance(v, int | float)}
            for name, given in one["parameters"].items()
        }
        yield Benchmark(path, one["func_name"], sizes)


def counted(file: Path, benchmark: Benchmark, size: str) -> tuple[Counted, list[Nest]]:
    """The nests of one graph at one size, and what was said on the way."""
    name = benchmark.path.stem.removesuffix("_dace")
    found = Counted(name, file.stem, size, file.stem == benchmark.function)
    start = time.perf_counter()
    nests: list[Nest] = []
    try:
        made = extract(file, defines=benchmark.sizes[size])
    except EmbeddbError as error:
        found.refused[reason(str(error))] = 1
    except Exception as error:  # noqa: BLE001 - a front end refuses and never crashes: that is tested
        found.crashed = f"{type(error).__name__}: {error}"[:200]
    else:
        nests = list(made.nests)
        found.notes, found.refused = sorted_notes(made.notes)
    found.seconds = round(time.perf_counter() - start, 3)
    found.nests = len(nests)
    found.by_depth = dict(sorted(Counter(n.depth for n in nests).items()))
    return found, nests


def sorted_notes(notes: tuple[str, ...]) -> tuple[dict[str, int], dict[str, int]]:
    """Notes by kind: what is meant to be so, and refusals."""
    meant, refused = Counter[str](), Counter[str]()
    for note in notes:
        kind = next((kind for kind, said in _MEANT if said in note), "")
        if kind:
            meant[kind] += 1
        else:
            refused[reason(note)] += 1
    return dict(meant), dict(refused)


def reason(note: str) -> str:
    """A note without where it stands and without names, so that equal reasons are counted."""
    said = note.removesuffix(": its states are read one by one").split(": ")
    last = ": ".join(said[-2:]) if said[-1].startswith("arrays that overlap") else said[-1]
    for text, plain in (
        (r"^\w+ (has elements of type)", r"\1"),
        (r"^\w+ (is not known;)", r"a name \1"),
        (r"^\w+ (has no value)", r"a name \1"),
        (r"^\w+ (is of kind)", r"\1"),
    ):
        last = re.sub(text, plain, last)
    return last[:120]


def summary(rows: list[Counted], size: str) -> dict[str, Any]:
    """Counts over the programs at one size."""
    of_size = [row for row in rows if row.size == size]
    main = [row for row in of_size if row.main]
    helpers = [row for row in of_size if not row.main]
    depth, refused, notes = Counter[int](), Counter[str](), Counter[str]()
    for row in main:
        depth.update(row.by_depth)
        refused.update(row.refused)
        notes.update(row.notes)
    return {
        "programs": len(main),
        "with nests": sum(row.nests > 0 for row in main),
        "read whole": sum(row.nests > 0 and not row.refused for row in main),
        "nests": sum(row.nests for row in main),
        "by depth": dict(sorted(depth.items())),
        "helper functions": len(helpers),
        "nests of helpers": sum(row.nests for row in helpers),
        "crashed": sum(bool(row.crashed) for row in of_size),
        "left as meant": dict(notes.most_common()),
        "refused": dict(refused.most_common()),
        "seconds": round(sum(row.seconds for row in of_size), 2),
    }


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("folder", type=Path)
    asked.add_argument("--sizes", default="S,paper")
    asked.add_argument("--keep", type=Path)
    args = asked.parse_args()
    rows: list[Counted] = []
    by_dace: dict[str, float] = {}
    failed: dict[str, list[str]] = {}
    different: dict[str, set[str]] = {}
    for benchmark in benchmarks_of(args.folder):
        name = benchmark.path.stem.removesuffix("_dace")
        sys.stderr.write(f"{name}\n")
        start = time.perf_counter()
        try:
            with sdfg_files(benchmark.path) as (files, notes):
                by_dace[name] = round(time.perf_counter() - start, 1)
                if notes:
                    failed[name] = notes
                for size in args.sizes.split(","):
                    for file in files:
                        row, nests = counted(file, benchmark, size)
                        rows.append(row)
                        different.setdefault(size, set()).update(n.id for n in nests)
                        if args.keep and row.main:
                            keep(args.keep / f"{name}_{size}.json", f"{name}_{size}", nests)
        except EmbeddbError as error:
            failed[name] = [str(error)[:200]]
    told = {
        "about": about(),
        "programs": len(by_dace) + sum(name not in by_dace for name in failed),
        "dace": {
            "seconds": {
                "sum": sum(by_dace.values()),
                "median": statistics.median(by_dace.values()),
            },
            "failed": failed,
        },
        "sizes": {
            size: {**summary(rows, size), "different nests": len(different[size])}
            for size in args.sizes.split(",")
        },
        "rows": [asdict(row) for row in rows],
    }
    sys.stdout.write(json.dumps(told, indent=1) + "\n")


def keep(path: Path, name: str, nests: list[Nest]) -> None:
    """Nests as a file, each named by its program and size, and grouped by its program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    told = [json.loads(nest_text(nest)) for nest in nests]
    for one in told:
        one["group"] = name.rsplit("_", 1)[0]
        one["name"] = f"{name}_{one['name'].rsplit('_', 1)[-1]}"
    path.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
