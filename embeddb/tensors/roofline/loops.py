"""Which loops of a nest turn under a tile, and which of them a compiler takes together or writes
out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from embeddb.tensors.roofline.accesses import Nest
from embeddb.tensors.roofline.extents import Extents
from embeddb.tensors.tiling.forms import Var

__all__ = ["ROWS", "Loops", "lengths", "loops_of", "turned"]

#: Rows that one turn of the loop around the innermost one takes.
ROWS = 4
#: Turns in all of loops in each other that are written out.
_MOST_WRITTEN = 16


@dataclass(frozen=True, slots=True)
class Loops:
    """The innermost loop, the one around it of which `ROWS` turns are taken together, those inside
    that are written out, with how often they turn, and the others, from outside."""

    outside: tuple[Var, ...]
    rows: Var | None
    inner: Var | None
    written: Mapping[Var, int]

    def copies(self, variables: frozenset[Var], rows: int) -> float:
        """How often what moves with these is there in one turn of the innermost loop."""
        times = math.prod(n for var, n in self.written.items() if var in variables)
        return times * (rows if self.rows in variables else 1)

    def inside(self, at: int) -> frozenset[Var]:
        """The variables of all loops within the first so many of `outside`."""
        found = {*self.outside[at:], *self.written}
        return frozenset(found | {var for var in (self.rows, self.inner) if var is not None})


def turned(nest: Nest, extents: Extents) -> list[Var]:
    """The loops that turn more than once, from outside."""
    return [var for var in nest.loops if _longest(nest, var, extents) > 1]


def loops_of(nest: Nest, order: Sequence[Var], extents: Extents) -> Loops:
    """Of the loops that turn."""
    left, written = _written_out(nest, order, extents)
    inner = left.pop() if left else None
    rows = _rows(nest, left, inner, extents)
    return Loops(tuple(var for var in left if var != rows), rows, inner, written)


def lengths(nest: Nest, var: Var, extents: Extents) -> list[tuple[int, float]]:
    """How long a loop is, and in which share of its runs."""
    block = extents.tile.reduced
    if var == nest.blocked and 0 < block < var.extent:
        blocks = -(-var.extent // block)
        last = var.extent - (blocks - 1) * block
        return [(block, 1 - 1 / blocks), (last, 1 / blocks)]
    return extents.lengths(nest.spans[var])


def _longest(nest: Nest, var: Var, extents: Extents) -> int:
    return max(n for n, _ in lengths(nest, var, extents))


def _written_out(
    nest: Nest, order: Sequence[Var], extents: Extents
) -> tuple[list[Var], dict[Var, int]]:
    """The loops that are left, and short ones inside of all that a compiler writes out: where it is
    not told to take rows together."""
    left, written = list(order), dict[Var, int]()
    if order and (_rows(nest, left[:-1], left[-1], extents) or _fourfold(nest, left[-1], extents)):
        return left, written
    while len(left) > 1:
        (turns, _), *others = lengths(nest, left[-1], extents)
        if others or turns > ROWS or turns * math.prod(written.values()) > _MOST_WRITTEN:
            break
        written[left.pop()] = turns
    return left, written


def _fourfold(nest: Nest, last: Var, extents: Extents) -> bool:
    """Whether the loop, although it is innermost, is one of rows: the loop inside has one turn."""
    return last != nest.inner and last in nest.summed and _longest(nest, last, extents) >= ROWS


def _rows(nest: Nest, around: Sequence[Var], inner: Var | None, extents: Extents) -> Var | None:
    """The loop of which several turns are taken together: of a sum alone."""
    if not nest.summed or inner is None or inner != nest.inner or not around:
        return None
    last = around[-1]
    if (last in nest.summed) == (inner in nest.summed):
        return None
    return last if _longest(nest, last, extents) >= ROWS else None
