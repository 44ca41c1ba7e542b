"""Conversion of CSR to the kernels' forms; the size of a form is computed before allocation.

Sources: SELL-C-sigma of Kreutzer et al., "A unified sparse matrix data format for efficient general
sparse matrix-vector multiplication on modern processors with wide SIMD units" (2014); panels of
columns that store their non-empty rows only (DCSR) of Hong et al., "Adaptive sparse tiling for
sparse matrix multiplication" (2019). Bandwidth reduction is scipy's reverse Cuthill-McKee.
"""

from __future__ import annotations

import ctypes
import math
import time
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Padding rows of every dense operand: enough for a whole block or slice, and a dummy row.
PADDING = 64
#: Columns that 16 bits count.
_SHORT = 1 << 16
_SLACK = 4096
_MAX_FILL = 8
#: scipy sorts the neighbours of a row by insertion, about a nanosecond per four squared degrees.
_MAX_SQUARED_DEGREES = 2e10


@dataclass(frozen=True, slots=True)
class FormSpec:
    """A storage format with its parameters.

    `block` is rows x columns of a bcsr block, `panel` the columns of a dcsr panel, `slice` the
    rows of a sell or ell slice, `sigma` the rows of a window that sell sorts by falling length;
    `reorder` permutes the rows of csr: none, length (falling) or rcm. sell16 stores columns in
    16 bits, as distances from the first column of their slice.
    """

    format: str = "csr"
    block: tuple[int, int] = (1, 1)
    panel: int = 0
    slice: int = 0
    sigma: int = 1
    reorder: str = "none"

    @property
    def compiled(self) -> bool:
        """True if compiled code converts to it."""
        return self.format == "bcsr" or self.slice > 0

    @property
    def index_bytes(self) -> int:
        """Bytes of a stored column."""
        return 2 if self.format == "sell16" else 4

    @property
    def rows(self) -> int:
        """Rows of the matrix in one segment."""
        return self.slice or self.block[0]


#: Plain CSR.
CSR = FormSpec()


