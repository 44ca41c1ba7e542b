"""The chance of failing: from neighbours and from all patterns, in the order, beside the gain."""

from __future__ import annotations

import numpy as np
import pytest
from builders import CONFIGS, OP, band, fill, patterns, runs_of, tiny

from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, Run
from embeddb.database import Database
from embeddb.explain.explanation import fails
from embeddb.index.config_counts import Failures
from embeddb.ranking.build import build_query
from embeddb.ranking.rankers.order import chances, likely_last
from embeddb.ranking.recommendation import Candidate, Recommendation
from embeddb.ui.cli.explain_text import show_explanation
from embeddb.ui.report.explanation import explanation_html
from indexer.embed import embed

NEW = band(137, 14, name="new")
#: Fails on patterns as long as the new one, and on no other.
BROKEN = 2


def _runs(pattern: Pattern) -> list[Run]:
    length = pattern.nnz / pattern.shape[0]
    failed = Run(pattern.id, OP, "tiny", CONFIGS[BROKEN], Measurement("oom"))
    rest = [run for run in runs_of(pattern, tiny()) if run.config != CONFIGS[BROKEN]]
    return [*rest, failed] if length > 10 else runs_of(pattern, tiny())


@pytest.fixture(scope="module")
def broken() -> Database:
    db = Database.in_memory()
    db.store.put_platform(tiny())
    for pattern in patterns():
        db.index.record(_runs(pattern), pattern, tiny())
    embed(db.index)
    return db


def test_neighbours_and_all_patterns_tell_how_likely_a_failure_is(broken: Database) -> None:
    query = build_query(broken.index, NEW, tiny(), OP)
    chance = dict(zip(CONFIGS, chances(query, CONFIGS), strict=True))
    failed, tried = query.vote.failures.counts[CONFIGS[BROKEN]]
    assert 0 < failed < tried == len(patterns())
    assert chance[CONFIGS[BROKEN]] > failed / tried  # its neighbours are those on which it failed
    others = [chance[c] for c in CONFIGS if c != CONFIGS[BROKEN]]
    assert max(others) < 0.1 and min(others) > 0.0


