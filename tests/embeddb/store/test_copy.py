"""A whole database to another place: nothing lost, gone on with after a kill."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import postgres_server
import postgres_writer
import pytest
from command_line import run_verb
from engine_contract import contents

import embeddb
from embeddb.core.errors import StoreError, StoreFull
from embeddb.core.files.safe_write import OwnFolder
from embeddb.core.pattern import Pattern
from embeddb.core.records import WorkloadInfo
from embeddb.store import Store, Txn, is_database, open_store
from embeddb.store.copy import copy_database
from embeddb.store.model_files import register_files
from embeddb.store.withdrawn import RunSelection


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[postgres_server.Server]:
    if postgres_server.missing():
        pytest.skip(f"needs {postgres_server.missing()}")
    with pytest.MonkeyPatch.context() as patch, postgres_server.running_server() as running:
        patch.setenv("EMBEDDB_HOME", str(tmp_path_factory.mktemp("home")))
        yield running


@pytest.fixture(params=["folder", "server"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path / "copy.db")
    server: postgres_server.Server = request.getfixturevalue("servers")
    return server.url(f"c {request.node.name}"[:60])


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path / "source.db", create=True)
    for number in range(5):
        postgres_writer.append(store, number)
    store.withdrawn.withdraw(RunSelection(since=0.0, campaign="", platform="cpu"))
    pattern = Pattern.from_coo((9, 9), np.arange(9), np.arange(9))
    store.put_structure(pattern, WorkloadInfo.of(pattern))
    store.journal.put("ingest/1", b"{}")
    store.notes.put("partition/spmm:32/cpu", b"{}")
    (tmp_path / "source.db" / "models").mkdir()
    (tmp_path / "source.db" / "models" / "costmodel-x-spmm.safetensors").write_bytes(b"weights")
    yield store
    store.close()


def _without_beside(store: Store) -> dict[str, list[tuple[bytes, bytes]]]:
    """What a copy is to have: all but notes of what lies beside."""
    found = contents(store.engine)
    found["note"] = [row for row in found["note"] if not row[0].startswith(b"partition/")]
    return found


def test_a_copy_is_the_same(source: Store, target: str) -> None:
    told: list[tuple[str, int, int]] = []
    report = copy_database(source, target, progress=lambda *done: told.append(done))
    copy = open_store(target)
    assert contents(copy.engine) == _without_beside(source)
    assert copy.problems() == [] and copy.generation == source.generation
    assert report.rows["run"] == 500 and report.removed == 0 and not report.continued
    assert copy.path is not None
    copied = copy.path / "models" / "costmodel-x-spmm.safetensors"
    assert copied.read_bytes() == b"weights"
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    copy.close()
    with pytest.raises(StoreError, match="a database is there already"):
        copy_database(source, target)


def test_what_is_half_copied_is_no_database_until_it_is_whole(
    source: Store, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended after any of its transactions, and gone on with from another state of the source."""
    from embeddb.store import copy

    monkeypatch.setattr(copy, "_MOST_ROWS", 60)
    real, allowed = copy._put, [0]

    def limited(txn: Txn, table: str, rows: list[tuple[bytes, bytes]]) -> int:
        allowed[0] -= 1
        if allowed[0] < 0:
            raise KeyboardInterrupt
        return real(txn, table, rows)

    monkeypatch.setattr(copy, "_put", limited)
    for number in (0, 1, 4, 9, 20):
        allowed[0] = number
        with pytest.raises(KeyboardInterrupt):
            copy_database(source, target)
        if is_database(target):
            with pytest.raises(StoreError, match="not whole: a copy into it was interrupted"):
                open_store(target)
    source.withdrawn.restore(RunSelection())
    postgres_writer.append(source, 5)
    allowed[0] = 1_000_000
    report = copy_database(source, target)
    made = open_store(target)
    assert contents(made.engine) == _without_beside(source) and made.problems() == []
    assert report.continued and report.removed > 0  # the marks of withdrawn runs
    made.close()


def test_a_copy_that_ended_at_the_model_files_goes_on_with_them(
    source: Store, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert source.path is not None
    name = "costmodel-cpu-spmm.safetensors"
    shutil.copy(Path(embeddb.__file__).parent / "data" / name, source.path / "models")
    register_files(source)
    real, full = OwnFolder.write, [True]

    def write(folder: OwnFolder, name: str, data: bytes) -> None:
        if full.pop() if full else False:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(folder, name, data)

    monkeypatch.setattr(OwnFolder, "write", write)
    with pytest.raises(StoreFull):
        copy_database(source, target)
    with pytest.raises(StoreError, match="not whole: a copy into it was interrupted"):
        open_store(target)
    report = copy_database(source, target)
    copy = open_store(target)
    assert report.continued and report.models == 2 and copy.path is not None
    model = (source.path / "models" / name).read_bytes()
    assert (copy.path / "models" / name).read_bytes() == model
    if copy.shared:
        assert [*copy.notes.items("model-file/").values()] == [model]
    copy.close()


def test_a_source_whose_folder_is_not_utf_8_is_copied(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff.db"))
    with closing(open_store(folder, create=True)) as source:
        source.notes.put("k", b"v")
        assert copy_database(source, str(tmp_path / "copy.db")).rows["note"] == 1


def test_another_source_does_not_go_on(source: Store, tmp_path: Path) -> None:
    other = open_store(tmp_path / "other.db", create=True)
    target = open_store(tmp_path / "copy.db", create=True)
    target.engine.write(lambda txn: txn.put("meta", b"copying", other.place.encode()))
    target.close()
    with pytest.raises(StoreError, match=r"a copy of .*other.db was begun there"):
        copy_database(source, str(tmp_path / "copy.db"))
    other.close()


def test_there_and_back_by_the_command_line(
    source: Store,
    servers: postgres_server.Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = servers.url("there", user="postgres", password="topsecret")
    before = _without_beside(source)
    place = source.place
    source.close()
    assert run_verb(["db", "copy", place, url]) == 0
    assert run_verb(["db", "copy", url, str(tmp_path / "back.db")]) == 0
    assert run_verb(["db", "stat", url, "--json"]) == 0
    assert run_verb(["db", "check", url]) == 0
    assert run_verb(["db", "compact", url]) == 0
    assert run_verb(["db", "copy", place, url]) == 1
    said = "".join(capsys.readouterr())
    assert "topsecret" not in said and "postgres:***@127.0.0.1" in said
    back = open_store(tmp_path / "back.db")
    assert contents(back.engine) == before
    back.close()
