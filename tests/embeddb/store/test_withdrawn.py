"""Runs that were taken back: nowhere counted, nothing erased, brought back as they were."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from builders import CONFIGS, OP, fill, patterns, runs_of, tiny
from command_line import run_verb

from embeddb.core.config import Op
from embeddb.core.errors import UsageError
from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.database import Database
from embeddb.store import Store, memory_store, open_store
from embeddb.store.engine import Engine
from embeddb.store.lmdb_engine import LmdbEngine
from embeddb.store.withdrawn import RunSelection, WithdrawnRuns
from indexer.embed import embed
from indexer.exchange.exchange import export

TINY, WIDE = tiny(), Op("spmm", 64)
BUILD = RunSelection(statuses=frozenset({"build"}))
OF_OP = RunSelection(op=OP)


def run(pattern_id: str, at: int, status: str = "ok", **more: object) -> Run:
    times = (1.0 + at,) if status == "ok" else ()
    measured = Measurement(status, times, when=100.0 * at)
    return replace(Run(pattern_id, OP, "tiny", CONFIGS[at], measured), **more)  # type: ignore[arg-type]


A, B = ("0" * 31 + x for x in "ab")
KNOWN = [
    run(A, 0),
    run(A, 1, "build", campaign="c1:0"),
    run(A, 2, campaign="c1:1"),
    run(B, 3, "build", campaign="c12:0"),
]


@pytest.fixture(params=["memory", "lmdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    made = memory_store()
    if request.param == "lmdb":
        made = open_store(tmp_path / "x.db", create=True)
        request.addfinalizer(made.close)
    made.append(KNOWN, patterns=[WorkloadInfo(id=i, name=i[-1]) for i in (A, B)])
    return made


def ids(store: Store) -> set[str]:
    return {r.id for r in store.runs("tiny", OP)}


# -- the table -----------------------------------------------------------------------------------


def test_withdrawn_runs_count_nowhere_and_come_back(store: Store) -> None:
    (partition,) = store.partitions()
    before, generation = ids(store), store.generation
    told = [WithdrawnRuns("tiny", "spmm:32", "build", 2)]
    assert store.withdrawn.chosen(BUILD) == told and ids(store) == before
    assert store.withdrawn.withdraw(BUILD) == told
    assert ids(store) == {KNOWN[0].id, KNOWN[2].id} and store.generation == generation + 1
    assert store.count_runs() == store.count_runs(partition) == store.counts()["run"] == 2
    assert {r.id for r in store.sample(partition, patterns=9, runs=9)} == ids(store)
    assert list(store.members(partition)) == [A] and store.withdrawn.count() == 2
    assert store.withdrawn.withdraw(BUILD) == [] and store.problems() == []
    assert store.append(KNOWN).duplicates == 4 and store.withdrawn.count() == 2
    assert store.withdrawn.chosen(RunSelection(), back=True) == told
    assert store.withdrawn.restore(BUILD) == told
    assert ids(store) == before and set(store.members(partition)) == {A, B}
    assert store.withdrawn.count() == 0 and store.problems() == []
    assert store.generation == generation + 2


@pytest.mark.parametrize(
    ("selection", "found"),
    [
        (RunSelection(platform="tiny"), 4),
        (RunSelection(platform="tin"), 0),
        (RunSelection(platform="tiny@x"), 0),
        (RunSelection(op=WIDE), 0),
        (RunSelection(campaign="c1"), 2),
        (RunSelection(campaign="c1:1"), 1),
        (RunSelection(since=150.0), 2),
        (RunSelection(since=150.0, statuses=frozenset({"build"})), 1),
    ],
)
def test_what_is_selected(store: Store, selection: RunSelection, found: int) -> None:
    assert sum(kind.runs for kind in store.withdrawn.chosen(selection)) == found


def test_everything_is_too_much(store: Store) -> None:
    with pytest.raises(UsageError, match="no runs are selected"):
        store.withdrawn.withdraw(RunSelection())


def test_what_a_withdrawn_run_replaced_counts_again(store: Store) -> None:
    wrong = run(A, 0, "build", replaces=KNOWN[0].id, campaign="theirs")
    store.append([wrong])
    assert KNOWN[0].id not in ids(store)
    store.withdrawn.withdraw(RunSelection(campaign="theirs"))
    assert KNOWN[0].id in ids(store) and wrong.id not in ids(store)


def test_without_any_run_left_there_is_no_partition(store: Store) -> None:
    (partition,) = store.partitions()
    store.withdrawn.withdraw(OF_OP)
    assert store.partitions() == [] and store.count_runs() == 0 and not store.members(partition)
    store.append([run(B, 0)])
    assert [list(store.members(p)) for p in store.partitions()] == [[B]] and not store.problems()
    store.withdrawn.restore(RunSelection())
    assert store.count_runs() == 5


def test_a_stub_that_is_adopted_keeps_what_was_withdrawn() -> None:
    store = memory_store()
    stub = WorkloadInfo(id=A, name="m", stub=True)
    store.append([replace(r, pattern_id=A) for r in KNOWN], patterns=[stub])
    store.withdrawn.withdraw(BUILD)
    assert store.adopt(A, WorkloadInfo(id=B, name="m")) == 4
    assert {r.measurement.status for r in store.runs("tiny", OP, B)} == {"ok"}
    assert store.withdrawn.count() == 2 and store.problems() == []
    store.withdrawn.restore(RunSelection())
    assert len(list(store.runs("tiny", OP, B))) == 4


def test_a_stub_is_adopted_with_a_table_that_is_withdrawn_whole(store: Store) -> None:
    stub = "0" * 31 + "c"
    runs = [replace(run(stub, 0), op=WIDE), run(stub, 1)]
    store.append(runs, patterns=[WorkloadInfo(id=stub, name="c", stub=True)])
    store.withdrawn.withdraw(RunSelection(op=WIDE))
    assert store.adopt(stub, WorkloadInfo(id=A, name="a")) == 2 and store.problems() == []
    store.withdrawn.restore(RunSelection())
    assert len(list(store.runs("tiny", WIDE, A))) == 1 and store.problems() == []


def test_an_older_database_has_none_and_gets_them(tmp_path: Path) -> None:
    made = open_store(tmp_path / "x.db", create=True)
    made.append(KNOWN, patterns=[WorkloadInfo(id=i) for i in (A, B)])
    made.close()
    engine = LmdbEngine(tmp_path / "x.db")
    with engine._env.begin(write=True) as txn:
        txn.drop(engine._dbs["withdrawn"], delete=True)
    engine.close()
    with_it = open_store(tmp_path / "x.db", readonly=True)
    assert with_it.withdrawn.count() == 0 and with_it.count_runs() == 4
    assert with_it.withdrawn.chosen(BUILD)[0].runs == 2 and with_it.problems() == []
    with_it.close()
    again = open_store(tmp_path / "x.db")
    again.withdrawn.withdraw(BUILD)
    assert again.withdrawn.count() == 2
    again.close()


def test_a_check_finds_marks_that_make_no_sense(store: Store) -> None:
    engine: Engine = store._engine
    engine.write(lambda txn: txn.put("withdrawn", b"k" * 36, b'{"when": 1}'))
    key = next(iter(ids(store)))
    with engine.read() as txn:
        there = next(k for k, _ in txn.scan("run") if k[20:].hex() == key)
    engine.write(lambda txn: txn.put("withdrawn", there, b"[]"))
    assert sorted(line.split(": ")[1] for line in store.problems()) == [
        *("does not say when", "there is no such run")
    ]


_KILLED = """
import os, sys
from embeddb.store import open_store
from embeddb.store.withdrawn import RunSelection
from embeddb.store import withdrawn
listed = withdrawn._listed
def kill(*given):
    listed(*given)
    os.kill(os.getpid(), 9)
