"""Handles for torch compute what torch does; their gradients are those of differences."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embeddb
from embeddb.core.errors import MatrixError, UsageError
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
BLOCKS = "block=2x2,format=bcsr,ktile=8,order=ik1jk0,schedule=static,threads=all"
MAKE = {
    "csr": lambda dense: dense.to_sparse_csr(),
    "csc": lambda dense: dense.to_sparse_csc(),
    "coo": lambda dense: dense.to_sparse_coo(),
}


def dense(dtype: Any = None) -> Any:
    torch.manual_seed(0)
    return torch.randn(M, N, dtype=dtype or torch.float64) * (torch.rand(M, N) < 0.2)


def leaf(*shape: int) -> Any:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def values_of(a: Any) -> Any:
    return (a.coalesce() if a.layout is torch.sparse_coo else a).values().clone().requires_grad_()


def same_gradients(function: Callable[..., Any], *inputs: Any) -> bool:
    """First and second derivatives against differences."""
    once: bool = torch.autograd.gradcheck(function, inputs)
    twice: bool = torch.autograd.gradgradcheck(function, inputs)
    return once and twice


@pytest.mark.parametrize("layout", MAKE)
@pytest.mark.parametrize("config", [ROWS, BLOCKS, None])
def test_products_and_their_gradients(layout: str, config: str | None) -> None:
    d = dense()
    a = MAKE[layout](d)
    b, c, x, v = leaf(N, K), leaf(M, K), leaf(N), values_of(a)
    f = embeddb.compile(a, "spmm", k=K, config=config)
    torch.testing.assert_close(f(b.detach()), d @ b)
    torch.testing.assert_close(f(b), d @ b)
    torch.testing.assert_close(f(b.detach(), values=2 * v.detach()), 2 * d @ b)
    assert same_gradients(lambda b, v: f(b, values=v), b, v)
    s = embeddb.compile(a, "sddmm", k=K, config=config)
    torch.testing.assert_close(s(c, b).detach(), s(c.detach(), b.detach()))
    torch.testing.assert_close(s.sparse(s(c, b).detach()).to_dense(), (d * (c @ b.T)).detach())
    assert same_gradients(lambda c, b, v: s(c, b, values=v), c, b, v)
    y = embeddb.compile(a, "spmv")
    torch.testing.assert_close(y(x), d @ x)
    assert same_gradients(lambda x, v: y(x, values=v), x, v)


def test_the_operators_are_what_torch_asks_of_them() -> None:
    a = dense().to_sparse_csr()
    f = embeddb.compile(a, "spmm", k=K, config=ROWS)
    torch.library.opcheck(torch.ops.embeddb.product.default, (leaf(N, K), None, f._key, False))
    torch.library.opcheck(torch.ops.embeddb.dots.default, (leaf(M, K), leaf(N, K), f._key))
    torch.library.opcheck(torch.ops.embeddb.weights.default, (leaf(N, K).detach(), f._key))


def test_torch_compile_goes_through_whole() -> None:
    d = dense()
    f = embeddb.compile(d.to_sparse_csr(), "spmm", k=K, config=ROWS)
    b = leaf(N, K)
    whole = torch.compile(lambda b: torch.relu(f(b)).sum(), backend="aot_eager", fullgraph=True)
    whole(b).backward()
    (expected,) = torch.autograd.grad(torch.relu(d @ b).sum(), b)
    torch.testing.assert_close(b.grad, expected)


def test_a_graph_outlives_its_handle() -> None:
    d, b = dense(), leaf(N, K)
    loss = embeddb.compile(d.to_sparse_csr(), "spmm", k=K, config=ROWS)(b).sum()
    gc.collect()
    loss.backward()
    torch.testing.assert_close(b.grad, d.T @ torch.ones(M, K, dtype=torch.float64))


@pytest.mark.parametrize("layout", MAKE)
def test_an_update_narrows_no_values(layout: str) -> None:
    d = dense(torch.float32)
    f = embeddb.compile(MAKE[layout](d), "spmm", k=K)
    wide = d.double() / 3
    for values in (MAKE[layout](wide), values_of(MAKE[layout](wide)).detach()):
        with pytest.raises(UsageError, match="values holds float64, which float32 does not"):
            f.update(values)
    b = torch.randn(N, K)
    torch.testing.assert_close(f(b), d @ b)
    f = embeddb.compile(MAKE[layout](d.double()), "spmm", k=K)
    f.update(MAKE[layout](2 * d))  # a narrower type loses nothing
    torch.testing.assert_close(f(b.double()), 2 * d.double() @ b.double())


@pytest.mark.parametrize("layout", MAKE)
def test_update_reaches_every_product(layout: str) -> None:
    d, b, c = dense(), leaf(N, K), leaf(M, K)
    a = MAKE[layout](d)
    f = embeddb.compile(a, "spmm", k=K, config=BLOCKS)
    s = embeddb.compile(a, "sddmm", k=K)
    for handle in (lambda: f(b).sum(), lambda: s(c, b).sum()):
        handle().backward()  # makes the products that gradients need
    for new in (MAKE[layout](-3 * d), 7 * values_of(a).detach()):
        f.update(new)
        s.update(new)
        factor = -3.0 if new.layout is not torch.strided else 7.0
        torch.testing.assert_close(f(b), factor * d @ b)
        (grad,) = torch.autograd.grad(f(b).sum(), b)
        torch.testing.assert_close(grad, factor * d.T @ torch.ones(M, K, dtype=torch.float64))
        both = factor * d * (c @ b.T)
        torch.testing.assert_close(s(c, b).sum(), both.sum())
        for one, other in zip(
            torch.autograd.grad(s(c, b).sum(), (c, b)),
            torch.autograd.grad(both.sum(), (c, b)),
            strict=True,
        ):
            torch.testing.assert_close(one, other)


def test_unsorted_rows_keep_their_order_and_duplicates_have_none() -> None:
    columns = torch.tensor([2, 0, 1])
    pointers = torch.tensor([0, 2, 3])
    a = torch.sparse_csr_tensor(pointers, columns, torch.tensor([1.0, 2.0, 3.0]), (2, 3))
    b = torch.eye(3)
    f = embeddb.compile(a, "spmm", k=3)
    torch.testing.assert_close(f(b), torch.tensor([[2.0, 0, 1], [0, 3, 0]]))
    f.update(torch.tensor([10.0, 20.0, 30.0]))
    torch.testing.assert_close(f(b), torch.tensor([[20.0, 0, 10], [0, 30, 0]]))
    s = embeddb.compile(a, "sddmm", k=3)
    c = torch.tensor([[1.0, 1, 1], [1, 1, 1]])
    torch.testing.assert_close(s(c, b), torch.tensor([1.0, 2.0, 3.0]))
    twice = torch.sparse_csr_tensor(
        pointers, torch.tensor([0, 0, 1]), torch.tensor([1.0, 2.0, 3.0]), (2, 3)
    )
    g = embeddb.compile(twice, "spmm", k=3)
    torch.testing.assert_close(g(b), torch.tensor([[3.0, 0, 0], [0, 3, 0]]))
    with pytest.raises(UsageError, match="duplicates"):
        g(b, values=torch.ones(3))


def test_a_coo_tensor_keeps_the_order_of_its_edges() -> None:
    """`edge_index` and `edge_weight` of a graph are seldom sorted."""
    edges, weights = torch.tensor([[1, 0, 0], [0, 2, 1]]), torch.tensor([1.0, 10.0, 100.0])
    a = torch.sparse_coo_tensor(edges, weights, (2, 3))
    assert not a.is_coalesced()
    b, c = torch.eye(3), torch.ones(2, 3)
    f = embeddb.compile(a, "spmm", k=3)
    s = embeddb.compile(a, "sddmm", k=3)
    expected = torch.tensor([[0.0, 100, 10], [1, 0, 0]])
    torch.testing.assert_close(f(b), expected)
    torch.testing.assert_close(f(b, values=2 * weights), 2 * expected)
    torch.testing.assert_close(s(c, b), weights)
    torch.testing.assert_close(s(c, b, values=3 * weights), 3 * weights)
    for new in (4 * weights, torch.sparse_coo_tensor(edges, 4 * weights, (2, 3))):
        f.update(new)
        torch.testing.assert_close(f(b), 4 * expected)


def test_a_coo_tensor_with_duplicates_has_no_order() -> None:
    a = torch.sparse_coo_tensor(torch.tensor([[1, 0, 1], [0, 2, 0]]), torch.ones(3), (2, 3))
    f = embeddb.compile(a, "spmm", k=3)
    torch.testing.assert_close(f(torch.eye(3)), torch.tensor([[0.0, 0, 1], [2, 0, 0]]))
    for call in (
        lambda: f(torch.eye(3), values=torch.ones(3)),
        lambda: f.update(torch.ones(2)),
        lambda: embeddb.compile(a, "sddmm", k=3),
    ):
        with pytest.raises(UsageError, match="duplicates") as raised:
            call()
        assert "A.coalesce()" in raised.value.hint
    s = embeddb.compile(a.coalesce(), "sddmm", k=3)
    torch.testing.assert_close(s(torch.ones(2, 3), torch.eye(3)), torch.tensor([1.0, 2.0]))


def test_out_is_written_and_takes_no_gradient() -> None:
    d, b = dense(torch.float32), torch.randn(N, K)
    f = embeddb.compile(d.to_sparse_csr(), "spmm", k=K, config=ROWS)
    out = torch.full((M, K), float("nan"))
    assert f(b, out=out) is out
    torch.testing.assert_close(out, d @ b)
    with pytest.raises(UsageError, match="gradient"):
        f(b.requires_grad_(), out=out)
    with torch.no_grad():
        assert f(b, out=out) is out
        with pytest.raises(UsageError, match="several elements at one address"):
            f(b, out=torch.zeros(1, K).expand(M, K))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda a: a.to_dense(), "a sparse tensor"),
        (lambda a: a.to(torch.bfloat16), "bfloat16"),
        (lambda a: a.requires_grad_(), "requires a gradient"),
        (lambda a: a.to("meta"), "on meta"),
    ],
)
def test_other_tensors_are_refused(change: Callable[[Any], Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        embeddb.compile(change(dense(torch.float32).to_sparse_csr()), "spmm", k=K)


@pytest.mark.parametrize("thing", [torch.nn.Linear(2, 2), torch.float32])
def test_what_is_of_torch_but_no_tensor_is_refused(thing: Any) -> None:
    with pytest.raises(UsageError, match="A is a"):
        embeddb.compile(thing, "spmm", k=K)


def test_the_cure_for_an_operand_in_double_precision_is_one_for_tensors() -> None:
    a, b = dense(torch.float32).to_sparse_csr(), torch.zeros(N, K, dtype=torch.float64)
    with pytest.raises(UsageError) as refused:
        embeddb.compile(a, "spmm", k=K)(b)
    assert "dtype=" not in refused.value.hint and "A in float64" in refused.value.hint
    assert embeddb.compile(a.double(), "spmm", k=K)(b).shape == (M, K)


def test_other_operands_are_refused() -> None:
    f = embeddb.compile(dense(torch.float32).to_sparse_csr(), "spmm", k=K)
    for operand, told in (
        (np.zeros((N, K), dtype=np.float32), "A was a tensor"),
        (torch.zeros(N, K).to_sparse(), "dense"),
        (torch.zeros(N, K, dtype=torch.int32), "int32"),
        (torch.zeros(N + 1, K), "shape"),
        (torch.zeros(N, K, dtype=torch.float64), "float64"),
    ):
        with pytest.raises(UsageError, match=told):
            f(operand)
    needs_grad = torch.ones(f.sparse().values().shape, requires_grad=True)
    for call in (
        lambda: f(torch.zeros(N, K), values=np.ones(3, dtype=np.float32)),
        lambda: f(np.zeros((N, K), dtype=np.float32), values=needs_grad),
        lambda: f.sparse([1.0]),
        lambda: f.update([1.0]),
    ):
        with pytest.raises(UsageError, match="A was a tensor"):
            call()
    with pytest.raises(UsageError, match="values has the shape"):
        f(torch.zeros(N, K), values=torch.ones(3))
    with pytest.raises(UsageError, match="two dense operands"):
        embeddb.compile(dense().to_sparse_csr(), "sddmm", k=K)(leaf(M, K))
    with pytest.raises(UsageError, match="dtype"):
        embeddb.compile(dense().to_sparse_csr(), "spmm", k=K, dtype=torch.float32)


def test_indices_outside_are_refused_before_compiled_code_sees_them() -> None:
    a = torch.sparse_csr_tensor(
        torch.tensor([0, 2, 3]),
        torch.tensor([0, 1, 2]),
        torch.ones(3),
        (2, 3),
        check_invariants=False,
    )
    a.col_indices()[1] = 999
    with pytest.raises(MatrixError, match="column"):
        embeddb.compile(a, "spmm", k=3)


def test_why_tells_of_the_gradients_products() -> None:
    a, b = dense().to_sparse_csr(), leaf(N, K)
    f = embeddb.compile(a, "spmm", k=K, config=ROWS)
    assert "gradient" not in f.why()
    f(b).sum().backward()
    assert "for products with Aᵀ, the gradient by B:\nspmm:3:f64 on" in f.why()
    assert f.why().count("runs: ") == 2


# -- tracers -------------------------------------------------------------------------------


class _Module(torch.nn.Module):  # type: ignore[name-defined, misc]
    def __init__(self, f: Any) -> None:
        super().__init__()
        self.f = f

    def forward(self, *operands: Any) -> Any:
        return self.f(*operands)


def test_vmap_calls_it_for_each() -> None:
    d, vmap = dense(), torch.func.vmap
    f = embeddb.compile(d.to_sparse_csr(), "spmm", k=K, config=ROWS)
    s = embeddb.compile(d.to_sparse_csr(), "sddmm", k=K, config=ROWS)
    b = torch.randn(2, 4, N, K, dtype=torch.float64)
    torch.testing.assert_close(vmap(f)(b[0]), d @ b[0])
    torch.testing.assert_close(vmap(f, in_dims=1)(b[0].transpose(0, 1)), d @ b[0])
    torch.testing.assert_close(vmap(vmap(f))(b), d @ b)
    c = torch.randn(4, M, K, dtype=torch.float64)
    torch.testing.assert_close(vmap(s)(c, b[0])[2], s(c[2], b[0, 2]))
    v = torch.stack([d.to_sparse_csr().values() * n for n in range(3)])
    torch.testing.assert_close(vmap(lambda v: f(b[0, 0], values=v))(v)[2], 2 * d @ b[0, 0])
    assert vmap(f)(b[0, :0]).shape == (0, M, K)
    assert vmap(f, in_dims=1, out_dims=1)(b[0, :0].transpose(0, 1)).shape == (M, 0, K)
    assert vmap(s)(c[:0], b[0, :0]).shape == (0, v.shape[1])
    assert vmap(lambda v: f(b[0, 0], values=v))(v[:0]).shape == (0, M, K)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_what_cannot_be_derived_is_refused() -> None:
    """Without that, forward-mode derivatives vanish."""
    f = embeddb.compile(dense().to_sparse_csr(), "spmm", k=K, config=ROWS)
    b, func = torch.randn(N, K, dtype=torch.float64), torch.func
    for transform in (
        lambda: func.grad(lambda b: f(b).sum())(b),
        lambda: func.vmap(func.grad(lambda b: f(b).sum()))(b[None]),
        lambda: func.jvp(f, (b,), (b,)),
        lambda: func.jacrev(f)(b),
        lambda: func.jacfwd(f)(b),
        lambda: func.vmap(lambda b: f(b, out=torch.empty(M, K, dtype=torch.float64)))(b[None]),
    ):
        with pytest.raises(UsageError):
            transform()
    with torch.autograd.forward_ad.dual_level():
        torch.testing.assert_close(f(b), f(b))
        with pytest.raises(UsageError, match="forward-mode"):
            f(torch.autograd.forward_ad.make_dual(b, b))


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning")
def test_a_trace_holds_the_product_and_not_its_result() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    d = dense()
    f = embeddb.compile(d.to_sparse_csr(), "spmm", k=K, config=ROWS)
    b = torch.randn(N, K, dtype=torch.float64)
    for traced in (
        make_fx(f)(b),
        make_fx(f, pre_dispatch=True)(b),
        torch.jit.trace(_Module(f), (b,)),
        torch.jit.trace(f, (b,)),
        torch.export.export(_Module(f), (b,)).module(),
    ):
        torch.testing.assert_close(traced(2 * b), 2 * d @ b)
    with FakeTensorMode() as mode:
        assert f(mode.from_tensor(b)).shape == (M, K)
    with pytest.raises(UsageError):
        f(b.to("meta"))


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning")
@pytest.mark.parametrize("kernel", ["spmm", "sddmm"])
def test_traced_programs_follow_updates(kernel: str) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    a = dense().to_sparse_csr()
    f = embeddb.compile(a, kernel, k=K, config=ROWS)
    operands = tuple(leaf(*shape).detach() for shape in ((M, K), (N, K)))[kernel == "spmm" :]
    programs = [
        make_fx(f)(*operands),
        torch.jit.trace(_Module(f), operands),
        torch.export.export(_Module(f), operands).module(),
        torch.compile(_Module(f), backend="aot_eager"),
    ]
    before = [program(*operands) for program in programs]
    f.update(3 * a.values())
    for program, former in zip(programs, before, strict=True):
        torch.testing.assert_close(program(*operands), 3 * former)


#: Loads the programs of another process beside a handle of its own.
_LOADS = """
import sys
import torch, embeddb
f = embeddb.compile(torch.eye(14, 11).double().to_sparse_csr(), "spmm", k=3, config=sys.argv[3])
for load in (lambda: torch.export.load(sys.argv[1]).module(), lambda: torch.jit.load(sys.argv[2])):
    try:
        print("ran", load()(torch.ones(11, 3, dtype=torch.float64)).shape)
    except Exception as error:
        print("refused" if "in the process that traced the program" in str(error) else repr(error))
