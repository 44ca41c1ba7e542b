"""The CUDA kernels on the CPU: formats by torch, the same source behind an emulating header."""

from __future__ import annotations

import csv
import itertools
import lzma
import shutil
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from cuda_cases import csr_of, largest_excess, pattern, patterns, plans
from emulated_gpu import EmulatedGpu
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embeddb.core.config import Config, Op
from embeddb.core.errors import SpaceError
from embeddb.kernels.cuda import nvrtc
from embeddb.kernels.cuda.forms import FormRefused, inspect
from embeddb.kernels.cuda.plan import _SAFE, MOST_ENTRIES, Plan, fit, plan
from embeddb.kernels.cuda.product import bind
from embeddb.platforms.platform import load_platform

RUNS = Path(__file__).parents[4] / "benchmarks/results/gpu/runs.csv.xz"


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> EmulatedGpu:
    made = EmulatedGpu(tmp_path_factory.mktemp("emulated"))
    made.prepare(one.template for one in plans())
    return made


def check(a: sp.csr_array, wanted: Plan, device: EmulatedGpu) -> None:
    assert largest_excess(a, wanted, device) <= 1, wanted


@pytest.mark.parametrize("name", patterns())
@pytest.mark.gcc
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_kernels_equal_scipy(name: str, device: EmulatedGpu) -> None:
    for wanted in plans():
        check(patterns()[name], wanted, device)


@pytest.mark.gcc
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 50)),
    density=st.floats(0, 1),
    seed=st.integers(0, 1 << 30),
    which=st.integers(0, 22),
)
def test_random_patterns_equal_scipy(
    shape: tuple[int, int], density: float, seed: int, which: int, device: EmulatedGpu
) -> None:
    rng = np.random.default_rng(seed)
    lengths = (rng.random(shape[0]) ** 3 * density * shape[1]).astype(int).tolist()
    check(pattern(*shape, lengths, seed), list(plans())[which], device)


