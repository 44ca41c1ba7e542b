"""Words for loop nests."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddb.platforms.loopnest import LoopNest, complete_order, in_words


@pytest.mark.parametrize(
    ("splits", "order", "extents", "words"),
    [
        ((1, 1, 1, 1), "i2 j2 k2", (9, 9, 9), "rows > columns > dense columns"),
        # A split of the whole extent leaves the iterations to the inner loop.
        ((1, 9, 1, 1), "j2 i2 k2 j1", (9, 9, 9), "rows > dense columns > columns"),
        ((1, 1, 1, 1), "j2 i2 k2 j1", (9, 9, 9), "columns > rows > dense columns"),
        ((4, 99, 1, 1), "i2 j2 k2 i1", (9, 9, 1), "tiles of 4 rows > columns > rows"),
        ((4, 99, 1, 1), "i2 j2 i1", (-1, -1, 1), "tiles of 4 rows > tiles of 99 columns > col"),
        ((1, 1, 8, 2), "k1 i1 k2 j1 k3", (9, 1, 64), "tiles of 8 dense columns > rows > tiles of "),
        ((1, 1, 1, 1), "i2 j2 k2", (1, 1, 1), "a single iteration"),
    ],
)
def test_words_by_hand(
    splits: tuple[int, int, int, int], order: str, extents: tuple[int, int, int], words: str
) -> None:
    assert in_words(LoopNest(splits, complete_order(order.split())), extents).startswith(words)


@given(
    st.tuples(*[st.integers(1, 70)] * 4),
    st.permutations(range(1, 8)),
    st.tuples(*[st.sampled_from([-1, 1, 2, 64])] * 3),
)
def test_words_have_one_loop_per_split_and_per_letter(
    splits: tuple[int, int, int, int], order: list[int], extents: tuple[int, int, int]
) -> None:
    loops = in_words(LoopNest(splits, tuple(order)), extents).split(" > ")
    letters = [(splits[:1], "rows"), (splits[1:2], "columns"), (splits[2:], "dense columns")]
    for (sizes, name), extent in zip(letters, extents, strict=True):
        if extent == 1:
            assert name not in loops
            continue
        assert loops.count(name) == 1
        tiles = [f"tiles of {s} {name}" for s in sizes if s > 1 and (extent < 0 or s < extent)]
        found = [loop for loop in loops if re.fullmatch(rf"tiles of \d+ {name}", loop)]
        assert found == tiles
        assert all(loops.index(tile) < loops.index(name) for tile in tiles)
