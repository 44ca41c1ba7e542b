"""Fitting is done once: what it found is noted, and used only for the same runs and features."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import OP, by_chance, fill, patterns, runs_of, tiny

from embeddb.core.config import Op
from embeddb.core.records import WorkloadInfo
from embeddb.database import Database
from embeddb.index import answer_file, fit, large
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.evidence import FIT_VERSION
from embeddb.index.files import _FITTED_PER_S, _READ_PER_S
from embeddb.index.fit import FitNote, read_note
from embeddb.index.scopes import facts_of
from embeddb.platforms.platform import parse_platform
from embeddb.store import merge_facts
from embeddb.ui.cli.main import cli
from indexer.starter import copy_starter

NOTE = f"fit/{OP}/tiny"
SOME = patterns(3)
FAMILIES = {one.group for one in SOME}
#: The same matrices, of which no log names the families yet.
ALONE = [replace(one, group="") for one in SOME]


@pytest.fixture
def db(tmp_path: Path) -> Database:
    return fill(Database.create(tmp_path / "db"), tiny(), SOME, times=by_chance(1))


@pytest.fixture
def alone(tmp_path: Path) -> Database:
    db = Database.create(tmp_path / "alone")
    return fill(db, tiny(), ALONE, times=by_chance(1))


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for every time that votes are judged."""
    done: list[int] = []
    judged: Callable[..., Any] = fit.cross_validated

    def counted(*args: Any, **more: Any) -> Any:
        done.append(1)
        return judged(*args, **more)

    monkeypatch.setattr(fit, "cross_validated", counted)
    return done


def put_families(db: Database, imported: bool = False) -> None:
    """Store the families of the matrices, as a log does or as an import."""
    infos = [WorkloadInfo(id=one.id, group=one.group) for one in SOME]
    if imported:
        db.store.take([], infos)
    else:
        db.store.put_patterns(infos)


def rebuilt(db: Database, *, again: bool = False) -> AnswerIndex:
    db.index.forget_partitions()
    found = db.index.refresh(OP, "tiny", again=again)
    assert found is not None
    return found


def test_the_same_runs_are_not_fitted_twice(db: Database, fits: list[int]) -> None:
    first = rebuilt(db)
    assert len(fits) <= 1
    fits.clear()
    noted = rebuilt(db)
    assert not fits and answer_file.to_bytes(noted) == answer_file.to_bytes(first)
    anew = rebuilt(db, again=True)
    assert fits and answer_file.to_bytes(anew) == answer_file.to_bytes(first)


