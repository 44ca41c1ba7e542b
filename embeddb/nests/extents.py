"""Over what the loops of a nest run: ranges of indices, trips. Bounds are affine in outer loops, so
that ranges are exact by substitution from the innermost loop outwards; what comes out of an
array is bounded by what the array holds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from embeddb.core.errors import NestError
from embeddb.nests.parts import Affine, Array, Index, Loop

__all__ = ["index_range", "loop_range", "trips", "values_of"]


def loop_range(loops: Sequence[Loop], arrays: Sequence[Array], loop: int) -> tuple[int, int]:
    """The least index and the largest, over all turns of the loops around."""
    low = index_range(loops, arrays, loops[loop].lower)[0]
    return low, index_range(loops, arrays, loops[loop].upper)[1] - 1


def index_range(loops: Sequence[Loop], arrays: Sequence[Array], index: Index) -> tuple[int, int]:
    """The least and the largest value. Raises: NestError where an array's values are unknown."""
    low, high = (_furthest(loops, arrays, index.affine, up) for up in (False, True))
    if index.of is None:
        return low, high
    least, most = values_of(arrays[index.of.array])
    return low + least, high + most


def values_of(array: Array) -> tuple[int, int]:
    """The least and the largest value of an array of whole numbers, by its fill.

    Raises: NestError where that is not known.
    """
    kind, *told = array.fill.split(":")
    if array.dtype not in ("i32", "i64"):
        raise NestError(f"an index comes out of an array of {array.dtype}, not of whole numbers")
    if kind in ("range", "permutation"):
        return 0, array.elements - 1
    if kind == "below":
        return 0, int(told[0]) - 1
    if kind == "offsets":
        return 0, int(told[0])
    if kind == "zero":
        return 0, 0
    raise NestError(f"an index comes out of an array of which only {array.fill!r} is known")


def _furthest(loops: Sequence[Loop], arrays: Sequence[Array], affine: Affine, up: bool) -> int:
    """The largest value (or the least): the innermost loop is replaced by the bound at which the
    value is so, then the next one out. Where an outer loop lets an inner one run empty, this is
    further than any value."""
    constant, coefs = affine.constant, list(affine.coefs)
    for loop in range(len(coefs) - 1, -1, -1):
        coef = coefs[loop]
        if not coef:
            continue
        last = (coef > 0) == up
        bound = loops[loop].upper if last else loops[loop].lower
        constant += coef * (bound.affine.constant - last)
        for outer, by in enumerate(bound.affine.coefs):
            coefs[outer] += coef * by
        if bound.of is not None:
            constant += coef * values_of(arrays[bound.of.array])[last]
        coefs[loop] = 0
    return constant


def trips(loops: Sequence[Loop], arrays: Sequence[Array]) -> tuple[int, ...]:
    """By loop, the mean number of turns, rounded up; at least 0. Means of triangles are those of
    their middle."""
    found: list[int] = []
    middle: list[float] = []
    for loop in loops:
        low, high = (_mean(arrays, bound, middle) for bound in (loop.lower, loop.upper))
        row = _mean_row(loop, arrays)
        if row is not None:
            low, high = 0.0, row
        turns = max(0.0, (high - low) / loop.step)
        found.append(math.ceil(turns - 1e-9))
        middle.append(low + max(0.0, turns - 1) / 2 * loop.step)
    return tuple(found)


def _mean(arrays: Sequence[Array], index: Index, middle: Sequence[float]) -> float:
    told = zip(index.affine.coefs, middle, strict=False)
    mean = index.affine.constant + sum(coef * at for coef, at in told)
    return mean if index.of is None else mean + sum(values_of(arrays[index.of.array])) / 2


def _mean_row(loop: Loop, arrays: Sequence[Array]) -> float | None:
    """The mean length of a row, where the loop runs from one offset of an array to the next."""
    low, high = loop.lower.of, loop.upper.of
    if low is None or high is None or low.array != high.array:
        return None
    offsets = arrays[low.array]
    if not offsets.fill.startswith("offsets"):
        return None
    return int(offsets.fill.split(":")[1]) / max(offsets.elements - 1, 1)
