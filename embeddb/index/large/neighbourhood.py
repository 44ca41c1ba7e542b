"""Partitions of very many patterns: fitted on some of them, answered with each question's own.

Everything that is learned or judged (metric, policy, what holds for the platform as a whole) comes
from a sample that is held as any partition is. Neighbours are looked up among all, and the runs of
those that a question is near to are read from the store when it is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from embeddb.index.answer_index import AnswerIndex
from embeddb.index.vectors.inverted_lists import InvertedLists
from embeddb.store import Store

#: Neighbours whose runs are read for a question beside those that its policy asks for: some of them
#: may have lost their runs, or have no second configuration.
_SPARE = 8
#: Patterns by which distances to the nearest one are judged, and neighbours of each that are looked
#: through for one of another group.
_JUDGED, _LOOKED_AT = 500, 48

Vectors = Mapping[str, NDArray[np.float32]]


def widened(store: Store, fitted: AnswerIndex, vectors: Vectors) -> AnswerIndex:
    """A partition that was fitted on some patterns, with raw `vectors` float32[d] of all."""
    ids = sorted(vectors)
    raw = np.array([vectors[i] for i in ids], dtype=np.float32)
    lists = InvertedLists.build(ids, fitted.metric.apply(raw))
    return replace(fitted, lists=lists, far=_far(store, fitted, lists))


def _far(store: Store, fitted: AnswerIndex, lists: InvertedLists) -> NDArray[np.float64]:
    """Ascending distances from patterns to the nearest of another group among all."""
    some = np.linspace(0, len(fitted.ids) - 1, min(_JUDGED, len(fitted.ids))).astype(np.int64)
    at = fitted.metric.apply(fitted.vectors[some])
    found = []
    for place, query in zip(some.tolist(), at, strict=True):
        mine = _group(store, fitted.ids[place])
        ids, far = lists.nearest(query, _LOOKED_AT, exclude=[fitted.ids[place]])
        others = (float(d) for i, d in zip(ids, far, strict=True) if _group(store, i) != mine)
        found.append(next(others, float(far[-1])))
    return np.sort(np.array(found, dtype=np.float64))


def _group(store: Store, pattern_id: str) -> str:
    info = store.pattern(pattern_id)
    return "" if info is None else info.family


def wanted(partition: AnswerIndex, vector: NDArray[np.float32], asked: str, count: int) -> set[str]:
    """Patterns whose runs a question needs beside those that a large partition holds: the `count`
    nearest to its raw features float32[d], and what is asked about."""
    assert partition.lists is not None
    query = partition.metric.apply(vector[None, :])[0]
    near, _ = partition.lists.nearest(query, count + _SPARE)
    return {*near, asked} - {row.pattern_id for row in partition.evidence.rows}
