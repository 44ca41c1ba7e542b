"""Stored answers: in the order they were given, and named where they are none."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import OP, band, fill, patterns, tiny
from command_line import run_verb

from embeddb.core.errors import NothingFound, StoreCorrupt
from embeddb.database import Database
from embeddb.ranking.answers import in_order
from embeddb.ui.serve.app_state import stored_head


def _ask(db: Database, size: int) -> str:
    return db.query(band(size, 6, name=f"n{size}"), platform="tiny", op=OP).id


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Database.create(tmp_path / "db") as db:
        fill(db, tiny(), patterns(2))
    return tmp_path / "db"


def test_the_last_answer_is_the_one_given_last_whatever_the_clock_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, given = time.time, []
    with Database.open(folder) as db:
        for size, shift in ((61, 0.0), (62, -86_400.0), (63, 1e7), (64, -1e6)):
            monkeypatch.setattr(time, "time", lambda shift=shift: real() + shift)
            given.append(_ask(db, size))
        monkeypatch.setattr(time, "time", real)
        assert [made.id for made in db.recommendations()] == given
        heads = in_order(db.index, stored_head, lambda head: head.created)
        assert [head.id for head in heads] == given
        with pytest.raises(NothingFound) as e:
            db.recommendation("r0")
        assert e.value.hint == f"latest: {', '.join(given[:0:-1])}"
    assert run_verb(["explain", str(folder), "last", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == given[-1]


def test_answers_of_older_programs_come_before_and_by_their_clock(folder: Path) -> None:
    with Database.open(folder) as db:
        old = [db.recommendation(_ask(db, size)) for size in (61, 62, 63)]
        db.store.notes.delete(db.store.notes.items("answer/"))
        for made, created in zip(old, (3.0, 1.0, 2.0), strict=True):
            raw = msgspec.json.encode(msgspec.structs.replace(made, created=created))
            db.store._engine.write(
                lambda txn, id=made.id, raw=raw: txn.put("recommendation", id.encode(), raw)
            )
        new = _ask(db, 64)
        order = [made.id for made in db.recommendations()]
    assert order == [old[1].id, old[2].id, old[0].id, new]


def _changed(raw: bytes, **fields: Any) -> bytes:
    return json.dumps(json.loads(raw) | fields).encode()


NONE = {
    "deep": lambda _: b"[" * 200_000,
    "another type": lambda _: b"{}",
    "no text": lambda _: b"\xff\xfe",
    "no operation": lambda raw: _changed(raw, op="spmm:wide"),
    "no pattern": lambda raw: _changed(raw, pattern_id="../x"),
    "another id": lambda raw: _changed(raw, id="r000000000000"),
    "a configuration that is none": lambda raw: _changed(raw, default={"a": {"b": [1]}}),
}


@pytest.mark.parametrize("kind", NONE)
def test_an_answer_that_is_none_is_named_and_the_others_are_listed(
    folder: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Database.open(folder) as db:
        good, bad = _ask(db, 61), _ask(db, 62)
        raw = db.store.recommendations.get(bad)
        assert raw is not None
        db.store.recommendations.put(bad, NONE[kind](raw))
        assert [made.id for made in db.recommendations()] == [good]
        (line,) = db.problems()
        with pytest.raises(StoreCorrupt, match=f"^answer {bad}: ") as e:
            db.recommendation(bad)
        assert str(e.value) == line and "\n" not in line
    assert run_verb(["explain", str(folder), "last", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["id"] == good and f"answer {bad}" in err
    assert run_verb(["explain", str(folder), bad]) == 1
    for words in (["report", str(folder)], ["db", "stat", str(folder)]):
        assert run_verb(words) == 0
    assert run_verb(["db", "check", str(folder)]) == 1
    assert f"answer {bad}" in capsys.readouterr().out


def test_a_count_of_answers_that_nobody_made_stops_nothing(folder: Path) -> None:
    with Database.open(folder) as db:
        db.store._engine.write(lambda txn: txn.put("meta", b"answers", b"\xff" * 8))
        given = [_ask(db, 61), _ask(db, 62)]
        assert [made.id for made in db.recommendations()] == given


@pytest.mark.parametrize(
    "fields",
    [
        {"features": {"x": [1e308, -1e308, 0.0]}},
        {"created": 1e300, "generation": 1 << 62},
        {"candidates": [], "link": "nowhere", "confidence": "never"},
    ],
)
def test_an_answer_that_lies_is_explained_all_the_same(folder: Path, fields: Any) -> None:
    with Database.open(folder) as db:
        given = _ask(db, 61)
        raw = db.store.recommendations.get(given)
        assert raw is not None
        db.store.recommendations.put(given, _changed(raw, **fields))
    for words in (["explain", str(folder), given], ["report", str(folder)]):
        assert run_verb(words) == 0
