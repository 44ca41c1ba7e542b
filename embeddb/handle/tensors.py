"""Handles for torch: a compiled sparse tensor with dense operands and results, and gradients; and
its products on the CPU, each a handle with its own answer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _functorch as functorch
from torch.autograd import forward_ad

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.handle.operators import Products, dots, no_tensor, weights

if TYPE_CHECKING:
    from embeddb.handle.choice import Wanted
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import MatrixError
from embeddb.handle.choice import Wanted
from embeddb.handle.handle import Handle
from embeddb.handle.matrix import Matrix, matrix_of, operand
from embeddb.handle.operators import name_of
from embeddb.kernels.forms import as_scipy

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_NO_TRANSFORM = "{} cannot look into a compiled kernel"
_BACKWARD = "torch.autograd.grad and backward() go through it, and so does vmap"


class TensorHandle:
    """The result of `embeddb.compile` for a sparse tensor of torch: a `Handle` for tensors.

    `f(B)` is A B, for SDDMM `f(C, B)` are the values of A ∘ (C Bᵀ), in A's order. Both are
    differentiable in B and C, any number of times, and in `values` if given. Copied and pickled as
    `Handle`, with the products that gradients have used so far.
    """

    __name__ = "TensorHandle"  # `torch.jit.trace` requires one

    def __init__(self, products: Products[Any]) -> None:
        self._products = products
        self._key, self._stamp, self._dtype = products.key, products.stamp, products.dtype
        self._device = products.device.type
        self._two = products.kernel == "sddmm"
        self._quick = products.quick()

    def __call__(
        self,
        dense: torch.Tensor,
        other: torch.Tensor | None = None,
        *,
        values: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the product, into `out` if given (without gradient). `values` dtype[nnz], in A's
        order, replace A's in this call only, at the cost of a copy. Under autocast, operands of a
        narrower type are converted to the handle's, which is also that of the result.

        Raises: UsageError as `Handle` does, for other objects than tensors of A's device, and for
        transforms of `torch.func` other than `vmap`.
        """
        quick, compiling = self._quick, torch.compiler.is_compiling()
        if quick is not None and values is None and not compiling:
            result = quick(dense, other, out)
            if result is not None:
                return result if out is None else _written(out)
        if torch.is_autocast_enabled(self._device):
            dense, other, values = (self._widened(one) for one in (dense, other, values))
        operands = [one for one in (dense, other, values) if one is not None]
        for one in operands:
            if not isinstance(one, torch.Tensor):
                raise no_tensor("an operand", one)
        if self._two is (other is None):
            if self._two:
                raise UsageError("SDDMM takes two dense operands", hint="f(C, B) for A ∘ (C Bᵀ)")
            raise UsageError(f"{self._products.kernel} takes one dense operand")
        gradients = torch.is_grad_enabled() and any(
            getattr(one, "requires_grad", False) for one in operands
        )
        traced = compiling or is_traced(operands)
        if compiling:
            plain = out is not None
        elif not traced:
            plain = out is not None or (values is None and not gradients)
        elif out is not None:
            raise UsageError("out= cannot be traced", hint="call without it")
        else:
            plain = False
        if plain:
            return self._straight(dense, other, values, out, gradients)
        own = None if values is None else self._products.in_csr(values)
        if other is None:
            if own is None and compiling:
                own = self._stamp  # torch checks its version before the graph's backward
            computed: torch.Tensor = torch.ops.embeddb.product(dense, own, self._key, False)
            return computed
        if own is None:
            # A traced program reads the values when it runs; elsewhere an operator costs 8 us.
            own = weights(dense.detach(), self._key) if traced else self._products.own().clone()
        computed = own * dots(dense, other, self._key)
        return self._products.in_own(computed)

    def __copy__(self) -> TensorHandle:
        return TensorHandle(copy.copy(self._products))

    def __deepcopy__(self, _: dict[int, object]) -> TensorHandle:
        return copy.copy(self)

    def __reduce__(self) -> tuple[type[TensorHandle], tuple[Products[Any]]]:
        return TensorHandle, (self._products,)

    @property
    def config(self) -> Config | None:
        """The current configuration; None for a library."""
        config: Config | None = self._products.named.config
        return config

    @property
    def op(self) -> Op:
        """The operation, with width and value type."""
        op: Op = self._products.named.op
        return op

    @property
    def answer(self) -> str:
        """Id of the stored answer, empty if there is none."""
        answer: str = self._products.named.answer
        return answer

    def update(self, values: torch.Tensor) -> None:
        """Replace the values of the matrix: a sparse tensor of the same pattern, or dtype[nnz] in
        A's order. They are copied. A backward through an earlier product by A's values then raises.

        Raises: UsageError for another pattern, shape or type.
        """
        if not isinstance(values, torch.Tensor):
            raise no_tensor("values", values)
        detached = values.detach()
        plain = detached.layout is torch.strided
        self._products.update(self._products.in_csr(detached) if plain else detached)
        _written(self._stamp)

    def sparse(self, values: torch.Tensor | None = None) -> torch.Tensor:
        """A sorted sparse CSR tensor of A's pattern, with `values` or A's own."""
        return self._products.sparse(None if values is None else self._products.in_csr(values))

    def why(self) -> str:
        """The current code of each product used so far and the reasons for it, a line each."""
        return self._products.why()

    def __repr__(self) -> str:
        m, n = self._products.shape
        by = "a library" if self.config is None else str(self.config)
        shape = f"{m}x{n}, nnz={self._products.nnz}"
        return f"TensorHandle({self.op}, {shape}, {self._products.device}, {by})"

    def _widened(self, tensor: Any) -> Any:
        narrow = getattr(tensor, "dtype", None) in (torch.bfloat16, torch.float16)
        return tensor.to(self._dtype) if narrow else tensor

    def _straight(
        self,
        dense: torch.Tensor,
        other: torch.Tensor | None,
        values: torch.Tensor | None,
        out: torch.Tensor | None,
        gradients: bool,
    ) -> torch.Tensor:
        followed = gradients or (torch.is_grad_enabled() and getattr(out, "requires_grad", False))
        if followed and out is not None:
            raise UsageError("out takes no gradient", hint="call under torch.no_grad()")
        products = self._products
        in_csr = None if values is None else products.in_csr(values.detach())
        operands = (dense,) if other is None else (dense, other)
        if not self._two or products.order is None:
            result = products.straight(operands, in_csr, out)
            return result if out is None else _written(out)
        result = products.in_own(products.straight(operands, in_csr, None))
        return result if out is None else out.copy_(result)


