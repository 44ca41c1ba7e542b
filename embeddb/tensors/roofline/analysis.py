"""What the analytical model says of the tiles of kernels on one machine, in the form that learned
ones take it in."""

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

#: Cycles of a call.
_CALLED = 20.0
#: Tiles that are looked at together: what is known of them stays in the caches of a processor.
_TOGETHER = 512


class TileModel:
    """Of one kernel on one machine.

    Raises: TensorError for a kernel that is not computed tile by tile.
    """

    def __init__(self, kernel: TensorGraph, machine: Machine) -> None:
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


#: From the one that decides first: a kernel is of the type of its heaviest operation.
TYPES = ("convolution", "dot", "window", "reduce", "moving", "element-wise")
_WINDOWS = frozenset(("reduce-window", "select-and-scatter"))
_MOVING = frozenset(("gather", "scatter", "sort", "transpose", "concatenate", "pad", "reverse"))
#: Of a call of some function on a vector of f32: that of an exponential.
_FUNCTION = "exponential"


def type_of(kernel: TensorGraph) -> str:
    """One of `TYPES`."""
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
    """The larger of two: until its parameters and results came from the nearest cache that holds
    them all, and until its flops and functions are computed at the machine's best."""
    work = work_of(kernel)
    caches = [cache for cache in machine.caches if cache.line == LINE]
    nearest = next(
        (at for at, cache in enumerate(caches) if work.bytes <= cache.bytes), len(caches)
    )
    # What fits the first is read from it as fast as from the second: nobody asks for less.
    beyond = caches[max(nearest - 1, 0)]
    moved = work.bytes / LINE * beyond.next
    lanes = machine.lanes(4)
    functions = function_cycles(_FUNCTION, 4, machine.vector_bytes)[0] / lanes
    computed = work.flops / machine.flops_a_cycle + work.transcendentals * functions
    return max(moved, computed) / machine.hertz


#: The platform whose code the model knows.
ANALYSED = "tile-cpu"
#: Raised with every change of what it says: trees know what one version of it misses.
ANALYSIS_VERSION = "3"
#: Numbers that `Analysis.rows` tells of a tile, the first its seconds.
TOLD = 12
#: A part that is less than e^-8 of another is nothing beside it.
_CLIP = 8.0


@dataclass(frozen=True, slots=True)
class Analysis:
    """`facts` are those of the machine by name."""

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
        """float64[c,12], logarithms: `logs`; these over that of the untiled kernel; the share of
        the whole of each part (operations, each of four caches), and each part over that of the
        untiled kernel. So what is told of a tile does not hang on which others are asked. Raises:
        as `logs`."""
        machine = Machine.of(self.facts)
        cycles = TileModel(kernel, machine).cycles([*configs, untiled(kernel).config])
        # A part may be nothing.
        logs = np.log(np.maximum(cycles, 1e-9))
        shares, over = logs[:, 1:] - logs[:, :1], logs - logs[-1:]
        seconds = logs[:, :1] - np.log(machine.hertz)
        told = [
            seconds,
            over[:, :1],
            *(np.clip(part, -_CLIP, _CLIP) for part in (shares, over[:, 1:])),
        ]
        return np.concatenate(told, axis=1)[:-1]


def analysis_of(platform: str, task: str, environment: Mapping[str, str]) -> Analysis | None:
    """On an instance of a platform of that name; None where tiles are run by code that the model
    does not know, and for `fused` kernels, which trees predict no better with a roofline."""
    if task != "tile" or platform != ANALYSED:
        return None
    return Analysis(Machine.facts(environment))
