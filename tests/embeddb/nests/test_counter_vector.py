"""The vector of counters: statistics, absence, and its text."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from embeddb.core.errors import NestError
from embeddb.nests.counters import COUNTERS, GIVEN, SOURCES, STATISTICS, CounterVector

LOADS, WIDE = COUNTERS.index("loads"), COUNTERS.index("f32_256")


def counted(threads: int = 3) -> CounterVector:
    counts = np.arange(threads * len(COUNTERS), dtype=np.float64).reshape(threads, -1)
    counts[:, WIDE] = np.nan
    return CounterVector.of_threads(counts, "model", about="by hand")


def test_the_counters_are_those_of_table_5() -> None:
    assert len(COUNTERS) == len(set(COUNTERS)) == 19 and len(STATISTICS) == 5
    assert counted().values.shape == (95,) and counted().values.dtype == np.float32
    assert all(names < set(COUNTERS) for names in GIVEN.values())
    assert "f32_scalar" in GIVEN["model"] and "f32_256" not in GIVEN["model"]


def test_statistics_are_over_threads() -> None:
    counts = np.zeros((2, len(COUNTERS)))
    counts[:, LOADS] = (10, 30)
    vector = CounterVector.of_threads(counts, "perf")
    assert [vector.of("loads", s) for s in STATISTICS] == [10, 30, 20, 10, 40]
    assert vector.threads == 2 and vector.of("stores") == 0


def test_what_is_not_counted_is_absent_and_not_0() -> None:
    vector = counted()
    assert np.isnan(vector.of("f32_256")) and (~np.isnan(vector.values)).sum() == 90
    assert "f32_256" not in json.loads(vector.text)["values"]
    one = np.zeros((2, len(COUNTERS)))
    one[0, LOADS] = np.nan
    assert np.isnan(CounterVector.of_threads(one, "perf").of("loads", "max"))


@pytest.mark.parametrize("threads", [1, 2, 1000])
def test_its_text_is_read_back(threads: int) -> None:
    rng = np.random.default_rng(threads)
    counts = 10 ** rng.uniform(0, 14, (threads, len(COUNTERS)))
    counts[:, WIDE] = np.nan
    vector = CounterVector.of_threads(counts, "model", about="by chance")
    again = CounterVector.from_text(vector.text)
    np.testing.assert_array_equal(again.values, vector.values)
    assert (again.source, again.threads, again.about) == ("model", threads, "by chance")
    assert again.text == vector.text and "\n" not in vector.text


def put(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(told: dict[str, Any]) -> None:
        for name in path[:-1]:
            told = told[name]
        told[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put("counters", value=2), "is not a set of counters"),
        (put("source", value="guess"), "source: 'guess'"),
        (put("source", value=None), "texts"),
        (put("threads", value=0), "threads: 0"),
        (put("threads", value=2.0), "number of threads"),
        (put("threads", value=1 << 20), "threads"),
        (put("about", value="two\nlines"), "about"),
        (put("about", value="x" * 501), "about"),
        (put("values", value=[]), "by name"),
        (put("values", "cycles", value=[0] * 5), "no counter 'cycles'"),
        (put("values", "loads", value=[1, 2, 3]), "loads: needs min"),
        (put("values", "loads", value=[1, 2, 1.5, 0.5, "3"]), "loads: a count"),
        (put("values", "loads", value=[1, 2, 1.5, True, 3]), "loads: a count"),
        (put("values", "loads", value=[-1, 2, 0.5, 1.5, 1]), "loads: a count"),
        (put("values", "loads", value=[1, 2, 1.5, 0.5, 1e300]), "loads: a count"),
        (put("values", "loads", value=[3, 2, 1.5, 0.5, 3]), "loads: .* cannot be minimum"),
        (put("values", "loads", value=[1, 2, 1.5, 9, 3]), "loads: .* cannot be minimum"),
        (put("values", "loads", value=[1, 4, 1.5, 0.5, 3]), "loads: .* cannot be minimum"),
        (put("more", value="x" * (1 << 14)), "longer than"),
    ],
)
def test_damage_is_named(change: Callable[[dict[str, Any]], None], said: str) -> None:
    told = json.loads(counted().text)
    change(told)
    with pytest.raises(NestError, match=said) as caught:
        CounterVector.from_text(json.dumps(told), where="counters of x")
    assert "\n" not in str(caught.value) and "counters of x" in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 10_000, '{"counters": NaN}', "\xff"])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(NestError):
        CounterVector.from_text(text)


def test_numbers_that_are_none() -> None:
    text = counted().text.replace('"loads":[', '"loads":[NaN,', 1)
    with pytest.raises(NestError):
        CounterVector.from_text(text)
    with pytest.raises(NestError, match="counters"):
        CounterVector(np.zeros(94, dtype=np.float32), SOURCES[0], 1)
