"""The analytical model of kernels: worked out by hand where that can be done, else by what must
hold of any."""

from __future__ import annotations

import math

import pytest
from tensors import conv, dot_add, op, row_sum

from embeddb.core.config import Config
from embeddb.core.errors import TensorError
from embeddb.tensors.check import computation
from embeddb.tensors.computation import Computation
from embeddb.tensors.operation import Operation, Shape
from embeddb.tensors.roofline.extents import Extents
from embeddb.tensors.roofline.fused import TYPES, fused_seconds, type_of
from embeddb.tensors.roofline.machine import Cache, Machine
from embeddb.tensors.roofline.nests import nests_of
from embeddb.tensors.roofline.tiled import TileModel
from embeddb.tensors.roofline.traffic import Layout, touched
from embeddb.tensors.tiles import Tile
from embeddb.tensors.tiling.plan import plan_of

#: A server's core: 3.7 GHz, vectors of 64 bytes, 32 kB, 1 MB and 32 MB of caches.
FACTS = {
    "vector_bytes": "64",
    "l1_bytes": "32768",
    "l2_bytes": "1048576",
    "l3_bytes": "33554432",
    "multiply_add_gflop_s": "118.4",
    "stream_l2_gb_s": "118.4",
    "stream_l3_gb_s": "99",
    "stream_memory_gb_s": "13",
    "gather_l2_m_s": "1900",
    "gather_memory_m_s": "127",
}
MACHINE = Machine.of(FACTS)
LINES = Cache(1 << 20, 64, 1.0, 1.0)


def tile(*sizes: int, tr: int = 0) -> Config:
    return Config({**{f"t{at + 1}": size for at, size in enumerate(sizes)}, "tr": tr})


def dot(m: int, k: int, n: int) -> Computation:
    operations = [
        op("parameter", (m, k), number=0),
        op("parameter", (k, n), number=1),
        op("dot", (m, n), 0, 1, lhs_contracting=(1,), rhs_contracting=(0,)),
    ]
    return computation(operations, [2], name="dot")


def added(m: int, n: int) -> Computation:
    operations = [op("parameter", (m, n), number=0), op("add", (m, n), 0, 0)]
    return computation(operations, [1], name="added")


# -- the machine -----------------------------------------------------------------------------------


def test_a_machine_is_told_by_its_facts() -> None:
    assert MACHINE.hertz == pytest.approx(3.7e9)
    assert MACHINE.lanes(4) == 16 and MACHINE.lanes(8) == 8
    # 64 bytes at 118.4 GB/s counted, a third more moved, 3.7 GHz.
    assert MACHINE.caches[0].next == pytest.approx(64 * 3.7 / (118.4 * 4 / 3))


@pytest.mark.parametrize("text", ["", "fast", "-1", "inf", "nan"])
def test_a_fact_that_is_no_number_is_the_usual_one(text: str) -> None:
    assert Machine.of({"vector_bytes": text}) == Machine.of({})


# -- what is read and computed ---------------------------------------------------------------------


def test_the_nests_of_a_product_with_an_epilogue() -> None:
    nests = nests_of(plan_of(dot_add(64, 128, 32)))
    assert len(nests) == 3  # the buffer is begun, the sum, the result
    begun, summed, result = nests
    assert [a.written for a in begun.accesses] == [True] and not begun.steps
    assert {a.array for a in summed.accesses if not a.written} >= {"p0", "p1"}
    assert [step.opcode for step in summed.steps] == ["add"]
    assert summed.blocked is not None and summed.blocked.extent == 128
    assert [step.opcode for step in result.steps] == ["add", "maximum"]
    assert "o0" in {a.array for a in result.accesses if a.written}


def test_lines_of_a_block_of_a_matrix() -> None:
    """16 rows of 32 f32 of a matrix with 100 columns: 16 pieces of 128 bytes, 400 apart."""
    nests = nests_of(plan_of(added(50, 100)))
    access = next(a for a in nests[-1].accesses if not a.written)
    row, column = (terms[0][0] for terms in access.terms)
    found = touched(access, Layout((50, 100), (100, 1)), {row: 16, column: 32})
    assert (found.pieces, found.bytes, found.apart) == (16, 128.0, 400.0)
    # Two lines each, and three quarters of a third: a piece begins anywhere in a line.
    assert found.lines(LINES) == 16 * 2.75
    whole = touched(access, Layout((50, 100), (100, 1)), {row: 50, column: 100})
    assert (whole.pieces, whole.bytes) == (1, 20_000.0)


def test_pieces_that_share_places_hold_more_of_a_cache() -> None:
    """Eight lines 4096 bytes apart fill a cache of 32 kB whose addresses repeat after 4096."""
    first = Cache(32768, 64, 1.0, 1.0, period=4096)
    access = nests_of(plan_of(added(64, 1024)))[-1].accesses[0]
    row, _ = (terms[0][0] for terms in access.terms)
    found = touched(access, Layout((64, 1024), (1024, 1)), {row: 8})
    assert found.held(first) == pytest.approx(8 * 4096)
    assert found.held(LINES) == pytest.approx(8 * 64)


def test_the_last_tile_is_shorter() -> None:
    plan = plan_of(added(50, 100))
    extents = Extents(plan, Tile((0, 32)))
    write = plan.writes[0]
    assert extents.lengths(write.spans[1]) == [(32, 0.75), (4, 0.25)]
    assert extents.mean(write.spans[1]) == 25
    assert extents.turns(1) == 1 and extents.turns(2) == 4


