"""Configurations that extend the first space of the platform `cuda`, their kernels, and plans.

    space.py kernels OUT [PARTS [LIST]]     kernels.inc (a KERNEL line each) or its parts, names.txt
    space.py plan OUT FOLDER ORDER [LIST]   plan.txt, configs.csv: FOLDER's patterns as ORDER lists
                                    them; only the configurations of LIST (again.csv), if given
    space.py check OUT              check.txt: every kernel on driver.cpp's degenerate patterns

Meaning of the parameters (unchanged for the first space; an absent one does not apply):

    work      what a group of threads is given: rows; pieces (of a row, at most `piece` entries);
              entries (an equal piece of the entry list); slices (SpMV, 32 rows side by side, a
              thread each). New: stream (SpMV, a block takes neighbouring rows of at most `piece`
              entries through shared memory), coo (SDDMM, an equal piece of the entry list, each
              entry with its own row of X), windows (`window` rows over the columns that occur in
              them, zeros filled in: a NaN or infinity of B reaches all rows of the window)
    lanes     threads of a group (tensor cores: a warp); new values 2 and 4
    vec       neighbouring dense columns per load; new value 8 (16-bit types)
    cols      loads per thread and entry; on tensor cores tiles of 32 dense columns per warp
    stage     how indices and values reach the lanes: direct, shuffle, shared
    unroll    entries (windows: columns) side by side
    block     threads per block; new value 1024 (SpMV)
    grid      grid dimension that runs fastest: columns, rows
    reorder   none; length (falling). New: columns (windows: rows sorted by their columns)
    piece     entries per piece (windows: columns; absent: a whole window); new values 1, 2
              (SDDMM), 4, 8 (SpMM), 4, 8, 16 (SpMV)
    sigma     slices: sorting window
    batch     new: rows or pieces that a group works on side by side (absent: one)
    window    new: rows of a window, 4 to 16
    math      new, windows: fp32 (FMA), tf32, tf32x3 (three products, about float32), bf16
              (operands rounded), f16
"""

from __future__ import annotations

import csv
import functools
import itertools
import random
import sys
from collections.abc import Iterator
from pathlib import Path

Config = dict[str, str | int]
OPS = (
    ("spmm", 32),
    ("spmm", 128),
    ("spmm", 512),
    ("spmv", 1),
    ("sddmm", 32),
    ("sddmm", 128),
)
PARAMETERS = (
    "work",
    "lanes",
    "vec",
    "cols",
    "stage",
    "unroll",
    "block",
    "grid",
    "reorder",
    "piece",
    "sigma",
    "batch",
    "window",
    "math",
)
STAGE = {"direct": 0, "shuffle": 1, "shared": 2}
WORK = {"rows": 0, "pieces": 1, "entries": 2, "slices": 3, "coo": 4}
MATH = {"tf32": 0, "tf32x3": 1, "bf16": 2, "f16": 3}
TYPES = {"f32": "float", "f64": "double", "f16": "f16", "bf16": "bf16"}
SHARED_ROWS = ("pieces", "entries", "stream")  # work that may add to a row from several groups
BLOCKS = (64, 128, 256, 512)


def _product(**values: tuple[object, ...]) -> Iterator[Config]:
    """Every combination; a value of None leaves the parameter out."""
    for combination in itertools.product(*values.values()):
        pairs = zip(values, combination, strict=True)
        yield {k: v for k, v in pairs if v is not None}  # type: ignore[misc]


