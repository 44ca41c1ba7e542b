"""The sizes of a matrix, as configurations and cost models are told them."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["UNKNOWN", "Sizes"]


class Sizes(NamedTuple):
    """An m x n matrix with nnz non-zeros; -1 where a size is not known."""

    m: int = -1
    n: int = -1
    nnz: int = -1


UNKNOWN = Sizes()
