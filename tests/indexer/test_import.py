"""What somebody else's export may do to a database: it adds, and changes nothing that is known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import OP, band, fill, runs_of, tiny
from click.testing import CliRunner

from embeddb.core.config import Op
from embeddb.core.errors import StoreFull, UsageError
from embeddb.core.pattern import Pattern, stub_id
from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.database import Database, open_database
from embeddb.platforms.platform import Platform, parse_platform
from embeddb.store.withdrawn import RunSelection
from embeddb.ui.cli.main import cli
from indexer.exchange.exchange import ImportReport, export_file, import_file
from indexer.ingest import ingest

TINY = tiny()
OWN = band(100, 2, name="own", group="mine")
HEAD = {"format": "embeddb", "version": 1}
OK: list[Any] = ["ok", [1.0], "hardware"]


@pytest.fixture
def db() -> Iterator[Database]:
    """One pattern with its structure, run in every variant."""
    with Database.in_memory() as made:
        fill(made, TINY, [OWN])
        yield made


def taken(db: Database, path: Path, *lines: Any, end: bool = True) -> ImportReport:
    """The import of an export of these lines."""
    kinds = [line[0] if isinstance(line, list) and line else "" for line in lines]
    last = ["end", *(kinds.count(kind) for kind in ("platform", "pattern", "run"))]
    text = [line if isinstance(line, str) else json.dumps(line) for line in (HEAD, *lines)]
    file = path / "told.jsonl"
    file.write_text("\n".join([*text, json.dumps(last)] if end else text) + "\n")
    return import_file(db.index, file)


def told_of(report: ImportReport) -> list[dict[str, Any]]:
    lines = Path(report.rejects_file).read_text().splitlines() if report.rejects_file else []
    return [json.loads(line) for line in lines]


def own_runs(db: Database) -> list[Run]:
    return list(db.store.runs(TINY.id, OP, OWN.id))


def run_line(config: int, seconds: float, replaces: str = "") -> list[Any]:
    return ["run", 0, 0, 0, config, ["ok", [seconds], "hardware"], "", replaces]


def beginning(text: str = TINY.text) -> list[Any]:
    info = ["pattern", 0, OWN.id, *OWN.shape, OWN.nnz, OWN.name]
    configs = [["config", i, {"variant": v}] for i, v in enumerate("abcd")]
    return [["platform", 0, TINY.id, text, {}], info, ["op", 0, str(OP)], *configs]


# -- runs --------------------------------------------------------------------------------------


def test_no_run_is_retired(db: Database, tmp_path: Path) -> None:
    before = own_runs(db)
    lines = [run_line(i, 1.0 + i, run.id) for i, run in enumerate(before)]
    report = taken(db, tmp_path, *beginning(), *lines)
    assert (report.added, report.rejected, report.contradicting) == (4, 0, 4)
    assert {r.id for r in before} == {r.id for r in own_runs(db)}
    said = told_of(report)
    assert all("which is kept" in one["reason"] and one["kept"] for one in said)
    again = taken(db, tmp_path, *beginning(), *lines)
    assert (again.added, again.duplicates, again.contradicting) == (0, 4, 0)


def test_what_was_run_here_counts_and_not_what_was_told(db: Database, tmp_path: Path) -> None:
    """Forged times, on one's own machine and on a pattern that it ran, change no answer."""
    before = own_runs(db)
    lines = [run_line(i, 1e-9 if v == "d" else 1.0) for i, v in enumerate("abcd")]
    measured = {r.config["variant"] for r in before}
    report = taken(db, tmp_path, *beginning(), *lines)
    assert report.added == 4 and report.contradicting == len(measured)
    assert all("was measured here" in one["reason"] for one in told_of(report))
    now = own_runs(db)
    assert [r for r in now if r.config["variant"] in measured] == before
    with Database.in_memory() as other:  # where nothing was run, what is told is all there is
        assert taken(other, tmp_path, *beginning(), *lines).contradicting == 0
        assert len(own_runs(other)) == 4


def test_nor_one_that_comes_later(db: Database, tmp_path: Path) -> None:
    """An id can be computed before the run is there."""
    (later,) = [r for r in runs_of(OWN, TINY) if r.config["variant"] == "b"]
    later = Run(*(getattr(later, name) for name in later.__slots__[:5]), campaign="next")
    taken(db, tmp_path, *beginning(), run_line(0, 9.0, later.id))
    db.store.append([later])
    assert later.id in {r.id for r in own_runs(db)}


