"""A matrix on the device bound to one configuration: a product as a function of dense operands."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from embeddb.kernels.cuda.cusparse import CusparseProduct
from embeddb.kernels.cuda.device import Args, Call, Device, Kernel
from embeddb.kernels.cuda.forms import Csr, Form, FormRefused, form_of
from embeddb.kernels.cuda.plan import Plan

_MAX_BLOCKS = (1 << 31) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """SpMM, SpMV or SDDMM with a matrix; made by `bind`."""

    csr: Csr
    plan: Plan
    form: Form
    device: Device
    kernel: Kernel
    call: Call
    grid: int

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

    def _launch(self, b: torch.Tensor, x: torch.Tensor | None, out: torch.Tensor) -> None:
        if not self.grid or not out.numel():
            return
        call = Call.from_buffer_copy(self.call)
        args, step = call.args, self.plan.vec * b.element_size()
        if step > 16:
            step = 16
        if b.data_ptr() % step:
            b = b.clone()
        args.B = b.data_ptr()
        if x is not None:
            if x.data_ptr() % step:
                x = x.clone()
            args.X = x.data_ptr()
        direct = out.data_ptr() % step == 0 or self.plan.op.kernel == "sddmm"
        into = out if direct else torch.zeros_like(out)
        args.out = into.data_ptr()
        plan = self.plan
        self.kernel.launch(self.grid, plan.block, plan.shared_bytes, self.device.stream(), call)
        if not direct:
            out.copy_(into)


def bind(csr: Csr, plan: Plan, device: Device) -> Product | CusparseProduct:
    """The matrix in the format of a plan, with its kernel; by cuSPARSE where the plan names one of
    its algorithms.

    Raises: FormRefused where the format would store too much, or the kernel cannot run with so many
    threads; CompileFailed, RunnerUnavailable, DeviceError as `Device.kernel` does.
    """
    if plan.algorithm:
        return CusparseProduct(csr, plan, device)
    form = form_of(csr, plan)
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
    return Product(csr, plan, form, device, kernel, _call(csr, plan, form), rows * columns)


def _blocks(csr: Csr, plan: Plan, form: Form) -> tuple[int, int]:
    units = plan.units(form.pieces, csr.shape[0], csr.nnz)
    columns = -(-plan.op.width // plan.tile) if plan.op.kernel == "spmm" else 1
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
