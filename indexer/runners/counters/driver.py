"""A program that runs one generated kernel and nothing else, for tools that count from outside.

It reads the sparse matrix from a file in the kernel's own form, fills the dense operands with
ones, and calls the kernel as many times as its argument. The cost of a call is the difference
between two numbers of calls, which excludes start, reading and first touches.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from embeddb.core.errors import NothingFound, RunnerUnavailable
from embeddb.kernels import build as cpu_build
from embeddb.kernels import codegen as cpu_codegen
from embeddb.kernels.build import compile_to
from embeddb.kernels.called import scratch_values, strip_of
from embeddb.kernels.forms import PADDING, Converter, Form, Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from embeddb.core.config import Config, Op
    from embeddb.core.pattern import Pattern
    from embeddb.kernels.bodies import Variant

#: Matrix, dense operands and scratch together; more is refused before anything is allocated.
MAX_BYTES = 4 << 30
_AVX2_BYTES = 32
_TYPES = {"f32": np.float32, "f64": np.float64}

_MAIN = """
#include <stdio.h>
#include <stdlib.h>

static void *room(int64_t count, size_t size)
{
    void *p = NULL;
    const size_t bytes = (size_t)count * size;
    if (posix_memalign(&p, 64, bytes ? bytes : 1))
        exit(3);
    memset(p, 0, bytes);
    return p;
}

static void *filled(FILE *file, int64_t count, size_t size)
{
    if (!count)
        return NULL;
    void *p = room(count, size);
    if (fread(p, size, (size_t)count, file) != (size_t)count)
        exit(4);
    return p;
}

/* An operand of `count` values: what the file holds, or ones but for the zeros behind `ones`. */
static T *dense(FILE *file, int given, int64_t count, int64_t ones)
{
    if (given)
        return filled(file, count, sizeof(T));
    T *p = count ? room(count, sizeof(T)) : NULL;
    for (int64_t x = 0; x < least(ones, count); x++)
        p[x] = 1;
    return p;
}

static void run(FILE *file, const int64_t *h, int64_t calls, FILE *out)
{
    int64_t *ptr = filled(file, h[6], 8), *panel = filled(file, h[7], 8);
    int32_t *idx = filled(file, h[8], 4), *row = filled(file, h[9], 4);
    T *val = filled(file, h[10], sizeof(T));
    T *b = dense(file, out != NULL, h[11], h[1] * h[2]);
    T *c = dense(file, out != NULL, h[12], h[0] * h[2]);
    T *d = room(h[13], sizeof(T)), *work = room(h[14], sizeof(T));
    const problem q = {h[0], h[1], h[2], h[3], h[4], h[5], ptr, panel, idx, row, val, b, c,
                       d, work};
    const int timed = out != NULL; /* tools that count are to see no clock */
    const plan p = {h[15], h[16], h[17], calls - timed, timed, timed, 0};
    double wall, most, sum;
    if (out) { /* no numbers: what the kernel does not write, or reads before, is seen */
        memset(d, 255, (size_t)h[13] * sizeof(T));
        memset(work, 255, (size_t)h[14] * sizeof(T));
    }
    embeddb_run(&q, &p, &wall, &most, &sum);
    if (out && (fwrite(h + 13, sizeof *h, 1, out) != 1
                || fwrite(d, sizeof(T), (size_t)h[13], out) != (size_t)h[13] || fflush(out)))
        exit(5);
    void *all[] = {ptr, panel, idx, row, val, b, c, d, work};
    for (size_t x = 0; x < sizeof all / sizeof *all; x++)
        free(all[x]);
}

/* FILE CALLS [RESULTS]: with the last, dense operands are in the file too, and each result is kept
   behind the number of its values; the last call is a timed one. */
