"""Run logs into the store: resumable, idempotent, and every row accounted for."""

from __future__ import annotations

import contextlib
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import OP, VARIANTS, band, by_law, patterns, sized, tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from embeddb.core.config import Config, Op
from embeddb.core.errors import InputError, ReaderError, StoreError, StoreFull, UsageError
from embeddb.core.pattern import Pattern
from embeddb.core.records import Run
from embeddb.database import Database
from embeddb.index.scopes import run_matrix_of
from embeddb.platforms.platform import Platform, parse_platform
from embeddb.store import Store, memory_store
from indexer import ingest as module
from indexer.coverage import scope_states
from indexer.embed import adopt_stubs, embed
from indexer.ingest import IngestReport, ingest, rejects_places
from indexer.library import Library
from indexer.log_identity import RowSubjects
from indexer.readers.base.row import MatrixRef, ReadOptions

HEAD = ("matrix", "rows", "cols", "nnz", "variant", "time_us")


def log(path: Path, rows: list[tuple[Any, ...]], head: tuple[str, ...] = HEAD) -> Path:
    with path.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([head, *rows])
    return path


def rows_of(among: list[Pattern]) -> list[tuple[Any, ...]]:
    return [
        (p.name, *p.shape, p.nnz, v, by_law(p, at) * 1e6)
        for p in among
        for at, v in enumerate(VARIANTS)
    ]


def read(store: Store, path: Path, **options: Any) -> IngestReport:
    platform = options.pop("platform", tiny())
    library = options.pop("library", None)
    asked = ReadOptions(op=OP, **options)
    return ingest(store, path, platform=platform, options=asked, library=library)


def contents(store: Store) -> set[str]:
    found: set[str] = set()
    for partition in store.partitions():
        found |= {run.id for run in store.runs(partition.platform, partition.op)}
    return found


def save(folder: Path, pattern: Pattern) -> None:
    from scipy.io import mmwrite

    folder.mkdir(exist_ok=True)
    mmwrite(folder / f"{pattern.name}.mtx", pattern.to_scipy(), field="pattern")


# -- once, twice, in pieces --------------------------------------------------------------------


def test_every_row_arrives_in_seconds(tmp_path: Path) -> None:
    store, among = memory_store(), patterns(2)
    report = read(store, log(tmp_path / "a.csv", rows_of(among)))
    assert (report.rows, report.added, report.rejected, report.stubs) == (32, 32, 0, 8)
    assert (report.platforms, report.ops, report.reader) == ({"tiny"}, {"spmm:32"}, "csv")
    for pattern in among:
        (info,) = store.find(pattern.name)
        assert (info.m, info.n, info.nnz, info.stub) == (*pattern.shape, pattern.nnz, True)
        times = {
            r.config["variant"]: r.measurement.seconds for r in store.runs("tiny", OP, info.id)
        }
        assert times == pytest.approx({v: by_law(pattern, at) for at, v in enumerate(VARIANTS)})
    body = json.loads(json.dumps(report.document()))
    assert body["added"] == 32 and body["platforms"] == ["tiny"]


def test_the_same_file_twice_adds_nothing(tmp_path: Path) -> None:
    store, file = memory_store(), log(tmp_path / "a.csv", rows_of(patterns(2)))
    read(store, file)
    before, generation = contents(store), store.generation
    again = read(store, file)
    assert (again.rows, again.added, again.duplicates, again.resumed_at) == (32, 0, 0, 32)
    assert contents(store) == before and store.generation == generation


def test_a_copy_of_the_file_adds_nothing_and_another_file_no_doubt(tmp_path: Path) -> None:
    """Another file may be another measurement that came out alike: it is kept as such."""
    store = memory_store()
    read(store, log(tmp_path / "a.csv", rows_of(patterns(1))))
    before = run_matrix_of(store, OP, "tiny")
    assert read(store, log(tmp_path / "copy.csv", rows_of(patterns(1)))).added == 0
    assert read(store, log(tmp_path / "b.csv", rows_of(patterns(1))[::-1])).added == 16
    after = run_matrix_of(store, OP, "tiny")
    assert store.count_runs() == 32
    assert np.array_equal(before.seconds, after.seconds) and after.noise == 0.0


