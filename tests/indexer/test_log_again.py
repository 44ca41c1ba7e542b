"""Logs read again: saved in another way, corrected, and with withdrawn runs. All rows are stored:
a line says what a user may want to withdraw."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from builders import OP, VARIANTS, patterns, tiny
from click.testing import CliRunner

from embeddb.store import Store, memory_store
from embeddb.store.withdrawn import RunSelection
from embeddb.ui.cli.main import cli
from indexer.ingest import IngestReport, ingest
from indexer.readers.base.row import ReadOptions

#: Microseconds by matrix and variant, with five digits as a fine clock gives them.
TIMES = {
    (p.name, v): 100.0 + 13.137 * at + 7.719 * nth
    for nth, p in enumerate(patterns(3))
    for at, v in enumerate(VARIANTS)
}
Times = Iterable[tuple[tuple[str, str], float]]
ALL = list(TIMES.items())


def log(path: Path, times: Times = ALL, more: str = "") -> Path:
    path.parent.mkdir(exist_ok=True)
    rows = [f"{matrix},{v},{t:.3f}\n" for (matrix, v), t in times]
    path.write_text("".join(("matrix,variant,time_us\n", *rows, more)))
    return path


def read(store: Store, path: Path) -> IngestReport:
    return ingest(store, path, platform=tiny(), options=ReadOptions(op=OP))


def milliseconds(path: Path) -> Path:
    rows = [f"{v},{t / 1000:.6f},{m}\n" for (m, v), t in TIMES.items()]
    path.write_text("".join(("variant,time_ms,matrix\n", *rows)))
    return path


def packed(path: Path) -> Path:
    path.write_bytes(gzip.compress(log(path.with_suffix(".tmp")).read_bytes()))
    return path


def as_json(path: Path) -> Path:
    rows = ({"matrix": m, "variant": v, "time_us": round(t, 3)} for (m, v), t in TIMES.items())
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("saved", [milliseconds, packed, as_json])
def test_a_log_saved_in_another_way_is_named(tmp_path: Path, saved: Callable[[Path], Path]) -> None:
    store = memory_store()
    read(store, log(tmp_path / "a.csv"))
    report = read(store, saved(tmp_path / "b.log"))
    assert report.copies == {"csv:a.csv": len(TIMES)} and report.added == len(TIMES)
    assert read(store, tmp_path / "b.log").copies == {}, "named once"
    third = read(store, log(tmp_path / "c.csv", ALL[::-1]))
    assert set(third.copies) == {"csv:a.csv", report.campaign}


def test_a_log_whose_name_and_folder_are_not_utf_8_is_read_once(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff"))
    folder.mkdir()
    path = log(folder / os.fsdecode(b"b\xff.csv"))
    store = memory_store()
    first, again = read(store, path), read(store, path)
    assert (first.added, again.added) == (len(ALL), 0)
    assert first.campaign == again.campaign and first.campaign.endswith(r"b\xff.csv")
    json.dumps(first.file).encode()


def test_another_day_is_no_copy(tmp_path: Path) -> None:
    store = memory_store()
    read(store, log(tmp_path / "a.csv"))
    other = [(at, (1.01 if nth % 4 == 0 else 1.0) * t) for nth, (at, t) in enumerate(ALL)]
    assert read(store, log(tmp_path / "b.csv", other)).copies == {}
    assert read(store, log(tmp_path / "c.csv", ALL[:4])).copies == {}, "four rows say little"


def test_a_row_that_was_cut_off_is_named_and_counted_when_the_log_goes_on(tmp_path: Path) -> None:
    store, path = memory_store(), tmp_path / "a.csv"
    text = log(path).read_text()
    path.write_text(text[:-3])  # as of a log that is being written: a shorter number
    report = read(store, path)
    assert report.open_end and report.added == len(TIMES)
    path.write_text(text + "m0,a,")
    report = read(store, path)
    assert report.open_end and (report.added, report.stale) == (1, 1)
    path.write_text(text)
    report = read(store, path)
    assert not report.open_end and report.added == 0


@pytest.mark.parametrize("end", ["", "\r"])
def test_a_last_row_that_was_whole_is_not_counted_when_the_log_goes_on(
    tmp_path: Path, end: str
) -> None:
    store, path = memory_store(), tmp_path / "a.csv"
    text = log(path).read_text().replace("\n", f"{end}\n").encode()
    path.write_bytes(text[:-1])
    assert read(store, path).open_end == (end == "")
    path.write_bytes(text + text[-20:])
    assert read(store, path).stale == 0
    assert not read(store, as_json(tmp_path / "b.jsonl")).open_end


READER = """
from indexer.readers.mapped import CsvReader

