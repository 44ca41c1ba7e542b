"""k-means over embeddings: the clusters, their representatives, and the verb."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from builders import OP, band, fill, patterns, tiny
from command_line import run_verb
from hypothesis import given, settings
from hypothesis import strategies as st

from embeddb.core.errors import UsageError
from embeddb.core.records import Measurement, Run, WorkloadInfo
from embeddb.database import Database
from indexer.campaign.budget.samplers import Cluster, cluster
from indexer.embed import embed


def blobs(rng: np.random.Generator, sizes: tuple[int, ...]) -> np.ndarray:
    """Far apart along the first feature; the second is noise of another scale."""
    parts = [
        np.stack([100 * at + rng.normal(0, 1, size), rng.normal(0, 1e-3, size)], axis=1)
        for at, size in enumerate(sizes)
    ]
    return np.concatenate(parts).astype(np.float32)


def test_blobs_are_found_the_largest_first(rng: np.random.Generator) -> None:
    x = blobs(rng, (5, 40, 12))
    x[:, 1] = 0  # a constant feature weighs nothing
    found = cluster(x, 3, seed=1)
    assert [sorted(one.members) for one in found] == [
        list(range(5, 45)),
        list(range(45, 57)),
        list(range(5)),
    ]
    for one in found:
        mine = x[one.members, 0].astype(np.float64)
        to_centre = np.abs(mine - mine.mean())
        assert np.array_equal(to_centre, np.sort(to_centre))
        assert one.spread == pytest.approx(mine.std() / x[:, 0].std(), rel=1e-5)


def test_features_count_alike_whatever_their_scale(rng: np.random.Generator) -> None:
    x = blobs(rng, (20, 20))
    scaled = x * np.array([1e-6, 1e6], np.float32) + np.float32(3)
    assert _members(cluster(x, 2, 0)) == _members(cluster(scaled, 2, 0))


def _members(clusters: list[Cluster]) -> list[list[int]]:
    return [sorted(one.members.tolist()) for one in clusters]


@given(
    n=st.integers(1, 40),
    d=st.integers(1, 4),
    values=st.integers(1, 4),
    seed=st.integers(0, 2**31),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_every_cluster_has_members(
    n: int, d: int, values: int, seed: int, data: st.DataObject
) -> None:
    """Many equal vectors: no cluster stays empty, and nothing depends on anything but the seed."""
    x = np.random.default_rng(seed).integers(0, values, (n, d)).astype(np.float32)
    k = data.draw(st.integers(1, len(np.unique(x, axis=0))))
    one, two = cluster(x, k, seed), cluster(x, k, seed)
    sizes = [len(members) for members in _members(one)]
    assert len(sizes) == k and min(sizes) > 0 and sizes == sorted(sizes, reverse=True)
    assert sorted(at for members in _members(one) for at in members) == list(range(n))
    for a, b in zip(one, two, strict=True):
        assert np.array_equal(a.members, b.members) and a.spread == b.spread


def test_as_many_clusters_as_vectors(rng: np.random.Generator) -> None:
    x = rng.normal(size=(12, 3)).astype(np.float32)
    found = cluster(x, 12, 0)
    assert sorted(_members(found)) == [[at] for at in range(12)]
    assert max(one.spread for one in found) < 1e-6


def test_ties_go_to_the_first() -> None:
    x = np.array([[0], [2], [10], [12]], np.float32)
    assert [one.members.tolist() for one in cluster(x, 2, 0)] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("x", "k", "match"),
    [
        (np.zeros((0, 3)), 1, "1 clusters of 0 patterns"),
        (np.ones((5, 3)), 2, "1 different vectors"),
        (np.eye(3), 4, "4 clusters of 3 patterns"),
        (np.eye(3), 0, "0 clusters"),
        (np.full((3, 2), np.nan), 1, "finite"),
    ],
)
def test_what_cannot_be_clustered(x: np.ndarray, k: int, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        cluster(x.astype(np.float32), k, 0)


# -- the verb ----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Database.create(tmp_path / "db") as db:
        fill(db, tiny())
        info = WorkloadInfo(id="ab" * 16, name="named", stub=True)
        run = Run(info.id, OP, "tiny", tiny().default(OP), Measurement(times_s=(1.0,)))
        db.store.append([run], patterns=[info])
    return tmp_path / "db"


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["clusters", str(folder), "--featurizer", "stats", "-k", "4", "--seed", "3", "--json"]
    assert run_verb(command) == 0
    first = capsys.readouterr().out
    document = json.loads(first)
    assert set(document) == {
        *("database", "featurizer", "version", "seed", "patterns", "without_vector", "clusters")
    }
    assert (document["patterns"], document["without_vector"]) == (20, 1)
    by_id = {p.id: p for p in patterns()}
    for at, found in enumerate(document["clusters"]):
        keys = ("cluster", "size", "groups", "spread", "pattern_id", "name", "members")
        assert set(found) == {*keys} and found["cluster"] == at + 1
        assert found["name"] == by_id[found["pattern_id"]].name
        assert found["members"][0] == found["pattern_id"]
        assert found["groups"] == len({by_id[i].group for i in found["members"]})
        assert found["size"] == len(found["members"]) and found["spread"] >= 0
    assert sorted(i for c in document["clusters"] for i in c["members"]) == sorted(by_id)
    assert run_verb(command) == 0
    assert capsys.readouterr().out == first


def test_a_stub_of_known_size_does_not_decide_the_featurizer(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Database.open(folder) as db:
        info = WorkloadInfo(id="cd" * 16, name="sized", m=9, n=9, nnz=20, stub=True)
        run = Run(info.id, OP, "tiny", tiny().default(OP), Measurement(times_s=(1.0,)))
        db.store.append([run], patterns=[info])
        embed(db.index)
        assert (
            len(db.store.vectors.get("sizes", db.index.featurizer_version("sizes"), [info.id])) == 1
        )
    assert run_verb(["clusters", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["featurizer"] == "stats"


def test_for_people(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb(["clusters", str(folder)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("cluster") and len(out.splitlines()) == 1 + 10 + 2
    assert "1 pattern without a vector left out" in out


def test_errors(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb(["clusters", str(folder), "--featurizer", "stats", "-k", "21"]) == 2
    assert "21 clusters of 20 patterns" in capsys.readouterr().err
    assert run_verb(["clusters", str(folder), "--featurizer", "other"]) == 2
    assert "no featurizer named 'other'" in capsys.readouterr().err
    with Database.create(tmp_path / "empty") as db:
        db.store.put_structure(band(9, 2), WorkloadInfo(id=band(9, 2).id))
    assert run_verb(["clusters", str(tmp_path / "empty")]) == 3
    assert "embeddb embed" in capsys.readouterr().err
