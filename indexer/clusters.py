"""Which kinds of matrices a database holds, and one matrix that stands for each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import NothingFound
from embeddb.core.records import WorkloadInfo
from embeddb.index.lookup import Lookup
from indexer.campaign.budget.samplers import cluster

#: Clusters unless asked otherwise: the most matrices of the paper's smaller selection (EA-10).
_USUAL = 10
#: Share of the patterns that a featurizer must know to be used unasked.
_ENOUGH = 0.9


@dataclass(frozen=True, slots=True)
class PatternCluster:
    """Patterns that are alike, and the one nearest to their centre; `spread` is how far they are
    from it, standardised (root mean square)."""

    members: list[WorkloadInfo]
    representative: WorkloadInfo
    spread: float

    @property
    def groups(self) -> int:
        """How many groups (families) of matrices they are of."""
        return len({info.group or info.name or info.id for info in self.members})


@dataclass(frozen=True, slots=True)
class PatternClusters:
    """The largest first; `without_vector` patterns could not be compared."""

    featurizer: str
    version: str
    patterns: int
    without_vector: int
    clusters: list[PatternCluster]


def cluster_patterns(
    db: Lookup, *, featurizer: str = "", count: int | None = None, seed: int = 0
) -> PatternClusters:
    """k-means over the standardised vectors of all patterns, those of a named featurizer or of one
    that knows nine of ten. The same seed gives the same clusters.

    Raises: UsageError for an unknown featurizer, or more clusters than patterns; NothingFound
    without any vector.
    """
    infos = list(db.store.patterns())
    name, vectors = _vectors(db, featurizer, [info.id for info in infos])
    known = sorted((info for info in infos if info.id in vectors), key=lambda info: info.id)
    asked = min(_USUAL, len(known)) if count is None else count
    made = cluster(np.stack([vectors[info.id] for info in known]), asked, seed)
    clusters = [
        PatternCluster([known[i] for i in made.members(at)], known[centre], made.spread(at))
        for at, centre in enumerate(made.representatives)
    ]
    version = db.featurizer_version(name)
    return PatternClusters(name, version, len(known), len(infos) - len(known), clusters)


def _vectors(db: Lookup, asked: str, ids: list[str]) -> tuple[str, dict[str, NDArray[np.float32]]]:
    """A featurizer and its vectors by pattern id; unless one is asked for, one that knows nine of
    ten of the patterns that any knows, the learned one first.

    Raises: UsageError if there is no such featurizer; NothingFound without any vector.
    """
    there = db.featurizers()
    plugs = {asked: there.named(asked)} if asked else dict(there)
    found = {name: db.store.vectors.get(name, plug.version, ids) for name, plug in plugs.items()}
    most = max(len(vectors) for vectors in found.values())
    # A stub that only its sizes are known of must not make all patterns compared by sizes.
    enough = [name for name, vectors in found.items() if len(vectors) >= _ENOUGH * most]
    name = "scnn" if "scnn" in enough else enough[0]
    if not found[name]:
        whose = f"of {asked} " if asked else ""
        raise NothingFound(f"no vectors {whose}in the database", hint="run `embeddb embed DB`")
    return name, found[name]
