"""How a configuration walks over the matrix, in terms any platform with a loop nest can give."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from embeddb.core.errors import UsageError
from embeddb.platforms.loopnest import LoopNest, complete_order

if TYPE_CHECKING:
    from embeddb.core.config import Op
    from embeddb.core.pattern import Pattern
    from embeddb.platforms.platform import Platform

__all__ = ["MAX_THREADS", "SCHEDULES", "Execution", "execution_of", "plain"]

SCHEDULES = ("static", "dynamic", "guided")
MAX_THREADS = 1024


@dataclass(frozen=True, slots=True)
class Execution:
    """A loop nest with what is needed to know which thread touches what in which order.

    `block`: rows x columns stored together. `slice`: rows side by side (SELL), 0 none; `sigma`:
    rows sorted by length within windows of so many, 1 none. `by_length`: all rows are.
    `pieces`: tasks per thread in position space, 0 if the outermost sparse loop is the parallel
    one. `tiles_parallel`: the tiles of dense columns are the tasks instead.

    Raises: UsageError for an unknown schedule or a number out of range.
    """

    nest: LoopNest
    block: tuple[int, int] = (1, 1)
    slice: int = 0
    sigma: int = 1
    padded: bool = False
    by_length: bool = False
    schedule: str = "static"
    chunk: int = 0
    threads: int = 1
    pieces: int = 0
    tiles_parallel: bool = False

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise UsageError(f"schedule {self.schedule!r} is none of {', '.join(SCHEDULES)}")
        if not 1 <= self.threads <= MAX_THREADS:
            raise UsageError(f"threads must be 1..{MAX_THREADS}, not {self.threads}")
        if min(*self.block, self.sigma) < 1 or min(self.slice, self.chunk, self.pieces) < 0:
            raise UsageError("block and sigma must be at least 1, slice, chunk and pieces 0")


def execution_of(
    platform: Platform,
    op: Op,
    config: Mapping[str, Any],
    *,
    pattern: Pattern,
    threads: int,
) -> tuple[Execution, tuple[str, ...]]:
    """What a legal configuration of the cpu platform, or of one with its parameter names, does;
    and remarks on what of it is left out. Parameters that only change the code inside of a
    segment (unroll, lanes, seams) do not matter here.

    Raises: UsageError if the platform has no loop nest for this op.
    """
    nest = platform.loopnest(op, config, pattern.sizes)
    if nest is None:
        raise UsageError(
            f"platform {platform.id} has no loop nest for {op.kernel}",
            hint="leave the platform out: rows in order, one thread per block of rows",
        )
    notes = []
    if config.get("reorder") == "rcm":
        notes.append("reorder = rcm: the rows are walked in the order of the file here")
    sliced = config.get("format") in ("sell", "ell")
    position, outer = "pieces" in config, "merge" in config
    return Execution(
        nest=_tiles_first(nest) if config.get("merge") == "tiles" else nest,
        block=_block(config.get("block")) if config.get("format") == "bcsr" else (1, 1),
        slice=int(config.get("slice", 0)) if sliced else 0,
        sigma=int(config.get("sigma", 1)) if sliced else 1,
        padded=config.get("format") == "ell",
        by_length=config.get("reorder") == "length",
        schedule="dynamic" if position else str(config.get("schedule", "static")),
        chunk=1 if position else 0 if outer else int(config.get("chunk", 0)),
        threads=1 if config.get("threads") == "one" else threads,
        pieces=int(config.get("pieces", 0)),
        tiles_parallel=config.get("merge") == "tiles",
    ), tuple(notes)


def plain(threads: int) -> Execution:
    """Rows in order, whole dense rows, one block of rows per thread: OpenMP's default."""
    return Execution(LoopNest((1, 1, 1, 1), complete_order(("i2", "j2", "k2"))), threads=threads)


def _tiles_first(nest: LoopNest) -> LoopNest:
    """Where tiles of dense columns are the tasks, the loop over them is the outermost."""
    names = [name for name in nest.names if name != "k2"]
    return LoopNest(nest.splits, complete_order(("k2", *names)))


def _block(value: Any) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,3})x(\d{1,3})", str(value))
    if not found:
        raise UsageError(f"block = {value} is not RxC")
    return int(found[1]), int(found[2])
