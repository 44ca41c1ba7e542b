"""Partitions of very many patterns: some are held, a question's own neighbours are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from builders import OP, by_law, fill, patterns, runs_of, tiny

from embeddb.core.pattern import Pattern
from embeddb.database import Database
from embeddb.index import large
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.run_matrix import RunMatrix
from embeddb.ui.serve import facts, measured
from embeddb.ui.serve.app_state import AppState
from indexer.coverage import scope_states
from indexer.embed import embed

MANY = patterns(15)
ASKED = patterns(18)[64:]
PLATFORM = tiny()


@pytest.fixture(autouse=True)
def small_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "MOST_FITTED", 24)
    monkeypatch.setattr(large, "SAMPLE", 20)
    monkeypatch.setattr(large, "OF_EACH", 8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Database.create(tmp_path / "db") as db:
        fill(db, PLATFORM, MANY)
    return tmp_path / "db"


def _partition(db: Database) -> AnswerIndex:
    found = db.index.partition(OP, PLATFORM)
    assert found is not None
    return found


def _around(db: Database, pattern: Pattern) -> AnswerIndex:
    base = _partition(db)
    vector = db.index.vector(pattern, base.featurizer)
    return db.index.around(base, vector, pattern.id, PLATFORM)


def test_what_is_held_and_what_is_found(folder: Path) -> None:
    with Database.open(folder) as db:
        base = _partition(db)
        assert base.lists is not None and base.lists.count == base.indexed == 60
        assert len(base.ids) == len(base.evidence.rows) == 20
        told = base.describe()
        assert (told["indexed"], told["fitted_on"]) == (60, 20) and told["recall"] > 0.98
        held, brought = set(base.ids), set[str]()
        for pattern in ASKED:
            asked = _around(db, pattern)
            at = base.metric.apply(db.index.vector(pattern, base.featurizer)[None])[0]
            nearest = base.lists.nearest(at, 5)[0]
            assert asked.nearest(db.index.vector(pattern, base.featurizer), count=5)[0] == nearest
            brought |= set(asked.ids) - held
        assert brought and brought <= {p.id for p in MANY}


def test_neighbours_rows_are_as_if_all_were_held(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with Database.open(folder) as db:
        asked = _around(db, ASKED[3])
    monkeypatch.setattr(large, "MOST_FITTED", 100)
    with Database.create(tmp_path / "whole") as db:
        whole = _partition(fill(db, PLATFORM, MANY))
        assert whole.lists is None
    one, two = asked.view(PLATFORM), whole.view(PLATFORM)
    columns = [two_config_place(whole.evidence, c) for c in asked.evidence.configs]
    for pattern_id in set(asked.ids) & {p.id for p in MANY}:
        mine, theirs = asked.places_of([pattern_id])[0], whole.places_of([pattern_id])[0]
        assert one.gains[mine] == pytest.approx(two.gains[theirs][columns])
        assert one.trust[mine] == pytest.approx(two.trust[theirs][columns])
        assert one.shares[mine].tolist() == two.shares[theirs].tolist()
        level = one.gains[mine] - one.averages.prior
        assert one.averages.level[mine] == pytest.approx(np.nanmean(level), abs=1e-2)


def two_config_place(evidence: RunMatrix, config: object) -> int:
    return [*evidence.configs].index(config)  # type: ignore[arg-type]


def test_answers_are_right_and_tell_their_neighbours(folder: Path) -> None:
    with Database.open(folder) as db:
        held = set(_partition(db).ids)
        others = 0
        for pattern, best in zip(ASKED, "abcd" * 2, strict=True):
            made = db.query(pattern, platform="tiny", op=OP)
            assert made.best == {"variant": best}, pattern.name
            # The small set of groups is warned of, nothing else.
            assert all("groups only" in warning for warning in made.warnings)
            others += sum(n.pattern_id not in held for n in made.neighbours)
            assert db.explain(made.id).agreement
        assert others > 0


def test_a_pattern_that_is_not_held_knows_its_own_runs(folder: Path) -> None:
    with Database.open(folder) as db:
        held = set(_partition(db).ids)
        pattern = next(p for p in MANY if p.id not in held)
        made = db.query(pattern, platform="tiny", op=OP)
        assert made.candidates[0].seconds == pytest.approx(
            min(by_law(pattern, v) for v in range(4))
        )
        assert all(n.pattern_id != pattern.id for n in made.neighbours)


def test_new_runs_and_patterns_count_without_a_rebuild(folder: Path) -> None:
    new = patterns(22)[80:84]
    with Database.open(folder) as db:
        before = _partition(db)
        other = next(p for p in MANY if p.id not in before.ids)
        # From now on variant d is the fastest there.
        late = runs_of(other, PLATFORM, times=lambda p, v: by_law(p, v) * (1 if v == 3 else 1e3))
        db.store.append(late)
        for pattern in new:
            db.index.add_pattern(pattern)
        db.store.append(run for p in new for run in runs_of(p, PLATFORM))
        now = _partition(db)
        assert now.lists is not None and set(now.lists.newer) >= {bytes.fromhex(p.id) for p in new}
        assert now.ids == before.ids
        asked = _around(db, new[0])
        assert asked.nearest(db.index.vector(new[0], now.featurizer), count=1)[0] == [new[0].id]
        fresh = _around(db, other)
        winner = fresh.evidence.winner(fresh.row_of(other.id))
        assert winner is not None and dict(fresh.evidence.configs[winner]) == {"variant": "d"}


def test_pages_and_lists_say_that_they_tell_of_some(folder: Path) -> None:
    with Database.open(folder, readonly=True) as db:
        (state,) = scope_states(db.index)
        assert any("figures rest on 20 of them" in line for line in state["missing"])
        site = AppState(db, writable=False, max_upload=1)
        assert measured.runs(site, {"platform": "tiny", "op": str(OP)})["unread"] == 40
        left_out = next(p for p in MANY if p.id not in _partition(db).ids)
        (near,) = facts.pattern(site, {"id": left_out.id})["neighbours"]
        assert near["patterns"] and near["patterns"][0]["id"] != left_out.id


@pytest.mark.parametrize("anew", [False, True])
def test_a_machine_with_few_runs_is_not_lost_among_others(tmp_path: Path, *, anew: bool) -> None:
    pair = tiny("pair", portable=True)
    one, two = pair.at("one", {"cpu": "a"}), pair.at("two", {"cpu": "b"})
    with Database.create(tmp_path / "db") as db:
        fill(db, one, MANY)
        base = db.index.partition(OP, one)
        assert base is not None and base.view(two).own == 0
        calibrated = [p for p in MANY if p.id not in base.ids][:5]
        db.store.put_platform(two)
        db.store.append(run for p in calibrated for run in runs_of(p, two))
        if anew:
            db.index.forget_partitions()
        now = db.index.partition(OP, two)
        assert now is not None and now.lists is not None
        assert now.view(two).own == 5
        assert db.query(ASKED[0], platform="pair@two", op=OP).best == {"variant": "a"}


def test_it_is_read_again_as_it_was(folder: Path) -> None:
    with Database.open(folder) as db:
        one = db.query(ASKED[0], platform="tiny", op=OP)
    with Database.open(folder) as db:
        two = db.query(ASKED[0], platform="tiny", op=OP)
        assert db.problems() == [] and two.warnings == one.warnings
    assert one.candidates == two.candidates and one.neighbours == two.neighbours
    assert len([*(folder / "index").iterdir()]) == 2


@pytest.mark.parametrize("place", [3, 100, -3])
def test_damaged_lists_are_made_anew(folder: Path, place: int) -> None:
    (file,) = (folder / "index").glob("*.lists")
    raw = bytearray(file.read_bytes())
    raw[place] ^= 0x40
    file.write_bytes(raw)
    with Database.open(folder) as db:
        assert any("rebuilt by the next query" in line for line in db.problems())
        told = [w for p in ASKED for w in db.query(p, platform="tiny", op=OP).warnings]
        assert any("rebuilt" in line for line in told)
        assert _partition(db).lists is not None and db.problems() == []


def test_lists_that_are_gone_are_made_anew(folder: Path) -> None:
    (file,) = (folder / "index").glob("*.lists")
    file.unlink()
    with Database.open(folder) as db:
        assert any("rebuilt" in line for line in db.problems())
        made = db.query(ASKED[0], platform="tiny", op=OP)
        assert any("rebuilt" in line for line in made.warnings)
    (made_anew,) = (folder / "index").glob("*.lists")
    assert made_anew.stat().st_size > 0


def test_a_database_in_memory_has_them_too() -> None:
    with Database.in_memory() as db:
        fill(db, PLATFORM, MANY)
        assert _partition(db).lists is not None
        assert db.query(ASKED[1], platform="tiny", op=OP).best == {"variant": "b"}


def test_many_changes_make_it_anew(folder: Path) -> None:
    new = patterns(30)[60:]
    with Database.open(folder) as db:
        before = _partition(db)
        for pattern in new:
            db.index.add_pattern(pattern)
        db.store.append(run for p in new for run in runs_of(p, PLATFORM))
        now = _partition(db)
        assert now.lists is not None and before.lists is not None
        assert (now.lists.count, before.lists.count) == (120, 60)
        embed(db.index)
