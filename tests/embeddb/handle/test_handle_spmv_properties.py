"""SpMV handles equal scipy's product for any matrix, operand and result array."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import embeddb
from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.handle.handle import Handle
from embeddb.handle.kernel_call import FormRefused, by_kernel
from embeddb.handle.matrix import matrix_of
from embeddb.kernels import build as cpu_build

needs_gcc = pytest.mark.skipif(cpu_build.compiler() is None, reason="needs gcc")
pytestmark = [pytest.mark.gcc, needs_gcc]

F32, F64 = np.float32, np.float64
#: Every nest and format of SpMV, with a value type; 16-bit columns with both.
CASES = [
    ("format=sell16,order=ij,sigma=1,slice=8,threads=one", F32),
    ("format=sell16,order=ij,sigma=16,slice=8,threads=all,schedule=static", F64),
    ("format=sell16,order=ij,sigma=256,slice=1,threads=one", F32),
    ("format=sell16,gather=hardware,order=ij,sigma=256,slice=8,threads=one", F32),
    ("format=sell16,gather=hardware,order=ij,sigma=1,slice=8,threads=one", F64),
    ("format=sell,order=ij,sigma=16,slice=4,threads=all,schedule=static", F64),
    ("format=ell,order=ij,slice=8,threads=one", F32),
    ("block=4x4,format=bcsr,order=ij,threads=one", F32),
    ("block=8x1,format=bcsr,order=ij,threads=all,schedule=guided", F64),
    ("format=csr,lanes=4,order=ij,reorder=length,schedule=guided,threads=all,unroll=4", F32),
    ("format=csc,order=ji,threads=all", F64),
    ("format=dcsr,jtile=8192,lanes=4,order=j1ij0,schedule=static,threads=all,unroll=2", F32),
    ("format=csr,lanes=1,order=p,pieces=4,seams=atomic,threads=all,unroll=1", F64),
    ("format=csr,lanes=4,order=p,pieces=4,seams=fixup,threads=all,unroll=1", F32),
]
#: Around 2^16 columns, where 16 bits stop counting from 0.
COLUMNS = [0, 1, 3, 38, 64, 65_535, 65_536, 65_537, 200_000]


@st.composite
def matrices(draw: st.DrawFn, dtype: Any) -> Any:
    """Sparse matrices as users have them: empty, with one dense row, explicit zeros, duplicates,
    indices in any order, columns near one another or far apart, three layouts."""
    m, n = draw(st.sampled_from([0, 1, 7, 8, 9, 45])), draw(st.sampled_from(COLUMNS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.sampled_from([0, 1, 60, 400])) if m and n else 0
    span = min(n, draw(st.sampled_from([4, 300, 65_536, n]))) if n else 0
    rows = rng.integers(0, max(m, 1), count) // draw(st.sampled_from([1, 3]))
    cols = rng.integers(0, max(span, 1), count) + rng.integers(0, n - span + 1)
    if count and draw(st.booleans()):
        dense = rng.integers(0, span, min(span, 500)) + (n - span)
        rows, cols = np.append(rows, np.full(dense.size, m - 1)), np.append(cols, dense)
    values = rng.standard_normal(rows.size).astype(dtype)
    if draw(st.booleans()):
        values[::5] = 0
    a = sparse.coo_array((values, (rows, cols)), shape=(m, n))
    if draw(st.booleans()):
        a.sum_duplicates()
    layout = draw(st.sampled_from(["csr", "unsorted", "csc", "coo"]))
    if layout != "unsorted":
        return a.asformat(layout)
    order = np.argsort(a.row, kind="stable")
    ptr = np.searchsorted(a.row[order], np.arange(m + 1))
    return sparse.csr_array((a.data[order], a.col[order], ptr), shape=(m, n))


def canonical(a: Any) -> Any:
    """Sorted CSR with summed duplicates and explicit zeros, as `embeddb.compile` documents."""
    a = a.tocsr(copy=True)
    a.sum_duplicates()
    return a


def spoiled(x: Any, seed: int) -> Any:
    """A vector with infinities and a NaN in a few places, its first among them."""
    rng = np.random.default_rng(seed)
    for at, value in zip(
        (0, *rng.integers(0, max(x.size, 1), 2)), (np.inf, np.nan, -np.inf), strict=True
    ):
        x[at : at + 1] = value
    return x


def agrees(y: Any, a: Any, x: Any) -> None:
    """Check y against scipy: the same NaN and infinities, other values within rounding errors."""
    a = canonical(a)
    with np.errstate(invalid="ignore", over="ignore"):
        expected, scale = a @ x, abs(a) @ abs(x)
    longest = int(np.diff(a.indptr).max(initial=1))
    bound = 2 * np.finfo(y.dtype).eps * (longest + 2)
    finite = np.isfinite(expected)
    assert y.shape == expected.shape and y.dtype == expected.dtype
    np.testing.assert_array_equal(y[~finite], expected[~finite])
    assert (abs(y[finite] - expected[finite]) <= bound * scale[finite]).all()


def strided(x: Any) -> Any:
    return np.repeat(x, 2)[::2]


def misaligned(x: Any) -> Any:
    raw = np.frombuffer(b"\0" + x.tobytes(), np.uint8)
    return raw[1:].view(x.dtype)


def read_only(x: Any) -> Any:
    x.flags.writeable = False
    return x


def reversed_order(x: Any) -> Any:
    return x[::-1].copy()[::-1]


def big_endian(x: Any) -> Any:
    return x.astype(x.dtype.newbyteorder(">"))


OPERANDS = [np.asarray, strided, misaligned, read_only, reversed_order, big_endian]


@pytest.mark.parametrize(("text", "dtype"), CASES)
def test_any_matrix_and_operand(text: str, dtype: Any) -> None:
    config, op = Config.parse(text), Op("spmv", 1, "f32" if dtype == F32 else "f64")

    @settings(max_examples=25, derandomize=True)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        a = data.draw(matrices(dtype))
        m, n = a.shape
        seed = data.draw(st.integers(0, 2**32 - 1))
        try:
            f = Handle(by_kernel(matrix_of(a), op, config), config, None, [])
        except FormRefused:
            f = embeddb.compile(a, "spmv", config=config)
            assert f.config != config
        x = np.random.default_rng(seed).standard_normal(n).astype(dtype)
        if data.draw(st.booleans()):
            x = spoiled(x, seed)
        given_x = data.draw(st.sampled_from(OPERANDS))(x)
        agrees(f(given_x), a, x)
        agrees(f(x[:, None]), a, x[:, None])
        g = pickle.loads(pickle.dumps(f))  # noqa: S301 - our own
        f.update(-3 * a)
        agrees(f(x), -3 * a, x)
        agrees(g(x), a, x)
        room = np.full(max(m, n) + 1, np.nan, dtype)
        shift = data.draw(st.integers(0, 1))
        room[:n] = x  # the result overlaps its operand
        out = room[shift : shift + m]
        assert f(room[:n], out=out) is out
        agrees(out, -3 * a, x)

    check()


SLICES = CASES[1][0]


def banded(n: int, dtype: Any = F64) -> Any:
    rng = np.random.default_rng(n)
    diagonals = [rng.standard_normal(n) for _ in range(5)]
    return sparse.diags_array(diagonals, offsets=range(5), shape=(n, n)).tocsr().astype(dtype)


def test_calls_beside_updates_have_old_or_new_values() -> None:
    """Slices are exchanged whole: no result mixes values of two updates, nor does scipy's, which
    computes again because x holds an infinity."""
    a = banded(70_001)
    f = embeddb.compile(a, "spmv", config=SLICES)
    x = np.random.default_rng(0).standard_normal(70_001)
    infinite = spoiled(x.copy(), 0)
    expected = [f(x), f(infinite)]
    f.update(2 * a)
    doubled = [f(x), f(infinite)]
    mixed: list[int] = []
    end = threading.Event()

    def call() -> None:
        while not end.is_set():
            for at, operand in enumerate((x, infinite)):
                y = f(operand)
                if not any(
                    np.array_equal(y, z, equal_nan=True) for z in (expected[at], doubled[at])
                ):
                    mixed.append(at)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for factor in (1, 2) * 10:
        f.update(factor * a if factor == 1 else factor * a.data)
    end.set()
    for thread in threads:
        thread.join()
    assert not mixed


@pytest.mark.parametrize("first", ["csr", "csc"])
def test_values_alone_need_one_order_of_all_matrices(first: str) -> None:
    """After `update` with a matrix of another layout `data` may be in either one's order."""
    a = banded(50)
    f = embeddb.compile(a.asformat(first), "spmv", config=SLICES)
    f.update(2 * a.asformat("csc" if first == "csr" else "csr"))
    with pytest.raises(UsageError, match="no order"):
        f.update(a.asformat(first).data)
    x = np.random.default_rng(0).standard_normal(50)
    agrees(f(x), 2 * a, x)
    f.update(a)
    agrees(f(x), a, x)
