"""Rows asked without their group: what counts, what it costs, and what an index reports of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import CONFIGS, Times, by_chance, by_law, fill, patterns, runs_of, tiny, winner

from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, WorkloadInfo
from embeddb.database import Database
from embeddb.index.held_out import FirstChoices, Judged, Near, failed, first_choices
from embeddb.index.run_matrix import FAILED_GAIN
from indexer.coverage import _quality, scope_states
from indexer.embed import embed
from tuners.evaluation.evaluate import evaluate

NAN = math.nan


def _near(count: int) -> Near:
    """All others are neighbours, at one distance."""
    places = np.array([[j for j in range(count) if j != i] for i in range(count)])
    return Near(places, np.ones(places.shape))


def _choices(gains: list[list[float]]) -> FirstChoices:
    known = np.array(gains)
    part = Judged(np.arange(len(known)), known, known, np.ones(known.shape))
    return first_choices(_near(len(known)), part, np.arange(len(known)), k=3, shrink=0.5)


def test_a_failed_choice_costs_what_the_default_takes() -> None:
    """Column 1 is fast on all but the last row, where it fails."""
    others = [[0.0, 0.7, 0.1]] * 4
    found = _choices([*others, [0.0, FAILED_GAIN, 0.2]])
    assert found.measured[-1] == 0.0 and found.best[-1] == pytest.approx(0.2)
    assert found.lost(0.0)[-1] == pytest.approx(0.2)
    assert found.lost(0.0)[:-1] == pytest.approx(np.zeros(4))


def test_only_what_ran_on_a_row_is_chosen_there() -> None:
    found = _choices([*[[0.0, 0.7, 0.1]] * 4, [0.0, NAN, 0.2]])
    assert found.measured[-1] == found.best[-1] == pytest.approx(0.2)


def test_no_vote_proposes_a_configuration_that_ran_on_this_group_alone() -> None:
    """All others are slower than the default, and the last column is unknown to them."""
    found = _choices([*[[0.0, -0.3, NAN]] * 4, [NAN, -0.3, 0.9]])
    assert found.measured[-1] == pytest.approx(-0.3)
    assert found.static[-1] == pytest.approx(-0.3)
    assert found.best[-1] == pytest.approx(0.9)


def test_the_default_answers_where_nothing_ran_that_others_ran() -> None:
    """The last row's default has a form of its own, as where defaults depend on sizes."""
    rows = [[0.0, 0.5, NAN, NAN]] * 4
    found = _choices([*rows, [NAN, NAN, 0.0, 0.4]])
    assert found.counted().group.tolist() == [0, 1, 2, 3, 4]
    assert found.measured[-1] == found.static[-1] == 0.0
    assert found.lost(0.0)[-1] == pytest.approx(0.4)
    # The gain over a default that did not run is not known.
    without = _choices([*rows, [NAN, NAN, 0.1, -0.1]])
    assert without.counted().group.tolist() == [0, 1, 2, 3]


def test_what_always_ties_with_the_default_does_not_hide_rows() -> None:
    """A simulator gives the last column the default's very time; it ran on few rows."""
    ties = [[0.0, 0.5, -0.2, 0.0]] * 2 + [[0.0, 0.5, -0.2, NAN]] * 3
    found, without = _choices(ties), _choices([row[:3] for row in ties])
    assert np.isfinite(found.predicted).all()
    assert found.counted().group.size == 5
    assert found.lost(0.0) == pytest.approx(without.lost(0.0))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 0, 1, 3), (3, 2, 1, 0)])
def test_what_ties_on_some_rows_of_a_full_grid_is_not_the_default(order: tuple[int, ...]) -> None:
    """Column 2 ties on two rows of six, and is much slower on the others."""
    rng = np.random.default_rng(0)
    gains = np.zeros((6, 4))
    gains[:, 1], gains[:, 3] = 0.4 + 0.01 * rng.random(6), -0.3
    gains[2:, 2] = -1.0
    found = _choices(gains[:, list(order)].tolist())
    assert found.predicted == pytest.approx(np.full(6, 0.4), abs=0.05)


