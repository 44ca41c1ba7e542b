"""The coordinates of a pattern, and the cells that they become where there are too many."""

from __future__ import annotations

import numpy as np
import pytest

from embeddb.core.errors import InputError
from embeddb.core.pattern import Pattern
from embeddb.featurizers.network import reduction
from embeddb.featurizers.network.reduction import (
    CHANNELS,
    Reduction,
    occupied,
    reduce,
)


def scattered(m: int, n: int, nnz: int, seed: int = 0) -> Pattern:
    rng = np.random.default_rng(seed)
    return Pattern.from_coo((m, n), rng.integers(0, m, nnz), rng.integers(0, n, nnz))


def diagonal(n: int) -> Pattern:
    return Pattern.from_coo((n, n), np.arange(n), np.arange(n))


def told(pattern: Pattern, side: int) -> dict[tuple[int, int], int]:
    """Cells and counts, one nonzero at a time."""
    rows = np.repeat(np.arange(pattern.shape[0]), np.diff(pattern.indptr))
    found: dict[tuple[int, int], int] = {}
    for row, column in zip(rows.tolist(), pattern.indices.tolist(), strict=True):
        key = (row // side, column // side)
        found[key] = found.get(key, 0) + 1
    return found


def test_few_nonzeros_are_seen_as_they_are() -> None:
    pattern = scattered(3000, 70, 90)
    cells, counts, side = occupied(pattern, 100)
    assert side == 1
    assert set(counts.tolist()) == {1}
    assert dict.fromkeys(map(tuple, cells.tolist()), 1) == told(pattern, 1)


@pytest.mark.parametrize(
    "pattern",
    [scattered(997, 1201, 4000), scattered(50, 9000, 3000), diagonal(5000)],
    ids=["square", "wide", "diagonal"],
)
@pytest.mark.parametrize("most", [1, 60, 900])
@pytest.mark.parametrize("counted", [0, 1 << 22])
@pytest.mark.parametrize("chunk", [1000, 1 << 20])
def test_cells_are_the_smallest_that_are_few_enough(
    pattern: Pattern, most: int, counted: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reduction, "_COUNTED", max(counted, 1))
    monkeypatch.setattr(reduction, "_CHUNK", chunk)
    cells, counts, side = occupied(pattern, most)
    assert dict(zip(map(tuple, cells.tolist()), counts.tolist(), strict=True)) == told(
        pattern, side
    )
    assert cells.tolist() == sorted(cells.tolist())
    assert len(cells) <= most
    assert side == 1 or len(told(pattern, side // 2)) > most


def test_an_empty_pattern_has_no_sites() -> None:
    found = reduce(scattered(0, 5, 0), Reduction("sites", 8))
    assert found.coords.shape == (0, 2)


def test_features_tell_the_count_and_the_cell() -> None:
    found = reduce(diagonal(64), Reduction("sites", 4))
    assert found.coords.tolist() == [[i, i] for i in range(16)]
    np.testing.assert_allclose(found.features, np.log1p(4.0), rtol=1e-6)


def test_binary_sites_tell_only_where_they_are() -> None:
    whole = reduce(diagonal(64), Reduction("sites", 4))
    seen = reduce(diagonal(64), Reduction("sites", 4), 1)
    assert seen.features.tolist() == [[1.0]] * 16
    assert seen.coords.tolist() == whole.coords.tolist()
    assert whole.features.shape == (16, CHANNELS)
    with pytest.raises(InputError, match="1 or 3 features"):
        reduce(diagonal(64), Reduction("sites", 4), 2)
