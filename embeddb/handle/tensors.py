"""Handles for torch: a sparse tensor compiled, dense tensors in and out, with gradients."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch._C import _functorch as functorch
from torch.autograd import forward_ad

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.handle.tensor_products import Compile, Products, array_of, dots, sorted_csr

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_NO_TRANSFORM = "{} cannot look into a compiled kernel"
_BACKWARD = "torch.autograd.grad and backward() go through it, and so does vmap"


class TensorHandle:
    """What `embeddb.compile` returns for a sparse tensor of torch: `Handle`, for tensors.

    `f(B)` is A B, for SDDMM `f(C, B)` are the values of A ∘ (C Bᵀ), in the order of A's own. Both
    are differentiable in B and C, any number of times, and in `values` where they are given. Copied
    and pickled as `Handle`, with the products that gradients needed so far.
    """

    def __init__(self, products: Products) -> None:
        self._products = products
        self._key, self._dtype = products.key, products.dtype
        self._two = products.kernel == "sddmm"
        self._own = torch.from_numpy(products.csr.data) if self._two else None

    def __call__(
        self,
        dense: torch.Tensor,
        other: torch.Tensor | None = None,
        *,
        values: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The result, in `out` if that is given, which takes no gradient. `values` dtype[nnz], in
        the order of A's, stand for A's own in this call only, and cost a copy. Under autocast
        operands of a narrower type are computed with in the handle's, as the result is.

        Raises: UsageError as `Handle` does, for what is no tensor of the CPU, and for transforms of
        `torch.func` other than `vmap`.
        """
        if torch.is_autocast_enabled("cpu"):
            dense, other, values = (self._widened(one) for one in (dense, other, values))
        given = [one for one in (dense, other, values) if one is not None]
        gradients = torch.is_grad_enabled() and any(
            getattr(one, "requires_grad", False) for one in given
        )
        if torch.compiler.is_compiling():
            plain = out is not None
        elif not is_traced(given):
            plain = out is not None or (values is None and not gradients)
        elif out is not None:
            raise UsageError("out= cannot be traced", hint="call without it")
        else:
            plain = False
        if plain:
            return self._straight(dense, other, values, out, gradients)
        own = None if values is None else self._products.in_csr(values)
        if not self._two:
            if other is not None:
                raise UsageError(f"{self._products.kernel} takes one dense operand")
            made: torch.Tensor = torch.ops.embeddb.product(dense, own, self._key, False)
            return made
        if other is None:
            raise UsageError("SDDMM takes two dense operands", hint="f(C, B) for A ∘ (C Bᵀ)")
        return self._in_own((self._own if own is None else own) * dots(dense, other, self._key))

    def __copy__(self) -> TensorHandle:
        return TensorHandle(copy.copy(self._products))

    def __deepcopy__(self, _: dict[int, object]) -> TensorHandle:
        return copy.copy(self)

    def __reduce__(self) -> tuple[type[TensorHandle], tuple[Products]]:
        return TensorHandle, (self._products,)

    @property
    def config(self) -> Config | None:
        """As `Handle.config`."""
        return self._products.asked.config

    @property
    def op(self) -> Op:
        """As `Handle.op`."""
        return self._products.asked.op

    @property
    def answer(self) -> str:
        """As `Handle.answer`."""
        return self._products.asked.answer

    def update(self, values: torch.Tensor) -> None:
        """Other values of the same matrix: a sparse tensor of the same pattern, or dtype[nnz] in
        the order of A's. They are copied.

        Raises: UsageError for another pattern, shape or type.
        """
        if values.layout is torch.strided:
            matrix = self._products.csr.copy()
            matrix.data = array_of(self._products.in_csr(values.detach()), "values").copy()
        else:
            matrix = sorted_csr(values.detach())[0]
        self._products.update(matrix)
        if self._two:
            self._own = torch.from_numpy(self._products.csr.data)

    def sparse(self, values: torch.Tensor | None = None) -> torch.Tensor:
        """A sparse CSR tensor of A's pattern, sorted, with these values, or with A's."""
        csr = self._products.csr
        own = torch.from_numpy(csr.data.copy()) if values is None else self._products.in_csr(values)
        places = (csr.indptr, csr.indices)
        pointers, indices = (torch.from_numpy(one.astype(np.int64)) for one in places)
        return torch.sparse_csr_tensor(pointers, indices, own, csr.shape, check_invariants=False)

    def why(self) -> str:
        """As `Handle.why`, and the same of each product that a gradient needed so far."""
        told = [self._products.asked.why()]
        told += [f"for {what}:\n{handle.why()}" for what, handle in self._products.others()]
        return "\n".join(told)

    def __repr__(self) -> str:
        return f"Tensor{self._products.asked!r}"

    def _widened(self, given: Any) -> Any:
        narrow = getattr(given, "dtype", None) in (torch.bfloat16, torch.float16)
        return given.to(self._dtype) if narrow else given

    def _straight(
        self,
        dense: torch.Tensor,
        other: torch.Tensor | None,
        values: torch.Tensor | None,
        out: torch.Tensor | None,
        gradients: bool,
    ) -> torch.Tensor:
        if gradients and out is not None:
            raise UsageError("out takes no gradient", hint="call under torch.no_grad()")
        handle = self._products.asked
        if values is not None:
            handle = handle.with_values(array_of(self._products.in_csr(values.detach()), "values"))
        arrays = [array_of(one, "an operand") for one in (dense, other) if one is not None]
        if out is None or (self._two and self._products.order is not None):
            made = self._in_own(torch.from_numpy(handle(*arrays)))
            if out is None:
                return made
            out.copy_(made)
            return out
        handle(*arrays, out=array_of(out, "out"))
        return out

    def _in_own(self, made: torch.Tensor) -> torch.Tensor:
        """Values of SDDMM in the order of the caller's matrix."""
        order = self._products.order
        if not self._two or order is None:
            return made
        back = np.empty_like(order)
        back[order] = np.arange(order.size)
        return made[torch.from_numpy(back)]


def is_traced(tensors: Sequence[Any]) -> bool:
    """True if torch follows operations on these tensors (`vmap`, fake tensors, `make_fx`,
    `torch.jit.trace`), so that they must be its own operators, not a kernel's call beside it.

    Raises: UsageError for derivatives that do not go through a custom operator.
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


def tensor_handle(matrix: torch.Tensor, kernel: str, compile_one: Compile) -> TensorHandle:
    """A handle for a sparse tensor (CSR, CSC or COO, on the CPU), whose products `compile_one`
    compiles.

    Raises: UsageError for another tensor, or one that asks for a gradient.
    """
    if getattr(matrix, "requires_grad", False):
        raise UsageError(
            "A asks for a gradient, which a handle gives to values alone",
            hint="compile A.detach(), then f(B, values=A.values())",
        )
    return TensorHandle(Products.of(matrix, kernel, compile_one))
