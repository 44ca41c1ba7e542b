"""Tensor kernels and programs in the store, and on their way to another."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensors import dot_add, sample_tensors

from embeddb.core.errors import StoreCorrupt
from embeddb.core.kinds import kind_of
from embeddb.core.records import WorkloadInfo
from embeddb.database import Database
from embeddb.store import codec, memory_store
from embeddb.tensors.tensor_graph import TensorGraph
from indexer.exchange.exchange import export_file, import_file


@pytest.mark.parametrize("made", sample_tensors().values(), ids=sample_tensors())
def test_a_computation_comes_back_whole(made: TensorGraph) -> None:
    store = memory_store()
    info = WorkloadInfo.of(made)
    store.put_structure(made, info)
    found = store.tensor(made.id)
    assert found is not None and found == made == store.workload(made.id) == store.workload_or_info(
        info
    )
    assert (found.kind, found.name, found.group) == (made.kind, made.name, made.group)
    assert store.nest(made.id) is None and store.structure(made.id) is None
    assert store.counts()["tensor"] == 1 and store.problems() == []


def test_a_damaged_one_is_told() -> None:
    store, made, other = memory_store(), dot_add(), dot_add(65)
    store.put_structure(made, WorkloadInfo.of(made))
    key = codec.pattern_key(made.id)
    for raw, says in ((b"x", "damaged"), (kind_of(other.kind).encode(other), "another one")):
        store._engine.write(lambda txn, raw=raw: txn.put("tensor", key, raw))
        assert any(says in line for line in store.problems())
        with pytest.raises(StoreCorrupt, match=says):
            store.tensor(made.id)


def test_computations_travel_whole(tmp_path: Path) -> None:
    place = tmp_path / "all.jsonl"
    with Database.create(tmp_path / "one.db") as one:
        for made in sample_tensors().values():
            one.store.put_structure(made, WorkloadInfo.of(made))
        export_file(one.index, place)
    with Database.create(tmp_path / "two.db") as two:
        report = import_file(two.index, place)
        assert report.rejected == 0
        for made in sample_tensors().values():
            assert two.store.tensor(made.id) == made
        assert two.store.problems() == []
