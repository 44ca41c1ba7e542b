"""Parts of a source beside a Gaussian process without one, at few samples of a GPU.

    sources.py OUT.json [--shared RUNS] [--draws 5] [--minutes 4]

The targets are operations of the starter's NVIDIA H200; samples and held-out families are those of
`few_samples.py`, and no source contains a matrix of a held-out family. Three parts are tested:

- importance: statistics weighed by inverse lengths fitted to the source's runs, the geometric mean
  over its platforms and operations;
- effects: a prior mean by a process of the source on mapped loop nests and tile sizes (another
  width of the same kernel: on its parameters and derived quantities), times a factor in [0, 1] of
  least squares on the target's samples;
- levels: gains of a matrix divided by the spread of the source's gains on the 7 nearest matrices.

Sources: the starter's CPUs (effects: of the same kernel), the H200's other operations, its other
widths, and SpMV formats on ginkgo's devices (RUNS/ginkgo) on matrices that the starter has too.
Stopped after some minutes, it goes on with what is missing when started again.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from few_samples import Floats, drawn, shares
from machine import about
from source_parts import (
    Given,
    Unit,
    importance,
    informed,
    levels,
    main_effects,
    nests,
    parameters,
)

from embeddb.core.config import Op
from embeddb.database import Database
from embeddb.learning.samples import samples_of, samples_of_machines
from embeddb.ui.cli.arguments import open_database

TARGET, OPS = "cuda@418a3fe9", ("spmm:128", "spmv", "sddmm:128")
#: Samples, in the order in which they are judged.
COUNTS = ((50, 100), (500,))
#: Fewest matrices of a device that the starter has, too.
_LEAST_ROWS = 15


def starter_units(db: Database) -> Iterator[Unit]:
    """Each operation on each CPU and on the target."""
    ran: dict[tuple[str, Op], list[str]] = {}
    for table in db.index.store.partitions():
        if table.platform.startswith(("cpu@", TARGET)):
            ran.setdefault((table.platform.partition("@")[0], table.op), []).append(table.platform)
    for (name, op), platforms in sorted(ran.items()):
        if len(platforms) == 1:
            own = db.index.platform(platforms[0])
            yield Unit.of(samples_of(db.index, own, [op]), platforms[0])
            continue
        samples = samples_of_machines(db.index, db.index.platform(name), [op])
        machines = np.array([machine.id for machine in samples.machines])
        for platform in platforms:
            yield Unit.of(samples.take(np.flatnonzero(machines == platform)), platform)


def device_units(log: Path, known: dict[str, tuple[Floats, str]]) -> Iterator[Unit]:
    """Formats on each device of ginkgo's log, on matrices with a `known` vector and family."""
    times: dict[str, dict[str, dict[str, float]]] = {}
    with gzip.open(log, "rt") as file:
        for line in csv.DictReader(file):
            if line["name"] in known and line["completed"] == "True":
                cell = times.setdefault(line["device"], {}).setdefault(line["name"], {})
                cell[line["format"]] = float(line["time_s"])
    for device, matrices in times.items():
        names = [name for name, cell in matrices.items() if len(cell) > 2]
        if len(names) < _LEAST_ROWS:
            continue
        runs = [(r, f, s) for r, name in enumerate(names) for f, s in matrices[name].items()]
        row, form, seconds = map(np.array, zip(*runs, strict=True))
        config = (form[:, None] == np.unique(form)).astype(np.float64)
        vectors, groups = map(np.array, zip(*(known[name] for name in names), strict=True))
        yield Unit(device, vectors, groups, row, -np.log(seconds.astype(np.float64)), config)


def vectors_by_name(db: Database, units: Sequence[Unit]) -> dict[str, tuple[Floats, str]]:
    known = {}
    for samples in (unit.samples for unit in units if unit.samples):
        for row, vector in zip(samples.rows, samples.vectors, strict=True):
            info = db.index.store.pattern(row.pattern_id)
            if info is not None and info.name:
                known[info.name] = vector, row.group
    return known


