"""What is tuned, and values of parameters, in words."""

from __future__ import annotations

import pytest

from embeddb.core.kinds import kinds
from embeddb.core.wording import counted, many_of, one_of, value_text


def test_kinds_in_words_whatever_their_order() -> None:
    assert (one_of("matrix"), many_of("nest")) == ("matrix", "nests")
    assert one_of("nest", "matrix") == one_of("matrix", "nest", "nest") == "matrix or nest"
    assert many_of("nest", "matrix") == "matrices and nests"
    assert many_of("kernel", "nest", "matrix") == "matrices, nests and tensor kernels"
    assert one_of("kernel", "nest", "matrix") == "matrix, nest or tensor kernel"


def test_without_any_they_are_matrices() -> None:
    assert (one_of(), many_of(), many_of("comet")) == ("matrix", "matrices", "matrices")


def test_every_kind_that_runs_has_words() -> None:
    assert len({one_of(kind.name) for kind in kinds()}) == len(kinds())


@pytest.mark.parametrize(
    ("count", "said"),
    [
        ({"matrix": 1}, "1 matrix"),
        ({"nest": 1_000, "matrix": 0}, "1,000 nests"),
        ({"nest": 1, "matrix": 5}, "5 matrices and 1 nest"),
        ({"nest": 1, "matrix": 5, "kernel": 2}, "5 matrices, 1 nest and 2 tensor kernels"),
        ({}, "0 matrices"),
    ],
)
def test_counts(count: dict[str, int], said: str) -> None:
    assert counted(count) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "(not used)"),
        (("1", "3", "2"), "1 3 2"),
        (["1", "3"], "1 3"),
        (0, "0"),
        (True, "True"),
    ],
)
def test_values(value: object, said: str) -> None:
    assert value_text(value) == said
