"""Rows of a sum that are taken together under a reshape: as the generator writes them, and as it
wrote them before it knew that they stay within it, which made divisions of their indices.

    chrt -r 1 python benchmarks/tile_rows.py [PROGRAM/NUMBER...] [--tiles 8] [--rounds 5] \\
        > benchmarks/results/tile_rows.json

Of each kernel, tiles whose former C divides; both forms run in interleaved rounds. `ratio` is the
former time over the present one, by tile: of medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from machine import about, spread

from embeddb.core.config import Op
from embeddb.kernels.tiles import generate
from embeddb.kernels.tiles.generate import c_function
from embeddb.platforms.designed_tiles import designed_tiles
from embeddb.platforms.of_subject import default_of, space_of
from embeddb.platforms.platform import load_platform
from embeddb.tensors.computation import Computation
from embeddb.tensors.tiles import Tile
from embeddb.tensors.tiling.forms import Form, Var, of_var
from indexer.programs.tensors import program
from indexer.programs.tensors.cutting import pieces_of
from indexer.runners.harness.building import Built
from indexer.runners.harness.worker import Libraries
from indexer.runners.tile_code.job import KernelJob
from indexer.runners.tile_code.measured import MeasuredKernel

KERNELS = ("vit.large/5", "gpt.large/7")
OP = Op("tile")
#: Calls of a round take at least so long.
LEAST_S = 0.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("kernels", nargs="*", default=KERNELS)
    parser.add_argument("--tiles", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    found = {name: compared(named(name), asked.tiles, asked.rounds) for name in asked.kernels}
    print(json.dumps({"machine": about(), "kernels": found}, indent=1))


def named(name: str) -> Computation:
    of, _, number = name.rpartition("/")
    return pieces_of(program(of))[int(number)].kernel


@contextmanager
def as_before() -> Iterator[None]:
    """The next rows may be any number."""

    def row(rows: Var, n: int) -> dict[Var, Form]:
        return {rows: of_var(rows) + n}

    with mock.patch.object(generate, "_row", row):
        yield


def compared(kernel: Computation, count: int, rounds: int) -> dict[str, Any]:
    tiles = divided(kernel, count)
    job, libraries = KernelJob(kernel, MeasuredKernel(kernel).scratch, 0), Libraries()
    with tempfile.TemporaryDirectory() as folder:
        built = {}
        for form in ("before", "now"):
            place = Path(folder) / form
            place.mkdir()
            if form == "before":
                with as_before():
                    built[form] = MeasuredKernel(kernel).build(tiles, place)
            else:
                built[form] = MeasuredKernel(kernel).build(tiles, place)
        job.expect(Path(folder), "", libraries)
        told: dict[str, dict[Tile, list[float]]] = {form: {t: [] for t in tiles} for form in built}
        for _ in range(rounds):
            for tile in tiles:
                for form, some in built.items():
                    call = caller(libraries, some[tile], job)
                    told[form][tile].append(seconds(call))
                    assert not job.wrong()
    ms = {f: [1e3 * statistics.median(told[f][t]) for t in tiles] for f in told}
    return {
        "operations": len(kernel.operations),
        "tiles": [[*tile.sizes, tile.reduced] for tile in tiles],
        "ms": ms,
        "ratio": spread([one / other for one, other in zip(ms["before"], ms["now"], strict=True)]),
    }


def divided(kernel: Computation, count: int) -> list[Tile]:
    """Tiles of which the former C divides and the present one does not."""
    platform = load_platform("tile-cpu")
    space, default = space_of(platform, OP, kernel), default_of(platform, OP, kernel)
    drawn = designed_tiles(space, default, 40, rng=np.random.default_rng(0))
    tiles = [Tile.of(config, kernel.sizes.symbols["RANK"]) for config in drawn]
    found = []
    for tile in tiles:
        with as_before():
            before = divisions(c_function(kernel, tile, "f"))
        if divisions(c_function(kernel, tile, "f")) < before:
            found.append(tile)
    return found[:count]


def divisions(text: str) -> int:
    code = [line for line in text.splitlines() if "/*" not in line]
    return sum(line.count("%") + line.count(" / ") for line in code)


def caller(libraries: Libraries, built: Built, job: KernelJob) -> Callable[[], None]:
    return lambda: libraries.call(str(built.library), built.which, job.arrays, 1)


def seconds(call: Callable[[], None]) -> float:
    """Of one call: of as many as take `LEAST_S`, after one that does not count."""
    call()
    begun, calls = time.perf_counter(), 0
    while time.perf_counter() - begun < LEAST_S or not calls:
        call()
        calls += 1
    return (time.perf_counter() - begun) / calls


if __name__ == "__main__":
    main()
