"""What a model was asked is kept, and believed only if it can be."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from played_xla import chain

from embeddb.database import Database, open_database
from embeddb.tensors.edges import Cut, edges_of
from embeddb.tensors.partition import random_cut
from tuners.fusion_cuts import MOST_KEPT, Shortlist, stored_shortlist

PROGRAM = chain(12)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "db", create=True) as opened:
        yield opened


def written(db: Database) -> Shortlist:
    rng, made = np.random.default_rng(0), Shortlist("m1")
    for at in range(5):
        made.add(random_cut(PROGRAM, rng), 1e-3 / (at + 1))
    made.current, made.spent_s = edges_of(PROGRAM).single, 2.5
    made.save(db.store, "key")
    return made


def test_it_is_read_as_it_was_kept(db: Database) -> None:
    made = written(db)
    read = stored_shortlist(db.store, "key", PROGRAM, "m1")
    assert read.best() == made.best() and read.current == made.current
    assert (read.spent_s, read.seen) == (2.5, 5)


def test_the_best_are_kept_and_failures_are_not() -> None:
    program, made = chain(14), Shortlist("m1")
    bits = itertools.product((False, True), repeat=len(edges_of(program).pairs))
    cuts = [Cut(one) for one in itertools.islice(bits, 3 * MOST_KEPT)]
    for at, cut in enumerate(cuts):
        made.add(cut, float(len(cuts) - at))
    made.add(edges_of(program).single, float("inf"))
    assert len(made.seconds) <= 2 * MOST_KEPT and made.seen == len(cuts) + 1
    best = made.best()
    assert len(best) == MOST_KEPT
    assert [seconds for _, seconds in best] == [float(at + 1) for at in range(MOST_KEPT)]


@pytest.mark.parametrize(
    "change",
    [
        {"model": "m2"},
        {"spent_s": -1.0},
        {"spent_s": "long"},
        {"seconds": [1.0]},
        {"seconds": [0.0] * 5},
        {"current": "3:8"},
        {"current": "11:zz"},
        {"cuts": ["nothing"] * 5},
        {"more": 1},
    ],
)
def test_what_cannot_be_believed_is_begun_anew(db: Database, change: dict[str, Any]) -> None:
    written(db)
    note = json.loads(db.store.notes.get("key") or b"")
    db.store.notes.put("key", json.dumps({**note, **change}).encode())
    read = stored_shortlist(db.store, "key", PROGRAM, "m1")
    assert read.best() == [] and read.current is None and read.spent_s == 0


@pytest.mark.parametrize("raw", [b"", b"{", b"null", b"[]", b" " * (2 << 20)])
def test_what_is_no_note_is_begun_anew(db: Database, raw: bytes) -> None:
    db.store.notes.put("key", raw)
    assert stored_shortlist(db.store, "key", PROGRAM, "m1").best() == []
