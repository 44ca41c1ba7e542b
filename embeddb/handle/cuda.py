"""Products of a sparse tensor on an NVIDIA GPU, with kernels chosen on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from embeddb.core.config import Config, Op
from embeddb.core.errors import EmbeddbError, MatrixError, RunnerUnavailable, UsageError
from embeddb.handle.choice import warn_once
from embeddb.handle.cuda_choice import Chosen, choose
from embeddb.handle.operators import Products, Quick, is_followed
from embeddb.kernels.cuda.device import Device, DeviceError, gpu
from embeddb.kernels.cuda.forms import Csr, inspect
from embeddb.kernels.cuda.nvrtc import CompileFailed
from embeddb.kernels.cuda.plan import MOST_ENTRIES
from embeddb.kernels.cuda.product import Product

if TYPE_CHECKING:
    from embeddb.handle.choice import Wanted

DTYPES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
}
_POINTERS = "A is damaged: its row pointers do not rise from 0 to its entries"
_OUTSIDE = "A is damaged: an index lies outside the matrix"
_LAYOUTS = (torch.sparse_csr, torch.sparse_csc, torch.sparse_coo)


@dataclass(frozen=True, slots=True, eq=False)
class OrderedCsr:
    """A matrix; `order` int64[nnz] are the positions of the caller's values in it (None: the same
    order), `alone` is False if the caller's had duplicates, which were summed."""

    csr: Csr
    order: torch.Tensor | None
    alone: bool = True


