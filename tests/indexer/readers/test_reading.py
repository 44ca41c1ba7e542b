"""The one way to the rows of a log: what is no log, or ends a reader, is one line that names it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from builders import tiny

from embeddb.core import plugins
from embeddb.core.config import Op
from embeddb.core.errors import PluginError, PluginWarning, ReaderError, UsageError
from embeddb.core.records import Measurement
from embeddb.store import memory_store
from indexer.ingest import ingest
from indexer.readers.base import lines
from indexer.readers.base.lines import files_below, guess, read_rows
from indexer.readers.base.row import MatrixRef, ReadOptions, Reject, RunRow

SPMM = Op("spmm", 128)
MANY = "1" * 5000


def rows_of(reader: str, path: Path) -> list[RunRow | Reject]:
    plug = plugins.load("reader", reader)()
    return list(read_rows(plug, path, ReadOptions(op=SPMM)))


def told(rows: list[RunRow | Reject]) -> list[str]:
    return [row.reason if isinstance(row, Reject) else "run" for row in rows]


# -- one bad row of a document is one reject ---------------------------------------------------


def test_kernel_tuner_number_of_thousands_of_digits(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    good = '{"a": 1, "time": 2.5}'
    path.write_text(
        '{"device_name": "x", "kernel_name": "k", "tune_params_keys": ["a"], "cache": {\n'
        f'"1": {{"a": {MANY}, "time": 1}},\n"2": {good},\n"3": {{"a": 1, "times": 7}},\n'
        f'"4": {good}}}}}'
    )
    assert told(rows_of("kernel-tuner", path)) == [
        "a damaged entry",
        "run",
        "no time and no error",
        "run",
    ]
    path.write_text(f'{{"tune_params_keys": ["a"], "x": {MANY}, "cache": {{}}}}')
    with pytest.raises(ReaderError, match=r"a\.json: the header is not JSON"):
        rows_of("kernel-tuner", path)


def test_t4_of_wrong_kinds(tmp_path: Path) -> None:
    one: dict[str, Any] = {
        "configuration": {"a": 1},
        "invalidity": "correct",
        "measurements": [{"name": "time", "value": 1.5, "unit": "ms"}],
    }
    wrong = [{"objectives": 5}, {"measurements": 5}, {"times": {"runtimes": 3}}, {"embeddb": []}]
    path = tmp_path / "a.json"
    results = [one, *({**one, **more} for more in wrong)]
    path.write_text(json.dumps({"metadata": {"timeunit": "milliseconds"}, "results": results}))
    found = told(rows_of("t4", path))
    assert found[0] == found[-1] == "run"
    assert found[1] == "objectives is not a list of names"
    assert "run" not in found[1:4]
    path.write_text('{"results": [' + MANY + "]}")
    with pytest.raises(ReaderError, match="not a t4 file: not JSON"):
        rows_of("t4", path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"i": [["[]"]], "r": []},
        {"i": [['["sparse_dense", 1, 2, 3, [1], [1], [1], "float32"]'], [0, []]], "r": [1]},
        {"i": [["[" + MANY + "]"]], "r": []},
        {"i": [['["sparse_dense", 1, 2, 3, ' + str([10**17] * 400) + ', 1, 1, "float32"]']]},
    ],
)
def test_tvm_of_wrong_kinds(tmp_path: Path, wrong: Any) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(wrong) + "\n")
    assert [type(row) for row in rows_of("tvm", path)] == [Reject]


def test_a_matrix_larger_than_any_is_a_reject(tmp_path: Path) -> None:
    sizes = [10**17, 10**17]
    task = json.dumps(["sparse_dense", 16, 8, 8, sizes, [1], [1], "float32"])
    path = tmp_path / "a.json"
    path.write_text(
        json.dumps({"i": [[task, "llvm"], [0, []]], "r": [[1.0], 0, 1, 2], "v": "1"}) + "\n"
    )
    report = ingest(memory_store(), path, reader="tvm", platform=tiny())
    assert (report.added, report.rejected) == (0, 1)
    assert "is no possible size" in (tmp_path / "a.json.rejects.jsonl").read_text()


# -- what is no file -------------------------------------------------------------------------


@pytest.mark.parametrize("reader", ["", *plugins.available("reader")])
def test_a_pipe_is_refused_at_once(tmp_path: Path, reader: str) -> None:
    os.mkfifo(tmp_path / "a.csv")
    with pytest.raises(ReaderError, match=r"a\.csv: a named pipe, not a file"):
        ingest(memory_store(), tmp_path / "a.csv", reader=reader, platform=tiny())


def test_a_pipe_of_features_is_refused_at_once(tmp_path: Path) -> None:
    log = tmp_path / "a.csv"
    log.write_text("matrix,variant,time_s\nx,a,1\n")
    os.mkfifo(tmp_path / "f.csv")
    asked = ReadOptions(op=SPMM, features=tmp_path / "f.csv")
    with pytest.raises(ReaderError, match=r"f\.csv: a named pipe, not a file"):
        ingest(memory_store(), log, platform=tiny(), options=asked)


def test_links_in_a_folder_of_logs_are_not_followed(tmp_path: Path) -> None:
    line = "1 1 1 i1 i0 k1 k0 j1 j0 1 1 0 1 i1 48 32 = 3.5\n"
    folder = tmp_path / "SpMM" / "CollectedData"
    folder.mkdir(parents=True)
    (folder / "own.txt").write_text(line)
    (tmp_path / "secret.txt").write_text("the user's own\n")
    (folder / "leak.txt").symlink_to(tmp_path / "secret.txt")
    os.mkfifo(folder / "pipe.txt")
    (tmp_path / "SpMM" / "more").symlink_to(tmp_path)
    rows = rows_of("waco", tmp_path / "SpMM")
    assert [row.matrix.name for row in rows if isinstance(row, RunRow)] == ["own"]
    assert len(rows) == 1
    (folder / "own.txt").unlink()
    with pytest.raises(ReaderError, match="links in it are not followed"):
        rows_of("waco", tmp_path / "SpMM")


def test_a_folder_of_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").touch()
    assert len(files_below(tmp_path, ".txt")) == 3
    monkeypatch.setattr(lines, "MOST_FILES", 2)
    with pytest.raises(ReaderError, match="more than 2 files"):
        files_below(tmp_path, ".txt")


# -- plug-ins ----------------------------------------------------------------------------------


class Broken:
    name, platform, generic = "broken", "", True

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def sniff(self, path: Path, head: bytes) -> bool:
        raise self.error

    def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
        yield Reject(1, "first")
        raise self.error


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (IndexError("out of range"), "a.log: the reader broken failed: out of range"),
        (SystemExit(3), "a.log: the reader broken failed: 3 (SystemExit)"),
        (RecursionError(), "a.log: the reader broken failed: nested too deeply"),
        (ReaderError("no header", line=3, hint="add one"), "a.log:3: no header"),
        (ReaderError("no header", where="b.log"), "b.log: no header"),
    ],
)
def test_whatever_a_reader_raises_names_the_log(raised: BaseException, said: str) -> None:
    rows = read_rows(Broken(raised), Path("a.log"), ReadOptions())
    assert isinstance(next(rows), Reject)
    with pytest.raises(ReaderError) as caught:
        next(rows)
    assert str(caught.value).startswith(said)


def row_with(**wrong: Any) -> RunRow:
    """A row of a matrix `a` in line 2, with wrong fields."""
    run = RunRow(MatrixRef("a"), Op("spmm", 8), {"x": 1}, Measurement("ok", (1.0,)), 2)
    return msgspec.structs.replace(run, **wrong)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (None, "it returned a NoneType, neither a RunRow nor a Reject"),
        (
            RunRow(MatrixRef("a"), Op("spmm", 8), {}, Measurement("fine", (1.0,)), 2),
            "line 2: no status 'fine'",
        ),
        (row_with(campaign=5), "line 2: its campaign is 5, no str"),
        (row_with(op="spmm:8"), "line 2: its op is 'spmm:8', no Op"),
        (row_with(config=None), "line 2: its config is None, no Mapping"),
        (row_with(matrix=MatrixRef("a", m=4.0)), r"line 2: its m is 4\.0, no int"),
        (row_with(measurement=Measurement("ok")), "line 2: its status is ok, and it has no time"),
        (
            row_with(measurement=Measurement(times_s=(np.float64(1.0),))),
            "line 2: a run of spmm:8 cannot be stored: Encoding objects of type numpy.float64",
        ),
    ],
)
def test_what_can_be_no_run_is_a_fault_of_the_reader(row: Any, said: str) -> None:
    class Odd(Broken):
        def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
            yield row

    with pytest.raises(ReaderError, match=f"a.log: the reader broken failed: {said}"):
        list(read_rows(Odd(KeyError()), Path("a.log"), ReadOptions()))


def test_a_configuration_that_a_reader_writes_again_is_copied() -> None:
    class Sharing(Broken):
        def rows(self, path: Path, *, options: ReadOptions) -> Iterator[RunRow | Reject]:
            config: dict[str, int] = {}
            for x in range(3):
                config["x"] = x
                yield row_with(config=config)

    rows = list(read_rows(Sharing(KeyError()), Path("a.log"), ReadOptions()))
    assert [row.config["x"] for row in rows if isinstance(row, RunRow)] == [0, 1, 2]


def test_other_errors_of_ours_pass() -> None:
    with pytest.raises(UsageError, match="which"):
        list(read_rows(Broken(UsageError("which platform?")), Path("a.log"), ReadOptions()))


def test_a_reader_that_cannot_look_at_a_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "available", lambda kind: ["broken"])
    monkeypatch.setattr(plugins, "load", lambda kind, name: lambda: Broken(KeyError("x")))
    (tmp_path / "a.log").touch()
    with pytest.raises(ReaderError, match=r"a\.log: 'x' \(KeyError\)") as caught:
        guess(tmp_path / "a.log")
    assert "broken" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nothing_of_this_name", "No module named 'nothing_of_this_name'"),
        ("PLUGIN = 5", r"reader half-done cannot be created: 'int' object is not callable"),
        ("raise SystemExit('no licence')", "no licence"),
        ("class PLUGIN: pass", "no attribute 'sniff'"),
    ],
)
def test_others_read_where_a_reader_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    (tmp_path / "readers").mkdir()
    (tmp_path / "readers" / "half_done.py").write_text(text)
    monkeypatch.setenv("EMBEDDB_PLUGINS", str(tmp_path))
    log = tmp_path / "runs.csv"
    log.write_text("matrix,x,time_us\na,1,5\n")
    with pytest.warns(PluginWarning, match=f"runs.csv: .*{said}.*the reader half-done failed"):
        assert guess(log) == ["csv"]
    log.write_text("prose")
    with pytest.raises(ReaderError, match=said) as caught:
        guess(log)
    assert caught.value.hint == "the reader half-done failed to examine it"


def test_a_plug_in_that_fails_while_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "readers").mkdir()
    (tmp_path / "readers" / "half_done.py").write_text("PLUGIN = 1 // 0\n")
    monkeypatch.setenv("EMBEDDB_PLUGINS", str(tmp_path))
    with pytest.raises(PluginError, match=r"reader half-done .*: integer division"):
        plugins.load("reader", "half-done")
