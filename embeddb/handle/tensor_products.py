"""Products of a sparse tensor on the CPU, each a handle with its own answer."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import MatrixError, UsageError
from embeddb.handle.handle import Handle
from embeddb.handle.matrix import Matrix, matrix_of
from embeddb.handle.operators import PURPOSES, Products, no_tensor
from embeddb.kernels.forms import as_scipy

#: Compiler of a scipy matrix for one kernel (`spmm`, `spmv`, `sddmm`) with the caller's options;
#: the last argument is True for the product that the caller named.
Compile = Callable[[Any, str, bool], Handle]
_LAYOUTS = {torch.sparse_csr: "csr", torch.sparse_csc: "csc", torch.sparse_coo: "coo"}


class HostProducts(Products):
    """Products on the CPU, each a `Handle`, compiled on first use.

    `csr` is the matrix as sorted scipy CSR, `primary` the product that the caller named, `compiled`
    the others used so far.
    """

    def __init__(
        self,
        primary: Handle,
        order: tuple[NDArray[np.int64] | None, bool],
        compile_one: Compile,
        compiled: dict[str, Handle] | None = None,
    ) -> None:
        places = None if order[0] is None else torch.from_numpy(order[0])
        super().__init__(primary.op.name, places, order[1], torch.device("cpu"))
        self.primary = primary
        self.csr = primary.sparse()
        self._compile = compile_one
        self._handles = dict(compiled or {})
        if self.kernel != "sddmm":
            self._handles["along"] = primary
        self._lock = threading.Lock()
        self._turned: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, matrix: torch.Tensor, kernel: str, compile_one: Compile) -> HostProducts:
        csr, order, alone = sorted_csr(matrix)
        return cls(compile_one(csr, kernel, True), (order, alone), compile_one)

    def __copy__(self) -> HostProducts:
        with self._lock:
            compiled = {name: copy.copy(handle) for name, handle in self._handles.items()}
            primary = copy.copy(self.primary)
            return HostProducts(primary, self._order(), self._compile, compiled)

    def __reduce__(self) -> tuple[Any, ...]:
        now = copy.copy(self)
        others = {name: one for name, one in now._handles.items() if one is not now.primary}
        return HostProducts, (now.primary, now._order(), now._compile, others)

    def _order(self) -> tuple[NDArray[np.int64] | None, bool]:
        return None if self.order is None else self.order.numpy(), self.alone

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]
        m, n = self.csr.shape
        return m, n

    @property
    def nnz(self) -> int:  # type: ignore[override]
        return int(self.csr.nnz)

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        """Type of values, operands and results."""
        return torch.float64 if self.csr.dtype == np.float64 else torch.float32

    @property
    def config(self) -> Config | None:
        return self.primary.config

    @property
    def op(self) -> Op:
        return self.primary.op

    @property
    def answer(self) -> str:
        return self.primary.answer

    def why(self) -> str:
        with self._lock:
            handles = dict(self._handles)
        lines = [self.primary.why()]
        for name, words in PURPOSES.items():
            if handles.get(name, self.primary) is not self.primary:
                lines.append(f"for {words}:\n{handles[name].why()}")
        return "\n".join(lines)

    def own(self) -> torch.Tensor:
        return torch.from_numpy(self.csr.data)

    def multiply(
        self, b: torch.Tensor, values: torch.Tensor | None, transposed: bool
    ) -> torch.Tensor:
        handle = self.product(transposed)
        if values is not None:
            array = array_of(values, "values")
            handle = handle.with_values(array[self._transposing()] if transposed else array)
        return torch.from_numpy(handle(array_of(b, "B")))

    def dot(self, c: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        arrays = (array_of(c, "C"), array_of(b, "B"))
        if self.kernel == "spmv":
            arrays = (arrays[0].reshape(-1, 1), arrays[1].reshape(-1, 1))
        return torch.from_numpy(self.dots()(*arrays))

    def straight(
        self,
        operands: tuple[torch.Tensor, ...],
        values: torch.Tensor | None,
        out: torch.Tensor | None,
    ) -> torch.Tensor:
        handle = self.primary
        if values is not None:
            handle = handle.with_values(array_of(values, "values"))
        arrays = [array_of(one, "an operand") for one in operands]
        if out is None:
            return torch.from_numpy(handle(*arrays))
        array = array_of(out, "out")
        handle(*arrays, out=array)
        return out.copy_(torch.from_numpy(array)) if out.is_neg() else out  # a copy if negated

    def product(self, transposed: bool) -> Handle:
        """The handle of A B, or Aᵀ B."""
        kernel = "spmv" if self.kernel == "spmv" else "spmm"
        if transposed:
            return self._handle("across", kernel, lambda: self.csr.T.tocsr())
        return self._handle("along", kernel, lambda: self.csr)

    def dots(self) -> Handle:
        """The handle of dot products at the non-zeros: SDDMM with ones in A."""

        def ones() -> Any:
            pattern = self.csr.copy()
            pattern.data[:] = 1
            return pattern

        return self._handle("dots", "sddmm", ones)

    def update(self, values: torch.Tensor) -> None:
        if values.layout is torch.strided:
            matrix = self.csr.copy()
            matrix.data = array_of(values, "values").copy()
        else:
            matrix = sorted_csr(values)[0]
        with self._lock:
            self.primary.update(matrix)
            self.csr = self.primary.sparse()
            if self._handles.get("along", self.primary) is not self.primary:
                self._handles["along"].update(self.csr)
            if "across" in self._handles:
                self._handles["across"].update(self.csr.T.tocsr())

    def sparse(self, values: torch.Tensor | None) -> torch.Tensor:
        csr = self.csr
        own = torch.from_numpy(csr.data.copy()) if values is None else values
        places = (csr.indptr, csr.indices)
        pointers, indices = (torch.from_numpy(one.astype(np.int64)) for one in places)
        return torch.sparse_csr_tensor(pointers, indices, own, csr.shape, check_invariants=False)

    def _handle(self, name: str, kernel: str, matrix: Callable[[], Any]) -> Handle:
        with self._lock:
            if name not in self._handles:
                self._handles[name] = self._compile(matrix(), kernel, False)
            return self._handles[name]

    def _transposing(self) -> NDArray[np.int64]:
        """Positions in `csr` of the values in the transpose's sorted CSR."""
        if self._turned is None:
            parts = (np.arange(self.csr.nnz), self.csr.indices, self.csr.indptr)
            self._turned = type(self.csr)(parts, shape=self.csr.shape).T.tocsr().data
        return self._turned


