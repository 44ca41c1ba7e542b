"""Compiled kernels are cached safely."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from embeddb.core.config import Config, Op
from embeddb.core.errors import RunnerUnavailable, UsageError
from embeddb.kernels import build as cpu_build
from embeddb.kernels import codegen

needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="needs x86-64")
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


def test_what_a_killed_build_left_is_removed_by_a_later_one(kernels: Path) -> None:
    kernels.mkdir(parents=True)
    old, new = kernels / ".build-a.tmp", kernels / ".build-b.tmp"
    old.write_text("")
    new.write_text("")
    os.utime(old, (1, 1))
    cpu_build.build("int embeddb_swept(void) { return 1; }\n")
    assert not old.exists() and new.exists()


def test_another_processor_to_compile_for_is_named_by_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(cpu_build.MARCH_VARIABLE, raising=False)
    assert "-march=native" in cpu_build.flags()
    monkeypatch.setenv(cpu_build.MARCH_VARIABLE, "")
    assert "-march=native" in cpu_build.flags()
    for bad in ("-O0", "a b", "x86-64-v3 -ffast-math", "é", "x" * 80):
        monkeypatch.setenv(cpu_build.MARCH_VARIABLE, bad)
        with pytest.raises(UsageError, match=r"EMBEDDB_MARCH=.* is no processor name") as caught:
            cpu_build.flags()
        assert "x86-64-v3" in caught.value.hint


@needs_x86
def test_vectors_are_as_wide_as_what_is_compiled_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for march, width in (("x86-64-v2", 16), ("x86-64-v3", 32), ("x86-64-v4", 64)):
        monkeypatch.setenv(cpu_build.MARCH_VARIABLE, march)
        assert cpu_build.vector_bytes() == width


@needs_x86
def test_another_compiler_or_processor_is_another_instance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from indexer.runners.cpu import CpuRunner

    runner = CpuRunner()
    found = {runner.platform().id: "native"}
    monkeypatch.setenv(cpu_build.MARCH_VARIABLE, "x86-64-v2")
    found[runner.platform().id] = "v2"
    if shutil.which("clang"):
        monkeypatch.setenv(cpu_build.COMPILER_VARIABLE, "clang")
        found[runner.platform().id] = "clang"
        assert "clang" in runner.platform().environment["compiler"]
    assert len(found) == 2 + bool(shutil.which("clang"))
    assert cpu_build.build("int x;").path.name != _built_natively(monkeypatch)


def _built_natively(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv(cpu_build.MARCH_VARIABLE)
    monkeypatch.delenv(cpu_build.COMPILER_VARIABLE, raising=False)
    return cpu_build.build("int x;").path.name


def test_a_compiler_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from indexer.runners.cpu import CpuRunner

    monkeypatch.setenv(cpu_build.COMPILER_VARIABLE, "no-such-compiler")
    assert cpu_build.compiler() is None
    with pytest.raises(RunnerUnavailable, match="no-such-compiler not found"):
        cpu_build.build("int x;")
    reason = CpuRunner().available()
    assert reason is not None and "no-such-compiler not found" in reason


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("EMBEDDB_CC", "false", r"false is no C compiler .*EMBEDDB_CC"),
        ("EMBEDDB_CC", "no-such-compiler", r"no-such-compiler not found: .*EMBEDDB_CC"),
        ("EMBEDDB_CC", "true", r"EMBEDDB_CC=true.*wrote nothing"),
        ("EMBEDDB_MARCH", "foo", r"EMBEDDB_MARCH=foo.*failed"),
    ],
)
def test_a_wrong_variable_is_named(
    variable: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch, kernels: Path
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(RunnerUnavailable, match=said) as caught:
        cpu_build.build("int x;")
    assert not caught.value.hint.startswith("check free space"), "the variable comes first"
    assert not list(kernels.glob("*.so")) and not list(kernels.glob(".build-*"))


def test_the_last_words_of_a_broken_compiler_are_said(
    monkeypatch: pytest.MonkeyPatch, kernels: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "badcc"
    broken.write_text(
        '#!/bin/sh\ncase "$*" in *--version*) echo badcc 1; exit 0;; esac\n'
        "cat > /dev/null; printf 'reading\\nboom: plug pulled\\n\\n' >&2; exit 1\n"
    )
    broken.chmod(0o755)
    monkeypatch.setenv("EMBEDDB_CC", str(broken))
    with pytest.raises(RunnerUnavailable, match="failed: boom: plug pulled"):
        cpu_build.build("int x;")


def test_an_unwritable_cache_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "embeddb").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(RunnerUnavailable, match="cannot store compiled kernels") as caught:
        cpu_build.build("int x;")
    assert "XDG_CACHE_HOME" in caught.value.hint


def test_looking_for_nan_in_a_result_gathers_nothing(tmp_path: Path) -> None:
    """With the address read anew for every number it took four times as long as the kernel."""
    found = cpu_build.compiler()
    assert found is not None
    if "gcc" not in Path(found[0]).name:
        pytest.skip("another compiler tells of its loops in other words")
    blocks = "block=2x1,format=bcsr,ktile=64,order=ik1jk0,schedule=guided,threads=all"
    variant, _ = codegen.plan(Config.parse(blocks), Op.parse("spmm:64"), vector_bytes=32)
    (tmp_path / "called.c").write_text(text := codegen.source(variant, entry="called"))
    line = next(i for i, told in enumerate(text.splitlines(), 1) if "bad |=" in told)
    command = [found[0], *cpu_build.flags(), "-fopt-info-vec-all", "-o", "/dev/null"]
    done = subprocess.run(
        [*command, "called.c"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    here = (f"called.c:{line}:", f"called.c:{line - 1}:")
    told = [one for one in done.stderr.splitlines() if one.startswith(here)]
    assert any("loop vectorized" in one for one in told), told
    assert not any("gather" in one for one in told), told


@pytest.mark.parametrize("has", ["-mno-recip", "-mrecip=none", "neither"])
def test_the_option_for_exact_quotients_is_tried(has: str, tmp_path: Path) -> None:
    """As of gcc for x86, of clang, and of a compiler that needs none."""
    made = tmp_path / "cc"
    made.write_text(f'#!/bin/sh\n[ "$1" = {has} ] || {{ echo "error" >&2; exit 1; }}')
    made.chmod(0o755)
    assert cpu_build.exact_division(str(made)) == (() if has == "neither" else (has,))
