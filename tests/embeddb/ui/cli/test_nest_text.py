"""What the command line says of loop nests, and the C that it writes."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import measured_nests as law
import pytest
from command_line import run_verb

from embeddb.nests.nest_text import nest_text

ASK = ["--platform", "nest-cpu@somewhere", "--op", "nest"]
PROGRAM = """
#define N 96
float A[N][N], B[N][N], C[N][N], s[N];
void f(void) {
#pragma scop
for (int i = 0; i < N; i++)
  for (int j = 0; j < N; j++)
    for (int k = 0; k < N; k++)
      C[i][j] += A[i][k] * B[k][j];
for (int i = 0; i < N; i++)
  for (int j = 0; j < N; j++)
    s[i] += C[i][j];
#pragma endscop
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return law.make(tmp_path_factory.mktemp("nests") / "nests.db", law.hostile())


@pytest.fixture
def db(folder: Path, tmp_path: Path) -> str:
    return str(shutil.copytree(folder, tmp_path / "nests.db"))


@pytest.fixture
def nest_file(tmp_path: Path) -> str:
    file = tmp_path / "asked.json"
    file.write_bytes(nest_text(law.asked()))
    return str(file)


def test_no_sentence_about_a_nest_is_about_a_matrix(
    db: str, nest_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verb(["query", db, nest_file, *ASK, "--why"]) == 0
    answered = capsys.readouterr().out
    assert run_verb(["explain", db, "last"]) == 0
    explained = capsys.readouterr().out
    for text in (answered, explained):
        assert "matri" not in text and "nonzero" not in text and "('" not in text
    assert "product: 96 x 96 x 96 turns" in answered
    assert "gains are per call: a nest has no format conversion" in explained
    assert "not measured on this nest" in " ".join(explained.split())


def test_the_nest_the_answer_and_the_way_there(
    db: str, nest_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verb(["query", db, nest_file, *ASK]) == 0
    capsys.readouterr()
    assert run_verb(["explain", db, "last", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert run_verb(["explain", db, "last"]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("the nest, and below it its loops as the answer has them")
    assert lines[at + 1 : at + 5] == [
        "  for j from 0 to before 96",
        "    for i from 0 to before 96",
        "      for k from 0 to before 96",
        "        C[i][j] += A[i][k] * B[k][j]",
    ]
    told = [" ".join(x.split()) for x in lines[at + 6 :]]
    nest = made["pattern"]["nest"]
    assert told[: len(nest["answer"])] == nest["answer"]
    own = [t for t in made["transfers"] if t["config"] == made["answer"]]
    assert sum(x.startswith("transferred from") for x in lines) == min(len(own), 2)


@pytest.mark.parametrize("tuner", ["static-best", "transfer", "random", "default"])
def test_every_tuner_answers(
    db: str, nest_file: str, tuner: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verb(["query", db, nest_file, *ASK, "--tuner", tuner, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["tuner"] == tuner and made["candidates"]


def test_the_tuner_of_a_cost_model_says_that_there_is_none(
    db: str, nest_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verb(["query", db, nest_file, *ASK, "--tuner", "rank"]) == 3
    said = capsys.readouterr().err
    assert "the tuner rank has no cost model of" in said and "without --tuner" in said
    assert "train costmodel" not in said, "it is for matrices"


def test_names_of_strangers_do_no_harm(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(db).with_suffix(".html")
    assert run_verb(["query", db, law.HOSTILE, *ASK]) == 0
    assert run_verb(["explain", db, "last", "--html", str(page)]) == 0
    assert "<script" not in page.read_text() and "&lt;script&gt;" in page.read_text()
    capsys.readouterr()


def test_a_page_of_an_answer_speaks_of_nests(
    db: str, nest_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "why.html"
    assert run_verb(["query", db, nest_file, *ASK, "--why"]) == 0
    assert run_verb(["explain", db, "last", "--html", str(page)]) == 0
    text = page.read_text().partition("</style>")[2]
    assert "How new this nest is" in text and "The measured nests it rests on" in text
    assert "matri" not in text.lower() and "nonzeros" not in text
    assert text.count("<figcaption>As it is written.") == 1
    assert text.count("; a thick frame runs in parallel.</figcaption>") == 1
    capsys.readouterr()


def test_a_database_of_nests_in_a_report(
    db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "all.html"
    assert run_verb(["report", db, "--html", str(page)]) == 0
    html = page.read_text().partition("</style>")[2]
    assert "runs of 9 nests on" in html and "Nests measured, by operation" in html
    assert "<script" not in html
    assert run_verb(["report", db]) == 0
    for text in (html, capsys.readouterr().out):
        assert "matri" not in text.lower() and "('" not in text
    assert run_verb(["report", db, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kinds"] == {"nest": 9}


@pytest.mark.parametrize(
    "words",
    [
        ["map", "{db}", *ASK],
        ["curve", "{db}", "transpose", *ASK],
        ["winners", "{db}", "--op", "nest"],
    ],
)
def test_plots(
    db: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "transpose" in words:  # of two nests of one name the id is needed
        assert run_verb(["plot", *(w.format(db=db) for w in words), "-o", "x.svg"]) == 2
        hint = capsys.readouterr().err
        assert "128 x 128 turns" in hint
        words = [hint.partition("give an id: ")[2][:32] if w == "transpose" else w for w in words]
    out = tmp_path / "drawn.svg"
    assert run_verb(["plot", *(w.format(db=db) for w in words), "-o", str(out)]) == 0
    assert "<svg " in out.read_text()
    assert "nest on nest-cpu" in capsys.readouterr().out


def test_a_nest_has_no_nonzeros_to_draw(
    db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verb(["plot", "spy", db, law.HOSTILE, "-o", str(tmp_path / "x.svg")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "is a nest: it has no non-zeros to draw" in line


# -- written as C ----------------------------------------------------------------------------------


def emitted(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = run_verb(["query", *words])
    return code, capsys.readouterr().err


@pytest.mark.gcc
def test_the_answer_as_c_compiles_alone(
    db: str, nest_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "schedule.c"
    code, said = emitted([db, nest_file, *ASK, "--emit", str(out)], capsys)
    assert code == 0 and f"{out}: product as " in said
    strict = ["-O1", "-Wall", "-Werror", "-Wno-unused-function", "-fopenmp"]
    built = subprocess.run(
        ["gcc", *strict, "-o", tmp_path / "run", out, "-lm"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    subprocess.run([tmp_path / "run"], check=True, timeout=60, capture_output=True)


def test_a_c_program_is_written_whole(
    db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pycparser", reason="needs the extra programs")
    program, out = tmp_path / "two.c", tmp_path / "out.c"
    program.write_text(PROGRAM)
    code, said = emitted([db, str(program), *ASK, "--emit", str(out)], capsys)
    assert code == 0 and [path.name for path in tmp_path.glob("out*")] == ["out.c"]
    assert said.count(f"{out}: two_") == 2 and "nest_two_1(" in out.read_text()
    code, said = emitted([db, str(program), *ASK, "-D", "n=3", "--emit", str(out)], capsys)
    assert code == 1 and "has no macro or size n" in said
    code, said = emitted([db, str(program), *ASK, "--emit", str(program)], capsys)
    assert code == 2 and program.read_text() == PROGRAM


def test_a_name_of_a_stranger_is_no_path(
    db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "one.c"
    assert emitted([db, law.HOSTILE, *ASK, "--emit", str(out)], capsys)[0] == 0
    assert out.exists() and sorted(p.name for p in tmp_path.iterdir()) == ["nests.db", "one.c"]
    assert law.HOSTILE not in out.read_text().replace("\n", " ").partition("#include")[2]


def test_a_matrix_is_not_written_as_c(
    db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    matrix = tmp_path / "a.mtx"
    matrix.write_text("%%MatrixMarket matrix coordinate pattern general\n2 2 2\n1 1\n2 2\n")
    words = [db, str(matrix), "--platform", "cpu", "--op", "spmv", "--emit", str(tmp_path / "a.c")]
    code, said = emitted(words, capsys)
    assert code == 2 and "--emit writes the C of a nest, not of a matrix" in said


# -- what is about matrices only -------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["train", "costmodel", "{db}"],
        ["calibrate", "{db}"],
        ["campaign", "plan", "{db}", "{out}/camp", "--matrices", "{out}"],
    ],
)
def test_verbs_about_matrices_say_so(
    db: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.mtx").write_text(
        "%%MatrixMarket matrix coordinate pattern general\n2 2 2\n1 1\n2 2\n"
    )
    given = [word.format(db=db, out=tmp_path) for word in words]
    assert run_verb([*given, "--platform", "nest-cpu", "--op", "nest"]) == 2
    said = capsys.readouterr().err
    assert "about matrices, and nest runs on a nest" in said and "embeddb measure" in said


def test_answers_are_judged_with_groups_of_nests_held_out(
    db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verb(["eval", db, "--op", "nest", "--seeds", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    reached = {row["method"]: row["of_optimum@1"] for row in rows}
    assert {row["op"] for row in rows} == {"nest"} and reached["oracle"] == 1.0
    assert 0.0 < reached["embeddb"] <= 1.0
