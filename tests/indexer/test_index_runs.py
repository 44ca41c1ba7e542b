"""`index_runs`: what `embeddb index` does, as one call from Python."""

from __future__ import annotations

import csv
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import OP, VARIANTS, by_law, patterns, tiny
from command_line import run_verb
from scipy.io import mmwrite

from embeddb.core.errors import MatrixError, PlatformError, ReaderError, UsageError
from embeddb.database import Database
from embeddb.platforms.platform import parse_platform
from indexer.index_runs import index_runs, platform_of_runs
from indexer.readers.base.row import ReadOptions


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log, the matrices it names and the platform's file; the last matrix is damaged."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "tiny.toml").write_text(tiny().text)
    (folder / "matrices").mkdir()
    rows: list[tuple[Any, ...]] = []
    for p in patterns():
        mmwrite(folder / "matrices" / f"{p.name}.mtx", p.to_scipy(), field="pattern")
        rows += [(p.name, *p.shape, p.nnz, v, by_law(p, i) * 1e6) for i, v in enumerate(VARIANTS)]
    rows.append(("zz", 5, 5, 5, "a", 1.0))
    (folder / "matrices" / "zz.mtx").write_text("%%MatrixMarket nonsense\n")
    with (folder / "runs.csv").open("w", newline="", encoding="utf-8") as out:
        head = ("matrix", "rows", "cols", "nnz", "variant", "time_us")
        csv.writer(out).writerows([head, *rows])
    return folder


ASKED = ReadOptions(op=OP)


def _timeless(document: dict[str, Any]) -> dict[str, Any]:
    """As JSON has it, without the time it took."""
    made: dict[str, Any] = json.loads(json.dumps(document))
    for file in made["files"]:
        del file["seconds"]
    return made


