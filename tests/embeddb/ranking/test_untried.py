"""A sample that happens to be slow does not make an answer sure."""

from __future__ import annotations

from builders import CONFIGS, DEFAULT, OP, band, fill, tiny

from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.database import Database
from embeddb.ranking.confidence import untried_doubt
from embeddb.ranking.recommendation import Candidate

BOARD = tiny("board")
NEW = band(121, 14, name="new", group="new")


def candidate(gain: float, *, low: float | None = None) -> Candidate:
    return Candidate(config={}, score=0.0, origin="", expected_gain=gain, gain_low=low)


def test_a_proposal_that_is_surely_faster_than_what_ran_is_named() -> None:
    ran, unsure, sure = candidate(1.0), candidate(1.4, low=0.9), candidate(1.33, low=1.1)
    doubt = untried_doubt([sure], [ran, unsure, sure])
    assert doubt.startswith("rank 3 never ran") and "1.33x: --measure" in doubt
    assert "-k 2 --measure" in untried_doubt([sure], [ran])
    assert not untried_doubt([], [ran, unsure])


def test_what_ran_gives_way_to_what_surely_beats_it() -> None:
    """As many configurations ran as are proposed: to run these again would change nothing."""
    with fill(Database.in_memory(), BOARD) as db:
        db.store.put_structure(NEW, WorkloadInfo.whole(NEW))
        db.store.append(
            Run(NEW.id, OP, BOARD.id, config, Measurement(times_s=(seconds,) * 3))
            for config, seconds in ((DEFAULT, 1.0), (CONFIGS[1], 1.2))
        )
        for k in (1, 2, 3):
            made = db.query(NEW, platform=BOARD, op=OP, k=k)
            assert made.link == "measured" and made.candidates[0].config == dict(DEFAULT)
            assert made.confidence == "medium" and len(made.candidates) == k
            assert any("never ran" in line for line in made.warnings), k
            assert k == 1 or made.candidates[1].seconds is None
        assert {c.seconds is None for c in made.candidates[1:]} == {True}


def test_one_slow_sample_leaves_the_answer_unsure() -> None:
    with fill(Database.in_memory(), BOARD) as db:
        slowest = CONFIGS[1]
        db.store.put_structure(NEW, WorkloadInfo.whole(NEW))
        db.store.append(
            Run(NEW.id, OP, BOARD.id, config, Measurement(times_s=(seconds,)))
            for config, seconds in ((DEFAULT, 1.0), (slowest, 1.2))
        )
        made = db.query(NEW, platform=BOARD, op=OP)
        assert made.link == "measured" and made.candidates[0].config == dict(DEFAULT)
        assert made.confidence == "medium" and any("never ran" in line for line in made.warnings)


def test_a_default_that_fails_here_is_told() -> None:
    with fill(Database.in_memory(), BOARD) as db:
        db.store.put_structure(NEW, WorkloadInfo.whole(NEW))
        db.store.append(
            [Run(NEW.id, OP, BOARD.id, DEFAULT, Measurement(status="oom", error="overflow"))]
        )
        made = db.query(NEW, platform=BOARD, op=OP)
        assert any("the default does not run on this pattern (oom)" in w for w in made.warnings)
