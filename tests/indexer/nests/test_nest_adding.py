"""Many nests at once: as each by itself, in few transactions."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from embeddb.core.records import WorkloadInfo
from embeddb.core.workload import Workload
from embeddb.database import Database
from embeddb.nests.examples import nest_of
from embeddb.nests.nest import Nest
from embeddb.store import Store
from indexer.add import add_coded

BODY = [["=", [0, [0]], ["read", 1, [0]], None]]


def copies(count: int) -> list[Nest]:
    arrays = [[["f32", [n]], ["f32", [n]]] for n in range(1, count + 1)]
    return [nest_of([n], held, BODY, name=f"copy_{n}") for n, held in enumerate(arrays, 1)]


def test_they_are_kept_with_their_vectors_in_few_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[int] = []
    put = Store.put_structures

    def counted(self: Store, told: Iterable[tuple[Workload, WorkloadInfo]]) -> None:
        pairs = list(told)
        written.append(len(pairs))
        put(self, pairs)

    monkeypatch.setattr(Store, "put_structures", counted)
    together, alone, nests = Database.in_memory(), Database.in_memory(), copies(70)
    assert len(add_coded(together.index, nests).added) == 70
    assert written == [64, 6]
    assert len(add_coded(together.index, nests).stored) == 70
    assert written == [64, 6]
    for nest in nests[:3]:
        alone.index.add_pattern(nest)
        assert together.store.nest(nest.id) == alone.store.nest(nest.id)
        assert together.store.pattern(nest.id) == alone.store.pattern(nest.id)
        for name in ("nest-stats", "nest-graph"):
            version = together.index.featurizers()[name].version
            own = [
                db.store.vectors.get(name, version, [nest.id])[nest.id] for db in (together, alone)
            ]
            np.testing.assert_array_equal(*own)
