"""Products of a sparse tensor on an NVIDIA GPU, with kernels chosen on first use."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from embeddb.core.config import Config, Op
from embeddb.core.errors import EmbeddbError, RunnerUnavailable, UsageError
from embeddb.handle.cuda_choice import Chosen, choose, warn
from embeddb.handle.cuda_matrix import OrderedCsr, csr_of
from embeddb.handle.operators import PURPOSES, Products, Quick, is_followed
from embeddb.kernels.cuda.device import Device, DeviceError, gpu
from embeddb.kernels.cuda.forms import Csr
from embeddb.kernels.cuda.nvrtc import CompileFailed
from embeddb.kernels.cuda.product import Product

if TYPE_CHECKING:
    from embeddb.handle.choice import Wanted

DTYPES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
}


class CudaProducts(Products):
    """Products with a matrix on one GPU. Formats are converted on the device, in the stream of the
    first call; later calls may come from any stream and thread.

    `device` runs the kernels; None leaves everything to torch.
    """

    def __init__(
        self,
        ordered: OrderedCsr,
        wanted: Wanted,
        device: Device | None,
        chosen: Mapping[str, Chosen] | None = None,
    ) -> None:
        values = ordered.csr.values
        super().__init__(wanted.kernel, ordered.order, ordered.alone, values.device)
        self._ordered, self._wanted, self._runs = ordered, wanted, device
        self.shape, self.nnz, self.dtype = ordered.csr.shape, ordered.csr.nnz, values.dtype
        self._width = wanted.k if wanted.k is not None else 1
        self._two, self._vector = wanted.kernel == "sddmm", wanted.kernel == "spmv"
        self._on_gpu = self.device.type == "cuda"
        self._lock = threading.RLock()
        self._turned: tuple[Csr, torch.Tensor] | None = None
        self._chosen_by: dict[str, Chosen] = dict(chosen or {})
        self._name = "asked" if self._two else "along"
        self._chosen(self._name)
        if self._back is not None:  # also of a copy, which has nothing to choose
            self._settle()

    @classmethod
    def of(cls, matrix: torch.Tensor, wanted: Wanted, device: Device | None = None) -> CudaProducts:
        """Products with a tensor. Raises: UsageError for one that is no supported sparse matrix."""
        return or_by_torch(matrix, device, lambda runs: cls(csr_of(matrix, runs), wanted, runs))

    def __copy__(self) -> CudaProducts:
        with self._lock:
            chosen = {name: copy.copy(one) for name, one in self._chosen_by.items()}
            return CudaProducts(self._ordered, self._wanted, self._runs, chosen)

    def __reduce__(self) -> tuple[Any, ...]:
        with self._lock:
            wanted = self._wanted.named(self.config)
            return _rebuilt, (self.sparse(None), self._ordered.order, self.alone, wanted)

    @property
    def config(self) -> Config | None:
        return self._chosen_by[self._name].config

    @property
    def op(self) -> Op:
        return self._chosen_by[self._name].op

    @property
    def answer(self) -> str:
        choice = self._chosen_by[self._name].choice
        return "" if choice is None else choice.answer

    def why(self) -> str:
        with self._lock:
            chosen = dict(self._chosen_by)
        lines = [chosen.pop(self._name).why()]
        lines += [f"for {PURPOSES[name]}:\n{one.why()}" for name, one in chosen.items()]
        return "\n".join(lines)

    def own(self) -> torch.Tensor:
        return self._ordered.csr.values

    def multiply(
        self, b: torch.Tensor, values: torch.Tensor | None, transposed: bool
    ) -> torch.Tensor:
        chosen = self._chosen("across" if transposed else "along")
        if values is not None and transposed:
            values = values[self._transposed()[1]]
        return self._computed(chosen, b, None, values, None)

    def dot(self, c: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if self._vector:
            c, b = c.reshape(-1, 1), b.reshape(-1, 1)
        return self._computed(self._chosen("dots"), b, c, None, None)

    def straight(
        self,
        operands: tuple[torch.Tensor, ...],
        values: torch.Tensor | None,
        out: torch.Tensor | None,
    ) -> torch.Tensor:
        chosen = self._chosen_by[self._name]
        if self._two:
            if len(operands) != 2:
                raise UsageError("SDDMM takes two dense operands", hint="f(C, B) for A ∘ (C Bᵀ)")
            return self._computed(chosen, operands[1], operands[0], values, out)
        if len(operands) != 1:
            raise UsageError(f"{self.kernel} takes one dense operand")
        return self._computed(chosen, operands[0], None, values, out)

    def quick(self) -> Quick | None:
        if self._runs is None or self.order is not None or not self._width:
            return None
        chosen, two = self._chosen_by[self._name], self._two
        (m, n), dtype, device = self.shape, self.dtype, self.device
        width = () if self._vector else (self._width,)
        shape_b, shape_x = torch.Size((n, *width)), torch.Size((m, *width))
        shape = torch.Size((self.nnz,) if two else (m, *width))
        stream_now, clear, empty = self._runs.stream, self._runs.clear, torch.empty
        number = self.device.index if self._on_gpu else -1
        current = torch._C._cuda_getDevice if self._on_gpu else lambda: -1
        fits = _fitting(dtype, number, min(16, chosen.vec * dtype.itemsize))
        size = shape.numel() * dtype.itemsize

        def call(first: Any, second: Any, out: Any) -> torch.Tensor | None:
            b, x = (second, first) if two else (first, None)
            if (
                not fits(b, shape_b)
                or not (fits(x, shape_x) if two else second is None)
                or not (out is None or (fits(out, shape) and _apart(out, b, x)))
                or is_followed()
                or (stream := stream_now()) not in chosen.streams
                or current() != number
            ):
                return None
            into = empty(shape, dtype=dtype, device=device) if out is None else out
            compute = chosen.compute
            if type(compute) is not Product or compute.plan.wide or not compute.grid or not size:
                compute(b, x, into)
                return into
            at = into.data_ptr()
            if compute.form.adds:
                clear(at, size, stream)
            compute.enqueue(b.data_ptr(), 0 if x is None else x.data_ptr(), at, stream)
            return into

        return call

    def update(self, values: torch.Tensor) -> None:
        with self._guard():
            self._update(values)

    def _update(self, values: torch.Tensor) -> None:
        if values.layout is not torch.strided:
            other = csr_of(values, self._runs)
            same = other.csr.shape == self.shape and other.csr.nnz == self.nnz
            mine = self._ordered.csr
            if not same or not (
                torch.equal(other.csr.ptr, mine.ptr) and torch.equal(other.csr.idx, mine.idx)
            ):
                raise UsageError("the pattern of A has changed", hint="compile it again")
            values = other.csr.values
        ordered = self._check(values, "values", (self.nnz,)).detach().clone()
        with self._lock:
            self._ordered = self._ordered.with_values(ordered)
            turned = self._turned
            for name, one in self._chosen_by.items():
                if name == "across" and turned is not None:
                    one.compute = one.compute.with_values(ordered[turned[1]])
                elif name != "dots":
                    one.compute = one.compute.with_values(ordered)
                one.streams = one.streams if name == "dots" else self._stream()
            if turned is not None:
                self._turned = turned[0].with_values(ordered[turned[1]]), turned[1]
        self._settle()

    def sparse(self, values: torch.Tensor | None) -> torch.Tensor:
        csr = self._ordered.csr
        own = csr.values.clone() if values is None else values
        pointers, indices = csr.ptr.long(), csr.idx.long()
        return torch.sparse_csr_tensor(pointers, indices, own, csr.shape, check_invariants=False)

    def _chosen(self, name: str) -> Chosen:
        chosen = self._chosen_by.get(name)
        if chosen is not None:
            return chosen
        with self._lock, self._guard():
            if name not in self._chosen_by:
                self._chosen_by[name] = self._choose(name)
                self._settle()
            return self._chosen_by[name]

    def _choose(self, name: str) -> Chosen:
        csr, dtype, wanted = self._ordered.csr, DTYPES[self.dtype], self._wanted
        kernel = "spmv" if self._vector else "spmm"
        if name in ("asked", "dots"):
            kernel = "sddmm"
        if name == "dots":
            csr = csr.with_values(torch.ones_like(csr.values))
        if name == "across":
            csr = self._transposed()[0]
        op = Op(kernel, max(self._width, 1) if kernel != "spmv" else 1, dtype)
        config = wanted.config if name == self._name else None
        assert config is None or isinstance(config, Config)
        device = self._runs if self._width else None
        chosen = choose(csr, op, device, wanted.db, wanted.options, config)
        chosen.streams = self._stream()
        return chosen

    def _transposed(self) -> tuple[Csr, torch.Tensor]:
        with self._lock:
            if self._turned is None:
                self._turned = self._ordered.csr.transposed()
            return self._turned

    def _computed(
        self,
        chosen: Chosen,
        b: torch.Tensor,
        x: torch.Tensor | None,
        values: torch.Tensor | None,
        out: torch.Tensor | None,
    ) -> torch.Tensor:
        compute = chosen.compute
        m, n = compute.csr.shape
        column = self._vector and b.dim() == 2 and x is None
        width = () if chosen.op.name == "spmv" else (self._width,)
        candidate = b.reshape(-1) if column and b.shape[1:] == (1,) else b
        candidate = self._check(candidate, "B", (n, *width))
        other = None if x is None else self._check(x, "C", (m, *width))
        shape = (self.nnz,) if x is not None else (m, *width)
        into = self._result(out, (*shape, 1) if column else shape, (candidate, other))
        flat = into.view(shape) if column else into
        if not self._width:  # no dense columns: empty sums
            flat.zero_()
            return into if out is None or into is out else out.copy_(into)
        with self._guard():
            if values is not None:
                compute = compute.with_values(self._check(values, "values", (self.nnz,)))
            elif self._on_gpu:
                self._keep(chosen)
            compute(candidate, other, flat)
        return into if out is None or into is out else out.copy_(into)

    def _check(self, candidate: Any, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor, contiguous. Raises: UsageError if it does not fit the kernel."""
        if not isinstance(candidate, torch.Tensor) or candidate.layout is not torch.strided:
            raise UsageError(f"{name} is no dense tensor")
        tensor: torch.Tensor = candidate
        if tensor.device != self.device:
            raise UsageError(
                f"{name} is on {tensor.device}, A is on {self.device}",
                hint=f"{name}.to({str(self.device)!r})",
            )
        if tensor.dtype != self.dtype:
            raise UsageError(
                f"{name} holds {tensor.dtype}, A {self.dtype}", hint=f"{name}.to({self.dtype})"
            )
        if tensor.shape != shape:
            if tensor.dim() == len(shape) == 2 and tensor.shape[0] == shape[0]:
                raise UsageError(
                    f"{name} has {tensor.shape[1]} columns; this handle was compiled for "
                    f"k={shape[1]}",
                    hint=f"compile another with k={tensor.shape[1]}",
                )
            raise UsageError(f"{name} has the shape {tuple(tensor.shape)}, the kernel's is {shape}")
        if tensor.is_neg():
            tensor = tensor.resolve_neg()
        return tensor if tensor.is_contiguous() else tensor.contiguous()

    def _result(
        self, out: torch.Tensor | None, shape: tuple[int, ...], inputs: tuple[Any, ...]
    ) -> torch.Tensor:
        """`out` if a kernel may write into it, else a new tensor."""
        if out is None:
            return self._ordered.csr.values.new_empty(shape)
        if not isinstance(out, torch.Tensor) or (out.shape, out.dtype, out.device) != (
            torch.Size(shape),
            self.dtype,
            self.device,
        ):
            candidate = (
                f"{out.dtype} of shape {tuple(out.shape)} on {out.device}"
                if isinstance(out, torch.Tensor)
                else type(out).__name__
            )
            raise UsageError(f"out is {candidate}, the result {self.dtype} of {shape}")
        if out.is_contiguous() and not out.is_neg() and _apart(out, *inputs):
            return out
        return self._ordered.csr.values.new_empty(shape)

    def _guard(self) -> Any:
        """Context with the matrix's GPU as torch's current one."""
        if self._on_gpu and torch.cuda.current_device() != self.device.index:
            return torch.cuda.device(self.device)
        return nullcontext()

    def _stream(self) -> set[int]:
        return set() if self._runs is None else {self._runs.stream()}

    def _keep(self, chosen: Chosen) -> None:
        """Register with torch that another stream reads the format's tensors: their memory is then
        not reused meanwhile."""
        if self._runs is None or (number := self._runs.stream()) in chosen.streams:
            return
        stream = torch.cuda.current_stream(self.device)
        csr, form = chosen.compute.csr, getattr(chosen.compute, "form", None)
        for one in (csr.ptr, csr.idx, csr.values, *(form.tensors.values() if form else ())):
            one.record_stream(stream)
        chosen.streams.add(number)

    def _settle(self) -> None:
        """Wait for the preparation: the next call may come from another stream."""
        if self._on_gpu:
            torch.cuda.current_stream(self.device).synchronize()


