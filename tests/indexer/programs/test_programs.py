"""Our own programs: all are read at every size, of the sizes that they say."""

from __future__ import annotations

import pytest

from embeddb.core.errors import NestError, UsageError
from embeddb.nests.check import check
from embeddb.nests.nest import Nest
from indexer.programs import SIZES, applications, nests_of, program_names, sizes_of

#: Programs of more than one nest.
SEVERAL = {
    "arc_distance": 2,
    "atax": 2,
    "attention": 4,
    "black_scholes": 2,
    "blur": 2,
    "boolean_mask": 2,
    "cloud_physics": 3,
    "correlation": 4,
    "covariance": 3,
    "fdtd_2d": 3,
    "gemm": 2,
    "gemver": 3,
    "go_fast": 2,
    "gram_schmidt_step": 2,
    "harris": 4,
    "histogram": 3,
    "horizontal_diffusion": 4,
    "kmeans": 2,
    "layer_norm": 3,
    "mlp": 3,
    "mvt": 2,
    "nbody": 2,
    "recursive_filter": 2,
    "residual_block": 2,
    "softmax": 4,
    "symm": 2,
    "three_mm": 3,
    "two_mm": 2,
    "unsharp": 3,
}


@pytest.fixture(scope="module")
def nests() -> dict[tuple[str, str], list[Nest]]:
    return {(name, size): nests_of(name, size) for name in program_names() for size in SIZES}


def test_every_program_is_read_at_every_size(nests: dict[tuple[str, str], list[Nest]]) -> None:
    for (name, size), found in nests.items():
        assert len(found) == SEVERAL.get(name, 1), (name, size)
        for nest in found:
            assert check(nest) is nest
            assert nest.group == name and nest.name.startswith(name) and nest.name.endswith(size)
    assert set(SEVERAL) < set(program_names())


def test_no_two_nests_are_the_same(nests: dict[tuple[str, str], list[Nest]]) -> None:
    every = [nest for found in nests.values() for nest in found]
    assert len({nest.id for nest in every}) == len({nest.name for nest in every}) == len(every)


def test_sizes_grow_and_stay_in_reach(nests: dict[tuple[str, str], list[Nest]]) -> None:
    for name in program_names():
        macros = sizes_of(name)
        assert len({frozenset(given) for given in macros.values()}) == 1, name
        work = [sum(nest.points for nest in nests[name, size]) for size in SIZES]
        assert work[0] < work[1] < work[2], name
    every = [(size, nest) for (_, size), found in nests.items() for nest in found]
    held = [(size, sum(array.bytes for array in nest.arrays)) for size, nest in every]
    assert max(nest.points for _, nest in every) < 50_000_000
    assert max(size for _, size in held) < 1 << 27
    beyond = [count > 33 << 20 for size, count in held if size == "large"]
    assert sum(beyond) > len(beyond) / 3, "a third of the large ones do not fit into a last cache"


def test_what_an_earlier_nest_wrote_is_not_zero() -> None:
    nests = nests_of("two_mm")
    fills = {(n.name, n.array_name(at)): a.fill for n in nests for at, a in enumerate(n.arrays)}
    assert fills["two_mm_1_medium", "AB"] == "zero"
    assert fills["two_mm_2_medium", "AB"] == "uniform"
    assert fills["two_mm_2_medium", "D"] == "zero"


def test_the_twelve_applications() -> None:
    assert len(applications()) == 12
    assert set(applications()) < set(program_names())


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(UsageError, match="no program 'gem'"):
        nests_of("gem")
    with pytest.raises(UsageError, match=r"no program '\.\./gemm'"):
        nests_of("../gemm")
    with pytest.raises(UsageError, match="no size 'huge'"):
        nests_of("gemm", "huge")
    with pytest.raises(UsageError, match="gemm has no size 'L'"):
        nests_of("gemm", {"L": 4})
    with pytest.raises(NestError, match=r"lu_step\.c"):
        nests_of("lu_step", {"N": 8, "P": 8})
