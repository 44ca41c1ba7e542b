"""Odd logs: messages that name the line or the reader, and cells that no machine measures."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from pathlib import Path

import pytest
from builders import OP, tiny
from click.testing import CliRunner, Result

from embeddb.core.config import Op
from embeddb.core.errors import ReaderError, UsageError
from embeddb.platforms.log_table import LogTable
from embeddb.store import Store, memory_store
from embeddb.ui.cli.main import cli
from indexer.ingest import IngestReport, ingest, reader_of
from indexer.readers.base.columns import Plan
from indexer.readers.base.row import ReadOptions, RunRow
from indexer.readers.mapped import CsvReader

HEAD = "matrix,variant,time_us\n"
ROWS = "".join(f"m{at},{v},{at + 1}.5\n" for at in range(4) for v in "abcd")
GREEDY = """
class Greedy:
    name, platform, generic = "greedy", "", False
    def sniff(self, path, head): return True
    def rows(self, path, *, options): return iter(())
PLUGIN = Greedy
"""


def log(folder: Path, text: str, name: str = "a.csv") -> Path:
    (folder / name).write_text(text)
    return folder / name


def index(path: Path, *words: str, op: str = str(OP)) -> Result:
    (path.parent / "tiny.toml").write_text(tiny().text)
    line = ["index", str(path.parent / "d.db"), str(path), "--yes", "--op", op, *words]
    return CliRunner().invoke(cli, [*line, "--platform", str(path.parent / "tiny.toml")])


def read(path: Path, op: Op = OP, store: Store | None = None) -> IngestReport:
    return ingest(store or memory_store(), path, platform=tiny(), options=ReadOptions(op=op))


def refused(path: Path, *words: str) -> str:
    done = index(path, *words)
    assert isinstance(done.exception, ReaderError | UsageError), done.output
    return f"{done.exception} ({done.exception.hint})"


# -- the line --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ('"1,234"', "a.csv:18: a comma in '1,234' may be"),
        ("0", "0 (1 row), line 18, may be a failure or too short a time"),
    ],
)
def test_one_odd_cell_is_named_by_its_line(tmp_path: Path, cell: str, message: str) -> None:
    assert message in refused(log(tmp_path, f"{HEAD}{ROWS}m5,a,{cell}\n"))


def test_an_odd_cell_of_json_lines_is_named_by_its_line(tmp_path: Path) -> None:
    rows = [{"matrix": "m", "variant": "a", "time_us": t} for t in ("1.5", "2.5", "1,234")]
    path = log(tmp_path, "\n".join(map(json.dumps, rows)), "a.jsonl")
    with pytest.raises(ReaderError, match=r"a\.jsonl:3: a comma in '1,234' may be"):
        read(path)


def test_an_unknown_status_is_named_by_its_line(tmp_path: Path) -> None:
    rows = "".join(f"m{at},a,{at}.5,{'zzz' if at > 2 else 'ok'}\n" for at in range(1, 6))
    message = refused(log(tmp_path, f"matrix,variant,time_us,status\n{rows}"))
    assert "status 'zzz' of 3 rows, line 4, is unknown" in message


def test_a_header_that_is_no_text_is_named_by_its_line(tmp_path: Path) -> None:
    path = log(tmp_path, "# first\n\0a,b\nc,d\n")
    with pytest.raises(ReaderError, match=r"a\.csv:2: not a csv file: a NUL"):
        read(path)


# -- times -----------------------------------------------------------------------------------------


def test_times_that_no_machine_measures_are_rejected(tmp_path: Path) -> None:
    report = read(log(tmp_path, f"{HEAD}m,a,1e-30\nm,b,1e20\nm,c,0.002\nm,d,0.0005\n"))
    assert (report.added, report.rejected) == (1, 3)
    lines = [json.loads(line) for line in Path(report.rejects_file).read_text().splitlines()]
    assert [line["line"] for line in lines] == [2, 3, 5]
    assert lines[0]["reason"] == "no run takes 1e-36 s: check the unit of the time"


def test_parts_of_a_cycle_of_a_simulator_are_kept(tmp_path: Path) -> None:
    path = log(tmp_path, f"{HEAD}m,a,0.0005\n")
    options = ReadOptions(op=OP)
    report = ingest(memory_store(), path, platform=tiny(simulated=True), options=options)
    assert report.added == 1


# -- columns ---------------------------------------------------------------------------------------


def test_a_log_of_a_header_alone_has_no_rows(tmp_path: Path) -> None:
    message = refused(log(tmp_path, HEAD))
    assert "it holds no rows" in message and "--map" not in message
    assert not (tmp_path / "d.db").exists()


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ("m,a\0,1\n", "a NUL or carriage return inside the line"),
        ('"m,a,1\n' * 3, "a quoted cell runs over the line's end"),
        ("m" * (1 << 20) + ",a,1\n", "the line is longer than 1 MiB"),
        ("m,a,1,2,3\n", "5 cells where the header has 3"),
    ],
)
def test_a_log_without_a_usable_row_names_the_first(tmp_path: Path, rows: str, reason: str) -> None:
    message = refused(log(tmp_path, HEAD + rows))
    assert f"a.csv:2: {reason}" in message and "no rows" not in message


def test_a_log_whose_columns_are_all_taken_lacks_the_matrix(tmp_path: Path) -> None:
    message = refused(log(tmp_path, "variant,time_us\na,1.5\nb,2.5\nc,3.5\n"))
    assert "no column names the matrix: add one, or give --matrix" in message


def test_the_only_time_of_a_log_in_rising_order_is_named(tmp_path: Path) -> None:
    """Matrices were measured from the smallest to the largest, each in one configuration."""
    rows = "".join(f"m{at},a,{at + 1}.5\n" for at in range(24))
    path = log(tmp_path, f"matrix,variant,elapsed_us\n{rows}")
    assert "no column is the time: --map time=elapsed_us if that is the time" in refused(path)
    assert index(path, "--map", "time=elapsed_us").exit_code == 0


def test_a_second_column_that_may_be_the_time_is_refused(tmp_path: Path) -> None:
    rows = ROWS.replace(".5\n", ".5,7.25\n")
    path = log(tmp_path, f"matrix,variant,time_us,kernel_us\n{rows}")
    assert "columns 'time_us' and 'kernel_us' may be the time" in refused(path)
    assert index(path, "--map", "time_us=time_us").exit_code == 0


@pytest.mark.parametrize(
    ("head", "cells", "op"),
    [
        ("op,width", "spmm,64", "spmm:64"),
        ("op,dtype", "spmm,f64", "spmm:32:f64"),
        ("op,width", "spmm:16,16.0", "spmm:16"),
        ("op,dtype", "spmm:16,double", "spmm:16:f64"),
        ("op", "spmm", "spmm:32"),
        ("kernel", "spmm", "spmm:32"),
    ],
)
def test_an_operation_without_its_width_takes_it_from_beside(
    tmp_path: Path, head: str, cells: str, op: str
) -> None:
    report = read(log(tmp_path, f"matrix,variant,time_us,{head}\nm,a,1.5,{cells}\n"))
    assert (report.added, report.ops) == (1, {op})


def test_width_and_dtype_complete_the_operation_of_the_caller(tmp_path: Path) -> None:
    rows = "".join(f"m,a,1.5,{w},{d}\n" for w in ("", "32", "64") for d in ("float32", "f64", "-"))
    path = log(tmp_path, f"matrix,variant,time_us,width,dtype\n{rows}")
    report = read(path, Op.parse("spmm:32"))
    assert (report.added, report.ops) == (6, {"spmm:32", "spmm:32:f64"})
    assert set(report.reasons) == {
        "width 64, where the operation is spmm:32: `--op spmm` takes what the columns have"
    }
    report = read(path, Op.parse("spmm:64:f64"))
    assert (report.added, report.ops) == (4, {"spmm:64:f64"})
    assert "dtype f32, where the operation is spmm:64:f64" in report.first_reject


@pytest.mark.parametrize("cells", ["spmm:16,64,f32", "spmm:16:f64,16,f32"])
def test_columns_that_contradict_the_operation_reject_the_row(tmp_path: Path, cells: str) -> None:
    report = read(log(tmp_path, f"matrix,variant,time_us,op,width,dtype\nm,a,1.5,{cells}\n"))
    assert report.added == 0 and "where the operation is spmm:16" in report.first_reject


def test_a_bare_operation_takes_the_width_of_each_row(tmp_path: Path) -> None:
    rows = ROWS.replace(".5\n", ".5,16\n") + ROWS.replace(".5\n", ".25,64\n")
    done = index(log(tmp_path, f"matrix,variant,time_us,width\n{rows}"), "--json", op="spmm")
    assert json.loads(done.stdout)["files"][0]["ops"] == ["spmm:16", "spmm:64"]
    read_so = ReadOptions(op_name="spmm", log=LogTable(op=Op.parse("sddmm:8")))
    assert read_so.ran is None  # the caller's name counts, and not the platform file's operation
    plain = index(log(tmp_path, HEAD + ROWS, "b.csv"), op="spmm")
    assert "no column has the number of dense columns" in str(plain.exception)
    other = index(log(tmp_path, HEAD + ROWS), "--format", "cognate", op="spmm")
    assert "a log of cognate has no column with the dense columns" in str(other.exception)


def test_a_width_is_no_number_of_dense_columns_where_there_are_none() -> None:
    record = {"matrix": "m", "time_us": "1", "width": "32"}
    options = ReadOptions(op=Op("spmv", 1))
    plan = Plan.of(record, options, [record])
    assert str(plan.row(record, 1).op) == "spmv" and "width" not in plan.roles


def test_an_operation_without_a_width_anywhere_is_rejected(tmp_path: Path) -> None:
    path = log(tmp_path, "matrix,variant,time_us,op\nm,a,1.5,spmm\n")
    report = read(path, Op.parse("spmv"))
    lacking = "lacks the number of dense columns: --map width=COLUMN, or --op spmm:WIDTH"
    assert lacking in report.first_reject


@pytest.mark.parametrize("name", ["gflops", "GFLOP/s"])
def test_a_rate_is_no_time_and_is_named_where_it_is_mapped(tmp_path: Path, name: str) -> None:
    rows = "".join(f"m{at},{v},{at},{at + 1}.5\n" for at in range(4) for v in "abcd")
    path = log(tmp_path, f"matrix,variant,rep,{name}\n{rows}")
    said = refused(path)
    assert f"add a column with the times that {name} is computed from" in said
    assert "time=rep" not in said
    mapped = index(path, "--map", f"time_us={name}")
    assert f"{name!r} is a rate by its name, and is read as a time" in mapped.output


def test_sizes_per_thing_are_no_rates_and_a_table_of_times_needs_rows(tmp_path: Path) -> None:
    rows = "".join(f"m{at},{at + 9},4,{at + 1}.5,{at + 2}.5\n" for at in range(4))
    said = refused(log(tmp_path, f"matrix,rows_per_block,cols_per_block,a,b\n{rows}"))
    assert "rate" not in said and "--map time=a --unit s?" in said
    assert "If each is of one configuration, give each a row" in said


def test_m_and_n_are_the_sizes_where_k_has_the_dense_columns(tmp_path: Path) -> None:
    rows = "".join(f"m{at},{at + 9},{at + 8},{k},a,1.5\n" for at in range(4) for k in (8, 16))
    path = log(tmp_path, f"matrix,M,N,K,variant,time_us\n{rows}")
    done = index(path, "--map", "width=K", op="spmm")
    assert done.exit_code == 0 and "not used" not in done.output


def test_a_default_that_failed_everywhere_is_not_one_that_never_ran(tmp_path: Path) -> None:
    """As where an algorithm does not support a width."""
    cells = {v: ("", "crash") if v == "a" else ("2.5", "ok") for v in "abcd"}
    rows = "".join(
        f"m{at},{60 + at},60,{300 + at},{v},{time},{status}\n"
        for at in range(8)
        for v, (time, status) in cells.items()
    )
    path = log(tmp_path, f"matrix,m,n,nnz,variant,time_us,status\n{rows}")
    assert index(path, "--map", "status=status").exit_code == 0
    new = tmp_path / "new.mtx"
    new.write_text("%%MatrixMarket matrix coordinate pattern general\n60 60 2\n1 1\n2 3\n")
    words = [str(tmp_path / "d.db"), str(new), "--platform", "tiny", "--op", str(OP)]
    said = CliRunner().invoke(cli, ["query", *words]).output
    assert "the default has no ok run here and fails with a chance of" in said
    report = CliRunner().invoke(cli, ["report", words[0]]).output
    assert "the default has no ok run there" in report and "never ran" not in report


# -- forms -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lzma.compress((HEAD + ROWS).encode()), "xz-compressed: decompress it first"),
        (bz2.compress((HEAD + ROWS).encode()), "bzip2-compressed: decompress it first"),
        (b"\x28\xb5\x2f\xfd,\n,,", "zstd-compressed: decompress it first"),
        (b"PAR1,\n,,", "a Parquet file: write it as CSV"),
    ],
)
def test_other_compressions_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    for reader in ("", "csv", "jsonl"):
        with pytest.raises(ReaderError, match=f"a\\.csv: {message}"):
            read_as = reader or reader_of(tmp_path / "a.csv")
            options = ReadOptions(op=OP)
            ingest(
                memory_store(),
                tmp_path / "a.csv",
                reader=read_as,
                platform=tiny(),
                options=options,
            )


def test_a_spreadsheet_is_to_be_written_as_csv(tmp_path: Path) -> None:
    (tmp_path / "a.xlsx").write_bytes(b"PK\x03\x04\x14")
    with pytest.raises(
        ReaderError, match="a zip archive: decompress it first, a spreadsheet: write"
    ):
        reader_of(tmp_path / "a.xlsx")


def test_a_small_packed_log_is_not_unpacked_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexer.readers.base.lines.STREAMED", (1 << 20, 200))
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(f"{HEAD}{ROWS}".encode() + b"\n" * (2 << 20)))
    message = refused(tmp_path / "a.csv.gz")
    assert "bytes unpack to more than 1 MiB" in message and "decompress it first" in message
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(f"{HEAD}{ROWS}".encode() + b"\n" * 1000))
    assert read(tmp_path / "b.csv.gz").added == 16


def test_a_reader_that_takes_every_log_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plug" / "readers").mkdir(parents=True)
    (tmp_path / "plug" / "readers" / "greedy.py").write_text(GREEDY)
    monkeypatch.setenv("EMBEDDB_PLUGINS", str(tmp_path / "plug"))
    path = log(tmp_path, HEAD + ROWS)
    message = refused(path)
    assert "it holds no rows, read as greedy" in message
    assert "`--format csv` reads it as such a log" in message
    assert index(path, "--format", "csv").exit_code == 0
    done = read(log(tmp_path, '{"format":"embeddb","version":1}\n', "e.jsonl"))
    assert done.also and done.reader != done.also[0]


def test_lists_and_words_that_are_columns_in_cells(tmp_path: Path) -> None:
    """As tuners and compilers' logs have them: lists of Python or of numbers, names of options."""
    path = tmp_path / "a.csv"
    path.write_text(
        "matrix,tiles,x,-O2,-g,time_ms\n"
        "a,\"[8, 16]\",\"['b', 'c']\",-O2,-g,1.5\nb,\"[8, 8]\",\"['b', 'b']\",X,-g,2.5\n"
    )
    columns = {"config.tiles": "tiles", "config.x": "x", "config.o": "-O2", "config.g": "-g"}
    options = ReadOptions(op=Op.parse("spmm:8"), columns=columns)
    rows = [row for row in CsvReader().rows(path, options=options) if isinstance(row, RunRow)]
    assert [dict(row.config) for row in rows] == [
        {"tiles": "[8, 16]", "x": "['b', 'c']", "o": "-O2", "g": "-g"},
        {"tiles": "[8, 8]", "x": "['b', 'b']", "o": "X", "g": "-g"},
    ]
