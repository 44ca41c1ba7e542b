"""Storage formats of a sparse matrix on the device, converted there by torch.

Checking a matrix, and cutting its rows, take one kernel launch each instead of dozens by torch;
all else runs on any torch device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from embeddb.core.errors import EmbeddbError
from embeddb.kernels.cuda.device import Args, Call, Device
from embeddb.kernels.cuda.plan import BLOCK_COLUMNS, FormSpec, Plan

#: Bit in `piece_row` if several groups of threads add to that row of the result.
_SHARED = torch.tensor(-(1 << 31), dtype=torch.int32)
#: Stored values per entry of a format that fills up with zeros, and stored values in all.
_MOST_PADDING, _MOST_VALUES = 10, 400_000_000
#: Leading columns of a row that `reorder=columns` compares.
_COMPARED = 16
_PACKED = {"bf16": torch.bfloat16, "f16": torch.float16}
_THREADS = 256
_INTEGERS = {torch.int32: "int", torch.int64: "long long"}


class FormRefused(EmbeddbError):
    """A configuration is refused for a matrix. `status` is that of a measurement: `oom` if the
    format would store too many zeros, `invalid` if the kernel cannot be launched."""

    def __init__(self, message: str, *, status: str = "oom") -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, eq=False)
class Csr:
    """A matrix m×n on a device: `ptr` int32[m+1], `idx` int32[nnz] sorted in each row, `values`
    dtype[nnz]. `rows` int32[nnz], the row of each entry, and `longest`, the entries of the longest
    row, are computed on first use."""

    shape: tuple[int, int]
    ptr: torch.Tensor
    idx: torch.Tensor
    values: torch.Tensor
    _rows: list[torch.Tensor] = field(default_factory=list, repr=False)
    _longest: list[int] = field(default_factory=list, repr=False)

    @property
    def nnz(self) -> int:
        return int(self.idx.numel())

    @property
    def lengths(self) -> torch.Tensor:
        """int32[m]: entries of each row."""
        return self.ptr[1:] - self.ptr[:-1]

    @property
    def rows(self) -> torch.Tensor:
        if not self._rows:
            rows = torch.arange(self.shape[0], dtype=torch.int32, device=self.ptr.device)
            self._rows.append(torch.repeat_interleave(rows, self.lengths, output_size=self.nnz))
        return self._rows[0]

    @property
    def longest(self) -> int:
        if not self._longest:
            self._longest.append(int(self.lengths.max()) if self.shape[0] else 0)
        return self._longest[0]

    def with_values(self, values: torch.Tensor) -> Csr:
        """The same pattern with other values dtype[nnz]."""
        return Csr(self.shape, self.ptr, self.idx, values, self._rows, self._longest)

    def transposed(self) -> tuple[Csr, torch.Tensor]:
        """Aᵀ, and the positions int64[nnz] of its entries in this matrix."""
        order = torch.argsort(self.idx, stable=True)
        counts = torch.bincount(self.idx, minlength=self.shape[1])
        ptr = _offsets(counts).to(torch.int32)
        turned = self.shape[1], self.shape[0]
        return Csr(turned, ptr, self.rows[order], self.values[order]), order


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """A matrix in one format; tensors by the names of the kernels' arguments.

    `pieces`: units of work if the format lists them (0: rows or entries). `adds`: several groups
    add to some row of the result, so the result must be zero before. `places` int64[nnz] are the
    positions of the CSR entries in `tensors["val"]`; None: the same order.
    """

    tensors: dict[str, torch.Tensor]
    pieces: int = 0
    adds: bool = False
    places: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes beside the CSR matrix."""
        return sum(one.numel() * one.element_size() for one in self.tensors.values())

    def with_values(self, values: torch.Tensor) -> Form:
        """The same with other values dtype[nnz] of the CSR matrix."""
        if self.places is None:
            return self
        stored = torch.zeros_like(self.tensors["val"])
        stored[self.places] = values.to(stored.dtype)
        return Form({**self.tensors, "val": stored}, self.pieces, self.adds, self.places)


def form_of(csr: Csr, of: Plan, device: Device) -> Form:
    """The matrix in the format of a plan.

    Raises: FormRefused if it would store more than ten values per entry; as `Device.kernel`.
    """
    spec = of.form
    if spec.layout == "csr":
        return Form({})
    if spec.layout == "entries":
        return Form({"rows": csr.rows}, adds=of.op.name != "sddmm")
    if spec.layout == "rows":
        return Form({"perm": _row_order(csr, spec.reorder).to(torch.int32)})
    if spec.layout == "pieces":
        return _pieces(csr, spec, device)
    make = {"slices": _slices, "stream": _stream, "windows": _windows}
    return make[spec.layout](csr, spec)


def _offsets(counts: torch.Tensor) -> torch.Tensor:
    """int64[k+1]: start of each of k runs of these lengths, and the end."""
    sums = torch.cumsum(counts, 0, dtype=torch.int64)
    return torch.cat([sums.new_zeros(1), sums])


