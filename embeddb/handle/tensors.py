"""Handles for torch: a compiled sparse tensor with dense operands and results, and gradients."""

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
from embeddb.handle.tensor_products import HostProducts

if TYPE_CHECKING:
    from embeddb.handle.choice import Wanted

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
