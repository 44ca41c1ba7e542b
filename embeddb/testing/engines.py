"""The contract every storage engine keeps, to subclass in a test module:

class TestMine(EngineContract):
    def open_engine(self, folder): return MyEngine(folder)

class MineMachine(EngineMachine):
    def open_engine(self, folder): return MyEngine(folder)
TestMineMachine = MineMachine.TestCase
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from embeddb.core.errors import StoreError, StoreReadOnly
from embeddb.store.engine import TABLES, Engine, Txn
from embeddb.store.memory import MemoryEngine

__all__ = ["EngineContract", "EngineMachine", "contents"]


def contents(engine: Engine) -> dict[str, list[tuple[bytes, bytes]]]:
    """Every pair of every table, in the order the engine scans them."""
    with engine.read() as txn:
        return {table: list(txn.scan(table)) for table in TABLES}


def _fill(engine: Engine, table: str, pairs: Sequence[tuple[bytes, bytes]]) -> None:
    def body(txn: Txn) -> None:
        for key, value in pairs:
            txn.put(table, key, value)

    engine.write(body)


def _adding_then_failing(txn: Txn) -> None:
    txn.put("run", b"never", b"1")
    assert txn.count("run") == 3
    raise ValueError("stop")


class EngineContract:
    """Subclasses open their engine on an empty folder; `durable` is false if it keeps nothing."""

    durable = True

    def open_engine(self, folder: Path) -> Engine:
        raise NotImplementedError

    @pytest.fixture
    def engine(self, tmp_path: Path) -> Iterator[Engine]:
        engine = self.open_engine(tmp_path)
        yield engine
        engine.close()

    def test_every_table_starts_empty(self, engine: Engine) -> None:
        assert contents(engine) == {table: [] for table in TABLES}
        assert engine.problems() == []

    def test_put_get_delete(self, engine: Engine) -> None:
        def body(txn: Txn) -> str:
            txn.put("note", b"a", b"1")
            txn.put("note", b"a", b"2")
            assert txn.get("note", b"a") == b"2"
            assert txn.get("run", b"a") is None
            assert txn.delete("note", b"a") is True
            assert txn.delete("note", b"a") is False
            txn.put("run", b"k", b"")
            return "done"

        assert engine.write(body) == "done"
        with engine.read() as txn:
            assert txn.get("note", b"a") is None
            assert txn.get("run", b"k") == b""
            assert txn.count("run") == 1

    def test_many_are_got_at_once(self, engine: Engine) -> None:
        keys = [b"%d" % i for i in range(0, 50, 2)]
        _fill(engine, "run", [(key, key * 2) for key in keys])
        asked = [b"7", b"8", b"9", b"8", b"40"]
        with engine.read() as txn:
            assert list(txn.get_many("run", asked).items()) == [(b"8", b"88"), (b"40", b"4040")]
            assert txn.get_many("run", iter(())) == {}

        def body(txn: Txn) -> None:
            txn.put("run", b"7", b"new")
            txn.delete("run", b"8")
            assert txn.get_many("run", asked) == {b"7": b"new", b"40": b"4040"}
            txn.put("run", b"9", b"after")
            assert txn.get("run", b"9") == b"after" and txn.get("run", b"8") is None
            assert txn.get_many("run", asked) == {b"7": b"new", b"9": b"after", b"40": b"4040"}

        engine.write(body)
        with engine.read() as txn:
            assert set(txn.get_many("run", asked)) == {b"7", b"9", b"40"}

    def test_sorted_rows_come_behind_those_that_are_there(self, engine: Engine) -> None:
        rows = [(b"%06d" % i, b"%d" % i) for i in range(3000)]
        engine.write(lambda txn: txn.put_sorted("run", iter(rows[:1000])))
        engine.write(lambda txn: txn.put_sorted("run", rows[1000:]))
        engine.write(lambda txn: txn.put_sorted("note", []))
        assert contents(engine) == {t: rows if t == "run" else [] for t in TABLES}
        assert engine.problems() == []

    def test_scans_are_ascending_and_end_with_the_prefix(self, engine: Engine) -> None:
        keys = [b"\x00", b"a", b"a\x00", b"a\xff", b"a\xff\xff", b"b", b"\xff", b"\xff\xff\x01"]
        _fill(engine, "run", [(key, key[:1]) for key in reversed(keys)])
        with engine.read() as txn:
            for prefix in (b"", b"a", b"a\xff", b"\xff", b"\xff\xff", b"zz", b"\x00"):
                want = sorted(key for key in keys if key.startswith(prefix))
                assert [key for key, _ in txn.scan("run", prefix)] == want
                assert txn.count_under("run", prefix) == len(want)
            assert next(iter(txn.scan("run")))[0] == b"\x00"  # a scan may be left unfinished

    def test_every_commit_has_a_version_of_its_own(self, engine: Engine) -> None:
        seen = [engine.version()]
        for at in range(3):
            _fill(engine, "note", [(b"n", b"%d" % at)])
            seen.append(engine.version())
            assert engine.version() == seen[-1], "reading changes nothing"
        assert len(set(seen)) == 4

    def test_rows_are_counted_however_they_come_and_go(self, engine: Engine) -> None:
        def first(txn: Txn) -> list[int]:
            txn.get_many("run", [b"a", b"b"])
            txn.put("run", b"a", b"1")
            txn.put("run", b"b", b"1")
            counts = [txn.count("run")]
            txn.put("run", b"a", b"2")
            txn.put("run", b"c", b"2")  # nobody asked whether it is there
            txn.delete("run", b"b")
            txn.delete("run", b"nobody")
            return [*counts, txn.count("run")]

        assert engine.write(first) == [2, 2]

        def second(txn: Txn) -> None:
            txn.put("run", b"a", b"3")
            txn.put("run", b"d", b"3")
            txn.delete("run", b"d")

        engine.write(second)
        with pytest.raises(ValueError, match="stop"):
            engine.write(_adding_then_failing)
        with engine.read() as txn:
            assert txn.count("run") == len(list(txn.scan("run"))) == 2
            assert txn.count("note") == 0
        assert engine.problems() == []

    def test_a_write_that_raises_leaves_nothing(self, engine: Engine) -> None:
        engine.write(lambda txn: txn.put("note", b"old", b"1"))
        before = contents(engine)

        def body(txn: Txn) -> None:
            txn.put("run", b"new", b"2")
            txn.delete("note", b"old")
            raise ValueError("stop")

        with pytest.raises(ValueError, match="stop"):
            engine.write(body)
        assert contents(engine) == before
        engine.write(lambda txn: txn.put("note", b"next", b"3"))

    def test_a_read_keeps_its_snapshot(self, engine: Engine) -> None:
        engine.write(lambda txn: txn.put("note", b"a", b"old"))

        def change() -> None:
            engine.write(lambda txn: txn.put("note", b"a", b"new"))

        with engine.read() as txn:
            writer = threading.Thread(target=change)
            writer.start()
            writer.join(30)
            assert not writer.is_alive(), "a reader blocks a writer"
            assert txn.get("note", b"a") == b"old"
            assert list(txn.scan("note")) == [(b"a", b"old")]
        assert contents(engine)["note"] == [(b"a", b"new")]

    def test_a_read_cannot_write(self, engine: Engine) -> None:
        with pytest.raises(StoreReadOnly), engine.read() as txn:
            txn.put("note", b"a", b"1")
        with pytest.raises(StoreReadOnly), engine.read() as txn:
            txn.delete("note", b"a")
        assert contents(engine)["note"] == []

    def test_a_write_inside_a_read_of_its_thread_is_refused(self, engine: Engine) -> None:
        with engine.read(), pytest.raises(StoreError, match="inside a read"):
            engine.write(lambda txn: txn.put("note", b"a", b"1"))
        engine.write(lambda txn: txn.put("note", b"a", b"1"))

    @pytest.mark.parametrize("key", [b"", b"x" * 512])
    def test_a_key_that_does_not_fit_is_refused(self, engine: Engine, key: bytes) -> None:
        with pytest.raises(StoreError, match="key"):
            engine.write(lambda txn: txn.put("note", key, b"1"))
        engine.write(lambda txn: txn.put("note", b"x" * 511, b"1"))
        assert contents(engine)["note"] == [(b"x" * 511, b"1")]

    def test_values_of_any_size(self, engine: Engine) -> None:
        sizes = (0, 1, 2000, 4096, 100_000, 5_000_000, 10, 3000)
        for size in sizes:
            _fill(engine, "structure", [(b"k", b"v" * size)])
            with engine.read() as txn:
                assert txn.get("structure", b"k") == b"v" * size
        _fill(engine, "structure", [(b"k", b"w" * size) for size in sizes])
        assert contents(engine)["structure"] == [(b"k", b"w" * 3000)]
        assert engine.problems() == []

    def test_threads_lose_nothing(self, engine: Engine) -> None:
        def add_one(txn: Txn) -> None:
            now = int(txn.get("meta", b"n") or b"0")
            txn.put("meta", b"n", str(now + 1).encode())

        def work() -> None:
            for _ in range(10):
                engine.write(add_one)
                with engine.read() as txn:
                    assert int(txn.get("meta", b"n") or b"0") > 0

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert contents(engine)["meta"] == [(b"n", b"40")]

    def test_compact_keeps_everything(self, engine: Engine) -> None:
        _fill(engine, "run", [(b"%d" % i, b"v" * 500) for i in range(2000)])
        engine.write(lambda txn: [txn.delete("run", b"%d" % i) for i in range(1, 2000)])
        before, size = contents(engine), engine.size_bytes()
        engine.compact()
        assert contents(engine) == before
        assert engine.size_bytes() <= size
        engine.write(lambda txn: txn.put("run", b"more", b"1"))
        assert engine.problems() == []

    def test_reopening_keeps_everything(self, tmp_path: Path) -> None:
        if not self.durable:
            return
        engine = self.open_engine(tmp_path)
        engine.write(lambda txn: txn.put("run", b"k", b"v"))
        before = contents(engine)
        engine.close()
        again = self.open_engine(tmp_path)
        assert contents(again) == before
        again.close()


_TABLES = st.sampled_from(["meta", "run", "note", "structure"])
_KEYS = st.sampled_from([b"a", b"a\x00", b"ab", b"b", b"\xff", b"\xff\xff", b"k" * 511])
_VALUES = st.one_of(
    st.binary(max_size=40), st.integers(0, 9000).map(lambda n: bytes(n % 251 for _ in range(n)))
)
_STEPS = st.lists(st.tuples(_TABLES, _KEYS, st.none() | _VALUES), max_size=12)


def _apply(txn: Txn, steps: list[tuple[str, bytes, bytes | None]]) -> list[Any]:
    seen: list[Any] = []
    for table, key, value in steps:
        if value is None:
            seen.append(txn.delete(table, key))
        else:
            txn.put(table, key, value)
        seen += [txn.get(table, key), txn.count(table), list(txn.scan(table, key[:1]))]
        seen.append(txn.get_many(table, [key, b"b", key + b"x" if len(key) < 511 else b"a"]))
    return seen


class EngineMachine(RuleBasedStateMachine):
    """Any sequence of operations gives what `MemoryEngine` gives."""

    durable = True

    def open_engine(self, folder: Path) -> Engine:
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="embeddb-engine-"))
        self.engine = self.open_engine(self.folder)
        self.reference = MemoryEngine()

    @rule(steps=_STEPS)
    def write(self, steps: list[tuple[str, bytes, bytes | None]]) -> None:
        wanted = self.reference.write(lambda txn: _apply(txn, steps))
        assert self.engine.write(lambda txn: _apply(txn, steps)) == wanted

    @rule(steps=_STEPS)
    def fail_to_write(self, steps: list[tuple[str, bytes, bytes | None]]) -> None:
        def body(txn: Txn) -> None:
            _apply(txn, steps)
            raise KeyError("stop")

        for engine in (self.reference, self.engine):
            with pytest.raises(KeyError):
                engine.write(body)

    @rule()
    def compact(self) -> None:
        self.engine.compact()

    @precondition(lambda self: self.durable)
    @rule()
    def reopen(self) -> None:
        self.engine.close()
        self.engine = self.open_engine(self.folder)

    @invariant()
    def same(self) -> None:
        assert contents(self.engine) == contents(self.reference)

    def teardown(self) -> None:
        try:
            assert self.engine.problems() == []
        finally:
            self.engine.close()
            shutil.rmtree(self.folder)
