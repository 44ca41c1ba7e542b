"""Names of matrices in run logs and the files they stand for."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from builders import VARIANTS, band, by_law, patterns, tiny
from command_line import run_verb
from scipy.io import mmwrite
from scipy.sparse import save_npz

from embeddb.core.pattern import Pattern
from embeddb.matrix_files import plain_name
from indexer.library import Library


def save(path: Path, pattern: Pattern) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npz":
        save_npz(path, pattern.to_scipy())
    else:
        mmwrite(path.with_suffix(""), pattern.to_scipy(), field="pattern")
    return path


ONE, OTHER = band(60, 3, name="one"), band(60, 5, name="other")


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("bcspwr10", "bcspwr10"),
        ("bcspwr10.mtx", "bcspwr10"),
        ("bcspwr10.mtx.gz", "bcspwr10"),
        ("a/b/bcspwr10.NPZ", "bcspwr10"),
        ("C:\\suite\\bcspwr10.rua", "bcspwr10"),
        ("G.43", "G.43"),
        ("", ""),
    ],
)
def test_a_plain_name(written: str, plain: str) -> None:
    assert plain_name(written) == plain


@pytest.mark.parametrize("file", ["bcspwr10.mtx", "HB/bcspwr10.mtx", "HB/bcspwr10.mtx.gz"])
@pytest.mark.parametrize(
    "name", ["bcspwr10", "bcspwr10.mtx", "bcspwr10.mtx.gz", "a/bcspwr10.npz", "HB\\bcspwr10"]
)
def test_folders_and_endings_do_not_tell_names_apart(tmp_path: Path, file: str, name: str) -> None:
    path = save(tmp_path / file.removesuffix(".gz"), ONE)
    if file.endswith(".gz"):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    found = Library(tmp_path).find(name)
    assert found == ONE and found is not None and found.name == "bcspwr10"


def test_the_name_of_a_file_that_has_a_dot(tmp_path: Path) -> None:
    save(tmp_path / "G.43.mtx", ONE)
    save(tmp_path / "G.mtx", OTHER)
    assert Library(tmp_path).find("G.43") == ONE
    assert Library(tmp_path).find("G.43.mtx") == ONE


def test_of_one_name_in_several_folders_the_folder_decides(tmp_path: Path) -> None:
    save(tmp_path / "a" / "x.mtx", ONE)
    save(tmp_path / "b" / "x.mtx", OTHER)
    library = Library(tmp_path)
    assert library.find("a/x.mtx") == ONE and library.find("/home/me/b/x") == OTHER
    assert library.find("x", nnz=OTHER.nnz) == OTHER
    (problem,) = library.problems
    assert "is not the x of the runs (? x ?," in problem
    library.problems.clear()
    assert library.find("x") is None and library.find("c/x.mtx") is None
    assert "x may be any of" in library.problems[0] and "b/x.mtx" in library.problems[0]


def test_entries_of_the_lower_triangle_are_named_as_such(tmp_path: Path) -> None:
    both = ONE.to_scipy()
    whole = Pattern.from_matrix(both + both.T)
    save(tmp_path / "x.mtx", whole)
    library, half = Library(tmp_path), (whole.nnz + 60) // 2
    assert library.find("x", nnz=half) is library.find("x", nnz=half - 1) is None
    first, second = library.problems
    assert f"(? x ?, {half}: its lower triangle)" in first and "triangle" not in second


def test_several_formats_and_copies_of_one_matrix_are_one(tmp_path: Path) -> None:
    save(tmp_path / "a" / "x.mtx", ONE)
    save(tmp_path / "a" / "x.npz", OTHER)
    save(tmp_path / "b" / "x.mtx", ONE)
    library = Library(tmp_path)
    assert library.find("x") == ONE and library.find("x.npz") == OTHER
    assert not library.problems


def test_two_names_of_a_log_are_not_taken_for_one_file_without_sizes(tmp_path: Path) -> None:
    save(tmp_path / "1.mtx", ONE)
    library = Library(tmp_path)
    assert library.find("a/1.mtx") == library.find("a/1.mtx") == ONE
    assert library.find("b/1.mtx") is None and "was taken for a/1.mtx" in library.problems[0]
    assert library.find("b/1.mtx", nnz=ONE.nnz) == ONE


# -- as the tutorial has it: `embeddb index` with a folder --------------------------------------


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(tiny().text)
    for pattern in patterns():
        save(Path("matrices", pattern.group, f"{pattern.name}.mtx"), pattern)
    return tmp_path


def log(name: str, spell: Any) -> list[str]:
    """The command that indexes a log in which names are spelt in a way."""
    rows = [(spell(p), v, by_law(p, i)) for p in patterns() for i, v in enumerate(VARIANTS)]
    with Path(name).open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([("matrix", "variant", "time_s"), *rows])
    return ["index", f"{name}.db", name, "--platform", "tiny.toml", "--op", "spmm:32"]


def test_a_log_of_file_names_makes_a_database_that_answers(
    board: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = log("runs.csv", lambda p: f"suite/{p.name}.mtx" if p.name != "m0a" else "G43.mtx")
    assert run_verb([*typed, "--matrices", "matrices"]) == 0
    said = capsys.readouterr().out
    assert "19 of 20 names found in matrices; not found: G43.mtx\n" in said
    assert "try: embeddb query" in said
    assert run_verb(["index", "again.db", *typed[2:], "--matrices", "matrices", "--json"]) == 0
    (file,) = json.loads(capsys.readouterr().out)["files"]
    assert (file["patterns"], file["stubs"], file["matrices_found"]) == (19, 1, 19)
    assert (file["matrices"], file["matrices_missing"]) == ("matrices", ["G43.mtx"])


def test_matrices_of_unknown_size_are_no_neighbours_and_found_by_their_plain_name(
    board: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = log("runs.csv", lambda p: f"at/{'z-' * p.name.endswith('b')}{p.name}.mtx")
    assert run_verb([*typed, "--matrices", "matrices"]) == 0
    said = capsys.readouterr().out
    assert "5 of 20 patterns known by name only: --matrices DIR adds the structures" in said
    assert "no neighbours; held-out figures are of the other 15" in said
    asked = ["--platform", "tiny", "--op", "spmm:32"]
    assert run_verb(["query", typed[1], "z-m0b", *asked]) == 1
    assert "did you mean at/z-m0b.mtx" in capsys.readouterr().err


@pytest.mark.usefixtures("board")
def test_that_the_sizes_are_unknown_is_the_reason_wherever_one_is_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    typed = log("runs.csv", lambda p: p.name)
    assert run_verb(typed) == 0
    assert run_verb(["eval", typed[1]]) == 3
    assert run_verb(["report", typed[1]]) == 0
    said = capsys.readouterr()
    assert "nothing to judge: the sizes of its matrices are not known: give" in said.err
    report = said.out.partition("worth measuring")[2]
    assert "the sizes of its matrices are not known: give --matrices DIR" in report
    assert "too few" not in report


@pytest.mark.parametrize("verb", ["index", "ingest"])
@pytest.mark.parametrize("as_json", [[], ["--json"]])
@pytest.mark.parametrize("empty", [True, False])
def test_a_folder_without_any_of_the_matrices_fails(
    board: Path, capsys: pytest.CaptureFixture[str], verb: str, as_json: list[str], empty: bool
) -> None:
    folder = "none" if empty else "matrices"
    Path("none").mkdir()
    typed = log("runs.csv", lambda p: f"z-{p.name}.mtx")
    assert run_verb(["init", "runs.csv.db"]) == 0
    assert run_verb([verb, *typed[1:], "--matrices", folder, *as_json]) == 1
    said = capsys.readouterr()
    assert "80" in said.out
    assert f"{folder}: none of the 20 matrices that the runs name is in this folder" in said.err
    assert "the runs name z-m0a.mtx, z-m0b.mtx, " in said.err
    # The runs are kept, and get their structures when the right folder is given.
    for pattern in patterns():
        save(Path("right", f"z-{pattern.name}.mtx"), pattern)
    assert run_verb(["index", *typed[1:], "--matrices", "right"]) == 0
    assert "80 runs of stubs moved to their matrix" in capsys.readouterr().out


def test_nothing_is_said_of_names_without_a_folder(
    board: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verb(log("runs.csv", lambda p: p.name)) == 0
    assert "names found" not in capsys.readouterr().out
