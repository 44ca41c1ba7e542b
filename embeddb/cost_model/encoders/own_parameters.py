"""A platform's own (heterogeneous) parameters as numbers, derived from any platform file.

Columns, in declared order of the parameters:

- choice and bool: one-hot over the declared values; a new value of an open choice is all zeros, so
  that new values differ from the declared ones and not from one another;
- int: one column, log2(1 + |v|) with its sign, scaled so that the declared numbers span 0 to 1;
  where it may be a size of the matrix, one column more per symbol. A symbol is the same choice on
  every matrix, so it has its own column and counts as the largest number;
- permutation: one-hot position of every item;
- an int with a condition has a first column that is 1 where it applies. A parameter that does not
  apply is all zeros, which differs from every value.

A parameter with a single value has no column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import SpaceError
from embeddb.core.sizes import Sizes, signed_log
from embeddb.cost_model.encoders.loop_nest import HOMOGENEOUS_DIM
from embeddb.platforms.kernel import KernelSpace
from embeddb.platforms.space.quantity import EncodedConfigs
from embeddb.platforms.space.rules import SYMBOLS, Param, join, show


@dataclass(frozen=True)
class Block:
    """The columns of one parameter."""

    param: Param

    @property
    def names(self) -> tuple[str, ...]:
        param, name = self.param, self.param.name
        if len(param.values) == 1 and not param.when:
            return ()
        if param.kind == "permutation":
            places = range(len(param.values))
            return tuple(f"{name}[{place}]={item}" for place in places for item in param.values)
        if param.kind != "int":
            return tuple(f"{name}={show(value)}" for value in param.values)
        applies = (f"{name}?",) if param.when else ()
        return (*applies, name, *(f"{name}={symbol}" for symbol in self._symbols))

    def row(self, value: Any) -> list[float]:
        """Numbers of one value; None is a parameter that does not apply."""
        param = self.param
        if value is None and not param.when:
            raise SpaceError(f"parameter {param.name!r} is missing")
        if value is None:
            return [0.0] * len(self.names)
        if param.kind == "permutation":
            if not isinstance(value, tuple) or sorted(value) != sorted(map(str, param.values)):
                raise self._unknown(value)
            return [float(item == wanted) for item in value for wanted in param.values]
        if param.kind != "int":
            if value not in param.values and param.refusal(value):
                raise self._unknown(value)
            return [float(value == declared) for declared in param.values]
        applies = [1.0] if param.when else []
        return [*applies, self._scaled(value), *(float(value == s) for s in self._symbols)]

    @property
    def _symbols(self) -> list[Any]:
        return [v for v in self.param.values if v in SYMBOLS]

    def _scaled(self, value: Any) -> float:
        if value in self._symbols:
            return 1.0
        if not isinstance(value, (int, float)):
            raise self._unknown(value)
        numbers = [signed_log(v) for v in self.param.values if isinstance(v, (int, float))]
        if not numbers:
            raise self._unknown(value)
        low, high = min(numbers), max(numbers)
        return min(max((signed_log(value) - low) / (high - low), 0.0), 1.0) if high > low else 0.0

    def _unknown(self, value: Any) -> SpaceError:
        values = join(map(show, self.param.values))
        return SpaceError(f"parameter {self.param.name!r}: {show(value)} is not one of {values}")


class Layout:
    """Columns of one kernel space. `names` are theirs, such as `format=csr`, `chunk` or `chunk?`
    (1 where it applies); `width` (h below) is their number, which may be 0."""

    block_type = Block

    def __init__(self, kernel: KernelSpace, *, whole: bool = False) -> None:
        """With `whole`, columns of the parameters of the loop nest too."""
        own = [p for p in kernel.space.params if whole or p.name in kernel.heterogeneous]
        self._blocks = [block for p in own if (block := self.block_type(p)).names]
        self.names = tuple(name for block in self._blocks for name in block.names)
        self.width = len(self.names)

    def raw(self, configs: Sequence[Mapping[str, Any]] | EncodedConfigs) -> NDArray[np.float32]:
        """float32[c,h] of canonical legal configurations, all within 0 and 1.

        Raises: SpaceError for a parameter that is missing or a value it cannot have.
        """
        encoded = configs if isinstance(configs, EncodedConfigs) else EncodedConfigs(configs)
        out = np.zeros((len(configs), self.width), dtype=np.float32)
        start = 0
        for block in self._blocks:
            stop = start + len(block.names)
            values, codes = encoded.column(block.param.name)
            # A code of -1, for no value, is that of the last row.
            values = (*values, None) if (codes < 0).any() else values
            if values:
                table = np.array([block.row(value) for value in values], dtype=np.float32)
                out[:, start:stop] = table[codes]
            start = stop
        return out


#: Tile sizes and tile counts of I, J, K and K2, three kinds of filling, and tiles of the matrix.
TILES_DIM = 12


def tiles(nests: NDArray[np.float32], sizes: Sizes, width: int) -> NDArray[np.float32]:
    """Tile features float32[c,12] of loop nests float32[c,53] (`homogeneous`), for an op with
    `width` dense columns on a matrix of rows, columns and non-zeros `sizes`.

    All are log2: the size of a tile along I, J, K and K2, at most the extent; the number of tiles
    along each; non-zeros in a panel of rows, in one of columns, in a tile; tiles of the matrix. All
    zeros where a size is unknown, and for a nest of all zeros.

    A split of 256 rows is many tiles on one matrix and less than one on another: from the split
    alone a model has to learn that from matrices of all sizes, and in few-shot training there are
    five.
    """
    if min(sizes) <= 0:
        return np.zeros((len(nests), TILES_DIM), dtype=np.float32)
    assert nests.shape[1] == HOMOGENEOUS_DIM
    rows, columns, nonzeros = np.log2(np.array(tuple(sizes), dtype=np.float64))
    dense = np.log2(max(width, 1))
    extent = np.array([rows, columns, dense, dense])
    size = np.minimum(nests[:, :4], extent)
    count = extent - size
    in_rows, in_columns = size[:, 0] + nonzeros - rows, size[:, 1] + nonzeros - columns
    in_tile = size[:, 0] + size[:, 1] + nonzeros - rows - columns
    tile_count = count[:, 0] + count[:, 1]
    out = np.column_stack([size, count, in_rows, in_columns, in_tile, tile_count])
    return np.where(nests.any(axis=1, keepdims=True), out, 0.0).astype(np.float32)