@pytest.mark.gcc
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_infinity_reaches_only_rows_that_have_its_column(device: EmulatedGpu) -> None:
    a = pattern(45, 90, [2] * 45, 3)
    for wanted in plans():
        if wanted.op.name == "sddmm" or not wanted.form.exact or wanted.op.dtype != "f32":
            continue
        csr, width = csr_of(a, torch.float32), wanted.op.width
        b = torch.ones((90, width) if wanted.op.name == "spmm" else (90,))
        b[int(a.indices[0])] = torch.inf
        out = torch.empty((45, width) if wanted.op.name == "spmm" else (45,))
        bind(csr, wanted, device)(b, None, out)
        expected = a.astype(np.float32) @ b.numpy()
        np.testing.assert_allclose(out.numpy(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.gcc
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_misaligned_operands_and_other_values(device: EmulatedGpu) -> None:
    a = patterns()["random"]
    for wanted in plans():
        if wanted.op.name != "spmm" or wanted.op.dtype != "f32":
            continue
        made = bind(csr_of(a, torch.float32), wanted, device)
        k = wanted.op.width
        b = torch.rand(90 * k + 1)[1:].view(90, k)
        out = torch.empty(45 * k + 1)[1:].view(45, k)
        values = torch.rand(a.nnz)
        made.with_values(values)(b, None, out)
        full = sp.csr_array((values.double().numpy(), a.indices, a.indptr), a.shape)
        scale = wanted.tolerance * 20
        np.testing.assert_allclose(out.numpy(), full @ b.double().numpy(), scale, scale)


def test_a_format_that_would_be_mostly_zeros_is_refused() -> None:
    a = pattern(6400, 400, ([300] + [0] * 31) * 200, 1)
    op = Op.parse("spmv")
    wanted = plan({"work": "slices", "sigma": 1, "unroll": 1, "block": 64}, op)
    with pytest.raises(FormRefused, match="would store"):
        bind(csr_of(a, torch.float32), wanted, EmulatedGpu(Path()))


def test_every_configuration_of_the_platform_has_a_kernel() -> None:
    platform = load_platform("cuda")
    for text in ("spmm:32", "spmm:100", "spmv", "sddmm:64"):
        op = Op.parse(text)
        space = platform.space(op, m=5000, n=5000, nnz=60000)
        for config in space.sample(200, rng=np.random.default_rng(1)):
            made = plan(config, op) if op.width % int(config.get("vec", 1)) == 0 else None
            assert made is None or bool(made.template) != bool(made.algorithm)


def test_configurations_that_ran_are_legal_and_have_a_kernel() -> None:
    """Of the runs on the H200. Blocks of 32 threads were tried in SpMM and are not in the space."""
    platform, seen = load_platform("cuda"), set()
    with lzma.open(RUNS, "rt", newline="") as file:
        for row in itertools.islice(csv.DictReader(file), 0, None, 7):
            op = Op.parse(row["op"])
            names = (p.name for p in platform.kernels[op.name].space.params)
            values = {name: row[name] for name in names if row.get(name)}
            config = Config({k: int(v) if v.isdigit() else v for k, v in values.items()})
            if (op, config) in seen or (op.name == "spmm" and config.get("block") == 32):
                continue
            seen.add((op, config))
            space = platform.space(op, m=5000, n=5000, nnz=60000)
            assert space.reason(config) is None, config
            assert plan(config, op).template
    assert len(seen) > 5000


def test_fit_takes_widths_and_types_that_a_configuration_refuses() -> None:
    wide = Config.parse(
        "work=pieces,lanes=16,vec=4,cols=1,stage=direct,unroll=1,block=64,grid=columns,"
        "reorder=none,piece=16"
    )
    with pytest.raises(SpaceError, match="no multiple of vec=4"):
        plan(wide, Op.parse("spmm:33"))
    assert fit(wide, Op.parse("spmm:33"))["vec"] == 1
    assert fit(wide, Op.parse("spmm:34"))["vec"] == 2
    assert fit(wide, Op.parse("spmm:128"))["vec"] == 4
    with pytest.raises(SpaceError, match="missing"):
        plan({"work": "pieces"}, Op.parse("spmm:32"))
    half = {"work": "windows", "math": "f16", "window": 8, "cols": 1, "block": 64}
    assert plan(half, Op.parse("spmm:40:f16")).template
    with pytest.raises(SpaceError, match="math=f16"):
        plan(half, Op.parse("spmm:40"))


SPMM = "block=64,lanes=8,vec=1,cols=1,stage=direct,unroll=1,reorder=none"
WINDOWS = "work=windows,block=64,reorder=none,cols=1"
FP32 = f"{WINDOWS},math=fp32,lanes=8,vec=2,unroll=1,window=4"
SDDMM = "block=64,lanes=8,vec=1,unroll=1,reorder=none,piece=2,sigma=0"


@pytest.mark.parametrize(
    ("op", "legal", "illegal"),
    [
        ("spmm:32", f"work=rows,{SPMM}", "stage=shared,block=1024"),
        ("spmm:32", f"work=rows,{SPMM}", "lanes=12"),
        ("spmm:32", f"work=rows,{SPMM}", "lanes=64,stage=shuffle"),
        ("spmm:32", f"work=rows,{SPMM}", "lanes=3,block=96"),
        ("spmm:36", f"work=rows,{SPMM}", "vec=3"),
        ("spmm:32", f"work=rows,{SPMM}", "block=2048"),
        ("spmm:32", f"work=rows,{SPMM}", "block=40"),
        ("spmm:32", f"work=rows,{SPMM}", "unroll=0"),
        ("spmm:32", f"work=rows,{SPMM}", "cols=0"),
        ("spmm:32", f"work=rows,{SPMM}", "reorder=other"),
        ("spmm:32", f"work=rows,{SPMM}", "work=coo"),
        ("spmm:32", f"work=rows,{SPMM}", "work=slices"),
        ("spmm:32", f"work=rows,{SPMM}", "block=many"),
        ("spmm:32", f"work=pieces,piece=8,{SPMM}", "piece=0"),
        ("spmm:32", f"work=pieces,piece=8,{SPMM}", "piece=4294967297"),
        ("spmm:32", f"work=row-batches,batch=2,{SPMM}", "batch=0"),
        ("spmm:32", f"{WINDOWS},math=tf32,window=8", "window=4"),
        ("spmm:32", f"{WINDOWS},math=tf32,window=8", "block=48"),
        ("spmm:32", FP32, "block=48"),
        ("spmm:32", FP32, "window=6"),
        ("spmm:32", FP32, "lanes=3"),
        ("spmm:32", FP32, "work=window-pieces,piece=0"),
        ("sddmm:32", f"{WINDOWS},math=tf32,window=16", "window=8"),
        ("sddmm:32", f"work=coo,{SDDMM}", "piece=0"),
        ("sddmm:32", f"work=rows,{SDDMM}", "work=pieces"),
        ("sddmm:32", f"work=rows,{SDDMM}", "work=slices"),
        ("sddmm:32", f"work=rows,{SDDMM}", "lanes=0"),
        ("spmv", f"work=rows,{SDDMM}", "work=coo"),
        ("spmv", f"work=slices,{SDDMM}", "sigma=-1"),
        ("spmv", "work=stream,lanes=4,piece=512,block=64", "piece=16384"),
        ("spmv:f64", "work=stream,lanes=4,piece=6144,block=64", "piece=6400"),
    ],
)
def test_what_would_leave_its_arrays_is_no_kernel(op: str, legal: str, illegal: str) -> None:
    """Also where no space is asked before, as in emitted code."""
    wanted, config = Op.parse(op), Config.parse(legal)
    assert plan(config, wanted).template
    changed = Config({**config, **Config.parse(illegal)})
    for function in (plan, fit):
        with pytest.raises(SpaceError) as caught:
            function(changed, wanted)
        assert "\n" not in str(caught.value) and caught.value.hint


def test_numbers_of_32_bits_have_room_behind_the_last_entry_and_row() -> None:
    """Loops step by a piece, or by unrolled lanes; the last block of threads is rarely full."""
    piece, block, batch, lanes, unroll = (
        max(_SAFE[name]) for name in ("piece", "block", "batch", "lanes", "unroll")
    )
    assert MOST_ENTRIES + max(piece, block * batch, lanes * unroll) < 1 << 31


def test_a_window_is_cut_into_pieces_only_where_that_is_asked() -> None:
    op, config = Op.parse("spmm:32"), Config.parse(FP32).replace(piece=8)
    assert plan(config, op).form.piece == 0
    assert plan(config.replace(work="window-pieces"), op).form.piece == 8


@pytest.mark.gcc
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("m", [3, 4, 5, 6])
def test_the_parts_of_a_checked_matrix_are_aligned(m: int, device: EmulatedGpu) -> None:
    a = pattern(m, 9, [3] * m, 1)
    parts = (torch.from_numpy(one.astype(np.int64)) for one in (a.indptr, a.indices))
    csr, _ = inspect(a.shape, *parts, torch.from_numpy(a.data), device)
    assert [one.data_ptr() % 16 for one in (csr.ptr, csr.idx, csr.rows)] == [0, 0, 0]
    np.testing.assert_array_equal(csr.idx.numpy(), a.indices)
    np.testing.assert_array_equal(csr.rows.numpy(), np.repeat(np.arange(m), 3))


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_every_kind_of_kernel_compiles(architecture: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the extra cuda")
    templates = dict.fromkeys(one.template for one in plans())
    lines = "".join(f"KERNEL(k{i}, {t})\n" for i, t in enumerate(templates))
    assert nvrtc.compiled(f"{nvrtc.source()}\n{lines}", architecture)[:4] == b"\x7fELF"


def test_an_error_of_the_compiler_is_its_first_line() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the extra cuda")
    with pytest.raises(nvrtc.CompileFailed, match="error"):
        nvrtc.compiled("no code", "sm_90")
