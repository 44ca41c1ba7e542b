"""What each format's reader makes of its files: made-up ones, and the real ones."""

from __future__ import annotations

import io
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from embeddb.core import plugins
from embeddb.core.config import Config, Op
from embeddb.core.errors import ReaderError
from embeddb.core.records import Run, WorkloadInfo
from embeddb.core.sizes import Sizes
from embeddb.platforms.platform import load_platform
from indexer.exchange.export_formats import write_jsonl
from indexer.readers.base.lines import guess
from indexer.readers.base.row import ReadOptions, Reject, RunRow
from indexer.readers.embeddb import PlatformDoc, documents

GOLDEN = Path(__file__).parents[2] / "golden" / "readers"
SPMM = Op("spmm", 128)


def rows_of(reader: str, path: Path, **options: Any) -> list[RunRow | Reject]:
    return list(plugins.load("reader", reader)().rows(path, options=ReadOptions(**options)))


def runs_of(reader: str, path: Path, **options: Any) -> list[RunRow]:
    rows = rows_of(reader, path, **options)
    assert not [row for row in rows if isinstance(row, Reject)]
    return [row for row in rows if isinstance(row, RunRow)]


def rejects_of(reader: str, path: Path, **options: Any) -> list[tuple[int, str]]:
    rows = rows_of(reader, path, **options)
    return [(row.line, row.reason) for row in rows if isinstance(row, Reject)]


def test_waco_reads_a_folder_and_tells_kernels_apart(tmp_path: Path) -> None:
    rows = runs_of("waco", GOLDEN / "waco")
    assert Counter(str(row.op) for row in rows) == {"spmm:256": 3, "sddmm:256": 1, "spmv": 1}
    by_op = {str(row.op): row for row in reversed(rows)}
    assert set(by_op["sddmm:256"].config) - set(by_op["spmm:256"].config) == {"j1f", "j0f"}
    assert "jsplit" not in by_op["spmv"].config
    spmm = by_op["spmm:256"]
    assert (spmm.matrix.name, spmm.matrix.group) == ("toy_4x16_1", "toy")
    assert spmm.where == "SpMM/CollectedData/toy_4x16_1.txt"
    assert spmm.measurement.times_s == (0.0125,)
    assert guess(GOLDEN / "waco") == ["waco"]
    path = tmp_path / "bare.txt"
    path.write_text((GOLDEN / "waco/SpMM/CollectedData/toy_4x16_1.txt").read_text())
    with pytest.raises(ReaderError, match="does not state the operation"):
        rows_of("waco", path)
    assert len(runs_of("waco", path, op=Op("spmm", 256))) == 3
    assert len(rejects_of("waco", path, op=Op("spmv"))) == 3


def test_cognate(tmp_path: Path) -> None:
    path = GOLDEN / "cognate.csv"
    with pytest.raises(ReaderError, match="does not state the unit"):
        rows_of("cognate", path, op=SPMM)
    with pytest.raises(ReaderError, match="does not state the operation"):
        rows_of("cognate", path, unit="ms")
    rows = runs_of("cognate", path, op=SPMM, unit="ms")
    assert [row.config["split"] for row in rows] == [32, 32, 256]
    assert rows[2].config["column_panels"] == "NUM_MATRIX_COLS"
    bare = tmp_path / "bare.csv"
    bare.write_text(path.read_text().split("\n", 1)[1])
    again = runs_of("cognate", bare, op=SPMM, unit="ms")
    assert [r.config for r in again] == [r.config for r in rows]
    assert [r.line for r in again] == [1, 2, 3]
    bare.write_text("7,4,1024,1,0,0,0,5\n7,4,1024,0,0,0,0,5\n7,4,1024,1,2,0,0,5\n")
    assert [line for line, _ in rejects_of("cognate", bare, op=SPMM, unit="ms")] == [2, 3]