def _written(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, whose new content autograd is to notice."""
    torch._C._increment_version((tensor,))
    return tensor


def is_traced(tensors: Sequence[Any]) -> bool:
    """True if torch traces operations on these tensors (`vmap`, fake tensors, `make_fx`,
    `torch.jit.trace`), so that they must be torch operators, not direct kernel calls.

    Raises: UsageError for derivatives that custom operators do not support.
    """
    if forward_ad._current_level >= 0 and any(
        forward_ad.unpack_dual(one).tangent is not None  # type: ignore[no-untyped-call] # torch's
        for one in tensors
        if isinstance(one, torch.Tensor)
    ):
        raise UsageError(_NO_TRANSFORM.format("forward-mode derivatives"), hint=_BACKWARD)
    wrapped = False
    for one in tensors:
        while isinstance(one, torch.Tensor) and functorch.is_functorch_wrapped_tensor(one):
            if functorch.is_gradtrackingtensor(one):
                raise UsageError(
                    _NO_TRANSFORM.format("torch.func's grad, vjp, jvp and what builds on them"),
                    hint=_BACKWARD,
                )
            wrapped, one = True, functorch.get_unwrapped(one)
    return (
        wrapped
        or torch._C._is_tracing()
        or any(type(one) not in _PLAIN for one in tensors if isinstance(one, torch.Tensor))
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
    )


def tensor_handle(
    matrix: torch.Tensor, wanted: Wanted, compiler: Callable[..., Any]
) -> TensorHandle:
    """A handle for a sparse tensor (CSR, CSC or COO) on a GPU, or on the CPU, with products by
    `compiler`, which is `embeddb.compile`.

    Raises: UsageError for another tensor, or one that requires a gradient.
    """
    if getattr(matrix, "requires_grad", False):
        raise UsageError(
            "A requires a gradient, which a handle supports for values only",
            hint="compile A.detach(), then f(B, values=A.values())",
        )
    if matrix.device.type == "cuda":
        from embeddb.handle.cuda import CudaProducts

        return TensorHandle(CudaProducts.of(matrix, wanted))
    return TensorHandle(HostProducts.of(matrix, wanted, compiler))


# -- products on the CPU ---------------------------------------------------------------------------


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
