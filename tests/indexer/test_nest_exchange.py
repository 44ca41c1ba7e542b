"""Nests out of a database and into another: whole, checked, and only added."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import run_verb
from nest_logs import CPU, OP, configs_of

from embeddb.core.config import Config
from embeddb.core.pattern import stub_id
from embeddb.core.records import Measurement, Run
from embeddb.database import Database
from embeddb.nests.examples import sample_nests
from embeddb.nests.nest import Nest
from indexer.add import add_coded
from indexer.exchange import export_records as nest_files
from indexer.exchange.exchange import ImportReport, export_file, import_file
from indexer.frontends import read_nests
from indexer.ingest import ingest
from indexer.library import Library

NESTS = sample_nests()
MATMUL, SPMV = NESTS["matmul"], NESTS["spmv"]


def filled(db: Database, nests: Sequence[Nest] = ()) -> None:
    """With six nests, as they are or by other names."""
    db.store.put_platform(CPU)
    add_coded(db.index, list(nests or NESTS.values()))
    db.store.append(
        Run(nest.id, OP, CPU.id, config, Measurement(times_s=(1e-3 * (at + 1),)))
        for nest in NESTS.values()
        for at, config in enumerate(configs_of(nest))
    )


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """An export of six nests with runs."""
    file = tmp_path_factory.mktemp("out") / "nests.jsonl"
    with Database.in_memory() as db:
        filled(db)
        export_file(db.index, file)
    return [json.loads(line) for line in file.read_text().splitlines()]


def taken(db: Database, folder: Path, lines: list[Any]) -> ImportReport:
    file = folder / "in.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return import_file(db.index, file)


def reasons(report: ImportReport) -> list[str]:
    text = Path(report.rejects_file).read_text() if report.rejects_file else ""
    return [json.loads(line)["reason"] for line in text.splitlines()]


def of_kind(lines: list[Any], kind: str) -> list[Any]:
    return [line for line in lines if isinstance(line, list) and line[0] == kind]


def changed(lines: list[Any], kind: str, number: int, change: dict[int, Any]) -> list[Any]:
    """With fields of the line of that kind about that pattern replaced."""

    def line_of(line: Any) -> Any:
        if not isinstance(line, list) or line[:2] != [kind, number]:
            return line
        return [change.get(at, value) for at, value in enumerate(line)]

    return [line_of(line) for line in lines]


def number_of(lines: list[Any], pattern_id: str) -> int:
    return next(int(line[1]) for line in of_kind(lines, "pattern") if line[2] == pattern_id)


def test_everything_arrives(tmp_path: Path, lines: list[Any]) -> None:
    with Database.in_memory() as one, Database.in_memory() as other:
        filled(one)
        report = taken(other, tmp_path, lines)
        assert (report.rejected, report.contradicting, report.patterns) == (0, 0, len(NESTS))
        assert report.added == report.runs == one.store.count_runs()
        for nest in NESTS.values():
            assert other.store.nest(nest.id) == nest
            assert other.store.pattern(nest.id) == one.store.pattern(nest.id)
        assert other.problems() == []
        again = taken(other, tmp_path, lines)
        assert (again.added, again.rejected, again.contradicting) == (0, 0, 0)
        files = [tmp_path / "one.jsonl", tmp_path / "other.jsonl"]
        export_file(one.index, files[0])
        export_file(other.index, files[1])
        assert files[0].read_bytes() == files[1].read_bytes()


def test_a_selection_holds_its_nests_alone(tmp_path: Path) -> None:
    with Database.in_memory() as db:
        filled(db)
        db.store.put_platform(CPU.at("m"))
        config = configs_of(SPMV)[0]
        db.store.append([Run(SPMV.id, OP, "nest-cpu@m", config, Measurement(times_s=(1.0,)))])
        export_file(db.index, tmp_path / "some.jsonl", platform="nest-cpu@m")
        lines = [json.loads(line) for line in (tmp_path / "some.jsonl").read_text().splitlines()]
        assert [line[2] for line in of_kind(lines, "pattern")] == [SPMV.id]
        assert len(of_kind(lines, "nest")) == 1


def test_a_damaged_nest_costs_itself_alone(tmp_path: Path, lines: list[Any]) -> None:
    number = number_of(lines, MATMUL.id)
    whole = next(line[2] for line in of_kind(lines, "nest") if line[1] == number)
    other = next(line[2] for line in of_kind(lines, "nest") if line[1] != number)
    bigger = json.loads(json.dumps(whole).replace("16", "17"))
    code = whole["code"]
    leaving = {**whole, "code": {**code, "loops": [[[0], [99], 1], *code["loops"][1:]]}}
    for wrong, word in (
        (bigger, "the code of another nest"),
        (other, "the code of another nest"),
        (leaving, "outside 0 to"),
        ({"nest": 2}, "is not a nest"),
        (None, "is not a nest"),
        ("x" * 99, "is not a nest"),
        ({**whole, "code": {}}, "must have"),
    ):
        with Database.in_memory() as db:
            report = taken(db, tmp_path, changed(lines, "nest", number, {2: wrong}))
            assert report.rejected == 1 and word in reasons(report)[0], wrong
            assert report.added == report.runs, "its runs are those of a nest without code"
            assert db.store.nest(MATMUL.id) is None and db.store.counts()["nest"] == 5
            assert db.problems() == []


def test_sizes_that_are_not_those_of_the_code(tmp_path: Path, lines: list[Any]) -> None:
    number = number_of(lines, MATMUL.id)
    pattern = next(line for line in of_kind(lines, "pattern") if line[1] == number)
    assert pattern[-2:] == ["nest", dict(MATMUL.sizes.named)]
    at = len(pattern) - 1
    with Database.in_memory() as db:
        report = taken(db, tmp_path, changed(lines, "pattern", number, {at: {"DEPTH": 4}}))
        assert report.rejected == 1 and "its code is a nest of 16 x 16 x 16" in reasons(report)[0]
    with Database.in_memory() as db:
        report = taken(db, tmp_path, changed(lines, "pattern", number, {at: {"ROWS": 4}}))
        assert any("is impossible" in reason for reason in reasons(report))
        assert db.store.pattern(MATMUL.id) is None and db.problems() == []
    for kind in ("matrix", "computer", ""):
        with Database.in_memory() as db:
            report = taken(db, tmp_path, changed(lines, "pattern", number, {at - 1: kind}))
            assert any("no kind of pattern" in reason for reason in reasons(report))
            assert db.store.pattern(MATMUL.id) is None and db.problems() == []


def test_a_nest_of_no_pattern(tmp_path: Path, lines: list[Any]) -> None:
    nest = of_kind(lines, "nest")[0]
    with Database.in_memory() as db:
        report = taken(db, tmp_path, [*lines[:-1], ["nest", 99, nest[2]], ["nest"], lines[-1]])
        assert report.rejected == 2 and "pattern 99 is not defined" in reasons(report)[0]


def test_told_runs_are_legal_for_the_nest(tmp_path: Path, lines: list[Any]) -> None:
    """Also where its code came with the same file."""
    turned = Config({**configs_of(SPMV)[0], "order_2": ("2", "1")})
    run = of_kind(lines, "run")[0]
    told = [
        ["config", 990, dict(turned)],
        ["run", number_of(lines, SPMV.id), run[2], run[3], 990, ["ok", [1.0]]],
    ]
    end = [*lines[-1][:-1], lines[-1][-1] + 1]
    with Database.in_memory() as db:
        report = taken(db, tmp_path, [*lines[:-1], *told, end])
        assert report.rejected == 1 and "depend on i1" in reasons(report)[0]


def test_runs_of_another_kind_are_not_taken(tmp_path: Path, lines: list[Any]) -> None:
    """A nest here is told as a matrix, with runs of a matrix's kernel."""
    platform = ["platform", 0, "spmv-formats"]
    told = [
        lines[0],
        platform,
        ["pattern", 0, MATMUL.id, 4, 4, 4, "m"],
        ["op", 0, "spmv"],
        ["config", 0, {"format": "csr"}],
        ["run", 0, 0, 0, 0, ["ok", [1.0]]],
        ["end", 1, 1, 1],
    ]
    with Database.in_memory() as db:
        add_coded(db.index, [MATMUL])
        report = taken(db, tmp_path, told)
        assert report.added == 0 and report.rejected == 2, reasons(report)
        assert db.problems() == []


