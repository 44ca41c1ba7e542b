"""Handles for tensors on a GPU: their kernels run by the emulating device on tensors of the CPU, or
on a GPU where EMBEDDB_TEST_GPU=1 says so."""

from __future__ import annotations

import copy
import io
import os
import pickle
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from emulated_gpu import EmulatedGpu

import embeddb
from embeddb.core.config import Config, Op
from embeddb.core.errors import MatrixError, SpaceError, UsageError
from embeddb.handle import choice as of_choice
from embeddb.handle import cuda as cuda_handle
from embeddb.handle import cuda_choice
from embeddb.handle.choice import Choice, CompileOptions, Wanted
from embeddb.handle.cuda import CudaProducts
from embeddb.handle.cuda_choice import TorchProduct, usual_config
from embeddb.handle.tensors import TensorHandle
from embeddb.kernels.cuda.device import Device, DeviceError, gpu
from embeddb.kernels.cuda.nvrtc import CompileFailed
from embeddb.kernels.cuda.plan import plan

GPU = os.environ.get("EMBEDDB_TEST_GPU") == "1"
DEVICE = "cuda" if GPU else "cpu"
pytestmark = [
    pytest.mark.gcc,
    pytest.mark.skipif(not GPU and shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled"),
]
ROWS = Config.parse(
    "work=rows,lanes=8,vec=1,cols=1,stage=direct,unroll=2,block=64,grid=columns,reorder=none"
)
PIECES = Config.parse(
    "work=pieces,lanes=4,vec=1,cols=1,stage=shuffle,unroll=1,block=64,grid=columns,reorder=length,"
    "piece=4"
)
COO = Config.parse("work=coo,lanes=4,vec=1,unroll=1,block=64,piece=2")
SPMV = Config.parse("work=slices,unroll=1,sigma=0,block=64")
DEFAULT = {"spmm": PIECES, "sddmm": COO, "spmv": SPMV}


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Device:
    return gpu(0) if GPU else EmulatedGpu(tmp_path_factory.mktemp("emulated"))


def matrix(m: int = 23, n: int = 17, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """A dense tensor, two thirds of it zeros; its row 3 is empty."""
    made = torch.rand(m, n, generator=torch.Generator().manual_seed(1), dtype=torch.float64) - 0.5
    made[torch.rand(m, n, generator=torch.Generator().manual_seed(2)) < 0.66] = 0
    made[3] = 0
    return made.to(DEVICE, dtype)


def dense(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(4)).to(DEVICE, dtype)


def handle(
    a: torch.Tensor,
    kernel: str,
    device: Device,
    k: int | None = None,
    config: Config | None = None,
    **wishes: Any,
) -> TensorHandle:
    sparse = a if a.layout is not torch.strided else a.to_sparse_csr()
    named = DEFAULT[kernel] if config is None and not wishes else config
    wanted = Wanted(kernel, k, named, "starter", CompileOptions(**wishes))
    return TensorHandle(CudaProducts.of(sparse, wanted, device))


@pytest.fixture(autouse=True)
def no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers are the usual configurations: what a database says is tested with it."""

    def answer(_: Any, op: Op, *__: Any) -> Choice:
        usual = dict(usual_config(op))
        others = [dict(DEFAULT[op.name]), {"work": "windows", "math": "tf32"}]
        return Choice(config=usual, default=usual, source="a test", others=others, answer="x")

    monkeypatch.setattr(cuda_choice, "query_choice", answer)
    monkeypatch.setattr(cuda_choice, "preparing_s", lambda *_: 0.0)


@pytest.mark.parametrize("k", [1, 3, 32, 33])
@pytest.mark.parametrize("config", [ROWS, PIECES])
def test_spmm_equals_torch(k: int, config: Config, device: Device) -> None:
    a, b = matrix(), dense(17, k)
    torch.testing.assert_close(handle(a, "spmm", device, k, config)(b), a @ b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_value_types(dtype: torch.dtype, device: Device) -> None:
    a, b = matrix(dtype=dtype), dense(17, 8, dtype=dtype)
    made = handle(a, "spmm", device, 8)(b)
    assert made.dtype == dtype
    close = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(made.double(), a.double() @ b.double(), rtol=close, atol=close)


def test_spmv_takes_vectors_and_columns(device: Device) -> None:
    a, x = matrix(), dense(17)
    f = handle(a, "spmv", device)
    torch.testing.assert_close(f(x), a @ x)
    torch.testing.assert_close(f(x.view(-1, 1)), a @ x.view(-1, 1))


@pytest.mark.parametrize("layout", ["csr", "csc", "coo", "unsorted"])
def test_sddmm_keeps_the_order_of_the_caller(layout: str, device: Device) -> None:
    a, c, b = matrix(), dense(23, 6), dense(17, 6)
    sparse: torch.Tensor = (
        getattr(a, f"to_sparse_{layout}")() if layout != "unsorted" else (reversed_rows(a))
    )
    sparse = a.to_sparse_coo() if layout == "coo" else sparse
    f = handle(sparse, "sddmm", device, 6)
    rows, columns = places(sparse)
    values = sparse.coalesce().values() if layout == "coo" else sparse.values()
    wanted = values * (c @ b.T)[rows, columns]
    torch.testing.assert_close(f(c, b), wanted)
    out = torch.empty_like(wanted)
    assert f(c, b, out=out) is out
    torch.testing.assert_close(out, wanted)


def reversed_rows(a: torch.Tensor) -> torch.Tensor:
    """CSR whose rows list their columns falling."""
    csr = a.to_sparse_csr()
    ptr, idx, values = csr.crow_indices(), csr.col_indices().clone(), csr.values().clone()
    for low, high in zip(ptr.tolist(), ptr.tolist()[1:], strict=False):
        idx[low:high], values[low:high] = idx[low:high].flip(0), values[low:high].flip(0)
    return torch.sparse_csr_tensor(ptr, idx, values, csr.shape, check_invariants=False)


def places(sparse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if sparse.layout is torch.sparse_coo:
        rows, columns = sparse.coalesce().indices()
        return rows, columns
    by_row = sparse.layout is torch.sparse_csr
    ptr = sparse.crow_indices() if by_row else sparse.ccol_indices()
    idx = sparse.col_indices() if by_row else sparse.row_indices()
    outer = torch.repeat_interleave(torch.arange(len(ptr) - 1).to(DEVICE), ptr[1:] - ptr[:-1])
    return (outer, idx) if by_row else (idx, outer)


def test_a_coo_tensor_keeps_the_order_of_its_edges(device: Device) -> None:
    edges = torch.tensor([[1, 0, 0], [0, 2, 1]], device=DEVICE)
    weights = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64, device=DEVICE)
    sparse = torch.sparse_coo_tensor(edges, weights, (2, 3))
    a, b, c = sparse.to_dense(), dense(3, 2), dense(2, 2)
    f, s = handle(sparse, "spmm", device, 2), handle(sparse, "sddmm", device, 2)
    torch.testing.assert_close(f(b, values=2 * weights), 2 * a @ b)
    torch.testing.assert_close(s(c, b), weights * (c @ b.T)[edges[0], edges[1]])
    f.update(3 * weights)
    torch.testing.assert_close(f(b), 3 * a @ b)
    twice = torch.sparse_coo_tensor(edges[:, [0, 1, 0]], weights, (2, 3))
    with pytest.raises(UsageError, match="duplicates"):
        handle(twice, "sddmm", device, 2)


def test_duplicates_are_added_up(device: Device) -> None:
    ptr, idx = torch.tensor([0, 3, 4]), torch.tensor([1, 1, 0, 2])
    parts = (ptr, idx, torch.arange(1.0, 5.0, dtype=torch.float64))
    sparse = torch.sparse_csr_tensor(*parts, (2, 3), check_invariants=False).to(DEVICE)
    b = dense(3, 2)
    f = handle(sparse, "spmm", device, 2)
    wanted = torch.tensor([[3.0, 3, 0], [0, 0, 4]], dtype=torch.float64).to(DEVICE) @ b
    torch.testing.assert_close(f(b), wanted)
    with pytest.raises(UsageError, match="duplicates"):
        f(b, values=torch.ones(4, dtype=torch.float64, device=DEVICE))


def test_operands_that_are_not_contiguous_or_share_memory(device: Device) -> None:
    square = matrix(17, 17)
    f = handle(square, "spmm", device, 4)
    b = dense(4, 17).T
    torch.testing.assert_close(f(b), square @ b)
    memory = dense(17, 4)
    wanted = square @ memory
    torch.testing.assert_close(f(memory, out=memory), wanted)
    strided = torch.empty(17, 8, dtype=torch.float64, device=DEVICE)[:, ::2]
    b = dense(17, 4)
    assert f(b, out=strided) is strided
    torch.testing.assert_close(strided, square @ b)
    negative = torch.complex(b, -b).conj().imag
    assert negative.is_neg()
    torch.testing.assert_close(f(negative), square @ b)


def test_gradients_go_through_the_transpose_and_sddmm(device: Device) -> None:
    a = matrix()
    f = handle(a, "spmm", device, 3)
    b = dense(17, 3).requires_grad_()
    values = a.to_sparse_csr().values().clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda b, v: f(b, values=v), (b, values))
    assert torch.autograd.gradgradcheck(lambda b, v: f(b, values=v), (b, values))
    g = handle(a, "sddmm", device, 3)
    c = dense(23, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda c, b: g(c, b), (c, b))
    v = handle(a, "spmv", device)
    x = dense(17).requires_grad_()
    assert torch.autograd.gradcheck(v, (x,))
    assert "gradient by B" in f.why() and "gradient by values" in f.why()


def test_torch_compile_takes_it_whole(device: Device) -> None:
    a, b = matrix(), dense(17, 4)
    f = handle(a, "spmm", device, 4)

    def layer(b: torch.Tensor) -> torch.Tensor:
        return torch.relu(f(b)) * 2

    whole = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(whole(b), torch.relu(a @ b) * 2)


def test_update_pickle_and_copy(device: Device) -> None:
    a, b = matrix(), dense(17, 4)
    f = handle(a, "spmm", device, 4)
    other = copy.copy(f)
    f(b.clone().requires_grad_()).sum().backward()
    f.update((2 * a).to_sparse_csr())
    torch.testing.assert_close(f(b), 2 * a @ b)
    torch.testing.assert_close(other(b), a @ b)
    grad = b.clone().requires_grad_()
    f(grad).sum().backward()
    torch.testing.assert_close(grad.grad, (2 * a).T @ torch.ones_like(f(b)))
    f.update(a.to_sparse_csr().values())
    torch.testing.assert_close(f.sparse().to_dense(), a)
    with pytest.raises(UsageError, match="pattern of A has changed"):
        f.update(torch.eye(23, 17, dtype=torch.float64, device=DEVICE).to_sparse_csr())
    again = pickle.loads(pickle.dumps(f))  # noqa: S301 (made two lines above)
    torch.testing.assert_close(again(b), a @ b)
    buffer = io.BytesIO()
    torch.save(f, buffer)


def test_threads_share_a_handle(device: Device) -> None:
    a, f = matrix(), handle(matrix(), "spmm", device, 4)
    wrong = []

    def work(seed: int) -> None:
        b = dense(17, 4) * seed
        if not torch.allclose(f(b), a @ b):
            wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 9)]
    for thread in threads:
        thread.start()
        if not GPU:  # the emulator has one set of fibers
            thread.join()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_as_in_torch(value: float, device: Device) -> None:
    a, b = matrix(), dense(17, 4)
    b[5, 2] = value
    for config in (ROWS, PIECES):
        made = handle(a, "spmm", device, 4, config)(b)
        wanted = a.to_sparse_csr() @ b
        torch.testing.assert_close(made, wanted, equal_nan=True)
    x = dense(17)
    x[5] = value
    wanted = a.to_sparse_csr() @ x
    torch.testing.assert_close(handle(a, "spmv", device)(x), wanted, equal_nan=True)


def test_few_calls_are_left_to_torch_and_many_are_timed(device: Device) -> None:
    a, b = matrix(dtype=torch.float32), dense(17, 8, dtype=torch.float32)
    once = handle(a, "spmm", device, 8, calls=1)
    assert once.config is None and "1 calls do not amortise" in once.why()
    torch.testing.assert_close(once(b), a @ b)
    usual = handle(a, "spmm", device, 8, calls=20_000)
    assert usual.config == usual_config(Op("spmm", 8), plain=True)
    asked = handle(a, "spmm", device, 8, calls=10_000_000)
    assert "timed here" in asked.why() and asked.config is not None
    torch.testing.assert_close(asked(b), a @ b)
    exact = handle(a, "spmm", device, 8, calls=10_000_000, reproducible=True)
    torch.testing.assert_close(exact(b), a @ b)


def test_no_dense_columns(device: Device) -> None:
    a = matrix()
    f = handle(a, "spmm", device, 0, config=None, calls=1e9)
    assert f(dense(17, 0)).shape == (23, 0)
    g = handle(a, "sddmm", device, 0, config=None, calls=1e9)
    assert not g(dense(23, 0), dense(17, 0)).any() and g(dense(23, 0), dense(17, 0)).shape == (117,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_long_rows_in_16_bits_are_summed_in_32(dtype: torch.dtype, device: Device) -> None:
    """Also where torch computes, and no algorithm of cuSPARSE that rounds partial sums is tried."""
    a = torch.full((3, 6000), 0.25, dtype=dtype, device=DEVICE)
    b = torch.full((6000, 8), 0.25, dtype=dtype, device=DEVICE)
    b[::2] = -0.125
    wanted = (a.double() @ b.double()).to(dtype)
    for calls in (1, 1e9):
        f = handle(a, "spmm", device, 8, calls=calls)
        torch.testing.assert_close(f(b), wanted, rtol=1e-2, atol=0)
    op = Op("spmm", 8, "f16" if dtype is torch.float16 else "bf16")
    assert [c["algorithm"] for c in cuda_choice._libraries(op)] == ["csr3"]


def test_reproducible_calls_are_never_left_to_torch(device: Device) -> None:
    a, b = matrix(dtype=torch.float32), dense(17, 8, dtype=torch.float32)
    f = handle(a, "spmm", device, 8, calls=1, reproducible=True)
    assert f.config is not None and f.config["work"] == "rows"
    torch.testing.assert_close(f(b), a @ b)
    library = Config({"work": "cusparse", "algorithm": "csr2"})
    wanted = Wanted("spmm", 8, library, "starter", CompileOptions(reproducible=True))
    with pytest.raises(UsageError, match="not reproducible"):
        CudaProducts.of(a.to_sparse_csr(), wanted, device)


def test_autograd_notices_an_update_and_a_written_out(device: Device) -> None:
    a, b = matrix(), dense(17, 4).requires_grad_()
    f = handle(a, "spmm", device, 4)
    loss = f(b).sum()
    f.update(2 * a.to_sparse_csr().values())
    with pytest.raises(UsageError, match="A was updated between a product and its backward"):
        loss.backward()
    w, p = torch.ones(23, 4, dtype=a.dtype, device=DEVICE), dense(23, 4).requires_grad_()
    for operand in (b.detach(), b.detach().t().contiguous().t()):  # on the fast path and off it
        loss = (p * w).sum()
        f(operand, out=w)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    with pytest.raises(UsageError, match="out takes no gradient"):
        f(b.detach(), out=p)


def test_update_takes_strided_and_negated_values(device: Device) -> None:
    a, b = matrix(), dense(17, 4)
    f = handle(a, "spmm", device, 4)
    values = a.to_sparse_csr().values()
    f.update(torch.stack([values, -values], 1)[:, 1])
    torch.testing.assert_close(f(b), -a @ b)
    negated = torch.complex(values, values).conj().imag
    f.update(negated)
    torch.testing.assert_close(f(b), -a @ b)


@pytest.mark.parametrize(
    "error", [CompileFailed("no code for this GPU"), DeviceError("no code for this GPU")]
)
def test_where_kernels_cannot_be_loaded_torch_computes(
    error: Exception, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def kernel(self, template: str) -> Any:
            raise error

    a, b = matrix(), dense(17, 4)
    wanted, broken = Wanted("spmm", 4, PIECES, "starter", CompileOptions()), Broken()
    of_choice._warned.clear()
    with pytest.warns(RuntimeWarning, match="no code for this GPU"):
        f = TensorHandle(CudaProducts.of(a.to_sparse_csr(), wanted, broken))  # type: ignore[arg-type]
    assert f.config is None
    torch.testing.assert_close(f(b), a @ b)
    pickled = pickle.dumps(handle(a, "spmm", device, 4))
    of_choice._warned.clear()
    original = cuda_handle.or_by_torch
    monkeypatch.setattr(cuda_handle, "or_by_torch", lambda m, _, make: original(m, broken, make))
    with pytest.warns(RuntimeWarning, match="no code for this GPU"):
        again = pickle.loads(pickled)  # noqa: S301 (made above)
    torch.testing.assert_close(again(b), a @ b)


def test_wishes_about_compiling_and_order_are_kept(device: Device) -> None:
    a, b = matrix(dtype=torch.float32), dense(17, 70, dtype=torch.float32)
    never = handle(a, "spmm", device, 70, calls=10_000_000, build=False)
    assert never.config is None and "not compiled" in never.why()
    torch.testing.assert_close(never(b), a @ b)
    once = handle(a, "spmm", device, 70, calls=1, build=True)
    assert once.config is not None
    torch.testing.assert_close(once(b), a @ b)
    wanted = Wanted("spmm", 70, PIECES, "starter", CompileOptions(reproducible=True))
    with pytest.raises(UsageError, match="not reproducible"):
        CudaProducts.of(a.to_sparse_csr(), wanted, device)


def test_without_a_device_torch_computes() -> None:
    a, b, c = matrix(), dense(17, 8), dense(23, 8)
    for kernel, operands, wanted in (
        ("spmm", (b,), a @ b),
        ("spmv", (b[:, 0],), a @ b[:, 0]),
        ("sddmm", (c, b), a[a != 0] * (c @ b.T)[a != 0]),
    ):
        wants = Wanted(kernel, None if kernel == "spmv" else 8, None, "starter", CompileOptions())
        f = TensorHandle(CudaProducts(cuda_handle.csr_of(a.to_sparse_csr()), wants, None))
        torch.testing.assert_close(f(*operands), wanted)
        assert f.config is None and "torch" in f.why()


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (4, 6)])
def test_nothing_stored(shape: tuple[int, int], device: Device) -> None:
    empty = torch.zeros(shape, dtype=torch.float64, device=DEVICE)
    made = handle(empty, "spmm", device, 3)(dense(shape[1], 3))
    assert made.shape == (shape[0], 3) and not made.any()


def test_wrong_operands_are_named(device: Device) -> None:
    f = handle(matrix(), "spmm", device, 4)
    for b, message in (
        (dense(17, 5), "compiled for k=4"),
        (dense(16, 4), "shape"),
        (dense(17, 4, dtype=torch.float32), "torch.float32"),
        (dense(17, 4).to("meta"), "is on meta"),
        (matrix().to_sparse_csr(), "no dense tensor"),
        ([[1.0]], "is a list: A was a tensor"),
    ):
        with pytest.raises(UsageError, match=message):
            f(b)
    with pytest.raises(UsageError, match="one dense operand"):
        f(dense(17, 4), dense(17, 4))
    with pytest.raises(UsageError, match="out is"):
        f(dense(17, 4), out=torch.empty(23, 5, dtype=torch.float64, device=DEVICE))
    with pytest.raises(UsageError, match="two dense operands"):
        handle(matrix(), "sddmm", device, 4)(dense(23, 4))


def test_damaged_matrices_are_refused(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.ones(2)
    for ptr, idx in (([0, 1, 2], [0, 9]), ([0, 3, 2], [0, 1]), ([1, 1, 2], [0, 1])):
        parts = (torch.tensor(ptr), torch.tensor(idx), values)
        broken = torch.sparse_csr_tensor(*parts, (2, 3), check_invariants=False).to(DEVICE)
        with pytest.raises(MatrixError, match="damaged"):
            handle(broken, "spmm", device, 2)
    with pytest.raises(UsageError, match="sparse tensor"):
        cuda_handle.csr_of(torch.ones(2, 2))
    with pytest.raises(UsageError, match=r"torch\.int64"):
        cuda_handle.csr_of(torch.ones(2, 2, dtype=torch.int64, device=DEVICE).to_sparse_csr())
    monkeypatch.setattr(cuda_handle, "MOST_ENTRIES", 5)
    with pytest.raises(MatrixError, match="of at most 5"):
        cuda_handle.csr_of(matrix().to_sparse_csr())


def test_a_configuration_without_a_kernel_is_refused(device: Device) -> None:
    with pytest.raises(SpaceError, match="no multiple of vec=4"):
        handle(matrix(), "spmm", device, 3, ROWS.replace(vec=4))


@pytest.mark.parametrize("runs", [True, False])
def test_a_configuration_that_the_platform_does_not_have_is_refused(
    runs: bool, device: Device
) -> None:
    """Before its kernel is planned, and where torch would compute, too."""
    for kernel, changes, message in (
        ("spmm", {"block": 96}, "'block': 96 is not one of"),
        ("spmm", {"stage": "shared", "block": 1024}, "'block': 1024 is not one of"),
        ("sddmm", {"work": "pieces"}, "'work': pieces is not one of"),
    ):
        wrong = DEFAULT[kernel].replace(**changes)
        wanted = Wanted(kernel, 4, wrong, "starter", CompileOptions())
        with pytest.raises(SpaceError, match=message) as caught:
            ordered = cuda_handle.csr_of(matrix().to_sparse_csr())
            CudaProducts(ordered, wanted, device if runs else None)
        assert "platform show cuda" in caught.value.hint


@pytest.mark.parametrize("k", [3, 36, 200])
@pytest.mark.parametrize("kernel", ["spmm", "sddmm"])
def test_what_a_handle_chose_can_be_named(kernel: str, k: int, device: Device) -> None:
    """At widths, too, that the platform's space would not take it for."""
    a = matrix(dtype=torch.float32)
    chosen = handle(a, kernel, device, k, calls=20_000).config
    assert chosen is not None and handle(a, kernel, device, k, chosen).config == chosen


def test_an_update_of_a_copy_reaches_its_gradients(device: Device) -> None:
    a, b, grad = matrix(), dense(17, 4).requires_grad_(), dense(23, 4)
    f = handle(a, "spmm", device, 4)
    f(b).backward(grad)  # compiles the product with the transpose
    g = copy.copy(f)
    g.update((2 * a).to_sparse_csr())
    for one, values in ((f, a), (g, 2 * a)):
        b.grad = None
        one(b).backward(grad)
        torch.testing.assert_close(b.grad, values.T @ grad)


def test_an_update_reaches_a_transpose_whose_product_could_not_be_chosen(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, grad = matrix(), dense(17, 4).requires_grad_(), dense(23, 4)
    f = handle(a, "spmm", device, 4)
    with monkeypatch.context() as broken:
        broken.setattr(cuda_handle, "choose", lambda *_: pytest.fail("no memory"))
        with pytest.raises(pytest.fail.Exception, match="no memory"):
            f._products.multiply(grad, None, True)
    f.update((2 * a).to_sparse_csr())
    f(b).backward(grad)
    torch.testing.assert_close(b.grad, 2 * a.T @ grad)


def test_nothing_is_left_for_the_first_call(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come from another thread or stream, which nobody tells to wait."""
    a, b, c = matrix(), dense(17, 4), dense(23, 4)
    sampled = handle(reversed_rows(a), "sddmm", device, 4)
    assert sampled._products._back is not None and copy.copy(sampled)._products._back is not None
    csr = cuda_handle.csr_of(a.half().to_sparse_csr()).csr
    products = [TorchProduct(csr, Op(kernel, 4, "f16")) for kernel in ("spmm", "sddmm")]
    made = torch.sparse_csr_tensor
    monkeypatch.setattr(torch, "sparse_csr_tensor", lambda *_, **__: pytest.fail("made late"))
    assert products[0](b.half(), None, torch.empty(23, 4, dtype=torch.half, device=DEVICE)).any()
    assert csr._rows and [list(one.form.tensors) for one in products] == [["val"], ["rows"]]
    monkeypatch.setattr(torch, "sparse_csr_tensor", made)
    torch.testing.assert_close(sampled(c, b), sampled(c, b))


def test_values_are_updated_on_the_gpu_of_the_matrix(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    f, inside = handle(matrix(), "spmm", device, 4), []

    @contextmanager
    def guard(_: CudaProducts) -> Iterator[None]:
        inside.append("enters")
        yield
        inside.append("leaves")

    monkeypatch.setattr(CudaProducts, "_guard", guard)
    monkeypatch.setattr(CudaProducts, "_settle", lambda _: inside.append("settles"))
    f.update(matrix().to_sparse_csr())
    assert inside == ["enters", "settles", "leaves"]


def test_a_call_with_other_values_registers_its_stream_too(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the pointers and indices of the matrix, which would else be freed too early."""
    f, b, kept = handle(matrix(), "spmm", device, 4), dense(17, 4), list[object]()
    values = torch.ones(f._products.nnz, dtype=torch.float64, device=DEVICE)
    with monkeypatch.context() as patch:
        patch.setattr(CudaProducts, "_guard", lambda _: nullcontext())
        patch.setattr(CudaProducts, "_keep", lambda _, chosen: kept.append(chosen))
        patch.setattr(f._products, "_on_gpu", True)
        f(b, values=values)
    assert kept == [f._products.named]


def test_usual_configurations_have_kernels() -> None:
    for kernel in ("spmm", "sddmm", "spmv"):
        for width in (1, 2, 3, 7, 16, 33, 64, 100, 128, 512, 1024):
            for dtype in ("f32", "f64", "f16", "bf16"):
                op = Op(kernel, 1 if kernel == "spmv" else width, dtype)
                for plain in (False, True):
                    assert plan(usual_config(op, plain), op).template


needs_gpu = pytest.mark.skipif(not GPU, reason="needs a GPU: EMBEDDB_TEST_GPU=1")
CSR2 = Config({"work": "cusparse", "algorithm": "csr2"})


@needs_gpu
@pytest.mark.parametrize("config", [ROWS, PIECES, CSR2, None])
def test_a_cuda_graph_captures_calls(config: Config | None, device: Device) -> None:
    a, b = matrix(dtype=torch.float32), dense(17, 8, dtype=torch.float32)
    wishes = {} if config is not None else {"calls": 1e9}
    f = handle(a, "spmm", device, 8, config, **wishes)
    side: Any = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        f(b)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = f(b)
    b.copy_(2 * b + 1)
    graph.replay()
    torch.testing.assert_close(result, a @ b, rtol=1e-5, atol=1e-5)


@needs_gpu
@pytest.mark.parametrize("config", [PIECES, CSR2])
def test_streams_do_not_disturb_one_another(config: Config, device: Device) -> None:
    a = matrix(dtype=torch.float32)
    f = handle(a, "spmm", device, 8, config)
    streams: list[Any] = [torch.cuda.Stream() for _ in range(4)]
    results = []
    for step in range(40):
        stream = streams[step % 4]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            b = dense(17, 8, dtype=torch.float32) + step
            results.append((b, f(b)))
    torch.cuda.synchronize()
    for b, result in results:
        torch.testing.assert_close(result, a @ b, rtol=1e-4, atol=1e-4)


@needs_gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_inductor_compiles_around_it(device: Device) -> None:
    a, b = matrix(dtype=torch.float32), dense(17, 8, dtype=torch.float32)
    f = handle(a, "spmm", device, 8)
    b.requires_grad_()
    whole = torch.compile(lambda b: torch.relu(f(b)).square().sum(), fullgraph=True)
    whole(b).backward()
    mine = b.grad
    b.grad = None
    torch.relu(a @ b).square().sum().backward()
    torch.testing.assert_close(mine, b.grad, rtol=1e-4, atol=1e-4)


@needs_gpu
def test_autocast_widens_operands(device: Device) -> None:
    a, b = matrix(dtype=torch.float32), dense(17, 8, dtype=torch.float32)
    f = handle(a, "spmm", device, 8)
    wanted = a @ b.bfloat16().float()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        torch.testing.assert_close(f(b.bfloat16()), wanted, rtol=1e-5, atol=1e-5)


@needs_gpu
def test_operands_elsewhere_are_refused(device: Device) -> None:
    with pytest.raises(UsageError, match="is on cpu, A is on cuda:0"):
        handle(matrix(), "spmm", device, 4)(dense(17, 4).cpu())


@needs_gpu
def test_the_public_function_serves_tensors_on_a_gpu() -> None:
    a, b = matrix(dtype=torch.float32), dense(17, 8, dtype=torch.float32)
    for sparse in (a.to_sparse_csr(), a.to_sparse_csc(), a.to_sparse_coo()):
        for calls in (1, None):
            f = embeddb.compile(sparse, "spmm", k=8, calls=calls)
            torch.testing.assert_close(f(b), a @ b, rtol=1e-5, atol=1e-5)
