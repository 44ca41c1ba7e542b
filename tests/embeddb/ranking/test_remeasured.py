"""After a tuning the next question goes by what was measured again, not by the luckiest timing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from builders import CONFIGS, OP, band, fill, tiny

from embeddb.core.config import Config
from embeddb.core.pattern import Pattern
from embeddb.core.records import IN_A_ROW, Measurement, Run
from embeddb.database import Database
from embeddb.platforms.platform import Platform
from embeddb.ranking.recommendation import Recommendation

A, B, C, D = CONFIGS
ASKED = band(137, 14, name="asked", group="asked")
LABEL = "tune:hardware/default/0"


def runs(
    end: str, seconds: dict[Config, float], *, row: dict[Config, float] | None = None
) -> list[Run]:
    return [
        Run(
            ASKED.id,
            OP,
            "tiny",
            config,
            Measurement(
                times_s=(took,),
                when=float(len(end) + at),
                context={IN_A_ROW: row[config]} if row else {},
            ),
            LABEL + end,
        )
        for at, (config, took) in enumerate(seconds.items())
    ]


def ask(held: Iterable[Run], platform: Platform | None = None) -> Recommendation:
    where = platform or tiny()
    db = fill(Database.in_memory(), where)
    db.index.record(list(held), ASKED, where)
    return db.query(ASKED, platform="tiny", op=OP)


SEARCH = {A: 1.30, B: 1.00, C: 1.05, D: 1.10}
ROUNDS = [{A: 1.30, C: 1.10}, {A: 1.31, C: 1.11}, {A: 1.29, C: 1.12}]


def rounds(*each: dict[Config, float], row: dict[Config, float] | None = None) -> list[Run]:
    return [
        Run(r.pattern_id, r.op, r.platform, r.config, _later(r.measurement, at), r.campaign)
        for at, seconds in enumerate(each, 1)
        for r in runs("/rounds", seconds, row=row)
    ]


def _later(m: Measurement, at: int) -> Measurement:
    return Measurement(times_s=m.times_s, when=m.when + 100 * at, context=m.context)


def configs(made: Recommendation) -> list[Config]:
    return [Config(c.config) for c in made.candidates]


def test_what_was_measured_again_is_answered() -> None:
    """B and D, timed once by the search, look as fast or faster."""
    made = ask([*runs("", SEARCH), *rounds(*ROUNDS)])
    assert made.link == "measured" and configs(made) == [C, A, B, D]
    assert made.candidates[0].seconds == pytest.approx(1.11)
    assert made.candidates[0].expected_gain == pytest.approx(1.30 / 1.11)
    assert [c.order_reason for c in made.candidates] == ["", "", "search run", "search run"]
    assert (made.confidence, made.default_seconds) == ("high", pytest.approx(1.30))


def test_a_plan_that_is_no_faster_in_a_row_is_no_gain() -> None:
    """1.17x by the sum of its kernels, 0.99x with them called back to back."""
    made = ask([*runs("", SEARCH), *rounds(*ROUNDS, row={A: 1.40, C: 1.41})])
    assert configs(made)[0] == A and made.candidates[0].expected_gain == 1.0
    reasons = {Config(c.config): c.order_reason for c in made.candidates}
    assert reasons == {A: "", B: "search run", C: "slower in a row", D: "search run"}


def test_in_a_row_as_fast_it_keeps_its_gain() -> None:
    made = ask([*runs("", SEARCH), *rounds(*ROUNDS, row={A: 1.40, C: 1.30})])
    assert configs(made)[0] == C


def test_what_a_campaign_or_a_query_ran_is_not_of_the_search() -> None:
    measured = [
        Run(ASKED.id, OP, "tiny", B, Measurement(times_s=(took,), when=1e6 + took), "query:r1")
        for took in (1.02, 1.03)
    ]
    made = ask([*runs("", SEARCH), *rounds(*ROUNDS), *measured])
    assert configs(made)[:2] == [B, C]


def test_without_rounds_the_order_is_by_time_and_one_run_is_never_sure() -> None:
    made = ask(runs("", SEARCH))
    assert configs(made) == [B, C, D, A]
    assert made.confidence == "medium" and any("single run" in w for w in made.warnings)


@pytest.mark.parametrize(
    ("times", "sure"),
    [
        ({A: [1.3, 1.31], C: [1.0, 1.01]}, "high"),
        ({A: [1.3, 1.31], C: [1.0]}, "medium"),
        ({A: [1.3], C: [1.0, 1.01]}, "medium"),
        ({A: [1.0, 1.4], C: [0.9, 1.2]}, "medium"),
        ({A: [1.0, 1.01], C: [1.3, 1.31]}, "high"),
        ({A: [0.1, 2.0], C: [1.3, 1.31]}, "medium"),  # the default, of two machines
        ({A: [9.0], C: [0.1, 2.0]}, "medium"),
    ],
)
def test_sure_is_what_ran_twice_and_is_apart(
    times: dict[Config, Sequence[float]], sure: str
) -> None:
    held = [
        Run(ASKED.id, OP, "tiny", config, Measurement(times_s=(took,), when=1.0 + at), "campaign")
        for config, each in {B: [1.6, 1.61], D: [1.7, 1.71], **times}.items()
        for at, took in enumerate(each)
    ]
    made = ask(held)
    assert made.confidence == sure
    apart = any(max(each) > 9 * min(each) for each in times.values())
    assert any("of two machines?" in line for line in made.warnings) == apart


def test_a_simulator_tells_the_same_every_time() -> None:
    where = tiny(simulated=True)
    pattern: Pattern = ASKED
    held = [
        Run(pattern.id, OP, "tiny", c, Measurement(times_s=(s,), source="simulator"))
        for c, s in SEARCH.items()
    ]
    made = ask(held, where)
    assert made.link == "measured" and made.confidence == "high"
