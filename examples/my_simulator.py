"""A toy simulator, to show how a real one is plugged in: examples/my_simulator.toml starts it.

python3 my_simulator.py --matrix A.mtx --width 32 --tile-rows 64 --lanes 4

It reads a Matrix Market file and prints JSON with a count of cycles. The count comes from a small
formula that nobody has compared with anything; a simulator of your own takes its place. Python's
standard library is all it needs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

__all__ = ["cycles", "main", "row_lengths"]

#: Rows that are worked on at once, and words of the buffer that holds a tile's results.
ENGINES = 8
BUFFER_WORDS = 8192


def row_lengths(path: Path) -> tuple[int, list[int]]:
    """Columns of the matrix, and how many entries each row has."""
    with path.open(encoding="ascii") as lines:
        body = (line.split() for line in lines if not line.startswith("%") and line.strip())
        rows, columns, _ = (int(word) for word in next(body))
        lengths = [0] * rows
        for words in body:
            lengths[int(words[0]) - 1] += 1
    return columns, lengths


def cycles(columns: int, lengths: list[int], chosen: argparse.Namespace) -> int:
    """A tile is done when its busiest engine is; then the next one is fetched."""
    passes = -(-chosen.width // chosen.lanes)
    fetch = 400 // (1 + 3 * chosen.double_buffer * chosen.prefetch)
    total = 1000
    for start in range(0, len(lengths), chosen.tile_rows):
        tile = lengths[start : start + chosen.tile_rows]
        if chosen.dataflow == "outer":  # entries are dealt out one by one, results are merged
            busiest = -(-sum(tile) // ENGINES) + len(tile) // 2
        else:
            busiest = max(sum(tile[at::ENGINES]) for at in range(ENGINES))
        total += fetch + passes * (busiest + 2 * chosen.lanes)
    return total + columns // 4


def main() -> int:
    parser = argparse.ArgumentParser(description="A toy: its cycles are of no real machine.")
    parser.add_argument("--matrix", type=Path, required=True)
    parser.add_argument("--kernel", choices=["spmm"], default="spmm")
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--tile-rows", type=int, default=64)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--dataflow", choices=["row", "outer"], default="row")
    parser.add_argument("--double-buffer", type=int, default=0)
    parser.add_argument("--prefetch", type=int, default=0)
    chosen = parser.parse_args()
    if chosen.tile_rows * chosen.lanes > BUFFER_WORDS:
        print("the tile does not fit the buffer", file=sys.stderr)
        return 3
    columns, lengths = row_lengths(chosen.matrix)
    found = {
        "simulator": "toy, of no real machine",
        "stats": {"cycles": cycles(columns, lengths, chosen), "entries": sum(lengths)},
    }
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