"""


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_saved_program_does_not_run_on_the_matrix_of_another_process(tmp_path: Path) -> None:
    f = embeddb.compile(dense().to_sparse_csr(), "spmm", k=K, config=ROWS)
    b = leaf(N, K).detach()
    exported, traced = tmp_path / "p.pt2", tmp_path / "p.ts"
    torch.export.save(torch.export.export(_Module(f), (b,)), exported)
    torch.jit.save(torch.jit.trace(_Module(f), (b,)), traced)
    torch.testing.assert_close(torch.export.load(exported).module()(b), f(b))
    code = [sys.executable, "-W", "ignore", "-c", _LOADS, exported, traced, ROWS]
    output = subprocess.run(code, check=True, capture_output=True, text=True, timeout=240).stdout
    assert output.split() == ["refused", "refused"]


def test_a_program_whose_handle_was_deleted_says_so() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    b = leaf(N, K).detach()
    program = make_fx(embeddb.compile(dense().to_sparse_csr(), "spmm", k=K, config=ROWS))(b)
    gc.collect()
    with pytest.raises(UsageError, match="handle was deleted"):
        program(b)


@pytest.mark.parametrize("narrow", ["bfloat16", "float16"])
def test_autocast_computes_in_the_handles_type(narrow: str) -> None:
    d = dense(torch.float32)
    f = embeddb.compile(d.to_sparse_csr(), "spmm", k=K, config=ROWS)
    s = embeddb.compile(d.to_sparse_csr(), "sddmm", k=K, config=ROWS)
    x = torch.randn(N, K, requires_grad=True)
    b, c = x.to(getattr(torch, narrow)), torch.randn(M, K).to(getattr(torch, narrow))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = f(b)
        assert result.dtype is torch.float32
        torch.testing.assert_close(result, f(b.detach().float()))
        assert torch.autograd.grad(result.sum(), x)[0].dtype is torch.float32
        torch.testing.assert_close(s(c, b), s(c.float(), b.float()))
        compiled = torch.compile(f, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(b.detach()), result.detach())
    with pytest.raises(UsageError, match=narrow):
        f(b)


def test_two_handles_in_one_compiled_function() -> None:
    d = dense()
    pair = [embeddb.compile(n * d.to_sparse_csr(), "spmm", k=K, config=ROWS) for n in (1, 2, 3)]
    b = torch.randn(N, K, dtype=torch.float64)
    compiled = torch.compile(lambda f, b: f(b), backend="aot_eager", fullgraph=True)
    for n, f in enumerate(pair, 1):
        torch.testing.assert_close(compiled(f, b), n * d @ b)
