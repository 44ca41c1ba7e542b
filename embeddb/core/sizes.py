"""The sizes of what is tuned, as configurations and cost models are told them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from embeddb.core.kinds import kind_with, kinds

#: Largest number of rows or columns: indices are kept as int32.
MAX_DIM = 2**31 - 1

#: Names that stand for a size of the matrix (or, `WIDTH`, of the operation) in a platform's file.
MATRIX_SYMBOLS = ("NUM_MATRIX_ROWS", "NUM_MATRIX_COLS", "NNZ", "WIDTH")


class _OfMatrix(NamedTuple):
    m: int = -1
    n: int = -1
    nnz: int = -1


class Sizes(_OfMatrix):
    """An m x n matrix with nnz non-zeros, a tuple of the three; -1 where a size is not known. What
    is no matrix has `named` sizes instead, (name, size) in order, which count when two are
    compared."""

    named: tuple[tuple[str, int], ...] = ()

    def naming(self, named: Mapping[str, int]) -> Sizes:
        """With these named sizes beside."""
        made = Sizes(*self)
        made.named = tuple(named.items())
        return made

    def knowing(self, known: Mapping[str, int]) -> Sizes:
        """With other sizes of a matrix, by the names `m`, `n` and `nnz`."""
        return self._replace(**known).naming(dict(self.named))

    def __eq__(self, other: object) -> bool:
        return tuple.__eq__(self, other) is True and self.named == getattr(other, "named", ())

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((*self, self.named))

    @property
    def possible(self) -> bool:
        """Whether something can have them, as far as they are known."""
        sides = self.m, self.n
        if self.named:
            plain = all(size == -1 for size in self)
            known = {symbol for kind in kinds() for symbol in kind.symbols} - {*MATRIX_SYMBOLS}
            return plain and all(n in known and 0 < s < 1 << 62 for n, s in self.named)
        room = self.m * self.n if min(sides) >= 0 else MAX_DIM**2
        return all(-1 <= side <= MAX_DIM for side in sides) and -1 <= self.nnz <= room

    @property
    def symbols(self) -> dict[str, int]:
        """The known ones, by their names in a platform's file."""
        matrix = zip(MATRIX_SYMBOLS, self, strict=False)
        return {name: size for name, size in (*matrix, *self.named) if size >= 0}

    def __str__(self) -> str:
        if self.named:
            named = dict(self.named)
            kind = kind_with(named)
            return kind.sizes_text(named) if kind else " x ".join(map(str, named.values()))
        m, n, nnz = ("?" if size == -1 else str(size) for size in self)
        return f"{m} x {n} with {nnz} entries"


UNKNOWN = Sizes()
