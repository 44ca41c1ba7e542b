"""How many bytes a nest has to move at least, and how near a run is to that: data locality.

Source: "Performance Embeddings", Section 4 (the ratio Q/D of Fuhrer et al.). The paper takes Q from
a SOAP analysis; here it is closed forms: each byte once, and for contractions the bound of Hong and
Kung, as sharpened by Kwasniewski et al. ("Red-blue pebbling revisited", SC 2019): 2 mnk / sqrt(S).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from embeddb.nests.nest import Nest, index_range
from embeddb.nests.parts import DTYPES, Access, Call, Expr, Index, Read, Statement

__all__ = ["compulsory_bytes", "data_locality", "least_bytes", "touched_elements"]


def compulsory_bytes(nest: Nest) -> int:
    """Bytes that are read or written at least once, each array's once for reading and once for
    writing. What a nest writes before it reads need not be read."""
    reads: dict[int, list[Access]] = {}
    writes: dict[int, list[Access]] = {}
    for at, access, writing in nest.accesses():
        if writing:
            writes.setdefault(access.array, []).append(access)
        if not writing or nest.body[at].reduction:
            reads.setdefault(access.array, []).append(access)
    found = 0
    for side in (reads, writes):
        for array, accesses in side.items():
            found += touched_elements(nest, accesses) * DTYPES[nest.arrays[array].dtype]
    return found


def touched_elements(nest: Nest, accesses: Sequence[Access]) -> int:
    """How many elements of one array are touched, about: no more than the box around all of them,
    nor than the turns of the loops that each depends on."""
    array = nest.arrays[accesses[0].array]
    dimensions = zip(*(access.at for access in accesses), strict=True)
    box = math.prod(_values(nest, list(indices)) for indices in dimensions)
    turns = sum(
        math.prod(nest.trips[loop] for loop in _around(nest, a)) for a in dict.fromkeys(accesses)
    )
    return max(1, min(box, turns, array.elements))


def least_bytes(nest: Nest, fast_bytes: int) -> float:
    """Q: what has to be moved between main memory and a fast one of so many bytes, at least."""
    least = float(compulsory_bytes(nest))
    size = max(DTYPES[array.dtype] for array in nest.arrays)
    if _is_contraction(nest):
        least = max(least, 2 * nest.points / math.sqrt(max(1, fast_bytes // size)) * size)
    return least


def data_locality(nest: Nest, moved_bytes: float, fast_bytes: int) -> float:
    """Q/D, D being the bytes that were moved to and from the memory behind a fast one of so many
    bytes (`CounterVector.memory_bytes`); 1 where no more were moved than had to be, as warm caches
    may hold everything; nan where D was not counted."""
    if math.isnan(moved_bytes):
        return math.nan
    least = least_bytes(nest, fast_bytes)
    return 1.0 if moved_bytes <= least else least / moved_bytes


def _around(nest: Nest, access: Access) -> frozenset[int]:
    """The loops that an access depends on, by its indices and by the bounds of those loops."""
    found = access.loops
    for loop in range(nest.depth - 1, -1, -1):
        if loop in found:
            found |= nest.loops[loop].lower.loops | nest.loops[loop].upper.loops
    return found


def _values(nest: Nest, indices: Sequence[Index]) -> int:
    """How many values the indices of one dimension take together, at most."""
    ranges = [index_range(nest.loops, nest.arrays, index) for index in indices]
    width = max(high for _, high in ranges) - min(low for low, _ in ranges) + 1
    if any(index.of is not None for index in indices):
        return width
    strides = [c * nest.loops[x].step for i in indices for x, c in enumerate(i.affine.coefs) if c]
    starts = [low - ranges[0][0] for low, _ in ranges]
    grain = math.gcd(*strides, *starts) or 1
    return (width - 1) // grain + 1


def _is_contraction(nest: Nest) -> bool:
    """Whether the nest reduces products of two arrays: each loop indexes exactly two of the three
    arrays, by itself, and at most one loop all three (a batch)."""
    if len(nest.body) != 1 or not nest.body[0].reduction or nest.body[0].where is not None:
        return False
    statement = nest.body[0]
    reads = _operands(statement)
    if len(reads) != 2 or len({statement.target.array, *(a.array for a in reads)}) != 3:
        return False
    arrays = (statement.target, *reads)
    if not all(_plain(access) for access in arrays) or not _box(nest):
        return False
    in_all = sum(all(loop in a.loops for a in arrays) for loop in range(nest.depth))
    pairs = [[loop in a.loops for a in arrays] for loop in range(nest.depth)]
    kinds = {tuple(p) for p in pairs if sum(p) == 2}
    return all(sum(p) >= 2 for p in pairs) and len(kinds) == 3 and in_all <= 1


def _operands(statement: Statement) -> list[Access]:
    """The arrays that one operation joins."""
    found: list[Access] = []

    def walk(expression: Expr) -> None:
        if isinstance(expression, Read):
            found.append(expression.access)
        elif isinstance(expression, Call):
            for argument in expression.args:
                walk(argument)

    walk(statement.value)
    return found


def _plain(access: Access) -> bool:
    """Whether each index is that of one loop, each loop's once."""
    used = [index.affine.loops for index in access.at]
    single = all(len(loops) == 1 for loops in used) and access.affine
    return single and len({loops[0] for loops in used}) == len(used)


def _box(nest: Nest) -> bool:
    bounds = (bound for loop in nest.loops for bound in (loop.lower, loop.upper))
    return not any(bound.loops or bound.of is not None for bound in bounds)
