"""What an emitted library computes is what scipy computes; what no matrix is, it refuses."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sanitized
from emitted import (
    BAD_ARGUMENT,
    BAD_COLUMNS,
    BAD_POINTERS,
    OK,
    TOO_FULL,
    Loaded,
    compiled,
    loaded,
    written,
)
from scipy import sparse

from embeddb.core.config import Config, Op
from embeddb.core.pattern import Pattern
from embeddb.core.sizes import Sizes
from embeddb.emit.library import RuleText, parts_of
from embeddb.kernels import build as cpu_build
from embeddb.kernels.forms import as_scipy
from embeddb.platforms.platform import load_platform
from indexer.runners.cpu_kernels.job import Loaded as Expected

needs_gcc = pytest.mark.skipif(cpu_build.compiler() is None, reason="needs gcc")
pytestmark = [pytest.mark.gcc, needs_gcc]

_KINDS = ("order", "format", "reorder", "merge", "seams", "threads")
_TOLERANCES = {"f32": 1e-5, "f64": 1e-13}


def of_each_kind() -> list[tuple[Op, Config]]:
    """The last configuration of every kind of every operation, value types taken in turn."""
    found = []
    for kernel in ("spmm", "sddmm", "spmv"):
        op = Op(kernel, 1 if kernel == "spmv" else 128)
        kinds: dict[Any, Config] = {}
        for config in load_platform("cpu").space(op, Sizes(4000, 4000, 9000)).enumerate():
            kinds[tuple(config.get(name) for name in _KINDS)] = config
        for nth, config in enumerate(kinds.values()):
            found.append((Op(kernel, op.width, ("f32", "f64")[nth % 2]), config))
    return found


def of_each_form() -> list[tuple[Op, Config]]:
    """One of every way to store a matrix, operations taken in turn where they have it."""
    found: dict[str, tuple[Op, Config]] = {}
    for nth, (op, config) in enumerate(of_each_kind()):
        (part,) = parts_of([config], op, 16)
        name = "ell" if config["format"] == "ell" else part.conversion
        if name not in found or nth % 3 == len(found) % 3:
            found[name] = (op, config)
    return list(found.values())


def expected(pattern: Pattern, op: Op) -> Expected:
    """Random operands for a pattern, and scipy's result with the runner's own bound of rounding."""
    request = {
        "kernel": op.name,
        "shape": pattern.shape,
        "width": op.width,
        "dtype": op.dtype,
        "tolerance": _TOLERANCES[op.dtype],
        "left_bytes": 1 << 26,
        "seed": 3,
        "check": True,
    }
    return Expected(request, pattern.indptr.tobytes() + pattern.indices.tobytes())


RULE = RuleText(
    """\
