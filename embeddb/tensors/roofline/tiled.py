"""Seconds of a kernel that is computed tile by tile, from what it moves and computes: an analytical
model, which learns from nothing.

For every nest of loops cycles of its operations (whole vectors and what is left over, loops
entered, sums that wait for themselves), and cycles in which its data comes through each cache, by
where it is used again. They overlap in part: of each nest the root of the sum of squares counts,
which is near the largest. Nests follow each other. Constants are the machine's facts and what
functions take (`embeddb.tensors.roofline.machine`).

Source: the form is that of "A Learned Performance Model for Tensor Processing Units" (Appendix A),
for platform `tile-cpu`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.tensors.computation import Computation
from embeddb.tensors.roofline import traffic
from embeddb.tensors.roofline.accesses import Nest
from embeddb.tensors.roofline.arithmetic import Arithmetic
from embeddb.tensors.roofline.extents import Extents, Floats
from embeddb.tensors.roofline.loops import Loops, by_loops, runs_of
from embeddb.tensors.roofline.machine import Cache, Machine
from embeddb.tensors.roofline.nests import nests_of
from embeddb.tensors.roofline.traffic import Layout, Levels
from embeddb.tensors.tiles import Tile
from embeddb.tensors.tiling.plan import plan_of

__all__ = ["TileModel"]

#: Cycles of a call.
_CALLED = 20.0
#: Tiles that are looked at together: what is known of them stays in the caches of a processor.
_TOGETHER = 512


class TileModel:
    """Of one kernel on one machine.

    Raises: TensorError for a kernel that is not computed tile by tile.
    """

    def __init__(self, kernel: Computation, machine: Machine) -> None:
        self.machine, self.plan = machine, plan_of(kernel)
        self.nests = nests_of(self.plan)

    def seconds(self, configs: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
        """float64[c] of the tiles that configurations tell."""
        return self.cycles(configs)[:, 0] / self.machine.hertz

    def cycles(self, configs: Sequence[Mapping[str, Any]]) -> Floats:
        """float64[c,2+k] of a call: all, those of operations, and those in which data comes through
        each of the k caches, the smallest first. Parts are sums over nests and overlap in part."""
        tiles = [Tile.of(config, len(self.plan.dims)) for config in configs]
        parts = [
            self._cycles(Extents.of(self.plan, tiles[at : at + _TOGETHER]))
            for at in range(0, len(tiles), _TOGETHER)
        ]
        found = np.concatenate([np.empty((2 + len(self.machine.caches), 0)), *parts], axis=1).T
        found[:, 0] += _CALLED
        return found

    def _cycles(self, extents: Extents) -> Floats:
        """float64[2+k,c]: `cycles` without those of the call itself. Of each nest of loops the
        cycles of its operations, and those of its data through each cache, overlap in part."""
        levels, computed = [], []
        for nest in self.nests:
            layouts = tuple(traffic.layout_of(access, extents) for access in nest.accesses)
            levels.append(traffic.levels_of(nest, extents, layouts))
            computed.append(self._computed(nest, extents, layouts))
        parts = [np.asarray(computed)]
        parts += [self._moved(extents, levels, cache) for cache in self.machine.caches]
        whole = np.sqrt(np.sum([np.square(part) for part in parts], axis=0))
        return np.stack([each.sum(axis=0) for each in (whole, *parts)])

    def _computed(self, nest: Nest, extents: Extents, layouts: Sequence[Layout]) -> Floats:
        """float64[c] of one nest."""
        alike: dict[Any, list[tuple[Loops, NDArray[np.intp]]]] = {}
        for loops, places in by_loops(nest, extents):
            alike.setdefault(loops.innermost, []).append((loops, places))
        turns, found = np.zeros(len(extents)), np.zeros(len(extents))
        runs = runs_of(nest, extents)
        for each in alike.values():
            places = np.concatenate([own for _, own in each])
            some = [layout.take(places) for layout in layouts]
            own = Arithmetic(nest, each[0][0], extents.take(places), some, self.machine)
            turns[places] = own.innermost()
            for loops, at in each:
                outer = Arithmetic(nest, loops, extents.take(at), (), self.machine)
                found[at] = outer.cycles(runs[at], turns[at])
        return found

    def _moved(self, extents: Extents, levels: Sequence[Levels], cache: Cache) -> Floats:
        """float64[n,c] by nest. What several nests find where another left it is brought once."""
        found = np.zeros((len(self.nests), len(extents)))
        held = [traffic.held_by(n, own, cache) for n, own in zip(self.nests, levels, strict=True)]
        within = self._within(extents)
        together = self._together(levels, held, within)
        common: dict[str, Floats] = {}
        for at, (nest, own) in enumerate(zip(self.nests, levels, strict=True)):
            alone = sum(held[at].values(), np.zeros(own.turns.shape))[: own.own]
            tiles = np.where(within[at], together, 0.0)
            moved, beyond = traffic.cycles_of(nest, own, np.concatenate([alone, tiles]), cache)
            shares = beyond > own.own + np.count_nonzero(~within[at], axis=0)
            for array, cycles in moved.items():
                found[at] += np.where(shares, 0.0, cycles)
                by_nest = common.setdefault(array, np.zeros(found.shape))
                by_nest[at] = np.where(shares, cycles, 0.0)
        for by_nest in common.values():
            # The last of those that need most of it.
            most = len(by_nest) - 1 - np.argmax(by_nest[::-1], axis=0)[None]
            cycles = np.take_along_axis(by_nest, most, axis=0)
            np.put_along_axis(found, most, np.take_along_axis(found, most, axis=0) + cycles, axis=0)
        return found

    def _within(self, extents: Extents) -> NDArray[np.bool_]:
        """bool[n,l,c]: whether a nest stands within so many loops over tiles, from all to none."""
        order = list(self.plan.order)
        turn = np.zeros((len(order) + 1, len(extents)), dtype=np.int64)
        np.cumsum(extents.told[:, order].T > 0, axis=0, out=turn[1:])
        depths = [extents.depth(nest.depends)[None] for nest in self.nests]
        most = [np.take_along_axis(turn, depth, axis=0) for depth in depths]
        return np.stack([turn[::-1] <= own for own in most])

    def _together(
        self,
        levels: Sequence[Levels],
        held: Sequence[Mapping[str, Floats]],
        within: NDArray[np.bool_],
    ) -> Floats:
        """float64[l,c] bytes that all nests hold within so many loops over tiles."""
        found: dict[str, Floats] = {}
        for own, arrays, inside in zip(levels, held, within, strict=True):
            for array, each in arrays.items():
                found[array] = np.maximum(
                    found.get(array, 0.0), np.where(inside, each[own.own :], 0.0)
                )
        return np.asarray(np.sum(list(found.values()), axis=0))
