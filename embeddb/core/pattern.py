"""Sparsity patterns: identity and structure, never values."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import MatrixError
from embeddb.core.kinds import kind_of
from embeddb.core.repr_html import html_of
from embeddb.core.sizes import MAX_DIM, Sizes

#: Groups of generated patterns, a family each (`indexer.generated`).
GENERATED = frozenset(
    f"generated-{family}"
    for family in (
        *("arrow", "banded", "block-diagonal", "blocks", "circuit", "collaboration"),
        *("communities", "mesh-unordered", "nearest", "power-columns", "power-rows", "pruned"),
        *("rmat", "road", "staircase", "stencil-2d", "stencil-3d", "tall", "uniform", "wide"),
    )
)
#: Rows processed together.
_ROWS = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """The structure of one sparse matrix in canonical CSR form.

    Shapes: `indptr` int64[m+1], `indices` int32[nnz], sorted and unique within each row. `id` is
    the blake2b-128 hex digest of shape, indptr and indices, independent of file, format and values;
    `digest` caches it. `group` names the source matrix or family; files cut from one matrix share
    it and are held out together in every evaluation.
    """

    kind: ClassVar[str] = "matrix"

    digest: str
    shape: tuple[int, int]
    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    name: str = ""
    group: str = ""

    @property
    def id(self) -> str:
        if not self.digest:
            object.__setattr__(self, "digest", _digest(self.shape, self.indptr, self.indices))
        return self.digest

    @property
    def nnz(self) -> int:
        return int(self.indptr[-1])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pattern) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def sizes(self) -> Sizes:
        return Sizes(*self.shape, self.nnz)

    def __repr__(self) -> str:
        m, n = self.shape
        return f"Pattern({self.name or self.id[:12]!r}, {m}x{n}, nnz={self.nnz})"

    def _repr_html_(self) -> str:
        return html_of(self)

    @classmethod
    def from_csr(
        cls, shape: tuple[int, int], indptr: Any, indices: Any, *, name: str = "", group: str = ""
    ) -> Pattern:
        """Build from CSR arrays in any order, duplicates allowed (they are merged). Raises:
        MatrixError if the arrays do not describe a CSR matrix of that shape."""
        m, n = _checked_shape(shape)
        ptr, raw = _checked_compressed(m, n, indptr, indices, kind=("row", "column"), name=name)
        ptr, idx = _canonical(n, ptr, raw)
        return cls("", (m, n), ptr, idx, name, group or name)

    @classmethod
    def from_csc(
        cls, shape: tuple[int, int], indptr: Any, indices: Any, *, name: str = "", group: str = ""
    ) -> Pattern:
        """Build from CSC arrays in any order, duplicates allowed (they are merged). Raises:
        MatrixError if the arrays do not describe a CSC matrix of that shape."""
        from scipy.sparse import csc_array

        m, n = _checked_shape(shape)
        # Checked first: scipy's conversion writes out of bounds for a row beyond m.
        ptr, idx = _checked_compressed(n, m, indptr, indices, kind=("column", "row"), name=name)
        csr = csc_array((np.ones(idx.size, dtype=np.int8), idx, ptr), shape=(m, n)).tocsr()
        return cls.from_csr((m, n), csr.indptr, csr.indices, name=name, group=group)

    @classmethod
    def from_coo(
        cls, shape: tuple[int, int], rows: Any, cols: Any, *, name: str = "", group: str = ""
    ) -> Pattern:
        """Build from zero-based coordinates in any order, duplicates merged. Raises: MatrixError if
        a coordinate lies outside the shape."""
        from scipy.sparse import coo_array

        m, n = _checked_shape(shape)
        r, c = _integers(rows, "rows", name), _integers(cols, "columns", name)
        if r.shape != c.shape:
            raise MatrixError("row and column lists differ in length", where=name)
        if r.size and (min(r.min(), c.min()) < 0 or r.max() >= m or c.max() >= n):
            raise MatrixError(f"an entry lies outside the {m} x {n} matrix", where=name)
        ones = np.ones(r.size, dtype=np.int8)
        where = r.astype(np.int32, copy=False), c.astype(np.int32, copy=False)
        csr = coo_array((ones, where), shape=(m, n)).tocsr()
        return cls.from_csr((m, n), csr.indptr, csr.indices, name=name, group=group)

    @classmethod
    def from_matrix(cls, matrix: Any, *, name: str = "", group: str = "") -> Pattern:
        """Structure of another library's sparse matrix: any object with `tocsr()`, as all of
        scipy's have, or a torch tensor in CSR, CSC or COO. Stored entries are structure whatever
        their value, except zeros that fill a block (BSR, DIA).

        Raises: MatrixError for anything but a two-dimensional sparse matrix.
        """
        shape = tuple(getattr(matrix, "shape", ()))
        layout = str(getattr(matrix, "layout", ""))
        if len(shape) == 2 and layout in _TORCH:
            build, arrays = _TORCH[layout]
            parts = (one.numpy() for one in arrays(matrix.detach()))
            pattern: Pattern = getattr(cls, build)(shape, *parts, name=name, group=group)
            return pattern
        if len(shape) != 2 or not hasattr(matrix, "tocsr"):
            kind = f"{type(matrix).__name__} of shape {shape}" if shape else type(matrix).__name__
            raise MatrixError(
                f"{kind} is not a sparse matrix",
                where=name,
                hint="pass a sparse matrix of scipy or torch, or a file; convert a dense array "
                "with scipy.sparse.csr_array(array)",
            )
        csr = matrix.tocsr()
        if getattr(matrix, "format", "") in ("bsr", "dia"):
            csr = csr.copy()
            csr.eliminate_zeros()
        return cls.from_csr(shape, csr.indptr, csr.indices, name=name, group=group)

    def to_scipy(self, dtype: Any = np.float32) -> Any:
        """A `scipy.sparse.csr_array` with ones as values; shares the index arrays."""
        from scipy.sparse import csr_array

        index = np.int32 if self.nnz < MAX_DIM else np.int64
        data = np.ones(self.nnz, dtype=dtype)
        return csr_array((data, self.indices, self.indptr.astype(index)), shape=self.shape)


#: Constructor of a pattern and its arrays, by the layout of a torch tensor.
_TORCH: dict[str, tuple[str, Callable[[Any], tuple[Any, ...]]]] = {
    "torch.sparse_csr": ("from_csr", lambda t: (t.crow_indices().cpu(), t.col_indices().cpu())),
    "torch.sparse_csc": ("from_csc", lambda t: (t.ccol_indices().cpu(), t.row_indices().cpu())),
    "torch.sparse_coo": ("from_coo", lambda t: tuple(t.coalesce().indices().cpu())),
}


def stub_id(name: str, m: int, n: int, nnz: int, *, kind: str = "matrix") -> str:
    """Id of a matrix of which only name and size are known (-1 for an unknown size), or of a
    workload of another kind of which only the name is known."""
    text = f"stub\x00{name}\x00{m}\x00{n}\x00{nnz}"
    if not kind_of(kind).sparse:
        text = f"{kind} {text}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _checked_shape(shape: tuple[int, int]) -> tuple[int, int]:
    m, n = int(shape[0]), int(shape[1])
    if not (0 <= m <= MAX_DIM and 0 <= n <= MAX_DIM):
        raise MatrixError(f"{m} x {n} is not a supported size (0..2^31-1)")
    return m, n


def _integers(values: Any, what: str, name: str) -> NDArray[Any]:
    """A one-dimensional array of an integer type; NaN and fractions cannot pass as indices."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise MatrixError(f"{what} are not a list of whole numbers", where=name)
    return array if array.size else array.astype(np.int32)


