"""What a store does on bad ground: full, locked, damaged, foreign, read-only, forked."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest
from builders import fill, patterns, tiny

from embeddb.core.config import Config, Op
from embeddb.core.errors import (
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreVersion,
)
from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.database import Database
from embeddb.store import Store, lmdb_files, open_store
from embeddb.store.lmdb_engine import LmdbEngine

SPMM = Op("spmm", 32)
SPAN = 100

#: Shared by the child processes below; they print and are told on stdin what to do next.
PRELUDE = """
import os, sys, time
from pathlib import Path
sys.path[:0] = {tests!r}
from test_store_bad import SPMM, batch
from embeddb.core.errors import *
from embeddb.store import Store, lmdb_files, open_store
from embeddb.store.lmdb_engine import LmdbEngine
folder = Path({folder!r})
"""


def batch(number: int, size: int = SPAN, *, bulk: int = 0) -> list[Run]:
    """Runs that belong together: all of one pattern, told apart by their times."""
    return [
        Run(f"{number:032x}", SPMM, "cpu", Config({"a": i % 7}), Measurement(
            times_s=(number + i / 1000, 1.0), error="x" * bulk))
        for i in range(size)
    ]  # fmt: skip


def add(store: Store, number: int, size: int = SPAN, *, bulk: int = 0) -> None:
    runs = batch(number, size, bulk=bulk)
    store.append(runs, patterns=[WorkloadInfo(id=runs[0].pattern_id)])


def child(script: str, folder: Path, *, wrap: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    here = Path(__file__).parent
    text = PRELUDE.format(tests=[str(here), str(here.parents[1] / "fixtures")], folder=str(folder))
    return subprocess.Popen(
        [*wrap, sys.executable, "-c", text + textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def output(process: subprocess.Popen[str], told: str = "", wait_s: float = 60) -> str:
    said, _ = process.communicate(told, timeout=wait_s)
    return said


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], text: str = "go") -> None:
    assert process.stdin is not None
    process.stdin.write(text + "\n")
    process.stdin.flush()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A closed database with three batches."""
    store = open_store(tmp_path / "db", create=True)
    for number in range(3):
        add(store, number)
    store.close()
    return tmp_path / "db"


