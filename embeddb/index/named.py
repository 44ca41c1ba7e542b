"""Partitions whose neighbours are found by a featurizer that the user named, in memory alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from threading import RLock
from typing import TYPE_CHECKING

from embeddb.core.errors import UsageError
from embeddb.featurizers import Featurizer
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.features import learned_by
from embeddb.index.fit import FitInput
from embeddb.index.large.neighbourhood import widened
from embeddb.index.scopes import facts_of, pooled_partitions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from embeddb.core.config import Op
    from embeddb.store import Store


class NamedPartitions:
    """The partitions of one store that were queried in this process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: dict[tuple[Op, str, str], AnswerIndex] = {}
        self._lock = RLock()

    def beside(
        self, chosen: AnswerIndex, name: str, featurizers: Mapping[str, Featurizer]
    ) -> AnswerIndex:
        """The evidence of a partition with neighbours by the featurizer `name`; itself if it was
        chosen. Raises: UsageError where no measured workload has a vector of it."""
        if chosen.featurizer == name:
            return chosen
        key = chosen.op, chosen.scope, name
        with self._lock:
            partition = self._open.get(key)
            if partition is None or partition.generation != chosen.generation:
                partition = self._open[key] = self._built(chosen, featurizers[name])
            return partition

    def _built(self, chosen: AnswerIndex, featurizer: Featurizer) -> AnswerIndex:
        op, scope, name = chosen.op, chosen.scope, featurizer.name
        vectors = {name: self._vectors(featurizer, chosen.evidence.telling)}
        if not vectors[name]:
            raise UsageError(
                f"{op} on {scope}: no measured {op.kind} has a vector of {name}",
                hint=f"neighbours are found by {chosen.featurizer}; `embeddb embed` computes "
                "the vectors of others",
            )
        facts = facts_of(self._store, op, scope)
        learned = learned_by(self._store, {name: featurizer}, vectors)
        inputs = FitInput(chosen.evidence, vectors, facts, learned)
        built = AnswerIndex.build(inputs, scope=scope)
        built = replace(built, generation=chosen.generation)
        if chosen.lists is None:
            return built
        members = (self._store.members(p) for p in pooled_partitions(self._store, op, scope))
        return widened(self._store, built, self._vectors(featurizer, set[str]().union(*members)))

    def _vectors(
        self, featurizer: Featurizer, ids: Collection[str]
    ) -> dict[str, NDArray[np.float32]]:
        stored = self._store.vectors
        return stored.get(featurizer.name, featurizer.version, ids, dim=featurizer.dim)