#include <stdint.h>
/* The number of rows, as a rule would not. */
static inline int by_rows(int64_t m, int64_t n, const int64_t *rows, const int32_t *columns)
{
    (void)n, (void)rows, (void)columns;
    return (int)(m % 4);
}
""",
    "by_rows",
)


@pytest.mark.parametrize("kernel", ["spmm", "sddmm", "spmv"])
def test_a_pack_takes_what_its_rule_names(kernel: str, tmp_path: Path) -> None:
    op = Op(kernel, 1 if kernel == "spmv" else 32)
    plain, rows, long = (
        ("order=ij,lanes=1,unroll=1", "order=ij", "lanes=4,unroll=4")
        if kernel == "spmv"
        else ("order=ijk", "order=ik1jk0,ktile=16", "unroll=4")
    )
    configs = [
        Config.parse(f"{text},threads=one")
        for text in (
            f"{plain},format=csr",
            f"{rows},format=bcsr,block=4x4",
            f"{rows},format=csr,{long},reorder=length",
            f"{rows},format=bcsr,block=2x2",
        )
    ]
    library = loaded(tmp_path / "c", op, *configs, rule=RULE)
    k = 1 if kernel == "spmv" else 19
    for pattern in sanitized.patterns().values():
        assert compare(library, pattern, k)
    for m in range(4, 8):
        code, made = library.create(matrix(m, 40, 0.5))
        assert code == OK
        assert library.call("configuration", made).decode() == str(configs[m % 4])
        library.call("destroy", made)
    code, made = library.create(matrix(4001, 4000, 0.0005))  # blocks would be mostly fill
    assert code == OK and library.call("configuration", made).decode() == str(configs[0])
    library.call("destroy", made)


def compare(library: Loaded, pattern: Pattern, k: int) -> bool:
    """Whether the library took the pattern; fails where it computes something else than scipy."""
    job = expected(pattern, Op(library.op.name, k, library.op.dtype))
    a = as_scipy(job.csr)
    c = None if job.c is None else job.c[: job.m]
    code, made = library.create(a, narrow=k % 2 == 1)
    if code != OK:
        assert code == TOO_FULL
        return False
    for threads in (0, 1, 3):
        found = library.run(made, a, job.b[: job.n], c, threads)
        assert not job.wrong(found), (pattern.name, k, threads)
    assert library.update(made, 2 * a.data) == OK
    twice = library.run(made, a, job.b[: job.n], c)
    assert not job.wrong(twice / 2), (pattern.name, k, "with other values")
    library.call("destroy", made)
    return True


def named(case: Any) -> str:
    return str(case)


@pytest.mark.parametrize(("op", "config"), of_each_form(), ids=named)
def test_every_form_computes_what_scipy_does(op: Op, config: Config, tmp_path: Path) -> None:
    library = loaded(tmp_path / "c", op, config, flags=("-O3", "-fopenmp"))
    widths = (1,) if op.name == "spmv" else (1, 19, 64)
    taken = [compare(library, p, k) for p in sanitized.patterns().values() for k in widths]
    assert sum(taken) > len(taken) / 2


def test_every_form_is_emitted() -> None:
    forms = {(parts_of([config], op, 16)[0].conversion) for op, config in of_each_form()}
    assert forms == {"plain", "length", "rcm", "columns", "panels", "blocks", "slices"}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("op", "config"), of_each_kind(), ids=named)
def test_every_kind_under_sanitizers(op: Op, config: Config, tmp_path: Path) -> None:
    """The test program of every nest, format and way to meet, and the same against scipy."""
    if reason := sanitized.missing():
        pytest.skip(reason)
    folder = tmp_path / "c"
    library = loaded(folder, op, config, flags=("-O3", "-fopenmp"))
    for pattern in sanitized.patterns().values():
        compare(library, pattern, 1 if op.name == "spmv" else 37)
    flags = ("-O1", "-g1", "-fopenmp", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    program = compiled(folder, tmp_path / "test", *flags, test=True)
    for threads in ("1", "3"):
        done = subprocess.run(
            [program], capture_output=True, text=True, check=False,
            env={**os.environ, "OMP_NUM_THREADS": threads, "ASAN_OPTIONS": "detect_leaks=0"},
        )  # fmt: skip
        assert not done.returncode, done.stderr[-2000:]
        assert done.stdout.splitlines()[-1].startswith("ok: ")


ROWS = Config.parse("order=ijk,format=csr,threads=all,schedule=static")
BLOCKS = Config.parse("order=ik1jk0,format=bcsr,block=4x4,ktile=16,threads=all,schedule=static")
SLICES = Config.parse("order=ij,format=sell,slice=8,sigma=256,threads=all,schedule=static")
SPMM, SPMV = Op("spmm", 32), Op("spmv")


def matrix(m: int, n: int, share: float) -> Any:
    made = sparse.random(m, n, share, format="csr", random_state=m, dtype=np.float32)
    made.sort_indices()
    return made


SHORT_SLICES = Config.parse("order=ij,format=sell16,slice=8,sigma=256,threads=one")
GATHERED = SHORT_SLICES.replace(gather="hardware")
SHORT = [(op, one) for op in (SPMV, Op("spmv", 1, "f64")) for one in (SHORT_SLICES, GATHERED)]


@pytest.mark.parametrize(("op", "config"), SHORT, ids=named)
def test_columns_of_16_bits_compute_what_scipy_does(op: Op, config: Config, tmp_path: Path) -> None:
    library = loaded(tmp_path / "c", op, config, flags=("-O3", "-fopenmp"))
    assert sum(compare(library, p, 1) for p in sanitized.patterns().values()) > 1
    rng = np.random.default_rng(0)
    for columns, near in ((65_536, True), (70_000, True), (70_000, False)):
        first = 0 if not near else columns - 60_000
        cols = rng.integers(first, columns, 400)
        wide = Pattern.from_coo((50, columns), rng.integers(0, 50, 400), cols, name="wide")
        assert compare(library, wide, 1) == near


@pytest.mark.parametrize(
    ("op", "config"),
    [(SPMM, BLOCKS), (SPMV, SLICES), (SPMM, ROWS), (SPMV, SHORT_SLICES), (SPMV, GATHERED)],
)
def test_nan_and_infinities_are_as_in_a_plain_loop(op: Op, config: Config, tmp_path: Path) -> None:
    library, a = loaded(tmp_path, op, config), matrix(45, 38, 0.4)
    a.data[3] = -np.inf
    wide = matrix(45, 38, 0.4)  # 16-bit columns count from the first of their slice
    wide.resize(45, 70_000)
    wide.indices += 69_900
    for one, first in ((a, 0), (wide, 69_900)):
        b = np.ones((one.shape[1], 1 if op == SPMV else 7), dtype=np.float32)
        b[[first, first + 5]], b[first + 9] = np.inf, np.nan
        code, made = library.create(one)
        assert code == OK
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(library.run(made, one, b), one @ b, rtol=1e-5)
        library.call("destroy", made)


def test_an_infinite_value_of_a_meets_whole_dot_products(tmp_path: Path) -> None:
    tiles = "order=ik1jk0,format=csr,ktile=16,reorder=none,schedule=guided,threads=all,unroll=4"
    library, a = loaded(tmp_path, Op("sddmm", 32), Config.parse(tiles)), matrix(45, 38, 0.4)
    a.data[::2] = -np.inf
    rng = np.random.default_rng(0)
    b, c = (rng.standard_normal((rows, 50)).astype(np.float32) for rows in (38, 45))
    code, made = library.create(a)
    assert code == OK
    rows = np.repeat(np.arange(45), np.diff(a.indptr))
    dots = np.einsum("ij,ij->i", c[rows], b[a.indices])
    np.testing.assert_allclose(library.run(made, a, b, c), a.data * dots, rtol=1e-4, atol=1e-4)
    library.call("destroy", made)


@pytest.mark.parametrize("form", ["format=csr,reorder=length", "format=bcsr,block=2x2"])
def test_an_empty_dot_product_times_what_is_not_finite_is_nan(form: str, tmp_path: Path) -> None:
    config = Config.parse(f"order=ik1jk0,ktile=16,threads=one,{form}")
    library, a = loaded(tmp_path, Op("sddmm", 32), config), matrix(9, 8, 0.4)
    a.data[1], a.data[4] = np.nan, np.inf
    code, made = library.create(a)
    assert code == OK
    b, c = (np.empty((rows, 0), dtype=np.float32) for rows in (8, 9))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(library.run(made, a, b, c), a.data * 0)
    library.call("destroy", made)


def test_strings_of_an_array_are_one_literal_each(tmp_path: Path) -> None:
    """Clang suspects a missing comma between two of them (`-Wstring-concatenation`)."""
    for text in written(tmp_path, SPMM, BLOCKS).files().values():
        assert not re.search(r'[,{]\s*"[^"\n]*"\s*\n\s*"', text)


def test_what_no_matrix_is_is_refused(tmp_path: Path) -> None:
    library, a = loaded(tmp_path, SPMM, BLOCKS), matrix(20, 30, 0.3)

    def code(change: Any) -> int:
        wrong = a.copy()
        change(wrong)
        found, made = library.create(wrong)
        assert made.value is None
        return found

    assert code(lambda x: x.indices.__setitem__(4, 30)) == BAD_COLUMNS
    assert code(lambda x: x.indices.__setitem__(4, -1)) == BAD_COLUMNS
    assert code(lambda x: x.indices.__setitem__(1, x.indices[0])) == BAD_COLUMNS
    assert code(lambda x: x.indices.__setitem__(slice(0, 2), x.indices[1::-1])) == BAD_COLUMNS
    assert code(lambda x: x.indptr.__setitem__(0, 1)) == BAD_POINTERS
    assert code(lambda x: x.indptr.__setitem__(3, 1 << 30)) == BAD_POINTERS
    assert code(lambda x: x.indptr.__setitem__(3, -1)) == BAD_POINTERS
    assert library.create(matrix(4000, 4000, 0.0005))[0] == TOO_FULL
    sizes = [ctypes.c_int64(one) for one in (1, 1, 0)]
    assert library.call("create", None, *sizes, None, None, None) == BAD_ARGUMENT
    assert library.call("run", None, ctypes.c_int64(1), None, None, 0) == BAD_ARGUMENT
    assert library.call("update_values", None, None) == BAD_ARGUMENT


COUNTED = """
#include <stdio.h>
#include <stdlib.h>
#include "{prefix}.h"
static long left, open;
static void *given(void *p) {{ open += p != NULL; return p; }}
void *try_malloc(size_t n) {{ return left-- > 0 ? given(malloc(n)) : NULL; }}
void *try_calloc(size_t n, size_t s) {{ return left-- > 0 ? given(calloc(n, s)) : NULL; }}
void *try_aligned_alloc(size_t a, size_t n)
{{
    return left-- > 0 ? given(aligned_alloc(a, n)) : NULL;
}}
void try_free(void *p) {{ open -= p != NULL; free(p); }}
int main(void)
{{
    const int32_t ptr[] = {{0, 3, 3, 5, 6, 9}}, col[] = {{0, 2, 6, 1, 2, 5, 0, 3, 6}};
    const {type} val[] = {{1, 2, 3, 4, 5, 6, 7, 8, 9}}, b[7 * 3] = {{1}}, c[5 * 3] = {{1}};
    {type} d[5 * 3];
    (void)c;
    for (long room = 0; room < 100; room++) {{
        {prefix}_matrix *a = NULL;
        left = room;
        int code = {prefix}_create_32(&a, 5, 7, 9, ptr, col, val);
        if (code == 0)
            code = {prefix}_run({run});
        {prefix}_destroy(a);
        if (open || (code != 0 && code != 1)) {{
            printf("code %d, %ld open after %ld\\n", code, open, room);
            return 1;
        }}
        if (code == 0) {{
            printf("%ld allocations\\n", room);
            return 0;
        }}
    }}
    return 1;
}}
"""
_RUN = {"spmm": "a, 3, b, d, 2", "spmv": "a, b, d, 2", "sddmm": "a, 3, c, b, d, 2"}


@pytest.mark.parametrize(("op", "config"), of_each_form(), ids=named)
def test_an_allocation_that_fails_is_a_code_and_nothing_leaks(
    op: Op, config: Config, tmp_path: Path
) -> None:
    made = written(tmp_path, op, config)
    kind = {"f32": "float", "f64": "double"}[op.dtype]
    text = COUNTED.format(prefix=made.prefix, type=kind, run=_RUN[op.name])
    (tmp_path / "test.c").unlink()
    (tmp_path / "counted.c").write_text(text)
    for file in tmp_path.glob(f"{made.prefix}*.c"):
        names = ("malloc", "calloc", "aligned_alloc", "free")
        head = "".join(f"#define {name} try_{name}\n" for name in names)
        file.write_text(head + file.read_text())
    program = compiled(tmp_path, tmp_path / "program", "-O0", "-fopenmp")
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=60)
    assert not done.returncode, done.stdout
    assert int(re.findall(r"\d+", done.stdout)[0]) >= 4


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@needs_make
@pytest.mark.parametrize("openmp", ["-fopenmp", "", "-fopenmp-simd"])
def test_its_makefile_builds_and_tests_it(openmp: str, tmp_path: Path) -> None:
    written(tmp_path, Op("sddmm", 33, "f64"), Config.parse("order=ijk,format=csr,threads=one"))
    make = ["make", f"CC={cpu_build.compiler()[0]}", f"OPENMP={openmp}", "CFLAGS=-O1", "check"]  # type: ignore[index]
    done = subprocess.run(make, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert not done.returncode and "warning" not in done.stderr, done.stderr
    assert "ok: " in done.stdout


def test_its_test_program_reads_matrix_market(tmp_path: Path) -> None:
    written(tmp_path, SPMM, BLOCKS)
    program = compiled(tmp_path, tmp_path / "test", "-O1", test=True)

    def tried(text: str) -> str:
        (tmp_path / "a.mtx").write_text(text)
        command = [program, tmp_path / "a.mtx", "5", "1"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 0 else done.stderr

    head = "%%MatrixMarket matrix coordinate"
    both = tried(f"{head} real symmetric\n% words\n3 3 3\n1 1 2.5\n3 1 -1\n2 2 1e3\n")
    assert "3 x 3, 4 non-zeros, k = 5" in both and "ok: " in both
    assert "2 x 4, 1 non-zeros" in tried(f"{head} pattern general\n2 4 2\n1 4\n1 4\n")
    assert "no entry" in tried(f"{head} real general\n2 2 1\n3 1 1.0\n")
    assert "no entry" in tried(f"{head} real general\n2 2 1\n")
    assert "ends before" in tried(f"{head} real general\n")
    assert "is no Matrix" in tried(f"{head} complex general\n1 1 1\n1 1 1 1\n")
    assert "cannot be read" in tried("")
    assert "sizes that are none" in tried(f"{head} real general\n-2 2 1\n")


def test_the_example_of_its_readme_compiles(tmp_path: Path) -> None:
    for nth, op in enumerate((SPMM, SPMV, Op("sddmm", 16, "f64"))):
        order = "ij,lanes=1,unroll=1" if op == SPMV else "ijk"
        folder = tmp_path / str(nth)
        written(folder, op, Config.parse(f"order={order},format=csr,threads=one"))
        (example,) = re.findall(r"```c\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
        (folder / "example.c").write_text(example)
        compiled(folder, folder / "made.so", "-O0", "-fPIC", "-shared")
