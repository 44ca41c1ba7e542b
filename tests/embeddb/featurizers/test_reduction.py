"""Reductions of a pattern against a dense count, and their bounds."""

from __future__ import annotations

import resource
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embeddb.core.errors import InputError
from embeddb.core.pattern import Pattern
from embeddb.core.sizes import MAX_DIM
from embeddb.featurizers.network.reduction import CHANNELS, Input, Reduction, reduce

KINDS = ("grid", "sites")


@st.composite
def patterns(draw: st.DrawFn) -> Pattern:
    m, n = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    count = draw(st.integers(0, 200))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return Pattern.from_coo((m, n), rng.integers(0, m, count), rng.integers(0, n, count))


def dense(pattern: Pattern) -> np.ndarray:
    return pattern.to_scipy(np.int64).toarray()


def check(found: Input) -> None:
    """What every input promises."""
    assert found.coords.dtype == np.int64 and found.coords.shape[1:] == (2,)
    assert found.features.dtype == np.float32
    assert found.features.shape == (len(found.coords), CHANNELS)
    assert np.isfinite(found.features).all() and (found.features >= np.float32(0.69)).all()
    assert found.shape.dtype == np.float32 and found.shape.shape == (3,)
    np.testing.assert_array_equal(found.coords, np.unique(found.coords, axis=0))
    assert (found.coords >= 0).all()


@settings(max_examples=150, deadline=None)
@given(patterns(), st.integers(1, 80))
def test_a_grid_counts_what_each_cell_holds(pattern: Pattern, size: int) -> None:
    found = reduce(pattern, Reduction("grid", size=size))
    check(found)
    m, n = pattern.shape
    height, width = -(-m // size), -(-n // size)
    full = np.zeros((-(-m // height) * height, -(-n // width) * width), dtype=np.int64)
    full[:m, :n] = dense(pattern)
    cells = full.reshape(-(-m // height), height, -(-n // width), width).sum(axis=(1, 3))
    assert max(cells.shape) <= size
    sites, features = found.coords, found.features
    np.testing.assert_array_equal(sites, np.argwhere(cells))
    np.testing.assert_allclose(features[:, 0], np.log1p(cells[cells > 0]), rtol=1e-6)
    spans = np.broadcast_to(np.log1p([height, width]), (len(sites), 2))
    np.testing.assert_allclose(features[:, 1:], spans, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(0, 0), (0, 7), (7, 0), (1, 1), (500, 3)])
def test_an_empty_pattern_has_no_sites(kind: str, shape: tuple[int, int]) -> None:
    found = reduce(Pattern.from_coo(shape, [], []), Reduction(kind))
    check(found)
    assert not len(found.coords)
    np.testing.assert_allclose(found.shape, np.log1p([*shape, 0]), rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_one_nonzero_and_a_full_matrix(kind: str) -> None:
    one = reduce(Pattern.from_coo((1000, 2000), [999], [1999]), Reduction(kind, size=100))
    check(one)
    assert len(one.coords) == 1
    full = Pattern.from_csr((90, 60), np.arange(91) * 60, np.tile(np.arange(60), 90))
    found = reduce(full, Reduction(kind, size=30))
    check(found)
    if kind == "grid":
        assert len(found.coords) == 30 * 30
        np.testing.assert_allclose(found.features[:, 0], np.log1p(3 * 2), rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tall", [False, True])
def test_the_longest_row_and_a_long_column(kind: str, tall: bool) -> None:
    """Columns to the last that int32 has: products of cell numbers would overflow it."""
    length = 3_000_000 if tall else MAX_DIM
    at = np.array([0, 1, length // 2, length - 1])
    zero = np.zeros_like(at)
    shape = (length, 1) if tall else (1, length)
    pattern = Pattern.from_coo(shape, *((at, zero) if tall else (zero, at)))
    found = reduce(pattern, Reduction(kind, size=2048))
    check(found)
    if kind == "grid":
        cell = -(-length // 2048)
        where = 0 if tall else 1
        assert set(found.coords[:, where]) == {0, length // 2 // cell, (length - 1) // cell}
        assert found.features[0, 0] == np.float32(np.log(3))


def test_a_uniform_band_gives_uniform_counts() -> None:
    at = np.arange(1000)
    found = reduce(Pattern.from_coo((1000, 1000), at, at), Reduction("grid", size=128))
    inner = found.features[:-1, 0]
    assert (inner == inner[0]).all()


def test_card_form() -> None:
    setting = Reduction("sites", 64)
    assert Reduction.from_json(setting.to_json()) == setting
    assert Reduction.from_json(Reduction().to_json()) == Reduction()


@pytest.mark.parametrize(
    "read",
    [
        {},
        {"kind": "grid"},
        Reduction().to_json() | {"more": 1},
        Reduction().to_json() | {"kind": "pyramid"},
        Reduction().to_json() | {"size": 0},
        Reduction().to_json() | {"size": 1 << 40},
        Reduction().to_json() | {"size": 12.0},
        Reduction().to_json() | {"kind": "windows"},
        ["grid", 1, 1, 1],
    ],
)
def test_cards_that_are_no_reduction(read: object) -> None:
    with pytest.raises(InputError, match="reduction"):
        Reduction.from_json(read)  # type: ignore[arg-type]


@pytest.mark.slow
def test_ten_million_nonzeros_stay_within_bounds() -> None:
    m = 1_000_000
    rng = np.random.default_rng(1)
    cols = np.sort(rng.integers(0, m, (m, 10)), axis=1).ravel().astype(np.int32)
    # Built by hand: merging duplicates of 10^7 nonzeros is not what is measured.
    pattern = Pattern("ab" * 16, (m, m), np.arange(0, 10 * m + 1, 10), cols)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    found = reduce(pattern, Reduction(size=512))
    assert time.perf_counter() - started < 2.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024
    assert len(found.coords) <= 512**2
