"""Sparse tensors on a GPU as checked, sorted CSR with int32 indices."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from embeddb.core.errors import MatrixError, UsageError
from embeddb.kernels.cuda.device import Device
from embeddb.kernels.cuda.forms import Csr
from embeddb.kernels.cuda.prepare import inspect

_MAX = (1 << 31) - 1
_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
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

    def with_values(self, values: torch.Tensor) -> OrderedCsr:
        return replace(self, csr=self.csr.with_values(values))


def csr_of(matrix: torch.Tensor, device: Device | None = None) -> OrderedCsr:
    """A sparse tensor m×n in CSR, CSC or COO, copied; `device` checks sorted CSR in one launch.

    Raises: UsageError for another tensor or value type; MatrixError for 2^31 entries, rows or
    columns and more, and for invalid pointers or indices.
    """
    check(matrix)
    m, n = matrix.shape
    _check_sizes(matrix._nnz(), m, n)
    if matrix.layout is torch.sparse_csr and device is not None and m and n and matrix._nnz():
        parts = matrix.crow_indices(), matrix.col_indices(), matrix.values().detach().clone()
        csr, report = inspect((m, n), *parts, device)
        if report.pointers or report.outside:
            raise MatrixError(_POINTERS if report.pointers else _OUTSIDE)
        if not (report.falling or report.repeated):
            return OrderedCsr(csr, None)
    return _by_torch(matrix)


def check(matrix: torch.Tensor) -> None:
    """Check the type of a tensor. Raises: UsageError if it is no supported sparse matrix."""
    if not isinstance(matrix, torch.Tensor) or matrix.layout not in _LAYOUTS:
        parts = matrix.layout if isinstance(matrix, torch.Tensor) else type(matrix).__name__
        raise UsageError(f"A is {parts}: a sparse tensor in CSR, CSC or COO is needed")
    if matrix.dim() != 2 or matrix.dense_dim():
        raise UsageError(f"A has {matrix.dim()} dimensions: a matrix of numbers is needed")
    if matrix.dtype not in _TYPES:
        raise UsageError(f"A holds {matrix.dtype}: kernels compute in float64, 32 and 16 bits")


def _by_torch(matrix: torch.Tensor) -> OrderedCsr:
    m, n = matrix.shape
    if matrix.layout is torch.sparse_coo:
        values, (rows, columns) = matrix._values(), matrix._indices()  # in the caller's order
        ordered: bool | None = matrix.is_coalesced() or None
    elif matrix.layout is torch.sparse_csr:
        values, columns = matrix.values(), matrix.col_indices()
        rows, ordered = _expanded(matrix.crow_indices(), columns, m), None
    else:
        values, rows = matrix.values(), matrix.row_indices()
        columns, ordered = _expanded(matrix.ccol_indices(), rows, n), False
    return _sorted((m, n), rows.long(), columns.long(), values.detach(), ordered)


def _check_sizes(nnz: int, m: int, n: int) -> None:
    if max(nnz, m, n) > _MAX:
        raise MatrixError(f"A is {m}x{n} with {nnz} entries, of at most {_MAX} each")


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
    shape: tuple[int, int],
    rows: torch.Tensor,
    columns: torch.Tensor,
    values: torch.Tensor,
    ordered: bool | None,
) -> OrderedCsr:
    """Sorted CSR. `ordered`: True if sorted by row and column without duplicates, None if
    unknown."""
    (m, n), nnz = shape, values.numel()
    key = rows * max(n, 1) + columns
    order = None
    if nnz:
        rises = (key[1:] > key[:-1]).all() if nnz > 1 else key.new_ones((), dtype=torch.bool)
        bounds = torch.stack([*rows.aminmax(), *columns.aminmax(), rises.to(key.dtype)])
        low_row, row, low_column, column, rising = bounds.tolist()
        if min(low_row, low_column) < 0 or row >= m or column >= n:
            raise MatrixError(_OUTSIDE)
        if not (ordered or rising):
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
