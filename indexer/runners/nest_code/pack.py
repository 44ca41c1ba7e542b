"""Packing: the block of an array that the point loops read, copied into a buffer of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from embeddb.nests.dependence.legality import packable
from embeddb.nests.extents import loop_range
from embeddb.nests.nest import Nest
from embeddb.nests.parts import DTYPES, Access, Affine
from embeddb.nests.schedule import Piece, Schedule
from indexer.runners.nest_code.expressions import C_TYPES, linear
from indexer.runners.nest_code.names import Names

__all__ = ["Packing", "packing"]

#: A buffer lies on the stack of a thread, and is of use while it stays in the second-level cache.
MOST_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Packing:
    """The array, the generated loop within which it is copied, and by dimension: the first index
    that the buffer holds, as C, and how many; `strides` are the buffer's. The dimension that the
    innermost loop runs along lies together."""

    array: int
    after: int
    lows: tuple[str, ...]
    extents: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.extents)

    def places(self) -> tuple[tuple[int, str], ...]:
        """By dimension, the buffer's stride and the variable that holds its first index; none where
        that is 0."""
        told = zip(self.strides, self.lows, strict=True)
        return tuple((stride, f"low_{d}" * (low != "0")) for d, (stride, low) in enumerate(told))

    def lines(self, nest: Nest, names: Names) -> list[str]:
        """The copy as C, which declares `packed` and `low_0`, ..."""
        array = nest.arrays[self.array]
        c, own = C_TYPES[array.dtype], names.arrays[self.array]
        found = [f"{c} packed[{self.elements}] __attribute__((aligned(64)));"]
        places = self.places()
        found += [
            f"const int64_t {name} = max_i64({low}, 0);"
            for (_, name), low in zip(places, self.lows, strict=True)
            if name
        ]
        inside: list[tuple[int, str]] = []
        for d, (stride, low) in enumerate(places):
            extent, size = self.extents[d], array.shape[d]
            end = f"min_i64({low} + {extent}, {size})" if low else str(min(extent, size))
            found.append(f"{'    ' * d}for (int64_t x{d} = {low or 0}; x{d} < {end}; x{d}++)")
            inside.append((stride, f"(x{d} - {low})" if low else f"x{d}"))
        at = [(stride, f"x{d}") for d, stride in enumerate(array.strides)]
        inmost = f"packed[{linear(0, inside)}] = {own}[{linear(0, at)}];"
        return [*found, "    " * len(places) + inmost]


def packing(
    nest: Nest, schedule: Schedule, pieces: Sequence[Piece], names: Names
) -> Packing | str | None:
    """What to copy where, a reason why there is nothing to copy, or None if none is wanted."""
    if schedule.pack == "none":
        return None
    arrays = packable(nest)
    nth = int(schedule.pack.removeprefix("read")) - 1
    if nth >= len(arrays):
        return f"no array {nth + 1} that is read alone"
    array = arrays[nth]
    name = names.arrays[array]
    accesses = [a for _, a, _ in nest.accesses() if a.array == array]
    used = frozenset().union(*(a.loops for a in accesses))
    after = max((q for q, p in enumerate(pieces) if p.block and p.loop in used), default=-1)
    if after < 0:
        return f"no loop over {name} has blocks"
    if len({tuple(i.affine.coefs for i in a.at) for a in accesses}) > 1:
        return f"{name} is read along different loops"
    steps = {p.loop: p.step for p in pieces if p.block}
    shape = nest.arrays[array].shape
    spans = [_span(nest, names, steps, d, accesses) for d in range(len(shape))]
    lows, extents = tuple(low for low, _ in spans), tuple(extent for _, extent in spans)
    if prod(extents) * DTYPES[nest.arrays[array].dtype] > MOST_BYTES:
        return f"a block of {name} has more than {MOST_BYTES} bytes"
    return Packing(array, after, lows, extents, _strides(accesses[0], extents, schedule.innermost))


def _span(
    nest: Nest, names: Names, steps: dict[int, int], dimension: int, accesses: Sequence[Access]
) -> tuple[str, int]:
    """The least index along a dimension within one block, and how many there are at most."""
    affines: list[Affine] = [a.at[dimension].affine for a in accesses]
    constants = [a.constant for a in affines]
    low, extent, terms = min(constants), max(constants) - min(constants) + 1, []
    for loop, coef in enumerate(affines[0].coefs):
        if not coef:
            continue
        first, last = loop_range(nest.loops, nest.arrays, loop)
        if loop in steps:
            length = steps[loop] - nest.loops[loop].step
            terms.append((coef, names.blocks[loop]))
            low += coef * length if coef < 0 else 0
        else:
            length = last - first
            low += coef * (first if coef > 0 else last)
        extent += abs(coef) * length
    return linear(low, terms), min(extent, nest.arrays[accesses[0].array].shape[dimension])


def _strides(access: Access, extents: tuple[int, ...], innermost: int) -> tuple[int, ...]:
    along = [d for d, index in enumerate(access.at) if innermost in index.loops]
    order = [d for d in range(len(extents)) if d not in along[-1:]] + along[-1:]
    strides = [0] * len(extents)
    size = 1
    for d in reversed(order):
        strides[d] = size
        size *= extents[d]
    return tuple(strides)
