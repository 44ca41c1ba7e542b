"""Generated C of tiles against numpy, over kernels of every form and tiles of every size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tensors import sample_tensors
from tile_kernels import Kernel, silu, tile_kernels, value_kernels

from embeddb.core.config import Op
from embeddb.kernels import build
from embeddb.kernels.build import compiler
from embeddb.kernels.tiles.generate import FLAGS, c_function
from embeddb.platforms.designed_tiles import designed_tiles
from embeddb.platforms.platform import default_of, load_platform, space_of
from embeddb.tensors.analysis import ELEMENTWISE
from embeddb.tensors.tensor_graph import TensorGraph
from embeddb.tensors.tiles import Tile, untiled, why_not
from embeddb.tensors.tiling.forms import SUPPORTED
from embeddb.tensors.tiling.plan import plan_of
from indexer.runners.harness.worker import Libraries
from indexer.runners.tile_code import job as tile_job
from indexer.runners.tile_code.job import KernelJob
from indexer.runners.tile_code.reference import evaluate

needs_gcc = pytest.mark.skipif(compiler() is None, reason="needs gcc")

OP = Op("tile")
KERNELS = {
    **tile_kernels(),
    **value_kernels(),
    **{n: k for n, k in sample_tensors().items() if k.kind == "kernel"},
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the optimisation, a fourth of the time."""
    monkeypatch.setattr(tile_job, "FLAGS", ("-O1", "-ffast-math", "-fwrapv"))


def wrong(kernel: TensorGraph, tiles: list[Tile], folder: Path) -> dict[Tile, str]:
    """What is wrong with each, in this process."""
    of = tile_job.MeasuredKernel(kernel)
    job, libraries = KernelJob(kernel, of.scratch, 0), Libraries()
    job.expect(folder, "", libraries)
    found = {}
    for tile, built in of.build(tiles, folder).items():
        assert built.status == "ok", built.error
        job.restore(all=True)
        libraries.call(str(built.library), built.which, job.arrays, 1)
        if said := job.wrong():
            found[tile] = said
    return found


def tiles_of(kernel: TensorGraph, count: int, seed: int) -> list[Tile]:
    platform = load_platform("tile-cpu")
    space, default = space_of(platform, OP, kernel), default_of(platform, OP, kernel)
    drawn = designed_tiles(space, default, count, rng=np.random.default_rng(seed))
    return [Tile.of(config, kernel.sizes.symbols["RANK"]) for config in drawn]


@pytest.mark.parametrize("name", KERNELS)
def test_no_tile_needs_more_scratch_memory_than_the_kernel(name: str) -> None:
    plan = plan_of(KERNELS[name])
    for tile in tiles_of(KERNELS[name], 60, 0):
        sizes = plan.whole(tile.sizes)
        assert sum(plan.bytes(stage, sizes) for stage in plan.stages) <= plan.scratch


@pytest.mark.gcc
@needs_gcc
@pytest.mark.parametrize("name", KERNELS)
def test_every_tile_computes_the_kernel(name: str, tmp_path: Path) -> None:
    kernel = KERNELS[name]
    assert why_not(kernel) == ""
    assert not wrong(kernel, tiles_of(kernel, 7, seed=1), tmp_path)


@pytest.mark.parametrize("sizes", [(0, 0, 0, 0), (0, 0, 4, 12), (1, 1, 7, 5)])
def test_rows_that_are_taken_together_stay_within_a_reshape_without_divisions(
    sizes: tuple[int, ...],
) -> None:
    for reduced in (0, 4):
        text = c_function(KERNELS["heads"], Tile(sizes, reduced), "heads")
        code = [line for line in text.splitlines() if "/*" not in line]
        assert "t3 = " in text
        assert not [line for line in code if "%" in line or "/" in line]


@pytest.mark.slow
@pytest.mark.gcc
@needs_gcc
@pytest.mark.parametrize("name", KERNELS)
def test_many_tiles_compute_the_kernel(name: str, tmp_path: Path) -> None:
    assert not wrong(KERNELS[name], tiles_of(KERNELS[name], 60, seed=2), tmp_path)


_INPUTS = [np.nan, -np.inf, np.inf, -1e30, 1e30, 126.9, 128.0, -1.5]
#: What XLA converts them to.
_CONVERTED = {
    "s8": [0, -128, 127, -128, 127, 126, 127, -1],
    "u8": [0, 0, 255, 0, 255, 126, 128, 0],
    "s32": [0, -(2**31), 2**31 - 1, -(2**31), 2**31 - 1, 126, 128, -1],
    "u64": [0, 0, 2**64 - 1, 0, 2**64 - 1, 126, 128, 0],
}


