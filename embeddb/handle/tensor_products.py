"""Products of a sparse tensor on the CPU, each a handle with its own answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embeddb.core.errors import MatrixError, UsageError
from embeddb.handle.choice import Wanted
from embeddb.handle.handle import Handle
from embeddb.handle.matrix import Matrix, matrix_of, operand
from embeddb.handle.operators import Products, name_of, no_tensor
from embeddb.kernels.forms import as_scipy

_LAYOUTS = {torch.sparse_csr: "csr", torch.sparse_csc: "csc", torch.sparse_coo: "coo"}


class HostProducts(Products[Handle]):
    """Products on the CPU, each a `Handle` by `compiler`, which is `embeddb.compile`. `csr` is the
    matrix as sorted scipy CSR."""

    def __init__(
        self,
        compiled: dict[str, Handle],
        order: tuple[NDArray[np.int64] | None, bool],
        wanted: Wanted,
        compiler: Callable[..., Any],
    ) -> None:
        places = None if order[0] is None else torch.from_numpy(order[0])
        super().__init__(wanted, places, order[1], torch.device("cpu"), compiled)
        self._compiler = compiler
        self.csr = self.named.sparse()
        self.shape, self.nnz = self.csr.shape, self.csr.nnz
        self.dtype = torch.float64 if self.csr.dtype == np.float64 else torch.float32
        self._turned: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, matrix: torch.Tensor, wanted: Wanted, compiler: Callable[..., Any]) -> HostProducts:
        csr, order, alone = sorted_csr(matrix)
        handle = _handle(compiler, csr, wanted.kernel, wanted, wanted.config)
        return cls({name_of(wanted.kernel): handle}, (order, alone), wanted, compiler)

    def __copy__(self) -> HostProducts:
        order = None if self.order is None else self.order.numpy()
        return HostProducts(self._copies(), (order, self.alone), self._wanted, self._compiler)

    def __reduce__(self) -> tuple[Any, ...]:
        order = None if self.order is None else self.order.numpy()
        return HostProducts, (self._copies(), (order, self.alone), self._wanted, self._compiler)

    def own(self) -> torch.Tensor:
        return torch.from_numpy(self.csr.data)

    def multiply(
        self, b: torch.Tensor, values: torch.Tensor | None, transposed: bool
    ) -> torch.Tensor:
        handle = self._product("across" if transposed else "along")
        if values is not None:
            array = array_of(values, "values")
            handle = handle.with_values(array[self._transposing()] if transposed else array)
        return torch.from_numpy(handle(array_of(b, "B")))

    def dot(self, c: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        arrays = (array_of(c, "C"), array_of(b, "B"))
        if self.kernel == "spmv":
            arrays = (arrays[0].reshape(-1, 1), arrays[1].reshape(-1, 1))
        return torch.from_numpy(self._product("dots")(*arrays))

    def straight(
        self,
        operands: tuple[torch.Tensor, ...],
        values: torch.Tensor | None,
        out: torch.Tensor | None,
    ) -> torch.Tensor:
        handle = self._compiled[self._name]
        if values is not None:
            handle = handle.with_values(array_of(values, "values"))
        arrays = [array_of(one, "an operand") for one in operands]
        if out is None:
            return torch.from_numpy(handle(*arrays))
        array = array_of(out, "out")
        handle(*arrays, out=array)
        return out.copy_(torch.from_numpy(array)) if out.is_neg() else out  # a copy if negated

    def update(self, values: torch.Tensor) -> None:
        if values.layout is torch.strided:
            matrix = self.csr.copy()
            matrix.data = array_of(values, "values").copy()
        else:
            matrix = sorted_csr(values)[0]
        operand(matrix.data, "values", matrix.data.shape, self.csr.dtype)  # refuses a wider type
        with self._lock:
            self.named.update(matrix)
            self.csr = self.named.sparse()
            for name, handle in self._compiled.items():
                if name in ("along", "across") and name != self._name:
                    handle.update(self.csr if name == "along" else self.csr.T.tocsr())

    def sparse(self, values: torch.Tensor | None) -> torch.Tensor:
        csr = self.csr
        own = torch.from_numpy(csr.data.copy()) if values is None else values
        places = (csr.indptr, csr.indices)
        pointers, indices = (torch.from_numpy(one.astype(np.int64)) for one in places)
        return torch.sparse_csr_tensor(pointers, indices, own, csr.shape, check_invariants=False)

    def _compile(self, name: str) -> Handle:
        if name == "dots":  # the dot products alone: SDDMM with ones in A
            ones = self.csr.copy()
            ones.data[:] = 1
            return _handle(self._compiler, ones, "sddmm", self._wanted)
        matrix = self.csr.T.tocsr() if name == "across" else self.csr
        kernel = "spmv" if self.kernel == "spmv" else "spmm"
        return _handle(self._compiler, matrix, kernel, self._wanted)

    def _transposing(self) -> NDArray[np.int64]:
        """Positions in `csr` of the values in the transpose's sorted CSR."""
        if self._turned is None:
            parts = (np.arange(self.csr.nnz), self.csr.indices, self.csr.indptr)
            self._turned = type(self.csr)(parts, shape=self.csr.shape).T.tocsr().data
        return self._turned


def _handle(
    compiler: Callable[..., Any], csr: Any, kernel: str, wanted: Wanted, config: Any = None
) -> Handle:
    """One product with a scipy matrix, by the caller's options."""
    width = None if kernel == "spmv" else 1 if wanted.kernel == "spmv" else wanted.k
    options = asdict(wanted.options)
    handle = compiler(csr, kernel, k=width, config=config, db=wanted.db, **options)
    assert isinstance(handle, Handle)
    return handle


def sorted_csr(matrix: torch.Tensor) -> tuple[Any, NDArray[np.int64] | None, bool]:
    """A sparse tensor as a scipy CSR array with sorted indices and no duplicates; positions of the
    tensor's values in it (None: the same order); True if values alone have an order."""
    from scipy import sparse

    if not isinstance(matrix, torch.Tensor) or matrix.layout not in _LAYOUTS:
        layout = matrix.layout if isinstance(matrix, torch.Tensor) else type(matrix).__name__
        raise UsageError(
            f"A is {layout}: a sparse tensor in CSR, CSC or COO is needed",
            hint="A.to_sparse_csr() makes one of a dense tensor",
        )
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
