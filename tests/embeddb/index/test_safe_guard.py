"""The guard of subjects for which slower answers are limited."""

from __future__ import annotations

import math

import numpy as np
from fit_policies import fit_policy

from embeddb.core.kinds import Limit, kind_of

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