def test_the_order_counts_it_and_the_answer_shows_it(
    broken: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    made = broken.query(NEW, platform="tiny", op=str(OP), k=4)
    assert made.candidates[0].config != dict(CONFIGS[BROKEN])
    by_config = {c.config["variant"]: c for c in made.candidates}
    one = by_config[CONFIGS[BROKEN]["variant"]]
    assert one.failure is not None and one.failure > 0.5
    assert (one.failed_on, one.tried_on) != (0, 0)
    assert fails(one) == f"{100 * one.failure:.0f} %, {one.failed_on} of {one.tried_on}"
    assert made.document()["candidates"][0]["failure"] == made.candidates[0].failure
    explained = broken.explain(made.id)
    show_explanation(explained)
    assert "failed on 0 of" in capsys.readouterr().out
    assert ">fails</th>" in explanation_html(explained)


def test_what_rather_fails_goes_behind_all_others(broken: Database) -> None:
    query = build_query(broken.index, NEW, tiny(), OP)
    made = [Candidate(config=dict(c), score=at - 9.0, origin="") for at, c in enumerate(CONFIGS)]
    found = likely_last(query, made[BROKEN:] + made[:BROKEN])
    assert [c.config["variant"] for c in found] == ["d", "a", "b", "c"]
    assert found[-1].score == max(c.score for c in found)
    one = made[BROKEN : BROKEN + 1]
    assert likely_last(query, one) == one


def test_an_answer_that_may_fail_is_not_sure(broken: Database) -> None:
    from embeddb.ranking.confidence import confidence_of
    from embeddb.ranking.rankers.neighbour_vote import NeighbourVote

    ranker = NeighbourVote(build_query(broken.index, NEW, tiny(), OP))
    level, doubts = confidence_of(ranker, "neighbours", CONFIGS[BROKEN])
    assert level == "low" and any("fails with a chance of" in line for line in doubts)


def test_where_nothing_ever_failed_nothing_changes() -> None:
    db = fill(Database.in_memory(), tiny())
    query = build_query(db.index, NEW, tiny(), OP)
    assert query.vote.failures == Failures()
    assert not chances(query, CONFIGS).any()
    made = db.query(NEW, platform="tiny", op=str(OP))
    assert all(c.failure is None and c.tried_on == 0 for c in made.candidates)
    assert fails(made.candidates[0]) == "-"


def test_rates_are_drawn_together_where_few_tell() -> None:
    gains = np.array([[0.1, 0.2], [0.1, np.nan], [0.3, np.nan], [0.0, np.nan]])
    failing = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    found = Failures.of(CONFIGS[:2], [0, 1], gains, failing)
    assert found.rate == pytest.approx(2 / 5)
    assert found.counts == {CONFIGS[0]: (1, 4), CONFIGS[1]: (1, 1)}
    assert found.chance(CONFIGS[1]) == pytest.approx((1 + 2 * 0.4) / 3)
    assert found.chance(CONFIGS[3]) == pytest.approx(0.4)


def _own(statuses: dict[int, tuple[str, ...]]) -> Database:
    """A database in which variants ran on the new pattern with these outcomes."""
    db, times = fill(Database.in_memory(), tiny()), (4.0, 1.0, 2.0, 3.0)
    db.index.record(
        [
            Run(NEW.id, OP, "tiny", CONFIGS[at], Measurement(status, (times[at],), when=1.0 + n))
            for at, each in statuses.items()
            for n, status in enumerate(each)
        ],
        NEW,
        tiny(),
    )
    return db


def _variants(answer: Recommendation) -> list[str]:
    return [c.config["variant"] for c in answer.candidates]


def test_a_configuration_with_a_wrong_result_here_is_not_proposed() -> None:
    for wrong in (("ok", "wrong", "wrong", "crash"), ("ok", "ok", "ok", "wrong")):
        db = _own({0: ("ok", "ok"), 1: wrong, 2: ("ok", "ok")})
        answer = db.query(NEW, platform="tiny", op=str(OP))
        assert answer.link == "measured" and _variants(answer)[:2] == ["c", "a"]
        assert "b" not in _variants(answer)


def test_a_configuration_that_often_fails_here_is_behind_those_that_do_not() -> None:
    db = _own({0: ("ok", "ok"), 1: ("ok", "crash"), 2: ("ok", "ok")})
    answer = db.query(NEW, platform="tiny", op=str(OP), k=3)
    assert _variants(answer) == ["c", "a", "b"] and answer.confidence == "high"
    assert [c.order_reason for c in answer.candidates] == ["", "", "failure risk"]
    assert [c.failure for c in answer.candidates] == [None, None, 0.5]
    # Alone with a default that fails more often, it is no sure answer.
    alone = _own({0: ("crash", "ok", "crash"), 1: ("ok", "crash")}).query(
        NEW, platform="tiny", op=str(OP), k=2
    )
    assert (_variants(alone)[0], alone.confidence) == ("b", "low")
    assert "the answer failed in 1 of 2 runs here" in alone.warnings
    assert "the default failed in 2 of 3 runs here" in alone.warnings


def test_a_configuration_that_seldom_fails_here_stays_first_with_a_warning() -> None:
    db = _own({0: ("ok", "ok"), 1: ("ok", "ok", "timeout"), 2: ("ok", "ok")})
    answer = db.query(NEW, platform="tiny", op=str(OP))
    assert (_variants(answer)[0], answer.confidence) == ("b", "medium")
    assert answer.candidates[0].failure == pytest.approx(1 / 3)
    assert "the answer failed in 1 of 3 runs here" in answer.warnings


def test_a_configuration_that_fails_here_is_last_where_neighbours_answer() -> None:
    first = _variants(_own({}).query(NEW, platform="tiny", op=str(OP)))[0]
    at = [c["variant"] for c in CONFIGS].index(first)
    answer = _own({at: ("crash", "ok")}).query(NEW, platform="tiny", op=str(OP), k=4)
    assert answer.link != "measured" and _variants(answer)[-1] == first
    assert answer.candidates[-1].failure == 0.5
