"""C between pragmas as nests: what is read, and what is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddb.core.errors import NestError
from embeddb.nests.nest_text import nest_from_text, nest_text
from indexer.frontends import extract, read_nests
from indexer.frontends.tree import Extraction

ARRAYS = "#define N 32\nfloat A[N][N], B[N][N], x[N], y[N];\nint col[N], row[N + 1];\n"


def scop(body: str, arrays: str = ARRAYS) -> str:
    """A program whose body starts on line 6."""
    return f"{arrays}void f(void) {{\n#pragma scop\n{body}\n#pragma endscop\n}}\n"


def read(tmp_path: Path, source: str, **defines: float) -> Extraction:
    path = tmp_path / "program.c"
    path.write_text(source)
    return extract(path, defines=defines)


def reason(tmp_path: Path, source: str) -> str:
    with pytest.raises(NestError) as caught:
        read(tmp_path, source)
    assert caught.value.where.endswith("program.c")
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{tmp_path}/")


def test_a_nest_of_a_file(tmp_path: Path) -> None:
    body = "for (int i = 0; i < N; i++) for (int j = 0; j < N; j++) y[i] += A[i][j] * x[col[j]];"
    (nest,) = read(tmp_path, scop(body)).nests
    assert (nest.name, nest.group, nest.trips) == ("program", "program", (32, 32))
    assert nest.loop_names == ("i", "j") and nest.array_names == ("y", "A", "col", "x")
    assert [a.fill for a in nest.arrays] == ["uniform", "uniform", "below:32", "uniform"]
    assert nest.body[0].combine == "+="
    assert nest_from_text(nest_text(nest)) == nest


def test_the_last_index_of_a_loop_that_takes_steps_is_exact(tmp_path: Path) -> None:
    # i is 0, 4, ..., 28 and 30, 26, ..., 2: A[29 + 2] and x[30 + 1] are the last.
    body = "for (int i = 0; i < N; i += 4) for (int j = 0; j < 2; j++) A[i + j + 2][i + 3] = 1;"
    (nest,) = read(tmp_path, scop(body)).nests
    assert nest.trips == (8, 2)
    (nest,) = read(tmp_path, scop("for (int i = 30; i >= 0; i -= 4) x[i - 2] = x[i + 1];")).nests
    assert nest.trips == (8,)
    why = reason(tmp_path, scop(body.replace("j + 2", "j + 3")))
    assert why == "program.c:6: A: index 1 runs from 3 to 32, outside 0 to 31"


def test_defines_win_over_macros_and_bind_parameters(tmp_path: Path) -> None:
    source = """
