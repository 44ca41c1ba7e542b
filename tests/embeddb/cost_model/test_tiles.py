"""What a loop nest's splits come to on one matrix."""

from __future__ import annotations

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.sizes import Sizes
from embeddb.cost_model.encoders.loop_nest import homogeneous
from embeddb.cost_model.encoders.own_parameters import TILES_DIM, tiles
from embeddb.platforms.platform import load_platform


def nest(i: float, j: float, k: float, k2: float) -> np.ndarray:
    row = np.zeros((1, 53), dtype=np.float32)
    row[0, :4] = np.log2([i, j, k, k2])
    row[0, 4] = 1  # some loop order
    return row


def test_counts_and_fillings_by_hand() -> None:
    """1024 x 256 with 8192 non-zeros, 128 dense columns; tiles of 64 x 32 and 16 columns."""
    found = tiles(nest(64, 32, 16, 1), (1024, 256, 8192), 128)
    sizes, counts = [6, 5, 4, 0], [10 - 6, 8 - 5, 7 - 4, 7]
    in_rows, in_columns = 6 + 13 - 10, 5 + 13 - 8  # 512 in 64 rows, 1024 in 32 columns
    in_tile = 6 + 5 + 13 - 18  # 64 in each
    expected = [*sizes, *counts, in_rows, in_columns, in_tile, 4 + 3]
    np.testing.assert_allclose(found, [expected], atol=1e-5)


def test_a_split_larger_than_the_matrix_is_one_tile() -> None:
    found = tiles(nest(4096, 65536, 512, 1), (1024, 256, 8192), 128)
    np.testing.assert_allclose(found[0, :8], [10, 8, 7, 0, 0, 0, 0, 7], atol=1e-5)
    assert found[0, 11] == 0


def test_unknown_sizes_and_absent_nests_are_zeros() -> None:
    assert not tiles(nest(64, 32, 16, 1), (-1, -1, -1), 128).any()
    assert not tiles(nest(64, 32, 16, 1), (10, 10, 0), 128).any()
    assert not tiles(np.zeros((2, 53), dtype=np.float32), (9, 9, 9), 8).any()
    assert tiles(np.zeros((0, 53), dtype=np.float32), (9, 9, 9), 8).shape == (0, TILES_DIM)


def test_the_same_configuration_comes_to_more_tiles_on_a_larger_matrix() -> None:
    spade, op = load_platform("spade"), Op.parse("spmm:128")
    config = Config(spade.default(op, Sizes(1000, 1000, 5000)))
    few, many = (
        tiles(homogeneous(spade, op, [config], sizes=s), s, op.width)[0]
        for s in ((1000, 1000, 5000), (64000, 1000, 320000))
    )
    np.testing.assert_allclose(many[4] - few[4], 6, atol=1e-3)
    assert np.isfinite(many).all()
