"""A database folder that somebody else packed, one whose making was killed, and a full disk."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import OP, band, fill, patterns, tiny

from embeddb.core.errors import StoreCorrupt, StoreError, StoreFull
from embeddb.database import Database, open_database
from embeddb.store import is_database, open_store
from embeddb.store.lmdb_engine import LmdbEngine
from embeddb.store.model_files import model_entries
from indexer.exchange.export_records import adopt_models

OURS = ("writer.lock", "lock.mdb", "data.mdb")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A database with a few notes."""
    with Database.create(tmp_path / "a.db") as db:
        db.store.notes.put("one", b"1")
    return tmp_path / "a.db"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    file = tmp_path / "home" / "thesis.tex"
    file.write_text("years of work")
    return file


# -- links ---------------------------------------------------------------------------------


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("name", OURS)
def test_a_link_in_place_of_a_file_of_ours(
    folder: Path, victim: Path, name: str, link: Callable[[Path, Path], None]
) -> None:
    (folder / name).unlink()
    link(victim, folder / name)
    with pytest.raises(StoreError, match=f"{name}: a link where a file of ours would be"):
        open_store(folder)
    assert victim.read_text() == "years of work"
    for create in (True, False):
        with pytest.raises(StoreError):
            open_database(folder, create=create)
    assert victim.read_text() == "years of work"


@pytest.mark.parametrize("readonly", [True, False])
@pytest.mark.parametrize("name", OURS)
def test_a_pipe_in_place_of_a_file_of_ours(folder: Path, name: str, readonly: bool) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    if name == "writer.lock" and readonly:
        open_store(folder, readonly=True).close()
    else:
        with pytest.raises(StoreError):
            open_store(folder, readonly=readonly)


def test_a_backup_with_hard_links_can_be_read(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "backup").mkdir()
    os.link(folder / "data.mdb", tmp_path / "backup" / "data.mdb")
    with Database.open(tmp_path / "backup", readonly=True) as db:
        assert db.store.notes.get("one") == b"1"


def test_the_folder_itself_may_be_reached_by_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    with Database.open(tmp_path / "link") as db:
        db.store.notes.put("two", b"2")
        db.store.compact()
        assert db.store.notes.get("two") == b"2"


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_compacting_removes_nothing_elsewhere(folder: Path, victim: Path, kind: str) -> None:
    there = victim.parent if kind == "folder" else victim
    (folder / "compact.part").symlink_to(there)
    with Database.open(folder) as db:
        db.store.compact()
        assert db.store.notes.get("one") == b"1"
    assert victim.read_text() == "years of work"
    assert not os.path.lexists(folder / "compact.part")


def test_models_go_nowhere_else(folder: Path, victim: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "costmodel-tiny-spmm.safetensors").write_bytes(b"weights")
    (folder / "models").symlink_to(victim.parent)
    (victim.parent / "costmodel-tiny-spmm.safetensors").write_bytes(b"mine")
    with Database.open(folder) as db:
        assert model_entries(db.store) == []
        with pytest.raises(OSError, match="a link or file where a folder of ours would be"):
            adopt_models(db.index, tmp_path / "new")
    assert (victim.parent / "costmodel-tiny-spmm.safetensors").read_bytes() == b"mine"


# -- begun ---------------------------------------------------------------------------------


def begun(folder: Path, stage: str) -> Path:
    """What a killed creation leaves."""
    folder.mkdir()
    (folder / "writer.lock").write_bytes(b"4711")
    if stage != "lock":
        (folder / "lock.mdb").write_bytes(bytes(100))
    if stage in ("empty", "half"):
        (folder / "data.mdb").write_bytes(b"" if stage == "empty" else b"\xde" * 4096)
    if stage == "no tables":
        import lmdb

        lmdb.open(str(folder), max_dbs=20).close()
    return folder


@pytest.mark.parametrize("stage", ["lock", "readers", "empty", "half", "no tables"])
def test_a_creation_that_was_killed_is_taken_up(tmp_path: Path, stage: str) -> None:
    folder = begun(tmp_path / "a.db", stage)
    assert not is_database(folder)
    with Database.create(folder) as db:
        db.store.notes.put("one", b"1")
    with pytest.raises(StoreError, match="a database is there already"):
        Database.create(folder)
    other = begun(tmp_path / "b.db", stage)
    with open_database(other, create=True) as db:
        assert db.store.problems() == []


def test_what_holds_something_else_is_not_taken_up(tmp_path: Path) -> None:
    folder = begun(tmp_path / "a.db", "empty")
    (folder / "notes.txt").write_text("mine")
    for create in (Database.create, lambda place: open_database(place, create=True)):
        with pytest.raises(StoreError):
            create(folder)
    assert (folder / "data.mdb").read_bytes() == b""


def test_an_empty_data_file_is_damage_to_whoever_opens_it(tmp_path: Path) -> None:
    folder = begun(tmp_path / "a.db", "empty")
    for readonly in (True, False):
        with pytest.raises(StoreCorrupt, match="empty"):
            open_store(folder, readonly=readonly)


# -- full ----------------------------------------------------------------------------------


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_no_room_for_the_table_of_readers(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB would write to a map of a file without room, which ends the process."""
    monkeypatch.setattr(os, "posix_fallocate", _full)
    with pytest.raises(StoreFull, match=r"b\.db: no space left"):
        Database.create(tmp_path / "b.db")
    with Database.open(folder) as db:  # what answers can be read
        assert db.store.readonly and db.store.notes.get("one") == b"1"
    monkeypatch.undo()
    with Database.create(tmp_path / "b.db") as db:
        db.store.notes.put("one", b"1")
    assert (tmp_path / "b.db" / "lock.mdb").stat().st_blocks * 512 >= 32_000


def test_a_file_system_that_reserves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", unknown)
    with Database.open(folder) as db:
        db.store.notes.put("two", b"2")


def test_an_answer_that_cannot_be_kept_is_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Database.create(tmp_path / "a.db") as db:
        fill(db, tiny(), patterns(2))
        asked = band(120, 6)
        wanted = db.query(asked, platform="tiny", op=OP)

        def write(*_: object) -> None:
            raise StoreFull(f"{db.store.path}: no space left on the disk")

        monkeypatch.setattr(LmdbEngine, "write", write)
        made = db.query(asked, platform="tiny", op=OP)
        assert made.candidates == wanted.candidates
        assert "this answer was not stored" in made.warnings[-1]
        assert str(tmp_path / "a.db") in made.warnings[-1]
        assert [kept.id for kept in db.recommendations()] == [wanted.id]


def test_a_copy_without_the_lock_files_opens(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "b.db").mkdir()
    shutil.copy(folder / "data.mdb", tmp_path / "b.db")
    with Database.open(tmp_path / "b.db") as db:
        db.store.notes.put("two", b"2")
