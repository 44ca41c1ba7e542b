"""Small databases with a known law: which of four variants wins follows from the row length."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from embeddb.config import Config, Op
from embeddb.db import Database
from embeddb.pattern import Pattern
from embeddb.platform import Platform, parse_platform
from embeddb.records import Measurement, Run
from indexer.embed import embed
from indexer.library import info_of

OP = Op("spmm", 32)
VARIANTS = ("a", "b", "c", "d")
CONFIGS = tuple(Config({"variant": v}) for v in VARIANTS)
DEFAULT = CONFIGS[0]
#: Nonzeros per row for which variant a, b, c, d is the fastest.
LENGTHS = (2, 6, 14, 30)

_TOML = """
name = "{name}"
version = "1"
title = "Four variants"
portable = {portable}
simulated = {simulated}

[[space]]
kernels = ["spmm", "spmv"]

[space.params]
variant = {{ type = "choice", values = ["a", "b", "c", "d"] }}

[space.default]
variant = "a"
"""

#: A space whose legal configurations depend on the matrix, with a symbol among the values.
SIZED_TOML = """
name = "sized"
version = "1"
title = "Tiles that must fit"

[[space]]
kernels = ["spmm"]
constraints = ["rows <= NUM_MATRIX_ROWS or rows == 1"]

[space.params]
rows = { type = "int", values = [1, 16, 256] }
cols = { type = "int", values = [8, 64, "NUM_MATRIX_COLS"] }

[space.default]
rows = 1
cols = "NUM_MATRIX_COLS"
"""

Times = Callable[[Pattern, int], float]


def tiny(name: str = "tiny", *, portable: bool = False, simulated: bool = False) -> Platform:
    text = _TOML.format(name=name, portable=str(portable).lower(), simulated=str(simulated).lower())
    return parse_platform(text)


def sized() -> Platform:
    return parse_platform(SIZED_TOML)


def band(size: int, length: int, *, name: str = "", group: str = "") -> Pattern:
    """Every row holds `length` columns, a constant step apart."""
    rows = np.repeat(np.arange(size), length)
    cols = (rows + 3 * np.tile(np.arange(length), size)) % size
    return Pattern.from_coo((size, size), rows, cols, name=name, group=group)


def patterns(groups: int = 5, *, first: int = 0) -> list[Pattern]:
    """Four patterns in each group, one for every law; groups differ in size."""
    return [
        band(100 + 7 * g + at, length, name=f"m{g}{v}", group=f"g{g}")
        for g in range(first, first + groups)
        for at, (length, v) in enumerate(zip(LENGTHS, VARIANTS, strict=True))
    ]


def winner(pattern: Pattern) -> int:
    """Position of the variant that is fastest on a pattern."""
    length = pattern.nnz / pattern.shape[0]
    return int(np.argmin([abs(length - known) for known in LENGTHS]))


def by_law(pattern: Pattern, variant: int) -> float:
    """Seconds: each step away from the best variant costs a factor of 1.5."""
    return float(1e-6 * pattern.nnz * 1.5 ** abs(variant - winner(pattern)))


def by_chance(seed: int, scale: float = 0.15) -> Times:
    """Seconds that have nothing to do with the pattern's structure."""

    def times(pattern: Pattern, variant: int) -> float:
        rng = np.random.default_rng([seed, zlib.crc32(pattern.name.encode()), variant])
        return float(1e-3 * np.exp(rng.normal(0.0, scale)))

    return times


def runs_of(
    pattern: Pattern,
    platform: Platform,
    *,
    op: Op = OP,
    times: Times = by_law,
    variants: Sequence[int] = (0, 1, 2, 3),
) -> list[Run]:
    return [
        Run(pattern.id, op, platform.id, CONFIGS[v], Measurement(times_s=(times(pattern, v),)))
        for v in variants
    ]


def fill(
    db: Database,
    platform: Platform,
    among: Iterable[Pattern] | None = None,
    *,
    op: Op = OP,
    times: Times = by_law,
    indexed: bool = True,
) -> Database:
    """Runs of all variants on patterns (`patterns()` unless given), embedded and indexed."""
    chosen = patterns() if among is None else list(among)
    db.store.put_platform(platform)
    for pattern in chosen:
        db.store.put_structure(pattern, info_of(pattern))
    db.store.append(run for p in chosen for run in runs_of(p, platform, op=op, times=times))
    if indexed:
        embed(db)
    return db