def test_morpheus(tmp_path: Path) -> None:
    path = GOLDEN / "toy-square_set-serial.csv"
    rows = runs_of("morpheus", path)
    assert [row.config["format"] for row in rows] == ["coo", "csr", "dia", "csr", "hdc"]
    assert [row.measurement.status for row in rows] == ["ok", "ok", "crash", "ok", "ok"]
    assert rows[0].measurement.times_s == (2.5e-05,) and rows[2].measurement.times_s == ()
    assert {(row.instance, str(row.op)) for row in rows} == {("toy-serial", "spmv:f64")}
    assert all(row.facts == {"backend": "serial"} for row in rows)
    known = runs_of("morpheus", path, features=GOLDEN / "ginkgo/matrix_features.csv")
    toy = known[0].matrix
    assert (toy.group, toy.m) == ("Made", 8) and toy.features and not known[3].matrix.features
    odd = tmp_path / "odd.csv"
    head = path.read_text().splitlines()[0]
    odd.write_text(f"{head}\ntoy,6,1.0,1\ntoy,1,-1,1\n,1,1.0,1\ntoy,\ntoy,1,nan,1\n")
    assert [reason for _, reason in rejects_of("morpheus", odd)] == [
        "no format 6: they are 0 to 5",
        "time '-1' is not positive",
        "no matrix name",
        "2 cells where the header has 4",
        "'nan' is not a finite number",
    ]
    assert {row.instance for row in runs_of("morpheus", path, instance="mine")} == {"mine"}


def test_ginkgo() -> None:
    rows = runs_of("ginkgo", GOLDEN / "ginkgo/spmv_times.csv")
    statuses = [row.measurement.status for row in rows]
    assert statuses == ["ok", "ok", "crash", "wrong", "crash", "ok"]
    assert [row.config["format"] for row in rows] == ["csr", "ell", "ell", "coo", "coo", "csr"]
    assert {row.instance for row in rows} == {"DevA", "DevB"}
    assert [row.measurement.conversion_s for row in rows[:2]] == [None, 0.25]
    assert (rows[0].matrix.name, rows[0].matrix.group) == ("toy", "Made")
    assert rows[0].measurement.tolerance is None
    assert rows[3].measurement.tolerance == 1e-6
    # Two devices count the non-zeros differently; the features file says what they are.
    assert {row.matrix.nnz for row in rows} == {20, 21}
    features = GOLDEN / "ginkgo/matrix_features.csv"
    known = runs_of("ginkgo", GOLDEN / "ginkgo/spmv_times.csv", features=features)
    assert {row.matrix.nnz for row in known} == {20}
    assert known[0].matrix.features["row_max"] == 5.0
    assert known[0].matrix.about["kind"] == "made up"


def test_lcm() -> None:
    first, _ = runs_of("lcm", GOLDEN / "lcm_spmm.csv")
    assert (first.matrix.name, first.op) == ("toy", Op("spmm", 256))
    assert dict(first.config) == {"mTileSize": 4, "nTileSize": 8}
    assert (first.measurement.times_s, first.measurement.conversion_s) == ((0.002,), 0.5)
    assert first.measurement.context == {"spmm_mkl_s": 0.003}
    spmv, _ = runs_of("lcm", GOLDEN / "lcm_spmv.csv")
    assert dict(spmv.config) == {"size_cutoff": 2, "col_threshold": 4}
    assert spmv.measurement.times_s == (3e-5,)


def test_ra_spmm() -> None:
    rows = runs_of("ra-spmm", GOLDEN / "rtx9000_sweep.csv")
    assert [row.measurement.status for row in rows] == ["ok", "wrong", "crash", "wrong"]
    assert rows[0].measurement.times_s == (0.0015,)
    assert rows[0].measurement.conversion_s == 0.02
    assert {row.instance for row in rows} == {"rtx9000"}
    assert rows[0].matrix.about == {"category": "Made", "synthetic": "True"}
    assert rows[0].op == Op("spmm", 64)


def test_liteform() -> None:
    ok, failed = runs_of("liteform", GOLDEN / "liteform.csv")
    assert dict(ok.config) == {"num_partitions": 2, "max_bucket_width": 16}
    assert ok.measurement.context == {"autotune_s": 12.5, "naive_s": 0.0005}
    assert failed.measurement.status == "crash"