def _row_order(csr: Csr, reorder: str) -> torch.Tensor:
    """int64[m]: rows in order, by falling length, or in lexicographic order of their first columns,
    shorter rows first."""
    if reorder == "length":
        return torch.argsort(csr.lengths, descending=True, stable=True)
    order = torch.arange(csr.shape[0], device=csr.ptr.device)
    if reorder == "none":
        return order
    # The last key first, by stable sorts.
    for place in reversed(range(min(csr.longest, _COMPARED))):
        at = csr.ptr[:-1].long() + place
        ends = at >= csr.ptr[1:]
        column = csr.idx[at.clamp(max=csr.nnz - 1)].masked_fill(ends, -1)
        order = order[torch.argsort(column[order], stable=True)]
    return order


def _cut(begin: torch.Tensor, end: torch.Tensor, piece: int) -> tuple[dict[str, Any], bool]:
    """Runs [begin, end) int64[k], cut into pieces of at most `piece` (0: whole). An empty run has
    one empty piece."""
    lengths = end - begin
    counts = torch.ones_like(lengths) if not piece else (-(-lengths // piece)).clamp(min=1)
    first = _offsets(counts)
    total = int(first[-1])
    of = torch.repeat_interleave(
        torch.arange(len(lengths), device=begin.device), counts, output_size=total
    )
    starts = begin[of]
    if piece:
        starts = starts + (torch.arange(total, device=begin.device) - first[:-1][of]) * piece
        stops = torch.minimum(starts + piece, end[of])
    else:
        stops = end[of]
    shared = counts[of] > 1
    row = torch.where(shared, of.to(torch.int32) | _SHARED.to(begin.device), of.to(torch.int32))
    parts = {"piece_row": row, "piece_begin": starts, "piece_end": stops}
    return parts, bool(shared.any())


def _as_form(parts: dict[str, Any], adds: bool, more: dict[str, torch.Tensor]) -> Form:
    pieces = int(parts["piece_row"].numel())
    tensors = {name: one.to(torch.int32).contiguous() for name, one in parts.items()}
    return Form({**tensors, **more}, pieces, adds)


def _pieces(csr: Csr, spec: FormSpec, device: Device) -> Form:
    parts, adds = _cut_rows(csr, spec.piece, device)
    if spec.reorder == "length":
        lengths = parts["piece_end"] - parts["piece_begin"]
        order = torch.argsort(lengths, descending=True, stable=True)
        parts = {name: one[order] for name, one in parts.items()}
    return _as_form(parts, adds, {})


def _slices(csr: Csr, spec: FormSpec) -> Form:
    """SELL: slices of 32 rows, each as long as its longest row; fill has the column -1. Rows are
    sorted by falling length within `sigma` rows (0: all, 1: unsorted)."""
    m, device = csr.shape[0], csr.ptr.device
    lengths = csr.lengths.long()
    perm = torch.arange(m, device=device)
    if spec.sigma != 1 and m:
        longest = int(lengths.max()) + 1
        key = (longest - lengths) + (perm // (spec.sigma or m)) * (longest + 1)
        perm = torch.argsort(key, stable=True)
    slices = -(-m // 32)
    padded = torch.zeros(slices * 32, dtype=torch.int64, device=device)
    padded[:m] = lengths[perm]
    ptr = _offsets(padded.view(slices, 32).amax(1) * 32 if m else padded)
    total = int(ptr[-1])
    _check_padding(total, csr.nnz)
    place = torch.empty(m, dtype=torch.int64, device=device)
    place[perm] = torch.arange(m, device=device)
    rows = csr.rows.long()
    within = torch.arange(csr.nnz, device=device) - csr.ptr[rows].long()
    at = ptr[place[rows] // 32] + within * 32 + place[rows] % 32
    idx = torch.full((total,), -1, dtype=torch.int32, device=device)
    val = torch.zeros(total, dtype=csr.values.dtype, device=device)
    idx[at], val[at] = csr.idx, csr.values
    tensors = {"ptr": ptr.to(torch.int32), "idx": idx, "val": val, "perm": perm.to(torch.int32)}
    return Form(tensors, places=at)


def _stream(csr: Csr, spec: FormSpec) -> Form:
    """Blocks of neighbouring rows with at most `piece` entries in all, at most `piece` rows; a
    longer row is cut. `rows` has the row after a block's last.

    `after[i]` is the row after the block that would begin at row i; starts of blocks, beginning
    with row 0, are marked by pointer doubling.
    """
    m, piece, device = csr.shape[0], spec.piece, csr.ptr.device
    ptr = csr.ptr.long()
    row = torch.arange(m, device=device)
    after = torch.searchsorted(ptr, ptr[:-1] + piece, right=True) - 1
    after = torch.minimum(after.clamp(max=m), row + piece)
    after = torch.maximum(after, row + 1)
    begins = torch.zeros(m + 1, dtype=torch.bool, device=device)
    begins[0] = True
    jump = torch.cat([after, after.new_full((1,), m)])
    for _ in range(max(m, 1).bit_length()):
        begins[jump[begins]] = True
        jump = jump[jump]
    first = torch.nonzero(begins[:m]).flatten()
    last = after[first]
    long = ptr[first + 1] - ptr[first] > piece
    parts, _ = _cut(ptr[first], ptr[last], 0)
    parts["piece_row"] = first.to(torch.int32)
    whole = {name: one[~long] for name, one in parts.items()}
    cut, adds = _cut(ptr[first[long]], ptr[last[long]], piece)
    tagged = cut["piece_row"] & ~_SHARED.to(device)
    cut["piece_row"] = first[long][tagged.long()].to(torch.int32) | _SHARED.to(device)
    behind = torch.cat([last[~long], last[long][tagged.long()]]).to(torch.int32)
    joined = {name: torch.cat([whole[name], cut[name]]) for name in whole}
    return _as_form(joined, adds, {"rows": behind})


def _windows(csr: Csr, spec: FormSpec) -> Form:
    """Windows of `window` rows with their non-empty columns, in blocks of columns; values are in
    the reading order of the kernel's lanes."""
    m, n = csr.shape
    height, wide, device = spec.window, BLOCK_COLUMNS[spec.math], csr.ptr.device
    count = -(-m // height)
    order = _row_order(csr, spec.reorder)
    perm = torch.full((count * height,), -1, dtype=torch.int32, device=device)
    perm[:m] = order.to(torch.int32)
    place = torch.empty(m, dtype=torch.int64, device=device)
    place[order] = torch.arange(m, device=device)
    at_place = place[csr.rows.long()]
    window, slot = at_place // height, at_place % height
    key = window * max(n, 1) + csr.idx.long()
    columns, which = torch.unique(key, return_inverse=True)
    of_window = columns // max(n, 1)
    widths = torch.bincount(of_window, minlength=count)
    first_column, blocks = _offsets(widths), _offsets(-(-widths // wide))
    total = int(blocks[-1])
    _check_padding(total * wide * height, csr.nnz)
    nth = torch.arange(len(columns), device=device) - first_column[of_window]
    position = blocks[of_window] * wide + nth  # of each column among those of all blocks
    idx = _filled(columns % max(n, 1), position, of_window, blocks, wide)
    parts, adds = _cut(blocks[:-1], blocks[1:], spec.piece)
    where = position[which]
    block, inner = where // wide, where % wide
    if spec.sampled:
        entry = torch.full((total * 128,), -1, dtype=torch.int32, device=device)
        lane = (slot % 8) * 4 + inner // 2
        entry[block * 128 + lane * 4 + (slot // 8) * 2 + inner % 2] = torch.arange(
            csr.nnz, dtype=torch.int32, device=device
        )
        return _as_form(parts, False, {"idx": idx, "perm": perm, "position": entry})
    at = _value_place(block, inner, slot, height, wide)
    stored = _PACKED.get(spec.math, csr.values.dtype)
    val = torch.zeros(total * wide * height, dtype=stored, device=device)
    val[at] = csr.values.to(stored)
    form = _as_form(parts, adds, {"idx": idx, "perm": perm, "val": val})
    return Form(form.tensors, form.pieces, form.adds, at)


def _filled(
    column: torch.Tensor,
    position: torch.Tensor,
    of_window: torch.Tensor,
    blocks: torch.Tensor,
    wide: int,
) -> torch.Tensor:
    """int32: the columns of all blocks; a window's last column pads its last block."""
    total = int(blocks[-1]) * wide
    idx = torch.zeros(total, dtype=torch.int32, device=column.device)
    if wide > 1 and total:
        last = torch.zeros(len(blocks) - 1, dtype=torch.int64, device=column.device)
        last.scatter_reduce_(0, of_window, column, "amax", include_self=True)
        counts = (blocks[1:] - blocks[:-1]) * wide
        idx = torch.repeat_interleave(last, counts, output_size=total).to(torch.int32)
    idx[position] = column.to(torch.int32)
    return idx


def _value_place(
    block: torch.Tensor, inner: torch.Tensor, slot: torch.Tensor, height: int, wide: int
) -> torch.Tensor:
    """int64[nnz]: positions of a window's values. Tensor cores: the fragment order of `mma.sync`,
    values of a lane contiguous."""
    if wide == 1:
        return block * height + slot
    start = block * wide * height
    tall = height == 16
    if wide == 8:
        lane = (slot % 8) * 4 + inner // 2
        return start + lane * (height // 4) + (slot // 8 + 2 * (inner % 2) if tall else inner % 2)
    lane, half = (slot % 8) * 4 + inner // 4, inner % 4 // 2
    word = lane * (height // 4) + (slot // 8 + 2 * half if tall else half)
    return start + word * 2 + inner % 2


def _check_padding(stored: int, nnz: int) -> None:
    if stored > _MOST_PADDING * nnz + 4096 or stored > _MOST_VALUES:
        raise FormRefused(f"the format would store {stored} values for {nnz} entries")


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


def _cut_rows(csr: Csr, piece: int, device: Device) -> tuple[dict[str, torch.Tensor], bool]:
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
