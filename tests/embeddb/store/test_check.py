"""What `db check` finds in tables that somebody else wrote, sums and all, and what reading them
says."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from embeddb.core.config import Config, Op
from embeddb.core.errors import StoreCorrupt, StoreVersion, UsageError
from embeddb.core.pattern import Pattern, stub_id
from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.core.sizes import Sizes
from embeddb.platforms.platform import load_platform
from embeddb.store import Store, codec
from embeddb.store.engine import MemoryEngine, Txn
from embeddb.store.merge_facts import name_key

SPMM = Op("spmm", 32)
EYE = Pattern.from_coo((4, 4), np.arange(4), np.arange(4), name="eye")
KEY = codec.pattern_key(EYE.id)
STUB = codec.pattern_key(stub_id("s", 4, 4, 4))
TILES = load_platform("lcm-tiles")


def filled() -> tuple[Store, MemoryEngine]:
    engine = MemoryEngine()
    store = Store(engine)
    store.put_platform(TILES)
    store.put_structure(EYE, WorkloadInfo.of(EYE))
    run = Run(EYE.id, SPMM, TILES.id, Config({"a": 1}), Measurement(times_s=(1.0,)))
    stub = WorkloadInfo(id=STUB.hex(), m=4, n=4, nnz=4, name="s", stub=True)
    store.append([run], patterns=[stub])
    store.adopt(stub.id, WorkloadInfo.of(EYE))
    assert store.problems() == []
    return store, engine


def info(**fields: object) -> bytes:
    return codec.encode_info(msgspec.structs.replace(WorkloadInfo.of(EYE), **fields))


def put(table: str, key: bytes, value: bytes) -> Callable[[Txn], object]:
    return lambda txn: txn.put(table, key, value)


def circle(txn: Txn) -> None:
    txn.put("alias", b"a" * 16, b"b" * 16)
    txn.put("alias", b"b" * 16, b"a" * 16)


FORGED: dict[str, tuple[Callable[[Txn], object], str]] = {
    "negative": (put("pattern", KEY, info(m=-5)), "-5 x 4 with 4 entries is impossible"),
    "crowded": (put("pattern", KEY, info(nnz=17)), "4 x 4 with 17 entries is impossible"),
    "other sizes": (
        put("pattern", KEY, info(m=7, n=7)),
        "says 7 x 7 with 4 entries, its structure is 4 x 4 with 4 entries",
    ),
    "other id": (put("pattern", KEY, info(id="ab" * 16)), "its facts are those of pattern"),
    "no pattern": (lambda txn: txn.delete("pattern", KEY), "its pattern is missing"),
    "unnamed": (lambda txn: txn.delete("name", name_key("eye") + KEY), "'eye' does not find it"),
    "name of nothing": (put("name", name_key("x") + b"q" * 16, b""), "name 'x': its pattern"),
    "short name": (put("name", b"x", b""), "its pattern is missing"),
    "circle": (circle, "was adopted by no pattern"),
    "adopted by itself": (put("alias", b"a" * 16, b"a" * 16), "was adopted by no pattern"),
    "adopted by a word": (put("alias", b"a" * 16, b"word"), "was adopted by no pattern"),
    "adopted by nothing": (put("alias", b"a" * 16, b"b" * 16), "that adopted it is missing"),
    "platform of digits": (
        put("platform", TILES.id.encode(), b'{"text":"x=' + b"1" * 5000 + b'","environment":{}}'),
        "platform 'lcm-tiles': ",
    ),
    "platform of numbers": (put("platform", b"x", b'{"text":1}'), "platform 'x': "),
    "deep platform": (put("platform", b"x", b"[" * 200_000), "platform 'x': "),
    "platform no text": (put("platform", b"\xff", b"{}"), "platform '\ufffd': "),
    "partition alone": (put("partition", b"spmm:32", b"\xff" * 4), "partition 'spmm:32' is none"),
    "partition of no op": (put("partition", b"z z:1\0tiny", b"\0\0\0\7"), "is none: "),
    "partition no text": (put("partition", b"\xff\0tiny", b"\0\0\0\7"), "not text"),
    "run": (put("run", b"\0\0\0\1" + KEY + b"r" * 16, b"[" * 9), "a stored run cannot be decoded"),
    "config": (put("config", b"c" * 16, b"[" * 200_000), "a stored configuration cannot be"),
}


@pytest.mark.parametrize("case", FORGED)
def test_what_contradicts_itself_is_named(case: str) -> None:
    store, engine = filled()
    forge, said = FORGED[case]
    engine.write(forge)
    found = store.problems()
    assert any(said in line for line in found), found
    assert all(len(line.splitlines()) == 1 and len(line) < 600 for line in found)


@pytest.mark.parametrize("key", [b"a" * 16, b"b" * 16])
def test_a_circle_of_stubs_ends(key: bytes) -> None:
    """It hung for ever, holding the writer's lock."""
    store, engine = filled()
    engine.write(circle)
    run = Run(key.hex(), SPMM, TILES.id, Config({"a": 1}), Measurement(times_s=(1.0,)))
    stub = WorkloadInfo(id=key.hex(), name="x", stub=True)
    for write in (
        lambda: store.resolve(key.hex()),
        lambda: store.append([run]),
        lambda: store.append([], patterns=[stub]),
        lambda: store.take([run], [stub]),
    ):
        with pytest.raises(StoreCorrupt, match="adopted by no pattern") as caught:
            write()
        assert "db check" in caught.value.hint


