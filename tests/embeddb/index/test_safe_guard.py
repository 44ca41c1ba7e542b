"""The guard of subjects for which slower answers are limited."""

from __future__ import annotations

import math

import numpy as np
import pytest
from fit_policies import fit_policy

from embeddb.core.kinds import Limit, kind_of
from embeddb.index.guards import NEVER, safe_guard
from embeddb.index.held_out import FirstChoices, Judged, Near
from embeddb.index.vote import VoteSettings
from embeddb.index.vote_fit import OwnFit, expected

#: What the first choices of forty patterns were promised and got: one in four of those that were
#: promised little is slower, none of those that were promised much.
_LITTLE, _MUCH = 0.2, 0.8


def _evidence(slow_every: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Raw features float32[r,1], log gains float64[r,2] (the default, and one other) and groups of
    patterns in two kinds: the other gains much, or little and now and then loses."""
    rows = 40
    kind = np.arange(rows) % 2
    gains = np.zeros((rows, 2))
    gains[:, 1] = np.where(kind == 0, _MUCH, _LITTLE)
    if slow_every:
        gains[1::slow_every, 1] = math.log(0.5)
    raw = (kind[:, None] * 10.0 + np.linspace(0, 0.1, rows)[:, None]).astype(np.float32)
    return raw, gains, np.array([f"g{at}" for at in range(rows)])


def test_matrices_have_no_limit() -> None:
    assert kind_of("nest").max_slower == Limit(0.02, 1.02)
    assert kind_of("kernel").max_slower == Limit(0.02, 1.2)


def test_the_guard_rises_until_few_are_slower() -> None:
    raw, gains, groups = _evidence(8)
    free = fit_policy(raw, gains, groups).policy.guard
    safe = fit_policy(raw, gains, groups, most_slower=Limit(0.05, 1.02)).policy.guard
    assert free <= 0.02 < safe
    assert safe <= _MUCH, "what is promised much is believed"


def test_what_is_slower_by_less_than_the_limit_says_is_let_through() -> None:
    raw, gains, groups = _evidence(8)
    assert fit_policy(raw, gains, groups, most_slower=Limit(0.05, 2.1)).policy.guard == 0.0


def test_without_a_slower_one_nothing_is_held_back() -> None:
    raw, gains, groups = _evidence(0)
    assert fit_policy(raw, gains, groups, most_slower=Limit(0.05, 1.02)).policy.guard == 0.0


def test_too_few_patterns_to_know_promise_nothing() -> None:
    raw, gains, groups = (part[:12] for part in _evidence(0))
    assert fit_policy(raw, gains, groups, most_slower=Limit(0.02, 1.02)).policy.guard > 2.0


def test_where_no_choice_can_be_judged_none_passes() -> None:
    unknown = [FirstChoices.unknown(np.arange(3))]
    assert expected(unknown, Limit(0.02, 1.2)).guard == NEVER
    assert expected(unknown, None).guard == 0.0


def test_with_a_single_group_nothing_passes() -> None:
    raw, gains, _ = _evidence(0)
    groups = np.array(["one"] * len(raw))
    assert fit_policy(raw, gains, groups, most_slower=Limit(0.02, 1.2)).policy.guard == NEVER
    assert fit_policy(raw, gains, groups).policy.guard == 0.0


def test_own_rows_that_cannot_be_judged_leave_the_guard_of_all() -> None:
    _, gains, _ = _evidence(0)
    gains[:, 0] = np.nan  # the default did not run there
    gains = np.hstack([gains, gains[:, 1:] - 0.1])
    places = np.array([[j for j in range(8) if j != i] for i in range(8)])
    part = Judged(np.arange(8), gains[:8], gains[:8], np.ones((8, 3)))
    base = VoteSettings(3, 1.0, guard=0.05)
    near, risk = Near(places, np.ones(places.shape)), Limit(0.02, 1.02)
    fit = OwnFit(near, [part], np.arange(8), base=base, left_out=None, most_slower=risk)
    assert fit.policy().guard == pytest.approx(0.05)


def test_so_many_answers_show_that_a_limit_holds() -> None:
    limit = Limit(0.02, 1.02)
    assert limit.fewest == 49
    fast = np.tile([1.0, 1.0], (limit.fewest, 1))
    assert safe_guard([fast], limit) < NEVER and safe_guard([fast[1:]], limit) == NEVER
