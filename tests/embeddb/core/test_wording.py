"""How numbers and names read, with the variants of terminal, page and notebook."""

from __future__ import annotations

import math

import pytest

from embeddb.core import wording


def test_a_duration_takes_the_unit_that_fits() -> None:
    said = {1.234e-5: "12.3 us", 0.5: "500 ms", 200: "3 min 20 s", 7300: "2 h 1 min", 42: "42 s"}
    assert {seconds: wording.duration(seconds) for seconds in said} == said
    assert [wording.duration(x) for x in (None, math.nan, math.inf)] == ["-", "-", "never"]
    assert wording.duration(0) == "0 ns"


def test_a_page_says_the_same_with_signs_of_its_own() -> None:
    assert wording.page_seconds(1.234e-5) == "12.3\u00a0µs"
    assert wording.page_seconds(200) == "200\u00a0s"
    assert (wording.factor(1.234), wording.page_factor(1.234)) == ("1.23x", "1.23×")
    assert (wording.share(0.93), wording.page_share(0.93)) == ("93 %", "93\u00a0%")
    assert (wording.share(0.001), wording.page_share(0.001)) == ("0 %", "< 1\u00a0%")
    assert wording.page_share(0.0) == "0\u00a0%"


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_nothing_is_said_of_what_is_not_known(value: float | None) -> None:
    assert (wording.factor(value), wording.share(value)) == ("-", "-")
    assert (wording.page_factor(value), wording.page_share(value), wording.page_seconds(value)) == (
        "–",
        "–",
        "–",
    )
    assert wording.factor(value, none="") == ""


def test_counts_and_sizes() -> None:
    assert wording.plural(1, "run") == "1 run" and wording.plural(1234, "run") == "1,234 runs"
    assert wording.plural(2, "matrix", "matrices") == "2 matrices"
    assert wording.size(0) == "0 B" and wording.size(4_200_000) == "4.2 MB"


def test_what_does_not_print_is_shown_as_a_question_mark() -> None:
    assert wording.clean("a\x1b[31m\u202eb\n") == "a?[31m?b?"
