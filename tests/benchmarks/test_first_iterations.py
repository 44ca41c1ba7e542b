"""The baseline of reuse distances, by hand."""

from __future__ import annotations

import pytest
from counted_nests import copy, histogram, masked, matmul

from benchmarks.first_iterations import FIRST, first_iterations
from indexer.runners.counters.caches import Caches, Level

SMALL = Caches(Level(2, 2), Level(4, 4), Level(8, 4))


def test_a_copy() -> None:
    miss_ratio, read, written, intensity = first_iterations(copy(1000), iterations=400)
    # 400 elements of 8 bytes of each of two arrays.
    assert miss_ratio == pytest.approx(100 / 800) and read == 100 * 64
    assert written == 50 * 64 and intensity == 0


def test_the_whole_of_a_short_nest() -> None:
    told = dict(zip(FIRST, first_iterations(matmul(4)).tolist(), strict=True))
    # Each matrix is one line; 2 * 64 loads of A and B, 16 loads and stores of C.
    assert told["miss_ratio"] == pytest.approx(3 / (2 * 64 + 2 * 16))
    assert (told["bytes_read"], told["bytes_written"]) == (3 * 64, 64)
    assert told["intensity"] == pytest.approx(2 * 64 / (4 * 64))


def test_distances_above_the_capacity_miss() -> None:
    # A column of B is 16 lines apart: none is left of the column when the next one begins.
    far, near = (
        first_iterations(matmul(16), caches=c)[0] for c in (SMALL, Caches(*[Level(64, 8)] * 3))
    )
    assert far > 5 * near


def test_arrays_that_decide_are_followed() -> None:
    few, many = (first_iterations(histogram(2000, bins)) for bins in (8, 2000))
    assert many[1] > 4 * few[1]
    assert first_iterations(masked(2000, 0.0))[2] == 0
