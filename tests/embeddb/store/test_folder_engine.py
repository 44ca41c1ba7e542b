"""One engine per folder and process: shared by paths, threads and modes, apart after a fork."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

import pytest

from embeddb.core.errors import StoreError, StoreLocked, StoreReadOnly
from embeddb.store import Store, Txn, locks, open_store
from embeddb.store.folder_engine import FolderEngine, _Shared
from embeddb.store.lmdb_engine import LmdbEngine
from embeddb.store.lmdb_files import WRITER_FILE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = open_store(tmp_path / "a.db", create=True)
    store.notes.put("first", b"1")
    store.close()
    return tmp_path / "a.db"


def free(folder: Path) -> bool:
    """Whether no process has the folder open, by the lock that compaction takes."""
    script = "import fcntl, os, sys; fd = os.open(sys.argv[1], os.O_RDONLY)\n"
    script += "fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)"
    return not subprocess.run(
        [sys.executable, "-c", script, folder], capture_output=True
    ).returncode


def in_child(work: Callable[[], str]) -> str:
    """What `work` returns, or the error it raises, in a forked child."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            try:
                text = work()
            except Exception as e:  # noqa: BLE001 - told to the parent
                text = f"{type(e).__name__}: {e}"
            os.write(writer, text.encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with os.fdopen(reader) as pipe:
        return pipe.read()


def test_paths_to_one_folder_share_its_engine(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.db").symlink_to(folder)
    (tmp_path / "links").symlink_to(tmp_path)
    paths = [folder, "a.db", "./x/../a.db", "link.db", tmp_path / "links" / "a.db"]
    (tmp_path / "x").mkdir()
    stores = [open_store(path) for path in paths]
    stores[0].notes.put("k", b"v")
    assert [store.notes.get("k") for store in stores] == [b"v"] * len(paths)
    monkeypatch.chdir("/")  # a relative path stays what it was
    stores[1].notes.put("k", b"w")
    stores[1].compact()
    for store in stores:
        assert store.notes.get("k") == b"w"
        assert not free(folder)
        store.close()
    assert free(folder)


def test_a_closed_opening_is_closed_alone(folder: Path) -> None:
    one, other = open_store(folder), open_store(folder)
    one.close()
    one.close()
    with pytest.raises(StoreError, match="closed"):
        one.notes.get("first")
    with pytest.raises(StoreError, match="closed"):
        one.notes.put("first", b"2")
    other.notes.put("first", b"2")
    assert other.notes.get("first") == b"2"
    other.close()
    with pytest.raises(StoreError):
        other.notes.get("first")
    again = open_store(folder)
    assert again.notes.get("first") == b"2"
    again.close()
    assert free(folder)


def test_an_opening_that_is_dropped_is_closed(folder: Path) -> None:
    db = open_store(folder)
    db = open_store(folder)  # a notebook's cell that is run twice
    assert db.notes.get("first") == b"1"
    assert not free(folder)
    del db
    gc.collect()
    assert free(folder)


def test_an_opening_that_is_dropped_while_another_closes_is_closed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, others = open_store(folder), [open_store(folder)]
    real = _Shared.settle

    def settled(shared: _Shared) -> None:
        real(shared)
        others.clear()  # garbage that is collected just then
        gc.collect()

    monkeypatch.setattr(_Shared, "settle", settled)
    first.close()
    assert free(folder)


@pytest.mark.parametrize("first", [True, False])
def test_read_only_and_writable_openings_share(folder: Path, first: bool) -> None:
    stores: dict[bool, Store] = {
        mode: open_store(folder, readonly=mode) for mode in (first, not first)
    }
    stores[False].notes.put("k", b"v")
    assert stores[True].notes.get("k") == b"v"
    for write in (lambda s: s.notes.put("k", b"w"), Store.compact):
        with pytest.raises(StoreReadOnly):
            write(stores[True])
    assert stores[True].readonly and not stores[False].readonly
    stores[False].close()
    assert stores[True].notes.get("k") == b"v"
    with pytest.raises(StoreReadOnly):
        stores[True].notes.put("k", b"w")
    stores[True].close()
    assert free(folder)


def test_where_another_user_alone_may_write_the_order_of_openings_is_no_matter(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = os.access  # to root every file can be written

    def refused(path: Path, mode: str) -> BinaryIO:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(
        os, "access", lambda path, mode: Path(path).name != WRITER_FILE and access(path, mode)
    )
    monkeypatch.setattr(locks, "open_own", refused)
    with closing(open_store(folder, readonly=True)) as first, closing(open_store(folder)) as second:
        assert first.readonly and second.readonly and second.generation == first.generation


def test_read_only_goes_on_where_another_process_writes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LmdbEngine.__init__, "__kwdefaults__", {
        "readonly": False, "create": False, "max_map_bytes": 1 << 40, "wait_s": 0.2
    })  # fmt: skip
    reading = open_store(folder, readonly=True)
    with (folder / "writer.lock").open("a+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as by a writer
        with pytest.raises(StoreLocked):
            open_store(folder)
        assert reading.notes.get("first") == b"1"
        other = open_store(folder, readonly=True)
        assert other.notes.get("first") == b"1"
    writing = open_store(folder)
    writing.notes.put("first", b"2")
    assert reading.notes.get("first") == other.notes.get("first") == b"2"
    for store in (reading, other, writing):
        store.close()
    assert free(folder)


@pytest.mark.parametrize("whole", [True, False])
def test_a_database_made_anew_is_another(folder: Path, whole: bool) -> None:
    """At the same path, or in the same folder."""
    old = open_store(folder)
    if whole:
        shutil.rmtree(folder)
    else:
        for file in folder.iterdir():
            file.unlink()
    new = open_store(folder, create=True)
    assert new.notes.get("first") is None
    new.notes.put("first", b"new")
    assert old.notes.get("first") == b"1"
    with pytest.raises(StoreError, match="replaced"):
        old.notes.put("first", b"lost")
    with pytest.raises(StoreError, match="replaced"):
        old.compact()
    third = open_store(folder)
    old.close()
    assert third.notes.get("first") == new.notes.get("first") == b"new"
    new.close()
    third.close()
    assert free(folder)


def test_a_database_that_is_gone_is_not_opened(folder: Path) -> None:
    old = open_store(folder)
    shutil.rmtree(folder)
    with pytest.raises(StoreError, match="no database"):
        open_store(folder)
    old.close()


def test_threads_open_write_and_close(folder: Path) -> None:
    start = threading.Barrier(40)

    def work(nth: int) -> bytes | None:
        start.wait()
        for mode in (nth % 2 == 0, False):
            store = open_store(folder, readonly=mode)
            if not mode:
                store.notes.put(f"{nth}", b"%d" % nth)
            assert store.notes.get("first") == b"1"
            store.close()
        store = open_store(folder)
        try:
            return store.notes.get(f"{nth}")
        finally:
            store.close()

    with ThreadPoolExecutor(40) as pool:
        assert list(pool.map(work, range(40))) == [b"%d" % nth for nth in range(40)]
    assert free(folder)


def test_more_threads_read_than_there_are_readers(folder: Path) -> None:
    """LMDB has lines for 512 readers of all processes."""
    store = open_store(folder)
    inside = threading.Semaphore(0)
    go = threading.Event()

    def work() -> None:
        with store.engine.read() as txn:
            inside.release()
            go.wait(30)
            results.append(txn.get("note", b"first"))

    results: list[bytes | None] = []
    threads = [threading.Thread(target=work) for _ in range(600)]
    for thread in threads:
        thread.start()
    inside.acquire()
    go.set()
    for thread in threads:
        thread.join(60)
    assert results == [b"1"] * 600
    store.close()


def test_shared_state_is_made_once_and_ends_with_the_engine(folder: Path) -> None:
    made: list[object] = []

    def make(engine: object) -> object:
        made.append(engine)
        return object()

    with ThreadPoolExecutor(8) as pool:
        engines = list(pool.map(lambda _: FolderEngine(folder), range(8)))
        states = list(pool.map(lambda engine: engine.shared_state(make), engines))
    assert len(set(states)) == len(made) == 1
    for engine in engines:
        engine.close()
    again = FolderEngine(folder)
    assert again.shared_state(make) is not states[0]
    again.close()


# -- forks ---------------------------------------------------------------------------------


def test_a_forked_child_opens_its_own(folder: Path) -> None:
    store = open_store(folder)
    busy = threading.Event()
    end = threading.Event()

    def read() -> None:
        while not end.is_set():
            store.notes.get("first")
            busy.set()

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    busy.wait(30)

    def work() -> str:
        try:
            store.notes.get("first")
        except StoreError as e:
            refused = "fork" in str(e)
        own = open_store(folder)
        own.notes.put("child", b"1")
        text = f"{refused} {own.notes.get('first')!r}"
        own.close()
        store.close()
        return text

    for _ in range(5):
        assert in_child(work) == "True b'1'"
    end.set()
    for reader in readers:
        reader.join(30)
    assert store.notes.get("child") == b"1"
    store.notes.put("parent", b"1")
    assert store.problems() == []
    store.close()
    assert free(folder)


def test_a_fork_inside_a_read_leaves_the_parent_its_snapshot(folder: Path) -> None:
    store = open_store(folder)
    store.notes.put("big", b"x" * 100_000)
    with store.engine.read() as txn:
        text = in_child(lambda: str(open_store(folder)))
        assert text.startswith("StoreError") and "fork" in text
        thread = threading.Thread(
            target=lambda: [store.notes.put("big", b"%d" % n * 100_000) for n in range(20)]
        )
        thread.start()
        thread.join(30)
        assert txn.get("note", b"big") == b"x" * 100_000
    assert in_child(lambda: repr(open_store(folder).notes.get("first"))) == "b'1'"
    store.close()


def test_a_write_waits_for_any_number_of_other_writes(folder: Path) -> None:
    """Each takes a good part of the time that one may take."""
    engine = LmdbEngine(folder, wait_s=0.3)

    def work(nth: int) -> None:
        def body(txn: Txn) -> None:
            time.sleep(0.1)
            txn.put("note", b"%d" % nth, b"1")

        engine.write(body)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(work, range(12)))
    writing = threading.Event()

    def long(txn: Txn) -> None:
        del txn
        writing.set()
        time.sleep(1.5)

    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(engine.write, long)
        assert writing.wait(30)
        with pytest.raises(StoreLocked):
            engine.write(lambda _: None)
        job.result()
    with engine.read() as txn:
        assert txn.count("note") == 13
    engine.close()