def test_kernel_tuner(tmp_path: Path) -> None:
    text = (GOLDEN / "cache.json").read_text()
    rows = runs_of("kernel-tuner", GOLDEN / "cache.json", op=SPMM)
    statuses = [row.measurement.status for row in rows]
    assert statuses == ["ok", "ok", "build", "invalid"]
    assert rows[0].measurement.times_s == (0.0015, 0.0005)
    assert rows[0].measurement.compile_s == 0.4
    assert rows[0].measurement.when == 1671797486.5
    assert rows[1].measurement.times_s == (0.002,)
    assert dict(rows[0].config) == {"block": 32, "fast": True, "alg": "a,b"}
    assert (rows[0].matrix.name, rows[0].instance) == ("cache", "rtxa4000")
    cut = tmp_path / "cut.json"
    end = text.index('"64,True')
    cut.write_text(text[:end].rstrip())
    assert len(runs_of("kernel-tuner", cut, op=SPMM)) == 1
    cut.write_text(text[: end + 40])
    found = rows_of("kernel-tuner", cut, op=SPMM)
    assert [isinstance(row, Reject) for row in found] == [False, True]
    assert found[1].line == text[:end].count("\n") + 1
    with pytest.raises(ReaderError, match="does not state the operation"):
        rows_of("kernel-tuner", cut)


