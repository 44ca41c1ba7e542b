"""Asking: every link of the chain on a database, its doubts, and patterns known by name only."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import (
    CONFIGS,
    DEFAULT,
    OP,
    VARIANTS,
    band,
    by_law,
    fill,
    patterns,
    runs_of,
    sized,
    tiny,
    winner,
)

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.core.sizes import Sizes
from embeddb.database import Database
from embeddb.ranking.build import build_query
from embeddb.ranking.recommendation import Recommendation
from indexer.embed import embed

WIDE = Op("spmm", 64)


@pytest.fixture(scope="module")
def lawful() -> Database:
    """Shared and not written to by tests but for recommendations."""
    return fill(Database.in_memory(), tiny())


def _first(made: Recommendation) -> dict[str, Any]:
    return made.candidates[0].config


# -- the chain ---------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [2, 6, 14, 30])
def test_neighbours_answer_for_a_new_matrix(lawful: Database, length: int) -> None:
    new = band(137, length, name="new")
    made = lawful.query(new, platform="tiny", op="spmm:32")
    assert (made.link, made.tuner, made.op) == ("neighbours", "transfer", "spmm:32")
    assert _first(made) == {"variant": VARIANTS[winner(new)]}
    gain = by_law(new, 0) / by_law(new, winner(new))
    assert made.candidates[0].expected_gain == pytest.approx(gain, rel=0.2)
    assert made.confidence in ("high", "medium")
    assert made.default == dict(DEFAULT) and made.default_seconds is None
    assert {n.pattern_id for n in made.neighbours} <= {p.id for p in patterns()}
    distances = [n.distance for n in made.neighbours]
    assert distances == sorted(distances)
    assert [len(made.candidates), made.simulated, made.calls] == [4, False, None]


@pytest.mark.parametrize("wrong", [-5, 0, 0.5, math.nan, -math.inf, True, "3", None, 1j])
def test_calls_are_a_number_of_at_least_one(lawful: Database, wrong: Any) -> None:
    with pytest.raises(UsageError, match="a number of at least 1 is needed"):
        lawful.query(band(137, 14), platform="tiny", op=OP, calls=wrong)


@pytest.mark.parametrize("wrong", [-1, 0, 2.5, 1001, math.nan, True, np.True_, "3", None])
def test_k_is_an_integer(lawful: Database, wrong: Any) -> None:
    with pytest.raises(UsageError, match="an integer from 1 to 1000 is needed"):
        lawful.query(band(137, 14), platform="tiny", op=OP, k=wrong)


def test_numbers_of_numpy_are_stored_as_plain_ones(lawful: Database) -> None:
    calls: Any
    for calls in (np.float32(100), np.int64(100), 100):
        made = lawful.query(band(137, 14), platform="tiny", op=OP, calls=calls, k=np.int32(2))  # type: ignore[arg-type]
        assert (made.calls, len(made.candidates)) == (100, 2)
        assert lawful.recommendation(made.id).calls == 100
    assert lawful.query(band(137, 14), platform="tiny", op=OP, calls=10**400).calls is None


def test_its_own_measured_winner_comes_first(lawful: Database) -> None:
    for pattern in patterns():
        made = lawful.query(pattern, platform="tiny", op=OP)
        assert made.link == "measured" and made.confidence == "medium"  # ran once
        assert _first(made) == {"variant": VARIANTS[winner(pattern)]}
        assert made.candidates[0].seconds == pytest.approx(by_law(pattern, winner(pattern)))
        assert made.default_seconds == pytest.approx(by_law(pattern, 0))
        assert pattern.id not in {n.pattern_id for n in made.neighbours}


def test_its_own_measurements_win_against_all_neighbours(lawful: Database) -> None:
    db = fill(Database.in_memory(), tiny())
    odd = band(137, 14, name="odd", group="odd")  # c by the law of all the others

    def reverse(pattern: Pattern, variant: int) -> float:
        return by_law(pattern, 3 - variant)

    assert _first(db.query(odd, platform="tiny", op=OP)) == {"variant": "c"}
    db.index.record(runs_of(odd, tiny(), times=reverse), odd, tiny())
    assert _first(db.query(odd, platform="tiny", op=OP)) == {"variant": "b"}


def test_the_same_structure_under_another_name_is_the_same_pattern(lawful: Database) -> None:
    known = patterns()[7]
    other = Pattern.from_csr(known.shape, known.indptr, known.indices, name="renamed")
    assert lawful.query(other, platform="tiny", op=OP).link == "measured"


def test_an_operation_never_measured_is_answered_from_the_nearest_width() -> None:
    db = fill(Database.in_memory(), tiny())
    fill(db, tiny(), patterns(2), op=Op("spmm", 512), times=lambda p, v: by_law(p, 3 - v))
    new = band(137, 14, name="new")
    made = db.query(new, platform="tiny", op=WIDE)
    assert (made.link, made.evidence_op, _first(made)) == (
        "neighbours",
        "spmm:32",
        {"variant": "c"},
    )
    assert any("rests on spmm:32" in line for line in made.warnings)
    assert made.confidence != "high"
    told = db.explain(made.id)
    assert all(near.measured == 4 and near.best_gain for near in told.neighbours)
    other = db.query(new, platform="tiny", op=Op("spmm", 64, "f64"))
    assert (other.link, other.evidence_op, _first(other)) == (
        "neighbours", "spmm:32", {"variant": "c"},
    )  # fmt: skip
    assert any("rests on spmm:32" in line for line in other.warnings)
    # a pattern's own four configurations at the other width are too few to be its own answer
    assert db.query(patterns()[2], platform="tiny", op=WIDE).link == "neighbours"


def _sized_db(op: Op, pattern: Pattern, count: int) -> Database:
    db, platform = Database.in_memory(), sized()
    space = platform.space(op, pattern.sizes)
    configs = list(space.enumerate())[:count]
    runs = [
        Run(pattern.id, op, "sized", c, Measurement(times_s=(9.0 - i,)))
        for i, c in enumerate(configs)
    ]
    db.index.record(runs, pattern, platform)
    return db


@pytest.mark.parametrize(("count", "link"), [(9, "other-width"), (7, "static-best")])
def test_other_width_needs_enough_of_it(count: int, link: str) -> None:
    pattern = band(300, 3, name="p")
    db = _sized_db(WIDE, pattern, count)
    made = db.query(pattern, platform="sized", op=OP)
    assert made.link == link
    if link == "other-width":
        best = list(sized().space(WIDE, Sizes(300, 300, 900)).enumerate())[8]
        assert Config(_first(made)) == best
        assert made.candidates[0].seconds is None and made.default_seconds is None


def test_the_nearest_width_is_taken() -> None:
    pattern = band(300, 3, name="p")
    db = _sized_db(Op("spmm", 512), pattern, 9)
    for run in list(_sized_db(WIDE, pattern, 9).store.runs("sized", WIDE)):
        db.store.append([run])
    query = build_query(db.index, pattern, db.platform("sized"), OP)
    assert query.own.other_op == WIDE
    query = build_query(db.index, pattern, db.platform("sized"), Op("spmm", 1024))
    assert query.own.other_op == Op("spmm", 512)
    assert (
        build_query(db.index, pattern, db.platform("sized"), Op("spmm", 32, "f64")).own.other_op
        is None
    )


def test_static_best_where_neighbours_are_too_few() -> None:
    db = fill(Database.in_memory(), tiny(), [patterns()[3], patterns()[7]])
    made = db.query(band(140, 14), platform="tiny", op=OP)
    assert (made.link, made.confidence, _first(made)) == ("static-best", "low", {"variant": "d"})
    assert "2 measured patterns can be compared, too few to vote" in made.warnings[0]


def test_averages_of_other_machines_alone_are_a_doubt() -> None:
    pair = tiny("pair", portable=True)
    db = fill(Database.in_memory(), pair.at("one"), [patterns()[3], patterns()[7]])
    own, other = (db.query(band(140, 14), platform=pair.at(at), op=OP) for at in ("one", "two"))
    assert own.link == other.link == "static-best" and len(own.warnings) == 1
    assert "all runs behind this answer are from other machines" in other.warnings[1]


def test_the_default_of_an_empty_database() -> None:
    db = Database.in_memory()
    db.store.put_platform(tiny())
    made = db.query(band(50, 3), platform="tiny", op=OP)
    assert (made.link, made.confidence, _first(made)) == ("default", "low", dict(DEFAULT))
    assert made.neighbours == [] and made.features == {}


def test_a_vote_for_what_does_not_fit_this_matrix_is_rejected_with_a_reason() -> None:
    platform, db = sized(), Database.in_memory()
    db.store.put_platform(platform)
    for at, pattern in enumerate(band(300 + i, 3, name=f"p{i}", group=f"g{i}") for i in range(5)):
        db.store.put_structure(pattern, WorkloadInfo.whole(pattern))
        db.store.append(
            Run(pattern.id, OP, "sized", Config({"rows": r, "cols": c}), Measurement(times_s=(t,)))
            for r, c, t in [(1, "NUM_MATRIX_COLS", 4.0 + at), (256, 64, 1.0), (16, 8, 2.0)]
        )
    embed(db.index)
    big = db.query(band(310, 3), platform="sized", op=OP)
    assert (big.link, _first(big)) == ("neighbours", {"rows": 256, "cols": 64})
    small = db.query(band(20, 3), platform="sized", op=OP)
    assert (small.link, _first(small)) == ("neighbours", {"rows": 16, "cols": 8})
    assert small.rejected == {
        "cols=64,rows=256": "rows=256, NUM_MATRIX_ROWS=20: breaks the constraint "
        "rows <= NUM_MATRIX_ROWS or rows == 1"
    }


def test_a_choice_with_two_names_is_proposed_once() -> None:
    """With 64 columns `cols=64` and `cols=NUM_MATRIX_COLS` are the same configuration."""
    platform, db = sized(), Database.in_memory()
    db.store.put_platform(platform)
    for pattern in (band(300 + i, 3, name=f"p{i}", group=f"g{i}") for i in range(5)):
        db.store.put_structure(pattern, WorkloadInfo.whole(pattern))
        db.store.append(
            Run(pattern.id, OP, "sized", Config({"rows": 1, "cols": c}), Measurement(times_s=(t,)))
            for c, t in [("NUM_MATRIX_COLS", 4.0), (64, 3.0), (8, 2.0)]
        )
    embed(db.index)
    made = db.query(band(64, 3), platform="sized", op=OP)
    proposed = [Config(c.config) for c in made.candidates]
    assert sorted(map(str, proposed)) == ["cols=64,rows=1", "cols=8,rows=1"]
    assert made.default == {"rows": 1, "cols": 64}
    assert made.candidates[-1].expected_gain == 1.0


def test_calls_make_a_conversion_pay() -> None:
    db = Database.in_memory()
    db.store.put_platform(tiny())
    for pattern in patterns():
        db.store.put_structure(pattern, WorkloadInfo.whole(pattern))
        db.store.append(
            Run(pattern.id, OP, "tiny", c, Measurement(times_s=(t,), conversion_s=conversion))
            for c, t, conversion in [(CONFIGS[0], 3.0, 0.0), (CONFIGS[1], 1.0, 10.0)]
        )
    embed(db.index)
    for pattern in (band(137, 6, name="new"), patterns()[0]):
        few, many = (db.query(pattern, platform="tiny", op=OP, calls=n) for n in (2.0, 100.0))
        assert (_first(few), _first(many)) == ({"variant": "a"}, {"variant": "b"})
        assert (few.calls, many.calls) == (2.0, 100.0)


# -- doubts ------------------------------------------------------------------------------------


def test_something_never_seen_is_said(lawful: Database) -> None:
    tall = Pattern.from_coo((5000, 3), np.arange(5000), np.zeros(5000, int), name="tall")
    made = lawful.query(tall, platform="tiny", op=OP)
    assert made.neighbours[0].percentile == 1.0
    assert made.confidence == "low"
    assert "nothing like this pattern was ever measured here" in made.warnings


@pytest.mark.parametrize("groups", [5, 12])
def test_answers_of_few_groups_are_not_sure(groups: int) -> None:
    """However good they are: of 22 groups without a miss one in ten may still fall short."""
    db = fill(Database.in_memory(), tiny(), patterns(groups))
    near = db.query(band(115, 14), platform="tiny", op=OP)
    assert near.neighbours[0].percentile is not None and near.neighbours[0].percentile < 0.9
    assert near.confidence == "medium"
    assert any("too few to be sure" in line for line in near.warnings)


def test_one_group_of_neighbours_is_said() -> None:
    db = fill(Database.in_memory(), tiny(), patterns(1))
    made = db.query(band(137, 14), platform="tiny", op=OP)
    assert "all neighbours come from one group of matrices" in made.warnings
    assert made.confidence != "high"
    assert made.neighbours[0].percentile is None  # one group: no distance to compare with


def test_a_simulated_platform_is_labelled() -> None:
    db = fill(Database.in_memory(), tiny("sim", simulated=True), patterns(2))
    for pattern in (band(137, 14), patterns()[0]):
        made = db.query(pattern, platform="sim", op=OP)
        assert made.simulated and any("simulated" in line for line in made.warnings)
        assert made.document()["simulated"] is True


def test_another_machines_runs_are_evidence_but_not_measured() -> None:
    db, pair = Database.in_memory(), tiny("pair", portable=True)
    fill(db, pair.at("one"))
    known = patterns()[2]
    there = db.query(known, platform="pair@one", op=OP)
    assert there.link == "measured"
    here = db.query(known, platform=pair.at("two"), op=OP)
    assert here.link == "neighbours" and here.neighbours[0].pattern_id == known.id
    assert here.neighbours[0].distance == 0.0
    assert any("another machine" in line for line in here.warnings)
    assert all(c.seconds is None for c in here.candidates)
    assert _first(here) == _first(there)
    bare = db.query(known, platform="pair", op=OP)
    assert bare.link == "neighbours"


def test_machines_of_a_platform_that_is_not_portable_keep_to_themselves() -> None:
    db = fill(Database.in_memory(), tiny().at("one"), patterns(2))
    made = db.query(patterns()[2], platform=tiny().at("two"), op=OP)
    assert (made.link, made.neighbours) == ("default", [])


# -- stubs -------------------------------------------------------------------------------------


def test_a_pattern_known_by_name_only() -> None:
    db = fill(Database.in_memory(), tiny())
    ghost = WorkloadInfo(id="cd" * 16, name="ghost", stub=True)
    with pytest.raises(NothingFound, match="ghost: only known by name") as e:
        db.query(ghost, platform="tiny", op=OP)
    assert e.value.hint == "give its file"
    assert e.value.exit_code == 3


def test_its_own_runs_answer_for_a_pattern_known_by_name_only() -> None:
    db = fill(Database.in_memory(), tiny())
    ghost = WorkloadInfo(id="cd" * 16, name="ghost", stub=True)
    db.store.append(
        [
            Run(ghost.id, OP, "tiny", config, Measurement(times_s=(float(5 - i),)))
            for i, config in enumerate(CONFIGS[:3])
        ],
        patterns=[ghost],
    )
    made = db.query(ghost, platform="tiny", op=OP)
    assert (made.link, _first(made)) == ("measured", {"variant": "c"})
    assert db.explain(made.id).answer == {"variant": "c"}


def test_a_stored_pattern_is_queried_by_what_is_known_of_it(lawful: Database) -> None:
    info = lawful.store.pattern(patterns()[3].id)
    assert info is not None
    assert lawful.query(info, platform="tiny", op=OP).link == "measured"
    assert lawful.query(info, platform="tiny", op="spmv").link == "default"


def test_the_best_fixed_choice_where_no_measured_matrix_can_be_compared(tmp_path: Path) -> None:
    """Runs of matrices whose names alone are known have averages, also once they are saved."""
    with Database.create(tmp_path / "db") as db:
        db.store.put_platform(tiny())
        for at in range(4):
            known = WorkloadInfo(id=f"{at:032x}", name=f"matrix {at}", stub=True)
            seconds = {c: 5.0 - i + 0.1 * at for i, c in enumerate(CONFIGS[:3])}
            runs = [
                Run(known.id, OP, "tiny", config, Measurement(times_s=(s,)))
                for config, s in seconds.items()
            ]
            db.store.append(runs, patterns=[known])
        embed(db.index)
        assert db.index.partition(Op.parse("spmm:32"), tiny()) is None
    with Database.open(tmp_path / "db") as db:
        made = db.query(band(20, 2), platform="tiny", op=OP, why=True)
        assert db.index.repairs() == []
        assert db.explain(made.id).answer == {"variant": "c"}
    assert (made.link, _first(made), made.neighbours) == ("static-best", {"variant": "c"}, [])
    assert "no measured pattern is comparable" in made.warnings[0]


# -- in general --------------------------------------------------------------------------------


def test_an_unknown_kernel(lawful: Database) -> None:
    with pytest.raises(UsageError, match="no sddmm"):
        lawful.query(band(20, 2), platform="tiny", op="sddmm:8")
    with pytest.raises(UsageError):
        lawful.query(band(20, 2), platform="tiny", op="spmm")


def test_the_same_question_twice_has_the_same_answer(lawful: Database) -> None:
    new = band(137, 14)
    one, other = (lawful.query(new, platform="tiny", op=OP) for _ in range(2))
    assert one.candidates == other.candidates and one.neighbours == other.neighbours


def test_infinite_calls_are_the_plain_question(lawful: Database) -> None:
    new = band(137, 14)
    plain = lawful.query(new, platform="tiny", op=OP)
    priced = lawful.query(new, platform="tiny", op=OP, calls=1e12)
    assert [c.config for c in plain.candidates] == [c.config for c in priced.candidates]
    assert math.isclose(plain.candidates[0].score, priced.candidates[0].score, abs_tol=1e-9)
