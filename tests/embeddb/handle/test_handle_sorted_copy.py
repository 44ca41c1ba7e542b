"""Compiled code copies and checks a matrix as numpy does, whatever the matrix or another thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import embeddb
from embeddb.core.config import Op
from embeddb.core.errors import MatrixError
from embeddb.handle import autotune
from embeddb.handle.matrix import Matrix, matrix_of
from embeddb.kernels import build as cpu_build
from embeddb.kernels import forms
from embeddb.kernels.codegen import conversions

needs_gcc = pytest.mark.skipif(cpu_build.compiler() is None, reason="needs gcc")
pytestmark = [pytest.mark.gcc, needs_gcc]
SPMV = Op("spmv")


@pytest.fixture(autouse=True)
def _loaded() -> Iterator[None]:
    before = list(forms._loaded)
    forms._loaded[:] = [forms._code(str(cpu_build.build(conversions()).path))]
    yield
    forms._loaded[:] = before


def csr(shape: tuple[int, int], ptr: Any, idx: Any, dtype: Any = np.float32) -> Any:
    """A matrix of these arrays, which scipy does not check."""
    made = sparse.csr_array(shape, dtype=dtype)
    made.indptr, made.indices = np.asarray(ptr), np.asarray(idx)
    made.data = np.arange(1, made.indices.size + 1).astype(dtype)
    return made


def by_numpy(a: Any) -> Matrix | str:
    compiled = list(forms._loaded)
    forms._loaded.clear()
    try:
        return outcome(a)
    finally:
        forms._loaded[:] = compiled


def outcome(a: Any) -> Matrix | str:
    try:
        return matrix_of(a)
    except MatrixError as error:
        return str(error)


def assert_same(a: Any) -> None:
    one, other = outcome(a), by_numpy(a)
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
        return
    assert one.pattern == other.pattern and one.plain == other.plain
    for made, wanted in (
        (one.pattern.indptr, other.pattern.indptr),
        (one.pattern.indices, other.pattern.indices),
        (one.values, other.values),
    ):
        assert made.dtype == wanted.dtype and made.flags.c_contiguous
        np.testing.assert_array_equal(made, wanted)
    assert not one.values.size or one.values.ctypes.data % 64 == 0
    assert not any(np.shares_memory(one.values, part) for part in (a.data, a.indices, a.indptr))


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize(
    ("shape", "ptr", "idx"),
    [
        ((0, 0), [0], []),
        ((0, 5), [0], []),
        ((3, 0), [0, 0, 0, 0], []),
        ((3, 0), [0, 0, 1, 1], [0]),
        ((4, 5), [0, 0, 2, 2, 4], [1, 4, 0, 2]),
        ((4, 5), [0, 0, 2, 2, 4], [4, 1, 0, 2]),
        ((4, 5), [0, 0, 2, 2, 4], [1, 1, 0, 2]),
        ((4, 5), [0, 0, 2, 2, 4], [1, 5, 0, 2]),
        ((4, 5), [0, 0, 2, 2, 4], [-1, 4, 0, 2]),
        ((4, 5), [1, 1, 2, 2, 4], [1, 4, 0, 2]),
        ((4, 5), [0, 3, 2, 2, 4], [1, 4, 0, 2]),
        ((4, 5), [0, 0, 2, 2, 3], [1, 4, 0, 2]),
        ((4, 5), [0, 0, 2, 2, 5], [1, 4, 0, 2]),
        ((4, 5), [0, -1, 2, 2, 4], [1, 4, 0, 2]),
        ((4, 5), [0, 0, 2, 4], [1, 4, 0, 2]),
        ((1, 5), [0, 4], [0, 1, 2, 3]),
        ((2, 5), [0, 4, 4], [0, 1, 2, 2]),
    ],
)
def test_damaged_and_narrow_matrices(
    shape: tuple[int, int], ptr: Any, idx: Any, index: Any
) -> None:
    assert_same(csr(shape, np.array(ptr, index), np.array(idx, index)))


def test_indices_beyond_32_bits_are_refused() -> None:
    for column in (2**32, 2**32 + 1, -(2**32), 2**31, 2**63 - 1):
        assert_same(csr((2, 5), np.array([0, 1, 2]), np.array([0, column])))
    assert_same(csr((2, 5), np.array([0, 2**32, 2]), np.array([0, 1])))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, bool])
def test_arrays_of_other_types_and_layouts(dtype: Any) -> None:
    a = csr((4, 5), np.array([0, 0, 2, 2, 4]), np.array([1, 4, 0, 2], np.int32), dtype)
    assert_same(a)
    a.indices = np.array([1, 9, 4, 9, 0, 9, 2, 9])[::2]
    assert_same(a)
    a.indices = np.array([1, 4, 0, 2], ">i4")
    assert_same(a)
    a.indices = np.array([1, 4, 0, 2], np.uint8)
    assert_same(a)
    a.indices.setflags(write=False)
    a.data = a.data.astype(a.data.dtype.newbyteorder(">"))
    assert_same(a)
    a.indptr = a.indptr.astype(">i8")
    assert_same(a)
    a.data = a.data[:3]
    assert_same(a)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 6).flatmap(
        lambda m: st.tuples(
            st.just(m),
            st.integers(0, 5),
            st.lists(st.integers(-1, 8), min_size=m + 1, max_size=m + 1),
            st.lists(st.integers(-1, 6), max_size=8),
            st.booleans(),
        )
    )
)
def test_any_arrays(made: tuple[int, int, list[int], list[int], bool]) -> None:
    m, n, ptr, idx, tidy = made
    index = np.int32
    if tidy:
        ptr = sorted([0, *(min(max(p, 0), len(idx)) for p in ptr[2:]), len(idx)])[: m + 1]
        index = np.int64
    assert_same(csr((m, n), np.array(ptr, index), np.array(idx, index)))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 2**32 - 1), st.booleans())
def test_products_are_those_of_scipy(m: int, n: int, seed: int, double: bool) -> None:
    rng = np.random.default_rng(seed)
    dense = rng.random((m, n)) * (rng.random((m, n)) < rng.random())
    a = sparse.csr_array(dense.astype(np.float64 if double else np.float32))
    x = rng.random(n).astype(a.dtype)
    for config in (
        "format=sell16,order=ij,sigma=256,slice=8,threads=one",
        "format=sell16,order=ij,schedule=static,sigma=256,slice=8,threads=all",
        "format=csr,lanes=4,order=ij,reorder=none,schedule=static,threads=all,unroll=1",
    ):
        f = embeddb.compile(a, "spmv", config=config)
        np.testing.assert_allclose(f(x), a @ x, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(f(x[:, None], out=np.empty((m, 1), a.dtype))[:, 0], f(x))


def test_another_thread_changes_the_matrix_meanwhile() -> None:
    a = sparse.random_array((2000, 500), density=0.02, format="csr", dtype=np.float32)
    good, over = a.indices.copy(), threading.Event()
    bad = np.where(np.arange(good.size) % 97 == 0, 1_000_000, good).astype(good.dtype)

    def change() -> None:
        while not over.is_set():
            a.indices[:] = bad
            a.indices[:] = good

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(300):
            if not isinstance(made := outcome(a), str):
                assert made.pattern.indices.min() >= 0 and made.pattern.indices.max() < 500
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("rows", [1, 4, 256, 10**6])
def test_spread_of_rows_is_that_of_numpy(rows: int) -> None:
    ptr = np.concatenate([[0], np.random.default_rng(0).integers(0, 50, 1000).cumsum()])
    spread = forms.spread_of_rows(ptr, rows)
    forms._loaded.clear()
    assert forms.spread_of_rows(ptr, rows) == spread


def full(rows: int, tail: int = 0) -> Matrix:
    """Rows of 40 entries, and at the end `tail` of 400."""
    lengths = np.concatenate([np.full(rows, 40), np.full(tail, 400)])
    where = np.repeat(np.arange(lengths.size), lengths), np.arange(lengths.sum()) % 400
    shape = (lengths.size, 400)
    return matrix_of(sparse.coo_array((np.ones(where[0].size, np.float32), where), shape=shape))


@pytest.mark.parametrize(
    ("tail", "processors", "schedule"), [(0, 2, "static"), (60, 2, "dynamic"), (0, 64, "dynamic")]
)
def test_equal_parts_of_a_team_are_fixed(
    tail: int, processors: int, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_build, "threads_used", lambda _: processors)
    monkeypatch.setattr(autotune, "crowded", lambda: False)
    matrix = full(1000, tail)
    one = autotune.usual_config(SPMV, matrix)
    assert one is not None
    team = autotune.team_of(SPMV, matrix, one)
    assert team is not None
    team = autotune.in_equal_parts(team, matrix)
    assert team["schedule"] == schedule and ("chunk" in team) == (schedule == "dynamic")


@pytest.mark.parametrize(("count", "team"), [(60_000, False), (90_000, True)])
def test_rows_of_mostly_fill_run_on_a_team(
    count: int, monkeypatch: pytest.MonkeyPatch, *, team: bool
) -> None:
    monkeypatch.setattr(cpu_build, "threads_used", lambda _: 2)
    monkeypatch.setattr(autotune, "crowded", lambda: False)
    lengths = np.ones(30_000, int)
    lengths[::1000] = (count - 30_000) // 30
    where = np.repeat(np.arange(lengths.size), lengths), np.arange(lengths.sum()) % 30_000
    values = np.ones(where[0].size, np.float32)
    a = sparse.coo_array((values, where), shape=(30_000, 30_000)).tocsr()
    matrix = matrix_of(a)
    monkeypatch.setattr(autotune, "window", lambda _: 0)
    usual = autotune.usual_config(SPMV, matrix)
    assert (usual is not None) == team
    if usual is not None:
        assert (usual["format"], usual["schedule"]) == ("csr", "static")
        f = embeddb.compile(a, "spmv", config=usual)
        x = np.random.default_rng(0).random(30_000, dtype=np.float32)
        np.testing.assert_allclose(f(x), a @ x, rtol=1e-3)


def test_arrays_that_another_thread_replaced_are_not_copied() -> None:
    ptr, idx, values = np.array([0, 1, 2]), np.array([0, 1]), np.ones(2, np.float32)
    assert forms.sorted_copy((2, 2), ptr, idx, values) is not None
    assert forms.sorted_copy((2, 2), ptr, idx, values[:1]) is None
    assert forms.sorted_copy((2, 2), ptr, idx[:1], values) is None
    assert forms.sorted_copy((2, 1 << 32), ptr, idx, values) is None