withdrawn._listed = kill
open_store(sys.argv[1]).withdrawn.withdraw(RunSelection(platform="tiny"))
"""


def test_a_kill_in_the_middle_changes_nothing(tmp_path: Path) -> None:
    made = open_store(tmp_path / "x.db", create=True)
    made.append(KNOWN, patterns=[WorkloadInfo(id=i) for i in (A, B)])
    made.close()
    ended = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path / "x.db")], check=False)
    assert ended.returncode == -signal.SIGKILL
    again = open_store(tmp_path / "x.db")
    assert again.withdrawn.count() == 0 and again.count_runs() == 4 and again.problems() == []
    again.close()


# -- answers -------------------------------------------------------------------------------------


def test_answers_follow(tmp_path: Path) -> None:
    """What a stranger's runs made of an answer goes with them, and comes with them."""
    asked = patterns()[0]
    with Database.create(tmp_path / "x.db") as db:
        fill(db, TINY)
        honest = db.query(asked, platform="tiny", op=OP)
        assert honest.candidates[0].config["variant"] == "a" and honest.link == "measured"
        (own,) = runs_of(asked, TINY, variants=[0])
        slow = Measurement(times_s=(1.0,))
        db.store.append([replace(own, campaign="theirs", replaces=own.id, measurement=slow)])
        assert db.query(asked, platform="tiny", op=OP).candidates[0].config["variant"] == "b"
        theirs = RunSelection(campaign="theirs")
        db.store.withdrawn.withdraw(theirs)
        assert db.query(asked, platform="tiny", op=OP).candidates[0].config["variant"] == "a"
        out = io.StringIO()
        assert export(db.index, out, format="jsonl").runs == 4 * len(patterns())
        assert "theirs" not in out.getvalue()
        db.store.withdrawn.restore(theirs)
        assert db.query(asked, platform="tiny", op=OP).candidates[0].config["variant"] == "b"