def test_other_runs_and_other_features_are_fitted(
    db: Database, fits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rebuilt(db)
    db.store.append(runs_of(SOME[0], tiny(), times=by_chance(2)))
    fits.clear()
    rebuilt(db)
    assert len(fits) == 1
    runs, readable = db.index.evidence(OP, "tiny")
    facts = facts_of(db.store, OP, "tiny")
    note = read_note(db.store.notes.get(NOTE), FitNote)
    assert note is not None
    name, among = note.featurizer, note.among
    given = fit.FitInput(runs, readable, facts)
    assert given.is_of(note, among)
    # One that cannot be computed here is not missed; a new one or another version may be better.
    assert given.is_of(note, {name: among[name]})
    assert not given.is_of(note, {**among, "mine": "1"})
    assert not given.is_of(note, {**among, name: "0"})
    vectors = {**readable[name]}
    vectors[SOME[0].id] = vectors[SOME[0].id] + 1
    fewer = runs.take(np.arange(len(runs.rows) - 1))
    assert not fit.FitInput(runs, {name: vectors}, facts).is_of(note, among)
    assert not fit.FitInput(runs, readable, {"tiny": {"cpu": "other"}}).is_of(note, among)
    assert not fit.FitInput(fewer, readable, facts).is_of(note, among)


@pytest.mark.parametrize("imported", [False, True])
def test_families_that_arrive_after_the_runs_are_fitted(
    alone: Database, fits: list[int], imported: bool
) -> None:
    rebuilt(alone)
    generation = alone.store.generation  # of which remembered answers are
    fits.clear()
    put_families(alone, imported)
    assert alone.store.generation == generation + 1  # for a batch, which may be of thousands
    alone.index._files._open.clear()
    queried = alone.index._files.get(OP, "tiny")
    assert queried is not None and set(queried.evidence.groups) == FAMILIES and fits
    noted = alone.index.refresh(OP, "tiny")
    assert noted is not None
    assert answer_file.to_bytes(noted) == answer_file.to_bytes(rebuilt(alone, again=True))
    generation = alone.store.generation
    put_families(alone)
    alone.store.put_patterns([WorkloadInfo(id=ALONE[0].id, about={"note": "seen"})])
    assert alone.store.generation == generation


def test_facts_of_machines_and_winners_that_arrive_later_are_fitted(
    db: Database, fits: list[int]
) -> None:
    here = tiny().at("here", {"cpu": "one"})
    fill(db, here, SOME, times=by_chance(1))
    db.index.refresh(OP, here.id)
    fits.clear()
    stamp = db.index.partition(OP, here).stamp
    db.store.put_platform(tiny().at("here", {"cpu": "another"}))
    queried = db.index.partition(OP, here)
    assert queried.facts == {here.id: {"cpu": "another"}} and queried.stamp != stamp and not fits
    later = db.index.refresh(OP, here.id)
    assert later is not None and later.facts == {here.id: {"cpu": "another"}} and fits
    text = tiny().text.replace("[[space]]", "[traits]\nwinners_only = true\n\n[[space]]")
    db.store.put_platform(parse_platform(text).at("here"))
    later = db.index.refresh(OP, here.id)
    assert later is not None and later.evidence.winners


@pytest.mark.parametrize("missed", [False, True])
def test_a_partition_that_missed_families_is_built_again(
    alone: Database, fits: list[int], monkeypatch: pytest.MonkeyPatch, missed: bool
) -> None:
    rebuilt(alone)
    if missed:  # older code did not mark the patterns
        monkeypatch.setattr(merge_facts, "raise_generation", lambda txn, members: None)
        put_families(alone)
    key = f"partition/{OP}/tiny"
    older = {**json.loads(alone.store.notes.get(key) or b""), "fit": FIT_VERSION}
    alone.store.notes.put(key, json.dumps(older).encode())
    alone.index._files._open.clear()
    fits.clear()
    queried = alone.index._files.get(OP, "tiny")
    assert queried is not None and bool(fits) == missed
    assert (set(queried.evidence.groups) == FAMILIES) == missed


def test_the_time_that_building_takes_is_estimated(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, runs = db.index._files, db.store.count_runs()
    db.index.forget_partitions()
    db.store.notes.delete([NOTE])
    unfitted = db.index.preparing_s(OP, "tiny")
    assert unfitted == pytest.approx(runs / _READ_PER_S + runs / _FITTED_PER_S)
    rebuilt(db)
    assert db.index.preparing_s(OP, "tiny") == 0.0
    db.index.forget_partitions()
    assert db.index.preparing_s(OP, "tiny") == pytest.approx(runs / _READ_PER_S)
    # Of very many matrices only some are read.
    monkeypatch.setattr(large, "MOST_FITTED", 4)
    monkeypatch.setattr(large, "SAMPLE", 2)
    monkeypatch.setattr(large, "OF_EACH", 2)
    held = large.fit_sample([files._store.members(t) for t in db.store.partitions()])
    assert held is not None and len(held) < len(SOME)
    part = len(held) / len(SOME)
    assert db.index.preparing_s(OP, "tiny") == pytest.approx(part * runs / _READ_PER_S)


WRONG: dict[str, dict[str, Any]] = {
    "another stamp": {"stamp": "0" * 32},
    "no such featurizer": {"featurizer": "nobody"},
    "chosen among none": {"among": {}},
    "no policy": {"policy": "[]"},
    "a policy that no fit chooses": {
        "policy": json.dumps({"k": 12345, "shrink": "nan", "loss": "0"})
    },
    "nonsense about machines": {"left_out": "{}"},
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_note_that_does_not_fit_is_not_used(db: Database, fits: list[int], kind: str) -> None:
    first = rebuilt(db)
    raw = db.store.notes.get(NOTE)
    assert raw is not None
    db.store.notes.put(NOTE, json.dumps({**json.loads(raw), **WRONG[kind]}).encode())
    fits.clear()
    assert answer_file.to_bytes(rebuilt(db)) == answer_file.to_bytes(first)
    assert fits and db.store.notes.get(NOTE) == raw


@pytest.mark.slow
@pytest.mark.parametrize("name", ["spmm:32", "spmm:512", "spmv", "sddmm:128"])
@pytest.mark.parametrize("scope", ["cpu", "cuda"])
def test_the_starter_has_the_fits_of_its_partitions(
    tmp_path: Path, fits: list[int], name: str, scope: str
) -> None:
    """A first question about an operation would wait 5 to 9 seconds longer. Where this fails,
    fitting has changed, and the starter is to be packed again."""
    copy_starter(tmp_path / "db")
    with Database.open(tmp_path / "db") as db:
        assert db.index.refresh(Op.parse(name), scope) is not None
    assert not fits


@pytest.mark.parametrize("verb", ["report", "db stat", "plot map"])
def test_what_a_reading_verb_prepares_is_kept(tmp_path: Path, verb: str) -> None:
    place = tmp_path / "db"
    with Database.create(place) as db:
        fill(db, tiny(), SOME).index.forget_partitions()
        assert db.index.preparing_s(OP, "tiny") > 0.0
    options = ["--platform", "tiny", "--op", str(OP), "-o", str(tmp_path / "map.svg")]
    words = [*verb.split(), str(place), *(options if verb == "plot map" else [])]
    cli.main(words, standalone_mode=False)
    with Database.open(place, readonly=True) as db:
        assert db.index.preparing_s(OP, "tiny") == 0.0