def test_four_times_slower_than_the_default_is_no_failure() -> None:
    found = _choices([[0.0, math.log(100 / 400)], [0.0, math.log(3 / 12)]] * 3)
    slowest = _choices([[NAN, math.log(0.25), -0.1]] * 5)
    assert found.measured == pytest.approx(np.zeros(6))
    assert (slowest.static == slowest.measured).all() and slowest.measured[0] == -0.1
    assert not failed(np.log([0.25, 1 / 4.0000001])).any() and failed(np.array([FAILED_GAIN]))


def test_behind_the_guard_the_default_is_answered() -> None:
    found = _choices([[0.0, 0.3, 0.1]] * 5)
    assert found.lost(0.0) == pytest.approx(np.zeros(5))
    assert found.lost(9.0) == pytest.approx(np.full(5, 0.3))


def test_rows_without_the_default_or_another_that_ran_do_not_count() -> None:
    failing = [0.0, FAILED_GAIN, FAILED_GAIN, FAILED_GAIN, 0.4]
    odd = [[NAN, 0.7, 0.1, 0.3, 0.2], [*failing[:4], FAILED_GAIN], failing]
    found = _choices([*[[0.0, 0.7, 0.1, 0.3, 0.2]] * 4, *odd])
    assert found.counted().group.tolist() == [0, 1, 2, 3, 6]
    assert found.measured[-1] == 0.0 and found.lost(0.0)[-1] == pytest.approx(0.4)


def test_neighbours_that_are_left_out_make_room() -> None:
    near = Near(np.array([[1, 2, 3]]), np.array([[0.1, 0.2, 0.3]]))
    kept = near.among(np.array([True, False, True, True]))
    assert kept.places.tolist() == [[2, 3, -1]]
    assert kept.distances.tolist() == [[0.2, 0.3, math.inf]]


# -- what a database reports -------------------------------------------------------------------


def _figures(db: Database) -> tuple[dict[str, Any], dict[str, float]]:
    (state,) = scope_states(db.index)
    rows = {row.method: row.figures for row in evaluate(db.index)}
    # The index judges a choice among what ran, as `eval` does beside its own figure.
    return state, {n: f.get("of_optimum_ran@1", f["of_optimum@1"]) for n, f in rows.items()}


def _sparse(groups: int, times: Times) -> Database:
    """A quarter of the runs is missing, and one crashed on every fifth matrix."""
    db, platform = Database.in_memory(), tiny()
    db.store.put_platform(platform)
    rng = np.random.default_rng(0)
    for at, pattern in enumerate(patterns(groups)):
        db.store.put_structure(pattern, WorkloadInfo.whole(pattern))
        first, *others = runs_of(pattern, platform, times=times)
        kept = [run for run in others if rng.random() >= 0.25]
        if at % 5 == 0 and kept:
            kept[-1] = replace(kept[-1], measurement=Measurement(status="crashed"))
        db.store.append([first, *kept])
    embed(db.index)
    return db


def _with_cliffs(pattern: Pattern, variant: int) -> float:
    """The last variant is the fastest, but 400 times slower on the matrices of one law."""
    if variant == len(CONFIGS) - 1:
        return 0.4 if winner(pattern) == 0 else 0.6e-3
    return float(by_chance(5, 0.02)(pattern, variant))


@pytest.mark.parametrize(
    "db",
    [
        pytest.param(
            lambda: fill(Database.in_memory(), tiny(), patterns(8), times=_with_cliffs), id="cliffs"
        ),
        pytest.param(lambda: fill(Database.in_memory(), tiny(), patterns(8)), id="8-groups"),
        pytest.param(lambda: fill(Database.in_memory(), tiny(), patterns(12)), id="12-groups"),
        pytest.param(lambda: _sparse(12, by_chance(3, 0.3)), id="sparse-by-chance"),
        pytest.param(lambda: _sparse(9, by_law), id="sparse-by-law"),
    ],
)
def test_index_and_eval_report_one_figure(db: Callable[[], Database]) -> None:
    """Both fit features, metric, policy and guard to the same folds of groups; `eval` has the mean
    of three shares, the index of their logarithms."""
    state, judged = _figures(db())
    assert state["of_optimum_held_out"] == pytest.approx(judged["embeddb"], abs=0.001)
    assert state["static_best_held_out"] == pytest.approx(judged["static-best"], abs=0.001)
    assert state["groups_held_out"] == state["groups"]


