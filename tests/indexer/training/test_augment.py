"""Augmentation: what each kind conserves, bounds, groups, determinism."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embeddb.core.pattern import Pattern
from indexer.training.featurizer.dataset import augment, crop, permute_blocks, resize, transpose


@st.composite
def some_patterns(draw: st.DrawFn, least: int = 0) -> Pattern:
    m, n = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    cell = st.tuples(st.integers(0, m - 1), st.integers(0, n - 1))
    cells = draw(st.lists(cell, min_size=least, max_size=60))
    rows, cols = np.array(cells, dtype=np.int64).reshape(-1, 2).T
    return Pattern.from_coo((m, n), rows, cols, name="a", group="family")


def dense(pattern: Pattern) -> np.ndarray:
    return pattern.to_scipy().toarray() != 0


def sound(pattern: Pattern) -> None:
    """Canonical CSR with all entries within bounds."""
    m, n = pattern.shape
    assert pattern.indptr.shape == (m + 1,) and pattern.indptr[0] == 0
    assert pattern.indices.size == pattern.nnz
    if pattern.nnz:
        assert pattern.indices.min() >= 0 and pattern.indices.max() < n
    for start, stop in pairwise(pattern.indptr):
        assert (np.diff(pattern.indices[start:stop]) > 0).all()


@given(some_patterns(), st.data())
def test_a_crop_is_the_window(pattern: Pattern, data: st.DataObject) -> None:
    m, n = pattern.shape
    top, bottom = sorted((data.draw(st.integers(0, m)), data.draw(st.integers(0, m))))
    left, right = sorted((data.draw(st.integers(0, n)), data.draw(st.integers(0, n))))
    made = crop(pattern, (top, bottom), (left, right))
    sound(made)
    assert (dense(made) == dense(pattern)[top:bottom, left:right]).all()


@given(some_patterns(), st.integers(1, 90), st.integers(1, 90))
def test_a_resize_covers_what_the_entries_cover(pattern: Pattern, m: int, n: int) -> None:
    made = resize(pattern, (m, n))
    sound(made)
    assert made.shape == (m, n)
    wanted = np.zeros((m, n), dtype=bool)
    old_m, old_n = pattern.shape
    for r, c in np.argwhere(dense(pattern)):
        top, left = r * m // old_m, c * n // old_n
        bottom = max(top + 1, (r + 1) * m // old_m)
        right = max(left + 1, (c + 1) * n // old_n)
        wanted[top:bottom, left:right] = True
    assert (dense(made) == wanted).all()


@given(some_patterns())
def test_a_resize_to_the_same_size_changes_nothing(pattern: Pattern) -> None:
    assert resize(pattern, pattern.shape) == pattern


@given(some_patterns(), st.randoms(use_true_random=False), st.integers(1, 9), st.integers(1, 9))
def test_blocks_are_moved_whole(pattern: Pattern, random: object, a: int, b: int) -> None:
    m, n = pattern.shape
    rows = np.array(random.sample(range(min(a, m)), min(a, m)))  # type: ignore[attr-defined]
    cols = np.array(random.sample(range(min(b, n)), min(b, n)))  # type: ignore[attr-defined]
    made = permute_blocks(pattern, rows, cols)
    sound(made)
    assert made.nnz == pattern.nnz
    row_edges = [i * m // rows.size for i in range(rows.size + 1)]
    col_edges = [i * n // cols.size for i in range(cols.size + 1)]
    old = dense(pattern)
    old = np.concatenate([old[row_edges[i] : row_edges[i + 1]] for i in rows], axis=0)
    old = np.concatenate([old[:, col_edges[i] : col_edges[i + 1]] for i in cols], axis=1)
    assert (dense(made) == old).all()


@given(some_patterns())
def test_a_transpose_is_one_and_twice_is_none(pattern: Pattern) -> None:
    made = transpose(pattern)
    sound(made)
    assert made.nnz == pattern.nnz and (dense(made) == dense(pattern).T).all()
    assert transpose(made) == pattern


@settings(max_examples=60)
@given(some_patterns(), st.integers(0, 2**32))
def test_augmenting_is_sound_seeded_and_keeps_the_group(pattern: Pattern, seed: int) -> None:
    made = augment(pattern, rng=np.random.default_rng(seed))
    again = augment(pattern, rng=np.random.default_rng(seed))
    sound(made)
    assert made == again and made.name == again.name
    assert made.group == pattern.group
    assert bool(made.nnz) == bool(pattern.nnz)


def test_the_group_of_a_pattern_without_one_is_its_name() -> None:
    lone = Pattern("0" * 32, (1, 1), np.array([0, 1]), np.array([0], dtype=np.int32), name="x")
    assert transpose(lone).group == crop(lone, (0, 1), (0, 1)).group == "x"


def test_every_second_copy_is_transposed() -> None:
    tall = Pattern.from_coo((400, 4), np.arange(400), np.arange(400) % 4)
    rng = np.random.default_rng(0)
    shapes = [augment(tall, rng=rng).shape for _ in range(50)]
    assert 10 < sum(m > n for m, n in shapes) < 40 and len(set(shapes)) > 10


def test_all_kinds_occur_and_square_patterns_keep_their_diagonal() -> None:
    eye = Pattern.from_coo((64, 64), np.arange(64), np.arange(64), name="eye")
    rng = np.random.default_rng(0)
    made = [augment(eye, rng=rng) for _ in range(40)]
    kinds = {p.name.split("+")[1] for p in made}
    assert kinds == {"crop", "resize", "blocks"}
    assert all(p == eye for p in made if "+blocks" in p.name)


def test_what_is_no_window_or_no_order_is_refused() -> None:
    eye = Pattern.from_coo((4, 4), np.arange(4), np.arange(4))
    for rows in ((0, 5), (3, 2), (-1, 2)):
        with pytest.raises(ValueError, match="window"):
            crop(eye, rows, (0, 4))
    with pytest.raises(ValueError, match="permutation"):
        permute_blocks(eye, np.array([0, 0]), np.array([0]))


def test_sides_near_the_limit_do_not_overflow() -> None:
    side = 2**31 - 1
    cells = np.array([0, side // 2, side - 1])
    wide = Pattern.from_coo((3, side), np.arange(3), cells, name="wide")
    made = [augment(wide, rng=np.random.default_rng(seed)) for seed in range(12)]
    for p in made:
        sound(p)
        assert p.nnz
    assert max(p.shape[1] for p in made) == side


def test_large_patterns_are_not_enlarged() -> None:
    rng = np.random.default_rng(1)
    full = Pattern.from_coo((1100, 1000), *np.divmod(np.arange(1_100_000), 1000))
    for _ in range(6):
        made = augment(full, rng=rng)
        assert made.nnz <= full.nnz
