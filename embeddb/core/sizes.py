"""The sizes of a matrix, as configurations and cost models are told them."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["MAX_DIM", "UNKNOWN", "Sizes"]

#: Largest number of rows or columns: indices are kept as int32.
MAX_DIM = 2**31 - 1


class Sizes(NamedTuple):
    """An m x n matrix with nnz non-zeros; -1 where a size is not known."""

    m: int = -1
    n: int = -1
    nnz: int = -1

    @property
    def possible(self) -> bool:
        """Whether a matrix can have them, as far as they are known."""
        sides = self.m, self.n
        room = self.m * self.n if min(sides) >= 0 else MAX_DIM**2
        return all(-1 <= side <= MAX_DIM for side in sides) and -1 <= self.nnz <= room

    def __str__(self) -> str:
        m, n, nnz = ("?" if size == -1 else str(size) for size in self)
        return f"{m} x {n} with {nnz} entries"


UNKNOWN = Sizes()
