"""Predictions of the analytical model for the tiles of kernels on one machine, as inputs of learned
models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.tensors.analysis import work_of
from embeddb.tensors.roofline import traffic
from embeddb.tensors.roofline.arithmetic import Arithmetic
from embeddb.tensors.roofline.loops import Extents, Floats, Loops, Nest, by_loops, runs_of
from embeddb.tensors.roofline.machine import LINE, Cache, Machine, function_cycles
from embeddb.tensors.roofline.nests import nests_of
from embeddb.tensors.roofline.traffic import Layout, Levels
from embeddb.tensors.tensor_graph import TensorGraph
from embeddb.tensors.tiles import Tile, untiled
from embeddb.tensors.tiling.plan import plan_of

#: Cost of a call in cycles.
_CALLED = 20.0
#: Number of tiles evaluated together, so that their arrays stay in the processor's caches.
_TOGETHER = 512


class TileModel:
    """Model of one kernel on one machine.

    Raises: TensorError for a kernel that is not computed tile by tile.
    """

    def __init__(self, kernel: TensorGraph, machine: Machine) -> None:
        self.machine, self.plan = machine, plan_of(kernel)
        self.nests = nests_of(self.plan)

    def seconds(self, configs: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
        """float64[c] of the tiles in these configurations."""
        return self.cycles(configs)[:, 0] / self.machine.hertz

    def cycles(self, configs: Sequence[Mapping[str, Any]]) -> Floats:
        """float64[c,2+k] of a call: total cycles, those of operations, and those of data through
        each of the k caches, smallest first. Parts are sums over nests and overlap partially."""
        tiles = [Tile.of(config, len(self.plan.dims)) for config in configs]
        parts = [
            self._cycles(Extents.of(self.plan, tiles[at : at + _TOGETHER]))
            for at in range(0, len(tiles), _TOGETHER)
        ]
        table = np.concatenate([np.empty((2 + len(self.machine.caches), 0)), *parts], axis=1).T
        table[:, 0] += _CALLED
        return table

    def _cycles(self, extents: Extents) -> Floats:
        """float64[2+k,c]: `cycles` without those of the call. For each nest, cycles of its
        operations and of its data through each cache overlap partially."""
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
        turns, cycles = np.zeros(len(extents)), np.zeros(len(extents))
        runs = runs_of(nest, extents)
        for each in alike.values():
            places = np.concatenate([own for _, own in each])
            some = [layout.take(places) for layout in layouts]
            own = Arithmetic(nest, each[0][0], extents.take(places), some, self.machine)
            turns[places] = own.innermost()
            for loops, at in each:
                outer = Arithmetic(nest, loops, extents.take(at), (), self.machine)
                cycles[at] = outer.cycles(runs[at], turns[at])
        return cycles

    def _moved(self, extents: Extents, levels: Sequence[Levels], cache: Cache) -> Floats:
        """float64[n,c] by nest. Data that several nests find where another left it is loaded
        once."""
        traffic_cycles = np.zeros((len(self.nests), len(extents)))
        footprints = [
            traffic.held_by(n, own, cache) for n, own in zip(self.nests, levels, strict=True)
        ]
        within = self._within(extents)
        together = self._together(levels, footprints, within)
        common: dict[str, Floats] = {}
        for at, (nest, own) in enumerate(zip(self.nests, levels, strict=True)):
            alone = sum(footprints[at].values(), np.zeros(own.turns.shape))[: own.own]
            tiles = np.where(within[at], together, 0.0)
            moved, beyond = traffic.cycles_of(nest, own, np.concatenate([alone, tiles]), cache)
            shares = beyond > own.own + np.count_nonzero(~within[at], axis=0)
            for array, cycles in moved.items():
                traffic_cycles[at] += np.where(shares, 0.0, cycles)
                by_nest = common.setdefault(array, np.zeros(traffic_cycles.shape))
                by_nest[at] = np.where(shares, cycles, 0.0)
        for by_nest in common.values():
            # The last nest with the largest share.
            most = len(by_nest) - 1 - np.argmax(by_nest[::-1], axis=0)[None]
            cycles = np.take_along_axis(by_nest, most, axis=0)
            np.put_along_axis(
                traffic_cycles,
                most,
                np.take_along_axis(traffic_cycles, most, axis=0) + cycles,
                axis=0,
            )
        return traffic_cycles

    def _within(self, extents: Extents) -> NDArray[np.bool_]:
        """bool[n,l,c]: true if a nest is inside so many loops over tiles, from all to none."""
        order = list(self.plan.order)
        turn = np.zeros((len(order) + 1, len(extents)), dtype=np.int64)
        np.cumsum(extents.tile_sizes[:, order].T > 0, axis=0, out=turn[1:])
        depths = [extents.depth(nest.depends)[None] for nest in self.nests]
        most = [np.take_along_axis(turn, depth, axis=0) for depth in depths]
        return np.stack([turn[::-1] <= own for own in most])

    def _together(
        self,
        levels: Sequence[Levels],
        footprints: Sequence[Mapping[str, Floats]],
        within: NDArray[np.bool_],
    ) -> Floats:
        """float64[l,c] bytes that all nests hold within so many loops over tiles."""
        by_array: dict[str, Floats] = {}
        for own, arrays, inside in zip(levels, footprints, within, strict=True):
            for array, each in arrays.items():
                by_array[array] = np.maximum(
                    by_array.get(array, 0.0), np.where(inside, each[own.own :], 0.0)
                )
        return np.asarray(np.sum(list(by_array.values()), axis=0))


#: In order of precedence: a kernel has the type of its heaviest operation.
TYPES = ("convolution", "dot", "window", "reduce", "moving", "element-wise")
_WINDOWS = frozenset(("reduce-window", "select-and-scatter"))
_MOVING = frozenset(("gather", "scatter", "sort", "transpose", "concatenate", "pad", "reverse"))
#: Function whose cost on a vector of f32 stands for all.
_FUNCTION = "exponential"


def type_of(kernel: TensorGraph) -> str:
    """Type of a kernel, one of `TYPES`."""
    opcodes = {operation.opcode for operation in kernel.operations}
    for name in ("convolution", "dot"):
        if name in opcodes:
            return name
    if opcodes & _WINDOWS:
        return "window"
    if "reduce" in opcodes:
        return "reduce"
    return "moving" if opcodes & _MOVING else "element-wise"


def fused_seconds(kernel: TensorGraph, machine: Machine) -> float:
    """Roofline: the larger of the time to load parameters and results from the nearest cache that
    holds them all, and the time for flops and functions at the machine's peak."""
    work = work_of(kernel)
    caches = [cache for cache in machine.caches if cache.line == LINE]
    nearest = next(
        (at for at, cache in enumerate(caches) if work.bytes <= cache.bytes), len(caches)
    )
    # Data in the first cache counts as in the second; the difference is negligible.
    beyond = caches[max(nearest - 1, 0)]
    moved = work.bytes / LINE * beyond.next
    lanes = machine.lanes(4)
    functions = function_cycles(_FUNCTION, 4, machine.vector_bytes)[0] / lanes
    computed = work.flops / machine.flops_a_cycle + work.transcendentals * functions
    return max(moved, computed) / machine.hertz


