"""Matrices are counted as matrices and machines as machines, alike on all pages and by verbs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import OP, fill, patterns, tiny
from command_line import run_verb

from embeddb.core.config import Op
from embeddb.database import Database
from embeddb.index.config_counts import wins
from embeddb.index.run_matrix import Extent, MatrixRow
from embeddb.ui.report import database_facts
from embeddb.ui.serve import facts, measured
from embeddb.ui.serve.app_state import AppState
from tuners.rule.learn import learn_rule

PAIR = tiny("pair", portable=True)
HOME = PAIR.at("home", {"cpu": "Zen 5", "threads": "2"})
HERE = PAIR.at("here", {"cpu": "Zen 3", "threads": "4"})
#: 24 matrices on one machine, 16 of them on the other too, and 20 at another width.
MANY, BOTH, WIDE = patterns(6), patterns(4), Op("spmm", 64)
PATTERNS, MACHINES, PAIRS = 24, 2, 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("counts") / "db"
    with Database.create(place) as db:
        fill(db, HOME, MANY)
        fill(db, HERE, BOTH)
        fill(db, HOME, patterns(5), op=WIDE)
    return place


@pytest.fixture
def db(folder: Path) -> Iterator[Database]:
    with Database.open(folder, readonly=True) as opened:
        yield opened


def document(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert run_verb([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_pages(db: Database) -> None:
    state = AppState(db, writable=False, max_upload=1)
    asked = {"platform": "pair", "op": str(OP)}
    runs = measured.runs(state, asked)
    assert (runs["patterns"], runs["machines"], runs["total"]) == (PATTERNS, MACHINES, PAIRS)
    assert {row["platform"] for row in runs["rows"]} == {"pair@home", "pair@here"}
    (listed,) = [s for s in facts.home(state, {})["scopes"] if s["op"] == str(OP)]
    assert listed["patterns"] == PATTERNS
    for name in ("pair@home", "pair@here"):
        (likes,) = [
            s for s in facts.platform(state, {"id": name})["measured"] if s["op"] == str(OP)
        ]
        assert (likes["patterns"], likes["won"], likes["machines"]) == (
            PATTERNS,
            PATTERNS,
            MACHINES,
        )
        assert likes["races"] == sum(w["wins"] for w in likes["winners"]) == PAIRS


def test_the_verbs(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stat = document(capsys, "db", "stat", str(folder))
    (scope,) = [s for s in stat["answers"] if s["op"] == str(OP)]
    assert scope["patterns"] == PATTERNS
    drawn = document(
        capsys, "plot", "winners", str(folder), "--op", str(OP), "-o", str(tmp_path / "w.svg")
    )
    assert (drawn["patterns"], drawn["machines"], drawn["races"]) == (PATTERNS, MACHINES, PAIRS)


def test_the_report(db: Database) -> None:
    (scope,) = [s for s in database_facts(db, place="DB").scopes if s.op == str(OP)]
    assert scope.patterns == PATTERNS
    (everything,) = [c for c in scope.classes if c.kind == "all"]
    assert everything.patterns == everything.tried == PATTERNS
    assert max(c.patterns for c in scope.classes) == PATTERNS
    assert max(w.patterns for w in scope.winners) <= PATTERNS


def test_a_rule(db: Database) -> None:
    rule = learn_rule(db.index, "pair", OP, 3)
    assert rule.patterns == rule.judged == PATTERNS


def test_wins_over_scopes_count_a_matrix_once(db: Database) -> None:
    counts, extent = wins(db.store, db.index.scopes())
    assert extent == Extent(PATTERNS, MACHINES, PAIRS)
    assert sum(counts.values()) == PAIRS + 20


def test_rows_of_another_operation_are_of_the_same_matrices() -> None:
    rows = [
        MatrixRow("p", "a", "g"),
        MatrixRow("p", "b", "g"),
        MatrixRow("q", "b", "g"),
        MatrixRow("r", "c", "g", op="spmm:64"),
    ]
    assert Extent.of(rows) == Extent(2, 2, 3)
    assert Extent.of(rows).words("matrix") == "2 matrices on 2 machines (3 pairs)"
    assert Extent.of(rows[:1]).words("nest") == "1 nest"
