"""What is known: the platform a name means, scopes, and their evidence."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import (
    OP,
    fill,
    tiny,
)

from embeddb.core.config import Op
from embeddb.core.errors import UsageError
from embeddb.database import Database
from embeddb.index.lookup import Lookup

WIDE = Op("spmm", 64)


def test_which_platform_a_name_means(tmp_path: Path) -> None:
    db = Lookup.in_memory()
    assert db.platform("cpu").name == "cpu"
    with pytest.raises(UsageError, match="no platform 'nowhere'"):
        db.platform("nowhere")
    db.store.put_platform(tiny().at("one"))
    assert db.platform("tiny").id == db.platform("tiny@one").id == "tiny@one"
    db.store.put_platform(tiny().at("two"))
    with pytest.raises(UsageError, match="2 instances") as e:
        db.platform("tiny")
    assert "tiny@one, tiny@two" in e.value.hint
    pair = tiny("pair", portable=True)
    db.store.put_platform(pair.at("one"))
    assert db.platform("pair").id == "pair"
    file = tmp_path / "mine.toml"
    file.write_text(tiny("mine").text)
    assert db.platform(str(file)).id == "mine"


def test_scopes_and_evidence() -> None:
    lawful = fill(Database.in_memory(), tiny())
    assert lawful.index.scopes() == [(OP, "tiny")]
    evidence, vectors = lawful.index.evidence(OP, "tiny")
    assert len(evidence.rows) == 20 and all(len(v) == 20 for v in vectors.values())
    assert lawful.problems() == []
