"""Dependences of a nest: which turns of its loops touch one element, and how far they are apart.

Of every pair of accesses to one array of which one writes, the vectors of distances from the turn
that comes first to the one that comes later. Everything unknown is a dependence: what is said to be
independent is so.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from embeddb.nests.dependence.distances import ZERO, Distances, Vector
from embeddb.nests.nest import Nest
from embeddb.nests.parts import Access

__all__ = ["Dependence", "dependences", "parallel_loops", "reduction_loops"]


@dataclass(frozen=True, slots=True)
class Dependence:
    """Turns of statement `sink` that must come after those of statement `source` which are `vector`
    before them. Vectors of several loops are positive in the order of the nest; one of zeros is
    between statements of one turn. `reduction`: both combine the same way with one element, so that
    their order is free, but not at one time.
    """

    array: int
    source: int
    sink: int
    vector: Vector
    reduction: bool = False

    @property
    def distance(self) -> tuple[int, ...] | None:
        """The one distance, where it is exact."""
        exact = all(low == high for low, high in self.vector)
        return tuple(low for low, _ in self.vector) if exact else None

    @property
    def told(self) -> str:
        """`(1, -1)`, where a component that varies is `+`, `-`, `0+`, `0-` or `*`."""
        return f"({', '.join(map(_component, self.vector))})"


@lru_cache(maxsize=256)
def dependences(nest: Nest) -> tuple[Dependence, ...]:
    """All of a nest, each once."""
    distances = Distances(nest)
    found: dict[Dependence, None] = {}
    touched: dict[int, dict[_Touch, None]] = {}
    for statement, access, writes in nest.accesses():
        touched.setdefault(access.array, {})[_Touch(statement, access, writes)] = None
    for array in nest.written:
        for first, second in itertools.combinations_with_replacement(touched[array], 2):
            if first.writes or second.writes:
                reduction = _reduction(nest, first, second)
                for source, sink, vector in _ordered(distances, first, second):
                    found[Dependence(array, source, sink, vector, reduction)] = None
    return tuple(found)


def parallel_loops(nest: Nest) -> tuple[int, ...]:
    """The loops whose turns are independent for one turn of the loops around."""
    return tuple(at for at in range(nest.depth) if not any(_carried(nest, at)))


def reduction_loops(nest: Nest) -> tuple[int, ...]:
    """The loops whose turns would be independent if it were not for reductions."""
    found = [list(_carried(nest, at)) for at in range(nest.depth)]
    return tuple(at for at, d in enumerate(found) if d and all(one.reduction for one in d))


class _Touch(NamedTuple):
    statement: int
    access: Access
    writes: bool


def _reduction(nest: Nest, first: _Touch, second: _Touch) -> bool:
    if not (first.writes and second.writes):
        return False
    combines = {nest.body[touch.statement].combine for touch in (first, second)}
    return len(combines) == 1 and "=" not in combines


def _ordered(
    distances: Distances, first: _Touch, second: _Touch
) -> Iterator[tuple[int, int, Vector]]:
    """(source, sink, vector) of each way in which two accesses meet."""
    one, two = first.statement, second.statement
    for vector in distances.between(first.access, second.access):
        for ahead in _positive(vector):
            yield one, two, ahead
        if first == second:
            continue
        for behind in _positive(tuple((-high, -low) for low, high in vector)):
            yield two, one, behind
        if one != two and all(low <= 0 <= high for low, high in vector):
            yield min(one, two), max(one, two), tuple(ZERO for _ in vector)


def _positive(vector: Vector) -> Iterator[Vector]:
    """The part of it whose first component that is not zero is positive."""
    for at, (low, high) in enumerate(vector):
        if high > 0:
            yield (*(ZERO for _ in range(at)), (max(low, 1), high), *vector[at + 1 :])
        if not low <= 0 <= high:
            return


def _component(between: tuple[int, int]) -> str:
    low, high = between
    if low == high:
        return str(low)
    if low >= 0:
        return "+" if low else "0+"
    return "*" if high > 0 else ("0-" if not high else "-")


def _carried(nest: Nest, loop: int) -> Iterator[Dependence]:
    for dependence in dependences(nest):
        apart = any(part[0] > 0 or part[1] < 0 for part in dependence.vector[:loop])
        if dependence.vector[loop] != ZERO and not apart:
            yield dependence
