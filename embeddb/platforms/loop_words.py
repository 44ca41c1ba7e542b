"""A loop nest in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embeddb.platforms.loopnest import LoopNest

__all__ = ["in_words"]

_LOOPS = {"i": "rows", "j": "columns", "k": "dense columns"}


def in_words(nest: LoopNest, extents: tuple[int, int, int]) -> str:
    """The loops that have more than one iteration, outermost first, as `tiles of 32 rows > columns
    > rows`. `extents` are the iterations of i, j and k, -1 if unknown.

    A split of 1 leaves all iterations to the outermost loop of its letter, one of the whole extent
    to the innermost.
    """
    places: dict[int, str] = {}
    for letter, splits, extent in zip(
        "ijk", (nest.splits[:1], nest.splits[1:2], nest.splits[2:]), extents, strict=True
    ):
        end = extent if extent >= 0 else math.inf
        at = [i for i, name in enumerate(nest.names) if name[0] == letter]
        tiles = [s for s in splits if 1 < s < end]
        whole = splits[0] >= end
        if end <= 1:
            continue
        if len(tiles) == 2:
            places[at[1]] = f"tiles of {tiles[1]} {_LOOPS[letter]}"
        if tiles:
            places[at[0]] = f"tiles of {tiles[0]} {_LOOPS[letter]}"
        places[at[-1] if tiles or whole else at[0]] = _LOOPS[letter]
    return " > ".join(places[i] for i in sorted(places)) or "a single iteration"
