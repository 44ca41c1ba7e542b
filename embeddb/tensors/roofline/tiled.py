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

import math
from collections.abc import Mapping
from typing import Any

from embeddb.tensors.computation import Computation
from embeddb.tensors.roofline import traffic
from embeddb.tensors.roofline.accesses import Nest
from embeddb.tensors.roofline.arithmetic import Arithmetic
from embeddb.tensors.roofline.extents import Extents
from embeddb.tensors.roofline.loops import loops_of, turned
from embeddb.tensors.roofline.machine import Cache, Machine
from embeddb.tensors.roofline.nests import nests_of
from embeddb.tensors.roofline.traffic import Level
from embeddb.tensors.tiles import Tile
from embeddb.tensors.tiling.plan import plan_of

__all__ = ["TileModel"]

#: Cycles of a call.
_CALLED = 20.0


class TileModel:
    """Of one kernel on one machine.

    Raises: TensorError for a kernel that is not computed tile by tile.
    """

    def __init__(self, kernel: Computation, machine: Machine) -> None:
        self.machine, self.plan = machine, plan_of(kernel)
        self.nests = nests_of(self.plan)

    def seconds(self, config: Mapping[str, Any]) -> float:
        """Of the tile that a configuration tells."""
        cycles = sum(math.hypot(*part) for part in self.cycles(config))
        return (cycles + _CALLED) / self.machine.hertz

    def cycles(self, config: Mapping[str, Any]) -> list[tuple[float, ...]]:
        """By nest of loops: those of its operations, then those of its data through each cache."""
        extents = Extents(self.plan, Tile.of(config, len(self.plan.dims)))
        computed, levels = [], []
        for nest in self.nests:
            layouts = [traffic.layout_of(access, extents) for access in nest.accesses]
            order = turned(nest, extents)
            loops = loops_of(nest, order, extents)
            computed.append(Arithmetic(nest, loops, extents, layouts, self.machine).cycles())
            levels.append(traffic.levels_of(nest, order, extents, layouts))
        moved = (self._moved(extents, levels, cache) for cache in self.machine.caches)
        return list(zip(computed, *moved, strict=True))

    def _moved(self, extents: Extents, levels: list[list[Level]], cache: Cache) -> list[float]:
        """Cycles by nest. What several nests find where another left it is brought once."""
        found = [0.0] * len(self.nests)
        open_ = [len(extents.open(extents.depth(nest.depends))) for nest in self.nests]
        together = _together(self.nests, levels, open_, cache)
        shared: dict[str, tuple[float, int]] = {}
        for at, nest in enumerate(self.nests):
            own, common = traffic.cycles_of(nest, levels[at], together[open_[at] :: -1], cache)
            found[at] += sum(own.values())
            for array, cycles in common.items():
                shared[array] = max(shared.get(array, (0.0, at)), (cycles, at))
        for cycles, at in shared.values():
            found[at] += cycles
        return found


def _together(
    nests: tuple[Nest, ...], levels: list[list[Level]], open_: list[int], cache: Cache
) -> list[float]:
    """Bytes that all nests hold within so many loops over tiles, from none on."""
    found = []
    for depth in range(max(open_, default=0) + 1):
        by_array: dict[str, float] = {}
        for nest, own, most in zip(nests, levels, open_, strict=True):
            if depth > most:
                continue
            for access, part in zip(nest.accesses, own[-1 - depth].touched, strict=True):
                held = part.held(cache)
                by_array[access.array] = max(by_array.get(access.array, 0.0), held)
        found.append(sum(by_array.values()))
    return found