def _checked_compressed(
    m: int, n: int, indptr: Any, indices: Any, *, kind: tuple[str, str], name: str
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Pointers over m lines and indices below n; `kind` names the two for messages."""
    along, across = kind
    raw = _integers(indices, f"{across} indices", name)
    ptr = np.ascontiguousarray(_integers(indptr, f"{along} pointers", name), dtype=np.int64)
    if ptr.shape != (m + 1,) or ptr[0] != 0 or bool((ptr[1:] < ptr[:-1]).any()):
        raise MatrixError(f"{along} pointers do not ascend from 0 over {m} {along}s", where=name)
    if ptr[-1] != raw.size:
        raise MatrixError(
            f"{along} pointers end at {ptr[-1]}, but there are {raw.size} {across} indices",
            where=name,
            hint="A.prune() cuts the longer buffers of scipy's" if ptr[-1] < raw.size else "",
        )
    if raw.size and (raw.min() < 0 or raw.max() >= n):
        raise MatrixError(f"a {across} index lies outside 0..{n - 1}", where=name)
    return ptr, np.ascontiguousarray(raw, dtype=np.int32)


def _canonical(
    n: int, ptr: NDArray[np.int64], idx: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Sort each row and merge duplicates; the usual case (already sorted) costs one pass."""
    if _rises(ptr, idx):
        return ptr, idx
    from scipy.sparse import csr_array

    # 32-bit pointers where they fit; copies, since scipy sorts in place.
    index = np.int32 if idx.size <= MAX_DIM else np.int64
    ones = np.ones(idx.size, dtype=np.bool_)
    csr = csr_array((ones, idx.copy(), ptr.astype(index)), shape=(ptr.size - 1, max(n, 1)))
    csr.sum_duplicates()
    return csr.indptr.astype(np.int64), np.ascontiguousarray(csr.indices, dtype=np.int32)


def _rises(ptr: NDArray[np.int64], idx: NDArray[np.int32]) -> bool:
    """Return true if the indices ascend within each row. Processed in chunks of rows: a matrix may
    have many more rows than entries, and no array of their number may be allocated."""
    for first in range(0, ptr.size - 1, _ROWS):
        bounds = ptr[first : first + _ROWS + 1]
        low, high = int(bounds[0]), int(bounds[-1])
        if high - low < 2:
            continue
        rising = idx[low + 1 : high] > idx[low : high - 1]
        starts = bounds[(bounds > low) & (bounds < high)]
        rising[starts - (low + 1)] = True
        if not rising.all():
            return False
    return True


def _digest(shape: tuple[int, int], ptr: NDArray[np.int64], idx: NDArray[np.int32]) -> str:
    h = hashlib.blake2b(digest_size=16)
    h.update(np.array(shape, dtype="<i8").tobytes())
    h.update(ptr.astype("<i8", copy=False).data)
    h.update(idx.astype("<i4", copy=False).data)
    return h.hexdigest()
