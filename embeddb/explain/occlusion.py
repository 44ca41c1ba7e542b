"""Which part of a pattern counts: how far it moves when the non-zeros of one cell are left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import EmbeddbError
from embeddb.core.pattern import Pattern
from embeddb.index.lookup import Lookup
from embeddb.ranking.query import Query

__all__ = ["occlusion", "without_cell"]

Floats = NDArray[np.float64]
Progress = Callable[[str, int, int], None]

#: Cells along a side of the grid of the occlusion: the finest that takes no longer than the limit.
_SIDES, _MOST_S = (8, 4), 4.0


def occlusion(
    query: Query, db: Lookup, pattern: Pattern | None, *, progress: Progress | None = None
) -> tuple[int, list[float]]:
    """Side of a grid, and row by row how far the pattern moves in the partition's metric when the
    non-zeros of one cell are left out (occlusion: Zeiler and Fergus 2014, Section 4.2).

    (0, []) where neighbours were not looked up, the structure is not at hand, the featurizer
    cannot tell, or even the coarser grid would take too long.
    """
    partition = db.answering(query.op, query.platform)
    structure = pattern if pattern is not None else db.store.structure(query.pattern.id)
    if partition is None or structure is None or partition.featurizer != query.vote.featurizer:
        return 0, []
    plug = db.featurizers().named(query.vote.featurizer)

    def placed(shown: Pattern) -> Floats:
        raw = np.asarray(plug.embed(shown), dtype=np.float32)
        at: Floats = partition.metric.apply(raw[None])[0].astype(np.float64)
        return at

    try:
        whole = placed(structure)
        began = time.perf_counter()
        placed(without_cell(structure, 0, 0, side=_SIDES[-1]))
        each = time.perf_counter() - began
        side = next((s for s in _SIDES if s * s * each <= _MOST_S), 0)
        moved = list(_moved(structure, placed, whole, side=side, progress=progress))
    except EmbeddbError:
        return 0, []
    return (side, moved) if side and np.isfinite(moved).all() else (0, [])


def _moved(
    structure: Pattern,
    placed: Callable[[Pattern], Floats],
    whole: Floats,
    *,
    side: int,
    progress: Progress | None,
) -> Iterator[float]:
    for cell in range(side * side):
        if progress is not None:
            progress("which part of the pattern counts", cell, side * side)
        left = without_cell(structure, cell // side, cell % side, side=side)
        same = left.nnz == structure.nnz
        yield 0.0 if same else float(np.linalg.norm(placed(left) - whole))


def without_cell(pattern: Pattern, row: int, column: int, *, side: int) -> Pattern:
    """The pattern less the non-zeros in one cell of a side x side grid; it has no id."""
    m, n = pattern.shape
    top, bottom = m * row // side, m * (row + 1) // side
    left, right = n * column // side, n * (column + 1) // side
    first, last = int(pattern.indptr[top]), int(pattern.indptr[bottom])
    inside = pattern.indices[first:last]
    keep = (inside < left) | (inside >= right)
    kept = np.concatenate([[0], np.cumsum(keep)])
    indptr = pattern.indptr.copy()
    indptr[top : bottom + 1] = first + kept[pattern.indptr[top : bottom + 1] - first]
    indptr[bottom + 1 :] -= int(keep.size - kept[-1])
    indices = np.concatenate([pattern.indices[:first], inside[keep], pattern.indices[last:]])
    return Pattern("", pattern.shape, indptr, indices)