class CudaProducts(Products[Chosen]):
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
        super().__init__(wanted, ordered.order, ordered.alone, values.device, chosen or {})
        self._ordered, self._runs = ordered, device
        self.shape, self.nnz, self.dtype = ordered.csr.shape, ordered.csr.nnz, values.dtype
        self._width = wanted.k if wanted.k is not None else 1
        self._two, self._vector = wanted.kernel == "sddmm", wanted.kernel == "spmv"
        self._on_gpu = self.device.type == "cuda"
        self._turned: tuple[Csr, torch.Tensor] | None = None
        self._product(self._name)
        if self._back is not None:  # also of a copy, which has nothing to choose
            self._settle()

    @classmethod
    def of(cls, matrix: torch.Tensor, wanted: Wanted, device: Device | None = None) -> CudaProducts:
        """Products with a tensor. Raises: UsageError for one that is no supported sparse matrix."""
        return or_by_torch(matrix, device, lambda runs: cls(csr_of(matrix, runs), wanted, runs))

    def __copy__(self) -> CudaProducts:
        with self._lock:
            return CudaProducts(self._ordered, self._wanted, self._runs, self._copies())

    def __reduce__(self) -> tuple[Any, ...]:
        with self._lock:
            wanted = replace(self._wanted, config=self.named.config)
            return _rebuilt, (self.sparse(None), self._ordered.order, self.alone, wanted)

    def own(self) -> torch.Tensor:
        return self._ordered.csr.values

    def multiply(
        self, b: torch.Tensor, values: torch.Tensor | None, transposed: bool
    ) -> torch.Tensor:
        chosen = self._product("across" if transposed else "along")
        if values is not None and transposed:
            values = values[self._transposed()[1]]
        return self._computed(chosen, b, None, values, None)

    def dot(self, c: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if self._vector:
            c, b = c.reshape(-1, 1), b.reshape(-1, 1)
        return self._computed(self._product("dots"), b, c, None, None)

    def straight(
        self,
        operands: tuple[torch.Tensor, ...],
        values: torch.Tensor | None,
        out: torch.Tensor | None,
    ) -> torch.Tensor:
        chosen, (*others, b) = self.named, operands
        return self._computed(chosen, b, others[0] if others else None, values, out)

    def quick(self) -> Quick | None:
        if self._runs is None or self.order is not None or not self._width:
            return None
        chosen, two = self.named, self._two
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
                self._ordered = replace(self._ordered, csr=self._ordered.csr.with_values(ordered))
                own = {"sampled": ordered, "along": ordered}
                if self._turned is not None or "across" in self._compiled:
                    turned, order = self._transposed()
                    own["across"] = ordered[order]
                    self._turned = turned.with_values(own["across"]), order
                for name in own.keys() & self._compiled.keys():
                    one = self._compiled[name]
                    one.compute, one.streams = one.compute.with_values(own[name]), self._stream()
            self._settle()

    def sparse(self, values: torch.Tensor | None) -> torch.Tensor:
        csr = self._ordered.csr
        own = csr.values.clone() if values is None else values
        pointers, indices = csr.ptr.long(), csr.idx.long()
        return torch.sparse_csr_tensor(pointers, indices, own, csr.shape, check_invariants=False)

    def _compile(self, name: str) -> Chosen:
        with self._guard():
            chosen = self._choose(name)
            self._settle()
            return chosen

    def _choose(self, name: str) -> Chosen:
        csr, dtype, wanted = self._ordered.csr, DTYPES[self.dtype], self._wanted
        kernel = "spmv" if self._vector else "spmm"
        if name in ("sampled", "dots"):
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
            if self._on_gpu:
                self._keep(chosen)
            if values is not None:  # all else is shared
                compute = compute.with_values(self._check(values, "values", (self.nnz,)))
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
            warn_once(f"torch computes instead: {error}")
    with torch.cuda.device(matrix.device) if on_gpu else nullcontext():
        try:
            return make(device)
        except (CompileFailed, DeviceError, RunnerUnavailable) as error:
            warn_once(f"torch computes instead: {error}")
            return make(None)


# -- sparse tensors as checked, sorted CSR with int32 indices --------------------------------------


def csr_of(matrix: torch.Tensor, device: Device | None = None) -> OrderedCsr:
    """A sparse tensor m×n in CSR, CSC or COO, copied; `device` checks sorted CSR in one launch.

    Raises: UsageError for another tensor or value type; MatrixError for more than `MOST_ENTRIES`
    entries, rows or columns, and for invalid pointers or indices.
    """
    if not isinstance(matrix, torch.Tensor) or matrix.layout not in _LAYOUTS:
        parts = matrix.layout if isinstance(matrix, torch.Tensor) else type(matrix).__name__
        raise UsageError(f"A is {parts}: a sparse tensor in CSR, CSC or COO is needed")
    if matrix.dim() != 2 or matrix.dense_dim():
        raise UsageError(f"A has {matrix.dim()} dimensions: a matrix of numbers is needed")
    if matrix.dtype not in DTYPES:
        raise UsageError(f"A holds {matrix.dtype}: kernels compute in float64, 32 and 16 bits")
    (m, n), nnz = matrix.shape, matrix._nnz()
    if max(nnz, m, n) > MOST_ENTRIES:
        raise MatrixError(f"A is {m}x{n} with {nnz} entries, of at most {MOST_ENTRIES} each")
    if matrix.layout is torch.sparse_csr and device is not None and m and n and nnz:
        values = matrix.values().detach().clone()
        csr, report = inspect((m, n), matrix.crow_indices(), matrix.col_indices(), values, device)
        if report.pointers or report.outside:
            raise MatrixError(_POINTERS if report.pointers else _OUTSIDE)
        if not (report.falling or report.repeated):
            return OrderedCsr(csr, None)
    if matrix.layout is torch.sparse_coo:
        values, (rows, columns) = matrix._values(), matrix._indices()  # in the caller's order
    elif matrix.layout is torch.sparse_csr:
        values, columns = matrix.values(), matrix.col_indices()
        rows = _expanded(matrix.crow_indices(), columns, m)
    else:
        values, rows = matrix.values(), matrix.row_indices()
        columns = _expanded(matrix.ccol_indices(), rows, n)
    return _sorted((m, n), rows.long(), columns.long(), values.detach())


def _expanded(pointers: torch.Tensor, indices: torch.Tensor, count: int) -> torch.Tensor:
    """int64[nnz]: the row (column) of each entry. Raises: MatrixError."""
    lengths = pointers[1:] - pointers[:-1]
    ends = torch.stack([pointers[0], pointers[-1], lengths.min() if count else pointers[0]])
    first, last, least = ends.tolist()
    if first != 0 or last != indices.numel() or least < 0:
        raise MatrixError(_POINTERS)
    numbers = torch.arange(count, device=pointers.device)
    return torch.repeat_interleave(numbers, lengths, output_size=indices.numel())


def _sorted(
    shape: tuple[int, int], rows: torch.Tensor, columns: torch.Tensor, values: torch.Tensor
) -> OrderedCsr:
    (m, n), nnz = shape, values.numel()
    key = rows * max(n, 1) + columns
    order = None
    if nnz:
        rises = (key[1:] > key[:-1]).all().to(key.dtype)
        bounds = torch.stack([*rows.aminmax(), *columns.aminmax(), rises])
        low_row, row, low_column, column, rising = bounds.tolist()
        if min(low_row, low_column) < 0 or row >= m or column >= n:
            raise MatrixError(_OUTSIDE)
        if not rising:
            order = torch.argsort(key, stable=True)
            key, rows, columns, values = key[order], rows[order], columns[order], values[order]
    alone = True
    if order is not None and bool((key[1:] == key[:-1]).any()):
        key, which = torch.unique(key, return_inverse=True)
        values = values.new_zeros(len(key)).index_add_(0, which, values)
        rows, columns, order, alone = key // max(n, 1), key % max(n, 1), None, False
    counts = torch.bincount(rows, minlength=m) if m else rows.new_zeros(0)
    ptr = torch.zeros(m + 1, dtype=torch.int64, device=values.device)
    torch.cumsum(counts, 0, out=ptr[1:])
    parts = (ptr.to(torch.int32), columns.to(torch.int32).contiguous())
    return OrderedCsr(Csr(shape, *parts, values.clone().contiguous()), order, alone)
