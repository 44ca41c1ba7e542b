"""Baselines: right numbers from every library, and every failure of one a status."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embeddb.core.config import Op
from embeddb.core.pattern import Pattern
from embeddb.kernels import build as cpu_build
from embeddb.kernels.forms import as_scipy
from indexer.runners.base import RunOptions
from indexer.runners.baselines import baselines
from indexer.runners.baselines import taco as baseline_taco
from indexer.runners.baselines.problem import Failed, Problem, Ready, problem_of
from indexer.runners.cpu import CpuRunner
from indexer.runners.cpu_kernels.job import Loaded

ROOT = Path(__file__).resolve().parents[3]
OPTIONS = RunOptions(repeats=2, max_repeats=2, threads=1, timeout_s=120.0)
EFFORT = {"threads": 1, "repeats": 3, "max_repeats": 3, "min_time_s": 0.0}
KERNELS = ("spmm", "spmv", "sddmm")
WIDTHS = {"spmm": 5, "spmv": 1, "sddmm": 5}

#: In place of a real taco: SpMV, serial, in C that has taco's interface.
PRINTED = """
// printed by the stand-in
#include <stdint.h>
#include <omp.h>
typedef struct { int32_t order, *dimensions, csize, *mode_ordering; int *mode_types;
                 uint8_t ***indices, *vals, *fill_value; int32_t vals_size; } taco_tensor_t;
int compute(taco_tensor_t *D, taco_tensor_t *A, taco_tensor_t *B) {
  int *pos = (int *)A->indices[1][0], *crd = (int *)A->indices[1][1];
  if (A->order != 2 || A->mode_types[0] || !A->mode_types[1] || B->order != 1
      || A->dimensions[0] != D->dimensions[0] || A->dimensions[1] != B->dimensions[0]
      || omp_get_max_threads() != 1)
    return 1;
  for (int i = 0; i < A->dimensions[0]; i++) {
    float sum = 0;
    for (int p = pos[i]; p < pos[i + 1]; p++)
      sum += ((float *)A->vals)[p] * ((float *)B->vals)[crd[p]];
    ((float *)D->vals)[i] = sum;
  }
  return 0;
}
"""


def dense(seed: int = 0, shape: tuple[int, int] = (23, 31), share: float = 0.2) -> Any:
    found = np.random.default_rng(seed).random(shape) < share
    found[3] = False  # an empty row
    return found


def job_of(kernel: str, dtype: str = "f32") -> Loaded:
    rows, cols = np.nonzero(dense())
    m, n = dense().shape
    ptr = np.searchsorted(rows, np.arange(m + 1)).astype(np.int64)
    request = {
        "kernel": kernel,
        "shape": (m, n),
        "width": WIDTHS[kernel],
        "dtype": dtype,
        "tolerance": 1e-5 if dtype == "f32" else 1e-13,
        "seed": 0,
        "left_bytes": 1 << 20,
        "check": True,
    }
    return Loaded(request, ptr.tobytes() + cols.astype(np.int32).tobytes())


def timed(job: Loaded, prepare: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The reply for a baseline made up by the test."""
    made = baselines._Baseline(KERNELS, (), prepare)
    monkeypatch.setitem(baselines._BASELINES, "made-up", made)
    return baselines.time_baseline(job, {"name": "made-up", **EFFORT})


# -- through the worker ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CpuRunner]:
    """Its kernels and taco's are compiled into an empty cache."""
    if cpu_build.compiler() is None:
        pytest.skip("needs gcc")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        with CpuRunner() as made:
            yield made


def check_all(runner: CpuRunner, op: Op) -> None:
    rows, cols = np.nonzero(dense())
    pattern = Pattern.from_coo(dense().shape, rows, cols, name="random")
    found = runner.baselines(pattern, op, options=OPTIONS)
    assert all(m.ok for m in found.values()), {n: m.error for n, m in found.items() if not m.ok}
    assert all(m.conversion_s is not None and len(m.times_s) == 2 for m in found.values())
    here = [n for n in baselines.names(op.name) if not _lacking(n)]
    assert list(found) == here, "each is measured or not installed"
    (one, *_) = here
    assert list(runner.baselines(pattern, op, options=OPTIONS, only=(one,))) == [one]
    compiled = {name for name, m in found.items() if m.compile_s is not None}
    assert compiled == {name for name in here if name.startswith(("numba", "taco"))}