#: Platform whose code the model describes.
ANALYSED = "tile-cpu"
#: Changes with every change of the predictions: trees are trained on the errors of one version.
ANALYSIS_VERSION = "3"
#: Length of a row of `Analysis.rows`; the first column is seconds.
ROW_LENGTH = 12
#: Ratios below e^-8 are clipped.
_CLIP = 8.0


@dataclass(frozen=True, slots=True)
class Analysis:
    """Analytical predictions on one machine; `facts` are those of the machine by name."""

    facts: Mapping[str, str]

    def logs(
        self, kernel: TensorGraph, configs: Sequence[Mapping[str, Any]]
    ) -> NDArray[np.float64]:
        """float64[c] natural logarithms of seconds. Raises: TensorError for a kernel without
        tiles."""
        return np.log(TileModel(kernel, Machine.of(self.facts)).seconds(configs))

    def rows(
        self, kernel: TensorGraph, configs: Sequence[Mapping[str, Any]]
    ) -> NDArray[np.float64]:
        """float64[c,12], logarithms: `logs`; their difference to that of the untiled kernel; the
        fraction of each part (operations, each of four caches) in the total, and each part relative
        to that of the untiled kernel. So a tile's row does not depend on the other tiles. Raises:
        as `logs`."""
        machine = Machine.of(self.facts)
        cycles = TileModel(kernel, machine).cycles([*configs, untiled(kernel).config])
        # A part may be zero.
        logs = np.log(np.maximum(cycles, 1e-9))
        shares, over = logs[:, 1:] - logs[:, :1], logs - logs[-1:]
        seconds = logs[:, :1] - np.log(machine.hertz)
        columns = [
            seconds,
            over[:, :1],
            *(np.clip(part, -_CLIP, _CLIP) for part in (shares, over[:, 1:])),
        ]
        return np.concatenate(columns, axis=1)[:-1]


def analysis_of(platform: str, task: str, environment: Mapping[str, str]) -> Analysis | None:
    """Analysis for an instance of a platform of that name; None where tiles are run by code that
    the model does not describe, and for `fused` kernels, for which a roofline does not improve the
    trees."""
    if task != "tile" or platform != ANALYSED:
        return None
    return Analysis(Machine.facts(environment))
