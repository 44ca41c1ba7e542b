"""The map: near stays near, any vectors are taken, and a stored one is used only while it holds."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from builders import OP, VARIANTS, band, fill, patterns, runs_of, tiny, winner
from numpy.typing import NDArray

from embeddb.core.config import Op
from embeddb.database import Database
from embeddb.index import projection as atlas
from embeddb.index.projection import Projection, layout
from indexer.embed import embed

KEY = "atlas/spmm:32/tiny"


def clusters(rng: np.random.Generator, n: int, *, of: int = 12) -> NDArray[np.float32]:
    """Points about centres in 6 of 20 dimensions."""
    centres = 3.0 * rng.normal(size=(of, 6))
    low = centres[rng.integers(0, of, n)] + 0.5 * rng.normal(size=(n, 6))
    turned = low @ rng.normal(size=(6, 20)) + 0.1 * rng.normal(size=(n, 20))
    return turned.astype(np.float32)


def trust(x: NDArray[np.float32], y: NDArray[np.float32], k: int = 10) -> float:
    """Trustworthiness (Venna and Kaski 2001): 1 where all that are near in y are near in x."""
    n = len(x)
    ranks = np.argsort(np.argsort(_distances(x), axis=1), axis=1)
    near = np.argsort(_distances(y), axis=1)[:, 1 : k + 1]
    beyond = np.take_along_axis(ranks, near, 1) - k
    return float(1.0 - 2.0 / (n * k * (2 * n - 3 * k - 1)) * beyond.clip(0).sum())


def _distances(x: NDArray[np.float32]) -> NDArray[np.float64]:
    gaps = x[:, None].astype(np.float64) - x[None].astype(np.float64)
    found: NDArray[np.float64] = np.sqrt((gaps * gaps).sum(axis=2))
    np.fill_diagonal(found, -1.0)
    return found


def components(x: NDArray[np.float32]) -> NDArray[np.float32]:
    centred = x - x.mean(axis=0)
    return np.asarray(centred @ np.linalg.svd(centred)[2][:2].T, dtype=np.float32)


# -- the layout --------------------------------------------------------------------------------


def test_near_stays_near_more_than_with_principal_components(rng: np.random.Generator) -> None:
    x = clusters(rng, 300)
    for seed in (0, 1):
        places = layout(x, seed=seed)
        assert trust(x, places) > 0.95
        assert trust(x, places) > trust(x, components(x)) + 0.02
        # and continuity, which is the same with the two spaces exchanged
        assert trust(places, x) > trust(components(x), x) - 0.01


def test_the_same_seed_gives_the_same_places(rng: np.random.Generator) -> None:
    x = clusters(rng, 80)
    assert np.array_equal(layout(x), layout(x.copy()))
    assert not np.array_equal(layout(x), layout(x, seed=1))


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 17])
@pytest.mark.parametrize("d", [1, 2, 30])
def test_few_points_have_places_too(rng: np.random.Generator, n: int, d: int) -> None:
    places = layout(rng.normal(size=(n, d)).astype(np.float32))
    assert places.shape == (n, 2) and places.dtype == np.float32
    assert len(np.unique(places.round(4), axis=0)) == n


@pytest.mark.filterwarnings("error")
def test_strange_vectors_have_places_in_the_unit_square(rng: np.random.Generator) -> None:
    same = np.ones((40, 5), dtype=np.float32)
    assert np.array_equal(layout(same), np.full((40, 2), 0.5, dtype=np.float32))
    twice = np.repeat(clusters(rng, 30), 30, axis=0)  # more duplicates than edges
    constant = np.concatenate([clusters(rng, 50), np.full((50, 3), 7.0, np.float32)], axis=1)
    holes = clusters(rng, 50)
    holes[3, 4], holes[7, :], holes[9, 1] = np.nan, np.inf, -np.inf
    huge = clusters(rng, 50) * np.float32(1e37)
    tiny_ones = clusters(rng, 50) * np.float32(1e-40)
    nothing = np.full((6, 4), np.nan, dtype=np.float32)
    for x in (twice, constant, holes, huge, tiny_ones, nothing, np.zeros((9, 0), np.float32)):
        places = layout(x)
        assert np.isfinite(places).all() and places.min() >= 0 and places.max() <= 1
    groups = layout(twice).reshape(30, 30, 2)
    within = np.ptp(groups, axis=1).max()
    assert within < np.ptp(groups.mean(axis=1), axis=0).min() / 3


def test_a_few_far_ones_leave_the_others_their_room(rng: np.random.Generator) -> None:
    x = rng.normal(size=(120, 20))
    x[:2] *= 20.0
    places = layout(x.astype(np.float32))
    low, high = np.quantile(places, [0.05, 0.95], axis=0)
    assert (high - low).min() > 0.4


def test_the_longer_side_fills_the_square(rng: np.random.Generator) -> None:
    places = layout(clusters(rng, 60))
    assert np.ptp(places, axis=0).max() == pytest.approx(1.0, abs=1e-5)


# -- of a database -----------------------------------------------------------------------------


def make(folder: Path) -> Database:
    return fill(Database.create(folder), tiny())


def test_every_indexed_pattern_is_on_the_map(tmp_path: Path) -> None:
    with make(tmp_path / "db") as db:
        found = db.atlas(OP, tiny())
        assert found is not None
        assert (found.op, found.scope, found.generation) == ("spmm:32", "tiny", db.store.generation)
        known = {p.id: p for p in patterns()}
        assert found.ids == sorted(known)
        assert found.names == [known[i].name for i in found.ids]
        assert found.groups == [known[i].group for i in found.ids]
        best = [VARIANTS[winner(known[i])] for i in found.ids]
        assert [json.loads(w)["variant"] for w in found.winners] == best
        assert db.atlas(Op("spmv", 1), tiny()) is None


def test_it_is_made_when_the_database_is_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "db").close()
    monkeypatch.setattr(atlas, "layout", _fails)
    with Database.open(tmp_path / "db", readonly=True) as db:
        found = db.atlas(OP, tiny())
        assert found is not None and len(found.ids) == len(patterns())


def _fails(*_: object, **__: object) -> None:
    raise AssertionError("laid out again")


def test_places_stay_while_the_vectors_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with make(tmp_path / "db") as db:
        first = db.atlas(OP, tiny())
        assert first is not None
        monkeypatch.setattr(atlas, "layout", _fails)
        pattern = patterns()[0]
        faster = runs_of(pattern, tiny(), times=lambda _, v: 1e-9 if v == 3 else 1.0)
        db.index.record(faster, pattern, tiny())
        later = db.atlas(OP, tiny())
        assert later is not None and later.generation > first.generation
        assert (later.x, later.y) == (first.x, first.y)
        at = first.ids.index(pattern.id)
        assert [json.loads(m.winners[at])["variant"] for m in (first, later)] == ["a", "d"]


def test_a_new_pattern_is_on_the_next_map(tmp_path: Path) -> None:
    with make(tmp_path / "db") as db:
        db.atlas(OP, tiny())
        new = band(211, 9, name="new")
        db.index.record(runs_of(new, tiny()), new, tiny())
        found = db.atlas(OP, tiny())
        assert found is not None and new.id in found.ids
        assert msgspec.json.decode(db.store.notes.get(KEY) or b"", type=Projection) == found


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"\xff\x00",
        b"[]",
        b'{"op": 3}',
        {"x": [0.5]},
        {"x": ["a"]},
        {"y": [1e9] * 20},
        {"ids": ["00"] * 20},
        {"digest": "0"},
    ],
)
def test_a_damaged_note_is_made_again(tmp_path: Path, damage: bytes | dict[str, object]) -> None:
    with make(tmp_path / "db") as db:
        sound = db.atlas(OP, tiny())
        raw = db.store.notes.get(KEY)
        assert raw is not None
        bad = damage if isinstance(damage, bytes) else json.dumps(json.loads(raw) | damage).encode()
        db.store.notes.put(KEY, bad)
        assert db.atlas(OP, tiny()) == sound
        assert db.store.notes.get(KEY) == raw


def test_what_was_derived_is_forgotten_with_it(tmp_path: Path) -> None:
    with make(tmp_path / "db") as db:
        db.atlas(OP, tiny())
        db.store.vectors.exchange({}, ())
        db.index.forget_partitions()
        assert db.store.notes.get(KEY) is None
        embed(db.index)
        assert db.store.notes.get(KEY) is not None


def test_names_of_strangers_pass_unchanged(tmp_path: Path) -> None:
    with make(tmp_path / "db") as db:
        odd = band(97, 5, name='<script>"\u202e\x1b[31m', group="g")
        db.index.record(runs_of(odd, tiny()), odd, tiny())
        found = db.atlas(OP, tiny())
        assert found is not None
        assert found.names[found.ids.index(odd.id)] == odd.name
