"""Sparse matrices: `embeddb.core.pattern.Pattern`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embeddb.core.kinds import Operation, WorkloadKind
from embeddb.core.pattern import Pattern
from embeddb.core.sizes import MATRIX_SYMBOLS, Sizes

if TYPE_CHECKING:
    from embeddb.core.records import WorkloadInfo
    from embeddb.core.row_lengths import RowLengths
    from embeddb.index.lookup import Lookup
    from embeddb.ranking.rankers.base import Ranker

#: (rows, columns) with which spaces are checked.
_SIZES = ((1, 1), (7, 3000), (3000, 7), (1024, 1024), (50_000, 20_000), (2_000_000_000, 2))


class Matrix(WorkloadKind):
    name = "matrix"
    one, many = "matrix", "matrices"
    operations = (
        Operation("spmm", wide=True, typed=True),
        Operation("sddmm", wide=True, typed=True),
        Operation("spmv", typed=True),
    )
    symbols = MATRIX_SYMBOLS
    sparse = learned = True

    def row_lengths(self, workload: Any) -> RowLengths:
        from embeddb.featurizers.row_lengths import histogram

        return histogram(workload)

    def brief(self, info: Any) -> str:
        return f"{info.m}x{info.n}, nnz={info.nnz}"

    def sample_sizes(self) -> list[Sizes]:
        return [Sizes(m, n, max(m, n)) for m, n in _SIZES]

    def sized(self, sizes: Sizes) -> str:
        return f"a {sizes.m} x {sizes.n} matrix"

    table = "structure"

    def encode(self, workload: Pattern) -> bytes:
        from embeddb.store.codec import encode_structure

        return encode_structure(workload)

    def decode(self, raw: bytes, *, pattern_id: str, name: str, group: str) -> Pattern:
        from embeddb.store.codec import decode_structure

        return decode_structure(raw, pattern_id=pattern_id, name=name, group=group)

    def facts(self, workload: Pattern) -> dict[str, Any]:
        from embeddb.core.thumbnail import thumbnail

        return {"thumbnail": thumbnail(workload)}

    def occluded(
        self, ranker: Ranker, lookup: Lookup, workload: Any, progress: Any
    ) -> dict[str, Any]:
        from embeddb.explain.deep import occlusion

        pattern = workload if isinstance(workload, Pattern) else None
        side, cells = occlusion(ranker.query, lookup, pattern, progress=progress)
        return {"attention": cells, "attention_side": side}

    file = "matrix file"
    extent = "nonzeros"
    placeholder = "MATRIX"

    def description(self, info: WorkloadInfo, store: Any) -> str:
        return f"{info.m} x {info.n}, {info.nnz}"

    def read_file(self, path: Path, *, alone: bool = False) -> Sequence[Pattern]:
        from embeddb.matrix_files import name_beside, read_pattern

        return [read_pattern(path, name=name_beside(path) if alone else "")]

    unreadable = (
        "the sizes of its matrices are not known: give --matrices DIR, or columns m, n, nnz"
    )
    adds = "--matrices DIR adds the structures"


PLUGIN = Matrix()
