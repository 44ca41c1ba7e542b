"""COGNATE's rows in the form of the common loop nest (its appendix E), good and bad."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddb.core import plugins
from embeddb.core.config import Op
from embeddb.core.errors import ReaderError
from embeddb.core.sizes import Sizes
from embeddb.platforms.platform import load_platform
from indexer.readers.base.lines import guess
from indexer.readers.base.row import ReadOptions, Reject, RunRow
from indexer.readers.cognate import CognateMappedReader

_COLUMNS = CognateMappedReader.columns
GOLDEN = Path(__file__).parents[2] / "golden" / "readers" / "cognate_mapped.csv"
SPMM = Op("spmm", 128)


def rows_of(path: Path) -> list[RunRow | Reject]:
    reader = plugins.load("reader", "cognate-mapped")()
    return list(reader.rows(path, options=ReadOptions(op=SPMM, unit="ms")))


def test_the_papers_example_is_the_configuration_that_it_was_mapped_from() -> None:
    assert guess(GOLDEN)[0] == "cognate-mapped"
    first, second, third, fourth = rows_of(GOLDEN)
    assert isinstance(first, RunRow)
    assert isinstance(second, RunRow)
    assert (first.matrix.name, first.op) == ("144", SPMM)
    assert first.measurement.times_s == (pytest.approx(0.03883592),)
    own = {"row_panels": 4, "column_panels": 1024, "split": 32}
    assert first.config == own | {"barrier": 0, "bypass": 0, "reorder": 0}
    assert second.config["barrier"] == 1
    for row in (third, fourth):
        assert isinstance(row, RunRow)
        assert row.config["column_panels"] == "NUM_MATRIX_COLS"


def test_what_is_read_is_legal_and_maps_back_to_its_loops() -> None:
    spade = load_platform("spade")
    cells = [line.split(",") for line in GOLDEN.read_text().splitlines()[1:]]
    for row, line in zip(rows_of(GOLDEN), cells, strict=True):
        assert isinstance(row, RunRow)
        config = spade.space(SPMM).canonical(row.config)
        nest = spade.loopnest(SPMM, config, Sizes(7700, 7700))
        assert nest is not None
        assert nest.order == tuple(map(int, line[4:11]))


@pytest.mark.parametrize(
    ("column", "cell", "reason"),
    [
        ("i_split", "5", "i_split 5: legal are 4, 32, 256, 2048"),
        ("i_split", "x", "'x'"),
        ("k_split", "1", "k_split 1: legal are 32, 256"),
        ("loop_3", "4", "loops 6,7,4,4,1,3,5: with barrier 0 they are 6,7,2,4,1,3,5"),
        ("loop_1", "", "''"),
        ("barrier", "1", "with barrier 1 they are 6,7,4,2,1,3,5"),
        ("bypass", "2", "bypass 2: legal are 0, 1"),
        ("j_split", "-3", "j_split -3 is no panel"),
        ("name", "", "no matrix name"),
        ("time", "nan", "nan"),
        ("time", "-1", "-1"),
    ],
)
def test_a_bad_cell_costs_its_row_and_is_named(
    tmp_path: Path, column: str, cell: str, reason: str
) -> None:
    good = ["144", "4", "1024", "32", "6", "7", "2", "4", "1", "3", "5", "0", "0", "0", "38.8"]
    bad = list(good)
    bad[_COLUMNS.index(column)] = cell
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(",".join(line) for line in (_COLUMNS, good, bad, good)))
    first, second, third = rows_of(path)
    assert isinstance(first, RunRow)
    assert isinstance(second, Reject)
    assert isinstance(third, RunRow)
    assert second.line == 3
    assert reason in second.reason


def test_a_matrix_has_one_number_of_columns(tmp_path: Path) -> None:
    lines = [f"144,4,{j},32,6,7,2,4,1,3,5,0,0,0,5" for j in (7700, 7701, 7700)]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([",".join(_COLUMNS), *lines]))
    assert [isinstance(row, Reject) for row in rows_of(path)] == [False, True, False]


def test_the_other_form_of_the_rows_is_told_apart() -> None:
    other = GOLDEN.with_name("cognate.csv")
    with pytest.raises(ReaderError, match="no column 'i_split'") as caught:
        rows_of(other)
    assert "--format cognate" in caught.value.hint
