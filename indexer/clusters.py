"""Clusters of the matrices of a database, and one representative of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import NothingFound
from embeddb.core.records import WorkloadInfo
from embeddb.index.lookup import Lookup
from indexer.campaign.budget.samplers import cluster

#: Default number of clusters: the most matrices of the paper's smaller selection (EA-10).
_USUAL = 10
#: Share of the patterns that a featurizer must cover to be used by default.
_ENOUGH = 0.9


@dataclass(frozen=True, slots=True)
class PatternCluster:
    """A cluster of similar patterns, the one nearest to its centre first; `spread` is the root mean
    square distance from the centre, standardised."""

    members: list[WorkloadInfo]
    spread: float

    @property
    def groups(self) -> int:
        """Number of groups (families) of matrices in the cluster."""
        return len({info.family for info in self.members})


@dataclass(frozen=True, slots=True)
class PatternClusters:
    """The clusters, the largest first; `without_vector` patterns could not be compared."""

    featurizer: str
    version: str
    patterns: int
    without_vector: int
    clusters: list[PatternCluster]


def cluster_patterns(
    db: Lookup, *, featurizer: str = "", count: int | None = None, seed: int = 0
) -> PatternClusters:
    """k-means over the standardised vectors of all patterns, by a named featurizer or by the first
    that covers 90 % of the patterns. The same seed gives the same clusters.

    Raises: UsageError for an unknown featurizer, or more clusters than patterns; NothingFound
    without any vector.
    """
    infos = list(db.store.patterns())
    name, vectors = _vectors(db, featurizer, [info.id for info in infos])
    infos_used = sorted((info for info in infos if info.id in vectors), key=lambda info: info.id)
    number = min(_USUAL, len(infos_used)) if count is None else count
    clusters = [
        PatternCluster([infos_used[i] for i in one.members], one.spread)
        for one in cluster(np.stack([vectors[info.id] for info in infos_used]), number, seed)
    ]
    version = db.featurizer_version(name)
    return PatternClusters(name, version, len(infos_used), len(infos) - len(infos_used), clusters)


def _vectors(
    db: Lookup, featurizer: str, ids: list[str]
) -> tuple[str, dict[str, NDArray[np.float32]]]:
    """A featurizer and its vectors by pattern id; unless one is named, one that covers 90 % of the
    patterns that any covers, the learned one first.

    Raises: UsageError if there is no such featurizer; NothingFound without any vector.
    """
    there = db.featurizers()
    plugs = {featurizer: there.named(featurizer)} if featurizer else dict(there)
    vectors_by_name = {
        name: db.store.vectors.get(name, plug.version, ids) for name, plug in plugs.items()
    }
    most = max(len(vectors) for vectors in vectors_by_name.values())
    # A stub with nothing but sizes must not make all patterns compared by sizes.
    enough = [name for name, vectors in vectors_by_name.items() if len(vectors) >= _ENOUGH * most]
    name = "scnn" if "scnn" in enough else enough[0]
    if not vectors_by_name[name]:
        whose = f"of {featurizer} " if featurizer else ""
        raise NothingFound(f"no vectors {whose}in the database", hint="run `embeddb embed DB`")
    return name, vectors_by_name[name]
