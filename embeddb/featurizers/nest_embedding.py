"""The learned featurizer of loop nests: the performance embedding ("Performance Embeddings").

The weights are a model file (`embeddb.nests.encoding.forward`): the database's own if it has one,
else those that ship with the package. The version is the digest of that file. Neither torch nor
torch-geometric is needed to embed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import ModelError, NestError
from embeddb.core.records import WorkloadInfo
from embeddb.featurizers.base import (
    CountersOf,
    Exported,
    Travelling,
    adopt,
    counted_name,
    finite,
    own_weights,
)
from embeddb.nests.check import canonical_schedule
from embeddb.nests.counters import SOURCES, CounterVector
from embeddb.nests.encoding.forward import DIM, NestNetwork
from embeddb.nests.encoding.graph import graph_of
from embeddb.nests.nest import Nest

SHIPPED = Path(__file__).parent.parent / "data" / "nests.safetensors"
#: Path of a database's own weights below its folder.
OWN = Path("models", "nests.safetensors")


class NestEmbedding(Exported):
    """The network's 128 numbers of a nest under its canonical schedule as a raw vector, float32[d];
    standardise before comparing. Vectors with and without counters must not be mixed in one index:
    absent counters are not interpolated (`CountedEmbedding` has a name of its own). Thread-safe."""

    name = "nest-embedding"
    kinds = ("nest",)
    dim = DIM

    def __init__(self, weights: Path | None = None) -> None:
        """Read the weights (None: those of the package). Raises: ModelError."""
        self.weights = SHIPPED if weights is None else weights
        self.network = NestNetwork.load(self.weights)
        self.version = self.network.version
        self.names = tuple(f"{self.version[:8]}.{at}" for at in range(DIM))

    @classmethod
    def for_database(cls, folder: Path | None) -> NestEmbedding | None:
        """Featurizer with the database's own weights, else the package's; None where there are
        neither. Raises: ModelError if they are invalid."""
        weights = own_weights(folder, OWN, SHIPPED)
        return None if weights is None else cls(weights)

    def embed(self, pattern: Any) -> NDArray[np.float32]:
        """float32[d] of a `Nest` without counters; its names and group do not enter. Raises:
        ModelError if the result is not finite."""
        return self.embed_counted(pattern, None)

    def embed_counted(self, nest: Nest, counters: CounterVector | None) -> NDArray[np.float32]:
        """float32[d] of a nest with the counters of its canonical schedule, or None. Raises:
        ModelError as `embed`, and for counters of another source than those of the training data,
        which are not comparable."""
        learned = self.network.card.get("source")
        if counters is not None and counters.source != learned:
            raise ModelError(
                f"it was trained with counters of {learned}, these are of {counters.source}",
                where=str(self.weights),
                hint="embed without counters, or train weights with those of this machine",
            )
        graph = graph_of(nest, canonical_schedule(nest))
        with np.errstate(over="ignore", invalid="ignore"):
            vector = self.network.embedding(graph, None if counters is None else counters.values)
        return finite(vector, self.weights)

    def with_counters(self, platform: str, counters_of: CountersOf) -> CountedEmbedding | None:
        """The same featurizer with the counters of an instance; None if the network reads none."""
        source = str(self.network.card.get("source"))
        if self.network.spec["inputs"] == "static" or source not in SOURCES:
            return None
        return CountedEmbedding(self, platform, source, counters_of)


class CountedEmbedding:
    """`NestEmbedding` with the counters of one platform instance (static and dynamic branch,
    Section 3.3): float32[d] of nests with counters of the source that the weights were trained
    with. Standardise over nests of that instance alone. Thread-safe."""

    kinds = ("nest",)
    dim = DIM

    def __init__(
        self, plain: NestEmbedding, platform: str, source: str, counters_of: CountersOf
    ) -> None:
        self.name = counted_name(plain.name, platform)
        self.version, self.names, self.source = plain.version, plain.names, source
        self._plain, self._platform, self._counters_of = plain, platform, counters_of

    def counters(self, nest_id: str) -> CounterVector | None:
        """Counters that it reads; None where there are none, or of another source, or damaged."""
        try:
            stored = self._counters_of(nest_id, self._platform)
        except NestError:  # `Lookup.problems` reports it, and so does an answer
            return None
        return stored if stored is not None and stored.source == self.source else None

    def embed(self, pattern: Any) -> NDArray[np.float32]:
        """float32[d] of a `Nest`. Raises: ModelError, also for a nest without counters."""
        counters = self.counters(pattern.id)
        if counters is None:
            raise ModelError(
                f"{pattern.name or pattern.id} has no counters of {self.source} on "
                f"{self._platform}",
                hint=f"embeddb nest count --source {self.source}",
            )
        return self._plain.embed_counted(pattern, counters)

    def from_info(self, info: WorkloadInfo) -> NDArray[np.float32] | None:
        """Return None: counters are not exported with features."""


PLUGIN: type[Travelling] = NestEmbedding


def install(weights: Path, folder: Path) -> str:
    """Make weights the database's own; returns their version. Raises: ModelError if they are
    invalid."""
    version = NestEmbedding(weights).version
    adopt(weights, folder, OWN, version=version)
    return version