def test_a_stub_of_a_nest_is_told_under_its_own_id(tmp_path: Path) -> None:
    head = {"format": "embeddb", "version": 1}
    own = stub_id("n", -1, -1, -1, kind="nest")
    rest = [-1, -1, -1, "n", "", True, "", {}, {}, "nest"]
    for pattern_id, rejected in ((own, 0), (stub_id("n", -1, -1, -1), 1), (MATMUL.id, 1)):
        with Database.in_memory() as db:
            told = [head, ["pattern", 0, pattern_id, *rest], ["end", 0, 1, 0]]
            assert taken(db, tmp_path, told).rejected == rejected
            assert db.store.counts()["pattern"] == 1 - rejected


# -- formats that can only name a nest ----------------------------------------------------------


def runs_by_nest(db: Database) -> dict[str, list[tuple[str, float]]]:
    return {
        nest.id: sorted(
            (run.config.json, run.measurement.seconds)
            for run in db.store.runs("nest-cpu", OP, nest.id)
        )
        for nest in NESTS.values()
    }


@pytest.mark.parametrize("ending", [".csv", ".json", ".csv.gz"])
@pytest.mark.parametrize("names", ["own", "none", "same"])
def test_runs_and_nests_are_read_back_elsewhere(ending: str, names: str, tmp_path: Path) -> None:
    """Nests without a name, and those that share one, go by their ids."""
    told = {"own": None, "none": "", "same": "f"}[names]
    nests = [n if told is None else replace(n, name=told) for n in NESTS.values()]
    file = tmp_path / f"runs{ending}"
    with Database.in_memory() as db:
        filled(db, nests)
        report = export_file(db.index, file)
        wanted = runs_by_nest(db)
    beside = tmp_path / "runs.nests.json"
    assert (report.nest_files, report.nests_without_code) == ([str(beside)], 0)
    assert {nest.id for nest in read_nests(beside)} == wanted.keys()
    with Database.in_memory() as db:
        done = ingest(db.store, file, platform=CPU, library=Library(tmp_path))
        assert (done.rejected, done.stubs) == (0, 0)
        assert runs_by_nest(db) == wanted
        assert all(db.store.nest(nest.id) is not None for nest in NESTS.values())


def test_many_nests_become_files_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nest_files, "_MOST_NESTS", 4)
    written = nest_files.write_nests(((n.name, n) for n in NESTS.values()), tmp_path / "a.b.csv")
    assert [Path(file).name for file in written] == ["a.b.nests.json", "a.b.nests-2.json"]
    assert [nest for file in written for nest in read_nests(file)] == list(NESTS.values())


def test_a_header_says_that_nests_stay_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, file = tmp_path / "db", tmp_path / "best.h"
    with Database.create(place) as db:
        filled(db)
    assert run_verb(["db", "export", str(place), str(file)]) == 0
    assert "6 nests exported by name only: `embeddb nest show" in capsys.readouterr().err
    assert list(tmp_path.glob("*.json")) == [] and "spmv_16" in file.read_text()
    assert run_verb(["db", "export", str(place), str(tmp_path / "runs.csv"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["nest_files"] == [str(tmp_path / "runs.nests.json")]
    assert run_verb(["db", "export", str(place), str(tmp_path / "runs.csv"), "--op", "nest"]) == 0
    assert "code of its nests written to" in capsys.readouterr().out
