"""The graph of a nest without learning: the mean and the extreme of each feature over its nodes.

What "Performance Embeddings" (Section 3.2) gives to its network, pooled by hand: learned vectors
must be better than these to be worth their training.
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

#: By kind of node, the features that are its own.
_OWN = {kind: [at for at, n in enumerate(FEATURES) if n.startswith(f"{kind}.")] for kind in KINDS}
_POOLED = [FEATURES[at] for own in _OWN.values() for at in own]


class NestGraphFeatures:
    """Features of a nest under its canonical schedule as a raw vector, float32[d]; standardise
    before comparing. log2(1 + how many nodes) of each kind, then by feature the mean over the nodes
    of its kind, then the value that is farthest from 0."""

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
        """A vector by name, keys `nest-graph.NAME`: the form that travels in exports."""
        return {f"nest-graph.{n}": float(v) for n, v in zip(self.names, vector, strict=True)}

    def from_info(self, info: WorkloadInfo) -> NDArray[np.float32] | None:
        """The inverse of `as_features`; None unless every name is there."""
        found = [info.features.get(f"nest-graph.{n}") for n in self.names]
        return None if None in found else np.array(found, dtype=np.float32)


PLUGIN: type[Travelling] = NestGraphFeatures
