"""Which lines of each cache a nest of loops asks for, by where its data is used again.

Of a level of loops, all that the loops inside it touch is its working set. Where that fits a cache,
what the next turn of the loop around it touches again is still there; further out nothing is. So an
array costs the lines that it has under the first loop whose turns do not fit, once for each turn of
the loops around that. What fits as a whole is there from the call before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from embeddb.tensors.roofline.accesses import Access, Nest
from embeddb.tensors.roofline.extents import Extents
from embeddb.tensors.roofline.machine import Cache
from embeddb.tensors.tiling.forms import Var

__all__ = ["Layout", "Level", "Touched", "cycles_of", "layout_of", "levels_of", "touched"]


@dataclass(frozen=True, slots=True)
class Touched:
    """Of an array under some loops: pieces that lie apart, bytes of each, and bytes from one to the
    next."""

    pieces: float
    bytes: float
    apart: float

    def lines(self, cache: Cache) -> float:
        """Lines, a piece that begins anywhere in one."""
        return self.pieces * max((self.bytes + cache.line) / cache.line - 0.25, 1.0)

    def held(self, cache: Cache) -> float:
        """Bytes of the cache that it needs: more than it has where its pieces share places."""
        needed = self.lines(cache) * cache.line
        if not cache.period or self.pieces < 2:
            return needed
        places = cache.period // math.gcd(max(int(self.apart), 1), cache.period)
        covered = min(places * max(self.bytes, cache.line) / cache.period, 1.0)
        return needed / covered


@dataclass(frozen=True, slots=True)
class Level:
    """What is touched by access of one turn of the loops outside; `turns` of it make one of the
    level around it."""

    touched: tuple[Touched, ...]
    turns: float


@dataclass(frozen=True, slots=True)
class Layout:
    """Lengths and strides of an array by dimension, in elements."""

    dims: tuple[int, ...]
    strides: tuple[int, ...]


def layout_of(access: Access, extents: Extents) -> Layout:
    if access.stage is None:
        return Layout(access.dims, access.strides)
    stage, sizes = access.stage, access.stage.sizes(extents.sizes)
    strides, step = [0] * len(sizes), 1
    for d in reversed(stage.order):
        strides[d] = step
        step *= sizes[d]
    return Layout(sizes, tuple(strides))


def touched(access: Access, layout: Layout, length: Mapping[Var, int]) -> Touched:
    """While each variable takes so many values in a row; of one that is not there, one."""
    parts = []
    for terms, dim, stride in zip(access.terms, layout.dims, layout.strides, strict=True):
        reach, count = 1, 1
        for var, by in terms:
            n = length.get(var, 1)
            count *= n
            reach += (n - 1) * (abs(by) if by is not None else dim)
        reach, count = min(reach, dim), min(count, dim)
        parts.append((stride, count if stride != 1 else reach, min(count, reach)))
    run, pieces, apart = 1, 1.0, 0
    for stride, length_, count in sorted(parts):
        if count <= 1 and length_ <= 1:
            continue
        if stride == run and pieces == 1.0:
            run *= length_
        else:
            apart = apart or stride
            pieces *= min(count, length_)
    whole = math.prod(layout.dims) * access.each
    size = min(run * access.each, max(whole, access.each))
    if apart and apart * access.each < 64 and pieces > 1:  # neighbours in one line
        return Touched(max(pieces * apart * access.each / 64, 1.0), 64.0, 64.0)
    return Touched(pieces, float(size), float(apart * access.each))


def levels_of(
    nest: Nest, order: Sequence[Var], extents: Extents, layouts: Sequence[Layout]
) -> list[Level]:
    """From one turn of the innermost loop of `order` to the whole kernel: loops of the nest, its
    blocks of terms, the nest, then the tiles around it."""
    spans, block = nest.spans, extents.tile.reduced
    lengths: dict[Var, int] = {}
    found: list[Level] = []

    def add(turns: float, covered: frozenset[int] = frozenset()) -> None:
        at = {
            var: min(extents.size(spans[var], covered), n if n else 1 << 62)
            for var, n in lengths.items()
        }
        each = zip(nest.accesses, layouts, strict=True)
        found.append(Level(tuple(touched(a, layout, at) for a, layout in each), turns))

    blocks = nest.blocked is not None and 0 < block < nest.blocked.extent
    for var in reversed(order):
        part = block if blocks and var == nest.blocked else 0
        add(min(part, var.extent) if part else max(extents.mean(spans[var]), 1.0))
        lengths[var] = part
    add(-(-nest.blocked.extent // block) if blocks and nest.blocked is not None else 1.0)
    if blocks and nest.blocked is not None:
        lengths[nest.blocked] = 0
        add(1.0)
    covered: frozenset[int] = frozenset()
    for d in reversed(extents.open(extents.depth(nest.depends))):
        add(extents.counts[d], covered)
        covered |= {d}
    add(1.0, covered)
    return found


def cycles_of(
    nest: Nest, levels: Sequence[Level], together: Sequence[float], cache: Cache
) -> tuple[dict[str, float], dict[str, float]]:
    """By array, cycles of what has to come from beyond the cache: of this nest alone, or of all of
    a tile's. `together` are the bytes that all nests of the kernel hold at the last levels, from
    inside: those of the tiles."""
    own = len(levels) - len(together)
    fits = -1
    for at, level in enumerate(levels):
        held = together[at - own] if at >= own else _held(nest, level, cache)
        if held > cache.bytes:
            break
        fits = at
    found: dict[str, float] = {}
    if fits < len(levels) - 1:
        turns = math.prod(level.turns for level in levels[fits + 1 :])
        for access, part in zip(nest.accesses, levels[fits + 1].touched, strict=True):
            lines = part.lines(cache)
            first = min(part.pieces, lines)
            cycles = first * cache.other + (lines - first) * cache.next
            cycles *= turns * access.share * (2 if access.written else 1)
            found[access.array] = max(found.get(access.array, 0.0), cycles)
    return (found, {}) if fits < own else ({}, found)


def _held(nest: Nest, level: Level, cache: Cache) -> float:
    by_array: dict[str, float] = {}
    for access, part in zip(nest.accesses, level.touched, strict=True):
        held = part.held(cache)
        by_array[access.array] = max(by_array.get(access.array, 0.0), held)
    return sum(by_array.values())
