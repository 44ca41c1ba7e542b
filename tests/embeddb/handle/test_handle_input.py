"""Input that is wrong is refused before C sees it; what is odd is computed as scipy does."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import embeddb
from embeddb.core.config import Op
from embeddb.core.errors import MatrixError, SpaceError, UsageError
from embeddb.handle.handle import Handle
from embeddb.kernels import build as cpu_build

needs_gcc = pytest.mark.skipif(cpu_build.compiler() is None, reason="needs gcc")
pytestmark = [pytest.mark.gcc, needs_gcc]

ROWS = "order=ijk,format=csr,threads=all,schedule=static"
SHAPE = (30, 20)


@pytest.fixture
def a() -> Any:
    rng = np.random.default_rng(0)
    return sparse.csr_array(rng.random(SHAPE, dtype=np.float32) * (rng.random(SHAPE) < 0.3))


@pytest.fixture
def f(a: Any) -> Handle:
    return compiled(a)


def compiled(a: Any, kernel: str = "spmm", k: int | None = 8, **more: Any) -> Handle:
    return embeddb.compile(a, kernel, k=k, config=ROWS, **more)


def dense(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(1).random(shape).astype(dtype)


# -- the matrix --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["array", "matrix"])
@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
def test_three_formats_two_kinds(a: Any, layout: str, kind: str) -> None:
    made = getattr(sparse, f"{layout}_{kind}")(a)
    b = dense(20, 8)
    np.testing.assert_allclose(compiled(made)(b), a @ b, rtol=1e-5)


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
def test_unsorted_and_duplicate_indices_are_sorted_and_added_up(layout: str) -> None:
    rows, cols = np.array([2, 0, 2, 2, 0]), np.array([3, 1, 1, 3, 0])
    values = np.array([1.0, 2.0, 3.0, 4.0, 5.0], dtype=np.float32)
    made: Any = sparse.coo_array((values, (rows, cols)), shape=(4, 5))
    if layout == "csr":
        made = sparse.csr_array((values[[1, 4, 0, 2, 3]], cols[[1, 4, 0, 2, 3]], [0, 2, 2, 5, 5]))
        made.resize((4, 5))
    elif layout == "csc":
        made = sparse.csc_array(
            (values[[4, 2, 1, 3, 0]], rows[[4, 2, 1, 3, 0]], [0, 1, 3, 3, 5, 5]), shape=(4, 5)
        )
    before = made.data.copy()
    b = dense(5, 8)
    f = compiled(made)
    np.testing.assert_allclose(f(b), made @ b, rtol=1e-6)
    assert (made.data == before).all(), "the caller's matrix is not touched"
    with pytest.raises(UsageError, match="shape"):
        f.update(made.data)
    with pytest.raises(UsageError, match="no order"):
        f.update(made.data[1:])
    made.data *= 3
    f.update(made)
    np.testing.assert_allclose(f(b), made @ b, rtol=1e-6)


@pytest.mark.parametrize("bad", [-1, 20, 2**31 - 1])
@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
def test_an_index_outside_is_refused(a: Any, layout: str, bad: int) -> None:
    made = a.asformat(layout)
    part = made.indices if layout != "coo" else made.coords[1]
    part = part if part.flags.writeable else part.copy()
    part[3] = bad if bad != 20 or layout != "csc" else 30
    if layout == "coo":
        made.coords = (made.coords[0], part)
    with pytest.raises(MatrixError):
        compiled(made)


def test_pointers_that_are_none_are_refused(a: Any) -> None:
    a.indptr[4] = a.indptr[5] + 1
    with pytest.raises(MatrixError, match="ascend"):
        compiled(a)


def test_2_to_the_31_nonzeros_are_refused_by_their_number() -> None:
    a = sparse.csr_array((1, 1), dtype=np.float32)
    a.data = np.broadcast_to(np.float32(1), (2**31,))
    a.indices = np.broadcast_to(np.int64(0), (2**31,))
    with pytest.raises(MatrixError, match="2147483648 non-zeros"):
        compiled(a)


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_both_widths_of_indices(a: Any, index: Any) -> None:
    a.indices, a.indptr = a.indices.astype(index), a.indptr.astype(index)
    b = dense(20, 8)
    np.testing.assert_allclose(compiled(a)(b), a @ b, rtol=1e-5)


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (1, 7), (7, 1), (6, 6)])
def test_empty_and_narrow_matrices(shape: tuple[int, int]) -> None:
    a = sparse.csr_array(shape, dtype=np.float32)
    b, c = dense(shape[1], 8), dense(shape[0], 8)
    for config in (ROWS, "order=ik1jk0,format=bcsr,block=4x4,ktile=16,threads=one"):
        found = embeddb.compile(a, "spmm", k=8, config=config)(b)
        assert found.shape == (shape[0], 8) and not found.any()
    assert embeddb.compile(a, "sddmm", k=8, config=ROWS)(c, b).shape == (0,)


def test_no_and_one_dense_column(a: Any) -> None:
    assert compiled(a, k=0)(dense(20, 0)).shape == (30, 0)
    assert not embeddb.compile(a, "sddmm", k=0)(dense(30, 0), dense(20, 0)).any()
    np.testing.assert_allclose(compiled(a, k=1)(dense(20, 1)), a @ dense(20, 1), rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, bool, np.int64, np.float64])
def test_what_holds_the_values_is_computed_in(a: Any, dtype: Any) -> None:
    made = (a * 9).astype(dtype)
    f = compiled(made)
    b = dense(20, 8)
    assert f(b).dtype == (np.float64 if np.dtype(dtype).itemsize == 8 else np.float32)
    np.testing.assert_allclose(f(b), made.astype(float) @ b, rtol=1e-4)
    assert compiled(made, dtype="float64")(b).dtype == np.float64


@pytest.mark.parametrize("dtype", [np.complex64, np.longdouble, object])
def test_other_types_are_refused(dtype: Any) -> None:
    a = sparse.csr_array((3, 3), dtype=np.float32)
    a.data = a.data.astype(dtype)
    with pytest.raises(UsageError, match="float32 and float64"):
        compiled(a)


@pytest.mark.parametrize("thing", [np.eye(3), [[1.0]], sparse.eye_array(3).todia(), None])
def test_what_is_no_such_matrix_is_refused(thing: Any) -> None:
    with pytest.raises(UsageError, match="scipy sparse matrix"):
        compiled(thing)


@pytest.mark.parametrize("shape", [(3,), (2, 3, 2)])
def test_a_coo_array_that_is_no_matrix_is_refused_for_its_dimensions(shape: Any) -> None:
    with pytest.raises(UsageError, match=f"{len(shape)} dimensions"):
        compiled(sparse.coo_array(np.ones(shape)))


def test_the_hint_of_a_refused_matrix_is_for_its_type() -> None:
    for thing, cure in ((np.eye(3), "csr_array(A)"), (sparse.eye_array(3).tobsr(), "A.tocsr()")):
        with pytest.raises(UsageError) as refused:
            compiled(thing)
        assert cure in refused.value.hint


@pytest.mark.parametrize(
    ("kernel", "k"), [("spgemm", 8), ("spmm", None), ("spmm", -1), ("spmm", 2.0), ("spmv", 3)]
)
def test_other_operations_are_refused(a: Any, kernel: str, k: Any) -> None:
    with pytest.raises(UsageError):
        embeddb.compile(a, kernel, k=k)


def test_a_configuration_that_is_none_is_refused(a: Any) -> None:
    with pytest.raises(SpaceError, match="order"):
        embeddb.compile(a, "spmm", k=8, config="order=zigzag")


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ({"calls": -5}, "calls is -5: a number"),
        ({"calls": float("nan")}, "calls is nan: a number"),
        ({"calls": "3"}, "calls is '3': a number"),
        ({"calls": True}, "calls is True: a number"),
        ({"calls": 10**400}, "calls is 1000"),
        ({"seconds": -1}, "seconds is -1: a number"),
        ({"seconds": float("nan")}, "seconds is nan: a number"),
        ({"seconds": "x"}, "seconds is 'x': a number"),
        ({"seconds": None}, "seconds is None: a number"),
        ({"dtype": "x"}, "dtype 'x': kernels compute in float32 and float64"),
        ({"config": 5}, "config is 5: a mapping"),
        ({"db": None}, "db is None: a folder"),
        ({"db": 3}, "db is 3: a folder"),
        ({"build": "no"}, "build is 'no': True, False or None"),
        ({"reproducible": "no"}, "reproducible is 'no': True or False"),
        ({"reproducible": None}, "reproducible is None: True or False"),
    ],
)
def test_other_arguments_are_refused_in_a_line(a: Any, argument: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        embeddb.compile(a, "spmv", **argument)
    assert "\n" not in str(caught.value)


def test_numbers_of_numpy_are_numbers(a: Any) -> None:
    calls, seconds = np.int64(1), np.float32(0)
    f = embeddb.compile(a, "spmv", calls=calls, seconds=seconds, reproducible=np.True_)
    np.testing.assert_allclose(f(dense(20)), a @ dense(20), rtol=1e-5)


def test_the_name_of_a_kernel_may_be_numpys(a: Any) -> None:
    f = embeddb.compile(a, np.str_("spmm"), k=8, config=ROWS)
    assert type(f.op.name) is str
    assert type(Op(np.str_("spmv"), 1, "f64").name) is str


@pytest.mark.parametrize("layout", ["csr", "csc"])
def test_longer_buffers_are_refused_with_a_cure(a: Any, layout: str) -> None:
    made = a.asformat(layout)
    b, pad = dense(20, 8), np.zeros(3, np.int32)
    made.indices, made.data = np.append(made.indices, pad), np.append(made.data, pad)
    with pytest.raises(MatrixError, match="pointers end at") as caught:
        compiled(made)
    assert "A.prune()" in caught.value.hint
    made.prune()
    np.testing.assert_allclose(compiled(made)(b), a @ b, rtol=1e-5)


def test_the_matrix_is_copied(a: Any, f: Handle) -> None:
    b = dense(20, 8)
    before = f(b)
    a.data[:], a.indices[:] = 0, 2**30
    assert (f(b) == before).all()


def test_a_changed_pattern_is_refused(a: Any, f: Handle) -> None:
    other = a.copy()
    other.indices[0] = (set(range(20)) - set(other.indices[: other.indptr[1]])).pop()
    with pytest.raises(UsageError, match="pattern of A has changed"):
        f.update(other)
    with pytest.raises(UsageError, match="shape"):
        f.update(a.data[1:])
    with pytest.raises(UsageError, match="complex"):
        f.update(a.data * 1j)


@pytest.mark.parametrize(
    ("values", "said"),
    [(None, "NoneType, not an array"), (dense(5, 5), "shape"), (dense(3), "shape")],
)
def test_values_are_blamed_before_the_order_of_a(a: Any, f: Handle, values: Any, said: str) -> None:
    f.update(a.tocoo())
    with pytest.raises(UsageError, match=said):
        f.update(values)
    with pytest.raises(UsageError, match="no order"):
        f.update(a.data)


def test_masked_arrays_are_refused(a: Any, f: Handle) -> None:
    masked = np.ma.masked_array(dense(20, 8), dense(20, 8) < 0.5)
    with pytest.raises(UsageError, match="B is a masked array"):
        f(masked)
    with pytest.raises(UsageError, match="out is a masked array"):
        f(dense(20, 8), out=np.ma.masked_array(dense(30, 8)))
    with pytest.raises(UsageError, match="values is a masked array"):
        f.update(np.ma.masked_array(a.data))


# -- operands ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "b",
    [
        np.asfortranarray(dense(20, 8)),
        dense(40, 16)[::2, ::2],
        dense(20, 8)[::-1],
        dense(20, 8).astype(">f4"),
        dense(20, 8, dtype=np.float16),
        np.frombuffer(b"\0" + dense(20, 8).tobytes(), np.float32, 160, 1).reshape(20, 8),
        (dense(20, 8) * 9).astype(np.int16),
    ],
    ids=["column-major", "strided", "reversed", "big-endian", "f16", "unaligned", "i16"],
)
def test_operands_that_kernels_cannot_take_are_copied(a: Any, f: Handle, b: Any) -> None:
    assert "copied" not in f.why()
    np.testing.assert_allclose(f(b), a @ b.astype(np.float32), rtol=1e-4)
    assert "operands of 1 calls were copied" in f.why()


@pytest.mark.parametrize(
    "b", [dense(20, 9), dense(19, 8), dense(20), dense(20, 8, 1), dense(8, 20), None, "text"]
)
def test_wrong_shapes_are_refused(f: Handle, b: Any) -> None:
    with pytest.raises(UsageError, match=r"shape|k=8"):
        f(b)


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.complex64])
def test_wider_types_are_refused(f: Handle, dtype: Any) -> None:
    with pytest.raises(UsageError, match=np.dtype(dtype).name):
        f(dense(20, 8, dtype=dtype))


def test_a_tensor_that_requires_a_gradient_is_refused(f: Handle) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(UsageError, match=r"B is no dense array: .*requires grad"):
        f(torch.ones(20, 8, requires_grad=True))
    y = embeddb.compile(f.sparse(), "spmv", config="order=ij,format=csr,lanes=4,threads=one")
    with pytest.raises(UsageError, match=r"B is no dense array: .*requires grad"):
        y(torch.ones(20, requires_grad=True))


def test_the_number_of_operands(a: Any, f: Handle) -> None:
    with pytest.raises(UsageError, match="one dense operand"):
        f(dense(20, 8), dense(20, 8))
    with pytest.raises(UsageError, match="two dense operands"):
        compiled(a, "sddmm")(dense(30, 8))


def test_an_out_that_cannot_take_the_result_is_refused(f: Handle) -> None:
    locked = np.empty((30, 8), dtype=np.float32)
    locked.flags.writeable = False
    for out, said in (
        (locked, "read-only"),
        (np.empty((30, 9), dtype=np.float32), "shape"),
        (np.empty((30, 8)), "float64"),
        ([0.0], "list"),
    ):
        with pytest.raises(UsageError, match=said):
            f(dense(20, 8), out=out)


def test_an_out_whose_rows_overlap_is_refused(f: Handle) -> None:
    room = np.zeros(30 + 8, np.float32)
    for strides in ((0, 4), (4, 4), (4, 0)):
        out = np.lib.stride_tricks.as_strided(room, (30, 8), strides)
        with pytest.raises(UsageError, match="several elements at one address"):
            f(dense(20, 8), out=out)
    assert not room.any()


def test_strided_and_overlapping_outs_get_the_result(a: Any, f: Handle) -> None:
    b = dense(20, 8)
    expected = a @ b
    for out in (np.empty((60, 8), np.float32)[::2], np.empty((30, 8), np.float32, order="F")):
        assert f(b, out=out) is out
        np.testing.assert_allclose(out, expected, rtol=1e-5)
    room = np.zeros((45, 8), dtype=np.float32)
    room[:20] = b
    np.testing.assert_allclose(f(room[:20], out=room[10:40]), expected, rtol=1e-5)


def test_vectors_of_one_and_two_dimensions(a: Any) -> None:
    f = embeddb.compile(a, "spmv", config="order=ij,format=csr,lanes=4,threads=one")
    x = dense(20)
    np.testing.assert_allclose(f(x), a @ x, rtol=1e-5)
    assert f(x[:, None]).shape == (30, 1)
    with pytest.raises(UsageError, match="shape"):
        f(dense(21))


def test_sparse_gives_the_result_of_sddmm_its_places(a: Any) -> None:
    f = compiled(a, "sddmm")
    c, b = dense(30, 8), dense(20, 8)
    made = f.sparse(f(c, b))
    np.testing.assert_allclose(made.toarray(), a.multiply(c @ b.T).toarray(), rtol=1e-4)
    made.indices[:] = 2**30
    np.testing.assert_allclose(f.sparse().toarray(), a.toarray())
    for values in (f.sparse().data[1:], np.ones((a.nnz, 1)), 3.0):
        with pytest.raises(UsageError, match="values has the shape"):
            f.sparse(values)


def test_import_embeddb_stays_light() -> None:
    code = (
        "import sys, embeddb; from_ = set(sys.modules);"
        "assert not [m for m in from_ if m.startswith(('embeddb.handle', 'indexer', 'scipy'))];"
        "embeddb.compile; assert 'faiss' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
