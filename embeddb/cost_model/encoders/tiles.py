"""What a loop nest's splits come to on one matrix: how many tiles there are, and how full."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embeddb.core.sizes import Sizes
from embeddb.cost_model.encoders.loop_nest import HOMOGENEOUS_DIM

#: Tile sizes and tile counts of I, J, K and K2, three kinds of filling, and tiles of the matrix.
TILES_DIM = 12


def tiles(nests: NDArray[np.float32], sizes: Sizes, width: int) -> NDArray[np.float32]:
    """float32[c,12] from loop nests float32[c,53] as `homogeneous` gives them, of an op with
    `width` dense columns on a matrix of rows, columns and non-zeros `sizes`.

    All are log2: the size of a tile along I, J, K and K2, which is never more than what there is
    to split; the number of tiles along each; non-zeros in a panel of rows, in one of columns, in
    a tile; tiles of the matrix. All zeros where a size is not known, and of a nest of all zeros.

    A split of 256 rows is many tiles on one matrix and less than one on another: with the split
    alone a model has to learn that from matrices of all sizes, and few-shot there are five.
    """
    found = np.zeros((len(nests), TILES_DIM), dtype=np.float32)
    if min(sizes) <= 0:
        return found
    rows, columns, nonzeros = np.log2(np.array(tuple(sizes), dtype=np.float64))
    dense = np.log2(max(width, 1))
    size = np.minimum(nests[:, :4], [rows, columns, dense, dense])
    count = np.array([rows, columns, dense, dense]) - size
    found[:, :4], found[:, 4:8] = size, count
    found[:, 8] = size[:, 0] + nonzeros - rows
    found[:, 9] = size[:, 1] + nonzeros - columns
    found[:, 10] = size[:, 0] + size[:, 1] + nonzeros - rows - columns
    found[:, 11] = count[:, 0] + count[:, 1]
    assert nests.shape[1] == HOMOGENEOUS_DIM
    found[~nests.any(axis=1)] = 0
    return found
