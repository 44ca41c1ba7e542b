"""Whole machines held out, then given back: the harness, and what it must show."""

from __future__ import annotations

import itertools
import json
import math

import pytest
from builders import OP, by_law, fill, patterns, tiny
from command_line import run_verb

from embeddb.core.errors import NothingFound
from embeddb.core.pattern import Pattern
from embeddb.database import Database
from tuners.evaluation.across import AcrossRow, evaluate_across

PAIR = tiny("pair", portable=True)
MANY = patterns(10)


def turned(pattern: Pattern, variant: int) -> float:
    return by_law(pattern, variant) * (3.0 if variant == 2 else 1.0)


@pytest.fixture(scope="module")
def rows() -> list[AcrossRow]:
    db = Database.in_memory()
    for name, law in (("one", by_law), ("two", by_law), ("odd", turned)):
        fill(db, PAIR.at(name, {"cpu": name}), MANY, times=law)
    return evaluate_across(db.index, curve=(0, 2, 5, 20))


def of(rows: list[AcrossRow], instance: str, method: str, local: int) -> AcrossRow:
    return next(
        r for r in rows if (r.instance, r.method, r.local) == (f"pair@{instance}", method, local)
    )


def test_a_machine_like_another_needs_little_of_its_own(rows: list[AcrossRow]) -> None:
    """Of the two others one is odd, and nothing says which until something was measured here."""
    assert of(rows, "one", "embeddb", 0).of_optimum_5 > 0.99
    assert of(rows, "one", "embeddb", 5).of_optimum_1 > 0.99
    assert of(rows, "one", "oracle", -1).of_optimum_1 == pytest.approx(1.0)
    assert of(rows, "one", "default", -1).gain == pytest.approx(1.0)


def test_an_odd_machine_is_learned_from_its_own_runs(rows: list[AcrossRow]) -> None:
    shares = [of(rows, "odd", "embeddb", n).of_optimum_1 for n in (0, 2, 5, 20)]
    assert shares[0] < 0.95 and shares[-1] > 0.99
    assert all(later >= sooner - 1e-9 for sooner, later in itertools.pairwise(shares))


@pytest.mark.parametrize("local", [2, 5, 20])
def test_it_is_never_worse_than_the_better_of_both_kinds_of_evidence(
    rows: list[AcrossRow], local: int
) -> None:
    for instance in ("one", "odd"):
        ours = of(rows, instance, "embeddb", local).of_optimum_1
        alone = of(rows, instance, "neighbours-here", local).of_optimum_1
        elsewhere = of(rows, instance, "embeddb", 0).of_optimum_1
        assert ours >= max(alone, elsewhere) - 0.01


def test_rows_are_documents_without_nan(rows: list[AcrossRow]) -> None:
    for row in rows:
        told = row.document()
        assert {"op", "instance", "method", "local", "of_optimum@1", "promised"} <= set(told)
        assert not any(isinstance(v, float) and math.isnan(v) for v in told.values())
    assert of(rows, "odd", "embeddb", 0).matrices == len(MANY)


def test_builds_on_one_processor_are_one_machine() -> None:
    db = Database.in_memory()
    for name in ("gcc", "clang"):
        fill(db, PAIR.at(name, {"cpu": "the same"}), MANY)
    with pytest.raises(NothingFound, match="no machine to leave out"):
        evaluate_across(db.index, scopes=[(OP, "pair")])


def test_one_machine_alone_cannot_be_left_out() -> None:
    with pytest.raises(NothingFound) as caught:
        evaluate_across(fill(Database.in_memory(), tiny()).index)
    assert "calibrate" in caught.value.hint


# -- on the command line -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("across") / "pair.db"
    with Database.create(place) as db:
        for name, law in (("one", by_law), ("odd", turned)):
            fill(db, PAIR.at(name, {"cpu": name}), MANY, times=law)
    return str(place)


def test_the_verb_prints_rows_of_one_instance(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["eval", folder, "--across", "--platform", "pair@odd", "--seeds", "1"]
    assert run_verb([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {row["instance"] for row in told} == {"pair@odd"}
    assert {row["local"] for row in told if row["method"] == "embeddb"} == {0, 1, 2, 5, 10, 20}
    assert run_verb(asked) == 0
    shown = capsys.readouterr().out
    assert "pair@odd left out: 40 matrices" in shown and "neighbours-here" in shown


def test_what_does_not_go_together_is_a_usage_error(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verb(["eval", folder, "--across", "--learned"]) == 2
    assert "does not go with --learned" in capsys.readouterr().err
