"""Types of C: values that a nest would compute in another type are converted, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddb.core.errors import NestError
from embeddb.nests.dependence.legality import needs_ascending, parallel_loops
from embeddb.nests.nest import Nest
from indexer.frontends import read_nests

pytest.importorskip("pycparser", reason="needs the extra programs")

HEAD = """\
#define N 32
double A[N], B[N]; float F[N], G[N]; int I[N], J[N], p[N + 1]; long L[N]; size_t S[N]; int k;
void f(void) {
#pragma scop
"""
LOOP = "for (int i = 0; i < N; i++) "
SIZES = "for (size_t i = 1; i < N; i++) "
WRAPS = "unsigned numbers may wrap around"


def nests(folder: Path, scop: str) -> list[Nest]:
    (folder / "t.c").write_text(f"{HEAD}{scop}\n#pragma endscop\n}}\n")
    return read_nests(folder / "t.c")


@pytest.mark.parametrize(
    ("scop", "why"),
    [
        (LOOP + "J[i] = (unsigned char)I[i];", "cast to a smaller type"),
        (LOOP + "A[i] = (short)(I[i] * 100);", "cast to a smaller type"),
        (LOOP + "J[i] = (int)L[i] * 2;", "cast to a smaller type"),
        (LOOP + "A[(unsigned char)I[i]] = 1;", "not affine"),
        (LOOP + "B[i] = (float)A[i];", "rounds"),
        (LOOP + "B[i] = sqrtf(A[i]);", "use that of doubles"),
        (LOOP + "B[i] = abs(A[i]);", "cut to a whole one"),
        (LOOP + "B[i] = (long)I[i] * I[i];", "converted to 64 bits"),
        (LOOP + "{ long t = I[i]; B[i] = t * t; }", "converted to 64 bits"),
        (LOOP + "{ int t = L[i]; B[i] = t; }", "declare it as long"),
        (LOOP + "A[i] = S[i] - 10;", WRAPS),
        (LOOP + "A[i] = S[i] - 10 < 0 ? 1 : 2;", WRAPS),
        (LOOP + "A[i] = S[i];", WRAPS),
        (LOOP + "B[i] = 1u - 2;", WRAPS),
        (SIZES + "A[i] = i - 5;", WRAPS),
        (SIZES + "A[i] = I[i] + i;", WRAPS),
        (LOOP + "I[i] /= 2;", "whole numbers are divided"),
    ],
)
def test_a_value_that_is_another_in_c_is_refused(scop: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(NestError) as caught:
        nests(tmp_path, scop)
    assert why in str(caught.value) and "t.c:5: " in str(caught.value)


@pytest.mark.parametrize(
    "scop",
    [
        SIZES + "A[i] = B[i - 1] * i + 0.5 * (i + 1);",
        SIZES + "for (size_t j = 0; j < i; j++) if (i > j + 1) A[i] += B[j];",
        SIZES + "A[i] = (long)i - 5;",
        SIZES + "I[i] = N - i;",
        SIZES + "k += i;",
        LOOP + "{ size_t t = I[i]; A[t] = 1; }",
        LOOP + "S[I[i]] += 1;",
        LOOP + "A[i] = (long)S[i] - 10;",
        LOOP + "G[i] = (float)A[i];",
        "for (int i = 0; i < N; i++) for (int j = p[i]; j < p[i + 1]; j++) A[i] += B[j];",
    ],
)
def test_a_value_that_is_the_same_is_read(scop: str, tmp_path: Path) -> None:
    assert nests(tmp_path, scop)


def test_a_sum_that_is_cut_at_each_step_is_no_reduction(tmp_path: Path) -> None:
    for statement in ("k += A[i];", "k = k + A[i];", "k *= 0.5;", "k -= 1.5;"):
        (nest,) = nests(tmp_path, LOOP + statement)
        assert nest.body[0].combine == "=" and not parallel_loops(nest), statement
    (nest,) = nests(tmp_path, LOOP + "k += I[i];")
    assert nest.body[0].combine == "+="


def test_a_scalar_of_its_own_type_is_substituted(tmp_path: Path) -> None:
    for scop, arrays in (
        ("{ double t = A[i] * 2; B[i] = t * t; }", ["B", "A"]),
        ("{ double t = F[i]; B[i] = t * t; }", ["B", "F"]),
        ("{ float t = A[i]; B[i] = t; }", ["t", "A", "B"]),
        ("{ int t = A[i]; B[i] = t; }", ["t", "A", "B"]),
        ("{ int t = 1.5; B[i] = t; }", ["t", "B"]),
    ):
        (nest,) = nests(tmp_path, LOOP + scop)
        assert sorted(nest.array_names) == sorted(arrays), scop


def test_numbers_beside_floats_stay_float(tmp_path: Path) -> None:
    """The type of a number is that of the arrays beside it, where this can only round."""
    (nest,) = nests(tmp_path, LOOP + "G[i] = F[i] > 0.5 ? 0.1 * F[i] : exp(F[i]);")
    assert "/" not in str(nest.body)


def test_only_writes_along_rows_rest_on_their_order(tmp_path: Path) -> None:
    rows = "for (int i = 0; i < N; i++) for (int j = p[i]; j < p[i + 1]; j++) "
    (read,) = nests(tmp_path, rows + "A[i] += B[j];")
    (written,) = nests(tmp_path, rows + "A[j] = A[j] * 0.5 + B[i];")
    assert parallel_loops(read)[0] == parallel_loops(written)[0] == 0
    assert needs_ascending(read) == () and needs_ascending(written) == (1,)
