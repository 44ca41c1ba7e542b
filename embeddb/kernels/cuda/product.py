"""A matrix on the device bound to one configuration: a product as a function of dense operands, by
a kernel of our own or by NVIDIA's cuSPARSE, called through its library."""

from __future__ import annotations

import weakref
from ctypes import byref, c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_void_p, pointer
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import torch

from embeddb.kernels.cuda.device import Args, Call, Device, DeviceError, Kernel, NoDeviceMemory
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


# -- cuSPARSE --------------------------------------------------------------------------------------


# Names and numbers of the headers cusparse.h and library_types.h of CUDA 13.
CUSPARSE_OPERATION_NON_TRANSPOSE = 0
CUSPARSE_INDEX_32I = 2
CUSPARSE_INDEX_BASE_ZERO = 0
CUSPARSE_ORDER_ROW = 2
CUSPARSE_SPMM_ALG_DEFAULT, CUSPARSE_SPMM_CSR_ALG2, CUSPARSE_SPMM_CSR_ALG3 = 0, 6, 12
CUSPARSE_SPMV_CSR_ALG1, CUSPARSE_SPMV_CSR_ALG2 = 2, 3
CUSPARSE_STATUS_ALLOC_FAILED, CUSPARSE_STATUS_INSUFFICIENT_RESOURCES = 2, 11
CUDA_R_32F, CUDA_R_64F, CUDA_R_16F, CUDA_R_16BF = 0, 1, 2, 14

_ALGORITHMS = {
    "spmm": {
        "default": CUSPARSE_SPMM_ALG_DEFAULT,
        "csr2": CUSPARSE_SPMM_CSR_ALG2,
        "csr3": CUSPARSE_SPMM_CSR_ALG3,
    },
    "spmv": {"csr1": CUSPARSE_SPMV_CSR_ALG1, "csr2": CUSPARSE_SPMV_CSR_ALG2},
}
_NO_MEMORY = (CUSPARSE_STATUS_ALLOC_FAILED, CUSPARSE_STATUS_INSUFFICIENT_RESOURCES)
_VALUE_TYPES = {"f32": CUDA_R_32F, "f64": CUDA_R_64F, "f16": CUDA_R_16F, "bf16": CUDA_R_16BF}
_HANDLE, _ADDRESS = c_void_p, c_void_p
#: Arguments of SpMM from its operations to its algorithm, and of SpMV.
_SPMM = (c_int, c_int, *(c_void_p,) * 5, c_int, c_int)
_SPMV = (c_int, *(c_void_p,) * 5, c_int, c_int)
#: Arguments of the functions called here; all return a status.
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cusparseCreate": (c_void_p,),
    "cusparseSetStream": (_HANDLE, c_void_p),
    "cusparseCreateCsr": (
        *(c_void_p, c_int64, c_int64, c_int64, _ADDRESS, _ADDRESS, _ADDRESS),
        *(c_int, c_int, c_int, c_int),
    ),
    "cusparseCreateDnMat": (c_void_p, c_int64, c_int64, c_int64, _ADDRESS, c_int, c_int),
    "cusparseCreateDnVec": (c_void_p, c_int64, _ADDRESS, c_int),
    "cusparseDnMatSetValues": (c_void_p, _ADDRESS),
    "cusparseDnVecSetValues": (c_void_p, _ADDRESS),
    "cusparseDestroySpMat": (c_void_p,),
    "cusparseDestroyDnMat": (c_void_p,),
    "cusparseDestroyDnVec": (c_void_p,),
    "cusparseSpMM_bufferSize": (_HANDLE, *_SPMM, c_void_p),
    "cusparseSpMM_preprocess": (_HANDLE, *_SPMM, _ADDRESS),
    "cusparseSpMM": (_HANDLE, *_SPMM, _ADDRESS),
    "cusparseSpMV_bufferSize": (_HANDLE, *_SPMV, c_void_p),
    "cusparseSpMV_preprocess": (_HANDLE, *_SPMV, _ADDRESS),
    "cusparseSpMV": (_HANDLE, *_SPMV, _ADDRESS),
}


