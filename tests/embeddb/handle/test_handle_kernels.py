"""What a handle computes is what scipy computes: every format, odd widths, both value types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

import embeddb
from embeddb.core.config import Config, Op
from embeddb.core.sizes import Sizes
from embeddb.handle.kernel_call import KernelCall
from embeddb.kernels import build as cpu_build
from embeddb.platforms.platform import load_platform

needs_gcc = pytest.mark.skipif(cpu_build.compiler() is None, reason="needs gcc")
pytestmark = [pytest.mark.gcc, needs_gcc]

#: What makes the code of a configuration another one in kind; the rest are sizes.
_KINDS = ("order", "format", "reorder", "merge", "seams", "threads")


def of_each_kind(kernel: str) -> list[Config]:
    """The last configuration of every kind, in which sizes are large."""
    op = Op(kernel, 1 if kernel == "spmv" else 128)
    found: dict[Any, Config] = {}
    for config in load_platform("cpu").space(op, Sizes(4000, 4000, 9000)).enumerate():
        if config["threads"] == "one" and config.get("merge") is None and config["format"] != "csc":
            continue
        found[tuple(config.get(name) for name in _KINDS)] = config
    return list(found.values())


CASES = [(kernel, c) for kernel in ("spmm", "sddmm", "spmv") for c in of_each_kind(kernel)]


def matrix(m: int, n: int, density: float, dtype: Any) -> Any:
    rng = np.random.default_rng(m + n)
    dense = rng.standard_normal((m, n)) * (rng.random((m, n)) < density)
    if m > 9:
        dense[7], dense[[0, 3, m - 1]] = 1.5, 0.0
    return sparse.csr_array(dense.astype(dtype))


def expected(a: Any, kernel: str, b: Any, c: Any) -> Any:
    if kernel == "sddmm":
        rows = np.repeat(np.arange(a.shape[0]), np.diff(a.indptr))
        return a.data * np.einsum("ij,ij->i", c[rows], b[a.indices])
    return a @ b


@pytest.fixture
def kernels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that scipy computed is a failure."""

    def refuse(*_: object) -> None:
        raise AssertionError("scipy computed")

    monkeypatch.setattr(KernelCall, "_by_scipy", refuse)


@pytest.mark.usefixtures("kernels_alone")
@pytest.mark.parametrize(("kernel", "config"), CASES, ids=lambda case: str(case))
def test_every_kind_of_kernel_computes_what_scipy_does(kernel: str, config: Config) -> None:
    dtype = np.float64 if CASES.index((kernel, config)) % 2 else np.float32
    rng = np.random.default_rng(0)
    for m, n, density in ((45, 38, 0.4), (1, 33, 0.5), (21, 1, 1.0), (64, 48, 0.3)):
        a = matrix(m, n, density, dtype)
        k = None if kernel == "spmv" else int(rng.choice([1, 5, 19, 100]))
        f = embeddb.compile(a, kernel, k=k, config=config)
        if m > 30:
            assert f.config == config, f.why()
        b = rng.standard_normal((n, k) if k else n).astype(dtype)
        c = rng.standard_normal((m, k or 1)).astype(dtype)
        tight = 1e-4 if dtype == np.float32 else 1e-11
        given = (c, b) if kernel == "sddmm" else (b,)
        np.testing.assert_allclose(f(*given), expected(a, kernel, b, c), rtol=tight, atol=tight)
        out = np.full_like(f(*given), np.nan)
        assert f(*given, out=out) is out
        np.testing.assert_allclose(out, expected(a, kernel, b, c), rtol=tight, atol=tight)
        a = a * dtype(2)
        f.update(a)
        np.testing.assert_allclose(f(*given), expected(a, kernel, b, c), rtol=tight, atol=tight)
        f.update(a.data / dtype(2))
        np.testing.assert_allclose(2 * f(*given), expected(a, kernel, b, c), rtol=tight, atol=tight)


BLOCKS = "order=ik1jk0,format=bcsr,block=4x4,ktile=16,threads=all,schedule=static"
SLICES = "order=ij,format=sell,slice=8,sigma=1,threads=all,schedule=static"
ROWS = "order=ijk,format=csr,threads=all,schedule=static"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("kernel", "config"), [("spmm", BLOCKS), ("spmv", SLICES), ("spmm", ROWS)])
def test_nan_and_infinity_are_as_in_scipy(kernel: str, config: str, value: float) -> None:
    """Zeros that fill a block would make NaN of an infinity."""
    a = matrix(45, 38, 0.4, np.float32)
    rng = np.random.default_rng(0)
    k = None if kernel == "spmv" else 9
    b = rng.standard_normal((38, k) if k else 38).astype(np.float32)
    f = embeddb.compile(a, kernel, k=k, config=config)
    b[5] = value
    np.testing.assert_allclose(f(b), a @ b, rtol=1e-4, atol=1e-4)
    a.data[[3, 100]] = value
    f.update(a)
    np.testing.assert_allclose(f(b), a @ b, rtol=1e-4, atol=1e-4)
    b[5] = 0.0
    np.testing.assert_allclose(f(b), a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("kernels_alone")
@pytest.mark.parametrize("config", of_each_kind("sddmm"), ids=str)
def test_an_infinite_value_of_a_meets_whole_dot_products(config: Config) -> None:
    """Partial sums of a tile of columns may have another sign than the whole sum."""
    a = matrix(45, 38, 0.4, np.float32)
    a.data[::3], a.data[1::3] = np.inf, -np.inf
    rng = np.random.default_rng(0)
    b, c = (rng.standard_normal((rows, 100)).astype(np.float32) for rows in (38, 45))
    result = embeddb.compile(a, "sddmm", k=100, config=config)(c, b)
    np.testing.assert_allclose(result, expected(a, "sddmm", b, c), rtol=1e-4, atol=1e-4)


def test_reproducible_leaves_atomic_additions_out() -> None:
    a = matrix(45, 38, 0.4, np.float32)
    atomic = "order=pk1k0,format=csr,ktile=16,threads=all,pieces=8,seams=atomic,unroll=1"
    with pytest.raises(embeddb.EmbeddbError, match="not reproducible"):
        embeddb.compile(a, "spmm", k=9, config=atomic, reproducible=True)
    f = embeddb.compile(a, "spmm", k=9, config=atomic.replace("atomic", "fixup"), reproducible=True)
    b = np.random.default_rng(0).standard_normal((38, 9)).astype(np.float32)
    first = f(b)
    assert all((f(b) == first).all() for _ in range(20))
