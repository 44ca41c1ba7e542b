"""Where a machine's own runs alone answer better than together with those of other machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import OP, Times, band, by_chance, by_law, fill, patterns, runs_of, tiny

from embeddb.core.pattern import Pattern
from embeddb.database import Database
from embeddb.explain.deep import deepening
from embeddb.index import answer_index
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.view import FEWEST_GROUPS
from embeddb.ranking.alternatives import renewed
from embeddb.ranking.build import build_query
from embeddb.ranking.recommendation import Recommendation

PAIR = tiny("pair", portable=True)
HOMES, HERE = [PAIR.at(name) for name in ("one", "two", "three")], PAIR.at("here")
NEW = band(121, 14, name="new", group="new")


def home_law(pattern: Pattern, variant: int) -> float:
    return float(by_law(pattern, variant) * by_chance(3, 0.5)(pattern, variant))


def other_law(pattern: Pattern, variant: int) -> float:
    """Variants have changed places in pairs, so that no shift of a variant describes it."""
    return float(by_law(pattern, variant ^ 1) * by_chance(5, 0.5)(pattern, variant))


def opened(db: Database, law: Times = other_law, *, groups: int = 10) -> AnswerIndex:
    """The index of three machines of one law, and a fourth with some of their matrices."""
    for home in HOMES:
        fill(db, home, patterns(14), times=home_law)
    fill(db, HERE, patterns(groups), times=law)
    found = db.index.answering(OP, HERE)
    assert found is not None
    return found


def ask(db: Database, pattern: Pattern = NEW) -> Recommendation:
    return db.query(pattern, platform=HERE, op=OP)


def test_an_unlike_machine_answers_by_its_own_runs() -> None:
    found = opened(db := Database.in_memory())
    alone = found.alone(HERE)
    assert alone is not None and set(alone.ids) == {p.id for p in patterns(10)}
    answer = ask(db)
    assert set(answer.machines) == {HERE.id}
    assert {n.pattern_id for n in answer.neighbours} <= set(alone.ids)
    for home in HOMES:
        assert db.query(NEW, platform=home, op=OP).machines.keys() != {HERE.id}


def test_other_machines_are_still_known_to_have_run() -> None:
    """A model that does not say of which machine it is must not pass for this one's."""
    opened(db := Database.in_memory())
    assert build_query(db.index, NEW, HERE, OP).vote.origin.elsewhere


def test_its_answer_is_explained_by_the_same_runs() -> None:
    opened(db := Database.in_memory())
    asked: list[AnswerIndex] = []

    def nearest(self: AnswerIndex, *args: Any, **named: Any) -> Any:
        asked.append(self)
        return found(self, *args, **named)

    answer, found = ask(db), AnswerIndex.nearest
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AnswerIndex, "nearest", nearest)
        deepened = renewed(db.index, answer, NEW, HERE, deepen=deepening(db.index, NEW)).insight
    assert deepened is not None and deepened.deep
    assert asked and all(len(index.ids) == 40 for index in asked)


@pytest.mark.parametrize(("law", "groups"), [(home_law, 10), (other_law, FEWEST_GROUPS - 1)])
def test_other_machines_count_where_they_agree_or_own_groups_are_few(
    law: Times, groups: int
) -> None:
    found = opened(db := Database.in_memory(), law, groups=groups)
    assert found.alone(HERE) is None
    assert HOMES[0].id in ask(db).machines


def test_a_matrix_that_another_machine_ran_is_answered_with_it() -> None:
    opened(db := Database.in_memory())
    known = patterns(1, first=13)[0]
    nearest = ask(db, known).neighbours[0]
    assert nearest.pattern_id == known.id and nearest.platform != HERE.id


def test_the_choice_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Database.create(tmp_path / "db") as db:
        opened(db)
        first = ask(db)

    def again(*_: object) -> None:
        raise AssertionError("it was chosen before")

    monkeypatch.setattr(answer_index, "policy_alone", again)
    with Database.open(tmp_path / "db") as db:
        assert ask(db).machines == first.machines


def test_its_neighbours_were_searched_without_what_they_are_judged_by() -> None:
    """In a metric that was fitted to the very gains, own runs would always seem better."""
    found = opened(Database.in_memory())
    alone = found.alone(HERE)
    assert alone is not None
    for pattern_id, row in zip(alone.ids, alone.near.distances, strict=True):
        held_out = found.near.distances[found.ids.index(pattern_id)]
        assert set(row[np.isfinite(row)]) <= set(held_out)


@pytest.mark.parametrize("stubs", [1, 2, 4])
def test_matrices_without_a_vector_do_not_mix_up_the_others(stubs: int) -> None:
    db = Database.in_memory()
    for pattern in patterns(1, first=30)[:stubs]:
        db.store.put_platform(HERE)
        db.store.append(runs_of(pattern, HERE, times=other_law))
    assert opened(db).alone(HERE) is not None


def test_a_matrix_that_only_this_machine_ran_is_still_answered_by_its_runs() -> None:
    opened(db := Database.in_memory())
    first = ask(db)
    db.index.record(runs_of(NEW, HERE, times=other_law, variants=[0]), NEW, HERE)
    assert set(ask(db).machines) == set(first.machines) == {HERE.id}