def test_a_longer_version_of_the_file_adds_the_rest(tmp_path: Path) -> None:
    store = memory_store()
    file = log(tmp_path / "a.csv", rows_of(patterns(1)))
    read(store, file)
    log(file, rows_of(patterns(2)))
    report = read(store, file)
    assert (report.added, report.duplicates) == (16, 16)


class _Failing:
    """A store whose append raises once, at the n-th batch, before or after it is durable."""

    def __init__(self, store: Store, at: int, *, after: bool) -> None:
        self._store, self._left, self._after = store, at, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def append(self, *args: Any, **kwargs: Any) -> Any:
        self._left -= 1
        if self._left == 0 and not self._after:
            raise StoreFull("no space left")
        result = self._store.append(*args, **kwargs)
        if self._left == 0:
            raise KeyboardInterrupt
        return result


def _spoiled(among: list[Pattern]) -> list[tuple[Any, ...]]:
    """Rows with a bad one after every fifth."""
    rows: list[tuple[Any, ...]] = []
    for at, row in enumerate(rows_of(among)):
        rows.append(row)
        if at % 5 == 4:
            rows.append((*row[:4], "z", 1.0))
    return rows


@pytest.mark.parametrize("after", [False, True])
@settings(max_examples=12, deadline=None)
@given(batch=st.integers(1, 20), stops=st.lists(st.integers(1, 6), max_size=4))
def test_it_goes_on_where_it_stopped(
    tmp_path_factory: pytest.TempPathFactory, after: bool, batch: int, stops: list[int]
) -> None:
    tmp_path = tmp_path_factory.mktemp("resume")
    file = log(tmp_path / "a.csv", _spoiled(patterns(2)))
    whole = memory_store()
    read(whole, file)
    wanted = (tmp_path / "a.csv.rejects.jsonl").read_text()
    (tmp_path / "a.csv.rejects.jsonl").unlink()
    store = memory_store()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BATCH", batch)
        for stop in stops:
            failing: Any = _Failing(store, stop, after=after)
            with contextlib.suppress(StoreFull, KeyboardInterrupt):
                read(failing, file)
        report = read(store, file)
    assert contents(store) == contents(whole)
    assert (report.rows, report.rejected) == (38, 6)
    assert (tmp_path / "a.csv.rejects.jsonl").read_text() == wanted
    assert len(list(store.patterns())) == 8


def test_progress_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 10)
    seen: list[int] = []
    file = log(tmp_path / "a.csv", rows_of(patterns(2)))
    ingest(memory_store(), file, platform=tiny(), options=ReadOptions(op=OP), progress=seen.append)
    assert seen == [10, 20, 30, 32]


# -- rejected rows -----------------------------------------------------------------------------