def _tiles(width: int, lanes: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """(lanes, vec, cols) whose tile is at most the width and not under a quarter of it (or 128)."""
    combinations = itertools.product(lanes, (1, 2, 4), (1, 2, 4))
    least = min(width, 128) // (1 if width == 32 else 2)
    return [t for t in combinations if least <= t[0] * t[1] * t[2] <= max(width, 32)]


def _with_tiles(width: int, lanes: tuple[int, ...], configs: Iterator[Config]) -> Iterator[Config]:
    for c, (n, vec, cols) in itertools.product(list(configs), _tiles(width, lanes)):
        if c.get("grid") == "rows" and n * vec * cols >= width:
            continue
        yield c | {"lanes": n, "vec": vec, "cols": cols}


def small_pieces(width: int) -> Iterator[Config]:
    shape = _product(
        work=("pieces",),
        stage=("direct", "shared"),
        unroll=(1, 2, 4),
        block=BLOCKS,
        grid=("columns", "rows"),
        reorder=("none", "length"),
        piece=(4, 8, 16, 32),
    )
    for c in _with_tiles(width, (4, 8, 16, 32), shape):
        if c["lanes"] != 4 and c["piece"] not in (4, 8):
            continue
        if c["unroll"] <= c["piece"] and (c["stage"] == "direct" or width == 512):
            yield c


def batches(width: int) -> Iterator[Config]:
    shape = _product(
        work=("rows", "pieces"),
        stage=("direct",),
        unroll=(1,),
        block=BLOCKS,
        grid=("columns", "rows"),
        reorder=("none", "length"),
        piece=(None, 4, 8, 16, 32),
        batch=(2, 4, 8),
    )
    for c in _with_tiles(width, (4, 8, 16, 32), shape):
        if (c["work"] == "rows") != ("piece" not in c):
            continue
        if c["batch"] * c["cols"] * c["vec"] <= 32:
            yield c


def windows(width: int) -> Iterator[Config]:
    shape = _product(
        work=("windows",),
        math=("fp32",),
        window=(4, 8, 16),
        unroll=(1, 2, 4),
        block=BLOCKS,
        grid=("columns", "rows"),
        reorder=("none", "columns"),
        piece=(None, 16, 64, 256),
    )
    for c in _with_tiles(width, (8, 16, 32), shape):
        if c["window"] * c["vec"] * c["cols"] <= 64 and c["vec"] * c["cols"] >= 2:
            yield c


def tensor_cores(width: int) -> Iterator[Config]:
    shape = _product(
        work=("windows",),
        math=("tf32", "tf32x3", "bf16"),
        window=(8, 16),
        cols=(1, 2, 4),
        block=BLOCKS,
        grid=("columns", "rows"),
        reorder=("none", "columns"),
        piece=(None, 64, 256),
    )
    for c in shape:
        if 32 * c["cols"] <= width and not (c["grid"] == "rows" and 32 * c["cols"] >= width):
            yield c


def spmv_streams(width: int) -> Iterator[Config]:
    shape = _product(
        work=("stream",),
        lanes=(1, 2, 4, 8, 16, 32),
        block=(*BLOCKS, 1024),
        piece=(128, 256, 512, 1024, 2048, 4096),
    )
    return (c for c in shape if c["piece"] >= c["block"])


def spmv_batches(width: int) -> Iterator[Config]:
    shape = _product(
        work=("rows", "pieces"),
        lanes=(1, 2, 4, 8, 16, 32),
        unroll=(1, 2),
        block=BLOCKS,
        reorder=("none", "length"),
        piece=(None, 16, 32, 128),
        batch=(2, 4),
    )
    for c in shape:
        if (c["work"] == "rows") != ("piece" not in c):
            continue
        if c["work"] == "rows" or (c["lanes"] >= 2 and c["lanes"] * c["unroll"] <= c["piece"]):
            yield c


def spmv_pieces(width: int) -> Iterator[Config]:
    shape = _product(
        work=("pieces",),
        lanes=(2, 4, 8, 16, 32),
        unroll=(1, 2, 4),
        block=(*BLOCKS, 1024),
        reorder=("none", "length"),
        piece=(4, 8, 16, 32, 64, 128, 256),
    )
    for c in shape:
        first_space = c["piece"] in (32, 128) and c["unroll"] <= 2 and c["block"] <= 512
        if c["lanes"] * c["unroll"] <= c["piece"] and not first_space:
            yield c


def _sddmm_tiles(width: int, lanes: tuple[int, ...]) -> list[tuple[int, int]]:
    tiles = itertools.product(lanes, (1, 2, 4))
    return [(n, v) for n, v in tiles if n * v <= width and width / (n * v) in (1, 2, 4, 8)]


def sddmm_small_pieces(width: int) -> Iterator[Config]:
    shape = _product(work=("entries",), unroll=(1, 2, 4), block=BLOCKS, piece=(1, 2, 4, 8))
    for c, (n, v) in itertools.product(list(shape), _sddmm_tiles(width, (2, 4, 8, 16, 32))):
        first_space = n != 2 and c["piece"] in (4, 8)
        if c["unroll"] <= c["piece"] and not first_space:
            yield c | {"lanes": n, "vec": v}


def sddmm_coo(width: int) -> Iterator[Config]:
    shape = _product(work=("coo",), unroll=(1, 2, 4), block=BLOCKS, piece=(1, 2, 4, 8, 16))
    for c, (n, v) in itertools.product(list(shape), _sddmm_tiles(width, (2, 4, 8, 16, 32))):
        if c["unroll"] <= c["piece"] and c["unroll"] * width // n <= 64:
            yield c | {"lanes": n, "vec": v}


def sddmm_tensor_cores(width: int) -> Iterator[Config]:
    return _product(
        work=("windows",),
        math=("tf32", "tf32x3"),
        window=(16,),
        block=BLOCKS,
        reorder=("none", "columns"),
        piece=(None, 8, 16, 32, 64),
    )


#: kind -> (part of the space, configurations of it that every pattern runs)
SPACES = {
    "spmm": ((small_pieces, 36), (batches, 36), (windows, 40), (tensor_cores, 36)),
    "spmv": ((spmv_streams, 36), (spmv_batches, 36), (spmv_pieces, 36)),
    "sddmm": ((sddmm_small_pieces, 16), (sddmm_coo, 32), (sddmm_tensor_cores, 16)),
}

#: Of the first space: the default, then those whose best comes nearest to the optimum together.
ANCHORS = {
    "spmm:32": (
        "rows 32 1 1 direct 1 128 columns none",
        "pieces 16 2 1 direct 1 256 columns length 32",
        "pieces 16 2 1 direct 1 64 columns length 16",
        "pieces 8 4 1 direct 2 128 columns none 512",
        "pieces 32 1 1 direct 4 256 columns none 16",
        "pieces 8 4 1 direct 1 128 columns length 32",
        "pieces 16 2 1 direct 4 256 columns none 128",
    ),
    "spmm:128": (
        "rows 32 1 1 direct 1 128 columns none",
        "pieces 32 2 2 direct 2 256 columns length 32",
        "pieces 32 2 1 direct 4 256 columns length 32",
        "pieces 32 4 1 direct 4 128 columns length 512",
        "pieces 16 4 2 direct 2 64 columns length 32",
        "pieces 32 4 1 direct 2 128 columns none 128",
        "pieces 16 2 1 direct 4 128 columns length 16",
    ),
    "spmm:512": (
        "rows 32 1 1 direct 1 128 columns none",
        "pieces 16 4 1 shuffle 4 512 columns length 32",
        "rows 32 4 4 shared 4 256 columns length",
        "rows 16 4 1 direct 4 256 columns none",
        "pieces 32 2 1 direct 1 128 columns none 128",
        "rows 16 4 2 shuffle 4 256 rows none",
        "pieces 32 4 4 shared 1 128 columns length 512",
    ),
    "spmv": (
        "rows 32 - - - 1 128 - none",
        "pieces 8 - - - 2 256 - none 128",
        "rows 32 - - - 2 256 - none",
        "slices - - - - 2 256 - - - 256",
        "entries - - - - - 256 - - 32",
        "pieces 32 - - - 1 512 - length 512",
        "rows 4 - - - 1 256 - none",
    ),
    "sddmm:32": (
        "rows 32 1 - - 1 128 - none",
        "entries 8 2 - - 4 128 - - 8",
        "rows 8 4 - - 2 256 - none",
        "entries 32 1 - - 2 256 - - 8",
        "rows 8 4 - - 4 512 - none",
        "rows 4 4 - - 2 128 - none",
        "entries 4 4 - - 2 512 - - 8",
    ),
    "sddmm:128": (
        "rows 32 1 - - 1 128 - none",
        "entries 8 4 - - 1 64 - - 4",
        "rows 8 4 - - 2 128 - none",
        "entries 32 4 - - 1 256 - - 4",
        "rows 16 4 - - 2 128 - length",
        "entries 32 4 - - 1 128 - - 8",
        "rows 16 4 - - 2 256 - none",
    ),
}


def text_of(kind: str, width: int) -> str:
    return kind if kind == "spmv" else f"{kind}:{width}"


def anchors(kind: str, width: int) -> list[Config]:
    configs = []
    for line in ANCHORS[text_of(kind, width)]:
        pairs = zip(PARAMETERS, line.split(), strict=False)
        configs.append({k: int(v) if v.isdigit() else v for k, v in pairs if v != "-"})
    return configs


def typed(kind: str, width: int, dtype: str) -> list[Config]:
    """Configurations that run in another type than float32."""
    configs = anchors(kind, width)
    if kind == "spmv":
        more = _product(work=("stream",), lanes=(4,), block=(256,), piece=(512, 1024))
        rows = _product(
            work=("rows",),
            lanes=(2, 8),
            unroll=(1,),
            block=(128,),
            reorder=("none",),
            batch=(None, 2),
        )
        return [*configs, *more, *rows]
    plain = {"stage": "direct", "unroll": 1, "block": 128, "grid": "columns", "reorder": "length"}
    narrow = 8 if dtype in ("f16", "bf16") else 2
    for piece in (8, 16, 32):
        tile = {"lanes": min(32, width // narrow), "vec": narrow, "cols": 1}
        configs.append({"work": "pieces", **plain, **tile, "piece": piece})
    if dtype in ("f16", "bf16"):
        for window, cols in ((8, 1), (16, 1), (8, width // 32)):
            shape = {"block": 128, "grid": "columns", "reorder": "none", "cols": cols}
            configs.append({"work": "windows", "math": dtype, "window": window, **shape})
    return configs


def published(op: str, c: Config) -> Config:
    """A configuration in the words of cuda.toml, where `work` says which parameters apply."""
    work = str(c["work"])
    if "batch" in c:
        kept = {k: v for k, v in c.items() if op == "spmv" or k not in ("stage", "unroll")}
        return kept | {"work": {"rows": "row-batches", "pieces": "piece-batches"}[work]}
    if work == "windows" and "piece" in c:
        return c | {"work": "window-pieces"}
    return dict(c)


# ---- kernels


def is_tensor(c: Config) -> bool:
    return c["work"] == "windows" and c["math"] != "fp32"


def kernel(kind: str, width: int, dtype: str, c: Config) -> tuple[str, str]:
    """Name and template of a configuration's kernel. `width` matters for SDDMM and vector loads."""
    t = TYPES[dtype]
    cut = c["work"] in SHARED_ROWS
    out = "float" if dtype in ("f16", "bf16") and cut else t
    quad = 4 if width % 4 == 0 else 1
    args: tuple[object, ...]
    if kind == "spmm":
        if is_tensor(c):
            args = ("spmm_mma", t, t, MATH[str(c["math"])], c["window"], c["cols"], quad)
        elif c["work"] == "windows":
            shape = (c["lanes"], c["vec"], c["cols"], c["window"], c["unroll"])
            args = ("spmm_window", t, t, *shape)
        elif "batch" in c:
            shape = (WORK[str(c["work"])], c["lanes"], c["vec"], c["cols"], c["batch"])
            args = ("spmm_batch", t, out, *shape)
        else:
            shape = (WORK[str(c["work"])], c["lanes"], c["vec"], c["cols"])
            args = ("spmm", t, out, *shape, STAGE[str(c["stage"])], c["unroll"])
    elif kind == "sddmm":
        if is_tensor(c):
            args = ("sddmm_mma", MATH[str(c["math"])], -(-width // 16), quad)
        else:
            held = -(-width // (int(c["lanes"]) * int(c["vec"])))
            shape = (WORK[str(c["work"])], c["lanes"], c["vec"], held, c["unroll"])
            args = ("sddmm", t, *shape)
    elif c["work"] == "stream":
        args = ("spmv_stream", t, out, c["lanes"])
    else:
        lanes = {"entries": 32, "slices": 1}.get(str(c["work"])) or c["lanes"]
        shape = (WORK[str(c["work"])], lanes, c.get("unroll", 1), c.get("batch", 1))
        args = ("spmv", t, out, *shape)
    name, *rest = args
    return f"{name}_" + "_".join(map(str, rest)), f"{name}<{','.join(map(str, rest))}>"


def tools() -> dict[str, str]:
    """Kernels that the driver itself needs: fill, cast, compare, plain references."""
    kernels = {f"tool_{tool}": tool for tool in ("nothing", "atomics", "copy", "read")}
    for dtype, t in TYPES.items():
        for tool in ("fill", "cast", "compare"):
            kernels[f"{tool}_{dtype}"] = f"{tool}<{t}>"
        kernels[f"plain_spmm_{dtype}"] = f"spmm<{t},{t},0,32,1,1,0,1>"
        kernels[f"plain_spmv_{dtype}"] = f"spmv<{t},{t},0,32,1,1>"
        for held in (1, 2, 4):
            kernels[f"plain_sddmm_{held}_{dtype}"] = f"sddmm<{t},0,32,1,{held},1>"
    return kernels


# ---- plans


class Plan:
    """Lines for the driver, and the table of configurations that their ids mean."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.ids: dict[tuple[object, ...], int] = {}
        self.kernels: dict[str, str] = {}

    def config(self, kind: str, width: int, dtype: str, c: Config) -> None:
        key = tuple(c.get(p) for p in PARAMETERS)
        number = self.ids.setdefault(key, len(self.ids))
        name, template = kernel(kind, width, dtype, c)
        self.kernels[name] = template
        tensor, work = is_tensor(c), str(c["work"])
        layout = {"slices": "sell"}.get(work, work)
        piece = int(c.get("piece", 0))
        if work == "windows":
            math = str(c["math"])
            layout = "columns" if math == "fp32" else "tf32" if math == "tf32x3" else math
            wide = {"columns": 1, "tf32": 8}.get(layout, 16)
            layout = "sddmm" if kind == "sddmm" else layout
            piece = -(-piece // wide)
        lanes = 32 if tensor or (work == "entries" and kind == "spmv") else int(c.get("lanes", 1))
        tile = 32 if tensor else lanes * int(c.get("vec", 1))
        reorder = ("none", "length", "columns").index(str(c.get("reorder", "none")))
        through = dtype in ("f16", "bf16") and work in SHARED_ROWS
        tolerance = {"f64": 1e-9, "f32": 1e-3, "f16": 4e-3, "bf16": 2e-2}[dtype]
        if tensor:
            tolerance = max(tolerance, {"tf32": 3e-3, "bf16": 2e-2}.get(str(c["math"]), 0))
        fields = (
            number,
            name,
            layout,
            lanes,
            tile * int(c.get("cols", 1)),
            c["block"],
            int(c.get("grid", "columns") == "columns"),
            reorder,
            piece,
            c.get("sigma", 0),
            c.get("batch", 1),
            c.get("window", 0),
            int(through),
            tolerance,
        )
        self.lines.append("C " + " ".join(map(str, fields)))

    def write(self, folder: Path, name: str) -> None:
        (folder / name).write_text("\n".join(self.lines) + "\n")
        with (folder / "configs.csv").open("w", newline="") as f:
            rows = csv.writer(f)
            rows.writerow(("id", *PARAMETERS))
            rows.writerows((number, *key) for key, number in self.ids.items())


@functools.cache
def everywhere(kind: str, width: int) -> list[Config]:
    """The same sample of each part of the space for every pattern."""
    chosen = []
    for part, count in SPACES[kind]:
        configs = list(part(width))
        chosen += random.Random(f"{part.__name__} {width}").sample(
            configs, min(count, len(configs))
        )
    return chosen


def first_round(plan: Plan, name: str, path: str) -> None:
    plan.lines.append(f"M {name} {path}")
    for kind, width in OPS:
        plan.lines.append(f"O {kind} {width} f32")
        for c in anchors(kind, width):
            plan.config(kind, width, "f32", c)
        plan.lines.append("L")
        for c in everywhere(kind, width):
            plan.config(kind, width, "f32", c)


def types_round(plan: Plan, name: str, path: str) -> None:
    plan.lines.append(f"M {name} {path}")
    for (kind, width), dtype in itertools.product(OPS, ("f64", "f16", "bf16")):
        if (kind, width) in (("spmm", 32), ("spmm", 128), ("spmv", 1)):
            plan.lines.append(f"O {kind} {width} {dtype}")
            plan.lines.append("L")
            for c in typed(kind, width, dtype):
                plan.config(kind, width, dtype, c)


def random_round(plan: Plan, name: str, path: str, count: int = 16) -> None:
    """`count` more of each part of the space, others on each pattern."""
    plan.lines.append(f"M {name} {path}")
    for kind, width in OPS:
        plan.lines.append(f"O {kind} {width} f32")
        for part, _ in SPACES[kind]:
            configs = PARTS[part.__name__, width]
            chosen = random.Random(f"{name} {part.__name__} {width}").sample(
                configs, min(count, len(configs))
            )
            for c in chosen:
                plan.config(kind, width, "f32", c)


def listed(path: Path) -> dict[tuple[str, int], list[Config]]:
    """Configurations of a CSV file: column `op`, then the parameters."""
    configs: dict[tuple[str, int], list[Config]] = {}
    with path.open(newline="") as f:
        for row in csv.DictReader(f):
            kind, _, width = row.pop("op").partition(":")
            c: Config = {k: int(v) if v.isdigit() else v for k, v in row.items() if v}
            configs.setdefault((kind, int(width or 1)), []).append(c)
    return configs


def listed_round(
    plan: Plan, name: str, path: str, rows: dict[tuple[str, int], list[Config]]
) -> None:
    plan.lines.append(f"M {name} {path}")
    for (kind, width), configs in rows.items():
        plan.lines += [f"O {kind} {width} f32", "L"]
        for c in configs:
            plan.config(kind, width, "f32", c)


PARTS = {
    (part.__name__, width): list(part(width)) for kind, width in OPS for part, _ in SPACES[kind]
}


def timed(folder: Path, order: list[str], only: Path | None = None) -> Plan:
    plan = Plan()
    if only:
        rows = listed(only)
        for name in order:
            listed_round(plan, name, str(folder / f"{name}.bin"), rows)
        return plan
    for round_of in (first_round, types_round, random_round):
        for name in order:
            round_of(plan, name, str(folder / f"{name}.bin"))
    return plan


CHECKED = ("one", "nothing", "column", "row", "dense", "ends", "random", "blocks")


def _check_widths(kind: str, c: Config, width: int) -> list[int]:
    if kind == "spmv":
        return [1]
    if kind == "spmm":
        vec = int(c.get("vec", 1))
        return [w for w in (1, 3, 33, 36, 40) if w % vec == 0 and (w != 40 or vec == 8)]
    if is_tensor(c):
        return [width - 4, width - 3] if width > 32 else [1, 3, 28]
    step = int(c["lanes"]) * int(c["vec"])
    held = -(-width // step)
    return [step * held] if held == 1 else [step * held, step * (held - 1) + int(c["vec"])]


def checks(patterns: tuple[str, ...] = CHECKED, part: float = 1.0) -> Plan:
    """A `part` of the kernels, once on each pattern and at widths that no tile divides."""
    wanted: dict[tuple[str, int, str], dict[str, Config]] = {}
    seen: set[tuple[str, str, object]] = set()
    every = [(k, w, "f32", c) for k, w in OPS for c in everywhere(k, w) + anchors(k, w)]
    every += [(k, w, "f32", c) for k, w in OPS for p, _ in SPACES[k] for c in PARTS[p.__name__, w]]
    every += [
        (k, w, d, c)
        for k, w in OPS
        if k != "sddmm" and w < 512
        for d in ("f64", "f16", "bf16")
        for c in typed(k, w, d)
    ]
    for kind, width, dtype, c in every:
        name = kernel(kind, width, dtype, c)[0]
        if (name, dtype, "batch") in seen:
            continue
        seen.add((name, dtype, "batch"))
        if random.Random(name).random() < part:
            for w in _check_widths(kind, c, width):
                checked = kernel(kind, w, dtype, c)[0]
                if -(-w // 32) != 3 or kind != "sddmm":
                    wanted.setdefault((kind, w, dtype), {})[checked] = c
    plan = Plan()
    plan.lines.append("S")
    for pattern in patterns:
        plan.lines.append(f"M {pattern} builtin:{pattern}")
        for (kind, width, dtype), configs in wanted.items():
            plan.lines.append(f"O {kind} {width} {dtype}")
            for c in configs.values():
                plan.config(kind, width, dtype, c)
    return plan


def write_kernels(folder: Path, kernels: dict[str, str], parts: int = 1) -> None:
    """Kernel lists in `parts` files of about equal length: kernels.inc, or kernels0.inc and on."""
    lines = [f"KERNEL({name}, {template})" for name, template in sorted(kernels.items())]
    for i in range(parts):
        name = f"kernels{i}.inc" if parts > 1 else "kernels.inc"
        (folder / name).write_text("\n".join(lines[i::parts]) + "\n")
    names = [(i, line[7:].split(",")[0]) for i in range(parts) for line in lines[i::parts]]
    text = "".join(f"kernels{i if parts > 1 else ''}.cubin {name}\n" for i, name in names)
    (folder / "names.txt").write_text(text)


def main(verb: str, out: str, *rest: str) -> None:
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    if verb == "kernels":
        only = Path(rest[1]) if len(rest) > 1 else None
        plan, check = timed(Path(), ["any"]), checks()
        if only:
            plan.kernels |= timed(Path(), ["any"], only).kernels
        for (name, width), configs in PARTS.items():
            kind = next(k for k, ps in SPACES.items() if name in {p.__name__ for p, _ in ps})
            for c in configs:
                key, template = kernel(kind, width, "f32", c)
                plan.kernels[key] = template
        write_kernels(folder, plan.kernels | check.kernels | tools(), int(rest[0]) if rest else 1)
    elif verb == "check":
        checks().write(folder, "check.txt")
    else:
        order = Path(rest[1]).read_text().split()
        only = Path(rest[2]) if len(rest) > 2 else None
        timed(Path(rest[0]), order, only).write(folder, "plan.txt")


if __name__ == "__main__":
    main(*sys.argv[1:])
