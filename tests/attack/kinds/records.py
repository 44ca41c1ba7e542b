"""Values in the tables of a stranger's database: the CRC is right, the content is not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from attack import database
from attack.case import Case
from attack.mutate import mutated, mutated_json, mutated_tree

_VERBS = ("query", "name", "explain", "check", "stat", "export", "report", "embed", "clusters",
          "models", "rebuild", "spy", "nearest")  # fmt: skip
#: Aliases that lead to each other, two of them.
LOOP = "loop"


@cache
def _tables() -> tuple[tuple[str, bytes, bytes], ...]:
    from embeddb.database import Database
    from embeddb.store.engine import TABLES

    with Database.open(database.base()) as db, db.store._engine.read() as txn:
        return tuple((t, k, v) for t in TABLES for k, v in list(txn.scan(t))[:6])


def seeds() -> list[Case]:
    made = [
        Case(f"{table} {key.hex()} {_VERBS[at % len(_VERBS)]}", value)
        for at, (table, key, value) in enumerate(_tables())
    ]
    made += [Case(f"{LOOP} 00 {verb}", b"") for verb in ("name", "check", "export")]
    for table, key, _ in _tables():
        if table in ("note", "recommendation", "platform"):
            verb = "explain" if table == "recommendation" else "query"
            made += [
                Case(f"{table} {key.hex()} {verb}", b"[" * 200_000),
                Case(f"{table} {key.hex()} {verb}", b"{}"),
                Case(f"{table} {key.hex()} report", b'{"text":"x=' + b"1" * 5000 + b'"}'),
            ]
    return made


def mutate(rng: random.Random, case: Case, seeds: Sequence[Case]) -> Case:
    table, key, verb = case.how.split()
    if rng.random() < 0.8:
        verb = rng.choice(_VERBS)
    if rng.random() < 0.1:
        key = (mutated(rng, bytes.fromhex(key))[:511] or b"x").hex()
    return Case(f"{table} {key} {verb}", _value(rng, case.data, seeds))


def _value(rng: random.Random, data: bytes, seeds: Sequence[Case]) -> bytes:
    act = rng.random()
    if act < 0.1:
        return rng.choice((b"", b"\0", b"{}", b"[]", b"null", b"1", b'""', b"\xc0", b"\xff" * 8))
    if act < 0.7 and data[:1] in b"[{" and data:
        return mutated_json(rng, data)
    if act < 0.7:
        try:
            return msgspec.msgpack.encode(mutated_tree(rng, msgspec.msgpack.decode(data)))
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError, OverflowError):
            pass
    return mutated(rng, data, [one.data for one in rng.sample(seeds, 2)])


def prepare(scratch: Path) -> Any:
    return database.base()


def feed(case: Case, scratch: Path, state: Any) -> None:
    table, key, verb = case.how.split()
    folder = database.with_copy(state, scratch / "in.db")
    _put(folder, table, bytes.fromhex(key), case.data)
    code, _ = database.asked(verb, folder, scratch)
    # What could not be read is told by `check`, which reads everything and ends as it should.
    if code == 1 and verb != "check":
        database.asked("check", folder, scratch)


def _put(folder: Path, table: str, key: bytes, value: bytes) -> None:
    """Behind the store's back; a sound envelope around whatever it is."""
    from embeddb.store.lmdb_engine import LmdbEngine

    engine = LmdbEngine(folder)
    try:
        if table != LOOP:
            engine.write(lambda txn: txn.put(table, key, value))
            return

        def loop(txn: Any) -> None:
            first, second = [k for k, _ in txn.scan("pattern")][:2]
            txn.put("alias", first, second)
            txn.put("alias", second, first)

        engine.write(loop)
    finally:
        engine.close()
