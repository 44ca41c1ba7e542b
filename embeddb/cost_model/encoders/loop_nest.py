"""Configuration -> 53 numbers that mean the same on every platform (COGNATE's phi and pi)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from embeddb.core.config import Op
from embeddb.core.sizes import UNKNOWN, Sizes
from embeddb.platforms.kernel import KernelSpace
from embeddb.platforms.platform import Platform
from embeddb.platforms.space.rules import SYMBOLS

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Four log2 split sizes (I, J, K, K2) and the 7x7 one-hot loop order: `LoopNest.vector`.
HOMOGENEOUS_DIM = 53


def homogeneous(
    platform: Platform,
    op: Op,
    configs: Sequence[Mapping[str, Any]],
    *,
    sizes: Sizes = UNKNOWN,
) -> NDArray[np.float32]:
    """float32[c,53]: the loop nests of legal configurations of one op on one matrix.

    `sizes` are rows, columns and non-zeros of the matrix; -1 is unknown. All zeros where the
    platform maps nothing to the loop nest: no nest is all zeros, so the two cannot be confused.

    Nests are remembered by the values they are made from. One that mentions no size of the matrix
    is computed once for all matrices.

    Source: COGNATE, Section 3.2, Appendix E, Table 6.
    Raises: SpaceError if a nest needs a size that is not given; UsageError if the platform does
    not run this kernel.
    """
    kernel = platform.kernel(op)
    if kernel.mapping is None or not configs:
        return np.zeros((len(configs), HOMOGENEOUS_DIM), dtype=np.float32)
    symbols = dict(zip(SYMBOLS, (*sizes, op.width), strict=True))
    always = kernel.mapping.names() & symbols.keys()
    rows: list[NDArray[np.float32]] = []
    places: dict[tuple[Any, ...], int] = {}
    index = np.empty(len(configs), dtype=np.intp)
    names = kernel.homogeneous
    for i, config in enumerate(configs):
        key = tuple([config.get(name) for name in names])
        if key not in places:
            places[key] = len(rows)
            used = always.union(v for v in key if isinstance(v, str) and v in symbols)
            known_sizes = tuple((s, symbols[s]) for s in SYMBOLS if s in used and symbols[s] >= 0)
            rows.append(_row(kernel, key, known_sizes))
        index[i] = places[key]
    return np.stack(rows)[index]


@lru_cache(maxsize=1 << 14)
def _row(
    kernel: KernelSpace, values: tuple[Any, ...], sizes: tuple[tuple[str, int], ...]
) -> NDArray[np.float32]:
    """float32[53], shared by all who ask: not to be changed."""
    parameters = {n: v for n, v in zip(kernel.homogeneous, values, strict=True) if v is not None}
    nest = kernel.nest(parameters, dict(sizes))
    assert nest is not None  # the caller has seen the mapping
    row = nest.vector()
    row.flags.writeable = False
    return row
