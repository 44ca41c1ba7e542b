"""The three products of a sparse tensor's pattern, each the gradient of the others.

They are the products with A and with Aᵀ, and the dot products at the non-zeros: each is a handle of
its own, with an answer of its own, made when it is first asked for. They are custom operators
(`torch.ops.embeddb`), which torch.compile calls without looking inside.
"""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from embeddb.core.errors import MatrixError, UsageError
from embeddb.handle.handle import Handle
from embeddb.handle.matrix import Matrix, matrix_of
from embeddb.kernels.forms import as_scipy

#: What compiles a scipy matrix for one kernel (`spmm`, `spmv`, `sddmm`), as the caller wished; the
#: last says whether it is the one that was asked for.
Compile = Callable[[Any, str, bool], Handle]
_LAYOUTS = {torch.sparse_csr: "csr", torch.sparse_csc: "csc", torch.sparse_coo: "coo"}
_keys = itertools.count()


#: What handles of each name compute.
_FOR = {
    "along": "products with A",
    "across": "products with Aᵀ, the gradient by B",
    "dots": "dot products at the non-zeros, the gradient by values",
}


class Products:
    """The handles of one pattern, and the order of the caller's values.

    `csr` is the matrix as sorted scipy CSR; `order` int64[nnz] where the caller's values lie in
    that (None: as they are), `alone` whether values by themselves have an order. `asked` is the
    product that the caller named, `compiled` the others that were needed so far.
    """

    def __init__(
        self,
        asked: Handle,
        order: tuple[NDArray[np.int64] | None, bool],
        compile_one: Compile,
        compiled: dict[str, Handle] | None = None,
    ) -> None:
        self.asked, self.kernel = asked, asked.op.kernel
        self.order, self.alone = order
        self.csr = asked.sparse()
        self._compile = compile_one
        self._made = dict(compiled or {})
        if self.kernel != "sddmm":
            self._made["along"] = asked
        self.key = next(_keys)
        self._lock = threading.Lock()
        self._turned: NDArray[np.int64] | None = None
        _known[self.key] = self

    @classmethod
    def of(cls, matrix: torch.Tensor, kernel: str, compile_one: Compile) -> Products:
        csr, order, alone = sorted_csr(matrix)
        return cls(compile_one(csr, kernel, True), (order, alone), compile_one)

    def __copy__(self) -> Products:
        with self._lock:
            compiled = {name: copy.copy(handle) for name, handle in self._made.items()}
            asked = copy.copy(self.asked)
            return Products(asked, (self.order, self.alone), self._compile, compiled)

    def __reduce__(self) -> tuple[Any, ...]:
        now = copy.copy(self)
        others = {name: one for name, one in now._made.items() if one is not now.asked}
        order = None if now.order is None else np.asarray(now.order)
        return Products, (now.asked, (order, now.alone), now._compile, others)

    @property
    def dtype(self) -> torch.dtype:
        """Of values, operands and results."""
        return torch.float64 if self.csr.dtype == np.float64 else torch.float32

    def product(self, transposed: bool) -> Handle:
        """A B, or Aᵀ B."""
        kernel = "spmv" if self.kernel == "spmv" else "spmm"
        if transposed:
            return self._handle("across", kernel, lambda: self.csr.T.tocsr())
        return self._handle("along", kernel, lambda: self.csr)

    def dots(self) -> Handle:
        """The dot products at the non-zeros: SDDMM where A holds ones."""

        def ones() -> Any:
            made = self.csr.copy()
            made.data[:] = 1
            return made

        return self._handle("dots", "sddmm", ones)

    def others(self) -> list[tuple[str, Handle]]:
        """What was compiled beside what was asked for, and what each is for."""
        with self._lock:
            made = dict(self._made)
        return [
            (_FOR[name], made[name]) for name in _FOR if made.get(name, self.asked) != self.asked
        ]

    def in_csr(self, values: torch.Tensor) -> torch.Tensor:
        """The caller's values dtype[nnz] in the order of `csr`."""
        if not self.alone:
            raise UsageError(
                "A had duplicates: its values alone have no order",
                hint="A.coalesce() of a COO tensor has one",
            )
        if tuple(values.shape) != (self.csr.nnz,):
            raise UsageError(f"values has the shape {tuple(values.shape)}, A has {self.csr.nnz}")
        return values if self.order is None else values[torch.from_numpy(self.order)]

    def with_values(self, values: torch.Tensor | None, transposed: bool) -> Handle:
        """`product` with values dtype[nnz] in the order of `csr`, or with A's own."""
        handle = self.product(transposed)
        if values is None:
            return handle
        array = array_of(values, "values")
        return handle.with_values(array[self._transposing()] if transposed else array)

    def update(self, matrix: Any) -> None:
        """Other values, of a scipy matrix, for all that are made or still to be made."""
        with self._lock:
            self.asked.update(matrix)
            self.csr = self.asked.sparse()
            if self._made.get("along", self.asked) is not self.asked:
                self._made["along"].update(self.csr)
            if "across" in self._made:
                self._made["across"].update(self.csr.T.tocsr())

    def _handle(self, name: str, kernel: str, matrix: Callable[[], Any]) -> Handle:
        with self._lock:
            if name not in self._made:
                self._made[name] = self._compile(matrix(), kernel, False)
            return self._made[name]

    def _transposing(self) -> NDArray[np.int64]:
        """Where in `csr` each value of the transpose's sorted CSR lies."""
        if self._turned is None:
            parts = (np.arange(self.csr.nnz), self.csr.indices, self.csr.indptr)
            self._turned = type(self.csr)(parts, shape=self.csr.shape).T.tocsr().data
        return self._turned


