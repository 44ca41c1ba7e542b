"""Plain statistics of tensor kernels: the contract, and numbers by hand."""

from __future__ import annotations

from dataclasses import replace
from math import log2

import pytest
from tensors import conv, dot_add, op, row_sum

from embeddb.core.records import WorkloadInfo
from embeddb.featurizers.kernel_stats import KernelStats
from embeddb.tensors.check import computation
from embeddb.tensors.tensor_graph import Shape, TensorGraph
from embeddb.testing.featurizers import KernelFeaturizerContract
from embeddb.ui.feature_words import feature_value, feature_words


class TestKernelStats(KernelFeaturizerContract):
    def make(self) -> KernelStats:
        return KernelStats()

    def patterns(self) -> dict[str, TensorGraph]:
        return super().patterns() | {"conv": conv(), "dot": dot_add(), "sum": row_sum()}


def told(kernel: TensorGraph) -> dict[str, float]:
    stats = KernelStats()
    return dict(zip(stats.names, stats.embed(kernel).tolist(), strict=True))


def counts(kernel: TensorGraph, *names: str) -> list[float]:
    found = told(kernel)
    return [round(2 ** found[f"log_{name}"] - 1) for name in names]


def test_a_product() -> None:
    kernel = dot_add(64, 128, 32)
    assert counts(kernel, "columns", "lines", "batch", "reduced") == [32, 64, 1, 128]
    assert counts(kernel, "dim_1", "dim_2", "dim_3") == [64, 32, 0]
    # A multiply and an add for each of the sums' terms; one addition, one maximum an element.
    assert counts(kernel, "flops", "calls") == [64 * 32 * (2 * 128 + 2), 0]
    assert counts(kernel, "bytes_in", "bytes_out") == [4 * (64 * 128 + 128 * 32 + 32), 4 * 64 * 32]
    classes = ("input", "product", "spread", "arithmetic", "function")
    assert counts(kernel, *(f"{name}_nodes" for name in classes)) == [4, 1, 2, 2, 0]
    assert told(kernel)["element_bytes"] == 4 and told(kernel)["floats"] == 1


def test_a_sum_of_functions() -> None:
    kernel = row_sum(48, 1000)
    assert counts(kernel, "columns", "lines", "reduced", "calls") == [48, 1, 1000, 48_000]
    assert told(kernel)["log_in_over_out"] == pytest.approx(
        log2((192_000 + 1) / (192 + 1)), abs=1e-4
    )


def test_the_dimension_closest_in_memory_is_the_layouts() -> None:
    plain = op("parameter", (8, 100), number=0)
    turned = replace(plain, results=(Shape("bf16", (8, 100), (0, 1)),))
    done = replace(op("negate", (8, 100), 0), results=turned.results)
    kernel = computation([turned, done], [1])
    assert counts(kernel, "columns", "lines", "dim_1", "dim_2") == [8, 100, 8, 100]
    found = told(kernel)
    assert (found["columns_first"], found["element_bytes"], found["floats"]) == (0, 2, 1)


def test_every_statistic_has_words_and_its_own_unit() -> None:
    names = KernelStats().names
    assert len({feature_words(name) for name in names}) == len(names)
    assert all(feature_words(name) != name for name in names)
    assert feature_value("log_columns", told(dot_add())["log_columns"]) == "32.0"
    assert feature_value("log_in_over_out", 3.0) == "8.00"


def test_a_stub_of_known_statistics_is_found_again() -> None:
    stats = KernelStats()
    vector = stats.embed(conv())
    info = WorkloadInfo(id="0", kind="kernel", stub=True, features=stats.as_features(vector))
    found = stats.from_info(info)
    assert found is not None and found.tolist() == vector.tolist()