def test_withdrawn_runs_stay_so_and_the_way_back_is_named(db: Database, tmp_path: Path) -> None:
    place, exported = tmp_path / "a b", tmp_path / "1.jsonl"
    export_file(db.index, exported)
    with Database.create(place) as other:
        assert import_file(other.index, exported).withdrawn == 0
        other.store.withdrawn.withdraw(RunSelection(platform=TINY.id))
    said = CliRunner().invoke(cli, ["db", "import", str(place), str(exported)]).output
    assert "4 of those already stored are withdrawn" in said, said
    assert f"`embeddb db withdraw '{place}' --undo`" in said
    with open_database(place) as other:
        assert other.store.append(own_runs(db)).withdrawn == 4
        assert other.store.partitions() == [], "a pattern without a valid run is listed"


def test_ones_own_export_comes_back_as_it_was(db: Database, tmp_path: Path) -> None:
    """Runs that replaced others keep their ids and their effect, here and elsewhere."""
    first = own_runs(db)[0]
    better = msgspec.structs.replace(first.measurement, times_s=(0.5,))
    correction = Run(OWN.id, OP, TINY.id, first.config, better, replaces=first.id)
    db.store.append([correction])
    export_file(db.index, tmp_path / "1.jsonl")
    own = import_file(db.index, tmp_path / "1.jsonl")
    assert (own.added, own.duplicates, own.contradicting, own.rejected) == (0, 4, 0, 0)
    assert len(own_runs(db)) == 4 and first.id not in {r.id for r in own_runs(db)}
    with Database.in_memory() as other:
        there = import_file(other.index, tmp_path / "1.jsonl")
        assert (there.added, there.contradicting, there.rejected) == (4, 0, 0)
        assert {r.id for r in own_runs(other)} == {r.id for r in own_runs(db)}
        export_file(other.index, tmp_path / "2.jsonl")
        assert (tmp_path / "2.jsonl").read_bytes() == (tmp_path / "1.jsonl").read_bytes()
        # The correction is only told there, until it is one's own word.
        other.store.append([first])
        assert first.id in {r.id for r in own_runs(other)} and len(own_runs(other)) == 4
        assert other.store.append([correction]).duplicates == 1
        assert {r.id for r in own_runs(other)} == {r.id for r in own_runs(db)}
        assert other.store.problems() == db.store.problems() == []


def test_runs_of_a_pattern_that_was_refused_are_refused(db: Database, tmp_path: Path) -> None:
    lines = beginning()
    lines[1] = ["pattern", 0, "ab" * 16, -5, 3, 9, "odd"]
    report = taken(db, tmp_path, *lines, run_line(0, 1.0))
    assert (report.added, report.rejected) == (0, 2)
    reasons = [one["reason"] for one in told_of(report)]
    assert reasons == ["-5 x 3 with 9 entries is impossible", f"pattern {'ab' * 16} was not taken"]
    assert db.store.problems() == []


def test_values_of_a_choice_that_is_not_open_here_stay_out(db: Database, tmp_path: Path) -> None:
    text = TINY.text.replace('"choice",', '"choice", open = true,')
    lines = [*beginning(text), ["config", 9, {"variant": "z"}], run_line(9, 1e-9)]
    report = taken(db, tmp_path, *lines)
    assert (report.added, report.rejected, report.contradicting) == (0, 1, 1)
    assert "open_choices" in told_of(report)[0]["reason"]


# -- patterns ----------------------------------------------------------------------------------


def test_sizes_of_a_structure_stay(db: Database, tmp_path: Path) -> None:
    before = db.store.pattern(OWN.id)
    line = ["pattern", 0, OWN.id, 7, 7, 7, "evil", "theirs", False, "", {"stats.rows": 1.0}]
    report = taken(db, tmp_path, line)
    assert (report.rejected, report.contradicting) == (1, 0)
    (said,) = told_of(report)
    assert said["text"] == f"pattern {OWN.id}"
    assert said["reason"] == (
        "says 7 x 7 with 7 entries, its structure is 100 x 100 with 200 entries"
    )
    assert db.store.pattern(OWN.id) == before
    assert db.store.find("evil") == []


def test_what_is_known_of_a_pattern_stays(db: Database, tmp_path: Path) -> None:
    before = db.store.pattern(OWN.id)
    assert before is not None
    theirs = {"stats.rows": 1.0}
    line = ["pattern", 0, OWN.id, *OWN.shape, OWN.nnz, "evil", "theirs", False, "YWI=", theirs]
    report = taken(db, tmp_path, line)
    assert (report.rejected, report.contradicting) == (0, 1)
    assert told_of(report)[0]["reason"] == "keeps its stored values: name, group, thumbnail"
    assert db.store.pattern(OWN.id) == before
    assert db.store.find("evil") == []


