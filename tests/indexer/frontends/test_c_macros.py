"""Macros of headers, which are not read: each is named, with what to do; what `gcc -E` writes of
them is read."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from embeddb.core.errors import NestError
from indexer.frontends import read_c_file, read_nests

SIGNATURE = "void k(int n, DATA_TYPE POLYBENCH_2D(A,N,N,n,n), double x[N])"
PLAIN = "double A[N][N], x[N];\nvoid k(int n)"
BODY = "x[i] = x[i] + A[i][i];"
HEADER = """
#include <math.h>
#define POLYBENCH_2D(var, dim1, dim2, ddim1, ddim2) var[RANGE(dim1, ddim1)][RANGE(dim2, ddim2)]
#define RANGE(x, y) x
#define _PB_N N
#define DATA_TYPE double
#define SCALAR_VAL(x) x
#define SQRT_FUN(x) sqrt(x)
"""


def program(folder: Path, head: str, body: str = BODY, until: str = "N") -> Path:
    path = folder / "k.c"
    path.write_text(
        f'#include "polybench.h"\n#define N 12\n{head} {{\n#pragma scop\n'
        f"  for (int i = 0; i < {until}; i++)\n    {body}\n#pragma endscop\n}}\n"
    )
    return path


@pytest.mark.parametrize(
    ("head", "body", "until", "line", "names"),
    [
        (SIGNATURE, BODY, "N", 3, "DATA_TYPE"),
        (SIGNATURE.replace("DATA_TYPE", "double"), BODY, "N", 3, "POLYBENCH_2D"),
        (f"DATA_TYPE y[N];\n{PLAIN}", BODY, "N", 3, "DATA_TYPE"),
        (PLAIN, "x[i] = SCALAR_VAL(0.0) + A[i][i];", "N", 7, "SCALAR_VAL"),
        (PLAIN, "x[i] = SQRT_FUN(A[i][i]);", "N", 7, "SQRT_FUN"),
        (PLAIN, "SWAP(x[i], A[i][i]);", "N", 7, "SWAP"),
        (f"#define TWICE(x) (2 * x)\n{PLAIN}", BODY, "N", 3, "TWICE"),
    ],
)
def test_a_macro_of_a_header_is_named(
    tmp_path: Path, head: str, body: str, until: str, line: int, names: str
) -> None:
    with pytest.raises(NestError, match=rf"k\.c:{line}: .*\b{names}\b") as raised:
        read_nests(program(tmp_path, head, body, until))
    assert "gcc -E" in raised.value.hint and "\n" not in str(raised.value)


@pytest.mark.parametrize("until", ["_PB_N", "n"])
def test_a_size_without_a_value_names_the_option(tmp_path: Path, until: str) -> None:
    path = program(tmp_path, PLAIN, until=until)
    with pytest.raises(NestError, match=rf"k\.c:6: {until} .*-D {until}="):
        read_nests(path)
    (nest,) = read_nests(path, defines={until: 7})
    assert nest.trips == (7,)


def test_calls_outside_of_scops_are_not_taken_for_macros(tmp_path: Path) -> None:
    path = program(tmp_path, PLAIN)
    path.write_text(path.read_text() + "int main(void) {\n  CHECK(x, N);\n  return 0;\n}\n")
    assert len(read_nests(path)) == 1


def test_words_in_texts_are_no_macros(tmp_path: Path) -> None:
    path = program(tmp_path, PLAIN)
    path.write_text(path.read_text() + 'int main(void) {\n  puts(, "BEGIN x");\n}\n')
    with pytest.raises(NestError, match=r"k\.c:11: cannot be parsed"):
        read_nests(path)


@pytest.mark.gcc
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_what_the_preprocessor_writes_is_read(tmp_path: Path) -> None:
    (tmp_path / "polybench.h").write_text(HEADER)
    body = "x[i] = x[i] + SCALAR_VAL(2.0) * SQRT_FUN(A[i][i]);"
    path = program(tmp_path, SIGNATURE, body, "_PB_N")
    out = tmp_path / "preprocessed.c"
    subprocess.run(["gcc", "-E", str(path), "-o", str(out)], check=True)
    (nest,) = read_nests(out)
    plain = program(tmp_path, PLAIN, "x[i] = x[i] + 2.0 * sqrt(A[i][i]);")
    (same,) = read_nests(plain)
    assert (nest.loops, nest.body) == (same.loops, same.body)


def test_a_size_of_a_fill_is_present(tmp_path: Path) -> None:
    path = program(
        tmp_path, f"#pragma embeddb fill c below:LIM\nint c[N];\n{PLAIN}", "x[c[i]] = 1;"
    )
    _, read, extraction = read_c_file(path, defines={"LIM": 4})
    assert "below:4" in {array.fill for array in extraction.nests[0].arrays}
    read.check_defined(["LIM"], "k.c")
    with pytest.raises(NestError, match="has no macro or size LIMIT"):
        read.check_defined(["LIMIT"], "k.c")
