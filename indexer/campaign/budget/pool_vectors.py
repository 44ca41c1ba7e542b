"""Which of the matrices that a campaign chooses from are alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from embeddb.core.pattern import Pattern
from embeddb.core.wording import plural
from embeddb.featurizers import missing
from embeddb.index.lookup import Lookup
from indexer.campaign.budget.by_name import clusters_of, strategy

__all__ = ["PoolVectors"]


class PoolVectors:
    """Vectors of the patterns shown, by the learned featurizer if it works here, else by plain
    statistics. Computed as the matrices are read: their structures are not kept. Not computed where
    they are not `wanted`, or for a strategy without clusters.
    """

    def __init__(
        self, db: Lookup, name: str, *, wanted: bool, note: Callable[[str], None] | None = None
    ) -> None:
        """Raises: UsageError if there is no strategy of that name."""
        chosen = strategy(name)
        there = db.featurizers()
        learned = there.get("scnn")
        self._plug = there.named("stats") if learned is None or missing(learned) else learned
        self._wanted = wanted and chosen.clusters(chosen.most) > 0
        self._note = note
        self._made: list[np.ndarray[Any, np.dtype[np.float32]]] = []

    def __call__(self, pattern: Pattern) -> None:
        if self._wanted:
            self._made.append(self._plug.embed(pattern))

    def clusters(self, count: int, seed: int) -> tuple[str, list[list[int]]]:
        """The featurizer's name, and the clusters of what was shown; fewer is said."""
        made = clusters_of(np.stack(self._made), count, seed)
        if len(made) < count and self._note is not None:
            self._note(
                f"warning: {plural(len(made), 'cluster')} instead of {count}: there are not more "
                "matrices that differ"
            )
        return f"{self._plug.name} {self._plug.version}", made