class PLUGIN(CsvReader):
    name = "of-mine"

    def rows(self, path, *, options):
        return list(super().rows(path, options=options))[:ROWS]
"""


def test_a_log_is_read_again_by_a_plug_in_that_was_corrected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, path = memory_store(), log(tmp_path / "a.csv")
    added = []
    for version, rows in (("first", 2), ("same", 2), ("corrected", 5)):
        file = tmp_path / version / "readers" / "of_mine.py"
        file.parent.mkdir(parents=True)
        file.write_text(READER.replace("ROWS", str(rows)))
        monkeypatch.setenv("EMBEDDB_PLUGINS", str(tmp_path / version))
        options = ReadOptions(op=OP)
        added.append(ingest(store, path, reader="of-mine", platform=tiny(), options=options).added)
    assert added == [2, 0, 3]


WRONG = next(iter(TIMES))


def corrected(value: float) -> Times:
    return [(at, value if at == WRONG else t) for at, t in TIMES.items()]


def test_runs_that_are_not_in_an_edited_log_any_more_are_counted(tmp_path: Path) -> None:
    store, path = memory_store(), tmp_path / "a.csv"
    assert read(store, log(path, corrected(346.1))).stale == 0
    report = read(store, log(path, corrected(34.61)))
    assert (report.added, report.duplicates, report.stale) == (1, len(TIMES) - 1, 1)
    assert read(store, log(path, corrected(34.61), "m0a,a,1.5\n")).stale == 0, "it goes on"
    assert read(store, log(path, corrected(346.1))).stale == 2


def test_runs_of_a_log_that_is_read_in_another_way_are_counted(tmp_path: Path) -> None:
    """Rows of two machines are first stored as those of one, then apart."""
    store, path = memory_store(), log(tmp_path / "a.csv")
    path.write_text(path.read_text().replace("\n", ",one\n").replace("_us,one", "_us,host"))
    assert read(store, path).stale == 0
    apart = ReadOptions(op=OP, columns={"instance": "host"})
    report = ingest(store, path, platform=tiny(), options=apart)
    assert (report.added, report.stale) == (len(TIMES), len(TIMES))
    assert read(store, path).stale == 0, "nothing is added"
    store.withdrawn.withdraw(RunSelection(campaign="csv:a.csv"))
    again = ingest(store, path, platform=tiny(), options=replace(apart, instance="x"))
    assert (again.added, again.stale) == (0, 0)


def test_a_wrong_time_is_corrected_under_another_name(tmp_path: Path) -> None:
    platform = tmp_path / "tiny.toml"
    platform.write_text(tiny().text)

    def index(path: Path) -> str:
        words = ["index", str(tmp_path / "d.db"), str(path), "--platform", str(platform)]
        done = CliRunner().invoke(cli, [*words, "--op", str(OP)])
        assert done.exit_code == 0, done.output
        return done.output

    def withdraw(*words: str) -> None:
        line = ["db", "withdraw", str(tmp_path / "d.db"), *words, "--yes"]
        assert CliRunner().invoke(cli, line).exit_code == 0

    index(log(tmp_path / "a.csv", corrected(346.1)))
    edited = index(log(tmp_path / "a.csv"))
    assert "1 run of an earlier reading of this log, not in it now" in edited
    assert "embeddb db withdraw DB --campaign csv:a.csv --yes" in edited
    copied = index(milliseconds(tmp_path / "b.csv"))
    assert f"{len(TIMES)} rows equal to runs of csv:a.csv, to nine digits" in copied
    withdraw("--campaign", "csv:a.csv")
    undo = "--undo --campaign csv:a.csv"
    assert f"embeddb db withdraw DB {undo} --yes` restores" in index(tmp_path / "a.csv")
    withdraw(*undo.split())
    assert "withdrawn" not in index(tmp_path / "a.csv")
    withdraw("--op", str(OP))
    renamed = index(log(tmp_path / "renamed.csv"))
    assert "withdrawn, perhaps these: `embeddb db withdraw DB --undo` lists them" in renamed


def test_withdrawn_runs_of_a_log_are_counted(tmp_path: Path) -> None:
    store, path = memory_store(), tmp_path / "a.csv"
    read(store, log(path))
    store.withdrawn.withdraw(RunSelection(campaign="csv:a.csv"))
    again = read(store, path)
    assert (again.added, again.withdrawn, again.campaign) == (0, len(TIMES), "csv:a.csv")
