"""Pooled graph features of a nest without learning: mean and extreme of each feature over its
nodes.

The input of the network of "Performance Embeddings" (Section 3.2), pooled by hand: a baseline that
learned vectors must beat.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.records import WorkloadInfo
from embeddb.featurizers.base import Travelling
from embeddb.nests.check import canonical_schedule
from embeddb.nests.encoding.features import FEATURES, KINDS
from embeddb.nests.encoding.graph import graph_of

#: Columns of the features of each kind of node.
_OWN = {kind: [at for at, n in enumerate(FEATURES) if n.startswith(f"{kind}.")] for kind in KINDS}
_POOLED = [FEATURES[at] for own in _OWN.values() for at in own]


class NestGraphFeatures:
    """Features of a nest under its canonical schedule as a raw vector, float32[d]; standardise
    before comparing. log2(1 + number of nodes) of each kind, then for each feature the mean over
    the nodes of its kind, then the value of largest magnitude."""

    name = "nest-graph"
    version = "1"
    kinds = ("nest",)
    names: tuple[str, ...] = (
        *(f"nodes.{kind}" for kind in KINDS),
        *(f"mean.{name}" for name in _POOLED),
        *(f"most.{name}" for name in _POOLED),
    )
    dim = len(names)

    def embed(self, pattern: Any) -> NDArray[np.float32]:
        """float32[d] of a `Nest`; its names and group do not enter."""
        graph = graph_of(pattern, canonical_schedule(pattern))
        counts, means, most = [], [], []
        for kind, own in _OWN.items():
            rows = graph.features[graph.find(kind=kind)][:, own]
            counts.append(np.log2(1 + len(rows)))
            means.append(rows.mean(axis=0))
            far = np.abs(rows).argmax(axis=0)
            most.append(rows[far, np.arange(len(own))])
        return np.concatenate([counts, *means, *most]).astype(np.float32)

    def as_features(self, vector: NDArray[np.float32]) -> dict[str, float]:
        """A vector by name, keys `nest-graph.NAME`, for exports."""
        return {f"nest-graph.{n}": float(v) for n, v in zip(self.names, vector, strict=True)}

    def from_info(self, info: WorkloadInfo) -> NDArray[np.float32] | None:
        """The inverse of `as_features`; None if a name is missing."""
        values = [info.features.get(f"nest-graph.{n}") for n in self.names]
        return None if None in values else np.array(values, dtype=np.float32)


PLUGIN: type[Travelling] = NestGraphFeatures