@dataclass(slots=True)
class Form:
    """A matrix of `shape` in one form; the arrays are those of the kernels' `problem`.

    `ptr` int64[segments+1], `idx` int32[...] (uint16[...] for 16-bit columns), `val` dtype[stored],
    `row` int32[segments] (slices: int32[lanes], m for a lane of no row) or None, `panel`
    int64[panels+1] or None; 16-bit columns count from 0, or in a matrix of more than 65,536 columns
    from `panel` int64[segments]. `order`
    int64[stored] is the position in CSR of each stored value, -1 for fill, and None if not
    requested or the same. `conversion_s` excludes computing `order`.
    """

    shape: tuple[int, int]
    ptr: NDArray[np.int64]
    idx: NDArray[Any]
    val: NDArray[Any]
    row: NDArray[np.int32] | None = None
    panel: NDArray[np.int64] | None = None
    order: NDArray[np.int64] | None = None
    conversion_s: float = 0.0

    @property
    def nbytes(self) -> int:
        arrays = (self.ptr, self.idx, self.val, self.row, self.panel, self.order)
        return sum(a.nbytes for a in arrays if a is not None)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason and status of a refused form, for which nothing was allocated.

    `need_bytes` would suffice, 0 if more memory does not help.
    """

    reason: str
    need_bytes: int = 0
    status: str = "oom"


class Converter:
    """Conversions by numpy and scipy, of blocks and slices by compiled code.

    `library` is the path of its shared object, loaded on first use.
    """

    def __init__(self, library: str) -> None:
        self._library = library

    def convert(
        self, csr: Form, spec: FormSpec, *, max_bytes: int, ordered: bool = False
    ) -> Form | Refusal:
        """Convert plain CSR to another form, with `order` if `ordered`.

        Refused: more than 8 stored values per non-zero, more than `max_bytes` bytes while
        converting, a reordering that takes too long.
        """
        if spec == CSR:
            return csr
        self._load(spec)
        start = time.perf_counter()
        form = self._made(csr, spec, max_bytes)
        seconds = time.perf_counter() - start
        if isinstance(form, Refusal):
            return form
        form.conversion_s = seconds
        return self._with_order(csr, spec, form, max_bytes) if ordered else form

    def _made(self, csr: Form, spec: FormSpec, max_bytes: int) -> Form | Refusal:
        if spec.format == "bcsr":
            return self._blocked(csr, spec.block, max_bytes)
        if spec.slice:
            return self._sliced(csr, spec, max_bytes)
        make = {"csr": _reordered, "dcsr": _panelled, "csc": _columns}
        return make[spec.format](csr, spec, max_bytes)

    def _with_order(self, csr: Form, spec: FormSpec, form: Form, max_bytes: int) -> Form | Refusal:
        """The form with `order`, by converting positions instead of values."""
        row = form.row if spec.format == "csr" else None
        taken = form.nbytes + 8 * csr.val.size
        if row is not None:
            taken += _bytes_of_rows(csr, 8)
        if taken > max_bytes:
            return _too_large("the order of its values", taken, max_bytes)
        marks = replace(csr, val=np.arange(1, csr.val.size + 1, dtype=np.int64))
        if row is not None:
            again: Form | Refusal = _with_rows(marks, row)
        else:
            again = self._made(marks, spec, max_bytes - taken)
        if isinstance(again, Refusal):
            return replace(again, need_bytes=again.need_bytes + taken if again.need_bytes else 0)
        again.val[:] -= 1
        return replace(form, order=again.val)

    def _blocked(self, csr: Form, block: tuple[int, int], max_bytes: int) -> Form | Refusal:
        """BCSR with row-major blocks; `idx` are the block columns in ascending order."""
        (m, n), (r, c) = csr.shape, block
        what = f"{r}x{c} blocks"
        rows, cols = -(-m // r), -(-n // c)
        fixed = 8 * (rows + 1) + 12 * cols
        if fixed > max_bytes:
            return _too_large(f"rows and columns of {what}", fixed, max_bytes)
        lib = _code(self._library)
        mark = np.full(cols, -1, dtype=np.int32)
        ptr = np.empty(rows + 1, dtype=np.int64)
        head = (m, r, c, address(csr.ptr), address(csr.idx))
        blocks = lib.bcsr_count(*head, address(mark), address(ptr))
        stored, size = blocks * r * c, csr.val.itemsize
        need = fixed + blocks * 4 + stored * size
        if refusal := _unfit(what, (stored, csr.idx.size), need, max_bytes):
            return refusal
        mark.fill(-1)
        idx, val = np.empty(blocks, dtype=np.int32), aligned((stored,), csr.val.dtype)
        place = np.empty(cols, dtype=np.int64)
        lib.bcsr_fill(*head, *map(address, (csr.val, ptr, mark, place, idx, val)), size)
        return Form(csr.shape, ptr, idx, val)

    def _sliced(self, csr: Form, spec: FormSpec, max_bytes: int) -> Form | Refusal:
        """SELL-C-sigma and ELL: slices of rows, column-major inside, filled up to the longest."""
        (m, n), nnz, rows, size = csr.shape, csr.idx.size, spec.slice, csr.val.itemsize
        slices, lib = -(-m // rows), _code(self._library)
        what = f"{spec.format} slices of {rows} rows"
        longest = lib.longest_of_rows(m, address(csr.ptr))
        fixed = 16 * (slices + 1) + 4 * slices * rows + 8 * (m + longest + 2)
        if fixed > max_bytes:
            return _too_large(f"rows of {what}", fixed, max_bytes)
        counts = (slices * rows, np.int32), (slices + 1, np.int64), (longest + 2, np.int64)
        (row, ptr, first), equal = room(*counts), spec.format == "ell"
        source, to = (address(csr.ptr), address(csr.idx)), (address(row), address(ptr))
        stored = lib.sell_rows(m, rows, spec.sigma, equal, source[0], address(first), *to)
        need = fixed + stored * (spec.index_bytes + size)
        if refusal := _unfit(what, (stored, nnz), need, max_bytes):
            return refusal
        base = None
        if spec.format == "sell16" and n > _SHORT:
            base = np.empty(slices, np.int64)
            span = lib.sell_columns(m, rows, *source, to[0], address(base))
            if span >= _SHORT:
                return Refusal(f"{what} span {span + 1} columns, 16 bits count {_SHORT}")
        index = np.uint16 if spec.index_bytes == 2 else np.int32
        idx, val = room((stored, index), (stored, csr.val.dtype))
        filled = (None if base is None else address(base), address(idx), address(val))
        values = address(csr.val)
        lib.sell_fill(m, rows, *source, values, *to, *filled, spec.index_bytes, size)
        return Form(csr.shape, ptr, idx, val, row=row, panel=base)

    def _load(self, spec: FormSpec) -> None:
        """Load code of the conversion in advance, so that it is not timed."""
        if spec.compiled:
            _code(self._library)
            return
        import scipy.sparse

        if spec.reorder == "rcm":
            import scipy.sparse.csgraph  # noqa: F401


#: Most bytes of arrays in one piece.
_PIECE = 1 << 25
#: Compiled code of conversions that this process has loaded, if any.
_loaded: list[ctypes.CDLL] = []
_INT, _SHORT_INT, _AT = ctypes.c_int64, ctypes.c_int32, ctypes.c_void_p
#: Parameters of its functions: numbers and addresses.
_PARAMETERS = {
    "bcsr_count": (_INT, _SHORT_INT, _SHORT_INT, *4 * (_AT,)),
    "bcsr_fill": (_INT, _SHORT_INT, _SHORT_INT, *8 * (_AT,), _SHORT_INT),
    "longest_of_rows": (_INT, _AT),
    "spread_of_rows": (_INT, _AT, _INT),
    "copy_rows": (*6 * (_INT,), *6 * (_AT,)),
    "sell_rows": (*4 * (_INT,), *4 * (_AT,)),
    "sell_columns": (_INT, _INT, *4 * (_AT,)),
    "sell_fill": (_INT, _INT, *8 * (_AT,), _SHORT_INT, _SHORT_INT),
}


@cache
def _code(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    for name, parameters in _PARAMETERS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = parameters, _INT
    library.bcsr_fill.restype = library.sell_fill.restype = None
    _loaded[:] = [library]
    return library


def sorted_copy(shape: tuple[int, int], indptr: Any, indices: Any, values: Any) -> Form | None:
    """A checked copy of CSR arrays that are sorted without duplicates, in one pass of compiled
    code; None without that code and for any other arrays."""
    (m, n), index = shape, (np.dtype(np.int32), np.dtype(np.int64))
    if not _loaded or not all(map(_is_plain, (indptr, indices, values))):
        return None
    if indptr.dtype not in index or indices.dtype not in index or indptr.size != m + 1:
        return None
    # Another thread may have replaced an array since; `Pattern` refuses so many columns.
    if indices.size != values.size or n >= 1 << 31:
        return None
    sizes = (indptr.itemsize, indices.itemsize, values.itemsize)
    nnz = indices.size
    ptr, idx, val = room((m + 1, np.int64), (nnz, np.int32), (values.size, values.dtype))
    places = map(address, (indptr, indices, values, ptr, idx, val))
    done = _loaded[0].copy_rows(m, n, nnz, *sizes, *places)
    return Form((m, n), ptr, idx, val) if done else None


def _is_plain(array: Any) -> bool:
    """True for a row of numbers that C can read."""
    if type(array) is not np.ndarray or array.ndim != 1 or not array.dtype.isnative:
        return False
    flags = array.flags
    return bool(flags.c_contiguous and flags.aligned)


def spread_of_rows(ptr: NDArray[np.int64], rows: int) -> int:
    """Sum over windows of so many rows of the longest row's entries minus the shortest one's."""
    if _loaded:
        spread: int = _loaded[0].spread_of_rows(ptr.size - 1, address(ptr), rows)
        return spread
    lengths = np.diff(ptr)
    starts = np.arange(0, lengths.size, rows)
    ends = np.maximum.reduceat(lengths, starts) - np.minimum.reduceat(lengths, starts)
    return int(ends.sum())


def room(*parts: tuple[int, Any]) -> list[NDArray[Any]]:
    """Arrays of so many items of a type, with any content, aligned as by `aligned`, up to 32 MiB in
    one piece of memory: C's allocator keeps up to twice its largest piece, and new pages of the
    system take longer than filling them."""
    sizes = [count * np.dtype(dtype).itemsize + 63 & -64 for count, dtype in parts]
    if sum(sizes) > _PIECE and len(parts) > 1:
        return [room(part)[0] for part in parts]
    piece = np.empty(sum(sizes) + 64, np.uint8)
    start, arrays = -address(piece) % 64, []
    for (count, dtype), size in zip(parts, sizes, strict=True):
        arrays.append(np.ndarray((count,), dtype, piece, start))
        start += size
    return arrays


def aligned(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Zeros aligned to a cache line, so that vectors do not straddle two."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, dtype=np.uint8)
    start = -address(raw) % 64
    view: NDArray[Any] = raw[start : start + size].view(dtype).reshape(shape)
    return view


def aligned_copy(values: NDArray[Any]) -> NDArray[Any]:
    """A copy aligned as by `aligned`."""
    copied = aligned(values.shape, values.dtype)
    copied[:] = values
    return copied


def as_scipy(csr: Form, values: NDArray[Any] | None = None) -> Any:
    """A plain CSR form as a scipy array that shares memory; with other values if given."""
    from scipy.sparse import csr_array

    index = np.int32 if csr.idx.size < 2**31 - 1 else np.int64
    array = csr_array(csr.shape, dtype=csr.val.dtype if values is None else values.dtype)
    # Assigned, since the constructor reads all indices again to check them.
    array.data = csr.val if values is None else values
    array.indices, array.indptr = csr.idx.astype(index, copy=False), csr.ptr.astype(index)
    return array


def address(array: NDArray[Any]) -> int:
    """Address of the first element."""
    try:
        # A fourth of the other's time; numpy's stubs leave out its buffers.
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # read-only, or empty
        at: int = array.__array_interface__["data"][0]
        return at


def _too_large(what: str, need: int, max_bytes: int) -> Refusal:
    return Refusal(f"{what} need {need} bytes, {max_bytes} are left", need_bytes=need)


def _unfit(what: str, counts: tuple[int, int], need: int, max_bytes: int) -> Refusal | None:
    """Refusal if `counts` of stored values and of non-zeros, or `need` bytes, are too many."""
    stored, nnz = counts
    if stored > _MAX_FILL * nnz + _SLACK:
        fill = f"fill {stored / max(nnz, 1):.1f} > {_MAX_FILL}"
        return Refusal(f"{what} store {stored} values for {nnz}: {fill}")
    return _too_large(what, need, max_bytes) if need > max_bytes else None


def _columns(csr: Form, spec: FormSpec, max_bytes: int) -> Form | Refusal:
    """CSC: a segment per column, `idx` are the rows."""
    n, nnz = csr.shape[1], csr.idx.size
    need = 12 * (n + 1) + nnz * (4 + 2 * csr.val.itemsize)
    if need > max_bytes:
        return _too_large("columns", need, max_bytes)
    csc = as_scipy(csr).tocsc()
    idx = csc.indices.astype(np.int32, copy=False)
    return Form(csr.shape, csc.indptr.astype(np.int64), idx, aligned_copy(csc.data))


def _panelled(csr: Form, spec: FormSpec, max_bytes: int) -> Form | Refusal:
    """DCSR in panels of columns: entries by panel, row and column, non-empty rows only."""
    (m, n), nnz = csr.shape, csr.idx.size
    width = max(1, min(spec.panel, n))
    panels = -(-n // width)
    segments = min(nnz, m * panels)
    need = 20 * (segments + panels + 2) + nnz * (29 + csr.val.itemsize)
    if need > max_bytes:
        return _too_large(f"panels of {width} columns", need, max_bytes)
    # As columns of a narrower matrix: scipy's counting sort keeps the order inside a panel.
    where = replace(csr, shape=(m, panels), idx=csr.idx // np.int32(width))
    csc = as_scipy(where, np.arange(nnz, dtype=np.int64)).tocsc()
    new = np.ones(nnz, dtype=np.bool_)
    new[1:] = csc.indices[1:] != csc.indices[:-1]
    starts = csc.indptr.astype(np.int64)
    new[starts[:-1][starts[:-1] < nnz]] = True
    first = np.flatnonzero(new)
    val = aligned((nnz,), csr.val.dtype)
    np.take(csr.val, csc.data, out=val)
    return Form(
        csr.shape,
        np.append(first, nnz),
        csr.idx[csc.data],
        val,
        row=csc.indices[first].astype(np.int32, copy=False),
        panel=np.searchsorted(first, starts),
    )


def _reordered(csr: Form, spec: FormSpec, max_bytes: int) -> Form | Refusal:
    """CSR with its rows in another order; columns and the result keep theirs."""
    (m, n), nnz = csr.shape, csr.idx.size
    need = _bytes_of_rows(csr, csr.val.itemsize)
    if spec.reorder == "rcm":
        need += 40 * (m + n) + 24 * nnz
    if need > max_bytes:
        return _too_large(f"rows by {spec.reorder}", need, max_bytes)
    if spec.reorder == "length":
        row = np.argsort(-np.diff(csr.ptr), kind="stable").astype(np.int32)
    elif (degrees := _squared_degrees(csr)) > _MAX_SQUARED_DEGREES:
        seconds = degrees / 4e9
        reason = f"reverse Cuthill-McKee would sort long rows by insertion for {seconds:.0f} s"
        return Refusal(reason, status="timeout")
    else:
        row = _cuthill_mckee(csr)
    return _with_rows(csr, row)


def _bytes_of_rows(csr: Form, size: int) -> int:
    """Memory of `_with_rows` for values of `size` bytes."""
    return 32 * csr.ptr.size + csr.idx.size * (4 + 2 * size)


def _with_rows(csr: Form, row: NDArray[np.int32]) -> Form:
    permuted = as_scipy(csr)[row]
    idx = permuted.indices.astype(np.int32, copy=False)
    val = aligned_copy(permuted.data)
    return Form(csr.shape, permuted.indptr.astype(np.int64), idx, val, row=row)


def _squared_degrees(csr: Form) -> float:
    """Sum of squared degrees in the graph of `_cuthill_mckee`."""
    m, n = csr.shape
    rows = np.diff(csr.ptr).astype(np.float64)
    columns = np.bincount(csr.idx, minlength=n).astype(np.float64)
    if m == n:
        return float(((rows + columns) ** 2).sum())
    return float((rows**2).sum() + (columns**2).sum())


def _cuthill_mckee(csr: Form) -> NDArray[np.int32]:
    """Rows in reverse Cuthill-McKee order, int32[m].

    The graph is the symmetrised pattern of a square matrix, else the bipartite one of its rows
    and columns, restricted to the rows.
    """
    from scipy.sparse import block_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    m, n = csr.shape
    if not csr.idx.size:
        return np.arange(m, dtype=np.int32)
    a = as_scipy(csr, np.ones(csr.idx.size, dtype=np.int8))
    graph = a + a.T if m == n else block_array([[None, a], [a.T, None]])
    order = reverse_cuthill_mckee(graph.tocsr(), symmetric_mode=True)
    row: NDArray[np.int32] = order[order < m].astype(np.int32, copy=False)
    return row
