"""From where to where each generated loop runs.

A point loop runs within the bounds of the nest and those of its block. A block loop stands outside
of the point loops that its bounds may depend on; what such an index can be at most is then put in
its place, so that blocks cover what there is and empty ones end at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from embeddb.core.errors import NestError
from embeddb.nests.extents import values_of
from embeddb.nests.nest import Nest
from embeddb.nests.parts import Affine, Index
from embeddb.nests.schedule import Piece
from indexer.runners.nest_code.expressions import Site, Writer, linear
from indexer.runners.nest_code.names import Names

__all__ = ["Bounds", "bounds_of"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The first index and the one behind the last as C; `needs` are the generated loops, by their
    variables, that they depend on."""

    first: str
    end: str
    needs: frozenset[str]


def bounds_of(writer: Writer, names: Names, pieces: Sequence[Piece], at: int) -> Bounds:
    """The bounds of piece `at`.

    Raises: NestError for a loop that stands outside of one its bounds depend on.
    """
    nest, piece = writer.nest, pieces[at]
    loop = nest.loops[piece.loop]
    around = _Around(nest, names, pieces[:at])
    if piece.block:
        if loop.lower.of is not None or loop.upper.of is not None:
            raise NestError(
                f"loop {nest.loop_name(piece.loop)}: bounds out of an array have no blocks"
            )
        least, least_needs = around.furthest(loop.lower, up=False)
        most, most_needs = around.furthest(loop.upper, up=True)
        return Bounds(least, most, least_needs | most_needs)
    for bound in (loop.lower, loop.upper):
        if hidden := bound.loops - around.points:
            inner, outer = nest.loop_name(min(hidden)), nest.loop_name(piece.loop)
            raise NestError(f"loop {outer} cannot stand outside of {inner}, which bounds it")
    site = Site({k: (names.points[k], 0) for k in around.points})
    lower, upper = (writer.index(bound, site) for bound in (loop.lower, loop.upper))
    needs = frozenset(names.points[k] for k in loop.lower.loops | loop.upper.loops)
    tile = next((p for p in pieces[:at] if p.block and p.loop == piece.loop), None)
    if tile is None:
        return Bounds(lower, upper, needs)
    block = names.blocks[piece.loop]
    first, end = _within(nest, piece.loop, tile.step, (block, lower, upper))
    return Bounds(first, end, needs | {block})


def _within(nest: Nest, at: int, step: int, told: tuple[str, str, str]) -> tuple[str, str]:
    """Bounds of the points of one block."""
    block, lower, upper = told
    loop, last = nest.loops[at], f"{told[0]} + {step}"
    span = loop.upper.affine.constant - loop.lower.affine.constant
    whole = not loop.upper.loops and not loop.lower.loops and span % step == 0
    end = last if whole else f"min_i64({last}, {upper})"
    if not loop.lower.loops:
        return block, end
    if loop.step == 1:
        return f"max_i64({block}, {lower})", end
    # The first index of the loop that is not before the block.
    turns = f"(max_i64({block} - ({lower}), 0) + {loop.step - 1}) / {loop.step}"
    return f"{lower} + {loop.step} * ({turns})", end


class _Around:
    """The generated loops around one."""

    def __init__(self, nest: Nest, names: Names, pieces: Sequence[Piece]) -> None:
        self.nest, self.names = nest, names
        self.points = frozenset(p.loop for p in pieces if not p.block)
        self._blocks = {p.loop: p.step for p in pieces if p.block}

    def furthest(self, index: Index, *, up: bool) -> tuple[str, frozenset[str]]:
        """The largest value (or the least) of a bound, and what it depends on."""
        constant, coefs = index.affine.constant, list(index.affine.coefs)
        terms: list[tuple[int, str]] = []
        for loop in range(len(coefs) - 1, -1, -1):
            coef = coefs[loop]
            if not coef:
                continue
            last = (coef > 0) == up
            if loop in self.points:
                terms.append((coef, self.names.points[loop]))
            elif loop in self._blocks:
                terms.append((coef, self.names.blocks[loop]))
                constant += coef * (self._blocks[loop] - 1) * last
            else:
                bound, more = self._bound(loop, last)
                constant += coef * more
                for outer, by in enumerate(bound.coefs):
                    coefs[outer] += coef * by
        return linear(constant, terms[::-1]), frozenset(name for _, name in terms)

    def _bound(self, loop: int, last: bool) -> tuple[Affine, int]:
        """The affine part of the last index of a loop (or the first) and the number to add."""
        bound = self.nest.loops[loop].upper if last else self.nest.loops[loop].lower
        more = bound.affine.constant - last
        if bound.of is not None:
            more += values_of(self.nest.arrays[bound.of.array])[last]
        return bound.affine, more