def _rejects(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_is_wrong_with_a_row_and_where(tmp_path: Path) -> None:
    good = rows_of(patterns(1))
    bad = [
        ("m0a", 100, 100, 200, "z", 1.0),
        ("m0a", 100, 100, 200, "a", "fast"),
        ("m0a", 100, 100, 200, "a", -1.0),
        ("m0a", -7, 100, 200, "a", 1.0),
        ("", 100, 100, 200, "a", 1.0),
        ("m0a", 100, 100, 200, "a", ""),
    ]
    store = memory_store()
    report = read(store, log(tmp_path / "a.csv", [*good[:3], *bad, *good[3:]]))
    assert (report.rows, report.added, report.rejected) == (22, 16, 6)
    assert report.rejects_file == str(tmp_path / "a.csv.rejects.jsonl")
    found = _rejects(Path(report.rejects_file))
    assert [r["line"] for r in found] == [5, 6, 7, 8, 9, 10]
    assert found[0]["reason"] == "parameter 'variant': z is not one of a, b, c, d"
    assert "not a number" in found[1]["reason"] and "not positive" in found[2]["reason"]
    assert "size" in found[3]["reason"] and found[4]["reason"] == "no matrix name"
    assert "no time" in found[5]["reason"]
    assert all(r["text"] for r in found)


def test_a_corrected_log_has_no_file_of_rejected_rows(tmp_path: Path) -> None:
    good, bad = rows_of(patterns(1)), ("m0a", 100, 100, 200, "z", 1.0)
    store, rejects = memory_store(), tmp_path / "a.csv.rejects.jsonl"
    read(store, log(tmp_path / "a.csv", [*good, bad]))
    read(store, log(tmp_path / "a.csv", [*good, bad]))
    assert rejects.is_file(), "reading the same log again keeps it"
    report = read(store, log(tmp_path / "a.csv", good))
    assert (report.rejected, report.rejects_file) == (0, "") and not rejects.exists()
    other = tmp_path / "other"
    other.write_text("mine")
    rejects.symlink_to(other)
    read(store, log(tmp_path / "a.csv", good[:3]))
    assert rejects.is_symlink() and other.read_text() == "mine"


def test_an_unknown_parameter_names_those_there_are(tmp_path: Path) -> None:
    head = (*HEAD, "config.unroll")
    report = read(memory_store(), log(tmp_path / "a.csv", [(*rows_of(patterns(1))[0], 4)], head))
    (found,) = _rejects(Path(report.rejects_file))
    assert found["reason"] == "unknown parameter 'unroll'; parameters: variant"
    assert found["line"] == 2


def test_a_missing_parameter_is_said(tmp_path: Path) -> None:
    report = read(memory_store(), log(tmp_path / "a.csv", [("m", 5, 5, 9, "", 1.0)]))
    (found,) = _rejects(Path(report.rejects_file))
    assert found["reason"] == "parameter 'variant' is missing"


def test_what_does_not_fit_the_matrix_is_said(tmp_path: Path) -> None:
    rows = [("m", 20, 64, 50, 256, 8, 1.0), ("m", 20, 64, 50, 16, 64, 1.0)]
    head = ("matrix", "m", "n", "nnz", "config.rows", "config.cols", "time_s")
    store = memory_store()
    report = read(store, log(tmp_path / "a.csv", rows, head), platform=sized())
    (found,) = _rejects(Path(report.rejects_file))
    assert "NUM_MATRIX_ROWS=20: breaks the constraint" in found["reason"]
    (run,) = store.runs("sized", OP)
    assert run.config == Config({"rows": 16, "cols": 64})


def test_a_number_that_is_a_size_of_the_matrix_is_stored_by_its_name(tmp_path: Path) -> None:
    rows = [("m", 20, 37, 50, 1, 37, 1.0), ("m", 20, 37, 50, 1, "NUM_MATRIX_COLS", 2.0)]
    head = ("matrix", "m", "n", "nnz", "config.rows", "config.cols", "time_s")
    store = memory_store()
    read(store, log(tmp_path / "a.csv", rows, head), platform=sized())
    assert {run.config["cols"] for run in store.runs("sized", OP)} == {"NUM_MATRIX_COLS"}


def test_rejects_go_into_the_database_where_the_log_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = log(tmp_path / "a.csv", [("m0a", 100, 100, 200, "z", 1.0)])
    with Database.create(tmp_path / "db") as db:
        monkeypatch.setattr(module.os, "access", lambda *_: False)
        report = read(db.store, file)
        assert report.rejects_file == str(tmp_path / "db" / "a.csv.rejects.jsonl")
    assert len(_rejects(Path(report.rejects_file))) == 1
    assert not (tmp_path / "a.csv.rejects.jsonl").exists()
    monkeypatch.undo()
    Database.open(tmp_path / "db").close()


def test_rejects_are_not_written_into_other_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of a log may be shared: only that of the user or of the database is written."""
    for folder in ("shared/one", "shared/two", "mine"):
        (tmp_path / folder).mkdir(parents=True)
    bad = [("m0a", 100, 100, 200, "z", 1.0), ("m0b", 100, 100, 200, "z", 1.0)]
    rows = {"one": bad[:1], "two": bad[::-1]}
    logs = [log(tmp_path / "shared" / name / "a.csv", rows[name]) for name in rows]
    monkeypatch.chdir(tmp_path / "mine")
    with Database.create(tmp_path / "mine" / "db") as db:
        files = [Path(read(db.store, path).rejects_file) for path in logs]
        assert [len(_rejects(file)) for file in files] == [1, 2]
        assert {file.parent for file in files} == {tmp_path / "mine" / "db"}
        monkeypatch.chdir(tmp_path)
        again = read(db.store, logs[0])  # known: its file stays where it is
        assert (again.resumed_at, Path(again.rejects_file)) == (1, files[0])
        beside = logs[0].with_name("a.csv.rejects.jsonl")
        beside.write_text("another user's\n" * 3)
        files[0].unlink()
        assert Path(read(db.store, logs[0]).rejects_file) == files[0]
        assert beside.read_text() == "another user's\n" * 3
        other = log(tmp_path / "shared" / "one" / "b.csv", bad)
        assert Path(read(db.store, other).rejects_file).parent == other.parent
        monkeypatch.chdir(other.parent)
        assert rejects_places(Path(), db.store, "")[0] == Path(".rejects.jsonl")


# -- files that cannot be read -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "options", "message"),
    [
        (("matrix", "variant", "time"), {}, "does not state the unit"),
        (("matrix", "variant", "time_ms"), {"unit": "us"}, "ms and us"),
        (("matrix", "variant", "time"), {"unit": "years"}, "no time unit 'years'"),
        (("matrix", "variant", "speed"), {}, "no column is the time"),
        (("file", "variant", "time_ms"), {}, "no column names the matrix"),
    ],
)
def test_units_and_columns_are_declared(
    tmp_path: Path, head: tuple[str, ...], options: dict[str, Any], message: str
) -> None:
    file = log(tmp_path / "a.csv", [("m", "a", 1.0)], head)
    store = memory_store()
    with pytest.raises(ReaderError, match=message) as e:
        ingest(store, file, reader="csv", platform=tiny(), options=ReadOptions(op=OP, **options))
    assert e.value.hint and "\n" not in str(e.value)
    assert store.count_runs() == 0


def test_no_file_no_reader_no_platform(tmp_path: Path) -> None:
    with pytest.raises(ReaderError, match="no such file"):
        ingest(memory_store(), tmp_path / "none.csv", platform=tiny())
    odd = tmp_path / "odd.bin"
    odd.write_bytes(b"\x00\x01\x02")
    with pytest.raises(ReaderError, match="no reader recognises it") as e:
        ingest(memory_store(), odd, platform=tiny())
    assert "csv" in e.value.hint
    file = log(tmp_path / "a.csv", rows_of(patterns(1)))
    with pytest.raises(UsageError, match="which platform"):
        ingest(memory_store(), file, options=ReadOptions(op=OP))


def test_a_changed_space_under_the_same_name_is_refused(tmp_path: Path) -> None:
    store, file = memory_store(), log(tmp_path / "a.csv", rows_of(patterns(1)))
    read(store, file)
    changed = parse_platform(tiny().text.replace('"c", "d"]', '"c", "d", "e"]'))
    with pytest.raises(StoreError, match="differs from the stored one"):
        read(store, file, platform=changed)


def test_the_stored_later_version_judges_rows_of_an_earlier_file(tmp_path: Path) -> None:
    later = tiny().text.replace('version = "1"', 'version = "2"\nextends = ["1"]')
    store = memory_store()
    store.put_platform(parse_platform(later.replace(' "c", "d"]', ' "c", "e"]')))
    report = read(store, log(tmp_path / "a.csv", rows_of(patterns(1))))
    assert (report.rows, report.added, report.rejected) == (16, 12, 4)
    platform = store.platform("tiny")
    assert platform is not None and platform.version == "2"


def test_an_empty_log(tmp_path: Path) -> None:
    report = read(memory_store(), log(tmp_path / "a.csv", []))
    assert (report.rows, report.added, report.rejected) == (0, 0, 0)


# -- devices -----------------------------------------------------------------------------------


def _devices(tmp_path: Path) -> Path:
    head = (*HEAD, "device")
    rows = [(*row, device) for row in rows_of(patterns(1)) for device in ("V100", "P100")]
    return log(tmp_path / "a.csv", rows, head)


def test_each_device_is_an_instance(tmp_path: Path) -> None:
    store = memory_store()
    report = read(store, _devices(tmp_path))
    assert report.platforms == {"tiny@V100", "tiny@P100"} == set(store.platforms())
    assert [p.platform for p in store.partitions()] == ["tiny@P100", "tiny@V100"]


def test_a_given_instance_wins_over_the_files(tmp_path: Path) -> None:
    store = memory_store()
    read(store, _devices(tmp_path), platform=tiny().at("mine"))
    assert store.platforms() == ["tiny@mine"]


def test_a_device_that_cannot_be_a_label_is_rejected(tmp_path: Path) -> None:
    head = (*HEAD, "device")
    row = rows_of(patterns(1))[0]
    report = read(memory_store(), log(tmp_path / "a.csv", [(*row, "a b"), (*row, "ok")], head))
    (found,) = _rejects(Path(report.rejects_file))
    assert "cannot name an instance" in found["reason"] and report.added == 1


def test_rows_of_another_platform_are_rejected(tmp_path: Path) -> None:
    head = (*HEAD, "platform")
    row = rows_of(patterns(1))[0]
    file = log(tmp_path / "a.csv", [(*row, "spade"), (*row, "tiny")], head)
    report = read(memory_store(), file)
    assert (report.added, report.rejected) == (1, 1)
    assert "spade" in _rejects(Path(report.rejects_file))[0]["reason"]


# -- files that disagree -----------------------------------------------------------------------


def test_two_files_that_disagree_are_both_kept_and_counted(tmp_path: Path) -> None:
    db, among = Database.in_memory(), patterns(1)
    rows = rows_of(among)
    read(db.store, log(tmp_path / "a.csv", rows))
    other = [(*row[:5], row[5] * (3 if at == 2 else 1.01)) for at, row in enumerate(rows)]
    read(db.store, log(tmp_path / "b.csv", other))
    assert db.store.count_runs() == 2 * len(rows)
    embed(db.index)
    partition = db.index.partition(OP, tiny())
    assert partition is not None
    said = partition.describe()
    assert said["disagreeing"] == 1
    assert said["noise"] == pytest.approx(0.005, rel=0.01)
    (info,) = db.store.find("m0a")
    curve = partition.evidence.times(
        next(i for i, row in enumerate(partition.evidence.rows) if row.pattern_id == info.id)
    )
    at = [c["variant"] for c in partition.evidence.configs].index("c")
    assert curve[at] == pytest.approx(by_law(among[0], 2) * 2)  # the median of 1 and 3
    (state,) = scope_states(db.index)
    assert not any("two machines" in line for line in state["missing"])


@pytest.mark.parametrize("repeats", [1, 5])
def test_logs_of_two_machines_under_one_name_are_suspected(tmp_path: Path, repeats: int) -> None:
    db, rows = Database.in_memory(), repeats * rows_of(patterns(1))
    read(db.store, log(tmp_path / "a.csv", rows))
    read(db.store, log(tmp_path / "b.csv", [(*row[:5], row[5] * 20) for row in rows]))
    embed(db.index)
    (state,) = scope_states(db.index)
    assert any("two machines? `index --instance" in line for line in state["missing"])


# -- matrices that arrive with the log, or later -----------------------------------------------


@pytest.fixture(scope="module")
def matrices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("matrices")
    for pattern in patterns():
        save(folder, pattern)
    return folder


GROUPED = (*HEAD, "group")


def _log_with_groups(path: Path) -> Path:
    groups = {p.name: p.group for p in patterns()}
    return log(path, [(*row, groups[row[0]]) for row in rows_of(patterns())], GROUPED)


def _answers(db: Database, platform: Platform) -> list[Any]:
    asked = [band(137, length, name=f"q{length}") for length in (2, 6, 14, 30)]
    made = [db.query(p, platform=platform, op=OP) for p in [*asked, patterns()[5]]]
    return [(m.link, m.candidates, m.neighbours, m.confidence, m.featurizer) for m in made]


def test_matrices_of_the_library_are_patterns(tmp_path: Path, matrices: Path) -> None:
    store = memory_store()
    report = read(store, _log_with_groups(tmp_path / "a.csv"), library=Library(matrices))
    assert (report.patterns, report.stubs, report.problems) == (20, 0, [])
    for pattern in patterns():
        info = store.pattern(pattern.id)
        assert info is not None and not info.stub and len(info.thumbnail) == 1024
        assert (info.name, info.group) == (pattern.name, pattern.group)
        assert store.structure(pattern.id) == pattern


@pytest.mark.parametrize("whole", [False, True])
def test_a_group_counts_whichever_row_states_it(
    tmp_path: Path, matrices: Path, whole: bool
) -> None:
    store, found = memory_store(), Library(matrices) if whole else None
    rows = [(*row, "" if row[-2] == VARIANTS[0] else "G") for row in rows_of(patterns())]
    report = read(store, log(tmp_path / "a.csv", rows, GROUPED), library=found)
    assert {info.group for info in store.patterns()} == {"G"}
    assert (report.contradictions, report.patterns + report.stubs) == ([], 20)


@pytest.mark.parametrize("whole", [False, True])
def test_groups_that_contradict_are_reported_and_the_first_is_kept(
    tmp_path: Path, matrices: Path, whole: bool
) -> None:
    store, found = memory_store(), Library(matrices) if whole else None
    rows = [(*row, f"G{row[-2]}") for row in rows_of(patterns())]
    file, first = log(tmp_path / "a.csv", rows, GROUPED), f"G{VARIANTS[0]}"
    reports = [read(store, file, library=found)]
    reports.append(read(store, file, library=found))  # from the journal
    (tmp_path / "b.csv").write_text(file.read_text().replace(first, "other"))
    reports.append(read(store, tmp_path / "b.csv", library=found))  # against the stored ones
    assert {info.group for info in store.patterns()} == {first}
    for report in reports:
        (line,) = report.contradictions
        assert line.startswith("20 matrices with several groups, of which the first is kept: ")
        assert line.endswith(", ...") and f"({first}, not " in line


def test_later_rows_complete_the_facts_of_a_matrix() -> None:
    store = memory_store()
    subjects = RowSubjects(store, Library(None))
    for ref in (
        MatrixRef("m", 9, 9, 9, features={"a": 1.0}),
        MatrixRef("m", 9, 9, 9, features={"a": 2.0, "b": 3.0}, about={"from": "x"}),
    ):
        info = subjects.of(ref, "matrix")
    store.put_patterns(subjects.fresh())
    for one in (info, *store.patterns()):
        assert (one.features, one.about) == ({"a": 1.0, "b": 3.0}, {"from": "x"})


def test_sizes_that_contradict_are_reported(tmp_path: Path) -> None:
    store = memory_store()
    rows = rows_of(patterns())
    odd = [(m, r + (at % 2), c, z, v, t) for at, (m, r, c, z, v, t) in enumerate(rows)]
    report = read(store, log(tmp_path / "a.csv", odd))
    (line,) = report.contradictions
    assert line.startswith("20 matrices with several sizes, each of which is stored as a matrix")
    m, r, c, z, *_ = rows[0]
    assert f"{m} ({r} x {c} with {z} entries and {r + 1} x {c} with {z} entries)" in line
    later = read(store, log(tmp_path / "b.csv", [(m, r + 7, c, z, "a", 1.0)]))
    assert later.contradictions and f"{r + 7} x {c}" in later.contradictions[0]
    partly = read(store, log(tmp_path / "c.csv", [(rows[-1][0], "", "", rows[-1][3], "a", 2.0)]))
    assert partly.contradictions == []


@pytest.mark.parametrize("batch", [2, 10_000])
@pytest.mark.parametrize("blank", [0, 1, -1])
def test_rows_that_lack_sizes_are_of_the_only_matrix_of_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int, blank: int
) -> None:
    monkeypatch.setattr("indexer.ingest.BATCH", batch)
    rows: list[tuple[object, ...]] = [("x", 9, 9, 20, v, 1.0) for v in "ab"]
    rows[blank:blank] = [("x", "", "", "", "c", 3.0), ("x", 9, 9, "", "d", 3.0)]
    rows += [("y", 9, 9, 20, "a", 1.0), ("y", "", "", "", "b", 1.0), ("y", 9, 8, 20, "b", 1.0)]
    store = memory_store()
    file = log(tmp_path / "a.csv", rows)
    report = read(store, file)
    (line,) = report.contradictions
    assert line.startswith("1 matrix with several sizes") and "y (" in line
    assert (report.added, report.rejected) == (7, 0)
    (whole,) = store.find("x")
    assert whole.sizes == (9, 9, 20) and len([*store.runs("tiny", OP, whole.id)]) == 4
    assert report.stubs == len([*store.patterns()])
    file.write_text(file.read_text() + "\n")  # not the file of the journal
    again = read(store, file)
    assert (again.added, again.duplicates, again.stubs) == (0, 7, 0)


def test_adopted_stubs_answer_as_if_the_matrices_had_been_there(
    tmp_path: Path, matrices: Path
) -> None:
    file = _log_with_groups(tmp_path / "a.csv")
    start, later = Database.in_memory(), Database.in_memory()
    read(start.store, file, library=Library(matrices))
    read(later.store, file)
    assert later.query(patterns()[5], platform=tiny(), op=OP).link != "measured"
    assert adopt_stubs(later.index, Library(matrices)) == 80
    assert not [info for info in later.store.patterns() if info.stub]
    embed(start.index)
    embed(later.index)
    one, other = run_matrix_of(start.store, OP, "tiny"), run_matrix_of(later.store, OP, "tiny")
    assert one.rows == other.rows and np.array_equal(one.seconds, other.seconds)
    assert _answers(start, tiny()) == _answers(later, tiny())
    assert {m[0] for m in _answers(later, tiny())} == {"neighbours", "measured"}
    again = read(later.store, file)
    assert again.added == 0 and adopt_stubs(later.index, Library(matrices)) == 0
    copy = tmp_path / "copy" / "a.csv"
    copy.parent.mkdir()
    copy.write_bytes(file.read_bytes() + b"\n")  # not the file of the journal
    report = read(later.store, copy)
    assert (report.added, report.duplicates, report.stubs) == (0, 80, 0)


def test_a_file_of_the_right_name_and_the_wrong_size_is_not_it(
    tmp_path: Path, matrices: Path
) -> None:
    rows = [("m0a", 9, 9, 20, "a", 1.0)]
    db = Database.in_memory()
    report = read(db.store, log(tmp_path / "a.csv", rows), library=Library(matrices))
    assert (report.patterns, report.stubs) == (0, 1)
    assert "is not the m0a of the runs" in report.problems[0]
    assert adopt_stubs(db.index, Library(matrices)) == 0


def test_a_damaged_matrix_is_a_problem_and_not_a_stop(tmp_path: Path, matrices: Path) -> None:
    folder = tmp_path / "matrices"
    save(folder, patterns()[1])
    (folder / "m0a.mtx").write_text("%%MatrixMarket matrix coordinate pattern general\n100 100\n")
    report = read(
        memory_store(), log(tmp_path / "a.csv", rows_of(patterns(1))), library=Library(folder)
    )
    assert (report.patterns, report.stubs, report.added) == (1, 3, 16)
    assert "m0a.mtx" in report.problems[0]


def test_a_known_pattern_is_found_by_name_and_size(tmp_path: Path) -> None:
    db = Database.in_memory()
    db.index.add_pattern(patterns()[0])
    rows = [("m0a", 100, 100, 200, "a", 1.0), ("m0a", 101, 100, 200, "a", 1.0)]
    report = read(db.store, log(tmp_path / "a.csv", rows))
    assert report.stubs == 1  # the second is another matrix of that name
    assert len(list(db.store.runs("tiny", OP, patterns()[0].id))) == 1


def test_names_without_sizes(tmp_path: Path) -> None:
    db = Database.in_memory()
    db.index.add_pattern(patterns()[0])
    file = log(tmp_path / "a.csv", [("m0a", "a", 1.0)], ("matrix", "variant", "time_s"))
    assert read(db.store, file).stubs == 0
    assert len(list(db.store.runs("tiny", OP, patterns()[0].id))) == 1


def test_operations_of_one_file(tmp_path: Path) -> None:
    head = (*HEAD, "op")
    rows = [(*rows_of(patterns(1))[0], op) for op in ("spmm:32", "spmm:64", "spmv", "sddmm:8")]
    report = read(memory_store(), log(tmp_path / "a.csv", rows, head))
    assert report.ops == {"spmm:32", "spmm:64", "spmv"}
    (found,) = _rejects(Path(report.rejects_file))
    assert "no sddmm" in found["reason"]


def test_memory_does_not_grow_with_the_subjects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[Any] = []

    class Seen(module._Job):
        def __init__(self, *told: Any) -> None:
            super().__init__(*told)
            jobs.append(self)

    monkeypatch.setattr(module, "_Job", Seen)
    head = ("matrix", "rows", "cols", "nnz", "tile", "time_us")
    platform = parse_platform(
        'name = "fitted"\nversion = "1"\ntitle = "Tiles that must fit"\n[[space]]\n'
        'kernels = ["spmm"]\nconstraints = ["tile <= NUM_MATRIX_ROWS"]\n'
        '[space.params]\ntile = { type = "int", values = [1, 16] }\n[space.default]\ntile = 1\n'
    )
    rows = [(f"m{n}", 500 + n, 500, 9000, tile, 5.0) for n in range(200) for tile in (1, 16)]
    store = memory_store()
    assert read(store, log(tmp_path / "a.csv", rows, head), platform=platform).added == 400
    assert len(jobs[0]._judges) == 64
    # Subjects that take turns are judged again each time, to the same end.
    turns = log(tmp_path / "b.csv", sorted(rows, key=lambda row: row[4]), head)
    assert read(memory_store(), turns, platform=platform).added == 400


def test_every_run_names_its_file(tmp_path: Path) -> None:
    store = memory_store()
    read(store, log(tmp_path / "a.csv", rows_of(patterns(1))))
    runs: Iterator[Run] = store.runs("tiny", Op("spmm", 32))
    assert {run.campaign for run in runs} == {"csv:a.csv"}
    assert {run.measurement.source for run in store.runs("tiny", OP)} == {"imported"}


@pytest.mark.parametrize("committed", [False, True])
def test_a_link_of_the_name_of_the_rejects_is_left_alone(tmp_path: Path, committed: bool) -> None:
    """The name follows from that of the log, and the content is what its author chose."""
    path = log(tmp_path / "a.csv", [("m", 9, 9, 9, "z", 1), *rows_of(patterns(1))])
    rejects, mine = tmp_path / "a.csv.rejects.jsonl", tmp_path / "profile"
    store = memory_store()
    if committed:
        read(store, path)
        rejects.unlink()
    mine.write_text("mine\nall of it\n")
    rejects.symlink_to(mine)
    with pytest.raises(InputError, match=r"rejects\.jsonl: a link where a file of ours would be"):
        read(store, path)
    assert mine.read_text() == "mine\nall of it\n"
