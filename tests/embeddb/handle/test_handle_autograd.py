"""Changes that autograd is to notice: of a matrix between forward and backward, and of `out`."""

from __future__ import annotations

from typing import Any

import pytest

import embeddb
from embeddb.core.errors import UsageError
from embeddb.kernels import build as cpu_build

torch = pytest.importorskip("torch")
needs_gcc = pytest.mark.skipif(cpu_build.compiler() is None, reason="needs gcc")
pytestmark = [
    pytest.mark.gcc,
    needs_gcc,
    pytest.mark.filterwarnings(
        "ignore:Sparse (CS[RC] tensor support|invariant checks):UserWarning"
    ),
]
M, N, K = 14, 11, 3
ROWS = "format=csr,order=ijk,schedule=static,threads=all"
DENSE = torch.eye(M, N, dtype=torch.float64) + torch.ones(M, N, dtype=torch.float64)
UPDATED = "A was updated between a product and its backward"


def handle(kernel: str = "spmm") -> Any:
    config = None if kernel == "spmv" else ROWS
    k = None if kernel == "spmv" else K
    return embeddb.compile(DENSE.to_sparse_csr(), kernel, k=k, config=config)


def values() -> Any:
    return DENSE.to_sparse_csr().values()


def leaf(*shape: int) -> Any:
    return torch.ones(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("kernel", ["spmm", "spmv"])
def test_a_backward_after_an_update_is_refused(kernel: str) -> None:
    f, b = handle(kernel), leaf(N, K) if kernel == "spmm" else leaf(N)
    before = f(b)
    f.update(10 * values())
    after = f(b)
    with pytest.raises(UsageError, match=UPDATED):
        (before + after).sum().backward()
    (grad,) = torch.autograd.grad(f(b).sum(), b)
    torch.testing.assert_close(grad, 10 * DENSE.T @ torch.ones_like(after))
    y = (f(b) ** 2).sum()
    (grad,) = torch.autograd.grad(y, b, create_graph=True)
    f.update(values())
    with pytest.raises(UsageError, match=UPDATED):
        torch.autograd.grad(grad.sum(), b)


@pytest.mark.parametrize("kernel", ["spmm", "spmv", "sddmm"])
def test_what_saves_its_values_survives_an_update(kernel: str) -> None:
    f, v = handle(kernel), values().requires_grad_()
    b = leaf(N, K) if kernel != "spmv" else leaf(N)
    c = [leaf(M, K)] if kernel == "sddmm" else []
    for given in (v, None) if kernel == "sddmm" else (v,):
        y = f(*c, b, values=given)
        f.update(3 * v)
        (grad,) = torch.autograd.grad(y.sum(), b)
        f.update(v)
        ones = torch.ones(M, *b.shape[1:], dtype=torch.float64)
        torch.testing.assert_close(grad, DENSE.T @ ones)
    f(*c, b, values=v).sum().backward()
    assert v.grad is not None


def test_an_update_in_another_copy_is_none() -> None:
    import copy

    f, b = handle(), leaf(N, K)
    other, y = copy.copy(f), f(b).sum()
    other.update(2 * values())
    y.backward()
    torch.testing.assert_close(b.grad, DENSE.T @ torch.ones(M, K, dtype=torch.float64))


class _Module(torch.nn.Module):  # type: ignore[name-defined, misc]
    def __init__(self, f: Any) -> None:
        super().__init__()
        self.f = f

    def forward(self, b: Any) -> Any:
        return torch.relu(self.f(b)).sum()


def test_a_compiled_graph_refuses_too_and_is_compiled_once() -> None:
    f, b = handle(), leaf(N, K)
    seen: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        seen.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    whole = torch.compile(_Module(f), backend=backend, fullgraph=True)
    loss = whole(b)
    f.update(10 * values())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    for factor in range(1, 12):
        f.update(factor * values())
        (grad,) = torch.autograd.grad(whole(b), b)
        torch.testing.assert_close(grad, factor * DENSE.T @ torch.ones(M, K, dtype=torch.float64))
    assert len(seen) == 1


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning")
def test_traces_and_exported_programs_follow_updates() -> None:
    f, b = handle(), leaf(N, K)
    traced = torch.jit.trace(_Module(f), (b.detach(),))
    exported = torch.export.export(_Module(f), (b.detach(),)).module()
    f.update(2 * values())
    for program in (traced, exported):
        (grad,) = torch.autograd.grad(program(b), b)
        torch.testing.assert_close(grad, 2 * DENSE.T @ torch.ones(M, K, dtype=torch.float64))


@pytest.mark.parametrize("kernel", ["spmm", "spmv", "sddmm"])
def test_a_written_out_is_noticed(kernel: str) -> None:
    f, shape = handle(kernel), (K,) if kernel != "spmv" else ()
    b = torch.ones(N, *shape, dtype=torch.float64)
    operands = (torch.ones(M, K, dtype=torch.float64), b) if kernel == "sddmm" else (b,)
    w = torch.ones_like(f(*operands))
    p = w.clone().requires_grad_()
    z = (p * w).sum()
    f(*operands, out=w)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()
    with pytest.raises(UsageError, match="out takes no gradient"):
        f(*operands, out=p)
    with torch.no_grad():
        assert f(*operands, out=p) is p


def test_negated_tensors_are_resolved() -> None:
    f, b = handle(), torch.rand(N, K, dtype=torch.float64)
    negated = torch.complex(b, b).conj().imag
    assert negated.is_neg()
    torch.testing.assert_close(f(negated), -DENSE @ b)
    out = torch.zeros(M, K, dtype=torch.complex128).conj().imag
    assert f(b, out=out) is out and out.is_neg()
    torch.testing.assert_close(out, DENSE @ b)
    v = values()
    f.update(torch.complex(v, v).conj().imag)
    torch.testing.assert_close(f(b), -DENSE @ b)
    s = handle("sddmm")
    c = torch.ones(M, K, dtype=torch.float64)
    torch.testing.assert_close(s(c, negated), -s(c, b))


@pytest.mark.parametrize("wrong", [None, 3, [1.0]])
def test_values_that_are_no_tensor_are_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match=r"values is a .*: A was a tensor"):
        handle().update(wrong)
