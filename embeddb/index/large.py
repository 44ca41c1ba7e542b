"""Partitions of very many patterns: fitted to a sample, answered with each query's own neighbours.

Metric, policy and averages of the platform come from a sample, which is stored like any partition.
Neighbours are searched among all patterns, and the runs of the nearest ones are read from the store
for each query.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from embeddb.index.answer_index import AnswerIndex
from embeddb.index.inverted_lists import InvertedLists
from embeddb.store import Store

#: A partition of more patterns is fitted to `SAMPLE` of them, and of each source at least
#: `OF_EACH`: the runs of a machine with few must be among them.
MOST_FITTED, SAMPLE, OF_EACH = 4000, 2000, 250
#: Largest number of patterns whose runs are read for reports, evaluations and training.
MOST_READ = 10_000
#: Neighbours whose runs are read for a query beside those of its policy: some of them may have lost
#: their runs, or have no second configuration.
_SPARE = 8
#: Patterns whose distances to the nearest one calibrate distances, and neighbours of each that are
#: searched for one of another group.
_CALIBRATED, _SEARCHED = 500, 48

Vectors = Mapping[str, NDArray[np.float32]]


def fit_sample(members: Sequence[Collection[str]]) -> list[str] | None:
    """Patterns that a partition is fitted to, among those that each source ran; None: all."""
    ids = set[str]().union(*members)
    if len(ids) <= MOST_FITTED:
        return None
    sample = set(_evenly(ids, SAMPLE))
    for part in members:
        least = min(OF_EACH, len(part))
        if len(sample.intersection(part)) < least:
            sample.update(_evenly(part, least))
    return sorted(sample)


def fully_sampled(members: Sequence[Collection[str]]) -> set[str]:
    """Patterns of sources all of whose are in every sample, such as a machine just calibrated."""
    return {i for ids in members if len(ids) <= OF_EACH for i in ids}


def read_sample(ids: Collection[str]) -> list[str] | None:
    """Patterns whose runs are read where reading all would take too long; None: all."""
    return None if len(ids) <= MOST_READ else _evenly(ids, MOST_READ)


def _evenly(ids: Collection[str], count: int) -> list[str]:
    """Evenly spaced among the sorted ids, which are digests and so in random order."""
    names = sorted(ids)
    return [names[at * len(names) // count] for at in range(count)]


def widened(store: Store, fitted: AnswerIndex, vectors: Vectors) -> AnswerIndex:
    """Add the raw `vectors` float32[d] of all patterns to a partition fitted to a sample."""
    ids = sorted(vectors)
    raw = np.array([vectors[i] for i in ids], dtype=np.float32)
    lists = InvertedLists.build(ids, fitted.metric.apply(raw))
    return replace(fitted, lists=lists, far=_far(store, fitted, lists))


def _far(store: Store, fitted: AnswerIndex, lists: InvertedLists) -> NDArray[np.float64]:
    """Ascending distances from patterns to the nearest of another group among all."""
    some = np.linspace(0, len(fitted.ids) - 1, min(_CALIBRATED, len(fitted.ids))).astype(np.int64)
    at = fitted.metric.apply(fitted.vectors[some])
    nearest = []
    for place, query in zip(some.tolist(), at, strict=True):
        group = _group(store, fitted.ids[place])
        ids, far = lists.nearest(query, _SEARCHED, exclude=[fitted.ids[place]])
        others = (float(d) for i, d in zip(ids, far, strict=True) if _group(store, i) != group)
        nearest.append(next(others, float(far[-1])))
    return np.sort(np.array(nearest, dtype=np.float64))


def _group(store: Store, pattern_id: str) -> str:
    info = store.pattern(pattern_id)
    return "" if info is None else info.family


def missing_neighbours(
    partition: AnswerIndex, vector: NDArray[np.float32], pattern_id: str, count: int
) -> set[str]:
    """Patterns whose runs a query needs and a large partition does not contain: the `count` nearest
    to its raw features float32[d], and the queried one."""
    assert partition.lists is not None
    query = partition.metric.apply(vector[None, :])[0]
    near, _ = partition.lists.nearest(query, count + _SPARE)
    return {*near, pattern_id} - {row.pattern_id for row in partition.evidence.rows}
