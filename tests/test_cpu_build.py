"""Compiled kernels are cached safely, and blocks hold what scipy's blocks hold."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embeddb.errors import RunnerUnavailable
from embeddb.pattern import Pattern
from indexer.runners import cpu_build
from indexer.runners.cpu_formats import Blocked, Converter, Fill

needs_gcc = pytest.mark.skipif(cpu_build.compiler() is None, reason="needs gcc")
pytestmark = [pytest.mark.gcc, needs_gcc]


def random_pattern(shape: tuple[int, int], density: float, seed: int = 0) -> Pattern:
    rows, cols = np.nonzero(np.random.default_rng(seed).random(shape) < density)
    return Pattern.from_coo(shape, rows, cols)


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty kernel cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "embeddb" / "kernels"


@pytest.mark.parametrize("block", [(1, 1), (2, 2), (3, 3), (8, 8), (1, 8), (8, 1), (5, 16)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_blocks_equal_scipys(block: tuple[int, int], dtype: Any, rng: np.random.Generator) -> None:
    from scipy.sparse import bsr_array

    pattern = random_pattern((123, 217), 0.3, seed=7)
    csr = pattern.to_scipy(dtype)
    csr.data[:] = rng.random(pattern.nnz)
    converter = Converter(str(cpu_build.build(_formats()).path))
    form = converter.blocked(
        Blocked(pattern.indptr, pattern.indices, csr.data, 0.0),
        pattern.shape,
        block,
        max_bytes=1 << 30,
    )
    assert isinstance(form, Blocked)
    padded = tuple(-(-s // b) * b for s, b in zip(pattern.shape, block, strict=True))
    data = form.val.reshape(-1, *block)
    mine = bsr_array((data, form.idx, form.ptr), shape=padded).toarray()
    assert np.array_equal(mine[:123, :217], csr.toarray())
    assert np.count_nonzero(mine) == pattern.nnz
    for low, high in itertools.pairwise(form.ptr):
        assert (np.diff(form.idx[low:high]) > 0).all()


def test_blocks_of_long_scrambled_rows() -> None:
    """More blocks in a block row than the insertion sort takes."""
    pattern = random_pattern((16, 4000), 0.05, seed=3)
    csr = Blocked(pattern.indptr, pattern.indices, np.ones(pattern.nnz, dtype=np.float32), 0.0)
    converter = Converter(str(cpu_build.build(_formats()).path))
    form = converter.blocked(csr, pattern.shape, (8, 1), max_bytes=1 << 30)
    assert isinstance(form, Blocked) and form.ptr[1] > 48
    assert form.val.sum() == pattern.nnz
    for low, high in itertools.pairwise(form.ptr):
        assert (np.diff(form.idx[low:high]) > 0).all()
    assert isinstance(converter.blocked(csr, pattern.shape, (8, 1), max_bytes=9999), Fill)


def _formats() -> str:
    folder = Path(cpu_build.__file__).parent
    return (folder / "cpu_formats.c.in").read_text(encoding="utf-8")


def test_a_damaged_kernel_is_rebuilt(kernels: Path) -> None:
    text = "int embeddb_answer(void) { return 42; }\n"
    first = cpu_build.build(text)
    whole = first.path.read_bytes()
    assert cpu_build.build(text) == first
    for damage in (whole[:100], whole[:-30] + b"x" + whole[-29:], b"", b"\0" * len(whole)):
        first.path.unlink()
        first.path.write_bytes(damage)
        assert not cpu_build.build(text).error
        assert first.path.read_bytes()[:-8] == whole[:-8]
    assert not list(kernels.glob(".build-*"))


def test_an_unwritable_cache_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "embeddb").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(RunnerUnavailable, match="cannot keep compiled kernels") as caught:
        cpu_build.build("int x;")
    assert "XDG_CACHE_HOME" in caught.value.hint
