"""Programs whose index arrays hold a matrix file: sizes, contents and names come from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from embeddb.core.errors import NestError
from embeddb.core.pattern import Pattern
from embeddb.nests.nest import fills_of
from embeddb.nests.nest_text import nest_text
from indexer.frontends import read_nests
from indexer.programs import nests_of

MATRIX = Pattern.from_csr((4, 5), [0, 3, 3, 4, 4], [0, 2, 4, 1], name="uneven", group="small")
SQUARE = Pattern.from_csr((3, 3), [0, 1, 2, 3], [2, 1, 0], name="square")
PROGRAM = """
#define ROWS 100
#define COLUMNS 100
#define K 8
int row[ROWS + 1], col[ENTRIES];
float a[ENTRIES], B[COLUMNS][K], C[ROWS][K];
#pragma embeddb matrix ROWS COLUMNS ENTRIES row col
#pragma embeddb fill row offsets:ENTRIES:2
void f(void) {
#pragma scop
  for (int i = 0; i < ROWS; i++)
    for (int k = row[i]; k < row[i + 1]; k++)
      for (int j = 0; j < K; j++)
        C[i][j] += a[k] * B[col[k]][j];
#pragma endscop
}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.c"
    path.write_text(text)
    return path


def test_sizes_and_contents_are_those_of_the_matrix(tmp_path: Path) -> None:
    (nest,) = read_nests(written(tmp_path, PROGRAM), matrix=MATRIX)
    assert (nest.name, nest.group) == ("mine-uneven", "mine-small")
    fills = {nest.array_name(at): array.fill for at, array in enumerate(nest.arrays)}
    assert (fills["row"], fills["col"]) == fills_of(MATRIX)
    shapes = {nest.array_name(at): array.shape for at, array in enumerate(nest.arrays)}
    assert shapes == {"C": (4, 8), "a": (4,), "col": (4,), "B": (5, 8), "row": (5,)}
    assert nest.matrices == (MATRIX,)


def test_without_a_matrix_the_line_says_nothing(tmp_path: Path) -> None:
    (nest,) = read_nests(written(tmp_path, PROGRAM), defines={"ENTRIES": 500})
    assert nest.name == "mine" and not nest.matrix_ids
    assert "offsets:500:2" in {array.fill for array in nest.arrays}


@pytest.mark.parametrize("program", ["spmm", "spmv", "sddmm", "page_rank"])
def test_our_own_programs_take_one(program: str) -> None:
    (nest,) = nests_of(program, {}, matrix=SQUARE)
    assert nest.matrices == (SQUARE,) and nest.name == f"{program}-square"
    nest.require_matrices()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("#pragma embeddb matrix ROWS COLUMNS ENTRIES row col", "", "has no place for a matrix"),
        ("#pragma scop", "#pragma embeddb matrix A B C row col\n#pragma scop", "has 2 places"),
        ("ENTRIES row col", "ENTRIES row where", "there is no array where for the matrix"),
        ("ENTRIES row col", "ENTRIES row", "has no place for a matrix"),
        ("row[ROWS + 1]", "row[ROWS + 2]", "row: has 6 elements, its matrix 5"),
        ("int row[ROWS + 1]", "float row[ROWS + 1]", "needs whole numbers, not f32"),
        ("B[COLUMNS]", "B[COLUMNS - 1]", "B: index 1 runs from 0 to 4, outside 0 to 3"),
        ("a[k] * ", "a[k + 1] * ", "a: index 1 runs from 1 to 4, outside 0 to 3"),
    ],
)
def test_a_program_that_does_not_fit_is_refused(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    path = written(tmp_path, PROGRAM.replace(old, new, 1))
    with pytest.raises(NestError) as why:
        read_nests(path, matrix=MATRIX)
    assert said in str(why.value) and "\n" not in str(why.value)


def test_a_pragma_that_is_none_is_refused_without_a_matrix_too(tmp_path: Path) -> None:
    path = written(tmp_path, PROGRAM.replace("row col\n", "row\n", 1))
    with pytest.raises(NestError, match=":7: a pragma of embeddb is: fill ARRAY FILL, or matrix"):
        read_nests(path, defines={"ENTRIES": 500})


def test_a_size_given_otherwise_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, PROGRAM)
    with pytest.raises(NestError, match="ROWS is 4 of the matrix, but defined as 7"):
        read_nests(path, matrix=MATRIX, defines={"ROWS": 7})
    assert read_nests(path, matrix=MATRIX, defines={"ROWS": 4, "K": 3})[0].trips[2] == 3
    with pytest.raises(NestError, match="N is 5 of the matrix, but defined as 4"):
        nests_of("page_rank", {}, matrix=MATRIX)  # pages link to pages: as many columns as rows


def test_a_matrix_without_entries_is_refused(tmp_path: Path) -> None:
    empty = Pattern.from_csr((2, 2), [0, 0, 0], [], name="empty")
    with pytest.raises(NestError, match="matrix empty has no entries"):
        read_nests(written(tmp_path, PROGRAM), matrix=empty)


def test_a_nest_file_names_its_matrix(tmp_path: Path) -> None:
    (nest,) = read_nests(written(tmp_path, PROGRAM), matrix=MATRIX)
    file = tmp_path / "nest.json"
    file.write_bytes(nest_text(nest))
    (alone,) = read_nests(file)
    assert alone == nest and not alone.matrices
    (again,) = read_nests(file, matrix=MATRIX)
    assert again.matrices == (MATRIX,) and again.name == nest.name
    with pytest.raises(NestError, match=f"no nest with an array for matrix {SQUARE.id}"):
        read_nests(file, matrix=SQUARE)
    told = json.loads(file.read_text().replace("below:5:", "below:4:"))
    file.write_text(json.dumps(told))
    with pytest.raises(NestError, match=r"col: fill below:4:.* must be one of"):
        read_nests(file, matrix=MATRIX)


def test_other_files_hold_none(tmp_path: Path) -> None:
    with pytest.raises(NestError, match=r"only \.c and \.json files can have arrays with a matrix"):
        read_nests(tmp_path / "program.sdfg", matrix=MATRIX)
