"""Handles that are copied, pickled and sent to other processes."""

from __future__ import annotations

import copy
import io
import multiprocessing
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import embeddb
from embeddb.core.errors import RunnerUnavailable, UsageError
from embeddb.database import Database
from embeddb.handle import choice as of_choice
from embeddb.handle import handle as of_handle
from embeddb.kernels import build as cpu_build

needs_gcc = pytest.mark.skipif(cpu_build.compiler() is None, reason="needs gcc")
pytestmark = [
    pytest.mark.gcc,
    needs_gcc,
    pytest.mark.filterwarnings(
        "ignore:Sparse (CS[RC] tensor support|invariant checks):UserWarning"
    ),
]
ROWS = "order=ijk,format=csr,threads=all,schedule=static"
BLOCKS = "block=2x2,format=bcsr,ktile=16,order=ik1jk0,schedule=static,threads=all"


def again(f: Any) -> Any:
    return pickle.loads(pickle.dumps(f))  # noqa: S301 - our own


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": again,
}


@pytest.fixture
def a() -> Any:
    rng = np.random.default_rng(0)
    return sparse.csr_array(rng.random((121, 90), dtype=np.float32) * (rng.random((121, 90)) < 0.3))


@pytest.fixture
def b() -> Any:
    return np.random.default_rng(1).random((90, 16), dtype=np.float32)


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("config", [ROWS, BLOCKS])
def test_a_copy_computes_and_has_values_of_its_own(a: Any, b: Any, config: str, how: str) -> None:
    f = embeddb.compile(a, "spmm", k=16, config=config)
    f.update(2 * a)
    g = COPIES[how](f)
    np.testing.assert_allclose(g(b), 2 * a @ b, rtol=1e-5)
    assert (g.config, g.op, g.answer) == (f.config, f.op, f.answer)
    g.update(3 * a)
    np.testing.assert_allclose(g(b), 3 * a @ b, rtol=1e-5)
    f.update(4 * a.data)
    np.testing.assert_allclose(g(b), 3 * a @ b, rtol=1e-5)
    np.testing.assert_allclose(f(b), 4 * a @ b, rtol=1e-5)


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("kernel", ["spmv", "sddmm"])
@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
def test_every_kernel_and_layout(a: Any, b: Any, kernel: str, layout: str, how: str) -> None:
    k = None if kernel == "spmv" else 16
    f = embeddb.compile(a.asformat(layout), kernel, k=k, build=False)
    g = COPIES[how](f)
    operands = (b[:, 0].copy(),) if kernel == "spmv" else (np.ones((121, 16), np.float32), b)
    np.testing.assert_allclose(g(*operands), f(*operands), rtol=1e-5)


@pytest.mark.parametrize("how", COPIES)
def test_no_columns_and_no_entries(a: Any, how: str) -> None:
    g = COPIES[how](embeddb.compile(a, "spmm", k=0))
    assert g(np.zeros((90, 0), np.float32)).shape == (121, 0)
    nothing = COPIES[how](embeddb.compile(sparse.csr_array((5, 4)), "spmm", k=3))
    assert not nothing(np.ones((4, 3))).any()


@pytest.mark.parametrize("how", COPIES)
def test_calls_before_conversion_go_on_counting(a: Any, b: Any, how: str) -> None:
    f = embeddb.compile(a, "spmm", k=16, config=ROWS)
    f.change_later(of_handle.DeferredConfig(embeddb.Config.parse(BLOCKS), 3))
    f(b), f(b)
    g = COPIES[how](f)
    assert g.config == embeddb.Config.parse(ROWS)
    g(b), g(b)
    assert g.config == embeddb.Config.parse(BLOCKS)
    assert f.config == embeddb.Config.parse(ROWS)


def test_read_only_memory_maps_are_copied(a: Any, b: Any, tmp_path: Path) -> None:
    """As joblib hands large arrays to its workers."""
    function, (matrix, *rest) = embeddb.compile(a, "spmm", k=16, config=ROWS).__reduce__()
    read, (shape, *arrays, plain) = matrix.__reduce__()
    mapped = []
    for nth, array in enumerate(arrays):
        np.save(tmp_path / f"{nth}.npy", array)
        mapped.append(np.load(tmp_path / f"{nth}.npy", mmap_mode="r"))
    g = function(read(shape, *mapped, plain), *rest)
    np.testing.assert_allclose(g(b), a @ b, rtol=1e-5)


def test_copies_while_others_call_and_update(a: Any, b: Any) -> None:
    f = embeddb.compile(a, "spmm", k=16, config=ROWS)
    end = threading.Event()

    def change() -> None:
        while not end.is_set():
            f.update(2 * a)
            f.update(a)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            results = pool.map(lambda _: again(copy.deepcopy(f))(b), range(20))
            for result in results:
                ratio = (result / (a @ b)).mean()
                assert min(abs(ratio - 1), abs(ratio - 2)) < 1e-4
    finally:
        end.set()
        thread.join()