def sorted_csr(matrix: torch.Tensor) -> tuple[Any, NDArray[np.int64] | None, bool]:
    """A sparse tensor as a scipy CSR array with sorted indices and no duplicates; positions of the
    tensor's values in it (None: the same order); True if values alone have an order."""
    from scipy import sparse

    if not isinstance(matrix, torch.Tensor) or matrix.layout not in _LAYOUTS:
        layout = matrix.layout if isinstance(matrix, torch.Tensor) else type(matrix).__name__
        raise UsageError(f"A is {layout}: a sparse tensor in CSR, CSC or COO is needed")
    if matrix.device.type != "cpu" or matrix.dim() != 2 or matrix.dense_dim():
        raise UsageError(
            f"A is a {matrix.dim()}-dimensional tensor on {matrix.device}: "
            "kernels take matrices on the CPU"
        )
    kind = _LAYOUTS[matrix.layout]
    if kind == "coo":  # as the caller ordered it: coalescing sorts
        places: Any = tuple(matrix._indices().numpy())
    elif kind == "csr":
        places = (matrix.col_indices().numpy(), matrix.crow_indices().numpy())
    else:
        places = (matrix.row_indices().numpy(), matrix.ccol_indices().numpy())
    values = array_of(matrix._values() if kind == "coo" else matrix.values(), "A")
    make = {"csr": sparse.csr_array, "csc": sparse.csc_array, "coo": sparse.coo_array}[kind]

    def as_matrix(data: NDArray[Any]) -> Matrix:
        parts = (data, places) if kind == "coo" else (data, *places)
        try:
            return matrix_of(make(parts, shape=tuple(matrix.shape)))
        except ValueError as error:
            raise MatrixError(f"A is damaged: {error}") from None

    own = as_matrix(values)
    csr = as_scipy(own.form())
    if own.pattern.nnz != values.size:
        return csr, None, False
    order = as_matrix(np.arange(values.size, dtype=np.float64)).values.astype(np.int64)
    return csr, None if (np.diff(order) == 1).all() else order, True


def array_of(tensor: Any, name: str) -> NDArray[Any]:
    """The tensor's memory as an array; a copy if its negative bit is set."""
    if not isinstance(tensor, torch.Tensor):
        raise no_tensor(name, tensor)
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        raise UsageError(f"{name} is {tensor.layout} on {tensor.device}: dense, on the CPU")
    if tensor.dtype not in (torch.float32, torch.float64):
        raise UsageError(f"{name} holds {tensor.dtype}: kernels compute in float32 and float64")
    array: NDArray[Any] = tensor.numpy(force=True)  # without gradient, negated where due
    return array
