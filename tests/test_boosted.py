"""Boosted trees: they find a law, from the training rows alone, and refuse what teaches nothing."""

from __future__ import annotations

import numpy as np
import pytest
from builders import CONFIGS, OP, by_law, fill, patterns, tiny, winner

from embeddb.db import Database
from embeddb.errors import MissingDependency, UsageError
from embeddb.pattern import Pattern
from indexer.training import boosted
from indexer.training.samples import SampleRow, Samples

needs_lightgbm = pytest.mark.skipif(not boosted.available(), reason="lightgbm is not installed")


def _fitted(db: Database, among: list[Pattern]) -> tuple[boosted.Boosted, dict[str, np.ndarray]]:
    evidence, vectors = db.evidence(OP, "tiny")
    infos = {p.id: db.store.pattern(p.id) for p in among}
    known = {"stats": vectors["stats"]}
    return boosted.fit(evidence, known, infos, tiny(), OP), vectors["stats"]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def lawful() -> Database:
    return fill(Database.in_memory(), tiny(), patterns(12))


@needs_lightgbm
def test_a_law_is_learned_and_higher_is_faster(lawful: Database) -> None:
    model, _ = _fitted(lawful, patterns(12))
    fresh = patterns(2, first=20)
    other = fill(Database.in_memory(), tiny(), fresh)
    vectors = other.evidence(OP, "tiny")[1]["stats"]
    for pattern in fresh:
        gain, spread = model.score(vectors[pattern.id], tiny(), OP, CONFIGS)
        assert gain.shape == (4,) and abs(gain.mean()) < 1e-9 and np.isnan(spread).all()
        assert int(gain.argmax()) == winner(pattern)
        true = -np.log([by_law(pattern, v) for v in range(4)])
        assert np.corrcoef(gain, true)[0, 1] > 0.9


@needs_lightgbm
def test_the_same_rows_give_the_same_trees(lawful: Database) -> None:
    (one, vectors), (two, _) = (_fitted(lawful, patterns(12)) for _ in range(2))
    vector = next(iter(vectors.values()))
    assert np.array_equal(*(m.score(vector, tiny(), OP, CONFIGS)[0] for m in (one, two)))
    assert one.score(vector, tiny(), OP, ())[0].shape == (0,)


def test_a_row_of_good_configurations_only_is_not_taken_for_slow_ones() -> None:
    """Every second matrix ran the two best configurations only: centred on themselves, the second
    best would look as slow there as bad ones do elsewhere."""
    gains = np.array([0.6, 0.4, 0.0, -1.0])
    ran = [[0, 1, 2, 3] if at % 2 else [0, 1] for at in range(20)]
    column = np.concatenate(ran).astype(np.int32)
    samples = Samples(
        tiny(),
        tuple(SampleRow(str(at), OP, str(at), (9, 9, 9)) for at in range(20)),
        np.zeros((20, 1), dtype=np.float32),
        CONFIGS,
        np.cumsum([0, *map(len, ran)]),
        column,
        gains[column],
    )
    target = boosted._centred(samples)
    for c in (0, 1):
        here, there = (target[samples.part(at)][c] for at in (0, 1))
        assert here == pytest.approx(there, abs=0.1)


@needs_lightgbm
def test_too_little_to_learn_from(lawful: Database) -> None:
    evidence, vectors = lawful.evidence(OP, "tiny")
    nothing = evidence.take(np.zeros(0, dtype=np.int64))
    for known, among in ((nothing, vectors), (evidence, {}), (evidence, {"stats": {}})):
        with pytest.raises(UsageError):
            boosted.fit(known, among, {}, tiny(), OP)


def test_without_lightgbm_one_line_says_what_to_install(
    lawful: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boosted, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency) as caught:
        _fitted(lawful, patterns(12))
    assert "boosted" in caught.value.hint
