"""A partition as one machine sees it: local runs move answers, foreign ones are evidence, and one
run never spoils what is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from builders import CONFIGS, DEFAULT, OP, band, by_law, fill, patterns, runs_of, tiny, winner

from embeddb.core.config import Op
from embeddb.core.pattern import GENERATED, Pattern
from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.database import Database
from embeddb.index.pooling import Source
from embeddb.index.view import FEWEST_GROUPS, losses_before_and_after
from embeddb.platforms.platform import Platform
from embeddb.ranking.confidence import UNCHECKED
from embeddb.ranking.recommendation import Recommendation
from embeddb.ui.report import explanation_html
from indexer.embed import embed

PAIR = tiny("pair", portable=True)
HOME, HERE, OTHER = (PAIR.at(name) for name in ("home", "here", "other"))
WIDE = Op("spmm", 64)
NEW = band(121, 14, name="new", group="new")


def turned(pattern: Pattern, variant: int) -> float:
    """The law of another machine: variant c costs three times as much there."""
    return by_law(pattern, variant) * (3.0 if variant == 2 else 1.0)


def ask(
    db: Database, platform: Platform = HERE, pattern: Pattern = NEW, op: Op = OP
) -> Recommendation:
    return db.query(pattern, platform=platform, op=op)


def first(made: Recommendation) -> int:
    return [dict(c) for c in CONFIGS].index(made.candidates[0].config)


def regret(db: Database, platform: Platform, op: Op, law: object = by_law) -> float:
    """Mean log loss of first answers on matrices nobody ran."""
    asked = [band(203 + at, length, name=f"t{at}") for at, length in enumerate((2, 6, 14, 30))]
    lost = []
    for pattern in asked:
        times = [law(pattern, v) for v in range(4)]  # type: ignore[operator]
        lost.append(math.log(times[first(ask(db, platform, pattern, op))] / min(times)))
    return float(np.mean(lost))


@pytest.fixture
def home() -> Database:
    return fill(Database.in_memory(), HOME)


def test_alone_a_machine_sees_its_own_runs_and_nothing_else(home: Database) -> None:
    view = _view(home, HOME)
    assert (view.judged, view.own, len(view.beliefs)) == ("here", 20, 1)
    assert np.array_equal(view.trust, np.ones_like(view.trust))
    assert view.policy is home.index.partition(OP, HOME).policy  # type: ignore[union-attr]
    made = ask(home, HOME)
    assert made.machines == {"pair@home": 1.0}
    assert made.confidence == "medium"
    assert len(made.warnings) == 1 and "5 groups" in made.warnings[0]  # too few to be sure


def _view(db: Database, platform: Platform, op: Op = OP):  # type: ignore[no-untyped-def]
    found = db.index.answering(op, platform)
    assert found is not None
    return found.view(platform)


def test_on_a_machine_that_was_never_measured_the_answer_is_doubted(home: Database) -> None:
    made = ask(home)
    assert first(made) == winner(NEW) == 2
    assert made.confidence == "low" and made.machines == {"pair@home": 1.0}
    assert any(line.startswith(UNCHECKED[0]) for line in made.warnings)
    view = _view(home, HERE)
    assert (view.judged, view.own) == ("elsewhere", 0) and (view.trust < 1.0).all()


def test_two_machines_judge_what_a_third_is_told(home: Database) -> None:
    many = patterns(FEWEST_GROUPS)
    fill(home, HOME, many)
    fill(home, HERE, many)
    view = _view(home, OTHER)
    assert view.judged == "machines" and view.policy.across
    made = ask(home, OTHER)
    assert made.confidence == "medium" and sum(made.machines.values()) == pytest.approx(1.0)


def test_machines_left_out_judge_a_width_that_none_of_them_measured(home: Database) -> None:
    """Before, the most careful guard held there, and the default came first whatever was known."""
    many = patterns(FEWEST_GROUPS)
    fill(home, HOME, many)
    fill(home, HERE, many)
    view = _view(home, OTHER, WIDE)
    assert view.judged == "machines" and view.policy.across
    assert view.policy.guard <= 0.1
    made = ask(home, OTHER, op=WIDE)
    assert first(made) == winner(NEW)
    assert made.candidates[0].expected_gain and made.candidates[0].expected_gain > 1.1


def test_what_was_measured_here_is_counted_at_the_width_that_ran(home: Database) -> None:
    """The fault: no run was of 64 columns, and another warning of the same answer says so."""
    fill(home, HERE, patterns(5, first=10), times=turned)
    made = ask(home, op=WIDE)
    assert any(line.startswith(f"hardly measured at {WIDE}") for line in made.warnings)
    (line,) = [w for w in made.warnings if w.startswith(UNCHECKED)]
    assert line.startswith(f"{UNCHECKED[1]} 20 matrices at {OP}")


def test_what_was_measured_here_is_heard(home: Database) -> None:
    """The first fault: answers of another machine stayed as they were, to the last one, whatever
    was measured on this one."""
    assert first(ask(home)) == 2
    fill(home, HERE, patterns(1), times=turned)
    assert first(ask(home)) != 2
    view = _view(home, HERE)
    shift = view.beliefs[[b.source.platform for b in view.beliefs].index("pair@home")].shift
    assert shift[2] < -0.5 and np.abs(shift[[1, 3]]).max() < 0.3 and shift[0] == 0.0


def test_generated_matrices_calibrate_but_neither_vote_nor_judge(home: Database) -> None:
    made = [
        band(131 + at, 9 + at, name=f"made{at}", group=group)
        for at, group in enumerate(sorted(GENERATED)[:FEWEST_GROUPS])
    ]
    fill(home, HERE, made, times=turned)
    answer = ask(home)
    assert first(answer) != 2
    near = {n.pattern_id for n in answer.neighbours}
    assert near and not near & {p.id for p in made}
    (line,) = [w for w in answer.warnings if w.startswith(UNCHECKED)]
    assert line.startswith(f"{UNCHECKED[1]} {FEWEST_GROUPS} generated matrices at spmm:32")
    assert "calibrate" not in line and answer.confidence != "low"
    view = _view(home, HERE)
    assert (view.judged, view.own) == ("elsewhere", 0)
    shift = next(b.shift for b in view.beliefs if b.source.platform == "pair@home")
    assert shift[2] < -0.5
    found = home.index.answering(OP, HERE)
    assert found is not None
    real = found.view_input.real
    assert real.sum() == 20 and not view.trust[~real].any() and np.isnan(view.gains[~real]).all()
    assert found.generated == {p.id for p in made} and real[found.view_input.near.places].all()
    before, after = losses_before_and_after(found.view_input, Source(HERE.id, OP), view) or ([], [])
    assert len(before) == len(after) == FEWEST_GROUPS and np.mean(after) < np.mean(before)


@pytest.mark.parametrize("local", [1, 2, 3, 5])
def test_more_local_data_never_makes_answers_worse(home: Database, local: int) -> None:
    before = regret(home, HERE, OP, turned)
    fill(home, HERE, patterns(local, first=10), times=turned)
    after = regret(home, HERE, OP, turned)
    assert after <= before + 1e-9
    if local >= 3:
        assert after == pytest.approx(0.0)


def test_a_machine_of_its_own_is_not_spoiled_by_others(home: Database) -> None:
    before = [c.config for c in ask(home, HOME).candidates]
    for name in ("other", "more"):
        fill(home, PAIR.at(name), times=turned)
    made = ask(home, HOME)
    assert made.candidates[0].config == before[0]
    assert made.machines["pair@home"] > 0.7 and made.confidence != "low"


def test_after_calibrating_the_next_question_counts_what_was_measured_here(home: Database) -> None:
    """The fault: the same sentence as before, "`calibrate` measures it"."""
    assert any("calibrate" in w or w.startswith(UNCHECKED[0]) for w in ask(home).warnings)
    fill(home, HERE, patterns(2, first=10), times=turned)
    made = ask(home)
    (line,) = [w for w in made.warnings if w.startswith(UNCHECKED)]
    near = sum(n.platform == "pair@here" for n in made.neighbours)
    assert line.startswith(f"{UNCHECKED[1]} 8 matrices at spmm:32")
    assert f"{near or 'none'} of the {len(made.neighbours)} neighbours" in line
    assert "calibrate" not in line


def test_noise_is_of_the_machine_that_was_asked_about(home: Database) -> None:
    """The fault: 35 % by the runs of all machines, where this one's differ by 4.6 %."""

    def again(platform: Platform, factor: float) -> None:
        for p in patterns(2):
            fill_again = [
                Run(r.pattern_id, r.op, r.platform, r.config, _times(r, factor))
                for r in runs_of(p, platform)
            ]
            home.index.record(fill_again, p, platform)

    fill(home, HERE, patterns(2))
    again(HOME, 2.0)
    again(HERE, 1.02)
    assert ask(home, HERE).noise == pytest.approx(0.01, rel=0.05)
    assert ask(home, HOME).noise == pytest.approx(1 / 3, rel=0.05)
    assert ask(home, OTHER).noise > 0.0


