"""Plain statistics of nests: the contract, and numbers by hand."""

from __future__ import annotations

from math import log2

import pytest

from embeddb.featurizers.nest_stats import NestStats
from embeddb.nests.examples import nest_of, sample_nests
from embeddb.nests.nest import Nest
from embeddb.testing.featurizers import NestFeaturizerContract


class TestNestStats(NestFeaturizerContract):
    def make(self) -> NestStats:
        return NestStats()


def told(nest: Nest) -> dict[str, float]:
    stats = NestStats()
    return dict(zip(stats.names, stats.embed(nest).tolist(), strict=True))


def test_a_product_of_matrices() -> None:
    found = told(sample_nests(64)["matmul"])
    assert found["depth"] == 3 and found["log_points"] == pytest.approx(log2(1 + 64**3))
    # C stays, A goes on by an element, B by a row.
    innermost = {k: found[f"innermost_{k}"] for k in ("none", "unit", "line", "far", "indirect")}
    assert innermost == {
        k: pytest.approx(1 / 3 if k in ("none", "unit", "far") else 0) for k in innermost
    }
    assert found["outermost_none"] == pytest.approx(1 / 3)
    # The innermost loop: one element of C, a row of A, a column of B.
    assert found["log_reach_1"] == pytest.approx(log2(1 + 4 * (1 + 64 + 64)))
    assert found["log_reach_2"] == pytest.approx(log2(1 + 4 * (64 + 64 + 64**2)))
    assert found["log_touched_bytes"] == found["log_reach_3"] == found["log_all_bytes"]
    assert found["log_reuse"] == pytest.approx(log2(64**3 * 3 * 4 / (3 * 64**2 * 4)))
    assert found["log_operations"] == pytest.approx(log2(1 + 2 * 64**3))
    assert found["parallel_loops"] == 2 and found["reduction_loops"] == 1
    assert (found["outermost_parallel"], found["innermost_parallel"]) == (1, 0)


def test_a_sparse_matrix_times_a_vector() -> None:
    found = told(sample_nests(64)["spmv"])
    assert found["data_bounds"] == found["indices_below"] == found["indices_offsets"] == 1
    assert found["indirect"] == found["innermost_indirect"] == 0.25
    assert found["log_trip_1"] == pytest.approx(log2(1 + 4))
    assert found["share_i32"] == pytest.approx((4 * 64 + 65) / (2 * 4 * 64 + 65 + 2 * 64))


def test_a_stencil_touches_what_its_reads_have_in_common_once() -> None:
    found = told(sample_nests(64)["stencil"])
    assert found["log_reach_1"] == pytest.approx(log2(1 + 8 * (64 + 3 * 66)))
    assert found["log_reads"] == pytest.approx(log2(6))
    assert found["log_groups"] == pytest.approx(log2(3))


def test_a_mask_and_the_largest() -> None:
    found = told(sample_nests(64)["masked_max"])
    assert found["masked"] == found["reductions"] == found["log_target"] == 1
    assert found["log_extreme"] == found["log_exp"] == found["log_compare"] == 1
    assert found["parallel_loops"] == 0 and found["reduction_loops"] == 1


def test_a_stride_within_a_cache_line_is_told_from_a_farther_one() -> None:
    def strided(by: int) -> Nest:
        array = ["f32", [16 * by]]
        return nest_of([16], [array, array], [["=", [0, [0, by]], ["read", 1, [0, by]], None]])

    assert told(strided(1))["innermost_unit"] == 1
    assert told(strided(4))["innermost_line"] == 1
    assert told(strided(16))["innermost_far"] == 1
