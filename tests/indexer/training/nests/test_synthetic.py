"""Random training nests: the same again from a seed, legal, bounded, of every family."""

from __future__ import annotations

from collections import Counter

import pytest

from embeddb.nests.check import canonical_schedule, check
from embeddb.nests.nest import Nest
from embeddb.nests.nest_text import nest_from_text, nest_text
from embeddb.nests.parts import COMBINES
from indexer.training.nests.synthetic import MOST_BYTES, MOST_POINTS, families, synthetic

SEEDS = 306


@pytest.fixture(scope="module")
def nests() -> list[Nest]:
    return [synthetic(seed) for seed in range(SEEDS)]


def test_all_are_legal_and_read_back(nests: list[Nest]) -> None:
    for nest in nests:
        assert check(nest) is nest, nest.name
        assert nest_from_text(nest_text(nest)) == nest


def test_every_family_comes_as_often(nests: list[Nest]) -> None:
    count = Counter(nest.group for nest in nests)
    assert count == dict.fromkeys((f"synthetic/{name}" for name in families()), 18)


def test_no_two_are_the_same(nests: list[Nest]) -> None:
    assert len({nest.id for nest in nests}) == SEEDS
    assert len({nest.name for nest in nests}) == SEEDS


def test_points_and_bytes_are_bounded_and_spread(nests: list[Nest]) -> None:
    points = sorted(nest.points for nest in nests)
    held = sorted(sum(array.bytes for array in nest.arrays) for nest in nests)
    assert points[-1] <= MOST_POINTS and held[-1] <= MOST_BYTES
    assert held[SEEDS // 10] < 1 << 16, "a tenth fits into a first cache"
    assert held[-SEEDS // 20] > 33 << 20, "a twentieth is larger than a last one"


def test_kinds_are_mixed(nests: list[Nest]) -> None:
    assert {nest.depth for nest in nests} >= {1, 2, 3, 4, 5}
    assert {a.dtype for nest in nests for a in nest.arrays} == {"f32", "f64", "i32"}
    combines = {s.combine for nest in nests for s in nest.body}
    assert combines == {*COMBINES} - {"*="}
    by_family = {nest.group.split("/")[1] for nest in nests if any(s.where for s in nest.body)}
    assert by_family == {"mask"}
    indirect = {
        nest.group.split("/")[1]
        for nest in nests
        if not all(access.affine for _, access, _ in nest.accesses())
    }
    assert indirect == {"gather", "scatter", "histogram", "spmv", "spmm", "sddmm"}


def test_most_are_parallel_nests_but_not_all(nests: list[Nest]) -> None:
    alone = [nest for nest in nests if canonical_schedule(nest).parallel == "none"]
    assert 0 < len(alone) < SEEDS / 10
    assert {"recurrence", "scatter"} & {nest.group.split("/")[1] for nest in alone}


def test_a_seed_says_all() -> None:
    for seed in (0, 7, 1000):
        assert nest_text(synthetic(seed)) == nest_text(synthetic(seed))
    with pytest.raises(ValueError):
        synthetic(-1)