def _times(run: Run, factor: float) -> Measurement:
    return Measurement(times_s=(factor * run.seconds,), when=1.0)


def test_the_explanation_shows_which_machines_it_rests_on(home: Database) -> None:
    fill(home, HERE.at("here", {"cpu": "Zen", "threads": "2"}), times=turned)
    told = home.explain(ask(home).id)
    assert [m.platform for m in told.machines] and {m.own for m in told.machines} == {True, False}
    assert sum(m.share for m in told.machines) == pytest.approx(1.0)
    assert "Zen, 2 threads" in {m.words for m in told.machines}
    page = explanation_html(told)
    assert "Zen, 2 threads" in page and "pair@home" in page


# -- other widths and value types --------------------------------------------------------------


def test_one_run_at_a_new_width_spoils_nothing(home: Database) -> None:
    """A matrix measured at a width that nobody ran replaced all that was known at the others."""
    before = [ask(home, HOME, p, WIDE) for p in _asked()]
    one = band(99, 2, name="one", group="one")
    home.index.record(runs_of(one, HOME, op=WIDE), one, HOME)
    after = [ask(home, HOME, p, WIDE) for p in _asked()]
    assert [first(a) for a in after] == [first(b) for b in before] == [winner(p) for p in _asked()]
    assert all(len(a.neighbours) == len(b.neighbours) for a, b in zip(after, before, strict=True))
    assert {a.link for a in after} == {"neighbours"}
    assert all(any("rests on spmm:32" in w for w in a.warnings) for a in after)


