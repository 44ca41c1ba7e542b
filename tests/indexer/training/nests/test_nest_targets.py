"""What is learned of a counted nest, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from embeddb.nests.counters import COUNTERS, GIVEN, CounterVector
from indexer.training.nests.samples import LOGARITHMS, TARGETS, targets_of

#: Of each of two threads, and by how much the second has more.
_COUNTS = {
    "instructions": 1000,
    "f32_scalar": 40,
    "f32_256": 10,
    "f64_512": 5,
    "branches": 100,
    "mispredictions": 4,
    "loads": 300,
    "stores": 100,
    "memory_reads": 5,
    "memory_writes": 3,
    "l2_lines_in": 20,
    "l2_writebacks": 10,
    "l1_lines_in": 80,
    "l1_modified_evictions": 40,
}


def counted(**changed: float) -> CounterVector:
    """Two threads with the counts above each, unless another is told."""
    row = [float((_COUNTS | changed).get(name, 0)) for name in COUNTERS]
    return CounterVector.of_threads(np.array([row, row]), "perf")


def value_of(target: str, learned: float) -> float:
    """A target in its unit (seconds, 1/s, bytes/s, or none) from its transformed value."""
    if target == "runtime":
        return float(2.0**learned)
    return float(2.0**learned - 1) if target in LOGARITHMS else learned


def told(vector: CounterVector, seconds: float = 0.5) -> dict[str, float]:
    """Targets in their units."""
    learned = targets_of(vector, seconds).tolist()
    return {n: value_of(n, value) for n, value in zip(TARGETS, learned, strict=True)}


def test_all_targets_by_hand() -> None:
    line = 64 / 0.5
    flops = 2 * (40 + 8 * 10 + 8 * 5)
    assert told(counted()) == pytest.approx(
        {
            "runtime": 0.5,
            "instructions_per_second": 2000 / 0.5,
            "flops_per_second": flops / 0.5,
            "memory_bandwidth": 16 * line,
            "memory_read_bandwidth": 10 * line,
            "memory_write_bandwidth": 6 * line,
            "l3_bandwidth": 60 * line,
            "l3_read_bandwidth": 40 * line,
            "l3_write_bandwidth": 20 * line,
            "l2_bandwidth": 240 * line,
            "l2_read_bandwidth": 160 * line,
            "l2_write_bandwidth": 80 * line,
            "l1_misses": 160 / 800,
            "l2_misses": 40 / 160,
            "l3_misses": 10 / 40,
            "mispredictions": 8 / 200,
            "load_rate": 0.3,
            "store_rate": 0.1,
            "branch_rate": 0.1,
            "flop_rate": flops / 2000,
            "imbalance": 1,
        },
        rel=1e-5,
    )


def test_an_absent_counter_makes_its_targets_absent() -> None:
    lacking = [name for name in COUNTERS if name not in GIVEN["amd"]]
    found = told(counted(**dict.fromkeys(lacking, math.nan)))
    absent = {name for name, value in found.items() if math.isnan(value)}
    assert absent == {
        "memory_write_bandwidth",
        "l3_write_bandwidth",
        "l2_write_bandwidth",
        "store_rate",
    }
    assert found["memory_bandwidth"] == pytest.approx(found["memory_read_bandwidth"])
    assert found["l1_misses"] == pytest.approx(160 / 600)
    assert found["flop_rate"] == pytest.approx(40 / 1000)


def test_a_share_of_nothing_is_nothing() -> None:
    found = told(counted(l1_lines_in=0, l2_lines_in=0, branches=0))
    assert found["l2_misses"] == found["l3_misses"] == found["mispredictions"] == 0


def test_what_is_fetched_ahead_is_no_more_than_all() -> None:
    assert told(counted(memory_reads=500))["l3_misses"] == 1


def test_threads_apart_are_an_imbalance() -> None:
    rows = np.array([[1000.0 if n == "instructions" else 0 for n in COUNTERS]] * 2)
    rows[1] *= 3
    found = told(CounterVector.of_threads(rows, "model"))
    assert found["imbalance"] == pytest.approx(1.5)


def test_sizes_are_learned_as_logarithms() -> None:
    learned = dict(zip(TARGETS, targets_of(counted(), 0.5).tolist(), strict=True))
    assert learned["runtime"] == -1
    assert learned["load_rate"] == pytest.approx(0.3)
    assert {"runtime", "l2_bandwidth", "flops_per_second"} < LOGARITHMS
    assert "imbalance" not in LOGARITHMS
