"""Products with a sparse tensor's pattern as torch operators, each the gradient of the others.

These are the products with A and with Aᵀ, and the dot products at the non-zeros: custom operators
(`torch.ops.embeddb`), opaque to torch.compile.
"""

from __future__ import annotations

import copy
import secrets
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakValueDictionary

import torch
from torch._C import _functorch as functorch
from torch.autograd import forward_ad

from embeddb.core.errors import UsageError

if TYPE_CHECKING:
    from embeddb.handle.choice import Wanted
    from embeddb.handle.cuda_choice import Chosen
    from embeddb.handle.handle import Handle

#: The code of one product.
T = TypeVar("T", bound="Chosen | Handle")

#: Fast path from dense operands (one or two, in the caller's order) and `out` to the result; None
#: if a call needs more: failed checks, copies, gradients, another stream.
Quick = Callable[[Any, Any, Any], "torch.Tensor | None"]
#: Purpose of each product, by name; an SDDMM that the caller named is `sampled`.
PURPOSES = {
    "along": "products with A",
    "across": "products with Aᵀ, the gradient by B",
    "dots": "dot products at the non-zeros, the gradient by values",
}


def name_of(kernel: str) -> str:
    """Name of the product that the caller named."""
    return "sampled" if kernel == "sddmm" else "along"


