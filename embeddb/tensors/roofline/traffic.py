"""Which lines of each cache a nest of loops asks for, by where its data is used again.

Of a level of loops, all that the loops inside it touch is its working set. Where that fits a cache,
what the next turn of the loop around it touches again is still there; further out nothing is. So an
array costs the lines that it has under the first loop whose turns do not fit, once for each turn of
the loops around that. What fits as a whole is there from the call before.

Everything is of c tiles at once. Levels, from inside to outside, are those of the nest, then one
for each loop over tiles of the plan; a loop that a tile does not have turns once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embeddb.tensors.roofline.accesses import Access, Nest
from embeddb.tensors.roofline.extents import Extents, Floats, Ints
from embeddb.tensors.roofline.loops import blocked
from embeddb.tensors.roofline.machine import Cache
from embeddb.tensors.tiling.forms import Var

__all__ = [
    "Layout",
    "Levels",
    "Touched",
    "cycles_of",
    "held_by",
    "layout_of",
    "levels_of",
    "touched",
]

_LINE = 64


@dataclass(frozen=True, slots=True)
class Touched:
    """Of an array under some loops, float64[l,c] by level: pieces that lie apart, bytes of each,
    and bytes from one to the next."""

    pieces: Floats
    bytes: Floats
    apart: Floats

    def lines(self, cache: Cache) -> Floats:
        """Lines, a piece that begins anywhere in one."""
        return self.pieces * np.maximum((self.bytes + cache.line) / cache.line - 0.25, 1.0)

    def held(self, cache: Cache) -> Floats:
        """Bytes of the cache that it needs: more than it has where its pieces share places."""
        needed = self.lines(cache) * cache.line
        if not cache.period:
            return needed
        apart = np.maximum(self.apart.astype(np.int64), 1)
        places = cache.period // np.gcd(apart, cache.period)
        covered = np.minimum(places * np.maximum(self.bytes, cache.line) / cache.period, 1.0)
        return np.where(self.pieces < 2, needed, needed / covered)


@dataclass(frozen=True, slots=True)
class Levels:
    """By access of a nest what it touches in one turn of the loops outside; `turns` float64[l,c] of
    a level make one of that around it. The first `own` are the nest's."""

    touched: tuple[Touched, ...]
    turns: Floats
    own: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Lengths and strides int64[c] of an array by dimension, in elements; dimensions in `order` lie
    further apart from one to the next."""

    dims: tuple[Ints, ...]
    strides: tuple[Ints, ...]
    order: tuple[int, ...]

    def take(self, places: NDArray[np.intp]) -> Layout:
        """Under some of the tiles."""
        dims, strides = (tuple(n[places] for n in told) for told in (self.dims, self.strides))
        return Layout(dims, strides, self.order)


def layout_of(access: Access, extents: Extents) -> Layout:
    one = np.ones(len(extents), dtype=np.int64)
    if access.stage is None:
        order = sorted(range(len(access.dims)), key=lambda d: access.strides[d])
        dims, strides = ([n * one for n in told] for told in (access.dims, access.strides))
        return Layout(tuple(dims), tuple(strides), tuple(order))
    stage, step = access.stage, one
    sizes = [extents.size(span) for span in stage.spans]
    found = list(sizes)
    for d in reversed(stage.order):
        found[d] = step
        step = step * sizes[d]
    return Layout(tuple(sizes), tuple(found), tuple(reversed(stage.order)))


def touched(access: Access, layout: Layout, length: Mapping[Var, Ints]) -> Touched:
    """While each variable takes so many values in a row, int64[l,c]; of one that is not there,
    one."""
    run, pieces, apart = (np.array([[n]]) for n in (1, 1.0, 0))
    whole = np.array([[access.each]])
    for d in layout.order:
        dim, stride = layout.dims[d], layout.strides[d]
        reach, count = np.ones((1, 1), np.int64), np.ones((1, 1), np.int64)
        for var, by in access.terms[d]:
            n = length.get(var, 1)
            count = count * n
            reach = reach + (n - 1) * (abs(by) if by is not None else dim)
        reach, count = np.minimum(reach, dim), np.minimum(count, dim)
        long, fewer = np.where(stride == 1, reach, count), np.minimum(count, reach)
        there = (fewer > 1) | (long > 1)
        joins = there & (stride == run) & (pieces == 1.0)
        lies_apart = there & ~joins
        run = np.where(joins, run * long, run)
        apart = np.where(lies_apart & (apart == 0), stride, apart)
        pieces = np.where(lies_apart, pieces * np.minimum(fewer, long), pieces)
        whole = whole * dim
    size = np.minimum(run * access.each, np.maximum(whole, access.each))
    away = (apart * access.each).astype(float)
    near = (away > 0) & (away < _LINE) & (pieces > 1)  # neighbours in one line
    joined = np.maximum(pieces * away / _LINE, 1.0)
    return Touched(
        np.where(near, joined, pieces), np.where(near, _LINE, size), np.where(near, _LINE, away)
    )


def levels_of(nest: Nest, extents: Extents, layouts: tuple[Layout, ...]) -> Levels:
    """From one turn of the innermost loop to the whole kernel: loops of the nest, its blocks of
    terms, the nest, then the tiles around it."""
    order = list(reversed(nest.loops))
    one = np.ones(len(extents))
    in_blocks = blocked(nest, extents)
    whole = len(order) + 2  # the level of the nest without its blocks
    turns, far = [one] * whole, []
    for at, var in enumerate(order):
        cut = in_blocks if var == nest.blocked else np.zeros(len(extents), dtype=bool)
        mean = np.where(cut, extents.reduced, extents.mean(nest.spans[var]))
        turns[at] = np.maximum(mean, 1.0)
    if nest.blocked is not None:
        blocks = -(-nest.blocked.extent // np.maximum(extents.reduced, 1))
        turns[whole - 2] = np.where(in_blocks, blocks, 1).astype(float)
    depth = extents.depth(nest.depends)
    covered: list[int] = []
    for at in reversed(range(len(extents.plan.order))):
        d = extents.plan.order[at]
        turns.append(np.where(at < depth, extents.counts[:, d], 1).astype(float))
        far.append(tuple(covered))
        covered.append(d)
    turns.append(one)
    far.append(tuple(covered))
    length = {}
    for at, var in enumerate(order):
        near = extents.size(nest.spans[var])
        cut = in_blocks if var == nest.blocked else np.zeros(len(extents), dtype=bool)
        inside = np.where(cut, np.minimum(near, extents.reduced), near)
        rows = [one] * (at + 1) + [inside] * (whole - 2 - at) + [near]
        rows += [extents.size(nest.spans[var], dims) for dims in far]
        length[var] = np.maximum(np.stack(rows), 1).astype(np.int64)
    each = zip(nest.accesses, layouts, strict=True)
    shape = len(turns), len(extents)
    parts = tuple(_filled(touched(a, layout, length), shape) for a, layout in each)
    return Levels(parts, np.stack(turns), whole)


def _filled(part: Touched, shape: tuple[int, int]) -> Touched:
    told = (part.pieces, part.bytes, part.apart)
    return Touched(*(np.broadcast_to(np.asarray(one, np.float64), shape) for one in told))


def held_by(nest: Nest, levels: Levels, cache: Cache) -> dict[str, Floats]:
    """Bytes of the cache that each array needs, float64[l,c]."""
    found: dict[str, Floats] = {}
    for access, part in zip(nest.accesses, levels.touched, strict=True):
        held = part.held(cache)
        found[access.array] = np.maximum(found.get(access.array, 0.0), held)
    return found


def cycles_of(
    nest: Nest, levels: Levels, held: Floats, cache: Cache
) -> tuple[dict[str, Floats], Ints]:
    """By array, cycles float64[c] of what has to come from beyond the cache, where so many bytes
    are `held` float64[l,c]; and int64[c] the level of which one turn does not fit."""
    count = len(held)
    over = held > cache.bytes
    beyond = np.where(over.any(axis=0), over.argmax(axis=0), count)
    at = np.minimum(beyond, count - 1)[None]
    times = np.cumprod(levels.turns[::-1], axis=0)[::-1]
    turns = np.where(beyond < count, np.take_along_axis(times, at, axis=0)[0], 0.0)
    found: dict[str, Floats] = {}
    for access, part in zip(nest.accesses, levels.touched, strict=True):
        lines = np.take_along_axis(part.lines(cache), at, axis=0)[0]
        first = np.minimum(np.take_along_axis(part.pieces, at, axis=0)[0], lines)
        cycles = first * cache.other + (lines - first) * cache.next
        cycles = cycles * turns * access.share * (2 if access.written else 1)
        found[access.array] = np.maximum(found.get(access.array, 0.0), cycles)
    return found, beyond
