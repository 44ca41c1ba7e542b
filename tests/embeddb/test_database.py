"""The facade: stored answers, one call for every use, and what importing it costs."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import (
    CONFIGS,
    OP,
    VARIANTS,
    band,
    by_law,
    fill,
    patterns,
    runs_of,
    tiny,
)
from scipy.io import mmwrite

import embeddb
from embeddb.core import plugins
from embeddb.core.config import Config, Op
from embeddb.core.errors import (
    InputError,
    NothingFound,
    StoreError,
    StoreReadOnly,
    UsageError,
)
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, WorkloadInfo
from embeddb.core.repr_html import html_of
from embeddb.database import Database, open_database
from embeddb.platforms.platform import Platform, parse_platform
from embeddb.ranking.recommendation import Recommendation
from indexer import starter
from indexer.campaign.plan import PlanOptions
from indexer.readers.base.row import ReadOptions
from indexer.shipped.file import pack

WIDE = Op("spmm", 64)


@pytest.fixture(scope="module")
def lawful() -> Database:
    """Shared and not written to by tests but for recommendations."""
    return fill(Database.in_memory(), tiny())


def _first(made: Recommendation) -> dict[str, Any]:
    return made.candidates[0].config


# -- stored answers ----------------------------------------------------------------------------


def test_the_answer_is_stored_and_read_back(tmp_path: Path) -> None:
    with Database.create(tmp_path / "db") as db:
        fill(db, tiny(), patterns(2))
        made = db.query(band(137, 14, name="new"), platform="tiny", op=OP)
    with embeddb.open(tmp_path / "db") as db:
        again = db.recommendation(made.id)
        assert msgspec.structs.replace(again, stages_s={}) == msgspec.structs.replace(
            made, stages_s={}
        )
        assert [r.id for r in db.recommendations()] == [made.id]
        with pytest.raises(NothingFound, match="r0") as e:
            db.recommendation("r0")
        assert made.id in e.value.hint
    assert set(made.stages_s) >= {"open", "features", "search", "transfer"}


def test_no_answer_yet() -> None:
    with pytest.raises(NothingFound) as e:
        Database.in_memory().recommendation("r0")
    assert e.value.hint == "run a query first"


def test_the_released_document(lawful: Database) -> None:
    made = lawful.query(band(137, 14, name="new"), platform="tiny", op=OP, k=2)
    body = json.loads(json.dumps(made.document(), allow_nan=False))
    assert body.keys() >= {
        "id", "pattern_id", "platform", "op", "link", "default", "candidates", "confidence",
        "warnings", "stages_s",
    }  # fmt: skip
    assert body["default"] == {"config": {"variant": "a"}, "seconds": None}
    assert [c["rank"] for c in body["candidates"]] == [1, 2]
    assert body["candidates"][0].keys() >= {
        "rank", "config", "score", "expected_gain", "origin", "seconds", "status",
    }  # fmt: skip


def test_read_only(tmp_path: Path) -> None:
    folder = tmp_path / "db"
    with Database.create(folder) as db:
        fill(db, tiny(), patterns(2))
    with Database.open(folder, readonly=True) as db:
        made = db.query(band(137, 14), platform="tiny", op=OP)
        assert (made.link, _first(made)) == ("neighbours", {"variant": "c"})
        assert made.warnings[-1] == "the database is read-only: this answer was not stored"
        with pytest.raises(NothingFound):
            db.recommendation(made.id)
        with pytest.raises(StoreReadOnly):
            db.index.record(runs_of(patterns()[0], tiny()), patterns()[0], tiny())


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes to read-only folders")
def test_a_folder_that_cannot_be_written_opens_read_only(tmp_path: Path) -> None:
    folder = tmp_path / "db"
    with Database.create(folder) as db:
        fill(db, tiny(), patterns(2))
    writable = stat.S_IMODE(folder.stat().st_mode)
    folder.chmod(0o555)
    try:
        with Database.open(folder) as db:
            assert db.store.readonly
            assert db.query(band(137, 14), platform="tiny", op=OP).link == "neighbours"
    finally:
        folder.chmod(writable)


@pytest.mark.parametrize("name", ["data.mdb", "lock.mdb", "writer.lock"])
def test_a_file_of_another_user_in_a_folder_of_a_group_opens_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / "db"
    with Database.create(folder) as db:
        fill(db, tiny(), patterns(2))
    (folder / name).chmod(0o444)
    access = os.access  # to root every file can be written
    monkeypatch.setattr(
        os, "access", lambda path, mode: Path(path).name != name and access(path, mode)
    )
    with Database.open(folder) as db:
        assert db.store.readonly
        assert db.query(band(137, 14), platform="tiny", op=OP).link == "neighbours"


# -- one call for every use --------------------------------------------------------------------


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A platform's file, a log of it, and the matrices that it names."""
    (tmp_path / "tiny.toml").write_text(tiny().text)
    (tmp_path / "matrices").mkdir()
    rows = ["matrix,rows,cols,nnz,variant,time_us"]
    for p in patterns():
        mmwrite(tmp_path / "matrices" / f"{p.name}.mtx", p.to_scipy(), field="pattern")
        m, n = p.shape
        rows += [
            f"{p.name},{m},{n},{p.nnz},{v},{1e6 * by_law(p, VARIANTS.index(v))}" for v in VARIANTS
        ]
    (tmp_path / "runs.csv").write_text("\n".join(rows))
    return tmp_path


