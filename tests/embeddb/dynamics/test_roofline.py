"""The analytical ranker: its parts against plain counting, and that it is no straw man."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.core.pattern import Pattern
from embeddb.dynamics.roofline import Machine, ReuseCurve, Roofline
from embeddb.dynamics.walk import execution_of
from embeddb.platforms.platform import load_platform

CPU = load_platform("cpu")
MACHINE = Machine.of({"threads": "2"})
SPMM = Op("spmm", 128)
PLAIN = {"order": "ijk", "format": "csr", "threads": "all", "schedule": "static"}
TILED = {
    **{"order": "ik1jk0", "format": "csr", "ktile": 64, "unroll": 4, "reorder": "none"},
    **{"threads": "all", "schedule": "static"},
}


def random(m: int, n: int, nnz: int, seed: int = 0) -> Pattern:
    rng = np.random.default_rng(seed)
    return Pattern.from_coo((m, n), rng.integers(0, m, nnz), rng.integers(0, n, nnz))


def seconds(pattern: Pattern, op: Op, *configs: dict[str, Any], machine: Machine = MACHINE) -> Any:
    found = Roofline(pattern, machine).seconds(CPU, op, [Config(c) for c in configs])
    assert (found > 0).all() and np.isfinite(found).all()
    return found.tolist()


# -- reuse -----------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_footprints_are_means_over_all_windows(trace: list[int], window: int) -> None:
    curve = ReuseCurve.of(np.array(trace, dtype=np.int64))
    width = min(window, len(trace))
    windows = [trace[at : at + width] for at in range(len(trace) - width + 1)]
    assert curve.footprint(window) == pytest.approx(np.mean([len(set(w)) for w in windows]))
    assert curve.units == len(set(trace)) and curve.times.size == len(trace) - curve.units


def test_a_loop_that_fits_hits_and_one_that_does_not_misses() -> None:
    loop = ReuseCurve.of(np.tile(np.arange(100, dtype=np.int64), 10))
    assert loop.misses(100) == 0
    assert loop.misses(50) == 900
    assert loop.misses(50, beyond=100) == 0
    assert ReuseCurve.of(np.zeros(0, dtype=np.int64)).misses(1) == 0


def test_of_a_large_pattern_rows_in_the_middle_are_looked_at() -> None:
    large = Pattern.from_coo((1 << 13, 64), np.repeat(np.arange(1 << 13), 64), [*range(64)] * 8192)
    ex, _ = execution_of(CPU, SPMM, Config(PLAIN), pattern=large, threads=2)
    walk = Roofline(large, MACHINE).walk(ex, SPMM)
    assert walk.curve.length == 1 << 17
    assert walk.stored == walk.blocks == 1 and walk.segments == pytest.approx(1 / 64)


# -- seconds ---------------------------------------------------------------------------------------


def test_more_work_takes_longer() -> None:
    few, many = random(2000, 2000, 10_000), random(2000, 2000, 40_000)
    assert seconds(few, SPMM, TILED) < seconds(many, SPMM, TILED)
    assert seconds(few, Op("spmm", 32), TILED) < seconds(few, SPMM, TILED)


def test_tiles_in_registers_beat_the_row_that_is_stored_each_time() -> None:
    plain, tiled = seconds(random(4000, 4000, 60_000), SPMM, PLAIN, TILED)
    assert tiled < plain


def test_blocks_pay_where_there_are_blocks_and_cost_where_there_are_none() -> None:
    blocked = TILED | {"format": "bcsr", "block": "4x4"}
    del blocked["unroll"], blocked["reorder"]
    corners = np.arange(0, 1200, 4)
    inside = np.arange(16)
    rows = (corners[:, None] + inside // 4).ravel()
    columns = (corners[:, None] + inside % 4).ravel()
    full = Pattern.from_coo((1200, 1200), rows, columns)
    single = Pattern.from_coo((4800, 4800), np.arange(4800), np.arange(4800))
    alone = {"threads": "one"}
    dense = seconds(full, SPMM, blocked | alone, TILED | alone | {"unroll": 1})
    padded = seconds(single, SPMM, blocked | alone, TILED | alone | {"unroll": 1})
    assert dense[0] < dense[1] and padded[0] > padded[1]


def test_static_blocks_wait_for_the_heavy_half() -> None:
    heavy = np.concatenate([np.repeat(np.arange(500), 60), np.arange(500, 1000)])
    columns = np.concatenate([np.tile(np.arange(60) * 16, 500), np.arange(500)])
    uneven = Pattern.from_coo((1000, 1000), heavy, columns)
    dynamic = TILED | {"schedule": "dynamic", "chunk": 32}
    static, shared = seconds(uneven, SPMM, TILED, dynamic)
    assert shared < 0.7 * static


def test_small_matrices_do_not_pay_for_threads_and_large_ones_do() -> None:
    one = {**TILED, "threads": "one"}
    small = seconds(random(50, 50, 200), SPMM, TILED, one)
    large = seconds(random(5000, 5000, 100_000), SPMM, TILED, one)
    assert small[1] < small[0] and large[0] < large[1]


def test_panels_help_where_columns_do_not_fit_and_are_met_again() -> None:
    # 30,000 rows of 512 bytes are 15 MB: more than L2, no panel of 512 is.
    scattered = random(3000, 30_000, 600_000)
    panels = {
        **{"order": "j1ik1j0k0", "format": "dcsr", "ktile": 64, "jtile": 512},
        **{"threads": "all", "schedule": "static"},
    }
    slow = replace(MACHINE, bytes_s=(MACHINE.bytes_s[0], 2e9, 1e9), wake_s=0.0)
    rows, by_panel = seconds(scattered, SPMM, TILED, panels, machine=slow)
    assert by_panel < rows


def test_a_slower_memory_is_felt_where_operands_do_not_fit() -> None:
    slow = replace(MACHINE, bytes_s=(*MACHINE.bytes_s[:2], MACHINE.bytes_s[2] / 50))
    large, small = random(120_000, 120_000, 240_000), random(500, 500, 4000)
    for pattern, felt in ((large, True), (small, False)):
        usual, late = (seconds(pattern, SPMM, TILED, machine=m)[0] for m in (MACHINE, slow))
        assert (late > 5 * usual) == felt


def test_one_thread_alone_has_one_threads_part_of_the_memory() -> None:
    all_, one = seconds(random(120_000, 120_000, 240_000), SPMM, TILED, {**TILED, "threads": "one"})
    assert one == pytest.approx(2 * all_, rel=0.1)


@pytest.mark.parametrize("kernel", ["spmm:40", "spmv", "sddmm:40"])
def test_every_configuration_has_a_time(kernel: str) -> None:
    op, pattern = Op.parse(kernel), random(300, 5000, 3000)
    space = CPU.space(op, pattern.sizes)
    configs = list(space.sample(150, rng=np.random.default_rng(0)))
    told = Roofline(pattern, MACHINE).seconds(CPU, op, configs)
    assert (told > 0).all() and np.isfinite(told).all() and len(set(told.tolist())) > 40


@pytest.mark.parametrize("shape", [(0, 0), (5, 0), (7, 9)])
def test_nothing_to_do_takes_next_to_nothing(shape: tuple[int, int]) -> None:
    empty = Pattern.from_coo(shape, np.zeros(0, int), np.zeros(0, int))
    found = Roofline(empty, MACHINE).seconds(CPU, SPMM, [Config(PLAIN), Config(TILED)])
    assert np.isfinite(found).all() and (found < 1e-4).all()


def test_facts_that_are_no_numbers_leave_the_usual_ones() -> None:
    told = Machine.of({"threads": "many", "stream_l2_gb_s": "-3", "wake_us": "2"})
    usual = Machine.of({})
    assert told == replace(usual, wake_s=2e-6)
    assert Machine.of({"vector_bytes": "32"}).hertz == 2 * usual.hertz


def test_a_format_without_a_model_is_refused() -> None:
    pattern = Pattern.from_coo((4, 4), np.arange(4), np.arange(4))
    with pytest.raises(UsageError, match="format = dia"):
        execution_of(CPU, SPMM, Config({**PLAIN, "format": "dia"}), pattern=pattern, threads=1)
