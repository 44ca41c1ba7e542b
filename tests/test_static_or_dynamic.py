"""The judging of `benchmarks/static_or_dynamic.py`, on figures worked out by hand."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embeddb.core.pattern import Pattern

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("static_or_dynamic")


def rows_of(lengths: list[int]) -> Pattern:
    ptr = np.concatenate([[0], np.cumsum(lengths)])
    return Pattern.from_csr((len(lengths), 9), ptr, [c for n in lengths for c in range(n)])


def row(name: str, *, feature: float, gain: float, family: str = "") -> dict[str, Any]:
    """Times of static and dynamic in three rounds, dynamic `gain` times as fast."""
    return {
        "name": name,
        "family": family or name,
        "pruned": False,
        "larger_half": feature,
        "times": {
            "nest": {"static": [1.0, 1.1, 0.9], "dynamic": [1 / gain, 1.1 / gain, 0.9 / gain]}
        },
        "vectors": {"nest": {"one": [feature]}},
    }


def test_the_busiest_thread_is_modelled(script: Any) -> None:
    # Eight rows of 9 + 1, then 24 of 0 + 1: static 16 rows each, dynamic chunks of 88, 16, 16, 16.
    found = script.modelled(rows_of([9] * 8 + [0] * 24), 2, 8)
    assert found == {"static": 88.0, "dynamic": 88.0}
    # The two full chunks are one thread's, or one of each.
    found = script.modelled(rows_of([9] * 16 + [0] * 16), 2, 8)
    assert found == {"static": 160.0, "dynamic": 104.0}
    assert script.larger_half(rows_of([9] * 8 + [0] * 24)) == 1.0


def test_what_the_rounds_do_not_tell_apart_is_not_decided(script: Any) -> None:
    assert script.decided([1.0, 1.1, 1.05], [2.0, 2.1, 2.2])
    assert not script.decided([1.0, 3.0, 1.1], [1.1, 1.0, 2.0])
    assert not script.decided([1.0, 1.0, 1.0], [1.01, 1.01, 1.01])  # less than 2 %


def test_the_nearest_of_another_family_says(script: Any) -> None:
    rows = [
        row("a", feature=0.5, gain=0.5, family="f"),
        row("b", feature=0.51, gain=2.0, family="f"),  # no neighbour of a, its relative
        row("c", feature=0.6, gain=0.8),
        row("d", feature=0.9, gain=4.0),
        row("e", feature=0.95, gain=1.5),
    ]
    found = script.judged(rows, "nest", np.ones(5, np.bool_))
    assert (found["decided"], found["of_them_dynamic"]) == (5, 3)
    told = found["choices"]
    assert told["always static"]["right"] == pytest.approx(2 / 5)
    lost = (2.0 * 4.0 * 1.5) ** (1 / 5)
    assert told["always static"]["over_better"] == pytest.approx(lost)
    # c says static to a and to b; b says dynamic to c; d and e each other dynamic.
    near = told["1-NN, one"]
    assert near["right"] == pytest.approx(3 / 5)
    assert near["over_better"] == pytest.approx((2.0 / 0.8) ** (1 / 5))
    assert near["worst"] == pytest.approx(2.0)
    above = told["larger half above a threshold"]
    assert above["right_of_decided"] == above["right"] >= 3 / 5
