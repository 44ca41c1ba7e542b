"""Predictions of the analytical model for tiles on one machine, as inputs of learned models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import TensorError
from embeddb.tensors.analysis import work_of
from embeddb.tensors.roofline.loops import (
    BRANCH,
    CHOICE,
    INDEX,
    ROWS,
    Access,
    Extents,
    Floats,
    Ints,
    Loops,
    Nest,
    Step,
    by_loops,
    lengths,
    runs_of,
)
from embeddb.tensors.roofline.machine import FLOPS, LINE, Cache, Machine, function_cycles
from embeddb.tensors.roofline.nests import (
    Layout,
    Levels,
    cycles_of,
    held_by,
    layout_of,
    levels_of,
    nests_of,
)
from embeddb.tensors.tensor_graph import TensorGraph
from embeddb.tensors.tiles import Tile, untiled
from embeddb.tensors.tiling.forms import Var
from embeddb.tensors.tiling.plan import plan_of

#: Cost of a call in cycles.
_CALLED = 20.0
#: Number of tiles evaluated together, so that their arrays stay in the processor's caches.
_TOGETHER = 512


class TileModel:
    """Model of one kernel on one machine. Raises: TensorError for a kernel that is not computed
    tile by tile."""

    def __init__(self, kernel: TensorGraph, machine: Machine) -> None:
        self.machine, self.plan = machine, plan_of(kernel)
        self.nests = nests_of(self.plan)

    def seconds(self, configs: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
        """float64[c] of the tiles in these configurations. Raises: TensorError for a parameter that
        is not the kernel's, and for a size beyond its dimension."""
        # A block of more terms than a sum has is the whole sum.
        most = {**Tile(self.plan.dims).config, "tr": math.inf}
        for name, size in (part for config in configs for part in config.items()):
            if not 0 <= size <= most.get(name, -1):
                hint = f"t1, t2, ... are at most {self.plan.dims}"
                raise TensorError(f"{name}={size} is no size of a tile", hint=hint)
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
            layouts = tuple(layout_of(access, extents) for access in nest.accesses)
            levels.append(levels_of(nest, extents, layouts))
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
        """float64[n,c] by nest. Data that one nest finds where another left it is loaded once."""
        traffic_cycles = np.zeros((len(self.nests), len(extents)))
        footprints = [held_by(n, own, cache) for n, own in zip(self.nests, levels, strict=True)]
        within = self._within(extents)
        together = self._together(levels, footprints, within)
        common: dict[str, Floats] = {}
        for at, (nest, own) in enumerate(zip(self.nests, levels, strict=True)):
            alone = sum(footprints[at].values(), np.zeros(own.turns.shape))[: own.own]
            tiles = np.where(within[at], together, 0.0)
            moved, beyond = cycles_of(nest, own, np.concatenate([alone, tiles]), cache)
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


#: Opcodes by type, in order of precedence: a kernel has the type of its heaviest operation.
_TYPES = {
    "convolution": {"convolution"},
    "dot": {"dot"},
    "window": {"reduce-window", "select-and-scatter"},
    "reduce": {"reduce"},
    "moving": {"gather", "scatter", "sort", "transpose", "concatenate", "pad", "reverse"},
}
TYPES = (*_TYPES, "element-wise")
#: Function whose cost on a vector of f32 stands for all.
_FUNCTION = "exponential"


def type_of(kernel: TensorGraph) -> str:
    """Type of a kernel, one of `TYPES`."""
    opcodes = {operation.opcode for operation in kernel.operations}
    return next((name for name, some in _TYPES.items() if some & opcodes), TYPES[-1])


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
    computed = work.flops / FLOPS + work.transcendentals * functions
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
        """float64[c] natural logarithms of seconds. Raises: TensorError without tiles."""
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
        parts = (np.clip(part, -_CLIP, _CLIP) for part in (shares, over[:, 1:]))
        return np.concatenate([seconds, over[:, :1], *parts], axis=1)[:-1]


def analysis_of(platform: str, task: str, environment: Mapping[str, str]) -> Analysis | None:
    """Analysis for an instance of a platform of that name; None where tiles are run by code that
    the model does not describe, and for `fused` kernels, for which a roofline does not improve the
    trees."""
    if task != "tile" or platform != ANALYSED:
        return None
    return Analysis(Machine.facts(environment))


# -- Cycles of a nest of loops from its operations alone, with all data in the first cache --------

