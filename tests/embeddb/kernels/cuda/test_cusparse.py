"""cuSPARSE as a product: descriptors, preprocessing and calls, on a library that emulates it."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import scipy.sparse as sp
import torch
from cuda_cases import LIBRARY, csr_of, largest_excess, patterns, planned, plans
from emulated_cusparse import BUFFER
from emulated_gpu import EmulatedGpu

from embeddb.core.config import Op
from embeddb.core.errors import RunnerUnavailable, SpaceError
from embeddb.kernels.cuda.device import DeviceError, Gpu, NoDeviceMemory
from embeddb.kernels.cuda.product import bind, cusparse


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("name", patterns())
def test_every_algorithm_equals_scipy(name: str, dtype: str) -> None:
    device = EmulatedGpu(Path())
    for wanted in plans(LIBRARY):
        op = Op(wanted.op.name, wanted.op.width, dtype)
        one = planned(op, f"work=cusparse,algorithm={wanted.algorithm}")
        assert largest_excess(patterns()[name], one, device) <= 1, one


def test_preprocessing_and_buffer_are_made_once_for_each_matrix() -> None:
    device = EmulatedGpu(Path())
    a = patterns()["random"]
    library = cusparse(device).functions
    product = bind(csr_of(a, torch.float32), planned(Op("spmm", 8), LINE), device)
    for _ in range(3):
        b, out = torch.rand(90, 8), torch.empty(45, 8)
        product(b, None, out)
        torch.testing.assert_close(out.double(), torch.from_numpy(a @ b.double().numpy()))
    assert library.calls == ["preprocess", *["multiply"] * 3]
    assert product.form.nbytes == BUFFER
    values = torch.rand(a.nnz)
    other = product.with_values(values)
    other(b, None, out)
    full = sp.csr_array((values.double().numpy(), a.indices, a.indptr), a.shape)
    torch.testing.assert_close(out.double(), torch.from_numpy(full @ b.double().numpy()))
    del product, other
    gc.collect()
    assert list(library.objects.values()) == ["handle"], "descriptors go with the product"


LINE = "work=cusparse,algorithm=csr2"


def test_an_error_of_the_library_names_its_function(monkeypatch: pytest.MonkeyPatch) -> None:
    device = EmulatedGpu(Path())
    monkeypatch.setattr(cusparse(device).functions, "cusparseSpMM", lambda *_: 10)
    product = bind(csr_of(patterns()["one"], torch.float32), planned(Op("spmm", 4), LINE), device)
    with pytest.raises(DeviceError, match="cusparseSpMM: not supported"):
        product(torch.rand(1, 4), None, torch.empty(1, 4))


@pytest.mark.parametrize("status", [2, 11])
def test_no_memory_is_an_error_of_its_own(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    device = EmulatedGpu(Path())
    monkeypatch.setattr(cusparse(device).functions, "cusparseSpMM", lambda *_: status)
    product = bind(csr_of(patterns()["one"], torch.float32), planned(Op("spmm", 4), LINE), device)
    with pytest.raises(NoDeviceMemory, match="cusparseSpMM"):
        product(torch.rand(1, 4), None, torch.empty(1, 4))


@pytest.mark.parametrize("text", ["sddmm:32", "spmv", "spmm:32"])
def test_an_algorithm_it_lacks_is_no_configuration(text: str) -> None:
    wrong = {"spmv": "csr3", "spmm": "csr1"}.get(text.partition(":")[0], "default")
    with pytest.raises(SpaceError, match=f"no algorithm={wrong}"):
        planned(Op.parse(text), f"work=cusparse,algorithm={wrong}")


def test_a_missing_library_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    pathfinder = pytest.importorskip("cuda.pathfinder", reason="needs the extra cuda")

    def missing(name: str) -> None:
        raise pathfinder.DynamicLibNotFoundError(f'Failure finding "{name}"\n  searched: here')

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", missing)
    gpu = object.__new__(Gpu)
    monkeypatch.setattr(Gpu, "use", lambda self: None)
    with pytest.raises(RunnerUnavailable, match="library cusparse cannot be loaded") as caught:
        gpu.library("cusparse")
    assert "cuda" in caught.value.hint and "\n" not in str(caught.value)
