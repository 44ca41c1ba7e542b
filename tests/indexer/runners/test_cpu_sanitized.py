"""No native code reads, writes or computes what it must not: run under gcc's sanitizers.

What takes the compiler longer is for `make sanitize`: every kernel of the space and others beyond
it, other registers and value types, and races over all nests.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import sanitized
from sanitized import (
    FLAGS,
    RACE_FLAGS,
    Bench,
    Choice,
    cases_of,
    choices,
    covering,
    meetings,
    missing,
    patterns_once,
    tried,
)

from embeddb.core.config import Config, Op
from embeddb.core.pattern import Pattern
from embeddb.kernels import build as cpu_build
from embeddb.kernels.codegen import conversions, plan, source
from embeddb.kernels.forms import Converter, Form, FormSpec
from indexer.runners.counters.sparse import compile_program
from indexer.runners.cpu_kernels import probe as cpu_probe

pytestmark = [pytest.mark.gcc, pytest.mark.usefixtures("sanitizers")]


@pytest.fixture(scope="module")
def sanitizers() -> None:
    if reason := missing():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def race_sanitizer() -> None:
    if reason := missing(RACE_FLAGS):
        pytest.skip(reason)


@pytest.fixture(scope="module")
def bench(sanitizers: None, kernels: Path) -> Bench:
    return Bench(Converter(str(cpu_build.build(conversions()).path)))


def faults(
    bench: Bench,
    chosen: Iterable[Choice],
    folder: Path,
    *,
    races: bool = False,
    plain: bool = False,
) -> list[str]:
    """What was wrong with each of the variants on all patterns."""
    jobs = []
    threads = (2, 3) if races else (1, 2)
    for number, choice in enumerate(chosen):
        (folder / str(number)).mkdir()
        cases = cases_of(bench, choice.variant, choice.launches, start=number, threads=threads)
        jobs.append((choice.variant, cases, folder / str(number)))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda job: tried(*job, races=races, plain=plain), jobs))
    assert sum(one.ran for one in found) > 10 * len(found)
    return [f"{job[0]}: {one.fault}" for job, one in zip(jobs, found, strict=True) if one.fault]


def test_every_value_of_every_parameter(bench: Bench, tmp_path: Path) -> None:
    width = cpu_build.vector_bytes()
    kinds = (("spmm", "f32"), ("sddmm", "f64"), ("spmv", "f32"))
    found = [c for kernel, dtype in kinds for c in choices(kernel, dtype=dtype, vector_bytes=width)]
    assert not faults(bench, covering(found), tmp_path, plain=True)


def test_threads_that_add_to_one_place_do_not_race(
    bench: Bench, race_sanitizer: None, tmp_path: Path
) -> None:
    found = meetings(choices("spmv", vector_bytes=cpu_build.vector_bytes()))
    chosen = [choice for choice in found if choice.variant.meeting]
    assert {c.variant.meeting for c in chosen} == {"atomic", "fixup", "private"}
    assert not faults(bench, chosen, tmp_path, races=True, plain=True)


# -- the rest of the native code -------------------------------------------------------------------

_FORMATS = """
#include <stdio.h>
#include <string.h>

static void *array(FILE *file, int64_t count, size_t size, int fill)
{
    void *p = malloc(count ? (size_t)count * size : 1);
    memset(p, fill, (size_t)count * size);
    if (file && fread(p, size, (size_t)count, file) != (size_t)count)
        exit(4);
    return p;
}

