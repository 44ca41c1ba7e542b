"""The common loop nest: a representation that configurations of all platforms share.

The nest of a sparse kernel has seven loops i1 i2 j1 j2 k1 k2 k3, numbered 1 to 7: i over the rows
of the sparse matrix, j over its columns, k over the dense columns, each split into parts. A
configuration maps to four split sizes and an order of the seven loops (COGNATE, Section 3.2):

- phi gives the split sizes. For SPADE: I = row panels, J = column panels, K = split factor. The
  text of Section 3.2 writes I = p_col, which its own worked example (Appendix E) contradicts; the
  example is followed here.
- pi completes platforms with fewer loops to seven. CPU (pi_a1): k3 has one iteration and runs
  right after k2. GPU (pi_a3): j' (our j2) has one iteration and runs right after j.
  `complete_order` applies the same rule to any missing loop.

In a split loop 2 is the outer part and 1 the inner one. The paper does not say so, but its SPADE
order runs k2 i2 j2 (over tiles) outside of i1 j1 k1 (within a tile), and transfer needs the same
number for the same role: built-in CPU platforms follow that order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embeddb.core.errors import SpaceError

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Loop names; loop number n is `LOOPS[n - 1]`.
LOOPS = ("i1", "i2", "j1", "j2", "k1", "k2", "k3")


@dataclass(frozen=True, slots=True)
class LoopNest:
    """Split sizes (I, J, K, K2), each at least 1, and the loop numbers from outermost to innermost,
    a permutation of 1..7. Raises: SpaceError otherwise."""

    splits: tuple[int, int, int, int]
    order: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.splits) != 4:
            raise SpaceError(f"a loop nest has 4 split sizes, not {len(self.splits)}")
        for name, size in zip(("I", "J", "K", "K2"), self.splits, strict=True):
            if type(size) is not int or size < 1:
                raise SpaceError(f"split {name} is {size!r}, not a whole number of at least 1")
        if sorted(self.order) != list(range(1, 8)):
            raise SpaceError(f"{self.order} is not an order of the loops 1 to 7")

    @property
    def names(self) -> tuple[str, ...]:
        """The loop names from outermost to innermost."""
        return tuple(LOOPS[number - 1] for number in self.order)

    def vector(self) -> NDArray[np.float32]:
        """float32[53]: log2 of the four splits, then the 7x7 one-hot order, row = position,
        column = loop number - 1, row-major.

        Source: the input width 53 of COGNATE's configuration mapper (Table 6). The paper does not
        define the 53 numbers; 4 + 7 * 7 is derived from its worked example.
        """
        vector = np.zeros(53, dtype=np.float32)
        vector[:4] = np.log2(np.asarray(self.splits, dtype=np.float64))
        vector[4 + 7 * np.arange(7) + np.asarray(self.order) - 1] = 1.0
        return vector


def complete_order(names: Sequence[str]) -> tuple[int, ...]:
    """Complete an order to all seven loops: a missing loop runs right after its predecessor of the
    same letter (k3 after k2, j2 after j1), else after its successor (i1 after i2: an unsplit loop
    is the outer part), else last.

    Source: pi_a1 and pi_a3 of COGNATE, Section 3.2, generalised.

    Raises: SpaceError for an unknown or repeated loop.
    """
    for name in names:
        if name not in LOOPS:
            raise SpaceError(f"{name!r} is not a loop: {', '.join(LOOPS)}")
    if len(set(names)) != len(names):
        raise SpaceError(f"a loop is there twice in {' '.join(names)}")
    order = list(names)
    for loop in LOOPS:
        if loop not in order:
            beside = [f"{loop[0]}{int(loop[1]) + step}" for step in (-1, 1)]
            near = [order.index(name) for name in beside if name in order]
            order.insert(near[0] + 1 if near else len(order), loop)
    return tuple(LOOPS.index(name) + 1 for name in order)


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
