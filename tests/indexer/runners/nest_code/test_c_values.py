"""Values of C in a scheduled program: conversions whose result could differ by more than
rounding."""

from __future__ import annotations

import subprocess
import warnings
from pathlib import Path

import pytest

from embeddb.core.errors import NestError
from embeddb.kernels.build import compiler
from embeddb.nests.check import canonical_schedule
from indexer.frontends import read_c_file
from indexer.runners.nest_code.in_place import Tuned, program_in_place

pytest.importorskip("pycparser", reason="needs the extra programs")
needs_gcc = pytest.mark.skipif(compiler() is None, reason="needs gcc")

HEAD = """\
#include <math.h>
#include <stdio.h>
#define N 64
double A[N], B[N]; float F[N], G[N]; int I[N], K[N]; long L[N]; _Bool b;
void kernel(void)
{
#pragma scop
"""
MAIN = """\
#pragma endscop
}
int main(void)
{
    for (int i = 0; i < N; i++) {
        A[i] = i * 1.7 - 3; B[i] = -1; F[i] = i ? i - 2.5f : 90; G[i] = -1; I[i] = 7;
        K[i] = 16777217 + i; L[i] = (1L << 32) + i;
    }
    F[3] = 0.1f;
    kernel();
    for (int i = 0; i < N; i++)
        printf("%.4g %.4g %.4g %d %ld\\n", A[i], B[i], G[i], I[i], L[i]);
    return 0;
}
"""
LOOP = "for (int i = 0; i < N; i++) "
NATURAL = "for (unsigned i = 0; i < N; i++) "
VALUES = [
    LOOP + "if (F[i] - 0.1) A[i] = 1;",
    LOOP + "if (F[i] - 0.1) A[i] = 1; else A[i] = 2;",
    LOOP + "A[i] = !(F[i] - 0.1);",
    LOOP + "A[i] = (F[i] - 0.1) && A[i] > 2;",
    LOOP + "A[i] = (F[i] - 0.1) ? 3 : 4;",
    LOOP + "{ _Bool c = F[i] - 0.1; A[i] = c; }",
    LOOP + "if (F[i] * 1e-30 * 1e-30) A[i] = 1;",
    LOOP + "if (F[i] > 0) A[i] = 1e300; else A[i] = F[i];",
    LOOP + "if (F[i] > 0) I[i] = K[i]; else I[i] = F[i];",
    LOOP + "if (F[i] > 0) A[i] = B[i] * 2; else A[i] = 5;",
    LOOP + "A[i] = (double)i * 1e9 * i * 1e9 * i;",
    LOOP + "A[i] = pow(i * 100000, 4);",
    LOOP + "A[i] = fabs((double)i) * 1e9 * 1e9 * i;",
    LOOP + "{ double t = i * 100000; A[i] = t * t * t * t; }",
    LOOP + "{ double t = 1e9; A[i] = t * i * t * i * t; }",
    LOOP + "A[i] = i > 3 ? 1e19 : i;",
    LOOP + "A[i] = i < 1e19;",
    "for (int i = 0; i < N; i++) for (int j = 0; j < N; j++) "
    "A[i] += (i + 1e6) * (j + 1e6) * (i + 1e6) * (j + 1e6);",
    NATURAL + "A[i] = i * 2u + 3;",
    "for (unsigned i = N - 1; i > 0; i--) A[i] = i * 2 + 1;",
    LOOP + "G[i] = log(1.0 + exp(F[i]));",
    LOOP + "G[i] = log(exp(F[i]));",
    LOOP + "G[i] = 1e-10f; " + LOOP + "G[i] *= exp(F[i]);",
    LOOP + "G[i] = (double)(i < 9 ? exp(F[i]) : 1) * 1e-30;",
    LOOP + "{ double t = exp(F[i]); G[i] = log(1.0 + t); }",
    LOOP + "G[i] = 1 / -exp(F[i]) * 1e35;",
    LOOP + "G[i] = pow(F[i] * 1.1e12f, 4) * 1e-40;",
    LOOP + "I[i] = (int)A[i];",
    LOOP + "I[i] = (int)L[i];",
    LOOP + "I[i] += F[i];",
    LOOP + "A[i] = F[i] < 1e300;",
]


@pytest.mark.gcc
@needs_gcc
@pytest.mark.parametrize("scop", VALUES)
def test_a_scheduled_program_has_the_values_of_c(scop: str, tmp_path: Path) -> None:
    (tmp_path / "p.c").write_text(f"{HEAD}{scop}\n{MAIN}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text, read, found = read_c_file(tmp_path / "p.c")
    tuned = [
        Tuned(nest, lines, canonical_schedule(nest))
        for nest, lines in zip(found.nests, found.lines, strict=True)
    ]
    made, unchanged = program_in_place(text, "p.c", read, tuned, found.partial)
    assert not unchanged
    (tmp_path / "q.c").write_text(made)
    assert output(tmp_path / "q.c") == output(tmp_path / "p.c")


def output(source: Path) -> str:
    command = ["gcc", "-O1", "-w", "-fopenmp", str(source), "-lm", "-o", str(source) + ".out"]
    subprocess.run(command, check=True, capture_output=True)
    return subprocess.run([f"{source}.out"], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("scop", "why"),
    [
        (NATURAL + "A[i] = i * 200000000u;", "unsigned numbers may wrap"),
        (LOOP + "A[i] = 3u * 2000000000u;", "unsigned numbers may wrap"),
        (NATURAL + "A[i] = i + 4294967295u;", "unsigned numbers may wrap"),
        (LOOP + "I[i] += 1.0f;", "rounded to float"),
        (LOOP + "I[i] = K[i] + 1.0f;", "rounded to float"),
        (LOOP + "I[i] = (float)K[i];", "rounded to float"),
        (LOOP + "A[i] = (double)(float)K[i] - K[i];", "rounded to float"),
        (LOOP + "I[i] += (int)A[i];", "cut to a whole one"),
    ],
)
def test_a_conversion_without_a_form_is_refused(scop: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "p.c").write_text(f"{HEAD}{scop}\n{MAIN}")
    with pytest.raises(NestError, match=why):
        read_c_file(tmp_path / "p.c")
