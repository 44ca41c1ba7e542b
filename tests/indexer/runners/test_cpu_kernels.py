"""Every kernel of the CPU platform: distinct code, right numbers, on every shape of matrix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from embeddb.core.config import Config, Op
from embeddb.core.pattern import Pattern
from embeddb.core.sizes import Sizes
from embeddb.kernels import build as cpu_build
from embeddb.kernels import codegen as cpu_codegen
from embeddb.platforms.platform import load_platform
from indexer.runners.base import RunOptions
from indexer.runners.cpu import CpuRunner

needs_gcc = pytest.mark.skipif(cpu_build.compiler() is None, reason="needs gcc")
pytestmark = [pytest.mark.gcc, needs_gcc]

OPS = (Op("spmm", 32), Op("spmm", 128), Op("spmm", 512), Op("sddmm", 128), Op("spmv"))
QUICK = {"repeats": 1, "max_repeats": 1, "min_time_s": 0.0, "timeout_s": 30.0}


def pattern_of(shape: tuple[int, int], density: float, seed: int = 0) -> Pattern:
    rng = np.random.default_rng(seed)
    dense = rng.random(shape) < density
    if min(shape) > 20:  # one long row, one long column, rows and columns without an entry
        dense[7], dense[:, 11] = True, True
        dense[[0, 3, 12, 13, 14, 15]], dense[:, [0, 5]] = False, False
    rows, cols = np.nonzero(dense)
    return Pattern.from_coo(shape, rows, cols, name=f"random-{shape[0]}x{shape[1]}")


def space_of(op: Op, pattern: Pattern) -> list[Config]:
    return list(load_platform("cpu").space(op, pattern.sizes).enumerate())


def one_of_each(op: Op, shape: tuple[int, int]) -> list[Config]:
    """A configuration for every shared object there is, the schedules taken in turn."""
    space = load_platform("cpu").space(op, Sizes(shape[0], shape[1], shape[0]))
    found: dict[Any, list[Config]] = {}
    for config in space.enumerate():
        found.setdefault(cpu_codegen.plan(config, op)[0], []).append(config)
    return [configs[at % len(configs)] for at, configs in enumerate(found.values())]


@pytest.fixture(scope="module")
def runner() -> Iterator[CpuRunner]:
    with CpuRunner() as made:
        yield made


def failures(
    runner: CpuRunner, pattern: Pattern, op: Op, configs: list[Config], threads: int = 3
) -> list[str]:
    """Configurations that did not run; refusals for fill count."""
    runner.prepare(op, configs)
    options = RunOptions(threads=threads, **QUICK)
    found = runner.run(pattern, op, configs, options=options)
    return [f"{c} {m.status} {m.error}" for c, m in found if not m.ok]


@pytest.mark.parametrize("op", OPS, ids=str)
def test_at_least_300_configurations_and_no_two_the_same_code(op: Op) -> None:
    space = load_platform("cpu").space(op, Sizes(50_000, 50_000, 500_000))
    seen = {}
    for config in space.enumerate():
        variant, launch = cpu_codegen.plan(config, op, vector_bytes=64)
        key = (cpu_codegen.source(variant), launch)
        assert key not in seen, f"{config} is {seen[key]}"
        seen[key] = config
    assert len(seen) >= 300


SHAPES = [
    ((0, 0), 0.0),
    ((0, 5), 0.0),
    ((5, 0), 0.0),
    ((6, 7), 0.0),
    ((1, 200), 0.3),
    ((200, 1), 0.3),
    ((500, 3), 0.2),
    ((3, 500), 0.2),
    ((40, 37), 0.97),
    ((50, 50), 0.02),
]
#: One configuration per order and format, with several threads.
FEW = {
    "spmm": [
        "order=ijk,format=csr,threads=all,schedule=static",
        "order=ik1jk0,format=csr,ktile=8,unroll=4,reorder=rcm,threads=all,schedule=guided",
        "order=ik1jk0,format=bcsr,block=3x3,ktile=8,threads=one",
        "order=i1k1i0jk0,format=csr,ktile=8,itile=32,unroll=1,threads=all,schedule=static",
        "order=k1ijk0,format=csr,ktile=8,unroll=1,threads=all,schedule=dynamic,chunk=4",
        "order=j1ik1j0k0,format=dcsr,ktile=8,jtile=16,threads=all,schedule=static",
        "order=jk1ik0,format=csc,ktile=8,threads=all,merge=private",
        "order=jk1ik0,format=csc,ktile=8,threads=all,merge=tiles",
        "order=pk1k0,format=csr,ktile=8,unroll=4,threads=all,seams=atomic,pieces=8",
        "order=pk1k0,format=csr,ktile=8,unroll=1,threads=all,seams=fixup,pieces=8",
    ],
    "sddmm": [
        "order=ijk,format=csr,threads=all,schedule=static",
        "order=ik1jk0,format=csr,ktile=16,unroll=4,reorder=length,threads=all,schedule=guided",
        "order=ik1jk0,format=bcsr,block=3x3,ktile=16,threads=one",
        "order=i1k1i0jk0,format=csr,ktile=16,itile=32,unroll=1,threads=all,schedule=static",
        "order=k1ijk0,format=csr,ktile=16,unroll=1,threads=all,schedule=dynamic,chunk=4",
        "order=j1ik1j0k0,format=dcsr,ktile=16,jtile=16,threads=all,schedule=static",
        "order=jk1ik0,format=csc,ktile=16,unroll=4,threads=all,schedule=static",
        "order=pk1k0,format=csr,ktile=16,unroll=1,threads=all,pieces=8",
    ],
    "spmv": [
        "order=ij,format=csr,lanes=1,unroll=1,reorder=none,threads=all,schedule=static",
        "order=ij,format=csr,lanes=8,unroll=4,reorder=rcm,threads=all,schedule=guided",
        "order=ij,format=bcsr,block=3x3,threads=one",
        "order=ij,format=bcsr,block=8x8,threads=all,schedule=static",
        "order=ij,format=sell,slice=32,sigma=16,threads=all,schedule=static",
        "order=ij,format=ell,slice=4,threads=one",
        "order=ij,format=sell16,slice=8,sigma=16,threads=all,schedule=static",
        "order=ij,format=sell16,slice=32,sigma=1,threads=one",
        "order=ij,format=sell16,slice=8,sigma=1,threads=one,gather=loads",
        "order=ij,format=sell16,slice=4,sigma=16,threads=one,gather=hardware",
        "order=ij,format=sell16,slice=8,sigma=256,threads=all,schedule=guided,gather=hardware",
        "order=ij,format=sell16,slice=32,sigma=1,threads=one,gather=hardware",
        "order=j1ij0,format=dcsr,jtile=16,lanes=4,threads=all,schedule=static",
        "order=ji,format=csc,threads=all",
        "order=p,format=csr,lanes=4,threads=all,seams=atomic,pieces=8",
        "order=p,format=csr,lanes=4,threads=all,seams=fixup,pieces=8",
    ],
}


@pytest.mark.parametrize("kernel", FEW)
@pytest.mark.parametrize(("shape", "density"), SHAPES)
def test_right_for_odd_shapes(
    runner: CpuRunner, kernel: str, shape: tuple[int, int], density: float
) -> None:
    configs = [Config.parse(text) for text in FEW[kernel]]
    op = Op(kernel) if kernel == "spmv" else Op(kernel, 21)
    assert not failures(runner, pattern_of(shape, density), op, configs)


@pytest.mark.parametrize("kernel", ["spmm", "sddmm"])
@pytest.mark.parametrize("width", [1, 7, 33, 100])
def test_right_for_every_width(runner: CpuRunner, kernel: str, width: int) -> None:
    configs = [Config.parse(text) for text in FEW[kernel]]
    assert not failures(runner, pattern_of((41, 57), 0.2), Op(kernel, width), configs)


@pytest.mark.parametrize("kernel", FEW)
def test_right_in_double_precision(runner: CpuRunner, kernel: str) -> None:
    configs = [Config.parse(text) for text in FEW[kernel]]
    op = Op(kernel, 1 if kernel == "spmv" else 24, "f64")
    assert not failures(runner, pattern_of((41, 57), 0.2), op, configs)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("op", OPS, ids=str)
def test_every_kernel_is_right(runner: CpuRunner, op: Op, dtype: str) -> None:
    typed = Op(op.name, op.width, dtype)
    configs = one_of_each(typed, (301, 701))
    assert not failures(runner, pattern_of((301, 701), 0.2), typed, configs)
    for shape, density in SHAPES:
        assert not failures(runner, pattern_of(shape, density), typed, configs)


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS, ids=str)
def test_every_way_to_launch_is_right(runner: CpuRunner, op: Op) -> None:
    pattern = pattern_of((301, 701), 0.2)
    assert not failures(runner, pattern, op, space_of(op, pattern))