def _fitting(dtype: torch.dtype, number: int, step: int) -> Callable[[Any, torch.Size], bool]:
    """Predicate for tensors that a kernel may access directly: dense, of this type, device and
    shape, at an address that is a multiple of `step`, without gradient."""
    tensor, grad, low_bits = torch.Tensor, torch.is_grad_enabled, step - 1

    def fits(one: Any, wanted: torch.Size) -> bool:
        return (
            type(one) is tensor
            and one.shape == wanted
            and one.dtype is dtype
            and one.get_device() == number
            and one.is_contiguous()
            and (at := one.data_ptr()) > 0  # not of the device meta
            and not at & low_bits
            and not (one.requires_grad and grad())
            and not one.is_neg()
        )

    return fits


def _apart(out: torch.Tensor, *inputs: torch.Tensor | None) -> bool:
    """False if the result may share memory with an operand."""
    mine = out.untyped_storage().data_ptr()
    return all(one is None or one.untyped_storage().data_ptr() != mine for one in inputs)


def _rebuilt(
    matrix: torch.Tensor, order: torch.Tensor | None, alone: bool, wanted: Wanted
) -> CudaProducts:
    """Products that were pickled, on the GPU of the same number."""
    ordered = OrderedCsr(csr_of(matrix).csr, order, alone)
    return or_by_torch(matrix, None, lambda runs: CudaProducts(ordered, wanted, runs))


def or_by_torch(
    matrix: torch.Tensor, device: Device | None, make: Callable[[Device | None], CudaProducts]
) -> CudaProducts:
    """Products made for a device, or for the matrix's GPU; for torch alone, with a warning, where
    kernels cannot run."""
    on_gpu = matrix.device.type == "cuda"
    if device is None and on_gpu:
        try:
            device = gpu(matrix.device.index or 0)
        except (EmbeddbError, DeviceError) as error:
            warn(str(error))
    with torch.cuda.device(matrix.device) if on_gpu else nullcontext():
        try:
            return make(device)
        except (CompileFailed, DeviceError, RunnerUnavailable) as error:
            warn(str(error))
            return make(None)