@pytest.fixture
def mount() -> Iterator[tuple[str, ...]]:
    """What to put before a command so that it may mount file systems of its own."""
    wrap = ("unshare", "--mount")
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("mounting needs root and unshare")
    if subprocess.run([*wrap, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this container may not mount")
    yield wrap


# -- opening -------------------------------------------------------------------------------


def test_opening_what_is_no_database(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "none", tmp_path / "file", tmp_path / "empty", tmp_path / ("x" * 300)):
        for readonly in (True, False):
            with pytest.raises(StoreError, match=path.name[:200]):
                open_store(path, readonly=readonly)
    assert list((tmp_path / "empty").iterdir()) == []


def test_creating_where_something_is(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thing").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "full", folder):
        with pytest.raises(StoreError):
            open_store(path, create=True)
    assert (tmp_path / "file").read_text() == "x"
    (tmp_path / "empty").mkdir()
    open_store(tmp_path / "empty", create=True).close()


@pytest.mark.parametrize("size", [0, 1, 100, 4096, 8191, 8192, 100_000])
@pytest.mark.parametrize("readonly", [True, False])
def test_a_file_of_something_else(tmp_path: Path, size: int, readonly: bool) -> None:
    data = random.Random(size).randbytes(size)
    (tmp_path / "data.mdb").write_bytes(data)
    with pytest.raises(StoreCorrupt):
        open_store(tmp_path, readonly=readonly)
    assert (tmp_path / "data.mdb").read_bytes() == data


@pytest.mark.parametrize("tables", [[], [b"run"], [b"meta", b"mine"]])
@pytest.mark.parametrize("readonly", [True, False])
def test_somebody_elses_lmdb(tmp_path: Path, tables: list[bytes], readonly: bool) -> None:
    with lmdb.open(str(tmp_path), max_dbs=4) as env, env.begin(write=True) as txn:
        txn.put(b"hello", b"world")
        txn.put(b"pattern", b"no table")
        for name in tables:
            txn.put(b"k", b"v", db=env.open_db(name, txn=txn))
    with pytest.raises(StoreError, match="not an embeddb database"):
        open_store(tmp_path, readonly=readonly)
    with lmdb.open(str(tmp_path), max_dbs=4) as env, env.begin() as txn:
        assert env.stat()["entries"] == 2 + len(tables)


@pytest.mark.parametrize(("schema", "hint"), [(b"99", "newer"), (b"0", "that wrote it")])
@pytest.mark.parametrize("readonly", [True, False])
def test_another_schema(folder: Path, schema: bytes, hint: str, readonly: bool) -> None:
    engine = LmdbEngine(folder)
    engine.write(lambda txn: txn.put("meta", b"schema", schema))
    engine.close()
    with pytest.raises(StoreVersion, match=f"schema {int(schema)}") as caught:
        open_store(folder, readonly=readonly)
    assert hint in caught.value.hint
    with pytest.raises(StoreVersion):  # the folder was let go of
        open_store(folder)


@pytest.mark.parametrize("kind", ["nfs4", "gpfs", "beegfs"])
@pytest.mark.parametrize(
    "name", ["share", "my share", "tab\there", "back\\slash", "a\xa0b", "a\x85b"]
)
def test_a_network_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    (share := tmp_path / name).mkdir()
    (disk := share / "disk").mkdir()
    escaped = str(share)
    for sign in "\\ \t":
        escaped = escaped.replace(sign, f"\\{ord(sign):03o}")
    mounts = f"/dev/a / ext4 rw 0 0\n//nas/x {escaped} {kind} rw 0 0\n"
    (table := tmp_path / "mounts").write_text(f"{mounts}/dev/b {escaped}/disk ext4 rw 0 0\n")
    monkeypatch.setattr(lmdb_files, "_MOUNTS", table)
    with pytest.raises(StoreError, match=f"on a network file system .{kind}."):
        open_store(share / "db", create=True)
    for local in (disk, tmp_path / "other"):
        open_store(local / "db", create=True).close()


# -- damage --------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0.0, 0.01, 0.04, 0.5, 0.9])
@pytest.mark.parametrize("readonly", [True, False])
def test_a_truncated_file(folder: Path, keep: float, readonly: bool) -> None:
    data = folder / "data.mdb"
    whole = data.read_bytes()
    data.write_bytes(whole[: int(keep * len(whole))])
    with pytest.raises(StoreCorrupt) as caught:
        open_store(folder, readonly=readonly)
    assert caught.value.hint
    data.write_bytes(whole)
    store = open_store(folder)
    assert store.problems() == []
    store.close()


@pytest.mark.parametrize("where", ["error", "key"])
def test_a_flipped_byte_in_a_value(folder: Path, where: str) -> None:
    store = open_store(folder)
    marked = Run(f"{7:032x}", SPMM, "cpu", Config({}), Measurement(error="needle in a haystack"))
    store.append([marked], patterns=[WorkloadInfo(id=marked.pattern_id)])
    store.close()
    data = folder / "data.mdb"
    raw = bytearray(data.read_bytes())
    wanted = b"needle" if where == "error" else bytes.fromhex(marked.id)
    for at in range(len(raw)):  # old copies of the page too
        if raw.startswith(wanted, at):
            raw[at + 3] ^= 0x20
    data.write_bytes(raw)
    store = open_store(folder)
    with pytest.raises(StoreCorrupt, match="damaged"):
        list(store.runs("cpu", SPMM))
    assert len(list(store.runs("cpu", SPMM, f"{1:032x}"))) == SPAN
    found = store.problems()
    assert len(found) == 1
    assert "run" in found[0]
    store.close()


def test_every_damaged_value_is_reported(folder: Path) -> None:
    store = open_store(folder)
    store.notes.put("first", b"marker-one")
    store.notes.put("second", b"marker-two")
    store.close()
    data = folder / "data.mdb"
    data.write_bytes(data.read_bytes().replace(b"marker", b"murker"))
    store = open_store(folder)
    found = store.problems()
    assert len(found) == 2
    assert all("'note'" in text for text in found)
    store.close()


@pytest.mark.slow
def test_broken_pages_never_end_the_process(folder: Path) -> None:
    """Bytes anywhere, page headers included; in a child, which must end by itself."""
    data = folder / "data.mdb"
    whole = data.read_bytes()
    rng = random.Random(7)
    script = """
    for path in sorted(folder.iterdir()):
        store = None
        try:
            store = open_store(path)
            found = store.problems()
            print("problems" if found else "sound")
        except StoreError as e:
            print("error")
    """
    hurt = folder.parent / "hurt"
    for case in range(30):
        raw = bytearray(whole)
        for _ in range(rng.choice([1, 4])):
            at = rng.randrange(len(raw)) if case % 2 else 4096 * rng.randrange(2, len(raw) // 4096)
            raw[min(at + rng.randrange(24), len(raw) - 1)] ^= 1 << rng.randrange(8)
        (hurt / f"{case:02}").mkdir(parents=True)
        (hurt / f"{case:02}" / "data.mdb").write_bytes(raw)
    process = child(script, hurt)
    said = output(process).split()
    assert process.returncode == 0, said
    assert len(said) == 30
    assert said.count("problems") + said.count("error") > 5


@pytest.mark.slow
def test_no_verb_that_reads_everything_ends_at_a_zeroed_page(tmp_path: Path) -> None:
    """Each page in turn, as after a lost block of a disk; a small file is checked when opened, so
    the bound is set to none."""
    with Database.create(tmp_path / "db") as db:
        fill(db, tiny(), patterns(8))
    Database.create(tmp_path / "team").close()
    process = child(
        """
    import io
    from contextlib import redirect_stderr, redirect_stdout
    from embeddb.store import lmdb_engine
    from embeddb.ui.cli.main import run

    os.chdir(folder.parent)
    lmdb_engine._SMALL_BYTES, data = 0, folder / "data.mdb"
    whole = data.read_bytes()
    verbs = ("stat", "models", "sources", "copy", "push", "export", "rebuild")
    more = {"copy": ["new"], "push": ["team"], "export": ["e.jsonl"]}
    damaged = 0
    for at in range(2, len(whole) // 4096):
        data.write_bytes(whole[: 4096 * at] + bytes(4096) + whole[4096 * (at + 1) :])
        for verb in ("check", *verbs):
            print("page", at, verb, flush=True)
            place = ["db", verb, "db", *more.get(verb, [])]
            with redirect_stdout(io.StringIO()) as out, redirect_stderr(out):
                try:
                    run(place)
                except SystemExit as e:
                    code = e.code or 0
            lines = out.getvalue().splitlines()
            if verb == "check" and not code:
                break  # a free page
            # Without the second page of a large value, what does not read it succeeds.
            assert code == 0 or (code == 1 and len(lines) == 1 + (verb == "check")), lines
            damaged += code
    print("damaged", damaged)
    """,
        tmp_path / "db",
    )
    said = output(process, wait_s=250).splitlines()
    assert said[-1].startswith("damaged") and int(said[-1].split()[1]) > 8 * 40, said[-5:]


def test_runs_that_point_at_nothing_are_reported(folder: Path) -> None:
    engine = LmdbEngine(folder)
    with engine.read() as txn:
        config = next(iter(txn.scan("config")))[0]
        runs = [key for key, _ in txn.scan("run")]
    engine.write(lambda txn: txn.delete("config", config))
    engine.write(lambda txn: txn.delete("pattern", runs[0][4:20]))
    engine.write(lambda txn: txn.delete("member", runs[-1][:20]))
    engine.write(
        lambda txn: txn.put("run", runs[0][:20] + b"z" * 16, txn.get("run", runs[1]) or b"")
    )
    store = Store(engine)
    said = "\n".join(store.problems())
    for text in (
        "configuration is missing",
        "pattern is missing",
        "not listed",
        "does not match its id",
    ):
        assert text in said
    with pytest.raises(StoreCorrupt, match="configuration"):
        list(store.runs("cpu", SPMM))
    store.close()


# -- full ----------------------------------------------------------------------------------


def test_the_map_grows_until_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embeddb.store.lmdb_files._FIRST_MAP", 1 << 17)
    store = Store(LmdbEngine(tmp_path, max_map_bytes=3 << 19))
    done = 0
    with pytest.raises(StoreFull, match="limit"):
        while True:
            add(store, done, 500, bulk=100)
            done += 1
    assert done >= 3
    assert store.size_bytes() > 1 << 19
    assert store.count_runs() == 500 * done
    assert store.problems() == []
    store.notes.put("small", b"x")
    store.close()
    again = Store(LmdbEngine(tmp_path))
    add(again, done, 500, bulk=100)
    assert again.count_runs() == 500 * (done + 1)
    again.close()


def test_one_batch_may_outgrow_the_map_many_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embeddb.store.lmdb_files._FIRST_MAP", 1 << 17)
    store = Store(LmdbEngine(tmp_path))
    add(store, 0, 3000, bulk=1000)
    assert store.size_bytes() > 1 << 21
    assert store.count_runs() == 3000
    store.close()


FILL = """
    store = open_store(folder, create=True)
    done = 0
    try:
        for number in range(1000):
            store.append(batch(number, 500, bulk=500))
            done += 1
    except StoreFull as e:
        print("full", e)
    assert store.count_runs() == 500 * done, done
    assert store.problems() == [] or all("pattern is missing" in p for p in store.problems())
    store.close()
    store = open_store(folder)
    assert store.count_runs() == 500 * done, done
    store.close()
    print("done", done)
"""


def test_a_full_disk(tmp_path: Path, mount: tuple[str, ...]) -> None:
    (tmp_path / "small").mkdir()
    script = f"""
    import subprocess
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(folder.parent)]
    subprocess.run(mount, check=True)
    {textwrap.indent(textwrap.dedent(FILL), "    ").strip()}
    ballast = folder.parent / "ballast"
    try:
        ballast.write_bytes(bytes(4 << 20))
    except OSError:
        pass
    store = open_store(folder)  # with not one byte left
    assert store.count_runs() == 500 * done
    try:
        store.append(batch(5000, 500, bulk=500))
    except StoreFull:
        print("still full")
    store.close()
    ballast.unlink()
    """
    process = child(script, tmp_path / "small" / "db", wrap=mount)
    said = output(process)
    assert process.returncode == 0, said
    assert "full" in said
    assert "no space left" in said
    assert "still full" in said
    assert int(said.split("done ")[1].split()[0]) >= 2


def test_a_full_disk_ends_nobody(tmp_path: Path, mount: tuple[str, ...]) -> None:
    (tmp_path / "small").mkdir()
    script = """
    import subprocess
    disk = folder.parent
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "none", str(disk)], check=True)
    open_store(folder, create=True).close()
    try:
        (disk / "ballast").write_bytes(bytes(1 << 20))
    except OSError:
        pass
    try:
        open_store(disk / "new", create=True)
    except StoreFull as e:
        print("refused", e)
    (folder / "lock.mdb").unlink()
    with (disk / "more").open("wb", buffering=0) as more:  # the last bytes
        try:
            while more.write(bytes(4096)):
                pass
        except OSError:
            pass
    store = open_store(folder)
    print("read-only", store.readonly, store.count_runs())
    store.close()
    (disk / "ballast").unlink()
    open_store(disk / "new", create=True).close()
    print("taken up")
    """
    process = child(script, tmp_path / "small" / "db", wrap=mount)
    said = output(process)
    assert process.returncode == 0, said
    assert f"refused {tmp_path / 'small' / 'new'}: no space left" in said
    assert "read-only True 0" in said and "taken up" in said


def test_a_limit_on_file_size_counts_as_a_full_disk(tmp_path: Path) -> None:
    script = f"""
    import resource, signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, resource.RLIM_INFINITY))
    {textwrap.indent(textwrap.dedent(FILL), "    ").strip()}
    """
    process = child(script, tmp_path / "db")
    said = output(process)
    assert process.returncode == 0, said
    assert "no space left" in said


def test_a_limit_on_virtual_memory(tmp_path: Path) -> None:
    """Growing the map fails, and the old one is gone by then: the store opens it again."""
    script = """
    import resource
    open_store(folder, create=True).close()
    store = Store(LmdbEngine(folder))
    store.append(batch(0))
    used = int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20), used + (100 << 20)))
    try:
        store._engine._remap(1 << 34)
    except StoreFull as e:
        print("full", e.hint)
    assert store.count_runs() == 100
    store.append(batch(1))
    assert store.count_runs() == 200
    store.close()
    print("done")
    """
    process = child(script, tmp_path / "db")
    said = output(process)
    assert process.returncode == 0, said
    assert "full raise the limit" in said
    assert "done" in said


# -- others --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_writer_that_never_ends(folder: Path) -> None:
    script = """
    engine = LmdbEngine(folder)
    def body(txn):
        txn.put("note", b"half", b"x")
        print("writing", flush=True)
        sys.stdin.readline()
        raise ValueError
    try:
        engine.write(body)
    except ValueError:
        print("ended")
    """
    store = Store(LmdbEngine(folder, wait_s=0.2))
    process = child(script, folder)
    assert line(process) == "writing"
    with pytest.raises(StoreLocked, match=f"process {process.pid}"):
        add(store, 5)
    assert store.count_runs() == 3 * SPAN  # readers never wait
    store.close()
    with pytest.raises(StoreLocked):
        LmdbEngine(folder, wait_s=0.2)
    reader = open_store(folder, readonly=True)
    assert reader.count_runs() == 3 * SPAN
    reader.close()
    assert "ended" in output(process, "go\n")
    store = Store(LmdbEngine(folder, wait_s=0.2))
    add(store, 5)
    assert store.notes.get("half") is None
    store.close()


def test_a_killed_writer_leaves_no_lock(folder: Path) -> None:
    script = """
    LmdbEngine(folder).write(lambda txn: (print("writing", flush=True), time.sleep(60)))
    """
    process = child(script, folder)
    assert line(process) == "writing"
    process.send_signal(signal.SIGKILL)
    output(process)
    store = Store(LmdbEngine(folder, wait_s=1))
    add(store, 5)
    assert store.count_runs() == 4 * SPAN
    assert store.problems() == []
    store.close()


WRITER = """
    import embeddb.store.lmdb_files as files
    files._FIRST_MAP = 1 << 17
    store = Store(LmdbEngine(folder))
    first = int(sys.stdin.readline())
    for number in range(first, first + 10):
        store.append(batch(number, 100, bulk=200))
        assert sum(1 for _ in store.runs("cpu", SPMM)) % 100 == 0
    print("wrote", store.count_runs())
"""


@pytest.mark.slow
def test_writers_in_two_processes_lose_nothing(tmp_path: Path) -> None:
    """And each follows the growth of the map by the other."""
    open_store(tmp_path / "db", create=True).close()
    processes = [child(WRITER, tmp_path / "db") for _ in range(2)]
    for at, process in enumerate(processes):
        tell(process, str(1000 * at))
    for process in processes:
        said = output(process)
        assert process.returncode == 0, said
    store = open_store(tmp_path / "db")
    assert store.count_runs() == 2000
    assert {len(list(store.runs("cpu", SPMM, f"{n:032x}"))) for n in (0, 9, 1000, 1009)} == {100}
    assert len(store.members(store.partitions()[0])) == 20
    store.close()


@pytest.mark.slow
def test_another_process_grows_the_map(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embeddb.store.lmdb_files._FIRST_MAP", 1 << 17)
    store = open_store(folder)
    before = store.count_runs()
    process = child(WRITER, folder)
    said = output(process, "100\n")
    assert process.returncode == 0, said
    assert store.count_runs() == before + 1000  # a read follows
    process = child(WRITER, folder)
    output(process, "200\n")
    add(store, 5)  # a write follows
    assert store.count_runs() == before + 2000 + SPAN
    store.close()


def test_a_fork(folder: Path) -> None:
    store = open_store(folder)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = []
        try:
            for call in (store.count_runs, lambda: store.notes.put("a", b"b"), store.compact):
                try:
                    call()
                except StoreError as e:
                    said.append("fork" if "fork" in str(e) else f"other: {e}")
            store.close()
            own = open_store(folder)
            add(own, 50)
            own.close()
            said.append("own")
        finally:
            os.write(writer, " ".join(said).encode())
            os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reader, 1000).decode().split() == ["fork", "fork", "fork", "own"]
    assert store.count_runs() == 4 * SPAN  # the child's close did not hurt the parent
    add(store, 51)
    assert store.problems() == []
    store.close()
    os.close(reader)
    os.close(writer)


# -- read-only -----------------------------------------------------------------------------


def test_opened_read_only(folder: Path) -> None:
    store = open_store(folder, readonly=True)
    assert store.readonly
    assert store.count_runs() == len(list(store.runs("cpu", SPMM))) == 3 * SPAN
    assert store.problems() == []
    for write in (
        lambda: add(store, 9),
        lambda: store.notes.put("a", b"b"),
        lambda: store.vectors.exchange({}, ()),
        store.compact,
    ):
        with pytest.raises(StoreReadOnly):
            write()
    store.close()


def test_a_read_only_mount(folder: Path, mount: tuple[str, ...]) -> None:
    script = """
    import subprocess
    subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
    before = sorted(p.name for p in folder.iterdir())
    store = open_store(folder)
    assert store.readonly
    assert sum(1 for _ in store.runs("cpu", SPMM)) == 300
    assert store.problems() == []
    try:
        store.append(batch(9))
    except StoreReadOnly as e:
        print("refused:", e)
    store.close()
    assert sorted(p.name for p in folder.iterdir()) == before
    print("done")
    """
    process = child(script, folder, wrap=mount)
    said = output(process)
    assert process.returncode == 0, said
    assert "refused:" in said
    assert "done" in said


# -- compaction ----------------------------------------------------------------------------


def test_compacting_frees_what_was_deleted(folder: Path) -> None:
    store = open_store(folder)
    store.notes.put("large", bytes(5_000_000))
    store.notes.delete(["large"])
    before, size = list(store.runs("cpu", SPMM)), store.size_bytes()
    store.compact()
    assert store.size_bytes() < size / 5
    assert list(store.runs("cpu", SPMM)) == before
    add(store, 9)
    assert store.problems() == []
    assert sorted(p.name for p in folder.iterdir()) == ["data.mdb", "lock.mdb", "writer.lock"]
    store.close()
    again = open_store(folder)
    assert again.count_runs() == 4 * SPAN
    again.close()


@pytest.mark.slow
def test_compacting_needs_the_folder_alone(folder: Path) -> None:
    """What another process wrote to the old file afterwards would be lost."""
    script = """
    store = open_store(folder, readonly=len(sys.stdin.readline()) > 3)
    print("open", flush=True)
    sys.stdin.readline()
    """
    store = open_store(folder)
    for mode in ("w", "readonly"):
        process = child(script, folder)
        tell(process, mode)
        assert line(process) == "open"
        with pytest.raises(StoreLocked, match="open in another process"):
            store.compact()
        add(store, 10 + len(mode))
        output(process, "end\n")
    store.compact()
    assert store.count_runs() == 5 * SPAN
    store.close()


def test_a_compaction_that_was_killed_or_failed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "compact.part").mkdir()
    (folder / "compact.part" / "data.mdb").write_bytes(b"half")
    store = open_store(folder)
    with monkeypatch.context() as patch:
        patch.setattr("embeddb.store.lmdb_engine.sync", _no_space)
        with pytest.raises(StoreFull):
            store.compact()
    assert store.count_runs() == 3 * SPAN
    store.compact()
    assert store.count_runs() == 3 * SPAN
    assert not (folder / "compact.part").exists()
    store.close()


def _no_space(path: Path) -> None:
    raise OSError(28, "No space left on device")
