"""From a partition and a vector to the query a tuner sees."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from embeddb.config import Config
from embeddb.evidence import Evidence
from embeddb.partition import Averages, PartitionIndex
from embeddb.policy import votes
from embeddb.query import Neighbour, Query
from embeddb.space import ConfigSpace

__all__ = ["with_evidence"]


def with_evidence(
    query: Query,
    partition: PartitionIndex,
    vector: NDArray[np.float32] | None,
    *,
    name_of: Callable[[str], str] | None = None,
) -> Query:
    """The query with what a partition says of raw features float32[d].

    What was measured on this pattern on this platform is `own`, not a neighbour; what another
    instance of a portable platform measured on it is the nearest neighbour there can be. Without a
    vector there are no neighbours, only what holds for the platform as a whole.
    """
    evidence, averages = partition.evidence, partition.averages
    if math.isfinite(query.calls):
        averages = Averages.of(evidence, calls=query.calls)
    ids: list[str] = []
    distances = np.zeros(0)
    if vector is not None:
        ids, distances = partition.nearest(vector, exclude={query.pattern.id} if query.own else ())
    rows = np.array([partition.row_of(i, query.platform.id) for i in ids], dtype=np.int64)
    found, rejected = _split_legal(evidence, query.space)
    legal = sorted(found.values())
    place = {at: new for new, at in enumerate(legal)}
    return replace(
        query,
        configs=tuple(sorted(found, key=found.__getitem__)),
        gains=votes(evidence.gains(rows, calls=query.calls)[:, legal]),
        levels=averages.level[rows],
        weights=partition.policy.weights(distances),
        prior=averages.prior[legal],
        mean=averages.mean[legal],
        shrink=partition.policy.shrink,
        cover=np.array([place[at] for at in averages.cover if at in place], dtype=np.int64),
        evidence_op=partition.op,
        held_out=math.nan if evidence.winners else math.exp(-partition.policy.loss),
        knows_default=bool(evidence.knows_default.any()),
        noise=evidence.noise,
        neighbours=tuple(
            _neighbour(partition, int(row), float(distance), name_of)
            for row, distance in zip(rows, distances, strict=True)
        ),
        rejected=rejected,
        vector=np.zeros(0, dtype=np.float32) if vector is None else vector,
        featurizer=partition.featurizer,
    )


def _neighbour(
    partition: PartitionIndex,
    row: int,
    distance: float,
    name_of: Callable[[str], str] | None,
) -> Neighbour:
    whose = partition.evidence.rows[row]
    name = name_of(whose.pattern_id) if name_of is not None else ""
    percentile = partition.percentile(distance)
    return Neighbour(whose.pattern_id, whose.platform, name, whose.group, distance, percentile)


def _split_legal(
    evidence: Evidence, space: ConfigSpace
) -> tuple[dict[Config, int], dict[Config, str]]:
    """Legal configurations in their stored form, with their positions, and the others.

    Two that are the same choice on this matrix (a symbol and its number) are one proposal: the
    one that was run more often.
    """
    runs = np.bincount(evidence.column, minlength=len(evidence.configs))
    legal: dict[Config, int] = {}
    rejected: dict[Config, str] = {}
    for at, config in enumerate(evidence.configs):
        reason = space.reason(config)
        if reason is not None:
            rejected[config] = reason
            continue
        stored = space.canonical(config)
        if stored not in legal or runs[at] > runs[legal[stored]]:
            legal[stored] = at
    return legal, rejected
