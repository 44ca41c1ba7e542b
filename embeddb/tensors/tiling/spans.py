"""Ranges of indices that a tile needs, as functions of where the tile begins and ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from embeddb.tensors.tiling.forms import Form, Var, of_var, whole

__all__ = ["Span", "span_of", "tile_span", "whole_span"]


@dataclass(frozen=True)
class Span:
    """From `low` to below `high`, and within 0 to `dim`; both are forms of the variables `b0`,
    `e0`, ...: where the tile begins and ends along the dimensions of the root. Both are affine."""

    low: Form
    high: Form
    dim: int

    @cached_property
    def depends(self) -> frozenset[int]:
        """Dimensions of the root."""
        return frozenset(int(v.name[1:]) for v in self.low.variables | self.high.variables)

    def size(self, tile: Sequence[int]) -> int:
        """How long it is at most, for a tile of these sizes."""
        constant, by_side = self.length
        return min(self.dim, constant + sum(by * tile[d] for d, by in by_side))

    @cached_property
    def length(self) -> tuple[int, tuple[tuple[int, int], ...]]:
        """What it is for a tile of no size that begins at 0, and by how much it grows with each of
        its sides."""
        form = self.high + self.low * -1
        ends = [(var, by) for var, by in form.terms if isinstance(var, Var) and var.name[0] == "e"]
        return form.constant, tuple((int(var.name[1:]), by) for var, by in ends)


def whole_span(dim: int) -> Span:
    return Span(whole(0), whole(dim), dim)


def tile_span(at: int, dim: int) -> Span:
    """That of the tile itself along a dimension of the root."""
    return Span(of_var(Var(f"b{at}", dim)), of_var(Var(f"e{at}", dim + 1)), dim)


def span_of(form: Form, spans: Mapping[Var, Span], dim: int) -> Span:
    """Of an index along a dimension of this length, over those of its variables. Where it is not
    affine, the whole dimension."""
    if not form.affine:
        return whole_span(dim)
    low, high = whole(form.constant), whole(form.constant + 1)
    for var in form.variables:
        coef, span = form.coef(var) or 0, spans[var]
        first, last = span.low, span.high + -1
        low = low + (first if coef > 0 else last) * coef
        high = high + (last if coef > 0 else first) * coef
    return Span(low, high, dim)
