"""Which turns of a nest can touch the same element, told from the form of two accesses alone."""

from __future__ import annotations

from embeddb.nests.parts import Access

__all__ = ["fixed_loops"]


def fixed_loops(one: Access, other: Access) -> frozenset[int]:
    """Loops whose index must be the same in two turns of which one touches by `one` what the other
    touches by `other`: each dimension with the same affine index in both fixes the one loop in it
    that the others do not. Loops may be fixed that are not told here, never the reverse."""
    fixed: set[int] = set()
    alike = [
        set(a.affine.loops)
        for a, b in zip(one.at, other.at, strict=True)
        if a == b and a.of is None
    ]
    grown = True
    while grown:
        left = [loops - fixed for loops in alike]
        single = {min(loops) for loops in left if len(loops) == 1}
        grown = bool(single)
        fixed |= single
    return frozenset(fixed)