_known: WeakValueDictionary[int, Products] = WeakValueDictionary()


def _products(key: int) -> Products:
    """Raises: KeyError if the handle is gone. `key` is a symbol where torch.compile meets a second
    handle."""
    return _known[int(key)]


@torch.library.custom_op("embeddb::product", mutates_args=())
def product(
    b: torch.Tensor, values: torch.Tensor | None, key: int, transposed: bool
) -> torch.Tensor:
    """A B, or Aᵀ B, of the pattern `key`; b dtype[n,k] or dtype[n], values dtype[nnz]."""
    handle = _products(key).with_values(values, transposed)
    return torch.from_numpy(handle(array_of(b, "B")))


@torch.library.custom_op("embeddb::dots", mutates_args=())
def dots(c: torch.Tensor, b: torch.Tensor, key: int) -> torch.Tensor:
    """dtype[nnz]: the dot products of rows of c and b at the non-zeros of the pattern `key`."""
    arrays = (array_of(c, "C"), array_of(b, "B"))
    products = _products(key)
    if products.kernel == "spmv":
        arrays = (arrays[0].reshape(-1, 1), arrays[1].reshape(-1, 1))
    return torch.from_numpy(products.dots()(*arrays))


@product.register_fake
def _(b: torch.Tensor, values: Any, key: int, transposed: bool) -> torch.Tensor:
    products = _products(key)
    m, n = products.csr.shape
    return torch.empty((n if transposed else m, *b.shape[1:]), dtype=products.dtype)


@dots.register_fake
def _(c: torch.Tensor, b: torch.Tensor, key: int) -> torch.Tensor:
    products = _products(key)
    return torch.empty((products.csr.nnz,), dtype=products.dtype)


def _keep_product(ctx: Any, inputs: Any, output: Any) -> None:
    b, values, key, ctx.transposed = inputs
    ctx.products = _known.get(int(key))  # a graph may outlive the handle
    ctx.key, ctx.given = key, values is not None
    ctx.save_for_backward(b, *(() if values is None else (values,)))