def test_who_told_first_of_a_pattern_without_structure_is_believed(tmp_path: Path) -> None:
    one = "cd" * 16
    with Database.in_memory() as db:
        first = ["pattern", 0, one, 5, -1, 9, "x", "", False, "", {"a": 1.0}, {"from": "there"}]
        other = ["pattern", 0, one, 5, 6, 9, "y", "g", False, "", {"a": 2.0, "b": 3.0}]
        assert taken(db, tmp_path, first).contradicting == 0
        report = taken(db, tmp_path, other)
        assert told_of(report)[0]["reason"] == "keeps its stored values: name, features.a"
        found = db.store.pattern(one)
        assert found is not None
        assert (found.m, found.n, found.nnz, found.name, found.group) == (5, 6, 9, "x", "g")
        assert found.features == {"a": 1.0, "b": 3.0} and found.about == {"from": "there"}
        report = taken(db, tmp_path, ["pattern", 0, one, 8, 6, 9, "x"])
        assert "says 8 x 6 with 9 entries, stored as 5 x 6" in told_of(report)[0]["reason"]
        # The structure, or a log of one's own, knows better.
        db.store.put_patterns([WorkloadInfo(id=one, m=5, n=7, nnz=9, features={"a": 4.0})])
        found = db.store.pattern(one)
        assert found is not None and (found.n, found.features["a"]) == (7, 4.0)


def test_a_stub_has_the_id_of_its_name_and_sizes(db: Database, tmp_path: Path) -> None:
    """A matrix that is told as a stub could be adopted, and all its runs would go elsewhere."""
    stub = stub_id("s", 5, 5, 5)
    good = ["pattern", 0, stub, 5, 5, 5, "s", "", True]
    assert taken(db, tmp_path, good).rejected == 0
    for line in (
        ["pattern", 0, "ab" * 16, 5, 5, 5, "s", "", True],
        ["pattern", 0, stub, 5, 5, 5, "s", "", False],
        ["pattern", 0, "ab" * 16, 5, 5, 5, "\ud800", "", True],
    ):
        assert taken(db, tmp_path, line).rejected == 1
    found = db.store.pattern(stub)
    assert found is not None and found.stub
    assert db.store.pattern("ab" * 16) is None


def test_a_structure_is_nobodys_stub(db: Database) -> None:
    """Whatever an import of before left behind: the id of a structure is that of its content."""
    matrix = band(40, 3, name="later")
    db.store.put_patterns([WorkloadInfo(id=matrix.id, name="forged", stub=True)])
    db.store.adopt(matrix.id, WorkloadInfo.of(OWN))
    assert db.store.resolve(matrix.id) == OWN.id
    db.index.record(runs_of(matrix, TINY), matrix, TINY)
    assert db.store.resolve(matrix.id) == matrix.id
    assert len(list(db.store.runs(TINY.id, OP, matrix.id))) == 4
    assert db.store.problems() == []


# -- platforms ---------------------------------------------------------------------------------


def test_a_stored_platform_stays(db: Database, tmp_path: Path) -> None:
    text = TINY.text.replace("Four variants", "Evil").replace("simulated = false", "simulated=true")
    report = taken(db, tmp_path, ["platform", 0, TINY.id, text.replace("false", "true"), {}])
    assert (report.rejected, report.contradicting) == (0, 1)
    reason = told_of(report)[0]["reason"]
    assert reason == "keeps its stored values: title, simulated, portable"
    assert db.store.platform(TINY.id) == TINY
    report = taken(db, tmp_path, ["platform", 0, TINY.id, TINY.text + "\n# words\n", {}])
    assert told_of(report)[0]["reason"] == "keeps its stored values: text"


def test_facts_of_a_machine_that_are_known_stay(db: Database, tmp_path: Path) -> None:
    here = TINY.at("here", {"cpu": "x", "wake_us": "7"})
    db.store.put_platform(here)
    theirs = {"cpu": "y", "wake_us": "7", "l2_bytes": "9"}
    report = taken(db, tmp_path, ["platform", 0, here.id, here.text, theirs])
    assert told_of(report)[0]["reason"] == "keeps its stored values: environment.cpu"
    found = db.store.platform(here.id)
    assert found is not None
    assert found.environment == {"cpu": "x", "wake_us": "7", "l2_bytes": "9"}


def edited(**words: str) -> Platform:
    text = TINY.text
    for name, value in words.items():
        text = text.replace(f"{name} = false", f"{name} = {value}")
    return parse_platform(text)


def test_ones_own_file_may_change_and_what_it_means_is_told(db: Database, tmp_path: Path) -> None:
    assert db.store.put_platform(parse_platform(TINY.text + "\n# words\n")) == []
    log = tmp_path / "log.csv"
    log.write_text("matrix,op,variant,time_s\nown,spmm:32,a,0.5\n")
    report = ingest(db.store, log, platform=edited(simulated="true"))
    assert report.changes == ["platform tiny: simulated was false, is now true"]
    found = db.store.platform(TINY.id)
    assert found is not None and found.simulated


