"""First answers ran on this machine or on two others; models of every machine join the vote."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import CONFIGS, OP, band, fill, patterns, tiny
from numpy.typing import NDArray
from queries import changed

from embeddb.core.config import Config
from embeddb.database import Database
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.config_counts import well_tried
from embeddb.platforms.platform import Platform
from embeddb.ranking.build import build_query
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.choose import ranker_of
from embeddb.ranking.rankers.cost_model import CostModelRanker
from embeddb.ranking.rankers.joint import JointRanker
from embeddb.ranking.rankers.order import ran_first

PORTABLE = tiny(portable=True)
ONE, TWO, THREE, FOUR, NEW = (
    PORTABLE.at(name, {"cpu": name}) for name in ("one", "two", "three", "four", "new")
)
#: Another build on the first machine.
AGAIN = PORTABLE.at("again", {"cpu": "one", "compiler": "other"})


def best_is_d(_: object, variant: int) -> float:
    return (4.0, 3.0, 2.0, 1.0)[variant]


def known_to(ran: dict[Platform, tuple[int, ...]], *, third: int = 8) -> Database:
    """Each machine ran some of the variants on all patterns, the third only on some groups; d is
    always the fastest."""
    db = Database.in_memory()
    for platform, variants in ran.items():
        groups = third if platform is THREE else 8
        fill(db, platform, patterns(groups), times=best_is_d, variants=variants)
    return db


def asked(db: Database, platform: Platform = NEW) -> Query:
    return build_query(db.index, band(90, 14, name="new", group="new"), platform, OP)


def asked_partition(ran: dict[Platform, tuple[int, ...]]) -> AnswerIndex:
    part = known_to(ran).index.answering(OP, NEW)
    assert part is not None
    return part


ABC, ALL = (0, 1, 2), (0, 1, 2, 3)
CASES = {
    "only one other ran it": ({ONE: ALL, TWO: ABC, THREE: ABC}, NEW, 2),
    "two others ran it": ({ONE: ALL, TWO: ALL, THREE: ABC}, NEW, 3),
    "it ran here": ({ONE: ALL, TWO: ABC, THREE: ABC, FOUR: ABC}, ONE, 3),
    "another build here": ({AGAIN: ALL, ONE: ABC, TWO: ABC, THREE: ABC, FOUR: ABC}, ONE, 3),
    "no other but these ran it": ({TWO: ALL, ONE: ABC, THREE: ABC, FOUR: ABC}, ONE, 2),
    "two builds are one machine": ({AGAIN: ALL, ONE: ALL, TWO: ABC, THREE: ABC}, NEW, 2),
    "too few machines to ask for two": ({ONE: ALL, TWO: ABC}, NEW, 3),
}


@pytest.mark.parametrize("case", CASES)
def test_what_one_other_machine_ran_is_not_first(case: str) -> None:
    ran, here, first = CASES[case]
    db = known_to(ran)
    made = db.query(band(90, 14, name="new", group="new"), platform=here, op=OP)
    assert Config(made.best) == CONFIGS[first]
    assert CONFIGS[3] in [Config(c.config) for c in made.candidates], "it is still tried"
    if first != 3:
        assert made.candidates[0].order_reason == "ran elsewhere"


@pytest.mark.parametrize(("groups", "first"), [(8, 2), (7, 3), (1, 3)])
def test_a_few_runs_of_a_third_machine_decide_nothing(groups: int, first: int) -> None:
    db = known_to({ONE: ALL, TWO: ABC, THREE: ABC}, third=groups)
    made = db.query(band(90, 14, name="new", group="new"), platform=NEW, op=OP)
    assert Config(made.best) == CONFIGS[first]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_machine_has_tried_what_it_ran_on_three_matrices(count: int) -> None:
    db = known_to({ONE: ABC, TWO: ABC, THREE: ABC})
    fill(db, FOUR, patterns(1)[:count], times=best_is_d)
    part = db.index.answering(OP, FOUR)
    assert part is not None
    tried = well_tried(part.view_input, FOUR.id)
    assert tried is not None
    by_config = dict(zip(part.view_input.configs, tried.tolist(), strict=True))
    assert [by_config[c] for c in CONFIGS] == [True, True, True, count == 3]


def test_where_hardly_any_are_well_tried_all_may_be_first() -> None:
    view_input = asked_partition({ONE: ALL, TWO: ALL, THREE: ALL}).view_input

    def tried(*ran: tuple[int, ...]) -> NDArray[np.bool_] | None:
        """Of configurations repeated to 16, of which each machine ran some."""
        layers = []
        for layer, columns in zip(view_input.layers, ran, strict=True):
            gains = np.full((len(layer.gains), 16), np.nan)
            gains[:, columns] = 0.0
            layers.append(replace(layer, gains=gains))
        return well_tried(replace(view_input, layers=tuple(layers)), NEW.id)

    some = tried((0, 1, 2, 3, 4, 5), (0, 1, 2, 6), (0, 7))
    assert some is not None and np.flatnonzero(some).tolist() == [0, 1, 2]
    assert tried((0, 1, 2, 3, 4, 5), (0, 6, 7), (0, 8)) is None


def test_the_default_may_always_be_first() -> None:
    query = asked(known_to({ONE: ALL, TWO: ABC, THREE: ABC}))
    order, gain = np.arange(4), np.array([0.3, 0.1, 0.2, 0.0])
    only = changed(query, well_tried=frozenset(CONFIGS[1:3]))
    assert ran_first(only, CONFIGS, order, gain).tolist() == [0, 1, 2, 3]
    assert ran_first(only, CONFIGS, np.array([3, 2, 1, 0]), gain - 0.5).tolist() == [0, 3, 2, 1]


def test_it_is_asked_of_configurations_not_of_patterns() -> None:
    part = asked_partition({ONE: ALL, TWO: ABC, THREE: ABC})
    tried = well_tried(part.view_input, NEW.id)
    assert tried is not None
    by_config = dict(zip(part.view_input.configs, tried.tolist(), strict=True))
    assert [by_config[c] for c in CONFIGS] == [True, True, True, False]


def predicted(query: Query, *, joins: bool, judged: dict[str, float]) -> Query:
    """With a model that prefers what no two machines ran."""
    gain = np.array([{"a": 0.0, "b": 0.2, "c": 0.4, "d": 0.9}[str(c["variant"])] for c in CONFIGS])
    prediction = replace(
        query.prediction,
        configs=CONFIGS,
        gain=gain,
        spread=np.full(len(CONFIGS), 0.1),
        joins=joins,
        judged=judged,
    )
    return replace(query, prediction=prediction)


def test_models_keep_to_it_unless_hidden_configurations_allow_more() -> None:
    query = asked(known_to({ONE: ALL, TWO: ABC, THREE: ABC}))
    for ranker in (CostModelRanker, JointRanker):
        for allowed, first in ((False, CONFIGS[2]), (True, CONFIGS[3])):
            by = predicted(query, joins=False, judged={})
            by = changed(by, unrun_first=allowed)
            candidates = [Config(c.config) for c in ranker(by).candidates()]
            assert candidates[0] == first
            assert sorted(c.json for c in candidates) == sorted(c.json for c in CONFIGS)


def test_a_model_of_every_machine_is_joined_with_the_vote() -> None:
    query = asked(known_to({ONE: ALL, TWO: ALL, THREE: ALL}))
    both = {"rank": 0.9, "transfer": 0.8, "transfer+rank": 0.8}
    assert ranker_of(predicted(query, joins=False, judged=both)) is CostModelRanker
    assert ranker_of(predicted(query, joins=True, judged=both)) is JointRanker
    alone = changed(predicted(query, joins=True, judged=both), neighbours=(), configs=())
    assert ranker_of(alone) is CostModelRanker