# -- tiles -----------------------------------------------------------------------------------------


def test_a_big_product_is_no_faster_than_the_machine_and_not_much_slower() -> None:
    kernel = dot(512, 512, 512)
    best = min(TileModel(kernel, MACHINE).seconds(tile(m, 128, tr=64)) for m in (16, 64, 128))
    peak = 2 * 512**3 / 118.4e9
    assert peak < best < 4 * peak


def test_a_big_product_wants_blocks_that_fit_and_vectors_that_are_full() -> None:
    model = TileModel(dot(1024, 1024, 1024), MACHINE)
    sensible = model.seconds(tile(64, 128, tr=64))
    assert sensible < model.seconds(tile(0, 0))
    assert 4 * sensible < model.seconds(tile(64, 1, tr=64))
    assert 2 * sensible < model.seconds(tile(64, 4, tr=64))


def test_untiled_is_best_where_everything_fits() -> None:
    model = TileModel(dot(48, 64, 64), MACHINE)
    tried = [tile(m, n, tr=r) for m in (0, 2, 8) for n in (0, 4, 16) for r in (0, 8)]
    assert min(tried, key=model.seconds)["t2"] == 0


def test_ends_that_do_not_fill_a_vector_cost() -> None:
    """Both have four tiles to a row: of 16, and of 15."""
    even = TileModel(added(500, 64), MACHINE).seconds(tile(0, 16))
    uneven = TileModel(added(500, 60), MACHINE).seconds(tile(0, 15))
    assert uneven > even


def test_a_tile_that_leaves_a_short_end_is_slower_than_one_that_fits() -> None:
    model = TileModel(dot(64, 64, 96), MACHINE)
    assert model.seconds(tile(0, 64)) > model.seconds(tile(0, 48))


@pytest.mark.parametrize("rows", [100, 1000, 10_000, 100_000])
def test_more_of_the_same_takes_longer(rows: int) -> None:
    fewer, more = (TileModel(added(m, 256), MACHINE) for m in (rows, 2 * rows))
    for sizes in ((0, 0), (16, 0), (0, 32)):
        assert fewer.seconds(tile(*sizes)) < more.seconds(tile(*sizes))


def test_what_does_not_fit_the_caches_runs_at_the_speed_of_memory() -> None:
    """256 MB in, 256 MB out that are read before: 0.75 GB at 13 GB/s counted."""
    kernel = added(1 << 14, 1 << 12)
    seconds = TileModel(kernel, MACHINE).seconds(tile(0, 0))
    assert seconds == pytest.approx(3 * 2**28 / (13e9 * 4 / 3), rel=0.25)


def test_a_slower_machine_is_slower() -> None:
    slow = Machine.of({**FACTS, "stream_memory_gb_s": "6"})
    model, other = (TileModel(added(1 << 14, 1 << 11), machine) for machine in (MACHINE, slow))
    assert model.seconds(tile(0, 0)) < other.seconds(tile(0, 0))


def test_functions_cost() -> None:
    def mapped(opcode: str) -> Computation:
        shape = (100, 256)
        return computation([op("parameter", shape, number=0), op(opcode, shape, 0)], [1])

    told = [TileModel(mapped(o), MACHINE).seconds(tile(0, 0)) for o in ("abs", "log", "atan2")[:2]]
    assert told[0] * 3 < told[1]


@pytest.mark.parametrize("kernel", [dot_add(), row_sum(), conv(), conv(2, 20)])
def test_every_tile_has_finite_seconds(kernel: Computation) -> None:
    model = TileModel(kernel, MACHINE)
    rank = kernel.sizes.symbols["RANK"]
    for size in (0, 1, 2, 4, 8):
        for block in (0, 8, 32):
            for at in range(rank):
                sizes = [0] * rank
                sizes[at] = size if size < model.plan.dims[at] else 0
                seconds = model.seconds(tile(*sizes, tr=block))
                assert math.isfinite(seconds) and seconds > 0


def test_a_kernel_without_tiles_is_refused() -> None:
    operations = [
        op("parameter", (8,), number=0),
        Operation("sort", (Shape("f32", (8,)),), (0,), {"dimension": 0}),
    ]
    with pytest.raises(TensorError, match="sort"):
        TileModel(computation(operations, [1]), MACHINE)


# -- fused kernels ---------------------------------------------------------------------------------


def test_a_fused_kernel_is_bound_by_what_it_moves_or_computes() -> None:
    """A gigabyte in and out through memory; a product at the peak."""
    moved = fused_seconds(added(1 << 14, 1 << 13), MACHINE)
    assert moved == pytest.approx(2**30 / (13e9 * 4 / 3))
    assert fused_seconds(dot(1024, 1024, 1024), MACHINE) == pytest.approx(2 * 1024**3 / 118.4e9)


def test_the_type_is_that_of_the_heaviest_operation() -> None:
    assert type_of(dot_add()) == "dot"
    assert type_of(conv()) == "convolution"
    assert type_of(row_sum()) == "reduce"
    assert type_of(added(4, 4)) == "element-wise"
    assert {type_of(k) for k in (dot_add(), conv(), row_sum())} <= set(TYPES)