def _asked() -> list[Pattern]:
    return [band(203 + at, length, name=f"t{at}") for at, length in enumerate((2, 6, 14, 30))]


@pytest.mark.parametrize("seed", range(4))
def test_no_single_run_makes_answers_worse(seed: int) -> None:
    """Replay: one configuration of one matrix at a time, anywhere; two machines are known."""
    home = Database.in_memory()
    for platform in (HOME, OTHER.at("other", {"cpu": "other"})):
        fill(home, platform, patterns(FEWEST_GROUPS))
    rng = np.random.default_rng(seed)
    before = regret(home, HOME, WIDE) + regret(home, HERE, OP) + regret(home, HOME, OP)
    pattern = band(int(rng.integers(80, 300)), int(rng.choice([2, 6, 14, 30])), name="one")
    platform, op = [(HOME, WIDE), (HERE, OP), (HOME, OP), (HERE, WIDE)][seed]
    variant = int(rng.integers(4))
    home.index.record(runs_of(pattern, platform, op=op, variants=[variant]), pattern, platform)
    after = regret(home, HOME, WIDE) + regret(home, HERE, OP) + regret(home, HOME, OP)
    assert after <= before + 1e-9


def test_double_precision_is_answered_from_single_with_a_word(home: Database) -> None:
    made = ask(home, HOME, NEW, Op("spmm", 32, "f64"))
    assert (made.link, made.evidence_op, first(made)) == ("neighbours", "spmm:32", 2)
    assert any("rests on spmm:32" in w for w in made.warnings) and made.confidence == "medium"
    fill(home, HOME, patterns(1), op=Op("spmm", 32, "f64"))
    assert first(ask(home, HOME, NEW, Op("spmm", 32, "f64"))) == 2


# -- promises ----------------------------------------------------------------------------------


def test_promises_are_corrected_by_what_held_out_answers_got(home: Database) -> None:
    view = _view(home, HOME)
    assert math.isfinite(view.policy.bias) and view.policy.low <= view.policy.bias
    made = ask(home, HOME)
    gain = by_law(NEW, 0) / by_law(NEW, 2)
    best = made.candidates[0]
    assert best.gain_low is not None and best.gain_high is not None
    assert best.gain_low <= gain * 1.001 and best.gain_high >= gain * 0.999
    default = next(c for c in made.candidates if c.config == dict(DEFAULT))
    assert (default.expected_gain, default.gain_low, default.gain_high) == (1.0, 1.0, 1.0)


def test_a_configuration_that_fails_on_such_matrices_is_doubted() -> None:
    def much(pattern: Pattern, variant: int) -> float:
        return by_law(pattern, variant) * (0.1 if variant == 2 else 1.0)

    db = fill(Database.in_memory(), HOME, times=much)
    assert not any("fails with a chance" in w for w in ask(db, HOME).warnings)
    db = fill(Database.in_memory(), HOME, [], indexed=False)
    for at, pattern in enumerate(patterns()):
        fails = winner(pattern) == 2 and 8 <= at < 16
        runs = runs_of(pattern, HOME, times=much, variants=[0, 1, 3] if fails else range(4))
        if fails:
            runs.append(Run(pattern.id, OP, HOME.id, CONFIGS[2], Measurement(status="oom")))
        db.store.put_structure(pattern, WorkloadInfo.whole(pattern))
        db.store.append(runs)
    embed(db.index)
    made = ask(db, HOME)
    assert first(made) == 2 and made.confidence != "high"
    assert any("fails with a chance" in w for w in made.warnings)