def test_the_call_says_what_the_verb_says(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, toml, matrices = (str(inputs / name) for name in ("runs.csv", "tiny.toml", "matrices"))
    typed = ["index", str(tmp_path / "verb.db"), log, "--platform", toml, "--matrices", matrices]
    assert run_verb([*typed, "--op", "spmm:32", "--json"]) == 0
    said = _timeless(json.loads(capsys.readouterr().out))
    told: list[tuple[str, int, int]] = []
    with Database.create(tmp_path / "call.db") as db:
        report = index_runs(
            db.index,
            [log],
            platform=toml,
            matrices=inputs / "matrices",
            options=ASKED,
            progress=lambda *step: told.append(step),
        )
    assert report.database == str(tmp_path / "call.db")
    assert _timeless(replace(report, database=said["database"]).document()) == said
    assert {task for task, _, _ in told} > {"read runs.csv", "embed with stats"}
    (problem,) = report.problems
    assert "zz.mtx" in problem
    (answers,) = report.answers
    assert (answers["op"], answers["patterns"], answers["stubs"]) == (str(OP), 21, 1)
    assert any("--matrices DIR" in line for line in answers["missing"])


def test_index_warns_where_each_matrix_is_its_own_group(inputs: Path, tmp_path: Path) -> None:
    log = (inputs / "runs.csv").read_text().splitlines()
    for name, tail in (
        ("plain", ["" for _ in log]),
        ("families", [",group", *[",f" for _ in log[1:]]]),
    ):
        file = tmp_path / f"{name}.csv"
        file.write_text("\n".join(line + more for line, more in zip(log, tail, strict=True)))
        with Database.create(tmp_path / f"{name}.db") as db:
            report = index_runs(
                db.index, [file], platform=tiny(), matrices=inputs / "matrices", options=ASKED
            )
        (answers,) = report.answers
        warned = any("a group of its own" in line for line in answers["missing"])
        assert warned == (name == "plain")


def test_what_can_be_asked_is_answered(inputs: Path, tmp_path: Path) -> None:
    with Database.create(tmp_path / "runs.db") as db:
        report = index_runs(db.index, [inputs / "runs.csv"], platform=tiny(), options=ASKED)
        assert report.question is not None
        assert shlex.split(report.example)[:3] == ["embeddb", "query", report.database]
        asked = report.question
        (info,) = db.store.find(asked.matrix)
        assert db.query(info, platform=asked.platform, op=asked.op).candidates
    assert not report.problems and report.adopted_runs == 0


def test_the_example_is_about_what_was_just_indexed(inputs: Path, tmp_path: Path) -> None:
    lines = (inputs / "runs.csv").read_text().splitlines()
    few = tmp_path / "few.csv"
    few.write_text("\n".join(lines[:-4]))
    with Database.create(tmp_path / "runs.db") as db:
        index_runs(db.index, [inputs / "runs.csv"], platform=tiny(), options=ASKED)
        for platform in (tiny("other"), tiny()):
            report = index_runs(db.index, [few], platform=platform, options=ASKED)
            assert len(report.answers) == 2 and report.question is not None
            assert report.question.platform == platform.name


def test_stubs_of_an_earlier_call_get_their_structure(inputs: Path) -> None:
    db, log = Database.in_memory(), inputs / "runs.csv"
    first = index_runs(db.index, [log], platform=tiny(), options=ASKED)
    again = index_runs(
        db.index, [log], platform="tiny", matrices=inputs / "matrices", options=ASKED
    )
    assert (first.files[0].stubs, again.files[0].added) == (21, 0)
    assert again.adopted_runs == 80
    assert (first.database, again.answers[0]["stubs"]) == ("", 1)


def test_a_log_of_which_nothing_can_be_used(tmp_path: Path) -> None:
    log = tmp_path / "runs.csv"
    log.write_text("matrix,rows,cols,nnz,variant,time_us\n")
    report = index_runs(Database.in_memory().index, [log], platform=tiny(), options=ASKED)
    assert (report.answers, report.question, report.example) == ([], None, "")


def test_a_platform_made_in_the_program_is_checked(
    inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexer.index_runs.check_platform", lambda p: [f"{p.name} is odd"])
    db, log = Database.in_memory(), inputs / "runs.csv"
    report = index_runs(db.index, [log], platform=tiny(), options=ASKED)
    assert report.platform_problems == ["tiny is odd"]
    # One that is in the database was checked when it came.
    assert index_runs(db.index, [log], platform="tiny", options=ASKED).platform_problems == []


def test_errors_come_before_anything_is_written(inputs: Path, tmp_path: Path) -> None:
    log, bad = inputs / "runs.csv", tmp_path / "bad.toml"
    bad.write_text("name = 3")
    foreign = tmp_path / "foreign.bin"
    foreign.write_bytes(bytes(range(256)))
    db = Database.in_memory()
    for files, told, error in (
        ([log, tmp_path / "gone.csv"], {"platform": tiny()}, ReaderError),
        ([log], {"platform": str(bad)}, PlatformError),
        ([log], {"platform": str(tmp_path / "gone.toml")}, PlatformError),
        ([log], {"platform": "nobody"}, PlatformError),
        ([log], {}, UsageError),
        ([foreign], {"platform": tiny()}, ReaderError),
        ([log], {"platform": tiny(), "matrices": tmp_path / "none"}, MatrixError),
    ):
        with pytest.raises(error):
            index_runs(db.index, files, options=ASKED, **told)
    assert db.store.counts()["run"] == 0


def test_an_instance_in_the_database_is_taken_only_if_it_is_named() -> None:
    db = Database.in_memory()
    db.store.put_platform(tiny().at("dev"))
    assert platform_of_runs(db.index, "tiny") == tiny()
    named = platform_of_runs(db.index, "tiny@dev")
    assert named is not None and named.instance == "dev"
    assert platform_of_runs(db.index, "") is None and platform_of_runs(None, None) is None
    for instance, version, extends in (("f", "2", "1"), ("e", "3", "2")):
        further = f'version = "{version}"\nextends = ["{extends}"]'
        later = parse_platform(tiny().text.replace('version = "1"', further))
        db.store.put_platform(later.at(instance))
    latest = platform_of_runs(db.index, "tiny")
    assert latest is not None and (latest.version, latest.instance) == ("3", "")
