"""`embeddb nest import` and `embeddb nest show`, as people type them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builders import band
from command_line import run_verb
from measured_nests import asked, make
from nest_logs import configs_of, log_of, save_nests
from scipy.io import mmwrite

from embeddb.database import Database
from embeddb.nests.examples import sample_nests
from embeddb.nests.nest_text import nest_from_text
from indexer import programs

NESTS = sample_nests()
MATMUL = NESTS["matmul"]
SPMM = Path(programs.__file__).parent / "science" / "spmm.c"
#: One nest whose size is left open.
PROGRAM = """
#define N 8
float C[N][N], A[N][N], B[N][N];
void gemm(void) {
#pragma scop
for (int i = 0; i < N; i++)
  for (int j = 0; j < N; j++)
    for (int k = 0; k < N; k++)
      C[i][j] += A[i][k] * B[k][j];
#pragma endscop
}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(save_nests(tmp_path / "all.json", list(NESTS.values())))


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert run_verb(words) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    capsys.readouterr()
    return run_verb(words), capsys.readouterr().err


def test_import_once_and_again(
    tmp_path: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    db = str(tmp_path / "n.db")
    first = printed(capsys, "nest", "import", db, file, "--json")
    assert {nest["id"] for nest in first["added"]} == {nest.id for nest in NESTS.values()}
    again = printed(capsys, "nest", "import", db, file, "--json")
    assert again["added"] == [] and len(again["known"]) == len(NESTS)
    assert run_verb(["nest", "import", db, file]) == 0
    assert "0 nests added, 6 already stored" in capsys.readouterr().out
    assert printed(capsys, "db", "stat", db, "--json")["counts"]["nest"] == 6
    assert run_verb(["db", "check", db]) == 0
    assert "no problems" in capsys.readouterr().out
    assert run_verb(["db", "stat", db]) == 0
    assert "6 nests" in capsys.readouterr().out


def test_the_lines_of_nests_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pycparser", reason="needs the extra programs")
    file = tmp_path / "two.c"
    loops = (
        "for (int i = 0; i < 9; i++)\n  x[i] = 1;\nfor (int i = 0; i < 9; i++)\n  y[i] = x[i];\n"
    )
    file.write_text(
        f"double x[9], y[9];\nvoid f(void) {{\n#pragma scop\n{loops}#pragma endscop\n}}\n"
    )
    made = printed(capsys, "nest", "import", str(tmp_path / "n.db"), str(file), "--json")
    assert [one["lines"] for one in made["added"]] == [[4, 5], [6, 7]]
    assert run_verb(["nest", "show", str(file)]) == 2
    said = capsys.readouterr().err
    assert "two_1 (lines 4 to 5)" in said and "two_2 (lines 6 to 7)" in said


def test_import_takes_the_runs_of_stubs(
    tmp_path: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    db = str(tmp_path / "n.db")
    rows = [(MATMUL.name, config, 1e-3) for config in configs_of(MATMUL)]
    log = str(log_of(tmp_path / "runs.jsonl", rows))
    assert run_verb(["index", db, log, "--platform", "nest-cpu"]) == 0
    assert printed(capsys, "nest", "import", db, file, "--json")["adopted_runs"] == 3
    with Database.open(db, readonly=True) as opened:
        assert opened.problems() == []


def test_sizes_of_a_program_are_defined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gemm.c").write_text(PROGRAM)
    words = ("nest", "import", str(tmp_path / "n.db"), str(tmp_path / "gemm.c"), "--json")
    (small,) = printed(capsys, *words)["added"]
    (large,) = printed(capsys, *words, "-D", "N=32")["added"]
    assert (small["sizes"]["TRIP_1"], large["sizes"]["TRIP_1"]) == (8, 32)
    assert small["group"] == large["group"] == "gemm"


def test_show_is_the_same_from_file_and_database(
    tmp_path: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    db = str(tmp_path / "n.db")
    run_verb(["nest", "import", db, file])
    document = printed(capsys, "nest", "show", db, MATMUL.name, "--json")
    assert document == printed(capsys, "nest", "show", file, MATMUL.name, "--json")
    assert document == printed(capsys, "nest", "show", db, MATMUL.id, "--json")
    assert [loop["turns"] for loop in document["loops"]][2] == "a reduction"
    assert nest_from_text(json.dumps(document["nest"])) == MATMUL
    assert nest_from_text(
        json.dumps(printed(capsys, "nest", "show", db, MATMUL.name, "--as", "json"))
    ) == (MATMUL)
    capsys.readouterr()
    assert run_verb(["nest", "show", db, MATMUL.name]) == 0
    text = capsys.readouterr().out
    assert "a0[i1][i2] += a1[i1][i3] * a2[i3][i2]" in text and "a reduction" in text


def test_the_schedule_of_a_program_is_a_configuration(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show = ["nest", "show", file, MATMUL.name, "--as", "c"]
    config = 'order_3=["1","3","2"],tile_1=4'
    assert run_verb([*show, "--config", config]) == 0
    text = capsys.readouterr().out
    written = text.split("Schedule: ")[1].splitlines()[0]
    assert 'order_3=["1","3","2"]' in written and "tile_1=4" in written
    assert run_verb([*show, "--config", written]) == 0
    assert capsys.readouterr().out == text


def test_show_counts_the_iterations_of_a_triangle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "t.c"
    loops = "for (int i = 0; i < 100; i++) for (int j = i; j < {}; j++) A[i] += B[j];"
    for end, turns in ((20, "100 x 2.1 turns; 210 iter"), (52, "100 x 13.78 turns; 1,378 iter")):
        body = f"#pragma scop\n{loops.format(end)}\n#pragma endscop\n"
        file.write_text(f"float A[100], B[100];\nvoid f(void) {{\n{body}}}\n")
        capsys.readouterr()
        assert run_verb(["nest", "show", str(file)]) == 0
        assert turns in capsys.readouterr().out
    assert run_verb(["nest", "show", str(SPMM), "-D", "K=8"]) == 0
    assert "iterations of the body" in (said := capsys.readouterr().out) and "about " in said


def test_a_loop_that_never_runs_is_left_out_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scop = "for (int t = 0; t < T; t++)\n  for (int i = 0; i < N; i++)\n    A[t][i] = 1;\n"
    file = tmp_path / "p.c"
    file.write_text("#define T 0\n" + PROGRAM.replace("scop\n", f"scop\n{scop}", 1))
    assert run_verb(["nest", "import", str(tmp_path / "n.db"), str(file)]) == 0
    said = capsys.readouterr()
    assert "p.c: line 7: loop t never runs: left out" in said.err and "1 nest added" in said.out


def test_show_as_a_schedule(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("nest", "show", file, MATMUL.name, "--json", "--config")
    document = printed(capsys, *words, "tile_1=8,parallel=outer,schedule=static")
    assert "blocks of 8" in document["listing"][0] and document["schedule"]["tile_1"] == 8
    spmv = ("nest", "show", file, NESTS["spmv"].name, "--config")
    code, said = refused(capsys, *spmv, "tile_2=8")
    assert code == 2 and "not legal" in said
    code, said = refused(capsys, *spmv, "tile_9=8")
    assert code == 2 and "tile_9" in said
    code, said = refused(capsys, *spmv, "tile_1=big")
    assert code == 2 and "no schedule of 2 loops" in said


@pytest.mark.parametrize(
    ("words", "code", "word"),
    [
        (("import", "{db}"), 2, "which program?"),
        (("import", "{db}", "nothing.c"), 1, "no such file"),
        (("import", "{db}", "{folder}/p.py"), 1, "--dace"),
        (("import", "{db}", "{file}", "-D", "N"), 2, "not NAME=NUMBER"),
        (("show", "{file}"), 2, "has 6 nests"),
        (("show", "{file}", "nobody"), 3, "no nest 'nobody'"),
        (("show", "{folder}/g.c", "-D", "n=3"), 1, "has no macro or size n (-D sets one of N)"),
        (("measure", "{db}", "{folder}/g.c", "-D", "n=3"), 1, "has no macro or size n"),
        (("show", "{db}"), 2, "which nest of"),
        (("show", "starter"), 2, "which nest of starter"),
        (("show", "postgresql://host/base.c"), 2, "which nest of postgresql:"),
        (("show", "{folder}/gone.c"), 1, "gone.c: no such file"),
        (("show", "{folder}/gone.c", "x", "-D", "N=3"), 1, "gone.c: no such file"),
        (("show", "{folder}/gone"), 1, "gone: no such file"),
        (("show", "{folder}/gone", "x"), 1, "no database there"),
        (("show", "{db}", "nobody"), 1, "no pattern of that name"),
        (("show", "{folder}/p.py", "x"), 1, "must be run to be read"),
    ],
)
def test_refusals_say_why(
    tmp_path: Path,
    file: str,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    code: int,
    word: str,
) -> None:
    (tmp_path / "p.py").write_text("raise SystemExit('was run')")
    (tmp_path / "g.c").write_text(
        "#define N 8\nfloat x[N];\nvoid f(void) {\n#pragma scop\n"
        "for (int i = 0; i < N; i++) x[i] = 0;\n#pragma endscop\n}\n"
    )
    db = str(tmp_path / "n.db")
    Database.create(db).close()
    asked = [w.format(db=db, file=file, folder=tmp_path) for w in words]
    found, said = refused(capsys, "nest", *asked)
    assert (found, word in said) == (code, True), said
    assert "was run" not in said


def write_matrix(folder: Path, name: str) -> None:
    size = 16 + 4 * len(name) * (name != "one")
    mmwrite(folder / f"{name}.mtx", band(size, 3).to_scipy())


def test_a_program_with_a_matrix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        write_matrix(tmp_path, name)
    one, two = (str(tmp_path / f"{name}.mtx") for name in ("one", "two"))
    db, spmm = str(tmp_path / "n.db"), str(SPMM)
    words = ("nest", "import", db, spmm, "-D", "K=8", "--json", "--matrix")
    added = printed(capsys, *words, one, "--matrix", two)["added"]
    assert [nest["name"] for nest in added] == ["spmm-one", "spmm-two"]
    shown = printed(capsys, "nest", "show", spmm, "-D", "K=8", "--matrix", one, "--json")
    assert shown["id"] == added[0]["id"]
    assert shown == printed(capsys, "nest", "show", db, "spmm-one", "--json")
    with Database.open(db, readonly=True) as opened:
        kept = opened.store.nest(shown["id"])
        assert kept is not None and kept.matrices[0].name == "one"
    for verb in (("nest", "measure", db, "spmm", "--size", "small"), ("nest", "measure", db)):
        code, said = refused(capsys, *verb, "--matrix", one)
        assert code == 2 and "embeddb nest measure DB spmm --matrix A.mtx" in said
    code, said = refused(capsys, "nest", "show", db, "spmm-one", "--matrix", one)
    assert code == 2 and "-D and --matrix are for a program" in said
    query = ("query", db, one, "--platform", "cpu", "--op", "spmm:8", "--matrix", one)
    code, said = refused(capsys, *query)
    assert code == 2 and "--matrix is for a program with loop nests" in said
    code, said = refused(capsys, "nest", "import", db, spmm, "--matrix", str(tmp_path / "no.mtx"))
    assert code == 1 and "no.mtx" in said


@pytest.mark.gcc
def test_a_nest_is_measured_on_the_matrix_that_the_database_keeps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_matrix(tmp_path, "one")
    db, one = str(tmp_path / "n.db"), str(tmp_path / "one.mtx")
    words = ("nest", "measure", db, "spmm", "-D", "K=8", "--matrix", one, "--json")
    done = printed(capsys, *words, "--designed", "1", "--searched", "0", "--repeats", "1")
    assert done["measured"] == 1
    words = ("measure", db, "spmm-one", "--platform", "nest-cpu", "--op", "nest", "--json")
    found = printed(capsys, *words, "--configs", "1", "--repeats", "1")
    assert json.dumps(found).count('"ok"') >= 1


def test_verbs_take_a_program_for_what_it_is(
    tmp_path: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A matrix was meant, a nest is named, or several nests are in one file: one line each."""
    place = tmp_path / "n.db"
    one = str(save_nests(tmp_path / "one" / "nest.json", [asked()]))
    make(place)
    db, to = str(place), ("--platform", "nest-cpu", "--op", "nest")
    assert run_verb(["query", db, one, *to]) == 0
    assert asked().id in json.dumps(printed(capsys, "explain", db, one, "--json"))
    drawn = str(tmp_path / "c.svg")
    for words, code, said in (
        (("query", db, one, "--platform", "cpu", "--op", "spmm:32"), 1, "not a matrix (--op nest"),
        (("dynamics", one, "--op", "spmm:32", "--db", db), 1, "not a matrix (--op nest"),
        (("dynamics", "stencil", "--op", "spmm:32", "--db", db), 2, "is a nest, not a matrix"),
        (("plot", "curve", db, one, *to, "-o", drawn), 3, "product"),
        (("plot", "curve", db, file, *to, "-o", drawn), 2, "holds 6 nests"),
        (("platform", "nearest", "nest-cpu", "nest-cpu", "--op", "nest"), 2, "is about matrices"),
    ):
        got, told = refused(capsys, *words)
        assert (got, len(told.splitlines())) == (code, 1) and said in told, words
    assert run_verb(["eval", db, "--op", "nest", "--seeds", "1"]) == 0
    assert "8 nests" in capsys.readouterr().out
