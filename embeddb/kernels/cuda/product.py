"""A matrix on the device bound to one configuration: a product as a function of dense operands."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from embeddb.kernels.cuda.cusparse import CusparseProduct
from embeddb.kernels.cuda.device import Args, Call, Device, Kernel
from embeddb.kernels.cuda.forms import Csr, Form, FormRefused, form_of
from embeddb.kernels.cuda.plan import SIZES, Plan

_MAX_BLOCKS = (1 << 31) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """SpMM, SpMV or SDDMM with a matrix; made by `bind`. `step`: the operands' addresses must be
    multiples of so many bytes."""

    csr: Csr
    plan: Plan
    form: Form
    device: Device
    kernel: Kernel
    call: Call
    grid: int
    block: int
    shared: int
    step: int

    def __call__(self, b: torch.Tensor, x: torch.Tensor | None, out: torch.Tensor) -> torch.Tensor:
        """Compute into `out` in the current stream, without waiting for it.

        b dtype[n,k] (SpMV: dtype[n]), x dtype[m,k] for SDDMM, out dtype[m,k], dtype[m] or
        dtype[nnz], all contiguous on the matrix's device, none sharing memory with `out`.
        """
        plan = self.plan
        if plan.wide:
            sums = torch.zeros(out.shape, dtype=torch.float32, device=out.device)
            self._launch(b, x, sums)
            return out.copy_(sums)
        if self.form.adds:
            out.zero_()
        self._launch(b, x, out)
        return out

    def with_values(self, values: torch.Tensor) -> Product:
        """The same with other values dtype[nnz] of the CSR matrix."""
        csr, form = self.csr.with_values(values), self.form.with_values(values)
        return replace(self, csr=csr, form=form, call=_call(csr, self.plan, form))

    def enqueue(self, b: int, x: int, out: int, stream: int) -> None:
        """Launch the kernel on operands at these addresses, which are multiples of `step`."""
        call = Call.from_buffer_copy(self.call)
        args = call.args
        args.B, args.X, args.out = b, x, out
        self.kernel.launch(self.grid, self.block, self.shared, stream, call)

    def _launch(self, b: torch.Tensor, x: torch.Tensor | None, out: torch.Tensor) -> None:
        if not self.grid or not out.numel():
            return
        if b.data_ptr() % self.step:
            b = b.clone()
        if x is not None and x.data_ptr() % self.step:
            x = x.clone()
        aligned = out.data_ptr() % self.step == 0 or self.plan.op.name == "sddmm"
        into = out if aligned else torch.zeros_like(out)
        at_x = 0 if x is None else x.data_ptr()
        self.enqueue(b.data_ptr(), at_x, into.data_ptr(), self.device.stream())
        if not aligned:
            out.copy_(into)


def bind(csr: Csr, plan: Plan, device: Device) -> Product | CusparseProduct:
    """The matrix in the format of a plan, with its kernel; by cuSPARSE if the plan names one of its
    algorithms.

    Raises: FormRefused if the format would store too much, or the kernel cannot run with that many
    threads; CompileFailed, RunnerUnavailable, DeviceError as `Device.kernel` does.
    """
    if plan.algorithm:
        return CusparseProduct(csr, plan, device)
    form = form_of(csr, plan, device)
    kernel = device.kernel(plan.template)
    if plan.block > kernel.max_threads:
        raise FormRefused(
            f"the kernel needs more registers than a block of {plan.block} threads has",
            status="invalid",
        )
    rows, columns = _blocks(csr, plan, form)
    if rows * columns > _MAX_BLOCKS:
        reason = f"the product needs {rows * columns} blocks, of at most {_MAX_BLOCKS}"
        raise FormRefused(reason, status="invalid")
    step = min(16, plan.vec * SIZES[plan.op.dtype])
    launch = rows * columns, plan.block, plan.shared_bytes, step
    return Product(csr, plan, form, device, kernel, _call(csr, plan, form), *launch)


def _blocks(csr: Csr, plan: Plan, form: Form) -> tuple[int, int]:
    units = plan.units(form.pieces, csr.shape[0], csr.nnz)
    columns = -(-plan.op.width // plan.tile) if plan.op.name == "spmm" else 1
    return -(-units // plan.per_block), columns


def _call(csr: Csr, plan: Plan, form: Form) -> Call:
    tensors = {"ptr": csr.ptr, "idx": csr.idx, "val": csr.values, "entry_val": csr.values}
    tensors.update(form.tensors)
    args = Args(**{name: one.data_ptr() for name, one in tensors.items()})
    args.m, args.n = csr.shape
    args.nnz, args.K, args.pieces, args.piece = csr.nnz, plan.op.width, form.pieces, plan.form.piece
    args.row_blocks, args.col_blocks = _blocks(csr, plan, form)
    args.columns_fast = plan.columns_fast
    return Call(args, 0)