#ifndef N
#define N 1000 // as in the paper
#endif
#define M (N * 2)
void f(int k, float alpha, float A[N][M]) {
#pragma scop
  for (int i = 0; i < N; i++) for (int j = 0; j < M - k; j++) A[i][j] = alpha;
#pragma endscop
}
"""
    (nest,) = read(tmp_path, source, N=8, k=3, alpha=2.5).nests
    assert nest.trips == (8, 13)
    assert nest.arrays[0].shape == (8, 16)
    assert '"body":[["=",[0,[0,1],[0,0,1]],2.5,null]]' in nest_text(nest).decode()


def test_what_arrays_hold(tmp_path: Path) -> None:
    pragma = "#pragma embeddb fill row offsets:N*4:1.5\n#pragma embeddb fill col permutation\n"
    body = """for (int i = 0; i < N; i++)
  for (int k = row[i]; k < row[i + 1]; k++) y[i] += val[k] * x[col[i]];"""
    arrays = ARRAYS + "float val[N * 4];\n"
    found = read(tmp_path, pragma + scop(body, arrays))
    fills = dict(zip(found.nests[0].array_names, found.nests[0].arrays, strict=True))
    assert fills["row"].fill == "offsets:128:1.5" and fills["col"].fill == "permutation"
    assert found.nests[0].trips == (32, 4) and not found.notes
    unsaid = read(tmp_path, scop(body, arrays))
    assert unsaid.notes == (
        "col is filled with below:32, by default",
        "row is filled with offsets:128:1, by default",
    )


def test_scalars_vanish_or_get_an_element_a_turn(tmp_path: Path) -> None:
    one = "for (int i = 0; i < N; i++) { float t = x[i]; t *= 2; y[i] = t + t; }"
    (nest,) = read(tmp_path, scop(one)).nests
    assert nest.array_names == ("y", "x")
    two = """for (int i = 0; i < N; i++) {
  float t = 0;
  for (int j = 0; j < N; j++) t += A[i][j];
  y[i] = t;
}"""
    nests = read(tmp_path, scop(two)).nests
    assert [n.name for n in nests] == ["program_1", "program_2", "program_3"]
    assert [n.depth for n in nests] == [1, 2, 1]
    assert nests[1].arrays[0].shape == (32,) and nests[1].array_names[0] == "t"


def test_a_loop_over_time_is_cut_off(tmp_path: Path) -> None:
    body = """for (int t = 0; t < 10; t++) {
  for (int i = 1; i < N - 1; i++) y[i] = x[i - 1] + x[i + 1];
  for (int i = 1; i < N - 1; i++) x[i] = y[i];
}"""
    found = read(tmp_path, scop(body))
    assert [n.trips for n in found.nests] == [(30,), (30,)]
    note = "line 6: loop t is cut off at t = 0: x is carried from line 8 back to line 7"
    assert found.notes == (note,)


def test_the_turn_with_most_work_is_taken(tmp_path: Path) -> None:
    body = """for (int i = 0; i < N; i++) {
  for (int j = 0; j < i; j++) x[i] -= A[i][j] * x[j];
  x[i] /= A[i][i];
}"""
    found = read(tmp_path, scop(body))
    assert [n.trips for n in found.nests] == [(31,)]
    assert found.notes[1:] == ("line 8: a statement outside of loops is left out",)


REFUSED = {
    "a product": ("int j = i; A[i * j][0] = 1;", "not affine: * of two that vary"),
    "a quotient": ("A[i / 2][0] = 1;", "not affine: a quotient varies"),
    "a square": ("for (int k = 0; k < i * i; k++) x[k] = 1;", "not affine"),
    "a subscript computed": ("int k = 0; k += i; k += 2; x[k] = 1;", "k is computed"),
    "a fraction": ("x[i / 2] = 1;", "not affine"),
    "a float subscript": ("x[(int)y[i]] = 1;", "needs whole numbers"),
    "outside": ("x[i + 1] = 1;", "x: index 1 runs from 1 to 32, outside 0 to 31"),
    "below": ("x[i - 1] = 1;", "index 1 runs from -1"),
    "too few subscripts": ("A[i] = 1;", "A: 1 subscripts for 2 dimensions"),
    "unknown function": ("x[i] = sin(y[i]);", "function sin with 1 operands"),
    "a call": ("swap(x, y);", "a call of a function"),
    "a whole array": ("x[i] = y + 1;", "y is an array without subscripts"),
    "while": ("while (x[i] > 0) x[i] -= 1;", "a while loop"),
    "goto": ("goto end; end: x[i] = 1;", "goto is not supported"),
    "break": ("if (x[i] > 0) break;", "break is not supported"),
    "remainder": ("x[i] = i % 2;", "operator % is not supported"),
    "whole division": ("x[i] = i / 2;", "whole numbers are divided"),
    "a cut number": ("x[i] = (int)y[i];", "cut to a whole one"),
    "unknown name": ("x[i] = z;", "z is undefined"),
    "a condition that changes": ("if (x[i] > 0) { x[i] = 0; y[i] = 1; }", "x is the condition"),
    "loop written": ("for (int k = 0; k < N; k++) k = 3;", "k is a loop and is written"),
    "no step": ("for (int k = 0; k < N; k += 0) x[k] = 1;", "not 0"),
    "endless": ("for (int k = 0; k < N; k--) x[k] = 1;", "steps by -1 while its index <"),
    "doubling": ("for (int k = 1; k < N; k *= 2) x[k] = 1;", "steps by a number"),
    "pointer": ("float *p = x; p[i] = 1;", "p is a pointer, which may overlap"),
    "a string": ('x[i] = "rm -rf";', "is no number"),
    "index written": ("col[i] = 1; x[col[i]] = 2;", "is written and used as an index"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_names_its_line(tmp_path: Path, what: str) -> None:
    body, why = REFUSED[what]
    said = reason(tmp_path, scop(f"for (int i = 0; i < N; i++) {{\n{body}\n}}"))
    assert said.startswith(("program.c:6: ", "program.c:7: ")), said
    assert why in said


FILES = {
    "no scop": ("float x[3];\n", "has no #pragma scop"),
    "open": ("void f(void) {\n#pragma scop\n;\n}\n", "program.c:3: #pragma scop without"),
    "in a loop": (
        "float x[3];\nvoid f(void) {\nfor (int i = 0; i < 3; i++) {\n#pragma scop\nx[i] = 1;\n"
        "#pragma endscop\n}\n}\n",
        "outside of loops",
    ),
    "no C": ("this is not C\n", "program.c:1: cannot be parsed"),
    "macro": ("#define AT(i) x[i]\n", "program.c:1: macro AT has parameters"),
    "if": ("#if N > 2\n#endif\n", "program.c:1: #if needs a preprocessor"),
    "open if": ("#ifdef N\n", "#if has no #endif"),
    "fill of nothing": ("#pragma embeddb fill q zero\n" + scop(";"), "program.c:1: fill of q"),
    "never": (scop("for (int k = N; k < 3; k++) x[k] = 1;"), "nest; line 6: loop k never runs"),
    "never for any": (
        scop("for (int i = 0; i < 3; i++) for (int k = 3 - i; k < 3 - i; k++) x[k] = 1;"),
        "loop k never runs",
    ),
    "no loops": (scop("x[0] = 1;"), "has no loop nest"),
    "no memory": (
        scop(
            "for (int i = 0; i < 1000000000; i++) x[0] += A[0][0];",
            "double A[1000000][1000000], x[1];\n",
        ),
        "more than",
    ),
    "overflow": (
        scop("for (long i = 0; i < 99999999999999; i++) x[0] += 1;"),
        "program.c:6: ",
    ),
    "two that overlap": (
        "float x[9];\nvoid f(float *x, int n, float A[n]) {\n#pragma scop\n"
        "for (int i = 0; i < 9; i++) x[i] = A[i];\n#pragma endscop\n}\n",
        "program.c:4: x is a pointer",
    ),
    "too deep": (scop(f"x[0] = {'(' * 4000}1{')' * 4000};"), "nested too deeply"),
    "seven loops": (
        scop(
            "".join(f"for (int i{k} = 0; i{k} < 2; i{k}++) " for k in range(7))
            + "x[i0] += A[i1][i2];"
        ),
        "7 entries, at most 6",
    ),
    "macros that explode": (
        "#define a0 1 + 1\n"
        + "".join(f"#define a{k} a{k - 1} + a{k - 1}\n" for k in range(1, 40))
        + scop("for (int i = 0; i < N; i++) x[i] = a39;"),
        "line too long",
    ),
}


@pytest.mark.parametrize("what", FILES)
def test_files_that_are_refused(tmp_path: Path, what: str) -> None:
    source, why = FILES[what]
    assert why in reason(tmp_path, source)


def test_contents_that_must_be_given_name_the_pragma(tmp_path: Path) -> None:
    source = scop("for (int i = 0; i < N; i++)\nfor (int k = 0; k < col[i]; k++) x[i] += y[i];")
    with pytest.raises(NestError) as caught:
        read(tmp_path, source)
    error = caught.value
    assert error.line == 7 and error.reason.startswith("col is used as an index")
    assert error.hint.startswith("#pragma embeddb fill col below:N")
    given = error.hint.split(", ")[0].replace("below:N", "below:9")
    assert read(tmp_path, f"{given}\n{source}").nests


@pytest.mark.parametrize("value", ["if (i > 0) x[i] = y[i - 1];", "x[i] = i > 0 ? y[i - 1] : 0;"])
def test_a_condition_around_an_element_outside_gets_a_hint(tmp_path: Path, value: str) -> None:
    with pytest.raises(NestError, match="index 1 runs from -1") as caught:
        read(tmp_path, scop(f"for (int i = 0; i < N; i++)\n{value}"))
    assert "split the loop" in caught.value.hint
    with pytest.raises(NestError, match="index 1 runs from -1") as caught:
        read(tmp_path, scop("for (int i = 0; i < N; i++)\nx[i] = y[i - 1];"))
    assert not caught.value.hint


EACH, FIVE = "for (int i = 0; i < N; i++)", "for (k = 0; k < 5; k++)"
INDICES = {
    "read after it": f"{EACH} {{\n{FIVE} A[i][k] = 1;\nx[i] = k;\n}}",
    "a subscript": f"{EACH} {{\n{FIVE} x[k] = 1;\nA[i][k] = 7;\n}}",
    "read before it": f"{EACH} {{\nx[i] = k;\n{FIVE} A[i][k] = 1;\n}}",
    "a bound after": f"{FIVE} x[k] = 1;\nfor (int i = 0; i < k; i++) y[i] = 1;",
    "its own": f"{EACH}\n{FIVE} for (k = k; k < 5; k++) x[k] = 1;",
    "in a loop of its name": f"for (int k = 0; k < 5; k++) {{\nx[k] = 1; {FIVE} y[k] = 1; }}",
}


@pytest.mark.parametrize("before", ["int k = 0;", "int k;", "long k = 2; k = 3;", ""])
@pytest.mark.parametrize("what", INDICES)
def test_an_index_has_no_value_outside_of_its_loop(tmp_path: Path, what: str, before: str) -> None:
    source = scop(INDICES[what]).replace("{\n#pragma scop", f"{{ {before}\n#pragma scop")
    said = reason(tmp_path, source)
    at = "program.c:6: " if what == "in a loop of its name" else "program.c:"
    assert said.startswith(at) and ": k is " in said, said
    inside = scop(f"for (int l = 0; l < 2; l++) {{ {before}\n{INDICES[what]} }}")
    assert ": k is " in reason(tmp_path, inside)


def test_an_index_may_be_written_elsewhere(tmp_path: Path) -> None:
    source = scop("for (k = 0; k < N; k++) x[k] = 1; for (k = 1; k < N; k++) y[k] = 1;")
    source = source.replace("{\n#pragma scop", "{ int k = 0;\n#pragma scop")
    plain = read(tmp_path, source).nests
    assert len(plain) == 2
    inner = "for (int i = 0; i < 9; i++) { int k = 2 * i; x[k] = 1; }"
    assert (
        len(read(tmp_path, source.replace("#pragma endscop", f"{inner}\n#pragma endscop")).nests)
        == 3
    )
    written = source.replace("#pragma endscop", "#pragma endscop\nk = 3; k++;")
    assert read(tmp_path, written + "void g(int k) { k = 2; }").nests == plain


def test_includes_and_commands_are_text(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    body = "/* for */ for (int i = 0; i < N; i++) // no\n  x[i] = 1;"
    source = f'#include "/etc/passwd"\n#pragma GCC touch {marker}\n' + scop(body)
    assert len(read(tmp_path, source).nests) == 1
    assert not marker.exists()


def test_files_of_nests(tmp_path: Path) -> None:
    (nest,) = read(tmp_path, scop("for (int i = 0; i < N; i++) x[i] = y[i];")).nests
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    one.write_bytes(nest_text(nest))
    two.write_bytes(b"[" + nest_text(nest) + b"," + nest_text(nest) + b"]")
    assert read_nests(one) == [nest] and read_nests(two) == [nest, nest]
    two.write_bytes(b"[" * 100_000)
    with pytest.raises(NestError, match=r"two\.json: nested too deeply"):
        read_nests(two)
    with pytest.raises(NestError, match=r"gone\.c: No such file"):
        read_nests(tmp_path / "gone.c")
    with pytest.raises(NestError, match=r"a program is one of \.json, \.c"):
        read_nests(tmp_path / "program.f90")
