"""Kernel maps against a dictionary of sites."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sites import PATTERNS, sites_of  # noqa: E402

from embeddb.core.errors import InputError  # noqa: E402
from embeddb.featurizers.network.sparse_maps import (  # noqa: E402
    MAX_COORDINATE,
    KernelMap,
    Level,
    neighbours,
)


def offsets(kernel: int) -> list[tuple[int, int]]:
    low = -(kernel // 2) if kernel % 2 else 0
    return [(low + i, low + j) for j in range(kernel) for i in range(kernel)]


def slow_table(targets: torch.Tensor, sources: torch.Tensor, kernel: int, step: int) -> np.ndarray:
    known = {tuple(site): at for at, site in enumerate(sources.tolist())}
    return np.array(
        [
            [known.get((e, r + i * step, c + j * step), -1) for i, j in offsets(kernel)]
            for e, r, c in targets.tolist()
        ],
        dtype=np.int32,
    ).reshape(len(targets), kernel * kernel)


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (3, 1), (5, 1), (2, 2), (3, 2), (5, 2)])
def test_every_neighbour_is_in_the_table(name: str, kernel: int, stride: int) -> None:
    level = Level.of(sites_of(name), entries=4).coarser(2)
    target = level.coarser(stride)
    expected = slow_table(target.coords, level.coords, kernel, level.stride)
    found = neighbours(target.coords, level.coords, kernel, level.stride)
    assert found.dtype == torch.int32
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("small", [False, True])
def test_tables_are_built_in_blocks(monkeypatch: pytest.MonkeyPatch, small: bool) -> None:
    coords = sites_of("batch")
    monkeypatch.setattr("embeddb.featurizers.network.sparse_maps.SITES", 7 if small else 10**6)
    found = neighbours(coords, coords, 5, 1)
    np.testing.assert_array_equal(found.numpy(), slow_table(coords, coords, 5, 1))


def pairs(sites: KernelMap, offset: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Input and output site of the pairs of one offset, by output site."""
    if offset == sites.plan.centre:
        every = torch.arange(sites.target.sites)
        return every, every
    sources, targets = [torch.zeros(0, dtype=torch.int64)], [torch.zeros(0, dtype=torch.int64)]
    for chunk in sites.plan.chunks:
        if offset in chunk.offsets:
            at = chunk.offsets.index(offset)
            sources.append(chunk.source.split_with_sizes(chunk.sizes)[at].long())
            targets.append(chunk.rows.split_with_sizes(chunk.sizes)[at].long() + chunk.start)
    return torch.cat(sources), torch.cat(targets)


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (3, 1), (5, 2), (2, 2)])
@pytest.mark.parametrize("limit", [5, 10_000])
def test_pairs_are_the_table(
    name: str, kernel: int, stride: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embeddb.featurizers.network.sparse_maps.CHUNK_PAIRS", limit)
    monkeypatch.setattr("embeddb.featurizers.network.sparse_maps.CHUNK_SITES", limit)
    level = Level.of(sites_of(name), entries=4)
    sites = level.kernel_map(kernel, stride)
    expected = slow_table(sites.target.coords, level.coords, kernel, 1)
    for offset in range(kernel * kernel):
        source, target = pairs(sites, offset)
        assert source.dtype == target.dtype == torch.int64
        wanted = np.flatnonzero(expected[:, offset] >= 0)
        np.testing.assert_array_equal(target.numpy(), wanted)
        np.testing.assert_array_equal(source.numpy(), expected[wanted, offset])


@pytest.mark.parametrize("stride", [1, 2])
def test_chunks_cover_the_outputs_and_sum_every_pair_once(
    stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embeddb.featurizers.network.sparse_maps.CHUNK_PAIRS", 64)
    sites = Level.of(sites_of("blocked")).kernel_map(3, stride)
    for plan, level in ((sites.plan, sites.target), (sites.reverse, sites.source)):
        assert len(plan.chunks) > 2
        assert [c.start for c in plan.chunks] == [0, *(c.stop for c in plan.chunks[:-1])]
        assert plan.chunks[-1].stop == level.sites
        for chunk in plan.chunks:
            assert sum(chunk.sizes) == chunk.pairs == int(chunk.bounds[-1])
            assert chunk.pairs <= 64
            owner = torch.arange(chunk.stop - chunk.start).repeat_interleave(chunk.bounds.diff())
            assert torch.equal(chunk.rows[chunk.order.long()].long(), owner)


def test_maps_and_levels_are_made_once() -> None:
    level = Level.of(sites_of("random"))
    assert level.kernel_map(3) is level.kernel_map(3)
    assert level.coarser(2) is level.coarser(2) is level.kernel_map(2, 2).target
    sites = level.kernel_map(3)
    assert sites.plan is sites.plan is sites.reverse


@pytest.mark.parametrize("name", PATTERNS)
def test_coarser_sites_are_floored_sorted_and_unique(name: str) -> None:
    coords = sites_of(name)
    level = Level.of(coords, entries=4).coarser(2).coarser(2)
    wanted = sorted({(e, r // 4 * 4, c // 4 * 4) for e, r, c in coords.tolist()})
    assert level.stride == 4
    assert level.coords.tolist() == [list(site) for site in wanted]


def test_large_coordinates_keep_their_neighbours() -> None:
    near = MAX_COORDINATE - 2
    coords = torch.tensor([[0, 0, 0], [0, near, near], [0, near, near + 1], [9, near + 1, near]])
    table = neighbours(coords, coords, 3, 1)
    np.testing.assert_array_equal(table.numpy(), slow_table(coords, coords, 3, 1))
    assert Level.of(coords).coarser(2).sites == 3


@pytest.mark.parametrize(
    "coords",
    [
        [[0, 1, 1], [0, 1, 1]],
        [[0, 1, 1], [0, 0, 1]],
        [[1, 0, 0], [0, 0, 0]],
        [[0, -1, 0]],
        [[0, 0, MAX_COORDINATE]],
        [[5, 0, 0]],
    ],
)
def test_bad_sites_are_one_line(coords: list[list[int]]) -> None:
    with pytest.raises(InputError) as error:
        Level.of(torch.tensor(coords), entries=2)
    assert "\n" not in str(error.value)


def test_sites_of_another_shape_or_type_are_refused() -> None:
    for coords in (torch.zeros(3, 2, dtype=torch.int64), torch.zeros(3, 3), torch.zeros(3)):
        with pytest.raises(InputError):
            Level.of(coords)


def test_counts_say_how_many_sites_an_entry_has() -> None:
    level = Level.of(torch.tensor([[0, 0, 0], [2, 0, 0], [2, 1, 0]]), entries=4)
    assert level.counts == (1, 0, 2, 0)
    assert Level.of(torch.empty(0, 3, dtype=torch.int64), entries=2).counts == (0, 0)
