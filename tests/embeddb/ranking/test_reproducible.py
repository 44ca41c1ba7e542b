"""`query --reproducible`: configurations whose sums run in varying order stay out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builders import OP, VARIANTS, band, fill, patterns, tiny
from command_line import run_verb

from embeddb.core.config import Config, Op
from embeddb.core.errors import PlatformError, UsageError
from embeddb.core.sizes import Sizes
from embeddb.database import Database
from embeddb.platforms.platform import Platform, load_platform, parse_platform

LINE = "varying = [\"variant == 'c'\", \"variant == 'd'\"]"


def declared(line: str = LINE) -> Platform:
    text = tiny().text
    return parse_platform(text.replace("[[space]]\n", f"[[space]]\n{line}\n"))


def test_what_varies_is_not_part_of_the_digest() -> None:
    assert declared().digest == tiny().digest
    assert declared().restricted(OP, reproducible=True).digest == tiny().digest
    assert declared().restricted(OP, reproducible=True) == declared()


def test_only_what_is_reproducible_is_legal() -> None:
    space = declared().restricted(OP, reproducible=True).space(OP)
    assert [c["variant"] for c in space.enumerate()] == ["a", "b"]
    assert space.reason(Config({"variant": "c"})) == "sums in varying order"
    assert space.constraints == ()
    assert space.size() == 2
    assert declared().space(OP).size() == len(VARIANTS)
    assert declared("varying = []").restricted(OP, reproducible=True).space(OP).size() == len(
        VARIANTS
    )


@pytest.mark.parametrize(
    "line, said",
    [
        ("varying = [\"variant == 'x'\"]", "space[0].varying[0]"),
        ('varying = ["1 == 1"]', "mentions no parameter"),
        ('varying = ["WIDTH > 8"]', "cannot use 'WIDTH'"),
        ('varying = "variant"', "must be a list"),
    ],
)
def test_a_wrong_condition_names_its_place(line: str, said: str) -> None:
    with pytest.raises(PlatformError, match="varying") as caught:
        declared(line)
    assert said in str(caught.value)


def test_without_a_declaration_the_error_says_what_is_missing() -> None:
    with pytest.raises(UsageError, match="sum in varying order") as caught:
        tiny().restricted(OP, reproducible=True)
    assert "`varying = [...]` in the [[space]] of spmm" in (caught.value.hint or "")


def test_a_stored_platform_of_an_older_file_takes_the_built_in_word() -> None:
    now = load_platform("cpu")
    lines = [x for x in now.text.splitlines() if not x.startswith("varying")]
    older = parse_platform("\n".join(lines)).at("x")
    assert older.kernel("spmm").varying is None
    space = older.restricted(Op("spmm", 32), reproducible=True).space(
        Op("spmm", 32), Sizes(9, 9, 9)
    )
    assert not any(c.get("seams") == "atomic" for c in space.enumerate())


@pytest.fixture
def db() -> Any:
    with fill(Database.in_memory(), declared()) as made:
        yield made


def test_an_answer_without_them(db: Database) -> None:
    new = band(130, 30, name="new")
    assert db.query(new, platform="tiny", op=OP).candidates[0].config == {"variant": "d"}
    made = db.query(new, platform="tiny", op=OP, reproducible=True)
    assert made.reproducible
    assert {c.config["variant"] for c in made.candidates} == {"a", "b"}
    assert made.rejected["variant=d"] == "sums in varying order"
    assert db.recommendation(made.id).reproducible
    rejected = db.explain(made.id).recommendation.rejected
    assert rejected["variant=c"] == "sums in varying order"
    assert not {n.config["variant"] for n in made.insight.next} & {"c", "d"}


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, platform in (("with", declared()), ("without", tiny())):
        with Database.create(tmp_path / name) as made:
            fill(made, platform, patterns(3))
    asked = ["m0d", "--platform", "tiny", "--op", "spmm:32", "--reproducible"]
    capsys.readouterr()
    assert run_verb(["query", str(tmp_path / "with"), *asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["reproducible"] is True
    assert all(c["config"]["variant"] in "ab" for c in told["candidates"])
    assert run_verb(["query", str(tmp_path / "with"), *asked]) == 0
    assert "a varying summation order are excluded" in capsys.readouterr().out
    assert run_verb(["query", str(tmp_path / "without"), *asked]) == 2
    assert "varying = [...]" in capsys.readouterr().err
