"""How long the loops of a tile are, and how many of them there are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from embeddb.tensors.tiles import Tile
from embeddb.tensors.tiling.plan import Plan
from embeddb.tensors.tiling.spans import Span

__all__ = ["Extents"]


class Extents:
    """Of a kernel under one tile. `sizes` are those of a whole tile, `counts` how many there are
    along each dimension of the root, `ends` how long the last one is."""

    def __init__(self, plan: Plan, tile: Tile) -> None:
        self.plan, self.tile = plan, tile
        self.sizes = plan.whole(tile.sizes)
        self.counts = [-(-n // t) for n, t in zip(plan.dims, self.sizes, strict=True)]
        self.ends = [
            n - (c - 1) * t for n, c, t in zip(plan.dims, self.counts, self.sizes, strict=True)
        ]

    def depth(self, depends: Iterable[int]) -> int:
        """Within how many loops over dimensions, of the plan's order, it stands."""
        return self.plan.depth(depends, self.tile.sizes)

    def open(self, depth: int) -> list[int]:
        """The dimensions whose tiles are looped over there, from outside."""
        return [d for d in self.plan.order[:depth] if self.tile.sizes[d]]

    def turns(self, depth: int) -> int:
        """How often what stands there is run."""
        return math.prod(self.counts[d] for d in self.open(depth))

    def size(self, span: Span, covered: frozenset[int] = frozenset()) -> int:
        """Indices, all tiles taken together along the dimensions that are `covered`."""
        sizes = [
            n if d in covered else t
            for d, (n, t) in enumerate(zip(self.plan.dims, self.sizes, strict=True))
        ]
        return self._size(span, sizes)

    def lengths(self, span: Span) -> list[tuple[int, float]]:
        """How long a loop over it is, in a whole tile and in the last, and the shares of tiles."""
        found = [(self._size(span, self.sizes), 1.0)]
        for d in span.depends:
            if self.ends[d] == self.sizes[d]:
                continue
            last = 1 / self.counts[d]
            short = [self.ends[d] if e == d else t for e, t in enumerate(self.sizes)]
            end = self._size(span, short)
            found = [(n, share * (1 - last)) for n, share in found] + [(end, last)]
        return [(max(n, 0), share) for n, share in found if share > 0]

    def mean(self, span: Span) -> float:
        return sum(n * share for n, share in self.lengths(span))

    def _size(self, span: Span, sizes: Sequence[int]) -> int:
        return max(span.size(sizes), 0)
