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

from embeddb.tensors.roofline.loops import Access, Extents, Floats, Ints, Nest, blocked
from embeddb.tensors.roofline.machine import Cache
from embeddb.tensors.tiling.forms import Var

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
    turns, length = _turns(nest, extents), _lengths(nest, extents)
    each = zip(nest.accesses, layouts, strict=True)
    parts = tuple(_filled(touched(a, layout, length), turns.shape) for a, layout in each)
    return Levels(parts, turns, len(nest.loops) + 2)


def _turns(nest: Nest, extents: Extents) -> Floats:
    """float64[l,c]"""
    in_blocks, one = blocked(nest, extents), np.ones(len(extents))
    found: list[Floats | Ints] = []
    for var in reversed(nest.loops):
        mean = extents.mean(nest.spans[var])
        if var == nest.blocked:
            mean = np.where(in_blocks, extents.reduced, mean)
        found.append(np.maximum(mean, 1.0))
    terms = 1 if nest.blocked is None else nest.blocked.extent
    found += [np.where(in_blocks, -(-terms // np.maximum(extents.reduced, 1)), 1), one]
    depth, order = extents.depth(nest.depends), extents.plan.order
    for at in reversed(range(len(order))):
        found.append(np.where(at < depth, extents.counts[:, order[at]], 1))
    return np.stack([*found, one]).astype(np.float64)


def _lengths(nest: Nest, extents: Extents) -> dict[Var, Ints]:
    """How many values in a row each variable takes in one turn of a level, int64[l,c]: inside of
    its own loop one, then those of a block, of a tile, and of more and more tiles."""
    inside, one = list(reversed(nest.loops)), np.ones(len(extents), dtype=np.int64)
    order = list(reversed(extents.plan.order))
    found = {}
    for at, var in enumerate(inside):
        span = nest.spans[var]
        tile = extents.size(span)
        block = tile
        if var == nest.blocked:
            block = np.where(blocked(nest, extents), np.minimum(tile, extents.reduced), tile)
        tiles = [extents.size(span, order[:covered]) for covered in range(len(order) + 1)]
        rows = [*[one] * (at + 1), *[block] * (len(inside) - at), tile, *tiles]
        found[var] = np.maximum(np.stack(rows), 1)
    return found


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
