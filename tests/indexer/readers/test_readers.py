"""Readers: the contract on each format, what each reads, bad input, the real files."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddb.core import plugins
from embeddb.core.config import Config, Op
from embeddb.core.errors import ReaderError
from embeddb.core.records import Measurement
from embeddb.core.sizes import Sizes
from embeddb.platforms.platform import load_platform
from embeddb.testing.readers import ReaderContract
from indexer.readers.base import row as parse
from indexer.readers.base.lines import LINE_BYTES, guess, json_lines
from indexer.readers.base.row import ReadOptions, Reject, RunRow

GOLDEN = Path(__file__).parents[2] / "golden" / "readers"
SPMM = Op("spmm", 128)

#: Reader, golden file, options, rows. The files are made up; see `golden/readers/README.md`.
EXAMPLES: list[tuple[str, str, ReadOptions, int]] = [
    ("csv", "runs.csv", ReadOptions(params=("tile", "order"), op=SPMM), 4),
    ("csv", "nest_runs.csv", ReadOptions(params=("order_2", "parallel")), 3),
    ("jsonl", "runs.jsonl", ReadOptions(params=("tile",)), 3),
    ("waco", "waco/SpMM/CollectedData/toy_4x16_1.txt", ReadOptions(), 3),
    ("cognate", "cognate.csv", ReadOptions(op=SPMM, unit="ms"), 3),
    ("cognate-mapped", "cognate_mapped.csv", ReadOptions(op=SPMM, unit="ms"), 4),
    ("ginkgo", "ginkgo/spmv_times.csv", ReadOptions(), 6),
    ("morpheus", "toy-square_set-serial.csv", ReadOptions(), 5),
    ("lcm", "lcm_spmm.csv", ReadOptions(), 2),
    ("lcm", "lcm_spmv.csv", ReadOptions(), 2),
    ("ra-spmm", "rtx9000_sweep.csv", ReadOptions(), 4),
    ("liteform", "liteform.csv", ReadOptions(), 2),
    ("kernel-tuner", "cache.json", ReadOptions(op=SPMM), 4),
    ("t4", "t4.json", ReadOptions(op=SPMM), 3),
    ("tvm", "tvm.json", ReadOptions(), 2),
    ("autotvm", "autotvm.log", ReadOptions(), 3),
    ("tpu-graphs", "tpu_graphs.npz", ReadOptions(), 4),
    ("embeddb", "export.jsonl", ReadOptions(), 3),
]


def rows_of(reader: str, path: Path, **options: Any) -> list[RunRow | Reject]:
    return list(plugins.load("reader", reader)().rows(path, options=ReadOptions(**options)))


def runs_of(reader: str, path: Path, **options: Any) -> list[RunRow]:
    rows = rows_of(reader, path, **options)
    assert not [row for row in rows if isinstance(row, Reject)]
    return [row for row in rows if isinstance(row, RunRow)]


def rejects_of(reader: str, path: Path, **options: Any) -> list[tuple[int, str]]:
    rows = rows_of(reader, path, **options)
    return [(row.line, row.reason) for row in rows if isinstance(row, Reject)]


@pytest.fixture(params=EXAMPLES, ids=lambda example: example[1])
def golden(request: pytest.FixtureRequest) -> tuple[str, str, ReadOptions, int]:
    return request.param


class TestEveryReader(ReaderContract):
    """The shipped contract on every format."""

    @pytest.fixture(autouse=True)
    def _chosen(self, golden: tuple[str, str, ReadOptions, int]) -> None:
        self.golden = golden

    def make(self) -> Any:
        return plugins.load("reader", self.golden[0])()

    def example(self, folder: Path) -> tuple[Path, Any, int]:
        _, name, options, count = self.golden
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((GOLDEN / name).read_bytes())
        return path, options, count


def test_every_reader_is_found_and_has_an_example() -> None:
    assert set(plugins.available("reader")) == {name for name, *_ in EXAMPLES}


def test_every_example_is_recognised_first(golden: tuple[str, str, ReadOptions, int]) -> None:
    assert guess(GOLDEN / golden[1])[0] == golden[0]


def test_configs_are_legal_on_the_built_in_platforms(
    golden: tuple[str, str, ReadOptions, int],
) -> None:
    name, file, options, _ = golden
    platform = plugins.load("reader", name)().platform
    if not platform:
        return
    for row in plugins.load("reader", name)().rows(GOLDEN / file, options=options):
        space = load_platform(platform).space(row.op, Sizes(m=row.matrix.m, n=row.matrix.n))
        assert space.reason(Config(row.config)) is None


# -- what each format says ------------------------------------------------------------------


def test_csv_of_nests() -> None:
    first, second, third = runs_of("csv", GOLDEN / "nest_runs.csv", params=("order_2", "parallel"))
    assert (first.op, first.matrix.name, first.matrix.m) == (Op("nest"), "stencil_64", -1)
    assert dict(second.config) == {"order_2": ("2", "1"), "parallel": "none"}
    assert (second.measurement.seconds, third.measurement.status) == (0.0025, "wrong")


def test_csv() -> None:
    rows = runs_of("csv", GOLDEN / "runs.csv", params=("tile", "order"), op=SPMM)
    first, second, third, last = rows
    assert (first.matrix.name, first.matrix.m, first.matrix.nnz) == ("toy", 8, 20)
    assert dict(first.config) == {"tile": 4, "order": ("i", "k", "j")}
    assert first.measurement.seconds == 0.0015
    assert dict(second.config) == {"tile": 8, "order": ("k", "i", "j")}
    assert third.measurement == Measurement("timeout", (), "imported")
    assert last.measurement.times_s == (0.001, 0.0025, 0.002)
    assert [row.line for row in rows] == [2, 3, 4, 6]


def test_csv_roles_and_units(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("who,t,kernel,width,dtype,blk\nx,3,sddmm,64,f64,2x2\n")
    columns = {"matrix": "who", "time_us": "t", "config.block": "blk"}
    (row,) = runs_of("csv", path, columns=columns)
    assert (row.op, dict(row.config)) == (Op("sddmm", 64, "f64"), {"block": "2x2"})
    assert row.measurement.times_s == (3e-6,)
    with pytest.raises(ReaderError, match="no column 'nope'"):
        rows_of("csv", path, columns={"matrix": "nope"})
    with pytest.raises(ReaderError, match="no role 'colour'"):
        rows_of("csv", path, columns={"colour": "t"})


@pytest.mark.parametrize(
    ("header", "unit", "seconds"),
    [("time_s", "", 3.0), ("time_ms", "", 3e-3), ("time_us", "", 3e-6), ("time", "ns", 3e-9)],
)
def test_units(tmp_path: Path, header: str, unit: str, seconds: float) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"matrix,{header}\nx,3\n")
    (row,) = runs_of("csv", path, unit=unit, op=SPMM)
    assert row.measurement.times_s == (seconds,)


def test_a_unit_is_never_guessed(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("matrix,time\nx,3\n")
    with pytest.raises(ReaderError, match="does not state the unit") as failed:
        rows_of("csv", path, op=SPMM)
    assert "--unit" in failed.value.hint
    with pytest.raises(ReaderError, match="no time unit 'min'"):
        rows_of("csv", path, op=SPMM, unit="min")
    path.write_text("matrix,time_ms\nx,3\n")
    with pytest.raises(ReaderError, match="ms and s"):
        rows_of("csv", path, op=SPMM, unit="s")
    with pytest.raises(ReaderError, match="names the operation"):
        rows_of("csv", path)


def test_csv_bad_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    bad = [
        "x,",
        "x,abc",
        "x,nan",
        "x,-1",
        "x,0",
        "x,1e400",
        "x,inf",
        "x,1_0",
        ",1",
        "x,1,2",
        '"x,1',
    ]
    path.write_bytes(b"matrix,time_s\n" + "\n".join(bad).encode() + b"\nx\0,1\nx\xff,1\nx,2\n")
    rejects = rejects_of("csv", path, op=SPMM)
    assert [line for line, _ in rejects] == list(range(2, 15))
    assert all(reason for _, reason in rejects)
    (good,) = [r for r in rows_of("csv", path, op=SPMM) if isinstance(r, RunRow)]
    assert good.line == 15


def test_jsonl() -> None:
    first, second, third = runs_of("jsonl", GOLDEN / "runs.jsonl", params=("tile",))
    assert (first.op, dict(first.config)) == (Op("spmv"), {"tile": 4})
    assert second.measurement.times_s == (0.001, 0.002)
    assert dict(second.config) == {"tile": 2, "order": ("i", "j")}
    assert (third.measurement.status, third.measurement.error) == ("build", "no compiler")


def test_rows_with_the_same_cells_share_what_is_read(tmp_path: Path) -> None:
    """Equal cells are read once; those that Python takes for equal, and long ones, are not."""
    log, long = tmp_path / "runs.jsonl", "x" * 1000
    cells = [("A", 3, 1), ("A", 3, 1), ("A", 3, True), ("A", 3.0, 1), (long, 3, 1), (long, 3, 1)]
    lines = [{"matrix": a, "m": m, "tile": tile, "time_s": 1.0} for a, m, tile in cells]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    first, again, true, whole, *others = runs_of("jsonl", log, params=("tile",), op=SPMM)
    assert again.matrix is first.matrix and again.config is first.config
    assert true.matrix is first.matrix and true.config == Config({"tile": True})
    assert whole.matrix == first.matrix and whole.config is first.config
    assert others[0].matrix is not others[1].matrix and others[0].matrix == others[1].matrix


def test_jsonl_bad_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    good = '{"matrix":"x","time_s":1}'
    bad = ["[1]", "{", '{"matrix":"x","time_s":NaN}', '{"matrix":"x","time_s":true}']
    bad += ['{"matrix":"x","time_s":1e400}', '{"time_s":1}', "[" * 100_000]
    path.write_text("\n".join([good, *bad, good]))
    assert [line for line, _ in rejects_of("jsonl", path, op=SPMM)] == list(range(2, 9))


# -- wrong files, sizes ---------------------------------------------------------------------


def test_a_wrong_reader_names_the_right_one(golden: tuple[str, str, ReadOptions, int]) -> None:
    right, file, options, _ = golden
    for name in plugins.available("reader"):
        if name == right or (name == "csv" and right.startswith("cognate")):
            continue
        try:
            rows = list(plugins.load("reader", name)().rows(GOLDEN / file, options=options))
        except ReaderError as error:
            assert f"--format {right}" in error.hint, (name, error)
        else:
            assert name in ("csv", "jsonl"), (name, rows)


def test_a_gz_bomb_is_read_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.csv.gz"
    with gzip.open(path, "wb", compresslevel=1) as out:
        out.write(b"matrix,time_s\nx,1\n")
        for _ in range(64):
            out.write(b"y" * (1 << 20))
        out.write(b"\nx,2\n")
    tracemalloc.start()
    rows = rows_of("csv", path, op=SPMM)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [isinstance(row, Reject) for row in rows] == [False, True, False]
    assert [row.line for row in rows] == [2, 3, 4]
    assert peak < 12 * LINE_BYTES


def test_line_ends_and_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbfmatrix,time_s\r\nx,1\r\n\r\ny,2")
    assert [(r.matrix.name, r.line) for r in runs_of("csv", path, op=SPMM)] == [("x", 2), ("y", 4)]


@given(st.lists(st.binary(max_size=30).filter(lambda b: b"\n" not in b and b"\r" not in b)))
def test_lines_are_counted_right_whatever_they_hold(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    path.write_bytes(b"\n".join([b"0", *lines, b'{"last": 1}']))
    *_, (number, last) = json_lines(path)
    assert (number, last) == (len(lines) + 2, {"last": 1})


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_seconds_round_trip(taken: float) -> None:
    assert parse.seconds(repr(taken)) == taken


@given(st.one_of(st.integers(-(10**17), 10**17), st.booleans(), st.floats(-1e9, 1e9)))
def test_values_round_trip(value: int | float | bool) -> None:
    text = json.dumps(value)
    assert parse.value(text) == value


def test_labels() -> None:
    assert parse.label("NVIDIA GeForce RTX 3090") == "rtx3090"
    assert parse.label("AMD Radeon VII") == "vii"
