"""Compiled kernels are cached safely."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddb.errors import RunnerUnavailable
from indexer.runners import cpu_build

needs_gcc = pytest.mark.skipif(cpu_build.compiler() is None, reason="needs gcc")
pytestmark = [pytest.mark.gcc, needs_gcc]


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty kernel cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "embeddb" / "kernels"


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
