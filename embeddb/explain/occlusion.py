"""Occlusion (Zeiler and Fergus 2014, Section 4.2): effect of removing one cell of a matrix, or one
operation of a kernel."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import EmbeddbError
from embeddb.core.pattern import Pattern
from embeddb.core.reports import Progress
from embeddb.featurizers.base import Occluding
from embeddb.index.lookup import Lookup
from embeddb.ranking.kernels.view import MOST_SHOWN
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.base import Ranker
from embeddb.ranking.recommendation import Occluded
from embeddb.tensors.tensor_graph import TensorGraph

Floats = NDArray[np.float64]

#: Candidate grid sides, the finest within the time limit is used, and the limit in seconds.
_SIDES, _MOST_S = (8, 4), 4.0


def occlusion(
    query: Query, db: Lookup, pattern: Pattern | None, *, progress: Progress | None = None
) -> tuple[int, list[float]]:
    """Occlusion map: side of a grid, and row by row how far the embedding moves in the partition's
    metric without the non-zeros of one cell (Zeiler and Fergus 2014, Section 4.2).

    (0, []) without neighbours or structure, if the featurizer fails, or if even the coarser grid
    would take too long.
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
            progress("occlusion map", cell, side * side)
        left = without_cell(structure, cell // side, cell % side, side=side)
        same = left.nnz == structure.nnz
        yield 0.0 if same else float(np.linalg.norm(placed(left) - whole))


def without_cell(pattern: Pattern, row: int, column: int, *, side: int) -> Pattern:
    """The pattern without the non-zeros in one cell of a side x side grid; it has no id."""
    m, n = pattern.shape
    top, bottom = m * row // side, m * (row + 1) // side
    left, right = n * column // side, n * (column + 1) // side
    first, last = int(pattern.indptr[top]), int(pattern.indptr[bottom])
    inside = pattern.indices[first:last]
    keep = (inside < left) | (inside >= right)
    offsets = np.concatenate([[0], np.cumsum(keep)])
    indptr = pattern.indptr.copy()
    indptr[top : bottom + 1] = first + offsets[pattern.indptr[top : bottom + 1] - first]
    indptr[bottom + 1 :] -= int(keep.size - offsets[-1])
    indices = np.concatenate([pattern.indices[:first], inside[keep], pattern.indices[last:]])
    return Pattern("", pattern.shape, indptr, indices)


_MOST_SIZES = 12


def kernel_occlusion(
    ranker: Ranker, db: Lookup, kernel: TensorGraph | None
) -> tuple[str, list[Occluded]]:
    """The method (`Diagnostics.occluded_by`) and the parts, largest effect first; ("", []) if the
    method does not apply. Kernels of more than `MOST_SHOWN` operations are not occluded.
    """
    few = kernel if kernel is not None and len(kernel.operations) <= MOST_SHOWN else None
    try:
        if ranker.by_model and few is not None:
            return "model", _by_model(ranker.query, db, few)
        return _by_neighbours(ranker.query, db, few)
    except EmbeddbError:
        return "", []


def _by_model(query: Query, db: Lookup, kernel: TensorGraph) -> list[Occluded]:
    """Change of the best tile's predicted gain over the default without an operation."""
    model, _ = db.graph_model(query.platform, query.op)
    if model is None or query.default not in query.prediction.configs:
        return []
    others = [c for c in query.prediction.configs if c != query.default]
    if not others:
        return []
    gain = dict(zip(query.prediction.configs, query.prediction.gain.tolist(), strict=True))
    pair = (query.default, max(others, key=lambda c: gain[c]))
    slope = float(model.card["calibration"]["slope"])
    whole = model.predict(kernel, pair)
    without = model.without(kernel, pair)
    moved = slope * ((without[:, 0] - without[:, 1]) - (whole[0] - whole[1]))
    return _operations(kernel, moved)


def _by_neighbours(
    query: Query, db: Lookup, kernel: TensorGraph | None
) -> tuple[str, list[Occluded]]:
    partition = db.answering(query.op, query.platform)
    if partition is None or partition.featurizer != query.vote.featurizer:
        return "", []
    plug = db.featurizers().named(partition.featurizer)
    whole = partition.metric.apply(query.vote.vector[None])[0]
    if isinstance(plug, Occluding):
        if kernel is None:
            return "", []
        placed = partition.metric.apply(np.array(plug.without(kernel), dtype=np.float32))
        return "operations", _operations(kernel, np.linalg.norm(placed - whole, axis=1))
    usual = np.repeat(query.vote.vector[None], len(plug.names), axis=0)
    usual[np.diag_indices(len(plug.names))] = partition.metric.center
    moved = np.linalg.norm(partition.metric.apply(usual) - whole, axis=1)
    parts = [Occluded(what=n, moved=float(m)) for n, m in zip(plug.names, moved, strict=True)]
    return "sizes", sorted(parts, key=lambda one: -one.moved)[:_MOST_SIZES]


def _operations(kernel: TensorGraph, moved: NDArray[np.float64]) -> list[Occluded]:
    parts = [
        Occluded(what=op.opcode, place=at, moved=float(moved[at]))
        for at, op in enumerate(kernel.operations)
    ]
    return sorted(parts, key=lambda one: -abs(one.moved))
