"""What tuning tiles of kernels found, as text and as a document."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from embeddb.core.wording import factor
from embeddb.ui.cli.output import note, say, table
from embeddb.ui.cli.tune_text.seconds import measured

if TYPE_CHECKING:
    from tuners.search import Tuned
    from tuners.tune_tiles import TilesTuned

__all__ = ["show_tiles", "tiles_document"]

#: Kernels without tiles that are named.
_MOST_NOTES = 10


def tiles_document(done: TilesTuned) -> dict[str, Any]:
    """Kernels as they are in the program; seconds of all of them together."""
    tuned, times = done.kernels, done.times
    default_s, best_s = _total(tuned, times)
    return {
        "platform": done.platform,
        "op": "tile",
        "kernels": [
            {
                "id": one.subject.id,
                "name": one.subject.name,
                "times": times[one.subject.id],
                "by": one.by,
                "ranked": one.ranked,
                "tried": len(one.tried),
                "default": dict(one.default),
                "default_s": one.again_s(one.default),
                "best": dict(one.best),
                "best_s": one.again_s(one.best),
                "gain": one.gain,
            }
            for one in tuned
        ],
        "fresh": sum(one.fresh for one in tuned),
        "skipped": dict(done.skipped),
        "default_s": default_s,
        "best_s": best_s,
        "gain": default_s / best_s if best_s else None,
    }


def show_tiles(done: TilesTuned) -> None:
    """A row for each kernel, and the sum."""
    tuned, skipped, times = done.kernels, done.skipped, done.times
    rows = [
        [
            one.subject.name,
            one.by,
            f"{len(one.tried)} of {one.ranked}",
            measured(one.again_s(one.default)),
            measured(one.again_s(one.best)),
            factor(one.gain),
            str(one.best),
        ]
        for one in tuned
    ]
    if rows:
        head = ["kernel", "chosen by", "tried", "untiled", "best", "gain", "configuration"]
        table(head, rows)
    for name, reason in list(skipped.items())[:_MOST_NOTES]:
        note(f"{name} has no tiles: {reason}")
    if len(skipped) > _MOST_NOTES:
        note(f"and {len(skipped) - _MOST_NOTES:,} more without tiles: --json has them all")
    default_s, best_s = _total(tuned, times)
    if len(tuned) > 1 and best_s:
        say()
        both = f"{measured(default_s)} untiled, {measured(best_s)} tuned"
        say(f"all: {both}, {factor(default_s / best_s)}")


def _total(tuned: Sequence[Tuned], times: Mapping[str, int]) -> tuple[float, float]:
    """Seconds of the defaults and of the fastest; where neither is known, of neither."""
    told = [
        (times[one.subject.id], one.again_s(one.default), one.again_s(one.best)) for one in tuned
    ]
    known = [row for row in told if math.isfinite(row[1]) and math.isfinite(row[2])]
    return sum(n * default for n, default, _ in known), sum(n * best for n, _, best in known)