# -- lines -------------------------------------------------------------------------------------

BAD = [
    ["op", 0, ["spmm"]],
    ["op", 0, None],
    ["op", 0, {"spmm": 1}],
    ["pattern", 0, "0" * 32, 10**26, 1, 1, "x"],
    ["pattern", 0, "0" * 32, 2**63, 1, 1, "x"],
    ["pattern", 0, "0" * 32, -5, 1, 1, "x"],
    ["pattern", 0, "0" * 32, 3, 3, 10, "x"],
    ["pattern", 0, "0" * 32, 1, 1, 1, "\ud800"],
    ["pattern", 0, "0" * 32, 1, 1, 1, "x", "", False, "", {}, {"deep": 2**70}],
    ["pattern", [], "0" * 32],
    ["pattern", 0, 5],
    ["platform", 0, "tiny", 5, {}],
    ["platform", 0, "tiny", "x = " + "1" * 5000, {}],
    ["config", 0, ["a"]],
    ["config", 0, {"a": 10**200}],
    ["config"],
    ["run"],
    ["run", 0, 0, 0, 0, OK],
    ["model", "x", "y", 3],
    [
        "model",
        "0" * 16,
        1.0,
        {"kind": "costmodel", "deep": [[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]},
    ],
    ["nothing", 1],
    [],
    5,
    "[" * 100_000,
    '["pattern",0,"' + "0" * 32 + '",' + "9" * 5000 + "]",
    '["op",0,{"$float":"x"}]',
]


@pytest.mark.parametrize("line", BAD, ids=lambda line: str(line)[:30])
def test_a_line_that_is_none_costs_itself_alone(db: Database, tmp_path: Path, line: Any) -> None:
    kinds = ["pattern", 1, "ef" * 16, 4, 4, 4, "after"]
    report = taken(db, tmp_path, line, kinds)
    assert report.rejected == 1, told_of(report)
    assert db.store.pattern("ef" * 16) is not None
    assert db.store.problems() == []
    assert all(len(one["reason"].splitlines()) == 1 for one in told_of(report))


@pytest.mark.parametrize(
    "ends",
    [["", "not an id"], ["\ud800", ""], [5, ""], ["", "", ""], ["c", "E" * 32]],
    ids=str,
)
def test_a_run_that_is_none_costs_itself_alone(
    db: Database, tmp_path: Path, ends: list[Any]
) -> None:
    bad = ["run", 0, 0, 0, 0, OK, *ends]
    report = taken(db, tmp_path, *beginning(), bad, run_line(1, 1.0))
    assert (report.added, report.rejected) == (1, 1), told_of(report)


def test_a_full_disk_ends_the_import(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no fault of the record."""

    def full(_: object) -> None:
        raise StoreFull("no space left")

    monkeypatch.setattr(db.store, "take_platform", full)
    with pytest.raises(StoreFull):
        taken(db, tmp_path, *beginning())


@pytest.mark.parametrize("text", [["spmm"], None, 5, {}])
def test_an_operation_is_a_text(text: Any) -> None:
    with pytest.raises(UsageError, match="string"):
        Op.parse(text)


def test_a_run_that_cannot_be_stored_says_so() -> None:
    odd = Measurement(times_s=(10**400,))  # type: ignore[arg-type]  # as a reader may make it
    with pytest.raises(UsageError, match="cannot be stored"):
        _ = Run("0" * 32, OP, "tiny", runs_of(OWN, TINY)[0].config, odd).id


# -- the command -------------------------------------------------------------------------------


def test_the_command_says_what_stayed(tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    with Database.create(path) as db:
        fill(db, TINY, [OWN])
        run = own_runs(db)[0]
    file = tmp_path / "told.jsonl"
    lines = [HEAD, *beginning(), run_line(0, 5.0, run.id), ["end", 1, 1, 1]]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n")
    done = CliRunner().invoke(cli, ["db", "import", str(path), str(file)])
    assert done.exit_code == 0, done.output
    assert "conflict with rows stored here" in done.output
    assert str(file) + ".rejects.jsonl" in done.output
    again = CliRunner().invoke(cli, ["db", "import", str(path), str(file), "--json"])
    assert json.loads(again.output)["kept"] == 0


def test_a_told_matrix_has_no_structure(tmp_path: Path) -> None:
    """So that its facts are the stranger's word until the file is given; then they are its own."""
    matrix: Pattern = band(30, 2, name="m")
    with Database.in_memory() as db:
        taken(db, tmp_path, ["pattern", 0, matrix.id, 7, 7, 7, "lie"])
        db.index.add_pattern(matrix)
        found = db.store.pattern(matrix.id)
        assert found is not None and tuple(found.sizes) == (30, 30, 60)
        assert db.store.problems() == []
