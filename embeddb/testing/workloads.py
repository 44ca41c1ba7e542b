"""Contract tests of workload kinds, as a base class.

class TestMine(WorkloadKindContract):
    kind = "mine"

    @pytest.fixture
    def workloads(self):
        return [MyWorkload(...), ...]
"""

from __future__ import annotations

import dataclasses

import pytest

from embeddb.core.errors import StoreCorrupt
from embeddb.core.kinds import kind_of, kind_with
from embeddb.core.records import WorkloadInfo
from embeddb.core.workload import Workload, is_workload
from embeddb.store import memory_store


class WorkloadKindContract:
    kind: str

    @pytest.fixture
    def workloads(self) -> list[Workload]:
        """Workloads that differ in more than their names."""
        raise NotImplementedError

    def test_ids_depend_on_the_content_alone(self, workloads: list[Workload]) -> None:
        assert len({one.id for one in workloads}) == len(workloads) > 1
        for one in workloads:
            assert is_workload(one) and one.kind == self.kind
            assert len(bytes.fromhex(one.id)) == 16
            assert dataclasses.replace(one, name="other", group="else").id == one.id  # type: ignore[type-var]

    def test_sizes_are_possible_and_named(self, workloads: list[Workload]) -> None:
        kind = kind_of(self.kind)
        for sizes in (*(one.sizes for one in workloads), *kind.sample_sizes()):
            assert sizes.possible and set(sizes.symbols) <= set(kind.symbols)
            assert kind.sparse or kind_with(dict(sizes.named)) is kind

    def test_the_store_returns_them(self, workloads: list[Workload]) -> None:
        store, kind = memory_store(), kind_of(self.kind)
        store.put_structures((one, WorkloadInfo.whole(one)) for one in workloads)
        for one in workloads:
            stored = store.workload(one.id)
            assert (
                stored == one
                and stored is not None
                and (stored.name, stored.group) == (one.name, one.group)
            )
        assert store.problems() == []
        first, second = workloads[:2]
        with pytest.raises(StoreCorrupt):
            kind.decode(kind.encode(first), pattern_id=second.id, name="", group="")
        with pytest.raises(StoreCorrupt):
            kind.decode(b"no such bytes", pattern_id=first.id, name="", group="")
