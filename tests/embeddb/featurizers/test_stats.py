"""The `stats` featurizer against brute force and crafted patterns; and the thumbnail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embeddb.core import plugins
from embeddb.core.pattern import Pattern
from embeddb.core.thumbnail import density, thumbnail
from embeddb.featurizers import stats
from embeddb.featurizers.stats import Stats, contains, pattern_symmetry
from embeddb.testing.featurizers import FeaturizerContract, extreme_patterns

BLOCKS = ((1, 4), (1, 8), (4, 1), (8, 1), (2, 2), (3, 3), (4, 4), (8, 8))


class TestStats(FeaturizerContract):
    def make(self) -> Stats:
        return Stats()


def of(dense: Any) -> dict[str, float]:
    return named(from_dense(dense))


def named(pattern: Pattern) -> dict[str, float]:
    return dict(zip(Stats.names, Stats().embed(pattern).tolist(), strict=True))


def from_dense(dense: Any) -> Pattern:
    array = np.asarray(dense, dtype=bool)
    return Pattern.from_coo(array.shape, *array.nonzero())


def banded(size: int, width: int) -> Pattern:
    rows = np.repeat(np.arange(size), 2 * width + 1)
    cols = rows + np.tile(np.arange(-width, width + 1), size)
    inside = (cols >= 0) & (cols < size)
    return Pattern.from_coo((size, size), rows[inside], cols[inside])


def scattered(rng: np.random.Generator, shape: tuple[int, int], count: int) -> Pattern:
    rows, cols = (rng.integers(0, size, count) for size in shape)
    return Pattern.from_coo(shape, rows, cols)


@st.composite
def matrices(draw: st.DrawFn) -> np.ndarray[Any, np.dtype[np.bool_]]:
    shape = draw(st.tuples(st.integers(1, 70), st.integers(1, 70)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return rng.random(shape) < draw(st.sampled_from([0.0, 0.02, 0.1, 0.5, 1.0]))


def test_there_are_enough_and_they_can_be_found() -> None:
    assert len(Stats.names) >= 24
    assert plugins.load("featurizer", "stats") is Stats


@settings(max_examples=60, deadline=None)
@given(matrices())
def test_against_brute_force(a: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
    found, (m, n), nnz = of(a), a.shape, int(a.sum())
    for r, c in BLOCKS:
        padded = np.zeros((-(-m // r) * r, -(-n // c) * c), bool)
        padded[:m, :n] = a
        tiles = padded.reshape(padded.shape[0] // r, r, padded.shape[1] // c, c).any(axis=(1, 3))
        fill = nnz / (r * c * tiles.sum()) if nnz else 0.0
        assert found[f"fill_{r}x{c}"] == pytest.approx(fill), (r, c)
    for side, lengths in (("row", a.sum(1)), ("col", a.sum(0))):
        assert found[f"{side}_empty"] == pytest.approx((lengths == 0).mean())
        assert found[f"{side}_mean"] == pytest.approx(np.log1p(lengths.mean()))
        cv = lengths.std() / lengths.mean() if nnz else 0.0
        assert found[f"{side}_cv"] == pytest.approx(np.log1p(cv), abs=1e-6)
        gaps = np.abs(lengths[:, None] - lengths[None, :]).sum()
        gini = gaps / (2 * lengths.size * nnz) if nnz else 0.0
        assert found[f"{side}_gini"] == pytest.approx(gini, abs=1e-6)
    if nnz:
        diagonal = a.diagonal()
        assert found["diagonal_share"] == pytest.approx(diagonal.mean())
        overlap = sum((a[i] & a[i - 1]).sum() for i in range(1, m) if i % 24)
        followers = sum(a[i].sum() for i in range(1, m) if i % 24)
        assert found["row_overlap"] == pytest.approx(overlap / max(followers, 1))
        runs = (a & ~np.pad(a, ((0, 0), (1, 0)))[:, :-1]).sum()
        assert found["run_length"] == pytest.approx(np.log(nnz / runs), abs=1e-6)
        assert found["reuse_32768"] == pytest.approx(1 - a.any(0).sum() / nnz)
    if nnz and m == n:
        off = a & ~np.eye(m, dtype=bool)
        expected = (off & off.T).sum() / off.sum() if off.any() else 1.0
        assert found["symmetry"] == pytest.approx(expected)


@settings(max_examples=30, deadline=None)
@given(matrices())
def test_contains(a: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
    rows, cols = (x.ravel() for x in np.indices(a.shape))
    assert np.array_equal(contains(from_dense(a), rows, cols), a.ravel())


def test_a_band_is_narrow_and_a_random_pattern_is_not(rng: np.random.Generator) -> None:
    band, random = named(banded(2000, 2)), named(scattered(rng, (2000, 2000), 10_000))
    for name in ("bandwidth", "profile", "row_span", "diagonal_distance", "gap_median"):
        assert band[name] < random[name] / 2, name
    for name in ("symmetry", "diagonal_share", "row_overlap", "run_length", "reuse_512"):
        assert band[name] > 2 * random[name], name
    assert (band["symmetry"], band["diagonal_share"]) == (1.0, 1.0)


@pytest.mark.parametrize("side", [2, 3, 4, 8])
def test_a_blocked_pattern_fills_its_own_blocks(rng: np.random.Generator, side: int) -> None:
    found = of(np.kron(rng.random((60, 60)) < 0.03, np.ones((side, side), bool)))
    assert found[f"fill_{side}x{side}"] == 1.0
    assert found["fill_8x8"] <= (side / 8) ** 0.5 or side == 8


def test_an_arrow_is_unbalanced() -> None:
    arrow = np.eye(320, dtype=bool)
    arrow[0] = arrow[:, 0] = True
    found, flat = of(arrow), of(np.eye(320, dtype=bool))
    assert [flat[f"imbalance_{p}"] for p in (2, 4, 32)] == [0.0, 0.0, 0.0]
    # 958 nonzeros; the first part has the full row of 320.
    for parts in (2, 4, 32):
        heaviest = 320 + 2 * (320 // parts - 1)
        assert found[f"imbalance_{parts}"] == pytest.approx(np.log(heaviest * parts / 958))
    assert found["row_max_over_mean"] == pytest.approx(np.log(320 / (958 / 320)))
    assert found["slice_padding"] > 1


def test_large_patterns_are_sampled_close_to_the_truth(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Half scattered, half in 4x4 blocks: one window at one place would see only one of the two.
    blocks = rng.integers(0, 5000, (2, 12_000)) * 4
    inner = np.indices((4, 4)).reshape(2, 16)
    rows, cols = (np.add.outer(b, i).ravel() for b, i in zip(blocks, inner, strict=True))
    noise = rng.integers(0, 20_000, (2, rows.size))
    pattern = Pattern.from_coo((40_000, 20_000), [*rows, *(noise[0] + 20_000)], [*cols, *noise[1]])
    sampled = named(pattern)
    monkeypatch.setattr(stats, "_SAMPLE", 1 << 40)
    exact = named(pattern)
    # The median gap lies where the two halves meet, so it moves most.
    assert sampled.pop("gap_median") == pytest.approx(exact.pop("gap_median"), abs=0.3)
    assert sampled == pytest.approx(exact, abs=0.06)
    assert sampled["fill_4x4"] != exact["fill_4x4"]


@pytest.mark.parametrize("shape", [(3, 400_000), (400_000, 3), (1, 900_000), (900_000, 1)])
def test_the_sample_is_bounded_for_extreme_shapes(
    rng: np.random.Generator, shape: tuple[int, int]
) -> None:
    pattern = scattered(rng, shape, 600_000)
    rows, cols = stats._sample(pattern)
    assert 8_000 < rows.size == cols.size <= 2 * stats._SAMPLE
    assert contains(pattern, rows, cols.astype(np.int64)).all()
    assert np.isfinite(Stats().embed(pattern)).all()


def test_hub_rows_do_not_blow_up_the_sample(rng: np.random.Generator) -> None:
    hubs = np.repeat(np.arange(0, 2400, 24), 5000)
    cols = np.concatenate([rng.choice(100_000, 5000, replace=False) for _ in range(100)])
    pattern = Pattern.from_coo((100_000, 100_000), hubs, cols)
    rows, _ = stats._sample(pattern)
    assert rows.size <= 2 * stats._SAMPLE


def test_rectangular_patterns_are_not_symmetric() -> None:
    assert pattern_symmetry(from_dense(np.ones((3, 4)))) == 0.0


@pytest.mark.shared
def test_the_real_matrices_spread_every_statistic(shared: Path) -> None:
    from scipy.sparse import load_npz

    files = sorted((shared / "matrices").glob("*.npz"))
    small = [f for f in files if f.stat().st_size < 60_000]
    vectors = []
    for file in small:
        a = load_npz(file)
        vectors.append(Stats().embed(Pattern.from_csr(a.shape, a.indptr, a.indices)))
    table = np.array(vectors)
    assert len(table) > 40
    assert np.isfinite(table).all()
    assert not np.array(Stats.names)[table.std(axis=0) < 1e-3].size
    assert np.abs(table).max() < 50  # nothing heavy-tailed is left on a linear scale


def test_no_scipy_is_needed() -> None:
    code = (
        "import sys, numpy as np; from embeddb.core.pattern import Pattern;"
        "from embeddb.featurizers.stats import Stats;"
        "Stats().embed(Pattern.from_csr((2, 2), [0, 1, 2], [0, 1]));"
        "assert 'scipy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- thumbnail ---


def enlarge(dense: Any) -> Any:
    """The definition: every line cut into 32 pieces, then 32x32 means of equal areas."""
    a = np.asarray(dense, dtype=float)
    m, n = a.shape
    fine = np.repeat(np.repeat(a, 32, axis=0), 32, axis=1)
    return fine.reshape(32, m, 32, n).mean(axis=(1, 3))


@settings(max_examples=60, deadline=None)
@given(matrices())
def test_density_is_the_mean_over_equal_areas(a: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
    assert density(from_dense(a)) == pytest.approx(enlarge(a), abs=1e-12)


def thumbnail_array(data: bytes) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Densities float32[32,32] in 0..1, as people read the map."""
    steps = np.frombuffer(data, dtype=np.uint8).reshape(32, 32).astype(np.float32)
    return np.where(steps > 0, np.exp2((steps - 255) / np.float32(10)), np.float32(0))


def test_thumbnails_read_back_within_four_percent(rng: np.random.Generator) -> None:
    pattern = scattered(rng, (5000, 300), 9000)
    exact, read = density(pattern), thumbnail_array(thumbnail(pattern))
    assert read.shape == (32, 32)
    assert read.dtype == np.float32
    assert read == pytest.approx(exact, rel=0.04)
    assert ((read == 0) == (exact == 0)).all()


def test_thumbnails_of_extreme_patterns() -> None:
    for what, pattern in extreme_patterns().items():
        picture = thumbnail_array(thumbnail(pattern))
        assert picture.shape == (32, 32), what
        assert 0 <= picture.min() <= picture.max() <= 1, what
        assert (picture.max() > 0) == (pattern.nnz > 0), what
    assert (thumbnail_array(thumbnail(extreme_patterns()["dense"])) == 1).all()


def test_a_very_wide_matrix_needs_no_table(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern = scattered(rng, (90, 5000), 3000)
    plain = density(pattern)
    monkeypatch.setattr("embeddb.core.thumbnail._TABLE", 100)
    assert np.array_equal(density(pattern), plain)
