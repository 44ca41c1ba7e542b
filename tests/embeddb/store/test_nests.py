"""Loop nests in the store: kept whole, beside databases that never heard of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from builders import band, fill, tiny

from embeddb.core.errors import StoreCorrupt
from embeddb.core.kinds import kind_of
from embeddb.core.records import WorkloadInfo
from embeddb.database import Database
from embeddb.nests.examples import sample_nests
from embeddb.nests.nest import Nest, fills_of
from embeddb.nests.nest_text import nest_from_text, nest_text
from embeddb.store import codec, memory_store
from embeddb.store.engine import ADDED
from indexer.programs import nests_of

NESTS = sample_nests()
MATMUL = NESTS["matmul"]


@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS)
def test_a_nest_comes_back_whole(nest: Nest) -> None:
    store = memory_store()
    store.put_structure(nest, WorkloadInfo.of(nest))
    found = store.nest(nest.id)
    assert found is not None and found == nest and store.workload(nest.id) == nest
    assert (found.name, found.group, found.trips) == (nest.name, nest.group, nest.trips)
    assert (found.loop_names, found.array_names) == tuple(
        tuple(name(at) for at in range(n))
        for name, n in ((nest.loop_name, nest.depth), (nest.array_name, len(nest.arrays)))
    )
    info = store.pattern(nest.id)
    assert info is not None and (info.kind, info.named) == ("nest", dict(nest.sizes.named))
    assert store.workload_or_info(info) == nest and store.structure(nest.id) is None
    assert store.problems() == []


def test_a_name_that_no_file_could_have_does_no_harm() -> None:
    store, nest = memory_store(), replace(MATMUL, name="x" * 300 + "\n")
    store.put_structure(nest, WorkloadInfo.of(nest))
    found = store.nest(nest.id)
    assert found is not None and found.name == nest.name and store.problems() == []


def test_an_older_database_has_no_nests_until_one_is_written(tmp_path: Path) -> None:
    """Its table `nest` is lacking: as the program before this one left it."""
    import lmdb

    assert "nest" in ADDED
    place = tmp_path / "old.db"
    with Database.create(place) as db:
        fill(db, tiny(), [band(30, 2, name="m")], indexed=False)
        runs = db.store.count_runs()
    with lmdb.open(str(place), max_dbs=32) as env:
        table = env.open_db(b"nest", create=True)
        with env.begin(write=True) as txn:
            txn.drop(table)
    with Database.open(place, readonly=True) as db:
        assert db.store.nest(MATMUL.id) is None and db.store.counts()["nest"] == 0
        assert db.store.count_runs() == runs and db.problems() == []
    with Database.open(place) as db:
        assert db.store.nest(MATMUL.id) is None
        db.index.add_pattern(MATMUL)
    with Database.open(place, readonly=True) as db:
        assert db.store.nest(MATMUL.id) == MATMUL and db.store.count_runs() == runs


def test_facts_of_an_older_program_are_those_of_a_matrix() -> None:
    old = {"id": "0" * 32, "m": 3, "n": 4, "nnz": 5, "name": "a", "group": "", "stub": False}
    info = codec.decode_info(msgspec.msgpack.encode(old))
    assert (info.kind, info.named, tuple(info.sizes)) == ("matrix", {}, (3, 4, 5))


def test_check_finds_a_damaged_nest() -> None:
    store, other = memory_store(), NESTS["stencil"]
    store.put_structure(MATMUL, WorkloadInfo.of(MATMUL))
    key, good = codec.pattern_key(MATMUL.id), kind_of("nest").encode(MATMUL)

    def problems(raw: bytes) -> list[str]:
        store._engine.write(lambda txn: txn.put("nest", key, raw))
        return store.problems()

    assert "is damaged" in problems(good[:-9])[0]
    assert "is damaged" in problems(b"")[0]
    assert "is another one" in problems(kind_of("nest").encode(other))[0]
    with pytest.raises(StoreCorrupt, match="is another one"):
        store.nest(MATMUL.id)
    assert problems(good) == []


def test_check_finds_a_nest_without_facts_and_one_with_others() -> None:
    store = memory_store()
    key = codec.pattern_key(MATMUL.id)
    store._engine.write(lambda txn: txn.put("nest", key, kind_of("nest").encode(MATMUL)))
    assert store.problems() == [f"nest {MATMUL.id}: its pattern is missing"]
    lie = msgspec.structs.replace(WorkloadInfo.of(MATMUL), named={"DEPTH": 2, "TRIP_1": 9})
    store.put_patterns([lie])
    assert "its nest is 16 x 16 x 16 turns" in store.problems()[0]


def test_an_import_changes_neither_kind_nor_sizes_of_what_is_known() -> None:
    store, matrix = memory_store(), band(30, 2, name="m")
    nest, facts = MATMUL, WorkloadInfo.of(MATMUL)
    store.put_structure(matrix, WorkloadInfo.of(matrix))
    store.put_structure(nest, facts)
    before = sorted(store.patterns(), key=lambda info: info.id)
    lies = [
        msgspec.structs.replace(facts, id=matrix.id),
        msgspec.structs.replace(WorkloadInfo.of(matrix), id=nest.id),
        msgspec.structs.replace(facts, named={**facts.named, "TRIP_1": 9}),
        msgspec.structs.replace(facts, named={"DEPTH": -3}),
        msgspec.structs.replace(facts, m=4),
    ]
    for lie in lies:
        (against,) = store.take([], [lie]).against
        assert against.refused, lie
    assert store.take([], [facts], [nest]).against == ()
    assert sorted(store.patterns(), key=lambda info: info.id) == before
    assert store.problems() == []


def test_an_import_adds_the_code_of_a_nest_whose_facts_it_told() -> None:
    store, facts = memory_store(), WorkloadInfo.of(MATMUL)
    (alone,) = store.take([], [], [MATMUL]).against
    assert alone.refused and "is not stored" in alone.reason
    assert store.take([], [facts]).against == () and store.nest(MATMUL.id) is None
    assert store.take([], [], [MATMUL]).against == () and store.nest(MATMUL.id) == MATMUL


def test_sizes_that_were_told_first_keep_the_code_out_until_it_is_our_own_word() -> None:
    store, facts = memory_store(), WorkloadInfo.of(MATMUL)
    store.take([], [msgspec.structs.replace(facts, named={"DEPTH": 5})])
    first, second = store.take([], [facts], [MATMUL]).against
    assert first.refused and second.refused and store.nest(MATMUL.id) is None
    store.put_structure(MATMUL, facts)
    assert store.nest(MATMUL.id) == MATMUL and store.problems() == []


def test_a_matrix_that_is_kept_too_is_held_again() -> None:
    db = Database.in_memory()
    matrix = band(20, 3, name="held")
    (nest,) = nests_of("spmv", {}, matrix=matrix)
    alone = replace(nest, matrices=())
    db.store.put_structure(alone, WorkloadInfo.of(alone))
    found = db.store.nest(nest.id)
    assert found == nest and found.matrices == ()
    db.index.add_pattern(nest, only=())
    found = db.store.nest(nest.id)
    assert found is not None and found.matrices == (matrix,)
    assert db.store.structure(matrix.id) == matrix and db.store.problems() == []


def test_a_fill_untrue_of_the_matrix_that_is_kept_holds_none() -> None:
    store, matrix = memory_store(), band(20, 3, name="held")
    (nest,) = nests_of("spmv", {}, matrix=matrix)
    told = nest_text(nest).decode().replace(fills_of(matrix)[0], f"offsets:7:1:{matrix.id}")
    untrue = nest_from_text(told.replace(f"[{matrix.nnz}]", "[7]"))
    store.put_structure(matrix, WorkloadInfo.of(matrix))
    store.put_structure(untrue, WorkloadInfo.of(untrue))
    found = store.nest(untrue.id)
    assert found == untrue and found.matrices == () and store.problems() == []