@pytest.mark.gcc
@needs_gcc
@pytest.mark.parametrize("real", ["f32", "f64"])
@pytest.mark.parametrize("dtype", _CONVERTED)
def test_a_number_outside_of_a_type_becomes_its_end(
    dtype: str, real: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tile_job, "FLAGS", FLAGS)
    k = Kernel()
    k.op("convert", (16, 8), k.given(16, 8, dtype=real), dtype=dtype)
    kernel = k.done()
    job = KernelJob(kernel, 0, 0)
    job.arrays[0][:] = np.tile(_INPUTS, 16)
    expected = np.tile(np.array(_CONVERTED[dtype], job.arrays[1].dtype), 16)
    (built,) = tile_job.MeasuredKernel(kernel).build([untiled(kernel)], tmp_path).values()
    Libraries().call(str(built.library), built.which, job.arrays, 1)
    np.testing.assert_array_equal(job.arrays[1], expected)
    ((value, _),) = evaluate(kernel, job.arrays[:1])
    np.testing.assert_array_equal(value.reshape(-1), expected)


@pytest.mark.gcc
@needs_gcc
def test_the_check_sees_approximate_quotients_of_infinity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tile_job, "FLAGS", FLAGS)
    made, exact = compiler(), build.exact_division
    assert made is not None
    (tmp_path / "exact").mkdir()
    assert not wrong(silu(), [untiled(silu())], tmp_path / "exact")
    monkeypatch.setattr(build, "exact_division", lambda _: ())
    assert bool(wrong(silu(), [untiled(silu())], tmp_path)) == bool(exact(made[0]))


@pytest.mark.parametrize("dtype", SUPPORTED)
def test_a_kernel_with_tiles_has_code(dtype: str) -> None:
    """Where an operation has no code for a type, no tile is offered."""
    pairs = "add subtract multiply divide remainder power atan2 minimum maximum and or xor compare"
    counts = {"clamp": 3, "select": 3, **dict.fromkeys(pairs.split(), 2)}
    without = set()
    for opcode in sorted(ELEMENTWISE):
        k = Kernel()
        types = [dtype] * counts.get(opcode, 1)
        types = ["pred", *types[1:]] if opcode == "select" else types
        given = [k.given(4, 6, dtype=one) for one in types]
        gives = "pred" if opcode in ("compare", "is-finite") else dtype
        if opcode == "compare":
            k.op(opcode, (4, 6), *given, dtype=gives, direction="LT")
        else:
            k.op(opcode, (4, 6), *given, dtype=gives)
        kernel = k.done()
        if why_not(kernel):
            without.add(opcode)
        else:
            c_function(kernel, untiled(kernel), "f")
    bits = {"and", "not", "or", "xor"}
    assert bits <= without if dtype[0] == "f" else not bits & without
    assert ("power" in without) == (dtype[0] != "f")


def test_a_total_order_and_bits_of_reals_have_no_tiles() -> None:
    k = Kernel()
    pair = k.given(4, 6), k.given(4, 6)
    k.op("compare", (4, 6), *pair, dtype="pred", direction="LT.TOTALORDER")
    assert "comparison 'LT.TOTALORDER' is not supported" in why_not(k.done())
    k = Kernel()
    k.reduce((4,), k.given(4, 6), 1, combine="and")
    assert "and of f32 is not supported" in why_not(k.done())


def test_an_operation_that_rounds_to_fewer_bits_is_refused() -> None:
    k = Kernel()
    k.op("reduce-precision", (4, 4), k.given(4, 4), raw="exponent_bits=8, mantissa_bits=7")
    assert "reduce-precision is not supported" in why_not(k.done())


def test_the_reference_divides_the_least_number_towards_zero() -> None:
    k = Kernel()
    k.op("divide", (5,), k.given(5, dtype="s8"), k.given(5, dtype="s8"), dtype="s8")
    numbers = [np.array(one, np.int8) for one in ([43, -128, -128, -7, 7], [-128, 127, -1, 2, 0])]
    ((value, _),) = evaluate(k.done(), numbers)
    assert value.tolist() == [0, -1, -128, -3, -1]
