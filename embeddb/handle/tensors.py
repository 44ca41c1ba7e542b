"""Handles for torch: a sparse tensor compiled, dense tensors in and out, with gradients."""

from __future__ import annotations

import numpy as np
import torch

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.handle.tensor_products import Compile, Products, array_of, dots, sorted_csr

__all__ = ["TensorHandle", "tensor_handle"]


class TensorHandle:
    """What `embeddb.compile` returns for a sparse tensor of torch: `Handle`, for tensors.

    `f(B)` is A B, for SDDMM `f(C, B)` are the values of A ∘ (C Bᵀ), in the order of A's own. Both
    are differentiable in B and C, any number of times, and in `values` where they are given.
    """

    def __init__(self, products: Products) -> None:
        self._products = products
        self._key = products.key
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
        the order of A's, stand for A's own in this call only, and cost a copy.

        Raises: UsageError as `Handle` does, and for what is no tensor of the CPU.
        """
        given = tuple(one for one in (dense, other, values) if one is not None)
        gradients = torch.is_grad_enabled() and any(
            getattr(one, "requires_grad", False) for one in given
        )
        if out is not None or (
            values is None and not gradients and not torch.compiler.is_compiling()
        ):
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
    return TensorHandle(Products(matrix, kernel, compile_one))
