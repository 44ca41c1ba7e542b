"""Checking a matrix on the device, and cutting its rows, in one kernel launch each instead of
dozens by torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from embeddb.kernels.cuda.device import Args, Call, Device
from embeddb.kernels.cuda.forms import Csr

_THREADS = 256
_INTEGERS = {torch.int32: "int", torch.int64: "long long"}


@dataclass(frozen=True, slots=True)
class Report:
    """Faults of a CSR matrix: pointers that do not rise from 0 to nnz, columns outside the matrix,
    rows whose columns fall, rows that have a column twice."""

    pointers: bool
    outside: bool
    falling: bool
    repeated: bool


def inspect(
    shape: tuple[int, int],
    ptr: torch.Tensor,
    idx: torch.Tensor,
    values: torch.Tensor,
    device: Device,
) -> tuple[Csr, Report]:
    """A matrix with pointers int[m+1] and columns int[nnz], of 32 or 64 bits each, as `Csr`, valid
    only if the report has no fault. `values` are not checked."""
    (m, n), nnz = shape, idx.numel()
    ptr, idx = ptr.contiguous(), idx.to(ptr.dtype).contiguous()
    # cuSPARSE wants addresses that are multiples of 16 bytes.
    sizes = (m + 1, nnz, nnz)
    room = [-(-count // 4) * 4 for count in sizes]
    places = torch.empty(sum(room), dtype=torch.int32, device=ptr.device)
    parts = [a[:count] for a, count in zip(torch.split(places, room), sizes, strict=True)]
    report = torch.zeros(5, dtype=torch.int32, device=ptr.device)
    args = Args(m=m, n=n, nnz=nnz, X=ptr.data_ptr(), B=idx.data_ptr(), out=report.data_ptr())
    args.ptr, args.idx, args.rows = (one.data_ptr() for one in parts)
    _launch(f"inspect<{_INTEGERS[ptr.dtype]}>", args, 32 * m, device)
    *faults, longest = report.tolist()
    return Csr(shape, parts[0], parts[1], values, [parts[2]], [longest]), Report(*map(bool, faults))


def pieces(csr: Csr, piece: int, device: Device) -> tuple[dict[str, torch.Tensor], bool]:
    """Rows cut into pieces of at most `piece` entries: `piece_row`, with the sign bit set if a row
    has several pieces, `piece_begin` and `piece_end` int32[pieces]; True if there are such rows. An
    empty row has one empty piece."""
    m, place = csr.shape[0], csr.ptr.device
    if csr.longest <= piece:
        rows = torch.arange(m, dtype=torch.int32, device=place)
        return {"piece_row": rows, "piece_begin": csr.ptr[:-1], "piece_end": csr.ptr[1:]}, False
    counts = torch.empty(m, dtype=torch.int32, device=place)
    args = Args(m=m, piece=piece, ptr=csr.ptr.data_ptr(), out=counts.data_ptr())
    _launch("count_pieces", args, m, device)
    sums = torch.cumsum(counts, 0)
    total = int(sums[-1])
    table = torch.empty((3, total), dtype=torch.int32, device=place)
    row, begin, end = table
    args = Args(m=m, piece=piece, ptr=csr.ptr.data_ptr(), X=sums.data_ptr())
    args.piece_row, args.piece_begin, args.piece_end = (one.data_ptr() for one in table)
    _launch("fill_pieces", args, 32 * m, device)
    return {"piece_row": row, "piece_begin": begin, "piece_end": end}, True


def _launch(template: str, args: Args, threads: int, device: Device) -> None:
    if threads:
        grid = -(-threads // _THREADS)
        device.kernel(template).launch(grid, _THREADS, 0, device.stream(), Call(args, 0))
