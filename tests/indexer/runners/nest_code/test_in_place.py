"""A C program with its scops replaced by schedules of their nests computes what it did before."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from embeddb.core.errors import NestError
from embeddb.kernels.build import compiler, exact_division
from embeddb.nests.check import canonical_schedule
from embeddb.nests.nest import Nest
from embeddb.nests.schedule import Schedule
from indexer.frontends import read_c_file
from indexer.runners.nest_code.in_place import Tuned, program_in_place

pytest.importorskip("pycparser", reason="needs the extra programs")
needs_gcc = pytest.mark.skipif(compiler() is None, reason="needs gcc")
gcc = [pytest.mark.gcc, needs_gcc]

HEAD = """\
#define _GNU_SOURCE
#include <stdio.h>
#include <math.h>
#include <stdlib.h>
#ifndef N
#define N 40
#endif
#define HALF (N / 2)
#ifndef RATE
#define RATE 0.5
#endif
static double A[N][N], B[N][N], x[N];
static float f[N];
static int w[N], row[N + 1];
double total, weight = 0.25;
int count;
"""
MAIN = """
int main(int argc, char **argv)
{
    if (argc > 1)
        weight = atof(argv[1]);
    for (int i = 0; i < N; i++) {
        x[i] = i % 7;
        f[i] = i % 5;
        w[i] = 99990 + i;
        row[i] = (i % 2) * N;
        for (int j = 0; j < N; j++)
            A[i][j] = (i * 31 + j * 17) % 23;
    }
    run(A, 1.5, 3);
    run(A, 2.5, 4);
    double sum = total + count;
    for (int i = 0; i < N; i++) {
        sum += x[i] + 3 * f[i] + w[i] % 1000;
        for (int j = 0; j < N; j++)
            sum += B[i][j] * (1 + (i + 2 * j) % 5) + A[i][j];
    }
    printf("%.10g\\n", sum);
    return 0;
}
"""
RUN = "void run(double a[N][N], double alpha, int times)\n{\n"


def program(before: str, scop: str, after: str = "") -> str:
    body = f"{before}\n#pragma scop\n{scop}\n#pragma endscop\n{after}\n"
    return f"{HEAD}\n/* a remark */\n{RUN}{body}}}\n{MAIN}"


#: Programs whose scop is replaced.
REPLACED = {
    "two loops": program(
        "int i, j;",
        "for (i = 1; i < N - 1; i++)\n  for (j = 0; j < N; j++)\n"
        "    B[i][j] = alpha * a[i - 1][j] + weight * a[i + 1][j];",
    ),
    "distributed": program(
        "int i, j;\ndouble s;",
        "for (i = 0; i < N; i++) {\n  s = 0;\n  for (j = 0; j < N; j++) {\n    s += a[i][j];\n"
        "    B[i][j] = a[i][j] * 2;\n  }\n  x[i] = s;\n}",
    ),
    "a scalar of the function": program(
        "double s = 1;",
        "for (int i = 0; i < N; i++)\n  for (int j = 0; j < N; j++)\n    s += a[i][j];",
        "x[1] = s;",
    ),
    "a scalar of the file": program(
        "",
        "for (int i = 0; i < N; i++)\n  for (int j = 0; j < i; j++)\n    total += a[i][j] * x[i];",
    ),
    "declared inside": program(
        "",
        "for (int i = 0; i < N; i++) {\n  float t = 0.0;\n  for (int j = 0; j < N; j++)\n"
        "    t += a[i][j] * RATE;\n  f[i] = t;\n}",
    ),
    "a loop that is set again": program(
        "int i;",
        "for (i = 0; i < HALF; i++)\n  x[i] = x[i + HALF] + 1;",
        "for (i = 0; i < 3; i++)\n  x[i] += i;",
    ),
    "loops declared inside": program(
        "",
        "for (int i = 0; i < HALF; i++)\n  x[i] = x[i] + 1;",
        "for (int i = 0; i < 3; i++)\n  x[i] += i;",
    ),
    "conditions and numbers": program(
        "float rate = 0.75;\nint off = 2;",
        "for (int i = 0; i < N - off; i++)\n  for (int j = 0x1; j < N; j++)\n"
        "    if (a[i][j] > 3.0)\n      B[i][j] = rate * a[i + off][j];\n"
        "    else\n      B[i][j] += f[i];",
    ),
    "locals of other types": program(
        "",
        "for (int i = 0; i < N; i++) {\n  double t = f[i] * 1e25f, u = w[i];\n"
        "  int cut = a[i][0] * 0.7;\n  float r = a[i][1] * 1e7 + a[i][2] * 0.3;\n"
        "  x[i] = t * t * 1e-50 + u * u * 1e-9 + cut;\n  B[i][0] = r - a[i][1] * 1e7;\n}",
    ),
    "whole numbers that are cut": program(
        "",
        "for (int i = 0; i < N; i++) {\n  w[i] *= 0.3;\n  w[i] -= 1.5;\n"
        "  w[i] = w[i] + a[i][0] * 0.7;\n}",
    ),
    "double beside float": program(
        "",
        "for (int i = 0; i < N; i++) {\n  x[i] = f[i] / 10 > 0.1 ? 1 : 2;\n"
        "  B[i][0] = exp(f[i] * 50) * 1e-80 + fabs(w[i]) * w[i] + pow(w[i], 2);\n"
        "  B[i][1] = (double)(f[i] * 1e25f) * (f[i] * 1e25f) * 1e-50 + 2.0 * w[i] * w[i];\n}",
    ),
    "values of assignments": program(
        "double s;",
        "for (int i = 0; i < N; i++) {\n  x[i] = f[i] = s = a[i][0] * 0.3;\n"
        "  x[i] += w[i] = a[i][1] * 0.75;\n}",
    ),
    "rows in any order": program(
        "",
        "for (int i = 0; i < N - 1; i++)\n  for (int k = row[i]; k < row[i + 1]; k++)\n"
        "    x[k] = x[k] * 0.5 + a[i][0];",
    ),
    "a rounded scalar of rows": program(
        "",
        "for (int i = 0; i < N - 1; i++)\n  for (int k = row[i]; k < row[i + 1]; k++) {\n"
        "    float t = x[k] * 0.3;\n    x[k] = t + a[i][0];\n  }",
    ),
    "a scalar that is set again": program(
        "double s;",
        "for (int i = 0; i < N; i++) {\n  s = a[i][i];\n  x[i] = s;\n}",
        "if (times == 3) {\n  s = 1;\n} else {\n  s = 2;\n}\nfor (int i = 0; i < 2; i++) {\n"
        "  double s = i;\n  total += s;\n}\ntotal += s;",
    ),
    "a loop that is written after": program(
        "int i = 0;", "for (i = 0; i < N; i++)\n  x[i] = x[i] + 1;", "i = 3;\nx[i++] = 2;"
    ),
    "labels behind it": program(
        "int i;",
        "for (i = 0; i < N; i++)\n  x[i] = x[i] + 1;",
        "if (times == 3)\n  goto end;\ntotal += 1;\nend:\ntotal += 2;",
    ),
    "a number of another block": program(
        "{\n  int m = 3;\n  total += m;\n}", "for (int m = 0; m < N; m++)\n  x[m] = x[m] + 1;"
    ),
    "two scops": program(
        "",
        "for (int i = 0; i < N; i++)\n  x[i] = 2 * x[i];\n#pragma endscop\n  total += x[3];\n"
        "#pragma scop\nfor (int i = 0; i < N; i++)\n  f[i] = x[i];",
    ),
}
#: A scop that sets a scalar, which its nest does not keep.
KEEPS = "for (int i = 0; i < N; i++) {\n  s = a[i][i];\n  x[i] = s;\n}"
#: Programs whose scop stays: nests do not do all of it, or not what is read of it later.
KEPT = {
    "a loop over time": program(
        "",
        "for (int t = 0; t < 4; t++) {\n  for (int i = 1; i < N - 1; i++)\n"
        "    x[i] = a[i][t] + B[i][0];\n"
        "  for (int i = 1; i < N - 1; i++)\n    B[i][0] = x[i - 1];\n}",
    ),
    "a statement outside of loops": program(
        "", "total = 1;\nfor (int i = 0; i < N; i++)\n  total += a[i][i];"
    ),
    "a float that is rounded": program(
        "float tenth = 0.1;", "for (int i = 0; i < N; i++)\n  x[i] = tenth * a[i][i];"
    ),
    "a loop that is read after": program(
        "int i;", "for (i = 0; i < HALF; i++)\n  x[i] = x[i] + 1;", "x[i] = 7;"
    ),
    "a loop that is set after only sometimes": program(
        "int i;",
        "for (i = 0; i < HALF; i++)\n  x[i] = x[i] + 1;",
        "if (times == 3)\n  for (i = 0; i < 1; i++)\n    x[i] = 2;\nx[i] = 7;",
    ),
    "a loop that another loop hides": program(
        "int i;",
        "for (i = 0; i < HALF; i++)\n  x[i] = x[i] + 1;",
        "for (int i = 0; i < 2; i++)\n  x[i] = 3;\nx[i] = 7;",
    ),
    "a scalar that is read after": program(
        "double s;", "for (int i = 0; i < N; i++) {\n  s = a[i][i];\n  x[i] = s;\n}", "total += s;"
    ),
    "a scalar beside an expression of thousands of operators": program(
        "double s;", KEEPS, "total += 0" + " + 1" * 5000 + ";\ns = 1;"
    ),
    "a scalar of the file that vanishes": program(
        "", "for (int i = 0; i < N; i++) {\n  total = a[i][i];\n  x[i] = total + 1;\n}"
    ),
    "rows that the loops set": program(
        "",
        "for (int i = 0; i < N; i++)\n  row[i] = i;\nfor (int i = 0; i < N - 1; i++)\n"
        "  for (int k = row[i]; k < row[i + 1]; k++)\n    x[k] = x[k] * 0.5 + a[i][0];",
    ),
    "a scalar that is stepped after": program("double s;", KEEPS, "s = s + 1;\ntotal += s;"),
    "a loop that starts from its own": program(
        "int i;",
        "for (i = 0; i < HALF; i++)\n  x[i] = x[i] + 1;",
        "for (i = i; i < N; i++)\n  x[i] = 7;",
    ),
    "a loop of the file": program(
        "", "for (count = 0; count < HALF; count++)\n  x[count] = x[count] + 1;"
    ),
    "a brace at the start of a line": program(
        "double s;", KEEPS, "if (times == 3) {\ntotal += 1;\n}\ntotal += s;"
    ),
    "a scalar that is set in a branch": program(
        "double s;", KEEPS, "if (times == 3)\n  s = 2;\ntotal += s;"
    ),
    "a scalar that is set in a loop": program(
        "double s;", KEEPS, "while (times < 3) {\n  s = 2;\n  times++;\n}\ntotal += s;"
    ),
    "a scalar that is set in a case": program(
        "double s;", KEEPS, "switch (times) {\ncase 3: s = 2; break;\ncase 4: total += s;\n}"
    ),
    "a static scalar": program("static double s = 3;\ntotal += s;", KEEPS),
    "a scalar with an address": program("double s, *q = &s;", KEEPS, "total += *q;"),
    "a scalar before a goto": program(
        "double s = 3;\nint n = 0;\nagain:\ntotal += s;",
        KEEPS,
        "s = 1;\nif (n++ < 2) {\n  s = 4;\n  goto again;\n}",
    ),
    "a scalar before a goto onwards": program(
        "double s = 3;", KEEPS, "if (times == 3)\n  goto end;\ns = 1;\nend:\ntotal += s;"
    ),
    "a goto in a switch": program(
        "double s;", KEEPS, "switch (times) {\ncase 3: goto end;\n}\ns = 1;\nend:\ntotal += s;"
    ),
    "a register": program(
        "register double s = 0;", "for (int i = 0; i < N; i++)\n  s += a[i][i];", "total += s;"
    ),
    "a scalar declared inside": program(
        "double s = 2;\n{", f"double s;\n{KEEPS}", "total += s;\n}"
    ),
    "a subscript that is read after": program(
        "int q;",
        "for (int i = 0; i < N - 1; i++) {\n  q = i + 1;\n  x[q] = a[q][0];\n}",
        "total += q;",
    ),
    "two of one name": program(
        "double x[N];\nfor (int k = 0; k < N; k++)\n  x[k] = k;",
        "for (int i = 0; i < N; i++)\n  B[i][i] = x[i];",
    ),
}


def written(
    folder: Path, source: str, settings: Mapping[str, object] | None = None, **given: int
) -> tuple[Path, str, list[str]]:
    path = folder / "p.c"
    path.write_text(source)
    text, read, found = read_c_file(path, defines=given)
    tuned = [
        Tuned(nest, lines, schedule(nest, settings or {}), "predicted: 2.00x")
        for nest, lines in zip(found.nests, found.lines, strict=True)
    ]
    made, kept = program_in_place(text, path.name, read, tuned, found.partial)
    (folder / "q.c").write_text(made)
    return folder / "q.c", made, kept


def schedule(nest: Nest, settings: Mapping[str, object]) -> Schedule:
    """The canonical schedule with other settings."""
    config = {**canonical_schedule(nest).config, **settings}
    return Schedule.of(config, nest.depth)


def output(source: Path, *flags: str, words: tuple[str, ...] = ()) -> str:
    run = source.with_suffix("")
    strict = ["-O1", "-Wall", "-Werror", "-Wno-unused", "-Wno-unknown-pragmas", "-fopenmp"]
    built = subprocess.run(
        ["gcc", *strict, *flags, str(source), "-lm", "-o", str(run)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    done = subprocess.run([run, *words], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout


@pytest.mark.gcc
@needs_gcc
@pytest.mark.parametrize("what", [*REPLACED, *KEPT])
def test_it_computes_what_the_program_does(what: str, tmp_path: Path) -> None:
    source, made, kept = written(tmp_path, (REPLACED | KEPT)[what])
    plain = output(tmp_path / "p.c")
    # With other values than the nests were read for, the original loops run.
    for flags, words in ([(), ()], [("-DN=50",), ()], [("-DRATE=0.75",), ()], [(), ("0.5",)]):
        assert output(source, *flags, words=words) == output(tmp_path / "p.c", *flags, words=words)
    assert output(tmp_path / "p.c") == plain
    if what in KEPT:
        assert len(kept) == 1 and kept[0].startswith("p.c:") and "nest_p(" not in made
    else:
        assert not kept and "nest_p" in made


@pytest.mark.gcc
@needs_gcc
@pytest.mark.parametrize("what", ["two loops", "double beside float"])
def test_a_preprocessed_program(what: str, tmp_path: Path) -> None:
    """It holds the text of its headers, and a line of the user's file with a macro of one."""
    first = tmp_path / "first.c"
    first.write_text(REPLACED[what].replace("double sum", 'fputs("RUN", stderr);\ndouble sum'))
    command = ["gcc", "-E", str(first)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    source, made, kept = written(tmp_path, text)
    assert not kept and "nest_p" in made
    assert output(source) == output(tmp_path / "p.c")


@pytest.mark.gcc
@needs_gcc
def test_the_nests_are_what_runs(tmp_path: Path) -> None:
    """With the nests' functions emptied, the results are others."""
    source, made, _ = written(tmp_path, REPLACED["two loops"])
    first = REPLACED["two loops"].splitlines().index("for (i = 1; i < N - 1; i++)") + 1
    assert f"lines {first} to {first + 2}: " in made and "predicted: 2.00x" in made
    plain = output(source)
    source.write_text(made.replace("alpha[0] *", "0 *"))
    assert output(source) != plain


@pytest.mark.gcc
@needs_gcc
def test_a_size_given_from_outside_is_asked_for(tmp_path: Path) -> None:
    source, made, _ = written(
        tmp_path,
        program("", "for (int i = 0; i < times; i++)\n  x[i] = x[i] + a[i][0];"),
        times=3,
    )
    assert "times == 3" in made
    assert output(source) == output(tmp_path / "p.c")


def test_a_size_that_the_file_sets_again_is_refused(tmp_path: Path) -> None:
    source = "#define N 48\n" + program("", "for (int i = 0; i < N; i++)\n  x[i] = 2 * x[i];")
    _, made, kept = written(tmp_path, source, N=96)
    assert "line 1 defines N as 48, not 96: put #ifndef N around" in kept[0]
    assert "nest_p(" not in made
    for same in ("48", "0x30", "(060)", "48u"):
        _, made, kept = written(tmp_path, source.replace("48", same), N=48)
        assert not kept and "nest_p(" in made


@pytest.mark.gcc
@needs_gcc
def test_a_number_is_that_of_its_own_function(tmp_path: Path) -> None:
    """Functions may have numbers of one name, of which one is set by its address."""
    source = program(
        "int m = 4;", "for (int i = 0; i < N; i++)\n  x[i] = x[i] + m;", "other(x);"
    ).replace(
        RUN,
        "void set(int *p) { *p = 9; }\nvoid other(double z[N])\n{\nint m = 3;\nset(&m);\n"
        "#pragma scop\nfor (int i = 0; i < N; i++)\n  z[i] = z[i] + m;\n"
        f"#pragma endscop\n}}\n{RUN}",
    )
    made, text, kept = written(tmp_path, source)
    assert not kept and "m == 3" in text and "m == 4" in text
    assert output(made) == output(tmp_path / "p.c")


def test_order_of_rows_is_checked_only_where_it_matters(tmp_path: Path) -> None:
    _, made, _ = written(tmp_path, REPLACED["rows in any order"])
    assert f"embeddb_ascends_i32((int32_t *)row, 0, {39}, 40)" in made
    _, made, _ = written(tmp_path, REPLACED["rows in any order"].replace("i++", "i += 4"))
    assert f"embeddb_ascends_i32((int32_t *)row, 0, {37}, 40)" in made
    loops = "for (int i = 0; i < N - 1; i++)\n  for (int k = row[i]; k < row[i + 1]; k++)\n"
    _, made, _ = written(tmp_path, program("", f"{loops}    x[i] += a[0][k];"))
    assert "embeddb_ascends" not in made


def test_lines_keep_their_numbers(tmp_path: Path) -> None:
    _, made, _ = written(tmp_path, REPLACED["two scops"])
    plain = REPLACED["two scops"].splitlines()
    number, numbers = 0, []
    for line in made.splitlines():
        if line.startswith("#line"):
            number = int(line.split()[1]) - 1
            continue
        number += 1
        if line.startswith(("int main", "  total +=")):
            numbers.append((number, line))
    assert len(numbers) == 2
    assert all(plain[at - 1] == line for at, line in numbers)


@pytest.mark.gcc
@needs_gcc
def test_arrays_may_have_names_of_functions_of_headers(tmp_path: Path) -> None:
    """math.h is included only where a nest calls one of its functions, as the file does then."""
    source = (
        "#include <stdio.h>\nstatic double y0[9], y1[9], gamma[9], exp[9];\nint main(void)\n{\n"
        "#pragma scop\nfor (int i = 0; i < 9; i++)\n  y1[i] = exp[i] + y0[i] * gamma[i] + i;\n"
        '#pragma endscop\nprintf("%g\\n", y1[5]);\nreturn 0;\n}\n'
    )
    made, text, kept = written(tmp_path, source)
    assert not kept and "nest_p(" in text
    flags = ("-fno-builtin",)  # else gcc warns of exp itself
    assert output(made, *flags) == output(tmp_path / "p.c", *flags) == "5\n"
    root = source.replace("exp[i]", "sqrt(i)").replace(", exp[9]", "").replace("y1", "out")
    _, text, _ = written(tmp_path, root)
    assert "#include <math.h>" in text


def counted(made: str, source: Path) -> None:
    """Make the program print a line before each call of a nest."""
    assert "        nest_p(" in made
    source.write_text(made.replace("        nest_p(", '        puts("tuned"); nest_p('))


@pytest.mark.gcc
@needs_gcc
@pytest.mark.parametrize(("ascend", "calls"), [(True, 2), (False, 0)])
def test_rows_that_ascend_run_as_scheduled(ascend: bool, calls: int, tmp_path: Path) -> None:
    text = REPLACED["rows in any order"]
    if ascend:
        text = text.replace("row[i] = (i % 2) * N;", "row[i] = i / 2;")
    source, made, _ = written(tmp_path, text)
    assert "embeddb_ascends_i32(" in made
    counted(made, source)
    assert output(source) == "tuned\n" * calls + output(tmp_path / "p.c")


def test_the_check_of_rows_has_no_early_exit(tmp_path: Path) -> None:
    _, made, _ = written(tmp_path, REPLACED["rows in any order"])
    check = made[made.index("static int embeddb_ascends_i32") :].split("\n}\n")[0]
    assert check.count("return") == 1 and "omp parallel for simd reduction(| : bad)" in check


BLOCKED = (
    "for (int i = 0; i < N - 1; i++)\n  for (int t = 0; t < N; t++)\n"
    "    for (int k = row[i]; k < row[i + 1]; k++)\n      B[i][t] += k < 10 ? D[k] : a[t][k];"
)


@pytest.mark.gcc
@needs_gcc
@pytest.mark.parametrize("pack", ["none", "read2"])
@pytest.mark.parametrize(("last", "calls"), [(10, 2), (36, 0)])
def test_blocks_rest_on_bounds_that_are_checked(
    pack: str, last: int, calls: int, tmp_path: Path
) -> None:
    """D has 10 elements, so that `row` is read as offsets up to 10."""
    text = program("", BLOCKED).replace("double total,", "double D[10] = {2, 3, 5}, total,")
    text = text.replace("row[i] = (i % 2) * N;", f"row[i] = i * {last} / (N - 1);")
    tiles = {"tile_1": 4, "tile_2": 16, "pack": pack}
    source, made, _ = written(tmp_path, text, tiles)
    assert "embeddb_within_i32((int32_t *)row, 41, 10)" in made
    assert ("packed[" in made) == (pack != "none")
    counted(made, source)
    assert output(source) == "tuned\n" * calls + output(tmp_path / "p.c")


def test_bounds_of_blocks_that_the_scop_sets_are_not_checked(tmp_path: Path) -> None:
    scop = "for (int i = 0; i < N; i++)\n  row[i] = i;\n" + BLOCKED
    text = program("", scop).replace("double total,", "double D[10], total,")
    _, _, kept = written(tmp_path, text, {"tile_1": 4})
    assert "bounds of loop k in row cannot be checked before it" in kept[0]


@pytest.mark.gcc
@needs_gcc
def test_numbers_that_are_none_are_seen_outside_of_the_loops(tmp_path: Path) -> None:
    """The generated functions alone are compiled with -ffast-math, and without approximations."""
    silu = "for (int i = 0; i < N; i++)\n  f[i] = f[i] / (1.0f + expf(-f[i]));"
    source = program("for (int i = 0; i < N; i++)\n  f[i] = i < 20 ? -100 : f[i];", silu)
    source = source.replace("double sum = total", 'double sum = isnan(atof("nan")) + total')
    made, text, kept = written(tmp_path, source)
    assert not kept and "NaN and infinities are not supported" in text
    assert "-ffast-math" not in text and 'optimize("O3", "fast-math")' in text
    found = compiler()
    assert found is not None
    flags = ("-O3", "-march=native", "-fno-math-errno", *exact_division(found[0]))
    assert "nan" not in output(made, *flags)
    assert output(made, *flags) == output(tmp_path / "p.c")


@pytest.mark.parametrize("test", ["f[i] == f[i]", "!(2 * x[i] <= 2 * x[i])", "f[i] != f[i]"])
def test_a_test_for_what_is_no_number_is_refused(test: str, tmp_path: Path) -> None:
    scop = f"for (int i = 0; i < N; i++)\n  if ({test})\n    x[i] = 1;"
    with pytest.raises(NestError, match="compares a value with itself: NaN is not") as raised:
        written(tmp_path, program("", scop))
    assert raised.value.line and raised.value.hint


@pytest.mark.gcc
@needs_gcc
def test_a_loop_that_never_runs_here_runs_at_another_size(tmp_path: Path) -> None:
    scop = "for (int i = 0; i < N; i++)\n  x[i] = 1;\nfor (int t = 0; t < T; t++)\n  x[t] += 2;"
    source = "#ifndef T\n#define T 0\n#endif\n" + program("", scop)
    made, _, kept = written(tmp_path, source)
    assert not kept
    for flags in ((), ("-DT=9",)):
        assert output(made, *flags) == output(tmp_path / "p.c", *flags)