#: Cycles of an iteration of an outer loop, of entering a loop of known and of unknown length, and
#: of a mispredicted loop end, and the trip count from which it is mispredicted.
_TURN, _KNOWN, _ENTERED, _MISSED, _FORESEEN = 2.0, 2.0, 7.0, 14.0, 32
#: Largest trip count, in iterations or vectors, of a loop that is unrolled completely.
_SHORT = 8
#: Latency of an addition; loading a scalar, adding up the lanes of a vector.
_LATENCY, _NUMBER, _LANES = 4.0, 0.5, 2.5
#: Cost of inserting one element into a vector, and of extracting one.
_GATHERED, _SCATTERED = 1.2, 1.5
#: Cost of half a vector relative to a whole one.
_HALF = 0.6
#: Steps of several operations: cycles for a vector, and for a scalar.
_STEPS = {INDEX: (6.0, 4.0), CHOICE: (2.0, 1.5), BRANCH: (2.0, 1.5)}


#: One value per tile, or one for all.
Number = float | Floats


@dataclass(slots=True)
class _Cycles:
    """Cycles of an iteration over a vector, and over a scalar."""

    vector: Number = 0.0
    number: Number = 0.0

    def add(self, times: float, vector: Number, number: Number) -> None:
        self.vector += times * vector
        self.number += times * number


