"""The quick look at the pages says no less than `lmdb.verify`, and stands before what needs it."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import fill, patterns, tiny
from lmdb.verify import verify

from embeddb.core.errors import StoreCorrupt
from embeddb.database import Database
from embeddb.store import lmdb_engine
from embeddb.store.lmdb_files import broken_pages, page_faults
from indexer.exchange.exchange import export_file


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with trees of two levels, large values and free pages."""
    folder = tmp_path_factory.mktemp("pages") / "a.db"
    with Database.create(folder) as db:
        fill(db, tiny(), patterns(3), indexed=False)
        for pattern in patterns(3):
            db.index.add_pattern(pattern, only=["stats"])
        db.store.notes.put("large", bytes(50_000))
        db.store.journal.put("gone", bytes(9_000))
        db.store.journal.delete(["gone"])
    return folder


def faults(folder: Path) -> str:
    with (folder / "data.mdb").open("rb") as data:
        return page_faults(data)


def hurt(sound: Path, folder: Path, change: Callable[[bytearray], None]) -> Path:
    raw = bytearray((sound / "data.mdb").read_bytes())
    change(raw)
    folder.mkdir(exist_ok=True)
    (folder / "data.mdb").write_bytes(raw)
    return folder


def test_a_sound_file_has_no_faults(sound: Path, tmp_path: Path) -> None:
    assert faults(sound) == "" and broken_pages(sound) == []
    with Database.create(tmp_path / "empty.db"):
        assert faults(tmp_path / "empty.db") == ""


def test_while_somebody_writes(tmp_path: Path) -> None:
    """A reader of now cannot be made to see half a write."""
    with Database.create(tmp_path / "a.db") as db, db.store._engine.read():
        for at in range(30):
            db.store._engine.refuse_damage()
            with pytest.raises(Exception, match="inside a read"):
                db.store.notes.put(f"{at}", bytes(5000))
    with Database.open(tmp_path / "a.db") as db:
        for at in range(30):
            db.store.notes.put(f"{at % 3}", bytes(5000 * at))
            db.store.refuse_damage()


