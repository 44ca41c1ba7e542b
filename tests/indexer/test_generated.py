"""Generated matrices: valid, of the size they say, the same every time."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from embeddb.core.errors import UsageError
from embeddb.core.pattern import GENERATED
from indexer.generated import FAMILIES, SIZES, generate, generated


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_valid_in_every_size(family: str) -> None:
    for size, count in SIZES.items():
        made = generate(family, size)
        m, n = made.shape
        assert abs(made.nnz / count - 1) < 1 / 3, (size, made.nnz)
        assert made.name == f"generated_{family}_{size}" and made.group == f"generated-{family}"
        assert made.indptr.shape == (m + 1,) and made.indptr[0] == 0
        assert (np.diff(made.indptr) >= 0).all()
        assert made.indices.min() >= 0 and made.indices.max() < n
        row = np.repeat(np.arange(m), np.diff(made.indptr))
        assert (np.diff(row * n + made.indices) > 0).all()  # sorted within rows, none twice


@pytest.mark.parametrize("family", FAMILIES)
def test_a_seed_gives_one_pattern(family: str) -> None:
    one = generate(family, "60k")
    assert one == generate(family, "60k")
    other = generate(family, "60k", seed=1)
    assert other.name == f"generated_{family}_60k_1" and other.group == one.group
    assert (other == one) == (family in ("stencil-2d", "stencil-3d", "arrow"))


def test_any_beginning_is_of_many_kinds() -> None:
    first = list(islice(generated(most=300_000), len(FAMILIES) + 1))
    assert {p.group for p in first} == {f"generated-{family}" for family in FAMILIES} == GENERATED
    assert {p.name.rsplit("_", 1)[1] for p in first} == {"15k", "60k", "250k"}
    assert len({p.id for p in first}) == len(first)


def test_what_cannot_be_generated() -> None:
    with pytest.raises(UsageError, match="no family 'grid'") as family:
        generate("grid", "60k")
    assert "banded" in family.value.hint
    with pytest.raises(UsageError, match="no size '1k'"):
        generate("banded", "1k")
