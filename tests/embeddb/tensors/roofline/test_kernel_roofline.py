"""The analytical model of kernels: worked out by hand where that can be done, else by what must
hold of any."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tensors import conv, dot_add, op, row_sum
from tile_kernels import tile_kernels

from embeddb.core.config import Config
from embeddb.core.errors import TensorError
from embeddb.tensors.check import computation
from embeddb.tensors.roofline.analysis import (
    ANALYSIS_VERSION,
    ROW_LENGTH,
    TYPES,
    Analysis,
    TileModel,
    fused_seconds,
    type_of,
)
from embeddb.tensors.roofline.loops import Extents
from embeddb.tensors.roofline.machine import Cache, Machine
from embeddb.tensors.roofline.nests import Layout, nests_of, touched
from embeddb.tensors.tensor_graph import Operation, Shape, TensorGraph
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
FUNCTIONS = (
    *("exponential", "exponential-minus-one", "log", "log-plus-one", "logistic", "tanh", "erf"),
    *("sine", "cosine", "tan", "power", "atan2", "cbrt", "sqrt", "rsqrt", "divide", "remainder"),
)
#: A server, one of which nothing is known, and a desktop whose clock says that its units are wide.
MACHINES = {
    "server": FACTS,
    "usual": {},
    "desktop": {**FACTS, "multiply_add_gflop_s": "180"},
}
#: What a version of the model says of kernels of every form on these: mean and deviation of log
#: seconds.
SAID = {
    "3": {
        "server": (-12.18480602261964, 2.1684623867460564),
        "usual": (-12.0462307254426, 2.254546922061581),
        "desktop": (-11.91506269517884, 2.1655517818531704),
    }
}


def tile(*sizes: int, tr: int = 0) -> Config:
    return Config({**{f"t{at + 1}": size for at, size in enumerate(sizes)}, "tr": tr})


def at(*values: int) -> NDArray[np.int64]:
    return np.array(values)


def seconds(kernel: TensorGraph, *configs: Config, machine: Machine = MACHINE) -> Any:
    """Of each tile; of one, its alone."""
    found = TileModel(kernel, machine).seconds(configs)
    return found if len(configs) > 1 else float(found[0])


def dot(m: int, k: int, n: int) -> TensorGraph:
    operations = [
        op("parameter", (m, k), number=0),
        op("parameter", (k, n), number=1),
        op("dot", (m, n), 0, 1, lhs_contracting=(1,), rhs_contracting=(0,)),
    ]
    return computation(operations, [2], name="dot")


def added(m: int, n: int) -> TensorGraph:
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
    layout = Layout((at(50), at(100)), (at(100), at(1)), (1, 0))
    found = touched(access, layout, {row: at(16), column: at(32)})
    assert (found.pieces, found.bytes, found.apart) == (16, 128.0, 400.0)
    # Two lines each, and three quarters of a third: a piece begins anywhere in a line.
    assert found.lines(LINES) == 16 * 2.75
    whole = touched(access, layout, {row: at(50), column: at(100)})
    assert (whole.pieces, whole.bytes) == (1, 20_000.0)


def test_pieces_that_share_places_hold_more_of_a_cache() -> None:
    """Eight lines 4096 bytes apart fill a cache of 32 kB whose addresses repeat after 4096."""
    first = Cache(32768, 64, 1.0, 1.0, period=4096)
    access = nests_of(plan_of(added(64, 1024)))[-1].accesses[0]
    row, _ = (terms[0][0] for terms in access.terms)
    layout = Layout((at(64), at(1024)), (at(1024), at(1)), (1, 0))
    found = touched(access, layout, {row: at(8)})
    assert found.held(first) == pytest.approx(8 * 4096)
    assert found.held(LINES) == pytest.approx(8 * 64)


def test_the_last_tile_is_shorter() -> None:
    plan = plan_of(added(50, 100))
    extents = Extents.of(plan, [Tile((0, 32)), Tile((0, 25))])
    write = plan.writes[0]
    told = [(n.tolist(), share.tolist()) for n, share in extents.lengths(write.spans[1])]
    assert told == [([32, 25], [0.75, 1.0]), ([4, 25], [0.25, 0.0])]
    assert extents.mean(write.spans[1]).tolist() == [25, 25]
    assert extents.turns(at(1, 1)).tolist() == [1, 1]
    assert extents.turns(at(2, 2)).tolist() == [4, 4]


# -- tiles -----------------------------------------------------------------------------------------


def test_a_big_product_is_no_faster_than_the_machine_and_not_much_slower() -> None:
    kernel = dot(512, 512, 512)
    best = min(seconds(kernel, *(tile(m, 128, tr=64) for m in (16, 64, 128))))
    peak = 2 * 512**3 / 118.4e9
    assert peak < best < 4 * peak


def test_a_big_product_wants_blocks_that_fit_and_vectors_that_are_full() -> None:
    tried = [tile(64, 128, tr=64), tile(0, 0), tile(64, 1, tr=64), tile(64, 4, tr=64)]
    sensible, untiled, thin, narrow = seconds(dot(1024, 1024, 1024), *tried)
    assert sensible < untiled
    assert 4 * sensible < thin
    assert 2 * sensible < narrow


def test_untiled_is_best_where_everything_fits() -> None:
    tried = [tile(m, n, tr=r) for m in (0, 2, 8) for n in (0, 4, 16) for r in (0, 8)]
    assert tried[int(np.argmin(seconds(dot(48, 64, 64), *tried)))]["t2"] == 0


def test_ends_that_do_not_fill_a_vector_cost() -> None:
    """Both have four tiles to a row: of 16, and of 15."""
    even, uneven = seconds(added(500, 64), tile(0, 16)), seconds(added(500, 60), tile(0, 15))
    assert uneven > even


def test_a_tile_that_leaves_a_short_end_is_slower_than_one_that_fits() -> None:
    short_end, fitting = seconds(dot(64, 64, 96), tile(0, 64), tile(0, 48))
    assert short_end > fitting


@pytest.mark.parametrize("rows", [100, 1000, 10_000, 100_000])
def test_more_of_the_same_takes_longer(rows: int) -> None:
    tiles = [tile(0, 0), tile(16, 0), tile(0, 32)]
    fewer, more = (seconds(added(m, 256), *tiles) for m in (rows, 2 * rows))
    assert (fewer < more).all()


def test_what_does_not_fit_the_caches_runs_at_the_speed_of_memory() -> None:
    """256 MB in, 256 MB out that are read before: 0.75 GB at 13 GB/s counted."""
    kernel = added(1 << 14, 1 << 12)
    assert seconds(kernel, tile(0, 0)) == pytest.approx(3 * 2**28 / (13e9 * 4 / 3), rel=0.25)


def test_a_slower_machine_is_slower() -> None:
    slow = Machine.of({**FACTS, "stream_memory_gb_s": "6"})
    kernel = added(1 << 14, 1 << 11)
    assert seconds(kernel, tile(0, 0)) < seconds(kernel, tile(0, 0), machine=slow)


def test_functions_cost() -> None:
    assert seconds(mapped("abs"), tile(0, 0)) * 3 < seconds(mapped("log"), tile(0, 0))


@pytest.mark.parametrize("kernel", [dot_add(), row_sum(), conv(), conv(2, 20)])
def test_every_tile_has_finite_seconds(kernel: TensorGraph) -> None:
    tiles = some_of(kernel)
    found = seconds(kernel, *tiles)
    assert found.shape == (len(tiles),)
    assert np.isfinite(found).all() and (found > 0).all()


def some_of(kernel: TensorGraph) -> list[Config]:
    """Of every size along every dimension, and along two."""
    dims = plan_of(kernel).dims
    found = []
    for size, block, d in itertools.product((0, 1, 2, 4, 8), (0, 8, 32), range(len(dims))):
        sizes = [0] * len(dims)
        sizes[d] = size if size < dims[d] else 0
        found.append(tile(*sizes, tr=block))
        sizes[d - 1] = min(3, dims[d - 1] - 1)
        found.append(tile(*sizes, tr=block))
    return found


@pytest.mark.parametrize("kernel", [dot_add(), row_sum(), conv(), conv(2, 20)])
def test_a_tile_takes_as_long_among_others_as_alone(kernel: TensorGraph) -> None:
    """Though tiles of other loops, with other last tiles, stand beside it."""
    tiles = some_of(kernel)
    alone = [seconds(kernel, one) for one in tiles]
    assert seconds(kernel, *tiles) == pytest.approx(alone, rel=1e-12)


def mapped(opcode: str) -> TensorGraph:
    given = 2 if opcode in ("power", "atan2", "divide", "remainder") else 1
    shape = (100, 256)
    return computation([op("parameter", shape, number=0), op(opcode, shape, *[0] * given)], [1])


def joined() -> TensorGraph:
    """Three parts, so that one is chosen by branches."""
    part = op("parameter", (20, 64), number=0)
    return computation([part, op("concatenate", (60, 64), 0, 0, 0, dimensions=(0,))], [1])


@pytest.mark.parametrize("machine", SAID[ANALYSIS_VERSION])
def test_what_the_model_says_changes_with_its_version(machine: str) -> None:
    """Trees were taught what one version of it misses. After a change that is meant, raise
    `ANALYSIS_VERSION` and write down what is said now: mean and deviation of the logarithms."""
    kernels = [*tile_kernels().values(), dot_add(), row_sum(), conv(), joined()]
    kernels += map(mapped, FUNCTIONS)
    analysis = Analysis(MACHINES[machine])
    logs = np.concatenate([analysis.logs(kernel, some_of(kernel)) for kernel in kernels])
    said = float(logs.mean()), float(logs.std())
    np.testing.assert_allclose(said, SAID[ANALYSIS_VERSION][machine], rtol=1e-8)


@pytest.mark.parametrize("kernel", [dot_add(), row_sum(), conv(), joined()])
def test_what_is_told_of_parts(kernel: TensorGraph) -> None:
    """The whole is at least each part and at most their sum; of the untiled kernel nothing is told
    over itself."""
    tiles = [tile(*[0] * len(plan_of(kernel).dims)), *some_of(kernel)]
    cycles = TileModel(kernel, MACHINE).cycles(tiles)
    assert cycles.shape == (len(tiles), 2 + len(MACHINE.caches))
    whole, parts = cycles[:, :1], cycles[:, 1:]
    assert (parts <= whole).all() and (whole[:, 0] <= parts.sum(axis=1) + 20.0 + 1e-6).all()
    analysis = Analysis(FACTS)
    told = analysis.rows(kernel, tiles)
    assert told.shape == (len(tiles), ROW_LENGTH) and np.isfinite(told).all()
    np.testing.assert_allclose(told[:, 0], analysis.logs(kernel, tiles))
    np.testing.assert_array_equal(told[0, [1, *range(7, ROW_LENGTH)]], 0.0)
    np.testing.assert_allclose(
        told[:, 2:7], np.maximum(np.log(parts / whole + 1e-300), -8.0), atol=1e-9
    )


def test_no_tiles_take_no_seconds() -> None:
    assert TileModel(dot_add(), MACHINE).seconds([]).shape == (0,)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"t1": 65}, "t1=65 is no size of a tile"),
        ({"t1": -1}, "t1=-1"),
        ({"tr": -2}, "tr=-2"),
        ({"t9": 4}, "t9=4"),
    ],
)
def test_seconds_of_what_is_no_tile_are_refused(config: dict[str, int], reason: str) -> None:
    model = TileModel(dot_add(), MACHINE)
    with pytest.raises(TensorError, match=reason):
        model.seconds([{"t1": 64, "tr": 128}, config])


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
