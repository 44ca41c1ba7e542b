"""Pattern: identity, canonical form, and refusal of arrays that are no matrix."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddb.core.errors import MatrixError
from embeddb.core.pattern import Pattern, stub_id
from embeddb.core.sizes import MAX_DIM


@st.composite
def entries(draw: st.DrawFn) -> tuple[tuple[int, int], list[tuple[int, int]]]:
    m, n = draw(st.integers(0, 9)), draw(st.integers(0, 9))
    if not (m and n):
        return (m, n), []
    cell = st.tuples(st.integers(0, m - 1), st.integers(0, n - 1))
    return (m, n), draw(st.lists(cell, max_size=40))


def csr(shape: tuple[int, int], cells: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    rows: list[list[int]] = [[] for _ in range(shape[0])]
    for r, c in cells:
        rows[r].append(c)
    ptr = [0]
    for row in rows:
        ptr.append(ptr[-1] + len(row))
    return ptr, [c for row in rows for c in row]


@given(entries())
def test_every_constructor_gives_the_same_id(
    case: tuple[tuple[int, int], list[tuple[int, int]]],
) -> None:
    shape, cells = case
    rows, cols = [r for r, _ in cells], [c for _, c in cells]
    by_coo = Pattern.from_coo(shape, rows, cols)
    by_csr = Pattern.from_csr(shape, *csr(shape, cells))
    by_csc = Pattern.from_csc(shape, *csr(shape[::-1], [(c, r) for r, c in cells]))
    assert by_coo == by_csr == by_csc
    assert by_coo.nnz == len(set(cells))
    dense = np.zeros(shape, bool)
    dense[rows, cols] = True
    assert np.array_equal(by_csr.to_scipy().toarray() != 0, dense)
    for row in range(shape[0]):
        part = by_csr.indices[by_csr.indptr[row] : by_csr.indptr[row + 1]]
        assert (np.diff(part) > 0).all()
    assert by_csr.indptr.dtype == np.int64
    assert by_csr.indices.dtype == np.int32


def test_id_is_the_documented_digest() -> None:
    pattern = Pattern.from_csr((2, 3), [0, 2, 3], [0, 2, 1], name="a")
    data = b"".join(int(v).to_bytes(8, "little") for v in (2, 3, 0, 2, 3))
    data += b"".join(int(v).to_bytes(4, "little") for v in (0, 2, 1))
    assert pattern.id == hashlib.blake2b(data, digest_size=16).hexdigest()
    assert pattern.group == "a"
    assert repr(pattern) == "Pattern('a', 2x3, nnz=3)"


def test_id_depends_on_shape_and_structure_only() -> None:
    base = Pattern.from_coo((3, 3), [0, 1], [1, 2], name="a")
    assert base == Pattern.from_coo((3, 3), [1, 0], [2, 1], name="b", group="g")
    assert len({base, Pattern.from_coo((3, 3), [0, 1], [1, 2])}) == 1
    for other in (
        Pattern.from_coo((3, 4), [0, 1], [1, 2]),
        Pattern.from_coo((4, 3), [0, 1], [1, 2]),
        Pattern.from_coo((3, 3), [0, 1], [1, 1]),
        Pattern.from_coo((3, 3), [1, 0], [1, 2]),
    ):
        assert base != other
    assert base != base.id


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint32", "int64", "uint64", ">i4"])
def test_index_types_do_not_matter(dtype: str) -> None:
    ptr, idx = np.array([0, 1, 3], dtype), np.array([2, 0, 1], dtype)
    assert (
        Pattern.from_csr((2, 3), ptr, idx).id == Pattern.from_csr((2, 3), [0, 1, 3], [2, 0, 1]).id
    )


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (5, 5), (1, 7), (7, 1)])
def test_empty(shape: tuple[int, int]) -> None:
    pattern = Pattern.from_coo(shape, [], [])
    assert pattern.nnz == 0
    assert pattern == Pattern.from_csr(shape, np.zeros(shape[0] + 1, int), [])
    assert pattern == Pattern.from_csc(shape, np.zeros(shape[1] + 1, int), [])
    assert pattern.to_scipy().shape == shape


NAN = float("nan")


@pytest.mark.parametrize(
    ("ptr", "idx"),
    [
        ([0, 1], [0]),
        ([0, 2, 1, 2], [0, 1]),
        ([1, 1, 1, 2], [0]),
        ([0, 1, 1, 3], [0]),
        ([0, 0, 0, 1], [3]),
        ([0, 0, 0, 1], [-1]),
        ([0, 0, 0, 1], [2**32]),
        ([0, 0, 0, 1], [NAN]),
        ([0, 0, 0, 1], [0.5]),
        ([0.0, 0.0, NAN, 1.0], [0]),
        ([[0, 0, 0, 1]], [0]),
        (5, [0]),
        ([0, 0, 0, 1], [[0]]),
        ([0, 0, 0, 2**64 - 1], [0]),
        ([0, 0, 0, 1], ["a"]),
    ],
)
def test_bad_compressed_arrays(ptr: Any, idx: Any) -> None:
    for build in (Pattern.from_csr, Pattern.from_csc):
        with pytest.raises(MatrixError, match="bad-one"):
            build((3, 3), ptr, idx, name="bad-one")


@pytest.mark.parametrize(
    ("rows", "cols"),
    [([3], [0]), ([0], [3]), ([-1], [0]), ([0], [-1]), ([NAN], [0]), ([0, 1], [0]), ([2**40], [0])],
)
def test_bad_coordinates(rows: Any, cols: Any) -> None:
    with pytest.raises(MatrixError):
        Pattern.from_coo((3, 3), rows, cols)


@pytest.mark.parametrize("shape", [(-1, 2), (2, MAX_DIM + 1)])
def test_bad_shape(shape: tuple[int, int]) -> None:
    with pytest.raises(MatrixError, match="not a supported size"):
        Pattern.from_coo(shape, [], [])


def test_stub_ids_differ_by_every_part() -> None:
    ids = {
        stub_id("a", 1, 2, 3),
        stub_id("b", 1, 2, 3),
        stub_id("a", 12, 3, -1),
        stub_id("a", 1, 23, -1),
    }
    assert len(ids) == 4
    assert all(len(i) == 32 for i in ids)
