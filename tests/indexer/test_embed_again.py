"""Everything derived is made anew in one step: nobody sees it half done, nor finds it after a
kill."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import OP, band, fill, patterns, runs_of, tiny
from command_line import run_verb

from embeddb.core.pattern import Pattern
from embeddb.core.records import WorkloadInfo
from embeddb.database import Database
from embeddb.featurizers import sizes, stats
from embeddb.index import answer_file
from embeddb.index.answer_index import AnswerIndex
from indexer.embed import embed

SOME = patterns(3)
ASKED = band(134, 14, name="asked")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Database.create(tmp_path / "db") as db:
        fill(db, tiny(), SOME)
    return tmp_path / "db"


def _vectors(db: Database) -> dict[str, dict[str, bytes]]:
    ids = [p.id for p in SOME]
    return {
        name: {i: v.tobytes() for i, v in db.store.vectors.get(name, plug.version, ids).items()}
        for name, plug in db.index.featurizers().items()
    }


def _sound(folder: Path, expected: dict[str, dict[str, bytes]]) -> None:
    with Database.open(folder) as db:
        assert _vectors(db) == expected
        assert db.problems() == [] and db.index.unfinished() == []
        made = db.query(ASKED, platform="tiny", op=OP)
        assert (made.link, made.candidates[0].config) == ("neighbours", {"variant": "c"})
        assert not [line for line in made.warnings if "embed" in line or "rebuilt" in line]


class _Stop(BaseException):
    """As a kill, but of this test alone."""


def _stop(*_: Any, **__: Any) -> Any:
    raise _Stop


POINTS = {
    "the first vector": (stats.Stats, "embed"),
    "a later featurizer": (sizes.Rows, "from_info"),
    "the partitions": (AnswerIndex, "build"),
    "their files": (answer_file, "to_bytes"),
}


@pytest.mark.parametrize("point", POINTS)
def test_a_stop_leaves_the_old_or_the_new(
    folder: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Database.open(folder) as db:
        before = _vectors(db)
    with monkeypatch.context() as patch:
        patch.setattr(*POINTS[point], _stop)
        with Database.open(folder) as db, pytest.raises(_Stop):
            embed(db.index, again=True)
    _sound(folder, before)
    with Database.open(folder) as db:
        embed(db.index, again=True)
    _sound(folder, before)


def _rebuild(folder: str, steps: int) -> None:
    """Kills itself at a step of what it tells of its progress."""
    left = steps

    def told(*_: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    with Database.open(folder) as db:
        embed(db.index, again=True, progress=told)


def test_a_kill_leaves_the_old_or_the_new(folder: Path) -> None:
    with Database.open(folder) as db:
        before = _vectors(db)
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_rebuild, args=(str(folder), 2 * len(SOME) + 3))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    _sound(folder, before)


def _look(db: Database, seen: set[int], links: set[str]) -> None:
    held = _vectors(db)
    seen |= {len(held[name]) for name in ("stats", "given", "rows", "sizes")}
    links.add(db.query(ASKED, platform="tiny", op=OP).link)


def _watch(folder: str, ready: Any, over: Any, told: Any) -> None:
    """Another process, which opens the database anew each time."""
    seen: set[int] = set()
    links: set[str] = set()
    while not over.is_set():
        with Database.open(folder, readonly=True) as db:
            _look(db, seen, links)
        ready.set()
    told.put((seen, links))


def test_readers_see_every_vector_throughout(folder: Path) -> None:
    """A thread with the same database open, and another process: twelve of each, always."""
    seen: set[int] = set()
    links: set[str] = set()
    context = multiprocessing.get_context("spawn")
    ready, over, told = context.Event(), context.Event(), context.Queue()
    process = context.Process(target=_watch, args=(str(folder), ready, over, told))
    process.start()
    with Database.open(folder) as db:

        def watch() -> None:
            while not over.is_set():
                _look(db, seen, links)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            assert ready.wait(60)
            for _ in range(3):
                embed(db.index, again=True)
        finally:
            over.set()
            thread.join(60)
    elsewhere = told.get(timeout=60)
    process.join(60)
    assert (seen, links) == elsewhere == ({len(SOME)}, {"neighbours"})


def test_vectors_that_came_meanwhile_stay(folder: Path) -> None:
    """Another process adds a pattern while everything is made anew."""
    late, done = band(150, 14, name="late"), []

    with Database.open(folder) as db:

        def told(what: str, at: int, of: int) -> None:
            if not done and what.startswith("embed with"):
                done.append(what)
                db.index.add_pattern(late)
                db.store.append(runs_of(late, tiny()))

        embed(db.index, again=True, progress=told)
        assert done and db.index.unfinished() == []
        plug = db.index.featurizers().named("stats")
        assert late.id in db.store.vectors.get("stats", plug.version, [late.id])
        found = db.index.partition(OP, tiny())
        assert found is not None and late.id in found.ids


def test_vectors_of_other_versions_go(folder: Path) -> None:
    with Database.open(folder) as db:
        db.store.vectors.put("stats", "older", {SOME[0].id: np.zeros(3, np.float32)})
        embed(db.index, again=True)
        assert db.store.vectors.get("stats", "older", [SOME[0].id]) == {}


def test_what_cannot_be_made_here_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Database.open(folder) as db:
        before = _vectors(db)
        monkeypatch.setattr(stats.Stats, "missing", lambda self: "no torch", raising=False)
        report = embed(db.index, again=True)
        assert report.vectors["stats"] == len(SOME)
        assert _vectors(db) == before


def test_patterns_without_vectors_are_said(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As an older program left it when it was killed."""
    with Database.open(folder) as db:
        db.store.vectors.exchange({}, ())
        db.index.forget_partitions()
    assert run_verb(["db", "check", str(folder)]) == 0
    said = "12 patterns with a structure and without a vector"
    assert said in capsys.readouterr().err
    with Database.open(folder) as db:
        made = db.query(ASKED, platform="tiny", op=OP)
        assert made.link == "static-best"
        (line,) = [line for line in made.warnings if "`embeddb embed`" in line]
        assert "12 measured patterns without a vector" in line
        embed(db.index)
    with Database.open(folder) as db:
        new: Pattern = band(150, 14, name="new")
        db.store.put_structure(new, WorkloadInfo.whole(new))
        db.store.append(runs_of(new, tiny()))
        db.index.refresh(OP, "tiny")
    with Database.open(folder) as db:
        made = db.query(ASKED, platform="tiny", op=OP)
        assert any("1 measured pattern without a vector" in line for line in made.warnings)