def test_a_spawned_process_runs_it(a: Any, b: Any) -> None:
    f = embeddb.compile(a, "spmm", k=16, config=ROWS)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        np.testing.assert_allclose(pool.submit(f, b).result(120), a @ b, rtol=1e-5)


def test_where_it_cannot_be_built_scipy_computes(
    a: Any, b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = pickle.dumps(embeddb.compile(a, "spmm", k=16, config=ROWS))

    def nowhere(*_: object) -> None:
        raise RunnerUnavailable("no compiler here")

    monkeypatch.setattr(of_handle, "by_kernel", nowhere)
    of_choice._warned.clear()
    with pytest.warns(RuntimeWarning, match="no compiler here"):
        g = pickle.loads(data)  # noqa: S301 - our own
    assert g.config is None
    np.testing.assert_allclose(g(b), a @ b, rtol=1e-5)


@pytest.mark.parametrize("how", COPIES)
def test_an_open_database_says_what_to_do_instead(tmp_path: Path, how: str) -> None:
    with Database.create(tmp_path / "x.db") as db, pytest.raises(UsageError, match="pickled"):
        COPIES[how](db)


# -- torch ---------------------------------------------------------------------------------


def tensors() -> tuple[Any, Any, Any]:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    dense = torch.randn(14, 11, dtype=torch.float64) * (torch.rand(14, 11) < 0.3)
    return torch, dense, torch.randn(11, 3, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("gradients", [True, False])
def test_tensor_handles(how: str, gradients: bool) -> None:
    torch, dense, x = tensors()
    f = embeddb.compile(dense.to_sparse_coo().coalesce(), "spmm", k=3, config=ROWS)
    if gradients:  # the product with the transpose is compiled
        f(x).sum().backward()
        x.grad = None
    g = COPIES[how](f)
    g.update((2 * dense).to_sparse_csr())
    torch.testing.assert_close(f(x), dense @ x)
    torch.testing.assert_close(g(x), 2 * dense @ x)
    (grad,) = torch.autograd.grad(g(x).sum(), x)
    torch.testing.assert_close(grad, 2 * dense.T @ torch.ones(14, 3, dtype=torch.float64))
    v = dense.to_sparse_coo().coalesce().values().clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: g(x.detach(), values=v), (v,))


@pytest.mark.parametrize("how", COPIES)
def test_tensor_sddmm_in_the_callers_order(how: str) -> None:
    torch, dense, x = tensors()
    c = torch.randn(14, 3, dtype=torch.float64)
    f = embeddb.compile(dense.to_sparse_csc(), "sddmm", k=3, config=ROWS)
    g = COPIES[how](f)
    torch.testing.assert_close(g(c, x), f(c, x))
    torch.testing.assert_close(
        g(c, x, values=torch.ones_like(g(c, x))), f(c, x, values=torch.ones_like(g(c, x)))
    )
    g.update((2 * dense).to_sparse_csc())
    torch.testing.assert_close(g(c, x), 2 * f(c, x))


def test_modules_that_hold_one() -> None:
    torch, dense, x = tensors()

    class Net(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 3, dtype=torch.float64)
            self.product = embeddb.compile(dense.to_sparse_csr(), "spmm", k=3, config=ROWS)

        def forward(self, x: Any) -> Any:
            return self.product(self.linear(x))

    net = Net()
    torch.testing.assert_close(copy.deepcopy(net)(x), net(x))
    torch.testing.assert_close(torch.optim.swa_utils.AveragedModel(net)(x), net(x))
    file = io.BytesIO()
    torch.save(net.product, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    torch.testing.assert_close(loaded(x), dense @ x)
    assert list(net.state_dict()) == ["linear.weight", "linear.bias"]


def test_the_database_of_gradients_is_sent_as_its_folder(tmp_path: Path) -> None:
    torch, dense, x = tensors()
    a = dense.to_sparse_csr()
    with Database.create(tmp_path / "x.db") as db:
        f = embeddb.compile(a, "spmm", k=3, db=db)
        g = again(f)
    torch.testing.assert_close(
        torch.autograd.grad(g(x).sum(), x)[0], dense.T @ torch.ones(14, 3, dtype=torch.float64)
    )
    with Database.in_memory() as db:
        f = embeddb.compile(a, "spmm", k=3, db=db)
        torch.testing.assert_close(copy.deepcopy(f)(x), f(x))
        with pytest.raises(UsageError, match="pickled"):
            pickle.dumps(f)