def _lacking(name: str) -> list[str]:
    return [need for need in baselines._BASELINES[name].needs if not baselines._installed(need)]


@pytest.mark.gcc
def test_every_library_multiplies_right(runner: CpuRunner) -> None:
    check_all(runner, Op("spmm", 5))


@pytest.mark.gcc
@pytest.mark.slow
@pytest.mark.parametrize("op", ["spmv", "sddmm:5", "spmm:5:f64", "spmv:f64", "sddmm:5:f64"])
def test_every_library_is_right_in_the_other_kernels_too(runner: CpuRunner, op: str) -> None:
    kernel, _, rest = op.partition(":")
    check_all(runner, Op(kernel, 1, "f64") if rest == "f64" else Op.parse(op))


@pytest.mark.gcc
def test_a_taco_on_the_path_is_used(
    runner: CpuRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, f"file.write_text({PRINTED!r})")
    rows, cols = np.nonzero(dense())
    pattern = Pattern.from_coo(dense().shape, rows, cols, name="random")
    chosen = ("taco-default", "taco-rows")
    monkeypatch.setattr(baselines, "names", lambda kernel: chosen)  # the others take longer
    with CpuRunner() as second:
        found = second.baselines(pattern, Op("spmv"), options=OPTIONS)
    assert tuple(found) == chosen
    for taco in found.values():
        assert taco.ok, taco.error
        assert taco.compile_s is not None and taco.compile_s > 0