def test_run_logs_answer_after_one_call_and_are_judged_by_another(logs: Path) -> None:
    with Database.create(logs / "db") as db:
        report = db.index_runs(
            [logs / "runs.csv"],
            platform=str(logs / "tiny.toml"),
            matrices=logs / "matrices",
            options=ReadOptions(op=OP),
        )
        assert report.problems == [] and report.question is not None
        made = db.query(band(137, 14), platform="tiny", op=OP)
        assert (made.link, _first(made)) == ("neighbours", {"variant": "c"})
        rows = db.evaluate(platform="tiny", op="spmm:32", seeds=(0,))
        assert {row.op for row in rows} == {"spmm:32"} and len(rows) > 2
        with pytest.raises(NothingFound, match="no runs to judge by"):
            db.evaluate(op="spmm:64")


class Machine:
    """A machine on which variant d wins on everything."""

    name = "machine"

    def available(self) -> str | None:
        return None

    def platform(self, *, threads: int = 0) -> Platform:
        return _machine().at("here", {"threads": str(threads)})

    def run(
        self, pattern: Pattern, op: Op, configs: Sequence[Config], *, options: Any
    ) -> Iterator[tuple[Config, Measurement]]:
        for config in configs:
            at = CONFIGS.index(config)
            yield config, Measurement(times_s=(1e-6 * pattern.nnz * (4 - at),), when=float(at))


def _machine() -> Platform:
    text = tiny("lab", portable=True).text.replace('title = "F', 'runner = "machine"\ntitle = "F')
    return parse_platform(text)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Platform:
    real = plugins.load
    monkeypatch.setattr(
        plugins, "load", lambda kind, name: Machine if name == "machine" else real(kind, name)
    )
    return _machine()


def test_a_campaign_is_planned_measured_and_taken_up(logs: Path, machine: Platform) -> None:
    with Database.create(logs / "db") as db:
        asked: dict[str, Any] = {"platform": machine, "ops": ["spmm:32"]}
        asked |= {"matrices": logs / "matrices", "options": PlanOptions(configs=4, rounds=1)}
        said: list[str] = []
        done = db.campaign(logs / "camp", **asked, progress=lambda what, *_: said.append(what))
        assert done.measured == done.points == 20 * 4 and done.tasks_stored == 20
        assert {"read matrices", "measure"} <= set(said)
        assert _first(db.query(band(137, 14), platform="lab", op=OP)) == {"variant": "d"}
        assert db.campaign(logs / "camp") == done
        with pytest.raises(InputError, match="another campaign is there"):
            db.campaign(logs / "camp", **asked | {"ops": ["spmv"]})


