"""Logs read again: saved in another way, corrected, and with withdrawn runs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from builders import OP, VARIANTS, patterns, tiny
from click.testing import CliRunner

from embeddb.core.records import Run
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


def runs(store: Store) -> list[Run]:
    return [r for p in store.partitions() for r in store.runs(p.platform, p.op)]


def microseconds(store: Store, at: tuple[str, str]) -> list[float]:
    (info,) = store.find(at[0])
    chosen = (r for r in store.runs("tiny", OP, info.id) if r.config["variant"] == at[1])
    return sorted(round(r.seconds * 1e6, 3) for r in chosen)


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
def test_a_log_saved_in_another_way_is_no_new_evidence(tmp_path: Path, saved) -> None:  # type: ignore[no-untyped-def]
    store = memory_store()
    read(store, log(tmp_path / "a.csv"))
    before = {run.id for run in runs(store)}
    report = read(store, saved(tmp_path / "b.log"))
    assert (report.added, report.duplicates) == (0, len(TIMES))
    assert report.copies == {"csv:a.csv": len(TIMES)}
    assert {run.id for run in runs(store)} == before


def test_a_longer_log_under_another_name_adds_the_rest(tmp_path: Path) -> None:
    store = memory_store()
    some = ALL[:20]
    read(store, log(tmp_path / "a.csv", some))
    report = read(store, log(tmp_path / "b.csv"))
    assert (report.added, report.copies) == (len(TIMES) - 20, {"csv:a.csv": 20})


def test_two_days_in_one_log_add_the_new_one(tmp_path: Path) -> None:
    store = memory_store()
    read(store, log(tmp_path / "a.csv"))
    other = [(at, 1.01 * t) for at, t in TIMES.items()]
    report = read(store, log(tmp_path / "both.csv", [*other, *ALL]))
    assert (report.added, report.copies) == (len(TIMES), {"csv:a.csv": len(TIMES)})


def test_times_that_a_coarse_clock_makes_equal_are_kept(tmp_path: Path) -> None:
    store = memory_store()
    read(store, log(tmp_path / "a.csv", [(at, 100.0) for at in TIMES]))
    day = [(at, 100.0 + (nth % 4 == 0)) for nth, at in enumerate(TIMES)]
    report = read(store, log(tmp_path / "b.csv", day))
    assert (report.added, report.copies) == (len(TIMES), {})


def test_repeats_that_a_copy_has_more_are_added(tmp_path: Path) -> None:
    store = memory_store()
    read(store, log(tmp_path / "a.csv", ALL * 2))
    report = read(store, log(tmp_path / "b.csv", ALL * 3))
    assert (report.added, report.duplicates) == (len(TIMES), 2 * len(TIMES))


# -- corrected -------------------------------------------------------------------------------------

WRONG = next(iter(TIMES))


def corrected(value: float) -> Times:
    return [(at, value if at == WRONG else t) for at, t in TIMES.items()]


def test_a_corrected_time_replaces_the_wrong_one(tmp_path: Path) -> None:
    store, path = memory_store(), tmp_path / "a.csv"
    read(store, log(path, corrected(346.1)))
    report = read(store, log(path, corrected(34.61)))
    assert (report.added, report.corrected, report.duplicates) == (1, 1, len(TIMES) - 1)
    assert microseconds(store, WRONG) == [34.61]
    assert len(runs(store)) == len(TIMES)
    # A further edit elsewhere leaves it, and the first content can come back.
    assert read(store, log(path, corrected(34.61), "m0a,a,1.5\n")).corrected == 0
    assert microseconds(store, WRONG) == [1.5, 34.61]
    assert read(store, log(path, corrected(346.1))).corrected == 1
    assert 346.1 in microseconds(store, WRONG)


def test_times_of_a_wrong_unit_are_replaced_and_those_of_another_unit_stay(tmp_path: Path) -> None:
    store, path = memory_store(), tmp_path / "a.csv"
    read(store, log(path, [(at, 1000 * t) for at, t in TIMES.items()]))
    assert read(store, log(path)).corrected == len(TIMES)
    assert microseconds(store, WRONG) == [100.0]
    report = read(store, milliseconds(path))
    assert (report.added, report.corrected, report.duplicates) == (0, 0, len(TIMES))


def test_a_corrected_unit_replaces_the_times(tmp_path: Path) -> None:
    store, path = memory_store(), log(tmp_path / "a.csv")
    path.write_text(path.read_text().replace("time_us", "time"))
    for unit in ("ms", "us"):
        options = ReadOptions(op=OP, unit=unit)
        report = ingest(store, path, platform=tiny(), options=options)
    assert report.corrected == len(TIMES) == len(runs(store))
    assert microseconds(store, WRONG) == [100.0]


def test_rows_put_in_front_correct_nothing(tmp_path: Path) -> None:
    store, path = memory_store(), tmp_path / "a.csv"
    read(store, log(path))
    report = read(store, log(path, [(WRONG, 99.5), *ALL]))
    assert (report.added, report.corrected) == (1, 0)
    assert microseconds(store, WRONG) == [99.5, 100.0]


def test_a_correction_that_was_interrupted_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexer.ingest.BATCH", 5)
    store, path = memory_store(), tmp_path / "a.csv"
    read(store, log(path, [(at, 1000 * t) for at, t in TIMES.items()]))

    def stop(rows: int) -> None:
        if rows >= 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        options = ReadOptions(op=OP)
        ingest(store, log(path), platform=tiny(), options=options, progress=stop)
    report = read(store, path)
    assert report.resumed_at == 10 and report.corrected == len(TIMES) - 10
    assert max(run.seconds for run in runs(store)) < 1e-3
    assert len(runs(store)) == len(TIMES)


# -- withdrawn -------------------------------------------------------------------------------------


def test_a_withdrawn_log_says_so_and_can_be_corrected_and_restored(tmp_path: Path) -> None:
    store, path = memory_store(), tmp_path / "a.csv"
    read(store, log(path, corrected(346.1)))
    this = RunSelection(campaign="csv:a.csv")
    store.withdrawn.withdraw(this)
    again = read(store, path)
    assert (again.added, again.withdrawn, again.campaign) == (0, len(TIMES), "csv:a.csv")
    report = read(store, log(path, corrected(34.61)))
    assert (report.added, report.corrected, report.withdrawn) == (1, 1, len(TIMES))
    store.withdrawn.restore(this)
    assert microseconds(store, WRONG) == [34.61] and len(runs(store)) == len(TIMES)


def test_index_names_copies_corrections_and_the_way_back(tmp_path: Path) -> None:
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
    assert "1 row stored earlier with another time: replaced" in index(log(tmp_path / "a.csv"))
    copied = index(milliseconds(tmp_path / "b.csv"))
    assert f"{len(TIMES)} rows equal to runs of csv:a.csv: not added again" in copied
    withdraw("--campaign", "csv:a.csv")
    way = "--undo --campaign csv:a.csv"
    assert f"embeddb db withdraw DB {way} --yes` restores" in index(tmp_path / "a.csv")
    withdraw(*way.split())
    assert "withdrawn" not in index(tmp_path / "a.csv")


def test_imported_runs_yield_to_the_log_they_come_from(tmp_path: Path) -> None:
    theirs, ours = memory_store(), memory_store()
    read(theirs, log(tmp_path / "a.csv"))
    ours.put_platform(tiny())
    ours.take([replace(run) for run in runs(theirs)], theirs.patterns())
    report = read(ours, log(tmp_path / "b" / "b.csv"))
    assert (report.added, report.copies) == (len(TIMES), {})
