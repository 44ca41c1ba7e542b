"""What the CPU worker keeps of a matrix: operands, forms while memory lasts, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.core.pattern import Pattern
from embeddb.kernels import build as cpu_build
from embeddb.kernels.codegen import conversions
from embeddb.kernels.forms import PADDING, Converter, Form, FormSpec, Refusal, as_scipy
from indexer.runners.base import RunOptions
from indexer.runners.cpu import CpuRunner
from indexer.runners.cpu_kernels.job import Loaded
from indexer.runners.cpu_kernels.worker import Worker

needs_gcc = pytest.mark.skipif(cpu_build.compiler() is None, reason="needs gcc")
WIDTHS = {"spmm": 5, "sddmm": 7, "spmv": 1}
KERNELS = tuple(WIDTHS)
QUICK = RunOptions(repeats=1, max_repeats=1, threads=2, timeout_s=30.0)
FIXUP = "order=pk1k0,format=csr,ktile=8,unroll=1,threads=all,seams=fixup,pieces=64"
PRIVATE = "order=jk1ik0,format=csc,ktile=8,threads=all,merge=private"


def random_pattern(shape: tuple[int, int] = (90, 70), density: float = 0.2) -> Pattern:
    rows, cols = np.nonzero(np.random.default_rng(3).random(shape) < density)
    return Pattern.from_coo(shape, rows, cols)


def loaded(kernel: str, pattern: Pattern, **more: Any) -> Loaded:
    request = {
        "kernel": kernel,
        "shape": pattern.shape,
        "width": WIDTHS[kernel],
        "dtype": "f32",
        "tolerance": 1e-5,
        "left_bytes": 1 << 30,
        "seed": 4,
        "check": True,
        **more,
    }
    return Loaded(request, pattern.indptr.tobytes() + pattern.indices.tobytes())


def reference(job: Loaded) -> Any:
    """The result in double precision, the plain way."""
    a = as_scipy(job.csr).toarray().astype(np.float64)
    b = job.b[: job.n].astype(np.float64)
    if job.c is None:
        return a @ b
    dense = a * (job.c[: job.m].astype(np.float64) @ b.T)
    rows = np.repeat(np.arange(job.m), np.diff(job.csr.ptr))
    return dense[rows, job.csr.idx]


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_expected_result_is_the_kernels(kernel: str, dtype: str) -> None:
    job = loaded(kernel, random_pattern(), dtype=dtype)
    assert job.expected is not None and job.d.dtype == job.expected.dtype == job.b.dtype
    assert np.allclose(job.expected, reference(job), rtol=0, atol=1e-5)
    assert job.wrong(reference(job).astype(job.dtype)) == ""


@pytest.mark.parametrize("kernel", ["spmm", "spmv"])
def test_a_result_that_lacks_rows_is_no_right_one(kernel: str) -> None:
    job = loaded(kernel, random_pattern())
    right = reference(job).astype(np.float32)
    for rows in (0, 1, job.m - 1):
        with pytest.raises(ValueError, match="reshape"):
            job.wrong(right[:rows])


@pytest.mark.parametrize("kernel", KERNELS)
def test_one_value_off_is_wrong(kernel: str) -> None:
    job = loaded(kernel, random_pattern(density=0.9))
    right = reference(job).astype(np.float32)
    for value in (np.nan, np.inf, float(right.flat[400 % right.size]) + 1e-3):
        result = right.copy()
        result.flat[400 % right.size] = value
        where = 400 if kernel == "sddmm" else (400 % right.size) // WIDTHS[kernel]
        kind = "non-zero" if kernel == "sddmm" else "row"
        assert job.wrong(result).startswith(f"{kind} {where} is off by")
    assert loaded(kernel, random_pattern(), check=False).wrong(right * np.nan) == ""


@pytest.mark.gcc
@pytest.mark.skipif(cpu_build.compiler() is None, reason="needs gcc")
def test_results_of_sddmm_are_judged_in_the_order_of_the_form() -> None:
    job = loaded("sddmm", random_pattern())
    assert job.expected is not None
    for spec in (FormSpec("csc"), FormSpec("dcsr", panel=16), FormSpec("sell", slice=8)):
        form = job.form(spec, Converter(str(cpu_build.build(conversions()).path)))
        assert isinstance(form, Form) and form.order is not None
        result = np.where(form.order >= 0, job.expected[form.order], 0)
        assert job.wrong(result, form.order) == ""
        kept = np.flatnonzero(form.order >= 0)
        result[kept[17]] += 1
        assert job.wrong(result, form.order).startswith(f"non-zero {form.order[kept[17]]} is off")
        if (fill := np.flatnonzero(form.order < 0)).size:
            result[kept[17]] -= 1
            result[fill[5]] = np.nan
            assert job.wrong(result, form.order) == "a value that only fills a block is not zero"


def test_operands_have_rows_of_zeros_behind() -> None:
    job = loaded("sddmm", random_pattern())
    assert job.c is not None
    for array, rows in ((job.b, job.n), (job.c, job.m)):
        assert array.shape == (rows + PADDING, 7) and array.ctypes.data % 64 == 0
        assert array[:rows].all() and not array[rows:].any()
    assert loaded("spmm", random_pattern()).d.shape == (90 + PADDING, 5)


def test_the_form_used_longest_ago_makes_room() -> None:
    pattern = random_pattern((400, 400))
    converter = Converter("")
    specs = [FormSpec("csc"), FormSpec("dcsr", panel=64), FormSpec("dcsr", panel=128)]
    sizes = [form.nbytes for s in specs if isinstance(form := _form(pattern, s), Form)]
    assert len(sizes) == 3
    # What converting takes beside the form itself is counted too, so there is room for that.
    job = loaded("spmm", pattern, left_bytes=sum(sizes) + 22 * pattern.nnz)
    first, second = (job.form(s, converter) for s in specs[:2])
    assert job.form(specs[0], converter) is first
    third = job.form(specs[2], converter)
    assert job.form(specs[2], converter) is third and job.form(specs[0], converter) is first
    again = job.form(specs[1], converter)
    assert isinstance(second, Form) and isinstance(again, Form) and again is not second
    assert not job.make_room(1 << 40, keep=specs[1]) and job.form(specs[1], converter) is again


def _form(pattern: Pattern, spec: FormSpec) -> Form | Refusal:
    return loaded("spmm", pattern).form(spec, Converter(""))


def test_a_form_that_can_never_fit_forgets_nothing() -> None:
    pattern = random_pattern((400, 400))
    job = loaded("spmm", pattern, left_bytes=600_000)
    converter = Converter("")
    kept = job.form(FormSpec("csc"), converter)
    assert isinstance(kept, Form)
    refused = job.form(FormSpec("dcsr", panel=1), converter)
    assert isinstance(refused, Refusal) and refused.need_bytes > 600_000
    assert job.form(FormSpec("dcsr", panel=1), converter) is refused
    assert job.form(FormSpec("csc"), converter) is kept


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[CpuRunner]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with CpuRunner() as made:
        yield made


@needs_gcc
@pytest.mark.gcc
def test_what_was_prepared_is_not_compiled_again(
    runner: CpuRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    op, asked = Op("spmm", 9), [Config.parse(FIXUP), Config({"foreign": 1})]
    runner.prepare(op, asked)
    compiled: list[str] = []
    genuine = cpu_build.build
    monkeypatch.setattr(cpu_build, "build", lambda text: compiled.append(text) or genuine(text))
    found = [m for _, m in runner.run(random_pattern(), op, asked, options=QUICK)]
    assert [m.status for m in found] == ["ok", "invalid"], found
    assert found[0].compile_s and not compiled
    for path in list(runner._built.values()):
        path.path.unlink()
    ((_, again),) = runner.run(random_pattern(), op, [Config.parse(PRIVATE)], options=QUICK)
    assert again.ok and len(compiled) == 1
    runner.close()
    ((_, again),) = runner.run(random_pattern(), op, asked[:1], options=QUICK)
    assert again.ok and len(compiled) == 3  # the conversions and the kernel, both lost


@needs_gcc
@pytest.mark.gcc
@pytest.mark.parametrize("text", [FIXUP, PRIVATE])
def test_scratch_beyond_the_limit_is_oom(runner: CpuRunner, text: str) -> None:
    pattern, op = random_pattern((90, 70)), Op("spmm", 512)
    operands = 4 * 512 * (70 + 64 + 2 * (90 + 64)) + 8 * pattern.nnz + 8 * 91
    enough, tight = (
        RunOptions(repeats=1, max_repeats=1, threads=2, max_bytes=operands + more)
        for more in (600_000, 150_000)
    )
    ((_, measured),) = runner.run(pattern, op, [Config.parse(text)], options=enough)
    assert measured.ok, measured.error
    ((_, measured),) = runner.run(pattern, op, [Config.parse(text)], options=tight)
    assert measured.status == "oom" and measured.error.startswith("result and scratch need")


@needs_gcc
@pytest.mark.gcc
def test_threads_used_are_in_the_context(runner: CpuRunner) -> None:
    one = Config.parse("order=jk1ik0,format=csc,ktile=8,threads=one")
    found = runner.run(random_pattern(), Op("spmm", 4), [one, Config.parse(PRIVATE)], options=QUICK)
    assert [m.context["threads"] for _, m in found] == [1, 2]


@pytest.mark.parametrize("op", [Op("spmv", 1, "f16"), Op("sddmm", 8, "bf16")])
def test_a_value_type_it_lacks_is_refused(runner: CpuRunner, op: Op) -> None:
    with pytest.raises(UsageError, match="the cpu runner has no"):
        runner.prepare(op, [])


@pytest.mark.parametrize("kernel", ["spmm", "spmv"])
def test_a_term_lost_in_a_very_long_row_is_seen(kernel: str) -> None:
    size = 200_000
    pattern = Pattern.from_csr((1, size), [0, size], np.arange(size))
    job = loaded(kernel, pattern)
    right = np.array(job.expected)
    assert not job.wrong(right)
    job.csr.val[np.argmax(np.abs(job.csr.val))] = 0.0
    assert job.wrong(np.asarray(as_scipy(job.csr) @ job.b[: job.n])).startswith("row 0 is off by")


def test_scratch_of_no_size_is_no_null_pointer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread clears its copy of the result, if only none of it: memset takes no null."""
    seen = []

    def timed(kernel: object, problem: Any, plan: object) -> tuple[dict[str, Any], int]:
        seen.append(problem.work)
        return {"times_s": [1.0]}, 0

    monkeypatch.setattr("indexer.runners.cpu_kernels.worker.timed", timed)
    monkeypatch.setattr("indexer.runners.cpu_kernels.worker._loaded", lambda path: None)
    worker = Worker()
    worker.job = loaded("spmv", random_pattern((0, 5)))
    worker.converter = Converter("")
    request = {
        "library": "",
        "form": {"format": "csc", "block": (1, 1)},
        "threads": 2,
        "pieces": 0,
        "strip": 0,
        "scratch": "private",
        "schedule": 1,
        "chunk": 0,
        "repeats": 1,
        "max_repeats": 1,
        "min_time_s": 0.0,
    }
    assert worker.measure(request)["status"] == "ok"
    assert seen and None not in seen
