"""What part of an array a nest touches, seen from any of its generated loops: for each dimension a
first and a last index, affine in the loops around ("memlets" of an SDFG; "Performance Embeddings",
Table 4: start and stop access matrix)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from embeddb.nests.extents import index_range, values_of
from embeddb.nests.nest import Nest
from embeddb.nests.parts import Access, Affine, Index
from embeddb.nests.schedule import Piece

__all__ = ["Group", "Span", "around", "groups_of", "spans"]


class Span(NamedTuple):
    """First and last index in one dimension, affine in the loops that are around; `most` is how
    many indices lie between them at most, `step` from one to the next (0: there is one only)."""

    first: Affine
    last: Affine
    most: int
    step: int


class Group(NamedTuple):
    """Accesses to one array that differ in constants only, distinct ones, in the order of the text.
    They touch the same part of it but for a shift."""

    accesses: tuple[Access, ...]

    @property
    def array(self) -> int:
        return self.accesses[0].array


def groups_of(accesses: list[Access]) -> list[Group]:
    """The accesses in groups, in the order in which each group is met first."""
    found: dict[object, list[Access]] = {}
    for access in dict.fromkeys(accesses):
        shape = tuple((index.affine.coefs, index.of) for index in access.at)
        found.setdefault((access.array, shape), []).append(access)
    return [Group(tuple(members)) for members in found.values()]


def around(pieces: tuple[Piece, ...], level: int) -> dict[int, int]:
    """The loops of which a generated loop is among the first `level`, and how far beyond that one's
    index the loop's own may be: 0, or a block's width less a step."""
    found: dict[int, int] = {}
    for piece in pieces[:level]:
        inside = piece.block
        inner = [p for p in pieces if p.loop == piece.loop and not p.block]
        found[piece.loop] = piece.step - inner[0].step if inside and inner else 0
    return found


def spans(nest: Nest, group: Group, known: Mapping[int, int]) -> list[Span | None]:
    """By dimension, what the accesses of a group touch while the loops of `known` (`around`) stand
    still; None where the index comes out of an array."""
    found: list[Span | None] = []
    point = len(group.accesses) == 1 and len(known) == nest.depth and not any(known.values())
    for dimension, index in enumerate(group.accesses[0].at):
        if index.of is not None:
            found.append(None)
            continue
        if point:
            found.append(Span(index.affine, index.affine, 1, 0))
            continue
        constants = [a.at[dimension].affine.constant for a in group.accesses]
        coefs = index.affine.coefs
        first = _end(nest, Affine(min(constants), coefs), known, up=False)
        last = _end(nest, Affine(max(constants), coefs), known, up=True)
        between = index_range(nest.loops, nest.arrays, Index(_less(last, first)))[1] + 1
        found.append(Span(first, last, max(between, 1), _step(nest, index.affine, known)))
    return found


def _end(nest: Nest, affine: Affine, known: Mapping[int, int], *, up: bool) -> Affine:
    """The largest value (or the least) while the known loops stand still: the others are replaced,
    from the innermost outwards, by the bound at which the value is so."""
    constant = affine.constant
    coefs = [affine.coef(at) for at in range(nest.depth)]
    for at in range(nest.depth - 1, -1, -1):
        coef = coefs[at]
        far = (coef > 0) == up
        if not coef:
            continue
        if at in known:
            constant += coef * known[at] * far
            continue
        bound = nest.loops[at].upper if far else nest.loops[at].lower
        constant += coef * (bound.affine.constant - far)
        coefs[at] = 0
        for outer, by in enumerate(bound.affine.coefs):
            coefs[outer] += coef * by
        if bound.of is not None:
            constant += coef * values_of(nest.arrays[bound.of.array])[far]
    return Affine(constant, tuple(coefs))


def _step(nest: Nest, affine: Affine, known: Mapping[int, int]) -> int:
    free = [at for at in affine.loops if known.get(at, 1)]
    return min((abs(affine.coef(at)) * nest.loops[at].step for at in free), default=0)


def _less(last: Affine, first: Affine) -> Affine:
    depth = max(len(last.coefs), len(first.coefs))
    coefs = tuple(last.coef(at) - first.coef(at) for at in range(depth))
    return Affine(last.constant - first.constant, coefs)
