"""Small nests of different kinds, as test inputs."""

from __future__ import annotations

import json
from typing import Any

from embeddb.nests.nest import Nest
from embeddb.nests.nest_text import nest_from_text


def nest_of(
    loops: list[Any],
    arrays: list[Any],
    body: list[Any],
    *,
    name: str = "",
    group: str = "",
    names: tuple[list[str], list[str]] = ([], []),
) -> Nest:
    """A checked nest from the parts that a nest's file has under `code`; `names` are those of its
    loops and arrays. A loop may be a trip count, and an array may lack its last entries."""
    whole = [[[0], [n], 1] if isinstance(n, int) else n for n in loops]
    document = {
        "nest": 1,
        "name": name,
        "group": group or name,
        "loops": names[0],
        "arrays": names[1],
        "code": {
            "loops": whole,
            "arrays": [[*a, *["uniform", 0][len(a) - 2 :]] for a in arrays],
            "body": body,
        },
    }
    return nest_from_text(json.dumps(document))


def sample_nests(size: int = 16) -> dict[str, Nest]:
    """Six small nests by name, with about `size` iterations per loop."""
    return {
        name: nest_of(*parts, name=f"{name}_{size}", group=name)
        for name, parts in _parts(size).items()
    }


def _parts(n: int) -> dict[str, tuple[Any, Any, Any]]:
    """Loops, arrays and body of each, as `nest_of` takes them."""
    i, j, k = [0, 1], [0, 0, 1], [0, 0, 0, 1]
    i1, i2, j1, j2 = [1, 1], [2, 1], [1, 0, 1], [2, 0, 1]
    square = ["f32", [n, n]]
    around = [["read", 1, *at] for at in ([i, j1], [i1, j], [i1, j1], [i1, j2], [i2, j1])]
    total = around[0]
    for other in around[1:]:
        total = ["+", total, other]
    wide = ["f64", [n + 2, n + 2]]
    row = {"plus": [0], "of": [4, i]}
    next_row = {"plus": [0], "of": [4, i1]}
    column = {"plus": [0], "of": [2, j]}
    return {
        "matmul": (
            [n, n, n],
            [["f32", [n, n], "zero"], square, square],
            [["+=", [0, i, j], ["*", ["read", 1, i, k], ["read", 2, k, j]], None]],
        ),
        "stencil": ([n, n], [wide, wide], [["=", [0, i1, j1], ["*", 0.2, total], None]]),
        "transpose": (
            [n, 2 * n],
            [["f32", [n, 2 * n]], ["f32", [2 * n, n]]],
            [["=", [0, i, j], ["read", 1, j, i], None]],
        ),
        "spmv": (
            [n, [row, next_row, 1]],
            [
                ["f32", [n], "zero"],
                ["f32", [4 * n]],
                ["i32", [4 * n], f"below:{n}"],
                ["f32", [n]],
                ["i32", [n + 1], f"offsets:{4 * n}"],
            ],
            [["+=", [0, i], ["*", ["read", 1, j], ["read", 3, column]], None]],
        ),
        "triangular": (
            [n, [[0], [1, 1], 1]],
            [["f64", [n], "zero"], ["f64", [n, n]], ["f64", [n]]],
            [["+=", [0, i], ["*", ["read", 1, i, j], ["read", 2, j]], None]],
        ),
        "masked_max": (
            [n],
            [["f32", [1], "zero"], ["f32", [n]]],
            [["max=", [0, [0]], ["exp", ["read", 1, i]], ["<", ["read", 1, i], 0.5]]],
        ),
    }