class Products(Generic[T]):
    """The products of one pattern on one device, compiled on first use, and the order of the
    caller's values. `compiled` are those of a copy, by name.

    `order` int64[nnz] are the positions of the caller's values in sorted CSR (None: the same
    order), `alone` is True if values alone have an order. `stamp` is an empty tensor whose version
    counts the updates of A's values.

    `key` is random, since programs and torch's caches on disk hold it: in another process they find
    no handle, while a counter found that of another matrix. The caches then miss once per process,
    which takes a second; a digest of the matrix would take as long as its conversion.

    Raises: UsageError for an SDDMM of a matrix with duplicates.
    """

    def __init__(
        self,
        wanted: Wanted,
        order: torch.Tensor | None,
        alone: bool,
        device: torch.device,
        compiled: Mapping[str, T],
    ) -> None:
        self.kernel, self.order, self.alone, self.device = wanted.kernel, order, alone, device
        self._wanted = wanted
        if self.kernel == "sddmm" and not alone:
            raise _no_order()
        self.key, self._lock = secrets.randbits(62), threading.RLock()
        self._name, self._compiled = name_of(self.kernel), dict(compiled)
        with torch.inference_mode(False):  # tensors of that mode have no version
            self.stamp = torch.empty(0, device=device)
            # Complete before any thread can ask for it.
            self._back: torch.Tensor | None = None
            if order is not None and self.kernel == "sddmm":
                places = torch.arange(order.numel(), device=device)
                self._back = torch.empty_like(order).index_copy_(0, order, places)
        _known[self.key] = self

    shape: tuple[int, int]
    nnz: int
    dtype: torch.dtype

    @property
    def named(self) -> T:
        """The product that the caller named."""
        return self._compiled[self._name]

    def why(self) -> str:
        """The code of each product used so far and the reasons for it."""
        with self._lock:
            compiled = dict(self._compiled)
        lines = [compiled.pop(self._name).why()]
        for name, one in compiled.items():
            lines.append(f"for {PURPOSES[name]}:\n{one.why()}")
        return "\n".join(lines)

    def _product(self, name: str) -> T:
        if (one := self._compiled.get(name)) is None:
            with self._lock:
                if name not in self._compiled:
                    self._compiled[name] = self._compile(name)
                one = self._compiled[name]
        return one

    def _compile(self, name: str) -> T:
        raise NotImplementedError

    def _copies(self) -> dict[str, T]:
        with self._lock:
            return {name: copy.copy(one) for name, one in self._compiled.items()}

    def own(self) -> torch.Tensor:
        """dtype[nnz]: A's values in CSR order."""
        raise NotImplementedError

    def multiply(
        self, b: torch.Tensor, values: torch.Tensor | None, transposed: bool
    ) -> torch.Tensor:
        """A B, or Aᵀ B; `values` dtype[nnz] in CSR order in place of A's own."""
        raise NotImplementedError

    def dot(self, c: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """dtype[nnz]: dot products of rows of c and b at the non-zeros, in CSR order."""
        raise NotImplementedError

    def straight(
        self,
        operands: tuple[torch.Tensor, ...],
        values: torch.Tensor | None,
        out: torch.Tensor | None,
    ) -> torch.Tensor:
        """The product that the caller named, without operators or gradients; SDDMM in CSR order."""
        raise NotImplementedError

    def quick(self) -> Quick | None:
        """The fast path of the product that the caller named; None if there is none."""
        return None

    def update(self, values: torch.Tensor) -> None:
        """Replace the values: dtype[nnz] in CSR order, or a sparse tensor of the same pattern."""
        raise NotImplementedError

    def sparse(self, values: torch.Tensor | None) -> torch.Tensor:
        """A sparse CSR tensor with values dtype[nnz] in CSR order, or with A's."""
        raise NotImplementedError

    def in_csr(self, values: torch.Tensor) -> torch.Tensor:
        """The caller's values dtype[nnz] in CSR order."""
        if not isinstance(values, torch.Tensor):
            raise no_tensor("values", values)
        if not self.alone:
            raise _no_order()
        if tuple(values.shape) != (self.nnz,):
            raise UsageError(f"values has the shape {tuple(values.shape)}, A has {self.nnz}")
        return values if self.order is None else values[self.order]

    def in_own(self, result: torch.Tensor) -> torch.Tensor:
        """Values of SDDMM dtype[nnz] in the order of the caller's matrix."""
        return result if self._back is None else result[self._back]


def no_tensor(name: str, candidate: Any) -> UsageError:
    """Error for an operand that is no tensor."""
    return UsageError(
        f"{name} is a {type(candidate).__name__}: A was a tensor, so are operands and values",
        hint="torch.from_numpy(B) shares the memory",
    )


def _no_order() -> UsageError:
    return UsageError(
        "A had duplicates: its values alone have no order",
        hint="A.coalesce() of a COO tensor has one",
    )


_known: WeakValueDictionary[int, Products[Any]] = WeakValueDictionary()


def _products(key: int) -> Products[Any]:
    """The products of a key, which is symbolic if torch.compile meets a second handle. Raises:
    UsageError if the handle was deleted, or is one of another process."""
    products = _known.get(int(key))
    if products is None:
        raise UsageError(
            "the program's handle was deleted, or is in the process that traced the program",
            hint="compile the matrix, then trace or export the program again in this process",
        )
    return products


@torch.library.custom_op("embeddb::weights", mutates_args=())
def weights(like: torch.Tensor, key: int) -> torch.Tensor:
    """dtype[nnz]: a copy of A's values in CSR order, read when a traced program runs, so that it
    follows updates; `like` is any operand without gradient."""
    return _products(key).own().clone()


@torch.library.custom_op("embeddb::product", mutates_args=())
def product(
    b: torch.Tensor, values: torch.Tensor | None, key: int, transposed: bool
) -> torch.Tensor:
    """A B, or Aᵀ B, of the pattern `key`; b dtype[n,k] or dtype[n], values dtype[nnz]. A's own
    values are None, or the stamp, which a compiled graph saves for its backward."""
    others = values if values is not None and values.numel() else None
    return _products(key).multiply(b, others, transposed)


@torch.library.custom_op("embeddb::dots", mutates_args=())
def dots(c: torch.Tensor, b: torch.Tensor, key: int) -> torch.Tensor:
    """dtype[nnz]: the dot products of rows of c and b at the non-zeros of the pattern `key`."""
    return _products(key).dot(c, b)


@product.register_fake
def _(b: torch.Tensor, values: Any, key: int, transposed: bool) -> torch.Tensor:
    products = _products(key)
    m, n = products.shape
    return b.new_empty((n if transposed else m, *b.shape[1:]), dtype=products.dtype)


@weights.register_fake
def _(like: torch.Tensor, key: int) -> torch.Tensor:
    products = _products(key)
    return like.new_empty((products.nnz,), dtype=products.dtype)


@dots.register_fake
def _(c: torch.Tensor, b: torch.Tensor, key: int) -> torch.Tensor:
    products = _products(key)
    return b.new_empty((products.nnz,), dtype=products.dtype)


def _keep_product(ctx: Any, inputs: Any, output: Any) -> None:
    b, values, ctx.key, ctx.transposed = inputs
    ctx.products = _products(ctx.key)  # a graph may outlive the handle
    ctx.version = ctx.products.stamp._version
    ctx.save_for_backward(b, values)


def _product_gradients(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    b, values = ctx.saved_tensors
    for_b = for_values = None
    if ctx.needs_input_grad[0]:
        if values is None and ctx.version != ctx.products.stamp._version:
            raise UsageError(
                "A was updated between a product and its backward, which needs the former values",
                hint="call backward() before update(), or f(B, values=...)",
            )
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
    """Register `vmap` as one call for each batch element, stacked."""

    def batched(info: Any, in_dims: tuple[int | None, ...], *operands: Any) -> tuple[Any, int]:
        def nth(n: int) -> list[Any]:
            each = zip(operands, in_dims, strict=True)
            return [one if dim is None else one.select(dim, n) for one, dim in each]

        if not info.batch_size:  # the shape of a result is that of zeros'
            each = zip(operands, in_dims, strict=True)
            operands = tuple(
                one if dim is None else one.new_zeros(one.movedim(dim, 0).shape[1:]).unsqueeze(dim)
                for one, dim in each
            )
            return op(*nth(0)).unsqueeze(0)[:0], 0
        return torch.stack([op(*nth(n)) for n in range(info.batch_size)]), 0

    op.register_vmap(batched)


_one_by_one(product)
_one_by_one(dots)
weights.register_vmap(lambda info, in_dims, like, key: (weights(like, key), None))


def is_followed() -> bool:
    """True if torch may trace or transform operations on any tensors."""
    return (
        forward_ad._current_level >= 0
        or torch._C._is_tracing()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
        or functorch.peek_interpreter_stack() is not None
    )
