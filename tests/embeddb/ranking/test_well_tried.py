"""First answers ran on this machine or on two others; refined models are joined with the vote."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import CONFIGS, OP, band, fill, tiny
from queries import changed

from embeddb.core.config import Config
from embeddb.database import Database
from embeddb.index.view import well_tried
from embeddb.platforms.platform import Platform
from embeddb.ranking.build import build_query
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.choose import ranker_of
from embeddb.ranking.rankers.cost_model import CostModelRanker
from embeddb.ranking.rankers.joint import JointRanker

PORTABLE = tiny(portable=True)
ONE, TWO, THREE, NEW = (PORTABLE.at(name, {"cpu": name}) for name in ("one", "two", "three", "new"))
#: Another build on the first machine.
AGAIN = PORTABLE.at("again", {"cpu": "one", "compiler": "other"})


def best_is_d(_: object, variant: int) -> float:
    return (4.0, 3.0, 2.0, 1.0)[variant]


def known_to(ran: dict[Platform, tuple[int, ...]]) -> Database:
    """Each machine ran some of the variants on all patterns; d is always the fastest."""
    db = Database.in_memory()
    for platform, variants in ran.items():
        fill(db, platform, times=best_is_d, variants=variants)
    return db


def asked(db: Database, platform: Platform = NEW) -> Query:
    return build_query(db.index, band(90, 14, name="new", group="new"), platform, OP)


ABC, ALL = (0, 1, 2), (0, 1, 2, 3)
CASES = {
    "only one other ran it": ({ONE: ALL, TWO: ABC, THREE: ABC}, NEW, 2),
    "two others ran it": ({ONE: ALL, TWO: ALL, THREE: ABC}, NEW, 3),
    "it ran here": ({ONE: ALL, TWO: ABC, THREE: ABC}, ONE, 3),
    "another build here": ({AGAIN: ALL, ONE: ABC, TWO: ABC, THREE: ABC}, ONE, 3),
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


def test_it_is_asked_of_configurations_not_of_patterns() -> None:
    db = known_to({ONE: ALL, TWO: ABC, THREE: ABC})
    part = db.index.answering(OP, NEW)
    assert part is not None
    tried = well_tried(part.ground, NEW.id)
    assert tried is not None
    by_config = dict(zip(part.ground.configs, tried.tolist(), strict=True))
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


def test_where_local_runs_judged_the_vote_both_are_joined() -> None:
    query = asked(known_to({ONE: ALL, TWO: ALL, THREE: ALL}))
    both = {"rank": 0.9, "transfer": 0.8, "transfer+rank": 0.8}
    assert ranker_of(predicted(query, joins=False, judged=both)) is CostModelRanker
    assert ranker_of(predicted(query, joins=True, judged=both)) is JointRanker
    alone = changed(predicted(query, joins=True, judged=both), neighbours=(), configs=())
    assert ranker_of(alone) is CostModelRanker
