"""Both engines keep the shipped contract; what only LMDB can meet is in test_store_bad.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from engine_contract import EngineContract, EngineMachine, contents
from hypothesis import HealthCheck, settings

from embeddb.core.errors import StoreError
from embeddb.store import Engine, Txn
from embeddb.store import lmdb_files as files
from embeddb.store.engine import MemoryEngine
from embeddb.store.folder_engine import FolderEngine
from embeddb.store.lmdb_engine import LmdbEngine


class TestMemory(EngineContract):
    durable = False

    def open_engine(self, folder: Path) -> Engine:
        return MemoryEngine()


class TestLmdb(EngineContract):
    def open_engine(self, folder: Path) -> Engine:
        return LmdbEngine(folder, wait_s=20)


class TestFolder(EngineContract):
    """The openings that share it."""

    def open_engine(self, folder: Path) -> Engine:
        return FolderEngine(folder)


class TestTinyMap(EngineContract):
    """The same with a map that must grow all the time."""

    @pytest.fixture(autouse=True)
    def tiny(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(files, "_FIRST_MAP", 1 << 17)

    def open_engine(self, folder: Path) -> Engine:
        return LmdbEngine(folder, wait_s=20)


def test_rows_that_are_not_sorted_are_refused(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path, create=True)
    rows = [(b"b", b""), (b"a", b"")]
    with pytest.raises(StoreError, match="ascending"):
        engine.write(lambda txn: txn.put_sorted("run", rows))
    with engine.read() as txn:
        assert txn.count("run") == 0
    engine.close()


class LmdbMachine(EngineMachine):
    def open_engine(self, folder: Path) -> Engine:
        return FolderEngine(folder)


TestLmdbMachine = LmdbMachine.TestCase
TestLmdbMachine.settings = settings(
    max_examples=10,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def _recorded_bytes(engine: LmdbEngine) -> int:
    return int((engine._env.info()["last_pgno"] + 1) * engine._env.stat()["psize"])


def test_a_sound_file_may_be_shorter_than_its_pages(tmp_path: Path) -> None:
    """A page that is taken and freed in one transaction is never written, yet counted."""
    engine = LmdbEngine(tmp_path)
    rng = np.random.default_rng(8)

    def body(txn: Txn) -> None:
        for _ in range(rng.integers(1, 30)):
            key = b"%d" % rng.integers(40)
            if rng.random() < 0.6:
                txn.put("structure", key, b"x" * int(rng.choice([10, 500, 3000, 20_000])))
            else:
                txn.delete("structure", key)

    for _ in range(500):
        engine.write(body)
        if (tmp_path / "data.mdb").stat().st_size < _recorded_bytes(engine):
            break
    else:
        pytest.fail("the case this test is about did not come up")
    before = contents(engine)
    engine.close()
    again = LmdbEngine(tmp_path)
    assert contents(again) == before
    assert again.problems() == []
    again.close()