def test_more_matrices_are_advised_only_where_half_of_them_do_worse() -> None:
    """What nothing foretells is learned from no number of matrices."""
    db = fill(Database.in_memory(), tiny(), patterns(12), times=by_chance(1, 0.6))
    (state,) = scope_states(db.index)
    assert state["of_optimum_held_out"] < 0.9
    rising = state["of_optimum_held_out"] - state["of_optimum_of_half"] >= 0.01
    assert any("would help" in line for line in state["missing"]) == (
        rising and state["shrink"] is not None
    )


def test_a_fixed_choice_that_is_better_than_neighbours_is_named() -> None:
    """As where one family of matrices misleads all others."""
    (state,) = scope_states(fill(Database.in_memory(), tiny(), patterns(12)).index)
    for fixed, said in ((0.97, True), (0.825, False)):
        shares = {"of_optimum_held_out": 0.82, "static_best_held_out": fixed, "shrink": 1.0}
        lines = _quality({**state, **shares, "of_optimum_of_half": None})
        assert any("best fixed choice 97 %: `query --tuner" in line for line in lines) == said


def test_logs_of_winners_alone_cannot_be_judged() -> None:
    (state,) = scope_states(fill(Database.in_memory(), tiny(), patterns(12)).index)
    alone = {"of_optimum_held_out": None, "measured": state["indexed"]}
    assert _quality({**state, **alone}) == [
        "each of its matrices ran one configuration: there is nothing to judge"
    ]


def test_with_a_single_configuration_there_is_nothing_to_choose() -> None:
    db, platform = Database.in_memory(), tiny()
    db.store.put_platform(platform)
    for pattern in patterns(8):
        db.store.put_structure(pattern, WorkloadInfo.whole(pattern))
        db.store.append(runs_of(pattern, platform)[:1])
    embed(db.index)
    (state,) = scope_states(db.index)
    assert any("nothing to choose" in line for line in state["missing"])


def test_before_embed_the_missing_step_is_named() -> None:
    from embeddb.core.errors import NothingFound

    db = fill(Database.in_memory(), tiny(), indexed=False)
    (state,) = scope_states(db.index)
    assert state["unembedded"] == 20 and "embeddb embed" in state["missing"][0]
    with pytest.raises(NothingFound) as error:
        evaluate(db.index)
    assert "embeddb embed" in error.value.hint
    embed(db.index)
    (state,) = scope_states(db.index)
    assert state["unembedded"] == 0 and evaluate(db.index)


@pytest.mark.parametrize("count", [0, 8, 12])
def test_few_matrices_that_ran_two_configurations_are_the_only_ones_judged(count: int) -> None:
    db, among = Database.in_memory(), patterns()
    for one, variants in ((among[:count], (0, 1)), (among[count::2], (0,)), (among[1::2], (1,))):
        fill(db, tiny(), one, variants=variants)
    (state,) = scope_states(db.index)
    lines = "; ".join(state["missing"])
    assert ("held-out figures are of 2 groups of matrices alone" in lines) == (count == 8)
    assert ("each of its matrices ran one configuration" in lines) == (count == 0)
    assert "5 groups of matrices: too few" not in lines


@pytest.mark.parametrize(("factor", "named"), [(40, True), (20, False)])
def test_times_far_below_all_others_are_named(factor: int, named: bool) -> None:
    """A failed launch that its log calls ok took microseconds."""

    def times(pattern: Pattern, variant: int) -> float:
        if variant < 3 or winner(pattern) < 3:
            return by_law(pattern, variant)
        return min(by_law(pattern, other) for other in range(3)) / factor

    (state,) = scope_states(fill(Database.in_memory(), tiny(), patterns(), times=times).index)
    assert state["implausible"] == ({"variant=d": 5} if named else {})
    assert ("variant=d takes less than a thirtieth" in "; ".join(state["missing"])) == named


def test_where_no_matrix_ran_the_default_and_another_that_is_the_reason() -> None:
    db, among = Database.in_memory(), patterns()
    for one, variants in ((among[:1], (1, 2)), (among[1::2], (0,)), (among[2::2], (1,))):
        fill(db, tiny(), one, variants=variants)
    (state,) = scope_states(db.index)
    reason = "few of 20 matrices ran the default and another choice: too few to estimate"
    assert reason in "; ".join(state["missing"])