@dataclass(slots=True)
class _Turn:
    """Cycles of an iteration of the innermost loop: reads, writes and steps overlap, functions do
    not. `entered` is once for all iterations."""

    reads: _Cycles = field(default_factory=_Cycles)
    writes: _Cycles = field(default_factory=_Cycles)
    steps: _Cycles = field(default_factory=_Cycles)
    functions: _Cycles = field(default_factory=_Cycles)
    entered: float = 0.0

    def loop(self, turns: Ints, lanes: Ints) -> Floats:
        """Cycles of the innermost loop: whole vectors, half a vector, then scalars."""
        beside = (self.reads, self.writes, self.steps)
        vector: Number = 1.0
        number: Number = 1.0
        for one in beside:
            vector = np.maximum(vector, one.vector + self.functions.vector)
            number = np.maximum(number, one.number)
        number = number + self.functions.number
        whole, rest = np.divmod(turns, lanes)
        whole, rest = np.where(lanes > 1, whole, 0), np.where(lanes > 1, rest, turns)
        half, single = np.divmod(rest, np.maximum(lanes // 2, 1))
        half, single = np.where(lanes > 2, half, 0), np.where(lanes > 2, single, rest)
        entered = self.entered + np.where(whole + single <= _SHORT, _KNOWN, _ENTERED)
        entered = entered + np.where(whole + single > _FORESEEN, _MISSED, 0.0)
        return np.asarray((whole + _HALF * half) * vector + single * number + entered)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Arithmetic of a nest under tiles with the same loops. `layouts` are those of its accesses,
    which only the innermost loops use."""

    nest: Nest
    loops: Loops
    extents: Extents
    layouts: Sequence[Layout]
    machine: Machine

    def cycles(self, runs: Floats, innermost: Floats) -> Floats:
        """float64[c] of so many runs of the nest, with this cost of the innermost loops."""
        around, total = runs, runs * self._once(None, self.loops.inside(0))
        for at, var in enumerate(self.loops.outside):
            trip_counts = lengths(self.nest, var, self.extents)
            around = around * np.sum([n * share for n, share in trip_counts], axis=0)
            total += around * (_TURN + self._once(var, self.loops.inside(at + 1)))
        return total + around * innermost

    def _once(self, last: Var | None, inside: frozenset[Var]) -> float:
        """Cost of the steps executed once per iteration of an outer loop `last`, or per run of the
        nest: they depend on it and on no loop inside it."""
        own = [
            step
            for step in self.nest.steps
            if not step.variables & inside and (last is None or last in step.variables)
        ]
        return sum(step.share * self._step(step)[1] for step in own)

    def innermost(self) -> Floats:
        """float64[c] of all iterations of the rows and of the loop inside, without outer loops."""
        rows, inner = self.loops.rows, self.loops.inner
        lanes = np.where(self._in_vectors(), self.machine.lanes(self.nest.each), 1)
        one = self._turn(1)
        together = one if rows is None else self._turn(ROWS)
        once = [(np.ones(len(self.extents), dtype=np.int64), np.ones(len(self.extents)))]
        total = np.zeros(len(self.extents))
        for turns, share in lengths(self.nest, inner, self.extents) if inner else once:
            single = one.loop(turns, lanes)
            if rows is None:
                total += share * single
                continue
            four = together.loop(turns, lanes)
            for count, part in lengths(self.nest, rows, self.extents):
                whole, rest = np.divmod(count, ROWS)
                total += share * part * (whole * (four + _TURN) + rest * (single + _TURN))
        return total

    def _turn(self, rows: int) -> _Turn:
        """Cycles of an iteration with so many rows."""
        turn, inner = _Turn(), self.loops.inner
        written = {var for var, _ in self.loops.written}
        # A sum over the innermost loop is kept in registers.
        in_registers = bool(self.nest.summed) and (inner is None or inner in self.nest.summed)
        for access, layout in zip(self.nest.accesses, self.layouts, strict=True):
            times = access.share * self.loops.copies(access.variables, rows)
            if inner is None or inner not in access.variables:
                turn.entered += times * (_LANES if in_registers and access.written else _NUMBER)
            else:
                self._access(turn, times, access, layout)
        for step in self.nest.steps:
            times = step.share * self.loops.copies(step.variables, rows)
            vector, number = self._step(step)
            if inner is not None and inner in step.variables:
                function = vector > 2 * self.machine.units
                (turn.functions if function else turn.steps).add(times, vector, number)
            elif self.loops.rows in step.variables or step.variables & written:
                turn.entered += times * number
        if in_registers:
            # If the innermost loop of a sum has one iteration, four terms are added together.
            waits = _LATENCY if inner == self.nest.inner else _LATENCY / ROWS
            turn.steps.vector = np.maximum(turn.steps.vector, waits)
            turn.steps.number = np.maximum(turn.steps.number, waits)
        return turn

    def _access(self, turn: _Turn, times: float, access: Access, layout: Layout) -> None:
        """Add an access that moves with the innermost loop."""
        lanes = self.machine.lanes(self.nest.each)
        stride = self._stride(access, layout)
        each = 1.0 if access.written else _NUMBER
        row = np.asarray(False if stride is None else stride == 1)
        wide = 2 * each * self.machine.units * (1 + self._crossing(access, layout))
        if access.written:
            turn.writes.add(times, np.where(row, wide, lanes * _SCATTERED), each)
        else:
            turn.reads.add(times, np.where(row, wide, 0.0), each)
            turn.steps.add(times, np.where(row, 0.0, lanes * _GATHERED), 0.0)

    def _step(self, step: Step) -> tuple[float, float]:
        """Cycles of a vector, and of a scalar."""
        if step.opcode in _STEPS:
            vector, number = _STEPS[step.opcode]
            return vector * self.machine.units, number
        vector, number = function_cycles(step.opcode, step.each, self.machine.vector_bytes)
        return (vector, number) if vector else (self.machine.units, 0.5)

    def _in_vectors(self) -> NDArray[np.bool_]:
        """bool[c]: true if a compiler vectorises the innermost loop: it is no loop of rows, no
        index is divided by it, and it writes contiguously or can scatter."""
        nest, inner = self.nest, self.loops.inner
        vectorised = np.ones(len(self.extents), dtype=bool)
        if inner is None or (nest.summed and inner != nest.inner and not self.loops.written):
            return ~vectorised
        if any(step.opcode == INDEX and inner in step.variables for step in nest.steps):
            return ~vectorised
        if any(step.opcode == BRANCH for step in nest.steps):
            return ~vectorised
        anywhere = self.machine.scatters and not nest.summed
        for access, layout in zip(nest.accesses, self.layouts, strict=True):
            stride = self._stride(access, layout) if access.written else np.zeros(1)
            if stride is None:
                return ~vectorised
            if not anywhere:
                vectorised &= (stride == 0) | (stride == 1)
        return vectorised

    def _stride(self, access: Access, layout: Layout) -> Ints | None:
        """int64[c] elements between iterations of the innermost loop; None where that varies."""
        total = np.zeros(len(self.extents), dtype=np.int64)
        for terms, stride in zip(access.terms, layout.strides, strict=True):
            for var, by in terms:
                if var == self.loops.inner and by is None:
                    return None
                if var == self.loops.inner and by is not None:
                    total += by * stride
        return total

    def _crossing(self, access: Access, layout: Layout) -> Floats:
        """float64[c]: fraction of its vectors that cross a cache line, for arbitrary alignment."""
        wide = min(self.machine.vector_bytes, LINE)
        anywhere = np.zeros(len(self.extents), dtype=bool)
        for terms, stride in zip(access.terms, layout.strides, strict=True):
            if any(var != self.loops.inner for var, _ in terms):
                anywhere |= stride * access.each % wide != 0
        return np.where(anywhere, (wide - access.each) / LINE, 0.0)
