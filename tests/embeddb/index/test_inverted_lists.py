"""Nearest vectors by lists: exact where all are read, sure enough where few are."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from embeddb.core.errors import StoreCorrupt
from embeddb.index.inverted_lists import InvertedLists, Recall
from embeddb.index.vectors import VectorIndex

Floats = NDArray[np.float32]


def _ids(count: int) -> list[str]:
    return [hashlib.blake2b(b"%d" % i, digest_size=16).hexdigest() for i in range(count)]


def _clustered(count: int, dim: int = 12, *, clusters: int = 60) -> Floats:
    rng = np.random.default_rng(5)
    centres = rng.normal(size=(clusters, dim)) * 4
    found = centres[rng.integers(clusters, size=count)] + rng.normal(size=(count, dim))
    return found.astype(np.float32)


def _whole(lists: InvertedLists) -> bytes:
    return lists.head() + lists.body()


def _read(raw: bytes) -> tuple[InvertedLists, bytes]:
    return InvertedLists.read(lambda at, size: raw[at : at + size], len(raw))


@pytest.fixture(scope="module")
def many() -> tuple[list[str], Floats, InvertedLists]:
    ids, vectors = _ids(5000), _clustered(5000)
    return ids, vectors, InvertedLists.build(ids, vectors)


def test_where_all_lists_are_read_it_is_the_exact_search() -> None:
    ids, vectors = _ids(300), np.round(_clustered(300, 3)).astype(np.float32)  # many ties
    lists = InvertedLists.build(ids, vectors)
    exact = VectorIndex(ids, vectors)
    for row in range(0, 300, 37):
        for k in (1, 7, 40):
            names, far = exact.search(vectors[row : row + 1], k, exclude=ids[:5])
            read = replace(lists, recall=Recall(1.0, len(lists.centres)))
            found, distances = read.nearest(vectors[row], k, exclude=ids[:5])
            assert found == names[0]
            assert distances.tolist() == far[0].tolist()


def test_few_lists_find_what_is_said(many: tuple[list[str], Floats, InvertedLists]) -> None:
    ids, vectors, lists = many
    assert 0.99 <= lists.recall.share <= 1.0
    assert lists.recall.lists < len(lists.centres) / 4
    queries = _clustered(5100)[5000:]
    exact, _ = VectorIndex(ids, vectors).search(queries, 10)
    hits = sum(
        len({*lists.nearest(query, 10)[0]} & {*names})
        for query, names in zip(queries, exact, strict=True)
    )
    assert hits / (10 * len(queries)) > 0.97


def test_more_neighbours_than_the_lists_hold_are_looked_for_further() -> None:
    ids, vectors = _ids(200), _clustered(200)
    lists = replace(InvertedLists.build(ids, vectors), recall=Recall(1.0, 1))
    assert len(lists.nearest(vectors[0], 150)[0]) == 150
    assert len(lists.nearest(vectors[0], 500)[0]) == 200


def test_bytes_and_back(many: tuple[list[str], Floats, InvertedLists]) -> None:
    _, vectors, lists = many
    raw = _whole(lists)
    again, head = _read(raw)
    assert head == lists.head() and again.recall == lists.recall and again.count == 5000
    for row in range(0, 5000, 500):
        one, two = lists.nearest(vectors[row], 9), again.nearest(vectors[row], 9)
        assert one[0] == two[0] and one[1].tolist() == two[1].tolist()
    assert _whole(InvertedLists.build(_ids(5000), _clustered(5000))) == raw


def test_newer_vectors_stand_beside_and_in_place_of_others(
    many: tuple[list[str], Floats, InvertedLists],
) -> None:
    ids, vectors, lists = many
    at = vectors[17] + 0.001
    new = "f" * 32
    grown = lists.including({new: at, ids[17]: vectors[17] + 100})
    assert grown.nearest(at, 1)[0] == [new]
    assert ids[17] not in grown.nearest(vectors[17], 20)[0]
    assert grown.nearest(vectors[17] + 100, 1)[0] == [ids[17]]
    assert ids[17] in lists.nearest(vectors[17], 1)[0]


def test_a_damaged_list_is_met_when_it_is_read(
    many: tuple[list[str], Floats, InvertedLists],
) -> None:
    _, vectors, lists = many
    raw = bytearray(_whole(lists))
    raw[-1] ^= 1  # of the last list
    damaged, head = _read(bytes(raw))
    assert head == lists.head()
    last = damaged.centres[-1]
    with pytest.raises(StoreCorrupt, match="a list of vectors is not as it was written"):
        damaged.nearest(last, 5)
    far = vectors[np.linalg.norm(vectors - last, axis=1).argmax()]
    assert damaged.nearest(far, 1)[1][0] == 0.0


@pytest.mark.parametrize("cut", [0, 7, 39, 40, 400, -1, -17])
def test_what_is_cut_or_longer_is_refused(
    many: tuple[list[str], Floats, InvertedLists], cut: int
) -> None:
    raw = _whole(many[2])
    for wrong in (raw[:cut], raw[:cut] + b"\0" * 100 + raw[cut:]):
        if len(wrong) != len(raw):
            with pytest.raises(StoreCorrupt):
                _read(wrong)


@pytest.mark.parametrize("word", range(4))
@pytest.mark.parametrize("value", [0, -1, 1 << 62, 1 << 31, 7])
def test_sizes_that_the_bytes_do_not_fill_are_refused(
    many: tuple[list[str], Floats, InvertedLists], word: int, value: int
) -> None:
    raw = bytearray(_whole(many[2]))
    raw[8 * word : 8 * word + 8] = value.to_bytes(8, "little", signed=True)
    if word == 3 and value > 0:
        found, _ = _read(bytes(raw))  # how many lists are read: never more than there are
        assert found.recall.lists <= len(found.centres)
    else:
        with pytest.raises(StoreCorrupt):
            _read(bytes(raw))
