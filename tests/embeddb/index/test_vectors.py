"""Exact search: order, ties, exclusion, refused input, and the same bits as a plain sort."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from embeddb.core.errors import InputError, UsageError
from embeddb.index.vectors import VectorIndex

_NAN_AND_INF = (np.nan, np.inf, -np.inf)


def _line(count: int) -> VectorIndex:
    """`count` points on a line, id "000" at 0, "001" at 1, ..."""
    places = np.arange(count, dtype=np.float32)[:, None]
    return VectorIndex([f"{i:03}" for i in range(count)], places)


def _sorted(
    ids: list[str], vectors: NDArray[np.float32], query: NDArray[np.float32]
) -> list[tuple[np.float32, str]]:
    """Every distance, rounded to float32, with its id, in order."""
    with np.errstate(over="ignore"):
        far = np.sqrt(((vectors.astype(float) - query.astype(float)) ** 2).sum(axis=1))
        return sorted(zip(far.astype(np.float32), ids, strict=True))


def test_it_knows_its_size() -> None:
    index = VectorIndex(["b", "a"], np.zeros((2, 3), np.float32))
    assert (index.dim, index.ids) == (3, ("b", "a"))


def test_nearest_first_with_l2_distances() -> None:
    names, far = _line(200).search(np.array([[70.2], [0.0]], np.float32), 3)
    assert names == [["070", "071", "069"], ["000", "001", "002"]]
    assert far.dtype == np.float32
    assert far == pytest.approx(np.array([[0.2, 0.8, 1.2], [0, 1, 2]]), abs=1e-5)


def test_an_indexed_vector_is_at_distance_zero() -> None:
    vectors = np.random.default_rng(3).normal(size=(300, 50)).astype(np.float32) * 1e3
    index = VectorIndex([str(i) for i in range(300)], vectors)
    names, far = index.search(vectors[7:8], 1)
    assert (names, far.tolist()) == ([["7"]], [[0.0]])


def test_ties_come_by_id_also_at_the_cut() -> None:
    rng = np.random.default_rng(1)
    ids = [f"{i:03}" for i in rng.permutation(400)]
    vectors = np.repeat(np.eye(4, dtype=np.float32), 100, axis=0)
    names, far = VectorIndex(ids, vectors).search(np.array([[2.0, 0, 0, 0]], np.float32), 7)
    assert names == [sorted(ids[:100])[:7]]
    assert far.tolist() == [[1.0] * 7]


def test_never_padded() -> None:
    names, far = _line(3).search(np.zeros((2, 1), np.float32), 10)
    assert names == [["000", "001", "002"]] * 2
    assert far.shape == (2, 3)


def test_an_empty_index_answers_with_nothing() -> None:
    empty = VectorIndex([], np.zeros((0, 4), np.float32))
    names, far = empty.search(np.zeros((2, 4), np.float32), 5)
    assert (names, far.shape) == ([[], []], (2, 0))


def test_no_queries_no_answers() -> None:
    names, far = _line(3).search(np.zeros((0, 1), np.float32), 2)
    assert (names, far.shape) == ([], (0, 2))


def test_excluded_ids_never_appear() -> None:
    index = _line(300)
    start = np.zeros((1, 1), np.float32)
    barred = {f"{i:03}" for i in range(0, 300, 2)} | {"unknown"}
    assert index.search(start, 3, exclude=barred)[0] == [["001", "003", "005"]]
    assert index.search(start, 2, exclude=["000"])[0] == [["001", "002"]]
    assert index.search(start, 2, exclude=set(index.ids))[0] == [[]]
    names, far = index.search(start, 10, exclude=set(index.ids[:-2]))
    assert (names, far.tolist()) == ([["298", "299"]], [[298.0, 299.0]])


@pytest.mark.parametrize("value", _NAN_AND_INF)
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(InputError, match="query 1"):
        _line(3).search(np.array([[0], [value]], np.float32), 1)
    with pytest.raises(InputError, match="'b'"):
        VectorIndex(["a", "b"], np.array([[0], [value]], np.float32))


def test_an_id_given_twice_is_refused() -> None:
    with pytest.raises(InputError, match="'b' is given twice"):
        VectorIndex(["b", "a", "b"], np.zeros((3, 2), np.float32))


def test_shapes_that_do_not_fit_are_refused() -> None:
    index = VectorIndex(["a"], np.zeros((1, 3), np.float32))
    for queries in (np.zeros(3), np.zeros((1, 2))):
        with pytest.raises(UsageError, match="shape"):
            index.search(queries.astype(np.float32), 1)
    with pytest.raises(UsageError, match="0 neighbours"):
        index.search(np.zeros((1, 3), np.float32), 0)
    with pytest.raises(UsageError, match="2 ids"):
        VectorIndex(["a", "b"], np.zeros((1, 3), np.float32))
    with pytest.raises(UsageError, match="shape"):
        VectorIndex([], np.zeros((0, 0), np.float32))


def test_later_changes_to_the_array_do_not_reach_the_index() -> None:
    vectors = np.zeros((2, 1), np.float32)
    index = VectorIndex(["a", "b"], vectors)
    vectors[0] = 9
    assert index.search(np.zeros((1, 1), np.float32), 1)[0] == [["a"]]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(0, 400),
    dim=st.integers(1, 9),
    k=st.integers(1, 30),
    kind=st.sampled_from(["few values", "normal", "huge", "tiny", "denormal", "far off", "close"]),
    barred=st.sampled_from([0.0, 0.1, 0.9]),
)
def test_it_gives_what_a_plain_sort_gives_to_the_bit(
    seed: int, count: int, dim: int, k: int, kind: str, barred: float
) -> None:
    rng = np.random.default_rng(seed)
    # "few values" repeats vectors, so that ties go through every cut; the others strain float32.
    make = {
        "few values": lambda shape: rng.integers(0, 2, shape),
        "normal": rng.normal,
        "huge": lambda shape: rng.normal(size=shape) * 1e37,
        "tiny": lambda shape: rng.normal(size=shape) * 1e-30,
        "denormal": lambda shape: rng.normal(size=shape) * 3e-23,
        "far off": lambda shape: 1e6 + rng.integers(0, 3, shape),
        "close": lambda shape: 1 + rng.integers(0, 3, shape) * 1.2e-7,
    }[kind]
    draw = (lambda shape: make(size=shape)) if kind == "normal" else make
    vectors = np.asarray(draw((count, dim))).astype(np.float32)
    queries = np.asarray(draw((3, dim))).astype(np.float32)
    ids = [f"{i:x}" for i in rng.permutation(count)]
    exclude = [i for i in ids if rng.random() < barred]
    names, far = VectorIndex(ids, vectors).search(queries, k, exclude=exclude)
    for query, nearest, row in zip(queries, names, far, strict=True):
        pairs = [one for one in _sorted(ids, vectors, query) if one[1] not in exclude][:k]
        assert nearest == [i for _, i in pairs]
        assert row.tobytes() == np.array([d for d, _ in pairs], np.float32).tobytes()


def test_scores_beyond_float32_do_not_bring_a_neighbour_twice() -> None:
    vectors = np.full((200, 1), 1e30, np.float32)
    vectors[-3:, 0] = (1, 2, 3)
    index = VectorIndex([f"{i:03}" for i in range(200)], vectors)
    names, far = index.search(np.zeros((1, 1), np.float32), 4)
    assert names == [["197", "198", "199", "000"]]
    assert far[0, :3].tolist() == [1, 2, 3]


def test_it_agrees_with_a_plain_sort(rng: np.random.Generator) -> None:
    vectors = rng.integers(0, 4, (80, 3)).astype(np.float32)
    ids = [f"{i}" for i in rng.permutation(80)]
    names, far = VectorIndex(ids, vectors).search(vectors[:5], 9)
    for query, found, row in zip(vectors[:5], names, far, strict=True):
        pairs = sorted((float(np.linalg.norm(v - query)), i) for v, i in zip(vectors, ids))  # noqa: B905
        assert found == [i for _, i in pairs[:9]]
        assert row == pytest.approx([d for d, _ in pairs[:9]])


def test_faiss_is_imported_late_and_quietly() -> None:
    code = (
        "import sys, numpy as np, embeddb.index.inverted_lists as f;"
        "assert 'faiss' not in sys.modules;"
        "f.InvertedLists.build([f'{i:032x}' for i in range(9)], np.zeros((9, 2), 'f'))"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