class Sources:
    """Units by source, and what they give to a target; importances are kept in a file."""

    def __init__(self, own: list[Unit], devices: list[Unit], cache: Path) -> None:
        self._own, self._devices, self._cache = own, devices, cache
        self._logs = json.loads(cache.read_text()) if cache.is_file() else {}

    def units(self, target: str) -> dict[str, list[Unit]]:
        kernel = target.partition(":")[0]
        cpus = [u for u in self._own if u.name.startswith("cpu@")]
        other = [u for u in self._own if u.name.startswith("cuda@") and not u.name.endswith(target)]
        kinds = {
            "CPUs": cpus,
            "H200, other operations": [u for u in other if u.kernel != kernel],
            "H200, other widths": [u for u in other if u.kernel == kernel],
            "devices": self._devices,
        }
        return {name: units for name, units in kinds.items() if units}

    def importance(self, units: Sequence[Unit], held: set[str], seed: int) -> Floats:
        for unit in units:
            key = f"{unit.name} {seed}"
            if key not in self._logs:
                self._logs[key] = importance(unit, held, seed).tolist()
        self._cache.write_text(json.dumps(self._logs))
        weight = np.exp(np.mean([self._logs[f"{unit.name} {seed}"] for unit in units], axis=0))
        found: Floats = weight / math.sqrt((weight**2).mean())
        return found

    def given(self, target: str, held: set[str], seed: int) -> Iterator[tuple[str, Given]]:
        """Each part of each source by name, and all of them together."""
        kernel = target.partition(":")[0]
        for source, units in self.units(target).items():
            effects = None
            if source != "devices":
                mapped = [u for u in units if u.kernel == kernel or source != "CPUs"]
                inputs = parameters if source == "H200, other widths" else nests
                effects = main_effects(mapped, held, seed, inputs)
            whole = Given(self.importance(units, held, seed), effects, levels(units, held))
            for field, value in whole._asdict().items():
                if value is not None:
                    yield f"{source}: {field}", Given(**{field: value})
            yield f"{source}: all parts", whole


def differences(cells: list[dict[str, list[float]]]) -> dict[str, list[float]]:
    """Points of each part above the process without a source: at 1, its standard error, at 5, its
    standard error."""
    out = {}
    for name in [name for name in cells[0] if name != "without"]:
        above = 100 * np.array([np.subtract(cell[name], cell["without"]) for cell in cells])
        error = above.std(axis=0, ddof=1) / math.sqrt(len(above))
        out[name] = np.stack([above.mean(axis=0), error], axis=1).ravel().round(2).tolist()
    return out


def cards(above: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, list[str]]]:
    """Of each part, where it is ahead or behind by more than one standard error."""
    out: dict[str, dict[str, list[str]]] = {}
    for cell, parts in above.items():
        for part, (at_1, error_1, at_5, error_5) in parts.items():
            card = out.setdefault(part, {"ahead": [], "behind": []})
            for at, mean, error in ((1, at_1, error_1), (5, at_5, error_5)):
                if abs(mean) > error:
                    card["ahead" if mean > 0 else "behind"].append(f"{cell}, at {at}")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--shared", type=Path, default=Path("shared"))
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=math.inf)
    asked = parser.parse_args()
    end = time.monotonic() + 60 * asked.minutes
    with open_database("starter", readonly=True) as db:
        own = list(starter_units(db))
        log = asked.shared / "ginkgo" / "spmv_times.csv.gz"
        devices = list(device_units(log, vectors_by_name(db, own))) if log.is_file() else []
    sources = Sources(own, devices, asked.out.with_suffix(".importance.json"))
    targets = {u.name.partition(" ")[2]: u.samples for u in own if u.name.startswith(TARGET)}
    document = json.loads(asked.out.read_text()) if asked.out.is_file() else {"draws": {}}
    for counts, seed, op in [(c, d, op) for c in COUNTS for d in range(asked.draws) for op in OPS]:
        cells = [document["draws"].setdefault(f"{op}, {n} samples", []) for n in counts]
        if len(cells[-1]) > seed or time.monotonic() > end:
            continue
        draws = [drawn(targets[op], count, seed) for count in counts]
        held = {draws[0].whole.rows[row].group for row in draws[0].held}
        given = {"without": Given(), **dict(sources.given(op, held, seed))}
        for draw, cell in zip(draws, cells, strict=True):
            scores = {name: informed(draw, seed, part) for name, part in given.items()}
            cell[seed:] = [{name: shares(draw, s)["common"] for name, s in scores.items()}]
        above = {name: differences(cell) for name, cell in document["draws"].items() if cell[1:]}
        document |= {"machine": about(), "above": above, "cards": cards(above)}
        asked.out.write_text(json.dumps(document, indent=1) + "\n")
        print(counts, "samples, draw", seed, op, flush=True)


if __name__ == "__main__":
    main()
