"""What a contributor's machines brought and what they say, and whose runs an answer rests on."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import builders
import pytest
from command_line import run_verb
from html5lib import HTMLParser
from msgspec.structs import replace as changed

from embeddb.core.errors import UsageError
from embeddb.core.records import Run
from embeddb.database import Database
from embeddb.store.provenance import HERE
from embeddb.store.withdrawn import RunSelection
from embeddb.ui.report.contributors import contributors_of
from embeddb.ui.report.database import database_facts
from embeddb.ui.report.explanation import explanation_html
from indexer.exchange.exchange import push

PLATFORM = builders.tiny()
SCRIPT = "<script>ann()</script>"


def slower(run: Run, factor: float) -> Run:
    m = run.measurement
    return replace(run, measurement=changed(m, times_s=tuple(t * factor for t in m.times_s)))


def measured(db: Database, first: int, groups: int, factor: float = 1.0) -> None:
    """Groups of patterns as somebody measured them, on a machine so many times slower."""
    own = Database.in_memory()
    builders.fill(own, PLATFORM, builders.patterns(groups, first=first), indexed=False)
    runs = [slower(r, factor) for p in own.store.partitions()
            for r in own.store.runs(p.platform, p.op)]  # fmt: skip
    db.store.put_platform(PLATFORM)
    db.store.append(runs, patterns=own.store.patterns())
    for pattern in builders.patterns(groups, first=first):
        db.store.put_structure(pattern, own.store.pattern(pattern.id))  # type: ignore[arg-type]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Groups 0 to 3 were run here; ann measured 2 to 5, twice as slow; bob 6, with a failure."""
    with Database.create(tmp_path / "team.db") as team:
        measured(team, 0, 4)
        with Database.in_memory() as ann:
            measured(ann, 2, 4, 2.0)
            push(ann.index, team.index, source=f"ann {SCRIPT}")
        with Database.in_memory() as bob:
            measured(bob, 6, 1)
            push(bob.index, team.index, source="bob@home")
        from indexer.embed import embed

        embed(team.index)
    return tmp_path / "team.db"


def test_what_each_brought_is_counted_and_compared(place: Path) -> None:
    with Database.open(place) as db:
        ann, bob, here = contributors_of(db)
        each = len(builders.patterns(1))
        assert (ann.name, bob.name, here.name) == (f"ann {SCRIPT}", "bob@home", "")
        (brought,) = ann.brought
        # Where a configuration ran here, what was pushed of it does not count.
        assert brought.patterns == brought.alone == 2 * each and brought.in_common == 0
        assert brought.runs == ann.runs == 2 * each * len(builders.CONFIGS)
        assert ann.withdrawn == 0 and ann.pushes == 1 and "@" in ann.pushed_by[0]
        assert here.brought[0].patterns == 4 * each and here.pushed_by == []
        assert brought.gain is not None and brought.gain > 1.0
        # Each of the four variants is the fastest on a fourth of the patterns; three are told.
        assert [n for _, n in brought.winners] == [2, 2, 2]
        db.store.withdrawn.withdraw(RunSelection(source="bob@home"))
        _, bob, _ = contributors_of(db)
        assert bob.runs == 0 and bob.withdrawn == each * len(builders.CONFIGS) and not bob.brought
        assert [one.name for one in contributors_of(db, only="bob@home")] == ["bob@home"]
        with pytest.raises(UsageError, match="no source"):
            contributors_of(db, only="nobody")


def test_two_who_measured_the_same_are_compared(tmp_path: Path) -> None:
    with Database.create(tmp_path / "team.db") as team:
        for name, factor in (("ann", 1.0), ("bob", 3.0)):
            with Database.in_memory() as own:
                measured(own, 0, 2, factor)
                push(own.index, team.index, source=name)
        ann, bob = contributors_of(team)
        assert bob.brought[0].alone == 0 and bob.brought[0].in_common > 0
        assert math.isclose(bob.brought[0].beside_others or 0, 3.0)
        assert math.isclose(ann.brought[0].beside_others or 0, 1 / 3)
        assert ann.brought[0].gain == pytest.approx(bob.brought[0].gain), "over its own default"


def test_a_database_of_one_tells_no_contributors(tmp_path: Path) -> None:
    with Database.create(tmp_path / "own.db") as db:
        builders.fill(db, PLATFORM)
        assert contributors_of(db) == [] == database_facts(db).contributors
        answer = db.query(builders.patterns(1, first=9)[0], platform="tiny", op=builders.OP)
        assert all(near.provenance == [] for near in db.explain(answer).neighbours)


def test_the_report_has_a_part_and_a_page_by_source(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    assert run_verb(["report", str(place), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in facts["contributors"]] == [f"ann {SCRIPT}", "bob@home", ""]
    assert run_verb(["report", str(place)]) == 0
    said = capsys.readouterr().out
    assert "bob@home: " in said and HERE in said
    for words in ([], ["--source", f"ann {SCRIPT}"]):
        assert run_verb(["report", str(place), *words, "--html", str(page)]) == 0
        text = page.read_text(encoding="utf-8")
        HTMLParser(strict=True).parse(text)
        assert "<script>" not in text and "ann &lt;script&gt;" in text
        assert ("bob@home" in text) is (not words)
    capsys.readouterr()
    assert run_verb(["report", str(place), "--source", "bob@home", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["name"] == "bob@home" and told["brought"][0]["platform"] == "tiny"
    assert run_verb(["report", str(place), "--source", "bob@home"]) == 0
    assert "bob@home: " in capsys.readouterr().out
    for wrong in (["--source", "nobody"], ["--source", "bob@home", "--eval", "x.json"]):
        assert run_verb(["report", str(place), *wrong]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_an_explanation_tells_whose_runs_it_rests_on(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = builders.patterns(1, first=6)[0]
    with Database.open(place) as db:
        known = db.explain(db.query(own, platform="tiny", op=builders.OP))
        (answer, *_) = known.own
        assert [(p.source, p.machine) for p in answer.provenance] == [("bob@home", "tiny")]
        assert answer.provenance[0].runs == answer.runs
        asked = builders.patterns(1, first=5)[0]
        made = db.query(asked, platform="tiny", op=builders.OP)
        e = db.explain(made)
        by = {near.pattern_id: near.provenance for near in e.neighbours}
        sources = {p.source for held in by.values() for p in held}
        assert by and all(by.values()) and sources <= {"", "bob@home", f"ann {SCRIPT}"}
        for near in e.neighbours:
            assert sum(p.runs for p in near.provenance) == len(
                list(db.store.runs(near.platform, builders.OP, near.pattern_id))
            )
        page = explanation_html(e)
        HTMLParser(strict=True).parse(page)
        assert "whose runs" in page and "<script>" not in page
    assert run_verb(["explain", str(place), made.id]) == 0
    text = capsys.readouterr().out
    assert "whose runs" in text
    assert run_verb(["explain", str(place), made.id, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {"source", "machine", "runs", "first", "last", "pushed_by"} == set(
        told["neighbours"][0]["provenance"][0]
    )
    assert told["own"][0]["provenance"][0]["source"] == f"ann {SCRIPT}"