def test_a_readonly_check_reads_pages_inside_a_read(
    sound: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else pages that another process reuses meanwhile look damaged."""
    with Database.open(sound, readonly=True) as db:
        shared: Any = db.store._engine
        engine, seen = shared._used(), list[list[int]]()

        def recorded(folder: Path) -> list[str]:
            seen.append(list(engine._gate._readers))
            return broken_pages(folder)

        monkeypatch.setattr(lmdb_engine, "broken_pages", recorded)
        assert db.store.problems() == [] and len(seen) == 1 and seen[0]


def test_it_finds_what_verify_finds(sound: Path, tmp_path: Path) -> None:
    rng, found = random.Random(5), 0
    size = (sound / "data.mdb").stat().st_size

    def flip(raw: bytearray) -> None:
        for _ in range(4):
            near = rng.choice([rng.randrange(64), 4095 - rng.randrange(600)])
            raw[4096 * rng.randrange(2, size // 4096) + near] ^= 1 << rng.randrange(8)

    for _ in range(40):
        folder = hurt(sound, tmp_path / "b.db", flip)
        if verify(str(folder)):
            found += 1
            assert faults(folder)
    assert found > 10


@pytest.mark.parametrize("bad", [b"", b"x" * 100, b"x" * 20_000, bytes(20_000)])
def test_what_is_no_data_file(tmp_path: Path, bad: bytes) -> None:
    (tmp_path / "data.mdb").write_bytes(bad)
    assert faults(tmp_path)


def test_a_count_of_pages_that_nobody_has(sound: Path, tmp_path: Path) -> None:
    def claim(raw: bytearray) -> None:
        for at in (0, 4096):
            raw[at + 16 + 120 : at + 16 + 128] = (1 << 50).to_bytes(8, "little")

    assert "pages are recorded" in faults(hurt(sound, tmp_path / "b.db", claim))


def test_a_page_is_where_its_keys_are_looked_for(sound: Path, tmp_path: Path) -> None:
    """Else rows are missing for whoever asks for them; `lmdb.verify` does not compare this."""

    def raise_key(raw: bytearray) -> None:
        for at in range(2 * 4096, len(raw), 4096):
            if raw[at + 10] == 1:  # a branch
                node = at + int.from_bytes(raw[at + 18 : at + 20], "little")
                raw[node + 8 + raw[node + 6] - 1] |= 0xFF

    folder = hurt(sound, tmp_path / "b.db", raise_key)
    assert verify(str(folder)) == []
    (fault,) = broken_pages(folder)
    assert fault.endswith("a page is not where its keys are looked for")


def test_tables_in_tables_have_an_end(tmp_path: Path) -> None:
    """A chain of them, followed without a bound, would end in a RecursionError."""
    none, depth = (1 << 64) - 1, 1500

    def tree(root: int, flags: int = 0, pad: int = 0) -> bytes:
        one = root != none
        return struct.pack("<IHHQQQQQ", pad, flags, one, 0, one, 0, one, root)

    meta = struct.pack("<IIQQ", 0xBEEFC0DE, 1, 0, 1 << 30) + tree(none, 8, 512) + tree(2)
    meta += struct.pack("<QQ", depth + 1, 0)
    pages = [struct.pack("<QHHI", at, 0, 8, 0) + meta for at in (0, 1)]
    for at in range(2, depth + 2):
        node = struct.pack("<HHHH1s", 48, 0, 2, 1, b"a") + tree(at + 1)
        pages.append(struct.pack("<QHHHHH", at, 0, 2, 18, 454, 454).ljust(454, b"\0") + node)
    (tmp_path / "data.mdb").write_bytes(b"".join(page.ljust(512, b"\0") for page in pages))
    assert broken_pages(tmp_path) == ["table 'a': a table in a table"]


def test_a_damaged_file_is_neither_exported_nor_compacted(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A branch without its pages: LMDB would read what hangs there, or end the process."""

    def swap(raw: bytearray) -> None:
        for at in range(2 * 4096, len(raw), 4096):
            if raw[at + 10] == 1:  # a branch
                node = at + int.from_bytes(raw[at + 18 : at + 20], "little")
                raw[node : node + 2] = b"\2\0"

    folder = hurt(sound, tmp_path / "b.db", swap)
    with pytest.raises(StoreCorrupt, match=r"data\.mdb: damaged: table"):
        Database.open(folder)  # a small one is looked at whole
    monkeypatch.setattr(lmdb_engine, "_SMALL_BYTES", 0)
    with Database.open(folder) as db:
        for act in (lambda: export_file(db.index, tmp_path / "x.jsonl"), db.store.compact):
            with pytest.raises(StoreCorrupt, match=r"data\.mdb: damaged: table") as caught:
                act()
            assert "db check" in caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["b.db"]


def test_no_vector_is_left_out_of_an_export(sound: Path, tmp_path: Path) -> None:
    """One whose key is damaged, in order, is not there for whoever asks for it by its key."""
    with Database.open(sound, readonly=True) as db:
        ids = sorted(info.id for info in db.store.patterns())
    key = (
        b"stats\0" + db.index.featurizer_version("stats").encode() + b"\0" + bytes.fromhex(ids[-1])
    )

    def flip(raw: bytearray) -> None:
        at, found = raw.find(key), 0
        while at >= 0:
            raw[at + len(key) - 1] ^= 1
            at, found = raw.find(key, at + 1), found + 1
        assert found

    folder = hurt(sound, tmp_path / "b.db", flip)
    assert faults(folder) == ""
    with Database.open(folder, readonly=True) as db, pytest.raises(StoreCorrupt, match="damaged"):
        export_file(db.index, tmp_path / "x.jsonl")
    assert not (tmp_path / "x.jsonl").exists()


def test_a_key_that_is_no_text(tmp_path: Path) -> None:
    with Database.create(tmp_path / "a.db") as db:
        for table in ("note", "platform", "partition"):
            db.store._engine.write(lambda txn, t=table: txn.put(t, b"\xff\xfe", b"\0\0\0\1"))
        for read in (db.store.notes.items, db.store.platforms, db.store.partitions):
            with pytest.raises(StoreCorrupt, match="fffe: not text"):
                read()