def test_partitions_that_are_none_are_said() -> None:
    for key in (b"spmm:32", b"z z:1\0tiny", b"spmv:0\0tiny", b"\xff\0tiny"):
        store, engine = filled()
        engine.write(put("partition", key, b"\0\0\0\7"))
        with pytest.raises(StoreCorrupt, match=r"is none|not text"):
            store.partitions()


def test_platform_names_that_are_none_are_said() -> None:
    store, engine = filled()
    engine.write(put("platform", b"\xff", b"{}"))
    with pytest.raises(StoreCorrupt, match="not text"):
        store.platforms()


@pytest.mark.parametrize("raw", [b"", b"x", b"1" * 5000, b"-3"])
def test_a_schema_that_is_none(raw: bytes) -> None:
    engine = MemoryEngine()
    engine.write(put("meta", b"schema", raw))
    with pytest.raises(StoreVersion, match="its schema is no number") as caught:
        Store(engine)
    assert "restore" in caught.value.hint


@pytest.mark.parametrize(
    "fields", [{"m": 10**26}, {"about": {"x": object()}}, {"about": {"x": "\ud800"}}]
)
def test_facts_that_cannot_be_stored_say_so(fields: dict[str, object]) -> None:
    store, _ = filled()
    odd = msgspec.structs.replace(WorkloadInfo.of(EYE), **fields)
    with pytest.raises(UsageError, match="cannot be stored"):
        store.put_patterns([odd])
    taken = store.take([], [odd, WorkloadInfo(id="ab" * 16, name="good")])
    (against,) = taken.against
    assert against.refused and "cannot be stored" in against.reason
    assert [i.name for i in store.find("good")] == ["good"]


def test_which_sizes_a_matrix_can_have() -> None:
    most = 2**31 - 1
    good = [(-1, -1, -1), (0, 0, 0), (3, 4, 12), (most, most, 2**40), (-1, 5, 10**6)]
    bad = [(-2, 1, 0), (1, 2**31, 0), (3, 4, 13), (0, 0, 1), (1, 1, -2), (-1, -1, 2**62)]
    assert [Sizes(*sizes).possible for sizes in good + bad] == [True] * 5 + [False] * 6
    assert str(Sizes(3, -1, 4)) == "3 x ? with 4 entries"


def test_only_what_an_import_told_is_marked() -> None:
    """Rows of before are read as own ones, and own ones are written as before."""
    run = Run(EYE.id, SPMM, "x", Config({"a": 1}), Measurement(times_s=(1.0,)), "c", "ab" * 16)
    own, told = codec.RunRow.of(run), codec.RunRow.of(run, imported=True)
    fields = [own.config_id, own.measurement, own.campaign, own.replaces]
    assert codec.encode_row(own) == msgspec.msgpack.encode(fields)
    assert codec.encode_row(told) == msgspec.msgpack.encode([*fields, True])
    assert [codec.decode_row(codec.encode_row(row)) for row in (own, told)] == [own, told]


def test_adoption_keeps_what_an_import_told() -> None:
    """A told run retires nothing and stands back, under its stub or under what adopts that."""
    store, _ = filled()
    stub = WorkloadInfo(id=stub_id("t", -1, -1, -1), name="t", stub=True)
    first = Run(stub.id, SPMM, TILES.id, Config({"a": 2}), Measurement(times_s=(2.0,)))
    store.append([first], patterns=[stub])
    told = Run(stub.id, SPMM, TILES.id, Config({"a": 2}), Measurement(times_s=(9.0,)), "", first.id)
    assert len(store.take([told], []).against) == 1
    store.adopt(stub.id, WorkloadInfo.of(EYE))
    times = [r.measurement.times_s for r in store.runs(TILES.id, SPMM, EYE.id)]
    assert sorted(times) == [(1.0,), (2.0,)]
    assert store.problems() == []


def test_a_generation_that_nothing_leads_to_is_said() -> None:
    for size in (9, 200):  # beyond 64 bits, and beyond what a float holds
        store, engine = filled()
        engine.write(put("meta", b"generation", b"\xff" * size))
        with pytest.raises(StoreCorrupt, match="generation"):
            _ = store.generation
