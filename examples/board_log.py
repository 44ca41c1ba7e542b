"""The input of docs/tutorial/own-log.md: matrices, and a log of runs on a made-up board.

python examples/board_log.py FOLDER

writes FOLDER/matrices/*.npz, FOLDER/runs.csv and FOLDER/new.mtx. The times come from a small
formula, not from hardware: they are there to have something to read, and prove nothing.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
from patterns import fem_blocks, poisson3d, scale_free, tall
from scipy import sparse

from embeddb.core.config import Config, Op
from embeddb.platforms.platform import load_platform

__all__ = ["board_seconds", "main", "matrices"]

OP = Op.parse("spmm:32")
PLATFORM = Path(__file__).with_name("my_platform.toml")
COLUMNS = ("tile_rows", "tile_cols", "lanes", "dataflow", "double_buffer", "prefetch")
#: Configurations timed on each matrix, beside the default.
COUNT = 24


def matrices() -> Iterator[tuple[str, Any]]:
    """Twenty small matrices of four kinds, by name."""
    for at in range(5):
        yield f"cube{at}", poisson3d(side=10 + 3 * at)
        yield f"mesh{at}", fem_blocks(nodes=300 * (at + 1), seed=at)
        yield f"crawl{at}", scale_free(nodes=1500 * (at + 1), edges=6000 * (at + 1), seed=at)
        yield f"terms{at}", tall(rows=2000 * (at + 1), cols=200 * (at + 1), seed=at)


def board_seconds(matrix: Any, config: Config, *, rng: np.random.Generator) -> float:
    """Made-up seconds: work per lane, a price per tile, waiting that double buffers hide."""
    m, n = matrix.shape
    rows, lanes = int(str(config["tile_rows"])), int(str(config["lanes"]))
    cols = n if config["tile_cols"] == "NUM_MATRIX_COLS" else min(int(str(config["tile_cols"])), n)
    lengths = np.diff(matrix.indptr)
    uneven = float(lengths.std() / max(lengths.mean(), 1e-9))
    work = matrix.nnz * OP.width / lanes * (1.0 + 0.2 * uneven * math.log2(rows / 32))
    tiles = math.ceil(m / rows) * math.ceil(n / cols) * 60.0
    misses = matrix.nnz * min(cols / 4096, 2.0) * (0.5 if config["dataflow"] == "outer" else 1.0)
    writes = m * OP.width * (math.ceil(n / cols) if config["dataflow"] == "outer" else 1) / 8
    ahead = int(str(config.get("prefetch", 0)))
    hidden = 1.0 if not ahead else 0.35 + 0.1 * abs(ahead - 2)
    cycles = work + tiles + hidden * (8 * misses + writes)
    return float(cycles / 16 / 0.3e9 * rng.normal(1.0, 0.02))


def rows() -> Iterator[dict[str, Any]]:
    """The lines of the log: the same configurations on every matrix, and one that is wrong."""
    platform = load_platform(PLATFORM)
    rng = np.random.default_rng(0)
    chosen = platform.space(OP).sample(COUNT, rng=rng)
    configs = list(dict.fromkeys([platform.default(OP), *chosen]))
    for name, matrix in matrices():
        for config in configs:
            time_us = 1e6 * board_seconds(matrix, config, rng=rng)
            yield {"matrix": name, **config, "time_us": f"{time_us:.3f}"}
    yield {"matrix": "cube0", **platform.default(OP).replace(lanes=6), "time_us": "1.0"}


def main(folder: Path) -> None:
    """Write everything below `folder`."""
    (folder / "matrices").mkdir(parents=True, exist_ok=True)
    for name, matrix in matrices():
        sparse.save_npz(folder / "matrices" / f"{name}.npz", matrix)
    with (folder / "runs.csv").open("w", newline="", encoding="utf-8") as out:
        table = csv.DictWriter(out, ("matrix", *COLUMNS, "time_us"), restval="")
        table.writeheader()
        table.writerows(rows())
    scipy.io.mmwrite(folder / "new.mtx", fem_blocks(nodes=1000, seed=9), field="pattern")
    print(f"wrote {folder}/matrices, {folder}/runs.csv and {folder}/new.mtx")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "board"))
