"""How long the loops of tiles are, and how many of them there are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from embeddb.tensors.tiles import Tile
from embeddb.tensors.tiling.plan import Plan
from embeddb.tensors.tiling.spans import Span

__all__ = ["Extents", "Floats", "Ints", "Lengths", "longest"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
#: How long a loop is, int64[c] each, and in which share float64[c] of its runs; shares may be 0.
Lengths = list[tuple[Ints, Floats]]


def longest(told: Lengths) -> Ints:
    """int64[c]: of the lengths that there are."""
    return np.asarray(np.max([np.where(share > 0, n, 0) for n, share in told], axis=0))


@dataclass(frozen=True, eq=False)
class Extents:
    """Of a kernel under c tiles: `told` int64[c,r] are their sizes along the dimensions of the
    root, `reduced` int64[c] the blocks of sums, 0 being the whole."""

    plan: Plan
    told: Ints
    reduced: Ints

    @classmethod
    def of(cls, plan: Plan, tiles: Sequence[Tile]) -> Extents:
        told = np.array([tile.sizes for tile in tiles], dtype=np.int64)
        reduced = np.array([tile.reduced for tile in tiles], dtype=np.int64)
        return cls(plan, told.reshape(len(tiles), len(plan.dims)), reduced)

    def __len__(self) -> int:
        return len(self.told)

    def take(self, places: NDArray[np.intp]) -> Extents:
        """Some of the tiles."""
        return Extents(self.plan, self.told[places], self.reduced[places])

    @cached_property
    def sizes(self) -> Ints:
        """int64[c,r] of a whole tile."""
        return np.where(self.told > 0, self.told, np.array(self.plan.dims))

    @cached_property
    def counts(self) -> Ints:
        """int64[c,r]: how many tiles there are along each dimension."""
        return np.asarray(-(-np.array(self.plan.dims) // self.sizes))

    @cached_property
    def ends(self) -> Ints:
        """int64[c,r] of the last tile along each dimension."""
        return np.asarray(np.array(self.plan.dims) - (self.counts - 1) * self.sizes)

    def depth(self, depends: Iterable[int]) -> Ints:
        """int64[c]: within how many loops over dimensions, of the plan's order, it stands."""
        found = np.zeros(len(self), dtype=np.int64)
        for d in depends:
            at = self.plan.order.index(d) + 1
            found = np.maximum(found, np.where(self.told[:, d] > 0, at, 0))
        return found

    def turns(self, depth: Ints) -> Floats:
        """float64[c]: how often what stands there is run."""
        found = np.ones(len(self))
        for at, d in enumerate(self.plan.order):
            found *= np.where(at < depth, self.counts[:, d], 1)
        return found

    def size(self, span: Span, covered: Collection[int] = ()) -> Ints:
        """int64[c] indices, all tiles taken together along the dimensions that are `covered`."""
        dims = self.plan.dims
        sides = {d: dims[d] if d in covered else self.sizes[:, d] for d in span.depends}
        return self._size(span, sides)

    def lengths(self, span: Span) -> Lengths:
        """Of a loop over it, in a whole tile and in the last."""
        whole = {d: self.sizes[:, d] for d in span.depends}
        found = [(self._size(span, whole), np.ones(len(self)))]
        for d in sorted(span.depends):
            uneven = self.ends[:, d] != self.sizes[:, d]
            if uneven.any():
                last = np.where(uneven, 1 / self.counts[:, d], 0.0)
                end = self._size(span, {**whole, d: self.ends[:, d]})
                found = [(n, share * (1 - last)) for n, share in found] + [(end, last)]
        return found

    def mean(self, span: Span) -> Floats:
        """float64[c]"""
        return np.asarray(np.sum([n * share for n, share in self.lengths(span)], axis=0))

    def _size(self, span: Span, sides: Mapping[int, int | Ints]) -> Ints:
        constant, by_side = span.length
        found = np.full(len(self), constant, dtype=np.int64)
        for d, by in by_side:
            found += by * sides[d]
        return np.minimum(np.maximum(found, 0), span.dim)
