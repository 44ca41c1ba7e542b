"""The shipped database: where it is, and what its unpacking tells to whom it may concern."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from builders import fill, patterns, tiny

from embeddb.core.errors import InputError, StoreCorrupt
from embeddb.database import Database
from indexer import starter
from indexer.exchange.exchange import export_file
from indexer.shipped.__main__ import ship


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data of a small database in place of those that ship."""
    exported, data = tmp_path / "all.jsonl", tmp_path / "starter.rows"
    db = Database.in_memory()
    fill(db, tiny(), patterns(2))
    export_file(db.index, exported)
    ship([exported], data)
    monkeypatch.setattr(starter, "STARTER_FILE", data)
    monkeypatch.setenv("EMBEDDB_HOME", str(tmp_path / "home"))
    return data


def test_it_is_unpacked_on_first_use_and_said_once(shipped: Path) -> None:
    said: list[str] = []
    tasks: list[str] = []
    folder = starter.starter_folder(note=said.append, progress=lambda what, *_: tasks.append(what))
    assert folder == starter.starter_place()
    assert said == [f"unpacking the starter database into {folder} (once, some seconds)"]
    assert "unpack" in tasks
    with Database.open(folder, readonly=True) as db:
        assert db.store.counts()["pattern"] == 8
    assert starter.starter_folder(note=said.append) == folder
    assert len(said) == 1


def test_nobody_need_be_told(shipped: Path) -> None:
    assert (starter.starter_folder() / "data.mdb").is_file()


def test_a_damaged_file_leaves_nothing_behind(shipped: Path, tmp_path: Path) -> None:
    for damaged in (b"nonsense\n", shipped.read_bytes()[:-1], b""):
        shipped.write_bytes(damaged)
        with pytest.raises(StoreCorrupt, match=r"starter\.rows"):
            starter.starter_folder()
    assert not list((tmp_path / "home").iterdir())


def test_an_installation_without_it(shipped: Path) -> None:
    shipped.unlink()
    assert not starter.is_shipped()
    with pytest.raises(InputError, match="not part of this installation"):
        starter.starter_place()


def test_what_a_kill_left_does_not_stop_the_next(shipped: Path) -> None:
    """In a container the killed one may well have had the number of this process."""
    place = starter.starter_place()
    part = place.with_name(f".{place.name}.{os.getpid()}.part")
    part.mkdir(parents=True)
    (part / "data.mdb").write_bytes(b"half")
    assert (starter.starter_folder() / "data.mdb").is_file()
