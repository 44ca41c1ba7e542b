"""What is known: the platform a name means, scopes, and their evidence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from builders import OP, band, fill, patterns, tiny
from numpy.typing import NDArray

from embeddb.core.config import Op
from embeddb.core.errors import UsageError
from embeddb.core.pattern import Pattern
from embeddb.database import Database, open_database
from embeddb.featurizers.stats import Stats
from embeddb.index.files import IndexFiles
from embeddb.index.lookup import _MOST_VECTORS, Lookup

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


def test_a_structure_is_embedded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    db = fill(Database.in_memory(), tiny())
    embedded, embed = [], Stats.embed

    def counted(self: Stats, pattern: Pattern) -> NDArray[np.float32]:
        embedded.append(pattern.id)
        return embed(self, pattern)

    monkeypatch.setattr(Stats, "embed", counted)
    new = band(400, 9)
    first = db.index.vector(new, "stats")
    assert np.array_equal(db.index.vector(new, "stats"), first) and embedded == [new.id]
    for at in range(_MOST_VECTORS):
        db.index.vector(band(401 + at, 3), "stats")
    db.index.vector(new, "stats")
    assert embedded.count(new.id) == 2  # only the latest are kept


def test_neighbours_by_a_named_featurizer() -> None:
    db = fill(Database.in_memory(), tiny())
    by_sizes, pattern = db.by_featurizer("sizes"), patterns()[3]
    usual = db.query(pattern, platform="tiny", op=OP)
    named = by_sizes.query(pattern, platform="tiny", op=OP)
    assert (usual.featurizer, named.featurizer) == ("stats", "sizes")
    assert list(by_sizes.index.evidence(OP, "tiny")[1]) == ["sizes"]
    assert db.query(pattern, platform="tiny", op=OP).featurizer == "stats"
    # The same as chosen is the partition itself.
    chosen = db.index.partition(OP, tiny())
    assert db.by_featurizer("stats").index.partition(OP, tiny()) is chosen


def test_a_named_featurizer_sees_new_runs() -> None:
    *some, last = patterns()
    db = fill(Database.in_memory(), tiny(), some)
    by_sizes = db.by_featurizer("sizes")
    before = by_sizes.index.partition(OP, tiny())
    assert before is not None and last.id not in before.ids
    fill(db, tiny(), [last])
    after = by_sizes.index.partition(OP, tiny())
    assert after is not None and last.id in after.ids


def test_a_featurizer_that_there_is_not() -> None:
    db = fill(Database.in_memory(), tiny())
    with pytest.raises(UsageError, match="no featurizer named 'nowhere'"):
        db.by_featurizer("nowhere")
    with pytest.raises(UsageError, match="no measured matrix has a vector of nest-stats"):
        db.by_featurizer("nest-stats").query(patterns()[0], platform="tiny", op=OP)


def test_each_opening_reports_its_own_long_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IndexFiles, "_building_s", lambda *_: 9.0)
    fill(Database.create(tmp_path / "db"), tiny()).close()
    one, other = list[str](), list[str]()
    with (
        open_database(tmp_path / "db", note=one.append) as first,
        open_database(tmp_path / "db", note=other.append) as second,
    ):
        for count, db in ((1, first), (2, first.index.by_featurizer("stats")), (2, second)):
            index = db if isinstance(db, Lookup) else db.index
            index.forget_partitions()
            index.partition(OP, tiny())
            assert len(one) == count and len(other) == (db is second)
        first.index._derived.reload()  # as after `use_weights`
        first.index.forget_partitions()
        first.index.partition(OP, tiny())
    assert (len(one), len(other)) == (3, 1)
    assert all(line.startswith("preparing answers for") for line in one + other)