# -- what a library may do wrong -------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_computes_nothing_is_wrong(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The right result of an earlier kernel must not be there any more."""
    job = job_of(kernel)
    assert job.expected is not None
    job.d.reshape(-1)[: job.expected.size] = job.expected.reshape(-1)

    @contextmanager
    def lazy(problem: Problem, threads: int) -> Iterator[Ready]:
        yield Ready(lambda: problem.out, threads, 0.0)

    reply = timed(job, lazy, monkeypatch)
    assert reply["status"] == "wrong" and "off by nan" in reply["error"]


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_right_result_is_timed(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    @contextmanager
    def plain(problem: Problem, threads: int) -> Iterator[Ready]:
        def call() -> Any:
            calls.append(1)
            a = as_scipy(problem.csr)
            if problem.c is None:
                problem.out[:] = a @ problem.b
            else:
                rows = np.repeat(np.arange(a.shape[0]), np.diff(problem.csr.ptr))
                inner = (problem.c[rows] * problem.b[problem.csr.idx]).sum(axis=1)
                problem.out[:] = problem.csr.val * inner
            return problem.out

        yield Ready(call, threads, 0.25, 0.5)

    reply = timed(job_of(kernel), plain, monkeypatch)
    assert reply["status"] == "ok" and len(reply["times_s"]) == 3, reply
    assert (reply["conversion_s"], reply["compile_s"], reply["threads"]) == (0.25, 0.5, 1)
    assert len(calls) == 1 + 2 + 3, "checked, warmed up, repeated"


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (Failed("oom", "no room"), "oom", "no room"),
        (MemoryError(), "oom", "memory"),
        (RuntimeError("bad\nlonger story"), "crash", "RuntimeError: bad"),
        (OSError(2, "gone"), "crash", "gone"),
    ],
)
def test_what_a_library_raises_is_a_status(
    error: Exception, status: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def broken(problem: Problem, threads: int) -> Iterator[Ready]:
        def call() -> Any:
            raise error

        yield Ready(call, threads, 0.0)

    reply = timed(job_of("spmm"), broken, monkeypatch)
    assert reply["status"] == status and words in reply["error"]
    assert "\n" not in reply["error"]


def test_what_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    reply = baselines.time_baseline(job_of("spmm"), {"name": "taco-rows", **EFFORT})
    assert reply["missing"] == "taco"
    for name in ("nobody", "mkl-csr"):  # MKL has no SDDMM
        reply = baselines.time_baseline(job_of("sddmm"), {"name": name, **EFFORT})
        assert reply["status"] == "invalid" and "missing" not in reply


def test_each_kernel_has_its_baselines() -> None:
    for kernel in KERNELS:
        assert {"torch-csr", "numba-csr", "taco-default"} <= set(baselines.names(kernel))
    assert "mkl-csr-optimized" in baselines.names("spmv")
    assert not {"scipy-csr", "mkl-csr"} & set(baselines.names("sddmm"))
    assert baselines.names("spgemm") == ()


def test_all_names_are_documented() -> None:
    page = (ROOT / "docs" / "reference" / "baselines.md").read_text(encoding="utf-8")
    for kernel in KERNELS:
        for name in baselines.names(kernel):
            assert f"`{name}`" in page, name


# -- taco ------------------------------------------------------------------------------------------


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """A program `taco` on PATH: `arguments` and the `file` to write are known to its body."""
    lines = [
        f"#!{sys.executable}",
        "import sys, pathlib, time",
        "arguments = sys.argv[1:]",
        "file = pathlib.Path(arguments[-1].removeprefix('-write-source='))",
        body,
    ]
    program = folder / "taco"
    program.write_text("\n".join(lines), encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def printed(kernel: str, schedule: str = "default", dtype: str = "f32") -> str:
    chosen = baseline_taco.SCHEDULES[schedule][kernel]
    return baseline_taco._printed(problem_of(job_of(kernel, dtype)), chosen)


def test_what_taco_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "file.write_text('int compute(' + ' '.join(arguments[:-1]))")
    text = printed("spmm", "rows", "f64").splitlines()[-1]
    assert "D(i,k)=A(i,j)*B(j,k) -f=A:ds" in text and "-t=B:double" in text
    assert "-s=split(i,i0,i1,16),parallelize" in text
    text = printed("sddmm").splitlines()[-1]
    assert "-f=D:ds" in text and "-t=C:float" in text and "-s=" not in text


def test_equal_kernels_are_equal_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """taco writes its command line, and with it the temporary file's name, into a comment."""
    stand_in(tmp_path, monkeypatch, "file.write_text(f'// {arguments}\\nint compute(')")
    assert printed("spmv") == printed("spmv")


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("sys.exit('Error at x.cpp:1\\n no such schedule')", "build", "no such schedule"),
        ("pass", "build", "no message"),
        ("file.write_bytes(b'\\xff\\xfe')", "build", "cannot be used"),
        ("time.sleep(60)", "timeout", "more than"),
    ],
)
def test_a_taco_that_fails(
    body: str, status: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baseline_taco, "_TIMEOUT_S", 0.5 if status == "timeout" else 20.0)
    stand_in(tmp_path, monkeypatch, body)
    reply = baselines.time_baseline(job_of("spmv"), {"name": "taco-default", **EFFORT})
    assert reply["status"] == status and words in reply["error"], reply


@pytest.mark.skipif(shutil.which("taco") is None, reason="needs taco")
def test_taco_takes_every_schedule() -> None:
    for name, per_kernel in baseline_taco.SCHEDULES.items():
        for kernel in per_kernel:
            assert "int compute(" in printed(kernel, name)


def test_more_than_32_bits_count_is_refused() -> None:
    huge: Any = np.broadcast_to(np.float32(0), (1 << 16, 1 << 16))
    problem = problem_of(job_of("spmm"))
    large = Problem("spmm", problem.csr, huge, None, problem.out)
    with (
        pytest.raises(Failed, match="32 bits") as caught,
        baseline_taco.prepare(large, 1, schedule="default"),
    ):
        pass
    assert caught.value.status == "invalid"