int main(int count, char **argument)
{
    int64_t h[18];
    FILE *file = count > 2 ? fopen(argument[1], "rb") : NULL;
    FILE *out = count > 3 ? fopen(argument[3], "wb") : NULL;
    if (!file || (count > 3 && !out))
        return 2;
    while (fread(h, sizeof h, 1, file) == 1)
        run(file, h, atoll(argument[2]), out);
    fclose(file);
    return out ? fclose(out) : 0;
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
    """Compile the kernel of a configuration of the cpu platform into `folder`, for this machine or
    for the processor of the flags `target`, which must have AVX2.

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
    padded = tuple((rows + PADDING) * op.width for rows in (pattern.shape[1], pattern.shape[0]))
    sampled = op.name == "sddmm"
    sizes = (padded[0], padded[1] if sampled else 0, form.val.size if sampled else padded[1])
    head = head_of(form, op, launch, threads=threads, sizes=sizes)
    need = form.nbytes + np.dtype(dtype).itemsize * int(head[11:15].sum())
    if need > MAX_BYTES:
        raise NothingFound(f"the kernel cannot be counted: it needs {need} bytes > {MAX_BYTES}")
    problem = folder / "problem.bin"
    with problem.open("wb") as out:
        write_problem(out, head, form)
    executable = folder / "kernel"
    compile_program(program_text(variant), executable, target or ("-march=native",))
    return Program(executable, problem)


def program_text(variant: Variant) -> str:
    """The C of a program that runs one variant on the problems of a file: `FILE CALLS [RESULTS]`.

    With RESULTS the dense operands are read too, and every result is written there, an int64 with
    the number of its values ahead of it.
    """
    return cpu_codegen.source(variant) + _MAIN


def head_of(
    form: Form, op: Op, launch: cpu_codegen.Launch, *, threads: int, sizes: tuple[int, int, int]
) -> NDArray[np.int64]:
    """int64[18]: sizes, lengths of the arrays and the launch, as the program reads them. `sizes`
    are the values of B, of C (0 but for SDDMM) and of the result, padding and fill included."""
    cut = {"strip": launch.strip, "rows": launch.form.rows, "tasks": threads * launch.pieces}
    strip = strip_of(form, **cut)
    scratch = scratch_values(launch.scratch, form, strip=strip, width=op.width, threads=threads)
    lengths = [0 if a is None else a.size for a in _arrays(form)]
    matrix = (*form.shape, op.width, form.ptr.size - 1, strip, max(0, lengths[1] - 1))
    how = (threads, cpu_codegen.SCHEDULES[launch.schedule], launch.chunk)
    return np.array([*matrix, *lengths, *sizes, scratch, *how], dtype=np.int64)


def write_problem(
    out: BinaryIO, head: NDArray[np.int64], form: Form, dense: Sequence[NDArray[Any]] = ()
) -> None:
    """Append a problem to a file; `dense` are B and, for SDDMM, C, for a program that keeps its
    results."""
    for array in (head, *_arrays(form), *dense):
        if array is not None:
            out.write(np.ascontiguousarray(array).data)


def _arrays(form: Form) -> tuple[NDArray[Any] | None, ...]:
    return form.ptr, form.panel, form.idx, form.row, form.val


def _converter() -> Converter:
    built = cpu_build.build(cpu_codegen.conversions())
    if built.error:
        raise RunnerUnavailable(built.error)
    return Converter(str(built.path))


def compile_program(text: str, executable: Path, target: Sequence[str]) -> None:
    """Compile C with the kernels' flags and those of `target`, which come last.

    Raises: RunnerUnavailable without a compiler or if it fails.
    """
    compiler = cpu_build.compiler()
    if compiler is None:
        raise RunnerUnavailable("gcc not found: install a C compiler to count what a kernel does")
    dropped = (cpu_build.flags()[1], "-shared", "-fPIC")
    flags = [flag for flag in cpu_build.flags() if flag not in dropped] + list(target)
    if problem := compile_to(executable, text, [compiler[0], *flags]):
        raise RunnerUnavailable(problem)
