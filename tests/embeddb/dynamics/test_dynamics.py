"""Dynamic features: every simulation against a plain one, every absent value with its reason."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

from embeddb.core.config import Op
from embeddb.core.errors import InputError, NothingFound, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.sizes import Sizes
from embeddb.dynamics import TABLE_5, Cache, Counter, caches_of, execution_of, profile
from embeddb.dynamics.profile import imbalance as imbalance_of
from embeddb.dynamics.traffic import assign, reuse, reuse_of
from embeddb.dynamics.walk import Execution, entries_of, middle_of, plain, tasks_of, tiling_of
from embeddb.nests.counters import COUNTERS
from embeddb.platforms.loopnest import LoopNest, complete_order
from embeddb.platforms.platform import load_platform

CACHES = (Cache(1, 4096, False), Cache(2, 1 << 14, False), Cache(3, 1 << 16, True))
#: Loops from the outermost, splits I, J, K.
NESTS = {
    "rows": (("i2", "j2", "k2"), (1, 1, 1)),
    "rows, tiles": (("i2", "k2", "j2", "k1"), (1, 1, 16)),
    "strips": (("i2", "k2", "i1", "j2", "k1"), (4, 1, 16)),
    "tiles": (("k2", "i2", "j2", "k1"), (1, 1, 16)),
    "panels": (("j2", "i2", "k2", "j1", "k1"), (1, 5, 16)),
    "columns": (("j2", "k2", "i2", "k1"), (1, 1, 16)),
    "columns, narrow": (("j2", "k2", "i2", "k1"), (1, 1, 8)),
}


def execution(name: str, **more: Any) -> Execution:
    loops, (i, j, k) = NESTS[name]
    return Execution(LoopNest((i, j, k, 1), complete_order(loops)), **more)


def scattered(m: int, n: int, nnz: int, seed: int = 0) -> Pattern:
    rng = np.random.default_rng(seed)
    rows, cols = rng.integers(0, m, nnz), (rng.random(nnz) ** 3 * n).astype(np.int64)
    return Pattern.from_coo((m, n), rows, cols, name="scattered")


# -- reuse distances against a list that is searched ---------------------------------------------


def stack_distances(trace: Iterable[Any]) -> list[tuple[Any, int]]:
    """Each access with its distance, -1 for the first one: an LRU stack kept as a list."""
    stack: list[Any] = []
    found = []
    for unit in trace:
        at = stack.index(unit) if unit in stack else -1
        found.append((unit, at))
        if at >= 0:
            del stack[at]
        stack.insert(0, unit)
    return found


@given(st.lists(st.integers(0, 11), max_size=120), st.integers(0, 12))
@settings(max_examples=150, deadline=None)
def test_reuse_distances_are_those_of_an_lru_stack(trace: list[int], first_row: int) -> None:
    ids = np.array(trace, dtype=np.int64)
    capacities = np.array([0, 1, 3, 100])
    counts, cold, misses = reuse(ids, first_row, capacities)
    want_counts, want_cold = np.zeros_like(counts), np.zeros_like(cold)
    want_misses = np.zeros_like(misses)
    for unit, distance in stack_distances(trace):
        operand = int(unit >= first_row)
        if distance < 0:
            want_cold[operand] += 1
        else:
            want_counts[operand, distance.bit_length()] += 1
        want_misses[operand] += (distance < 0) | (distance >= capacities)
    assert np.array_equal(counts, want_counts)
    assert np.array_equal(cold, want_cold)
    assert np.array_equal(misses, want_misses)


def touched(pattern: Pattern, name: str, width: int) -> list[tuple[str, int, int]]:
    """Operand, row and tile of every touch, from the nest's own definition: all points sorted by
    the values of its loops."""
    loops, (i_size, j_size, k_size) = NESTS[name]
    size = k_size if "k1" in loops else width
    points = []
    for i in range(pattern.shape[0]):
        for j in pattern.indices[pattern.indptr[i] : pattern.indptr[i + 1]].tolist():
            for k in range(-(-width // size)):
                value = {"i2": i // i_size, "i1": i % i_size, "k2": k, "k1": 0}
                value |= {"j2": j // j_size, "j1": j % j_size}
                points.append((tuple(value[x] for x in loops), i, j, k))
    trace: list[tuple[str, int, int]] = []
    before = (-1, -1, -1)
    for _, i, j, k in sorted(points):
        if (i, k) != (before[0], before[2]):
            trace.append(("row", i, k))
        if (j, k) != (before[1], before[2]):
            trace.append(("column", j, k))
        before = (i, j, k)
    return trace


@pytest.mark.parametrize("name", NESTS)
def test_a_nest_touches_what_its_loops_say(name: str) -> None:
    pattern, width = scattered(23, 31, 140), 40
    ex, op = execution(name), Op("spmm", width)
    tiling = tiling_of(ex, width)
    entries = entries_of(pattern, ex)
    thread = np.zeros(pattern.nnz, np.int32)
    found = reuse_of(entries, thread, ex=ex, op=op, caches=CACHES, max_accesses=1 << 20)
    unit = max(64, tiling.columns * 4)
    units = [
        (what, row, k) if tiling.columns * 4 >= 64 else (what, (row * width * 4 + k * 32) // 64)
        for what, row, k in touched(pattern, name, width)
    ]
    misses = np.zeros((2, 3))
    for touch, distance in stack_distances(units):
        rooms = np.array([cache.size_bytes // unit for cache in CACHES])
        misses[int(touch[0] == "row")] += (distance < 0) | (distance >= rooms)
    assert found.unit_bytes == unit and found.share == 1
    assert found.accesses.sum() == len(units)
    assert np.array_equal(found.misses, misses)


def test_blocks_touch_every_row_they_store() -> None:
    pattern = Pattern.from_coo((5, 7), [0, 1, 4], [0, 1, 6])
    ex = replace(plain(1), block=(2, 3))
    entries = entries_of(pattern, ex)
    assert entries.rows.tolist() == [0, 2] and entries.columns.tolist() == [0, 2]
    assert entries.work.tolist() == [6, 0, 6] and entries.stored == 12
    found = profile(pattern, Op("spmm", 16), ex, caches=CACHES)
    # Rows 0, 1 and 4 of the result, columns 0 to 2 and 6: what lies beyond the matrix is not there.
    assert found.reuse.cold == 3 + 4 and found.quantities["flops_stored"].value == 12 * 32


def test_slices_walk_column_by_column() -> None:
    pattern = Pattern.from_coo((4, 6), [0, 1, 1, 1, 2, 2, 3], [0, 1, 2, 3, 4, 5, 0])
    ex = replace(plain(1), slice=2)
    entries = entries_of(pattern, ex)
    assert entries.rows.tolist() == [0, 1, 1, 1, 2, 3, 2]
    assert entries.work.tolist() == [6, 4]
    assert entries_of(pattern, replace(ex, padded=True)).work.tolist() == [6, 6]
    by_length = entries_of(pattern, replace(ex, sigma=4))
    assert by_length.rows.tolist() == [1, 2, 1, 2, 1, 0, 3]
    assert by_length.work.tolist() == [6, 2]


def test_rows_by_length_are_walked_that_way() -> None:
    pattern = Pattern.from_coo((3, 4), [0, 1, 1, 2, 2, 2], [0, 1, 2, 1, 2, 3])
    entries = entries_of(pattern, replace(plain(1), by_length=True))
    assert entries.rows.tolist() == [2, 2, 2, 1, 1, 0] and entries.work.tolist() == [3, 2, 1]


def test_private_caches_do_not_see_other_threads() -> None:
    # Two rows that share all columns: one thread misses once, two threads once each.
    pattern = Pattern.from_coo((2, 8), [0] * 8 + [1] * 8, [*range(8), *range(8)])
    misses = [profile(pattern, Op("spmm", 16), plain(t), caches=CACHES).reuse.cold for t in (1, 2)]
    assert misses == [8 + 2, 16 + 2]


def test_a_large_pattern_is_sampled_and_says_so() -> None:
    pattern = scattered(400, 300, 6000)
    whole = profile(pattern, Op("spmm", 32), plain(2), caches=CACHES)
    part = profile(pattern, Op("spmm", 32), plain(2), caches=CACHES, max_accesses=4000)
    assert whole.reuse.share == 1 and not whole.notes
    assert 0.1 < part.reuse.share < 0.5
    assert "sampled" in part.notes[0] or "window" in part.notes[0]
    assert part.reuse.accesses == pytest.approx(whole.reuse.accesses, rel=0.1)
    assert part.quantities["miss_ratio_l1"].value == pytest.approx(
        whole.quantities["miss_ratio_l1"].value, rel=0.2
    )


# -- who gets what ---------------------------------------------------------------------------------

HAND = np.array([8, 1, 1, 1, 1, 4])


@pytest.mark.parametrize(
    ("schedule", "chunk", "owner"),
    [
        ("static", 0, [0, 0, 0, 1, 1, 1]),
        ("static", 1, [0, 1, 0, 1, 0, 1]),
        ("static", 2, [0, 0, 1, 1, 0, 0]),
        ("dynamic", 1, [0, 1, 1, 1, 1, 1]),  # thread 1 is free until thread 0 is through with 8
        ("dynamic", 2, [0, 0, 1, 1, 1, 1]),
        ("guided", 1, [0, 0, 0, 1, 1, 1]),  # chunks of 3, 2, 1
    ],
)
def test_tasks_go_where_openmp_sends_them(schedule: str, chunk: int, owner: list[int]) -> None:
    found = assign(HAND, np.array([0, 6]), replace(plain(2), schedule=schedule, chunk=chunk))
    assert found.tolist() == owner


def test_static_blocks_differ_by_one() -> None:
    found = assign(np.ones(7, np.int64), np.array([0, 7]), plain(3))
    assert found.tolist() == [0, 0, 0, 1, 1, 2, 2]


def lengths(*each: int) -> Pattern:
    rows = np.repeat(np.arange(len(each)), each)
    cols = np.concatenate([np.arange(x) for x in each])
    return Pattern.from_coo((len(each), max(each)), rows, cols)


def imbalance(pattern: Pattern, ex: Execution, width: int = 1) -> float:
    return imbalance_of(tasks_of(entries_of(pattern, ex), ex), ex, tiling_of(ex, width))


def test_imbalance_of_a_hand_case() -> None:
    pattern = lengths(8, 1, 1, 1, 1, 4)
    two = plain(2)
    assert imbalance(pattern, two) == 10 / 8
    assert imbalance(pattern, replace(two, schedule="dynamic", chunk=1)) == 8 / 8
    assert imbalance(pattern, replace(two, schedule="guided")) == 10 / 8
    assert imbalance(pattern, replace(two, pieces=1, schedule="dynamic", chunk=1)) == 1
    assert imbalance(pattern, plain(1)) == 1


def test_barriers_between_panels_cost() -> None:
    # Panel 0: rows 0 and 1; panel 1: row 0 alone, while the other thread waits.
    pattern = Pattern.from_coo((2, 6), [0, 1, 0, 0], [0, 1, 5, 4])
    ex = replace(execution("panels"), threads=2, schedule="dynamic", chunk=1)
    ex = replace(ex, nest=LoopNest((1, 3, 1, 1), ex.nest.order))
    assert tasks_of(entries_of(pattern, ex), ex).starts.tolist() == [0, 2, 3]
    assert imbalance(pattern, ex) == (1 + 2) / 2


def test_strips_are_tasks() -> None:
    pattern = lengths(1, 1, 1, 1, 6, 1)
    ex = replace(execution("strips"), threads=2)
    assert tasks_of(entries_of(pattern, ex), ex).work.tolist() == [4, 7]


def test_tiles_as_tasks_leave_threads_idle() -> None:
    ex = replace(execution("tiles"), threads=2, tiles_parallel=True)
    assert imbalance(lengths(3, 1), ex, 48) == 4 / 3  # three tiles of 16, two threads


# -- the record -----------------------------------------------------------------------------------


def test_every_counter_has_a_value_or_a_reason() -> None:
    found = profile(scattered(50, 40, 200), Op("spmm", 8, "f64"), plain(2), caches=CACHES)
    assert len(TABLE_5) == 19
    assert set(found.counters) | set(found.missing) == set(TABLE_5)
    assert not set(found.counters) & set(found.missing) and all(found.missing.values())
    vector, mask = found.vector(), found.mask()
    assert vector.shape == (19,) and vector.dtype == np.float32
    assert np.array_equal(~np.isnan(vector), mask) and 0 < mask.sum() < 19
    assert found.counters["FP_ARITH_INST_RETIRED_SCALAR_SINGLE"].value == 0
    assert "FP_ARITH_INST_RETIRED_SCALAR_DOUBLE" in found.missing


def test_a_smaller_cache_level_is_missing_not_zero() -> None:
    found = profile(scattered(50, 40, 200), Op("spmv"), plain(1), caches=CACHES[:1])
    assert "L1D_REPLACEMENT" in found.counters
    assert "cache" in found.missing["CAS_COUNT_RD"] and "cache" in found.missing["L2_LINES_IN_ALL"]


def test_what_a_tool_counted_replaces_what_was_simulated() -> None:
    found = profile(scattered(50, 40, 200), Op("spmv"), plain(1), caches=CACHES)
    seen = {"L1D_REPLACEMENT": Counter(7, "lines", "perf")}
    merged = found.merged(seen, {"INSTR_RETIRED_ANY": "broken"})
    assert merged.counters["L1D_REPLACEMENT"].value == 7
    assert merged.missing["INSTR_RETIRED_ANY"] == "broken"
    again = merged.merged({"L1D_REPLACEMENT": Counter(9, "lines", "cachegrind")}, {})
    assert again.counters["L1D_REPLACEMENT"].source == "perf"
    with pytest.raises(InputError, match="Table 5"):
        found.merged({"CYCLES": Counter(1, "cycles", "perf")}, {})


def test_a_made_up_number_is_refused() -> None:
    with pytest.raises(InputError, match="source"):
        Counter(1.0, "lines", "guess")
    with pytest.raises(InputError, match="omit it"):
        Counter(float("nan"), "lines", "model")


@pytest.mark.parametrize("kernel", ["spmm:32", "spmv", "sddmm:32"])
def test_traffic_is_between_its_bounds(kernel: str) -> None:
    pattern = scattered(300, 200, 3000)
    op = Op.parse(kernel)
    found = profile(pattern, op, plain(1), caches=CACHES)
    least, most = (found.quantities[f"bytes_{x}"].value for x in ("compulsory", "no_reuse"))
    reads = [found.counters[x].value * 64 for x in ("L1D_REPLACEMENT", "L2_LINES_IN_ALL")]
    assert least < most and reads[0] >= reads[1]
    extra = pattern.nnz if op.name == "sddmm" else 0
    assert found.quantities["flops"].value == 2 * pattern.nnz * op.width + extra
    dense = (np.unique(pattern.indices).size + 300) * op.width * 4
    stored = pattern.nnz * 8 + 8 * 301
    if op.name == "sddmm":
        empty = int((np.diff(pattern.indptr) == 0).sum())
        dense, stored = dense - empty * op.width * 4, stored + pattern.nnz * 4
    assert least == dense + stored


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 400), (400, 1), (30, 30)])
def test_odd_shapes(shape: tuple[int, int]) -> None:
    m, n = shape
    pattern = scattered(m, n, 0 if not m * n or m == 30 else 90)
    for name in NESTS:
        for threads in (1, 3):
            ex = replace(execution(name), threads=threads)
            found = profile(pattern, Op("spmm", 40), ex, caches=CACHES)
            assert np.isfinite(found.vector()[found.mask()]).all()
            assert found.quantities["imbalance"].value >= 1 - 1e-9


# -- thread by thread ------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["spmm:40", "sddmm:40", "spmv"])
@pytest.mark.parametrize("tiles", [False, True])
def test_threads_add_up_to_the_counters(kernel: str, tiles: bool) -> None:
    op = Op.parse(kernel)
    if tiles and op.name != "spmm":
        return
    name = "columns" if tiles else "rows"
    pattern = scattered(60, 50, 400)
    found = profile(pattern, op, execution(name, threads=3, tiles_parallel=tiles), caches=CACHES)
    totals = found.by_thread.sum(axis=0)
    for at, counter in enumerate(TABLE_5):
        if counter in found.counters:
            assert found.counters[counter].value == pytest.approx(totals[at], abs=0.5)
    scalar = found.by_thread[:, TABLE_5.index("FP_ARITH_INST_RETIRED_SCALAR_SINGLE")]
    assert scalar.sum() == pytest.approx(found.quantities["flops_stored"].value)
    busiest = scalar.max() / scalar.mean()
    assert busiest == pytest.approx(found.quantities["imbalance"].value)


def test_five_statistics_of_each_counter_over_the_threads() -> None:
    # Of four rows the first has all entries: of two threads the second one has none.
    pattern = Pattern.from_coo((4, 16), [0] * 16, range(16))
    found = profile(pattern, Op("spmm", 16), plain(2), caches=CACHES).over_threads()
    assert found.threads == 2 and found.source == "model"
    flops = 2 * 16 * 16
    told = [found.of("f32_scalar", name) for name in ("min", "max", "mean", "std", "sum")]
    assert told == [0, flops, flops / 2, flops / 2, flops]
    # Every dense row is a line: 16 of the operand, and of the result one, those of empty rows too.
    assert found.of("memory_writes", "sum") == 4
    assert found.of("memory_reads", "max") > 17 > 2 >= found.of("memory_reads", "min")
    assert math.isnan(found.of("instructions")) and found.of("f64_scalar") == 0


def test_counters_of_matrices_and_of_nests_are_the_same_nineteen() -> None:
    words = {"f32_scalar": "SCALAR_SINGLE", "f64_512": "512B_PACKED_DOUBLE"}
    words |= {"memory_writes": "CAS_COUNT_WR", "l1_lines_in": "L1D_REPLACEMENT"}
    for name, event in words.items():
        assert TABLE_5[COUNTERS.index(name)].endswith(event)


def test_locality_is_the_share_of_the_bytes_that_have_to_move() -> None:
    # One row and one column at a time: everything moves once, into the last level and out of it.
    diagonal = Pattern.from_coo((64, 64), range(64), range(64))
    again = Pattern.from_coo((64, 64), [*range(64)] * 2, [0] * 64 + [*range(64)])
    caches = (Cache(1, 64, False), Cache(2, 1 << 20, False))
    once = profile(diagonal, Op("spmm", 16), plain(1), caches=caches).quantities
    twice = profile(again, Op("spmm", 16), plain(1), caches=caches).quantities
    assert twice["locality_l1"].value < twice["locality_l2"].value <= 1
    # What is written is read before it is written: 64 lines more than there have to be.
    assert once["locality_l2"].value == pytest.approx(once["locality_l1"].value, rel=1e-6)
    least = once["bytes_compulsory"].value
    assert once["locality_l2"].value == pytest.approx(least / (least + 64 * 64), rel=0.01)


def test_bad_input_is_refused() -> None:
    with pytest.raises(UsageError, match="schedule"):
        replace(plain(1), schedule="auto")
    with pytest.raises(UsageError, match="threads"):
        plain(0)
    huge = Pattern("x", (1, 1), np.array([0, 10**12]), np.zeros(0, np.int32))
    with pytest.raises(UsageError, match="non-zeros"):
        profile(huge, Op("spmv"), plain(1), caches=CACHES)


@pytest.mark.parametrize("kernel", ["spmm:40", "spmv", "sddmm:40"])
def test_every_kind_of_configuration_of_the_cpu(kernel: str) -> None:
    pattern, op, platform = scattered(60, 5000, 3000), Op.parse(kernel), load_platform("cpu")
    space = platform.space(op, Sizes(60, 5000, pattern.nnz))
    seen = {}
    for config in space.sample(200, rng=np.random.default_rng(1)):
        seen.setdefault((config.get("order"), config.get("format")), config)
    assert {"csr", "bcsr", "csc", "dcsr"} <= {which for _, which in seen}
    for config in seen.values():
        ex, _ = execution_of(platform, op, config, pattern=pattern, threads=3)
        found = profile(pattern, op, ex, caches=CACHES)
        assert found.quantities["flops_stored"].value >= found.quantities["flops"].value
        assert 1 - 1e-9 <= found.quantities["imbalance"].value <= 3


def test_columns_of_16_bits_are_half_of_those_of_32() -> None:
    pattern, op, platform = scattered(60, 5000, 3000), Op("spmv"), load_platform("cpu")
    moved = []
    for form in ({"format": "sell"}, {"format": "sell16", "gather": "hardware"}):
        config = {"order": "ij", "slice": 4, "sigma": 1, "threads": "one", **form}
        ex, _ = execution_of(platform, op, config, pattern=pattern, threads=1)
        found = profile(pattern, op, ex, caches=CACHES)
        moved.append(found.quantities["bytes_compulsory"].value)
    assert moved[0] - moved[1] == 2 * entries_of(pattern, ex).stored


@pytest.mark.parametrize("entries", [1, 7, 30, 100])
def test_the_middle_of_a_pattern_is_bounded_and_legal(entries: int) -> None:
    pattern = Pattern.from_coo((4, 40), [0] * 30 + [1, 2, 3], [*range(30), 5, 6, 7])
    assert pattern.id
    part = middle_of(pattern, entries)
    assert part.nnz == min(entries, pattern.nnz)
    again = Pattern.from_csr(part.shape, part.indptr, part.indices)
    assert np.array_equal(again.indices, part.indices) and part.shape[1] == 40
    assert part.id == again.id and (part is pattern) == (entries == 100)


# -- cache sizes -----------------------------------------------------------------------------------


def test_caches_of_a_platform_come_first(tmp_path: Path) -> None:
    stated = caches_of({"l1_bytes": 32768, "l3_bytes": 1 << 25}, folder=tmp_path)
    assert stated == (Cache(1, 32768, False), Cache(3, 1 << 25, True))
    assert caches_of({"l1_bytes": 32768}, here=False) == (Cache(1, 32768, False),)
    with pytest.raises(NothingFound, match="cache sizes"):
        caches_of({}, here=False)  # this machine's are not a GPU's


def test_caches_of_this_machine(tmp_path: Path) -> None:
    described = [
        ("1", "Data", "48K", "0"),
        ("1", "Instruction", "32K", "0"),
        ("2", "Unified", "2M", "0"),
        ("3", "Unified", "32768K", "0-1"),
        ("4", "Unified", "lots", "0-1"),
    ]
    for at, values in enumerate(described):
        folder = tmp_path / f"index{at}"
        folder.mkdir()
        for name, value in zip(("level", "type", "size", "shared_cpu_list"), values, strict=True):
            (folder / name).write_text(value + "\n")
    found = caches_of({}, folder=tmp_path)
    assert found == (Cache(1, 48 << 10, False), Cache(2, 2 << 20, False), Cache(3, 32 << 20, True))
    with pytest.raises(NothingFound, match="platform are unknown"):
        caches_of({}, folder=tmp_path / "nowhere")


@pytest.mark.parametrize("size", ["32K", math.inf, -5, 3, True])
def test_a_trait_that_is_no_size_is_refused(size: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the trait l1_bytes = .* is not a cache size"):
        caches_of({"l1_bytes": size}, folder=tmp_path)
