"""Fitting is done once: what it found is noted, and used only for the same runs and features."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import OP, by_chance, fill, patterns, runs_of, tiny

from embeddb.core.config import Op
from embeddb.database import Database
from embeddb.index import answer_file, fit, large
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.files import _FITTED_PER_S, _READ_PER_S
from embeddb.index.fit import FitNote, read_note
from embeddb.index.scopes import facts_of
from indexer.starter import copy_starter

NOTE = f"fit/{OP}/tiny"
SOME = patterns(3)


@pytest.fixture
def db(tmp_path: Path) -> Database:
    return fill(Database.create(tmp_path / "db"), tiny(), SOME, times=by_chance(1))


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
