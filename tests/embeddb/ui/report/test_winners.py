"""Platforms whose records name only the best configuration of each matrix."""

from __future__ import annotations

import pytest
from builders import VARIANTS, band, by_law, patterns, tiny, winner

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound
from embeddb.core.records import Measurement, Run
from embeddb.database import Database
from embeddb.platforms.platform import parse_platform
from indexer.coverage import scope_states
from indexer.embed import embed
from tuners.evaluation.evaluate import evaluate

OP = Op("spmm", 8)


@pytest.fixture
def db() -> Database:
    found = Database.in_memory()
    platform = parse_platform(tiny().text + "\n[traits]\nwinners_only = 1\n")
    for pattern in patterns(6):
        best = winner(pattern)
        measured = Measurement(times_s=(by_law(pattern, best),))
        config = Config({"variant": VARIANTS[best]})
        found.index.record([Run(pattern.id, OP, platform.id, config, measured)], pattern, platform)
    embed(found.index)
    return found


def test_neighbours_vote_for_what_won(db: Database) -> None:
    new = band(153, 14, name="new", group="new")
    made = db.query(new, platform="tiny", op=OP)
    assert made.link == "neighbours"
    assert made.candidates[0].config == {"variant": VARIANTS[winner(new)]}
    assert all(c.expected_gain is None for c in made.candidates)
    assert any("not known" in warning for warning in made.warnings)


def test_hits_are_counted_where_times_cannot_be_compared(db: Database) -> None:
    (state,) = scope_states(db.index)
    assert state["of_optimum_held_out"] is None
    assert state["winner_hits_held_out"] > 0.8 > 2 * state["static_best_hits_held_out"]
    assert any("only winners are recorded" in line for line in state["missing"])
    with pytest.raises(NothingFound, match="nothing to judge"):
        evaluate(db.index)