def test_a_calibration_takes_the_operations_that_others_ran(logs: Path, machine: Platform) -> None:
    db = Database.in_memory()
    with pytest.raises(UsageError, match="which operations matter"):
        db.calibrate(platform=machine, minutes=0.05)
    fill(db, machine.at("elsewhere"))
    report = db.calibrate(platform="lab", minutes=0.2, matrices=logs / "matrices")
    assert (report.platform, [op.op for op in report.ops]) == ("lab@here", ["spmm:32"])
    assert report.ops[0].runs > 0
    with pytest.raises(UsageError, match="is not this machine"):
        db.calibrate(platform="lab@elsewhere", minutes=0.05)


# -- where it is -------------------------------------------------------------------------------


def test_a_place_is_opened_made_or_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_database(tmp_path / "db", create=True) as db:
        fill(db, tiny(), patterns(1))
        pack(db.store.engine, tmp_path / "starter.rows")
    with embeddb.open(tmp_path / "db") as db:
        assert isinstance(db, Database) and db.index.scopes() == [(OP, "tiny")]
    with pytest.raises(StoreError):
        embeddb.open(tmp_path / "nothing")
    monkeypatch.setattr(starter, "STARTER_FILE", tmp_path / "starter.rows")
    monkeypatch.setenv("EMBEDDB_HOME", str(tmp_path / "home"))
    with embeddb.open("starter") as db:
        assert db.index.scopes() == [(OP, "tiny")]
    assert "unpacking the starter database" in capsys.readouterr().err


def test_what_a_notebook_shows_is_found_by_one_door(lawful: Database) -> None:
    made = lawful.query(band(137, 14, name="new"), platform="tiny", op=OP)
    things = (
        lawful,
        made,
        lawful.explain(made.id),
        patterns()[0],
        WorkloadInfo.whole(patterns()[0]),
    )
    assert all(thing._repr_html_().startswith("<div>") for thing in things)
    with pytest.raises(TypeError, match="nothing to show of int"):
        html_of(3)


# -- what it costs -----------------------------------------------------------------------------


def test_importing_stays_light() -> None:
    script = textwrap.dedent("""
        import sys, embeddb
        heavy = {"scipy", "faiss", "torch", "hypothesis", "click"} & set(sys.modules)
        assert not heavy, heavy
    """)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


# -- from threads --------------------------------------------------------------------------


def test_threads_that_open_by_name_share_what_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first question of each is at the same time: the index is built once."""
    from embeddb.index.answer_index import AnswerIndex

    with Database.create(tmp_path / "a.db") as db:
        fill(db, tiny(), patterns()).index.forget_partitions()
    built: list[object] = []
    build = AnswerIndex.build.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        AnswerIndex, "build", classmethod(lambda *a, **k: built.append(a) or build(*a, **k))
    )
    (tmp_path / "link").symlink_to(tmp_path / "a.db")
    start = threading.Barrier(24)

    def work(nth: int) -> str:
        start.wait()
        place = tmp_path / ("link" if nth % 2 else "a.db")
        with embeddb.open(place, readonly=nth % 3 == 0) as db:
            own = db.query(band(40 + nth, 3), platform="tiny", op=OP)
            by_name = embeddb.query(band(40 + nth, 3), platform="tiny", op=OP, db=place)
            assert own.best == by_name.best
            return by_name.id

    with embeddb.open(tmp_path / "a.db") as db, ThreadPoolExecutor(24) as pool:
        ids = list(pool.map(work, range(24)))
        assert len(built) == 1
        assert {db.recommendation(one).id for one in ids} == set(ids)
        assert db.problems() == []


def test_new_weights_are_those_of_every_opening(tmp_path: Path) -> None:
    with Database.create(tmp_path / "a.db") as db, embeddb.open(tmp_path / "a.db") as other:
        before = other.index.featurizers()
        db.index._derived.reload()
        assert other.index.featurizers() is db.index.featurizers() is not before


def test_a_platform_file_of_another_version_is_refused() -> None:
    """Its author says that a parameter means something else: the runs do not mix."""
    with fill(Database.in_memory(), tiny()) as db:
        raised = parse_platform(tiny().text.replace('version = "1"', 'version = "2"'))
        with pytest.raises(StoreError, match="runs are of version 1, this file is version 2"):
            db.query(band(131, 6, name="new"), platform=raised, op=OP)
        with pytest.raises(StoreError, match="version 2"):
            db.store.put_platform(raised)
