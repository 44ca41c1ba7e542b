"""Scopes: whose runs answer for an operation, and which partitions these are."""

from __future__ import annotations

from builders import OP, band, runs_of, tiny

from embeddb.core.config import Op
from embeddb.database import Database
from embeddb.index.scopes import scope_of, scope_partitions, scopes

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
