"""Plain statistics and the learned vector side by side, judged like any other featurizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embeddb.core.pattern import Pattern
from embeddb.core.records import PatternInfo
from embeddb.featurizers.base import Featurizer
from embeddb.featurizers.scnn import Scnn
from embeddb.featurizers.stats import Stats


class StatsScnn:
    """`stats` followed by `scnn`, float32[d]; `parts` are the two.

    A stub has this vector if it has both parts. Nothing travels under this name: the parts do.
    """

    name = "stats-scnn"

    def __init__(self, weights: Path | None = None) -> None:
        """Raises: ModelError as `Scnn` does."""
        self._scnn = Scnn(weights)
        self.parts = (Stats(), self._scnn)
        self.version = "+".join(part.version for part in self.parts)
        self.names = (*Stats.names, *(f"scnn.{name}" for name in self._scnn.names))
        self.dim = len(self.names)

    @classmethod
    def for_database(cls, folder: Path | None) -> StatsScnn | None:
        """As `Scnn.for_database`. Raises: ModelError."""
        scnn = Scnn.for_database(folder)
        return None if scnn is None else cls(scnn.weights)

    def missing(self) -> str:
        """As `Scnn.missing`."""
        return self._scnn.missing()

    def embed(self, pattern: Pattern) -> NDArray[np.float32]:
        """float32[d] of the structure. Raises: as `Scnn.embed`."""
        return self.join([part.embed(pattern) for part in self.parts])

    def join(self, vectors: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """float32[d] from one vector of each part."""
        return np.concatenate(vectors)

    def from_info(self, info: PatternInfo) -> NDArray[np.float32] | None:
        """From the features of both parts; None unless both are whole."""
        found = [v for part in self.parts if (v := part.from_info(info)) is not None]
        return self.join(found) if len(found) == len(self.parts) else None


PLUGIN: type[Featurizer] = StatsScnn