def test_kernel_tuner_time_of_a_failed_run(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text((GOLDEN / "cache.json").read_text().replace('"time": 2.0', '"time": 1e+20'))
    failed = runs_of("kernel-tuner", path, op=SPMM)[1].measurement
    assert (failed.status, failed.times_s) == ("crash", ())


def test_kernel_tuner_goes_on_after_a_damaged_entry(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text((GOLDEN / "cache.json").read_text().replace('"fast": true', '"fast": tr'))
    found = rows_of("kernel-tuner", path, op=SPMM)
    assert [isinstance(row, Reject) for row in found] == [True, True, True, False]


def test_t4(tmp_path: Path) -> None:
    rows = runs_of("t4", GOLDEN / "t4.json", op=SPMM)
    assert [row.measurement.status for row in rows] == ["ok", "build", "ok"]
    assert rows[0].measurement.times_s == (0.001, 0.002)
    assert rows[2].measurement.times_s == (0.004,)
    document = json.loads((GOLDEN / "t4.json").read_text())
    path = tmp_path / "t.json"
    del document["metadata"]
    document["results"][0]["measurements"] = []
    path.write_text(json.dumps(document))
    with pytest.raises(ReaderError, match="does not state the unit"):
        rows_of("t4", path, op=SPMM)
    assert len(runs_of("t4", path, op=SPMM, unit="ms")) == 3
    with pytest.raises(ReaderError, match="the file's unit is ms, not s"):
        rows_of("t4", GOLDEN / "t4.json", op=SPMM, unit="s")


def test_t4_units_and_objectives_of_other_programs(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    document = json.loads((GOLDEN / "t4.json").read_text())
    document["metadata"]["timeunit"] = "miliseconds"
    document["results"][2]["objectives"] = ["GFLOP/s"]
    rate = {"name": "GFLOP/s", "value": 250.0, "unit": ""}
    document["results"][2]["measurements"].insert(0, rate)
    path.write_text(json.dumps(document))
    first, _, last = runs_of("t4", path, op=SPMM)
    assert first.measurement.times_s == (0.001, 0.002)
    assert last.measurement.times_s == (0.004,)
    document["results"][2]["measurements"] = [rate]
    path.write_text(json.dumps(document))
    assert rejects_of("t4", path, op=SPMM) == [(3, "no time, though the result is correct")]


def test_tvm(tmp_path: Path) -> None:
    ok, failed = runs_of("tvm", GOLDEN / "tvm.json")
    assert (ok.matrix.name, ok.matrix.m, ok.matrix.n, ok.matrix.nnz) == ("toy", 64, 32, 160)
    assert ok.op == Op("spmm", 16)
    assert json.loads(ok.config["steps"]) == [["SP", 5, 0, 16, [1, 8], 1]]
    assert (ok.measurement.times_s, ok.measurement.when) == ((0.001, 0.002), 1600000000.0)
    assert (failed.measurement.status, failed.measurement.times_s) == ("timeout", ())
    path = tmp_path / "t.json"
    path.write_text((GOLDEN / "tvm.json").read_text() + '{"input": ["llvm"], "config": {}}\n')
    ((line, reason),) = rejects_of("tvm", path)
    assert (line, reason) == (4, "an AutoTVM record, not one of auto_scheduler: --format autotvm")


def test_embeddb_rejects_only_what_a_damaged_line_defines(tmp_path: Path) -> None:
    lines = (GOLDEN / "export.jsonl").read_text().splitlines()
    path = tmp_path / "e.jsonl"
    broken = next(i for i, line in enumerate(lines) if line.startswith('["config",0'))
    path.write_text("\n".join([*lines[:broken], "?", *lines[broken + 1 :]]))
    found = list(documents(path))
    reasons = [row.reason for row in found if isinstance(row, Reject)]
    assert any("config 0 is not defined" in reason for reason in reasons)
    whole = list(documents(GOLDEN / "export.jsonl"))
    kept = [row for row in found if isinstance(row, Run)]
    assert kept
    assert all(run in whole for run in kept)


def test_embeddb_export_cut_off_or_newer(tmp_path: Path) -> None:
    lines = (GOLDEN / "export.jsonl").read_text().splitlines()
    count = len(list(documents(GOLDEN / "export.jsonl")))
    path = tmp_path / "e.jsonl"
    path.write_text("\n".join(lines[:-1]))
    records = documents(path)
    assert not any(isinstance(next(records), Reject) for _ in range(count))
    with pytest.raises(ReaderError, match=r"e\.jsonl:\d+: the end line is missing"):
        next(records)
    path.write_text('{"format": "embeddb", "version": 99}\n')
    with pytest.raises(ReaderError, match="export version 99"):
        list(documents(path))


def test_golden_export_is_what_the_first_version_wrote() -> None:
    """A file written by version 1 stays readable, value by value."""
    platform, pattern, stub, *runs = documents(GOLDEN / "export.jsonl")
    assert platform == PlatformDoc("cpu@0123abcd", 'name = "cpu"\n', {"cpu": "made up"})
    assert isinstance(pattern, WorkloadInfo)
    assert (pattern.id, pattern.thumbnail) == ("a" * 32, bytes(range(32)) * 32)
    assert math.isnan(pattern.features["odd"])
    assert isinstance(stub, WorkloadInfo)
    assert stub.stub
    first = runs[0]
    assert isinstance(first, Run)
    assert first.config == Config({"tile": 4, "order": ("i", "k")})
    assert first.measurement.times_s == (0.001, 0.002)
    assert first.measurement.context == {"load": 0.5, "governor": "powersave"}


# -- the real files -------------------------------------------------------------------------

REAL = [
    ("waco", "waco", 2429, {"ok": 2429}),
    ("lcm", "lcm/spmm_tiles_niagara.csv.gz", 12528, {"ok": 12528}),
    ("lcm", "lcm/spmv_ddt_niagara.csv.gz", 9468, {"ok": 9468}),
    ("ra-spmm", "ra-spmm/rtx3090_sweep.csv", 1920, {"ok": 1920}),
    ("ra-spmm", "ra-spmm/rtx3090_unseen_sweep.csv", 324, {"ok": 308, "crash": 16}),
    ("liteform", "liteform/hyb_best_2279.csv.gz", 11395, {"ok": 10770, "crash": 625}),
    ("morpheus", "morpheus/cirrus-square_set-serial.csv.gz", 12636, {"ok": 11643, "crash": 993}),
]


@pytest.mark.shared
@pytest.mark.parametrize(("reader", "name", "count", "statuses"), REAL)
def test_real_files(
    shared: Path, reader: str, name: str, count: int, statuses: dict[str, int]
) -> None:
    path = shared / "runs" / name
    assert guess(path)[0] == reader
    rows = runs_of(reader, path)
    assert len(rows) == count
    assert Counter(row.measurement.status for row in rows) == statuses
    assert all(row.measurement.times_s for row in rows if row.measurement.ok)


@pytest.mark.shared
def test_real_waco_counts(shared: Path) -> None:
    rows = runs_of("waco", shared / "runs" / "waco")
    assert Counter(str(r.op) for r in rows) == {"spmm:256": 870, "sddmm:256": 789, "spmv": 770}
    assert len({row.matrix.name for row in rows}) == 10


@pytest.mark.shared
def test_real_ginkgo(shared: Path) -> None:
    folder = shared / "runs" / "ginkgo"
    rows = runs_of(
        "ginkgo", folder / "spmv_times.csv.gz", features=folder / "matrix_features.csv.gz"
    )
    assert len(rows) == 224_180
    statuses = Counter(row.measurement.status for row in rows)
    assert statuses == {"ok": 214_949, "crash": 9_228, "wrong": 3}
    assert len({(row.matrix.group, row.matrix.name) for row in rows}) == 2838
    assert len({row.instance for row in rows}) == 8
    assert all(len(row.matrix.features) == 27 for row in rows)


@pytest.mark.shared
def test_real_morpheus(shared: Path) -> None:
    """Eight sets; lines that lost their time are rejects; names find their features."""
    folder, sets, found, cut = shared / "runs" / "morpheus", set(), 0, 0
    features = shared / "runs" / "ginkgo" / "matrix_features.csv.gz"
    for path in sorted(folder.glob("*.csv.gz")):
        rows = rows_of("morpheus", path, features=features)
        good = [row for row in rows if isinstance(row, RunRow)]
        sets |= {row.instance for row in good}
        found += len({r.matrix.name for r in good if len(r.matrix.features) == 27})
        cut += len(rows) - len(good)
        test = (folder / "test_lists" / path.name.replace(".csv.gz", ".txt")).read_text().split()
        assert set(test) <= {row.matrix.name for row in good}
    assert sets == {"a64fx-openmp", "a64fx-serial", "ampere-cuda", "archer2-openmp"} | {
        "cirrus-cuda", "cirrus-openmp", "cirrus-serial", "xci-serial",
    }  # fmt: skip
    assert (found, cut) == (16_458, 44)


@pytest.mark.shared
def test_real_tvm_record(shared: Path) -> None:
    (row,) = runs_of("tvm", shared / "runs" / "formats" / "tvm_auto_scheduler_sparse_dense.json")
    assert (row.matrix.m, row.matrix.n, row.matrix.nnz) == (512, 512, 9831 * 16)
    assert (row.op, row.measurement.times_s) == (Op("spmm", 512), (0.000957008,))


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize(("reader", "name"), [real[:2] for real in REAL])
def test_real_configs_are_legal(shared: Path, reader: str, name: str) -> None:
    platform = load_platform(plugins.load("reader", reader)().platform)
    spaces: dict[Any, Any] = {}
    for row in runs_of(reader, shared / "runs" / name):
        key = (row.op, row.matrix.m, row.matrix.n)
        space = spaces.get(key) or platform.space(row.op, Sizes(m=row.matrix.m, n=row.matrix.n))
        spaces[key] = space
        assert space.reason(Config(row.config)) is None


def test_golden_export_is_reproducible() -> None:
    """What is read is written back byte for byte."""
    found = list(documents(GOLDEN / "export.jsonl"))
    out = io.StringIO()
    write_jsonl(
        out,
        [row for row in found if isinstance(row, Run)],
        [row for row in found if isinstance(row, WorkloadInfo)],
        [row for row in found if isinstance(row, PlatformDoc)],
    )
    assert out.getvalue() == (GOLDEN / "export.jsonl").read_text()
