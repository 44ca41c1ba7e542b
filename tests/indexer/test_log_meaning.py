"""Logs as other people write them: what they mean is read, and what may mean two things is not."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from command_line import run_verb

from embeddb.core.config import Op
from embeddb.core.errors import EmbeddbError, ReaderError, UsageError
from embeddb.platforms.platform import parse_platform
from embeddb.store import Store, memory_store
from embeddb.ui.cli.logs import accepted
from indexer.ingest import IngestReport, ingest
from indexer.readers.base.row import ReadOptions

BOARD = parse_platform("""
name = "tinyboard"
version = "1"
title = "A board with two knobs"
simulated = false
[traits]
clock_ghz = 1.0
[[space]]
kernels = ["spmm"]
[space.params]
tile = { type = "int", values = [16, 32, 64, 128] }
order = { type = "choice", values = ["row", "col"] }
[space.default]
tile = 16
order = "row"
""")
OP = Op.parse("spmm:32")
#: (matrix, tile, order): microseconds.
TRUTH = {
    (f"net{net}", tile, order): (net + 1) * base * (1.25 if order == "col" else 1.0)
    for net in range(2)
    for tile, base in ((16, 40.5), (32, 31.0), (64, 22.2), (128, 27.9))
    for order in ("row", "col")
}
Runs = dict[tuple[str, int, str], list[tuple[str, tuple[float, ...]]]]


def read(path: Path, store: Store | None = None, *, yes: bool = True, **given: str) -> IngestReport:
    options = ReadOptions(op=OP, columns=given)
    options = accepted([path], BOARD, options, yes=yes)
    return ingest(memory_store() if store is None else store, path, platform=BOARD, options=options)


def runs_in(store: Store) -> Runs:
    names = {info.id: info.name for info in store.patterns()}
    runs: Runs = {}
    for run in store.runs("tinyboard", OP):
        key = (names[run.pattern_id], run.config["tile"], run.config["order"])
        times = tuple(round(t * 1e6, 6) for t in run.measurement.times_s)
        runs.setdefault(key, []).append((run.measurement.status, times))  # type: ignore[arg-type]
    return {key: sorted(found) for key, found in runs.items()}


def runs_of(path: Path, **given: str) -> Runs:
    store = memory_store()
    read(path, store, **given)
    return runs_in(store)


def lines(header: str, rows: Iterable[str]) -> str:
    return "\n".join((header, *rows, ""))


def plain(sep: str = ",", scale: float = 1.0, form: str = "{:.4f}") -> list[str]:
    return [sep.join((*map(str, key), form.format(us * scale))) for key, us in TRUTH.items()]


def wanted() -> Runs:
    return {key: [("ok", (round(us, 6),))] for key, us in TRUTH.items()}


# -- failures --------------------------------------------------------------------------------------

SENTINELS = ("inf", "nan", "-1", "0", "None", "-", "N/A", "", "1e30", "timeout", "-inf", "NULL")


@pytest.mark.parametrize("word", SENTINELS)
@pytest.mark.parametrize("status", ["timeout", "TLE", "Timed Out", "time limit exceeded"])
def test_a_failed_run_has_no_time_and_stays(tmp_path: Path, word: str, status: str) -> None:
    rows = [f"a,64,row,{word},{status}", "a,32,row,31,ok", "b,64,row,40,OK"]
    (tmp_path / "a.csv").write_text(lines("matrix,tile,order,time_us,status", rows))
    runs = runs_of(tmp_path / "a.csv")
    ((became, times),) = runs["a", 64, "row"]
    assert became == "timeout" and (not times or word == "1e30")
    assert runs["b", 64, "row"] == [("ok", (40.0,))]


@pytest.mark.parametrize(
    "cell", ['"time_us": NaN, ', '"time_us": -Infinity, ', "", '"time_us": null, ']
)
def test_a_failed_record_needs_no_time(tmp_path: Path, cell: str) -> None:
    head = '{"matrix": "a", "order": "row", '
    records = [head + '"tile": 64, ' + cell + '"status": "oom"}']
    records += [head + '"tile": 32, "time_us": 3, "status": "ok", "gflops": NaN}']
    (tmp_path / "a.jsonl").write_text("\n".join((*records, "")))
    assert runs_of(tmp_path / "a.jsonl") == {
        ("a", 64, "row"): [("oom", ())],
        ("a", 32, "row"): [("ok", (3.0,))],
    }


@pytest.mark.parametrize(
    ("column", "good", "bad", "means"),
    [
        ("exit code", "0", "124", "timeout"),
        ("returncode", "0", "139", "crash"),
        ("rc", "0", "137", "oom"),
        ("success", "True", "False", "crash"),
        ("is_valid", "1", "0", "crash"),
        ("failed", "False", "True", "crash"),
        ("error_occurred", "0", "1", "crash"),
        ("timed_out", "false", "true", "timeout"),
        ("verdict", "passed", "killed", "timeout"),
        ("state", "COMPLETED", "OUT_OF_MEMORY", "oom"),
        ("Status", "all ok", "not ok", "crash"),
        ("result", "ok", "broken", "crash"),
        ("status", "0", "1", "crash"),
        ("status", "1", "0", "crash"),
        ("status", "success", "unsuccessful", "crash"),
        ("outcome", "valid", "compile error", "build"),
    ],
)
def test_words_for_a_status(tmp_path: Path, column: str, good: str, bad: str, means: str) -> None:
    rows = [f"a,64,row,-1,{bad}", *(f"{m},32,row,31,{good}" for m in "abcd")]
    (tmp_path / "a.csv").write_text(lines(f"matrix,tile,order,time_us,{column}", rows))
    runs = runs_of(tmp_path / "a.csv")
    assert runs["a", 64, "row"] == [(means, ())]
    assert [runs[m, 32, "row"][0][0] for m in "abcd"] == ["ok"] * 4


def test_a_number_for_a_status_that_nothing_tells_is_not_guessed(tmp_path: Path) -> None:
    rows = ["a,64,row,22,1", "a,32,row,31,0"]
    (tmp_path / "a.csv").write_text(lines("matrix,tile,order,time_us,status", rows))
    with pytest.raises(UsageError, match="status"):
        read(tmp_path / "a.csv")


@pytest.mark.parametrize("word", ["inf", "nan", "-1", "None", "", "OOM", "99999999"])
def test_without_a_status_a_sentinel_is_a_failure_that_is_asked_about(
    tmp_path: Path, word: str
) -> None:
    rows = [f"{m},64,row,{word}" for m in "abc"]
    rows += ["a,32,row,31", "b,32,row,32", "c,32,row,33"]
    (tmp_path / "a.csv").write_text(lines("matrix,tile,order,time_us", rows))
    with pytest.raises(UsageError):
        read(tmp_path / "a.csv", yes=False)
    runs = runs_of(tmp_path / "a.csv")
    assert {runs[m, 64, "row"][0][0] for m in "abc"} <= {"crash", "timeout", "oom"}
    assert runs["a", 32, "row"] == [("ok", (31.0,))]


def test_zeros_without_a_status_are_not_guessed(tmp_path: Path) -> None:
    rows = ["a,64,row,0", "a,32,row,31", "b,64,row,0.0"]
    (tmp_path / "a.csv").write_text(lines("matrix,tile,order,time_us", rows))
    with pytest.raises(UsageError):
        read(tmp_path / "a.csv")


def test_an_error_without_a_status_is_a_failure(tmp_path: Path) -> None:
    rows = [
        "a,64,row,1.5,CUDA out of memory",
        "a,32,row,31,",
        "b,32,row,31,None",
        "c,32,row,31,1e-7",
    ]
    (tmp_path / "a.csv").write_text(lines("matrix,tile,order,time_us,error", rows))
    runs = runs_of(tmp_path / "a.csv")
    assert runs["a", 64, "row"][0][0] == "oom"
    assert [runs[m, 32, "row"][0][0] for m in "abc"] == ["ok"] * 3


# -- repeats ---------------------------------------------------------------------------------------

COARSE = ["20", "20", "20", "20", "40", "50"]


def coarse(path: Path, times: Iterable[str]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(lines("matrix,tile,order,time_us", (f"a,64,row,{t}" for t in times)))
    return path


def times_in(store: Store) -> list[float]:
    return sorted(t for _, (t,) in runs_in(store)["a", 64, "row"])


def test_equal_rows_are_repeats_and_a_second_reading_adds_none(tmp_path: Path) -> None:
    store, file = memory_store(), coarse(tmp_path / "a.csv", COARSE)
    report = read(file, store)
    assert (report.added, report.repeats, report.duplicates) == (6, 3, 0)
    first = {run.id for run in store.runs("tinyboard", OP)}
    assert times_in(store) == [20, 20, 20, 20, 40, 50]
    assert read(file, store).added == 0
    assert read(coarse(tmp_path / "copy.csv", COARSE), store).added == 0
    sorted_file = coarse(file, COARSE[::-1])
    assert (read(sorted_file, store).added, times_in(store)) == (0, [20, 20, 20, 20, 40, 50])
    assert {run.id for run in store.runs("tinyboard", OP)} == first


def test_what_is_appended_is_added_once(tmp_path: Path) -> None:
    store = memory_store()
    read(coarse(tmp_path / "a.csv", COARSE), store)
    longer = coarse(tmp_path / "a.csv", [*COARSE, "20", "60"])
    assert read(longer, store).added == 2
    assert read(longer, store).added == 0
    moved = coarse(tmp_path / "elsewhere" / "a.csv", [*COARSE, "20", "60", "60"])
    assert read(moved, store).added == 1
    assert times_in(store) == [20, 20, 20, 20, 20, 40, 50, 60, 60]


def test_logs_of_one_name_in_two_folders_are_two(tmp_path: Path) -> None:
    store = memory_store()
    for folder in ("gpu0", "gpu1", "gpu2"):
        times = ["20", "20", f"3{folder[-1]}"]
        assert read(coarse(tmp_path / folder / "a.csv", times), store).added == 3
        assert read(coarse(tmp_path / folder / "a.csv", [*times, "20"]), store).added == 1
    assert times_in(store) == [20] * 9 + [30, 31, 32]
    campaigns = {run.campaign for run in store.runs("tinyboard", OP)}
    assert campaigns == {"csv:a.csv", "csv:gpu1/a.csv", "csv:gpu2/a.csv"}


def test_a_reading_that_was_interrupted_knows_the_rows_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexer.ingest.BATCH", 2)
    store, file = memory_store(), coarse(tmp_path / "a.csv", COARSE)
    whole = memory_store()
    read(file, whole)

    def stop(rows: int) -> None:
        if rows >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest(store, file, platform=BOARD, options=ReadOptions(op=OP), progress=stop)
    report = ingest(store, file, platform=BOARD, options=ReadOptions(op=OP))
    assert (report.resumed_at, report.repeats) == (4, 3)
    ids = [{run.id for run in one.runs("tinyboard", OP)} for one in (store, whole)]
    assert ids[0] == ids[1]


@pytest.mark.parametrize("cell", ["20 20 21", "20;20;21", "20 | 20|21", "[20, 20, 21]", "20,20,21"])
def test_repeats_in_one_cell(tmp_path: Path, cell: str) -> None:
    (tmp_path / "a.csv").write_text(lines("matrix,tile,order,time_us", [f'a,64,row,"{cell}"']))
    assert runs_of(tmp_path / "a.csv") == {("a", 64, "row"): [("ok", (20.0, 20.0, 21.0))]}


# -- headers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "order"),
    [
        ("matrix,tile,order,time_us", (0, 1, 2, 3)),
        ("order,time_us,matrix,tile", (2, 3, 0, 1)),
        ("Tile,Order,Matrix,Time_us", (1, 2, 0, 3)),
        ("matrix ,tile ,time_us ,order ", (0, 1, 3, 2)),
        ("host,matrix,tile,order,time_us", (None, 0, 1, 2, 3)),
        ("tile,order,time_us,matrix,status", (1, 2, 3, 0, None)),
    ],
)
def test_a_header_within_holds_for_the_rows_below(
    tmp_path: Path, header: str, order: tuple[int | None, ...]
) -> None:
    rows = plain()
    half = len(rows) // 2
    turned = [
        ",".join("" if at is None else row.split(",")[at] for at in order) for row in rows[half:]
    ]
    text = lines("matrix,tile,order,time_us", [*rows[:half], header, *turned])
    (tmp_path / "a.csv").write_text(text)
    assert runs_of(tmp_path / "a.csv") == wanted()


def test_a_header_by_which_nothing_can_be_read_stops(tmp_path: Path) -> None:
    rows = [*plain()[:4], "matrix,tile,order,score", "net0,64,row,5"]
    (tmp_path / "a.csv").write_text(lines("matrix,tile,order,time_us", rows))
    with pytest.raises(ReaderError, match=r"a\.csv.*7"):
        read(tmp_path / "a.csv")


def test_files_put_together_with_their_marks(tmp_path: Path) -> None:
    text = lines("matrix,tile,order,time_us", plain()[:8])
    other = lines("tile,matrix,order,time_us", (swap(row) for row in plain()[8:]))
    (tmp_path / "a.csv").write_bytes(text.encode("utf-8-sig") + other.encode("utf-8-sig"))
    assert runs_of(tmp_path / "a.csv") == wanted()


def swap(row: str) -> str:
    first, second, *rest = row.split(",")
    return ",".join((second, first, *rest))


# -- which column ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "named"),
    [
        ("matrix,tile,order,time_us,time_us", "time_us"),
        ("matrix,tile,order,time_us,runtime_s", "runtime_s"),
        ("matrix,tile,order,time_ms,time_us", "time_ms"),
        ("matrix,tile,order,exec_ms,latency_us", "exec_ms"),
        ("matrix,tile,tile,order,time_us", "tile"),
        ("name,dataset,tile,order,time_us", "dataset"),
    ],
)
def test_two_columns_for_one_thing_are_refused(tmp_path: Path, header: str, named: str) -> None:
    cells = {"matrix": "a", "name": "a", "dataset": "b", "tile": "16", "order": "row"}
    row = ",".join(cells.get(name, f"{at + 2}.5") for at, name in enumerate(header.split(",")))
    (tmp_path / "a.csv").write_text(lines(header, [row] * 3))
    with pytest.raises(EmbeddbError, match=named) as refused:
        read(tmp_path / "a.csv")
    assert "--map" in f"{refused.value}{refused.value.hint}" or "named" in str(refused.value)


def test_a_map_settles_it_and_the_roles_own_name_comes_first(tmp_path: Path) -> None:
    rows = [f"kernel_a,{row},9.5" for row in plain()]
    (tmp_path / "a.csv").write_text(lines("name,matrix,tile,order,time_us,runtime_s", rows))
    assert runs_of(tmp_path / "a.csv", time="time_us") == wanted()


@pytest.mark.parametrize(
    "name",
    ["GB/s", "gflop_per_s", "runs_per_sec", "it/s", "GFLOP/s", "throughput", "bandwidth", "speedup",
     "ops", "MTEPS", "samples/sec", "items_per_second"],
)  # fmt: skip
def test_rates_are_no_times(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.csv").write_text(lines(f"matrix,tile,order,{name}", plain()))
    with pytest.raises(UsageError):
        read(tmp_path / "a.csv")
    rows = [f"{row},{us}" for row, us in zip(plain(), TRUTH.values(), strict=True)]
    (tmp_path / "b.csv").write_text(lines(f"matrix,tile,order,{name},latency_us", rows))
    assert runs_of(tmp_path / "b.csv") == wanted()


@pytest.mark.parametrize(
    "name", ["elapsed_sec", "timestamp_s", "wall_clock_s", "since_start_ms", "start_s", "elapsed"]
)
def test_clocks_are_no_times(tmp_path: Path, name: str) -> None:
    rows = [f"{row},{5 + 2.5 * at}" for at, row in enumerate(plain(scale=1e-6, form="{:.9f}"))]
    (tmp_path / "a.csv").write_text(lines(f"matrix,tile,order,objective,{name}", rows))
    with pytest.raises(UsageError, match="objective"):
        read(tmp_path / "a.csv")
    assert runs_of(tmp_path / "a.csv", time_s="objective") == wanted()


def test_a_clock_that_is_called_time_is_asked_about(tmp_path: Path) -> None:
    rows = [f"{row},{5 + 2.5 * at}" for at, row in enumerate(plain(scale=1e-6, form="{:.9f}"))]
    (tmp_path / "a.csv").write_text(lines("matrix,tile,order,objective,time_s", rows))
    with pytest.raises(UsageError, match="clock"):
        read(tmp_path / "a.csv")
    assert runs_of(tmp_path / "a.csv", time_s="objective") == wanted()


# -- units and numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "scale"),
    [
        ("time [\u00b5s]", 1), ("time_\u03bcs", 1), ("elapsed (\u00b5sec)", 1), ("time (usec)", 1),
        ("Time_us", 1), ("TIME_NS", 1e3), ("latency_msec", 1e-3), ("time (seconds)", 1e-6),
        ("runtime[ns]", 1e3), ("ns/op", 1e3), ("us per iteration", 1), ("time/s", 1e-6),
        ("total_cyc", 1e3), ("cycles", 1e3), ("time_nanoseconds", 1e3),
    ],
)  # fmt: skip
def test_a_unit_in_the_name(tmp_path: Path, column: str, scale: float) -> None:
    text = lines(f"matrix,tile,order,{column}", plain(scale=scale, form="{:.10g}"))
    (tmp_path / "a.csv").write_text(text)
    assert runs_of(tmp_path / "a.csv") == wanted()


@pytest.mark.parametrize("column", ["unit", "time_unit", "Unit", "Time Unit"])
def test_a_unit_in_its_column(tmp_path: Path, column: str) -> None:
    units = [("us", 1.0), ("ms", 1e-3), ("\u00b5s", 1.0), ("ns", 1e3)]
    rows = [
        f"{net},{tile},{order},{us * units[at % 4][1]:.10g},{units[at % 4][0]}"
        for at, ((net, tile, order), us) in enumerate(TRUTH.items())
    ]
    (tmp_path / "a.csv").write_text(lines(f"matrix,tile,order,time,{column}", rows))
    assert runs_of(tmp_path / "a.csv") == wanted()


@pytest.mark.parametrize("form", ["{} {}", "{}{}"])
def test_a_unit_in_its_cell(tmp_path: Path, form: str) -> None:
    units = [("us", 1.0), ("ms", 1e-3), ("nsec", 1e3)]
    rows = [
        f"{net},{tile},{order},{form.format(round(us * units[at % 3][1], 9), units[at % 3][0])}"
        for at, ((net, tile, order), us) in enumerate(TRUTH.items())
    ]
    (tmp_path / "a.csv").write_text(lines("matrix,tile,order,mean", rows))
    assert runs_of(tmp_path / "a.csv") == wanted()


def test_units_that_contradict_reject_the_row(tmp_path: Path) -> None:
    rows = ["a,64,row,22,ms", "a,32,row,31,us"]
    (tmp_path / "a.csv").write_text(lines("matrix,tile,order,time_us,unit", rows))
    report = read(tmp_path / "a.csv")
    assert (report.added, report.rejected, report.first_reject[:6]) == (1, 1, "line 2")


@pytest.mark.parametrize("sep", [";", "\t", "|"])
@pytest.mark.parametrize("comma", [False, True])
def test_separators_and_decimal_commas(tmp_path: Path, sep: str, comma: bool) -> None:
    rows = [row.replace(".", ",") if comma else row for row in plain(sep, form="{:.2f}", scale=10)]
    (tmp_path / "a.txt").write_text(lines(sep.join(("matrix", "tile", "order", "time [us]")), rows))
    runs = runs_of(tmp_path / "a.txt")
    assert runs == {key: [("ok", (round(us * 10, 6),))] for key, us in TRUTH.items()}


@pytest.mark.parametrize("cell", ["40,000", "40,41"])
def test_a_comma_that_may_be_two_things_is_refused(tmp_path: Path, cell: str) -> None:
    rows = [f'a,16,row,"{cell}"', f'b,16,row,"{cell}"']
    (tmp_path / "a.csv").write_text(lines("matrix,tile,order,time_us", rows))
    with pytest.raises(ReaderError, match=cell):
        read(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("cells", "times"),
    [(("40,0", "31,5"), (40.0, 31.5)), (("1,234.5", "40,000"), (1234.5, 40000.0)),
     (("0,125", "40,250"), (0.125, 40.25)), (("1,234,567", "2,000"), (1234567.0, 2000.0))],
)  # fmt: skip
def test_other_cells_of_the_column_say_what_a_comma_is(
    tmp_path: Path, cells: tuple[str, ...], times: tuple[float, ...]
) -> None:
    rows = [f'{m},16,row,"{cell}"' for m, cell in zip("ab", cells, strict=True)]
    (tmp_path / "a.csv").write_text(lines("matrix,tile,order,time_us", rows))
    runs = runs_of(tmp_path / "a.csv")
    assert [runs[m, 16, "row"] for m in "ab"] == [[("ok", (t,))] for t in times]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32", "latin-1"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_encodings_and_line_ends(tmp_path: Path, encoding: str, end: str) -> None:
    text = lines("matrix,tile,order,time [\u00b5s]", plain()).replace("\n", end)
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    (tmp_path / "a.csv").write_bytes((mark + text).encode(encoding))
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress((mark + text).encode(encoding)))
    assert runs_of(tmp_path / "a.csv") == runs_of(tmp_path / "b.csv.gz") == wanted()


@pytest.mark.parametrize(
    "before", ["# host: a, date: b\n# gcc\n", "\n\n", "sep=,\n", "# a\n\n", "#a,b,c,d\n"]
)
def test_lines_before_the_header(tmp_path: Path, before: str) -> None:
    text = before + lines("matrix,tile,order,time_us", plain())
    (tmp_path / "a.csv").write_text(text)
    assert runs_of(tmp_path / "a.csv") == wanted()


@pytest.mark.parametrize("form", ["{}.0", "{:.3e}", "{}", "{}.00"])
def test_sizes_and_names_as_floats(tmp_path: Path, form: str) -> None:
    rows = [f"{form.format(144)},{form.format(5000)},16.0,row,40.0"] if "e" not in form else []
    rows += [f"b,{form.format(5000)},16.0,row,41.0"]
    (tmp_path / "a.csv").write_text(lines("matrix,nnz,tile,order,time_us", rows))
    store = memory_store()
    assert read(tmp_path / "a.csv", store).rejected == 0
    assert {info.nnz for info in store.patterns()} == {5000}
    assert {info.name for info in store.patterns()} <= {"144", "b"}


@pytest.mark.parametrize("name", ["Matrix", "matrix name", "user_attrs_matrix", "MATRIX", "mtx"])
def test_names_of_the_column_of_matrices(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.csv").write_text(lines(f"{name},tile,order,time_us", plain()))
    assert runs_of(tmp_path / "a.csv") == wanted()


# -- what is said ----------------------------------------------------------------------------------


def test_the_first_row_that_is_rejected_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "board.toml").write_text(BOARD.text)
    rows = [f"a,64,row,{at}x{at}" for at in range(200)]
    (tmp_path / "a.csv").write_text(lines("matrix,tile,order,time_us", [*rows, "a,64,row,5"]))
    typed = ["index", str(tmp_path / "db"), str(tmp_path / "a.csv"), "--op", "spmm:32"]
    typed += ["--platform", str(tmp_path / "board.toml")]
    assert run_verb(typed) == 0
    assert "line 2: '0x0'" in capsys.readouterr().out
    (tmp_path / "a.csv").write_text(lines("matrix,tile,order,time_us", rows))
    assert run_verb(typed) == 1
    assert "line 2: '0x0'" in capsys.readouterr().err
    assert run_verb([*typed, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["files"][0]["first_reject"].startswith("line 2")


def test_what_is_lacking_is_said_before_a_database_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "board.toml").write_text(BOARD.text)
    (tmp_path / "a.csv").write_text(lines("matrix,tile,order,score", plain()))
    typed = ["index", str(tmp_path / "db"), str(tmp_path / "a.csv"), "--op", "spmm:32", "--yes"]
    assert run_verb([*typed, "--platform", str(tmp_path / "board.toml")]) == 2
    assert "--map time=score" in capsys.readouterr().err
    assert not (tmp_path / "db").exists()


def test_cycles_of_an_unknown_column_are_proposed_by_the_clock(tmp_path: Path) -> None:
    text = lines("matrix,tile,order,total_cyc,energy", ["a,64,row,5000,3"])
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(UsageError):
        read(tmp_path / "a.csv", yes=False)
    assert runs_of(tmp_path / "a.csv") == {("a", 64, "row"): [("ok", (5.0,))]}


def test_rows_that_are_equal_by_two_spellings_of_a_value_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order = 'values = ["row", "col"]'
    aliased = BOARD.text.replace(order, f'{order}, aliases = {{ rows = "row" }}')
    (tmp_path / "board.toml").write_text(aliased)
    rows = ["a,64,row,5", "a,64,rows,5", "a,32,rows,5"]
    (tmp_path / "a.csv").write_text(lines("matrix,tile,order,time_us", rows))
    typed = ["index", str(tmp_path / "db"), str(tmp_path / "a.csv"), "--op", "spmm:32"]
    assert run_verb([*typed, "--platform", str(tmp_path / "board.toml")]) == 0
    said = capsys.readouterr().out
    assert "3 runs added" in said and "order: rows is row" in said and "already stored" not in said


def test_facts_that_a_failed_run_lacks_do_not_cost_it(tmp_path: Path) -> None:
    head = "matrix,m,n,nnz,tile,order,time_us,status,compile_ms,tolerance"
    rows = ["a,nan,nan,nan,64,row,nan,timeout,-1,nan", "a,,,,32,row,31,ok,nan,None"]
    (tmp_path / "a.csv").write_text(lines(head, rows))
    runs = runs_of(tmp_path / "a.csv")
    assert (runs["a", 64, "row"], runs["a", 32, "row"]) == ([("timeout", ())], [("ok", (31.0,))])


def test_a_list_of_records_is_read_as_lines_are(tmp_path: Path) -> None:
    records = [
        {"matrix": net, "tile": tile, "order": order, "time_us": us}
        for (net, tile, order), us in TRUTH.items()
    ]
    (tmp_path / "a.json").write_text(json.dumps(records, indent=1))
    assert runs_of(tmp_path / "a.json") == wanted()
    (tmp_path / "b.json").write_text(json.dumps(records)[:-9])
    with pytest.raises(ReaderError):
        read(tmp_path / "b.json")


@pytest.mark.parametrize("form", ["{0}\n{0}\n", "[{0}, {0}]"], ids=["lines", "list"])
def test_a_key_twice_is_refused(tmp_path: Path, form: str) -> None:
    record = '{"matrix": "a", "tile": 64, "order": "row", "time_us": 1, "time_us": 2}'
    (tmp_path / "a.json").write_text(form.replace("{0}", record))
    with pytest.raises(ReaderError, match="time_us"):
        read(tmp_path / "a.json")


@pytest.mark.parametrize(
    "repeated",
    [
        '"tile": 64, "order": "row", "time_us": 1, "time_us": 2',
        '"tile": 64, "order": "row", "time_us" : 1, "time_us"\t: 2',
        '"tile": 64, "order": "row", "time_us": 1, "t\\u0069me_us": 2',
        '"config": {"tile": 64, "tile": 32, "order": "row"}, "time_us": 1',
        '"tile": 64, "order": "row", "time_us": 1, "spare": [{"a": NaN, "a": 1}]',
    ],
)
def test_a_key_twice_costs_its_line_wherever_it_stands(tmp_path: Path, repeated: str) -> None:
    form = '{{"matrix": "{0}", "tile": {1}, "order": "{2}", "time_us": {3}, "at": ":12:30\\": "}}'
    good = [form.format(*key, us) for key, us in TRUTH.items()]
    bad = f'{{"matrix": "a", {repeated}}}'
    (tmp_path / "a.jsonl").write_text(lines(good[0], [*good[1:] * 150, bad]))
    store = memory_store()
    report = read(tmp_path / "a.jsonl", store)
    assert (report.rejected, set(runs_in(store))) == (1, set(TRUTH))
    assert "twice" in next(iter(report.reasons))


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("status,correct,time_us", "ok,False,1"),
        ("iterations,total_time_s", "100,5"),
        ("time,latency_us", "2024-05-01 10:00:00,5"),
        ("1/time_us", "5"),
        ("log_time_us", "5"),
        ("normalized_time_s", "5"),
        ("start_s,end_s", "1,5"),
        ("ns_per_nnz", "5"),
    ],
)
def test_what_contradicts_or_is_no_time_is_asked_about(
    tmp_path: Path, header: str, row: str
) -> None:
    rows = [f"a,{tile},row,{row}" for tile in (16, 32, 64, 128)]
    rows = [f"{one}.{at}" if one[-1].isdigit() else one for at, one in enumerate(rows)]
    (tmp_path / "a.csv").write_text(lines(f"matrix,tile,order,{header}", rows))
    with pytest.raises(UsageError):
        read(tmp_path / "a.csv")


def test_a_column_without_a_name_has_no_role(tmp_path: Path) -> None:
    rows = [f"{at},{row}" for at, row in enumerate(plain())]
    (tmp_path / "a.csv").write_text(lines(",matrix,tile,order,time_us", rows))
    assert runs_of(tmp_path / "a.csv") == wanted()
    read(tmp_path / "a.csv", yes=False)


@pytest.mark.parametrize(
    ("good", "bad", "status"),
    [
        ("ok", "Fehler", "crash"),
        ("erfolgreich", "Zeitüberschreitung", "timeout"),
        ("réussi", "échec", "crash"),
        ("correcto", "fallido", "crash"),
        ("成功", "超时", "timeout"),
    ],
)
def test_statuses_in_other_languages(tmp_path: Path, good: str, bad: str, status: str) -> None:
    words = [bad if "128" in row else good for row in plain()]
    rows = [f"{row},{word}" for row, word in zip(plain(), words, strict=True)]
    (tmp_path / "a.csv").write_text(lines("matrix,tile,order,time_us,status", rows))
    want = {k: [(status, runs[0][1])] if k[1] == 128 else runs for k, runs in wanted().items()}
    assert runs_of(tmp_path / "a.csv") == want


def test_a_status_that_may_be_any_stops_a_log_unless_it_is_a_stray(tmp_path: Path) -> None:
    rows = [f"{row},ok" for row in plain() * 3]
    (tmp_path / "a.csv").write_text(
        lines("matrix,tile,order,time_us,status", [*rows, "net0,16,row,1,kaput"])
    )
    assert "net0" in {key[0] for key in runs_of(tmp_path / "a.csv")}
    (tmp_path / "b.csv").write_text(
        lines("matrix,tile,order,time_us,status", [*rows, *["net0,16,row,1,kaput"] * 5])
    )
    with pytest.raises(UsageError, match="kaput"):
        read(tmp_path / "b.csv")


def test_numbers_with_points_of_thousands_are_no_times(tmp_path: Path) -> None:
    rows = [f"{net};{tile};{order};4.{tile:03}.000" for net, tile, order in TRUTH]
    (tmp_path / "a.csv").write_text(lines("matrix;tile;order;time_ns", rows))
    report = read(tmp_path / "a.csv")
    assert (report.added, report.rejected) == (0, len(rows))