int main(int count, char **argument)
{
    FILE *file = fopen(argument[1], "rb"), *out = fopen(argument[2], "wb");
    int64_t h[6]; /* m, n, r, c, bytes of a value, non-zeros */
    while (fread(h, sizeof h, 1, file) == 1) {
        const int32_t r = (int32_t)h[2], c = (int32_t)h[3];
        const int64_t rows = (h[0] + r - 1) / r, columns = (h[1] + c - 1) / c;
        int64_t *ptr = array(file, h[0] + 1, 8, 0), *bptr = array(NULL, rows + 1, 8, 255);
        int32_t *idx = array(file, h[5], 4, 0), *mark = array(NULL, columns, 4, 255);
        void *val = array(file, h[5], (size_t)h[4], 0);
        const int64_t blocks = bcsr_count(h[0], r, c, ptr, idx, mark, bptr);
        int64_t *place = array(NULL, columns, 8, 255);
        int32_t *bidx = array(NULL, blocks, 4, 255);
        void *bval = array(NULL, blocks * r * c, (size_t)h[4], 0);
        memset(mark, 255, (size_t)columns * 4);
        bcsr_fill(h[0], r, c, ptr, idx, val, bptr, mark, place, bidx, bval, (int32_t)h[4]);
        fwrite(bptr, 8, (size_t)rows + 1, out);
        fwrite(bidx, 4, (size_t)blocks, out);
        fwrite(bval, (size_t)h[4], (size_t)(blocks * r * c), out);
        void *all[] = {ptr, bptr, idx, mark, val, place, bidx, bval};
        for (int x = 0; x < 8; x++)
            free(all[x]);
    }
    return count != 3 || fclose(out) || fclose(file);
}
"""


def test_the_conversion_to_blocks(bench: Bench, tmp_path: Path) -> None:
    program, given, results = (tmp_path / name for name in ("program", "given", "results"))
    compile_program(conversions() + _FORMATS, program, FLAGS)
    converter = Converter(str(cpu_build.build(conversions()).path))
    expected = b""
    with given.open("wb") as out:
        for pattern in patterns_once().values():
            for block in ((2, 2), (3, 3), (1, 8), (8, 1), (16, 16), (5, 7), (1, 1)):
                for dtype in (np.float32, np.float64):
                    csr = _csr(pattern, dtype)
                    made = converter.convert(csr, FormSpec("bcsr", block=block), max_bytes=1 << 26)
                    if isinstance(made, Form):
                        size = np.dtype(dtype).itemsize
                        head = (*csr.shape, *block, size, csr.idx.size)
                        for array in (np.array(head, dtype=np.int64), csr.ptr, csr.idx, csr.val):
                            out.write(array.tobytes())
                        expected += made.ptr.tobytes() + made.idx.tobytes() + made.val.tobytes()
    assert sanitized.run(program, given, results) == ""
    assert results.read_bytes() == expected


def _csr(pattern: Pattern, dtype: type[np.floating]) -> Form:
    values = np.arange(1, pattern.nnz + 1, dtype=dtype)
    return Form(pattern.shape, pattern.indptr, pattern.indices, values)


_PROBE = """
int main(void)
{
    int bad = 0;
    probe_effort(3, 1);
    for (int threads = 1; threads < 3; threads++) {
        bad |= probe_stream(24 << 10, threads, 1e-5) <= 0;
        bad |= probe_stream(100, threads, 1e-6) <= 0;
        bad |= probe_stream((16 << 20) + 1000, threads, 1e-6) <= 0;
        bad |= probe_wake(threads, 3) <= 0;
    }
    bad |= probe_multiply_add(5) <= 0;
    probe_effort(41, 8);
    for (int passes = 1; passes < 3; passes++)
        for (int64_t floats = 16; floats <= 1 << 18; floats <<= 7)
            bad |= probe_gather(floats, 1 << 18, 1 << 15, passes) <= 0;
    return bad;
}
"""


@pytest.mark.parametrize("width", [16, pytest.param(64, marks=pytest.mark.slow)])
def test_the_probe(width: int, tmp_path: Path) -> None:
    compile_program(cpu_probe.source(width) + _PROBE, tmp_path / "probe", FLAGS)
    assert sanitized.run(tmp_path / "probe") == ""


# -- what is wrong is seen -------------------------------------------------------------------------

_PLAIN = Op("spmm", 17), "order=ijk,format=csr,threads=one"
_LANES = Op("spmv"), "order=ij,format=csr,lanes=4,unroll=1,reorder=none,threads=one"
BROKEN = {
    "writes one past the end": (
        _PLAIN, "x < last; x++)\n            d[x] = 0", "x <= last; x++)\n            d[x] = 0",
        "heap-buffer-overflow",
    ),
    "reads one segment more": (
        _PLAIN, "s < z->segments; s++)", "s <= z->segments; s++)", "heap-buffer-overflow",
    ),
    "loads as if aligned": (_LANES, "aligned(4)", "aligned(16)", "misaligned address"),
    "counts in 32 bits": (
        _PLAIN, "int team = 1;", "int team = 0x7fffffff; team += (int)q->width;",
        "signed integer overflow",
    ),
    "does not add up": (_PLAIN, "o[x] += a * b[x]", "o[x] = a * b[x]", "off by"),
    "begins with what was there": (_PLAIN, "if (mode == SET)", "if (mode == ADD)", "off by nan"),
}  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_kernel_is_seen(bench: Bench, broken: str, tmp_path: Path) -> None:
    (op, config), old, new, said = BROKEN[broken]
    variant, launch = plan(Config.parse(config), op, vector_bytes=cpu_build.vector_bytes())
    text = source(variant)
    assert old in text
    cases = [bench.case(patterns_once()["power law"], op, launch, threads=1)]
    changed = text.replace(old, new)
    assert said in tried(variant, cases, tmp_path, text=changed, plain=True).fault


RACING = {
    "adds without atomics": (
        Op("spmv"),
        "order=p,format=csr,lanes=1,threads=all,seams=atomic,pieces=64",
        "#pragma omp atomic\n",
        "",
    ),
    "does not wait for the tile before": (
        Op("sddmm", 64),
        "order=k1ijk0,format=csr,ktile=16,unroll=1,threads=all,schedule=dynamic,chunk=4",
        "#if SDDMM\n#pragma omp for schedule(runtime)\n",
        "#if SDDMM\n#pragma omp for schedule(runtime) nowait\n",
    ),
}


@pytest.mark.parametrize("broken", RACING)
def test_a_race_is_seen(bench: Bench, race_sanitizer: None, broken: str, tmp_path: Path) -> None:
    op, config, old, new = RACING[broken]
    variant, launch = plan(Config.parse(config), op, vector_bytes=cpu_build.vector_bytes())
    text = source(variant)
    assert old in text
    cases = [bench.case(patterns_once()[name], op, launch, threads=3) for name in ("full", "tall")]
    changed = text.replace(old, new)
    found = tried(variant, cases, tmp_path, text=changed, races=True, plain=True)
    assert "data race" in found.fault