def _product_gradients(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    b, *rest = ctx.saved_tensors
    values = rest[0] if ctx.given else None
    for_b = for_values = None
    if ctx.needs_input_grad[0]:
        for_b = product(grad, values, ctx.key, not ctx.transposed)
    if ctx.needs_input_grad[1]:
        for_values = dots(b, grad, ctx.key) if ctx.transposed else dots(grad, b, ctx.key)
    return for_b, for_values, None, None


def _keep_dots(ctx: Any, inputs: Any, output: Any) -> None:
    c, b, ctx.key = inputs
    ctx.products = _known.get(int(ctx.key))
    ctx.save_for_backward(c, b)


def _dots_gradients(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    c, b = ctx.saved_tensors
    for_c = product(b, grad, ctx.key, False) if ctx.needs_input_grad[0] else None
    for_b = product(c, grad, ctx.key, True) if ctx.needs_input_grad[1] else None
    return for_c, for_b, None


product.register_autograd(_product_gradients, setup_context=_keep_product)
dots.register_autograd(_dots_gradients, setup_context=_keep_dots)


def _one_by_one(op: Any) -> None:
    """Under `vmap`: a call for each of the batch, stacked."""

    def batched(info: Any, in_dims: tuple[int | None, ...], *operands: Any) -> tuple[Any, int]:
        def nth(n: int) -> list[Any]:
            each = zip(operands, in_dims, strict=True)
            return [one if dim is None else one.select(dim, n) for one, dim in each]

        return torch.stack([op(*nth(n)) for n in range(info.batch_size)]), 0

    op.register_vmap(batched)


_one_by_one(product)
_one_by_one(dots)


def sorted_csr(matrix: torch.Tensor) -> tuple[Any, NDArray[np.int64] | None, bool]:
    """A sparse tensor as a scipy CSR array with sorted indices and no duplicates; where the
    tensor's values lie in that order (None: as they are); whether values alone have an order."""
    from scipy import sparse

    if not isinstance(matrix, torch.Tensor) or matrix.layout not in _LAYOUTS:
        told = matrix.layout if isinstance(matrix, torch.Tensor) else type(matrix).__name__
        raise UsageError(f"A is {told}: a sparse tensor in CSR, CSC or COO is needed")
    if matrix.device.type != "cpu" or matrix.dim() != 2 or matrix.dense_dim():
        raise UsageError(
            f"A is a {matrix.dim()}-dimensional tensor on {matrix.device}: "
            "kernels take matrices on the CPU"
        )
    kind = _LAYOUTS[matrix.layout]
    if kind == "coo":
        matrix = matrix.coalesce()
        places: Any = tuple(matrix.indices().numpy())
    elif kind == "csr":
        places = (matrix.col_indices().numpy(), matrix.crow_indices().numpy())
    else:
        places = (matrix.row_indices().numpy(), matrix.ccol_indices().numpy())
    values = array_of(matrix.values(), "A")
    make = {"csr": sparse.csr_array, "csc": sparse.csc_array, "coo": sparse.coo_array}[kind]

    def held(data: NDArray[Any]) -> Matrix:
        parts = (data, places) if kind == "coo" else (data, *places)
        try:
            return matrix_of(make(parts, shape=tuple(matrix.shape)))
        except ValueError as error:
            raise MatrixError(f"A is damaged: {error}") from None

    own = held(values)
    csr = as_scipy(own.form())
    if own.pattern.nnz != values.size:
        return csr, None, False
    order = held(np.arange(values.size, dtype=np.float64)).values.astype(np.int64)
    return csr, None if (np.diff(order) == 1).all() else order, True


def array_of(tensor: Any, name: str) -> NDArray[Any]:
    """The tensor's own memory as an array."""
    if not isinstance(tensor, torch.Tensor):
        raise UsageError(
            f"{name} is a {type(tensor).__name__}: A was a tensor, so are operands",
            hint="torch.from_numpy(B) shares the memory",
        )
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        raise UsageError(f"{name} is {tensor.layout} on {tensor.device}: dense, on the CPU")
    if tensor.dtype not in (torch.float32, torch.float64):
        raise UsageError(f"{name} holds {tensor.dtype}: kernels compute in float32 and float64")
    array: NDArray[Any] = tensor.detach().numpy()
    return array
