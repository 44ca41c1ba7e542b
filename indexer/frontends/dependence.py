"""Whether two accesses of a program may meet when the loops around them are at different turns.

Conservative: bounds and subscripts are linear constraints over the indices of both sides, which
`embeddb.nests.dependence.distances` shows to have no solution; what it cannot show may meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from embeddb.nests.dependence.distances import Row, System
from embeddb.nests.parts import Access, Affine, Loop

#: Inequalities at which it is given up. Ten times as many as for a nest: these are few questions,
#: and what may meet is not cut.
_MOST_ROWS = 600


@dataclass(frozen=True, slots=True)
class Site:
    """An access, and all the loops around it from the outermost."""

    access: Access
    loops: tuple[Loop, ...]


def meet_later(late: Site, early: Site, loop: int) -> bool:
    """Whether `early` may touch in a later turn of a loop what `late` touches in an earlier one.

    `loop` counts the loops around both; those further out are at the same turn. Where `late` stands
    below `early` in the text, this is what makes it illegal to run all of `early` first.
    """
    if late.access.array != early.access.array:
        return False
    unknowns = len(late.loops) + len(early.loops) - loop
    first = _Side(late, loop, 0, unknowns)
    then = _Side(early, loop, len(late.loops) - loop, unknowns)
    least = [*first.bounds(), *then.bounds()]
    least.append(_less(then.index(loop), first.index(loop), late.loops[loop].step))
    equal = [
        _less(first.row(one.affine), then.row(other.affine))
        for one, other in zip(late.access.at, early.access.at, strict=True)
        if one.of is None and other.of is None
    ]
    system = System.empty().joined(equal, least)
    return system is not None and system.feasible(_MOST_ROWS)


@dataclass(frozen=True, slots=True)
class _Side:
    """The loops of one side as unknowns: those that both share come first, at their own numbers;
    its others are further on by `shift`."""

    site: Site
    shared: int
    shift: int
    unknowns: int

    def row(self, affine: Affine) -> Row:
        row = [0] * self.unknowns
        for at, coef in enumerate(affine.coefs):
            row[at if at < self.shared else at + self.shift] = coef
        return (*row, affine.constant)

    def index(self, loop: int) -> Row:
        return self.row(Affine(0, (*(0 for _ in range(loop)), 1)))

    def bounds(self) -> Iterator[Row]:
        """`lower <= index` and `index <= upper - 1`, where these are no elements of arrays."""
        for at, loop in enumerate(self.site.loops):
            if loop.lower.of is None:
                yield _less(self.index(at), self.row(loop.lower.affine))
            if loop.upper.of is None:
                yield _less(self.row(loop.upper.affine), self.index(at), 1)


def _less(row: Row, other: Row, constant: int = 0) -> Row:
    """One row less another, and less a constant."""
    left = [a - b for a, b in zip(row, other, strict=True)]
    return (*left[:-1], left[-1] - constant)