def test_a_scope_without_runs_left_gives_no_answer(tmp_path: Path) -> None:
    with Database.create(tmp_path / "x.db") as db:
        fill(db, TINY)
        db.query(patterns()[0], platform="tiny", op=OP)
        db.store.withdrawn.withdraw(OF_OP)
        assert db.index.scopes() == [] and db.index.partition(OP, TINY) is None
        answer = db.query(patterns()[0], platform="tiny", op=OP)
        assert answer.link == "default"
        embed(db.index)
        assert db.problems() == []
        db.store.withdrawn.restore(OF_OP)
        assert db.query(patterns()[0], platform="tiny", op=OP).link == "measured"


# -- the verb ------------------------------------------------------------------------------------


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(tmp_path / "x.db")
    with Database.create(place) as db:
        fill(db, TINY, patterns(1), indexed=False)

    def call(code: int, *words: str) -> str:
        assert run_verb(["db", "withdraw", place, *words]) == code
        said = capsys.readouterr()
        return said.out + said.err

    said = call(0, "--platform", "tiny", "--status", "ok")
    assert "16 runs would be withdrawn" in said and "nothing changed: add --yes" in said
    made = json.loads(call(0, "--op", "spmm:32", "--yes", "--json"))
    assert made["changed"] and made["runs"] == made["withdrawn"] == 16 and not made["undo"]
    assert made["selected"] == [{"platform": "tiny", "op": "spmm:32", "status": "ok", "runs": 16}]
    assert run_verb(["db", "stat", place]) == 0
    assert "16 withdrawn runs beside these" in capsys.readouterr().out
    assert run_verb(["db", "check", place]) == 0
    capsys.readouterr()
    assert "no run matches" in call(3, "--op", "spmm:32", "--yes")
    assert "16 runs would be restored" in call(0, "--undo")
    assert "16 runs restored; 0 withdrawn in all" in call(0, "--undo", "--yes")
    assert "no runs are selected" in call(2) and "no runs are selected" in call(2, "--yes")
    assert "unknown status 'bad'" in call(2, "--status", "bad")
    assert "is not a time" in call(2, "--since", "yesterday")
    assert "no run matches" in call(3, "--since", "2001-01-01T00:00+00:00")
    assert "no run matches" in call(3, "--since", "2001-01-01", "--campaign", "x")
    with Database.open(place) as db:
        assert db.store.count_runs() == 16
