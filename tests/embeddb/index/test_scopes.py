"""Scopes: whose runs answer for an operation, and which partitions these are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest
from builders import OP, band, by_law, fill, patterns, runs_of, sized, tiny

from embeddb.core.config import Config, Op
from embeddb.core.errors import StoreCorrupt
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.database import Database
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.scopes import (
    answering_op,
    run_matrix_of,
    scope_of,
    scope_partitions,
    scopes,
)
from embeddb.platforms.platform import Platform, parse_platform
from embeddb.store import Store
from tuners.evaluation.evaluate import evaluate

WIDE = Op("spmm", 512)


def test_instances_of_a_portable_platform_are_one_scope() -> None:
    db = Database.in_memory()
    portable, alone = tiny(name="kind", portable=True), tiny(name="alone")
    pattern = band(40, 3, name="p")
    for platform, op in (
        (portable.at("b"), OP),
        (portable.at("a"), OP),
        (portable.at("a"), WIDE),
        (alone.at("x"), OP),
    ):
        db.index.record(runs_of(pattern, platform, op=op), pattern, platform)
    assert [(s.op, s.name, s.instances) for s in scopes(db.store)] == [
        (OP, "alone@x", ("alone@x",)),
        (OP, "kind", ("kind@a", "kind@b")),
        (WIDE, "kind", ("kind@a",)),
    ]
    assert db.index.scopes() == [(s.op, s.name) for s in scopes(db.store)]
    for scope in scopes(db.store):
        assert scope_of(scope.platform) == scope.name
        held = scope_partitions(db.store, scope.op, scope.name)
        assert tuple(sorted(p.platform for p in held)) == scope.instances
        assert {p.op for p in held} == {scope.op}
    assert scope_partitions(db.store, OP, "kind@a") == []  # a part of a scope is none


def test_workloads_that_are_stored_while_evidence_is_read_have_their_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    db, later = Database.in_memory(), band(41, 3, name="later", group="family")
    fill(db, tiny(), patterns(2), indexed=False)
    real = Store.patterns

    def read(store: Store) -> Iterator[WorkloadInfo]:
        infos = list(real(store))
        db.index.record(runs_of(later, tiny()), later, tiny())
        return iter(infos)

    monkeypatch.setattr(Store, "patterns", read)
    groups = {row.pattern_id: row.group for row in run_matrix_of(db.store, OP, "tiny").rows}
    assert groups[later.id] == "family"


def _measure(db: Database, sizes: list[int]) -> None:
    """Two choices of columns, of which those of 64 columns are the same as all of them."""
    platform = sized()
    for n in sizes:
        pattern, times = band(n, 4, name=f"n{n}", group=f"g{n}"), {"NUM_MATRIX_COLS": 2e-3, 8: 1e-3}
        canonical = platform.space(OP, pattern.sizes).canonical
        ran = {canonical(Config({"rows": 1, "cols": c})): t for c, t in times.items()}
        assert any(config["cols"] == 64 for config in ran) == (n == 64)
        runs = [Run(pattern.id, OP, "sized", c, Measurement(times_s=(t,))) for c, t in ran.items()]
        db.index.record(runs, pattern, platform)


@pytest.mark.parametrize("sizes", [[64, 300, 310, 320], [300, 310, 320, 64]])
def test_a_choice_that_is_a_number_on_some_patterns_is_one_choice(sizes: list[int]) -> None:
    """That 64 of 64 columns are all of them makes no configuration that this pattern alone ran."""
    db, choices = Database.in_memory(), [{"rows": 1, "cols": c} for c in ("NUM_MATRIX_COLS", 8)]
    _measure(db, sizes[:3])
    first = db.index.partition(OP, sized())
    _measure(db, sizes[3:])
    grown, anew = db.index.partition(OP, sized()), db.index.refresh(OP, "sized", again=True)
    for index in (first, grown, anew):
        assert index is not None and [dict(c) for c in index.evidence.configs] == choices
        assert index.evidence.default_s == pytest.approx([2e-3] * len(index.evidence.rows))
    made = db.query(band(330, 4), platform="sized", op=OP)
    assert made.candidates[0].config == choices[1]
    own = db.query(band(64, 4), platform="sized", op=OP)
    assert {one.config["cols"] for one in own.candidates} == {8, 64}
    judged = {row.method: row for row in evaluate(db.index)}
    assert judged["embeddb"].matrices == 4
    assert judged["embeddb"].figures["of_optimum@1"] == pytest.approx(1.0)
    assert judged["knn-stats"].figures["of_optimum@1"] == pytest.approx(1.0)


def test_a_number_that_others_ran_stays() -> None:
    db, platform = Database.in_memory(), sized()
    for n in (64, 300, 310):
        pattern = band(n, 4, name=f"n{n}")
        runs = [
            Run(pattern.id, OP, "sized", Config({"rows": 1, "cols": c}), Measurement(times_s=(t,)))
            for c, t in {8: 1e-3, 64: 2e-3}.items()
        ]
        db.index.record(runs, pattern, platform)
    index = db.index.partition(OP, platform)
    assert index is not None and [c["cols"] for c in index.evidence.configs] == [64, 8]


def test_a_width_with_next_to_no_runs_is_answered_by_the_nearest_one() -> None:
    db, platform = Database.in_memory(), tiny()
    known = patterns(10)  # 40 of them
    for op in (OP, WIDE):
        for pattern in known:
            db.index.record(runs_of(pattern, platform, op=op), pattern, platform)

    def answers(text: str) -> str:
        return str(answering_op(db.store, Op.parse(text), "tiny"))

    assert answers("spmm:32") == "spmm:32"
    assert [answers(text) for text in ("spmm:1", "spmm:100", "spmm:128")] == [
        *("spmm:32", "spmm:32", "spmm:512")  # of two equally far the wider
    ]
    assert answers("spmm:128:f64") == "spmm:512"  # no width of this type ran
    double = db.query(band(131, 6, name="new"), platform=platform, op="spmm:32:f64")
    assert double.evidence_op == "spmm:32" and double.candidates[0].expected_gain is not None
    for pattern in known[:6]:
        for other in ("f16", "bf16"):
            runs = runs_of(pattern, platform, op=Op("spmm", 512, other))
            db.index.record(runs, pattern, platform)
    assert answers("spmm:128:f64") == "spmm:512"  # six matrices of another type are too few
    for at, pattern in enumerate(known[:5]):
        assert answers("spmm:64") == "spmm:32", f"{at} matrices are too few"
        near = db.index.answering(Op("spmm", 64), platform)
        assert near is not None and near.op == OP
        db.index.record(runs_of(pattern, platform, op=Op("spmm", 64)), pattern, platform)
    assert answers("spmm:64") == "spmm:64"
    own = db.index.partition(Op("spmm", 64), platform)
    assert own is not None and own.op == Op("spmm", 64)


def test_where_no_width_has_enough_they_answer_together() -> None:
    db, platform = Database.in_memory(), tiny()
    for pattern in patterns(2):
        db.index.record(runs_of(pattern, platform), pattern, platform)
    assert answering_op(db.store, WIDE, "tiny") == WIDE
    partition = db.index.answering(WIDE, platform)
    assert partition is not None and partition.op == WIDE


def later_version(
    platform: Platform, version: str = "2", extends: str = '"1"', default: str = "d"
) -> Platform:
    """A version of a platform with another default and a further value."""
    text = platform.text.replace(
        'version = "1"', f'version = "{version}"\nextends = [{extends}]'
    ).replace('variant = "a"', f'variant = "{default}"')
    return parse_platform(text.replace(' "d"]', ' "d", "e"]'))


def default_times(index: AnswerIndex, among: list[Pattern], variant: int) -> list[float]:
    times = {pattern.id: by_law(pattern, variant) for pattern in among}
    return [times[row.pattern_id] for row in index.evidence.rows]


@pytest.mark.parametrize("portable", [True, False])
def test_gains_are_over_the_default_of_the_latest_version(portable: bool) -> None:
    first = tiny(name="kind", portable=portable).at("z")
    # The name stands for the latest version, whichever instance has it.
    second = later_version(first).at("a" if portable else "z")
    db, (one, *known) = Database.in_memory(), patterns()
    fill(db, first, known)
    opened = db.index.answering(OP, first)
    assert opened is not None
    assert all(opened.evidence.default_s == default_times(opened, known, 0))
    db.index.record(runs_of(one, second), one, second)
    named = db.platform("kind" if portable else "kind@z")
    assert named.version == "2" and db.platform("kind@z").version == "2"
    assert {s.platform.version for s in scopes(db.store)} == {"2"}
    changed = db.index.answering(OP, named)
    assert changed is not None and len(changed.evidence.rows) == len(known) + 1
    assert all(changed.evidence.default_s == default_times(changed, [one, *known], 3))


def test_gains_are_over_a_default_that_a_third_version_takes_back() -> None:
    first = tiny(name="kind", portable=True)
    db, (one, *known) = Database.in_memory(), patterns()
    fill(db, first.at("a"), known)
    for later, variant in (
        (later_version(first), 3),
        (later_version(first, "3", '"1", "2"', default="a"), 0),
    ):
        db.index.record(runs_of(one, later.at("b")), one, later.at("b"))
        answering = db.index.answering(OP, first.at("a"))
        assert answering is not None
        assert all(answering.evidence.default_s == default_times(answering, [one, *known], variant))


@pytest.mark.parametrize("instances", ["abc", "cba", "bca"])
def test_a_version_of_a_version_is_the_latest_in_any_order(instances: str) -> None:
    first = tiny(name="kind", portable=True)
    versions = (first, later_version(first), later_version(first, "3", '"2"'))
    db = Database.in_memory()
    for instance, version in zip(instances, versions, strict=True):
        db.store.put_platform(version.at(instance))
    assert {db.platform(f"kind@{i}").version for i in instances} == {"3"}


def test_a_damaged_instance_does_not_keep_others_from_answers(tmp_path: Path) -> None:
    first = tiny(name="kind", portable=True)
    with Database.create(tmp_path / "db") as db:
        fill(db, first.at("a"), patterns())
        db.store.put_platform(first.at("b"))
    with lmdb.open(str(tmp_path / "db"), max_dbs=64) as env, env.begin(write=True) as txn:
        table = env.open_db(b"platform", txn=txn)
        value = txn.get(b"kind@b", db=table)
        txn.put(b"kind@b", value[:-1] + bytes([value[-1] ^ 1]), db=table)
    with Database.open(tmp_path / "db") as db:
        with pytest.raises(StoreCorrupt):
            db.store.platform("kind@b")
        assert [s.instances for s in scopes(db.store)] == [("kind@a",)]
        answer = db.query(patterns()[0], platform=first.at("a"), op=OP)
        assert db.explain(answer).neighbours
        # Runs of a later version are stored, too.
        later = later_version(first).at("c")
        assert db.store.put_platform(later) == []
        assert scopes(db.store)[0].platform.version == "2"
