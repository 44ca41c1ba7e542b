"""A program that runs one generated kernel and nothing else, for tools that count from outside.

It reads the sparse matrix from a file in the kernel's own form, fills the dense operands with
ones, and calls the kernel as often as its argument says: what one call costs is the difference of
two numbers of calls, so that start, reading and first touches drop out.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embeddb.core.errors import NothingFound, RunnerUnavailable
from indexer.runners.cpu_kernels import build as cpu_build
from indexer.runners.cpu_kernels import codegen as cpu_codegen
from indexer.runners.cpu_kernels.forms import PADDING, Converter, Form, Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embeddb.core.config import Config, Op
    from embeddb.core.pattern import Pattern

__all__ = ["MAX_BYTES", "Program", "build_program"]

#: Matrix, dense operands and scratch together; more is refused before anything is allocated.
MAX_BYTES = 4 << 30
_BUILD_TIMEOUT_S = 120.0
_AVX2_BYTES = 32
_TYPES = {"f32": np.float32, "f64": np.float64}

_MAIN = """
#include <stdio.h>
#include <stdlib.h>

static void *room(int64_t count, size_t size)
{
    void *p = NULL;
    const size_t bytes = ((size_t)count * size + 127) / 64 * 64;
    if (posix_memalign(&p, 64, bytes))
        exit(3);
    memset(p, 0, bytes);
    return p;
}

static void *filled(FILE *file, int64_t count, size_t size)
{
    void *p = room(count, size);
    if (fread(p, size, (size_t)count, file) != (size_t)count)
        exit(4);
    return count ? p : NULL;
}

static T *ones(int64_t rows, int64_t padded, int64_t width)
{
    T *p = room(padded * width, sizeof(T));
    for (int64_t x = 0; x < rows * width; x++)
        p[x] = 1;
    return p;
}

int main(int count, char **argument)
{
    int64_t h[18];
    FILE *file = count == 3 ? fopen(argument[1], "rb") : NULL;
    if (!file || fread(h, sizeof h, 1, file) != 1)
        return 2;
    const int64_t *ptr = filled(file, h[6], 8), *panel = filled(file, h[7], 8);
    const int32_t *idx = filled(file, h[8], 4), *row = filled(file, h[9], 4);
    const T *val = filled(file, h[10], sizeof(T));
    fclose(file);
    const T *b = ones(h[1], h[1] + h[14], h[2]);
    const T *c = h[11] ? ones(h[0], h[0] + h[14], h[2]) : NULL;
    const problem q = {h[0], h[1], h[2], h[3], h[4], h[5], ptr, panel, idx, row, val, b, c,
                       room(h[12], sizeof(T)), room(h[13], sizeof(T))};
    const plan p = {h[15], h[16], h[17], atoll(argument[2]), 0, 0, 0};
    double unused;
    embeddb_run(&q, &p, &unused, &unused, &unused);
    return 0;
}
"""


@dataclass(frozen=True, slots=True)
class Program:
    """An executable and its problem file: `command(calls)` runs the kernel so often."""

    executable: Path
    problem: Path

    def command(self, calls: int) -> list[str]:
        return [str(self.executable), str(self.problem), str(calls)]


def build_program(
    pattern: Pattern,
    op: Op,
    config: Config,
    *,
    folder: Path,
    threads: int = 1,
    target: Sequence[str] = (),
) -> Program:
    """Compile the kernel of a configuration of the cpu platform into `folder`, for this machine
    or for what the flags `target` say, of which AVX2 vectors are expected.

    Raises: SpaceError for a configuration without a kernel; NothingFound if the matrix does not
    fit in that form; RunnerUnavailable without a compiler or if it fails.
    """
    width = _AVX2_BYTES if target else cpu_build.vector_bytes()
    variant, launch = cpu_codegen.plan(config, op, vector_bytes=width)
    if launch.threads == "one":
        threads = 1
    if op.dtype not in _TYPES:
        raise NothingFound(f"the kernel cannot be counted: no {op.dtype}, only f32 and f64")
    dtype = _TYPES[op.dtype]
    csr = Form(pattern.shape, pattern.indptr, pattern.indices, np.ones(pattern.nnz, dtype=dtype))
    form = _converter().convert(csr, launch.form, max_bytes=MAX_BYTES)
    if isinstance(form, Refusal):
        raise NothingFound(f"the kernel cannot be counted: {form.reason}")
    head = _head(form, op, launch, threads)
    size = np.dtype(dtype).itemsize
    need = form.nbytes + size * int(head[12] + head[13] + (head[0] + head[1] + 128) * op.width)
    if need > MAX_BYTES:
        raise NothingFound(f"the kernel cannot be counted: it needs {need} bytes > {MAX_BYTES}")
    problem = folder / "problem.bin"
    with problem.open("wb") as out:
        out.write(head.tobytes())
        for array in (form.ptr, form.panel, form.idx, form.row, form.val):
            if array is not None:
                out.write(np.ascontiguousarray(array).data)
    executable = folder / "kernel"
    _compile(cpu_codegen.source(variant) + _MAIN, executable, target or ("-march=native",))
    return Program(executable, problem)


def _head(form: Form, op: Op, launch: cpu_codegen.Launch, threads: int) -> Any:
    """int64[18]: sizes, lengths of the arrays and the launch, as `main` reads them."""
    m, n = form.shape
    strip = max(1, launch.strip // launch.form.rows)
    if launch.pieces:
        strip = max(1, -(-form.idx.size // (threads * launch.pieces)))
    scratch = {
        "": 0,
        "fixup": -(-form.idx.size // strip) * op.width,
        "private": threads * m * op.width,
    }[launch.scratch]
    sampled = op.kernel == "sddmm"
    lengths = [0 if a is None else a.size for a in (form.ptr, form.panel, form.idx, form.row)]
    result = form.val.size if sampled else (m + PADDING) * op.width
    sizes = (m, n, op.width, form.ptr.size - 1, strip, max(0, lengths[1] - 1))
    how = (threads, cpu_codegen.SCHEDULES[launch.schedule], launch.chunk)
    rest = (form.val.size, int(sampled), result, scratch, PADDING)
    return np.array([*sizes, *lengths, *rest, *how], dtype=np.int64)


def _converter() -> Converter:
    text = files("indexer.runners.cpu_kernels").joinpath("formats.c.in").read_text(encoding="utf-8")
    built = cpu_build.build(text)
    if built.error:
        raise RunnerUnavailable(built.error)
    return Converter(str(built.path))


def _compile(text: str, executable: Path, target: Sequence[str]) -> None:
    found = cpu_build.compiler()
    if found is None:
        raise RunnerUnavailable("gcc not found: install a C compiler to count what a kernel does")
    dropped = (cpu_build.flags()[1], "-shared", "-fPIC")
    flags = [flag for flag in cpu_build.flags() if flag not in dropped] + list(target)
    command = [found[0], *flags, "-x", "c", "-", "-o", str(executable)]
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, errors="replace",
            timeout=_BUILD_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise RunnerUnavailable(f"gcc took more than {_BUILD_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or ["no message"]
        raise RunnerUnavailable(f"gcc failed: {lines[0].strip()}")
