"""Sizes of workloads, as spaces and cost models receive them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from embeddb.core.kinds import kind_with

#: Largest number of rows or columns: indices are kept as int32.
MAX_DIM = 2**31 - 1

#: Names of the sizes of a matrix (and of an operation: `WIDTH`) in a platform file.
MATRIX_SYMBOLS = ("NUM_MATRIX_ROWS", "NUM_MATRIX_COLS", "NNZ", "WIDTH")


class _OfMatrix(NamedTuple):
    m: int = -1
    n: int = -1
    nnz: int = -1


class Sizes(_OfMatrix):
    """Sizes of an m x n matrix with nnz non-zeros, a tuple of the three; -1 where unknown.
    Workloads of other kinds have `named` sizes instead, (name, size) in order, which are part of
    comparisons."""

    named: tuple[tuple[str, int], ...] = ()

    def naming(self, named: Mapping[str, int]) -> Sizes:
        """Copy with these named sizes."""
        sizes = Sizes(*self)
        sizes.named = tuple(named.items())
        return sizes

    def with_sizes(self, sizes: Mapping[str, int]) -> Sizes:
        """Copy with other sizes of a matrix, by the names `m`, `n` and `nnz`."""
        return self._replace(**sizes).naming(dict(self.named))

    def __eq__(self, other: object) -> bool:
        return tuple.__eq__(self, other) is True and self.named == getattr(other, "named", ())

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((*self, self.named))

    @property
    def possible(self) -> bool:
        """Return true if some workload can have these sizes, as far as they are known."""
        sides = self.m, self.n
        if self.named:
            plain = all(size == -1 for size in self)
            names = {name for name, _ in self.named}
            of_kind = names.isdisjoint(MATRIX_SYMBOLS) and kind_with(names) is not None
            return plain and of_kind and all(0 < size < 1 << 62 for _, size in self.named)
        room = self.m * self.n if min(sides) >= 0 else MAX_DIM**2
        return all(-1 <= side <= MAX_DIM for side in sides) and -1 <= self.nnz <= room

    @property
    def symbols(self) -> dict[str, int]:
        """Known sizes by their names in a platform file."""
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


def positive(text: str | None) -> float | None:
    """The number in a text, such as a fact of a machine; None unless it is positive and finite."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value < math.inf else None


def log_size(size: float) -> float:
    """log2(1 + |size|), as models read sizes and counts."""
    return math.log2(1 + abs(size))


def signed_log(value: float) -> float:
    """`log_size` with the sign of the value."""
    return math.copysign(log_size(value), value)