class Cusparse:
    """The library with a handle, for the device whose context is current when it is created.

    The stream belongs to the handle, so `lock` is held from setting it until the call is enqueued.
    """

    def __init__(self, library: Any) -> None:
        self.functions = library
        for name, arguments in _SIGNATURES.items():
            if (function := getattr(library, name, None)) is not None:
                function.argtypes = arguments
        library.cusparseGetErrorString.restype = c_char_p
        self.lock = Lock()
        self.handle = c_void_p()
        self.call("cusparseCreate", byref(self.handle))

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the library. Raises: DeviceError."""
        self.check(name, getattr(self.functions, name)(*arguments))

    def check(self, name: str, status: int) -> None:
        """Raises: DeviceError for the status of a call that failed; of those NoDeviceMemory."""
        if status:
            text = (self.functions.cusparseGetErrorString(status) or b"unknown error").decode()
            kind = NoDeviceMemory if status in _NO_MEMORY else DeviceError
            raise kind(f"{name}: {text}")

    def descriptor(self, kind: str, *arguments: Any) -> c_void_p:
        """A new descriptor of kind `Csr`, `DnMat` or `DnVec`. Raises: DeviceError."""
        created = c_void_p()
        self.call(f"cusparseCreate{kind}", byref(created), *arguments)
        return created


_OPENED: weakref.WeakKeyDictionary[Device, Cusparse] = weakref.WeakKeyDictionary()


def cusparse(device: Device) -> Cusparse:
    """The library for a device, loaded once. Raises: RunnerUnavailable where it is missing."""
    if (opened := _OPENED.get(device)) is None:
        opened = _OPENED[device] = Cusparse(device.library("cusparse"))
    return opened


class CusparseProduct:
    """SpMM or SpMV with a matrix by one algorithm of cuSPARSE, called as a `Product` is.

    Descriptors, the work buffer and the library's preprocessing belong to the matrix and are made
    once; `form` holds the buffer. The current device must be the matrix's.

    Raises: RunnerUnavailable where the library is missing; DeviceError.
    """

    def __init__(self, csr: Csr, plan: Plan, device: Device) -> None:
        self.csr, self.plan, self.form = csr, plan, Form({})
        self._device, self._library = device, cusparse(device)
        vector = plan.op.name == "spmv"
        self._name, self._dense = ("SpMV", "DnVec") if vector else ("SpMM", "DnMat")
        functions = self._library.functions
        self._multiply = getattr(functions, f"cusparse{self._name}")
        self._set_values = getattr(functions, f"cusparse{self._dense}SetValues")
        self._set_stream = functions.cusparseSetStream
        self._stream = device.stream()
        if csr.nnz and plan.op.width:
            self._prepare()

    def __call__(self, b: torch.Tensor, x: torch.Tensor | None, out: torch.Tensor) -> torch.Tensor:
        """Compute into `out` in the current stream, without waiting for it.

        b dtype[n,k] (SpMV: dtype[n]), x None, out dtype[m,k] or dtype[m], all contiguous.
        """
        if not self.csr.nnz or not out.numel():
            return out.zero_()
        library, stream = self._library, self._device.stream()
        with library.lock:
            if stream != self._stream:  # the work buffer serves one call at a time
                self._device.wait_for(self._stream)
                self._stream = stream
            status = (
                self._set_stream(library.handle, stream)
                or self._set_values(self._b, b.data_ptr())
                or self._set_values(self._out, out.data_ptr())
                or self._multiply(*self._arguments, self._buffer)
            )
        library.check(f"cusparse{self._name}", status)
        return out

    def with_values(self, values: torch.Tensor) -> CusparseProduct:
        """The same with other values dtype[nnz] of the CSR matrix, preprocessed anew."""
        return CusparseProduct(self.csr.with_values(values), self.plan, self._device)

    def _prepare(self) -> None:
        csr, op, library = self.csr, self.plan.op, self._library
        (m, n), stored = csr.shape, _VALUE_TYPES[op.dtype]
        addresses = (one.data_ptr() for one in (csr.ptr, csr.idx, csr.values))
        indices = (CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO)
        matrix = library.descriptor("Csr", m, n, csr.nnz, *addresses, *indices, stored)
        self._destroy_with_it("cusparseDestroySpMat", matrix)
        # Only while preprocessing: each call sets its own addresses.
        width = () if op.name == "spmv" else (op.width,)
        dense = [csr.values.new_empty((rows, *width)) for rows in (n, m)]
        self._b, self._out = (self._dense_descriptor(one, stored) for one in dense)
        double = op.dtype == "f64"
        number = c_double if double else c_float
        self._scalars = number(1.0), number(0.0)
        transposed = (CUSPARSE_OPERATION_NON_TRANSPOSE,) * (1 + len(width))
        alpha, beta = (pointer(one) for one in self._scalars)
        self._arguments = (
            *(library.handle, *transposed, alpha, matrix, self._b, beta, self._out),
            CUDA_R_64F if double else CUDA_R_32F,
            _ALGORITHMS[op.name][self.plan.algorithm],
        )
        size = c_size_t()
        library.call(f"cusparse{self._name}_bufferSize", *self._arguments, byref(size))
        buffer = torch.empty(max(size.value, 1), dtype=torch.uint8, device=csr.ptr.device)
        self.form, self._buffer = Form({"buffer": buffer}), buffer.data_ptr()
        name = f"cusparse{self._name}_preprocess"
        if hasattr(library.functions, name):  # not in older versions
            with library.lock:
                library.call("cusparseSetStream", library.handle, self._device.stream())
                library.call(name, *self._arguments, self._buffer)

    def _dense_descriptor(self, dense: torch.Tensor, stored: int) -> c_void_p:
        if dense.ndim == 1:
            created = self._library.descriptor("DnVec", len(dense), dense.data_ptr(), stored)
        else:
            rows, columns = dense.shape
            shape = (rows, columns, columns)
            order = (stored, CUSPARSE_ORDER_ROW)
            created = self._library.descriptor("DnMat", *shape, dense.data_ptr(), *order)
        self._destroy_with_it(f"cusparseDestroy{self._dense}", created)
        return created

    def _destroy_with_it(self, function: str, created: c_void_p) -> None:
        # At the end of the process the library may be gone before this is.
        weakref.finalize(self, self._library.call, function, created).atexit = False
